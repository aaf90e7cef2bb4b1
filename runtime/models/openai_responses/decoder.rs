//! Reads answers of the Responses protocol, streamed and whole.
//!
//! An item is put together from its pieces, replaced by the provider's `done` forms, and at last by the list of the whole
//! response where that holds as many items. Unknown events are skipped: the protocol gains some every month. What must
//! stay true: a call counts only when the response has ended, and then once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::OPENAI_RESPONSES;
use crate::models::call_assembly::{ARGUMENTS_BYTES_MAX, CALLS_MAX, CallPiece};
use crate::models::event_reader::{EventReader, Fields, Unread};
use crate::models::sse::SseEvent;
use crate::models::wire::{Decoder, Draft, Progress, read_event, stream_error, text_at, tokens};
use crate::models::{CallDelta, ModelError, ModelTurn, StopReason, TokenUsage, TurnSink};

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    draft: Draft,
    items: BTreeMap<u64, Item>,
    /// How many bytes of each call's arguments were shown.
    shown: BTreeMap<u64, usize>,
    ended: bool,
    /// The number of the last event, where the provider gives some.
    number: Option<u64>,
    /// Whether its numbers go up: only then says the same one again that an event came twice.
    counts: bool,
}

/// An item while it arrives.
#[derive(Debug, Default)]
struct Item {
    /// The item as it was last given.
    value: Value,
    /// Its call's id and tool, when it is one: they are asked for with every piece.
    call: Option<(String, String)>,
    /// The pieces of its arguments, unless they were given whole.
    arguments: String,
    /// Bytes of the arguments, those beyond the limit included.
    argument_bytes: usize,
    /// The text of its parts, as it was streamed.
    text: String,
    done: bool,
}

/// An event, as far as it is looked at.
#[derive(Debug, Default)]
struct Event<'a> {
    kind: Option<Cow<'a, str>>,
    sequence_number: Option<u64>,
    output_index: Option<u64>,
    item_id: Option<Cow<'a, str>>,
    delta: Option<Cow<'a, str>>,
    arguments: Option<Cow<'a, str>>,
    name: Option<Cow<'a, str>>,
    item: Option<Box<Value>>,
    response: Option<Box<Value>>,
    error: Option<Box<Value>>,
    code: Option<Box<Value>>,
    message: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for Event<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "type" => value.text(&mut self.kind),
            "sequence_number" => value.maybe_number(&mut self.sequence_number),
            "output_index" => value.number(&mut self.output_index),
            "item_id" => value.text(&mut self.item_id),
            "delta" => value.text(&mut self.delta),
            "arguments" => value.text(&mut self.arguments),
            "name" => value.text(&mut self.name),
            "item" => value.value(&mut self.item),
            "response" => value.value(&mut self.response),
            "error" => value.value(&mut self.error),
            "code" => value.value(&mut self.code),
            "message" => value.text(&mut self.message),
            _ => value.skip(),
        }
    }
}

impl Event<'_> {
    fn kind(&self) -> &str {
        self.kind.as_deref().unwrap_or("")
    }
}

impl Decoder for ResponsesDecoder {
    fn event(&mut self, event: &SseEvent<'_>, sink: &dyn TurnSink) -> Result<Progress, ModelError> {
        if event.data.trim() == "[DONE]" {
            return Ok(Progress::Done);
        }
        let (written, mut event) = (event, Event::default());
        if !read_event(&mut event, written)? || event.kind.is_none() || self.came_before(&event) {
            return Ok(Progress::Open);
        }
        match event.kind() {
            "response.output_text.delta" | "response.refusal.delta" => {
                let text = event.delta.as_deref().unwrap_or("");
                self.draft.push_text(text, sink)?;
                self.item(&event)?.text.push_str(text);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                sink.reasoning_delta(event.delta.as_deref().unwrap_or(""));
            }
            "response.function_call_arguments.delta" => {
                let piece = event.delta.as_deref().unwrap_or("");
                let place = self.place(&event);
                self.item(&event)?.append(piece);
                self.show_call(place, piece, sink);
            }
            "response.function_call_arguments.done" => {
                let item = self.item(&event)?;
                if let Some(whole) = &event.arguments {
                    item.replace(whole);
                }
                if let (Some(name), "") = (event.name.as_deref(), text_at(&item.value, "name")) {
                    item.set("type", json!("function_call"));
                    item.set("name", json!(name));
                }
            }
            "response.output_item.added" | "response.output_item.done" => {
                let place = self.take_item(&event)?;
                self.show_call(place, "", sink);
            }
            "response.completed" | "response.incomplete" | "response.failed" => {
                self.end(event.response.as_deref().unwrap_or(&Value::Null), sink)?;
                return Ok(Progress::Done);
            }
            "error" => {
                let flat = json!({"code": event.code, "message": event.message.as_deref()});
                return Err(stream_error(event.error.as_deref().filter(|error| error.is_object()).unwrap_or(&flat)));
            }
            _ => {}
        }
        Ok(Progress::Open)
    }

    fn finish(mut self: Box<Self>) -> Result<ModelTurn, ModelError> {
        if !self.ended {
            self.draft.stop = None;
        }
        self.draft.finish(OPENAI_RESPONSES)
    }
}

/// An answer that came as one piece.
pub(super) fn whole(body: &Value, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
    if !body.get("output").is_some_and(Value::is_array) && body.get("status").is_none() {
        let error = body.get("error").filter(|error| !error.is_null());
        return Err(error.map_or_else(
            || ModelError::Unreadable { message: "it is no response: it has no output".to_owned() },
            stream_error,
        ));
    }
    let mut decoder = ResponsesDecoder::default();
    decoder.end(body, sink)?;
    Box::new(decoder).finish()
}

impl ResponsesDecoder {
    /// Whether an event is the last one again. What it says would be shown twice, and the whole answer has it once.
    fn came_before(&mut self, event: &Event<'_>) -> bool {
        let Some(number) = event.sequence_number else { return false };
        let last = self.number.replace(number);
        let is_again = self.counts && last == Some(number);
        self.counts |= last.is_some_and(|last| number > last);
        is_again
    }

    /// Where the item stands that a piece belongs to: by its place, or by its id where the place is missing, or the
    /// last one.
    fn place(&self, event: &Event<'_>) -> u64 {
        let by_id = |id: &str| self.items.iter().find(|(_, item)| text_at(&item.value, "id") == id).map(|(at, _)| *at);
        let at = event.output_index.or_else(|| event.item_id.as_deref().and_then(by_id));
        at.or_else(|| self.items.last_key_value().map(|(at, _)| *at)).unwrap_or(0)
    }

    fn item(&mut self, event: &Event<'_>) -> Result<&mut Item, ModelError> {
        self.item_at(self.place(event))
    }

    fn item_at(&mut self, at: u64) -> Result<&mut Item, ModelError> {
        if self.items.len() >= CALLS_MAX && !self.items.contains_key(&at) {
            return Err(ModelError::TooLarge { message: format!("it has more than {CALLS_MAX} items") });
        }
        Ok(self.items.entry(at).or_default())
    }

    /// Takes a beginning or an end of an item, and gives its place.
    fn take_item(&mut self, event: &Event<'_>) -> Result<u64, ModelError> {
        let Some(value) = event.item.as_deref() else { return Ok(self.place(event)) };
        let is_done = event.kind().ends_with("done");
        let next = self.items.last_key_value().map_or(0, |(at, _)| at + 1);
        let known = |id: &str| self.items.iter().find(|(_, item)| !id.is_empty() && text_at(&item.value, "id") == id);
        let at = event.output_index.or_else(|| known(text_at(value, "id")).map(|(at, _)| *at)).unwrap_or(next);
        let item = self.item_at(at)?;
        // Late beginnings and second ends say nothing new.
        if item.done
            || (!is_done
                && !item.value.is_null()
                && text_at(&item.value, "type") == text_at(value, "type")
                && !text_at(&item.value, "id").is_empty())
        {
            return Ok(at);
        }
        item.put(value.clone());
        item.done = is_done;
        let arguments = text_at(value, "arguments");
        if !arguments.is_empty() && (is_done || item.arguments.is_empty()) {
            item.replace(arguments);
        }
        Ok(at)
    }

    /// Shows a piece of a call's arguments, and the call itself when it is new.
    fn show_call(&mut self, at: u64, piece: &str, sink: &dyn TurnSink) {
        let Some((id, tool)) = self.items.get(&at).and_then(|item| item.call.as_ref()) else { return };
        let is_new = !self.shown.contains_key(&at);
        if is_new || !piece.is_empty() {
            *self.shown.entry(at).or_insert(0) += piece.len();
            sink.call_delta(CallDelta { place: place_of(at), id, tool, arguments: piece });
        }
    }

    /// The response has ended: what it says of itself wins over what was put together.
    fn end(&mut self, response: &Value, sink: &dyn TurnSink) -> Result<(), ModelError> {
        self.draft.usage = usage_of(response.get("usage").unwrap_or(&Value::Null));
        let stop = match text_at(response, "status") {
            "failed" => {
                let error = response.get("error").filter(|error| !error.is_null());
                return Err(stream_error(error.unwrap_or(&json!("it failed, and did not say why"))));
            }
            "incomplete" => match response.pointer("/incomplete_details/reason").and_then(Value::as_str) {
                Some("content_filter") => StopReason::ContentFilter,
                // Where a server does not say why, it is a cut all the same: nothing of it runs.
                Some("max_output_tokens" | "max_messages" | "steered") | None => StopReason::MaxTokens,
                other => {
                    let message = format!("it is incomplete for a reason that is not known: {other:?}");
                    return Err(ModelError::Unreadable { message });
                }
            },
            "cancelled" => {
                let message = "it was cancelled at its provider".to_owned();
                return Err(ModelError::Provider { message, retryable: true, retry_after_ms: None });
            }
            "completed" | "" => StopReason::EndTurn,
            other => return Err(ModelError::Incomplete { message: format!("it ended while it was {other}") }),
        };
        self.draft.stop = Some(stop);
        self.ended = true;
        let whole = response.get("output").and_then(Value::as_array).filter(|whole| whole.len() >= self.items.len());
        let items: Vec<Value> = match whole {
            Some(whole) => whole.clone(),
            None => std::mem::take(&mut self.items).into_values().map(Item::into_value).collect(),
        };
        self.take_output(items, sink)
    }

    fn take_output(&mut self, items: Vec<Value>, sink: &dyn TurnSink) -> Result<(), ModelError> {
        let (mut text, mut refused, mut own) = (String::new(), false, false);
        for (at, item) in items.iter().enumerate() {
            match text_at(item, "type") {
                "message" => {
                    own |= item.get("phase").is_some_and(|phase| !phase.is_null());
                    for part in item.get("content").and_then(Value::as_array).into_iter().flatten() {
                        let refusal = text_at(part, "refusal");
                        refused |= !refusal.is_empty();
                        text.push_str(text_at(part, "text"));
                        text.push_str(refusal);
                    }
                }
                "function_call" => {
                    let place = self.draft.calls.push(CallPiece {
                        index: u64::try_from(at).ok(),
                        id: text_at(item, "call_id"),
                        name: text_at(item, "name"),
                        arguments: "",
                    });
                    let arguments = text_at(item, "arguments");
                    self.draft.calls.replace_arguments(place, arguments);
                    // What was not streamed is shown now.
                    let at = u64::try_from(at).unwrap_or(u64::MAX);
                    let shown_bytes = self.shown.insert(at, arguments.len());
                    match arguments.get(shown_bytes.unwrap_or(0)..) {
                        Some("") | None if shown_bytes.is_some() => {}
                        rest => sink.call_delta(delta(at, item, rest.unwrap_or(""))),
                    }
                }
                _ => own = true,
            }
        }
        // What was not streamed is told now; where the two differ, the whole stands in the turn.
        match text.strip_prefix(self.draft.text.as_str()) {
            Some(rest) => self.draft.push_text(rest, sink)?,
            None if !text.is_empty() => self.draft.text = text,
            None => {}
        }
        if refused && self.draft.calls.is_empty() {
            self.draft.stop = Some(StopReason::Refusal);
        }
        if own {
            self.draft.items = items;
        }
        Ok(())
    }
}

/// A piece of the call at a place.
fn delta<'a>(at: u64, item: &'a Value, arguments: &'a str) -> CallDelta<'a> {
    CallDelta { place: place_of(at), id: text_at(item, "call_id"), tool: text_at(item, "name"), arguments }
}

fn place_of(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

impl Item {
    fn append(&mut self, piece: &str) {
        // The whole was given already.
        if self.done || self.argument_bytes == usize::MAX {
            return;
        }
        self.argument_bytes = self.argument_bytes.saturating_add(piece.len());
        // One byte beyond the limit is kept, so that the assembly sees that it was passed.
        let room = (ARGUMENTS_BYTES_MAX + 1).saturating_sub(self.arguments.len());
        self.arguments.push_str(&piece[..piece.floor_char_boundary(room)]);
    }

    fn replace(&mut self, whole: &str) {
        let end = whole.floor_char_boundary(ARGUMENTS_BYTES_MAX + 4);
        (self.arguments, self.argument_bytes) = (whole[..end].to_owned(), usize::MAX);
    }

    fn put(&mut self, value: Value) {
        let is_call = text_at(&value, "type") == "function_call";
        self.call = is_call.then(|| (text_at(&value, "call_id").to_owned(), text_at(&value, "name").to_owned()));
        self.value = value;
    }

    fn set(&mut self, key: &str, value: Value) {
        let mut own = std::mem::take(&mut self.value);
        if !own.is_object() {
            own = json!({});
        }
        own[key] = value;
        self.put(own);
    }

    /// The item as its provider would have given it.
    fn into_value(mut self) -> Value {
        match text_at(&self.value, "type") {
            "function_call" => {
                let arguments = std::mem::take(&mut self.arguments);
                self.set("arguments", json!(arguments));
            }
            "message" | "" if !self.done && !self.text.is_empty() => {
                let text = std::mem::take(&mut self.text);
                self.set("type", json!("message"));
                self.set("content", json!([{"type": "output_text", "text": text, "annotations": []}]));
            }
            _ => {}
        }
        self.value
    }
}

fn usage_of(usage: &Value) -> TokenUsage {
    TokenUsage {
        input_tokens: tokens(usage, "/input_tokens"),
        output_tokens: tokens(usage, "/output_tokens"),
        cache_read_tokens: tokens(usage, "/input_tokens_details/cached_tokens"),
        cache_write_tokens: tokens(usage, "/input_tokens_details/cache_write_tokens"),
        reasoning_tokens: tokens(usage, "/output_tokens_details/reasoning_tokens"),
    }
}
