//! What a batch gives back: one section and one entry for each call, in the order asked.
//!
//! Order never depends on which call finished first. A partial failure is a success that names what to run again,
//! so that a model does not repeat what went well; only a batch in which nothing went well is a failure.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::binding::unbindable;
use crate::cancellation::CancelReason;
use crate::canonical_json::{fields_bytes, text_bytes, value_bytes};
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};

/// Largest metadata of one call that is repeated as it is, in bytes of its JSON text.
pub const CHILD_METADATA_BYTES_MAX: usize = 4 * 1024;
/// Facts about one call.
const ENTRY_FIELDS: usize = 9;
/// Room for the heading of one call, in bytes; a longer one only costs a copy.
const SECTION_BYTES: usize = 128;
/// Largest entry that compacted metadata keeps, in bytes of its JSON text.
const KEPT_ENTRY_BYTES_MAX: usize = 512;

/// One call with its ending.
#[derive(Debug)]
pub struct Ended<'a> {
    /// Its step.
    pub step: u32,
    /// Its id, when it has one.
    pub id: Option<&'a str>,
    /// Which tool.
    pub tool: &'a str,
    /// How it ended.
    pub outcome: ToolOutcome,
}

/// How the batch as a whole ran.
#[derive(Debug, Clone)]
pub struct Execution {
    /// The width that was asked for.
    pub requested_concurrency: usize,
    /// The widest that a step ran.
    pub applied_concurrency: usize,
    /// Whether a step ran more than one call at a time.
    pub parallel: bool,
    /// Why it ended before its work was done.
    pub stopped: Option<CancelReason>,
}

/// The outcome of the batch.
pub fn outcome(mut calls: Vec<Ended<'_>>, execution: &Execution) -> ToolOutcome {
    let total = calls.len();
    let failed: Vec<usize> = (0..total).filter(|index| !calls[*index].outcome.is_success()).collect();
    let output = text(&calls, &failed, execution);
    let metadata = metadata(&mut calls, &failed, execution);
    let trust = calls.iter().map(|call| call.outcome.trust).reduce(Trust::least).unwrap_or_default();
    let error = match &execution.stopped {
        Some(reason) => ToolOutcome::ended_early("batch", reason).error,
        None if failed.len() == total => Some(ToolErrorKind::PartialFailure { failed: total, total }),
        None => None,
    };
    ToolOutcome {
        output,
        exit_code: i32::from(error.is_some()),
        metadata,
        attachments: calls.into_iter().flat_map(|call| call.outcome.attachments).collect(),
        error,
        trust,
        ..ToolOutcome::default()
    }
}

fn text(calls: &[Ended<'_>], failed: &[usize], execution: &Execution) -> String {
    let room = |call: &Ended<'_>| call.outcome.output.len() + SECTION_BYTES;
    let mut text = String::with_capacity(calls.iter().map(room).sum());
    for (index, call) in calls.iter().enumerate() {
        let id = call.id.map_or_else(String::new, |id| format!(" · {}", one_line(id)));
        let _ = writeln!(text, "--- [{} / step {}: {}{id}] ---", index + 1, call.step, one_line(call.tool));
        match (call.outcome.is_success(), call.outcome.output.trim().is_empty()) {
            (true, _) => text.push_str(&call.outcome.output),
            (false, false) => {
                let _ = write!(text, "ERROR: {}", call.outcome.output);
            }
            (false, true) => {
                let _ = write!(text, "ERROR: it failed with exit code {} and said nothing", call.outcome.exit_code);
            }
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push('\n');
    }
    let total = calls.len();
    if let Some(reason) = &execution.stopped {
        let _ =
            writeln!(text, "[the batch was stopped ({reason}): {} of {total} calls succeeded]", total - failed.len());
    } else if failed.len() == total {
        let _ = writeln!(text, "[none of the {total} calls succeeded]");
    } else if !failed.is_empty() {
        let shown: Vec<String> = failed.iter().map(|index| (index + 1).to_string()).collect();
        let (count, shown) = (failed.len(), shown.join(", "));
        let _ = writeln!(
            text,
            "[{count} of {total} calls failed; run again only those at indexes {failed:?} of invocations, \
             shown above under number {shown}. The others are done.]"
        );
    }
    text.truncate(text.trim_end_matches('\n').len() + 1);
    text
}

/// A name that cannot break a heading: what a caller made up may hold line ends.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Takes the calls' own metadata.
fn metadata(calls: &mut [Ended<'_>], failed: &[usize], execution: &Execution) -> Map<String, Value> {
    let (total, failures) = (calls.len(), failed.len());
    let status = match failures {
        0 => "complete",
        _ if failures == total => "failed",
        _ => "partial_failure",
    };
    let mut steps: Vec<u32> = calls.iter().map(|call| call.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let mode = match (steps.len() > 1, execution.parallel) {
        (true, _) => "staged",
        (false, true) => "parallel",
        (false, false) => "serial",
    };
    let binding_errors = binding_errors(calls);
    let results: Vec<Value> = calls.iter_mut().enumerate().map(|(index, call)| entry(index, call)).collect();
    let mut facts = Map::new();
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("status", json!(status));
    put("requested_concurrency", json!(execution.requested_concurrency));
    put("applied_concurrency", json!(execution.applied_concurrency));
    put("execution_mode", json!(mode));
    put("steps", json!(steps.len()));
    put("highest_step", json!(steps.last()));
    put("total_count", json!(total));
    put("success_count", json!(total - failures));
    put("failure_count", json!(failures));
    put("failed_indices", json!(failed));
    put("binding_errors", binding_errors);
    put("results", Value::Array(results));
    facts
}

fn entry(index: usize, call: &mut Ended<'_>) -> Value {
    // One allocation of the right size.
    let mut entry = Map::with_capacity(ENTRY_FIELDS);
    let mut put = |key: &str, value: Value| entry.insert(key.to_owned(), value);
    put("index", index.into());
    put("step", call.step.into());
    put("id", call.id.into());
    put("tool", call.tool.into());
    put("success", call.outcome.is_success().into());
    put("exit_code", call.outcome.exit_code.into());
    put("output_bytes", call.outcome.output.len().into());
    put("error_kind", json!(call.outcome.error));
    put("metadata", compacted(std::mem::take(&mut call.outcome.metadata)));
    Value::Object(entry)
}

/// The results that have an id but cannot be referred to in full.
fn binding_errors(calls: &[Ended<'_>]) -> Value {
    let named = calls.iter().enumerate().filter(|(_, call)| call.outcome.is_success());
    named
        .filter_map(|(index, call)| call.id.map(|id| (index, id, unbindable(&call.outcome))))
        .flat_map(|(index, id, faults)| {
            faults.into_iter().map(move |message| json!({"index": index, "id": id, "message": message}))
        })
        .collect()
}

/// Metadata as it is when it is small; else its small entries, first come first kept.
pub(in crate::builtin) fn compacted(metadata: Map<String, Value>) -> Value {
    let original_bytes = fields_bytes(&metadata);
    if original_bytes <= CHILD_METADATA_BYTES_MAX {
        return Value::Object(metadata);
    }
    let mut kept = Map::new();
    kept.insert("truncated".into(), json!(true));
    kept.insert("original_bytes".into(), json!(original_bytes));
    let mut bytes = fields_bytes(&kept);
    for (key, value) in metadata {
        // With its quotes, colon and comma.
        let entry_bytes = text_bytes(&key) + value_bytes(&value) + 2;
        let room = bytes + entry_bytes <= CHILD_METADATA_BYTES_MAX;
        if entry_bytes <= KEPT_ENTRY_BYTES_MAX && room && !kept.contains_key(&key) {
            bytes += entry_bytes;
            kept.insert(key, value);
        }
    }
    Value::Object(kept)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{CHILD_METADATA_BYTES_MAX, Ended, Execution, compacted, outcome};
    use crate::cancellation::CancelReason;
    use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};

    fn execution(stopped: Option<CancelReason>) -> Execution {
        Execution { requested_concurrency: 8, applied_concurrency: 2, parallel: true, stopped }
    }

    fn call(id: Option<&'static str>, outcome: ToolOutcome) -> Ended<'static> {
        Ended { step: 1, id, tool: "read", outcome }
    }

    #[test]
    fn a_partial_failure_is_a_success_that_names_what_to_run_again() {
        let calls = vec![
            call(Some("a"), ToolOutcome::success("one\n")),
            call(None, ToolOutcome::failure("")),
            call(None, ToolOutcome::success("")),
        ];
        let done = outcome(calls, &execution(None));
        assert!(done.is_success() && done.error.is_none());
        assert!(
            done.output
                .starts_with("--- [1 / step 1: read · a] ---\none\n\n--- [2 / step 1: read] ---\nERROR: it failed")
        );
        assert!(done.output.contains("indexes [1] of invocations"), "{}", done.output);
        assert_eq!(done.metadata["status"], "partial_failure");
        assert_eq!(done.metadata["failed_indices"], json!([1]));
        assert_eq!(done.metadata["execution_mode"], "parallel");
        assert_eq!(done.metadata["results"][1]["error_kind"], Value::Null);
    }

    #[test]
    fn nothing_but_failures_is_a_failure() {
        let done = outcome(vec![call(None, ToolOutcome::invalid_argument("no"))], &execution(None));
        assert_eq!(done.error, Some(ToolErrorKind::PartialFailure { failed: 1, total: 1 }));
        assert_eq!((done.exit_code, &done.metadata["status"]), (1, &json!("failed")));
        assert_eq!(done.metadata["results"][0]["error_kind"]["type"], "invalid_argument");
    }

    #[test]
    fn a_stopped_batch_says_why_and_keeps_what_was_done() {
        let done = outcome(
            vec![call(None, ToolOutcome::success("kept")), call(None, ToolOutcome::failure("x"))],
            &execution(Some(CancelReason::Deadline { timeout_ms: 9 })),
        );
        assert_eq!(done.error, Some(ToolErrorKind::Timeout { op: "batch".into(), duration_ms: 9 }));
        assert!(done.output.contains("kept") && done.output.contains("1 of 2"), "{}", done.output);
    }

    #[test]
    fn a_made_up_name_cannot_break_a_heading_and_the_least_trust_wins() {
        let outside = ToolOutcome::success("").trusted(Trust::External);
        let calls = vec![
            call(None, ToolOutcome::success("").trusted(Trust::Trusted)),
            Ended { step: 1, id: Some("a\n--- [9"), tool: "re\nad", outcome: outside },
        ];
        let done = outcome(calls, &execution(None));
        assert_eq!(done.output.lines().filter(|line| line.starts_with("--- [")).count(), 2);
        assert_eq!(done.trust, Trust::External);
    }

    #[test]
    fn large_metadata_is_compacted_and_named() {
        let large = ToolOutcome::success("x".repeat(20_000))
            .with("before", "y".repeat(5_000))
            .with("range", json!({"next_offset": 3}))
            .with("truncated", "mine");
        let short = compacted(large.metadata.clone());
        assert_eq!(short["truncated"], true);
        assert_eq!(short["range"]["next_offset"], 3);
        assert!(short["original_bytes"].as_u64().unwrap() > 5_000 && short.get("before").is_none());
        assert!(short.to_string().len() <= CHILD_METADATA_BYTES_MAX);
        let done = outcome(vec![call(Some("a"), large.clone()), call(None, large)], &execution(None));
        let errors = done.metadata["binding_errors"].as_array().unwrap();
        assert_eq!(errors.len(), 1, "only what has an id can be referred to");
        assert_eq!((&errors[0]["index"], &errors[0]["id"]), (&json!(0), &json!("a")));
    }
}
