//! Models that propose nonsense: every run ends, and says by which bound.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use serde_json::{Value, json};
use toolwarden::models::{
    CallArguments, Message, Model as _, ModelCall, ModelError, ModelRequest, ModelTurn, NoSink, StopReason, TokenUsage,
};
use toolwarden::run::RunLimits;
use toolwarden::run_status::RunStatus;

use crate::support::model::{Answering, script};
use crate::support::tool::echo;
use crate::support::world::{World, allowing};

#[tokio::test]
async fn nonsense_for_ever_ends_at_the_round_limit() {
    let world = World::new().await;
    let limits = RunLimits { rounds_max: Some(5), ..RunLimits::default() };
    let nonsense = json!({
        "calls": [
            {"tool": "make_it_so", "arguments": {"now": true}},
            {"tool": "read", "arguments": {"file": 1}},
            {"tool": "", "arguments": {}},
            {"tool": "read", "arguments": {"file_path": "absent"}},
        ],
        "repeat": true,
    });
    let session =
        world.session().policy(allowing(&["read"])).run_limits(limits).model(script(&[nonsense])).open().await.unwrap();
    let outcome = session.run("go").await.unwrap();
    assert_eq!(outcome.status, RunStatus::ToolRoundLimit { rounds: 5 });
    assert_eq!(outcome.turns, 6, "five rounds with tools and one without");
    assert_eq!(world.record.calls_of("make_it_so").len(), 5);
    let end = world.record.wait("agent_end", |_| true).await;
    assert_eq!(end["status"], "tool_round_limit");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The agents' own limits hold where the host sets none.
#[tokio::test]
async fn a_host_that_sets_no_limit_gets_the_agents_own() {
    let world = World::new().await;
    let calls = json!({"calls": [{"tool": "a"}, {"tool": "b"}], "repeat": true});
    let session = world.session().agent("explore").model(script(&[calls])).open().await.unwrap();
    let outcome = session.run("go").await.unwrap();
    assert_eq!(outcome.status, RunStatus::ToolRoundLimit { rounds: 12 });
    world.end().await;
}

#[tokio::test]
async fn the_same_call_for_ever_is_held_back_and_then_ends_the_run() {
    let world = World::new().await;
    let same = json!({"calls": [{"tool": "echo", "arguments": {"n": 1}}], "repeat": true});
    let session = world
        .session()
        .policy(allowing(&["echo"]))
        .tool(echo("echo").shared())
        .model(script(&[same]))
        .open()
        .await
        .unwrap();
    let outcome = session.run("go").await.unwrap();
    assert_eq!(outcome.status, RunStatus::RepeatedCalls);
    assert_eq!(world.record.calls_of("echo").len(), 3, "held back after three times in a row");
    let error = world.record.wait("error", |_| true).await;
    assert_eq!(error["kind"], "repeated_calls");
    // Within one turn too.
    let burst = json!({"calls": vec![json!({"tool": "echo", "arguments": {"n": 1}}); 40]});
    let session = world
        .session()
        .policy(allowing(&["echo"]))
        .tool(echo("echo").shared())
        .model(script(&[burst, json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    assert_eq!(session.run("go").await.unwrap().status, RunStatus::RepeatedCalls);
    assert_eq!(world.record.calls_of("echo").len(), 6);
    world.end().await;
}

#[tokio::test]
async fn malformed_arguments_for_ever_end_the_run() {
    let world = World::new().await;
    for text in ["{\"path\":", "[1]", "\"ls\"", "{} {}", "\u{0}"] {
        let session = world
            .session()
            .model(script(&[json!({"calls": [{"tool": "ls", "arguments_text": text}], "repeat": true})]))
            .open()
            .await
            .unwrap();
        let outcome = session.run("go").await.unwrap();
        assert_eq!(outcome.status, RunStatus::MalformedCalls, "{text}");
        assert_eq!(outcome.turns, 3);
    }
    assert_eq!(world.record.calls_of("ls"), Vec::<String>::new());
    world.end().await;
}

/// Case C148: a number that no value holds is told to the model and not rounded; whole numbers of 64 bits come through.
#[tokio::test]
async fn a_number_with_too_many_digits_is_told_and_never_rounded() {
    let world = World::new().await;
    const LONG: &str = "123456789012345678901234567890";
    let call = |text: &str| json!({"calls": [{"id": "c", "tool": "echo", "arguments_text": text}]});
    let turns = [call(&format!("{{\"n\": {LONG}}}")), call("{\"n\": 18446744073709551615}"), json!({"text": "done"})];
    let (told, inner) = (Arc::new(Mutex::new(Vec::new())), script(&turns));
    let kept = Arc::clone(&told);
    let model = Arc::new(Answering(move |request: &ModelRequest| {
        kept.lock().unwrap().push(request.messages.clone());
        inner.turn(request, &NoSink).now_or_never().unwrap()
    }));
    let session =
        world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).model(model).open().await.unwrap();
    assert_eq!(session.run("go").await.unwrap().text, "done");
    let ran = world.record.of_type("tool_execution_start");
    assert_eq!((ran.len(), &ran[0]["args"]), (1, &json!({"n": u64::MAX})));
    assert_eq!(world.record.end_of("echo")["output"], json!({"n": u64::MAX}).to_string());
    let last = told.lock().unwrap().pop().unwrap();
    let Message::ToolResults { results } = &last[2] else { panic!("{last:?}") };
    assert!(!results[0].success && results[0].output.contains(LONG), "{}", results[0].output);
    assert!(results[0].output.contains("as a string"), "{}", results[0].output);
    // What it wrote stays in the conversation, to the digit.
    let Message::Assistant { calls, .. } = &last[1] else { panic!("{last:?}") };
    assert!(matches!(&calls[0].arguments, CallArguments::Malformed { text, .. } if text.contains(LONG)));
    assert_eq!(calls[0].arguments.for_request(), json!({"n": LONG}));
    world.end().await;
}

/// The session of a run that ended badly takes the next message, and the conversation it sends is whole: every
/// call has its result.
#[tokio::test]
async fn a_session_goes_on_after_a_run_that_ended_badly() {
    let world = World::new().await;
    let session = world
        .session()
        .model(script(&[
            json!({"when": "first", "calls": [{"tool": "ls", "arguments_text": "{"}], "repeat": true}),
            json!({"when": "second", "text": "still here"}),
        ]))
        .open()
        .await
        .unwrap();
    assert_eq!(session.run("first").await.unwrap().status, RunStatus::MalformedCalls);
    assert_eq!(session.run("second").await.unwrap().text, "still here");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn turns_that_cannot_be_believed_end_the_run_and_run_nothing() {
    let world = World::new().await;
    let call = || ModelCall { id: "c".into(), tool: "ls".into(), arguments: CallArguments::from_value(json!({})) };
    let turn = move |stop| ModelTurn {
        text: "said".into(),
        calls: vec![call()],
        usage: TokenUsage::default(),
        stop,
        replay: None,
        request_id: None,
    };
    for (stop, status) in [
        (StopReason::MaxTokens, RunStatus::Cut),
        (StopReason::Refusal, RunStatus::Refused),
        (StopReason::ContentFilter, RunStatus::Refused),
    ] {
        let model = Arc::new(Answering(move |_request: &_| Ok(turn(stop))));
        let session = world.session().model(model).open().await.unwrap();
        assert_eq!(session.run("go").await.unwrap().status, status);
    }
    let failing =
        Arc::new(Answering(|_request: &_| Err(ModelError::Invalid { message: "too long for me".to_owned() })));
    let session = world.session().model(failing).open().await.unwrap();
    let RunStatus::ModelFailed { message } = session.run("go").await.unwrap().status else { panic!("no failure") };
    assert!(message.contains("too long for me"));
    assert_eq!(world.record.calls_of("ls"), Vec::<String>::new());
    world.end().await;
}

/// A provider that pauses for ever, and one that ignores that no tools are left.
#[tokio::test]
async fn a_model_that_never_comes_to_an_end_is_ended() {
    let world = World::new().await;
    let limits = RunLimits { rounds_max: Some(3), ..RunLimits::default() };
    let pausing = json!({"text": "wait", "stop": "paused", "repeat": true});
    let session = world.session().run_limits(limits).model(script(&[pausing])).open().await.unwrap();
    assert_eq!(session.run("go").await.unwrap().status, RunStatus::ToolRoundLimit { rounds: 3 });
    world.end().await;
}

#[tokio::test]
async fn a_model_that_breaks_down_ends_its_run_alone() {
    let world = World::new().await;
    let broken = Arc::new(Answering(|request: &toolwarden::models::ModelRequest| -> Result<ModelTurn, ModelError> {
        match request.messages.last() {
            Some(toolwarden::models::Message::User { text }) if text == "break" => panic!("the model's own words"),
            _ => Ok(ModelTurn::answer("sound")),
        }
    }));
    let session = world.session().model(broken).open().await.unwrap();
    let outcome = session.run("break").await.unwrap();
    assert_eq!(outcome.status, RunStatus::Crashed);
    let error = world.record.wait("error", |_| true).await;
    assert!(error["kind"] == "crashed" && !error.to_string().contains("own words"), "{error}");
    assert_eq!(session.run("go on").await.unwrap().text, "sound");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// One turn with hundreds of calls: all of them get their results, and the lanes are home afterwards.
#[tokio::test]
async fn hundreds_of_calls_in_one_turn_are_carried_out_in_order() {
    let world = World::new().await;
    let calls: Vec<Value> = (0..300).map(|n| json!({"tool": "echo", "arguments": { "n": n }})).collect();
    let session = world
        .session()
        .policy(allowing(&["echo"]))
        .tool(echo("echo").shared())
        .model(script(&[json!({ "calls": calls }), json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    assert_eq!(session.run("go").await.unwrap().text, "done");
    let outputs: Vec<Value> = world.record.of_type("tool_end").into_iter().map(|line| line["output"].clone()).collect();
    assert_eq!(outputs, (0..300).map(|n| json!({ "n": n }).to_string()).collect::<Vec<_>>());
    world.at_rest(&[&session]).await;
    world.end().await;
}
