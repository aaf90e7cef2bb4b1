//! How far a cancel reaches, with its reason, and what goes on afterwards.

use serde_json::{Value, json};
use toolwarden::prelude::{CancelTarget, Reply};
use toolwarden::run_status::RunStatus;
use toolwarden::scope::Confirming;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::tool::Lane;

use crate::support::model::script;
use crate::support::process::appear;
use crate::support::tool::Gate;
use crate::support::until;
use crate::support::world::{World, allowing, narrow_lanes};

fn delegating(prompt: &str, calls: &Value) -> Vec<Value> {
    let task = json!({"agent": "general", "description": "a child", "prompt": prompt});
    vec![
        json!({"when": "go", "calls": [{"tool": "task", "arguments": task}]}),
        json!({"when": prompt, "calls": calls}),
        json!({"when": prompt, "text": "the child went on"}),
        json!({"when": "go", "text": "the run went on"}),
        json!({"when": "next", "text": "the session went on"}),
    ]
}

/// Case C180: a cancel of the run reaches the child's run, its tool and its process, with the reason at each level.
#[tokio::test]
async fn a_cancel_reaches_the_process_of_a_child_run_with_its_reason() {
    let world = World::new().await;
    let bash = json!([{"tool": "bash", "arguments": {"command": "echo before; sleep 600"}}]);
    let session = world
        .session()
        .policy(allowing(&["task", "bash"]))
        .model(script(&delegating("child", &bash)))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    appear(&world.mark, "sleep 600", 1).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let outcome = run.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Cancelled { reason: CancelReason::Requested });
    world.at_rest(&[&session]).await;

    let requested = json!({"cancel": "requested"});
    let bash = world.record.end_of("bash");
    assert_eq!(bash["error_kind"], json!({"type": "cancelled", "op": "bash", "reason": requested}));
    // Cases C008 and R09: what was printed before is kept.
    assert!(bash["output"].as_str().unwrap().starts_with("before\n"), "{bash}");
    let task = world.record.end_of("task");
    assert_eq!(task["error_kind"], json!({"type": "cancelled", "op": "task", "reason": requested}));
    let child = &world.record.of_type("subagent_end")[0];
    assert!(child["success"] == false && child["output"].as_str().unwrap().contains("cancelled on request"), "{child}");
    let errors = world.record.of_type("error");
    assert_eq!(errors.len(), 2, "the child's run and the run: {errors:?}");
    assert!(errors.iter().all(|error| error["kind"] == "cancelled" && error["message"] == "cancelled on request"));
    // Case R01: the session takes the next message.
    assert_eq!(session.run("next").await.unwrap().text, "the session went on");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A child's call that waits in the line never starts.
#[tokio::test]
async fn a_cancel_reaches_a_childs_call_in_the_line() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    let gate = Gate::new();
    let session = world
        .session()
        .policy(allowing(&["task", "bash"]))
        .tool(gate.tool("wait").shared())
        .model(script(&delegating("child", &json!([{"tool": "bash", "arguments": {"command": "touch made"}}]))))
        .open()
        .await
        .unwrap();
    let other = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let holds = tokio::spawn({
        let other = other.clone();
        async move { other.tool("wait", json!({})).await.unwrap() }
    });
    gate.entered(1).await;
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    let lane = world.runtime.lanes().get(&Lane::Execute).unwrap();
    until("the child's call in the line", async || (lane.status().await.unwrap().waiting == 1).then_some(())).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    assert_eq!(run.await.unwrap().status, RunStatus::Cancelled { reason: CancelReason::Requested });
    gate.let_go(1);
    assert!(holds.await.unwrap().is_success());
    let bash = world.record.end_of("bash");
    assert_eq!(bash["error_kind"]["reason"], json!({"cancel": "requested"}));
    assert!(!world.record.life_of(bash["id"].as_str().unwrap()).contains(&"tool_execution_start".to_owned()));
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session, &other]).await;
    world.end().await;
}

/// A child's call that waits for a person is withdrawn: an answer that comes later is no answer.
#[tokio::test]
async fn a_cancel_reaches_a_childs_open_question() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(allowing(&["task"]))
        .confirming(Confirming::Park)
        .model(script(&delegating("child", &json!([{"tool": "bash", "arguments": {"command": "touch made"}}]))))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |_| true).await;
    assert_eq!(session.pending_confirmations().await.unwrap().len(), 1);
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    assert_eq!(run.await.unwrap().status, RunStatus::Cancelled { reason: CancelReason::Requested });
    let id = question["tool_id"].as_str().unwrap();
    assert!(!session.confirm(id.into(), None, Reply::Approve).await);
    let received = world.record.the("confirmation_received", id);
    assert_eq!((&received["approved"], &received["reason"]), (&json!(false), &json!("cancelled on request")));
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Runs that wait for their turn are cancelled with the one that runs, and never begin.
#[tokio::test]
async fn a_cancel_of_everything_takes_the_runs_that_wait() {
    let world = World::new().await;
    let silent = crate::support::model::Silent::new();
    let session = world.session().model(silent.clone()).open().await.unwrap();
    let run = || {
        let session = session.clone();
        tokio::spawn(async move { session.run("go").await.unwrap() })
    };
    let runs = [run(), run(), run()];
    silent.asked(1).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    for run in runs {
        assert_eq!(run.await.unwrap().status, RunStatus::Cancelled { reason: CancelReason::Requested });
    }
    assert_eq!(world.record.of_type("agent_start").len(), 1);
    assert!(!session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// One call of a turn is cancelled: its siblings, its run and the model's next turn go on.
#[tokio::test]
async fn a_cancelled_call_is_a_result_for_the_model() {
    let world = World::new().await;
    let gate = Gate::new();
    let calls = json!([{"tool": "wait", "arguments": {"say": "one"}}, {"tool": "wait", "arguments": {"say": "two"}}]);
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").reads(4).shared())
        .model(script(&[json!({ "calls": calls }), json!({"text": "went on"})]))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    gate.holds(2).await;
    let first = world.record.calls_of("wait").remove(0);
    assert!(session.cancel(&CancelTarget::Call(first.as_str().into()), &CancelReason::Requested));
    gate.holds(1).await;
    gate.let_go(1);
    let outcome = run.await.unwrap();
    assert_eq!((outcome.status, outcome.text.as_str()), (RunStatus::Completed, "went on"));
    let codes: Vec<Value> =
        world.record.calls_of("wait").iter().map(|id| world.record.the("tool_end", id)["exit_code"].clone()).collect();
    assert_eq!(codes, [1, 0]);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Nothing to cancel is told, and a second cancel changes nothing.
#[tokio::test]
async fn what_does_not_run_cannot_be_cancelled() {
    let world = World::new().await;
    let session = world.open().await;
    let other = world.open().await;
    assert!(!session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let done = session.tool("ls", json!({})).await.unwrap();
    assert!(!session.cancel(&CancelTarget::Call(done.id.clone()), &CancelReason::Requested));
    // Nor what runs in another session.
    let gate = Gate::new();
    let busy = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let waits = tokio::spawn({
        let busy = busy.clone();
        async move { busy.tool("wait", json!({"say": "untouched"})).await.unwrap() }
    });
    gate.entered(1).await;
    let id = world.record.calls_of("wait").remove(0);
    assert!(!other.cancel(&CancelTarget::Call(id.as_str().into()), &CancelReason::Requested));
    assert!(!other.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    gate.let_go(1);
    assert_eq!(waits.await.unwrap().output, "untouched");
    world.at_rest(&[&session, &other, &busy]).await;
    world.end().await;
}

/// A session that closes refuses what comes later, twice is as good as once, and one that is dropped closes.
#[tokio::test]
async fn a_closed_session_says_so_and_a_dropped_one_closes() {
    let world = World::new().await;
    let session = world.open().await;
    tokio::join!(session.close(), session.close());
    assert!(session.tool("ls", json!({})).await.is_err());
    assert!(session.run("go").await.is_err());
    assert_eq!(world.runtime.live_nodes(), 1);
    let gate = Gate::new();
    let dropped = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let waits = tokio::spawn(async move { drop(dropped.tool("wait", json!({})).await) });
    gate.entered(1).await;
    waits.abort();
    gate.holds(0).await;
    world.at_rest(&[]).await;
    assert_eq!(world.record.of_type("session_closed").len(), 2);
    world.end().await;
}
