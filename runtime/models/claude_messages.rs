//! The Messages protocol of Claude.
//!
//! What the model thought is signed, and a turn that called tools is refused unless it comes back with its thinking
//! unchanged and in its place; so turns with more than text and calls keep their blocks in the replay. All results stand
//! in the very next message, before any words. Entries of one role are put together, for roles have to alternate.

mod decoder;

use serde_json::{Value, json};

use super::object_support::{ObjectSupport, StrictDialect};
use super::turn_options::{OutputShape, ToolChoice};
use super::wire::{Decoder, Protocol, WireIds, WireSettings, object, text_at, wire_name};
use super::{Message, ModelCall, ModelError, ModelRequest, ModelTurn, Replay, TurnSink};

/// The protocol.
#[derive(Debug, Clone, Copy)]
pub struct ClaudeMessages;

/// Its name.
pub const CLAUDE_MESSAGES: &str = "claude_messages";

/// The revision of the protocol that is spoken.
const VERSION: &str = "2023-06-01";
/// The most tokens a turn may write when nothing else is said: the protocol wants a number.
pub const OUTPUT_TOKENS_MAX: u64 = 16_384;

impl Protocol for ClaudeMessages {
    fn name(&self) -> &'static str {
        CLAUDE_MESSAGES
    }

    fn path(&self) -> &'static str {
        "/messages"
    }

    fn key_header(&self, key: &str) -> (&'static str, String) {
        ("x-api-key", key.to_owned())
    }

    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[("anthropic-version", VERSION)]
    }

    fn request_id_header(&self) -> &'static str {
        "request-id"
    }

    fn object_support(&self) -> ObjectSupport {
        // Any JSON object is no shape that this protocol knows.
        ObjectSupport { json_object: false, ..ObjectSupport::all(StrictDialect::Claude) }
    }

    fn request(&self, request: &ModelRequest, settings: &WireSettings) -> Value {
        let options = &request.options;
        let has_tools = !request.tools.is_empty();
        let is_forced = options.tool_choice != ToolChoice::Auto && request.tool_calls_allowed;
        let output_tokens = options.output_tokens_max.or(settings.output_tokens_max).unwrap_or(OUTPUT_TOKENS_MAX);
        // A forced tool and thinking exclude each other, and thinking needs room below the answer's own limit.
        let thinking = settings.thinking_tokens_max.filter(|budget| !is_forced && *budget < output_tokens);
        let user = options.metadata.get("user_id").map(|user| json!({"user_id": user}));
        object([
            ("model", json!(settings.model)),
            ("max_tokens", json!(output_tokens)),
            (
                "system",
                if request.system.is_empty() { Value::Null } else { json!([cached(text_block(&request.system))]) },
            ),
            ("messages", Value::Array(messages(request))),
            ("tools", if has_tools { Value::Array(tools(request)) } else { Value::Null }),
            ("tool_choice", if has_tools { tool_choice(request) } else { Value::Null }),
            ("output_config", output_config(request, settings)),
            ("thinking", json!(thinking.map(|budget| json!({"type": "enabled", "budget_tokens": budget})))),
            ("metadata", json!(user)),
            ("stream", if settings.stream { json!(true) } else { Value::Null }),
        ])
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decoder::MessagesDecoder::default())
    }

    fn whole(&self, body: &Value, text: &str, sink: &dyn TurnSink) -> Result<ModelTurn, ModelError> {
        decoder::whole(body, text, sink)
    }
}

fn messages(request: &ModelRequest) -> Vec<Value> {
    let ids = WireIds::of(&request.messages);
    let mut turns: Vec<(&'static str, Vec<Value>)> = Vec::new();
    for message in &request.messages {
        let (role, blocks) = match message {
            Message::User { text } => ("user", non_empty(text)),
            Message::Image { media_type, data } => {
                let source = json!({"type": "base64", "media_type": media_type, "data": data});
                ("user", vec![json!({"type": "image", "source": source})])
            }
            Message::Assistant { text, calls, replay } => ("assistant", assistant(text, calls, replay.as_ref(), &ids)),
            Message::ToolResults { results } => {
                let block = |result: &super::ToolResult| {
                    object([
                        ("type", json!("tool_result")),
                        ("tool_use_id", json!(ids.get(&result.call_id))),
                        ("content", json!(result.output)),
                        ("is_error", if result.success { Value::Null } else { json!(true) }),
                    ])
                };
                ("user", results.iter().map(block).collect())
            }
        };
        if blocks.is_empty() {
            continue;
        }
        match turns.last_mut().filter(|(last, _)| *last == role) {
            Some((_, last)) => last.extend(blocks),
            None => turns.push((role, blocks)),
        }
    }
    // The conversation up to here is the beginning of the next request.
    if let Some((_, blocks)) = turns.iter_mut().rfind(|(role, _)| *role == "user")
        && let Some(last) = blocks.last_mut()
    {
        *last = cached(last.take());
    }
    turns.into_iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

/// Empty texts are refused.
fn non_empty(text: &str) -> Vec<Value> {
    if text.trim().is_empty() { Vec::new() } else { vec![text_block(text)] }
}

fn cached(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

fn assistant(text: &str, calls: &[ModelCall], replay: Option<&Replay>, ids: &WireIds<'_>) -> Vec<Value> {
    let Some(replay) = replay.filter(|replay| replay.protocol == CLAUDE_MESSAGES) else {
        let mut blocks = non_empty(text);
        blocks.extend(calls.iter().map(|call| called(call, ids)));
        return blocks;
    };
    let mut rest = calls.iter();
    let mut blocks = Vec::with_capacity(replay.items.len());
    for block in &replay.items {
        match text_at(block, "type") {
            // Calls take the ids and arguments of the conversation, which may have renamed them.
            "tool_use" => {
                let Some(call) = rest.next() else { continue };
                let mut block = block.clone();
                block["id"] = json!(ids.get(&call.id));
                block["name"] = json!(wire_name(call.tool.as_str()));
                block["input"] = call.arguments.for_request();
                blocks.push(block);
            }
            "text" if text_at(block, "text").trim().is_empty() => {}
            _ => blocks.push(block.clone()),
        }
    }
    blocks.extend(rest.map(|call| called(call, ids)));
    blocks
}

fn called(call: &ModelCall, ids: &WireIds<'_>) -> Value {
    json!({
        "type": "tool_use",
        "id": ids.get(&call.id),
        "name": wire_name(call.tool.as_str()),
        "input": call.arguments.for_request(),
    })
}

fn tools(request: &ModelRequest) -> Vec<Value> {
    let tool = |tool: &toolwarden_tools::declaration::ToolDefinition| json!({"name": wire_name(tool.name.as_str()), "description": tool.description, "input_schema": tool.parameters});
    request.tools.iter().map(tool).collect()
}

fn tool_choice(request: &ModelRequest) -> Value {
    let single = if request.options.single_call { json!(true) } else { Value::Null };
    match &request.options.tool_choice {
        _ if !request.tool_calls_allowed => json!({"type": "none"}),
        ToolChoice::Auto if single.is_null() => Value::Null,
        ToolChoice::Auto => object([("type", json!("auto")), ("disable_parallel_tool_use", single)]),
        ToolChoice::Required => object([("type", json!("any")), ("disable_parallel_tool_use", single)]),
        ToolChoice::Named(name) => {
            object([("type", json!("tool")), ("name", json!(wire_name(name))), ("disable_parallel_tool_use", single)])
        }
    }
}

/// Any JSON object is no shape that this protocol knows.
fn output_config(request: &ModelRequest, settings: &WireSettings) -> Value {
    let format = match &request.options.output {
        Some(OutputShape::JsonSchema { schema, .. }) => json!({"type": "json_schema", "schema": schema}),
        Some(OutputShape::JsonObject) | None => Value::Null,
    };
    let effort = json!(settings.reasoning_effort);
    if format.is_null() && effort.is_null() {
        return Value::Null;
    }
    object([("format", format), ("effort", effort)])
}

#[cfg(test)]
mod tests;
