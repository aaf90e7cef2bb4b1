//! A child run that is carried out elsewhere is asked for once in a process, and what it used is in its session's budget:
//! what the other side said, or all that was set aside where nobody knows; neither twice nor not at all.
//!
//! Looked at are tokens, which in these worlds only contracts use.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_tools::effects::dispatch::{ChildContract, ContractUse};
use toolwarden_tools::ids::{SessionId, TaskId};

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// Tokens in and out.
type Tokens = (u64, u64);

/// The contracts of this process, and what all of them come to.
#[derive(Debug, Default)]
pub struct Contracts {
    open: BTreeMap<TaskId, (SessionId, Tokens)>,
    asked: BTreeSet<TaskId>,
    used: BTreeMap<SessionId, Tokens>,
    /// Whether a process has ended without a warning: what it had counted is not looked at.
    crashed: bool,
}

impl Contracts {
    fn delivered(&mut self, key: &TaskId, used: Option<ContractUse>) -> Result<(), String> {
        let Some((session, aside)) = self.open.remove(key) else {
            return Err(format!("{key} has an answer and was not taken"));
        };
        let used = used.map_or(aside, |used| (used.input_tokens, used.output_tokens));
        let sum = self.used.entry(session).or_default();
        (sum.0, sum.1) = (sum.0 + used.0, sum.1 + used.1);
        Ok(())
    }
}

impl Watcher for Contracts {
    fn name(&self) -> &'static str {
        "contracts"
    }

    fn promise(&self) -> &'static str {
        "a contract is asked for once, and what it used is counted once"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Contracted { contract } => {
                let ChildContract { idempotency_key: key, parent_session, budget, .. } = contract;
                let aside = (budget.input_tokens.unwrap_or(0), budget.output_tokens.unwrap_or(0));
                self.open.insert(key.clone(), (parent_session.clone(), aside));
                must(self.asked.insert(key.clone()), || format!("{key} was asked for twice"))
            }
            Sight::Delivered { key, used } => self.delivered(key, *used),
            Sight::Crashed => {
                self.crashed = true;
                self.open.clear();
                self.asked.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        must(self.open.is_empty(), || format!("{:?} are still open", self.open.keys()))?;
        if self.crashed {
            return Ok(());
        }
        for (session, spent) in &aftermath.spent {
            let Some(used) = self.used.get(session) else { continue };
            let counted = (spent.input_tokens, spent.output_tokens);
            must(counted == *used, || {
                format!("the contracts of {session} used {used:?} tokens in and out, and {counted:?} are counted")
            })?;
        }
        Ok(())
    }
}
