//! Runs over a twin of the port that calls tools, a real log and the real engine, killed wherever they can be.

#![expect(clippy::disallowed_methods, reason = "tests look at real logs")]

mod lineage;
mod refused;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::driver::{DriveEnd, Driver};
use super::{DynamicWorkflowTool, prepare};
use crate::builtin::testing::{call, context, faults};
use crate::cancellation::{CancelReason, Cancellation};
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::declaration::{Capabilities, ToolDefinition};
use crate::effects::clock::{Clock, SystemClock};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workflow::event::{Entry, Event};
use crate::workflow::log::{LogError, Records, recover_dynamic_workflow_step_output};

/// Calls of the twin: `work` notes what it was asked and answers with it, `fail` fails as often as it is told, `hang`
/// ends when it is cancelled, `task` and `generate_object` are tools of a host.
#[derive(Clone, Default)]
struct Twin {
    done: Arc<Mutex<Vec<String>>>,
    beside: Arc<Mutex<(usize, usize)>>,
    hanging: Arc<Notify>,
    cancel: Cancellation,
}

impl Twin {
    async fn run(&self, call: ToolCall) -> ToolOutcome {
        let what = call.arguments["what"].as_str().unwrap_or_default().to_owned();
        self.done.lock().unwrap().push(format!("{}:{what}", call.tool));
        match call.tool.as_str() {
            "fail" => ToolOutcome::failure("it broke"),
            "hang" => {
                self.hanging.notify_one();
                ToolOutcome::ended_early("hang", &self.cancel.cancelled().await)
            }
            "generate_object" => {
                let now = {
                    let mut beside = self.beside.lock().unwrap();
                    beside.0 += 1;
                    beside.1 = beside.1.max(beside.0);
                    Arc::clone(&self.beside)
                };
                tokio::task::yield_now().await;
                now.lock().unwrap().0 -= 1;
                ToolOutcome::success("made")
            }
            _ => ToolOutcome::success(what),
        }
    }
}

impl Invoke for Twin {
    fn invoke_all(&self, calls: Vec<ToolCall>, _width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
        Box::pin(async move {
            let mut outcomes = Vec::new();
            for call in calls {
                outcomes.push(self.run(call).await);
            }
            outcomes
        })
    }

    fn capabilities(&self, _call: &ToolCall) -> Option<Capabilities> {
        Some(Capabilities::parallel_safe_read(8))
    }

    fn available(&self) -> Vec<ToolDefinition> {
        let names = ["dynamic_workflow", "fail", "generate_object", "hang", "program", "task", "work"];
        let one =
            |name: &str| ToolDefinition { name: name.into(), description: String::new(), parameters: Value::Null };
        names.into_iter().map(one).collect()
    }
}

/// A clock whose date stands still, so that logs can be compared.
struct Still(SystemClock);

impl Clock for Still {
    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        1_000_000
    }
}

struct Stage {
    ctx: ToolContext,
    twin: Twin,
    folder: tempfile::TempDir,
}

fn stage() -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let mut ctx = context(folder.path());
    ctx.clock = Arc::new(Still(SystemClock::new()));
    let twin = Twin { cancel: ctx.cancel.clone(), ..Twin::default() };
    ctx.invoke = Some(Arc::new(twin.clone()));
    Stage { ctx, twin, folder }
}

impl Stage {
    async fn run(&self, arguments: Value) -> ToolOutcome {
        call(&DynamicWorkflowTool::new(), &self.ctx, arguments).await
    }

    fn log(&self, run_id: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(format!(".a3s/workflow/{run_id}.jsonl"))).unwrap()
    }

    fn done(&self) -> Vec<String> {
        self.twin.done.lock().unwrap().clone()
    }
}

fn facts(outcome: &ToolOutcome) -> &Value {
    &outcome.metadata["dynamic_workflow"]
}

/// A first step, three beside each other, one that fails twice, a wait, a task, and the end.
const STORY: &str = "
const step = (step_id, extra) => ({ step_id, step_name: 'work', input: { what: step_id }, ...extra });
async function run(ctx, inputs) {
  if (inputs.kind === 'step') {
    if (inputs.input.fails >= inputs.attempt) throw new Error('not yet');
    return { said: (await ctx.tool('work', inputs.input)).output, key: inputs.idempotency_key };
  }
  const { steps, history } = inputs;
  const has = type => history.some(entry => entry.type === type);
  if (!steps.first) return { type: 'schedule_step', ...step('first') };
  if (!has('ProgressRecorded')) return { type: 'record_progress', message: 'a third is done' };
  if (!steps.b) return { type: 'schedule_steps', steps: ['a', 'b', 'c'].map(id => step(id)) };
  if (!steps.odd) return { type: 'schedule_step', ...step('odd', {
    input: { what: 'odd', fails: 2 }, retry: { max_attempts: 3, backoff: 'exponential', delay_ms: 0 } }) };
  if (!has('WaitStarted')) return { type: 'wait_until', delay_ms: 0 };
  if (!steps.child) return { type: 'schedule_step', step_id: 'child', step_name: 'task', input: { what: 'child' } };
  return { type: 'complete', output: [inputs.input.query, steps.b.output.said, steps.child.output.output, Date.now()] };
}";

fn story() -> Value {
    json!({"source": STORY, "input": {"query": "q"}, "run_id": "story", "limits": {"maxConcurrentSteps": 2}})
}

#[tokio::test]
async fn a_run_goes_from_step_to_step_and_is_kept() {
    let stage = stage();
    let done = stage.run(story()).await;
    assert!(done.is_success(), "{}", done.output);
    assert!(done.output.contains("\"q\",\n  \"b\",\n  \"child\",\n  1000000"), "{}", done.output);
    let mut calls = stage.done();
    // These run two at a time, and the third may overtake the slower one.
    calls[1..4].sort();
    assert_eq!(calls, ["work:first", "work:a", "work:b", "work:c", "work:odd", "task:child"]);
    assert_eq!(
        (&facts(&done)["status"], &facts(&done)["admission"]["peakActiveSteps"]),
        (&json!("completed"), &json!(2))
    );
    let types: Vec<String> = stage.log("story").lines().map(kind).collect();
    assert_eq!(types.iter().filter(|kind| *kind == "StepRetrying").count(), 2);
    // The same call again finds the run done.
    let again = stage.run(story()).await;
    assert_eq!((&again.output, facts(&again)["plan"].clone()), (&done.output, facts(&done)["plan"].clone()));
    assert_eq!(stage.done().len(), 6, "nothing ran again");
    // What was recorded can be taken up by those who know the run, and by nobody else.
    let files = stage.ctx.workspace.files().as_ref();
    let recover = |run: &str, query: &str, step: &str| recover_dynamic_workflow_step_output(files, run, query, step);
    assert_eq!(recover("story", "q", "a").unwrap()["said"], "a");
    for (run, query, step) in [("other", "q", "a"), ("story", "x", "a"), ("story", "q", "z"), ("../story", "q", "a")] {
        assert_eq!(recover(run, query, step), None, "{run} {query} {step}");
    }
}

fn kind(line: &str) -> String {
    serde_json::from_str::<Value>(line).unwrap()["type"].as_str().unwrap().to_owned()
}

/// Records that are lost from a certain one on, as in a process that is killed there.
struct Deadly {
    kept: Arc<Mutex<Vec<Entry>>>,
    room: usize,
}

impl Records for Deadly {
    fn append(&mut self, expected: u64, entries: &[Entry]) -> Result<(), LogError> {
        let mut kept = self.kept.lock().unwrap();
        assert_eq!(expected, kept.len() as u64);
        for entry in entries {
            if self.room == 0 {
                return Err(LogError::Io("killed".to_owned()));
            }
            self.room -= 1;
            kept.push(entry.clone());
        }
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}

/// Drives a run with room for so many more records; gives the log and how it ended.
async fn driven(stage: &Stage, arguments: Value, before: Vec<Entry>, room: usize) -> (Vec<Entry>, DriveEnd) {
    let (invoke, plan) = prepare(&stage.ctx, arguments, &Arc::default()).unwrap();
    let kept = Arc::new(Mutex::new(before.clone()));
    let records = Deadly { kept: Arc::clone(&kept), room };
    let end = Box::pin(Driver::new(&stage.ctx, &invoke, plan, Box::new(records)).drive(before)).await;
    let kept = kept.lock().unwrap().clone();
    (kept, end)
}

#[tokio::test]
async fn a_run_that_is_killed_at_any_record_ends_with_the_log_of_one_that_was_not() {
    let (whole, end) = driven(&stage(), story(), Vec::new(), usize::MAX).await;
    assert_eq!(end, DriveEnd::Ended);
    assert!(whole.len() > 25, "{}", whole.len());
    for room in 0..whole.len() {
        let stage = stage();
        let (kept, end) = driven(&stage, story(), Vec::new(), room).await;
        assert_eq!(end, DriveEnd::Lost(LogError::Io("killed".to_owned())), "at {room}");
        assert_eq!(kept, whole[..room], "at {room}");
        let before = stage.done();
        let (resumed, end) = driven(&stage, story(), kept.clone(), usize::MAX).await;
        assert_eq!((end, &resumed), (DriveEnd::Ended, &whole), "at {room}");
        let again = &stage.done()[before.len()..];
        for entry in kept {
            if let Event::StepCompleted { step_id, .. } = entry.event {
                assert!(
                    !again.iter().any(|done| done.ends_with(&format!(":{step_id}"))),
                    "{step_id} ran again at {room}"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_log_is_gone_on_with_also_after_a_torn_line_and_refused_after_damage() {
    let stage = stage();
    stage.run(story()).await;
    let whole = stage.log("story");
    let path = stage.folder.path().join(".a3s/workflow/story.jsonl");
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    std::fs::write(&path, format!("{}{}", lines[..9].concat(), &lines[9][..20])).unwrap();
    assert!(stage.run(story()).await.is_success());
    assert_eq!(stage.log("story"), whole);
    for (damaged, said) in [
        (format!("{}{}", lines[..4].concat(), lines[5..].concat()), "line 5 (its number is out of order)"),
        (whole.replacen("RunStarted", "RunStartled", 1), "line 2 (it is no record)"),
        (whole.replacen("\"story\"", "\"other\"", 1), "line 1 (it is another run's)"),
    ] {
        std::fs::write(&path, damaged).unwrap();
        let done = stage.run(story()).await;
        assert!(!done.is_success() && done.output.contains(said), "{}", done.output);
    }
}

#[tokio::test]
async fn another_source_or_input_is_a_conflict_and_a_script_that_says_something_else_is_named() {
    let stage = stage();
    assert!(stage.run(story()).await.is_success());
    let mut other = story();
    other["input"]["query"] = json!("x");
    assert!(stage.run(other).await.output.contains("another input"));
    let mut other = story();
    other["source"] = json!(format!("{STORY}\n// changed"));
    assert!(stage.run(other).await.output.contains("another source"));
    // The same script over a log in which a step has another input: what it says now is not what it said then.
    let (whole, _) = driven(&stage, story(), Vec::new(), usize::MAX).await;
    for (step_id, changed) in [("first", "input"), ("b", "step_name"), ("odd", "retry")] {
        let mut log = whole.clone();
        for entry in &mut log {
            if let Event::StepCreated(step) = &mut entry.event
                && step.step_id == step_id
            {
                match changed {
                    "input" => step.input = json!({"what": "else"}),
                    "step_name" => step.step_name = "else".to_owned(),
                    _ => step.retry = None,
                }
            }
        }
        let before = stage.done();
        let (_, end) = driven(&stage, story(), log, usize::MAX).await;
        let DriveEnd::Disagreed(error) = end else { panic!("{step_id}: {end:?}") };
        assert!(error.to_string().contains(&format!("not deterministic: at step {step_id:?}")), "{error}");
        assert_eq!(stage.done(), before, "nothing runs then");
    }
}

fn script(decides: &str) -> String {
    format!(
        "async function run(ctx, inputs) {{ if (inputs.kind === 'step') {{ return (await ctx.tool(inputs.step_name, inputs.input)).success ? inputs.input : (() => {{ throw new Error('failed') }})() }} const {{steps}} = inputs; {decides} }}"
    )
}

#[tokio::test]
async fn failures_end_the_run_unless_it_goes_on() {
    let failing = |extra: &str| {
        script(&format!(
            "if (!steps.a) return {{type: 'schedule_step', step_id: 'a', step_name: 'fail', input: {{}} {extra}}};
             return {{type: 'complete', output: steps.a.error.split(String.fromCharCode(10))[0]}}"
        ))
    };
    let stage = stage();
    let done = stage.run(json!({"source": failing("")})).await;
    assert!(done.output.contains("step \"a\" failed at its last attempt"), "{}", done.output);
    assert_eq!(facts(&done)["status"], "failed");
    let done = stage.run(json!({"source": failing(", continue_workflow_on_failure: true")})).await;
    assert!(!done.is_success(), "the run id is that of the call: another source is a conflict: {}", done.output);
    let done = stage.run(json!({"source": failing(", continue_workflow_on_failure: true"), "run_id": "on"})).await;
    assert!(done.is_success() && done.output.contains("the script threw Error: failed"), "{}", done.output);
    let retried = failing(", retry: {max_attempts: 3}");
    let done = stage.run(json!({"source": retried, "run_id": "retried"})).await;
    assert_eq!(facts(&done)["plan"][0]["attempts"], 3, "{}", done.output);
}

#[tokio::test]
async fn a_script_that_decides_nothing_sensible_ends_its_run() {
    for (decides, said) in [
        ("return 5", "must return a command"),
        ("throw new Error('lost')", "the script threw Error: lost"),
        (
            "return {type: 'schedule_step', step_id: 'a', step_name: 'work', input: {}}",
            "schedules step \"a\" again, which has completed",
        ),
        ("await ctx.tool('work'); return {type: 'complete'}", "no tool is"),
        ("return {type: 'fail', error: 'on purpose'}", "has failed: on purpose"),
        ("return {type: 'schedule_step', step_id: 'a', step_name: 'program', input: {}}", "\"program\" is not allowed"),
        ("return {type: 'schedule_step', step_id: 'a', step_name: 'dynamic_workflow', input: {}}", "is not allowed"),
    ] {
        let done = stage().run(json!({"source": script(decides)})).await;
        assert!(!done.is_success(), "{decides}");
        let text = format!("{}{}", done.output, facts(&done)["history"]);
        assert!(text.replace('\\', "").contains(said), "{decides}: {text}");
        assert_eq!(facts(&done)["status"], "failed", "{decides}");
    }
}

#[tokio::test]
async fn a_signal_ends_a_wait_once_and_a_long_wait_suspends() {
    let stage = stage();
    let source = script(
        "const got = inputs.signals.length; const awaited = inputs.history.filter(e => e.type === 'SignalAwaited').length;
         if (awaited < 2) return {type: 'wait_for_signal', signal: 'go'};
         return {type: 'complete', output: inputs.signals.map(s => s.payload)}",
    );
    let with = |signals: Value| json!({"source": source, "run_id": "s", "signals": signals});
    let done = stage.run(with(json!([]))).await;
    assert!(!done.is_success() && done.output.contains("waits for the signal \"go\""), "{}", done.output);
    assert_eq!(facts(&done)["status"], "waiting");
    let one = json!({"signal_id": "1", "signal": "go", "payload": 1});
    let done = stage.run(with(json!([one, one, {"signal_id": "0", "signal": "stop"}]))).await;
    assert_eq!(facts(&done)["status"], "waiting", "the same signal twice is one: {}", done.output);
    let done = stage.run(with(json!([one, {"signal_id": "2", "signal": "go", "payload": 2}]))).await;
    assert!(done.is_success(), "{}", done.output);
    let long = script("return {type: 'wait_until', delay_ms: 60000}");
    let done = stage.run(json!({"source": long, "run_id": "l"})).await;
    assert!(
        done.output.contains("ended without a terminal result") && done.output.contains("60000 ms"),
        "{}",
        done.output
    );
}

#[tokio::test]
async fn a_cancel_lets_the_run_clean_up_and_one_of_the_call_keeps_it() {
    let stage = stage();
    let source = script(
        "if (inputs.cancel && !steps.clean) return {type: 'schedule_step', step_id: 'clean', step_name: 'work', input: {what: 'clean'}};
         if (inputs.cancel) return {type: 'complete'};
         if (!steps.a) return {type: 'schedule_step', step_id: 'a', step_name: 'work', input: {what: 'a'}};
         if (!steps.b) return {type: 'schedule_step', step_id: 'b', step_name: 'hang', input: {}};
         return {type: 'complete'}",
    );
    let asked = json!({"source": source, "run_id": "c"});
    let cancel = async {
        stage.twin.hanging.notified().await;
        stage.ctx.cancel.cancel(CancelReason::Requested);
    };
    let (done, ()) = tokio::join!(stage.run(asked.clone()), cancel);
    assert!(matches!(done.error, Some(ToolErrorKind::Cancelled { .. })), "{}", done.output);
    assert!(done.output.contains("the same run_id goes on"), "{}", done.output);
    assert_eq!(facts(&done)["plan"][1]["status"], "started");
    let mut next = self::stage();
    next.folder = stage.folder;
    next.ctx.workspace = stage.ctx.workspace;
    let mut asked = asked;
    asked["cancel"] = json!("nobody wants it");
    let done = next.run(asked).await;
    assert!(done.output.contains("was cancelled: nobody wants it"), "{}", done.output);
    assert_eq!(next.done(), ["work:clean"], "the step that was open is not run again");
    assert_eq!(facts(&done)["status"], "cancelled");
}

#[tokio::test]
async fn generations_are_admitted_one_by_one_and_one_call_drives_a_run() {
    let stage = stage();
    let source = script(
        "if (!steps.g0) return {type: 'schedule_steps', steps: [0, 1, 2, 3].map(n => ({step_id: 'g' + n, step_name: 'generate_object', input: {}}))};
         return {type: 'complete', output: steps.g3.output.output}",
    );
    for (generations, most) in [(1, 1), (2, 2)] {
        stage.twin.beside.lock().unwrap().1 = 0;
        let limits = json!({"maxConcurrentGenerations": generations});
        let done = stage.run(json!({"source": source, "run_id": format!("g{generations}"), "limits": limits})).await;
        assert!(done.is_success(), "{}", done.output);
        assert_eq!(stage.twin.beside.lock().unwrap().1, most);
    }
    let path = crate::workspace_path::WorkspacePath::parse(".a3s/workflow/held.jsonl", "/").unwrap();
    let held = stage.ctx.workspace.files().open_log(&path).unwrap();
    let done = stage.run(json!({"source": source, "run_id": "held"})).await;
    assert!(done.output.contains("driven by another call"), "{}", done.output);
    drop(held);
}

#[tokio::test]
async fn nodes_decide_in_the_place_of_the_script() {
    let stage = stage();
    let source = "async function run(ctx, {step_name, input}) { return {[step_name]: (input.x ?? 0) + 1, stray: 1} }";
    let nodes = json!([
        {"id": "one", "step_name": "x", "provides": ["x"], "routes": [
            {"to": "never", "when": {"key": "x", "equals": 7}}, {"to": "two"}]},
        {"id": "never", "step_name": "z"},
        {"id": "two", "step_name": "y", "requires": ["x"], "provides": ["y"]},
    ]);
    let asked = json!({"source": source, "input": {"in": true}, "run_id": "n", "nodes": nodes});
    let done = stage.run(asked.clone()).await;
    assert!(done.is_success(), "{}", done.output);
    let output = &facts(&done)["snapshot"]["end"]["output"];
    assert_eq!(*output, json!({"in": true, "x": 1, "y": 2}));
    assert_eq!(stage.run(asked).await.output, done.output, "and again from the log");
    let wrong = json!([{"id": "a", "step_name": "x", "routes": [{"to": "b"}]}]);
    assert!(stage.run(json!({"source": source, "nodes": wrong})).await.output.contains("which is no node"));
}

#[test]
fn the_schema_takes_what_is_documented() {
    let tool = DynamicWorkflowTool::new();
    for wrong in [
        json!({}),
        json!({"source": "x", "run_id": "a/b"}),
        json!({"source": "x", "input": 5}),
        json!({"source": "x", "limits": {"maxConcurrentSteps": 33}}),
        json!({"source": "x", "limits": {"maxConcurrentGenerations": 5}}),
        json!({"source": "x", "nodes": [{"id": "a"}]}),
        json!({"source": "x", "other": 1}),
    ] {
        assert!(!faults(&tool, &wrong).is_empty(), "{wrong}");
    }
}
