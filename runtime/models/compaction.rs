//! What a model is asked when a summary has to stand for the oldest part of a conversation.
//!
//! The summary is written by the model of the run itself. Pictures and thoughts are left out of what it reads, and long
//! texts are cut in the middle, so that the request fits although the conversation does not. What must stay true: calls
//! and results stay in pairs on both sides of the cut, and the task under way is kept in its own words.

use std::fmt::Write as _;

use toolwarden_tools::offer::Offer;

use super::transcript::oldest_beyond;
use super::turn_options::TurnOptions;
use super::{Message, ModelRequest};

/// The most tokens that a summary may have.
const SUMMARY_TOKENS_MAX: u64 = 4096;
/// The least bytes that are left of a text, before and after its middle.
const SHORTENED_BYTES_MIN: usize = 200;

const INSTRUCTIONS: &str = "You summarise the beginning of a working session, which is about to be removed, for the one \
                            who goes on with it. Keep: what was asked and decided, names of files and symbols, what was \
                            changed and how it was checked, errors and their causes, and what is left to do. Leave out: \
                            politeness, and contents that can be read again. Invent nothing. Answer with the summary \
                            alone.";

/// A summary to be asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    /// How many of the oldest messages it will stand for.
    pub messages: usize,
    /// What is asked.
    pub request: ModelRequest,
}

impl Compaction {
    /// What to ask so that about `kept_bytes` of the newest messages stay as they are, in a request that fills at most
    /// half of the window; none when nothing older is left.
    pub fn of(conversation: &ModelRequest, window_tokens: u64, kept_bytes: usize) -> Option<Self> {
        let messages = oldest_beyond(&conversation.messages, kept_bytes);
        // One message alone may be the summary of an earlier time.
        if messages < 2 {
            return None;
        }
        let oldest = &conversation.messages[..messages];
        let room_bytes = usize::try_from(window_tokens).unwrap_or(usize::MAX).saturating_mul(4) / 2;
        let share = (room_bytes / messages.max(1)).max(SHORTENED_BYTES_MIN);
        let mut protocol = String::new();
        for message in oldest {
            write_down(&mut protocol, message, share);
        }
        let text = format!("The beginning of the session:\n\n{protocol}\nNow write the summary.");
        let request = ModelRequest {
            system: INSTRUCTIONS.to_owned(),
            messages: vec![Message::User { text }],
            tools: Offer::default(),
            tool_calls_allowed: false,
            agent: conversation.agent.clone(),
            fan_out: conversation.fan_out,
            options: TurnOptions { output_tokens_max: Some(SUMMARY_TOKENS_MAX), ..TurnOptions::default() },
        };
        Some(Self { messages, request })
    }

    /// The message that takes the place of the oldest.
    pub fn summary(&self, text: &str, task: &str) -> String {
        format!(
            "[The beginning of this session was removed to make room. A summary of it:]\n{}\n\n[The task under way, as it \
             was put:]\n{task}",
            text.trim()
        )
    }
}

fn write_down(protocol: &mut String, message: &Message, share: usize) {
    // Writing to a string cannot fail.
    let _ = match message {
        Message::User { text } => writeln!(protocol, "USER: {}", shortened(text, share)),
        Message::Image { media_type, .. } => writeln!(protocol, "USER: (a picture, {media_type})"),
        Message::Assistant { text, calls, .. } => {
            let mut written = writeln!(protocol, "ASSISTANT: {}", shortened(text, share));
            for call in calls {
                let arguments = call.arguments.for_request().to_string();
                written = writeln!(protocol, "CALL {}: {}", call.tool, shortened(&arguments, share / calls.len()));
            }
            written
        }
        Message::ToolResults { results } => {
            let mut written = Ok(());
            for result in results {
                let outcome = if result.success { "RESULT" } else { "FAILED" };
                let output = shortened(&result.output, share / results.len());
                written = writeln!(protocol, "{outcome} {}: {output}", result.tool);
            }
            written
        }
    };
}

/// A text, or its beginning and end when it is longer than its share.
fn shortened(text: &str, share: usize) -> String {
    let share = share.max(SHORTENED_BYTES_MIN);
    if text.len() <= share {
        return text.to_owned();
    }
    let head = text.floor_char_boundary(share * 2 / 3);
    let tail = text.ceil_char_boundary(text.len() - share / 3);
    format!("{} [{} bytes left out] {}", &text[..head], tail - head, &text[tail..])
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwarden_tools::offer::Offer;

    use super::{Compaction, shortened};
    use crate::models::turn_options::TurnOptions;
    use crate::models::{CallArguments, Message, ModelCall, ModelRequest, ModelTurn, ToolResult};

    fn conversation(rounds: usize, output_bytes: usize) -> ModelRequest {
        let mut messages = vec![Message::User { text: "the task".into() }];
        for round in 0..rounds {
            let id = format!("c{round}");
            let call = ModelCall { id: id.clone(), tool: "read".into(), arguments: CallArguments::Parsed(json!({})) };
            messages.push(ModelTurn::calling("", vec![call]).into_message());
            let output = "x".repeat(output_bytes);
            let result = ToolResult { call_id: id, tool: "read".into(), output, success: true };
            messages.push(Message::ToolResults { results: vec![result] });
        }
        ModelRequest {
            system: "s".into(),
            messages,
            tools: Offer::default(),
            tool_calls_allowed: true,
            agent: "general".into(),
            fan_out: 1,
            options: TurnOptions::default(),
        }
    }

    #[test]
    fn the_cut_never_parts_a_call_from_its_result() {
        for kept in [0, 1, 500, 1500, 5000] {
            let conversation = conversation(9, 1000);
            let compaction = Compaction::of(&conversation, 1000, kept).unwrap();
            let next = &conversation.messages[compaction.messages];
            assert!(matches!(next, Message::Assistant { .. }), "{kept}: {next:?}");
        }
        assert_eq!(Compaction::of(&conversation(9, 1000), 1000, 1_000_000), None);
        assert_eq!(Compaction::of(&conversation(0, 0), 1000, 0), None);
    }

    #[test]
    fn the_request_fits_into_half_the_window() {
        let compaction = Compaction::of(&conversation(50, 100_000), 8000, 0).unwrap();
        let Message::User { text } = &compaction.request.messages[0] else { panic!("no words") };
        assert!(text.len() < 8000 * 4 / 2 + 100 * 250, "{}", text.len());
        assert!(text.contains("bytes left out"));
        assert!(compaction.summary(" said ", "the task").ends_with("the task"));
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let text = "äöü".repeat(400);
        let short = shortened(&text, 0);
        assert!(short.len() < 260 && short.starts_with('ä') && short.ends_with('ü'), "{short}");
        assert_eq!(shortened("short", 0), "short");
    }
}
