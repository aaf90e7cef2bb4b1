//! Nothing is left of any command once its session is closed; a command ends before the one ending of its call, unless
//! it was handed to the session.

use std::collections::BTreeSet;
use std::time::Duration;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The commands that run.
#[derive(Debug, Default)]
pub struct Commands {
    running: BTreeSet<u64>,
}

impl Watcher for Commands {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn promise(&self) -> &'static str {
        "nothing is left of any command"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::CommandStarted { command } => {
                must(self.running.insert(*command), || format!("command {command} was started twice"))
            }
            Sight::CommandOver { command } => {
                must(self.running.remove(command), || format!("command {command} ended twice"))
            }
            // All of them end with the process.
            Sight::Crashed => {
                self.running.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _aftermath: &Aftermath) -> Result<(), String> {
        must(self.running.is_empty(), || format!("commands still run: {:?}", self.running))
    }
}
