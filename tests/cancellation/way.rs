//! Every kind of work against every way to end it half-way.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;
use toolwarden::prelude::CancelTarget;
use toolwarden::scope::CallLimits;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;

use crate::support::model::{Silent, script};
use crate::support::process::appear;
use crate::support::tool::{Gate, nesting};
use crate::support::world::{World, allowing};

/// The longest that anything half-way may take to end on a busy machine. The promise of case C180 is 2 s.
const END_MAX: Duration = Duration::from_secs(5);

/// A command with a child, that notes when it is told to end.
const COMMAND: &str = "sleep 600 & sleep 601";

/// What is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// One command: an invocation and a process group.
    Command,
    /// Commands in a batch, one after another: a fan-out beneath an invocation.
    Batch,
    /// Waiting calls in a batch, beside each other.
    ParallelBatch,
    /// A script whose call runs a command.
    Script,
    /// A custom tool whose nested call runs a command.
    Nested,
    /// A run with a command.
    Run,
    /// A run whose model does not answer.
    ModelTurn,
    /// A run, its task, two child runs, a command each: every kind of node at once.
    Task,
}

const WORKS: [Work; 8] = [
    Work::Command,
    Work::Batch,
    Work::ParallelBatch,
    Work::Script,
    Work::Nested,
    Work::Run,
    Work::ModelTurn,
    Work::Task,
];

/// How it is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The outermost call by its id.
    Call,
    /// Everything that runs in the session.
    Everything,
    /// Whoever waits is dropped.
    Drop,
    /// Whoever waits is a task that is aborted: case C182.
    Close,
    /// The whole runtime.
    ShutDown,
    /// The time of a call is over.
    Deadline,
}

struct UnderWay {
    world: World,
    session: Session,
    waits: JoinHandle<Option<(bool, String)>>,
    /// Marked processes and gate calls that must be gone afterwards.
    gate: Gate,
    root_tool: Option<&'static str>,
}

async fn begin(work: Work, timeout: Option<Duration>) -> UnderWay {
    let world = World::new().await;
    let gate = Gate::new();
    let silent = Silent::new();
    let bash = || json!({"tool": "bash", "arguments": {"command": COMMAND}});
    let task = json!({"tasks": [
        {"agent": "general", "description": "one", "prompt": "child one"},
        {"agent": "general", "description": "two", "prompt": "child two"},
    ]});
    let child = |when: &str| json!({"when": when, "calls": [bash()]});
    let turns = match work {
        Work::Task => vec![
            json!({"when": "go", "calls": [{"tool": "task", "arguments": task}]}),
            child("child one"),
            child("child two"),
        ],
        _ => vec![json!({"when": "go", "calls": [bash()]})],
    };
    let builder = world
        .session()
        .policy(allowing(&["bash", "batch", "task", "wait", "nest"]))
        .call_limits(CallLimits { timeout, ..CallLimits::default() })
        .tool(gate.tool("wait").reads(8).shared())
        .tool(nesting("nest").shared());
    let builder = if work == Work::ModelTurn { builder.model(silent.clone()) } else { builder.model(script(&turns)) };
    let session = builder.open().await.unwrap();
    let its_session = session.clone();
    let call = |tool: &'static str, arguments: Value| {
        tokio::spawn(async move {
            let result = its_session.tool(tool, arguments).await.ok()?;
            Some((result.is_success(), result.output.clone()))
        })
    };
    let its_session = session.clone();
    let run = || {
        tokio::spawn(async move {
            let outcome = its_session.run("go").await.ok()?;
            Some((outcome.status.is_success(), outcome.status.to_string()))
        })
    };
    let command = json!({"command": COMMAND});
    let each = |tool: &str, args: &Value| vec![json!({"tool": tool, "args": args}); 3];
    let (waits, root_tool) = match work {
        Work::Command => (call("bash", command), Some("bash")),
        Work::Batch => (call("batch", json!({"invocations": each("bash", &command)})), Some("batch")),
        Work::ParallelBatch => (call("batch", json!({"invocations": each("wait", &json!({}))})), Some("batch")),
        Work::Script => {
            let source = "async function run(ctx, { command }) { await ctx.bash(command); for (;;) {} }";
            let inputs = json!({ "command": command });
            (call("program", json!({"type": "script", "source": source, "inputs": inputs})), Some("program"))
        }
        Work::Nested => (call("nest", json!({"calls": [["bash", command], ["wait", {}]]})), Some("nest")),
        Work::Run | Work::ModelTurn | Work::Task => (run(), None),
    };
    let (commands, waiting) = match work {
        Work::Command | Work::Batch | Work::Script | Work::Run => (1, 0),
        Work::ParallelBatch => (0, 3),
        Work::Nested => (1, 1),
        Work::ModelTurn => (0, 0),
        Work::Task => (2, 0),
    };
    appear(&world.mark, "sleep 600", commands).await;
    appear(&world.mark, "sleep 601", commands).await;
    gate.holds(waiting).await;
    if work == Work::ModelTurn {
        silent.asked(1).await;
    }
    UnderWay { world, session, waits, gate, root_tool }
}

/// Ends the work this way; returns whether the session is still open, and what the waiter was told.
async fn end(under_way: &mut UnderWay, way: Way) -> Option<Option<(bool, String)>> {
    let UnderWay { world, session, waits, root_tool, .. } = under_way;
    match way {
        Way::Call => {
            let tool = root_tool.unwrap_or("bash");
            for id in world.record.calls_of(tool) {
                assert!(session.cancel(&CancelTarget::Call(id.as_str().into()), &CancelReason::Requested));
            }
        }
        Way::Everything => assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested)),
        Way::Drop => {
            waits.abort();
            assert!(waits.await.unwrap_err().is_cancelled());
            return None;
        }
        Way::Close => session.close().await,
        Way::ShutDown => world.runtime.shut_down().await,
        Way::Deadline => {}
    }
    Some(waits.await.unwrap())
}

async fn leaves_nothing(work: Work, way: Way) {
    let timeout = (way == Way::Deadline).then_some(Duration::from_millis(300));
    let mut under_way = begin(work, timeout).await;
    let began_at = Instant::now();
    let told = end(&mut under_way, way).await;
    let UnderWay { world, session, gate, .. } = under_way;
    match &told {
        // A run that is left goes on with what its calls gave: the model decides.
        Some(Some((success, text))) if way != Way::Deadline && way != Way::Call => {
            assert!(!success, "{work:?} by {way:?}: {text}");
            let reason = match way {
                Way::Everything => "cancelled on request",
                Way::Close => "the session closed",
                _ => "the runtime shuts down",
            };
            assert!(text.contains(reason), "{work:?} by {way:?}: {text}");
        }
        _ => {}
    }
    gate.holds(0).await;
    if way == Way::ShutDown {
        world.end().await;
    } else {
        let open = if way == Way::Close { vec![] } else { vec![&session] };
        world.at_rest(&open).await;
        let took = began_at.elapsed();
        assert!(took < END_MAX, "{work:?} by {way:?} took {took:?}");
        // The session takes the next call, or says that it is closed: case R01.
        let next = session.tool("ls", json!({})).await;
        assert_eq!(next.is_ok(), way != Way::Close, "{work:?} by {way:?}");
        world.end().await;
    }
}

async fn all_leave_nothing(way: Way, works: impl IntoIterator<Item = Work>) {
    for work in works {
        leaves_nothing(work, way).await;
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_leaves_nothing() {
    all_leave_nothing(Way::Call, WORKS.into_iter().filter(|work| *work != Work::ModelTurn)).await;
}

#[tokio::test]
async fn a_session_whose_work_is_cancelled_leaves_nothing() {
    all_leave_nothing(Way::Everything, WORKS).await;
}

/// Case C182: the surrounding task is aborted.
#[tokio::test]
async fn a_caller_that_is_aborted_leaves_nothing() {
    all_leave_nothing(Way::Drop, WORKS).await;
}

#[tokio::test]
async fn a_session_that_closes_leaves_nothing() {
    all_leave_nothing(Way::Close, WORKS).await;
}

#[tokio::test]
async fn a_runtime_that_shuts_down_leaves_nothing() {
    all_leave_nothing(Way::ShutDown, WORKS).await;
}

#[tokio::test]
async fn a_deadline_leaves_nothing() {
    let timed = [Work::Command, Work::Batch, Work::ParallelBatch, Work::Script, Work::Nested];
    all_leave_nothing(Way::Deadline, timed).await;
}
