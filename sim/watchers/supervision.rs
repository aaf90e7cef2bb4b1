//! A session is closed as often as it was opened, nothing of it is told after that, nothing lives once all are closed,
//! and a shut-down leaves nothing and comes to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::SessionId;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// The sessions of this process, and whether each is open.
#[derive(Debug, Default)]
pub struct Supervision {
    sessions: BTreeMap<SessionId, bool>,
}

impl Watcher for Supervision {
    fn name(&self) -> &'static str {
        "supervision"
    }

    fn promise(&self) -> &'static str {
        "everything that was opened is closed, in order"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                let session = &entry.event.root_session;
                match &entry.event.kind {
                    EventKind::SessionOpened { .. } => {
                        let was_open = self.sessions.insert(session.clone(), true).unwrap_or(false);
                        must(!was_open, || format!("session {session} was opened while it was open"))
                    }
                    EventKind::SessionClosed => {
                        let was_open = self.sessions.insert(session.clone(), false).unwrap_or(false);
                        must(was_open, || format!("session {session} was closed and is not open"))
                    }
                    kind => {
                        let is_closed = self.sessions.get(session) == Some(&false);
                        must(!is_closed, || format!("session {session} is closed, and is told about: {kind:?}"))
                    }
                }
            }
            Sight::Crashed | Sight::JournalBroke => {
                self.sessions.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        must(aftermath.stuck.is_none(), || aftermath.stuck.clone().unwrap_or_default())?;
        let open = self.sessions.iter().find(|(_, open)| **open);
        must(open.is_none(), || format!("a session was never closed: {open:?}"))?;
        must(aftermath.nodes == 0, || format!("{} nodes live with every session closed", aftermath.nodes))?;
        must(aftermath.nodes_after == 0, || format!("{} nodes live after the shut-down", aftermath.nodes_after))?;
        must(aftermath.tasks == 0, || format!("{} tasks live after the shut-down", aftermath.tasks))
    }
}
