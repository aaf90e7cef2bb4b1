//! `task`: work handed to other agents, each in a run of its own.
//!
//! The tool checks what is asked and reports what came back; starting, supervising and ending the runs is the
//! business of the port. Results stand in the order asked, and no branch is ever run again from its error text:
//! retrying is a decision of whoever asked.

pub mod report;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use self::report::Asked;
use super::nested::settled;
use crate::cancellation::CancelReason;
use crate::context::{ChildTask, Delegate, DelegateError, FanOutPolicy, ToolContext};
use crate::declaration::Capabilities;
use crate::generation;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::{Lane, Needs, Tool, ToolFuture, ToolSpec};

/// Most tasks in one call.
pub const TASKS_MAX: usize = 32;
/// Runs beside each other.
pub const WIDTH_DEFAULT: usize = 8;
/// Longest prompt, in bytes.
pub const PROMPT_BYTES_MAX: usize = 256 * 1024;
/// Longest name of an agent and longest description, in characters.
pub const LABEL_CHARS_MAX: usize = 256;
/// Most model rounds that a task may be given.
pub const STEPS_MAX: u32 = 10_000;
/// Longest time-out: one day, in milliseconds.
pub const TIMEOUT_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The tool.
pub struct TaskTool {
    spec: ToolSpec,
}

/// Why no task was started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TaskError {
    /// The arguments have another form.
    #[error("the arguments of task cannot be read: {0}")]
    Malformed(String),
    /// Neither or both forms.
    #[error("give the tasks as a list in tasks, or one task by agent, description and prompt, not both")]
    Form,
    /// None or too many.
    #[error("tasks has {0} entries; give 1 to {TASKS_MAX}, and put the rest into another call")]
    Count(usize),
    /// A field that must say something does not.
    #[error("tasks[{index}].{field} is empty; say {wanted}")]
    Empty {
        /// Which task.
        index: usize,
        /// Which field.
        field: &'static str,
        /// What it is for.
        wanted: &'static str,
    },
    /// Longer than [`PROMPT_BYTES_MAX`].
    #[error("tasks[{index}].prompt has {bytes} bytes; at most {PROMPT_BYTES_MAX} are taken: put long text into a file")]
    PromptTooLong {
        /// Which task.
        index: usize,
        /// Its size.
        bytes: usize,
    },
    /// No rounds at all, or far too many.
    #[error("tasks[{index}].max_steps is {steps}; it is 1 to {STEPS_MAX}")]
    Steps {
        /// Which task.
        index: usize,
        /// What was asked.
        steps: u32,
    },
    /// No time at all, or more than a day.
    #[error("timeout_ms is {0}; it is 1 to {TIMEOUT_MS_MAX}")]
    Timeout(u64),
    /// A number of successes without the leave to fail.
    #[error("min_success_count needs allow_partial_failure to be true")]
    EnoughWithoutLeave,
    /// More successes than tasks, or none.
    #[error("min_success_count is {wanted}; with these tasks it is 1 to {tasks}")]
    Enough {
        /// What was asked.
        wanted: usize,
        /// How many tasks there are.
        tasks: usize,
    },
    /// No such agents.
    #[error("there is no agent {unknown}; {known}")]
    UnknownAgent {
        /// The names, joined.
        unknown: String,
        /// The agents that there are, in words.
        known: String,
    },
    /// Running on after the call has returned, and more than that.
    #[error("tasks[{0}].background needs a call of its own: one task, and none of the options for several")]
    Background(usize),
    /// A form for an answer that nobody waits for.
    #[error("tasks[{0}] cannot have output_schema and background both; leave one of them out")]
    FormLater(usize),
    /// A form that is no schema, or one that cannot be used.
    #[error("tasks[{index}].output_schema cannot be used: {message}")]
    OutputSchema {
        /// Which task.
        index: usize,
        /// Why.
        message: String,
    },
    /// None was started.
    #[error(transparent)]
    Delegate(#[from] DelegateError),
    /// Nobody to hand work to.
    #[error("this host gives task no way to start other agents; do the work here")]
    NoDelegate,
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    tasks: Option<Vec<Item>>,
    #[serde(default, alias = "allowPartialFailure")]
    allow_partial_failure: bool,
    #[serde(default, alias = "timeoutMs")]
    timeout_ms: Option<u64>,
    #[serde(default, alias = "minSuccessCount")]
    min_success_count: Option<usize>,
}

#[derive(Deserialize)]
struct Item {
    agent: String,
    description: String,
    prompt: String,
    #[serde(default, alias = "maxSteps")]
    max_steps: Option<u32>,
    #[serde(default, alias = "outputSchema")]
    output_schema: Option<Value>,
    #[serde(default)]
    background: bool,
}

/// Tasks that may be started.
#[derive(Debug)]
struct Plan {
    tasks: Vec<ChildTask>,
    asked: Asked,
    /// Whether the one task goes on after the call.
    background: bool,
}

impl TaskTool {
    /// The tool, ready to register. `agents` (name, what it is for) are told to the model; the list may be empty,
    /// for a call is checked against the agents that there are when it is made.
    pub fn new(agents: &[(String, String)]) -> Self {
        Self { spec: spec(agents) }
    }
}

impl Tool for TaskTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities { cancellation_safe: true, ..Capabilities::conservative() }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let ready = Plan::read(&arguments).and_then(|plan| {
                let delegate = ctx.delegate.as_ref().ok_or(TaskError::NoDelegate)?;
                plan.check_agents(&delegate.agents())?;
                Ok((plan, delegate))
            });
            match ready {
                Ok((plan, delegate)) => plan.run(ctx, delegate.as_ref()).await,
                Err(error) => error.into(),
            }
        })
    }
}

impl From<TaskError> for ToolOutcome {
    fn from(error: TaskError) -> Self {
        let message = error.to_string();
        match error {
            TaskError::NoDelegate | TaskError::Delegate(DelegateError::Nested) => {
                Self::error(ToolErrorKind::Unsupported { message: message.clone() }, message)
            }
            TaskError::Delegate(DelegateError::Spent { .. }) => {
                Self::error(ToolErrorKind::BudgetExhausted { resource: "child_runs".to_owned() }, message)
            }
            TaskError::Delegate(DelegateError::Closing) => Self::ended_early("task", &CancelReason::SessionClosed),
            TaskError::Delegate(DelegateError::NotKept(_)) => Self::error(ToolErrorKind::Crashed, message),
            _ => Self::invalid_argument(message),
        }
    }
}

impl Plan {
    fn read(arguments: &Value) -> Result<Self, TaskError> {
        let malformed = |error: serde_json::Error| TaskError::Malformed(error.to_string());
        let whole = Arguments::deserialize(arguments).map_err(malformed)?;
        let items = match (whole.tasks, arguments.get("agent")) {
            (Some(items), None) => items,
            (None, Some(_)) => vec![Item::deserialize(arguments).map_err(malformed)?],
            _ => return Err(TaskError::Form),
        };
        let count = items.len();
        if !(1..=TASKS_MAX).contains(&count) {
            return Err(TaskError::Count(count));
        }
        if let Some(timeout_ms) = whole.timeout_ms.filter(|span| !(1..=TIMEOUT_MS_MAX).contains(span)) {
            return Err(TaskError::Timeout(timeout_ms));
        }
        match whole.min_success_count {
            Some(_) if !whole.allow_partial_failure => return Err(TaskError::EnoughWithoutLeave),
            Some(wanted) if !(1..=count).contains(&wanted) => return Err(TaskError::Enough { wanted, tasks: count }),
            _ => {}
        }
        let background = items.iter().position(|item| item.background);
        let tasks = items.into_iter().enumerate().map(|(index, item)| item.check(index)).collect::<Result<_, _>>()?;
        let asked = Asked {
            fan_out: count > 1
                || whole.allow_partial_failure
                || whole.timeout_ms.is_some()
                || whole.min_success_count.is_some(),
            task_count: count,
            allow_partial_failure: whole.allow_partial_failure,
            timeout_ms: whole.timeout_ms,
            min_success_count: whole.min_success_count,
        };
        match background {
            Some(index) if asked.fan_out => Err(TaskError::Background(index)),
            background => Ok(Self { tasks, asked, background: background.is_some() }),
        }
    }

    fn check_agents(&self, known: &[(String, String)]) -> Result<(), TaskError> {
        let is_known = |name: &str| known.iter().any(|(known, _)| known == name);
        let unknown: BTreeSet<&str> =
            self.tasks.iter().map(|task| task.agent.as_str()).filter(|name| !is_known(name)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let quoted: Vec<String> = unknown.iter().map(|name| format!("{name:?}")).collect();
        Err(TaskError::UnknownAgent { unknown: quoted.join(", "), known: in_words(known) })
    }

    async fn run(self, ctx: &ToolContext, delegate: &dyn Delegate) -> ToolOutcome {
        if let Some(reason) = ctx.cancel.reason() {
            return ToolOutcome::ended_early("task", reason);
        }
        let policy = FanOutPolicy {
            width: WIDTH_DEFAULT,
            enough_successes: self.asked.min_success_count,
            timeout_ms: self.asked.timeout_ms,
        };
        if self.background {
            return self.start(delegate).await;
        }
        let begun_at = ctx.clock.monotonic();
        let Some(ended) = settled(ctx, delegate.delegate(self.tasks, policy)).await else {
            let reason = ctx.cancel.reason().cloned().unwrap_or(CancelReason::Requested);
            let outcome = ToolOutcome::ended_early("task", &reason);
            let text = format!("{}; the tasks did not report back in time and were ended", outcome.output);
            return ToolOutcome { output: text, ..outcome }.with("task_count", self.asked.task_count);
        };
        let ended = match ended {
            Ok(ended) => ended,
            Err(error) => return TaskError::from(error).into(),
        };
        let duration: Duration = ctx.clock.monotonic().saturating_sub(begun_at);
        report::outcome(&ended, &self.asked, duration, ctx.cancel.reason())
    }

    /// Starts the one task, which goes on after this.
    async fn start(self, delegate: &dyn Delegate) -> ToolOutcome {
        let Some(task) = self.tasks.into_iter().next() else { return TaskError::Count(0).into() };
        match delegate.background(task).await {
            Ok(started) => report::started(&started),
            Err(error) => TaskError::from(error).into(),
        }
    }
}

impl Item {
    fn check(self, index: usize) -> Result<ChildTask, TaskError> {
        let said = [
            ("agent", &self.agent, "which agent does it"),
            ("description", &self.description, "in a few words what it is about"),
            ("prompt", &self.prompt, "what is to be done"),
        ];
        for (field, text, wanted) in said {
            if text.trim().is_empty() {
                return Err(TaskError::Empty { index, field, wanted });
            }
        }
        if let Some(schema) = &self.output_schema {
            check_form(index, schema, self.background)?;
        }
        if self.prompt.len() > PROMPT_BYTES_MAX {
            return Err(TaskError::PromptTooLong { index, bytes: self.prompt.len() });
        }
        if let Some(steps) = self.max_steps.filter(|steps| !(1..=STEPS_MAX).contains(steps)) {
            return Err(TaskError::Steps { index, steps });
        }
        Ok(ChildTask {
            agent: self.agent,
            description: self.description,
            prompt: self.prompt,
            max_steps: self.max_steps,
            output_schema: self.output_schema,
        })
    }
}

/// A form that an answer can be held to: a schema that compiles and is not larger than any tool's.
fn check_form(index: usize, schema: &Value, background: bool) -> Result<(), TaskError> {
    if background {
        return Err(TaskError::FormLater(index));
    }
    let unusable = |message: String| TaskError::OutputSchema { index, message };
    if !schema.is_object() {
        return Err(unusable("give a JSON schema, which is an object".to_owned()));
    }
    generation::compile(schema).map(drop).map_err(|error| unusable(error.to_string()))
}

fn in_words(agents: &[(String, String)]) -> String {
    if agents.is_empty() {
        return "no agents are set up here, so do the work yourself".to_owned();
    }
    let each: Vec<String> = agents.iter().map(|(name, purpose)| format!("{name} ({purpose})")).collect();
    format!("agents there are: {}", each.join("; "))
}

fn spec(agents: &[(String, String)]) -> ToolSpec {
    let who = match agents {
        [] => "Naming an agent that does not exist answers with the agents that there are.".to_owned(),
        _ => format!("The {}.", in_words(agents)),
    };
    ToolSpec {
        name: ToolName::new("task"),
        description: format!(
            "Hand work to other agents. Each task runs apart with its own conversation and sees nothing of this one, \
             so its prompt must hold everything it needs; only its final answer comes back. Use it for work that is \
             independent and large enough to be worth a run of its own, up to {TASKS_MAX} tasks in one call, \
             {WIDTH_DEFAULT} at a time; do small things yourself. The call ends when all tasks have ended. With \
             allow_partial_failure some may fail; with min_success_count it ends as soon as that many have \
             succeeded. One task alone may run in the background: the call returns at once, and the answer comes as a \
             message later, while you work on. {who}"
        ),
        parameters: accepted(),
        model_parameters: Some(shown()),
        model_visible: true,
        lane: Lane::Control,
        needs: Needs { delegate: true, ..Needs::default() },
    }
}

/// What the model is shown: one form, one spelling.
fn shown() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["tasks"],
        "properties": {
            "tasks": {
                "type": "array", "minItems": 1, "maxItems": TASKS_MAX,
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["agent", "description", "prompt"],
                    "properties": item_shown(),
                },
            },
            "allow_partial_failure": {
                "type": "boolean", "default": false,
                "description": "Whether the call succeeds when at least one task does.",
            },
            "timeout_ms": timeout_schema(),
            "min_success_count": {
                "type": "integer", "minimum": 1, "maximum": TASKS_MAX,
                "description": "End once this many have succeeded; needs allow_partial_failure.",
            },
        },
    })
}

fn item_shown() -> Value {
    json!({
        "agent": {"type": "string", "minLength": 1, "maxLength": LABEL_CHARS_MAX, "description": "Which agent."},
        "description": {
            "type": "string", "minLength": 1, "maxLength": LABEL_CHARS_MAX,
            "description": "A few words for people who watch.",
        },
        "prompt": {"type": "string", "minLength": 1, "description": "What is to be done, with all it needs."},
        "max_steps": {
            "type": "integer", "minimum": 1, "maximum": STEPS_MAX,
            "description": "Most model rounds; the agent's own limit when left out.",
        },
        "output_schema": {
            "type": "object",
            "description": "A JSON schema that the final answer must fit; it comes back as structured.",
        },
        "background": {
            "type": "boolean", "default": false,
            "description": "Return at once and let the task run on; its answer is told to you later. Only for one task.",
        },
    })
}

fn timeout_schema() -> Value {
    json!({
        "type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX,
        "description": "End after this many milliseconds with what there is.",
    })
}

/// What a call may hold: also one task without a list, and camel case, as hosts write them.
fn accepted() -> Value {
    let mut item = item_shown();
    item["maxSteps"] = item["max_steps"].clone();
    item["outputSchema"] = item["output_schema"].clone();
    let mut schema = shown();
    if let (Some(own), Some(single)) = (schema["properties"].as_object_mut(), item.as_object()) {
        for (alias, name) in [
            ("allowPartialFailure", "allow_partial_failure"),
            ("timeoutMs", "timeout_ms"),
            ("minSuccessCount", "min_success_count"),
        ] {
            let same = own[name].clone();
            own.insert(alias.to_owned(), same);
        }
        own.extend(single.clone());
    }
    schema["properties"]["tasks"]["items"]["properties"] = item;
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("required");
        fields.insert("oneOf".into(), json!([{"required": ["tasks"]}, {"required": ["agent"]}]));
        fields.insert("dependentRequired".into(), json!({"agent": ["description", "prompt"]}));
    }
    schema
}

#[cfg(test)]
mod tests;
