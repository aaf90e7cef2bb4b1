//! `bash`: runs one command line in the workspace and tells how it went.
//!
//! The command runs through the workspace's command runner alone, so that the runtime can put it under a supervised
//! node. It ends when the shell ends, or at the time-out, or when the call is cancelled, and never later than a
//! named span after that; what was printed before is always in the result. Its environment is what the host handed
//! in (see [`allowed_environment`]) and what the call adds; nothing is kept between calls, so no `cd` and no
//! `export` of one call can disturb another.

mod background;
mod environment;
mod recorder;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use self::environment::{Additions, quoted};
use self::recorder::Recorder;
use super::ending::{of_error, of_status, signal_name, unsupported};
use super::reach::{self, Step, fault, wrong};
use crate::cancellation::{CancelReason, Cancellation};
use crate::capture::{CaptureReport, StreamCount};
use crate::context::{Spool, ToolContext};
use crate::declaration::Capabilities;
use crate::effects::files::{FileKind, Links};
use crate::effects::processes::confinement::told;
use crate::effects::processes::{CommandSpec, ContainmentLevel, LeftProcess, ProcessEnd, ProcessError, ProcessStatus};
use crate::ids::ToolName;
use crate::outcome::{Excerpt, ToolErrorKind, ToolOutcome, Trust};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace::Commands;
use crate::workspace_path::PATH_BYTES_MAX;

/// Longest command line, in bytes: Linux takes no longer argument, its closing NUL included.
pub const COMMAND_BYTES_MAX: usize = 128 * 1024 - 1;
/// Longest standard input, in bytes.
pub const STDIN_BYTES_MAX: usize = 1024 * 1024;
/// The time-out when none is given, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 120_000;
/// The shortest time-out; a shorter one is raised to it.
pub const TIMEOUT_MS_MIN: u64 = 1000;
/// The longest time-out; a longer one is lowered to it.
pub const TIMEOUT_MS_MAX: u64 = 3_600_000;
/// From TERM to KILL.
const GRACE: Duration = Duration::from_secs(2);
/// How long output of background children is awaited when the shell has ended.
const DRAIN: Duration = Duration::from_millis(200);
/// How long a runner may take to report the end of a command that it was told to stop, before it is dropped.
const SETTLE: Duration = Duration::from_secs(10);
/// Most processes that a sentence names of what a command left running; the metadata may name more.
const LEFT_SHOWN_MAX: usize = 4;
/// The shortest span between two deltas.
const DELTA_PAUSE: Duration = Duration::from_millis(50);

/// The tool.
pub struct BashTool {
    environment: BTreeMap<String, String>,
}

impl BashTool {
    /// A shell whose commands see exactly this environment, besides a few fixed settings and what a call adds.
    pub fn new(environment: BTreeMap<String, String>) -> Self {
        Self { environment }
    }
}

/// What a command may see of the environment of this process: the variables on a short list, and none whose name
/// looks like that of a secret.
pub fn allowed_environment(variables: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    variables.into_iter().filter(|(name, value)| environment::is_allowed(name, value)).collect()
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("bash"),
        description:
            "Run a command line with bash in the workspace and get what it printed (standard output and error \
            together, in order of arrival) and its exit code. Every call is a new shell: use cwd rather than cd, and \
            env rather than export, for nothing stays for the next call. Nobody can type: standard input is empty \
            unless stdin gives it. What still runs when the shell ends is stopped: for a server or a watcher set \
            background to true, which returns at once with an id; the tool process reads its output and stops it. \
            Of long output the start and the end are kept, so send what you need whole to a file or through grep, \
            head or tail. \
            Prefer read, search, edit and ls over cat, grep, sed and find."
                .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["command"],
            "properties": {
                "command": {
                    "type": "string", "minLength": 1,
                    "description": "The command line, as for bash -c.",
                },
                "timeout": {
                    "type": "integer", "minimum": 0, "default": TIMEOUT_MS_DEFAULT,
                    "description": "Milliseconds until the command is stopped; 1000 to 3600000.",
                },
                "cwd": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "default": ".",
                    "description": "The folder to run in, inside the workspace.",
                },
                "stdin": {
                    "type": "string",
                    "description": "Text for standard input, then end of file.",
                },
                "env": {
                    "type": "object", "additionalProperties": {"type": "string"},
                    "maxProperties": environment::ADDITIONS_MAX,
                    "description": "Variables to add to the environment of this call.",
                },
                "background": {
                    "type": "boolean", "default": false,
                    "description": "Run it beside the session instead of waiting for it, until it ends, is stopped \
                        with process, or the session ends; timeout holds only when it is given.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Execute,
        needs: Needs { exec: true, background: true, ..Needs::default() },
    }
}

impl Tool for BashTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { cancellation_safe: true, ..Capabilities::conservative() }
    }

    /// The command line. Added variables can change what it does, so they stand before it as the `export` they
    /// amount to.
    fn subject(&self, arguments: &Value) -> Subject {
        let command = arguments.get("command").and_then(Value::as_str).unwrap_or_default();
        let mut line = String::new();
        for (name, value) in arguments.get("env").and_then(Value::as_object).into_iter().flatten() {
            line.push_str(&format!("export {name}={}\n", quoted(value.as_str().unwrap_or_default())));
        }
        Subject::Command(line + command)
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            match self.prepare(ctx, &arguments) {
                Ok(request) if request.is_background => request.start(ctx).await.unwrap_or_else(|refusal| *refusal),
                Ok(request) => request.run(ctx).await,
                Err(refusal) => *refusal,
            }
        })
    }
}

impl BashTool {
    /// Checks everything that can be known before anything runs.
    fn prepare(&self, ctx: &ToolContext, arguments: &Value) -> Step<Request> {
        let Some(commands) = ctx.workspace.commands() else {
            return Err(unsupported("commands cannot be run in this workspace; use its other tools"));
        };
        if let Some(reason) = ctx.cancel.reason() {
            return Err(reach::ended("bash", reason));
        }
        let text = |name: &str| arguments.get(name).and_then(Value::as_str);
        let command = text("command").unwrap_or_default();
        if command.trim().is_empty() {
            return Err(wrong("command is empty; give a command line"));
        }
        if command.contains('\0') {
            return Err(wrong("command holds a NUL character, which no command line can; write it as \\0 for printf"));
        }
        if command.len() > COMMAND_BYTES_MAX {
            return Err(wrong(format!(
                "command has {} bytes and at most {COMMAND_BYTES_MAX} are taken; write a script file and run that, or use stdin",
                command.len()
            )));
        }
        let stdin = text("stdin");
        if let Some(bytes) = stdin.map(str::len).filter(|bytes| *bytes > STDIN_BYTES_MAX) {
            return Err(wrong(format!(
                "stdin has {bytes} bytes and at most {STDIN_BYTES_MAX} are taken; write a file and redirect it"
            )));
        }
        let additions = Additions::from_arguments(arguments).map_err(wrong)?;
        let spec = CommandSpec {
            program: "bash".into(),
            // Neither start-up files nor a command that begins with a dash may change what is run.
            arguments: ["--noprofile", "--norc", "-c", "--", command].map(str::to_owned).to_vec(),
            environment: additions.over(&self.environment),
            folder: folder(ctx, commands, text("cwd"))?,
            stdin: stdin.map(|text| text.as_bytes().to_vec()),
            grace: GRACE,
            drain: DRAIN,
            confinement: None,
        };
        Ok(Request {
            commands: commands.clone(),
            line: command.to_owned(),
            spec,
            timeout: Timeout::from_arguments(arguments),
            has_timeout: arguments.get("timeout").is_some(),
            is_background: arguments.get("background").and_then(Value::as_bool).unwrap_or_default(),
        })
    }
}

/// The folder on this machine that a call runs in.
fn folder(ctx: &ToolContext, commands: &Commands, cwd: Option<&str>) -> Step<PathBuf> {
    let Some(cwd) = cwd else { return Ok(commands.folder.clone()) };
    let files = ctx.workspace.files();
    let path = files.canonical(&reach::path(ctx, cwd)?).map_err(|error| fault(&error))?;
    match files.stat(&path, Links::Follow) {
        Ok(stat) if stat.kind != FileKind::Folder => Err(wrong(format!("cwd: {path} is not a folder"))),
        Ok(_) => Ok(commands.folder.join(path.as_path())),
        Err(error) => Err(fault(&error)),
    }
}

/// The span after which a command is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timeout {
    requested_ms: u64,
    applied_ms: u64,
}

impl Timeout {
    fn from_arguments(arguments: &Value) -> Self {
        let requested_ms = match arguments.get("timeout") {
            // A whole number may be written as 1e6: the conversion saturates.
            Some(value) => value.as_u64().or_else(|| value.as_f64().map(|ms| ms as u64)).unwrap_or(TIMEOUT_MS_DEFAULT),
            None => TIMEOUT_MS_DEFAULT,
        };
        Self { requested_ms, applied_ms: requested_ms.clamp(TIMEOUT_MS_MIN, TIMEOUT_MS_MAX) }
    }
}

/// One checked call.
struct Request {
    commands: Commands,
    line: String,
    spec: CommandSpec,
    timeout: Timeout,
    has_timeout: bool,
    is_background: bool,
}

/// How a run went, as far as it is known.
struct Run {
    end: Result<ProcessEnd, ProcessError>,
    stopped: Option<CancelReason>,
}

impl Request {
    async fn run(self, ctx: &ToolContext) -> ToolOutcome {
        let leftover = ctx.background.as_ref().map(|background| background.leftover()).unwrap_or_default();
        let recorder = Arc::new(Recorder::new(Arc::clone(&ctx.spool), leftover));
        let stop = Cancellation::new();
        let mut deadline = pin!(sleep(Duration::from_millis(self.timeout.applied_ms)));
        let running = self.commands.processes.run(self.spec.clone(), Arc::clone(&recorder) as _, stop.clone());
        let end = self.attend(ctx, running, &stop, deadline.as_mut(), &recorder).await;
        // A command that was refused to a call on its way out ends before the call has heard of its cancel.
        let refused = matches!(end, Err(ProcessError::Unsupervised { .. }));
        let stopped = stop.reason().or_else(|| ctx.cancel.reason().filter(|_| refused)).cloned();
        let run = Run { end, stopped };
        recorder.flush(ctx.progress.as_ref());
        let (text, report) = recorder.finish();
        self.outcome(&run, text, &report, &*ctx.spool)
    }

    /// Waits for the end of a run; meanwhile passes on its output, the time-out and a cancel.
    async fn attend(
        &self,
        ctx: &ToolContext,
        mut running: BoxFuture<'static, Result<ProcessEnd, ProcessError>>,
        stop: &Cancellation,
        mut deadline: Pin<&mut Sleep>,
        recorder: &Recorder,
    ) -> Result<ProcessEnd, ProcessError> {
        let mut overdue = pin!(sleep_until(Instant::now()));
        let mut flush = pin!(sleep_until(Instant::now()));
        let mut flush_due = false;
        loop {
            let stopping = stop.is_cancelled();
            let reason = tokio::select! { biased;
                end = &mut running => return end,
                reason = ctx.cancel.cancelled(), if !stopping => reason,
                () = deadline.as_mut(), if !stopping => CancelReason::Deadline { timeout_ms: self.timeout.applied_ms },
                () = overdue.as_mut(), if stopping => {
                    // Dropping the run kills what it still holds.
                    let reason = "its end was not reported in time after it was told to stop".to_owned();
                    return Err(ProcessError::Unsupervised { program: self.spec.program.clone(), reason });
                }
                () = flush.as_mut(), if flush_due => {
                    flush_due = false;
                    recorder.flush(ctx.progress.as_ref());
                    flush.as_mut().reset(Instant::now() + DELTA_PAUSE);
                    continue;
                }
                () = recorder.news(), if !flush_due => {
                    flush_due = true;
                    continue;
                }
            };
            overdue.as_mut().reset(Instant::now() + self.spec.grace + SETTLE);
            stop.cancel(reason);
        }
    }

    fn outcome(&self, run: &Run, text: String, report: &CaptureReport, spool: &dyn Spool) -> ToolOutcome {
        let stopped = run.end.as_ref().map_or(run.stopped.as_ref(), |end| end.stopped.as_ref());
        let ended = match (stopped, &run.end) {
            (Some(reason), _) => ToolOutcome::ended_early("bash", reason),
            (None, Ok(end)) => of_status(end.status),
            (None, Err(error)) => of_error(error),
        };
        let mut output = text;
        let before = output.len();
        for notice in self.notices(run, &ended.output) {
            if !output.is_empty() && !output.ends_with('\n') {
                output.push('\n');
            }
            output.push_str(&format!("[{notice}]\n"));
        }
        let excerpt = report.excerpt();
        if excerpt != Excerpt::Whole {
            // The whole is what the output would be, had nothing been left out.
            spool.write(&output.as_bytes()[before..]);
        }
        let timed_out = matches!(ended.error, Some(ToolErrorKind::Timeout { .. }));
        ToolOutcome {
            output,
            metadata: self.metadata(run, report, timed_out),
            trust: Trust::WorkspaceData,
            excerpt,
            ..ended
        }
    }

    /// What the model must know besides the output, one line each.
    fn notices(&self, run: &Run, ending: &str) -> Vec<String> {
        let mut notices = Vec::new();
        if !ending.is_empty() {
            notices.push(ending.to_owned());
        }
        match &run.end {
            Ok(ProcessEnd { handed_over: Some(id), left, .. }) => notices.push(format!(
                "what still ran when the shell ended goes on as background process {id}{}; use process to read its \
                 output or to stop it",
                named(left)
            )),
            Ok(end) if end.killed_background && end.stopped.is_none() => {
                let what = "what still ran in the background when the shell ended was stopped";
                notices.push(format!("{what}{}", named(&end.left)));
            }
            Ok(end) if end.output_held && !end.killed_background => notices.push(
                match end.level {
                    ContainmentLevel::Group => {
                        "a process that left the group of this command held its output and may still run"
                    }
                    _ => "a process that this command did not start held its output",
                }
                .into(),
            ),
            Ok(end) if end.status == ProcessStatus::Unknown => notices.push(match end.level {
                ContainmentLevel::Group => "the command was killed, but the system has not reported its end yet".into(),
                _ => "the process that watched over this command was killed".into(),
            }),
            Err(error) if run.stopped.is_some() => notices.push(error.to_string()),
            _ => {}
        }
        if let Some(end) = run.end.as_ref().ok().filter(|end| !end.survivors.is_empty()) {
            let pids: Vec<String> = end.survivors.iter().map(u32::to_string).collect();
            notices.push(format!("these processes of the command could not be ended: {}", pids.join(", ")));
        }
        notices
    }

    fn metadata(&self, run: &Run, report: &CaptureReport, timed_out: bool) -> Map<String, Value> {
        let stream = |count: StreamCount| json!({"total_bytes": count.total_bytes, "captured_bytes": count.kept_bytes});
        let mut facts = Map::new();
        let status = run.end.as_ref().map_or(ProcessStatus::Unknown, |end| end.status);
        let code = if let ProcessStatus::Exited { code } = status { Some(code) } else { None };
        facts.insert("exit_code".into(), json!(code));
        if let ProcessStatus::Signalled { signal } = status {
            facts.insert("signal".into(), json!(signal_name(signal)));
        }
        let confinement = run.end.as_ref().ok().and_then(|end| end.confinement.as_deref());
        facts.insert("sandboxed".into(), json!(confinement.is_some_and(|confinement| !confinement.is_off())));
        facts.insert("timeout_ms".into(), json!(self.timeout.applied_ms));
        if self.timeout.applied_ms != self.timeout.requested_ms {
            facts.insert("timeout_clamped".into(), json!(true));
            facts.insert("requested_timeout_ms".into(), json!(self.timeout.requested_ms));
        }
        facts.insert(
            "output".into(),
            json!({
                "total_bytes": report.total_bytes(),
                "captured_bytes": report.kept_bytes(),
                "omitted_bytes": report.omitted_bytes(),
                "truncated": report.is_truncated(),
                "timed_out": timed_out,
                "lossy": report.invalid_bytes > 0,
                "invalid_bytes": report.invalid_bytes,
                "clamped_lines": report.clamped_lines,
                "stdout": stream(report.out),
                "stderr": stream(report.err),
            }),
        );
        if let Ok(end) = &run.end {
            facts.insert("output_held".into(), json!(end.output_held));
            facts.insert("background_killed".into(), json!(end.killed_background));
            if end.handed_over.is_some() || !end.left.is_empty() {
                let kept = end.handed_over.is_some();
                let became = if kept { "handed_over" } else { "stopped" };
                facts.insert("left".into(), json!({"became": became, "id": end.handed_over, "processes": end.left}));
            }
            let containment = json!({"level": end.level.as_str(), "survivors": end.survivors});
            facts.insert("containment".into(), containment);
            facts.insert("sandbox".into(), told(confinement));
        }
        facts
    }
}

/// Processes by name, for the end of a sentence.
fn named(left: &[LeftProcess]) -> String {
    if left.is_empty() {
        return String::new();
    }
    let shown = left.iter().take(LEFT_SHOWN_MAX).map(|process| format!("{} ({})", process.command, process.pid));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = if left.len() > LEFT_SHOWN_MAX { ", …" } else { "" };
    format!(": {shown}{more}")
}

#[cfg(test)]
mod tests;
