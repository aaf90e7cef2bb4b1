//! Objects out of models: through the tool, the session's helper and a script, over the three protocols, from servers that
//! nobody here wrote; with every digit of a number.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{BoxFuture, FutureExt as _};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwarden::models::gate::RetryPolicy;
use toolwarden::session::SessionError;
use toolwarden::session::object::GenerateError;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::http::{Http, HttpError, HttpRequest, HttpResponse};
use toolwarden_tools::generation::{ObjectMode, ObjectRequest};
use toolwarden_tools::outcome::ToolErrorKind;

use super::peer::{PROTOCOLS, Peer, model};
use super::support::model::{Silent, script};
use super::support::world::World;

/// Two numbers that no double holds.
const NUMBERS: &str =
    "{\"account\": 9007199254740993, \"total\": 123456789012345678901234567890, \"tiny\": 0.1, \"far\": 1e400}";

fn numbers() -> Value {
    let member = || json!({"type": "number"});
    json!({
        "type": "object", "required": ["account", "total", "tiny", "far"], "additionalProperties": false,
        "properties": {"account": {"type": "integer"}, "total": {"type": "integer"}, "tiny": member(), "far": member()},
    })
}

/// Answers every request with this object, in the form that was asked for.
#[derive(Debug)]
struct Giver {
    object: &'static str,
    /// How many of the first answers are something else.
    wrong: Mutex<usize>,
    /// Whether streams stay open without their end.
    is_silent: bool,
    requests: Mutex<Vec<Value>>,
}

impl Giver {
    fn new(object: &'static str, wrong: usize) -> Arc<Self> {
        Arc::new(Self { object, wrong: Mutex::new(wrong), is_silent: false, requests: Mutex::default() })
    }

    fn next(&self) -> &'static str {
        let mut wrong = self.wrong.lock().unwrap();
        match *wrong {
            0 => self.object,
            _ => {
                *wrong -= 1;
                "{\"account\": \"none\"}"
            }
        }
    }
}

impl Http for Giver {
    fn exchange(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, HttpError>> {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let streams = body["stream"] == true;
        let text = answer(&request.url, &body, self.next(), streams);
        self.requests.lock().unwrap().push(body);
        let kind = if streams { "text/event-stream" } else { "application/json" };
        let is_silent = self.is_silent;
        async move {
            // Small pieces, as from a slow line.
            let text =
                if is_silent { text.split("\n\n").take(5).map(|event| format!("{event}\n\n")).collect() } else { text };
            let pieces: Vec<_> = text.as_bytes().chunks(40).map(|piece| Ok(piece.to_vec().into())).collect();
            let body = match is_silent {
                true => stream::iter(pieces).chain(stream::pending()).boxed(),
                false => stream::iter(pieces).boxed(),
            };
            Ok(HttpResponse { status: 200, headers: [("content-type", kind)].into_iter().collect(), peer: None, body })
        }
        .boxed()
    }
}

fn event(fields: &Value) -> String {
    format!("data: {fields}\n\n")
}

/// An object as a call of the forced tool, or as text where none is forced.
fn answer(url: &str, body: &Value, object: &str, streams: bool) -> String {
    let tool = ["/tool_choice/name", "/tool_choice/function/name"].iter().find_map(|at| body.pointer(at)?.as_str());
    let halves = object.split_at(object.len() / 2);
    if url.ends_with("/messages") {
        let Some(tool) = tool else {
            let start =
                json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}});
            let delta = |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}});
            return [start, delta(halves.0), delta(halves.1), stop("end_turn"), json!({"type": "message_stop"})]
                .iter()
                .map(event)
                .collect();
        };
        if !streams {
            let head = json!({"type": "tool_use", "id": "c", "name": tool}).to_string();
            let block = format!("{},\"input\":{object}}}", head.trim_end_matches('}'));
            return format!("{{\"content\":[{block}],\"stop_reason\":\"tool_use\",\"usage\":{{}}}}");
        }
        let block = json!({"type": "tool_use", "id": "c", "name": tool, "input": {}});
        let start = json!({"type": "content_block_start", "index": 0, "content_block": block});
        let delta = |text| json!({"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": text}});
        let end = json!({"type": "content_block_stop", "index": 0});
        return [start, delta(halves.0), delta(halves.1), end, stop("tool_use"), json!({"type": "message_stop"})]
            .iter()
            .map(event)
            .collect();
    }
    if url.ends_with("/responses") {
        let item = match tool {
            Some(tool) => {
                json!({"type": "function_call", "id": "f", "call_id": "c", "name": tool, "arguments": object})
            }
            None => {
                json!({"type": "message", "id": "m", "role": "assistant", "content": [{"type": "output_text", "text": object}]})
            }
        };
        let whole = json!({"status": "completed", "output": [item], "usage": {}});
        if !streams {
            return whole.to_string();
        }
        let mut begun = item.clone();
        begun["arguments"] = json!("");
        begun["content"] = json!([]);
        let kind = if tool.is_some() { "response.function_call_arguments.delta" } else { "response.output_text.delta" };
        let delta = |text| json!({"type": kind, "output_index": 0, "delta": text});
        let added = json!({"type": "response.output_item.added", "output_index": 0, "item": begun});
        let done = json!({"type": "response.output_item.done", "output_index": 0, "item": item});
        return [
            added,
            delta(halves.0),
            delta(halves.1),
            done,
            json!({"type": "response.completed", "response": whole}),
        ]
        .iter()
        .map(event)
        .collect();
    }
    let call =
        |text: &str| json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": tool, "arguments": text}}]});
    let said = |text: &str| if tool.is_some() { call(text) } else { json!({"content": text}) };
    if !streams {
        return json!({"choices": [{"index": 0, "message": said(object), "finish_reason": "stop"}]}).to_string();
    }
    let chunk =
        |delta: Value, reason: Value| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
    let chunks = [
        chunk(json!({"role": "assistant"}), Value::Null),
        chunk(json!({}), Value::Null),
        chunk(said(halves.0), Value::Null),
        chunk(said(halves.1), Value::Null),
        chunk(json!({}), json!("stop")),
    ];
    chunks.iter().map(event).collect()
}

fn stop(reason: &str) -> Value {
    json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 1}})
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Account {
    account: u64,
    total: u128,
    tiny: f64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_digit_comes_through_each_protocol_in_each_mode() {
    // Case C148.
    for protocol in PROTOCOLS {
        for streams in [true, false] {
            for mode in [ObjectMode::Auto, ObjectMode::Strict, ObjectMode::Prompt] {
                if mode != ObjectMode::Auto && !streams {
                    continue;
                }
                let (world, giver) = (World::new().await, Giver::new(NUMBERS, 1));
                let session = world.session().model(model(protocol, "http://127.0.0.1:9", streams, giver.clone()));
                let session = session.open().await.unwrap();
                let request = ObjectRequest { mode, ..ObjectRequest::new(numbers(), "the numbers") };
                let given = session.generate_object_with::<Value>(&request).await;
                // The value has lost digits, or cannot be read at all; the text has them.
                assert!(matches!(&given, Err(GenerateError::Type(_))), "{protocol} {streams} {mode:?}: {given:?}");
                let end = world.record.end_of("generate_object");
                let output = end["output"].as_str().unwrap();
                assert!(
                    output.starts_with(
                        "{\"object\":{\"account\":9007199254740993,\"total\":123456789012345678901234567890,\"tiny\":0.1,\"far\":1e400},\"repair_rounds\":1,"
                    ),
                    "{protocol} {streams} {mode:?}: {output}"
                );
                assert_eq!(giver.requests.lock().unwrap().len(), 2);
                world.at_rest(&[&session]).await;
                world.end().await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hosts_own_type_is_filled_with_every_digit() {
    const OBJECT: &str = "{\"account\":18446744073709551615,\"total\":123456789012345678901234567890,\"tiny\":0.1}";
    let (world, giver) = (World::new().await, Giver::new(OBJECT, 0));
    let session = world.session().model(model("chat", "http://127.0.0.1:9", true, giver.clone())).open().await.unwrap();
    let account: Account = session.generate_object("the account").await.unwrap();
    assert_eq!(account, Account { account: u64::MAX, total: 123_456_789_012_345_678_901_234_567_890, tiny: 0.1 });
    let tools = giver.requests.lock().unwrap()[0]["tools"].clone();
    assert_eq!(tools[0]["function"]["name"], "emit_Account");
    // Views and the object at the end are deltas of the call.
    let deltas = world.record.of_type("tool_output_delta");
    let text: String = deltas.iter().map(|line| line["delta"].as_str().unwrap()).collect();
    let last: &str = text.lines().last().unwrap();
    assert!(last.contains("\"final\":true") && last.contains("123456789012345678901234567890"), "{text}");
    // A type that no value of its schema fits is told apart.
    #[derive(Debug, Deserialize)]
    struct Other {
        #[expect(dead_code, reason = "only read into")]
        missing: u8,
    }
    let request = ObjectRequest::new(json!({"type": "object"}), "p");
    assert!(matches!(session.generate_object_with::<Other>(&request).await, Err(GenerateError::Type(_))));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_never_ends_gives_its_object_all_the_same() {
    for protocol in PROTOCOLS {
        let world = World::new().await;
        let giver = Giver { is_silent: true, ..Arc::into_inner(Giver::new("{\"a\":1}", 0)).unwrap() };
        let session = world.session().model(model(protocol, "http://127.0.0.1:9", true, Arc::new(giver)));
        let session = session.open().await.unwrap();
        let request = ObjectRequest::new(json!({"type": "object", "required": ["a"]}), "p");
        let given = session.generate_object_with::<Value>(&request).await.unwrap();
        assert_eq!((given.object, given.usage.total_tokens), (json!({"a": 1}), 0), "{protocol}");
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_and_scripted_models_take_part() {
    let world = World::new().await;
    let turns = [
        json!({"agent": "generate_object", "text": "Sure: {\"a\": \"x\"}"}),
        json!({"agent": "generate_object", "text": "```json\n{\"a\": 2,}\n```"}),
    ];
    let session = world.session().model(script(&turns)).open().await.unwrap();
    let source = "async function run(ctx, inputs) {
        const schema = {type: 'object', properties: {a: {type: 'integer'}}, required: ['a']};
        const r = await ctx.tool('generate_object', {schema, prompt: 'p'});
        return JSON.parse(r.output).object.a;
    }";
    let arguments = json!({"type": "script", "source": source, "allowed_tools": ["generate_object"]});
    let result = session.tool("program", arguments).await.unwrap();
    assert!(result.is_success() && result.output.contains('2'), "{}", result.output);
    let end = world.record.end_of("generate_object");
    assert_eq!((&end["metadata"]["mode_used"], &end["metadata"]["mended"]), (&json!("prompt"), &json!(true)));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_typed_and_give_no_object() {
    let once = RetryPolicy { attempts_max: 1, ..RetryPolicy::default() };
    let world = World::with(|builder| builder.model_retries(once)).await;
    let kind = |result: Result<Value, GenerateError>| match result.unwrap_err() {
        GenerateError::Session(SessionError::Failed(result)) => {
            assert!(!result.output.contains("\"object\""), "{}", result.output);
            result.error_kind.clone()
        }
        other => panic!("{other}"),
    };
    let request =
        ObjectRequest { timeout: Duration::from_secs(1), ..ObjectRequest::new(json!({"type": "object"}), "p") };
    let silent = Silent::new();
    let session = world.session().model(silent.clone()).open().await.unwrap();
    let late = kind(session.generate_object_with::<Value>(&request).await.map(|given| given.object));
    assert_eq!(late, Some(ToolErrorKind::Timeout { op: "generate_object".into(), duration_ms: 1000 }));
    let slow = ObjectRequest { timeout: Duration::from_secs(60), ..request.clone() };
    let (ended, ()) = tokio::join!(session.generate_object_with::<Value>(&slow), async {
        silent.asked(2).await;
        session.close_because(CancelReason::Requested).await;
    });
    assert!(matches!(kind(ended.map(|given| given.object)), Some(ToolErrorKind::Cancelled { .. })));
    for (status, expected) in [(429, "rate_limited"), (503, "transport"), (408, "transport")] {
        let provider = super::provider::Provider::new(0, move |_| super::provider::Fault::Status(status));
        let session = world.session().model(model("chat", "http://127.0.0.1:9", true, provider)).open().await.unwrap();
        let failed = kind(session.generate_object_with::<Value>(&request).await.map(|given| given.object));
        assert_eq!(serde_json::to_value(failed).unwrap()["type"], expected, "{status}");
    }
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_here_wrote_gives_objects_in_every_mode() {
    let peer = Peer::llmock().await;
    let world = World::new().await;
    let schema = json!({
        "type": "object", "required": ["name", "tags"],
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}, "size": {"type": "integer"}},
    });
    for protocol in PROTOCOLS {
        for (mode, used) in [(ObjectMode::Tool, ObjectMode::Tool), (ObjectMode::Strict, ObjectMode::Strict)] {
            peer.post("/_llmock/reset", &json!({})).await;
            if (protocol, mode) == ("messages", ObjectMode::Strict) {
                // It knows the setting by its older name only, and would answer in prose.
                let said = json!({"type": "reply", "text": "{\"name\": \"Tom\", \"tags\": [\"black\"]}"});
                peer.post("/_llmock/scenario", &json!({"behaviors": [said]})).await;
            }
            let http = toolwarden_tools::effects::Effects::real().http;
            let model = model(protocol, &peer.base_of(protocol, true), true, http);
            let session = world.session().model(model).open().await.unwrap();
            let request = ObjectRequest { mode, ..ObjectRequest::new(schema.clone(), "describe a cat") };
            let given = session.generate_object_with::<Value>(&request).await;
            let given = given.unwrap_or_else(|error| panic!("{protocol} {mode:?}: {error}"));
            assert_eq!(given.mode_used, used, "{protocol}");
            assert!(given.object["name"].is_string() && given.usage.total_tokens > 0, "{protocol}: {given:?}");
        }
    }
    world.end().await;
}
