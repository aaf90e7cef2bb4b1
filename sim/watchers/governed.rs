//! No tool works, and nothing is done, before the journal has said that it starts; nothing starts that was refused or
//! that waits for a person's word; and whatever starts was proposed and bound first.
//!
//! A tool that declares no effects may be told about together with its ending, so it is only held to not being refused.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::InvocationId;

use super::journal::call_of;
use super::must;
use crate::sight::{Call, Sight, Watcher};

/// How far each call has come.
#[derive(Debug, Default)]
pub struct Governed {
    calls: BTreeMap<InvocationId, Way>,
}

#[derive(Debug, Default)]
struct Way {
    bound: bool,
    waits_for_a_person: bool,
    refused: bool,
    started: bool,
}

impl Governed {
    fn entry(&mut self, kind: &EventKind) -> Result<(), String> {
        let Some(id) = call_of(kind) else { return Ok(()) };
        let way = self.calls.entry(id.clone()).or_default();
        match kind {
            EventKind::ToolRequestBound { .. } => way.bound = true,
            EventKind::PermissionDenied { .. } => {
                way.refused = true;
                must(!way.started, || format!("{} was refused after it had started", Call(id)))?;
            }
            EventKind::ConfirmationRequired { .. } => way.waits_for_a_person = true,
            EventKind::ConfirmationReceived { approved, .. } => {
                way.waits_for_a_person = false;
                way.refused = !approved;
            }
            EventKind::ConfirmationTimeout { .. } => {
                way.waits_for_a_person = false;
                way.refused = true;
            }
            EventKind::ToolExecutionStart { .. } => {
                must(way.bound, || format!("{} starts and was never bound", Call(id)))?;
                must(!way.refused, || format!("{} starts and was refused", Call(id)))?;
                must(!way.waits_for_a_person, || format!("{} starts before a person's word", Call(id)))?;
                must(!way.started, || format!("{} starts twice", Call(id)))?;
                way.started = true;
            }
            _ => {}
        }
        Ok(())
    }
}

impl Watcher for Governed {
    fn name(&self) -> &'static str {
        "governed"
    }

    fn promise(&self) -> &'static str {
        "nothing is done before every stage has let it through"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => self.entry(&entry.event.kind),
            Sight::Began { invocation, effects, .. } => {
                let way = self.calls.entry((*invocation).clone()).or_default();
                must(!way.refused && !way.waits_for_a_person, || {
                    format!("{} works, and was not let through", Call(invocation))
                })?;
                must(way.started || !effects, || format!("{} works before the journal has its start", Call(invocation)))
            }
            Sight::Effect { invocation, name } => {
                let started = self.calls.get(*invocation).is_some_and(|way| way.started);
                must(started, || format!("{} did {name:?} before its start", Call(invocation)))
            }
            _ => Ok(()),
        }
    }
}
