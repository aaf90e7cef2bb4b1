//! A tool ends by itself soon after it was cancelled: it is not for the runtime to drop it when its grace is over.
//!
//! For tools of somebody's own; the world's `chore` is deaf on purpose. A shut-down without grace and a crash drop
//! whatever is there.

use std::collections::BTreeSet;
use std::time::Duration;

use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::sight::{Sight, Watcher};

/// The tools at work, and whether they may be dropped.
#[derive(Debug, Default)]
pub struct Heed {
    at_work: BTreeSet<InvocationId>,
    may_drop: bool,
}

impl Watcher for Heed {
    fn name(&self) -> &'static str {
        "heed"
    }

    fn promise(&self) -> &'static str {
        "a tool ends by itself when it is cancelled"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Began { invocation, .. } => {
                self.at_work.insert((*invocation).clone());
                Ok(())
            }
            Sight::Over { invocation, tool, returned } => {
                let was_at_work = self.at_work.remove(*invocation);
                must(*returned || self.may_drop || !was_at_work, || {
                    format!(
                        "{tool} did not end when it was cancelled, and was dropped when its grace was over; let it \
                         wait for ctx.cancel.cancelled() beside its work"
                    )
                })
            }
            Sight::Crashed | Sight::JournalBroke | Sight::Killed => {
                self.may_drop = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
