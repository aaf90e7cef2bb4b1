//! `batch`: many tool calls in one, in steps, where a later step can use what an earlier one found.
//!
//! Each call goes through the governed route on its own, so a batch can do nothing that its calls could not do
//! one by one. Calls run beside each other only where every one of them is known to change nothing; results stand
//! in the order asked, whichever finished first, and one failure takes nothing from the others.

pub mod binding;
pub mod report;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use self::binding::{Referable, bind};
use self::report::{Ended, Execution};
use super::nested::settled;
use crate::cancellation::CancelReason;
use crate::context::{Invoke, ToolCall, ToolContext};
use crate::declaration::Capabilities;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::registry::TOOL_NAME_BYTES_MAX;
use crate::tool::{FixedSpec, Lane, Needs, Tool, ToolFuture, ToolSpec};

/// Most calls in one batch.
pub const INVOCATIONS_MAX: usize = 32;
/// Highest step.
pub const STEP_MAX: u32 = 32;
/// Most calls beside each other.
pub const CONCURRENCY_MAX: usize = 16;
/// Calls beside each other when the caller does not say.
pub const CONCURRENCY_DEFAULT: usize = 8;
/// Longest id of a call, in characters.
pub const ID_CHARS_MAX: usize = 64;

/// The tool.
pub struct BatchTool;

/// Why a batch is refused before any of its calls runs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// The arguments have another form.
    #[error("the arguments of batch cannot be read: {0}")]
    Malformed(String),
    /// None or too many.
    #[error("invocations has {0} entries; give 1 to {INVOCATIONS_MAX}, and put the rest into another batch")]
    Count(usize),
    /// A batch in the batch.
    #[error("invocations[{0}] is itself a batch; list its calls here instead, in a later step where order matters")]
    Nested(usize),
    /// An id without a visible character.
    #[error("invocations[{0}] has an empty id; give it a name, or leave id out")]
    EmptyId(usize),
    /// An id used twice.
    #[error("invocations[{second}] has the id {id:?}, which invocations[{first}] has already; ids must differ")]
    DuplicateId {
        /// Where it stands first.
        first: usize,
        /// Where it stands again.
        second: usize,
        /// The id.
        id: String,
    },
    /// A step outside of the range.
    #[error("invocations[{index}] is in step {step}; steps are 1 to {STEP_MAX}")]
    Step {
        /// Which call.
        index: usize,
        /// Its step.
        step: u32,
    },
}

#[derive(Deserialize)]
struct Arguments {
    invocations: Vec<Invocation>,
    #[serde(default)]
    max_concurrency: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Invocation {
    tool: String,
    args: Value,
    #[serde(default)]
    id: Option<String>,
    #[serde(default = "first_step")]
    step: u32,
}

/// A batch that may run.
#[derive(Debug)]
struct Plan {
    invocations: Vec<Invocation>,
    width: usize,
}

impl BatchTool {
    /// The tool, ready to register.
    pub fn new() -> Self {
        Self
    }
}

impl Default for BatchTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for BatchTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { cancellation_safe: true, ..Capabilities::conservative() }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let Some(invoke) = &ctx.invoke else {
                let message = "this host gives batch no way to call other tools; call them one by one";
                return ToolOutcome::error(ToolErrorKind::Unsupported { message: message.into() }, message);
            };
            match Plan::read(arguments) {
                Ok(plan) => plan.run(ctx, invoke).await,
                Err(error) => ToolOutcome::invalid_argument(error.to_string()),
            }
        })
    }
}

impl Plan {
    fn read(arguments: Value) -> Result<Self, BatchError> {
        let Arguments { invocations, max_concurrency } =
            Arguments::deserialize(arguments).map_err(|error| BatchError::Malformed(error.to_string()))?;
        if !(1..=INVOCATIONS_MAX).contains(&invocations.len()) {
            return Err(BatchError::Count(invocations.len()));
        }
        for (index, invocation) in invocations.iter().enumerate() {
            if invocation.tool == "batch" {
                return Err(BatchError::Nested(index));
            }
            if !(1..=STEP_MAX).contains(&invocation.step) {
                return Err(BatchError::Step { index, step: invocation.step });
            }
            let Some(id) = &invocation.id else { continue };
            if id.trim().is_empty() {
                return Err(BatchError::EmptyId(index));
            }
            let before = &invocations[..index];
            if let Some(first) = before.iter().position(|earlier| earlier.id.as_ref() == Some(id)) {
                return Err(BatchError::DuplicateId { first, second: index, id: id.clone() });
            }
        }
        let width = max_concurrency.unwrap_or(CONCURRENCY_DEFAULT).clamp(1, CONCURRENCY_MAX);
        Ok(Self { invocations, width })
    }

    async fn run(self, ctx: &ToolContext, invoke: &Arc<dyn Invoke>) -> ToolOutcome {
        let mut outcomes: Vec<Option<ToolOutcome>> = self.invocations.iter().map(|_| None).collect();
        let mut applied = 1;
        let steps: BTreeSet<u32> = self.invocations.iter().map(|invocation| invocation.step).collect();
        for step in steps {
            if ctx.cancel.is_cancelled() {
                break;
            }
            let (ready, calls) = self.prepare(step, &mut outcomes);
            let width = self.width_of(&calls, invoke.as_ref());
            applied = applied.max(width);
            if calls.is_empty() {
                continue;
            }
            match settled(ctx, invoke.invoke_all(calls, width)).await {
                Some(ended) => {
                    let mut ended = ended.into_iter();
                    for index in ready {
                        outcomes[index] = Some(ended.next().unwrap_or_else(ToolOutcome::lost));
                    }
                }
                None => {
                    let reason = reason_of(ctx);
                    for index in ready {
                        outcomes[index] = Some(ToolOutcome::ended_early(&self.invocations[index].tool, &reason));
                    }
                }
            }
        }
        let unfinished = |outcome: &Option<ToolOutcome>| outcome.as_ref().is_none_or(|outcome| !outcome.is_success());
        let stopped = ctx.cancel.reason().filter(|_| outcomes.iter().any(unfinished)).cloned();
        let execution = Execution {
            requested_concurrency: self.width,
            applied_concurrency: applied,
            parallel: applied > 1,
            stopped,
        };
        let calls = self.invocations.iter().zip(outcomes).map(|(invocation, outcome)| Ended {
            step: invocation.step,
            id: invocation.id.as_deref(),
            tool: &invocation.tool,
            outcome: outcome.unwrap_or_else(|| never_started(&invocation.tool, &reason_of(ctx))),
        });
        report::outcome(calls.collect(), &execution)
    }

    /// The calls of a step with their references replaced, and their indexes; a call whose references cannot be
    /// followed ends here.
    fn prepare(&self, step: u32, outcomes: &mut [Option<ToolOutcome>]) -> (Vec<usize>, Vec<ToolCall>) {
        let referables: Vec<Referable<'_>> = self
            .invocations
            .iter()
            .zip(outcomes.iter())
            .filter_map(|(invocation, outcome)| {
                let id = invocation.id.as_deref()?;
                Some(Referable { id, tool: &invocation.tool, step: invocation.step, outcome: outcome.as_ref() })
            })
            .collect();
        let of_step = self.invocations.iter().enumerate().filter(|(_, invocation)| invocation.step == step);
        let bound: Vec<_> =
            of_step.map(|(index, invocation)| (index, bind(&invocation.args, step, &referables))).collect();
        let (mut ready, mut calls) = (Vec::new(), Vec::new());
        for (index, arguments) in bound {
            match arguments {
                Ok(arguments) => {
                    let tool = ToolName::new(self.invocations[index].tool.as_str());
                    ready.push(index);
                    calls.push(ToolCall { tool, arguments });
                }
                Err(error) => {
                    outcomes[index] = Some(ToolOutcome::invalid_argument(error.to_string()));
                }
            }
        }
        (ready, calls)
    }

    /// How many of these calls may run at a time: one, unless every one of them is safe beside the others.
    fn width_of(&self, calls: &[ToolCall], invoke: &dyn Invoke) -> usize {
        let parallelism = |call: &ToolCall| match invoke.capabilities(call) {
            Some(capabilities) if capabilities.allows_parallel_batch() => capabilities.max_parallelism,
            _ => 1,
        };
        calls.iter().map(parallelism).min().unwrap_or(1).clamp(1, self.width)
    }
}

fn first_step() -> u32 {
    1
}

fn reason_of(ctx: &ToolContext) -> CancelReason {
    ctx.cancel.reason().cloned().unwrap_or(CancelReason::Requested)
}

/// The ending of a call whose step was not reached.
fn never_started(tool: &str, reason: &CancelReason) -> ToolOutcome {
    let outcome = ToolOutcome::ended_early(tool, reason);
    ToolOutcome { output: format!("not started: {}", outcome.output), ..outcome }
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("batch"),
        description: "Make several tool calls at once. Use it for independent calls (reading several files, \
            searching for several things), or for short chains in which one call needs what another printed. Calls \
            of one step run together, beside each other when all of them only read; the next step begins when the \
            step before has ended. In args, the object {\"$ref\": \"ID.output\"} stands for what the call with that \
            id printed in an earlier step; after ID also output_lines, metadata, exit_code or tool, and then keys or \
            list indexes after further dots. Every call is checked and permitted as if it stood alone. Results come in \
            the order of invocations; when some failed, the last line names them, and only those need another try. A \
            batch cannot hold a batch."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["invocations"],
            "properties": {
                "invocations": {
                    "type": "array", "minItems": 1, "maxItems": INVOCATIONS_MAX,
                    "description": "The calls.",
                    "items": {
                        "type": "object",
                        "additionalProperties": false,
                        "required": ["tool", "args"],
                        "properties": {
                            "tool": {
                                "type": "string", "minLength": 1, "maxLength": TOOL_NAME_BYTES_MAX,
                                "description": "The name of the tool.",
                            },
                            "args": {"type": "object", "description": "Its arguments."},
                            "id": {
                                "type": "string", "maxLength": ID_CHARS_MAX,
                                "description": "A name for later steps to refer to; unique in the batch.",
                            },
                            "step": {
                                "type": "integer", "minimum": 1, "maximum": STEP_MAX, "default": 1,
                                "description": "Steps run in ascending order.",
                            },
                        },
                    },
                },
                "max_concurrency": {
                    "type": "integer", "minimum": 1, "maximum": CONCURRENCY_MAX, "default": CONCURRENCY_DEFAULT,
                    "description": "Most calls beside each other.",
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
