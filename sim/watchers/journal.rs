//! The journal's numbers have no gap and its time never goes back; what a reader is shown was stored before; every
//! call opens once and ends once, and nothing is told of it afterwards; a parent ends after what is nested in it.
//!
//! A journal that broke down has lost its books: calls that were under way then have no ending in it, and may not.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_tools::ids::InvocationId;

use super::must;
use crate::sight::{Aftermath, Call, Sight, Watcher};

/// Where the journal and each call of it stand.
#[derive(Debug, Default)]
pub struct Journal {
    sequence: u64,
    unix_ms: u64,
    calls: BTreeMap<InvocationId, Life>,
    crashed: bool,
    broke: bool,
}

#[derive(Debug, Default)]
struct Life {
    parent: Option<InvocationId>,
    children: usize,
    ended: bool,
    /// Lost with the books of a journal or with its process.
    lost: bool,
}

/// The call that an event is about.
pub fn call_of(kind: &EventKind) -> Option<&InvocationId> {
    match kind {
        EventKind::ToolProposed { id, .. }
        | EventKind::ToolExecutionStart { id, .. }
        | EventKind::ToolOutputDelta { id, .. } => Some(id),
        EventKind::ToolRequestBound { tool_id, .. }
        | EventKind::PermissionDenied { tool_id, .. }
        | EventKind::ConfirmationRequired { tool_id, .. }
        | EventKind::ConfirmationReceived { tool_id, .. }
        | EventKind::ConfirmationTimeout { tool_id, .. } => Some(tool_id),
        EventKind::ToolEnd(result) => Some(&result.id),
        _ => None,
    }
}

impl Journal {
    fn lose(&mut self) {
        self.calls.values_mut().filter(|life| !life.ended).for_each(|life| life.lost = true);
    }

    fn call(&mut self, kind: &EventKind) -> Result<(), String> {
        let Some(id) = call_of(kind) else { return Ok(()) };
        if let EventKind::ToolProposed { parent, .. } = kind {
            let life = Life { parent: parent.clone(), ..Life::default() };
            must(self.calls.insert(id.clone(), life).is_none(), || format!("{} was proposed twice", Call(id)))?;
            if let Some(above) = parent.as_ref().and_then(|parent| self.calls.get_mut(parent)) {
                must(!above.ended, || format!("{} was proposed after its parent's ending", Call(id)))?;
                above.children += 1;
            }
            return Ok(());
        }
        let Some(life) = self.calls.get_mut(id) else {
            return Err(format!("{}: {kind:?} before its proposal", Call(id)));
        };
        must(!life.ended, || format!("{}: {kind:?} after its ending", Call(id)))?;
        if matches!(kind, EventKind::ToolEnd(_)) {
            life.ended = true;
            let (children, parent) = (life.children, life.parent.clone());
            must(children == 0, || format!("{} ended before {children} calls in it", Call(id)))?;
            if let Some(above) = parent.as_ref().and_then(|parent| self.calls.get_mut(parent)) {
                above.children = above.children.saturating_sub(1);
            }
        }
        Ok(())
    }
}

impl Watcher for Journal {
    fn name(&self) -> &'static str {
        "journal"
    }

    fn promise(&self) -> &'static str {
        "the journal has every call once, from opening to ending, without a gap"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                let (sequence, unix_ms) = (entry.sequence, entry.unix_ms);
                let follows = sequence == self.sequence + 1
                    || (sequence > self.sequence && (self.sequence == 0 || self.crashed || self.broke));
                must(follows, || format!("entry {sequence} follows {}", self.sequence))?;
                let goes_on = unix_ms >= self.unix_ms || self.crashed || self.broke;
                must(goes_on, || format!("time went back from {} to {unix_ms}", self.unix_ms))?;
                (self.sequence, self.unix_ms) = (sequence, unix_ms);
                (self.crashed, self.broke) = (false, false);
                self.call(&entry.event.kind)
            }
            Sight::Shown { sequence } => must(*sequence <= self.sequence, || {
                format!("entry {sequence} was shown, and the sink has {} only", self.sequence)
            }),
            Sight::JournalBroke => {
                self.broke = true;
                self.lose();
                Ok(())
            }
            Sight::Crashed => {
                self.crashed = true;
                self.lose();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        let open = self.calls.iter().find(|(_, life)| !life.ended && !life.lost);
        must(open.is_none(), || format!("a call has no ending: {open:?}"))?;
        must(aftermath.open_invocations == 0, || {
            format!("the journal counts {} open calls", aftermath.open_invocations)
        })?;
        // Calls that a journal that broke down knew nothing of any more may try to end in the next one.
        let lost = self.calls.values().filter(|life| life.lost).count() as u64;
        must(aftermath.refused_endings <= lost, || format!("{} endings were refused", aftermath.refused_endings))
    }
}
