//! What Chat Completions requests say, and what odd servers send.

use serde_json::{Value, json};
use toolwarden_tools::declaration::ToolDefinition;

use super::{OPENAI_CHAT, OpenAiChat};
use crate::models::sse::SseEvent;
use crate::models::turn_options::{OutputShape, ToolChoice, TurnOptions};
use crate::models::wire::{Protocol as _, WireSettings};
use crate::models::{
    CallArguments, Message, ModelCall, ModelError, ModelRequest, ModelTurn, NoSink, Replay, ToolResult,
};

fn request(messages: Vec<Message>, options: TurnOptions) -> Value {
    let tool = ToolDefinition { name: "read".into(), description: "d".into(), parameters: json!({"type": "object"}) };
    let request = ModelRequest {
        system: "be good".into(),
        messages,
        tools: vec![tool].into(),
        tool_calls_allowed: true,
        agent: String::new(),
        fan_out: 1,
        options,
    };
    OpenAiChat.request(&request, &WireSettings { model: "m".into(), stream: true, ..WireSettings::default() })
}

fn chunks(chunks: &[Value]) -> ModelTurn {
    let mut decoder = OpenAiChat.decoder();
    for chunk in chunks {
        let event = SseEvent { kind: "".into(), data: chunk.to_string().into() };
        decoder.event(&event, &NoSink).unwrap();
    }
    decoder.finish().unwrap()
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta}]})
}

fn stop(reason: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

#[test]
fn arguments_that_come_as_an_object_keep_every_digit() {
    // Case C148.
    const NUMBER: &str = "123456789012345678901234567890";
    let call =
        format!("{{\"index\":0,\"id\":\"a\",\"function\":{{\"name\":\"f\",\"arguments\":{{\"n\": {NUMBER}}}}}}}");
    for (part, is_whole) in [("delta", false), ("message", true)] {
        let choice = format!("{{\"index\":0,\"{part}\":{{\"tool_calls\":[{call}]}},\"finish_reason\":\"tool_calls\"}}");
        let text = format!("{{\"choices\":[{choice}]}}");
        let turn = match is_whole {
            true => OpenAiChat.whole(&serde_json::from_str(&text).unwrap(), &text, &NoSink).unwrap(),
            false => {
                let mut decoder = OpenAiChat.decoder();
                decoder.event(&SseEvent { kind: "".into(), data: text.into() }, &NoSink).unwrap();
                decoder.finish().unwrap()
            }
        };
        let CallArguments::Malformed { text, error } = &turn.calls[0].arguments else { panic!("{part}: {turn:?}") };
        assert!(text.contains(NUMBER) && error.contains(NUMBER), "{part}: {error}");
    }
}

#[test]
fn a_number_beyond_every_double_is_told_with_its_call() {
    // Case C148.
    let call = r#"{"index":0,"id":"a","function":{"name":"f","arguments":{"n": 1e400}}}"#;
    let text = format!(r#"{{"x":1e400,"choices":[{{"delta":{{"tool_calls":[{call}]}},"finish_reason":"stop"}}]}}"#);
    let mut decoder = OpenAiChat.decoder();
    decoder.event(&SseEvent { kind: "".into(), data: text.into() }, &NoSink).unwrap();
    let turn = decoder.finish().unwrap();
    let CallArguments::Malformed { text, error } = &turn.calls[0].arguments else { panic!("{turn:?}") };
    assert!(text == r#"{"n":1e400}"# && error.contains("1e400"), "{text}: {error}");
}

#[test]
fn a_chunk_may_have_no_choices_and_usage_may_come_anywhere() {
    // Case C125.
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}});
    let preamble = json!({"choices": [], "prompt_filter_results": []});
    for order in [[&usage, &stop("stop")], [&stop("stop"), &usage]] {
        let turn = chunks(&[
            preamble.clone(),
            json!({"id": "x"}),
            delta(json!({"content": "a"})),
            order[0].clone(),
            order[1].clone(),
        ]);
        assert_eq!((turn.text.as_str(), turn.usage.input_tokens, turn.usage.output_tokens), ("a", 3, 4));
    }
}

#[test]
fn odd_servers_are_understood() {
    let turn = chunks(&[
        delta(json!({"role": null, "content": [{"type": "text", "text": "a"}], "function_call": null})),
        delta(json!({"reasoning_content": "hm", "content": ""})),
        delta(json!({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]})),
        delta(json!({"tool_calls": [{"id": "b", "function": {"name": "g"}, "extra_content": {"sig": "s"}}]})),
        stop("stop"),
    ]);
    assert_eq!(turn.text, "a");
    let arguments: Vec<&CallArguments> = turn.calls.iter().map(|call| &call.arguments).collect();
    assert_eq!(arguments, [&CallArguments::Parsed(json!({"x": 1})), &CallArguments::Parsed(json!({}))]);
    let replay = turn.replay.clone().unwrap();
    assert_eq!(replay.items, [json!({"reasoning_content": "hm", "extra": {"1": {"sig": "s"}}})]);
    // What it thought goes back with its calls.
    let body = request(vec![turn.into_message()], TurnOptions::default());
    let message = &body["messages"][1];
    assert_eq!(
        (&message["reasoning_content"], &message["tool_calls"][1]["extra_content"]),
        (&json!("hm"), &json!({"sig": "s"}))
    );
    assert!(message["tool_calls"][0].get("extra_content").is_none());
}

#[test]
fn a_conversation_is_written_in_pairs_and_with_whole_arguments() {
    // Case C142: arguments that are no JSON go as an empty object, and their result stays with them.
    let call =
        |id: &str, text: &str| ModelCall { id: id.into(), tool: "read".into(), arguments: CallArguments::parse(text) };
    let result = |id: &str| ToolResult { call_id: id.into(), tool: "read".into(), output: "o".into(), success: false };
    let turn = ModelTurn::calling("", vec![call("a:1", "{\"a\":"), call("b", "{\"x\": 1}")]);
    let messages = vec![
        Message::User { text: "hi".into() },
        Message::Image { media_type: "image/png".into(), data: "AAAA".into() },
        turn.into_message(),
        Message::ToolResults { results: vec![result("a:1"), result("b")] },
    ];
    let body = request(messages, TurnOptions::default());
    let sent = body["messages"].as_array().unwrap();
    assert_eq!(sent[0], json!({"role": "system", "content": "be good"}));
    assert_eq!(sent[2]["content"][0]["image_url"]["url"], "data:image/png;base64,AAAA");
    let calls = sent[3]["tool_calls"].as_array().unwrap();
    assert_eq!(
        (&calls[0]["function"]["arguments"], &calls[1]["function"]["arguments"]),
        (&json!("{}"), &json!("{\"x\":1}"))
    );
    assert_eq!((&sent[3]["content"], &sent[4]["tool_call_id"]), (&Value::Null, &calls[0]["id"]));
    assert!(!calls[0]["id"].as_str().unwrap().contains(':'));
    assert_eq!(sent[5]["tool_call_id"], "b");
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
}

#[test]
fn options_are_said_in_the_protocols_words() {
    let schema = json!({"type": "object"});
    let options = TurnOptions {
        tool_choice: ToolChoice::Named("read".into()),
        single_call: true,
        output: Some(OutputShape::JsonSchema { name: "n".into(), schema: schema.clone(), strict: true }),
        output_tokens_max: Some(7),
        cache_key: Some("k".into()),
        metadata: [("a".to_owned(), "b".to_owned())].into(),
    };
    let body = request(Vec::new(), options);
    assert_eq!(body["tool_choice"], json!({"type": "function", "function": {"name": "read"}}));
    assert_eq!((&body["parallel_tool_calls"], &body["max_completion_tokens"]), (&json!(false), &json!(7)));
    assert_eq!(body["response_format"]["json_schema"], json!({"name": "n", "schema": schema, "strict": true}));
    assert_eq!((&body["prompt_cache_key"], &body["metadata"]["a"]), (&json!("k"), &json!("b")));
    let plain = request(Vec::new(), TurnOptions::default());
    for absent in ["tool_choice", "parallel_tool_calls", "response_format", "metadata", "reasoning_effort"] {
        assert!(plain.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn a_turn_of_another_protocol_is_written_plainly() {
    let replay = Some(Replay { protocol: "other".into(), items: vec![json!({"reasoning_content": "x"})] });
    let body =
        request(vec![Message::Assistant { text: "t".into(), calls: Vec::new(), replay }], TurnOptions::default());
    assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "t"}));
    assert_eq!(OpenAiChat.name(), OPENAI_CHAT);
}

#[test]
fn an_event_of_another_shape_is_passed_by_and_one_that_is_no_json_is_damage() {
    let read = |data: &str| {
        let mut decoder = OpenAiChat.decoder();
        decoder.event(&SseEvent { kind: "".into(), data: data.to_owned().into() }, &NoSink).map(|_| ())
    };
    for data in [r#"{"choices":{"a":1}}"#, r#"{"choices":[{"delta":{"refusal":5}}]}"#, r#"{"choices":[{"delta":[]}]}"#]
    {
        assert_eq!(read(data), Ok(()), "{data}");
    }
    for data in [
        r#"{"choices":["#,
        r#"{"choices":[{"delta":{"content":"a}}]}"#,
        "7",
        "\"x\"",
        r#"{"choices":[]}}"#,
        "{\"x\":nul}",
    ] {
        let error = read(data).unwrap_err();
        assert!(matches!(error, ModelError::Incomplete { .. }), "{data}: {error:?}");
    }
}
