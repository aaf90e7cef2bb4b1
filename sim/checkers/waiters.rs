//! Whoever waits for a node is told its ending exactly once, whatever becomes of the node or of its parent.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node::NodeId;

use super::{Checker, must};
use crate::happening::Happening;
use crate::remains::Remains;

/// Whether each waiter was told.
#[derive(Debug, Default)]
pub struct Waiters {
    told: BTreeMap<NodeId, bool>,
}

impl Checker for Waiters {
    fn name(&self) -> &'static str {
        "waiters"
    }

    fn promise(&self) -> &'static str {
        "a waiter is told exactly once"
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Wanted { node, waited: true } => {
                self.told.insert(*node, false);
                Ok(())
            }
            Happening::WaiterTold { node } => {
                let told = self.told.insert(*node, true);
                must(told == Some(false), || format!("of node {}: told before, or nobody waits ({told:?})", node.0))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        let untold = self.told.iter().find(|(_, told)| !**told);
        must(untold.is_none(), || format!("nobody was told of {untold:?}"))
    }
}
