//! A question is answered exactly once or withdrawn, and nothing but a person's word about just that call approves.
//!
//! The counting is that of the machines' own checker; a question here is one asking about one call.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::checkers::Checker as _;
use crate::checkers::questions::Questions;
use crate::happening::Happening;
use crate::sight::{Aftermath, Sight, Watcher};

/// What became of each question.
#[derive(Debug, Default)]
pub struct AskedOnce {
    questions: Questions,
    /// The question about each call that is asked now; a call may be asked about again when its content changed.
    open: BTreeMap<InvocationId, u64>,
    asked: u64,
}

impl AskedOnce {
    fn answered(&mut self, at: Duration, call: &InvocationId, approved: bool) -> Result<(), String> {
        let Some(ask) = self.open.remove(call) else { return Err(format!("nobody was asked about call {call}")) };
        self.questions.see(at, &Happening::Answered { ask, approved })
    }

    fn withdrawn(&mut self, at: Duration, call: &InvocationId) -> Result<(), String> {
        match self.open.remove(call) {
            Some(ask) => self.questions.see(at, &Happening::Withdrawn { ask }),
            None => Ok(()),
        }
    }
}

impl Watcher for AskedOnce {
    fn name(&self) -> &'static str {
        "questions"
    }

    fn promise(&self) -> &'static str {
        "a question is answered once, and approved by a person only"
    }

    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => match &entry.event.kind {
                EventKind::ConfirmationRequired { tool_id, .. } => {
                    self.asked += 1;
                    let before = self.open.insert(tool_id.clone(), self.asked);
                    must(before.is_none(), || format!("call {tool_id} is asked about twice at a time"))?;
                    self.questions.see(at, &Happening::Asked { ask: self.asked })
                }
                EventKind::ConfirmationReceived { tool_id, approved, .. } => self.answered(at, tool_id, *approved),
                EventKind::ConfirmationTimeout { tool_id, .. } => self.answered(at, tool_id, false),
                // A call that ended while it was asked about: nobody waits for the word any more.
                EventKind::ToolEnd(result) => self.withdrawn(at, &result.id),
                _ => Ok(()),
            },
            Sight::Answered { invocation, approved: true, taken: false } => match self.open.get(*invocation) {
                Some(ask) => self.questions.see(at, &Happening::Approved { ask: *ask }),
                None => Ok(()),
            },
            Sight::Crashed | Sight::JournalBroke => {
                let calls: Vec<InvocationId> = self.open.keys().cloned().collect();
                calls.iter().try_for_each(|call| self.withdrawn(at, call))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        must(aftermath.questions == 0, || format!("{} questions are still open", aftermath.questions))?;
        must(self.open.is_empty(), || format!("questions were never answered: {:?}", self.open))
    }
}
