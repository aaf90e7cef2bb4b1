//! A cancel is obeyed: a body does not begin after it was read, and the node ends within its time.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node::{ABORT_WAIT, BACKSTOP, NodeId};

use super::{Checker, must};
use crate::happening::Happening;
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;

/// The deliveries, one after the other, between a cancel and its ending: grace, abort wait, backstop, kill, death.
pub const DELIVERIES_MAX: u32 = 5;

/// When each node that was cancelled has to be over.
#[derive(Debug, Default)]
pub struct Cancelled {
    graces: BTreeMap<NodeId, Duration>,
    due: BTreeMap<NodeId, Duration>,
}

impl Cancelled {
    fn overdue(&self, now: Duration) -> Result<(), String> {
        let late = self.due.iter().find(|(_, due)| **due < now);
        must(late.is_none(), || format!("{late:?} is over by that moment, and it is {now:?} now"))
    }
}

impl Checker for Cancelled {
    fn name(&self) -> &'static str {
        "cancelled"
    }

    fn promise(&self) -> &'static str {
        "a cancel is obeyed in time"
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, grace, .. } => {
                self.graces.insert(*node, *grace);
            }
            Happening::CancelRead { node } => {
                let grace = self.graces.get(node).copied().unwrap_or_default();
                let due = now + grace + ABORT_WAIT + BACKSTOP + LATENCY_MAX * DELIVERIES_MAX;
                self.due.entry(*node).or_insert(due);
            }
            Happening::BodyAsked { node } => {
                let cancelled = self.due.contains_key(node);
                must(!cancelled, || format!("node {} read a cancel and then began its body", node.0))?;
            }
            Happening::Ended { node, .. } | Happening::Died { node } => {
                self.graces.remove(node);
                let due = self.due.remove(node);
                must(due.is_none_or(|due| now <= due), || format!("node {} ended at {now:?}, due {due:?}", node.0))?;
            }
            _ => return Ok(()),
        }
        self.overdue(now)
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        must(self.due.is_empty(), || format!("cancelled and never over: {:?}", self.due))
    }
}
