//! What comes next in a run, and what a command of its script amounts to. Pure: the same events give the same answer.

use serde_json::Value;
use thiserror::Error;

use crate::digest::Digest;
use crate::workflow::command::{Command, StepCommand};
use crate::workflow::event::{Entry, Event, ScheduledStep};
use crate::workflow::state::{RunState, StepStatus, Waiting};
use crate::workflow::{IDLE_COMMANDS_MAX, STEPS_MAX};

/// Most events that one command becomes: its steps.
pub const EVENTS_MAX: usize = crate::workflow::STEPS_AT_ONCE_MAX;

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The run has ended.
    Ended,
    /// These steps are to be worked on, in this order.
    Work(Vec<Attempt>),
    /// Nothing until this moment, in milliseconds since 1970.
    Sleep(u64),
    /// The moment that was waited for has come.
    Wake,
    /// Nothing until this signal comes.
    Signal(String),
    /// The script is to be asked.
    Ask,
}

/// One attempt of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// The step.
    pub step: ScheduledStep,
    /// Its number, from 1.
    pub attempt: u32,
    /// Whether its start is in the log already: it was interrupted and runs again.
    pub interrupted: bool,
    /// When it may begin, in milliseconds since 1970.
    pub not_before_ms: u64,
}

/// Why a run cannot go on as its script wants.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecisionError {
    /// The script says something else than it said before.
    #[error(
        "the script is not deterministic: at step {step_id:?} the log has {recorded}, and the script now says {said}. \
         What it returns may depend on inputs alone; take a new run_id for a changed workflow"
    )]
    NonDeterministic {
        /// The step, or what stands for it.
        step_id: String,
        /// What the log has.
        recorded: String,
        /// What the script says.
        said: String,
    },
    /// The script wants a step again that is over.
    #[error(
        "the script schedules step {step_id:?} again, which has {status}; look for it in inputs.steps, and take \
         another step_id for another step"
    )]
    Repeated {
        /// The step.
        step_id: String,
        /// How it stands.
        status: &'static str,
    },
    /// Too many steps.
    #[error("a run has at most {STEPS_MAX} steps")]
    TooMany,
    /// The script goes on and on and does nothing.
    #[error(
        "the script has told progress or waited {IDLE_COMMANDS_MAX} times in a row; schedule a step in between, or \
         complete the run"
    )]
    Idle,
}

/// What is to be done now.
pub fn next(state: &RunState, now_ms: u64) -> Next {
    if state.end.is_some() {
        return Next::Ended;
    }
    if !state.open.is_empty() {
        let open = state.open.iter().filter_map(|id| state.steps.get(id));
        let attempts = open.map(|step| {
            let interrupted = step.status == StepStatus::Started;
            let not_before_ms = if let StepStatus::Retrying(at_ms) = step.status { at_ms } else { 0 };
            let attempt = step.attempts + u32::from(!interrupted);
            Attempt { step: step.scheduled.clone(), attempt, interrupted, not_before_ms }
        });
        return Next::Work(attempts.collect());
    }
    match &state.waiting {
        Some(Waiting::Until(until_ms)) if now_ms >= *until_ms => Next::Wake,
        Some(Waiting::Until(until_ms)) => Next::Sleep(*until_ms),
        Some(Waiting::Signal(signal)) => Next::Signal(signal.clone()),
        None => Next::Ask,
    }
}

/// The events that a command becomes.
///
/// # Errors
/// [`DecisionError`].
pub fn decide(state: &RunState, command: Command, now_ms: u64) -> Result<Vec<Event>, DecisionError> {
    let is_idle = matches!(
        command,
        Command::WaitUntil { .. }
            | Command::WaitForSignal { .. }
            | Command::RecordProgress { .. }
            | Command::CreateHook { .. }
    );
    if is_idle && state.idle_commands >= IDLE_COMMANDS_MAX {
        return Err(DecisionError::Idle);
    }
    Ok(match command {
        Command::Complete { output } => match &state.cancel {
            Some(reason) => vec![cancelled(reason)],
            None => vec![Event::RunCompleted { output }],
        },
        Command::Fail { error } => match &state.cancel {
            Some(reason) => vec![cancelled(reason)],
            None => vec![Event::RunFailed { error: in_words(&error) }],
        },
        Command::ScheduleStep(step) => schedule(state, vec![step.into()])?,
        Command::ScheduleSteps { steps } => schedule(state, steps.into_iter().map(Into::into).collect())?,
        Command::WaitUntil { until_ms, delay_ms } => {
            let until_ms = until_ms.unwrap_or_else(|| now_ms.saturating_add(delay_ms.unwrap_or_default()));
            vec![Event::WaitStarted { until_ms }]
        }
        Command::WaitForSignal { signal } => vec![Event::SignalAwaited { signal }],
        Command::RecordProgress { message } => vec![Event::ProgressRecorded { message }],
        Command::CreateHook { hook_id } if state.hooks.contains_key(&hook_id) => {
            return Err(DecisionError::Repeated { step_id: hook_id, status: "been made: look for it in inputs.hooks" });
        }
        Command::CreateHook { hook_id } => {
            let token = token_of(&state.run_id, &hook_id);
            vec![Event::HookCreated { hook_id, token }]
        }
        Command::StartChildWorkflow(child) => schedule(state, vec![StepCommand::from(child).into()])?,
        Command::StartChildWorkflows { children } => {
            schedule(state, children.into_iter().map(|child| StepCommand::from(child).into()).collect())?
        }
        Command::ContinueAsNew { input } => match &state.cancel {
            Some(reason) => vec![cancelled(reason)],
            None => vec![Event::RunContinued { input }],
        },
    })
}

fn cancelled(reason: &str) -> Event {
    Event::RunCancelled { reason: reason.to_owned(), forced: false }
}

/// The name of a signal that a hook stands for: the same again for the same run, and no other run's.
fn token_of(run_id: &str, hook_id: &str) -> String {
    let digest = Digest::of_domain("toolwarden.workflow-hook", format!("{run_id}\n{hook_id}").as_bytes());
    format!("hook-{}", &digest.hex()[..32])
}

fn schedule(state: &RunState, steps: Vec<ScheduledStep>) -> Result<Vec<Event>, DecisionError> {
    if state.steps.len() + steps.len() > STEPS_MAX {
        return Err(DecisionError::TooMany);
    }
    for step in &steps {
        let Some(known) = state.steps.get(&step.step_id) else { continue };
        if known.scheduled != *step {
            return Err(DecisionError::NonDeterministic {
                step_id: step.step_id.clone(),
                recorded: described(&known.scheduled),
                said: described(step),
            });
        }
        let status = known.status.as_str();
        return Err(DecisionError::Repeated { step_id: step.step_id.clone(), status });
    }
    Ok(steps.into_iter().map(Event::StepCreated).collect())
}

/// Compares what a script says now with what it decided when the log was written; `recorded` are the events from the
/// decision on. Gives the events of the decision that are not in the log: it was cut while they were written.
///
/// # Errors
/// [`DecisionError::NonDeterministic`].
pub fn agree(said: &[Event], recorded: &[Entry]) -> Result<Vec<Event>, DecisionError> {
    for (index, event) in said.iter().enumerate() {
        let Some(entry) = recorded.get(index) else { return Ok(said[index..].to_vec()) };
        let same = match (event, &entry.event) {
            // A moment that was counted from then is another one now.
            (Event::WaitStarted { .. }, Event::WaitStarted { .. }) => true,
            (event, recorded) => event == recorded,
        };
        if !same {
            return Err(DecisionError::NonDeterministic {
                step_id: step_of(&entry.event).or_else(|| step_of(event)).unwrap_or("the end of the run").to_owned(),
                recorded: words(&entry.event),
                said: words(event),
            });
        }
    }
    match recorded.get(said.len()) {
        // More was decided then than now.
        Some(Entry { event: Event::StepCreated(step), .. }) if matches!(said.last(), Some(Event::StepCreated(_))) => {
            Err(DecisionError::NonDeterministic {
                step_id: step.step_id.clone(),
                recorded: described(step),
                said: "nothing of it".to_owned(),
            })
        }
        _ => Ok(Vec::new()),
    }
}

fn step_of(event: &Event) -> Option<&str> {
    match event {
        Event::StepCreated(step) => Some(&step.step_id),
        _ => None,
    }
}

fn words(event: &Event) -> String {
    match event {
        Event::StepCreated(step) => described(step),
        other => shortened(&serde_json::to_string(other).unwrap_or_default()),
    }
}

fn described(step: &ScheduledStep) -> String {
    shortened(&format!("{} {:?} of {}", step.step_name, step.step_id, step.input))
}

fn shortened(text: &str) -> String {
    /// Longest description of an event in an error, in bytes.
    const BYTES_MAX: usize = 200;
    if text.len() <= BYTES_MAX {
        text.to_owned()
    } else {
        format!("{}…", &text[..text.floor_char_boundary(BYTES_MAX)])
    }
}

fn in_words(error: &Value) -> String {
    error.as_str().map_or_else(|| error.to_string(), str::to_owned)
}

/// What the end of an attempt becomes.
pub fn settle(run_id: &str, attempt: &Attempt, result: Result<Value, String>, now_ms: u64) -> Vec<Event> {
    let step = &attempt.step;
    let step_id = step.step_id.clone();
    let error = match result {
        Ok(output) => return vec![Event::StepCompleted { step_id, output }],
        Err(error) => error,
    };
    match step.retry.and_then(|retry| retry.delay_ms(run_id, &step.step_id, attempt.attempt)) {
        Some(delay_ms) => {
            let retry_at_ms = now_ms.saturating_add(delay_ms);
            vec![Event::StepRetrying { step_id, attempt: attempt.attempt, error, retry_at_ms }]
        }
        None => vec![Event::StepFailed { step_id, error }],
    }
}

/// How a run fails whose step has failed for good, unless it goes on.
pub fn failed_by_step(state: &RunState) -> Option<Event> {
    if state.end.is_some() || !state.open.is_empty() || state.cancel.is_some() {
        return None;
    }
    let failed = |step: &&crate::workflow::state::Step| !step.scheduled.continue_workflow_on_failure;
    state.steps.values().filter(failed).find_map(|step| match &step.status {
        StepStatus::Failed(error) => {
            Some(Event::RunRetryExhausted { step_id: step.scheduled.step_id.clone(), error: error.clone() })
        }
        _ => None,
    })
}

/// How a run ends whose time is over: what is open has failed, and nobody is asked.
pub fn timed_out(state: &RunState, now_ms: u64) -> Option<Vec<Event>> {
    let (deadline_ms, timeout_ms) = (state.deadline_ms()?, state.timeout_ms?);
    (now_ms >= deadline_ms).then(|| {
        let mut events = fail_open(state, &format!("the run's {timeout_ms} ms are over"));
        events.push(Event::RunTimedOut { timeout_ms });
        events
    })
}

/// How a run takes it that somebody wants its end: its script may clean up, unless it is to end at once.
pub fn cancel(state: &RunState, reason: &str, at_once: bool) -> Vec<Event> {
    if state.end.is_some() {
        return Vec::new();
    }
    let mut events = Vec::new();
    if state.cancel.is_none() {
        events.push(Event::CancelRequested { reason: reason.to_owned() });
        events.extend(fail_open(state, &format!("cancelled: {reason}")));
    } else if at_once {
        events.extend(fail_open(state, &format!("cancelled: {reason}")));
    }
    if at_once {
        events.push(Event::RunCancelled { reason: reason.to_owned(), forced: true });
    }
    events
}

fn fail_open(state: &RunState, error: &str) -> Vec<Event> {
    state.open.iter().map(|id| Event::StepFailed { step_id: id.clone(), error: error.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{DecisionError, decide};
    use crate::workflow::IDLE_COMMANDS_MAX;
    use crate::workflow::command::Command;
    use crate::workflow::event::{Entry, Event};
    use crate::workflow::state::RunState;

    // Found in a review: a script that says how far it is for ever had no end.
    #[test]
    fn a_run_that_does_nothing_comes_to_an_end() {
        let mut state = RunState::default();
        let mut say = |command: serde_json::Value| {
            let events = decide(&state, Command::read(command).unwrap(), 0)?;
            for event in events.into_iter().chain([Event::WaitEnded]) {
                state.apply(&Entry { sequence: 1, at_ms: 0, event });
            }
            Ok::<(), DecisionError>(())
        };
        let idle =
            [json!({"type": "record_progress", "message": "so far"}), json!({"type": "wait_until", "delay_ms": 0})];
        for round in 0..2 {
            for number in 0..IDLE_COMMANDS_MAX {
                assert_eq!(say(idle[number as usize % 2].clone()), Ok(()), "{round} {number}");
            }
            for command in idle.clone() {
                assert_eq!(say(command), Err(DecisionError::Idle));
            }
            assert_eq!(say(json!({"type": "schedule_step", "step_id": format!("s{round}"), "step_name": "s"})), Ok(()));
        }
        assert_eq!(say(json!({"type": "complete"})), Ok(()));
    }
}
