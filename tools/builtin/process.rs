//! `process`: lists, reads and stops the background processes of the session.
//!
//! A tool of its own beside `bash`, because a rule about a command line says nothing about reading what it printed,
//! and because a stop must not wait in the lane of the commands that it is to stop. Which processes there are, and
//! their output, is the session's (see [`crate::background`]); nothing is held here.

use serde_json::{Value, json};

use super::ending::{of_error, of_status, signal_name};
use super::reach::{self, Step, wrong};
use crate::background::{
    Background, BackgroundEnd, BackgroundError, BackgroundOutcome, BackgroundRead, BackgroundStatus, LISTED_MAX,
    ReadFrom,
};
use crate::context::ToolContext;
use crate::declaration::Capabilities;
use crate::effects::processes::ProcessStatus;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::screen_text;
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};

/// Bytes of output that one read gives when none are asked for.
const READ_BYTES_DEFAULT: u64 = 32 * 1024;
/// Fewest bytes of one read.
const READ_BYTES_MIN: u64 = 256;
/// Most bytes of one read.
const READ_BYTES_MAX: u64 = 96 * 1024;
/// Longest id that is taken, in bytes.
const ID_BYTES_MAX: usize = 64;

/// The tool.
pub struct ProcessTool;

impl ProcessTool {
    /// The tool.
    pub fn new() -> Self {
        Self
    }
}

impl Default for ProcessTool {
    fn default() -> Self {
        Self::new()
    }
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("process"),
        description: "Look after the background processes of this session, which bash starts with background. list: \
            which there are and how they stand. read: what one has printed since the last read, or from cursor on. \
            stop: end one (asked first, killed after 2 s) with everything it started, and wait for its end."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["action"],
            "properties": {
                "action": {
                    "type": "string", "enum": ["list", "read", "stop"],
                    "description": "What to do.",
                },
                "id": {
                    "type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX,
                    "description": "Which process, for read and stop: bg-1, bg-2, …",
                },
                "cursor": {
                    "type": "string", "pattern": "^[0-9]{1,19}$",
                    "description": "read: begin at this byte of its output, to read something again.",
                },
                "max_bytes": {
                    "type": "integer", "minimum": READ_BYTES_MIN, "maximum": READ_BYTES_MAX,
                    "default": READ_BYTES_DEFAULT,
                    "description": "read: most bytes of output to return.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Control,
        needs: Needs { background: true, ..Needs::default() },
    }
}

impl Tool for ProcessTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        match arguments.get("action").and_then(Value::as_str) {
            Some("list") => Capabilities::parallel_safe_read(8),
            _ => Capabilities { cancellation_safe: true, ..Capabilities::conservative() },
        }
    }

    /// `list`, `read bg-1`, `stop bg-1`.
    fn subject(&self, arguments: &Value) -> Subject {
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).unwrap_or_default();
        Subject::Text(format!("{} {}", text("action"), text("id")).trim_end().to_owned())
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { answer(ctx, &arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn answer(ctx: &ToolContext, arguments: &Value) -> Step<ToolOutcome> {
    let Some(background) = &ctx.background else {
        let message = "no background processes can be held here";
        return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.into() }, message)));
    };
    if let Some(reason) = ctx.cancel.reason() {
        return Err(reach::ended("process", reason));
    }
    let text = |name: &str| arguments.get(name).and_then(Value::as_str);
    let action = text("action").unwrap_or_default();
    let id = || {
        text("id").ok_or_else(|| wrong(format!("id is missing: {action} needs to know which process; list shows them")))
    };
    for name in ["cursor", "max_bytes"].into_iter().chain((action == "list").then_some("id")) {
        if action != "read" && arguments.get(name).is_some() {
            return Err(wrong(format!("{action} takes no {name}; leave it out")));
        }
    }
    match action {
        "read" => read(background.as_ref(), id()?, arguments),
        "stop" => stop(ctx, background.as_ref(), id()?).await,
        _ => Ok(list(background.as_ref())),
    }
}

fn list(background: &dyn Background) -> ToolOutcome {
    let all = background.list();
    let mut text: String = all.iter().map(|status| line_of(status) + "\n").collect();
    if all.is_empty() {
        text.push_str("No background process has been started in this session.\n");
    } else if all.len() >= LISTED_MAX {
        text.push_str(&format!("[the last {LISTED_MAX} are listed; those that ended before are forgotten]\n"));
    }
    let running = all.iter().filter(|status| status.end.is_none()).count();
    let facts: Vec<Value> = all.iter().map(facts_of).collect();
    ToolOutcome::success(text).with("running", running).with("processes", facts)
}

fn read(background: &dyn Background, id: &str, arguments: &Value) -> Step<ToolOutcome> {
    let from = match arguments.get("cursor").and_then(Value::as_str) {
        Some(cursor) => {
            ReadFrom::Cursor(cursor.parse().map_err(|_| wrong("cursor must be the next_cursor of an earlier read"))?)
        }
        None => ReadFrom::New,
    };
    let bytes = arguments.get("max_bytes").and_then(Value::as_f64).map_or(READ_BYTES_DEFAULT, |bytes| bytes as u64);
    let bytes = usize::try_from(bytes.clamp(READ_BYTES_MIN, READ_BYTES_MAX)).unwrap_or(usize::MAX);
    let read = background.read(id, from, bytes).map_err(|error| unknown(&error))?;
    let mut text = shown(&read);
    if read.output.pieces.is_empty() {
        text.push_str("[nothing new]\n");
    }
    if read.output.more {
        text.push_str("[there is more: read again]\n");
    }
    text.push_str(&format!("[{}]\n", line_of(&read.status)));
    let page = json!({
        "cursor": read.output.start.to_string(),
        "next_cursor": read.output.next.to_string(),
        "returned_bytes": read.output.next - read.output.start,
        "skipped_bytes": read.output.skipped_bytes,
        "more": read.output.more,
    });
    Ok(ToolOutcome::success(text).with("page", page).with("process", facts_of(&read.status)))
}

async fn stop(ctx: &ToolContext, background: &dyn Background, id: &str) -> Step<ToolOutcome> {
    let status = tokio::select! { biased;
        stopped = background.stop(id) => stopped.map_err(|error| unknown(&error))?,
        // It was told to end, and does.
        reason = ctx.cancel.cancelled() => return Err(reach::ended("process", &reason)),
    };
    Ok(ToolOutcome::success(line_of(&status) + "\n").with("process", facts_of(&status)))
}

fn unknown(error: &BackgroundError) -> Box<ToolOutcome> {
    match error {
        BackgroundError::Unknown { id } => {
            Box::new(ToolOutcome::error(ToolErrorKind::NotFound { path: id.clone() }, error.to_string()))
        }
        BackgroundError::Full => Box::new(ToolOutcome::failure(error.to_string())),
    }
}

/// The text of a read as it stands on the screen at last, after a line about what it lacks.
pub(super) fn shown(read: &BackgroundRead) -> String {
    let mut text = String::new();
    if read.output.skipped_bytes > 0 {
        text.push_str(&format!("[… {} bytes were overwritten before they were read …]\n", read.output.skipped_bytes));
    }
    let bytes = read.output.all();
    text.push_str(&screen_text::settled(&String::from_utf8_lossy(&bytes)));
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// One process on one line.
fn line_of(status: &BackgroundStatus) -> String {
    let state = match &status.end {
        None => "running".to_owned(),
        Some(BackgroundEnd { how, .. }) => {
            let ended = outcome_of_end(how).output;
            if ended.is_empty() { "ended: exit code 0".to_owned() } else { format!("ended: {ended}") }
        }
    };
    let (all, unread) = (status.output.total_bytes(), status.unread_bytes);
    let line = screen_text::settled(status.line.lines().next().unwrap_or_default()).into_owned();
    format!("{} {state}; {all} bytes printed, {unread} unread: {line}", status.id)
}

/// What became of a process that ended; empty for a success.
pub(super) fn outcome_of_end(how: &BackgroundOutcome) -> ToolOutcome {
    match how {
        BackgroundOutcome::Ended(end) => match (&end.stopped, end.status) {
            (Some(reason), _) => ToolOutcome::ended_early("process", reason),
            (None, status) => of_status(status),
        },
        BackgroundOutcome::Failed(error) => of_error(error),
        BackgroundOutcome::GivenUp { reason } => ToolOutcome::failure(match reason {
            Some(reason) => format!("killed: {reason}"),
            None => "killed with what it hung on".to_owned(),
        }),
    }
}

/// One process as facts.
pub(super) fn facts_of(status: &BackgroundStatus) -> Value {
    let mut facts = json!({
        "id": status.id,
        "command": status.line,
        "tool_id": status.invocation,
        "state": if status.end.is_none() { "running" } else { "ended" },
        "started_at_ms": status.started_at_ms,
        "output": status.output,
        "unread_bytes": status.unread_bytes,
    });
    let Some(end) = &status.end else { return facts };
    facts["ended_at_ms"] = json!(end.ended_at_ms);
    match &end.how {
        BackgroundOutcome::Ended(end) => {
            let code = if let ProcessStatus::Exited { code } = end.status { Some(code) } else { None };
            facts["exit_code"] = json!(code);
            if let ProcessStatus::Signalled { signal } = end.status {
                facts["signal"] = json!(signal_name(signal));
            }
            facts["stopped"] = json!(end.stopped);
            facts["containment"] = json!({"level": end.level.as_str(), "survivors": end.survivors});
        }
        BackgroundOutcome::Failed(error) => facts["failure"] = json!(error.to_string()),
        BackgroundOutcome::GivenUp { reason } => facts["stopped"] = json!(reason),
    }
    facts
}
