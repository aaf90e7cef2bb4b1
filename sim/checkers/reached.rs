//! A cancel reaches every level at once: a node that read one, or whose body is over, has told each of its children
//! by the next delivery, and takes no new ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_actors::node::NodeId;

use super::{Checker, must};
use crate::happening::Happening;
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;

/// Who has been told, and who is to be told until when.
#[derive(Debug, Default)]
pub struct Reached {
    children: BTreeMap<NodeId, BTreeSet<NodeId>>,
    told: BTreeSet<NodeId>,
    closed: BTreeSet<NodeId>,
    due: BTreeMap<NodeId, Duration>,
}

impl Reached {
    fn close(&mut self, now: Duration, node: NodeId) {
        if !self.closed.insert(node) {
            return;
        }
        for child in self.children.get(&node).into_iter().flatten() {
            if !self.told.contains(child) {
                self.due.insert(*child, now + LATENCY_MAX);
            }
        }
    }
}

impl Checker for Reached {
    fn name(&self) -> &'static str {
        "reached"
    }

    fn promise(&self) -> &'static str {
        "a cancel reaches every level at once"
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        let late = self.due.iter().find(|(_, due)| **due < now);
        must(late.is_none(), || format!("{late:?}: not told by then, and it is {now:?} now"))?;
        match happening {
            Happening::Born { node, parent: Some(parent), .. } => {
                self.children.entry(*parent).or_default().insert(*node);
                must(!self.closed.contains(parent), || format!("node {} bears a child and is ending", parent.0))?;
            }
            Happening::CancelRead { node } => {
                self.told.insert(*node);
                self.due.remove(node);
                self.close(now, *node);
            }
            Happening::BodyEndRead { node } => self.close(now, *node),
            Happening::Ended { node, .. } | Happening::Died { node } => {
                // Whatever it was still to be told makes no difference any more.
                self.told.insert(*node);
                self.due.remove(node);
                self.closed.insert(*node);
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        must(self.due.is_empty(), || format!("never told: {:?}", self.due))
    }
}
