//! `program`: a script that calls tools, for work that one call does not do and a model need not watch.
//!
//! The script runs in an engine of its own (QuickJS) that reaches nothing by itself: no file, network, process,
//! environment or other module, and no code made out of text. All it can do is call tools, each through the governed
//! route like any other call, so a script can do nothing that its calls could not do one by one. Memory, stack, time,
//! calls, output and result are bounded; whichever way its call ends, its thread and its calls end with it.

pub(crate) mod allowance;
mod answer;
pub(crate) mod desk;
mod engine;
pub(crate) mod fault;
mod mailbox;
mod report;
mod value;

use std::io::Read as _;
use std::sync::Arc;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use thiserror::Error;

use self::allowance::{Allowance, UnknownTools};
use self::desk::run_script;
use super::reach::{self, Step, wrong};
use crate::context::{Invoke, ToolContext};
use crate::declaration::Capabilities;
use crate::digest::Digest;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::PATH_BYTES_MAX;

/// Longest source, in bytes.
pub const SOURCE_BYTES_MAX: usize = 192 * 1024;
/// Memory of a script, in bytes.
pub const HEAP_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Stack of a script, in bytes.
pub const STACK_BYTES_MAX: usize = 512 * 1024;
/// Time of a script unless it says otherwise, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// The same for one that may start tasks.
pub const TIMEOUT_MS_DEFAULT_TASKS: u64 = 600_000;
/// Longest time that a script may be given: one day, in milliseconds.
pub const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Calls of a script unless it says otherwise.
pub const TOOL_CALLS_DEFAULT: u32 = 20;
/// Most calls that a script may be given.
pub const TOOL_CALLS_MAX: u32 = 10_000;
/// How much of one call's output reaches the script unless it says otherwise, in bytes.
pub const OUTPUT_BYTES_DEFAULT: usize = 64 * 1024;
/// The most of one call's output that can reach a script, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
/// Largest result, in bytes of its JSON text.
pub const RESULT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Largest arguments of one call, in bytes of their JSON text.
pub const ARGUMENTS_BYTES_MAX: usize = 1024 * 1024;
/// How much of the console is kept, in bytes.
pub const CONSOLE_BYTES_MAX: usize = 64 * 1024;
/// Longest line of the console, in bytes.
pub const CONSOLE_LINE_BYTES_MAX: usize = 4 * 1024;
/// Most calls beside each other.
pub const WIDTH_MAX: usize = 16;

/// The tool.
pub struct ProgramTool;

/// Why no script was run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProgramError {
    /// The arguments have another form.
    #[error("the arguments of program cannot be read: {0}")]
    Malformed(String),
    /// No source at all.
    #[error("source or path is required: give the script's text, or the path of a .js or .mjs file")]
    NoSource,
    /// Not the name of a script.
    #[error("{0:?} is no script; path is a file that ends in .js or .mjs")]
    NotAScript(String),
    /// Longer than [`SOURCE_BYTES_MAX`].
    #[error(
        "the script has {bytes} bytes; at most {SOURCE_BYTES_MAX} are taken: give data through inputs or files, not in \
         the source"
    )]
    TooLong {
        /// Its size; of a file as much as was read.
        bytes: usize,
    },
    /// A file in another encoding.
    #[error("{0} is not UTF-8; save it as UTF-8")]
    Encoding(String),
    /// A limit outside of its range.
    #[error("limits.{name} is {value}; it is 1 to {most}")]
    Limit {
        /// Which.
        name: &'static str,
        /// What was asked.
        value: u64,
        /// The most.
        most: u64,
    },
    /// Tools that nobody has.
    #[error("{0}")]
    Tools(String),
    /// No way to call tools.
    #[error("this host gives program no way to call other tools; call them one by one")]
    NoInvoke,
}

impl From<UnknownTools> for ProgramError {
    fn from(error: UnknownTools) -> Self {
        Self::Tools(error.to_string())
    }
}

impl From<ProgramError> for ToolOutcome {
    fn from(error: ProgramError) -> Self {
        let message = error.to_string();
        match error {
            ProgramError::NoInvoke => Self::error(ToolErrorKind::Unsupported { message: message.clone() }, message),
            _ => Self::invalid_argument(message),
        }
    }
}

/// A script's text and the name that it has in messages.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its path, or what stands for one.
    pub(crate) name: String,
    /// The text.
    pub(crate) text: String,
}

/// The limits of one script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) timeout_ms: u64,
    pub(crate) tool_calls_max: u32,
    pub(crate) output_bytes_max: usize,
}

/// What a script may look at beside its inputs, and is made for it when it does: `steps`, by id, and `history`.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunView {
    pub(crate) steps: IndexMap<Arc<str>, Arc<Value>>,
    pub(crate) history: Vec<Arc<Value>>,
}

/// A script that may run.
pub(crate) struct Order {
    pub(crate) source: Source,
    pub(crate) inputs: Value,
    pub(crate) view: Option<Arc<RunView>>,
    pub(crate) allowance: Allowance,
    pub(crate) limits: Limits,
    /// Where its random numbers begin.
    pub(crate) seed: u64,
    /// Where its clock stands, in milliseconds since 1970, when it is not to run.
    pub(crate) pinned_ms: Option<u64>,
}

#[derive(Deserialize)]
struct Arguments {
    source: Option<String>,
    path: Option<String>,
    #[serde(default)]
    inputs: Map<String, Value>,
    allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    limits: AskedLimits,
}

/// The limits as they are asked for.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AskedLimits {
    timeout_ms: Option<u64>,
    max_tool_calls: Option<u64>,
    max_output_bytes: Option<u64>,
}

impl AskedLimits {
    /// The limits in force for a script that may call these tools.
    ///
    /// # Errors
    /// [`ProgramError::Limit`].
    pub(crate) fn checked(self, allowance: &Allowance) -> Result<Limits, ProgramError> {
        let within = |name, asked: Option<u64>, default: u64, most: u64| match asked {
            None => Ok(default),
            Some(value) if (1..=most).contains(&value) => Ok(value),
            Some(value) => Err(ProgramError::Limit { name, value, most }),
        };
        let timeout_ms_default = if allowance.names("task") { TIMEOUT_MS_DEFAULT_TASKS } else { TIMEOUT_MS_DEFAULT };
        let calls = within("maxToolCalls", self.max_tool_calls, TOOL_CALLS_DEFAULT.into(), TOOL_CALLS_MAX.into())?;
        let (default, most) = (OUTPUT_BYTES_DEFAULT as u64, OUTPUT_BYTES_MAX as u64);
        let output = within("maxOutputBytes", self.max_output_bytes, default, most)?;
        Ok(Limits {
            timeout_ms: within("timeoutMs", self.timeout_ms, timeout_ms_default, TIMEOUT_MS_MAX)?,
            tool_calls_max: u32::try_from(calls).unwrap_or(TOOL_CALLS_MAX),
            output_bytes_max: usize::try_from(output).unwrap_or(OUTPUT_BYTES_MAX),
        })
    }
}

impl ProgramTool {
    /// The tool, ready to register.
    pub fn new() -> Self {
        Self
    }
}

impl Default for ProgramTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for ProgramTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { cancellation_safe: true, ..Capabilities::conservative() }
    }

    /// The path of a script that is a file; else the digest of the source, so that a rule can allow one script.
    fn subject(&self, arguments: &Value) -> Subject {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str);
        match (text("source"), text("path")) {
            (None, Some(path)) => Subject::Paths { paths: vec![path.to_owned()], write: false },
            (source, _) => Subject::Text(Digest::of(source.unwrap_or_default().as_bytes()).to_string()),
        }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            if let Some(reason) = ctx.cancel.reason() {
                return ToolOutcome::ended_early("program", reason);
            }
            match prepare(ctx, arguments) {
                Ok((invoke, order)) => report::outcome(Box::pin(run_script(ctx, &invoke, order)).await),
                Err(ended) => *ended,
            }
        })
    }
}

/// Everything that is checked before a script runs.
fn prepare(ctx: &ToolContext, arguments: Value) -> Step<(Arc<dyn Invoke>, Order)> {
    let ended = |error: ProgramError| Box::new(ToolOutcome::from(error));
    let arguments =
        Arguments::deserialize(arguments).map_err(|error| ended(ProgramError::Malformed(error.to_string())))?;
    let invoke = ctx.invoke.clone().ok_or_else(|| ended(ProgramError::NoInvoke))?;
    let source = read_source(ctx, arguments.source, arguments.path.as_deref())?;
    let allowance = Allowance::new(arguments.allowed_tools, invoke.as_ref()).map_err(|error| ended(error.into()))?;
    let limits = arguments.limits.checked(&allowance).map_err(ended)?;
    let seed = seed_of(ctx.invocation.as_str());
    let inputs = Value::Object(arguments.inputs);
    Ok((invoke, Order { source, inputs, view: None, allowance, limits, seed, pinned_ms: None }))
}

/// The script's text; a source that is given wins over a path.
///
/// # Errors
/// The outcome that says what is wrong with it.
pub(crate) fn read_source(ctx: &ToolContext, source: Option<String>, path: Option<&str>) -> Step<Source> {
    let ended = |error: ProgramError| Box::new(ToolOutcome::from(error));
    let source = match (source, path) {
        (Some(text), _) => Source { name: "program.js".to_owned(), text },
        (None, None) => return Err(ended(ProgramError::NoSource)),
        (None, Some(path)) => {
            if !(path.ends_with(".js") || path.ends_with(".mjs")) {
                return Err(ended(ProgramError::NotAScript(path.to_owned())));
            }
            let found = reach::path(ctx, path)?;
            let file = ctx.workspace.files().open(&found).map_err(|error| reach::fault(&error))?;
            let mut bytes = Vec::new();
            let limit = SOURCE_BYTES_MAX as u64 + 1;
            file.take(limit).read_to_end(&mut bytes).map_err(|error| wrong(format!("cannot read {path}: {error}")))?;
            if bytes.len() > SOURCE_BYTES_MAX {
                return Err(ended(ProgramError::TooLong { bytes: bytes.len() }));
            }
            let text = String::from_utf8(bytes).map_err(|_| ended(ProgramError::Encoding(path.to_owned())))?;
            let text = text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned);
            Source { name: found.to_string(), text }
        }
    };
    match source.text.len() {
        bytes if bytes > SOURCE_BYTES_MAX => Err(ended(ProgramError::TooLong { bytes })),
        _ => Ok(source),
    }
}

/// Where the random numbers of a call begin: its id, which was drawn from the host's entropy and stands in the journal,
/// so that a script can be replayed.
pub(crate) fn seed_of(id: &str) -> u64 {
    // FNV-1a.
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The schema of `limits`, without what only a workflow has.
pub(crate) fn limits_schema() -> Value {
    json!({
        "timeoutMs": {
            "type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX,
            "description": format!(
                "Milliseconds until the script is stopped; {TIMEOUT_MS_DEFAULT} when left out, \
                 {TIMEOUT_MS_DEFAULT_TASKS} when it may start tasks."
            ),
        },
        "maxToolCalls": {
            "type": "integer", "minimum": 1, "maximum": TOOL_CALLS_MAX, "default": TOOL_CALLS_DEFAULT,
            "description": "Most tool calls.",
        },
        "maxOutputBytes": {
            "type": "integer", "minimum": 1, "maximum": OUTPUT_BYTES_MAX, "default": OUTPUT_BYTES_DEFAULT,
            "description": "Most bytes of one call's output that reach the script.",
        },
    })
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("program"),
        description: "Run a JavaScript that calls tools, and get back what it returns. Use it when many calls \
            depend on each other or when only a small part of what they find matters: loop, filter and count in the \
            script instead of reading everything yourself. For a few independent calls use batch. The script defines \
            async function run(ctx, inputs) and returns a JSON value. ctx has tool(name, args) and tools.NAME(args) \
            for any tool, with the answer {name, output, exitCode, success, truncated, metadata, error}; read and git \
            answer the same; readFile(path, {offset, limit}) gives plain text, glob(pattern) an array of paths, and \
            grep, bm25, search, ls, bash and verify give the tool's text. A tool that fails does not throw (look at \
            success); readFile and glob do. Await calls together with Promise.all; calls that only read run beside \
            each other. There is no file, network, process, timer, import, eval or other library in the script itself. \
            console.log is kept and shown. Calls that are not awaited are cancelled when run returns."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["type"],
            "properties": {
                "type": {"type": "string", "enum": ["script"]},
                "language": {"type": "string", "enum": ["javascript"], "default": "javascript"},
                "source": {
                    "type": "string", "minLength": 1,
                    "description": format!("The script, at most {} KiB. Give this or path.", SOURCE_BYTES_MAX / 1024),
                },
                "path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                    "description": "A .js or .mjs file in the workspace that holds the script.",
                },
                "inputs": {"type": "object", "description": "Given to run as its second argument."},
                "allowed_tools": {
                    "type": "array", "items": {"type": "string", "minLength": 1},
                    "description": "The tools that the script may call; all that you may call when left out.",
                },
                "limits": {
                    "type": "object", "additionalProperties": false, "properties": limits_schema(),
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Control,
        needs: Needs { invoke: true, ..Needs::default() },
    }
}

#[cfg(test)]
mod tests;
