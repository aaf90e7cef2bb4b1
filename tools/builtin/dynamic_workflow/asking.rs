//! Asks the script of a run what comes next.
//!
//! It is asked without tools, its clock stands at the last record and its chance begins with the run, so that it says
//! the same when it is asked again.

use std::sync::Arc;

use serde_json::{Value, json};

use super::driver::{DriveEnd, Driver};
use crate::builtin::program::allowance::Allowance;
use crate::builtin::program::desk::run_script;
use crate::builtin::program::fault::Fault;
use crate::builtin::program::{Limits, Order, RunView, TIMEOUT_MS_DEFAULT, seed_of};
use crate::workflow::command::Command;
use crate::workflow::decision::{DecisionError, decide};
use crate::workflow::event::{Entry, Event};
use crate::workflow::node;
use crate::workflow::state::{RunState, Step, StepStatus};

impl Driver<'_> {
    /// What the script decides after the events so far. It has no tools, and its clock stands at the last of them.
    pub(super) async fn ask(&self) -> Result<Result<Vec<Event>, DecisionError>, DriveEnd> {
        let state = &self.state;
        let at_ms = self.entries.last().map_or(0, |entry| entry.at_ms);
        let command = if self.plan.nodes.is_empty() {
            let inputs = json!({
                "kind": "workflow",
                "run_id": state.run_id,
                "input": state.input,
                "signals": state.signals.iter().map(|(id, signal)| {
                    json!({"signal_id": id, "signal": signal.signal, "payload": signal.payload})
                }).collect::<Vec<_>>(),
                "hooks": state.hooks,
                "cancel": state.cancel,
            });
            let limits = Limits { timeout_ms: self.plan.limits.timeout_ms.min(TIMEOUT_MS_DEFAULT), ..self.plan.limits };
            let order = Order {
                source: self.plan.source.clone(),
                inputs,
                view: Some(Arc::clone(&self.view)),
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
}

/// Puts one more record where scripts can look at it; `state` is the run's after it.
pub(super) fn put_before(view: &mut Arc<RunView>, entry: &Entry, state: &RunState) {
    // A script that has ended may still hold it, for a moment.
    let view = Arc::make_mut(view);
    view.history.push(Arc::new(json!(entry)));
    let changed = match &entry.event {
        Event::StepCreated(step) => &step.step_id,
        Event::StepStarted { step_id, .. }
        | Event::StepRetrying { step_id, .. }
        | Event::StepCompleted { step_id, .. }
        | Event::StepFailed { step_id, .. } => step_id,
        _ => return,
    };
    if let Some(step) = state.steps.get(changed) {
        view.steps.insert(changed.as_str().into(), Arc::new(shown(step)));
    }
}

/// A step as the script sees it.
fn shown(step: &Step) -> Value {
    let mut entry = json!({
        "step_name": step.scheduled.step_name, "status": step.status.as_str(), "attempts": step.attempts,
    });
    match &step.status {
        StepStatus::Completed(output) => entry["output"] = output.clone(),
        StepStatus::Failed(error) => entry["error"] = json!(error),
        _ => {}
    }
    entry
}
