//! The one rule of a conversation: every call has exactly one result, in the very next message.
//!
//! All providers refuse a conversation that breaks it, and go on refusing it for ever once it is stored. So it is
//! checked before a request leaves, and a conversation that was cut short (a crash, a cancelled run) is mended by
//! saying so: calls without a result get one that says they were interrupted.

use std::collections::BTreeSet;

use thiserror::Error;
use toolwarden_tools::canonical_json::json_bytes;

use super::{Message, ModelCall, ModelTurn, Replay, ToolResult};

/// What a call is told that was never answered.
pub const INTERRUPTED: &str = "Interrupted: the run ended before this call gave a result. It may have happened in part; look before repeating it.";

/// What a call is told that may not be whole.
pub const CUT_OFF: &str =
    "Not run: the answer reached the output limit, so this call may be cut off. Send less at a time, in several calls.";

/// Why a conversation is not valid; messages are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PairingError {
    /// Two calls of one turn share an id.
    #[error("message {message}: two calls have the id {id:?}")]
    DuplicateCall {
        /// Which message.
        message: usize,
        /// The id.
        id: String,
    },
    /// A call has no result in the next message.
    #[error("message {message}: the call {id:?} has no result in the next message")]
    Unanswered {
        /// The message that holds the call.
        message: usize,
        /// Its id.
        id: String,
    },
    /// A call has more than one result.
    #[error("message {message}: two results for the call {id:?}")]
    DuplicateResult {
        /// Which message.
        message: usize,
        /// The id.
        id: String,
    },
    /// A result answers no call of the message just before.
    #[error("message {message}: the result for {id:?} answers no call of the message before it")]
    Orphan {
        /// Which message.
        message: usize,
        /// The id.
        id: String,
    },
}

/// Checks that each call has exactly one result right after it, and each result its call.
///
/// # Errors
/// The first fault.
pub fn check_pairing(messages: &[Message]) -> Result<(), PairingError> {
    let mut open: BTreeSet<&str> = BTreeSet::new();
    for (message, entry) in messages.iter().enumerate() {
        if let Message::ToolResults { results } = entry {
            check_results(message, results, &mut open)?;
        }
        if let Some(id) = open.first() {
            return Err(PairingError::Unanswered { message: message - 1, id: (*id).to_owned() });
        }
        if let Message::Assistant { calls, .. } = entry {
            for call in calls {
                if !open.insert(&call.id) {
                    return Err(PairingError::DuplicateCall { message, id: call.id.clone() });
                }
            }
        }
    }
    match open.first() {
        Some(id) => Err(PairingError::Unanswered { message: messages.len() - 1, id: (*id).to_owned() }),
        None => Ok(()),
    }
}

fn check_results(message: usize, results: &[ToolResult], open: &mut BTreeSet<&str>) -> Result<(), PairingError> {
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for result in results {
        let id = result.call_id.as_str();
        if !seen.insert(id) {
            return Err(PairingError::DuplicateResult { message, id: id.to_owned() });
        }
        if !open.remove(id) {
            return Err(PairingError::Orphan { message, id: id.to_owned() });
        }
    }
    Ok(())
}

/// Gives an [`INTERRUPTED`] result to every call that has none in the next message; returns how many were added.
/// Results that are there stay as they are and come first.
pub fn answer_interrupted_calls(messages: &mut Vec<Message>) -> usize {
    let mut added = 0;
    let mut index = 0;
    while index < messages.len() {
        let missing = missing_results(&messages[index], messages.get(index + 1));
        index += 1;
        if missing.is_empty() {
            continue;
        }
        added += missing.len();
        match messages.get_mut(index) {
            Some(Message::ToolResults { results }) => results.extend(missing),
            _ => messages.insert(index, Message::ToolResults { results: missing }),
        }
    }
    added
}

fn missing_results(entry: &Message, next: Option<&Message>) -> Vec<ToolResult> {
    let Message::Assistant { calls, .. } = entry else { return Vec::new() };
    let answered: BTreeSet<&str> = match next {
        Some(Message::ToolResults { results }) => results.iter().map(|result| result.call_id.as_str()).collect(),
        _ => BTreeSet::new(),
    };
    calls.iter().filter(|call| !answered.contains(call.id.as_str())).map(interrupted).collect()
}

fn interrupted(call: &ModelCall) -> ToolResult {
    ToolResult { call_id: call.id.clone(), tool: call.tool.clone(), output: INTERRUPTED.to_owned(), success: false }
}

/// How many of the oldest messages can give way to a summary so that about `kept_bytes` of the newest stay: as many as
/// leave every call with its result, and the last message in any case.
pub fn oldest_beyond(messages: &[Message], kept_bytes: usize) -> usize {
    let mut kept = 0_usize;
    let fits = |message: &&Message| {
        kept = kept.saturating_add(message_bytes(message));
        kept <= kept_bytes
    };
    let newest = messages.iter().rev().take_while(fits).count().max(1);
    let mut oldest = messages.len().saturating_sub(newest);
    while matches!(messages.get(oldest), Some(Message::ToolResults { .. })) {
        oldest -= 1;
    }
    oldest
}

/// About how many bytes a message has on the wire.
pub fn message_bytes(message: &Message) -> usize {
    let replay_bytes = |replay: &Replay| replay.items.iter().map(json_bytes).sum::<usize>();
    match message {
        Message::User { text } => text.len(),
        // A picture costs by its size on the screen, which its bytes do not tell.
        Message::Image { .. } => IMAGE_BYTES,
        Message::Assistant { text, calls, replay } => {
            let plain = text.len() + calls.iter().map(|call| json_bytes(&call.arguments.for_request())).sum::<usize>();
            plain.max(replay.as_ref().map_or(0, replay_bytes))
        }
        Message::ToolResults { results } => results.iter().map(|result| result.output.len()).sum(),
    }
}

/// What a picture is taken to cost, in bytes of text.
const IMAGE_BYTES: usize = 6000;

/// Renames calls of a fresh turn whose id is empty or already taken in the conversation or the turn; providers
/// repeat ids. Returns how many were renamed. The new ids follow from the old ones and their places, so that the
/// same conversation always gives the same ids.
pub fn make_call_ids_unique(messages: &[Message], turn: &mut ModelTurn) -> usize {
    let mut taken: BTreeSet<String> = messages
        .iter()
        .filter_map(|entry| match entry {
            Message::Assistant { calls, .. } => Some(calls),
            _ => None,
        })
        .flatten()
        .map(|call| call.id.clone())
        .collect();
    let mut renamed = 0;
    for call in &mut turn.calls {
        if call.id.is_empty() || taken.contains(&call.id) {
            let stem = if call.id.is_empty() { "call" } else { call.id.as_str() };
            // Ends: only finitely many ids are taken.
            let free = (2..).map(|number: u64| format!("{stem}~{number}")).find(|id| !taken.contains(id));
            call.id = free.unwrap_or_default();
            renamed += 1;
        }
        taken.insert(call.id.clone());
    }
    renamed
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{INTERRUPTED, PairingError, answer_interrupted_calls, check_pairing, make_call_ids_unique};
    use crate::models::{CallArguments, Message, ModelCall, ModelTurn, ToolResult};

    fn call(id: &str) -> ModelCall {
        ModelCall { id: id.into(), tool: "read".into(), arguments: CallArguments::Parsed(json!({})) }
    }

    fn assistant(ids: &[&str]) -> Message {
        ModelTurn::calling("", ids.iter().map(|id| call(id)).collect()).into_message()
    }

    fn results(ids: &[&str]) -> Message {
        let result =
            |id: &&str| ToolResult { call_id: (*id).into(), tool: "read".into(), output: "ok".into(), success: true };
        Message::ToolResults { results: ids.iter().map(result).collect() }
    }

    fn user() -> Message {
        Message::User { text: "go on".into() }
    }

    #[test]
    fn results_in_any_order_right_after_their_calls_are_valid() {
        let messages = [user(), assistant(&["a", "b"]), results(&["b", "a"]), assistant(&[]), user()];
        assert_eq!(check_pairing(&messages), Ok(()));
        assert_eq!(check_pairing(&[]), Ok(()));
        // An id may come again in a later turn.
        assert_eq!(check_pairing(&[assistant(&["a"]), results(&["a"]), assistant(&["a"]), results(&["a"])]), Ok(()));
    }

    #[test]
    fn each_fault_is_named_with_its_message() {
        let id = || "b".to_owned();
        let cases: [(Vec<Message>, PairingError); 6] = [
            (vec![assistant(&["b"])], PairingError::Unanswered { message: 0, id: id() }),
            (vec![assistant(&["b"]), user()], PairingError::Unanswered { message: 0, id: id() }),
            (vec![assistant(&["a", "b"]), results(&["a"])], PairingError::Unanswered { message: 0, id: id() }),
            (vec![user(), results(&["b"])], PairingError::Orphan { message: 1, id: id() }),
            (vec![assistant(&["b"]), results(&["b", "b"])], PairingError::DuplicateResult { message: 1, id: id() }),
            (vec![user(), assistant(&["b", "b"])], PairingError::DuplicateCall { message: 1, id: id() }),
        ];
        for (messages, fault) in cases {
            assert_eq!(check_pairing(&messages), Err(fault));
        }
    }

    #[test]
    fn calls_cut_off_by_a_crash_are_answered() {
        // Case C137: the results go before any text, in the very next message.
        let mut messages = vec![user(), assistant(&["a", "b"]), results(&["a"]), user(), assistant(&["c"]), user()];
        assert_eq!(answer_interrupted_calls(&mut messages), 2);
        assert_eq!(check_pairing(&messages), Ok(()));
        let Message::ToolResults { results } = &messages[2] else { panic!("{messages:?}") };
        assert_eq!((results[0].output.as_str(), results[1].output.as_str()), ("ok", INTERRUPTED));
        assert!(!results[1].success);
        assert!(matches!(&messages[5], Message::ToolResults { results } if results[0].call_id == "c"));
        assert_eq!(answer_interrupted_calls(&mut messages), 0);
    }

    #[test]
    fn repeated_ids_become_distinct_and_no_call_is_lost() {
        // Case C139.
        let messages = [assistant(&["t:1"]), results(&["t:1"])];
        let mut turn = ModelTurn::calling("", vec![call("t:1"), call("t:1"), call(""), call("fresh")]);
        assert_eq!(make_call_ids_unique(&messages, &mut turn), 3);
        let ids: Vec<&str> = turn.calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["t:1~2", "t:1~3", "call~2", "fresh"]);
    }
}
