//! Facts have no gap; whatever was stored is found again; and a session's snapshot with the rest of its log comes to
//! the same state as its log alone.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::resume::fold;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::ids::SessionId;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The last fact that was stored of each session.
#[derive(Debug, Default)]
pub struct Snapshots {
    stored: BTreeMap<SessionId, u64>,
    /// A fact may have been stored without anybody knowing when the process crashed.
    crashed: bool,
}

impl Watcher for Snapshots {
    fn name(&self) -> &'static str {
        "snapshot"
    }

    fn promise(&self) -> &'static str {
        "what is kept is the fold of what happened"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Stored { session, sequence, .. } => {
                let last = self.stored.insert((*session).clone(), *sequence);
                let follows = last.map_or(*sequence == 1, |last| *sequence == last + 1);
                must(follows || self.crashed, || format!("fact {sequence} of {session} follows {last:?}"))
            }
            Sight::Crashed => {
                self.crashed = true;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        for (session, recovered) in &aftermath.kept {
            let stored = self.stored.get(session).copied().unwrap_or(0);
            let words = |error: &dyn std::fmt::Display| format!("session {session} cannot be read: {error}");
            let whole = fold(session, recovered.clone(), true).map_err(|error| words(&error))?;
            let position = whole.state.position;
            must(position >= stored, || {
                format!("fact {stored} of {session} was stored, and {position} facts are found")
            })?;
            if recovered.snapshot.is_some() && recovered.log.first_sequence() == Some(1) {
                let log_alone = Recovered { snapshot: None, ..recovered.clone() };
                let alone = fold(session, log_alone, true).map_err(|error| words(&error))?;
                must(alone.state == whole.state, || {
                    format!("snapshot and log of {session} differ from the log alone at fact {position}")
                })?;
            }
        }
        Ok(())
    }
}
