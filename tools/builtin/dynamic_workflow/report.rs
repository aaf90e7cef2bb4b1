//! What `dynamic_workflow` gives back: how the run stands, its steps, and the end of its history.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::driver::{DriveEnd, Driver};
use crate::canonical_json::json_bytes;
use crate::digest::Digest;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workflow::state::RunEnd;

/// Steps that are listed.
const STEPS_LISTED_MAX: usize = 200;
/// Most of the history that the metadata repeats, in bytes of its JSON text.
const HISTORY_BYTES_MAX: usize = 64 * 1024;

/// The outcome of a call that drove a run.
pub(super) fn outcome(driver: &Driver<'_>, end: DriveEnd) -> ToolOutcome {
    let run_id = &driver.plan.run_id;
    let mut text = String::new();
    let error = match (&end, &driver.state.end) {
        (DriveEnd::Ended, Some(RunEnd::Completed { output })) => {
            let pretty = serde_json::to_string_pretty(output).unwrap_or_default();
            let _ = writeln!(text, "Run {run_id} is done.\n\nOutput:\n{pretty}");
            None
        }
        (DriveEnd::Ended, Some(RunEnd::Failed { error })) => {
            let _ = writeln!(text, "Run {run_id} has failed: {error}");
            Some(None)
        }
        (DriveEnd::Ended, Some(RunEnd::Cancelled { reason })) => {
            let _ = writeln!(text, "Run {run_id} was cancelled: {reason}");
            Some(Some(ToolErrorKind::Cancelled { op: "dynamic_workflow".into(), reason: None }))
        }
        (DriveEnd::Ended, Some(RunEnd::TimedOut { timeout_ms })) => {
            let _ = writeln!(text, "Run {run_id} has failed: its {timeout_ms} ms were over");
            Some(Some(ToolErrorKind::Timeout { op: "dynamic_workflow".into(), duration_ms: *timeout_ms }))
        }
        // Driven on until there is an end.
        (DriveEnd::Ended, Some(RunEnd::Continued { .. }) | None) => Some(None),
        (DriveEnd::Suspended(why), _) => {
            let _ = writeln!(text, "Run {run_id} ended without a terminal result: {why}");
            Some(None)
        }
        (DriveEnd::Interrupted(reason), _) => {
            let again = if driver.is_durable() { "; the same run_id goes on with it" } else { "" };
            let _ = writeln!(text, "dynamic_workflow: {reason}. Run {run_id} was interrupted{again}");
            Some(ToolOutcome::ended_early("dynamic_workflow", reason).error)
        }
        (DriveEnd::Refused(error), _) => return error.clone().into(),
        (DriveEnd::Disagreed(error), _) => {
            let _ = writeln!(text, "Run {run_id} cannot go on: {error}");
            Some(Some(ToolErrorKind::InvalidArgument { message: error.to_string() }))
        }
        (DriveEnd::Lost(error), _) => {
            let _ = writeln!(text, "Run {run_id} cannot go on: {error}");
            Some(Some(ToolErrorKind::Transport { op: "dynamic_workflow".into() }))
        }
    };
    tell_steps(&mut text, driver);
    let unrecorded = driver.unrecorded();
    if !unrecorded.is_empty() {
        let _ = writeln!(
            text,
            "[done, and not in the log: {}. Call again with the same run_id: while this process lives they are recorded \
             then, and do not run again]",
            unrecorded.join(", ")
        );
    }
    if !driver.is_durable() {
        text.push_str("[this workspace keeps no logs: the run cannot be gone on with later]\n");
    }
    let outcome = match error {
        None => ToolOutcome::success(text),
        Some(kind) => ToolOutcome { error: kind, ..ToolOutcome::failure(text) },
    };
    outcome.with("dynamic_workflow", facts(driver)).trusted(driver.trust)
}

fn tell_steps(text: &mut String, driver: &Driver<'_>) {
    let steps = &driver.state.steps;
    if steps.is_empty() {
        return;
    }
    text.push_str("\nSteps:\n");
    for step in steps.values().take(STEPS_LISTED_MAX) {
        let scheduled = &step.scheduled;
        let _ = writeln!(text, "- {} ({}): {}", scheduled.step_id, scheduled.step_name, step.status.as_str());
    }
    if steps.len() > STEPS_LISTED_MAX {
        let _ = writeln!(text, "[{} steps in all]", steps.len());
    }
}

fn facts(driver: &Driver<'_>) -> Value {
    let state = &driver.state;
    let plan: Vec<Value> = state
        .steps
        .values()
        .take(STEPS_LISTED_MAX)
        .map(|step| {
            json!({
                "step_id": step.scheduled.step_id,
                "step_name": step.scheduled.step_name,
                "status": step.status.as_str(),
                "attempts": step.attempts,
                "identity": step.scheduled.identity(&state.run_id),
            })
        })
        .collect();
    // The newest records, as many as fit.
    let mut room = HISTORY_BYTES_MAX;
    let newest = driver.entries.iter().rev().take_while(|entry| match room.checked_sub(json_bytes(entry)) {
        Some(left) => {
            room = left;
            true
        }
        None => false,
    });
    let mut history: Vec<_> = newest.collect();
    history.reverse();
    json!({
        "run_id": driver.plan.run_id,
        "first_run_id": driver.plan.first_run_id,
        "status": state.status(),
        "last_sequence": state.last_sequence,
        "source_hash": driver.plan.source_hash,
        "durable": driver.is_durable(),
        "unrecorded": driver.unrecorded(),
        "snapshot": {
            "steps": state.steps.len(), "open": state.open.len(), "end": state.end, "cancel": state.cancel,
            "hooks": state.hooks,
        },
        "plan_identity": Digest::of_json(&json!(plan)),
        "plan": plan,
        "history": history,
        "history_left_out": driver.entries.len() - history.len(),
        "admission": {
            "maxConcurrentSteps": driver.plan.width,
            "admittedSteps": driver.admitted,
            "activeSteps": 0,
            "peakActiveSteps": driver.peak,
        },
    })
}
