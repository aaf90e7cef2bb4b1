//! What a fan-out of tasks gives back: one section and one entry for each task, in the order asked.
//!
//! A child's answer is shown whole when it is short, else by its head and its tail, with the number of bytes left
//! out between them: a parent's conversation must not be flooded by its children.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cancellation::CancelReason;
use crate::context::{ChildResult, ChildResults, StartedTask};
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};

/// Longest answer that is shown whole, in bytes.
pub const ANSWER_BYTES_MAX: usize = 4_000;
/// What is shown of the head of a longer answer, in bytes.
pub const ANSWER_HEAD_BYTES: usize = 3_000;
/// What is shown of its tail, in bytes.
pub const ANSWER_TAIL_BYTES: usize = 800;
/// Longest error message in the facts, in bytes.
pub const ERROR_MESSAGE_BYTES_MAX: usize = 1_024;
/// Most anchors of one child that are repeated.
pub const ANCHORS_MAX: usize = 64;

/// What was asked of the fan-out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Whether it is more than one plain task.
    pub fan_out: bool,
    /// How many tasks.
    pub task_count: usize,
    /// Whether one success is enough.
    pub allow_partial_failure: bool,
    /// The time-out in milliseconds.
    pub timeout_ms: Option<u64>,
    /// How many successes end it.
    pub min_success_count: Option<usize>,
}

/// The outcome of the call; `cancel` is why it was told to end, if it was.
pub fn outcome(ended: &ChildResults, asked: &Asked, duration: Duration, cancel: Option<&CancelReason>) -> ToolOutcome {
    let total = asked.task_count;
    let successes = ended.results.iter().filter(|result| result.success).count().min(total);
    let failed = total - successes;
    let accepted = failed == 0 || (asked.allow_partial_failure && successes > 0);
    let error = match cancel {
        Some(reason) if failed > 0 => ToolOutcome::ended_early("task", reason).error,
        _ if accepted => None,
        _ => Some(ToolErrorKind::PartialFailure { failed, total }),
    };
    let answers: Vec<Answer> = ended.results.iter().map(|result| Answer::of(&result.output)).collect();
    let stopped = cancel.filter(|_| failed > 0);
    let facts = match (asked.fan_out, ended.results.first(), answers.first()) {
        (false, Some(result), Some(answer)) => single_facts(result, answer),
        _ => fan_out_facts(ended, &answers, asked, duration, successes),
    };
    ToolOutcome {
        output: text(ended, &answers, total, stopped),
        exit_code: i32::from(error.is_some()),
        metadata: facts,
        error,
        trust: trust(&ended.results),
        ..ToolOutcome::default()
    }
}

/// The outcome of a call whose task goes on.
pub fn started(task: &StartedTask) -> ToolOutcome {
    let StartedTask { task, session, of_workspace } = task;
    let text = format!(
        "The task was started in the background. Its id: {task}. It begins when this turn has ended well; its answer is \
         told to you when it is there, so go on with other work."
    );
    ToolOutcome::success(text)
        .with("task_id", json!(task))
        .with("session_id", json!(session))
        .with("background", true)
        .with("workspace_child", *of_workspace)
}

/// What is told later of a background task: whose answer it is, and the answer as it is shown.
pub fn later(result: &ChildResult, description: &str, cancelled: bool) -> String {
    let ChildResult { task, agent, .. } = result;
    let how = match (result.success, cancelled) {
        (_, true) => "was cancelled",
        (true, false) => "has ended well",
        (false, false) => "has failed",
    };
    let mut text = format!("[The background task {task} ({agent}: {description}) {how}.");
    if result.success && !cancelled {
        text.push_str(" What follows is that agent's answer, and no word of a person.");
    }
    text.push_str("]\n");
    text.push_str(&Answer::of(&result.output).text);
    if let Some(uri) = &result.artifact {
        let _ = write!(text, "\n[the whole answer: {uri}]");
    }
    text
}

/// An answer as it is shown.
struct Answer {
    text: String,
    truncated: bool,
}

impl Answer {
    fn of(whole: &str) -> Self {
        if whole.len() <= ANSWER_BYTES_MAX {
            return Self { text: whole.to_owned(), truncated: false };
        }
        let head = &whole[..whole.floor_char_boundary(ANSWER_HEAD_BYTES)];
        let tail = &whole[whole.ceil_char_boundary(whole.len() - ANSWER_TAIL_BYTES)..];
        let omitted = whole.len() - head.len() - tail.len();
        Self { text: format!("{head}\n[{omitted} bytes of this answer are left out here]\n{tail}"), truncated: true }
    }
}

fn text(ended: &ChildResults, answers: &[Answer], total: usize, stopped: Option<&CancelReason>) -> String {
    let mut text = format!("{total} {} run:\n", if total == 1 { "task was" } else { "tasks were" });
    for (index, (result, answer)) in ended.results.iter().zip(answers).enumerate() {
        let mark = if result.success { "OK" } else { "ERR" };
        let _ = writeln!(text, "\n--- Task {} ({}) [{mark}] ---", index + 1, result.agent);
        match answer.text.trim().is_empty() {
            false => text.push_str(&answer.text),
            true if result.success => text.push_str("(it ended well, without an answer)"),
            true => text.push_str("(it failed without saying why)"),
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    if let Some(reason) = stopped {
        let _ = writeln!(text, "\n[stopped: {reason}]");
    } else if ended.timed_out {
        text.push_str("\n[the time-out ended what had not finished]\n");
    } else if ended.returned_early {
        text.push_str("\n[enough tasks succeeded, so the others were ended]\n");
    }
    text
}

/// Answers that draw on the web are to be believed no more than the web.
fn trust(results: &[ChildResult]) -> Trust {
    let is_address = |anchor: &String| anchor.starts_with("http://") || anchor.starts_with("https://");
    match results.iter().flat_map(|result| &result.source_anchors).any(is_address) {
        true => Trust::External,
        false => Trust::WorkspaceData,
    }
}

fn single_facts(result: &ChildResult, answer: &Answer) -> Map<String, Value> {
    let mut facts = Map::new();
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("task_id", json!(result.task));
    put("session_id", json!(result.session));
    put("agent", json!(result.agent));
    put("success", json!(result.success));
    put("output_bytes", json!(result.output.len()));
    put("truncated_for_context", json!(answer.truncated));
    extras(result, &mut put);
    put("source_anchors", json!(anchors(result)));
    facts
}

/// What only some results have.
fn extras(result: &ChildResult, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    if let Some(uri) = &result.artifact {
        put("artifact_id", json!(format!("task-output:{}", result.task)));
        put("artifact_uri", json!(uri));
    }
    if let Some(structured) = &result.structured {
        put("structured", structured.clone());
    }
}

fn fan_out_facts(
    ended: &ChildResults,
    answers: &[Answer],
    asked: &Asked,
    duration: Duration,
    successes: usize,
) -> Map<String, Value> {
    let failed = asked.task_count - successes;
    let results: Vec<Value> = ended.results.iter().zip(answers).map(|(result, answer)| entry(result, answer)).collect();
    let mut facts = Map::new();
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("task_count", json!(asked.task_count));
    put("result_count", json!(ended.results.len()));
    put("success_count", json!(successes));
    put("failed_count", json!(failed));
    put("all_success", json!(failed == 0));
    put("partial_failure", json!(failed > 0 && successes > 0));
    put("allow_partial_failure", json!(asked.allow_partial_failure));
    put("timeout_ms", json!(asked.timeout_ms));
    put("timed_out", json!(ended.timed_out));
    put("min_success_count", json!(asked.min_success_count));
    put("returned_early", json!(ended.returned_early));
    put("duration_ms", json!(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)));
    put("results", Value::Array(results));
    facts
}

fn entry(result: &ChildResult, answer: &Answer) -> Value {
    let mut entry = Map::new();
    let mut put = |key: &str, value: Value| entry.insert(key.to_owned(), value);
    put("task_id", json!(result.task));
    put("session_id", json!(result.session));
    put("agent", json!(result.agent));
    put("success", json!(result.success));
    if !result.success {
        let end = result.output.floor_char_boundary(ERROR_MESSAGE_BYTES_MAX);
        put("error_message", json!(result.output[..end]));
    }
    put("output_excerpt", json!(answer.text));
    put("source_anchors", json!(anchors(result)));
    put("output_bytes", json!(result.output.len()));
    put("truncated_for_context", json!(answer.truncated));
    extras(result, &mut put);
    Value::Object(entry)
}

fn anchors(result: &ChildResult) -> &[String] {
    &result.source_anchors[..result.source_anchors.len().min(ANCHORS_MAX)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::{ANSWER_BYTES_MAX, Answer, Asked, later, outcome};
    use crate::cancellation::CancelReason;
    use crate::context::{ChildResult, ChildResults};
    use crate::ids::{SessionId, TaskId};
    use crate::outcome::{ToolErrorKind, Trust};

    fn result(number: usize, success: bool, output: &str) -> ChildResult {
        ChildResult {
            task: TaskId::new(format!("task-{number}")),
            session: SessionId::new(format!("task-run-{number}")),
            agent: "explore".into(),
            success,
            output: output.into(),
            source_anchors: vec![format!("file-{number}")],
            structured: None,
            artifact: None,
        }
    }

    fn results(results: Vec<ChildResult>) -> ChildResults {
        ChildResults { results, timed_out: false, returned_early: false }
    }

    fn asked(task_count: usize, allow_partial_failure: bool) -> Asked {
        Asked { fan_out: true, task_count, allow_partial_failure, timeout_ms: Some(5), min_success_count: None }
    }

    const SPAN: Duration = Duration::from_millis(12);

    #[test]
    fn each_task_has_its_line_and_its_entry() {
        let ended = results(vec![result(1, true, "found"), result(2, false, "broke")]);
        let done = outcome(&ended, &asked(2, false), SPAN, None);
        assert!(done.output.contains("\n--- Task 1 (explore) [OK] ---\nfound\n"), "{}", done.output);
        assert!(done.output.contains("\n--- Task 2 (explore) [ERR] ---\nbroke\n"), "{}", done.output);
        assert_eq!(done.error, Some(ToolErrorKind::PartialFailure { failed: 1, total: 2 }));
        let keys: Vec<&String> = done.metadata.keys().collect();
        let documented = [
            "task_count",
            "result_count",
            "success_count",
            "failed_count",
            "all_success",
            "partial_failure",
            "allow_partial_failure",
            "timeout_ms",
            "timed_out",
            "min_success_count",
            "returned_early",
            "duration_ms",
            "results",
        ];
        assert_eq!(keys, documented);
        assert_eq!(done.metadata["duration_ms"], 12);
        assert_eq!(done.metadata["partial_failure"], true);
        let expected = json!({
            "task_id": "task-2", "session_id": "task-run-2", "agent": "explore", "success": false,
            "error_message": "broke", "output_excerpt": "broke", "source_anchors": ["file-2"], "output_bytes": 5,
            "truncated_for_context": false,
        });
        assert_eq!(done.metadata["results"][1], expected);
        assert!(done.metadata["results"][0].get("error_message").is_none());
    }

    #[test]
    fn a_failure_is_accepted_only_with_leave_and_one_success() {
        let some = results(vec![result(1, true, "a"), result(2, false, "b")]);
        assert!(outcome(&some, &asked(2, true), SPAN, None).is_success());
        let none = results(vec![result(1, false, "a"), result(2, false, "")]);
        let done = outcome(&none, &asked(2, true), SPAN, None);
        assert_eq!(done.error, Some(ToolErrorKind::PartialFailure { failed: 2, total: 2 }));
        // A result that never came counts as a failure.
        let lost = outcome(&results(vec![result(1, true, "a")]), &asked(2, false), SPAN, None);
        assert_eq!(lost.error, Some(ToolErrorKind::PartialFailure { failed: 1, total: 2 }));
    }

    #[test]
    fn a_cancel_is_the_ending_unless_everything_was_done() {
        let some = results(vec![result(1, true, "a"), result(2, false, "b")]);
        let done = outcome(&some, &asked(2, true), SPAN, Some(&CancelReason::Requested));
        assert!(matches!(done.error, Some(ToolErrorKind::Cancelled { .. })));
        assert!(done.output.contains("stopped: cancelled on request"));
        let all = results(vec![result(1, true, "a")]);
        assert!(outcome(&all, &asked(1, false), SPAN, Some(&CancelReason::Requested)).is_success());
    }

    #[test]
    fn one_plain_task_has_its_own_facts_and_web_answers_are_outside_words() {
        let mut one = result(1, true, "a");
        one.source_anchors = vec!["https://example.invalid/x".into()];
        let asked = Asked { fan_out: false, timeout_ms: None, ..asked(1, false) };
        let done = outcome(&results(vec![one]), &asked, SPAN, None);
        let keys: Vec<&String> = done.metadata.keys().collect();
        let documented =
            ["task_id", "session_id", "agent", "success", "output_bytes", "truncated_for_context", "source_anchors"];
        assert_eq!(keys, documented);
        assert_eq!(done.trust, Trust::External);
    }

    #[test]
    fn the_whole_of_a_long_answer_and_its_form_are_among_the_facts() {
        let mut one = result(1, true, "a");
        one.artifact = Some("a3s://tool-output/task/x".into());
        one.structured = Some(json!({"n": 1}));
        let facts = outcome(&results(vec![one.clone()]), &asked(1, false), SPAN, None).metadata;
        let entry = &facts["results"][0];
        assert_eq!((&entry["artifact_id"], &entry["structured"]), (&json!("task-output:task-1"), &json!({"n": 1})));
        assert_eq!(entry["artifact_uri"], "a3s://tool-output/task/x");
        let told = later(&one, "look", false);
        assert!(told.starts_with("[The background task task-1 (explore: look) has ended well."), "{told}");
        assert!(told.ends_with("]\na\n[the whole answer: a3s://tool-output/task/x]"), "{told}");
        assert!(later(&one, "look", true).contains("was cancelled"));
    }

    #[test]
    fn long_answers_are_cut_between_characters() {
        let fits = "x".repeat(ANSWER_BYTES_MAX);
        assert_eq!(Answer::of(&fits).text, fits);
        // 3-byte characters: 3000 is a boundary of theirs, the start of the last 800 bytes is none.
        let long = "\u{20ac}".repeat(2_000);
        let shown = Answer::of(&long);
        let lines: Vec<&str> = shown.text.lines().collect();
        assert!(shown.truncated);
        assert_eq!((lines[0].len(), lines[2].len()), (3_000, 798));
        assert_eq!(lines[1], format!("[{} bytes of this answer are left out here]", 6_000 - 3_000 - 798));
    }
}
