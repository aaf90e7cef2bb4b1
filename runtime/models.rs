//! The `Model` port: one conversation in, one turn out, whoever answers.
//!
//! The port must carry several wire protocols without bending any of them, so it keeps what they disagree on: the
//! provider's own items of a turn travel unchanged in [`Replay`], arguments that are not JSON stay as they came,
//! and a stop reason says whether a turn may be believed. What must stay true: an implementation keeps nothing
//! between turns that changes its answer, dropping the future of a turn ends the request, and a turn is whole or
//! an error; a stream that broke off is never a short answer.

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use thiserror::Error;
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::json_tree::{Node, unheld_number};
use toolwarden_tools::offer::Offer;

use self::object_support::ObjectSupport;
use self::turn_options::TurnOptions;

pub mod object_support;
pub mod picture;
pub mod transcript;
pub mod turn_options;

pub mod compaction;
pub mod gate;
pub mod research;
pub mod scripted;

pub mod call_assembly;
pub mod event_reader;
pub mod price;
pub mod sse;

pub mod wire;

pub mod claude_messages;
pub mod openai_chat;
pub mod openai_responses;

pub mod remote;

pub mod catalog;

#[cfg(test)]
pub(crate) mod canned_http;

/// Longest excerpt of broken arguments that is kept, in bytes.
pub const MALFORMED_BYTES_MAX: usize = 64 * 1024;
/// How much of a number is shown that is too long, in bytes.
const NUMBER_BYTES_SHOWN: usize = 60;

/// Answers turns.
pub trait Model: Send + Sync {
    /// How it is named in settings, events and messages, such as `builtin:research`.
    fn name(&self) -> &str;

    /// How many tokens a request and its answer may have together, where that is known.
    fn context_tokens(&self) -> Option<u64> {
        None
    }

    /// How many requests there may be to it beside each other; the gate's own limit, when not said.
    fn concurrency_max(&self) -> Option<usize> {
        None
    }

    /// By which means it can be held to the form of an object; by words alone, when not said.
    fn object_support(&self) -> ObjectSupport {
        ObjectSupport::default()
    }

    /// What such a turn costs, in millionths of a US dollar; nothing where no price is known.
    fn cost_microusd(&self, _usage: TokenUsage) -> u64 {
        0
    }

    /// Takes one turn. Text goes to `sink` while it arrives and stands whole in the turn; dropping the future ends
    /// the request.
    ///
    /// # Errors
    /// [`ModelError`]; [`ModelError::is_retryable`] says whether the same request may help later.
    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>>;
}

/// Takes the text of a turn while it arrives.
pub trait TurnSink: Send + Sync {
    /// One more piece; must not block.
    fn text_delta(&self, text: &str);

    /// One more piece of what the model thinks aloud before it answers; must not block.
    fn reasoning_delta(&self, _text: &str) {}

    /// One more piece of a call that the model begins to write; a view, for the call counts when its turn is whole.
    /// Must not block.
    fn call_delta(&self, _delta: CallDelta<'_>) {}

    /// The request has its slot and is sent, for the first time.
    fn begun(&self) {}

    /// Everything given so far in this turn is void, because the request is sent again.
    fn restarted(&self) {}
}

/// A piece of a call while it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallDelta<'a> {
    /// Which call of the turn, counted from 0.
    pub place: usize,
    /// The provider's id of the call; empty when it says none.
    pub id: &'a str,
    /// The tool's name; empty while it is not known.
    pub tool: &'a str,
    /// The next piece of the arguments' text; empty at the beginning.
    pub arguments: &'a str,
}

/// Drops everything: for turns that nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct NoSink;

impl TurnSink for NoSink {
    fn text_delta(&self, _text: &str) {}
}

/// What a model is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelRequest {
    /// Instructions.
    pub system: String,
    /// The conversation, oldest first; see [`transcript::check_pairing`] for what makes it valid.
    pub messages: Vec<Message>,
    /// The tools on offer.
    pub tools: Offer,
    /// False when the run has no rounds left: the turn should be text only.
    pub tool_calls_allowed: bool,
    /// The agent that asks, such as `general` or `explore`.
    pub agent: String,
    /// The most child runs that one `task` call should start.
    pub fan_out: usize,
    /// What is asked beyond that.
    #[serde(default)]
    pub options: TurnOptions,
}

impl ModelRequest {
    /// Whether a tool of this name is on offer and may be called now.
    pub fn offers(&self, tool: &str) -> bool {
        self.tool_calls_allowed && self.tools.iter().any(|definition| definition.name.as_str() == tool)
    }
}

/// One entry of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// What a person, a host or a parent run said.
    User {
        /// Their words.
        text: String,
    },
    /// A picture that belongs to the words around it.
    Image {
        /// Its type, such as `image/png`.
        media_type: String,
        /// Its bytes in base64.
        data: String,
    },
    /// What the model said.
    Assistant {
        /// Its text; may be empty.
        text: String,
        /// The calls it asked for, in its order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ModelCall>,
        /// The provider's own form of the turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replay: Option<Replay>,
    },
    /// What the calls of the message just before gave, one each.
    ToolResults {
        /// The results; any order.
        results: Vec<ToolResult>,
    },
}

/// A turn in its provider's own form, to be sent back unchanged: some protocols refuse a turn whose reasoning or
/// server items were dropped or reordered. An adapter uses it only when `protocol` is its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// Which protocol wrote it.
    pub protocol: String,
    /// The items as received, in their order.
    pub items: Vec<Value>,
}

/// A call that a model asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    /// Ties the call to its result; unique in its conversation, see [`transcript::make_call_ids_unique`].
    pub id: String,
    /// Which tool; may be one that does not exist.
    pub tool: ToolName,
    /// With what.
    pub arguments: CallArguments,
}

/// The arguments of a call as the model wrote them; never repaired.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallArguments {
    /// A JSON object.
    Parsed(Value),
    /// Anything else: told to the model, never run.
    Malformed {
        /// What came, cut to [`MALFORMED_BYTES_MAX`].
        text: String,
        /// What is wrong with it.
        error: String,
    },
}

impl CallArguments {
    /// Reads the text that a model wrote. A number whose digits no value holds makes it malformed: neither the tool nor
    /// whoever is asked about the call would see what was written. Nothing at all and `null` mean an empty object: several providers send
    /// that for tools without parameters.
    pub fn parse(text: &str) -> Self {
        if text.trim().is_empty() {
            return Self::Parsed(Value::Object(Map::new()));
        }
        if let Some(number) = unheld_number(text) {
            let shown = &number[..number.floor_char_boundary(NUMBER_BYTES_SHOWN)];
            let error = format!("the number {shown} has more digits than arguments can carry; write it as a string");
            return Self::malformed(text, error);
        }
        match serde_json::from_str::<Value>(text) {
            // One provider sends the word null as a string.
            Ok(Value::String(word)) if word == "null" => Self::Parsed(Value::Object(Map::new())),
            Ok(value) => Self::from_value(value),
            Err(error) => Self::malformed(text, format!("not JSON: {error}")),
        }
    }

    /// Takes arguments that came as JSON already.
    pub fn from_value(value: Value) -> Self {
        match value {
            Value::Object(_) => Self::Parsed(value),
            Value::Null => Self::Parsed(Value::Object(Map::new())),
            other => Self::malformed(&other.to_string(), "not a JSON object".to_owned()),
        }
    }

    /// What goes back to a provider in a later request: always an object. Where it was one with a number that no value
    /// holds, that is a string of the same digits.
    pub fn for_request(&self) -> Value {
        match self {
            Self::Parsed(value) => value.clone(),
            Self::Malformed { text, .. } => match Node::read(text) {
                Ok(object @ Node::Object(_)) => object.to_held_value(),
                _ => Value::Object(Map::new()),
            },
        }
    }

    fn malformed(text: &str, error: String) -> Self {
        let end = text.floor_char_boundary(MALFORMED_BYTES_MAX);
        Self::Malformed { text: text[..end].to_owned(), error }
    }
}

/// What one call gave, as the model is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    /// The call.
    pub call_id: String,
    /// Its tool.
    pub tool: ToolName,
    /// The projected output, or why there is none.
    pub output: String,
    /// Whether the call did what it was asked.
    pub success: bool,
}

/// What a model answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelTurn {
    /// Its text; may be empty when there are calls.
    pub text: String,
    /// The calls it asks for, in its order.
    pub calls: Vec<ModelCall>,
    /// What the turn cost.
    pub usage: TokenUsage,
    /// Why it ended here.
    pub stop: StopReason,
    /// The provider's own form, when a later request must send it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// What its provider calls the request: what support asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl ModelTurn {
    /// A last word without calls, at no cost.
    pub fn answer(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            calls: Vec::new(),
            usage: TokenUsage::default(),
            stop: StopReason::EndTurn,
            replay: None,
            request_id: None,
        }
    }

    /// These calls, at no cost.
    pub fn calling(text: impl Into<String>, calls: Vec<ModelCall>) -> Self {
        Self { calls, stop: StopReason::ToolUse, ..Self::answer(text) }
    }

    /// Its entry in the conversation.
    pub fn into_message(self) -> Message {
        Message::Assistant { text: self.text, calls: self.calls, replay: self.replay }
    }
}

/// What a turn cost, in tokens as its provider counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenUsage {
    /// Read, all together.
    pub input_tokens: u64,
    /// Written, all together.
    pub output_tokens: u64,
    /// Those read that the provider had kept.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_read_tokens: u64,
    /// Those read that the provider keeps from now on.
    #[serde(skip_serializing_if = "is_zero")]
    pub cache_write_tokens: u64,
    /// Those written that were thought and not said.
    #[serde(skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
}

impl TokenUsage {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cache_read_tokens: self.cache_read_tokens.saturating_add(other.cache_read_tokens),
            cache_write_tokens: self.cache_write_tokens.saturating_add(other.cache_write_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// It has said what it had to say.
    EndTurn,
    /// It waits for the results of its calls.
    ToolUse,
    /// The output limit cut it off: its calls may be cut too and are never run.
    MaxTokens,
    /// The model declines.
    Refusal,
    /// The provider's filter stopped it.
    ContentFilter,
    /// The model's window is full: there was no room for the rest.
    ContextOverflow,
    /// The provider paused it: it goes on when the conversation is sent again unchanged; not a last word.
    Paused,
}

/// Why there is no turn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ModelError {
    /// The connection broke before the turn was whole.
    #[error("the model cannot be reached: {message}; check the address and the network")]
    Unreachable {
        /// What happened.
        message: String,
    },
    /// There is nobody to talk to: trying again at once does not help.
    #[error("the model cannot be reached: {message}")]
    NoConnection {
        /// What happened.
        message: String,
    },
    /// Nothing came for too long.
    #[error("the model gave {what} within {timeout_ms} ms; allow more in toolwarden.toml, or ask for less")]
    TimedOut {
        /// What did not come.
        what: &'static str,
        /// What was allowed, in milliseconds.
        timeout_ms: u64,
        /// Whether the same request may help later.
        retryable: bool,
    },
    /// Too many requests.
    #[error("the model refuses more requests for now{}", retry_words(*.retry_after_ms))]
    RateLimited {
        /// When to try again, in milliseconds, where the provider says.
        retry_after_ms: Option<u64>,
    },
    /// The provider failed or is overloaded, before or inside an answer.
    #[error("the model's provider failed: {message}")]
    Provider {
        /// Its words.
        message: String,
        /// Whether the same request may help later.
        retryable: bool,
        /// When to try again, in milliseconds, where the provider says.
        retry_after_ms: Option<u64>,
    },
    /// Its last requests all failed, so it is left alone for a while.
    #[error("the model {model} failed several times in a row and is left alone; try again in {retry_after_ms} ms")]
    LeftAlone {
        /// Which one.
        model: String,
        /// When it is asked again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The conversation does not fit into the model's window.
    #[error(
        "the conversation does not fit into the model's window: {message}; begin a new session, or use a model with a larger one"
    )]
    ContextOverflow {
        /// The provider's words.
        message: String,
    },
    /// The provider does not accept who asks.
    #[error("the model's provider does not accept the credentials: {message}; check the key of this provider")]
    Unauthorized {
        /// Its words.
        message: String,
    },
    /// The request cannot be answered as it is; sending it again does not help.
    #[error("the model cannot take this request: {message}")]
    Invalid {
        /// What is wrong with it.
        message: String,
    },
    /// The answer ended before it was whole, or cannot be read.
    #[error("the model's answer is not whole: {message}")]
    Incomplete {
        /// What is missing.
        message: String,
    },
    /// What answered does not speak the protocol, or says what nobody knows.
    #[error("the model's answer cannot be taken: {message}")]
    Unreadable {
        /// What came.
        message: String,
    },
    /// A part of the answer is larger than anything that makes sense.
    #[error("the model's answer is too large: {message}")]
    TooLarge {
        /// What is too large.
        message: String,
    },
    /// A script has no turn left for this conversation.
    #[error(
        "{file}: no turn left for {key}: it has {turns}, and this is turn {asked}; add a line, or give the last one \
         \"repeat\": true"
    )]
    ScriptExhausted {
        /// The script.
        file: String,
        /// Which of its lines apply.
        key: String,
        /// How many those are.
        turns: usize,
        /// Which one was asked for, counted from 1.
        asked: usize,
    },
}

impl ModelError {
    /// Whether the same request may be answered later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::RateLimited { .. } | Self::Incomplete { .. } => true,
            Self::Provider { retryable, .. } | Self::TimedOut { retryable, .. } => *retryable,
            Self::NoConnection { .. }
            | Self::LeftAlone { .. }
            | Self::ContextOverflow { .. }
            | Self::Unauthorized { .. }
            | Self::Invalid { .. }
            | Self::Unreadable { .. }
            | Self::TooLarge { .. }
            | Self::ScriptExhausted { .. } => false,
        }
    }

    /// When its provider wants to be asked again, in milliseconds, where it says.
    pub fn retry_after_ms(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after_ms } | Self::Provider { retry_after_ms, .. } => *retry_after_ms,
            _ => None,
        }
    }

    /// The same without this text, which is a secret.
    #[must_use]
    pub fn without(mut self, secret: &str) -> Self {
        let message = match &mut self {
            Self::Unreachable { message }
            | Self::NoConnection { message }
            | Self::Provider { message, .. }
            | Self::ContextOverflow { message }
            | Self::Unauthorized { message }
            | Self::Invalid { message }
            | Self::Incomplete { message }
            | Self::Unreadable { message }
            | Self::TooLarge { message } => message,
            Self::RateLimited { .. }
            | Self::TimedOut { .. }
            | Self::LeftAlone { .. }
            | Self::ScriptExhausted { .. } => return self,
        };
        if !secret.is_empty() && message.contains(secret) {
            *message = message.replace(secret, "[key]");
        }
        self
    }

    /// Whether it says that the provider is not well, and not that the request was wrong or too early.
    pub fn is_outage(&self) -> bool {
        match self {
            Self::NoConnection { .. } => true,
            Self::RateLimited { .. } => false,
            other => other.is_retryable(),
        }
    }
}

fn retry_words(retry_after_ms: Option<u64>) -> String {
    retry_after_ms.map_or_else(String::new, |span_ms| format!("; try again in {span_ms} ms"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{CallArguments, MALFORMED_BYTES_MAX, Message, ModelError, ModelTurn};

    #[test]
    fn nothing_and_null_are_empty_arguments() {
        // Case C129.
        for text in ["", "  \n", "null", "\"null\"", "{}"] {
            assert_eq!(CallArguments::parse(text), CallArguments::Parsed(json!({})), "{text:?}");
        }
    }

    #[test]
    fn broken_arguments_are_kept_and_never_repaired() {
        // Cases C130 and C142.
        for text in ["{\"path\":\"a\",\"content\":\"abc", "[1]", "7", "\"x\"", "{\"a\":1} trailing"] {
            let arguments = CallArguments::parse(text);
            assert!(matches!(&arguments, CallArguments::Malformed { text: kept, .. } if kept == text), "{text}");
            assert_eq!(arguments.for_request(), json!({}));
        }
        let deep = "[".repeat(100_000);
        assert!(matches!(CallArguments::parse(&deep), CallArguments::Malformed { text, .. }
            if text.len() == MALFORMED_BYTES_MAX));
    }

    #[test]
    fn no_digit_is_lost_silently() {
        // Case C148.
        for (text, number) in [
            (r#"{"n": 123456789012345678901234567890}"#, "123456789012345678901234567890"),
            (r#"{"a": [{"n": -9223372036854775809}]}"#, "-9223372036854775809"),
            (r#"{"n": 1e400}"#, "1e400"),
            (r#"{"n": 12345678901234567890.5}"#, "12345678901234567890.5"),
        ] {
            let arguments = CallArguments::parse(text);
            let CallArguments::Malformed { text: kept, error } = &arguments else { panic!("{arguments:?}") };
            assert!(kept == text && error.contains(number) && error.contains("as a string"), "{error}");
            // It goes back with the same digits, and is kept with them.
            let back = arguments.for_request().to_string();
            assert_eq!(back, text.replace(number, &format!("\"{number}\"")).replace(": ", ":"));
            let stored = serde_json::to_string(&arguments).unwrap();
            assert_eq!(serde_json::from_str::<CallArguments>(&stored).unwrap(), arguments);
        }
        for text in [
            r#"{"a":9007199254740993,"b":18446744073709551615,"c":-9223372036854775808,"d":1.5,"e":1e22}"#,
            r#"{"s":"123456789012345678901234567890","t":"1e400"}"#,
            r#"{"pi":3.14159265358979323846}"#,
        ] {
            assert!(matches!(CallArguments::parse(text), CallArguments::Parsed(_)), "{text}");
        }
        let held = r#"{"a":9007199254740993,"b":18446744073709551615,"s":"123456789012345678901234567890"}"#;
        assert_eq!(CallArguments::parse(held).for_request().to_string(), held);
        let long = format!("{{\"n\":{}}}", "7".repeat(100_000));
        let CallArguments::Malformed { error, .. } = CallArguments::parse(&long) else { panic!("it is parsed") };
        assert!(error.len() < 200);
    }

    #[test]
    fn a_conversation_survives_json() {
        let messages = vec![
            Message::User { text: "hi".into() },
            ModelTurn::answer("there").into_message(),
            Message::ToolResults { results: Vec::new() },
        ];
        let text = serde_json::to_string(&messages).unwrap();
        assert!(text.starts_with(r#"[{"role":"user","text":"hi"},{"role":"assistant","text":"there"}"#), "{text}");
        assert_eq!(serde_json::from_str::<Vec<Message>>(&text).unwrap(), messages);
    }

    #[test]
    fn an_error_says_whether_and_when_to_try_again() {
        let limited = ModelError::RateLimited { retry_after_ms: Some(250) };
        assert!(limited.is_retryable());
        assert!(limited.to_string().contains("250 ms"));
        assert!(!ModelError::Invalid { message: "too long".into() }.is_retryable());
    }
}
