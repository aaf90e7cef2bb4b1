//! Requests of every feature, checked with the vendors' own types.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use toolwarden::models::turn_options::{OutputShape, ToolChoice, TurnOptions};
use toolwarden::models::wire::WireSettings;
use toolwarden::models::{CallArguments, Message, ModelCall, ModelRequest, ModelTurn, Replay, ToolResult};
use toolwarden::structured::candidate::ObjectSchema;
use toolwarden::structured::directive::Directive;
use toolwarden_tools::declaration::ToolDefinition;
use toolwarden_tools::generation::{ObjectMode, ObjectRequest};
use toolwarden_tools::offer::Offer;

use super::peer::{PROTOCOLS, installed, protocol};

fn tools() -> Offer {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]});
    vec![ToolDefinition { name: "f".into(), description: "Does f.".into(), parameters }].into()
}

/// A conversation with everything in it: a picture, thoughts, parallel calls under one id, broken arguments, a failure.
fn conversation(replay: Option<Replay>) -> Vec<Message> {
    let call =
        |id: &str, text: &str| ModelCall { id: id.into(), tool: "f".into(), arguments: CallArguments::parse(text) };
    let result = |id: &str, success| ToolResult { call_id: id.into(), tool: "f".into(), output: "out".into(), success };
    let turn = ModelTurn::calling("I look.", vec![call("t:1", "{\"x\":1}"), call("t:1~2", "{\"x\":")]);
    let turn = ModelTurn { replay, ..turn };
    vec![
        Message::User { text: "see this".into() },
        Message::Image { media_type: "image/png".into(), data: "iVBORw0KGgo=".into() },
        turn.into_message(),
        Message::ToolResults { results: vec![result("t:1", true), result("t:1~2", false)] },
        Message::User { text: "and?".into() },
        ModelTurn::answer("That.").into_message(),
        Message::User { text: "more".into() },
    ]
}

fn replay(protocol: &str) -> Replay {
    let (name, items) = match protocol {
        "messages" => (
            "claude_messages",
            vec![
                json!({"type": "thinking", "thinking": "hm", "signature": "EqQB"}),
                json!({"type": "redacted_thinking", "data": "Emw"}),
                json!({"type": "text", "text": "I look."}),
                json!({"type": "tool_use", "id": "t:1", "name": "f", "input": {"x": 1}}),
                json!({"type": "tool_use", "id": "t:1", "name": "f", "input": {}}),
            ],
        ),
        "responses" => (
            "openai_responses",
            vec![
                json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}),
                json!({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                       "content": [{"type": "output_text", "text": "I look.", "annotations": []}]}),
                json!({"type": "function_call", "id": "fc_1", "call_id": "t:1", "name": "f", "arguments": "{\"x\":1}"}),
                json!({"type": "function_call", "id": "fc_2", "call_id": "t:1", "name": "f", "arguments": "{\"x\":"}),
            ],
        ),
        _ => ("openai_chat", vec![json!({"reasoning_content": "hm"})]),
    };
    Replay { protocol: name.to_owned(), items }
}

fn options() -> Vec<TurnOptions> {
    let schema = json!({"type": "object", "properties": {}, "required": [], "additionalProperties": false});
    let shape = OutputShape::JsonSchema { name: "shape".into(), schema, strict: true };
    let labels = [("user_id".to_owned(), "u1".to_owned())].into();
    vec![
        TurnOptions::default(),
        TurnOptions { tool_choice: ToolChoice::Required, single_call: true, ..TurnOptions::default() },
        TurnOptions { tool_choice: ToolChoice::Named("f".into()), ..TurnOptions::default() },
        TurnOptions { single_call: true, cache_key: Some("k".into()), metadata: labels, ..TurnOptions::default() },
        TurnOptions { output: Some(shape), output_tokens_max: Some(4000), ..TurnOptions::default() },
        TurnOptions { output: Some(OutputShape::JsonObject), ..TurnOptions::default() },
    ]
}

fn requests() -> Vec<Value> {
    let mut requests = Vec::new();
    for name in PROTOCOLS {
        let protocol = protocol(name);
        for options in options() {
            for (own, stream, may_call, system) in
                [(true, true, true, "be good"), (false, false, true, ""), (true, false, false, "be good")]
            {
                let request = ModelRequest {
                    system: system.into(),
                    messages: conversation(own.then(|| replay(name))),
                    tools: if system.is_empty() { Offer::default() } else { tools() },
                    tool_calls_allowed: may_call,
                    agent: "general".into(),
                    fan_out: 1,
                    options: options.clone(),
                };
                let settings = WireSettings {
                    model: "a-model".into(),
                    stream,
                    output_tokens_max: stream.then_some(8000),
                    reasoning_effort: stream.then(|| "low".to_owned()),
                    thinking_tokens_max: Some(2000),
                };
                requests.push(json!({"protocol": protocol.name(), "body": protocol.request(&request, &settings)}));
            }
        }
    }
    requests
}

/// What is asked for an object, in every mode, first and after an answer that did not fit.
fn object_requests() -> Vec<Value> {
    let schema = json!({
        "type": "object", "required": ["name"], "$defs": {"leaf": {"type": "object", "properties": {"n": {"type": "number", "minimum": 0}}}},
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "leaves": {"type": "array", "items": {"$ref": "#/$defs/leaf"}},
            "kind": {"enum": ["a", "b"]},
        },
    });
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let mut requests = Vec::new();
    for name in PROTOCOLS {
        let protocol = protocol(name);
        for schema in [&schema, &list] {
            for mode in [ObjectMode::Auto, ObjectMode::Strict, ObjectMode::Json, ObjectMode::Tool, ObjectMode::Prompt] {
                let asked = ObjectRequest { mode, ..ObjectRequest::new(schema.clone(), "describe it") };
                let object = ObjectSchema::new(schema).unwrap();
                let directive = Directive::of(mode, &object, protocol.object_support());
                let mut request = directive.first_request(&asked, "a-session");
                for round in 0..2 {
                    for stream in [true, false] {
                        let settings = WireSettings { model: "a-model".into(), stream, ..WireSettings::default() };
                        let body = protocol.request(&request, &settings);
                        requests.push(json!({"protocol": protocol.name(), "body": body}));
                    }
                    let words = directive.repair_words(&asked, "/name: it is missing", "{}");
                    if round == 0 && directive.mode == ObjectMode::Tool {
                        let call = ModelCall {
                            id: "c".into(),
                            tool: Directive::tool_name(&asked).as_str().into(),
                            arguments: CallArguments::parse("{}"),
                        };
                        let result =
                            ToolResult { call_id: "c".into(), tool: call.tool.clone(), output: words, success: false };
                        request.messages.push(ModelTurn::calling("", vec![call]).into_message());
                        request.messages.push(Message::ToolResults { results: vec![result] });
                    } else {
                        request.messages.push(ModelTurn::answer("{}").into_message());
                        request.messages.push(Message::User { text: words });
                    }
                }
            }
        }
    }
    requests
}

fn judge(requests: &[Value]) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/models/request_oracle.py");
    let mut oracle = Command::new(installed("venv/bin/python"))
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: Vec<String> = requests.iter().map(Value::to_string).collect();
    oracle.stdin.take().unwrap().write_all(lines.join("\n").as_bytes()).unwrap();
    let judged = oracle.wait_with_output().unwrap();
    String::from_utf8(judged.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn the_vendors_types_take_every_request() {
    let mut requests = requests();
    requests.extend(object_requests());
    let judged = judge(&requests);
    assert_eq!(judged.len(), requests.len());
    let refused: Vec<(&String, &Value)> = judged.iter().zip(&requests).filter(|(word, _)| *word != "ok").collect();
    assert!(refused.is_empty(), "{} refused, first {:#?}", refused.len(), refused.first());
}

#[test]
fn the_vendors_types_refuse_what_is_wrong() {
    let mut wrong: Vec<Value> = requests().into_iter().step_by(18).take(3).collect();
    wrong[0]["body"]["input"] = json!(7);
    wrong[1]["body"]["messages"] = json!([{"role": "tool", "content": "no id"}]);
    wrong[2]["body"]["max_tokens"] = json!("many");
    assert!(judge(&wrong).iter().all(|word| word != "ok"), "{:?}", judge(&wrong));
}
