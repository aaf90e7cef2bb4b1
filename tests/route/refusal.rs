//! Every way not to run: each leaves evidence, says what to do, and ends once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::prelude::{BudgetLimits, CancelTarget, Reply};
use toolwarden::scope::{CallLimits, Confirming};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::record::check_evidence;
use crate::support::tool::{Gate, custom, echo};
use crate::support::world::{World, narrow_lanes_with, policy};

fn life(world: &World, result: &CallResult) -> Vec<String> {
    check_evidence(&serde_json::to_value(result).unwrap());
    world.record.life_of(result.id.as_str())
}

#[tokio::test]
async fn refused_and_broken_calls_have_evidence_and_one_ending() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(policy("deny = [\"write\"]"))
        .confirming(Confirming::Unavailable)
        .tool(custom("crash", |_ctx, _arguments| async { panic!("the tool's own words") }).shared())
        .open()
        .await
        .unwrap();
    let unknown = session.tool("raed", json!({"file_path": "x"})).await.unwrap();
    assert_eq!(life(&world, &unknown), ["tool_proposed", "tool_end"]);
    assert!(unknown.output.contains("raed"), "{}", unknown.output);
    let close = session.tool("READ", json!({})).await.unwrap();
    assert!(close.output.contains("did you mean read?"), "{}", close.output);

    let invalid = session.tool("read", json!({})).await.unwrap();
    assert_eq!(life(&world, &invalid), ["tool_proposed", "tool_end"]);
    // Case R10: a wrong argument to a tool with alternatives is explained.
    assert!(invalid.output.contains("file_path or files is required"), "{}", invalid.output);
    assert!(matches!(invalid.error_kind, Some(ToolErrorKind::InvalidArgument { .. })));

    let denied = session.governed_tool("write", json!({"file_path": "x", "content": ""})).await.unwrap();
    assert_eq!(life(&world, &denied), ["tool_proposed", "tool_request_bound", "permission_denied", "tool_end"]);
    let unasked = session.governed_tool("ls", json!({})).await.unwrap();
    assert_eq!(life(&world, &unasked), ["tool_proposed", "tool_request_bound", "permission_denied", "tool_end"]);
    assert!(unasked.output.contains("nobody can be asked"), "{}", unasked.output);

    let crashed = session.tool("crash", json!({})).await.unwrap();
    let whole = ["tool_proposed", "tool_request_bound", "tool_execution_start", "tool_end"];
    assert_eq!(life(&world, &crashed), whole);
    assert_eq!(crashed.error_kind, Some(ToolErrorKind::Crashed));
    assert!(!crashed.output.contains("own words"), "a panic's words are not for the model");
    for refused in [&unknown, &invalid, &denied, &unasked, &crashed] {
        assert!(!refused.is_success());
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn arguments_are_checked_before_anybody_is_asked() {
    let world = World::new().await;
    let session = world.open().await;
    let result = session.governed_tool("write", json!({"file_path": 7})).await.unwrap();
    assert_eq!(result.metadata["refused"]["stage"], "schema");
    assert!(result.output.contains("/file_path") && result.output.contains("content"), "{}", result.output);
    assert_eq!(world.record.of_type("confirmation_required"), Vec::<Value>::new());
    world.end().await;
}

#[tokio::test]
async fn a_budget_warns_once_and_then_refuses_before_anything_runs() {
    let world = World::new().await;
    let budget = BudgetLimits { calls: Some(5), ..BudgetLimits::default() };
    let session = world.session().budget(budget).tool(echo("echo").shared()).open().await.unwrap();
    for call in 1..=5 {
        assert!(session.tool("echo", json!({ "call": call })).await.unwrap().is_success());
        let soft = world.record.of_type("budget_threshold_hit").len();
        assert_eq!(soft, usize::from(call >= 4), "after call {call}");
    }
    let refused = session.tool("echo", json!({})).await.unwrap();
    assert_eq!(refused.error_kind, Some(ToolErrorKind::BudgetExhausted { resource: "calls".into() }));
    assert_eq!(life(&world, &refused), ["tool_proposed", "tool_request_bound", "tool_end"]);
    let hits = world.record.of_type("budget_threshold_hit");
    let kinds: Vec<&Value> = hits.iter().map(|hit| &hit["kind"]).collect();
    assert_eq!(kinds, ["soft", "hard"]);
    assert_eq!((&hits[1]["consumed"], &hits[1]["limit"]), (&json!(5), &json!(5)));
    assert_eq!(session.budget().await.unwrap().spent.calls, 5);
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_budget_sees_what_a_tool_declares_to_cost_and_is_asked_after_the_person() {
    let world = World::new().await;
    let budget = BudgetLimits { cost_microusd: Some(100), ..BudgetLimits::default() };
    let session = world.session().budget(budget).tool(echo("dear").cost(101).shared()).open().await.unwrap();
    let asked = tokio::spawn({
        let session = session.clone();
        async move { session.governed_tool("dear", json!({})).await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |_| true).await;
    assert!(session.confirm(question["tool_id"].as_str().unwrap().into(), None, Reply::Approve).await);
    let refused = asked.await.unwrap();
    assert_eq!(refused.error_kind, Some(ToolErrorKind::BudgetExhausted { resource: "cost_microusd".into() }));
    assert!(!life(&world, &refused).contains(&"tool_execution_start".to_owned()));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_full_lane_sheds_at_once_and_says_when_to_come_again() {
    let world = World::with(|builder| builder.lanes(narrow_lanes_with(1))).await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let call = || {
        let session = session.clone();
        tokio::spawn(async move { session.tool("wait", json!({})).await.unwrap() })
    };
    let first = call();
    gate.entered(1).await;
    let second = call();
    let lane = world.runtime.lanes().get(&toolwarden_tools::tool::Lane::Execute).unwrap();
    crate::support::until("one call in the line", async || (lane.status().await.unwrap().waiting == 1).then_some(()))
        .await;
    let shed = session.tool("wait", json!({})).await.unwrap();
    let Some(ToolErrorKind::Overloaded { lane: name, retry_after_ms: Some(span) }) = &shed.error_kind else {
        panic!("{shed:?}");
    };
    assert!(name == "execute" && span > &0);
    assert_eq!(shed.metadata["refused"]["stage"], "admission");
    assert_eq!(life(&world, &shed), ["tool_proposed", "tool_request_bound", "tool_end"]);
    gate.let_go(2);
    assert!(first.await.unwrap().is_success() && second.await.unwrap().is_success());
    assert_eq!((gate.count(), gate.most()), (2, 1));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_call_cancelled_in_the_line_never_starts() {
    let world = World::with(|builder| builder.lanes(narrow_lanes_with(8))).await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let call = || {
        let session = session.clone();
        tokio::spawn(async move { session.tool("wait", json!({})).await.unwrap() })
    };
    let first = call();
    gate.entered(1).await;
    let second = call();
    let bound = world.record.wait_nth("tool_request_bound", 2, |_| true).await;
    let id = bound["tool_id"].as_str().unwrap();
    assert!(session.cancel(&CancelTarget::Call(id.into()), &CancelReason::Requested));
    let cancelled = second.await.unwrap();
    assert_eq!(life(&world, &cancelled), ["tool_proposed", "tool_request_bound", "tool_end"]);
    assert!(matches!(
        &cancelled.error_kind,
        Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::Requested), .. })
    ));
    gate.let_go(1);
    assert!(first.await.unwrap().is_success());
    assert_eq!(gate.count(), 1);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A call exists from its proposal on, so its cancel is taken from then on too.
#[tokio::test]
async fn a_call_can_be_cancelled_from_its_proposal_on() {
    let world = World::new().await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let (canceller, known) = (session.clone(), Arc::new(OnceLock::new()));
    let told = Arc::clone(&known);
    world.record.trap(move |line| {
        if line["type"] != "tool_proposed" {
            return false;
        }
        let id = line["id"].as_str().unwrap();
        told.set(canceller.cancel(&CancelTarget::Call(id.into()), &CancelReason::Requested)).unwrap();
        true
    });
    gate.let_go(1);
    let result = session.tool("wait", json!({})).await.unwrap();
    assert_eq!(known.get(), Some(&true), "there was something to cancel");
    assert!(matches!(result.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{result:?}");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_person_or_a_slot_counts_no_tool_time() {
    let world = World::with(|builder| builder.lanes(narrow_lanes_with(8))).await;
    let gate = Gate::new();
    let limits = CallLimits { timeout: Some(Duration::from_secs(5)), ..CallLimits::default() };
    let session = world
        .session()
        .call_limits(limits)
        .confirming(Confirming::Park)
        .tool(gate.tool("wait").shared())
        .open()
        .await
        .unwrap();
    let asked = tokio::spawn({
        let session = session.clone();
        async move { session.governed_tool("wait", json!({"say": "in time"})).await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |_| true).await;
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert!(session.confirm(question["tool_id"].as_str().unwrap().into(), None, Reply::Approve).await);
    gate.entered(1).await;
    gate.let_go(1);
    assert_eq!(asked.await.unwrap().output, "in time");
    // And the tool's own time is counted: nobody opens the gate.
    let late = session.tool("wait", json!({})).await.unwrap();
    assert_eq!(late.error_kind, Some(ToolErrorKind::Timeout { op: "gate".into(), duration_ms: 5000 }));
    world.end().await;
}
