//! A workflow of 1,000 steps: from its log to its state (the projection), held against reading the log; and a whole
//! call of `dynamic_workflow` that makes the run, and one that finds it done and asks the script again for all of it.
//!
//! Both shapes are measured: steps beside each other, 50 a decision, and one step a decision. The reference system
//! publishes 173 ms for its projection of the same size on its own machine, so that number is only for orientation;
//! the ratio to reading the file is what can be compared. Nothing is asserted about time.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "the bench reads real logs, and measures time")]

#[expect(dead_code, reason = "nothing is measured by turns here")]
mod pairing;

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;
use toolwarden::prelude::*;
use toolwarden_tools::workflow::log;
use toolwarden_tools::workflow::state::RunState;

use crate::pairing::{drive, verdict};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Steps of a run.
const STEPS: usize = 1_000;
/// Steps of one decision in the wide shape.
const WIDE: usize = 50;
/// How often the projection is measured.
const TURNS: usize = 50;
/// How often a call that finds its run done is measured.
const CALLS: usize = 3;
/// What the reference system publishes for its projection, on its own machine.
const PUBLISHED: Duration = Duration::from_millis(173);
/// How many times faster than that the projection is to be.
const FASTER: u32 = 5;

const SOURCE: &str = "async function run(ctx, inputs) {
  if (inputs.kind === 'step') return { done: inputs.step_id };
  const { total, wide } = inputs.input, done = Object.keys(inputs.steps).length;
  if (done >= total) return { type: 'complete', output: done };
  const steps = Array.from({ length: wide }, (_, n) => ({ step_id: 's' + (done + n), step_name: 'work', input: { n } }));
  return { type: 'schedule_steps', steps };
}";

fn median(mut spans: Vec<Duration>) -> Duration {
    spans.sort_unstable();
    spans[spans.len() / 2]
}

fn each<T>(mut work: impl FnMut() -> T) -> Duration {
    let one = |_| {
        let began_at = Instant::now();
        black_box(work());
        began_at.elapsed()
    };
    median((0..TURNS).map(one).collect())
}

async fn call(session: &Session, wide: usize) -> Duration {
    let asked = json!({
        "source": SOURCE, "run_id": format!("wide-{wide}"), "input": {"total": STEPS, "wide": wide},
        "limits": {"maxConcurrentSteps": 32},
    });
    let began_at = Instant::now();
    let result = session.tool("dynamic_workflow", asked).await.expect("an open session");
    assert!(result.is_success(), "{}", result.output);
    began_at.elapsed()
}

fn project(path: &Path, run_id: &str) -> RunState {
    let bytes = std::fs::read(path).expect("a log");
    RunState::of(&log::read(run_id, &bytes).expect("a whole log").0)
}

fn main() {
    let runtime = pairing::runtime();
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_owned();
    let session = drive(&runtime, async move {
        let runtime = Runtime::builder().build().await.expect("a runtime");
        runtime.session(root).open().await.expect("a session")
    });
    for wide in [WIDE, 1] {
        let its_session = session.clone();
        let (made, again) = drive(&runtime, async move {
            let made = call(&its_session, wide).await;
            let mut again = Vec::new();
            for _ in 0..CALLS {
                again.push(call(&its_session, wide).await);
            }
            (made, median(again))
        });
        let run_id = format!("wide-{wide}");
        let path = folder.path().join(format!(".a3s/workflow/{run_id}.jsonl"));
        let bytes = std::fs::read(&path).expect("a log");
        let state = project(&path, &run_id);
        assert_eq!((state.steps.len(), state.status()), (STEPS, "completed"));
        let reading = each(|| std::fs::read(&path).expect("a log"));
        let parsing = each(|| log::read(&run_id, &std::fs::read(&path).expect("a log")).expect("a whole log"));
        let projecting = each(|| project(&path, &run_id));
        let ratio = |span: Duration| span.as_secs_f64() / reading.as_secs_f64();
        println!("workflow, {STEPS} steps, {wide} a decision: {} records, {} bytes", state.last_sequence, bytes.len());
        println!("  made: {made:.1?}; found done, and asked again for every decision: {again:.1?}");
        println!("  reading the bytes {reading:.1?}; into records {parsing:.1?}, {:.1}x", ratio(parsing));
        println!(
            "  projection {projecting:.1?}, {:.1}x; at most {:?}: {}",
            ratio(projecting),
            PUBLISHED / FASTER,
            verdict(projecting <= PUBLISHED / FASTER)
        );
    }
}
