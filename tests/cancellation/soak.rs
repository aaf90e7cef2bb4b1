//! The nine faults of cancelling, deadlines and orphans that others had to find one by one, each as a promise.
//!
//! They are told in one place, so that a glance shows that each has its test; most of what they are about is held from
//! several sides elsewhere too. 1 to 9 are the numbers that they have in the table of faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use toolwarden::prelude::CancelTarget;
use toolwarden::run_status::RunStatus;
use toolwarden::scope::CallLimits;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};
use toolwarden_tools::tool::Lane;

use crate::support::model::{Silent, script};
use crate::support::process::{appear, living};
use crate::support::tool::{Custom, Gate, custom, nesting};
use crate::support::until;
use crate::support::world::{World, allowing, narrow_lanes, narrow_lanes_with};

/// How long a tool takes to stop that is slow to.
const STOPS_AFTER: Duration = Duration::from_millis(100);
/// What a call may take on a busy machine that has to end at once.
const SOON: Duration = Duration::from_secs(10);

fn timed(span: Duration) -> CallLimits {
    CallLimits { timeout: Some(span), ..CallLimits::default() }
}

/// Counts itself at work, hears its cancel, and then takes a while to stop.
fn slow_to_stop(working: &Arc<AtomicUsize>) -> Custom {
    struct AtWork(Arc<AtomicUsize>);
    impl Drop for AtWork {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let working = Arc::clone(working);
    custom("slow", move |ctx, _| {
        let working = Arc::clone(&working);
        async move {
            working.fetch_add(1, Ordering::SeqCst);
            let _at_work = AtWork(working);
            let reason = ctx.cancel.cancelled().await;
            tokio::time::sleep(STOPS_AFTER).await;
            ToolOutcome::ended_early("slow", &reason)
        }
    })
    .reads(8)
}

/// 1: a time-out is told when the work has stopped and not before, whoever asked for it: directly, in a batch, in a
/// script, in a tool that nests.
#[tokio::test]
async fn fault_1_a_time_out_is_told_when_nothing_of_it_works_any_more() {
    let slow = json!({"tool": "slow", "args": {}});
    let script = "async function run(ctx) { await Promise.all([ctx.tool('slow'), ctx.tool('slow')]); }";
    let ways = [
        ("slow", json!({})),
        ("batch", json!({"invocations": [slow, slow, slow]})),
        ("nest", json!({"calls": [["slow", {}], ["nest", {"calls": [["slow", {}]]}]]})),
        ("program", json!({"type": "script", "source": script})),
    ];
    for (tool, arguments) in ways {
        let world = World::new().await;
        let working = Arc::new(AtomicUsize::new(0));
        let builder =
            world.session().policy(allowing(&["slow", "nest"])).call_limits(timed(Duration::from_millis(300)));
        let builder = builder.tool(slow_to_stop(&working).shared()).tool(nesting("nest").shared());
        let session = builder.open().await.unwrap();
        let (at_work, told) = (Arc::clone(&working), Arc::new(AtomicUsize::new(usize::MAX)));
        let seen = Arc::clone(&told);
        world.record.trap(move |line| {
            let is_ending = line["type"] == "tool_end" && line["name"] == tool && line.get("parent").is_none();
            if is_ending {
                seen.store(at_work.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            // The last ending of this name is the outermost's.
            false
        });
        let result = session.tool(tool, arguments).await.unwrap();
        assert!(!result.is_success(), "{tool}: {}", result.output);
        assert_eq!((told.load(Ordering::SeqCst), working.load(Ordering::SeqCst)), (0, 0), "{tool}");
        let late = world.record.of_type("tool_end").iter().filter(|end| end["error_kind"]["type"] == "timeout").count();
        assert!(late >= 1, "{tool}: {}", world.record.shown());
        world.settled(&[&session]).await;
        world.end().await;
    }
}

/// 2: a line without an end costs bounded memory, and what the shell started goes with it.
#[tokio::test]
async fn fault_2_a_line_without_end_is_bounded_and_the_whole_group_ends() {
    let world = World::new().await;
    let session = world.open().await;
    let command = "sleep 600 & while :; do head -c 1000000 /dev/zero | tr '\\0' x; done";
    let result = session.tool("bash", json!({"command": command, "timeout": 1500})).await.unwrap();
    assert!(matches!(result.error_kind, Some(ToolErrorKind::Timeout { .. })), "{result:?}");
    assert!(result.output.len() < 300_000, "{} bytes are shown", result.output.len());
    world.at_rest(&[&session]).await;
    assert_eq!(living(&world.mark), Vec::<String>::new());
    world.end().await;
}

/// 3: a descendant that keeps the pipe open holds up neither the call nor the shut-down.
#[tokio::test]
async fn fault_3_a_descendant_that_holds_the_pipe_holds_nothing_up() {
    let world = World::new().await;
    let session = world.open().await;
    let command = json!({"command": "(trap '' TERM HUP; exec sleep 600) & echo started"});
    let result = tokio::time::timeout(SOON, session.tool("bash", command.clone())).await.unwrap().unwrap();
    assert!(result.output.contains("started"), "{}", result.output);
    // And while one is being waited for, the runtime goes down.
    let waits = json!({"command": "(trap '' TERM HUP; exec sleep 600) & wait"});
    let call = tokio::spawn({
        let session = session.clone();
        async move { session.tool("bash", waits).await }
    });
    appear(&world.mark, "sleep 600", 1).await;
    tokio::time::timeout(SOON, world.runtime.shut_down()).await.unwrap();
    assert!(!call.await.unwrap().unwrap().is_success());
    world.end().await;
}

/// 4: a fan-out is bounded, and returns when its cancelled children have settled.
#[tokio::test]
async fn fault_4_a_fan_out_is_bounded_and_settles_its_children_first() {
    let world = World::new().await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").reads(64).shared()).open().await.unwrap();
    let calls: Vec<Value> = (0..32).map(|say| json!({"tool": "wait", "args": { "say": say.to_string() }})).collect();
    let call = tokio::spawn({
        let (session, calls) = (session.clone(), calls.clone());
        async move { session.tool("batch", json!({ "invocations": calls, "max_concurrency": 16 })).await.unwrap() }
    });
    gate.entered(16).await;
    assert_eq!((gate.most(), gate.count()), (16, 16));
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let result = call.await.unwrap();
    assert!(!result.is_success(), "{}", result.output);
    gate.holds(0).await;
    assert_eq!(gate.count(), 16, "nothing more was started");
    let names: Vec<Value> = world.record.of_type("tool_end").iter().map(|end| end["name"].clone()).collect();
    assert_eq!(names.last().unwrap(), "batch");
    let more = [calls.clone(), vec![calls[0].clone()]].concat();
    assert!(!session.tool("batch", json!({ "invocations": more })).await.unwrap().is_success());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// 5: from the moment of a cancel nothing more is admitted, although slots come free while it is cleaned up.
#[tokio::test]
async fn fault_5_nothing_is_admitted_while_a_cancel_cleans_up() {
    for leaves in [false, true] {
        let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
        let gate = Gate::new();
        let session = world.session().tool(gate.tool("wait").reads(16).shared()).open().await.unwrap();
        let calls: Vec<Value> = (0..16).map(|_| json!({"tool": "wait", "args": {}})).collect();
        let call = tokio::spawn({
            let session = session.clone();
            async move { session.tool("batch", json!({ "invocations": calls, "max_concurrency": 16 })).await }
        });
        gate.entered(1).await;
        let lane = world.runtime.lanes().get(&Lane::Execute).unwrap();
        until("fifteen in the line", async || (lane.status().await.unwrap().waiting == 15).then_some(())).await;
        if leaves {
            world.runtime.shut_down().await;
        } else {
            assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
        }
        assert!(!call.await.unwrap().unwrap().is_success());
        assert_eq!(gate.count(), 1, "a slot that came free was given to nobody");
        assert_eq!(
            world.record.of_type("tool_execution_start").iter().filter(|line| line["name"] == "wait").count(),
            1
        );
        if !leaves {
            world.at_rest(&[&session]).await;
        }
        world.end().await;
    }
}

/// 6: who goes away in the line takes no slot with them, and a full line delays no shut-down.
#[tokio::test]
async fn fault_6_a_line_that_is_left_or_full_keeps_no_slot_and_no_shut_down() {
    let world = World::with(|builder| builder.lanes(narrow_lanes_with(24))).await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let call = |session: Session| async move { session.tool("wait", json!({})).await };
    let holds = tokio::spawn(call(session.clone()));
    gate.entered(1).await;
    let lane = world.runtime.lanes().get(&Lane::Execute).unwrap();
    let waiting = async |count: usize| {
        until("so many in the line", async || (lane.status().await.unwrap().waiting == count).then_some(())).await;
    };
    let mut line: Vec<_> = (0..24).map(|_| tokio::spawn(call(session.clone()))).collect();
    waiting(24).await;
    // A third goes away, a third is cancelled, a third stays.
    line.iter().step_by(3).for_each(|left| left.abort());
    waiting(16).await;
    let bound = world.record.of_type("tool_request_bound");
    let ended: Vec<Value> = world.record.of_type("tool_end").iter().map(|end| end["id"].clone()).collect();
    let in_line = bound.iter().map(|line| &line["tool_id"]).skip(1).filter(|id| !ended.contains(id));
    for id in in_line.step_by(2) {
        assert!(session.cancel(&CancelTarget::Call(id.as_str().unwrap().into()), &CancelReason::Requested));
    }
    waiting(8).await;
    gate.let_go(9);
    assert!(holds.await.unwrap().unwrap().is_success());
    let mut answered = 0;
    for one in line.drain(..) {
        answered += usize::from(one.await.is_ok_and(|result| result.unwrap().is_success()));
    }
    assert_eq!((answered, gate.count(), gate.most()), (8, 9, 1));
    world.at_rest(&[&session]).await;
    // Full again, and down at once.
    let mut line: JoinSet<_> = (0..25).map(|_| call(session.clone())).collect();
    waiting(24).await;
    tokio::time::timeout(SOON, world.runtime.shut_down()).await.unwrap();
    while let Some(one) = line.join_next().await {
        assert!(!one.unwrap().unwrap().is_success());
    }
    world.end().await;
}

/// 7: a child that waits for a slot when its time is over has its one ending, as has the call that wanted it.
#[tokio::test(start_paused = true)]
async fn fault_7_a_child_whose_time_is_over_in_the_line_has_an_ending() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    let silent = Silent::new();
    let other = world.session().model(silent.clone()).open().await.unwrap();
    let asking = tokio::spawn({
        let other = other.clone();
        async move { other.run("wait").await }
    });
    silent.asked(1).await;
    let session = world.session().model(script(&[json!({"text": "never"})])).open().await.unwrap();
    let child = json!({"agent": "general", "description": "waits", "prompt": "waits"});
    let asked = json!({"tasks": [child, child], "timeout_ms": 5_000});
    let result = session.tool("task", asked).await.unwrap();
    assert!(!result.is_success(), "{}", result.output);
    let ends = world.record.of_type("subagent_end");
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends.iter().all(|end| end["success"] == false && end["output"].as_str().unwrap().contains("5000 ms")));
    assert_eq!(world.record.of_type("tool_end").len(), 1);
    assert!(other.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    assert!(asking.await.unwrap().is_ok());
    world.settled(&[&session, &other]).await;
    world.end().await;
}

/// 8: the first word about a run's end stays: neither a tool that returns late nor a second cancel changes it.
#[tokio::test]
async fn fault_8_what_comes_late_does_not_change_an_ending() {
    let world = World::new().await;
    let (entered, may_return) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (enters, returns) = (Arc::clone(&entered), Arc::clone(&may_return));
    // It hears the cancel and says that all went well, later.
    let late = custom("late", move |ctx, _| {
        let (enters, returns) = (Arc::clone(&enters), Arc::clone(&returns));
        async move {
            enters.notify_one();
            ctx.cancel.cancelled().await;
            returns.notified().await;
            ToolOutcome::success("all went well")
        }
    });
    let turns = [json!({"calls": [{"tool": "late"}]}), json!({"text": "went on"})];
    let builder = world.session().policy(allowing(&["late"])).tool(late.shared()).model(script(&turns));
    let session = builder.open().await.unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await }
    });
    entered.notified().await;
    assert!(session.cancel(&CancelTarget::Run, &CancelReason::Requested));
    let closing = tokio::spawn({
        let session = session.clone();
        async move { session.close_because(CancelReason::Shutdown).await }
    });
    tokio::task::yield_now().await;
    may_return.notify_one();
    let status = run.await.unwrap().unwrap().status;
    assert_eq!(status, RunStatus::Cancelled { reason: CancelReason::Requested });
    closing.await.unwrap();
    let ended = |line: &&Value| matches!(line["type"].as_str(), Some("agent_end" | "error"));
    let endings: Vec<Value> = world.record.lines().iter().filter(ended).cloned().collect();
    assert_eq!(endings.len(), 1, "{endings:?}");
    assert_eq!(endings[0]["message"], "cancelled on request");
    assert_eq!(world.record.of_type("tool_end").len(), 1);
    world.settled(&[]).await;
    world.end().await;
}

/// 9: a program that closes its streams and does not end is waited for no longer than its time, and a long look for
/// files hears its cancel.
#[tokio::test]
async fn fault_9_a_program_that_closes_its_streams_and_stays_is_ended() {
    let world = World::new().await;
    let session = world.open().await;
    let closed = json!({"command": "exec >&- 2>&- <&-; exec sleep 600", "timeout": 700});
    let result = tokio::time::timeout(SOON, session.tool("bash", closed)).await.unwrap().unwrap();
    assert!(matches!(result.error_kind, Some(ToolErrorKind::Timeout { .. })), "{result:?}");
    let call = tokio::spawn({
        let session = session.clone();
        async move { session.tool("bash", json!({"command": "exec >&- 2>&-; exec sleep 601"})).await.unwrap() }
    });
    appear(&world.mark, "sleep 601", 1).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let result = tokio::time::timeout(SOON, call).await.unwrap().unwrap();
    assert!(matches!(result.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{result:?}");
    world.at_rest(&[&session]).await;
    world.end().await;
}
