//! Runs against servers that others wrote: every fault of one, whole conversations of the other.

use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::models::gate::RetryPolicy;
use toolwarden::run_status::RunStatus;
use toolwarden::scope::Confirming;
use toolwarden_tools::effects::Effects;

use super::peer::{PROTOCOLS, Peer, model};
use super::support::tool::echo;
use super::support::world::{World, allowing};

/// Waits that a test can afford, and that the server still takes for waits.
const RETRIES: RetryPolicy = RetryPolicy {
    attempts_max: 3,
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
async fn a_server_that_judges_its_clients_has_nothing_to_say_about_responses() {
    is_judged_well("responses").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_judges_its_clients_has_nothing_to_say_about_chat() {
    is_judged_well("chat").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_judges_its_clients_has_nothing_to_say_about_messages() {
    is_judged_well("messages").await;
}

async fn is_judged_well(protocol: &str) {
    let peer = Peer::llmock().await;
    let world = World::with(|builder| builder.model_retries(RETRIES)).await;
    let http = Effects::real().http;
    let streamed = faults().into_iter().map(|fault| (fault, true));
    // What comes as one piece has no pieces to break.
    let whole = faults().into_iter().filter(|(_, fault, _)| fault["type"] == "fail").map(|fault| (fault, false));
    for ((name, behavior, ending), stream) in streamed.chain(whole) {
        peer.post("/_llmock/reset", &json!({})).await;
        peer.post("/_llmock/scenario", &json!({"behaviors": [behavior]})).await;
        let model = model(protocol, &peer.base_of(protocol, true), stream, http.clone());
        // The server makes up calls; nobody is there to be asked about them.
        let session = world.session().confirming(Confirming::Unavailable).model(model).open().await.unwrap();
        let outcome = session.run("say hi").await.unwrap();
        assert_eq!(outcome.status.as_str(), ending, "{protocol} {name} {stream}: {:?}", outcome.status);
        let verdict = peer.get("/_llmock/verdict?format=text").await.unwrap();
        if name == "malformed" && !verdict.contains("PASS") {
            // The server knows a retry by its time, and takes a quick one for another call: its record decides.
            let record: Value = serde_json::from_str(&peer.get("/_llmock/requests").await.unwrap()).unwrap();
            let print = |at: usize| record["requests"][at]["fingerprint"].clone();
            assert_eq!(print(0), print(1), "{protocol}: {record}");
        } else {
            assert!(verdict.contains("PASS"), "{protocol} {name} {stream}: {verdict}");
        }
        session.close().await;
    }
    world.end().await;
}

/// What a provider declines or cuts is no answer, streamed or not. Neither server can decline over the Responses protocol,
/// nor say over it that it was filtered: for that there are recorded streams.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_declines_or_cuts_is_told_as_such() {
    let (llmock, http) = (Peer::llmock().await, Effects::real().http);
    let said = |words: &str, reason: &str| json!({"match": {"userMessage": words}, "response": {"content": "I would", "finishReason": reason}});
    let fixtures = json!({"fixtures": [said("decline", "content_filter"), said("cut", "length")]});
    let (aimock, _fixtures) = Peer::aimock(&fixtures).await;
    let world = World::with(|builder| builder.model_retries(RETRIES)).await;
    for protocol in PROTOCOLS {
        for stream in [true, false] {
            for (words, reason, ending) in
                [("decline", "content_filter", RunStatus::Refused), ("cut", "length", RunStatus::Cut)]
            {
                if (protocol, words) == ("responses", "decline") {
                    continue;
                }
                llmock.post("/_llmock/reset", &json!({})).await;
                let reply = json!({"type": "reply", "text": "I would", "finish_reason": reason});
                llmock.post("/_llmock/scenario", &json!({"behaviors": [reply]})).await;
                for (peer, has_prefix) in [(&llmock, true), (&aimock, false)] {
                    let model = model(protocol, &peer.base_of(protocol, has_prefix), stream, http.clone());
                    let session = world.session().model(model).open().await.unwrap();
                    let outcome = session.run(words).await.unwrap();
                    assert_eq!(outcome.status, ending, "{protocol} {stream} {words} {has_prefix}");
                    session.close().await;
                }
            }
        }
    }
    world.end().await;
}

/// Calls beside each other and one after another from the server that judges: each runs once, in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_the_server_that_judges_run_once_each() {
    let (peer, http) = (Peer::llmock().await, Effects::real().http);
    for protocol in PROTOCOLS {
        for stream in [true, false] {
            let world = World::new().await;
            peer.post("/_llmock/reset", &json!({})).await;
            let call = |n: u8| json!({"name": "echo", "arguments": {"n": n}});
            let behaviors = json!({"behaviors": [
                {"type": "reply", "tool_calls": [call(1), call(2)]},
                {"type": "reply", "tool_calls": [call(3)]},
                {"type": "reply", "text": "all of it"},
            ]});
            peer.post("/_llmock/scenario", &behaviors).await;
            let model = model(protocol, &peer.base_of(protocol, true), stream, http.clone());
            let session = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).model(model);
            let session = session.open().await.unwrap();
            let outcome = session.run("go").await.unwrap();
            assert_eq!(
                (outcome.status, outcome.text.as_str(), outcome.turns),
                (RunStatus::Completed, "all of it", 3),
                "{protocol} {stream}"
            );
            let outputs: Vec<Value> =
                world.record.of_type("tool_end").into_iter().map(|line| line["output"].clone()).collect();
            assert_eq!(outputs, [1, 2, 3].map(|n| json!(json!({"n": n}).to_string())), "{protocol} {stream}");
            world.end().await;
        }
    }
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
