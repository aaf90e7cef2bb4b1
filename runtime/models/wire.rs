//! What the wire protocols have in common: a turn while it arrives, ids and names as providers take them, their errors.
//!
//! A protocol is one file that writes requests and reads answers; sending, waiting and repeating are not its business.
//! What must stay true: whether a turn is whole is said by the protocol's own last word and never by the end of the
//! stream, and kinds of errors follow from status, codes and types, never from prose.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::call_assembly::{CALLS_MAX, CallAssembly, CallPiece};
use super::event_reader::{Fields, read_object};
use super::object_support::ObjectSupport;
use super::sse::SseEvent;
use super::{CallDelta, Message, ModelError, ModelRequest, ModelTurn, Replay, StopReason, TokenUsage, TurnSink};

/// Longest excerpt of what a provider says about a failure, in bytes.
pub const PROVIDER_WORDS_BYTES_MAX: usize = 1000;
/// Longest id of a call on the wire, in bytes: the shortest limit among providers.
const CALL_ID_BYTES_MAX: usize = 64;
/// Longest name of a tool on the wire, in bytes.
const TOOL_NAME_BYTES_MAX: usize = 64;
/// Longest text of a turn, in bytes.
pub const TEXT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// One wire protocol.
pub trait Protocol: std::fmt::Debug + Send + Sync {
    /// Its name, as [`Replay::protocol`] keeps it.
    fn name(&self) -> &'static str;

    /// The path of its endpoint behind the base address, such as `/messages`.
    fn path(&self) -> &'static str;

    /// The header that carries the key, and its value.
    fn key_header(&self, key: &str) -> (&'static str, String);

    /// Header fields of every request.
    fn headers(&self) -> &'static [(&'static str, &'static str)];

    /// The header of an answer that names the request.
    fn request_id_header(&self) -> &'static str;

    /// By which means its models can be held to the form of an object.
    fn object_support(&self) -> ObjectSupport;

    /// The body of a request.
    fn request(&self, request: &ModelRequest, settings: &WireSettings) -> Value;

    /// Reads a streamed answer.
    fn decoder(&self) -> Box<dyn Decoder>;

    /// Reads an answer that came as one piece: as a value, and as the text that it was read from, which has every digit
    /// of its numbers.
    ///
    /// # Errors
    /// [`ModelError`].
    fn whole(&self, body: &Value, text: &str, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError>;
}

/// Reads one streamed answer.
pub trait Decoder: Send {
    /// Takes an event.
    ///
    /// # Errors
    /// [`ModelError`]; the answer is void then.
    fn event(&mut self, event: &SseEvent<'_>, sink: &dyn TurnSink) -> Result<Progress, ModelError>;

    /// The turn, when no further event comes.
    ///
    /// # Errors
    /// [`ModelError::Incomplete`] when the protocol's last word is missing.
    fn finish(self: Box<Self>) -> Result<ModelTurn, ModelError>;
}

/// How far a streamed answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// More is to come.
    Open,
    /// The turn is whole; what may still come says nothing new about it.
    Whole,
    /// The last event was read.
    Done,
}

/// What a model is set to, for all of its requests.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WireSettings {
    /// The model's name at its provider.
    pub model: String,
    /// Whether answers come as they are written.
    pub stream: bool,
    /// The most tokens that a turn may write; none leaves it to the provider, where it may.
    pub output_tokens_max: Option<u64>,
    /// How hard the model should think, in its provider's own word.
    pub reasoning_effort: Option<String>,
    /// The most tokens that the model may think, for providers that count them.
    pub thinking_tokens_max: Option<u64>,
}

/// A turn while it arrives.
#[derive(Debug, Default)]
pub struct Draft {
    /// Its text.
    pub text: String,
    /// Its calls.
    pub calls: CallAssembly,
    /// What it cost.
    pub usage: TokenUsage,
    /// Why it ended; none until the protocol has said so.
    pub stop: Option<StopReason>,
    /// The provider's own form of it.
    pub items: Vec<Value>,
}

impl Draft {
    /// Takes a piece of text.
    ///
    /// # Errors
    /// [`ModelError::TooLarge`].
    pub fn push_text(&mut self, text: &str, sink: &dyn TurnSink) -> Result<(), ModelError> {
        if self.text.len() + text.len() > TEXT_BYTES_MAX {
            return Err(ModelError::TooLarge { message: format!("its text has more than {TEXT_BYTES_MAX} bytes") });
        }
        if !text.is_empty() {
            self.text.push_str(text);
            sink.text_delta(text);
        }
        Ok(())
    }

    /// Takes a piece of a call; gives the place of the call among the turn's calls.
    pub fn push_call(&mut self, piece: CallPiece<'_>, sink: &dyn TurnSink) -> usize {
        let place = self.calls.push(piece);
        let (id, tool) = self.calls.name_at(place);
        sink.call_delta(CallDelta { place, id, tool, arguments: piece.arguments });
        place
    }

    /// The turn.
    ///
    /// # Errors
    /// [`ModelError::Incomplete`] when it has not ended, or holds nothing.
    pub fn finish(self, protocol: &'static str) -> Result<ModelTurn, ModelError> {
        let Some(stop) = self.stop else {
            return Err(ModelError::Incomplete { message: "the stream ended before the answer did".to_owned() });
        };
        if self.calls.left_out() > 0 {
            return Err(ModelError::TooLarge { message: format!("it has more than {CALLS_MAX} calls") });
        }
        let has_calls = !self.calls.is_empty();
        let stop = match stop {
            // Several servers call every end a stop, and one says tool calls where there are none.
            StopReason::EndTurn | StopReason::ToolUse if has_calls => StopReason::ToolUse,
            StopReason::ToolUse => StopReason::EndTurn,
            other => other,
        };
        if stop == StopReason::EndTurn && self.text.is_empty() {
            return Err(ModelError::Incomplete { message: "it is empty".to_owned() });
        }
        let replay = (!self.items.is_empty()).then(|| Replay { protocol: protocol.to_owned(), items: self.items });
        let calls = self.calls.finish();
        Ok(ModelTurn { text: self.text, calls, usage: self.usage, stop, replay, request_id: None })
    }
}

/// Ids of calls as providers take them: letters, digits, `_` and `-`, bounded, each only once.
#[derive(Debug)]
pub struct WireIds<'a> {
    by_id: BTreeMap<&'a str, String>,
}

impl<'a> WireIds<'a> {
    /// Gives each call of a conversation an id that may travel; most have one already.
    pub fn of(messages: &'a [Message]) -> Self {
        let calls = messages.iter().flat_map(|message| match message {
            Message::Assistant { calls, .. } => calls.as_slice(),
            _ => &[],
        });
        let in_order: Vec<&str> = calls.map(|call| call.id.as_str()).collect();
        let all: BTreeSet<&str> = in_order.iter().copied().collect();
        let mut by_id = BTreeMap::new();
        // By place, so that a conversation that goes on keeps its ids.
        for (number, id) in in_order.into_iter().enumerate() {
            let fits = !id.is_empty() && id.len() <= CALL_ID_BYTES_MAX && id.chars().all(travels);
            by_id.entry(id).or_insert_with(|| match fits {
                true => id.to_owned(),
                // Ends: only finitely many are taken. No two places can find the same: they begin apart.
                false => (0..)
                    .map(|round| format!("call_{number}_{round}"))
                    .find(|free| !all.contains(free.as_str()))
                    .unwrap_or_default(),
            });
        }
        Self { by_id }
    }

    /// The id under which a call travels.
    pub fn get<'b>(&'b self, id: &'b str) -> &'b str {
        self.by_id.get(id).map_or(id, String::as_str)
    }
}

/// A tool's name as providers take it. Models invent names, and a conversation that holds one must stay sendable.
pub fn wire_name(name: &str) -> String {
    let mut wire: String = name.chars().map(|c| if travels(c) { c } else { '_' }).take(TOOL_NAME_BYTES_MAX).collect();
    if wire.is_empty() {
        wire.push_str("unknown");
    }
    wire
}

fn travels(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// A number of tokens at a place in a provider's usage.
pub fn tokens(usage: &Value, pointer: &str) -> u64 {
    usage.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A text at a place; empty where there is none.
pub fn text_at<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or("")
}

/// An object of these fields, without those that are null.
pub fn object(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(kept.map(|(key, value)| (key.to_owned(), value)).collect::<Map<_, _>>())
}

/// Reads an event's text into `place`; says whether it is an event as this protocol has them.
///
/// # Errors
/// [`ModelError::Incomplete`]: what is not JSON was cut or damaged on its way.
pub fn read_event<'a, T: Fields<'a>>(place: &mut T, event: &'a SseEvent<'_>) -> Result<bool, ModelError> {
    if read_object(&event.data, place).is_ok() {
        return Ok(true);
    }
    match serde_json::from_str::<Value>(&event.data) {
        // JSON of another shape is an event that this protocol did not have when this was written.
        Ok(Value::Object(_)) => Ok(false),
        Ok(_) => Err(ModelError::Incomplete { message: "an event of the stream is no JSON object".to_owned() }),
        Err(error) => Err(ModelError::Incomplete { message: format!("an event of the stream is not JSON: {error}") }),
    }
}

/// What a provider says about a failure inside an answer that began well.
pub fn stream_error(error: &Value) -> ModelError {
    let said = ProviderError::of(error);
    said.kind(None)
}

/// A failure as a provider describes it in a body.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProviderError {
    /// Its codes: `type`, `code` and the like.
    pub codes: Vec<String>,
    /// Its words.
    pub message: String,
}

impl ProviderError {
    /// Reads the `error` object of a body, whichever protocol wrote it.
    pub fn of(error: &Value) -> Self {
        let mut codes = Vec::new();
        for pointer in ["/type", "/code", "/status", "/details/error_code"] {
            match error.pointer(pointer) {
                Some(Value::String(code)) if code != "error" => codes.push(code.clone()),
                Some(Value::Number(code)) => codes.push(code.to_string()),
                _ => {}
            }
        }
        let words = match error {
            Value::String(words) => words,
            other => text_at(other, "message"),
        };
        let words = if words.is_empty() { "no words were given" } else { words };
        let end = words.floor_char_boundary(PROVIDER_WORDS_BYTES_MAX);
        Self { codes, message: words[..end].to_owned() }
    }

    /// The kind of failure that the codes name, whatever the status says.
    pub fn kind(self, retry_after_ms: Option<u64>) -> ModelError {
        let has = |known: &[&str]| self.codes.iter().any(|code| known.contains(&code.as_str()));
        let message = self.message.clone();
        if has(&["context_length_exceeded", "exceed_context_size_error", "string_above_max_length"]) {
            ModelError::ContextOverflow { message }
        } else if has(&["insufficient_quota", "billing_error", "billing_hard_limit_reached"]) {
            ModelError::Provider { message, retryable: false, retry_after_ms: None }
        } else if has(&["rate_limit_error", "rate_limit_exceeded", "too_many_requests", "429"]) {
            ModelError::RateLimited { retry_after_ms }
        } else if has(&["authentication_error", "permission_error", "invalid_api_key", "401", "403"]) {
            ModelError::Unauthorized { message }
        } else if has(&[
            "invalid_request_error",
            "invalid_prompt",
            "not_found_error",
            "model_not_found",
            "request_too_large",
            "400",
            "404",
            "413",
        ]) {
            ModelError::Invalid { message }
        } else {
            ModelError::Provider { message, retryable: true, retry_after_ms }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{ProviderError, WireIds, wire_name};
    use crate::models::{CallArguments, Message, ModelCall, ModelError, ModelTurn};

    #[test]
    fn ids_travel_as_they_are_where_they_may() {
        let call = |id: &str| ModelCall { id: id.into(), tool: "f".into(), arguments: CallArguments::parse("") };
        let long = "x".repeat(70);
        let turn = ModelTurn::calling("", ["call_1", "a-B_9", "t:1", "t:1~2", "", &long].map(call).into());
        let messages: Vec<Message> = vec![turn.into_message()];
        let ids = WireIds::of(&messages);
        assert_eq!((ids.get("call_1"), ids.get("a-B_9")), ("call_1", "a-B_9"));
        let wire: std::collections::BTreeSet<&str> =
            ["call_1", "a-B_9", "t:1", "t:1~2", "", &long].iter().map(|id| ids.get(id)).collect();
        assert_eq!(wire.len(), 6, "{wire:?}");
        assert!(wire.iter().all(|id| !id.is_empty() && id.len() <= 64 && !id.contains([':', '~'])), "{wire:?}");
    }

    #[test]
    fn invented_names_stay_sendable() {
        assert_eq!(wire_name("mcp__a__b-c"), "mcp__a__b-c");
        assert_eq!((wire_name("ü b/c").as_str(), wire_name("").as_str()), ("__b_c", "unknown"));
        assert_eq!(wire_name(&"n".repeat(99)).len(), 64);
    }

    #[test]
    fn kinds_follow_from_codes_and_never_from_words() {
        let kind = |error| ProviderError::of(&error).kind(Some(7));
        assert!(matches!(
            kind(json!({"type": "overloaded_error", "message": "x"})),
            ModelError::Provider { retryable: true, .. }
        ));
        assert_eq!(kind(json!({"code": "rate_limit_exceeded"})), ModelError::RateLimited { retry_after_ms: Some(7) });
        assert!(matches!(kind(json!({"code": "context_length_exceeded"})), ModelError::ContextOverflow { .. }));
        assert!(matches!(kind(json!({"type": "insufficient_quota"})), ModelError::Provider { retryable: false, .. }));
        assert!(matches!(
            kind(json!({"type": "invalid_request_error", "message": "rate limit"})),
            ModelError::Invalid { .. }
        ));
        assert!(matches!(kind(json!("boom")), ModelError::Provider { message, .. } if message == "boom"));
        assert!(matches!(kind(json!({"code": 400, "message": "rate limit exceeded"})), ModelError::Invalid { .. }));
        assert!(kind(json!({"message": "ä".repeat(2000)})).to_string().len() < 1200);
    }
}
