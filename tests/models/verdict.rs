//! Runs against servers that others wrote: every fault of one, whole conversations of the other.

use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::models::gate::RetryPolicy;
use toolwarden::run_status::RunStatus;
use toolwarden_tools::effects::Effects;

use super::peer::{PROTOCOLS, Peer, model};
use super::support::tool::echo;
use super::support::world::{World, allowing};

/// Waits that a test can afford, and that the server still takes for waits.
const RETRIES: RetryPolicy = RetryPolicy {
    attempts_max: 4,
    wait_min: Duration::from_millis(100),
    wait_max: Duration::from_millis(400),
    asked_wait_max: Duration::from_secs(5),
};

/// Faults of the server, and how a run ends that meets them.
fn faults() -> Vec<(&'static str, Value, &'static str)> {
    let fault = |kind| json!({"type": "stream_fault", "kind": kind, "after_chunks": 3, "stall_seconds": 4});
    vec![
        ("429", json!({"type": "fail", "status": 429, "retry_after": 1, "times": 1}), "completed"),
        ("529", json!({"type": "fail", "status": 529, "times": 2}), "completed"),
        ("500", json!({"type": "fail", "status": 500, "times": null}), "model_failed"),
        ("400", json!({"type": "fail", "status": 400, "times": null}), "model_failed"),
        ("401", json!({"type": "fail", "status": 401, "times": null}), "model_failed"),
        ("disconnect", fault("disconnect"), "completed"),
        ("truncate", fault("truncate"), "completed"),
        ("stall", fault("stall"), "completed"),
        ("malformed", fault("malformed"), "completed"),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_judges_its_clients_has_nothing_to_say() {
    let peer = Peer::llmock().await;
    let world = World::with(|builder| builder.model_retries(RETRIES)).await;
    let http = Effects::real().http;
    for protocol in PROTOCOLS {
        for (name, behavior, ending) in faults() {
            peer.post("/_llmock/reset", &json!({})).await;
            peer.post("/_llmock/scenario", &json!({"behaviors": [behavior]})).await;
            let model = model(protocol, &peer.base_of(protocol, true), true, http.clone());
            let session = world.session().model(model).open().await.unwrap();
            let outcome = session.run("say hi").await.unwrap();
            assert_eq!(outcome.status.as_str(), ending, "{protocol} {name}: {:?}", outcome.status);
            let verdict = peer.get("/_llmock/verdict?format=text").await.unwrap();
            if name == "malformed" && !verdict.contains("PASS") {
                // The server knows a retry by its time, and takes a quick one for another call: its record decides.
                let record: Value = serde_json::from_str(&peer.get("/_llmock/requests").await.unwrap()).unwrap();
                let print = |at: usize| record["requests"][at]["fingerprint"].clone();
                assert_eq!(print(0), print(1), "{protocol}: {record}");
            } else {
                assert!(verdict.contains("PASS"), "{protocol} {name}: {verdict}");
            }
            session.close().await;
        }
    }
    world.end().await;
}

/// A run of two reads beside each other, one that thinks first, and one that only talks.
fn fixtures() -> Value {
    let call = |id: &str, n: u8| json!({"id": id, "name": "echo", "arguments": {"n": n}});
    let first = |words: &str, response: Value| json!({"match": {"userMessage": words, "hasToolResult": false}, "response": response});
    let then = |words: &str, text: &str| json!({"match": {"userMessage": words, "hasToolResult": true}, "response": {"content": text}});
    json!({"fixtures": [
        first("beside", json!({"content": "Looking.", "toolCalls": [call("c1", 1), call("c2", 2)]})),
        then("beside", "Both."),
        first("thinking", json!({"reasoning": "let me see", "toolCalls": [call("c1", 3)]})),
        then("thinking", "Thought."),
        first("hello", json!({"content": "Hello to you, and good day."})),
    ]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_conversations_come_through_streamed_and_not() {
    let (peer, _fixtures) = Peer::aimock(&fixtures()).await;
    let http = Effects::real().http;
    for protocol in PROTOCOLS {
        for stream in [true, false] {
            let world = World::new().await;
            let model = model(protocol, &peer.base_of(protocol, false), stream, http.clone());
            let session = world
                .session()
                .policy(allowing(&["echo"]))
                .tool(echo("echo").shared())
                .model(model)
                .open()
                .await
                .unwrap();
            for (words, text, turns) in [("hello", "Hello to you, and good day.", 1), ("beside", "Both.", 2)] {
                let outcome = session.run(words).await.unwrap();
                assert_eq!(
                    (outcome.status, outcome.text.as_str()),
                    (RunStatus::Completed, text),
                    "{protocol} {stream}"
                );
                // Case R11: words without tools cost one call.
                assert_eq!(outcome.turns, turns, "{protocol} {stream} {words}");
            }
            let outputs: Vec<Value> =
                world.record.of_type("tool_end").into_iter().map(|line| line["output"].clone()).collect();
            assert_eq!(outputs, [json!({"n": 1}).to_string(), json!({"n": 2}).to_string()], "{protocol} {stream}");
            session.close().await;
            let session = world.session();
            let again = super::peer::model(protocol, &peer.base_of(protocol, false), stream, http.clone());
            let session =
                session.policy(allowing(&["echo"])).tool(echo("echo").shared()).model(again).open().await.unwrap();
            let outcome = session.run("thinking").await.unwrap();
            assert_eq!(
                (outcome.status, outcome.text.as_str()),
                (RunStatus::Completed, "Thought."),
                "{protocol} {stream}"
            );
            if stream {
                let thoughts: String = world
                    .record
                    .of_type("reasoning_delta")
                    .iter()
                    .map(|line| line["delta"].as_str().unwrap())
                    .collect();
                assert!(thoughts.is_empty() || thoughts == "let me see", "{protocol}: {thoughts}");
            }
            world.end().await;
        }
    }
}
