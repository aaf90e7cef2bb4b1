//! The bounds of a run, each with its own ending, and in which order its calls run: reads beside each other, as many as may be,
//! and whatever changes something alone and in its turn.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden::models::{Model, ModelError, ModelRequest, ModelTurn, TokenUsage, TurnSink};
use toolwarden::run::{PARALLEL_CALLS_MAX, RunLimits};
use toolwarden::run_status::RunStatus;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_tools::cancellation::CancelReason;

use super::support::model::{Silent, script};
use super::support::tool::{Gate, echo};
use super::support::world::{World, allowing};

/// A script whose turns cost money.
struct Priced(Arc<dyn Model>);

/// What each of its turns costs, in millionths of a US dollar.
const TURN_MICROUSD: u64 = 1000;

impl Model for Priced {
    fn name(&self) -> &str {
        "priced"
    }

    fn cost_microusd(&self, _usage: TokenUsage) -> u64 {
        TURN_MICROUSD
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        self.0.turn(request, sink)
    }
}

/// Calls for ever, each time something else.
fn busy() -> Arc<dyn Model> {
    let turns: Vec<Value> = (0..40)
        .map(|n| {
            let usage = json!({"input_tokens": 40_000, "output_tokens": 300});
            json!({"calls": [{"tool": "echo", "arguments": {"n": n}}], "usage": usage})
        })
        .collect();
    script(&turns)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bound_of_a_run_has_its_own_ending() {
    let world = World::new().await;
    let exhausted = |resource: &str| RunStatus::BudgetExhausted { resource: resource.to_owned() };
    let limits = |change: fn(&mut BudgetLimits)| {
        let mut limits = BudgetLimits::default();
        change(&mut limits);
        limits
    };
    for (budget, expected) in [
        (limits(|limits| limits.input_tokens = Some(100_000)), exhausted("input_tokens")),
        (limits(|limits| limits.output_tokens = Some(500)), exhausted("output_tokens")),
        (limits(|limits| limits.cost_microusd = Some(1500)), exhausted("cost_microusd")),
    ] {
        let session = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).budget(budget);
        let session = session.model(Arc::new(Priced(busy()))).open().await.unwrap();
        let outcome = session.run("go").await.unwrap();
        assert_eq!(outcome.status, expected);
        assert!((2..=3).contains(&outcome.turns), "{expected}: {} turns", outcome.turns);
        let error = world.record.of_type("error").pop().unwrap();
        assert_eq!(error["kind"], "budget_exhausted", "{error}");
        session.close().await;
    }
    // What each round used is told when it ends.
    let ends = world.record.of_type("turn_end");
    assert!(ends.iter().all(|end| end["usage"]["input_tokens"] == 40_000 && end["stop"] == "tool_use"), "{ends:?}");
    let silent = Silent::new();
    let timed = RunLimits { timeout: Some(Duration::from_millis(30)), ..RunLimits::default() };
    let session = world.session().run_limits(timed).model(silent).open().await.unwrap();
    let late = RunStatus::Cancelled { reason: CancelReason::Deadline { timeout_ms: 30 } };
    assert_eq!(session.run("go").await.unwrap().status, late);
    let rounds = RunLimits { rounds_max: Some(2), ..RunLimits::default() };
    let session = world.session().policy(allowing(&["echo"])).tool(echo("echo").shared()).run_limits(rounds);
    let session = session.model(busy()).open().await.unwrap();
    let outcome = session.run("go").await.unwrap();
    assert_eq!((outcome.status, outcome.turns), (RunStatus::ToolRoundLimit { rounds: 2 }, 3));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_run_beside_each_other_and_changes_alone_and_in_their_turn() {
    let world = World::new().await;
    let (looks, changes) = (Gate::new(), Gate::new());
    let look = |n: usize| json!({"tool": "look", "arguments": {"say": n.to_string()}});
    let change = |n: usize| json!({"tool": "change", "arguments": {"say": n.to_string()}});
    let many = PARALLEL_CALLS_MAX + 2;
    let calls: Vec<Value> = (0..many).map(look).chain([change(100), change(101), look(102), look(103)]).collect();
    let session = world
        .session()
        .policy(allowing(&["look", "change"]))
        .tool(looks.tool("look").reads(64).shared())
        .tool(changes.tool("change").shared())
        .model(script(&[json!({"calls": calls}), json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    let running = session.clone();
    let run = tokio::spawn(async move { running.run("go").await.unwrap() });
    // As many as may be, and not one more.
    looks.holds(PARALLEL_CALLS_MAX).await;
    looks.let_go(PARALLEL_CALLS_MAX);
    looks.entered(many).await;
    looks.holds(2).await;
    assert_eq!((looks.count(), changes.count()), (many, 0), "no change before the reads in front of it");
    looks.let_go(2);
    changes.holds(1).await;
    assert_eq!((changes.count(), looks.count()), (1, many), "one change at a time, and no read behind it");
    changes.let_go(1);
    changes.entered(2).await;
    assert_eq!((changes.most(), looks.count()), (1, many));
    changes.let_go(1);
    looks.entered(many + 2).await;
    looks.let_go(2);
    assert_eq!(run.await.unwrap().text, "done");
    assert_eq!((looks.most(), changes.most()), (PARALLEL_CALLS_MAX, 1));
    world.at_rest(&[&session]).await;
    world.end().await;
}
