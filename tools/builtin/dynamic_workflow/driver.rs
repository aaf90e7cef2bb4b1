//! Drives a run: asks what comes next, does it, and writes down what happened before anything follows from it.
//!
//! The order of the log does not depend on which step finished first: outcomes are recorded in the order the steps
//! were scheduled. So a run that is killed at any record and gone on with has the log of one that was not.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesOrdered;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::Value;

use super::asking::put_before;
use super::step::{Room, StepEnd, StepPlan};
use super::unrecorded::{Unrecorded, run_key};
use super::{SignalArgument, WorkflowError};
use crate::builtin::program::allowance::Allowance;
use crate::builtin::program::{Limits, RunView, Source};
use crate::cancellation::CancelReason;
use crate::context::{Invoke, ToolContext};
use crate::digest::Digest;
use crate::outcome::Trust;
use crate::workflow::decision::{Attempt, DecisionError, Next, agree, cancel, failed_by_step, next, settle, timed_out};
use crate::workflow::event::{Entry, Event};
use crate::workflow::log::{self, LogError, Records};
use crate::workflow::node::Node;
use crate::workflow::state::{RunEnd, RunState};
use crate::workflow::{CHILD_STEP, CONTINUATIONS_MAX, RUN_ID_CHARS_MAX};

/// Waits that a call sits out.
const WAITS_MAX: u32 = 8;
/// Longest wait that a call sits out, in milliseconds.
const WAIT_MS_MAX: u64 = 5_000;
/// A run to begin or to go on with.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) run_id: String,
    /// The run that was asked for, and which of those that went on with its work this one is, from 1.
    pub(super) first_run_id: String,
    pub(super) generation: u32,
    pub(super) source: Source,
    pub(super) source_hash: Digest,
    pub(super) nodes: Vec<Node>,
    pub(super) input: Value,
    /// What the call has for this run and for those inside of it; each takes its own.
    pub(super) signals: Vec<SignalArgument>,
    pub(super) cancel: Option<String>,
    /// Whether a cancel leaves no time to clean up.
    pub(super) at_once: bool,
    pub(super) timeout_ms: Option<u64>,
    pub(super) allowance: Allowance,
    pub(super) limits: Limits,
    pub(super) width: usize,
    /// How many runs it is inside of.
    pub(super) depth: u32,
    pub(super) room: Room,
    /// What steps have come to and is not in a log.
    pub(super) unrecorded: Arc<Unrecorded>,
}

impl Plan {
    /// The run that goes on with the work of this one.
    fn continued(&self, input: Value) -> Self {
        let generation = self.generation.saturating_add(1);
        let run_id = format!("{}_c{generation}", self.first_run_id);
        // An id that has no room for the number becomes one that has.
        let run_id = match run_id.len() > RUN_ID_CHARS_MAX {
            true => format!("run-{}", &Digest::of_domain("toolwarden.workflow-next", run_id.as_bytes()).hex()[..32]),
            false => run_id,
        };
        Self { run_id, generation, input, ..self.clone() }
    }
}

/// A run as far as a call drove it.
pub(super) struct Run {
    pub(super) plan: Plan,
    pub(super) state: RunState,
    pub(super) end: DriveEnd,
    pub(super) trust: Trust,
}

/// Drives a run that is inside of another one, and whatever goes on with its work.
pub(super) fn drive_to_end<'a>(ctx: &'a ToolContext, invoke: &'a Arc<dyn Invoke>, plan: Plan) -> BoxFuture<'a, Run> {
    Box::pin(async move {
        let driven = drive_all(ctx, invoke, plan).await;
        match driven {
            Ok((driver, end)) => Run { plan: driver.plan, state: driver.state, end, trust: driver.trust },
            Err((plan, error)) => {
                Run { plan: *plan, state: RunState::default(), end: DriveEnd::Lost(error), trust: Trust::Trusted }
            }
        }
    })
}

/// Drives a run, and then the run that goes on with its work, as often as that is wanted.
pub(super) async fn drive_all<'a>(
    ctx: &'a ToolContext,
    invoke: &'a Arc<dyn Invoke>,
    mut plan: Plan,
) -> Result<(Driver<'a>, DriveEnd), (Box<Plan>, LogError)> {
    let mut continuations = 0;
    loop {
        let (entries, records) = match log::open(ctx.workspace.files().as_ref(), &plan.run_id) {
            Ok(opened) => opened,
            Err(error) => return Err((Box::new(plan), error)),
        };
        let mut driver = Driver::new(ctx, invoke, plan, records);
        let end = Box::pin(driver.drive(entries)).await;
        let Some(RunEnd::Continued { input }) = &driver.state.end else { return Ok((driver, end)) };
        if continuations >= CONTINUATIONS_MAX {
            let why = format!("it went on as a new run {CONTINUATIONS_MAX} times; call again with the same run_id");
            return Ok((driver, DriveEnd::Suspended(why)));
        }
        continuations += 1;
        plan = driver.plan.continued(input.clone());
    }
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
    pub(super) ctx: &'a ToolContext,
    pub(super) invoke: &'a Arc<dyn Invoke>,
    pub(super) plan: Plan,
    records: Box<dyn Records>,
    pub(super) entries: Vec<Entry>,
    pub(super) state: RunState,
    /// The same as scripts see it.
    pub(super) view: Arc<RunView>,
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
        Self {
            ctx,
            invoke,
            plan,
            records,
            entries: Vec::new(),
            state: RunState::default(),
            view: Arc::default(),
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

    /// What is kept of this run in this process, which its log lacks; nothing where records end with the call.
    fn run_key(&self) -> Option<Digest> {
        let first = self.entries.first().filter(|_| self.is_durable())?;
        Some(run_key(self.ctx.workspace.display_root(), first))
    }

    /// The steps that have ended, and whose ends this process knows and the log lacks.
    pub(super) fn unrecorded(&self) -> Vec<String> {
        self.run_key().map(|run| self.plan.unrecorded.steps(&run)).unwrap_or_default()
    }

    /// Drives the run as far as this call can.
    pub(super) async fn drive(&mut self, recorded: Vec<Entry>) -> DriveEnd {
        let (Ok(end) | Err(end)) = self.advance(recorded).await;
        if self.state.end.is_some()
            && let Some(run) = self.run_key()
        {
            self.plan.unrecorded.forget_run(&run);
        }
        end
    }

    async fn advance(&mut self, recorded: Vec<Entry>) -> Result<DriveEnd, DriveEnd> {
        self.begin(recorded).await?;
        self.hear().await?;
        loop {
            if let Some(reason) = self.ctx.cancel.reason() {
                return Ok(DriveEnd::Interrupted(reason.clone()));
            }
            if let Some(events) = timed_out(&self.state, self.ctx.clock.unix_ms()) {
                self.append(events)?;
                continue;
            }
            if let Some(event) = failed_by_step(&self.state) {
                self.append(vec![event])?;
                continue;
            }
            match next(&self.state, self.ctx.clock.unix_ms()) {
                Next::Ended => return Ok(DriveEnd::Ended),
                Next::Ask => {
                    let events = self.ask().await?.map_err(DriveEnd::Disagreed)?;
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
                timeout_ms: self.plan.timeout_ms,
            };
            return self.append(vec![created, Event::RunStarted]);
        }
        if let Some(Entry { event: Event::RunCreated { source_hash, input, timeout_ms, .. }, .. }) = recorded.first() {
            let run_id = self.plan.run_id.clone();
            let conflict = |what| DriveEnd::Refused(WorkflowError::Conflict { run_id: run_id.clone(), what });
            if *source_hash != self.plan.source_hash {
                return Err(conflict("source"));
            }
            if *input != self.plan.input {
                return Err(conflict("input"));
            }
            if *timeout_ms != self.plan.timeout_ms {
                return Err(conflict("limits.runTimeoutMs"));
            }
        }
        let mut missing = Vec::new();
        while self.entries.len() < recorded.len() {
            let at = self.entries.len();
            let mut known = 1;
            if recorded[at].event.is_decision() {
                let said = self.ask().await?.map_err(DriveEnd::Disagreed)?;
                missing = agree(&said, &recorded[at..]).map_err(DriveEnd::Disagreed)?;
                known = (said.len() - missing.len()).max(1);
            }
            for entry in &recorded[at..at + known] {
                self.take(entry.clone());
            }
        }
        // A run that was created and never started.
        if self.entries.len() == 1 {
            missing.push(Event::RunStarted);
        }
        self.append(missing)
    }

    /// Writes what the caller has for the run; what is inside of it hears of a cancel first.
    async fn hear(&mut self) -> Result<(), DriveEnd> {
        if self.state.end.is_some() {
            return Ok(());
        }
        let mut events = Vec::new();
        for signal in &self.plan.signals {
            let is_its = match &signal.run_id {
                Some(run_id) => *run_id == self.plan.run_id,
                None => self.plan.depth == 0,
            };
            let known = |event: &Event| matches!(event, Event::SignalReceived { signal_id, .. } if *signal_id == signal.signal_id);
            if is_its && !self.state.signals.contains_key(&signal.signal_id) && !events.iter().any(known) {
                let SignalArgument { signal_id, signal, payload, .. } = signal.clone();
                events.push(Event::SignalReceived { signal_id, signal, payload });
            }
        }
        self.append(events)?;
        let Some(reason) = self.plan.cancel.take() else { return Ok(()) };
        let shared = StepPlan::of(&self.plan, self.run_key());
        for attempt in interrupted(&self.state) {
            // What is done is not cancelled.
            let Some((result, trust)) = shared.known(&attempt) else { continue };
            self.trust = self.trust.least(trust);
            self.append(settle(&self.plan.run_id, &attempt, result, self.ctx.clock.unix_ms()))?;
            shared.forget(&attempt);
        }
        for attempt in interrupted(&self.state).filter(|attempt| attempt.step.step_name == CHILD_STEP) {
            // What it comes to is in its own log; here the step has failed either way.
            shared.run_child(self.ctx, self.invoke, &attempt, Some((reason.clone(), self.plan.at_once))).await;
        }
        if let Some(reason) = self.ctx.cancel.reason() {
            return Err(DriveEnd::Interrupted(reason.clone()));
        }
        self.append(cancel(&self.state, &reason, self.plan.at_once))
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
            self.take(entry);
        }
        Ok(())
    }

    /// Goes on by one record.
    fn take(&mut self, entry: Entry) {
        self.state.apply(&entry);
        if self.plan.nodes.is_empty() {
            put_before(&mut self.view, &entry, &self.state);
        }
        self.entries.push(entry);
    }

    /// Sits a wait out, where it is short and there were few; no longer than the run may take.
    async fn sleep(&mut self, until_ms: u64, what: &str) -> Result<(), DriveEnd> {
        let until_ms = self.state.deadline_ms().map_or(until_ms, |deadline_ms| until_ms.min(deadline_ms));
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
        let shared = Arc::new(StepPlan::of(&self.plan, self.run_key()));
        let left_ms = self.state.deadline_ms().map(|deadline_ms| deadline_ms.saturating_sub(ctx.clock.unix_ms()));
        let mut over = std::pin::pin!(tokio::time::sleep(Duration::from_millis(left_ms.unwrap_or_default())));
        let mut waiting = of_round.into_iter();
        let mut running = FuturesOrdered::new();
        let mut suspended = None;
        loop {
            let mut started = Vec::new();
            while running.len() < self.plan.width
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
                        let (end, trust) = shared.run(ctx, invoke, &attempt).await;
                        (attempt, end, trust)
                    }
                    .boxed(),
                );
            }
            self.peak = self.peak.max(running.len());
            // Futures do nothing before they are polled: a start is in the log before its step begins.
            self.append(started)?;
            let ended = tokio::select! {
                biased;
                ended = running.next() => ended,
                // Dropped attempts are cancelled; the route waits for their ends.
                () = &mut over, if left_ms.is_some() => return Ok(()),
            };
            let Some((attempt, end, trust)) = ended else { break };
            if let Some(reason) = ctx.cancel.reason() {
                return Err(DriveEnd::Interrupted(reason.clone()));
            }
            self.trust = self.trust.least(trust);
            match end {
                StepEnd::Ended(result) => {
                    self.append(settle(&self.plan.run_id, &attempt, result, ctx.clock.unix_ms()))?;
                    shared.forget(&attempt);
                }
                // Others go on; the run waits with this one.
                StepEnd::Suspended(why) => suspended = suspended.or(Some(why)),
            }
        }
        suspended.map_or(Ok(()), |why| Err(DriveEnd::Suspended(why)))
    }
}

/// The attempts that had begun and not ended.
fn interrupted(state: &RunState) -> impl Iterator<Item = Attempt> + use<> {
    let open = match next(state, 0) {
        Next::Work(attempts) => attempts,
        _ => Vec::new(),
    };
    open.into_iter().filter(|attempt| attempt.interrupted)
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
        Event::HookCreated { hook_id, token } => format!("the hook {hook_id} is the signal {token}\n"),
        _ => return None,
    })
}
