//! Tools that break, and tools and callers that never come back.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwarden::scope::CallLimits;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};
use toolwarden_tools::tool::{DeclaredCost, Subject, Tool, ToolFuture, ToolSpec};

use crate::support::model::script;
use crate::support::tool::{Gate, custom};
use crate::support::world::{World, allowing};

/// Panics without the noise of a test's own failure.
fn broken() -> ! {
    resume_unwind(Box::new("a tool broke on purpose"))
}

/// Which of its parts a tool breaks in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Capabilities,
    Confirmation,
    Cost,
    Subject,
    CallAtOnce,
    CallAwaited,
    Drop,
}

struct Breaking {
    part: Part,
    spec: ToolSpec,
}

impl Breaking {
    fn at(&self, part: Part) {
        if self.part == part {
            broken();
        }
    }
}

struct BreaksWhenDropped;

impl Drop for BreaksWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            broken();
        }
    }
}

impl Tool for Breaking {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        self.at(Part::Capabilities);
        Capabilities::parallel_safe_read(4)
    }

    fn requires_confirmation(&self, _arguments: &Value) -> Option<String> {
        self.at(Part::Confirmation);
        None
    }

    fn cost(&self, _arguments: &Value) -> DeclaredCost {
        self.at(Part::Cost);
        DeclaredCost::default()
    }

    fn subject(&self, arguments: &Value) -> Subject {
        self.at(Part::Subject);
        Subject::Text(arguments.to_string())
    }

    fn call<'a>(&'a self, _ctx: &'a ToolContext, _arguments: Value) -> ToolFuture<'a> {
        self.at(Part::CallAtOnce);
        Box::pin(async {
            self.at(Part::CallAwaited);
            let _guard = (self.part == Part::Drop).then(|| BreaksWhenDropped);
            ToolOutcome::success("sound")
        })
    }
}

/// Whichever part of a tool breaks: the call has one ending, its siblings and its run go on.
#[tokio::test]
async fn a_tool_that_panics_ends_its_own_call_alone() {
    for part in [
        Part::Capabilities,
        Part::Confirmation,
        Part::Cost,
        Part::Subject,
        Part::CallAtOnce,
        Part::CallAwaited,
        Part::Drop,
    ] {
        let world = World::new().await;
        let spec = custom("breaking", |_ctx, _arguments| async { ToolOutcome::default() }).spec().clone();
        let calls = json!({"calls": [{"tool": "breaking"}, {"tool": "ls"}]});
        let session = world
            .session()
            .policy(allowing(&["breaking", "ls", "batch"]))
            .tool(Arc::new(Breaking { part, spec }))
            .model(script(&[calls, json!({"text": "the run went on"})]))
            .open()
            .await
            .unwrap();
        let outcome = session.run("go").await.unwrap();
        assert_eq!(outcome.text, "the run went on", "{part:?}: {:?}", outcome.status);
        assert_eq!(world.record.end_of("ls")["exit_code"], 0, "{part:?}");
        let end = world.record.end_of("breaking");
        // What is only asked for in order to run calls beside each other costs the call nothing.
        let (code, kind) = if part == Part::Capabilities { (0, Value::Null) } else { (1, json!({"type": "crashed"})) };
        assert_eq!((&end["exit_code"], &end["error_kind"]), (&json!(code), &kind), "{part:?}: {end}");
        let invocations = json!([{"tool": "breaking", "args": {}}, {"tool": "ls", "args": {}}]);
        let batch = session.governed_tool("batch", json!({ "invocations": invocations })).await.unwrap();
        assert_eq!(batch.metadata["results"][1]["success"], true, "{part:?}: {}", batch.output);
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// A tool that awaits for ever and does not listen: it has its grace and is dropped.
#[tokio::test(start_paused = true)]
async fn a_tool_that_never_returns_is_dropped_after_its_grace() {
    let world = World::new().await;
    let limits = CallLimits { timeout: Some(Duration::from_secs(60)), ..CallLimits::default() };
    let grace = limits.grace;
    let stuck = custom("stuck", |_ctx, _arguments| std::future::pending());
    let session = world.session().call_limits(limits).tool(stuck.shared()).open().await.unwrap();
    let began_at = tokio::time::Instant::now();
    let result = session.tool("stuck", json!({})).await.unwrap();
    let took = began_at.elapsed();
    assert_eq!(result.error_kind, Some(ToolErrorKind::Timeout { op: "stuck".into(), duration_ms: 60_000 }));
    assert!(took >= Duration::from_secs(60) + grace && took < Duration::from_secs(66), "{took:?}");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A tool that spins and never yields cannot be stopped by anybody; its ending says so, and everything but its own
/// thread is home. Its time is kept by its node, so it cannot escape that either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_spins_is_reported_as_abandoned() {
    let world = World::new().await;
    let (let_go, waits) = mpsc::channel::<()>();
    let (waits, ended) = (Arc::new(Mutex::new(waits)), Arc::new(Notify::new()));
    let over = Arc::clone(&ended);
    let spin = custom("spin", move |_ctx, _arguments| {
        let (waits, over) = (Arc::clone(&waits), Arc::clone(&over));
        async move {
            // As good as spinning: the thread is never given back.
            waits.lock().unwrap().recv().unwrap();
            over.notify_one();
            ToolOutcome::success("much too late")
        }
    });
    let limits = CallLimits {
        timeout: Some(Duration::from_millis(20)),
        grace: Duration::from_millis(20),
        ..CallLimits::default()
    };
    let session = world.session().call_limits(limits).tool(spin.shared()).open().await.unwrap();
    let result = session.tool("spin", json!({})).await.unwrap();
    assert_eq!(result.error_kind, Some(ToolErrorKind::Timeout { op: "spin".into(), duration_ms: 20 }));
    assert_eq!(result.metadata["abandoned"], true);
    assert!(result.output.contains("may still be running"), "{}", result.output);
    // Its leases are home although it still spins.
    world.at_rest(&[&session]).await;
    assert_eq!(session.budget().await.unwrap().spent.calls, 1);
    let_go.send(()).unwrap();
    ended.notified().await;
    // What it gives back in the end reaches nobody, and ends nothing a second time.
    assert!(session.tool("ls", json!({})).await.unwrap().is_success());
    world.at_rest(&[&session]).await;
    assert_eq!(world.record.end_of("spin")["metadata"]["abandoned"], true);
    assert!(!world.record.shown().contains("much too late"));
    world.end().await;
}

/// A caller that goes away cancels what it asked for, and nothing else.
#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_call() {
    let world = World::new().await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let call = |say: &str| {
        let (session, say) = (session.clone(), say.to_owned());
        tokio::spawn(async move { session.tool("wait", json!({ "say": say })).await.unwrap() })
    };
    let (goes, stays) = (call("goes"), call("stays"));
    gate.entered(2).await;
    goes.abort();
    gate.holds(1).await;
    gate.let_go(1);
    assert_eq!(stays.await.unwrap().output, "stays");
    world.at_rest(&[&session]).await;
    let ends = world.record.of_type("tool_end");
    let reason = json!({"type": "cancelled", "op": "gate", "reason": {"cancel": "caller_gone"}});
    assert_eq!(ends[0]["error_kind"], reason);
    assert_eq!(serde_json::to_value(CancelReason::CallerGone).unwrap(), reason["reason"]);
    world.end().await;
}

/// Whoever asks for a run and goes away cancels the run with all its calls.
#[tokio::test]
async fn a_caller_that_goes_away_cancels_its_run() {
    let world = World::new().await;
    let gate = Gate::new();
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").shared())
        .model(script(&[
            json!({"when": "first", "calls": [{"tool": "wait"}]}),
            json!({"when": "second", "text": "next"}),
        ]))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("first").await }
    });
    gate.entered(1).await;
    run.abort();
    let error = world.record.wait("error", |_| true).await;
    assert_eq!(error["kind"], "cancelled");
    assert_eq!(session.run("second").await.unwrap().text, "next");
    world.at_rest(&[&session]).await;
    world.end().await;
}
