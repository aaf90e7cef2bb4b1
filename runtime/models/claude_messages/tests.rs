//! What Messages requests say, and that thinking comes back as it went.

use serde_json::{Value, json};
use toolwarden_tools::declaration::ToolDefinition;

use super::ClaudeMessages;
use crate::models::sse::SseEvent;
use crate::models::transcript::answer_interrupted_calls;
use crate::models::turn_options::{OutputShape, ToolChoice, TurnOptions};
use crate::models::wire::{Protocol as _, WireSettings};
use crate::models::{CallArguments, Message, ModelCall, ModelRequest, ModelTurn, NoSink, StopReason, ToolResult};

fn asked(messages: Vec<Message>, options: TurnOptions) -> ModelRequest {
    let tool = ToolDefinition { name: "f".into(), description: "d".into(), parameters: json!({"type": "object"}) };
    ModelRequest {
        system: "be good".into(),
        messages,
        tools: vec![tool].into(),
        tool_calls_allowed: true,
        agent: String::new(),
        fan_out: 1,
        options,
    }
}

fn body(request: &ModelRequest) -> Value {
    let settings = WireSettings { model: "m".into(), thinking_tokens_max: Some(2000), ..WireSettings::default() };
    ClaudeMessages.request(request, &settings)
}

fn turn(events: &[Value]) -> ModelTurn {
    let mut decoder = ClaudeMessages.decoder();
    for event in events {
        decoder.event(&SseEvent { kind: "".into(), data: event.to_string().into() }, &NoSink).unwrap();
    }
    decoder.finish().unwrap()
}

fn events(blocks: &[(Value, Vec<Value>)], stop: &str) -> Vec<Value> {
    let mut events = vec![json!({"type": "message_start", "message": {"usage": {"input_tokens": 1}}})];
    for (index, (start, deltas)) in blocks.iter().enumerate() {
        events.push(json!({"type": "content_block_start", "index": index, "content_block": start}));
        events
            .extend(deltas.iter().map(|delta| json!({"type": "content_block_delta", "index": index, "delta": delta})));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 2}}));
    events
}

fn thinking_turn() -> ModelTurn {
    turn(&events(
        &[
            (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                vec![
                    json!({"type": "thinking_delta", "thinking": "h"}),
                    json!({"type": "thinking_delta", "thinking": "m"}),
                    json!({"type": "signature_delta", "signature": "EqQB"}),
                ],
            ),
            (json!({"type": "redacted_thinking", "data": "Emw"}), Vec::new()),
            (json!({"type": "text", "text": ""}), Vec::new()),
            (
                json!({"type": "tool_use", "id": "t:1", "name": "f", "input": {}}),
                vec![json!({"type": "input_json_delta", "partial_json": "{\"x\":1}"})],
            ),
        ],
        "tool_use",
    ))
}

fn result(id: &str) -> ToolResult {
    ToolResult { call_id: id.into(), tool: "f".into(), output: "o".into(), success: false }
}

#[test]
fn thinking_goes_back_unchanged_and_in_its_place() {
    let messages = vec![
        Message::User { text: "hi".into() },
        thinking_turn().into_message(),
        Message::ToolResults { results: vec![result("t:1")] },
        Message::User { text: "and now".into() },
    ];
    let body = body(&asked(messages, TurnOptions::default()));
    let sent = body["messages"].as_array().unwrap();
    assert_eq!(sent.len(), 3);
    let blocks = sent[1]["content"].as_array().unwrap();
    assert_eq!(blocks[0], json!({"type": "thinking", "thinking": "hm", "signature": "EqQB"}));
    assert_eq!(blocks[1], json!({"type": "redacted_thinking", "data": "Emw"}));
    assert_eq!((&blocks[2]["type"], &blocks[2]["input"], blocks.len()), (&json!("tool_use"), &json!({"x": 1}), 3));
    // All results before any words, in the next message.
    let next = sent[2]["content"].as_array().unwrap();
    assert_eq!((&next[0]["tool_use_id"], &next[0]["is_error"]), (&blocks[2]["id"], &json!(true)));
    assert_eq!((&next[1]["text"], &next[1]["cache_control"]), (&json!("and now"), &json!({"type": "ephemeral"})));
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 2000}));
    assert_eq!(body["system"][0]["cache_control"], json!({"type": "ephemeral"}));
}

#[test]
fn a_paused_turn_goes_on_from_where_it_stood() {
    // Case C132.
    let paused = turn(&events(
        &[
            (json!({"type": "text", "text": ""}), vec![json!({"type": "text_delta", "text": "par"})]),
            (
                json!({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {}}),
                vec![json!({"type": "input_json_delta", "partial_json": "{\"query\":\"q\"}"})],
            ),
        ],
        "pause_turn",
    ));
    assert_eq!((paused.stop, paused.calls.len()), (StopReason::Paused, 0));
    let messages = vec![Message::User { text: "hi".into() }, paused.into_message()];
    let body = body(&asked(messages, TurnOptions::default()));
    let last = body["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "assistant");
    let server = json!({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "q"}});
    assert_eq!(last["content"], json!([{"type": "text", "text": "par"}, server]));
}

#[test]
fn calls_without_results_are_answered_before_words() {
    // Case C137.
    let call = |id: &str| ModelCall { id: id.into(), tool: "f".into(), arguments: CallArguments::parse("") };
    let mut messages = vec![
        ModelTurn::calling("", vec![call("a"), call("b")]).into_message(),
        Message::ToolResults { results: vec![result("a")] },
        Message::User { text: "go on".into() },
    ];
    answer_interrupted_calls(&mut messages);
    let body = body(&asked(messages, TurnOptions::default()));
    let kinds: Vec<&str> = body["messages"][1]["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["tool_result", "tool_result", "text"]);
}

#[test]
fn options_are_said_in_the_protocols_words() {
    let schema = json!({"type": "object", "additionalProperties": false});
    let options = TurnOptions {
        tool_choice: ToolChoice::Named("f".into()),
        single_call: true,
        output: Some(OutputShape::JsonSchema { name: "n".into(), schema: schema.clone(), strict: true }),
        output_tokens_max: Some(5000),
        ..TurnOptions::default()
    };
    let forced = body(&asked(Vec::new(), options));
    assert_eq!(forced["tool_choice"], json!({"type": "tool", "name": "f", "disable_parallel_tool_use": true}));
    assert_eq!((&forced["max_tokens"], forced.get("thinking")), (&json!(5000), None));
    assert_eq!(forced["output_config"], json!({"format": {"type": "json_schema", "schema": schema}}));
    let mut last = asked(Vec::new(), TurnOptions::default());
    last.tool_calls_allowed = false;
    assert_eq!(body(&last)["tool_choice"], json!({"type": "none"}));
}

#[test]
fn pieces_that_fit_nowhere_make_an_error() {
    let start = json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
    let stop = json!({"type": "content_block_stop", "index": 0});
    let late = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "x"}});
    let faults: [&[&Value]; 3] = [&[&start, &start], &[&late], &[&start, &stop, &late]];
    for fault in faults {
        let mut decoder = ClaudeMessages.decoder();
        let mut failed = false;
        for event in fault {
            failed |= decoder.event(&SseEvent { kind: "".into(), data: event.to_string().into() }, &NoSink).is_err();
        }
        assert!(failed, "{fault:?}");
    }
}

#[test]
fn numbers_that_no_value_holds_come_whole_and_go_back_as_their_digits() {
    // Case C148.
    const NUMBER: &str = "123456789012345678901234567890";
    let begin = |input: &str| {
        format!(
            "{{\"type\":\"content_block_start\",\"index\":0,\"content_block\":{{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":{input}}}}}"
        )
    };
    let object = format!("{{\"n\":{NUMBER}}}");
    let piece = json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": object}});
    for events in [vec![begin(&object)], vec![begin("{}"), piece.to_string()]] {
        let mut decoder = ClaudeMessages.decoder();
        let ends = [
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}),
        ];
        for data in events.into_iter().chain(ends.map(|end| end.to_string())) {
            decoder.event(&SseEvent { kind: "".into(), data: data.into() }, &NoSink).unwrap();
        }
        let turn = decoder.finish().unwrap();
        let CallArguments::Malformed { text, .. } = &turn.calls[0].arguments else { panic!("{turn:?}") };
        assert_eq!(*text, object);
        let mut messages = vec![Message::User { text: "go".into() }, turn.into_message()];
        answer_interrupted_calls(&mut messages);
        let sent = body(&asked(messages, TurnOptions::default()));
        assert_eq!(sent["messages"][1]["content"][0]["input"], json!({"n": NUMBER}));
    }
}

#[test]
fn a_block_that_is_no_object_is_text_and_harms_nothing() {
    let citation = json!({"type": "citations_delta", "citation": {"url": "u"}});
    let input = json!({"type": "input_json_delta", "partial_json": "{\"x\":1}"});
    for block in [json!("x"), json!([1]), json!(7), Value::Null] {
        let text = json!({"type": "text_delta", "text": "a"});
        let turn = turn(&events(&[(block.clone(), vec![citation.clone(), input.clone(), text])], "end_turn"));
        assert_eq!((turn.text.as_str(), turn.calls.len()), ("a", 0), "{block}");
        let kept = json!({"type": "text", "citations": [{"url": "u"}], "text": "a", "input": {"x": 1}});
        assert_eq!(turn.replay.unwrap().items, [kept], "{block}");
    }
}

#[test]
fn what_is_added_to_a_block_stands_in_the_order_in_which_it_came() {
    let deltas = [
        json!({"type": "text_delta", "text": "a"}),
        json!({"type": "text_delta", "text": "b"}),
        json!({"type": "citations_delta", "citation": {"n": 1}}),
        json!({"type": "text_delta", "text": "c"}),
        json!({"type": "citations_delta", "citation": {"n": 2}}),
        json!({"type": "text_delta", "text": ""}),
    ];
    let turn = turn(&events(&[(json!({"type": "text"}), deltas.into())], "end_turn"));
    let kept = json!({"type": "text", "text": "abc", "citations": [{"n": 1}, {"n": 2}]});
    assert_eq!((turn.text.as_str(), &turn.replay.unwrap().items[0].to_string()), ("abc", &kept.to_string()));
}
