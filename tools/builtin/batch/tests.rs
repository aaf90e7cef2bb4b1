//! Batches over a twin of the port that calls tools: it records what was called when, and how many at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use super::BatchTool;
use crate::builtin::testing::{call, context, faults};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::declaration::{Capabilities, ToolDefinition};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::Tool as _;

/// What the twin saw.
#[derive(Debug, Default)]
struct Record {
    started: Vec<String>,
    finished: Vec<String>,
    widths: Vec<usize>,
    running: usize,
    most: usize,
}

/// Calls of the twin by tool: `read` and `scan` only read (at most 8 and 3 beside each other), `write` changes
/// something, `fail` fails, `hang` never ends, `patient` ends when it is cancelled, `lose` loses its result.
/// `ms` in the arguments is how long a call takes in paused time.
#[derive(Default)]
struct Twin {
    record: Arc<Mutex<Record>>,
    cancel: Cancellation,
}

struct Running(Arc<Mutex<Record>>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().unwrap().running -= 1;
    }
}

impl Twin {
    async fn run(&self, call: ToolCall) -> ToolOutcome {
        let text = call.arguments["text"].to_string();
        {
            let mut record = self.record.lock().unwrap();
            record.started.push(text.clone());
            record.running += 1;
            record.most = record.most.max(record.running);
        }
        let _running = Running(Arc::clone(&self.record));
        tokio::time::sleep(Duration::from_millis(call.arguments["ms"].as_u64().unwrap_or(0))).await;
        let outcome = match call.tool.as_str() {
            "read" | "scan" | "write" => match &call.arguments["text"] {
                Value::String(plain) => ToolOutcome::success(plain.clone()),
                other => ToolOutcome::success(other.to_string()),
            },
            "hang" => std::future::pending().await,
            "patient" => ToolOutcome::ended_early("patient", &self.cancel.cancelled().await),
            _ => ToolOutcome::failure("it broke"),
        };
        self.record.lock().unwrap().finished.push(text);
        outcome.with("mark", "m")
    }
}

impl Invoke for Twin {
    fn invoke_all(&self, calls: Vec<ToolCall>, width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
        self.record.lock().unwrap().widths.push(width);
        let kept = calls.len() - calls.iter().filter(|call| call.tool.as_str() == "lose").count();
        Box::pin(async move {
            let ended = stream::iter(calls.into_iter().enumerate())
                .map(|(index, call)| async move { (index, self.run(call).await) })
                .buffer_unordered(width)
                .collect::<BTreeMap<_, _>>();
            ended.await.into_values().take(kept).collect()
        })
    }

    fn capabilities(&self, call: &ToolCall) -> Option<Capabilities> {
        match call.tool.as_str() {
            "read" => Some(Capabilities::parallel_safe_read(8)),
            "scan" => Some(Capabilities::read_only_paginated(3)),
            "unknown" => None,
            _ => Some(Capabilities::conservative()),
        }
    }

    fn available(&self) -> Vec<ToolDefinition> {
        Vec::new()
    }
}

/// A context whose calls go to a twin.
fn twin() -> (ToolContext, Arc<Mutex<Record>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut ctx = context(folder.path());
    let twin = Twin { cancel: ctx.cancel.clone(), ..Twin::default() };
    let record = Arc::clone(&twin.record);
    ctx.invoke = Some(Arc::new(twin));
    (ctx, record)
}

fn item(tool: &str, text: &str, ms: u64) -> Value {
    json!({"tool": tool, "args": {"text": text, "ms": ms}})
}

fn in_step(step: u32, mut item: Value) -> Value {
    item["step"] = json!(step);
    item
}

fn headings(output: &str) -> Vec<&str> {
    output.lines().filter(|line| line.starts_with("--- [")).collect()
}

async fn batch(ctx: &ToolContext, invocations: Value) -> ToolOutcome {
    call(&BatchTool::new(), ctx, json!({"invocations": invocations})).await
}

// Case C179: one failure takes nothing from the others, and order is the order asked.
#[tokio::test(start_paused = true)]
async fn results_stand_in_the_order_asked_whichever_finished_first() {
    let (ctx, record) = twin();
    let done =
        batch(&ctx, json!([item("read", "slow", 30), item("read", "middle", 20), item("read", "fast", 10)])).await;
    assert_eq!(record.lock().unwrap().finished, ["\"fast\"", "\"middle\"", "\"slow\""]);
    let expected = "--- [1 / step 1: read] ---\nslow\n\n--- [2 / step 1: read] ---\nmiddle\n\n\
                    --- [3 / step 1: read] ---\nfast\n";
    assert_eq!(done.output, expected);
    assert_eq!(done.metadata["status"], "complete");

    let (ctx, record) = twin();
    let done = batch(&ctx, json!([item("read", "ok", 0), item("fail", "x", 0), item("read", "late", 50)])).await;
    assert!(done.is_success() && done.error.is_none());
    assert_eq!(headings(&done.output).len(), 3);
    assert!(done.output.contains("ERROR: it broke") && done.output.contains("late"), "{}", done.output);
    assert_eq!(done.metadata["failed_indices"], json!([1]));
    let success: Vec<_> = done.metadata["results"].as_array().unwrap().iter().map(|one| &one["success"]).collect();
    assert_eq!(success, [true, false, true]);
    assert_eq!(record.lock().unwrap().most, 1, "a call that may change something runs alone");
}

#[tokio::test(start_paused = true)]
async fn only_reads_run_beside_each_other_and_the_narrowest_sets_the_width() {
    let widths = [
        (json!([item("read", "a", 5), item("read", "b", 5), item("read", "c", 5)]), 8, 3, "parallel"),
        (
            json!([item("read", "a", 5), item("scan", "b", 5), item("scan", "c", 5), item("scan", "d", 5)]),
            3,
            3,
            "parallel",
        ),
        (json!([item("read", "a", 5), item("write", "b", 5), item("read", "c", 5)]), 1, 1, "serial"),
        (json!([item("read", "a", 5), item("unknown", "b", 5)]), 1, 1, "serial"),
    ];
    for (invocations, width, most, mode) in widths {
        let (ctx, record) = twin();
        let done = batch(&ctx, invocations).await;
        let record = record.lock().unwrap();
        assert_eq!((&record.widths, record.most), (&vec![width], most));
        assert_eq!(done.metadata["execution_mode"], mode);
        assert_eq!(done.metadata["applied_concurrency"], width);
        assert_eq!(done.metadata["requested_concurrency"], 8);
        let started = &record.started;
        assert!(started.is_sorted(), "serial calls start in order: {started:?}");
    }
    let (ctx, record) = twin();
    let arguments = json!({"max_concurrency": 2, "invocations": [item("read", "a", 5), item("read", "b", 5), item("read", "c", 5)]});
    let done = call(&BatchTool::new(), &ctx, arguments).await;
    assert_eq!((record.lock().unwrap().most, &done.metadata["requested_concurrency"]), (2, &json!(2)));
}

#[tokio::test(start_paused = true)]
async fn steps_run_in_ascending_order_and_pass_results_on() {
    let (ctx, record) = twin();
    let invocations = json!([
        in_step(5, json!({"tool": "read", "args": {"text": {"$ref": "found.output.names.0"}}})),
        in_step(2, json!({"tool": "read", "id": "found", "args": {"text": "{\"names\": [\"x\"]}"}})),
        in_step(5, json!({"tool": "read", "args": {"text": {"$ref": "gone.output"}}})),
        in_step(2, item("read", "beside", 0)),
        in_step(7, json!({"tool": "read", "args": {"$ref": "found.metadata"}})),
    ]);
    let done = batch(&ctx, invocations).await;
    let record = record.lock().unwrap();
    assert_eq!(record.started, [r#""{\"names\": [\"x\"]}""#, "\"beside\"", "\"x\"", "null"]);
    let titles = headings(&done.output);
    assert_eq!(titles[..2], ["--- [1 / step 5: read] ---", "--- [2 / step 2: read · found] ---"]);
    assert!(done.output.starts_with("--- [1 / step 5: read] ---\nx\n"), "{}", done.output);
    assert!(done.output.contains("ids there are: found"), "{}", done.output);
    let facts = &done.metadata;
    assert_eq!(
        (&facts["execution_mode"], &facts["steps"], &facts["highest_step"]),
        (&json!("staged"), &json!(3), &json!(7))
    );
    assert_eq!((&facts["status"], &facts["failed_indices"]), (&json!("partial_failure"), &json!([2])));
    assert_eq!(facts["results"][2]["error_kind"]["type"], "invalid_argument");
    assert_eq!(facts["results"][1]["metadata"], json!({"mark": "m"}));
}

#[tokio::test]
async fn the_facts_are_exactly_those_that_are_documented() {
    let (ctx, _) = twin();
    let done = batch(&ctx, json!([item("read", "a", 0)])).await;
    let keys: Vec<&String> = done.metadata.keys().collect();
    let documented = [
        "status",
        "requested_concurrency",
        "applied_concurrency",
        "execution_mode",
        "steps",
        "highest_step",
        "total_count",
        "success_count",
        "failure_count",
        "failed_indices",
        "binding_errors",
        "results",
    ];
    assert_eq!(keys, documented);
    let expected = json!({
        "index": 0, "step": 1, "id": null, "tool": "read", "success": true, "exit_code": 0, "output_bytes": 1,
        "error_kind": null, "metadata": {"mark": "m"},
    });
    assert_eq!(done.metadata["results"][0], expected);
}

#[tokio::test]
async fn a_batch_that_cannot_run_runs_nothing() {
    let named = |id: &str| json!({"tool": "read", "id": id, "args": {}});
    let refused = [
        (json!([item("read", "a", 0), item("batch", "b", 0)]), "invocations[1] is itself a batch"),
        (json!([named("a"), named("b"), named("a")]), "invocations[0] has already"),
        (json!([named(" ")]), "empty id"),
        (json!([named("")]), "empty id"),
    ];
    for (invocations, expected) in refused {
        let (ctx, record) = twin();
        let done = batch(&ctx, invocations).await;
        assert!(matches!(done.error, Some(ToolErrorKind::InvalidArgument { .. })), "{done:?}");
        assert!(done.output.contains(expected), "{}", done.output);
        assert!(record.lock().unwrap().started.is_empty());
    }
    let (mut ctx, _) = twin();
    // What the schema refuses first is refused here too.
    for wrong in
        [json!({"invocations": []}), json!({"invocations": [{"tool": "read", "args": {}, "step": 99}]}), json!(7)]
    {
        let done = BatchTool::new().call(&ctx, wrong).await;
        assert!(matches!(done.error, Some(ToolErrorKind::InvalidArgument { .. })), "{done:?}");
    }
    ctx.invoke = None;
    let done = batch(&ctx, json!([item("read", "a", 0)])).await;
    assert!(matches!(done.error, Some(ToolErrorKind::Unsupported { .. })));
}

#[tokio::test]
async fn nothing_but_failures_is_a_failure_and_a_lost_result_is_one() {
    let (ctx, _) = twin();
    let done = batch(&ctx, json!([item("fail", "a", 0), item("fail", "b", 0)])).await;
    assert_eq!(done.error, Some(ToolErrorKind::PartialFailure { failed: 2, total: 2 }));
    assert_eq!(done.metadata["status"], "failed");

    let (ctx, _) = twin();
    let done = batch(&ctx, json!([item("read", "a", 0), item("lose", "b", 0)])).await;
    assert_eq!(done.metadata["results"][1]["error_kind"]["type"], "crashed");
    assert_eq!(done.metadata["success_count"], 1);
}

/// Runs a batch and cancels it after 5 ms of paused time.
async fn cancelled(ctx: &ToolContext, invocations: Value) -> ToolOutcome {
    let cancel = ctx.cancel.clone();
    let stop = async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        cancel.cancel(CancelReason::Requested);
    };
    tokio::join!(batch(ctx, invocations), stop).0
}

// Case C180: the cancel reaches what runs, and what waits never starts.
#[tokio::test(start_paused = true)]
async fn a_cancel_keeps_what_is_done_and_starts_nothing_more() {
    let (ctx, record) = twin();
    let invocations =
        json!([item("read", "done", 0), item("patient", "ends when told", 0), in_step(2, item("read", "never", 0)),]);
    let begun_at = tokio::time::Instant::now();
    let done = cancelled(&ctx, invocations).await;
    assert_eq!(begun_at.elapsed(), Duration::from_millis(5), "nothing waits for a grace that is not needed");
    assert!(matches!(done.error, Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::Requested), .. })));
    assert!(done.output.contains("done") && done.output.contains("not started: read"), "{}", done.output);
    assert_eq!(record.lock().unwrap().started, ["\"done\"", "\"ends when told\""]);
    let kinds: Vec<&Value> =
        done.metadata["results"].as_array().unwrap().iter().map(|one| &one["error_kind"]["type"]).collect();
    assert_eq!(kinds, [&Value::Null, &json!("cancelled"), &json!("cancelled")]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_does_not_keep_a_cancelled_batch() {
    let (ctx, record) = twin();
    let invocations = json!([in_step(1, item("read", "done", 0)), in_step(2, item("hang", "hangs", 0))]);
    let done = cancelled(&ctx, invocations).await;
    assert!(matches!(done.error, Some(ToolErrorKind::Cancelled { .. })));
    assert_eq!(done.metadata["results"][0]["success"], true);
    assert_eq!(done.metadata["results"][1]["error_kind"]["type"], "cancelled");
    assert_eq!(record.lock().unwrap().running, 0, "giving up ends the call");
}

#[tokio::test(start_paused = true)]
async fn a_dropped_batch_ends_its_calls() {
    let (ctx, record) = twin();
    let waited = tokio::time::timeout(Duration::from_millis(5), batch(&ctx, json!([item("hang", "hangs", 0)]))).await;
    assert!(waited.is_err());
    let record = record.lock().unwrap();
    assert_eq!((record.started.len(), record.running), (1, 0));
}

#[test]
fn the_schema_takes_what_is_documented_and_holds_no_keyword_that_providers_refuse() {
    let tool = BatchTool::new();
    let mut rest = vec![&tool.spec().parameters];
    while let Some(value) = rest.pop() {
        match value {
            Value::Object(fields) => {
                assert!(!fields.contains_key("examples") && !fields.contains_key("$ref"));
                rest.extend(fields.values());
            }
            Value::Array(items) => rest.extend(items),
            _ => {}
        }
    }
    let many = Value::Array(vec![item("read", "a", 0); 33]);
    for wrong in [
        json!({"invocations": []}),
        json!({"invocations": many}),
        json!({"invocations": [{"tool": "read"}]}),
        json!({"invocations": [{"tool": "read", "args": {}, "step": 33}]}),
        json!({"invocations": [{"tool": "read", "args": {}}], "max_concurrency": 17}),
        json!({"invocations": [{"tool": "read", "args": {}}], "other": 1}),
    ] {
        assert!(!faults(&tool, &wrong).is_empty());
    }
}
