//! What cannot be taken back is done at most once: a name of an effect stands for one call of one session's script, so
//! it may come up once in each session, also when the process crashed around it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::{InvocationId, SessionId};

use super::must;
use crate::sight::{Call, Sight, Watcher};

/// What was done in which session.
#[derive(Debug, Default)]
pub struct Effects {
    sessions: BTreeMap<InvocationId, SessionId>,
    done: BTreeSet<(SessionId, String)>,
}

impl Watcher for Effects {
    fn name(&self) -> &'static str {
        "effects"
    }

    fn promise(&self) -> &'static str {
        "nothing is done twice"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                if let EventKind::ToolExecutionStart { id, .. } = &entry.event.kind {
                    self.sessions.insert(id.clone(), entry.event.root_session.clone());
                }
                Ok(())
            }
            Sight::Effect { invocation, name } => {
                let Some(session) = self.sessions.get(*invocation) else { return Ok(()) };
                must(self.done.insert((session.clone(), (*name).to_owned())), || {
                    format!("{} did {name:?} in session {session} a second time", Call(invocation))
                })
            }
            _ => Ok(()),
        }
    }
}
