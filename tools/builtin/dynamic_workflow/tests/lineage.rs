//! Runs inside of runs, runs that go on as new ones, hooks, and runs whose time is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Stage, facts, kind, script, stage};
use crate::cancellation::CancelReason;
use crate::effects::clock::{Clock, SystemClock};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workflow::CHILD_DEPTH_MAX;

/// The runs that have logs, by their first record's input, and the types of their records.
fn logs(stage: &Stage) -> Vec<(String, Vec<String>)> {
    let folder = std::fs::read_dir(stage.folder.path().join(".a3s/workflow")).unwrap();
    let mut logs: Vec<(String, Vec<String>)> = folder
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap().replace(".jsonl", "");
            let text = stage.log(&name);
            (name, text.lines().map(kind).collect())
        })
        .collect();
    logs.sort();
    logs
}

fn output(done: &ToolOutcome) -> &Value {
    assert!(done.is_success(), "{}", done.output);
    &facts(done)["snapshot"]["end"]["output"]
}

/// Three runs of their own, one with another script, one that fails; the parent has them as steps.
fn family() -> Value {
    let other = "async function run(ctx, inputs) { return inputs.kind === 'step' ? 1 : {type: 'complete', output: 'another script'} }";
    let source = script(
        "const {input} = inputs;
         if (input.part === 'fails') return {type: 'fail', error: 'on purpose'};
         if (input.part) return steps.one ? {type: 'complete', output: steps.one.output.what}
             : {type: 'schedule_step', step_id: 'one', step_name: 'work', input: {what: input.part}};
         if (!steps.a) return {type: 'start_child_workflows', children: [
             {child_id: 'a', input: {part: 'first'}},
             {child_id: 'b', input: {}, source: input.other},
             {child_id: 'c', input: {part: 'fails'}, continue_workflow_on_failure: true}]};
         if (!steps.d) return {type: 'start_child_workflow', child_id: 'd', input: {part: 'last'}};
         return {type: 'complete', output: [steps.a.output.output, steps.b.output.output, steps.c.error, steps.d.output.output]}",
    );
    json!({"source": source, "run_id": "family", "input": {"other": other}})
}

#[tokio::test]
async fn runs_inside_of_runs_have_logs_of_their_own_and_are_recorded_in_the_order_asked() {
    let stage = stage();
    let done = stage.run(family()).await;
    let output = output(&done).clone();
    assert_eq!((&output[0], &output[1], &output[3]), (&json!("first"), &json!("another script"), &json!("last")));
    assert!(output[2].as_str().unwrap().contains("on purpose"), "{output}");
    assert_eq!(stage.done(), ["work:first", "work:last"]);
    let logs = logs(&stage);
    assert_eq!(logs.len(), 5, "{logs:?}");
    let ends: Vec<&str> = logs.iter().map(|(_, types)| types.last().unwrap().as_str()).collect();
    assert_eq!(ends.iter().filter(|end| **end == "RunFailed").count(), 1, "{logs:?}");
    assert_eq!(ends.iter().filter(|end| **end == "RunCompleted").count(), 4, "{logs:?}");
    let own: Vec<&str> =
        logs.last().unwrap().1.iter().map(String::as_str).filter(|kind| kind.ends_with("ed")).collect();
    let outcomes: Vec<&&str> = own.iter().filter(|kind| matches!(**kind, "StepCompleted" | "StepFailed")).collect();
    assert_eq!(outcomes, [&"StepCompleted", &"StepCompleted", &"StepFailed", &"StepCompleted"]);
    assert_eq!(stage.run(family()).await.output, done.output, "and again from the logs");
    assert_eq!(stage.done().len(), 2);
}

/// What a run inside has done stays done when the call is cut off, and when the log of the outer run is lost behind it.
#[tokio::test]
async fn what_a_run_inside_has_done_is_not_done_again() {
    let stage = stage();
    let done = stage.run(family()).await;
    let whole = stage.log("family");
    let path = stage.folder.path().join(".a3s/workflow/family.jsonl");
    for kept in 2..whole.lines().count() {
        let cut: String = whole.split_inclusive('\n').take(kept).collect();
        std::fs::write(&path, cut).unwrap();
        assert_eq!(stage.run(family()).await.output, done.output, "at {kept}");
        assert_eq!(stage.log("family"), whole, "at {kept}");
    }
    assert_eq!(stage.done().len(), 2, "each step of each run was done once");
}

#[tokio::test]
async fn runs_are_so_deep_inside_of_each_other_and_no_deeper() {
    let stage = stage();
    let source = script(
        "if (!steps.deeper) return {type: 'start_child_workflow', child_id: 'deeper', input: {}, continue_workflow_on_failure: true};
         return {type: 'complete', output: steps.deeper.error ?? steps.deeper.output.output}",
    );
    let done = stage.run(json!({"source": source, "run_id": "deep"})).await;
    let said = output(&done).as_str().unwrap().to_owned();
    assert!(said.contains("4 deep at the most"), "{said}");
    assert_eq!(logs(&stage).len(), 1 + CHILD_DEPTH_MAX as usize);
}

/// A signal for a run inside names it, and the call waits for what it waits for.
#[tokio::test]
async fn a_run_inside_that_waits_suspends_its_parent_and_a_signal_finds_it() {
    let stage = stage();
    let source = script(
        "if (inputs.input?.inner) {
             if (!inputs.hooks.door) return {type: 'create_hook', hook_id: 'door'};
             if (!inputs.signals.length) return {type: 'wait_for_signal', signal: inputs.hooks.door};
             return {type: 'complete', output: inputs.signals[0].payload};
         }
         if (!steps.inner) return {type: 'start_child_workflows', children: [
             {child_id: 'inner', input: {inner: true}}, {child_id: 'other', input: {inner: true}}]};
         return {type: 'complete', output: [steps.inner.output, steps.other.output].map(child => child.output)}",
    );
    let with = |signals: Value| json!({"source": source, "run_id": "w", "input": {}, "signals": signals});
    let done = stage.run(with(json!([]))).await;
    assert!(done.output.contains("ended without a terminal result: of run child-"), "{}", done.output);
    let waiting = logs(&stage);
    assert_eq!(waiting.len(), 3, "{waiting:?}");
    let signal = |run_id: &str, payload: &str| {
        let log = stage.log(run_id);
        let hook = log.lines().find(|line| line.contains("HookCreated")).unwrap();
        let token = serde_json::from_str::<Value>(hook).unwrap()["token"].clone();
        json!({"signal_id": format!("s-{run_id}"), "signal": token, "payload": payload, "run_id": run_id})
    };
    let (one, other) = (&waiting[0].0, &waiting[1].0);
    assert_ne!(signal(one, "x")["signal"], signal(other, "x")["signal"], "a hook belongs to its run");
    // One of both is not enough.
    let done = stage.run(with(json!([signal(one, "one")]))).await;
    assert!(!done.is_success() && done.output.contains(other.as_str()), "{}", done.output);
    let done = stage.run(with(json!([signal(other, "other")]))).await;
    let mut said: Vec<&str> = output(&done).as_array().unwrap().iter().map(|said| said.as_str().unwrap()).collect();
    said.sort_unstable();
    assert_eq!(said, ["one", "other"]);
    assert!(!stage.log("w").contains("SignalReceived"), "the outer run got none of them");
}

#[tokio::test]
async fn a_run_goes_on_as_a_new_one_with_a_log_of_its_own() {
    let stage = stage();
    let source = script(
        "const {input} = inputs;
         if (!steps.one) return {type: 'schedule_step', step_id: 'one', step_name: 'work', input: {what: 'n' + input.n}};
         return input.n < 3 ? {type: 'continue_as_new', input: {n: input.n + 1}} : {type: 'complete', output: steps.one.output.what}",
    );
    let asked = json!({"source": source, "run_id": "long", "input": {"n": 1}});
    let done = stage.run(asked.clone()).await;
    assert_eq!(output(&done), "n3");
    assert_eq!((&facts(&done)["run_id"], &facts(&done)["first_run_id"]), (&json!("long_c3"), &json!("long")));
    let names: Vec<String> = logs(&stage).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["long", "long_c2", "long_c3"]);
    assert_eq!(stage.run(asked).await.output, done.output, "the first run_id leads to the last run");
    assert_eq!(stage.done(), ["work:n1", "work:n2", "work:n3"]);
    let for_ever = script("return {type: 'continue_as_new', input: {}}");
    let done = stage.run(json!({"source": for_ever, "run_id": "ever", "input": {}})).await;
    assert!(!done.is_success() && done.output.contains("100 times"), "{}", done.output);
}

/// The time of a run counts from its beginning and over all calls; what is at work then is cancelled.
#[tokio::test]
async fn a_run_whose_time_is_over_ends_wherever_it_stands() {
    let hanging = script(
        "if (!steps.a) return {type: 'schedule_step', step_id: 'a', step_name: 'hang', input: {}};
         return {type: 'complete'}",
    );
    let waiting = script("return {type: 'wait_for_signal', signal: 'never'}");
    for (run_id, source, span_ms) in [("hanging", hanging, 1_000), ("waiting", waiting, 60_000)] {
        let mut stage = stage();
        let clock = Arc::new(Movable::default());
        stage.ctx.clock = Arc::clone(&clock) as _;
        let limits = json!({ "runTimeoutMs": span_ms });
        let asked = json!({"source": source, "run_id": run_id, "input": {}, "limits": limits});
        let mut done = stage.run(asked.clone()).await;
        if run_id == "waiting" {
            assert_eq!(facts(&done)["status"], "waiting");
            clock.moved_ms.store(span_ms, Ordering::SeqCst);
            done = stage.run(asked.clone()).await;
        }
        let late = Some(ToolErrorKind::Timeout { op: "dynamic_workflow".into(), duration_ms: span_ms });
        assert_eq!(done.error, late, "{}", done.output);
        assert_eq!(facts(&done)["status"], "timed_out");
        assert_eq!(stage.run(asked.clone()).await.output, done.output, "it stays so");
        let mut other = asked;
        other["limits"]["runTimeoutMs"] = json!(1);
        assert!(stage.run(other).await.output.contains("another limits.runTimeoutMs"));
    }
}

/// A real clock whose date can be moved.
#[derive(Default)]
struct Movable {
    real: SystemClock,
    moved_ms: AtomicU64,
}

impl Clock for Movable {
    fn monotonic(&self) -> Duration {
        self.real.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        self.real.unix_ms() + self.moved_ms.load(Ordering::SeqCst)
    }
}

/// A cancel reaches what is inside first, which may clean up; one at once asks nobody.
#[tokio::test]
async fn a_cancel_reaches_runs_inside_of_runs() {
    for at_once in [false, true] {
        let stage = stage();
        let source = script(
            "if (inputs.input?.inner) {
                 if (inputs.cancel) return steps.clean ? {type: 'complete'}
                     : {type: 'schedule_step', step_id: 'clean', step_name: 'work', input: {what: 'clean'}};
                 return {type: 'schedule_step', step_id: 'a', step_name: 'hang', input: {}};
             }
             if (!steps.inner) return {type: 'start_child_workflow', child_id: 'inner', input: {inner: true}};
             return {type: 'complete'}",
        );
        let asked = json!({"source": source, "run_id": "c", "input": {}});
        let cancel = async {
            stage.twin.hanging.notified().await;
            stage.ctx.cancel.cancel(CancelReason::Requested);
        };
        let (cut, ()) = tokio::join!(stage.run(asked.clone()), cancel);
        assert!(matches!(cut.error, Some(ToolErrorKind::Cancelled { .. })), "{}", cut.output);
        let mut next = self::stage();
        next.folder = stage.folder;
        next.ctx.workspace = stage.ctx.workspace;
        let mut asked = asked;
        asked["cancel"] = json!("nobody wants it");
        asked["cancel_at_once"] = json!(at_once);
        let done = next.run(asked.clone()).await;
        assert!(done.output.contains("was cancelled: nobody wants it"), "{}", done.output);
        let cleaned: &[&str] = if at_once { &[] } else { &["work:clean"] };
        assert_eq!(next.done(), cleaned);
        let logs = logs(&next);
        assert_eq!(logs.len(), 2);
        assert!(logs.iter().all(|(_, types)| types.last().unwrap() == "RunCancelled"), "{logs:?}");
        // A run that ended so is read again like any other.
        asked.as_object_mut().unwrap().remove("cancel");
        assert!(next.run(asked).await.output.contains("was cancelled: nobody wants it"));
    }
}

/// What is made when it is looked at looks like what was always there.
#[tokio::test]
async fn steps_and_history_are_objects_like_any_other() {
    let stage = stage();
    let source = script(
        "const all = ['x', 'b', '__proto__', '7'];
         if (!steps.x) return {type: 'schedule_steps', steps: all.map(step_id => ({step_id, step_name: 'work', input: {what: step_id, big: 1}}))};
         const before = Object.keys(steps);
         const seen = {
             keys: before, values: Object.values(steps).map(step => step.status), entries: Object.entries(steps).length,
             spread: Object.keys({...steps}).length, text: Object.keys(JSON.parse(JSON.stringify(steps))).length,
             looped: (() => { const names = []; for (const name in steps) names.push(name); return names })(),
             has: ['x' in steps, 'y' in steps, 'toString' in steps], missing: steps.y === undefined,
             same: steps.x === steps.x, own: Object.hasOwn(steps, 'b'), none: Object.hasOwn(steps, 'y'),
             history: [inputs.history.length, inputs.history === inputs.history, inputs.history[0].type],
             names: Object.keys(inputs).sort(),
         };
         steps.mine = 1;
         inputs.history = 'mine';
         return {type: 'complete', output: {...seen, after: Object.keys(steps).length, mine: [steps.mine, inputs.history]}}",
    );
    let done = stage.run(json!({"source": source, "run_id": "looks", "input": {}})).await;
    let seen = output(&done);
    let names = json!(["x", "b", "__proto__", "7"]);
    assert_eq!((&seen["keys"], &seen["looped"]), (&names, &names));
    assert_eq!(seen["values"], json!(vec!["completed"; 4]), "{seen}");
    assert_eq!((&seen["entries"], &seen["spread"], &seen["text"]), (&json!(4), &json!(4), &json!(4)));
    assert_eq!(seen["has"], json!([true, false, true]));
    for so in ["missing", "same", "own"] {
        assert_eq!(seen[so], true, "{so}: {seen}");
    }
    assert_eq!(seen["none"], false);
    assert_eq!(seen["history"], json!([14, true, "RunCreated"]));
    let given = json!(["cancel", "history", "hooks", "input", "kind", "run_id", "signals", "steps"]);
    assert_eq!(seen["names"], given);
    assert_eq!((&seen["after"], &seen["mine"]), (&json!(5), &json!([1, "mine"])));
}
