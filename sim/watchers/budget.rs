//! No session starts more calls than its budget has, those of its child runs included, and what a budget counts as
//! spent never goes beyond it.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::SessionId;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The starts of each session in this process.
#[derive(Debug)]
pub struct Budget {
    calls_max: Option<u64>,
    starts: BTreeMap<SessionId, u64>,
}

impl Budget {
    /// Every session may make so many calls.
    pub fn new(calls_max: Option<u64>) -> Self {
        Self { calls_max, starts: BTreeMap::new() }
    }
}

impl Watcher for Budget {
    fn name(&self) -> &'static str {
        "budget"
    }

    fn promise(&self) -> &'static str {
        "nothing is used beyond a budget"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match (sight, self.calls_max) {
            (Sight::Entry(entry), Some(calls_max)) => {
                let EventKind::ToolExecutionStart { .. } = &entry.event.kind else { return Ok(()) };
                let starts = self.starts.entry(entry.event.root_session.clone()).or_default();
                *starts += 1;
                must(*starts <= calls_max, || {
                    format!("session {} starts call {starts}, and may make {calls_max}", entry.event.root_session)
                })
            }
            // What counts from before is in the facts: an interrupted call may have been counted or not.
            (Sight::Crashed | Sight::JournalBroke, _) => {
                self.starts.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        must(aftermath.overspent.is_empty(), || format!("overspent: {:?}", aftermath.overspent))
    }
}
