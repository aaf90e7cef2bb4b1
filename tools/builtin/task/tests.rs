//! Tasks over a twin of the port that starts child runs: it records what was asked, and ends as it is told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt as _};
use serde_json::{Value, json};

use super::TaskTool;
use crate::builtin::nested::SETTLE_GRACE;
use crate::builtin::testing::{call, context, faults};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::{
    ChildResult, ChildResults, ChildTask, Delegate, DelegateError, FanOutPolicy, StartedTask, ToolContext,
};
use crate::ids::{SessionId, TaskId};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::Tool as _;

/// What the twin saw.
#[derive(Debug, Default)]
struct Record {
    asked: Vec<ChildTask>,
    policy: Option<FanOutPolicy>,
    finished: Vec<String>,
    running: usize,
}

/// Prompts of the twin: `MS TEXT` answers TEXT after MS of paused time, `fail` fails, `hang` never ends, `patient`
/// ends when it is cancelled.
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
    async fn run(&self, number: usize, task: ChildTask) -> ChildResult {
        self.record.lock().unwrap().running += 1;
        let _running = Running(Arc::clone(&self.record));
        let (success, output) = match task.prompt.as_str() {
            "fail" => (false, "it broke".to_owned()),
            "hang" => std::future::pending().await,
            "patient" => (false, self.cancel.cancelled().await.to_string()),
            timed => {
                let (ms, text) = timed.split_once(' ').unwrap();
                tokio::time::sleep(Duration::from_millis(ms.parse().unwrap())).await;
                (true, text.to_owned())
            }
        };
        self.record.lock().unwrap().finished.push(output.clone());
        ChildResult {
            task: TaskId::new(format!("task-{number}")),
            session: SessionId::new(format!("task-run-{number}")),
            agent: task.agent,
            success,
            output,
            source_anchors: Vec::new(),
            structured: None,
            artifact: None,
        }
    }
}

impl Delegate for Twin {
    fn agents(&self) -> Vec<(String, String)> {
        vec![("explore".into(), "looks around".into()), ("write".into(), "changes files".into())]
    }

    fn delegate(
        &self,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'_, Result<ChildResults, DelegateError>> {
        {
            let mut record = self.record.lock().unwrap();
            record.asked = tasks.clone();
            record.policy = Some(policy);
        }
        Box::pin(async move {
            let runs = stream::iter(tasks.into_iter().enumerate()).map(|(number, task)| self.run(number, task));
            Ok(ChildResults {
                results: runs.buffered(policy.width).collect().await,
                timed_out: false,
                returned_early: false,
            })
        })
    }

    fn background(&self, task: ChildTask) -> BoxFuture<'_, Result<StartedTask, DelegateError>> {
        let answer = match task.prompt.as_str() {
            "full" => Err(DelegateError::Full { open_max: 2 }),
            "nested" => Err(DelegateError::Nested),
            "spent" => Err(DelegateError::Spent { total_max: 3, left: 0 }),
            _ => Ok(StartedTask { task: "task-7".into(), session: "task-run-7".into(), of_workspace: true }),
        };
        self.record.lock().unwrap().asked.push(task);
        Box::pin(std::future::ready(answer))
    }
}

fn twin() -> (ToolContext, Arc<Mutex<Record>>) {
    let folder = tempfile::tempdir().unwrap();
    let mut ctx = context(folder.path());
    let record = Arc::new(Mutex::new(Record::default()));
    ctx.delegate = Some(Arc::new(Twin { record: Arc::clone(&record), cancel: ctx.cancel.clone() }));
    (ctx, record)
}

fn item(prompt: &str) -> Value {
    json!({"agent": "explore", "description": "look", "prompt": prompt})
}

fn with(mut item: Value, key: &str, value: Value) -> Value {
    item[key] = value;
    item
}

async fn task(ctx: &ToolContext, arguments: Value) -> ToolOutcome {
    call(&TaskTool::new(&[]), ctx, arguments).await
}

// Case C179: results in the order asked, whichever finished first.
#[tokio::test(start_paused = true)]
async fn results_stand_in_the_order_asked() {
    let (ctx, record) = twin();
    let done = task(&ctx, json!({"tasks": [item("30 slow"), item("20 middle"), item("10 fast")]})).await;
    assert_eq!(record.lock().unwrap().finished, ["fast", "middle", "slow"]);
    let lines: Vec<&str> = done.output.lines().filter(|line| !line.is_empty()).skip(1).collect();
    let expected = [
        "--- Task 1 (explore) [OK] ---",
        "slow",
        "--- Task 2 (explore) [OK] ---",
        "middle",
        "--- Task 3 (explore) [OK] ---",
        "fast",
    ];
    assert_eq!(lines, expected);
    assert_eq!(done.metadata["all_success"], true);
    let policy = record.lock().unwrap().policy.unwrap();
    assert_eq!(policy, FanOutPolicy { width: 8, enough_successes: None, timeout_ms: None });
}

#[tokio::test(start_paused = true)]
async fn both_forms_and_both_spellings_reach_the_port() {
    let (ctx, record) = twin();
    let done = task(&ctx, with(item("0 alone"), "maxSteps", json!(3))).await;
    assert_eq!(done.metadata["task_id"], "task-0");
    assert!(done.output.contains("--- Task 1 (explore) [OK] ---\nalone\n"), "{}", done.output);
    assert_eq!(record.lock().unwrap().asked[0].max_steps, Some(3));

    let options = [
        json!({"allow_partial_failure": true, "timeout_ms": 7, "min_success_count": 1}),
        json!({"allowPartialFailure": true, "timeoutMs": 7, "minSuccessCount": 1}),
    ];
    for options in options {
        let (ctx, record) = twin();
        let done = task(&ctx, with(options, "tasks", json!([item("0 a"), item("fail")]))).await;
        let policy = record.lock().unwrap().policy.unwrap();
        assert_eq!(policy, FanOutPolicy { width: 8, enough_successes: Some(1), timeout_ms: Some(7) });
        assert!(done.is_success() && done.output.contains("--- Task 2 (explore) [ERR] ---\nit broke"));
    }
}

/// Calls without the schema, and says which kind of error and which text came back.
async fn refused(arguments: Value) -> (&'static str, String) {
    let (ctx, record) = twin();
    let done = TaskTool::new(&[]).call(&ctx, arguments).await;
    assert!(record.lock().unwrap().policy.is_none(), "nothing is started");
    let kind = match done.error {
        Some(ToolErrorKind::InvalidArgument { .. }) => "invalid",
        Some(ToolErrorKind::Unsupported { .. }) => "unsupported",
        other => panic!("{other:?}"),
    };
    (kind, done.output)
}

#[tokio::test]
async fn what_cannot_be_run_is_refused_before_anything_starts() {
    let one = || json!([item("0 a")]);
    let invalid = [
        (json!({"tasks": []}), "0 entries"),
        (json!({"tasks": vec![item("0 a"); 33]}), "33 entries"),
        (json!({}), "not both"),
        (json!(null), "cannot be read"),
        (with(item("0 a"), "tasks", one()), "not both"),
        (json!({"agent": "explore", "prompt": "x"}), "description"),
        (json!({"tasks": one(), "timeout_ms": 0}), "timeout_ms is 0"),
        (json!({"tasks": one(), "timeout_ms": 1, "timeoutMs": 1}), "duplicate"),
        (json!({"tasks": one(), "min_success_count": 1}), "allow_partial_failure"),
        (json!({"tasks": one(), "allow_partial_failure": true, "min_success_count": 2}), "1 to 1"),
        (json!({"tasks": one(), "allow_partial_failure": true, "min_success_count": 0}), "1 to 1"),
        (json!({"tasks": [item("0 a"), item("  ")]}), "tasks[1].prompt is empty"),
        (json!({"tasks": [with(item("0 a"), "max_steps", json!(0))]}), "max_steps is 0"),
        (json!({"tasks": [with(item("0 a"), "prompt", json!("x".repeat(300_000)))]}), "300000 bytes"),
        (json!({"tasks": [with(item("0 a"), "agent", json!("nobody"))]}), "explore (looks around); write"),
    ];
    for (arguments, expected) in invalid {
        let (kind, text) = refused(arguments).await;
        assert_eq!(kind, "invalid", "{text}");
        assert!(text.contains(expected), "{text} lacks {expected}");
    }
    let later = || with(item("0 a"), "background", json!(true));
    for (arguments, expected) in [
        (json!({"tasks": [item("0 a"), later()]}), "tasks[1].background"),
        (json!({"tasks": [later()], "timeout_ms": 5}), "tasks[0].background"),
        (json!({"tasks": [later()], "allow_partial_failure": true}), "a call of its own"),
        (with(later(), "output_schema", json!({"type": "object"})), "both"),
        (with(item("0 a"), "output_schema", json!({"type": 7})), "tasks[0].output_schema cannot be used"),
    ] {
        let (kind, text) = refused(arguments).await;
        assert!(kind == "invalid" && text.contains(expected), "{text}");
    }
    let (mut ctx, _) = twin();
    ctx.delegate = None;
    let done = task(&ctx, item("0 a")).await;
    assert!(matches!(done.error, Some(ToolErrorKind::Unsupported { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_passed_on_and_what_was_done_is_kept() {
    let (ctx, record) = twin();
    let cancel = ctx.cancel.clone();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        cancel.cancel(CancelReason::Requested)
    };
    let (done, _) = tokio::join!(task(&ctx, json!({"tasks": [item("0 done"), item("patient")]})), stop);
    assert!(matches!(done.error, Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::Requested), .. })));
    assert!(done.output.contains("[OK] ---\ndone") && done.output.contains("stopped"), "{}", done.output);

    // After the cancel nothing is started any more.
    let after = task(&ctx, item("0 later")).await;
    assert!(matches!(after.error, Some(ToolErrorKind::Cancelled { .. })));
    assert_eq!(record.lock().unwrap().asked.len(), 2, "only the first call came to the port");
}

// Case C180: a child that never ends does not keep its parent.
#[tokio::test(start_paused = true)]
async fn a_child_that_never_ends_is_given_up_after_the_grace() {
    let (ctx, record) = twin();
    let cancel = ctx.cancel.clone();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        cancel.cancel(CancelReason::Deadline { timeout_ms: 5 })
    };
    let begun_at = tokio::time::Instant::now();
    let (done, _) = tokio::join!(task(&ctx, json!({"tasks": [item("0 done"), item("hang")]})), stop);
    assert_eq!(begun_at.elapsed(), Duration::from_millis(5) + SETTLE_GRACE);
    assert_eq!(done.error, Some(ToolErrorKind::Timeout { op: "task".into(), duration_ms: 5 }));
    assert_eq!(record.lock().unwrap().running, 0);
}

#[test]
fn the_model_is_shown_one_form_and_the_agents_that_there_are() {
    let tool = TaskTool::new(&[("explore".into(), "looks around".into())]);
    let shown = tool.spec().definition();
    assert!(shown.description.contains("explore (looks around)"), "{}", shown.description);
    let text = shown.parameters.to_string();
    for hidden in ["outputSchema", "timeoutMs", "oneOf"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    assert_eq!(faults(&tool, &json!({})), "$: agent or tasks is required");
    assert!(faults(&tool, &with(item("a"), "tasks", json!([item("a")]))).contains("only one"));
    assert!(faults(&tool, &json!({"agent": "a"})).contains("prompt"));
    assert!(faults(&tool, &with(item("a"), "other", json!(1))).contains("other"));
}

#[tokio::test]
async fn a_background_task_returns_at_once_with_its_id() {
    let (ctx, record) = twin();
    let background = |prompt: &str| with(item(prompt), "background", json!(true));
    let done = task(&ctx, json!({"tasks": [background("hang")]})).await;
    assert!(done.is_success() && done.output.contains("task-7"), "{}", done.output);
    assert_eq!((&done.metadata["task_id"], &done.metadata["workspace_child"]), (&json!("task-7"), &json!(true)));
    assert!(record.lock().unwrap().policy.is_none(), "it is no fan-out");
    for (prompt, said) in
        [("full", "2 background tasks are open"), ("nested", "no background tasks"), ("spent", "3 child runs")]
    {
        let refused = task(&ctx, background(prompt)).await;
        assert!(!refused.is_success() && refused.output.contains(said), "{}", refused.output);
    }
}
