//! What cannot be taken back is done at most once: a name of an effect stands for one call of one session's script, so
//! it may come up once in each session, also when the process crashed around it.
//!
//! A step of a workflow is done at least once: when it was interrupted (the process died, the call was cancelled) before
//! its end was recorded, it does its work again. Once its end is in the log, or the call has told that this process
//! knows it and the log lacks it, that is over as well.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use toolwarden::call_result::CallResult;
use toolwarden::event::EventKind;
use toolwarden_tools::ids::{InvocationId, SessionId};
use toolwarden_tools::outcome::ToolErrorKind;
use toolwarden_tools::workflow::event::{Entry, Event};

use super::must;
use crate::sight::{Call, Sight, Watcher};

/// What was done in which session.
#[derive(Debug, Default)]
pub struct Effects {
    sessions: BTreeMap<InvocationId, SessionId>,
    parents: BTreeMap<InvocationId, InvocationId>,
    workflows: BTreeSet<InvocationId>,
    /// The effects that the steps of workflows are for, by the ids of the steps.
    steps: BTreeMap<String, BTreeSet<String>>,
    done: BTreeMap<(SessionId, String), Done>,
}

/// How an effect stands that was done.
#[derive(Debug, Default)]
struct Done {
    /// The workflow whose step did it.
    workflow: Option<InvocationId>,
    /// The step's end is in the log.
    is_recorded: bool,
    /// The step was interrupted.
    may_come_again: bool,
}

impl Effects {
    fn take_done(&mut self, invocation: &InvocationId, name: &str) -> Result<(), String> {
        let Some(session) = self.sessions.get(invocation) else { return Ok(()) };
        let workflow = self.workflow_of(invocation).cloned();
        let done = Done { workflow, ..Done::default() };
        let before = self.done.insert((session.clone(), name.to_owned()), done);
        must(before.is_none_or(|before| before.may_come_again), || {
            format!("{} did {name:?} in session {session} a second time", Call(invocation))
        })
    }

    /// The workflow that a call is inside of.
    fn workflow_of(&self, invocation: &InvocationId) -> Option<&InvocationId> {
        let mut at = self.parents.get(invocation)?;
        while !self.workflows.contains(at) {
            at = self.parents.get(at)?;
        }
        Some(at)
    }

    /// What was done in these workflows may come again, where no log has the end of the step that did it.
    fn interrupt(&mut self, is_one: impl Fn(&InvocationId) -> bool, known: &BTreeSet<&String>) {
        for ((_, name), done) in &mut self.done {
            let is_in_it = done.workflow.as_ref().is_some_and(&is_one);
            done.may_come_again |= is_in_it && !done.is_recorded && !known.contains(name);
        }
    }

    fn call_ended(&mut self, result: &CallResult) {
        use ToolErrorKind::{Cancelled, Crashed, Timeout};
        if !matches!(result.error_kind, Some(Cancelled { reason: Some(_), .. } | Timeout { .. } | Crashed)) {
            return;
        }
        // Whatever the process knows of an end, the step need not be done for again.
        let told = result.metadata.get("dynamic_workflow").and_then(|told| told.get("unrecorded")?.as_array());
        let steps = told.into_iter().flatten().filter_map(Value::as_str);
        let effects = std::mem::take(&mut self.steps);
        let known = steps.filter_map(|step_id| effects.get(step_id)).flatten().collect();
        self.interrupt(|workflow| *workflow == result.id, &known);
        self.steps = effects;
    }

    fn logged(&mut self, bytes: &[u8]) {
        let lines = bytes.split(|byte| *byte == b'\n');
        for entry in lines.filter_map(|line| serde_json::from_slice::<Entry>(line).ok()) {
            match entry.event {
                Event::StepCreated(step) => {
                    let mut effects = BTreeSet::new();
                    name_effects(&step.input, &mut effects);
                    self.steps.insert(step.step_id, effects);
                }
                Event::StepCompleted { step_id, .. } | Event::StepFailed { step_id, .. } => {
                    let Some(effects) = self.steps.get(&step_id) else { continue };
                    for ((_, name), done) in &mut self.done {
                        if done.workflow.is_some() && effects.contains(name) {
                            (done.is_recorded, done.may_come_again) = (true, false);
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// The names of all effects that a step is told to have.
fn name_effects(input: &Value, effects: &mut BTreeSet<String>) {
    match input {
        Value::Object(map) => {
            effects.extend(map.get("effect").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|value| name_effects(value, effects));
        }
        Value::Array(items) => items.iter().for_each(|item| name_effects(item, effects)),
        _ => {}
    }
}

impl Watcher for Effects {
    fn name(&self) -> &'static str {
        "effects"
    }

    fn promise(&self) -> &'static str {
        "nothing is done twice"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => match &entry.event.kind {
                EventKind::ToolProposed { id, name, parent, .. } => {
                    if let Some(parent) = parent {
                        self.parents.insert(id.clone(), parent.clone());
                    }
                    if name.as_str().ends_with("dynamic_workflow") {
                        self.workflows.insert(id.clone());
                    }
                }
                EventKind::ToolExecutionStart { id, .. } => {
                    self.sessions.insert(id.clone(), entry.event.root_session.clone());
                }
                EventKind::ToolEnd(result) if self.workflows.contains(&result.id) => self.call_ended(result),
                _ => {}
            },
            Sight::Effect { invocation, name } => return self.take_done(invocation, name),
            Sight::Logged { bytes, is_whole: true, .. } => self.logged(bytes),
            Sight::Crashed | Sight::JournalBroke => self.interrupt(|_| true, &BTreeSet::new()),
            _ => {}
        }
        Ok(())
    }
}
