//! Whoever waits for a node is told its ending exactly once, whatever becomes of the node or of its parent.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;

/// Whether each waiter was told.
#[derive(Debug, Default)]
pub struct Waiters {
    told: Dense<bool>,
}

impl Checker for Waiters {
    fn name(&self) -> &'static str {
        "waiters"
    }

    fn promise(&self) -> &'static str {
        "a waiter is told exactly once"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Wanted { node, waited: true } => {
                self.told.insert(node.0, false);
                Ok(())
            }
            Happening::WaiterTold { node } => {
                let told = self.told.insert(node.0, true);
                must(told == Some(false), || format!("of node {}: told before, or nobody waits ({told:?})", node.0))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        let untold = self.told.iter().find(|(_, told)| !**told);
        must(untold.is_none(), || format!("nobody was told of node {untold:?}"))
    }
}
