//! `dynamic_workflow`: work in steps whose every step is kept, so that what was interrupted goes on where it stood.
//!
//! A script (or a list of nodes) says what comes next; a log says what has been. What is decided from both is pure
//! ([`crate::workflow`]); this drives it: asks the script, runs the steps, writes every event before it acts on it. The
//! script decides without tools, clock or chance, so that it says the same again; its steps have tools, each call on
//! the governed route.

mod asking;
mod driver;
mod report;
mod step;
mod unrecorded;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use self::driver::{Plan, drive_all};
use self::step::Room;
use self::unrecorded::Unrecorded;
use super::generate_object::NAME as GENERATE_OBJECT;
use super::program::allowance::Allowance;
use super::program::{AskedLimits, ProgramError, Source, limits_schema, read_source};
use super::reach::{Step, wrong};
use crate::context::{Invoke, ToolContext};
use crate::declaration::Capabilities;
use crate::digest::Digest;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workflow::log::{self, LogError};
use crate::workflow::node::{self, NODES_MAX, Node};
use crate::workflow::{RUN_ID_CHARS_MAX, RUN_TIMEOUT_MS_MAX, STEP_ID_BYTES_MAX};

/// Steps beside each other unless the caller says otherwise.
pub const STEPS_WIDTH_DEFAULT: usize = 4;
/// Most steps beside each other.
pub const STEPS_WIDTH_MAX: usize = 32;
/// Most generations beside each other.
pub const GENERATIONS_WIDTH_MAX: usize = 4;
/// Most signals of one call.
pub const SIGNALS_MAX: usize = 32;

/// The tool.
#[derive(Default)]
pub struct DynamicWorkflowTool {
    unrecorded: Arc<Unrecorded>,
}

/// Why no run was begun or gone on with.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WorkflowError {
    /// The arguments have another form.
    #[error("the arguments of dynamic_workflow cannot be read: {0}")]
    Malformed(String),
    /// Nothing that decides.
    #[error("source is required: a script with run(ctx, inputs)")]
    NoSource,
    /// The nodes do not fit together.
    #[error("{0}")]
    Nodes(String),
    /// The run exists with something else.
    #[error("run {run_id:?} exists already with another {what}; take another run_id, or give what it was begun with")]
    Conflict {
        /// Which run.
        run_id: String,
        /// What differs.
        what: &'static str,
    },
    /// Its log cannot be used.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl From<WorkflowError> for ToolOutcome {
    fn from(error: WorkflowError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

#[derive(Deserialize)]
struct Arguments {
    source: Option<String>,
    #[serde(default)]
    input: Value,
    run_id: Option<String>,
    #[serde(default)]
    nodes: Vec<Node>,
    #[serde(default)]
    signals: Vec<SignalArgument>,
    cancel: Option<String>,
    #[serde(default)]
    cancel_at_once: bool,
    allowed_tools: Option<Vec<String>>,
    #[serde(default)]
    limits: Value,
}

/// A signal for a run.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SignalArgument {
    pub(crate) signal_id: String,
    pub(crate) signal: String,
    #[serde(default)]
    pub(crate) payload: Value,
    /// Which run it is for; the one that was asked for when none.
    pub(crate) run_id: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RunLimits {
    max_concurrent_generations: Option<usize>,
    max_concurrent_steps: Option<usize>,
    run_timeout_ms: Option<u64>,
}

impl DynamicWorkflowTool {
    /// The tool, ready to register.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Tool for DynamicWorkflowTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { resumable: true, cancellation_safe: true, ..Capabilities::conservative() }
    }

    /// The digest of the source, so that a rule can allow one workflow.
    fn subject(&self, arguments: &Value) -> Subject {
        let source = arguments.get("source").and_then(Value::as_str).unwrap_or_default();
        Subject::Text(Digest::of(source.as_bytes()).to_string())
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            if let Some(reason) = ctx.cancel.reason() {
                return ToolOutcome::ended_early("dynamic_workflow", reason);
            }
            match prepare(ctx, arguments, &self.unrecorded) {
                Ok((invoke, plan)) => run(ctx, &invoke, plan).await,
                Err(ended) => *ended,
            }
        })
    }
}

async fn run(ctx: &ToolContext, invoke: &Arc<dyn Invoke>, plan: Plan) -> ToolOutcome {
    match drive_all(ctx, invoke, plan).await {
        Ok((driver, end)) => report::outcome(&driver, end),
        Err((_, error)) => WorkflowError::from(error).into(),
    }
}

/// What tells a workflow from another one.
fn source_hash(source: &Source, nodes: &[Node]) -> Digest {
    let of_nodes = if nodes.is_empty() { Value::Null } else { json!(nodes) };
    Digest::of_json(&json!({"source": source.text, "nodes": of_nodes}))
}

fn prepare(ctx: &ToolContext, arguments: Value, unrecorded: &Arc<Unrecorded>) -> Step<(Arc<dyn Invoke>, Plan)> {
    let ended = |error: WorkflowError| Box::new(ToolOutcome::from(error));
    let malformed = |error: serde_json::Error| ended(WorkflowError::Malformed(error.to_string()));
    let mut arguments = Arguments::deserialize(arguments).map_err(malformed)?;
    let Some(invoke) = ctx.invoke.clone() else {
        let message = "this host gives dynamic_workflow no way to call other tools; do the steps one by one";
        return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.into() }, message)));
    };
    if arguments.source.is_none() {
        return Err(ended(WorkflowError::NoSource));
    }
    let source = Source { name: "workflow.js".to_owned(), ..read_source(ctx, arguments.source.take(), None)? };
    if let Some(problem) = node::fault(&arguments.nodes, &arguments.input) {
        return Err(ended(WorkflowError::Nodes(problem)));
    }
    let says_nothing = arguments.allowed_tools.is_none();
    let allowance =
        Allowance::new(arguments.allowed_tools, invoke.as_ref()).map_err(|error| wrong(error.to_string()))?;
    // No model sees it, and a step may be of this kind all the same.
    let allowance = match says_nothing && invoke.has(GENERATE_OBJECT) {
        true => allowance.and(GENERATE_OBJECT),
        false => allowance,
    };
    let limits = if arguments.limits.is_null() { json!({}) } else { arguments.limits };
    let of_run = RunLimits::deserialize(&limits).map_err(malformed)?;
    let asked = AskedLimits::deserialize(&limits).map_err(malformed)?;
    let limits = asked.checked(&allowance).map_err(|error| Box::new(ToolOutcome::from(error)))?;
    let run_id = arguments.run_id.unwrap_or_else(|| {
        let digest = Digest::of_domain("toolwarden.workflow-run", ctx.invocation.as_str().as_bytes());
        format!("run-{}", &digest.hex()[..24])
    });
    log::check_run_id(&run_id).map_err(|error| ended(error.into()))?;
    if let Some(asked) = of_run.run_timeout_ms.filter(|span| !(1..=RUN_TIMEOUT_MS_MAX).contains(span)) {
        let (name, most) = ("runTimeoutMs", RUN_TIMEOUT_MS_MAX);
        return Err(Box::new(ToolOutcome::from(ProgramError::Limit { name, value: asked, most })));
    }
    let width = of_run.max_concurrent_steps.unwrap_or(STEPS_WIDTH_DEFAULT).clamp(1, STEPS_WIDTH_MAX);
    let generations = of_run.max_concurrent_generations.unwrap_or(1).clamp(1, GENERATIONS_WIDTH_MAX);
    let plan = Plan {
        first_run_id: run_id.clone(),
        generation: 1,
        run_id,
        source_hash: source_hash(&source, &arguments.nodes),
        source,
        nodes: arguments.nodes,
        input: arguments.input,
        signals: arguments.signals,
        cancel: arguments.cancel,
        at_once: arguments.cancel_at_once,
        timeout_ms: of_run.run_timeout_ms,
        allowance,
        limits,
        width,
        depth: 0,
        room: Room::new(width, generations),
        unrecorded: Arc::clone(unrecorded),
    };
    Ok((invoke, plan))
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    let mut limits = limits_schema();
    limits["maxConcurrentGenerations"] = json!({
        "type": "integer", "minimum": 1, "maximum": GENERATIONS_WIDTH_MAX, "default": 1,
        "description": "Most generate_object steps beside each other.",
    });
    limits["maxConcurrentSteps"] = json!({
        "type": "integer", "minimum": 1, "maximum": STEPS_WIDTH_MAX, "default": STEPS_WIDTH_DEFAULT,
        "description": "Most steps beside each other.",
    });
    limits["runTimeoutMs"] = json!({
        "type": "integer", "minimum": 1, "maximum": RUN_TIMEOUT_MS_MAX,
        "description": "Milliseconds that the whole run may take from its beginning, over all calls.",
    });
    ToolSpec {
        name: ToolName::new("dynamic_workflow"),
        description: "Run work in steps that are kept in a log: a run that was interrupted goes on with the same run_id, \
            and no completed step runs again. The script defines run(ctx, inputs). With inputs.kind \"workflow\" it \
            returns what comes next, from inputs.input, inputs.steps (by id: status, output, error) and inputs.signals \
            alone, without tools: {type: \"schedule_step\", step_id, step_name, input, retry} or \"schedule_steps\" with \
            steps, \"wait_until\" with delay_ms, \"wait_for_signal\" with signal, \"create_hook\" with hook_id, \
            \"record_progress\" with message, \"start_child_workflow\" with child_id and input, \"continue_as_new\" with \
            input, \"complete\" with output, \"fail\" with error. With inputs.kind \"step\" it does the step (inputs.step_name, \
            inputs.input) with ctx as in program, and returns its output. A step named task or generate_object calls \
            that tool with its input instead. A step may run twice when it was interrupted: inputs.idempotency_key is \
            the same then. Use program for work that need not outlive the call."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["source"],
            "properties": {
                "source": {"type": "string", "minLength": 1, "description": "The script."},
                "input": {"type": "object", "description": "Given to the script as inputs.input."},
                "run_id": {
                    "type": "string", "minLength": 1, "maxLength": RUN_ID_CHARS_MAX, "pattern": "^[A-Za-z0-9_-]+$",
                    "description": "The run to begin or to go on with; the same source and input belong to it.",
                },
                "nodes": {
                    "type": "array", "minItems": 1, "maxItems": NODES_MAX,
                    "description": "Decides instead of the script: nodes in order, each a step of the script.",
                    "items": node_schema(),
                },
                "signals": {
                    "type": "array", "maxItems": SIGNALS_MAX,
                    "description": "Signals for the run; the same signal_id twice is one.",
                    "items": {
                        "type": "object", "additionalProperties": false, "required": ["signal_id", "signal"],
                        "properties": {
                            "signal_id": {"type": "string", "minLength": 1, "maxLength": STEP_ID_BYTES_MAX},
                            "signal": {"type": "string", "minLength": 1, "maxLength": STEP_ID_BYTES_MAX},
                            "payload": {},
                            "run_id": {
                                "type": "string", "minLength": 1, "maxLength": RUN_ID_CHARS_MAX,
                                "description": "The run inside of this one that it is for.",
                            },
                        },
                    },
                },
                "cancel": {
                    "type": "string", "minLength": 1, "maxLength": 512,
                    "description": "Ends the run for this reason; the script sees inputs.cancel and may clean up first.",
                },
                "cancel_at_once": {
                    "type": "boolean", "default": false,
                    "description": "With cancel: the script is not asked, and cannot clean up.",
                },
                "allowed_tools": {
                    "type": "array", "items": {"type": "string", "minLength": 1},
                    "description": "The tools that steps may call; all that you may call when left out.",
                },
                "limits": {
                    "type": "object", "additionalProperties": false, "properties": limits,
                    "description": "Those of program for each step, and how many steps run beside each other.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Control,
        needs: Needs { write: true, invoke: true, ..Needs::default() },
    }
}

fn node_schema() -> Value {
    let keys = json!({"type": "array", "items": {"type": "string", "minLength": 1}});
    json!({
        "type": "object", "additionalProperties": false, "required": ["id", "step_name"],
        "properties": {
            "id": {"type": "string", "minLength": 1, "maxLength": 128},
            "step_name": {"type": "string", "minLength": 1, "maxLength": STEP_ID_BYTES_MAX},
            "requires": keys,
            "provides": keys,
            "routes": {
                "type": "array",
                "items": {
                    "type": "object", "additionalProperties": false,
                    "properties": {
                        "to": {"type": ["string", "null"]},
                        "when": {
                            "type": "object", "additionalProperties": false, "required": ["key", "equals"],
                            "properties": {"key": {"type": "string"}, "equals": {}},
                        },
                    },
                },
            },
            "onErrorNodeId": {"type": "string"},
            "retry": {"type": "object"},
        },
    })
}

#[cfg(test)]
mod tests;
