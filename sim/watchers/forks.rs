//! A fork holds all that its session held when it was made, with nothing under way, and says whose fork it is.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::fact_book::StoredFact;
use toolwarden::facts::Fact;
use toolwarden::facts::state::State;
use toolwarden::snapshot::Snapshot;
use toolwarden_tools::ids::SessionId;

use super::must;
use crate::sight::{Sight, Watcher};

/// Where each session stands as far as it is stored, and how much of it a fork has to hold.
#[derive(Debug, Default)]
pub struct Forks {
    states: BTreeMap<SessionId, State>,
    /// How many messages there were when the fork was ordered.
    ordered: BTreeMap<SessionId, usize>,
    /// What is on the disk is not all known any more.
    crashed: bool,
}

impl Forks {
    fn forked(&self, to: &SessionId, bytes: &[u8]) -> Result<(), String> {
        let unreadable = |error: &dyn std::fmt::Display| format!("the fork {to} cannot be read: {error}");
        let snapshot = Snapshot::of_any_session(bytes.to_vec()).map_err(|error| unreadable(&error))?;
        let fork = snapshot.state().map_err(|error| unreadable(&error))?;
        must(fork.run.is_none() && fork.interruption().is_none(), || {
            format!("something is under way in the fork {to}")
        })?;
        let Some(from) = fork.settings.as_ref().and_then(|settings| settings.parent.as_ref()) else {
            return Err(format!("the fork {to} does not say whose fork it is"));
        };
        let (Some(state), Some(least)) = (self.states.get(from), self.ordered.get(to)) else { return Ok(()) };
        let same = fork.messages.iter().zip(&state.messages).take_while(|(fork, own)| fork == own).count();
        must(self.crashed || same >= *least, || {
            format!("the fork {to} has {same} of the {least} messages that {from} had")
        })
    }
}

impl Watcher for Forks {
    fn name(&self) -> &'static str {
        "forks"
    }

    fn promise(&self) -> &'static str {
        "a fork holds all that there was, and nothing under way"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Stored { session, payload, .. } => {
                // What cannot be read, or does not fit behind a crash, is the affair of another promise.
                if let Ok(stored) = serde_json::from_slice::<StoredFact<Fact>>(payload) {
                    drop(self.states.entry((*session).clone()).or_default().apply(stored.fact));
                }
                Ok(())
            }
            Sight::Forking { from, to } => {
                let messages = self.states.get(*from).map_or(0, |state| state.messages.len());
                self.ordered.insert((*to).clone(), messages);
                Ok(())
            }
            Sight::Forked { to, bytes } => self.forked(to, bytes),
            Sight::Crashed => {
                self.crashed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
