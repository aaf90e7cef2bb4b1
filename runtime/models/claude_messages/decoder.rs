//! Reads answers of the Messages protocol, streamed and whole.
//!
//! A block is put together at its index from its own pieces and stands in the turn once it was stopped; a block that was
//! never stopped makes the turn incomplete when it is a call. The turn is whole once a stop reason came.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};
use toolwarden_tools::json_tree::{Node, unheld_number};

use super::CLAUDE_MESSAGES;
use crate::models::call_assembly::{CALLS_MAX, CallPiece};
use crate::models::event_reader::{EventReader, Fields, Unread};
use crate::models::sse::SseEvent;
use crate::models::wire::{Decoder, Draft, Progress, TEXT_BYTES_MAX, read_event, stream_error, text_at, tokens};
use crate::models::{ModelError, ModelTurn, StopReason, TokenUsage, TurnSink};

/// Reads events.
#[derive(Debug, Default)]
pub(super) struct MessagesDecoder {
    draft: Draft,
    blocks: BTreeMap<u64, Block>,
    usage: Value,
}

/// A block while it arrives.
#[derive(Debug)]
struct Block {
    /// As it began, with text, thinking, signature and citations added since.
    value: Value,
    /// A field of it, and pieces that it gets before anything else is added.
    run: Option<(&'static str, String)>,
    /// Which call of the turn it is.
    call: Option<usize>,
    /// The input of a provider's own tool.
    input: String,
    bytes: usize,
    stopped: bool,
}

/// An event, as far as it is looked at.
#[derive(Debug, Default)]
struct Event<'a> {
    kind: Option<Cow<'a, str>>,
    index: Option<u64>,
    delta: Option<Delta<'a>>,
    content_block: Option<Box<Value>>,
    message: Option<Box<Value>>,
    usage: Option<Box<Value>>,
    error: Option<Box<Value>>,
}

#[derive(Debug, Default)]
struct Delta<'a> {
    kind: Option<Cow<'a, str>>,
    text: Option<Cow<'a, str>>,
    partial_json: Option<Cow<'a, str>>,
    thinking: Option<Cow<'a, str>>,
    signature: Option<Cow<'a, str>>,
    citation: Option<Box<Value>>,
    stop_reason: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for Event<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "type" => value.text(&mut self.kind),
            "index" => value.number(&mut self.index),
            "delta" => value.part(&mut self.delta),
            "content_block" => value.value(&mut self.content_block),
            "message" => value.value(&mut self.message),
            "usage" => value.value(&mut self.usage),
            "error" => value.value(&mut self.error),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for Delta<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "type" => value.text(&mut self.kind),
            "text" => value.text(&mut self.text),
            "partial_json" => value.text(&mut self.partial_json),
            "thinking" => value.text(&mut self.thinking),
            "signature" => value.text(&mut self.signature),
            "citation" => value.value(&mut self.citation),
            "stop_reason" => value.text(&mut self.stop_reason),
            _ => value.skip(),
        }
    }
}

impl Decoder for MessagesDecoder {
    fn event(&mut self, event: &SseEvent<'_>, sink: &dyn TurnSink) -> Result<Progress, ModelError> {
        let (written, mut event) = (event, Event::default());
        if !read_event(&mut event, written)? {
            return Ok(self.progress());
        }
        match event.kind.as_deref().unwrap_or("") {
            "message_start" => {
                let usage = event.message.as_ref().and_then(|message| message.get("usage"));
                self.add_usage(usage.unwrap_or(&Value::Null));
            }
            "content_block_start" => {
                let index = event.index.unwrap_or(self.blocks.len() as u64);
                self.begin(
                    index,
                    event.content_block.map_or(Value::Null, |block| *block),
                    &input_of(&written.data),
                    sink,
                )?;
            }
            "content_block_delta" => {
                if let (Some(index), Some(delta)) = (event.index, event.delta) {
                    self.append(index, delta, sink)?;
                }
            }
            "content_block_stop" => {
                if let Some(block) = event.index.and_then(|index| self.blocks.get_mut(&index)) {
                    block.stopped = true;
                }
            }
            "message_delta" => {
                if let Some(reason) = event.delta.and_then(|delta| delta.stop_reason) {
                    self.draft.stop = Some(stop_reason(&reason)?);
                }
                self.add_usage(event.usage.as_deref().unwrap_or(&Value::Null));
            }
            "message_stop" => {
                // One server leaves the reason out; its stop is still its last word.
                self.draft.stop.get_or_insert(StopReason::EndTurn);
                return Ok(Progress::Done);
            }
            "error" => return Err(stream_error(event.error.as_deref().unwrap_or(&Value::Null))),
            _ => {}
        }
        Ok(self.progress())
    }

    fn finish(mut self: Box<Self>) -> Result<ModelTurn, ModelError> {
        self.draft.usage = usage_of(&self.usage);
        let cut = self.draft.stop == Some(StopReason::MaxTokens);
        if !cut && self.blocks.values().any(|block| block.call.is_some() && !block.stopped) {
            return Err(ModelError::Incomplete { message: "a call was begun and never ended".to_owned() });
        }
        let mut items: Vec<Value> = Vec::with_capacity(self.blocks.len());
        for block in std::mem::take(&mut self.blocks).into_values() {
            items.push(block.into_value());
        }
        let is_plain = |item: &Value| match text_at(item, "type") {
            "text" => item.get("citations").is_none_or(|citations| citations.as_array().is_none_or(Vec::is_empty)),
            kind => kind == "tool_use",
        };
        if !items.iter().all(is_plain) {
            self.draft.items = items;
        }
        self.draft.finish(CLAUDE_MESSAGES)
    }
}

/// An answer that came as one piece.
pub(super) fn whole(body: &Value, text: &str, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
    if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
        return Err(stream_error(error));
    }
    let Some(content) = body.get("content").and_then(Value::as_array) else {
        return Err(ModelError::Unreadable { message: "it is no message: it has no content".to_owned() });
    };
    let mut decoder = MessagesDecoder::default();
    decoder.add_usage(body.get("usage").unwrap_or(&Value::Null));
    let calls = content.iter().any(|block| text_at(block, "type") == "tool_use");
    let inputs = if calls { inputs_of(text) } else { Vec::new() };
    for (index, block) in (0..).zip(content) {
        let input = inputs.get(usize::try_from(index).unwrap_or(usize::MAX)).map_or("", String::as_str);
        decoder.begin(index, block.clone(), input, sink)?;
        if let Some(block) = decoder.blocks.get_mut(&index) {
            block.stopped = true;
        }
    }
    decoder.draft.stop = match text_at(body, "stop_reason") {
        "" => None,
        reason => Some(stop_reason(reason)?),
    };
    Box::new(decoder).finish()
}

/// The inputs of the blocks of an answer, as they were written.
fn inputs_of(text: &str) -> Vec<String> {
    let Ok(body) = Node::read(text) else { return Vec::new() };
    let Some(Node::Array(blocks)) = body.get("content") else { return Vec::new() };
    blocks.iter().map(|block| block.get("input").map(Node::write).unwrap_or_default()).collect()
}

/// The input with which a block begins, as it was written; empty where a value has all of its digits.
fn input_of(data: &str) -> String {
    let event = unheld_number(data).and_then(|_| Node::read(data).ok());
    let input = event.as_ref().and_then(|event| event.get("content_block")?.get("input"));
    input.map(Node::write).unwrap_or_default()
}

impl MessagesDecoder {
    fn progress(&self) -> Progress {
        if self.draft.stop.is_some() { Progress::Whole } else { Progress::Open }
    }

    /// Begins a block whose input has this text, where that is known.
    fn begin(&mut self, index: u64, value: Value, input: &str, sink: &dyn TurnSink) -> Result<(), ModelError> {
        if self.blocks.len() >= CALLS_MAX {
            return Err(ModelError::TooLarge { message: format!("it has more than {CALLS_MAX} blocks") });
        }
        // A second beginning at a place in use would mix two blocks.
        if self.blocks.contains_key(&index) {
            return Err(ModelError::Incomplete { message: format!("block {index} was begun twice") });
        }
        let call = (text_at(&value, "type") == "tool_use").then(|| {
            let given = value.get("input").filter(|input| input.as_object().is_none_or(|input| !input.is_empty()));
            let arguments = match given.filter(|given| !given.is_null()) {
                Some(_) if !input.is_empty() => input.to_owned(),
                given => given.map(Value::to_string).unwrap_or_default(),
            };
            let piece = CallPiece {
                index: Some(index),
                id: text_at(&value, "id"),
                name: text_at(&value, "name"),
                arguments: &arguments,
            };
            self.draft.push_call(piece, sink)
        });
        self.draft.push_text(text_at(&value, "text"), sink)?;
        let block = Block { value, run: None, call, input: String::new(), bytes: 0, stopped: false };
        self.blocks.insert(index, block);
        Ok(())
    }

    fn append(&mut self, index: u64, delta: Delta<'_>, sink: &dyn TurnSink) -> Result<(), ModelError> {
        // Pieces of a block that is not open are late or lost: nothing is made of them.
        let Some(block) = self.blocks.get_mut(&index).filter(|block| !block.stopped) else {
            return Err(ModelError::Incomplete { message: format!("a piece of block {index}, which is not open") });
        };
        if let Some(text) = delta.text.as_deref() {
            self.draft.push_text(text, sink)?;
            block.extend("text", text)?;
        }
        if let Some(json) = delta.partial_json.as_deref() {
            match block.call {
                Some(_) => {
                    let piece = CallPiece { index: Some(index), arguments: json, ..CallPiece::default() };
                    self.draft.push_call(piece, sink);
                }
                None => {
                    block.count(json.len())?;
                    block.input.push_str(json);
                }
            }
        }
        if let Some(thought) = delta.thinking.as_deref() {
            sink.reasoning_delta(thought);
            block.extend("thinking", thought)?;
        }
        if let Some(signature) = delta.signature.as_deref() {
            block.extend("signature", signature)?;
        }
        if let (Some("citations_delta"), Some(citation)) = (delta.kind.as_deref(), delta.citation) {
            block.count(citation.to_string().len())?;
            block.close_run();
            match block.value.get_mut("citations").and_then(Value::as_array_mut) {
                Some(citations) => citations.push(*citation),
                None => block.fields()["citations"] = json!([*citation]),
            }
        }
        Ok(())
    }

    /// Later figures are the sums so far.
    fn add_usage(&mut self, usage: &Value) {
        let Some(fields) = usage.as_object() else { return };
        if !self.usage.is_object() {
            self.usage = json!({});
        }
        for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
            self.usage[key.as_str()] = value.clone();
        }
    }
}

impl Block {
    fn count(&mut self, bytes: usize) -> Result<(), ModelError> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > TEXT_BYTES_MAX {
            return Err(ModelError::TooLarge { message: format!("a block has more than {TEXT_BYTES_MAX} bytes") });
        }
        Ok(())
    }

    fn extend(&mut self, key: &'static str, piece: &str) -> Result<(), ModelError> {
        self.count(piece.len())?;
        match &mut self.run {
            Some((field, pieces)) if *field == key => pieces.push_str(piece),
            _ => {
                self.close_run();
                self.run = Some((key, piece.to_owned()));
            }
        }
        Ok(())
    }

    /// Adds the pieces that have come to their field.
    fn close_run(&mut self) {
        let Some((key, pieces)) = self.run.take() else { return };
        match &mut self.fields()[key] {
            Value::String(text) => text.push_str(&pieces),
            other => *other = Value::String(pieces),
        }
    }

    /// Its value, to which a field can be added: one that began as no object is text.
    fn fields(&mut self) -> &mut Value {
        if !self.value.is_object() {
            self.value = json!({"type": "text"});
        }
        &mut self.value
    }

    fn into_value(mut self) -> Value {
        self.close_run();
        if self.call.is_none() && !self.input.is_empty() {
            // A string of digits goes back where a number would have lost some.
            let input = Node::read(&self.input).map_or_else(|_| json!({}), |input| input.to_held_value());
            self.fields()["input"] = input;
        }
        self.value
    }
}

fn stop_reason(reason: &str) -> Result<StopReason, ModelError> {
    match reason {
        "end_turn" | "stop_sequence" => Ok(StopReason::EndTurn),
        "tool_use" => Ok(StopReason::ToolUse),
        "max_tokens" => Ok(StopReason::MaxTokens),
        "pause_turn" => Ok(StopReason::Paused),
        "refusal" => Ok(StopReason::Refusal),
        "model_context_window_exceeded" => Ok(StopReason::ContextOverflow),
        // One mock server lets it through from another protocol.
        "content_filter" => Ok(StopReason::ContentFilter),
        other => Err(ModelError::Unreadable { message: format!("it ended for a reason that is not known: {other:?}") }),
    }
}

/// This protocol counts what was cached apart; together they are what was read.
fn usage_of(usage: &Value) -> TokenUsage {
    let (read, written) = (tokens(usage, "/cache_read_input_tokens"), tokens(usage, "/cache_creation_input_tokens"));
    TokenUsage {
        input_tokens: tokens(usage, "/input_tokens").saturating_add(read).saturating_add(written),
        output_tokens: tokens(usage, "/output_tokens"),
        cache_read_tokens: read,
        cache_write_tokens: written,
        reasoning_tokens: tokens(usage, "/output_tokens_details/thinking_tokens"),
    }
}
