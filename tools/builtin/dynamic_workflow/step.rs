//! Does one attempt of a step: by the script, by a tool, or as a run of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::driver::{DriveEnd, Plan, Run, drive_to_end};
use super::unrecorded::{Outcome, Unrecorded};
use super::{SignalArgument, source_hash};
use crate::builtin::program::allowance::Allowance;
use crate::builtin::program::desk::run_script;
use crate::builtin::program::{Limits, Order, Source, seed_of};
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::digest::Digest;
use crate::outcome::Trust;
use crate::workflow::decision::Attempt;
use crate::workflow::state::{RunEnd, RunState};
use crate::workflow::{CHILD_DEPTH_MAX, CHILD_RUNS_MAX, CHILD_STEP};

/// The steps that are tools.
const TOOL_STEPS: [&str; 3] = ["task", "parallel_task", "generate_object"];

/// What all runs of one call share.
#[derive(Clone)]
pub(super) struct Room {
    /// Steps beside each other; one that is a run of its own needs none of it.
    pub(super) steps: Arc<Semaphore>,
    /// Generations beside each other.
    pub(super) generations: Arc<Semaphore>,
    /// Runs inside of runs so far.
    children: Arc<AtomicUsize>,
}

impl Room {
    pub(super) fn new(steps: usize, generations: usize) -> Self {
        Self {
            steps: Arc::new(Semaphore::new(steps)),
            generations: Arc::new(Semaphore::new(generations)),
            children: Arc::default(),
        }
    }
}

/// What an attempt came to.
pub(super) enum StepEnd {
    /// It gave something, or has failed.
    Ended(Result<Value, String>),
    /// It waits for something that this call does not.
    Suspended(String),
}

/// What the steps of one run share.
pub(super) struct StepPlan {
    run_id: String,
    source: Source,
    allowance: Allowance,
    limits: Limits,
    width: usize,
    depth: u32,
    room: Room,
    signals: Vec<SignalArgument>,
    unrecorded: Arc<Unrecorded>,
    /// What the run is known by there; none where records end with the call.
    key: Option<Digest>,
}

impl StepPlan {
    pub(super) fn of(plan: &Plan, key: Option<Digest>) -> Self {
        Self {
            run_id: plan.run_id.clone(),
            source: plan.source.clone(),
            allowance: plan.allowance.clone(),
            limits: plan.limits,
            width: plan.width,
            depth: plan.depth,
            room: plan.room.clone(),
            signals: plan.signals.clone(),
            unrecorded: Arc::clone(&plan.unrecorded),
            key,
        }
    }

    /// Does an attempt to its end, unless this process knows its end from before. What it comes to is kept until
    /// [`Self::forget`]; but for what a cancel made of it, which is no end.
    pub(super) async fn run(&self, ctx: &ToolContext, invoke: &Arc<dyn Invoke>, attempt: &Attempt) -> (StepEnd, Trust) {
        if let Some((result, trust)) = self.known(attempt) {
            return (StepEnd::Ended(result), trust);
        }
        let (end, trust) = self.work(ctx, invoke, attempt).await;
        // A run inside has a log of its own.
        let key = self.key.as_ref().filter(|_| attempt.step.step_name != CHILD_STEP);
        if let (Some(key), StepEnd::Ended(result), None) = (key, &end, ctx.cancel.reason()) {
            self.unrecorded.keep(key, &attempt.step.step_id, attempt.attempt, (result.clone(), trust));
        }
        (end, trust)
    }

    /// What an attempt that had begun before this call came to, when this process knows it.
    pub(super) fn known(&self, attempt: &Attempt) -> Option<Outcome> {
        let key = self.key.as_ref().filter(|_| attempt.interrupted)?;
        self.unrecorded.of(key, &attempt.step.step_id, attempt.attempt)
    }

    /// What an attempt came to is in the log.
    pub(super) fn forget(&self, attempt: &Attempt) {
        if let Some(key) = &self.key {
            self.unrecorded.forget(key, &attempt.step.step_id, attempt.attempt);
        }
    }

    async fn work(&self, ctx: &ToolContext, invoke: &Arc<dyn Invoke>, attempt: &Attempt) -> (StepEnd, Trust) {
        let name = attempt.step.step_name.as_str();
        if name == CHILD_STEP {
            return self.run_child(ctx, invoke, attempt, None).await;
        }
        // A run of its own needs no room: its steps do.
        let _room = self.room.steps.acquire().await.ok();
        let (result, trust) = match TOOL_STEPS.contains(&name) {
            true => self.run_tool(invoke, attempt).await,
            false => self.run_script(ctx, invoke, attempt).await,
        };
        (StepEnd::Ended(result), trust)
    }

    async fn run_script(
        &self,
        ctx: &ToolContext,
        invoke: &Arc<dyn Invoke>,
        attempt: &Attempt,
    ) -> (Result<Value, String>, Trust) {
        let step = &attempt.step;
        let key = format!("{}/{}", self.run_id, step.step_id);
        let inputs = json!({
            "kind": "step",
            "run_id": self.run_id,
            "step_id": step.step_id,
            "step_name": step.step_name,
            "input": step.input,
            "attempt": attempt.attempt,
            "idempotency_key": Digest::of_domain("toolwarden.workflow-step", key.as_bytes()),
        });
        let order = Order {
            source: self.source.clone(),
            inputs,
            view: None,
            allowance: self.allowance.clone(),
            limits: self.limits,
            seed: seed_of(&format!("{key}/{}", attempt.attempt)),
            pinned_ms: None,
        };
        let ended = Box::pin(run_script(ctx, invoke, order)).await;
        (ended.result.map_err(|fault| fault.to_string()), ended.trust)
    }

    /// A step that is a tool: outside of the script, on the route like any call.
    async fn run_tool(&self, invoke: &Arc<dyn Invoke>, attempt: &Attempt) -> (Result<Value, String>, Trust) {
        let step = &attempt.step;
        // Logs of old have the former name of task.
        let tool = if step.step_name == "parallel_task" { "task" } else { step.step_name.as_str() };
        // A workflow may start what its caller may: a list of several tasks is one step.
        if !self.allowance.names(tool) {
            return (Err(format!("the tool {tool:?} is not allowed to this workflow")), Trust::Trusted);
        }
        let _admitted = match tool {
            "generate_object" => self.room.generations.acquire().await.ok(),
            _ => None,
        };
        let outcome = invoke.invoke(ToolCall { tool: tool.into(), arguments: step.input.clone() }).await;
        let trust = outcome.trust;
        let result = match outcome.is_success() {
            false => Err(outcome.output),
            true => Ok(json!({
                "tool": tool, "output": outcome.output, "exit_code": outcome.exit_code, "metadata": outcome.metadata,
            })),
        };
        (result, trust)
    }

    /// A step that is a run: with a log of its own, so that what it has done stays done when this attempt is
    /// interrupted. With a `cancel` it only hears of that, and may clean up.
    pub(super) async fn run_child(
        &self,
        ctx: &ToolContext,
        invoke: &Arc<dyn Invoke>,
        attempt: &Attempt,
        cancel: Option<(String, bool)>,
    ) -> (StepEnd, Trust) {
        let refused = |problem: String| (StepEnd::Ended(Err(problem)), Trust::Trusted);
        if self.depth >= CHILD_DEPTH_MAX {
            return refused(format!("runs are inside of runs {CHILD_DEPTH_MAX} deep at the most; do its steps here"));
        }
        if self.room.children.fetch_add(1, Ordering::Relaxed) >= CHILD_RUNS_MAX {
            return refused(format!("one call has at most {CHILD_RUNS_MAX} runs inside of its runs"));
        }
        let Run { plan, state, end, trust } = drive_to_end(ctx, invoke, self.child(attempt, cancel)).await;
        (child_end(&plan.run_id, &state, end), trust)
    }

    fn child(&self, attempt: &Attempt, cancel: Option<(String, bool)>) -> Plan {
        let step = &attempt.step;
        let source = match step.input.get("source").and_then(Value::as_str) {
            Some(text) => Source { name: "workflow.js".to_owned(), text: text.to_owned() },
            None => self.source.clone(),
        };
        let run_id = child_run_id(&self.run_id, &step.step_id, attempt.attempt);
        let (cancel, at_once) = cancel.map_or((None, false), |(reason, at_once)| (Some(reason), at_once));
        Plan {
            first_run_id: run_id.clone(),
            generation: 1,
            run_id,
            source_hash: source_hash(&source, &[]),
            source,
            nodes: Vec::new(),
            input: step.input.get("input").cloned().unwrap_or_default(),
            signals: self.signals.clone(),
            cancel,
            at_once,
            timeout_ms: None,
            allowance: self.allowance.clone(),
            limits: self.limits,
            width: self.width,
            depth: self.depth + 1,
            room: self.room.clone(),
            unrecorded: Arc::clone(&self.unrecorded),
        }
    }
}

/// The id of a run that is a step of another one: the same for the same attempt, and nobody else's.
fn child_run_id(run_id: &str, step_id: &str, attempt: u32) -> String {
    let text = format!("{run_id}\n{step_id}\n{attempt}");
    format!("child-{}", &Digest::of_domain("toolwarden.workflow-child", text.as_bytes()).hex()[..32])
}

/// What the end of a run is as the end of a step.
fn child_end(run_id: &str, state: &RunState, end: DriveEnd) -> StepEnd {
    let problem = match (end, &state.end) {
        (DriveEnd::Ended, Some(RunEnd::Completed { output })) => {
            return StepEnd::Ended(Ok(json!({ "run_id": run_id, "output": output })));
        }
        (DriveEnd::Ended, Some(RunEnd::Failed { error })) => error.clone(),
        (DriveEnd::Ended, Some(RunEnd::Cancelled { reason })) => format!("it was cancelled: {reason}"),
        (DriveEnd::Ended, Some(RunEnd::TimedOut { timeout_ms })) => format!("its {timeout_ms} ms were over"),
        (DriveEnd::Ended, Some(RunEnd::Continued { .. }) | None) => "it has no end".to_owned(),
        (DriveEnd::Suspended(why), _) => return StepEnd::Suspended(format!("of run {run_id}: {why}")),
        (DriveEnd::Interrupted(reason), _) => reason.to_string(),
        (DriveEnd::Refused(error), _) => error.to_string(),
        (DriveEnd::Disagreed(error), _) => error.to_string(),
        // The same as for this run's own log: it is not for the step to fail by.
        (DriveEnd::Lost(error), _) => return StepEnd::Suspended(format!("of run {run_id}: {error}")),
    };
    StepEnd::Ended(Err(format!("run {run_id}: {problem}")))
}
