//! Drives a run: asks what comes next, does it, and writes down what happened before anything follows from it.
//!
//! The order of the log does not depend on which step finished first: outcomes are recorded in the order the steps
//! were scheduled. So a run that is killed at any record and gone on with has the log of one that was not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::{SignalArgument, WorkflowError};
use crate::builtin::program::allowance::Allowance;
use crate::builtin::program::desk::run_script;
use crate::builtin::program::fault::Fault;
use crate::builtin::program::{Limits, Order, Source, TIMEOUT_MS_DEFAULT, seed_of};
use crate::cancellation::CancelReason;
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::digest::Digest;
use crate::outcome::Trust;
use crate::workflow::command::Command;
use crate::workflow::decision::{Attempt, DecisionError, Next, agree, decide, failed_by_step, next, settle};
use crate::workflow::event::{Entry, Event};
use crate::workflow::log::{LogError, Records};
use crate::workflow::node::{self, Node};
use crate::workflow::state::{RunState, StepStatus};

/// Waits that a call sits out.
const WAITS_MAX: u32 = 8;
/// Longest wait that a call sits out, in milliseconds.
const WAIT_MS_MAX: u64 = 5_000;
/// The steps that are tools.
const TOOL_STEPS: [&str; 3] = ["task", "parallel_task", "generate_object"];

/// A run to begin or to go on with.
pub(super) struct Plan {
    pub(super) run_id: String,
    pub(super) source: Source,
    pub(super) source_hash: Digest,
    pub(super) nodes: Vec<Node>,
    pub(super) input: Value,
    pub(super) signals: Vec<SignalArgument>,
    pub(super) cancel: Option<String>,
    pub(super) allowance: Allowance,
    pub(super) limits: Limits,
    pub(super) width: usize,
    pub(super) generations: usize,
}

/// How a call left its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DriveEnd {
    /// The run has ended; how stands in its state.
    Ended,
    /// It waits for something that this call does not.
    Suspended(String),
    /// The call was cancelled; the run can be gone on with.
    Interrupted(CancelReason),
    /// The run cannot go on.
    Refused(WorkflowError),
    /// The script says something else than the log.
    Disagreed(DecisionError),
    /// The log cannot be written.
    Lost(LogError),
}

impl From<LogError> for DriveEnd {
    fn from(error: LogError) -> Self {
        Self::Lost(error)
    }
}

/// See the head of the file.
pub(super) struct Driver<'a> {
    ctx: &'a ToolContext,
    invoke: &'a Arc<dyn Invoke>,
    pub(super) plan: Plan,
    records: Box<dyn Records>,
    pub(super) entries: Vec<Entry>,
    pub(super) state: RunState,
    generations: Semaphore,
    waits: u32,
    pub(super) admitted: usize,
    pub(super) peak: usize,
    pub(super) trust: Trust,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        ctx: &'a ToolContext,
        invoke: &'a Arc<dyn Invoke>,
        plan: Plan,
        records: Box<dyn Records>,
    ) -> Self {
        let generations = Semaphore::new(plan.generations);
        Self {
            ctx,
            invoke,
            plan,
            records,
            entries: Vec::new(),
            state: RunState::default(),
            generations,
            waits: 0,
            admitted: 0,
            peak: 0,
            trust: Trust::Trusted,
        }
    }

    /// Whether the run outlives the process.
    pub(super) fn is_durable(&self) -> bool {
        self.records.is_durable()
    }

    /// Drives the run as far as this call can.
    pub(super) async fn drive(&mut self, recorded: Vec<Entry>) -> DriveEnd {
        let (Ok(end) | Err(end)) = self.advance(recorded).await;
        end
    }

    async fn advance(&mut self, recorded: Vec<Entry>) -> Result<DriveEnd, DriveEnd> {
        self.begin(recorded).await?;
        self.hear()?;
        loop {
            if let Some(reason) = self.ctx.cancel.reason() {
                return Ok(DriveEnd::Interrupted(reason.clone()));
            }
            if let Some(event) = failed_by_step(&self.state) {
                self.append(vec![event])?;
                continue;
            }
            match next(&self.state, self.ctx.clock.unix_ms()) {
                Next::Ended => return Ok(DriveEnd::Ended),
                Next::Ask => {
                    let events = self.ask(&self.entries, &self.state).await?;
                    let events = events.map_err(DriveEnd::Disagreed)?;
                    self.append(events)?;
                }
                Next::Wake => self.append(vec![Event::WaitEnded])?,
                Next::Sleep(until_ms) => self.sleep(until_ms, "for a moment that was to come").await?,
                Next::Signal(signal) => {
                    return Ok(DriveEnd::Suspended(format!(
                        "it waits for the signal {signal:?}; call again with the same run_id and signals"
                    )));
                }
                Next::Work(attempts) => self.work(attempts).await?,
            }
        }
    }

    /// Makes the run, or takes up its log: asks the script again for everything that it decided, and writes what of
    /// its last decision is missing.
    async fn begin(&mut self, recorded: Vec<Entry>) -> Result<(), DriveEnd> {
        if recorded.is_empty() {
            let created = Event::RunCreated {
                run_id: self.plan.run_id.clone(),
                source_hash: self.plan.source_hash.clone(),
                input: self.plan.input.clone(),
            };
            return self.append(vec![created, Event::RunStarted]);
        }
        if let Some(Entry { event: Event::RunCreated { source_hash, input, .. }, .. }) = recorded.first() {
            let run_id = self.plan.run_id.clone();
            let conflict = |what| DriveEnd::Refused(WorkflowError::Conflict { run_id: run_id.clone(), what });
            if *source_hash != self.plan.source_hash {
                return Err(conflict("source"));
            }
            if *input != self.plan.input {
                return Err(conflict("input"));
            }
        }
        let mut missing = Vec::new();
        while self.entries.len() < recorded.len() {
            let at = self.entries.len();
            let mut known = 1;
            if recorded[at].event.is_decision() {
                let said = self.ask(&self.entries, &self.state).await?.map_err(DriveEnd::Disagreed)?;
                missing = agree(&said, &recorded[at..]).map_err(DriveEnd::Disagreed)?;
                known = (said.len() - missing.len()).max(1);
            }
            for entry in &recorded[at..at + known] {
                self.state.apply(entry);
                self.entries.push(entry.clone());
            }
        }
        // A run that was created and never started.
        if self.entries.len() == 1 {
            missing.push(Event::RunStarted);
        }
        self.append(missing)
    }

    /// Writes what the caller has for the run.
    fn hear(&mut self) -> Result<(), DriveEnd> {
        if self.state.end.is_some() {
            return Ok(());
        }
        let mut events = Vec::new();
        for SignalArgument { signal_id, signal, payload } in std::mem::take(&mut self.plan.signals) {
            let known =
                |event: &Event| matches!(event, Event::SignalReceived { signal_id: id, .. } if *id == signal_id);
            if !self.state.signals.contains_key(&signal_id) && !events.iter().any(known) {
                events.push(Event::SignalReceived { signal_id, signal, payload });
            }
        }
        if let Some(reason) = self.plan.cancel.take()
            && self.state.cancel.is_none()
        {
            let error = format!("cancelled: {reason}");
            events.push(Event::CancelRequested { reason });
            let open = self.state.open.iter();
            events.extend(open.map(|id| Event::StepFailed { step_id: id.clone(), error: error.clone() }));
        }
        self.append(events)
    }

    /// Writes events and goes on by them.
    fn append(&mut self, events: Vec<Event>) -> Result<(), DriveEnd> {
        if events.is_empty() {
            return Ok(());
        }
        let at_ms = self.ctx.clock.unix_ms();
        let expected = self.state.last_sequence;
        let numbered = events.into_iter().zip(expected + 1..);
        let entries: Vec<Entry> = numbered.map(|(event, sequence)| Entry { sequence, at_ms, event }).collect();
        self.records.append(expected, &entries)?;
        for entry in entries {
            if let Some(line) = told(&entry.event) {
                self.ctx.progress.delta(&line);
            }
            self.state.apply(&entry);
            self.entries.push(entry);
        }
        Ok(())
    }

    /// What the script decides after these events. It has no tools, and its clock stands at the last of them.
    async fn ask(&self, entries: &[Entry], state: &RunState) -> Result<Result<Vec<Event>, DecisionError>, DriveEnd> {
        let at_ms = entries.last().map_or(0, |entry| entry.at_ms);
        let command = if self.plan.nodes.is_empty() {
            let inputs = json!({
                "kind": "workflow",
                "run_id": state.run_id,
                "input": state.input,
                "history": entries,
                "steps": steps_of(state),
                "signals": state.signals.iter().map(|(id, signal)| {
                    json!({"signal_id": id, "signal": signal.signal, "payload": signal.payload})
                }).collect::<Vec<_>>(),
                "cancel": state.cancel,
            });
            let limits = Limits { timeout_ms: self.plan.limits.timeout_ms.min(TIMEOUT_MS_DEFAULT), ..self.plan.limits };
            let order = Order {
                source: self.plan.source.clone(),
                inputs,
                allowance: Allowance::default(),
                limits,
                seed: seed_of(&format!("{}/{}", state.run_id, state.last_sequence)),
                pinned_ms: Some(at_ms),
            };
            match Box::pin(run_script(self.ctx, self.invoke, order)).await.result {
                Ok(value) => {
                    Command::read(value).unwrap_or_else(|error| Command::Fail { error: json!(error.to_string()) })
                }
                Err(Fault::Cancelled(reason)) => return Err(DriveEnd::Interrupted(reason)),
                // A host without room says nothing about the script.
                Err(fault @ (Fault::Host(_) | Fault::Stuck | Fault::TimedOut { .. })) => {
                    return Err(DriveEnd::Suspended(format!("{fault}; call again with the same run_id")));
                }
                Err(fault) => Command::Fail { error: json!(fault.to_string()) },
            }
        } else {
            node::command(&self.plan.nodes, state)
        };
        Ok(match decide(state, command, at_ms) {
            // The same script says so each time: it is how the run ends.
            Err(error @ (DecisionError::Repeated { .. } | DecisionError::TooMany | DecisionError::Idle)) => {
                Ok(vec![Event::RunFailed { error: error.to_string() }])
            }
            decided => decided,
        })
    }

    /// Sits a wait out, where it is short and there were few.
    async fn sleep(&mut self, until_ms: u64, what: &str) -> Result<(), DriveEnd> {
        let wait_ms = until_ms.saturating_sub(self.ctx.clock.unix_ms());
        if self.waits >= WAITS_MAX || wait_ms > WAIT_MS_MAX {
            return Err(DriveEnd::Suspended(format!(
                "it waits {what}, {wait_ms} ms from now; call again with the same run_id then"
            )));
        }
        self.waits += 1;
        tokio::select! {
            biased;
            reason = self.ctx.cancel.cancelled() => Err(DriveEnd::Interrupted(reason)),
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => Ok(()),
        }
    }

    /// Works on the open steps that were tried least often, as many at a time as may run beside each other, and records
    /// what they came to in their order.
    async fn work(&mut self, attempts: Vec<Attempt>) -> Result<(), DriveEnd> {
        let round = attempts.iter().map(|attempt| attempt.attempt).min().unwrap_or_default();
        let of_round: Vec<Attempt> = attempts.into_iter().filter(|attempt| attempt.attempt == round).collect();
        if let Some(until_ms) = of_round.iter().map(|attempt| attempt.not_before_ms).max()
            && until_ms > self.ctx.clock.unix_ms()
        {
            return self.sleep(until_ms, "for the next attempt of a step").await;
        }
        let (ctx, invoke) = (self.ctx, self.invoke);
        let width = self.plan.width;
        let shared = Arc::new(StepPlan::of(&self.plan, std::mem::replace(&mut self.generations, Semaphore::new(0))));
        let mut waiting = of_round.into_iter();
        let mut running = FuturesOrdered::new();
        let outcome = loop {
            let mut started = Vec::new();
            while running.len() < width
                && let Some(attempt) = waiting.next()
            {
                if !attempt.interrupted {
                    let step_id = attempt.step.step_id.clone();
                    started.push(Event::StepStarted { step_id, attempt: attempt.attempt });
                }
                self.admitted += 1;
                let shared = Arc::clone(&shared);
                running.push_back(
                    async move {
                        let (result, trust) = shared.run(ctx, invoke, &attempt).await;
                        (attempt, result, trust)
                    }
                    .boxed(),
                );
            }
            self.peak = self.peak.max(running.len());
            // Futures do nothing before they are polled: a start is in the log before its step begins.
            if let Err(error) = self.append(started) {
                break Err(error);
            }
            let Some((attempt, result, trust)) = running.next().await else { break Ok(()) };
            if let Some(reason) = ctx.cancel.reason() {
                break Err(DriveEnd::Interrupted(reason.clone()));
            }
            self.trust = self.trust.least(trust);
            let events = settle(&self.plan.run_id, &attempt, result, ctx.clock.unix_ms());
            if let Err(error) = self.append(events) {
                break Err(error);
            }
        };
        drop(running);
        if let Some(shared) = Arc::into_inner(shared) {
            self.generations = shared.generations;
        } else {
            self.generations = Semaphore::new(self.plan.generations);
        }
        outcome
    }
}

/// What steps share.
struct StepPlan {
    run_id: String,
    source: Source,
    allowance: Allowance,
    limits: Limits,
    generations: Semaphore,
}

impl StepPlan {
    fn of(plan: &Plan, generations: Semaphore) -> Self {
        Self {
            run_id: plan.run_id.clone(),
            source: plan.source.clone(),
            allowance: plan.allowance.clone(),
            limits: plan.limits,
            generations,
        }
    }

    async fn run(
        &self,
        ctx: &ToolContext,
        invoke: &Arc<dyn Invoke>,
        attempt: &Attempt,
    ) -> (Result<Value, String>, Trust) {
        let step = &attempt.step;
        if TOOL_STEPS.contains(&step.step_name.as_str()) {
            return self.run_tool(invoke, attempt).await;
        }
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
            "generate_object" => self.generations.acquire().await.ok(),
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
}

/// The steps as the script sees them, by id.
fn steps_of(state: &RunState) -> BTreeMap<&str, Value> {
    let one = |step: &crate::workflow::state::Step| {
        let mut entry = json!({
            "step_name": step.scheduled.step_name, "status": step.status.as_str(), "attempts": step.attempts,
        });
        match &step.status {
            StepStatus::Completed(output) => entry["output"] = output.clone(),
            StepStatus::Failed(error) => entry["error"] = json!(error),
            _ => {}
        }
        entry
    };
    state.steps.iter().map(|(id, step)| (id.as_str(), one(step))).collect()
}

/// What people who watch are told of an event.
fn told(event: &Event) -> Option<String> {
    Some(match event {
        Event::StepStarted { step_id, attempt: 1 } => format!("step {step_id} begins\n"),
        Event::StepStarted { step_id, attempt } => format!("step {step_id} begins again, attempt {attempt}\n"),
        Event::StepCompleted { step_id, .. } => format!("step {step_id} is done\n"),
        Event::StepFailed { step_id, error } | Event::StepRetrying { step_id, error, .. } => {
            format!("step {step_id} failed: {}\n", error.lines().next().unwrap_or_default())
        }
        Event::ProgressRecorded { message } => format!("{message}\n"),
        _ => return None,
    })
}
