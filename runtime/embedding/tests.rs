//! How a runtime ends things: whole sessions cancelled, killed, and what the journal has of it.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc as news;
use toolwarden_actors::journal::{Entry, JournalSink};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};
use toolwarden_tools::tool::{Lane, Needs, Tool, ToolFuture, ToolSpec};

use super::Runtime;
use crate::event::{Event, EventKind};
use crate::models::scripted::ScriptedModel;
use crate::policy::PermissionPolicy;
use crate::run_status::RunStatus;
use crate::session::CancelTarget;

/// How long a sink waits before a test that broke is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Holds the journal back at every ending until it is let go.
struct HeldBack {
    reached: news::Sender<()>,
    go: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl JournalSink<Event> for HeldBack {
    fn append(&mut self, entry: &Entry<Event>) -> std::io::Result<()> {
        if matches!(entry.event.kind, EventKind::ToolEnd(_)) {
            let _ = self.reached.try_send(());
            let _ = self.go.lock().unwrap().recv_timeout(PATIENCE);
        }
        Ok(())
    }
}

/// Counts events by what they are.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<(usize, usize)>>);

impl JournalSink<Event> for Counted {
    fn append(&mut self, entry: &Entry<Event>) -> std::io::Result<()> {
        let mut counts = self.0.lock().unwrap();
        match entry.event.kind {
            EventKind::ToolProposed { .. } => counts.0 += 1,
            EventKind::ToolEnd(_) => counts.1 += 1,
            _ => {}
        }
        Ok(())
    }
}

/// A tool that never ends by itself; a stubborn one does not hear its cancel either.
struct Endless {
    spec: ToolSpec,
    begun: news::Sender<()>,
    stubborn: bool,
}

impl Endless {
    fn tool(stubborn: bool) -> (Arc<dyn Tool>, news::Receiver<()>) {
        let (begun, begins) = news::channel(99);
        let spec = ToolSpec {
            name: "endless".into(),
            description: "never ends".into(),
            parameters: json!({"type": "object", "additionalProperties": false}),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Query,
            needs: Needs::default(),
        };
        (Arc::new(Self { spec, begun, stubborn }), begins)
    }
}

impl Tool for Endless {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::parallel_safe_read(8)
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, _arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let _ = self.begun.send(()).await;
            if self.stubborn {
                std::future::pending::<()>().await;
            }
            ToolOutcome::ended_early("endless", &ctx.cancel.cancelled().await)
        })
    }
}

// A route that is dropped while the journal has not answered has told its ending already.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_call_killed_while_it_tells_its_ending_tells_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (reached, mut reaches) = news::channel(9);
    let (go, goes) = mpsc::channel();
    let goes = Arc::new(Mutex::new(goes));
    let sink = move || Some(Box::new(HeldBack { reached: reached.clone(), go: Arc::clone(&goes) }) as _);
    let runtime = Runtime::builder().event_sink(sink).build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    let calling = tokio::spawn({
        let session = session.clone();
        async move { session.tool("ls", json!({})).await.unwrap() }
    });
    reaches.recv().await.unwrap();
    runtime.parts.tree.kill_sessions();
    let result = calling.await.unwrap();
    assert!(result.is_success(), "the result is the one that was told: {}", result.output);
    go.send(()).unwrap();
    let status = runtime.journal_status().await.unwrap();
    assert_eq!((status.open_invocations, status.refused_endings), (0, 0));
    drop(go);
    runtime.shut_down().await;
}

#[tokio::test]
async fn a_kill_leaves_no_call_without_an_ending_and_no_node() {
    let folder = tempfile::tempdir().unwrap();
    let counted = Counted::default();
    let sink = counted.clone();
    let runtime = Runtime::builder().event_sink(move || Some(Box::new(sink.clone()))).build().await.unwrap();
    let (tool, mut begins) = Endless::tool(true);
    let session = runtime.session(folder.path()).tool(tool).open().await.unwrap();
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let session = session.clone();
            tokio::spawn(async move { session.tool("endless", json!({})).await.unwrap() })
        })
        .collect();
    for _ in 0..8 {
        begins.recv().await.unwrap();
    }
    runtime.kill().await;
    for call in calls {
        let result = call.await.unwrap();
        assert!(matches!(result.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{result:?}");
    }
    assert_eq!(*counted.0.lock().unwrap(), (8, 8));
    assert_eq!(runtime.live_nodes(), 0);
}

#[tokio::test]
async fn everything_cancelled_means_runs_too_and_the_session_stays_open() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let (tool, mut begins) = Endless::tool(false);
    let script = json!({"calls": [{"tool": "endless", "arguments": {}}], "repeat": true}).to_string();
    let session = runtime
        .session(folder.path())
        .tool(tool)
        .policy(PermissionPolicy::from_toml("default = \"allow\"", "test").unwrap())
        .model(Arc::new(ScriptedModel::load(&script, "script").unwrap()))
        .open()
        .await
        .unwrap();
    assert!(!session.cancel(&CancelTarget::Everything, &CancelReason::Requested), "there is nothing yet");
    let running = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    begins.recv().await.unwrap();
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let outcome = running.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Cancelled { reason: CancelReason::Requested });
    assert_eq!(outcome.turns, 1, "the model is not asked what to do about its cancelled call");
    assert!(session.tool("ls", json!({})).await.unwrap().is_success());
    runtime.shut_down().await;
}
