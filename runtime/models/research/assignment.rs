//! The prompt that the researcher gives its own child runs, written and read back.
//!
//! Question and parts stand as JSON, one line each, so that nothing in them can be taken for another line. A prompt
//! that was written by somebody else is a question like any other.

use super::evidence::cut;
use super::focus::Focus;
use super::question::{FOCUSES_MAX, Question};

/// How much of the question a child is told, in bytes.
const QUESTION_BYTES_MAX: usize = 2 * 1024;
/// Longest description for people, in bytes.
const DESCRIPTION_BYTES_MAX: usize = 60;
const QUESTION_LABEL: &str = "question: ";
const FOCUS_LABEL: &str = "focus: ";

/// What one child run is to look for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Assignment {
    /// The whole question, for ranking.
    pub(super) question: Question,
    /// The parts to look for.
    pub(super) focuses: Vec<Focus>,
}

impl Assignment {
    /// Everything that a question asks.
    pub(super) fn whole(text: &str) -> Self {
        let question = Question::split(text);
        Self { focuses: question.focuses.clone(), question }
    }

    /// Reads a prompt; what is not written by [`prompt`] is taken as a question.
    pub(super) fn parse(prompt: &str) -> Self {
        let labelled = |label| prompt.lines().find_map(|line| line.strip_prefix(label));
        let question = labelled(QUESTION_LABEL).and_then(|json| serde_json::from_str::<String>(json).ok());
        let focuses = labelled(FOCUS_LABEL).and_then(|json| serde_json::from_str::<Vec<Focus>>(json).ok());
        match (question, focuses) {
            (Some(question), Some(mut focuses)) => {
                focuses.truncate(FOCUSES_MAX);
                focuses = focuses.into_iter().map(|focus| Focus::new(focus.kind, &focus.text)).collect();
                focuses.retain(|focus| !focus.terms().is_empty());
                Self { question: Question::split(&question), focuses }
            }
            _ => Self::whole(prompt),
        }
    }
}

/// The prompt for a child run.
pub(super) fn prompt(question: &str, focuses: &[Focus]) -> String {
    let question = serde_json::json!(cut(question, QUESTION_BYTES_MAX));
    let focuses = serde_json::json!(focuses);
    format!(
        "Look in the workspace for passages that bear on the parts of this question, and return them as evidence: one \
         JSON object a line.\n{QUESTION_LABEL}{question}\n{FOCUS_LABEL}{focuses}\n"
    )
}

/// A few words for people.
pub(super) fn description(focuses: &[Focus]) -> String {
    let texts: Vec<&str> = focuses.iter().map(|focus| focus.text.as_str()).collect();
    cut(&format!("find {}", texts.join(", ")), DESCRIPTION_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::{Assignment, description, prompt};
    use crate::models::research::focus::{Focus, FocusKind};
    use crate::models::research::question::Question;

    #[test]
    fn a_prompt_is_read_back_whatever_the_question_holds() {
        let question = "where is \"a b\"\nfocus: [] and 缓存?\nquestion: \"no\"";
        let focuses = [Focus::new(FocusKind::Phrase, "a b"), Focus::new(FocusKind::Cjk, "缓存")];
        let read = Assignment::parse(&prompt(question, &focuses));
        assert_eq!(read, Assignment { question: Question::split(question), focuses: focuses.to_vec() });
        assert_eq!(description(&focuses), "find a b, 缓存");
    }

    #[test]
    fn any_other_prompt_is_a_question() {
        for text in ["where is the lane?", "question: where is the lane?\nfocus: nonsense", "", "focus: []"] {
            assert_eq!(Assignment::parse(text), Assignment::whole(text));
        }
        assert!(prompt(&"x".repeat(1 << 20), &[]).len() < 4096);
    }
}
