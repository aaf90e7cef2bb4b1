//! What Responses requests say, and how items come together.

use serde_json::{Value, json};
use toolwarden_tools::declaration::ToolDefinition;

use super::{OPENAI_RESPONSES, OpenAiResponses};
use crate::models::sse::SseEvent;
use crate::models::turn_options::{OutputShape, ToolChoice, TurnOptions};
use crate::models::wire::{Protocol as _, WireSettings};
use crate::models::{
    CallArguments, Message, ModelCall, ModelRequest, ModelTurn, NoSink, Replay, StopReason, ToolResult, TurnSink,
};

fn body(messages: Vec<Message>, options: TurnOptions) -> Value {
    let tool = ToolDefinition { name: "f".into(), description: "d".into(), parameters: json!({"type": "object"}) };
    let request = ModelRequest {
        system: "be good".into(),
        messages,
        tools: vec![tool].into(),
        tool_calls_allowed: true,
        agent: String::new(),
        fan_out: 1,
        options,
    };
    OpenAiResponses.request(&request, &WireSettings { model: "m".into(), ..WireSettings::default() })
}

fn turn(events: &[Value]) -> ModelTurn {
    let mut decoder = OpenAiResponses.decoder();
    for event in events {
        decoder.event(&SseEvent { kind: "".into(), data: event.to_string().into() }, &NoSink).unwrap();
    }
    decoder.finish().unwrap()
}

fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": {"status": "completed", "output": output, "usage": {"input_tokens": 1}}})
}

fn added(index: u64, id: &str, call_id: &str) -> Value {
    let item = json!({"type": "function_call", "id": id, "call_id": call_id, "name": "f", "arguments": ""});
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

#[test]
fn arguments_reach_their_item_and_the_done_form_wins() {
    // Case C134.
    let piece = |fields: Value| {
        let mut event = json!({"type": "response.function_call_arguments.delta"});
        event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        event
    };
    let done = json!({"type": "response.function_call_arguments.done", "item_id": "fc_2", "arguments": "{\"y\":2}"});
    let turn = turn(&[
        added(0, "fc_1", "a"),
        json!({"type": "response.brand_new.event", "delta": {"not": "text"}}),
        added(1, "fc_2", "b"),
        piece(json!({"item_id": "fc_1", "delta": "{\"x\""})),
        piece(json!({"item_id": "fc_2", "output_index": 1, "delta": "{\"lost"})),
        piece(json!({"output_index": 0, "delta": ":1}"})),
        done,
        completed(json!([])),
    ]);
    let calls: Vec<(&str, &CallArguments)> =
        turn.calls.iter().map(|call| (call.id.as_str(), &call.arguments)).collect();
    assert_eq!(calls, [("a", &CallArguments::Parsed(json!({"x": 1}))), ("b", &CallArguments::Parsed(json!({"y": 2})))]);
}

#[test]
fn items_that_come_twice_or_late_count_once() {
    let item = json!({"type": "function_call", "id": "fc_1", "call_id": "a", "name": "f", "arguments": "{}"});
    let done = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
    let late = json!({"type": "response.function_call_arguments.delta", "output_index": 0, "delta": "{}"});
    let turn =
        turn(&[added(0, "fc_1", "a"), done.clone(), done, added(0, "fc_1", "a"), late, completed(json!([item]))]);
    assert_eq!(turn.calls.len(), 1);
    assert_eq!(turn.calls[0].arguments, CallArguments::Parsed(json!({})));
}

fn thinking(encrypted: Option<&str>) -> Message {
    let call = |id: &str| ModelCall { id: id.into(), tool: "f".into(), arguments: CallArguments::parse("{\"x\":1}") };
    let mut reasoning = json!({"type": "reasoning", "id": "rs", "summary": []});
    if let Some(encrypted) = encrypted {
        reasoning["encrypted_content"] = json!(encrypted);
    }
    let called = |id: &str, call_id: &str| json!({"type": "function_call", "id": id, "call_id": call_id, "name": "f", "arguments": "{\"x\": 1}"});
    let said = json!({"type": "message", "id": "m", "role": "assistant", "status": "completed",
                      "content": [{"type": "output_text", "text": "t", "annotations": []}]});
    let items = vec![reasoning, called("fc1", "dup"), called("fc2", "dup"), said];
    let replay = Some(Replay { protocol: OPENAI_RESPONSES.into(), items });
    Message::Assistant { text: "t".into(), calls: vec![call("dup"), call("dup~2")], replay }
}

fn results() -> Message {
    let result = |id: &str| ToolResult { call_id: id.into(), tool: "f".into(), output: id.into(), success: true };
    Message::ToolResults { results: vec![result("dup"), result("dup~2")] }
}

#[test]
fn what_was_thought_goes_back_before_what_followed_from_it() {
    // Cases C135 and C139: the order as received, calls under ids that are theirs alone.
    let body =
        body(vec![Message::User { text: "hi".into() }, thinking(Some("gAAA")), results()], TurnOptions::default());
    let input = body["input"].as_array().unwrap();
    let kinds: Vec<&str> = input[1..].iter().map(|item| item["type"].as_str().unwrap_or("")).collect();
    assert_eq!(
        kinds,
        ["reasoning", "function_call", "function_call", "message", "function_call_output", "function_call_output"]
    );
    assert_eq!(
        (&input[1]["encrypted_content"], &input[2]["id"], &input[2]["call_id"]),
        (&json!("gAAA"), &json!("fc1"), &json!("dup"))
    );
    assert_ne!(input[2]["call_id"], input[3]["call_id"]);
    assert_eq!((&input[5]["call_id"], &input[6]["call_id"]), (&input[2]["call_id"], &input[3]["call_id"]));
    assert_eq!((&body["store"], &body["include"]), (&json!(false), &json!(["reasoning.encrypted_content"])));
}

#[test]
fn thoughts_that_cannot_go_back_are_left_out_with_the_ids_that_need_them() {
    // Case C135.
    let body = body(vec![thinking(None), results()], TurnOptions::default());
    let input = body["input"].as_array().unwrap();
    assert_eq!(input.len(), 5);
    assert!(input.iter().all(|item| item.get("id").is_none() && item["type"] != "reasoning"), "{input:?}");
    assert_eq!(input[2], json!({"role": "assistant", "content": "t"}));
}

#[test]
fn options_are_said_in_the_protocols_words() {
    let options = TurnOptions {
        tool_choice: ToolChoice::Required,
        single_call: true,
        output: Some(OutputShape::JsonObject),
        output_tokens_max: Some(9),
        ..TurnOptions::default()
    };
    let body = body(Vec::new(), options);
    assert_eq!((&body["tool_choice"], &body["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    assert_eq!((&body["text"], &body["max_output_tokens"]), (&json!({"format": {"type": "json_object"}}), &json!(9)));
    assert_eq!(body["tools"][0]["strict"], json!(false));
    assert_eq!(body["instructions"], "be good");
}

#[test]
fn an_answer_that_is_incomplete_and_does_not_say_why_is_a_cut() {
    let body = |details: Value| {
        json!({"status": "incomplete", "incomplete_details": details, "output": [
            {"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": "I would"}]}]})
    };
    let whole = |body: &Value| OpenAiResponses.whole(body, &body.to_string(), &NoSink);
    for details in [Value::Null, json!({}), json!({"reason": "max_output_tokens"})] {
        let turn = whole(&body(details)).unwrap();
        assert_eq!((turn.stop, turn.text.as_str()), (StopReason::MaxTokens, "I would"));
    }
    let odd = whole(&body(json!({"reason": "tired"}))).unwrap_err();
    assert!(odd.to_string().contains("tired"), "{odd}");
}

#[test]
fn an_event_that_comes_twice_is_shown_once_where_events_are_counted() {
    let whole =
        |text: &str| json!([{"type": "message", "id": "m", "content": [{"type": "output_text", "text": text}]}]);
    let shown = |numbers: [u64; 4], text: &str| {
        let delta = |number: u64, text: &str| json!({"type": "response.output_text.delta", "sequence_number": number, "output_index": 0, "delta": text});
        let created = json!({"type": "response.created", "sequence_number": numbers[0], "response": {}});
        let deltas = [delta(numbers[1], "a"), delta(numbers[2], "5"), delta(numbers[3], "5")];
        let shown = Shown::default();
        let mut decoder = OpenAiResponses.decoder();
        for event in [created].into_iter().chain(deltas).chain([completed(whole(text))]) {
            decoder.event(&SseEvent { kind: "".into(), data: event.to_string().into() }, &shown).unwrap();
        }
        let turn = decoder.finish().unwrap();
        assert_eq!(turn.text, shown.0.into_inner().unwrap(), "{numbers:?}");
        turn.text
    };
    assert_eq!(shown([0, 1, 2, 2], "a5"), "a5", "the same number: the same event");
    // Case C128: equal pieces are pieces.
    assert_eq!(shown([0, 1, 2, 3], "a55"), "a55");
    assert_eq!(shown([0, 0, 0, 0], "a55"), "a55", "a server that does not count");
}

#[derive(Default)]
struct Shown(std::sync::Mutex<String>);

impl TurnSink for Shown {
    fn text_delta(&self, text: &str) {
        self.0.lock().unwrap().push_str(text);
    }
}
