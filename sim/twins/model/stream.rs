//! A turn as its provider sends it: the events of a stream, in each of the three protocols.
//!
//! What is written here follows the providers' descriptions and not our readers of them: text and arguments come in
//! pieces, calls one after the other, and the last word last.

use serde::Deserialize;
use serde_json::{Value, json};
use toolwarden::models::{CallArguments, ModelCall, ModelTurn, StopReason};

use crate::play::Wire;

/// One event: its kind, empty where the protocol has none, and its data.
pub(super) type Event = (&'static str, String);

/// The events of a turn; text and arguments in so many pieces.
pub(super) fn events(wire: Wire, turn: &ModelTurn, pieces: usize) -> Vec<Event> {
    match wire {
        Wire::Chat => chat(turn, pieces),
        Wire::Responses => responses(turn, pieces),
        Wire::Claude => claude(turn, pieces),
    }
}

/// How many events a protocol has behind the last piece of a turn's content.
pub(super) fn last_events(wire: Wire) -> usize {
    match wire {
        // Why it ended, what it cost, and the end.
        Wire::Chat => 3,
        Wire::Responses => 1,
        Wire::Claude => 2,
    }
}

/// Of a request its conversation; the tools that it offers, which are most of it, are read over.
#[derive(Debug, Deserialize)]
pub(super) struct Conversation {
    #[serde(default, alias = "input")]
    pub(super) messages: Value,
}

/// What is wrong with how calls and results of a conversation fit together, if anything.
pub(super) fn unpaired(wire: Wire, messages: &Value) -> Option<String> {
    let (mut open, mut count) = (Vec::<String>::new(), 0_usize);
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(entries) = messages.as_array() else {
        return Some("the request holds no conversation".to_owned());
    };
    for entry in entries {
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        match wire {
            Wire::Chat => {
                let asked = entry.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
                calls.extend(asked.map(|call| text(call, "id")));
                if text(entry, "role") == "tool" {
                    results.push(text(entry, "tool_call_id"));
                }
            }
            Wire::Responses => match text(entry, "type").as_str() {
                "function_call" => calls.push(text(entry, "call_id")),
                "function_call_output" => results.push(text(entry, "call_id")),
                _ => {}
            },
            Wire::Claude => {
                for block in entry.get("content").and_then(Value::as_array).into_iter().flatten() {
                    match text(block, "type").as_str() {
                        "tool_use" => calls.push(text(block, "id")),
                        "tool_result" => results.push(text(block, "tool_use_id")),
                        _ => {}
                    }
                }
            }
        }
        count += calls.len();
        for id in results {
            let Some(at) = open.iter().position(|call| *call == id) else {
                return Some(format!("the result for {id:?} answers no open call"));
            };
            open.remove(at);
        }
        open.extend(calls);
    }
    (!open.is_empty()).then(|| format!("{} of {count} calls have no result: {open:?}", open.len()))
}

/// A text in so many pieces, cut between characters.
fn cut(text: &str, pieces: usize) -> Vec<&str> {
    let size = text.len().div_ceil(pieces).max(1);
    let (mut rest, mut parts) = (text, Vec::new());
    while !rest.is_empty() {
        let (part, after) = rest.split_at(rest.ceil_char_boundary(size.min(rest.len())));
        parts.push(part);
        rest = after;
    }
    parts
}

fn arguments(call: &ModelCall) -> String {
    match &call.arguments {
        CallArguments::Parsed(value) => value.to_string(),
        CallArguments::Malformed { text, .. } => text.clone(),
    }
}

fn chat(turn: &ModelTurn, pieces: usize) -> Vec<Event> {
    let chunk = |choices: Value| json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices });
    let delta = |delta: Value| chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }]));
    let mut all = vec![delta(json!({ "role": "assistant", "content": "" }))];
    all.extend(cut(&turn.text, pieces).into_iter().map(|part| delta(json!({ "content": part }))));
    for (index, call) in turn.calls.iter().enumerate() {
        let function = json!({ "name": call.tool.as_str(), "arguments": "" });
        let begun = json!({ "index": index, "id": call.id, "type": "function", "function": function });
        all.push(delta(json!({ "tool_calls": [begun] })));
        for part in cut(&arguments(call), pieces) {
            let piece = json!({ "index": index, "function": { "arguments": part } });
            all.push(delta(json!({ "tool_calls": [piece] })));
        }
    }
    let reason = match turn.stop {
        StopReason::MaxTokens => "length",
        StopReason::ContentFilter => "content_filter",
        _ if turn.calls.is_empty() => "stop",
        _ => "tool_calls",
    };
    all.push(chunk(json!([{ "index": 0, "delta": {}, "finish_reason": reason }])));
    let mut usage = chunk(json!([]));
    let (input, output) = (turn.usage.input_tokens, turn.usage.output_tokens);
    usage["usage"] = json!({ "prompt_tokens": input, "completion_tokens": output, "total_tokens": 0 });
    all.push(usage);
    let mut events: Vec<Event> = all.into_iter().map(|chunk| ("", chunk.to_string())).collect();
    events.push(("", "[DONE]".to_owned()));
    events
}

fn responses(turn: &ModelTurn, pieces: usize) -> Vec<Event> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    let mut output = Vec::new();
    all.push(("response.created", json!({ "response": { "id": "resp_1", "status": "in_progress", "output": [] } })));
    if !turn.text.is_empty() {
        let item = |content: Value, status| json!({ "type": "message", "id": "msg_0", "role": "assistant", "status": status, "content": content });
        let part = json!({ "type": "output_text", "text": turn.text, "annotations": [] });
        let at = json!({ "item_id": "msg_0", "output_index": 0, "content_index": 0 });
        let with = |key: &str, value: Value| {
            let mut event = at.clone();
            event[key] = value;
            event
        };
        all.push(("response.output_item.added", json!({ "output_index": 0, "item": item(json!([]), "in_progress") })));
        let empty = json!({ "type": "output_text", "text": "", "annotations": [] });
        all.push(("response.content_part.added", with("part", empty)));
        let deltas = cut(&turn.text, pieces).into_iter();
        all.extend(deltas.map(|part| ("response.output_text.delta", with("delta", json!(part)))));
        all.push(("response.output_text.done", with("text", json!(turn.text))));
        all.push(("response.content_part.done", with("part", part.clone())));
        output.push(item(json!([part]), "completed"));
        all.push(("response.output_item.done", json!({ "output_index": 0, "item": output.last() })));
    }
    for call in &turn.calls {
        let index = output.len();
        let id = format!("fc_{index}");
        let item = |arguments: &str, status| {
            json!({ "type": "function_call", "id": id, "call_id": call.id, "name": call.tool.as_str(),
                "arguments": arguments, "status": status })
        };
        let whole = arguments(call);
        all.push(("response.output_item.added", json!({ "output_index": index, "item": item("", "in_progress") })));
        for part in cut(&whole, pieces) {
            let delta = json!({ "item_id": id, "output_index": index, "delta": part });
            all.push(("response.function_call_arguments.delta", delta));
        }
        let done = json!({ "item_id": id, "output_index": index, "arguments": whole });
        all.push(("response.function_call_arguments.done", done));
        output.push(item(&whole, "completed"));
        all.push(("response.output_item.done", json!({ "output_index": index, "item": output.last() })));
    }
    let (input, written) = (turn.usage.input_tokens, turn.usage.output_tokens);
    let usage = json!({ "input_tokens": input, "output_tokens": written, "total_tokens": 0 });
    let (kind, response) = match turn.stop {
        StopReason::MaxTokens | StopReason::ContentFilter => {
            let reason = if turn.stop == StopReason::MaxTokens { "max_output_tokens" } else { "content_filter" };
            let details = json!({ "reason": reason });
            let response = json!({ "id": "resp_1", "status": "incomplete", "incomplete_details": details,
                "output": output, "usage": usage });
            ("response.incomplete", response)
        }
        _ => {
            let response = json!({ "id": "resp_1", "status": "completed", "output": output, "usage": usage });
            ("response.completed", response)
        }
    };
    all.push((kind, json!({ "response": response })));
    let numbered = all.into_iter().zip(0_u64..).map(|((kind, mut data), number)| {
        data["type"] = json!(kind);
        data["sequence_number"] = json!(number);
        (kind, data.to_string())
    });
    numbered.collect()
}

fn claude(turn: &ModelTurn, pieces: usize) -> Vec<Event> {
    let mut all: Vec<(&'static str, Value)> = Vec::new();
    let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": null, "usage": { "input_tokens": turn.usage.input_tokens, "output_tokens": 1 } });
    all.push(("message_start", json!({ "message": message })));
    all.push(("ping", json!({})));
    let mut index = 0_u64;
    let mut block = |begun: Value, deltas: Vec<Value>| {
        all.push(("content_block_start", json!({ "index": index, "content_block": begun })));
        let deltas = deltas.into_iter().map(|delta| ("content_block_delta", json!({ "index": index, "delta": delta })));
        all.extend(deltas);
        all.push(("content_block_stop", json!({ "index": index })));
        index += 1;
    };
    if !turn.text.is_empty() {
        let deltas = cut(&turn.text, pieces).into_iter().map(|part| json!({ "type": "text_delta", "text": part }));
        block(json!({ "type": "text", "text": "" }), deltas.collect());
    }
    for call in &turn.calls {
        let whole = arguments(call);
        let deltas = cut(&whole, pieces).into_iter();
        let deltas = deltas.map(|part| json!({ "type": "input_json_delta", "partial_json": part })).collect();
        block(json!({ "type": "tool_use", "id": call.id, "name": call.tool.as_str(), "input": {} }), deltas);
    }
    let reason = match turn.stop {
        StopReason::MaxTokens => "max_tokens",
        StopReason::ContentFilter => "refusal",
        _ if turn.calls.is_empty() => "end_turn",
        _ => "tool_use",
    };
    let delta = json!({ "stop_reason": reason, "stop_sequence": null });
    all.push(("message_delta", json!({ "delta": delta, "usage": { "output_tokens": turn.usage.output_tokens } })));
    all.push(("message_stop", json!({})));
    let typed = all.into_iter().map(|(kind, mut data)| {
        data["type"] = json!(kind);
        (kind, data.to_string())
    });
    typed.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwarden::models::{CallArguments, ModelCall, ModelTurn};

    use super::{Conversation, cut, events, last_events, unpaired};
    use crate::play::Wire;

    #[test]
    fn texts_are_cut_between_characters_and_stay_whole() {
        for pieces in 1..9 {
            assert_eq!(cut("häßlich, süß", pieces).concat(), "häßlich, süß");
        }
    }

    #[test]
    fn every_protocol_has_its_last_word() {
        let call =
            ModelCall { id: "c".into(), tool: "peek".into(), arguments: CallArguments::Parsed(json!({ "at": 1 })) };
        let turn = ModelTurn::calling("look", vec![call]);
        let last = |wire| events(wire, &turn, 3).pop().unwrap();
        assert_eq!(last(Wire::Chat).1, "[DONE]");
        assert_eq!(last(Wire::Responses).0, "response.completed");
        assert_eq!(last(Wire::Claude).0, "message_stop");
    }

    #[test]
    fn without_its_last_events_a_turn_has_all_of_its_content_and_no_end() {
        let turn = ModelTurn::answer("every word of it");
        for (wire, last) in [
            (Wire::Chat, "finish_reason\":\"stop"),
            (Wire::Responses, "completed\",\"output"),
            (Wire::Claude, "end_turn"),
        ] {
            let mut all = events(wire, &turn, 2);
            let ends = all.split_off(all.len() - last_events(wire));
            let text = |events: &[super::Event]| events.iter().map(|(_, data)| data.as_str()).collect::<String>();
            assert!(text(&all).contains("of it") && !text(&all).contains(last), "{}", text(&all));
            assert!(text(&ends).contains(last), "{}", text(&ends));
        }
    }

    #[test]
    fn a_call_without_its_result_is_seen_in_every_protocol() {
        let chat = |id: &str| {
            json!({ "messages": [
            { "role": "assistant", "tool_calls": [{ "id": "c" }] }, { "role": "tool", "tool_call_id": id }] })
        };
        let faults = |wire, request| unpaired(wire, &serde_json::from_value::<Conversation>(request).unwrap().messages);
        assert_eq!(faults(Wire::Chat, chat("c")), None);
        assert!(faults(Wire::Chat, chat("d")).unwrap().contains("answers no open call"));
        let responses = json!({ "input": [{ "type": "function_call", "call_id": "c" }] });
        assert!(faults(Wire::Responses, responses).unwrap().contains("call"));
        let claude =
            json!({ "messages": [{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "c" }] }] });
        assert!(faults(Wire::Claude, claude).unwrap().contains("answers no open call"));
    }
}
