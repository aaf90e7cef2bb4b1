//! What happens in a run: one event a record, numbered without a gap from 1.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::digest::Digest;
use crate::workflow::retry::RetryPolicy;

/// A record of a run's log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its place, from 1.
    pub sequence: u64,
    /// When, in milliseconds since 1970, by the clock of the host.
    pub at_ms: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// A step as it was scheduled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScheduledStep {
    /// Its id, once in a run.
    pub step_id: String,
    /// What kind of step it is; `task` and `generate_object` are tools, everything else is the script's.
    pub step_name: String,
    /// What it works on.
    pub input: Value,
    /// When it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Whether the run goes on when it has failed for good.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub continue_workflow_on_failure: bool,
}

impl ScheduledStep {
    /// What tells it from any other step, in this run and in all others.
    pub fn identity(&self, run_id: &str) -> Digest {
        Digest::of_json(&serde_json::json!({
            "run_id": run_id, "step_id": self.step_id, "step_name": self.step_name, "input": self.input,
            "retry": self.retry, "continue": self.continue_workflow_on_failure,
        }))
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Event {
    /// The run is there.
    RunCreated {
        /// Its id.
        run_id: String,
        /// The digest of its script and nodes: another one is another workflow.
        source_hash: Digest,
        /// What it works on.
        input: Value,
        /// How long it may take from now on, in milliseconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_ms: Option<u64>,
    },
    /// Its work begins.
    RunStarted,
    /// A step is to be done.
    StepCreated(ScheduledStep),
    /// An attempt of it begins.
    StepStarted {
        /// Which step.
        step_id: String,
        /// Which attempt, from 1.
        attempt: u32,
    },
    /// An attempt has failed and another one comes.
    StepRetrying {
        /// Which step.
        step_id: String,
        /// The attempt that failed.
        attempt: u32,
        /// Why.
        error: String,
        /// When the next one begins, in milliseconds since 1970.
        retry_at_ms: u64,
    },
    /// It is done.
    StepCompleted {
        /// Which step.
        step_id: String,
        /// What came of it.
        output: Value,
    },
    /// It has failed for good.
    StepFailed {
        /// Which step.
        step_id: String,
        /// Why.
        error: String,
    },
    /// The run waits for a moment.
    WaitStarted {
        /// Which, in milliseconds since 1970.
        until_ms: u64,
    },
    /// The run waits for a signal.
    SignalAwaited {
        /// Which.
        signal: String,
    },
    /// It has waited long enough.
    WaitEnded,
    /// A signal has a name now that others can be told.
    HookCreated {
        /// What the script calls it.
        hook_id: String,
        /// The name of the signal; it follows from the run and the id.
        token: String,
    },
    /// A signal has come.
    SignalReceived {
        /// Its id: the same one twice is one.
        signal_id: String,
        /// Which signal.
        signal: String,
        /// What it carries.
        payload: Value,
    },
    /// Somebody wants the run to end; it may clean up first.
    CancelRequested {
        /// Why.
        reason: String,
    },
    /// The script tells how far it is.
    ProgressRecorded {
        /// In its words.
        message: String,
    },
    /// The run is done.
    RunCompleted {
        /// What came of it.
        output: Value,
    },
    /// The run has failed.
    RunFailed {
        /// Why.
        error: String,
    },
    /// The run has failed because a step did, at its last attempt.
    RunRetryExhausted {
        /// Which step.
        step_id: String,
        /// Why.
        error: String,
    },
    /// The run was cancelled, and has cleaned up.
    RunCancelled {
        /// Why.
        reason: String,
        /// Whether the script was not asked: somebody wanted it to end at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        forced: bool,
    },
    /// Its time was over.
    RunTimedOut {
        /// What it had, in milliseconds.
        timeout_ms: u64,
    },
    /// It goes on as a new run, with a log of its own.
    RunContinued {
        /// What the new run works on.
        input: Value,
    },
}

impl Event {
    /// Whether a script decided it; everything else follows from what the world did.
    pub fn is_decision(&self) -> bool {
        matches!(
            self,
            Self::StepCreated(_)
                | Self::WaitStarted { .. }
                | Self::SignalAwaited { .. }
                | Self::ProgressRecorded { .. }
                | Self::RunCompleted { .. }
                | Self::HookCreated { .. }
                | Self::RunFailed { .. }
                | Self::RunCancelled { forced: false, .. }
                | Self::RunContinued { .. }
        )
    }
}
