//! A cancel is obeyed: a body does not begin after it was read, and the node ends within its time.

use std::time::Duration;

use toolwarden_actors::node_machine::{ABORT_WAIT, BACKSTOP};

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;

/// The deliveries, one after the other, between a cancel and its ending: grace, abort wait, backstop, kill, death.
pub const DELIVERIES_MAX: u32 = 5;

/// When each node that was cancelled has to be over.
#[derive(Debug, Default)]
pub struct Cancelled {
    graces: Dense<Duration>,
    due: Dense<Duration>,
    /// Nothing is due before this moment.
    quiet_until: Option<Duration>,
}

impl Checker for Cancelled {
    fn name(&self) -> &'static str {
        "cancelled"
    }

    fn promise(&self) -> &'static str {
        "a cancel is obeyed in time"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        if self.quiet_until.is_none_or(|until| now <= until) {
            return Ok(());
        }
        self.quiet_until = self.due.values().copied().min();
        let late = self.due.iter().find(|(_, due)| **due < now);
        must(late.is_none(), || format!("node {late:?} is over by that moment, and it is {now:?} now"))
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, grace, .. } => {
                self.graces.insert(node.0, *grace);
            }
            Happening::CancelRead { node } => {
                let grace = self.graces.get(node.0).copied().unwrap_or_default();
                let due = now + grace + ABORT_WAIT + BACKSTOP + LATENCY_MAX * DELIVERIES_MAX;
                if !self.due.contains(node.0) {
                    self.due.insert(node.0, due);
                    self.quiet_until = Some(self.quiet_until.map_or(due, |until| until.min(due)));
                }
            }
            Happening::BodyAsked { node } => {
                let cancelled = self.due.contains(node.0);
                must(!cancelled, || format!("node {} read a cancel and then began its body", node.0))?;
            }
            Happening::Ended { node, .. } | Happening::Died { node } => {
                self.graces.remove(node.0);
                let due = self.due.remove(node.0);
                must(due.is_none_or(|due| now <= due), || format!("node {} ended at {now:?}, due {due:?}", node.0))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        must(self.due.is_empty(), || format!("cancelled and never over: {:?}", self.due))
    }
}
