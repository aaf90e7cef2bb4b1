//! Where sessions are kept, a call of the run's own does not begin to work before it is stored that it has started:
//! else a process that goes on after a crash could do it a second time.

use std::collections::BTreeSet;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden::fact_book::StoredFact;
use toolwarden::facts::Fact;
use toolwarden::origin::Origin;
use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::sight::{Call, Sight, Watcher};

/// The calls whose start is stored.
#[derive(Debug)]
pub struct Durable {
    keeps: bool,
    /// Calls of a kept session's own run: others are covered by the call that they are in.
    own: BTreeSet<InvocationId>,
    started: BTreeSet<InvocationId>,
}

impl Durable {
    /// Looks only where sessions are kept.
    pub fn new(keeps: bool) -> Self {
        Self { keeps, own: BTreeSet::new(), started: BTreeSet::new() }
    }
}

impl Watcher for Durable {
    fn name(&self) -> &'static str {
        "durable"
    }

    fn promise(&self) -> &'static str {
        "what has effects is stored before it begins"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        if !self.keeps {
            return Ok(());
        }
        match sight {
            Sight::Entry(entry) => {
                let is_roots = entry.event.session == entry.event.root_session;
                if let EventKind::ToolProposed { id, origin: Origin::Agent, parent: None, .. } = &entry.event.kind
                    && is_roots
                {
                    self.own.insert(id.clone());
                }
                Ok(())
            }
            Sight::Stored { payload, .. } => {
                // What cannot be read is the affair of another promise.
                if let Ok(StoredFact { fact: Fact::CallStarted { invocation }, .. }) = serde_json::from_slice(payload) {
                    self.started.insert(invocation);
                }
                Ok(())
            }
            Sight::Began { invocation, effects: true, .. } => {
                let stored = self.started.contains(*invocation) || !self.own.contains(*invocation);
                must(stored, || format!("{} works, and that it has started is not stored", Call(invocation)))
            }
            _ => Ok(()),
        }
    }
}
