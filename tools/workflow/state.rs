//! The state of a run: the fold of its events and nothing else.

use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

use crate::digest::Digest;
use crate::workflow::event::{Entry, Event, ScheduledStep};

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RunState {
    /// Its id.
    pub run_id: String,
    /// The digest of its script and nodes; none before it was created.
    pub source_hash: Option<Digest>,
    /// What it works on.
    pub input: Value,
    /// Its steps, in the order they were scheduled.
    pub steps: IndexMap<String, Step>,
    /// The steps that are neither done nor failed, in order.
    pub open: Vec<String>,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// The signals that have come, by id.
    pub signals: IndexMap<String, Signal>,
    /// The names of signals that it has made, by what the script calls them.
    pub hooks: IndexMap<String, String>,
    /// Why it is to end, when somebody wants that.
    pub cancel: Option<String>,
    /// Words of progress and waits since the last step was scheduled.
    pub idle_commands: u32,
    /// How it ended.
    pub end: Option<RunEnd>,
    /// The number of the last event.
    pub last_sequence: u64,
    /// When it was created, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// How long it may take from then on, in milliseconds.
    pub timeout_ms: Option<u64>,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// As it was scheduled.
    pub scheduled: ScheduledStep,
    /// Attempts that have begun.
    pub attempts: u32,
    /// How it stands.
    pub status: StepStatus,
}

/// How a step stands.
#[derive(Debug, Clone, PartialEq)]
pub enum StepStatus {
    /// Nothing was tried yet.
    Created,
    /// An attempt began; it may have been interrupted.
    Started,
    /// The next attempt waits for this moment, in milliseconds since 1970.
    Retrying(u64),
    /// Done, with this output.
    Completed(Value),
    /// Failed for good.
    Failed(String),
}

impl StepStatus {
    /// One word for it.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Started => "started",
            Self::Retrying(_) => "retrying",
            Self::Completed(_) => "completed",
            Self::Failed(_) => "failed",
        }
    }
}

/// What a run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// A moment, in milliseconds since 1970.
    Until(u64),
    /// A signal.
    Signal(String),
}

/// A signal that has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    /// Which.
    pub signal: String,
    /// What it carries.
    pub payload: Value,
    /// Whether a wait was ended by it.
    pub consumed: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RunEnd {
    /// Done.
    Completed {
        /// What came of it.
        output: Value,
    },
    /// Failed.
    Failed {
        /// Why.
        error: String,
    },
    /// Cancelled.
    Cancelled {
        /// Why.
        reason: String,
    },
    /// Its time was over.
    TimedOut {
        /// What it had, in milliseconds.
        timeout_ms: u64,
    },
    /// Another run goes on with its work.
    Continued {
        /// What that works on.
        input: Value,
    },
}

impl RunState {
    /// The state after these events.
    pub fn of(entries: &[Entry]) -> Self {
        let mut state = Self::default();
        entries.iter().for_each(|entry| state.apply(entry));
        state
    }

    /// Goes on by one event.
    pub fn apply(&mut self, entry: &Entry) {
        self.last_sequence = entry.sequence;
        match &entry.event {
            Event::RunCreated { run_id, source_hash, input, timeout_ms } => {
                self.timeout_ms = *timeout_ms;
                self.run_id.clone_from(run_id);
                self.source_hash = Some(source_hash.clone());
                self.input = input.clone();
                self.created_at_ms = entry.at_ms;
            }
            Event::RunStarted => {}
            Event::ProgressRecorded { .. } => self.idle_commands += 1,
            Event::StepCreated(scheduled) => {
                self.idle_commands = 0;
                let step = Step { scheduled: scheduled.clone(), attempts: 0, status: StepStatus::Created };
                self.open.push(scheduled.step_id.clone());
                self.steps.insert(scheduled.step_id.clone(), step);
            }
            Event::StepStarted { step_id, attempt } => {
                if let Some(step) = self.steps.get_mut(step_id) {
                    step.attempts = *attempt;
                    step.status = StepStatus::Started;
                }
            }
            Event::StepRetrying { step_id, retry_at_ms, .. } => self.set(step_id, StepStatus::Retrying(*retry_at_ms)),
            Event::StepCompleted { step_id, output } => self.close(step_id, StepStatus::Completed(output.clone())),
            Event::StepFailed { step_id, error } => self.close(step_id, StepStatus::Failed(error.clone())),
            Event::WaitStarted { until_ms } => {
                self.idle_commands += 1;
                self.waiting = Some(Waiting::Until(*until_ms));
            }
            Event::SignalAwaited { signal } => {
                self.idle_commands += 1;
                self.waiting = Some(Waiting::Signal(signal.clone()));
                self.consume();
            }
            Event::WaitEnded => self.waiting = None,
            Event::HookCreated { hook_id, token } => {
                self.hooks.insert(hook_id.clone(), token.clone());
                self.idle_commands += 1;
            }
            Event::SignalReceived { signal_id, signal, payload } => {
                let signal = Signal { signal: signal.clone(), payload: payload.clone(), consumed: false };
                self.signals.entry(signal_id.clone()).or_insert(signal);
                self.consume();
            }
            Event::CancelRequested { reason } => {
                self.cancel.get_or_insert_with(|| reason.clone());
                // Who cleans up waits for nothing that was awaited before.
                self.waiting = None;
            }
            Event::RunCompleted { output } => self.end(RunEnd::Completed { output: output.clone() }),
            Event::RunFailed { error } => self.end(RunEnd::Failed { error: error.clone() }),
            Event::RunRetryExhausted { step_id, error } => {
                self.end(RunEnd::Failed { error: format!("step {step_id:?} failed at its last attempt: {error}") });
            }
            Event::RunCancelled { reason, .. } => self.end(RunEnd::Cancelled { reason: reason.clone() }),
            Event::RunTimedOut { timeout_ms } => self.end(RunEnd::TimedOut { timeout_ms: *timeout_ms }),
            Event::RunContinued { input } => self.end(RunEnd::Continued { input: input.clone() }),
        }
    }

    fn set(&mut self, step_id: &str, status: StepStatus) {
        if let Some(step) = self.steps.get_mut(step_id) {
            step.status = status;
        }
    }

    fn close(&mut self, step_id: &str, status: StepStatus) {
        self.set(step_id, status);
        self.open.retain(|open| open != step_id);
    }

    /// Ends a wait for a signal that is there; each signal ends one wait.
    fn consume(&mut self) {
        let Some(Waiting::Signal(wanted)) = &self.waiting else { return };
        if let Some(found) = self.signals.values_mut().find(|signal| signal.signal == *wanted && !signal.consumed) {
            found.consumed = true;
            self.waiting = None;
        }
    }

    /// The first ending stays.
    fn end(&mut self, end: RunEnd) {
        self.end.get_or_insert(end);
    }

    /// When its time is over, in milliseconds since 1970; none when it may take as long as it wants, or has ended.
    pub fn deadline_ms(&self) -> Option<u64> {
        let timeout_ms = self.timeout_ms.filter(|_| self.end.is_none())?;
        Some(self.created_at_ms.saturating_add(timeout_ms))
    }

    /// One word for where the run stands.
    pub fn status(&self) -> &'static str {
        match (&self.end, &self.cancel, &self.waiting) {
            (Some(RunEnd::Completed { .. }), ..) => "completed",
            (Some(RunEnd::Failed { .. }), ..) => "failed",
            (Some(RunEnd::Cancelled { .. }), ..) => "cancelled",
            (Some(RunEnd::TimedOut { .. }), ..) => "timed_out",
            (Some(RunEnd::Continued { .. }), ..) => "continued",
            (None, Some(_), _) => "cancelling",
            (None, None, Some(_)) => "waiting",
            (None, None, None) => "running",
        }
    }
}
