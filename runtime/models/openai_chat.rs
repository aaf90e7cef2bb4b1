//! The Chat Completions protocol of OpenAI, which many other servers speak as well.
//!
//! Servers differ in what they leave out, so little is taken for granted: a chunk may have no choices, a call no index
//! or no id, and the list of pieces ends with `[DONE]` or with the stream. A turn is whole once its `finish_reason` came;
//! what follows can only be usage.

use std::borrow::Cow;

use serde_json::{Value, json};
use toolwarden_tools::json_tree::{Node, unheld_number};

use super::call_assembly::CallPiece;
use super::event_reader::{EventReader, Few, Fields, Loose, Unread, read_object, value_of};
use super::object_support::{ObjectSupport, StrictDialect};
use super::sse::SseEvent;
use super::turn_options::{OutputShape, ToolChoice};
use super::wire::{
    Decoder, Draft, Progress, Protocol, WireIds, WireSettings, object, read_event, stream_error, text_at, tokens,
    wire_name,
};
use super::{Message, ModelCall, ModelError, ModelRequest, ModelTurn, Replay, StopReason, TokenUsage, TurnSink};

/// The protocol.
#[derive(Debug, Clone, Copy)]
pub struct OpenAiChat;

/// Its name.
pub const OPENAI_CHAT: &str = "openai_chat";

impl Protocol for OpenAiChat {
    fn name(&self) -> &'static str {
        OPENAI_CHAT
    }

    fn path(&self) -> &'static str {
        "/chat/completions"
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        ("authorization", format!("Bearer {key}"))
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn request_id_header(&self) -> &'static str {
        "x-request-id"
    }

    fn object_support(&self) -> ObjectSupport {
        ObjectSupport::all(StrictDialect::OpenAi)
    }

    fn request(&self, request: &ModelRequest, settings: &WireSettings) -> Value {
        let options = &request.options;
        let has_tools = !request.tools.is_empty();
        let stream = settings.stream;
        object([
            ("model", json!(settings.model)),
            ("messages", Value::Array(messages(request))),
            ("tools", if has_tools { Value::Array(tools(request)) } else { Value::Null }),
            ("tool_choice", if has_tools { tool_choice(request) } else { Value::Null }),
            ("parallel_tool_calls", if has_tools && options.single_call { json!(false) } else { Value::Null }),
            ("response_format", options.output.as_ref().map_or(Value::Null, response_format)),
            ("max_completion_tokens", json!(options.output_tokens_max.or(settings.output_tokens_max))),
            ("reasoning_effort", json!(settings.reasoning_effort)),
            ("prompt_cache_key", json!(options.cache_key)),
            ("metadata", if options.metadata.is_empty() { Value::Null } else { json!(options.metadata) }),
            ("stream", if stream { json!(true) } else { Value::Null }),
            ("stream_options", if stream { json!({"include_usage": true}) } else { Value::Null }),
        ])
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(ChatDecoder::default())
    }

    fn whole(&self, body: &Value, text: &str, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
        if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
            return Err(stream_error(error));
        }
        if !body.get("choices").is_some_and(Value::is_array) {
            return Err(ModelError::Unreadable { message: "it is no chat completion: it has no choices".to_owned() });
        }
        let mut chunk = Chunk::default();
        read_object(text, &mut chunk)
            .map_err(|error| ModelError::Unreadable { message: format!("it is no chat completion: {error}") })?;
        let mut decoder = ChatDecoder::default();
        decoder.take(&chunk, sink)?;
        Box::new(decoder).finish()
    }
}

fn messages(request: &ModelRequest) -> Vec<Value> {
    let ids = WireIds::of(&request.messages);
    let mut messages = Vec::with_capacity(request.messages.len() + 1);
    if !request.system.is_empty() {
        messages.push(json!({"role": "system", "content": request.system}));
    }
    for message in &request.messages {
        match message {
            Message::User { text } => messages.push(json!({"role": "user", "content": text})),
            Message::Image { media_type, data } => {
                let url = format!("data:{media_type};base64,{data}");
                let part = json!({"type": "image_url", "image_url": {"url": url}});
                messages.push(json!({"role": "user", "content": [part]}));
            }
            Message::Assistant { text, calls, replay } => {
                messages.push(assistant(text, calls, replay.as_ref(), &ids));
            }
            Message::ToolResults { results } => messages.extend(results.iter().map(
                |result| json!({"role": "tool", "tool_call_id": ids.get(&result.call_id), "content": result.output}),
            )),
        }
    }
    messages
}

/// What a turn thought goes back with it where its server sent any: several refuse a call without it.
fn assistant(text: &str, calls: &[ModelCall], replay: Option<&Replay>, ids: &WireIds<'_>) -> Value {
    let kept = replay.filter(|replay| replay.protocol == OPENAI_CHAT).and_then(|replay| replay.items.first());
    let called: Vec<Value> = calls
        .iter()
        .enumerate()
        .map(|(place, call)| {
            let arguments = call.arguments.for_request().to_string();
            object([
                ("id", json!(ids.get(&call.id))),
                ("type", json!("function")),
                ("function", json!({"name": wire_name(call.tool.as_str()), "arguments": arguments})),
                (
                    "extra_content",
                    kept.and_then(|kept| kept.pointer(&format!("/extra/{place}"))).cloned().unwrap_or_default(),
                ),
            ])
        })
        .collect();
    let content = if text.is_empty() && !called.is_empty() { Value::Null } else { json!(text) };
    let mut message = object([
        ("role", json!("assistant")),
        ("tool_calls", if called.is_empty() { Value::Null } else { Value::Array(called) }),
        ("reasoning_content", kept.and_then(|kept| kept.get("reasoning_content")).cloned().unwrap_or_default()),
    ]);
    message["content"] = content;
    message
}

fn tools(request: &ModelRequest) -> Vec<Value> {
    let tool = |tool: &toolwarden_tools::declaration::ToolDefinition| {
        let function = json!({
            "name": wire_name(tool.name.as_str()),
            "description": tool.description,
            "parameters": tool.parameters,
        });
        json!({"type": "function", "function": function})
    };
    request.tools.iter().map(tool).collect()
}

fn tool_choice(request: &ModelRequest) -> Value {
    match &request.options.tool_choice {
        _ if !request.tool_calls_allowed => json!("none"),
        ToolChoice::Auto => Value::Null,
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "function": {"name": wire_name(name)}}),
    }
}

fn response_format(shape: &OutputShape) -> Value {
    match shape {
        OutputShape::JsonObject => json!({"type": "json_object"}),
        OutputShape::JsonSchema { name, schema, strict } => {
            json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}})
        }
    }
}

/// A piece of an answer; a whole answer has the same shape, with `message` for `delta`.
#[derive(Debug, Default)]
struct Chunk<'a> {
    choices: Option<Few<Choice<'a>>>,
    usage: Option<Box<Value>>,
    error: Option<Box<Value>>,
}

#[derive(Debug, Default)]
struct Choice<'a> {
    index: Option<u64>,
    delta: Option<Delta<'a>>,
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Debug, Default)]
struct Delta<'a> {
    content: Option<Loose<'a>>,
    refusal: Option<Cow<'a, str>>,
    reasoning_content: Option<Cow<'a, str>>,
    tool_calls: Option<Few<CallDelta<'a>>>,
}

#[derive(Debug, Default)]
struct CallDelta<'a> {
    index: Option<u64>,
    id: Option<Cow<'a, str>>,
    function: Option<FunctionDelta<'a>>,
    extra_content: Option<Box<Value>>,
}

#[derive(Debug, Default)]
struct FunctionDelta<'a> {
    name: Option<Cow<'a, str>>,
    arguments: Option<Loose<'a>>,
}

impl<'a> Fields<'a> for Chunk<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "choices" => value.list(&mut self.choices),
            "usage" => value.value(&mut self.usage),
            "error" => value.value(&mut self.error),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for Choice<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "index" => value.number(&mut self.index),
            "delta" | "message" => value.part(&mut self.delta),
            "finish_reason" => value.text(&mut self.finish_reason),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for Delta<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "content" => value.loose(&mut self.content),
            "refusal" => value.text(&mut self.refusal),
            "reasoning_content" => value.text(&mut self.reasoning_content),
            "tool_calls" => value.list(&mut self.tool_calls),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for CallDelta<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "index" => value.number(&mut self.index),
            "id" => value.text(&mut self.id),
            "function" => value.part(&mut self.function),
            "extra_content" => value.value(&mut self.extra_content),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for FunctionDelta<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "name" => value.text(&mut self.name),
            "arguments" => value.loose(&mut self.arguments),
            _ => value.skip(),
        }
    }
}

/// Reads chunks.
#[derive(Debug, Default)]
struct ChatDecoder {
    draft: Draft,
    refused: bool,
    reasoning: String,
    extra: serde_json::Map<String, Value>,
}

impl Decoder for ChatDecoder {
    fn event(&mut self, event: &SseEvent<'_>, sink: &dyn TurnSink) -> Result<Progress, ModelError> {
        if event.data.trim() == "[DONE]" {
            return Ok(Progress::Done);
        }
        let mut chunk = Chunk::default();
        if read_event(&mut chunk, event)? {
            self.take(&chunk, sink)?;
        }
        Ok(if self.draft.stop.is_some() { Progress::Whole } else { Progress::Open })
    }

    fn finish(mut self: Box<Self>) -> Result<ModelTurn, ModelError> {
        if self.refused && self.draft.stop.is_some() {
            self.draft.stop = Some(StopReason::Refusal);
        }
        let kept = object([
            ("reasoning_content", if self.reasoning.is_empty() { Value::Null } else { json!(self.reasoning) }),
            ("extra", if self.extra.is_empty() { Value::Null } else { Value::Object(self.extra) }),
        ]);
        if kept.as_object().is_some_and(|kept| !kept.is_empty()) {
            self.draft.items = vec![kept];
        }
        self.draft.finish(OPENAI_CHAT)
    }
}

impl ChatDecoder {
    fn take(&mut self, chunk: &Chunk<'_>, sink: &dyn TurnSink) -> Result<(), ModelError> {
        if let Some(error) = &chunk.error {
            return Err(stream_error(error));
        }
        if let Some(usage) = chunk.usage.as_deref().filter(|usage| usage.is_object()) {
            self.draft.usage = usage_of(usage);
        }
        // Only one answer is asked for.
        for choice in chunk.choices.iter().flat_map(Few::iter).filter(|choice| choice.index.unwrap_or(0) == 0) {
            if let Some(delta) = &choice.delta {
                self.take_delta(delta, sink)?;
            }
            match choice.finish_reason.as_deref().unwrap_or("") {
                "" => {}
                reason => self.draft.stop = Some(stop_reason(reason)?),
            }
        }
        Ok(())
    }

    fn take_delta(&mut self, delta: &Delta<'_>, sink: &dyn TurnSink) -> Result<(), ModelError> {
        match &delta.content {
            Some(Loose::Text(text)) => self.draft.push_text(text, sink)?,
            // A few servers send the parts of a message.
            Some(Loose::Other(other)) => {
                let parts = value_of(other).unwrap_or_default();
                for part in parts.as_array().into_iter().flatten() {
                    self.draft.push_text(text_at(part, "text"), sink)?;
                }
            }
            None => {}
        }
        let refusal = delta.refusal.as_deref().unwrap_or("");
        if !refusal.is_empty() {
            self.refused = true;
            self.draft.push_text(refusal, sink)?;
        }
        let thought = delta.reasoning_content.as_deref().unwrap_or("");
        if !thought.is_empty() {
            if self.reasoning.len() + thought.len() > super::wire::TEXT_BYTES_MAX {
                return Err(ModelError::TooLarge { message: "it thinks without end".to_owned() });
            }
            sink.reasoning_delta(thought);
            self.reasoning.push_str(thought);
        }
        for call in delta.tool_calls.iter().flat_map(Few::iter) {
            self.take_call(call, sink);
        }
        Ok(())
    }

    fn take_call(&mut self, call: &CallDelta<'_>, sink: &dyn TurnSink) {
        let function = call.function.as_ref();
        let arguments = match function.and_then(|function| function.arguments.as_ref()) {
            Some(Loose::Text(text)) => Cow::Borrowed(&**text),
            None => Cow::Borrowed(""),
            // A few servers send the object itself.
            Some(Loose::Other(other)) => Cow::Owned(compact(other)),
        };
        let piece = CallPiece {
            index: call.index,
            id: call.id.as_deref().unwrap_or(""),
            name: function.and_then(|function| function.name.as_deref()).unwrap_or(""),
            arguments: &arguments,
        };
        let place = self.draft.push_call(piece, sink);
        if let Some(extra) = call.extra_content.as_deref() {
            self.extra.insert(place.to_string(), extra.clone());
        }
    }
}

/// JSON without blanks; numbers as they were written where a value does not have all of their digits.
fn compact(json: &str) -> String {
    let exact = unheld_number(json).and_then(|_| Node::read(json).ok()).map(|node| node.write());
    exact.or_else(|| value_of(json).map(|value| value.to_string())).unwrap_or_else(|| json.to_owned())
}

fn stop_reason(reason: &str) -> Result<StopReason, ModelError> {
    match reason {
        "stop" | "end_turn" | "eos" | "stop_sequence" | "eos_token" => Ok(StopReason::EndTurn),
        "tool_calls" | "function_call" | "tool_use" => Ok(StopReason::ToolUse),
        "length" | "max_tokens" => Ok(StopReason::MaxTokens),
        "content_filter" => Ok(StopReason::ContentFilter),
        "error" => Err(ModelError::Provider {
            message: "it ended with an error that was not described".to_owned(),
            retryable: true,
            retry_after_ms: None,
        }),
        other => Err(ModelError::Unreadable { message: format!("it ended for a reason that is not known: {other:?}") }),
    }
}

fn usage_of(usage: &Value) -> TokenUsage {
    TokenUsage {
        input_tokens: tokens(usage, "/prompt_tokens"),
        output_tokens: tokens(usage, "/completion_tokens"),
        cache_read_tokens: tokens(usage, "/prompt_tokens_details/cached_tokens"),
        cache_write_tokens: tokens(usage, "/prompt_tokens_details/cache_write_tokens"),
        reasoning_tokens: tokens(usage, "/completion_tokens_details/reasoning_tokens"),
    }
}

#[cfg(test)]
mod tests;
