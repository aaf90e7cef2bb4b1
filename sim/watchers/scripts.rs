//! What a script does not wait for is cancelled when it returns: its work does not go on until it is done.
//!
//! A script takes no virtual time of its own, so it has returned when the last of the calls that it waited for had its
//! ending. Looked at are scripts that returned by themselves. A tool that does not hear has its grace from there, and the
//! result of the script waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use toolwarden::event::EventKind;
use toolwarden::scope::CallLimits;
use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::sight::{Call, Sight, Watcher};

/// The scripts under way, and their calls in the order they were made.
#[derive(Debug, Default)]
pub struct Scripts {
    begun: BTreeMap<InvocationId, Script>,
    owners: BTreeMap<InvocationId, InvocationId>,
    /// Calls whose tools do not hear of a cancel: known before the journal tells of the call.
    deaf: BTreeSet<InvocationId>,
}

#[derive(Debug, Default)]
struct Script {
    began_at: Duration,
    calls: Vec<(InvocationId, Ends)>,
}

/// When the tool of a call returned, and when the call had its ending.
#[derive(Debug, Default, Clone, Copy)]
struct Ends {
    work: Option<Duration>,
    call: Option<Duration>,
}

impl Scripts {
    fn call(&mut self, id: &InvocationId) -> Option<&mut Ends> {
        let script = self.begun.get_mut(self.owners.get(id)?)?;
        script.calls.iter_mut().find(|(call, _)| call == id).map(|(_, ends)| ends)
    }

    /// A script has returned: looks at what its report calls not awaited.
    fn returned(&mut self, id: &InvocationId, report: Option<&Value>) -> Result<(), String> {
        let Some(script) = self.begun.remove(id) else { return Ok(()) };
        for (call, _) in &script.calls {
            self.owners.remove(call);
        }
        let told = report.and_then(|report| report.get("tool_calls")).and_then(Value::as_array);
        let is_awaited = |at: usize| {
            let entry = told.and_then(|told| told.get(at));
            entry.is_some_and(|entry| entry.get("awaited") != Some(&Value::Bool(false)))
        };
        let awaited = script.calls.iter().enumerate().filter(|(at, _)| is_awaited(*at));
        let ended_at = awaited.filter_map(|(_, (_, ends))| ends.call).max().unwrap_or(script.began_at);
        for (at, (call, ends)) in script.calls.iter().enumerate() {
            let until = if self.deaf.contains(call) { ended_at + CallLimits::default().grace } else { ended_at };
            let late = ends.work.filter(|work| *work > until && told.is_some() && !is_awaited(at));
            must(late.is_none(), || {
                format!(
                    "{} was not awaited by a script that ended at {ended_at:?}, and was done at {late:?}",
                    Call(call)
                )
            })?;
        }
        Ok(())
    }
}

impl Watcher for Scripts {
    fn name(&self) -> &'static str {
        "scripts"
    }

    fn promise(&self) -> &'static str {
        "what a script does not wait for ends with it"
    }

    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => match &entry.event.kind {
                EventKind::ToolProposed { id, name, parent: None, .. } if name.as_str().ends_with("program") => {
                    self.begun.insert(id.clone(), Script { began_at: at, calls: Vec::new() });
                    Ok(())
                }
                EventKind::ToolProposed { id, parent: Some(parent), .. } => {
                    if let Some(script) = self.begun.get_mut(parent) {
                        script.calls.push((id.clone(), Ends::default()));
                        self.owners.insert(id.clone(), parent.clone());
                    }
                    Ok(())
                }
                EventKind::ToolEnd(result) => {
                    if let Some(ends) = self.call(&result.id) {
                        ends.call = Some(at);
                    }
                    match result.is_success() {
                        true => self.returned(&result.id, result.metadata.get("program")),
                        false => {
                            self.begun.remove(&result.id);
                            Ok(())
                        }
                    }
                }
                _ => Ok(()),
            },
            Sight::Deaf { invocation } => {
                self.deaf.insert((*invocation).clone());
                Ok(())
            }
            Sight::Over { invocation, returned: true, .. } => {
                if let Some(ends) = self.call(invocation) {
                    ends.work = Some(at);
                }
                Ok(())
            }
            Sight::Crashed | Sight::JournalBroke => {
                (self.begun, self.owners, self.deaf) = Default::default();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
