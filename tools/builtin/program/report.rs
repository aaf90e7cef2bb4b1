//! What `program` gives back: the result, what was called, what was printed; the same for a script that failed, for
//! its calls have happened.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::desk::{CallRecord, Ended};
use super::fault::Fault;
use crate::builtin::batch::report::compacted;
use crate::canonical_json::json_bytes;
use crate::outcome::{ToolErrorKind, ToolOutcome};

/// Calls that are listed one by one, in the text and in the metadata.
const CALLS_LISTED_MAX: usize = 100;
/// Most metadata of calls that is repeated, in bytes of its JSON text.
const CALL_METADATA_BYTES_MAX: usize = 64 * 1024;
/// Largest result that the metadata repeats, in bytes of its JSON text.
const RESULT_METADATA_BYTES_MAX: usize = 256 * 1024;

/// The outcome of a script.
pub(super) fn outcome(ended: Ended) -> ToolOutcome {
    let mut text = String::new();
    match &ended.result {
        Ok(result) => {
            text.push_str("The script is done.\n");
            if let Some(summary) = result.get("summary").and_then(Value::as_str) {
                let _ = writeln!(text, "{summary}");
            }
        }
        Err(fault) => {
            let _ = writeln!(text, "program: {fault}");
        }
    }
    tell_calls(&mut text, &ended.calls);
    tell_console(&mut text, &ended);
    for rejection in &ended.unhandled {
        let _ = writeln!(text, "[a promise was rejected and nothing handled it: {rejection}]");
    }
    if ended.replaced {
        text.push_str("[halves of surrogate pairs were replaced by U+FFFD]\n");
    }
    if let Ok(result) = &ended.result {
        text.push_str("\nResult:\n");
        let _ = match serde_json::to_string_pretty(result) {
            Ok(pretty) => writeln!(text, "{pretty}"),
            Err(error) => writeln!(text, "[it cannot be written: {error}]"),
        };
    }
    let success = ended.result.is_ok();
    let mut program = json!({
        "name": "script",
        "language": "javascript",
        "runtime": "embedded-quickjs",
        "success": success,
        "tool_call_count": ended.calls.len(),
        "unawaited": ended.calls.iter().filter(|call| call.ended.is_none()).count(),
        "console_bytes": ended.console.len(),
        "console_lost_bytes": ended.console_lost_bytes,
        "unhandled_rejections": ended.unhandled,
        "replaced_surrogates": ended.replaced,
    });
    program["tool_calls"] = entries(&ended.calls);
    let outcome = match ended.result {
        Ok(result) => {
            let bytes = json_bytes(&result);
            program["result_bytes"] = json!(bytes);
            let outcome = ToolOutcome::success(text);
            if bytes <= RESULT_METADATA_BYTES_MAX { outcome.with("script_result", result) } else { outcome }
        }
        Err(fault) => {
            program["limit"] = json!(fault.limit());
            failure(&fault, text)
        }
    };
    outcome.with("program", program).trusted(ended.trust)
}

fn failure(fault: &Fault, text: String) -> ToolOutcome {
    let kind = match fault {
        Fault::TimedOut { timeout_ms } => {
            Some(ToolErrorKind::Timeout { op: "program".to_owned(), duration_ms: *timeout_ms })
        }
        Fault::Cancelled(reason) => ToolOutcome::ended_early("program", reason).error,
        Fault::Syntax { .. } | Fault::Nul | Fault::NoRun => {
            Some(ToolErrorKind::InvalidArgument { message: fault.to_string() })
        }
        _ => None,
    };
    ToolOutcome { error: kind, ..ToolOutcome::failure(text) }
}

fn tell_calls(text: &mut String, calls: &[CallRecord]) {
    if calls.is_empty() {
        return;
    }
    text.push_str("\nTool calls:\n");
    for (index, call) in calls.iter().take(CALLS_LISTED_MAX).enumerate() {
        let name: String = call.tool.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = match &call.ended {
            None => writeln!(text, "{}. {name}: not awaited, cancelled when the script ended", index + 1),
            Some(end) if end.success => writeln!(text, "{}. {name}: {} bytes", index + 1, end.output_bytes),
            Some(end) => writeln!(text, "{}. {name}: failed with exit code {}", index + 1, end.exit_code),
        };
    }
    if calls.len() > CALLS_LISTED_MAX {
        let failed = calls.iter().filter(|call| call.ended.as_ref().is_some_and(|end| !end.success)).count();
        let _ = writeln!(text, "[{} calls in all, {failed} failed]", calls.len());
    }
}

fn tell_console(text: &mut String, ended: &Ended) {
    if ended.console.is_empty() && ended.console_lost_bytes == 0 {
        return;
    }
    let _ = write!(text, "\nConsole:\n{}", ended.console);
    if ended.console_lost_bytes > 0 {
        text.push_str("[the console was full; what came after is not kept]\n");
    }
}

fn entries(calls: &[CallRecord]) -> Value {
    let mut room = CALL_METADATA_BYTES_MAX;
    let listed = calls.iter().take(CALLS_LISTED_MAX).map(|call| match &call.ended {
        None => json!({"tool_name": call.tool, "success": false, "awaited": false}),
        Some(end) => {
            let mut entry = json!({
                "tool_name": call.tool,
                "success": end.success,
                "exit_code": end.exit_code,
                "output_bytes": end.output_bytes,
                "error_kind": end.error,
            });
            let metadata = compacted(end.metadata.clone());
            if let Some(left) = room.checked_sub(json_bytes(&metadata)) {
                room = left;
                entry["metadata"] = metadata;
            }
            entry
        }
    });
    Value::Array(listed.collect())
}
