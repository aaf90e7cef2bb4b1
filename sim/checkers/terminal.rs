//! Every node that came to life has exactly one ending: its own, or its actor's death.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;

/// Whether each node that was born has ended.
#[derive(Debug, Default)]
pub struct Terminal {
    ended: Dense<bool>,
}

impl Checker for Terminal {
    fn name(&self) -> &'static str {
        "terminal"
    }

    fn promise(&self) -> &'static str {
        "a node ends exactly once"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, .. } => {
                must(self.ended.insert(node.0, false).is_none(), || format!("node {} was born twice", node.0))
            }
            Happening::Ended { node, .. } | Happening::Died { node } => match self.ended.insert(node.0, true) {
                Some(false) => Ok(()),
                Some(true) => Err(format!("node {} ended a second time", node.0)),
                None => Err(format!("node {} ended and was never born", node.0)),
            },
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        match self.ended.iter().find(|(_, ended)| !**ended) {
            Some((node, _)) => Err(format!("node {node} never ended")),
            None => Ok(()),
        }
    }
}
