//! The Responses protocol of OpenAI.
//!
//! A turn is a list of items, and a later request must send them back as they came: reasoning directly before what
//! follows from it, encrypted because nothing is stored at the provider. So the items of a turn that thought travel in its
//! replay; of those, reasoning that cannot be sent back (it came without its encrypted content) is left out together with
//! the item ids that depend on it. Pieces are put together per item, and the provider's own whole wins over them.

mod decoder;

use serde_json::{Value, json};

use super::object_support::{ObjectSupport, StrictDialect};
use super::turn_options::{OutputShape, ToolChoice};
use super::wire::{Decoder, Protocol, WireIds, WireSettings, object, text_at, wire_name};
use super::{Message, ModelCall, ModelError, ModelRequest, ModelTurn, Replay, TurnSink};

/// The protocol.
#[derive(Debug, Clone, Copy)]
pub struct OpenAiResponses;

/// Its name.
pub const OPENAI_RESPONSES: &str = "openai_responses";

impl Protocol for OpenAiResponses {
    fn name(&self) -> &'static str {
        OPENAI_RESPONSES
    }

    fn path(&self) -> &'static str {
        "/responses"
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
        let reasoning = settings.reasoning_effort.as_ref().map(|effort| json!({"effort": effort, "summary": "auto"}));
        object([
            ("model", json!(settings.model)),
            ("instructions", if request.system.is_empty() { Value::Null } else { json!(request.system) }),
            ("input", Value::Array(input(request))),
            ("tools", if has_tools { Value::Array(tools(request)) } else { Value::Null }),
            ("tool_choice", if has_tools { tool_choice(request) } else { Value::Null }),
            ("parallel_tool_calls", if has_tools { json!(!options.single_call) } else { Value::Null }),
            ("text", options.output.as_ref().map_or(Value::Null, |shape| json!({"format": format_of(shape)}))),
            ("max_output_tokens", json!(options.output_tokens_max.or(settings.output_tokens_max))),
            ("reasoning", json!(reasoning)),
            // Nothing is kept at the provider: the conversation is ours, and so is what it thought.
            ("store", json!(false)),
            ("include", json!(["reasoning.encrypted_content"])),
            ("prompt_cache_key", json!(options.cache_key)),
            ("metadata", if options.metadata.is_empty() { Value::Null } else { json!(options.metadata) }),
            ("stream", if settings.stream { json!(true) } else { Value::Null }),
        ])
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decoder::ResponsesDecoder::default())
    }

    fn whole(&self, body: &Value, _text: &str, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
        decoder::whole(body, sink)
    }
}

fn input(request: &ModelRequest) -> Vec<Value> {
    let ids = WireIds::of(&request.messages);
    let mut input = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        match message {
            Message::User { text } => input.push(json!({"role": "user", "content": text})),
            Message::Image { media_type, data } => {
                let url = format!("data:{media_type};base64,{data}");
                let part = json!({"type": "input_image", "image_url": url, "detail": "auto"});
                input.push(json!({"role": "user", "content": [part]}));
            }
            Message::Assistant { text, calls, replay } => {
                match replay.as_ref().filter(|replay| replay.protocol == OPENAI_RESPONSES) {
                    Some(replay) => input.extend(replayed(replay, calls, &ids)),
                    None => {
                        if !text.is_empty() {
                            input.push(json!({"role": "assistant", "content": text}));
                        }
                        input.extend(calls.iter().map(|call| called(call, &ids)));
                    }
                }
            }
            Message::ToolResults { results } => input.extend(results.iter().map(|result| {
                let call_id = ids.get(&result.call_id);
                json!({"type": "function_call_output", "call_id": call_id, "output": result.output})
            })),
        }
    }
    input
}

fn called(call: &ModelCall, ids: &WireIds<'_>) -> Value {
    json!({
        "type": "function_call",
        "call_id": ids.get(&call.id),
        "name": wire_name(call.tool.as_str()),
        "arguments": call.arguments.for_request().to_string(),
    })
}

/// A turn's own items in their order. Calls take the ids and arguments of the conversation, which may have renamed them;
/// calls that no item stands for come last, so that no result is left without its call.
fn replayed(replay: &Replay, calls: &[ModelCall], ids: &WireIds<'_>) -> Vec<Value> {
    let follows = |at: usize| replay.items.get(at + 1).is_some_and(|next| text_at(next, "type") != "reasoning");
    let can_return = |(at, item): (usize, &Value)| {
        text_at(item, "type") != "reasoning" || (!text_at(item, "encrypted_content").is_empty() && follows(at))
    };
    let all_return = replay.items.iter().enumerate().all(can_return);
    let mut rest = calls.iter();
    let mut items = Vec::with_capacity(replay.items.len());
    for (at, item) in replay.items.iter().enumerate() {
        if !can_return((at, item)) {
            continue;
        }
        let mut item = item.clone();
        if text_at(&item, "type") == "function_call" {
            let Some(call) = rest.next() else { continue };
            item["call_id"] = json!(ids.get(&call.id));
            item["name"] = json!(wire_name(call.tool.as_str()));
            item["arguments"] = json!(call.arguments.for_request().to_string());
        }
        items.push(if all_return { item } else { without_id(item) });
    }
    items.extend(rest.map(|call| called(call, ids)));
    items
}

/// An item whose id would ask for reasoning that is not sent.
fn without_id(mut item: Value) -> Value {
    if text_at(&item, "type") == "message" {
        let parts = item.get("content").and_then(Value::as_array).into_iter().flatten();
        let text: String = parts.map(|part| [text_at(part, "text"), text_at(part, "refusal")].concat()).collect();
        return json!({"role": "assistant", "content": text});
    }
    if let Some(fields) = item.as_object_mut().filter(|fields| fields.get("type") == Some(&json!("function_call"))) {
        fields.shift_remove("id");
    }
    item
}

fn tools(request: &ModelRequest) -> Vec<Value> {
    let tool = |tool: &toolwarden_tools::declaration::ToolDefinition| {
        json!({
            "type": "function",
            "name": wire_name(tool.name.as_str()),
            "description": tool.description,
            "parameters": tool.parameters,
            // Strict schemas are another dialect: the tools' own say what is optional.
            "strict": false,
        })
    };
    request.tools.iter().map(tool).collect()
}

fn tool_choice(request: &ModelRequest) -> Value {
    match &request.options.tool_choice {
        _ if !request.tool_calls_allowed => json!("none"),
        ToolChoice::Auto => Value::Null,
        ToolChoice::Required => json!("required"),
        ToolChoice::Named(name) => json!({"type": "function", "name": wire_name(name)}),
    }
}

fn format_of(shape: &OutputShape) -> Value {
    match shape {
        OutputShape::JsonObject => json!({"type": "json_object"}),
        OutputShape::JsonSchema { name, schema, strict } => {
            json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict})
        }
    }
}

#[cfg(test)]
mod tests;
