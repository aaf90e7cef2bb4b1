//! Deep trees: how many and how deep, every limit at one, fairness, and how far a cancel reaches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::models::{Message, Model, ModelError, ModelRequest, ModelTurn, TurnSink};
use toolwarden::prelude::CancelTarget;
use toolwarden::run_status::RunStatus;
use toolwarden::scope::CallLimits;
use toolwarden::task_limits::TaskLimits;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::ToolErrorKind;
use toolwarden_tools::tool::Lane;

use crate::support::model::{Answering, Silent, script};
use crate::support::process::appear;
use crate::support::tool::Gate;
use crate::support::until;
use crate::support::world::{World, allowing, narrow_lanes};

fn task(prompt: &str) -> Value {
    json!({"agent": "general", "description": "a task", "prompt": prompt})
}

fn calling(prompt: &str, calls: &Value) -> [Value; 2] {
    [json!({"when": prompt, "calls": calls}), json!({"when": prompt, "text": "done"})]
}

/// Case C175: one permit a lane, one child at a time, one level below the run, one task in the background: all of it
/// ends, and what is too much is told.
#[tokio::test]
async fn everything_ends_where_every_limit_is_one() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let read = json!({"tool": "read", "args": {"file_path": "file"}});
    let batch = json!({"tool": "batch", "arguments": {"invocations": [read, read, read]}});
    let later = {
        let mut later = task("part later");
        later["background"] = json!(true);
        json!({"tool": "task", "arguments": later})
    };
    let both = json!([{"tool": "task", "arguments": {"tasks": [task("part one"), task("part two")]}}, later]);
    let turns: Vec<Value> = calling("begin", &both)
        .into_iter()
        .chain(calling("part one", &json!([batch])))
        .chain(calling("part two", &json!([batch])))
        .chain(calling("part later", &json!([batch])))
        .collect();
    let limits = TaskLimits { total_max: 3, background_max: 1, width: 1 };
    let open = async || {
        let builder = world.session().policy(allowing(&["task", "batch", "read"])).model(script(&turns));
        let calls = CallLimits { depth_max: 2, ..CallLimits::default() };
        builder.task_limits(limits).call_limits(calls).open().await.unwrap()
    };
    let (one, other) = (open().await, open().await);
    let (first, second) = tokio::join!(one.run("begin"), other.run("begin"));
    for (session, outcome) in [(&one, first.unwrap()), (&other, second.unwrap())] {
        assert_eq!((outcome.status, outcome.text.as_str()), (RunStatus::Completed, "done"));
        for task in session.subagent_tasks() {
            session.subagent_result(&task.task_id).await.unwrap();
        }
    }
    assert_eq!(world.record.of_type("subagent_end").iter().filter(|end| end["success"] == true).count(), 6);
    assert!(world.record.of_type("tool_end").iter().all(|end| end["exit_code"] == 0), "{}", world.record.shown());
    world.at_rest(&[&one, &other]).await;
    world.end().await;
}

/// So many child runs over all levels and no more; the next one is told how many are left.
#[tokio::test]
async fn child_runs_of_all_levels_count_together() {
    let world = World::new().await;
    let turns: Vec<Value> =
        calling("upper", &json!([{"tool": "task", "arguments": {"tasks": [task("lower"), task("lower")]}}]))
            .into_iter()
            .chain([json!({"when": "lower", "text": "down here"})])
            .collect();
    let builder = world.session().policy(allowing(&["task"])).model(script(&turns));
    let limits = TaskLimits { total_max: 4, ..TaskLimits::default() };
    let session = builder.task_limits(limits).open().await.unwrap();
    // One above and two below it.
    assert!(session.tool("task", task("upper")).await.unwrap().is_success());
    assert_eq!(session.subagent_tasks().len(), 3);
    let refused = session.tool("task", json!({"tasks": [task("lower"), task("lower")]})).await.unwrap();
    assert_eq!(refused.error_kind, Some(ToolErrorKind::BudgetExhausted { resource: "child_runs".into() }));
    assert!(refused.output.contains("4 child runs") && refused.output.contains("1 of them"), "{}", refused.output);
    assert_eq!(world.record.of_type("subagent_start").len(), 3, "all or none");
    assert!(session.tool("task", task("lower")).await.unwrap().is_success());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A session that floods every lane delays mostly itself: another one's few calls come through between its many.
#[tokio::test]
async fn a_flood_of_children_does_not_starve_another_session() {
    const CHILDREN: usize = 32;
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    // How many turns of the flood the model has taken when the other session's turns come.
    let (flood, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
    let (counted, noted) = (Arc::clone(&flood), Arc::clone(&seen));
    let gate = Gate::new();
    let model = move |request: &ModelRequest| -> Result<ModelTurn, ModelError> {
        if request.messages.len() > 1 {
            return Ok(ModelTurn::answer("done"));
        }
        let Message::User { text } = &request.messages[0] else {
            return Ok(ModelTurn::answer("?"));
        };
        match text.as_str() {
            "few" => noted.store(counted.load(Ordering::SeqCst), Ordering::SeqCst),
            _ => drop(counted.fetch_add(1, Ordering::SeqCst)),
        }
        let call = |n: usize| toolwarden::models::ModelCall {
            id: format!("c{n}"),
            tool: "wait".into(),
            arguments: toolwarden::models::CallArguments::from_value(json!({ "n": n })),
        };
        Ok(ModelTurn::calling("", (0..4).map(call).collect()))
    };
    let model = Arc::new(Answering(model));
    let open = async || {
        let builder = world.session().policy(allowing(&["wait"])).tool(gate.tool("wait").shared());
        let limits = TaskLimits { width: CHILDREN, ..TaskLimits::default() };
        builder.task_limits(limits).model(model.clone()).open().await.unwrap()
    };
    let (many, few) = (open().await, open().await);
    let flooding = tokio::spawn({
        let many = many.clone();
        async move { many.tool("task", json!({"tasks": vec![task("many"); CHILDREN]})).await.unwrap() }
    });
    // One call holds the only permit, and many wait for it.
    gate.entered(1).await;
    let lane = world.runtime.lanes().get(&Lane::Execute).unwrap();
    until("a line", async || (lane.status().await.unwrap().waiting >= 6).then_some(())).await;
    let asking = tokio::spawn({
        let few = few.clone();
        async move { few.run("few").await.unwrap() }
    });
    let answered = async {
        let mut let_go = 0;
        let outcome = loop {
            if asking.is_finished() {
                break asking.await.unwrap();
            }
            let_go += 1;
            gate.let_go(1);
            gate.entered(let_go + 1).await;
        };
        (outcome, let_go)
    };
    let (outcome, let_go) = answered.await;
    assert_eq!(outcome.status, RunStatus::Completed);
    // Four calls of its own, and no more than about as many of the flood between them.
    assert!(let_go <= 16, "{let_go} calls came through before the few were done");
    gate.let_go(4 * CHILDREN + 8);
    assert!(flooding.await.unwrap().is_success());
    world.at_rest(&[&many, &few]).await;
    world.end().await;
}

/// A chain of delegations of this depth, with `last` at its end.
fn chain(depth: usize, last: &Value) -> Vec<Value> {
    let name = |level: usize| format!("level-{level}");
    let mut turns: Vec<Value> = (0..depth)
        .map(|level| json!({"when": name(level), "calls": [{"tool": "task", "arguments": task(&name(level + 1))}]}))
        .collect();
    turns.push(json!({"when": name(depth), "calls": last}));
    turns
}

const DEPTH: usize = 3;

async fn chained(world: &World, turns: &[Value], rules: &[&str]) -> toolwarden::session::Session {
    world.session().policy(allowing(rules)).model(script(turns)).open().await.unwrap()
}

/// Cancels a run three levels above its last call, and checks that every level says so.
async fn cancel_all(world: &World, session: &toolwarden::session::Session, run: tokio::task::JoinHandle<RunStatus>) {
    let began_at = tokio::time::Instant::now();
    assert!(session.cancel(&CancelTarget::Run, &CancelReason::Requested));
    assert_eq!(run.await.unwrap(), RunStatus::Cancelled { reason: CancelReason::Requested });
    assert!(began_at.elapsed() < std::time::Duration::from_secs(10), "{:?}", began_at.elapsed());
    let ends = world.record.of_type("subagent_end");
    assert_eq!(ends.len(), DEPTH, "{}", world.record.shown());
    assert!(ends.iter().all(|end| end["success"] == false));
    assert!(session.pending_subagent_tasks().is_empty());
}

fn go(session: &toolwarden::session::Session) -> tokio::task::JoinHandle<RunStatus> {
    let session = session.clone();
    tokio::spawn(async move { session.run("level-0").await.unwrap().status })
}

/// Case C180: at any depth a cancel reaches a process.
#[tokio::test]
async fn a_cancel_reaches_a_process_at_any_depth() {
    let world = World::new().await;
    let turns = chain(DEPTH, &json!([{"tool": "bash", "arguments": {"command": "sleep 600"}}]));
    let session = chained(&world, &turns, &["task", "bash"]).await;
    let run = go(&session);
    appear(&world.mark, "sleep 600", 1).await;
    cancel_all(&world, &session, run).await;
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A script, with a call of its own under way.
#[tokio::test]
async fn a_cancel_reaches_a_script_at_any_depth() {
    let world = World::new().await;
    let source = "async function run(ctx) { for (;;) { await ctx.bash('sleep 600'); } }";
    let program = json!([{"tool": "program", "arguments": {"type": "script", "source": source}}]);
    let session = chained(&world, &chain(DEPTH, &program), &["task", "bash", "program"]).await;
    let run = go(&session);
    appear(&world.mark, "sleep 600", 1).await;
    cancel_all(&world, &session, run).await;
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A loop that never yields.
#[tokio::test]
async fn a_cancel_reaches_a_script_that_spins_at_any_depth() {
    let world = World::new().await;
    let source = "async function run(ctx) { await ctx.ls({path: '.'}); for (;;) {} }";
    let program = json!([{"tool": "program", "arguments": {"type": "script", "source": source}}]);
    let session = chained(&world, &chain(DEPTH, &program), &["task", "ls", "program"]).await;
    let run = go(&session);
    world.record.wait("tool_end", |end| end["name"] == "ls").await;
    cancel_all(&world, &session, run).await;
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A call that waits in the line of a lane: it never starts.
#[tokio::test]
async fn a_cancel_reaches_the_line_at_any_depth() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    let gate = Gate::new();
    let turns = chain(DEPTH, &json!([{"tool": "bash", "arguments": {"command": "touch made"}}]));
    let session = chained(&world, &turns, &["task", "bash"]).await;
    let other = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let holds = tokio::spawn({
        let other = other.clone();
        async move { other.tool("wait", json!({})).await.unwrap() }
    });
    gate.entered(1).await;
    let run = go(&session);
    let lane = world.runtime.lanes().get(&Lane::Execute).unwrap();
    until("the call in the line", async || (lane.status().await.unwrap().waiting == 1).then_some(())).await;
    cancel_all(&world, &session, run).await;
    gate.let_go(1);
    assert!(holds.await.unwrap().is_success());
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session, &other]).await;
    world.end().await;
}

/// Answers by a chain of delegations, and at its end as another model does.
struct Chained {
    chain: Arc<ScriptedModel>,
    last: Arc<dyn Model>,
}

impl Chained {
    fn ending_with(last: Arc<dyn Model>) -> Arc<Self> {
        Arc::new(Self { chain: script(&chain(DEPTH, &json!([]))), last })
    }
}

impl Model for Chained {
    fn name(&self) -> &'static str {
        "chained"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        match &request.messages[0] {
            Message::User { text } if *text == format!("level-{DEPTH}") => self.last.turn(request, sink),
            _ => self.chain.turn(request, sink),
        }
    }
}

/// A model that never answers: its stream is given up.
#[tokio::test]
async fn a_cancel_reaches_the_model_at_any_depth() {
    let world = World::new().await;
    let silent = Silent::new();
    let model = Chained::ending_with(silent.clone());
    let session = world.session().policy(allowing(&["task"])).model(model).open().await.unwrap();
    let run = go(&session);
    silent.asked(1).await;
    cancel_all(&world, &session, run).await;
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A wait for another attempt, an hour long.
#[tokio::test]
async fn a_cancel_reaches_a_wait_for_another_attempt_at_any_depth() {
    let asked = Arc::new(AtomicUsize::new(0));
    let hour = std::time::Duration::from_secs(3600);
    let retries = toolwarden::models::gate::RetryPolicy {
        attempts_max: 5,
        wait_min: hour,
        wait_max: hour,
        ..toolwarden::models::gate::RetryPolicy::default()
    };
    let world = World::with(|builder| builder.model_retries(retries)).await;
    let counted = Arc::clone(&asked);
    let dead = Answering(move |_: &ModelRequest| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(ModelError::Unreachable { message: "the line is dead".to_owned() })
    });
    let model = Chained::ending_with(Arc::new(dead));
    let session = world.session().policy(allowing(&["task"])).model(model).open().await.unwrap();
    let run = go(&session);
    until("the first attempt", async || (asked.load(Ordering::SeqCst) == 1).then_some(())).await;
    // It waits, and holds no permit for that.
    let lane = world.runtime.lanes().get(&Lane::Model).unwrap();
    until("the permit back", async || (lane.status().await.unwrap().in_use == 0).then_some(())).await;
    cancel_all(&world, &session, run).await;
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    world.at_rest(&[&session]).await;
    world.end().await;
}
