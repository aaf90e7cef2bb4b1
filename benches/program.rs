//! Scripts: a cold start against `node -e`, governed calls one after another and beside each other, and how late an
//! endless loop is stopped.
//!
//! Every call of a script is a call of the host's session: it passes the route, is in the journal and carries evidence.
//! Each figure is printed with what it is to be; nothing is asserted, for a busy machine would fail it.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench runs node, and measures time")]

#[expect(dead_code, reason = "nothing is measured by turns here")]
mod pairing;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwarden::prelude::*;

use crate::pairing::drive;

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Cold starts that are measured.
const STARTS: usize = 200;
/// Starts of node that are measured.
const NODE_STARTS: usize = 20;
/// Calls of one script.
const CALLS: usize = 8_000;
/// Hostile loops that are measured.
const LOOPS: usize = 20;
/// What a hostile loop is given, in milliseconds.
const LOOP_MS: u64 = 100;

/// Changes nothing and gives nothing: what is left is the route.
struct Nothing(ToolSpec);

impl Tool for Nothing {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn capabilities(&self, _arguments: &Value) -> toolwarden_tools::declaration::Capabilities {
        toolwarden_tools::declaration::Capabilities::parallel_safe_read(16)
    }

    fn call<'a>(&'a self, _ctx: &'a toolwarden_tools::context::ToolContext, _arguments: Value) -> ToolFuture<'a> {
        Box::pin(async { ToolOutcome::success("") })
    }
}

fn nothing() -> std::sync::Arc<dyn Tool> {
    std::sync::Arc::new(Nothing(ToolSpec {
        name: "nothing".into(),
        description: "does nothing".to_owned(),
        parameters: json!({"type": "object"}),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Query,
        needs: Needs::default(),
    }))
}

async fn script(session: &Session, body: &str, limits: Value) -> (Duration, bool) {
    let source = format!("async function run(ctx) {{ {body} }}");
    let began_at = Instant::now();
    let result = session
        .tool("program", json!({"type": "script", "source": source, "limits": limits}))
        .await
        .expect("an open session");
    (began_at.elapsed(), result.is_success())
}

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

fn node() -> Option<Duration> {
    let one = || {
        let began_at = Instant::now();
        let ran = std::process::Command::new("node").args(["-e", "1"]).status();
        ran.is_ok_and(|status| status.success()).then(|| began_at.elapsed())
    };
    (0..NODE_STARTS).map(|_| one()).collect::<Option<Vec<_>>>().map(median)
}

fn main() {
    let runtime = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_owned();
    let session = drive(&runtime, async move {
        let runtime = Runtime::builder().build().await.expect("a runtime");
        runtime.session(root).tool(nothing()).open().await.expect("a session")
    });
    let (starts, one_by_one, beside, late) = drive(&runtime, async move {
        let mut starts = Vec::new();
        for _ in 0..STARTS {
            starts.push(script(&session, "return 1", json!({})).await.0);
        }
        let limits = json!({"maxToolCalls": CALLS, "timeoutMs": 600_000});
        let each = format!("for (let i = 0; i < {CALLS}; i++) await ctx.tool('nothing', {{}}); return 1");
        let one_by_one = script(&session, &each, limits.clone()).await;
        let all =
            format!("await Promise.all(Array.from({{length: {CALLS}}}, () => ctx.tool('nothing', {{}}))); return 1");
        let beside = script(&session, &all, limits).await;
        assert!(one_by_one.1 && beside.1, "a script failed");
        let mut late = Vec::new();
        for _ in 0..LOOPS {
            let (took, success) = script(&session, "for (;;) {}", json!({"timeoutMs": LOOP_MS})).await;
            assert!(!success, "a loop ended");
            late.push(took.saturating_sub(Duration::from_millis(LOOP_MS)));
        }
        (median(starts), one_by_one.0, beside.0, late)
    });
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let rate = |span: Duration| CALLS as f64 / span.as_secs_f64();
    println!("cold start, median of {STARTS}: {starts:?} (to be under 3 ms)");
    match node() {
        Some(node) => {
            println!("node -e, median: {node:?}, {:.1}x (to be 10x)", node.as_secs_f64() / starts.as_secs_f64());
        }
        None => println!("node is not there to be compared with"),
    }
    println!("governed calls one after another: {:.0} a second (to be 8,000)", rate(one_by_one));
    println!("governed calls through Promise.all: {:.0} a second (to be 25,000)", rate(beside));
    let worst = late.iter().max().copied().unwrap_or_default();
    println!("a loop after its deadline, median {:?}, worst {worst:?} (to be within 20 ms)", median(late));
}
