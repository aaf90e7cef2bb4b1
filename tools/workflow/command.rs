//! What a script wants next: one command, checked before it becomes events.

use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;

use crate::canonical_json::json_bytes;
use crate::workflow::event::ScheduledStep;
use crate::workflow::retry::RetryPolicy;
use crate::workflow::{CHILD_STEP, STEP_ID_BYTES_MAX, STEP_INPUT_BYTES_MAX, STEPS_AT_ONCE_MAX};

/// Longest wait: 30 days, in milliseconds.
pub const WAIT_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;
/// Longest word of progress and longest name of a signal, in bytes.
pub const LABEL_BYTES_MAX: usize = 512;

/// What a script wants next.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Command {
    /// The run is done.
    Complete {
        /// What came of it.
        #[serde(default)]
        output: Value,
    },
    /// The run has failed.
    Fail {
        /// Why.
        error: Value,
    },
    /// One step.
    ScheduleStep(StepCommand),
    /// Steps beside each other.
    ScheduleSteps {
        /// Which.
        steps: Vec<StepCommand>,
    },
    /// Wait for a moment.
    WaitUntil {
        /// Which, in milliseconds since 1970.
        #[serde(default)]
        until_ms: Option<u64>,
        /// Or how long from now, in milliseconds.
        #[serde(default)]
        delay_ms: Option<u64>,
    },
    /// Wait for a signal.
    WaitForSignal {
        /// Which.
        signal: String,
    },
    /// Say how far it is, and be asked again.
    RecordProgress {
        /// In a few words.
        message: String,
    },
    /// Make a name for a signal that others can be told, and be asked again.
    CreateHook {
        /// What the script calls it.
        hook_id: String,
    },
    /// A run of its own, as a step of this one.
    StartChildWorkflow(ChildCommand),
    /// Such runs beside each other.
    StartChildWorkflows {
        /// Which.
        children: Vec<ChildCommand>,
    },
    /// End here, and go on as a new run with a log of its own.
    ContinueAsNew {
        /// What the new run works on.
        #[serde(default)]
        input: Value,
    },
}

/// A run of its own that a script wants.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ChildCommand {
    /// Its id as a step, once in a run.
    pub child_id: String,
    /// What it works on.
    #[serde(default)]
    pub input: Value,
    /// Its script; the same one when none.
    #[serde(default)]
    pub source: Option<String>,
    /// When it is tried again.
    #[serde(default)]
    pub retry: Option<RetryPolicy>,
    /// Whether this run goes on when it has failed for good.
    #[serde(default)]
    pub continue_workflow_on_failure: bool,
}

impl From<ChildCommand> for StepCommand {
    fn from(child: ChildCommand) -> Self {
        let ChildCommand { child_id, input, source, retry, continue_workflow_on_failure } = child;
        let input = match source {
            Some(source) => json!({ "input": input, "source": source }),
            None => json!({ "input": input }),
        };
        let step_name = CHILD_STEP.to_owned();
        Self { step_id: child_id, step_name, input, retry, continue_workflow_on_failure }
    }
}

/// A step that a script wants.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct StepCommand {
    /// Its id, once in a run.
    pub step_id: String,
    /// What kind of step it is.
    pub step_name: String,
    /// What it works on.
    #[serde(default)]
    pub input: Value,
    /// When it is tried again.
    #[serde(default)]
    pub retry: Option<RetryPolicy>,
    /// Whether the run goes on when it has failed for good.
    #[serde(default)]
    pub continue_workflow_on_failure: bool,
}

/// Why a command cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommandError {
    /// Not one of the commands.
    #[error(
        "run must return a command when inputs.kind is \"workflow\": an object whose type is complete, fail, \
         schedule_step, schedule_steps, wait_until, wait_for_signal, record_progress, create_hook, \
         start_child_workflow, start_child_workflows or continue_as_new ({0})"
    )]
    Form(String),
    /// A field that cannot be taken.
    #[error("{0}")]
    Field(String),
}

impl Command {
    /// Reads what a script has returned.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn read(value: Value) -> Result<Self, CommandError> {
        let command = Self::deserialize(value).map_err(|error| CommandError::Form(error.to_string()))?;
        command.check().map_err(CommandError::Field)?;
        Ok(command)
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Self::Complete { .. } | Self::Fail { .. } => Ok(()),
            Self::ScheduleStep(step) => step.check(),
            Self::ScheduleSteps { steps } => check_all("steps", steps),
            Self::StartChildWorkflow(child) => StepCommand::from(child.clone()).check(),
            Self::StartChildWorkflows { children } => {
                check_all("children", &children.iter().cloned().map(Into::into).collect::<Vec<_>>())
            }
            // A new run begins with it as the first one did with its own.
            Self::ContinueAsNew { input } => match json_bytes(input) {
                bytes if bytes > STEP_INPUT_BYTES_MAX => {
                    Err(format!("the input of the new run has {bytes} bytes; at most {STEP_INPUT_BYTES_MAX} are taken"))
                }
                _ => Ok(()),
            },
            Self::WaitUntil { until_ms, delay_ms } => match (until_ms, delay_ms) {
                (Some(_), None) => Ok(()),
                (None, Some(delay)) if *delay <= WAIT_MS_MAX => Ok(()),
                (None, Some(delay)) => Err(format!("delay_ms is {delay}; at most {WAIT_MS_MAX} are taken")),
                _ => Err("wait_until takes until_ms or delay_ms, one of them".to_owned()),
            },
            Self::WaitForSignal { signal: label }
            | Self::RecordProgress { message: label }
            | Self::CreateHook { hook_id: label } => match label.trim().is_empty() || label.len() > LABEL_BYTES_MAX {
                true => Err(format!("a signal, message or hook_id has 1 to {LABEL_BYTES_MAX} bytes")),
                false => Ok(()),
            },
        }
    }
}

fn check_all(name: &str, steps: &[StepCommand]) -> Result<(), String> {
    if !(1..=STEPS_AT_ONCE_MAX).contains(&steps.len()) {
        return Err(format!("{name} has {} entries; give 1 to {STEPS_AT_ONCE_MAX}", steps.len()));
    }
    for (index, step) in steps.iter().enumerate() {
        step.check()?;
        if steps[..index].iter().any(|earlier| earlier.step_id == step.step_id) {
            return Err(format!("the step id {:?} stands twice in one command", step.step_id));
        }
    }
    Ok(())
}

impl StepCommand {
    fn check(&self) -> Result<(), String> {
        let Self { step_id, step_name, input, retry, .. } = self;
        for (field, text) in [("step_id", step_id), ("step_name", step_name)] {
            if text.trim().is_empty() || text.len() > STEP_ID_BYTES_MAX || text.chars().any(char::is_control) {
                return Err(format!("{field} is one line of 1 to {STEP_ID_BYTES_MAX} bytes, not {text:?}"));
            }
        }
        let bytes = json_bytes(input);
        if bytes > STEP_INPUT_BYTES_MAX {
            return Err(format!(
                "the input of step {step_id:?} has {bytes} bytes; at most {STEP_INPUT_BYTES_MAX} are taken"
            ));
        }
        retry.and_then(|retry| retry.fault()).map_or(Ok(()), |fault| Err(format!("step {step_id:?}: {fault}")))
    }
}

impl From<StepCommand> for ScheduledStep {
    fn from(step: StepCommand) -> Self {
        let StepCommand { step_id, step_name, input, retry, continue_workflow_on_failure } = step;
        Self { step_id, step_name, input, retry, continue_workflow_on_failure }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Command;

    #[test]
    fn what_is_no_command_is_explained() {
        let step = |id: &str| json!({"step_id": id, "step_name": "n"});
        for (value, said) in [
            (Value::Null, "must return a command"),
            (json!({"type": "sing"}), "must return a command"),
            (json!({"type": "schedule_step", "step_id": "a"}), "step_name"),
            (json!({"type": "schedule_step", "step_id": "a\nb", "step_name": "n"}), "step_id is one line"),
            (json!({"type": "schedule_step", "step_id": "a", "step_name": "n", "input": "x".repeat(70_000)}), "65536"),
            (
                json!({"type": "schedule_step", "step_id": "a", "step_name": "n", "retry": {"max_attempts": 11}}),
                "1 to 10",
            ),
            (json!({"type": "schedule_steps", "steps": []}), "give 1 to 64"),
            (json!({"type": "schedule_steps", "steps": [step("a"), step("a")]}), "stands twice"),
            (json!({"type": "wait_until"}), "until_ms or delay_ms"),
            (json!({"type": "wait_for_signal", "signal": ""}), "1 to 512"),
            (json!({"type": "create_hook", "hook_id": " "}), "1 to 512"),
            (json!({"type": "start_child_workflow"}), "child_id"),
            (json!({"type": "start_child_workflows", "children": []}), "children has 0 entries"),
            (
                json!({"type": "start_child_workflows", "children": vec![json!({"child_id": "a"}); 65]}),
                "children has 65 entries",
            ),
            (json!({"type": "start_child_workflow", "child_id": "a", "source": "x".repeat(70_000)}), "65536"),
            (json!({"type": "continue_as_new", "input": "x".repeat(70_000)}), "65536"),
        ] {
            let error = Command::read(value.clone()).unwrap_err().to_string();
            assert!(error.contains(said), "{value}: {error}");
        }
        assert_eq!(Command::read(json!({"type": "complete"})), Ok(Command::Complete { output: Value::Null }));
    }
}
