//! The journal's sink of a world: what it takes is seen, and each entry is a step at which something may be done.
//!
//! Faults: when the host says so it breaks down with a panic, and the journal with it.

use std::io;
use std::sync::Arc;

use toolwarden::event::{Event, EventKind};
use toolwarden_actors::journal::{Entry, JournalSink};

use super::hands::Hands;
use crate::fate::Fate;
use crate::sight::Sight;

/// Takes the entries of one journal.
pub(super) struct Sink {
    pub(super) fate: Fate,
    pub(super) hands: Arc<Hands>,
}

impl JournalSink<Event> for Sink {
    fn append(&mut self, entry: &Entry<Event>) -> io::Result<()> {
        if self.fate.is_dead() {
            return Err(io::ErrorKind::Other.into());
        }
        if self.hands.takes_break() {
            self.fate.met("a journal that broke down");
            self.fate.see(&Sight::JournalBroke);
            // Without the words that a panic of its own would print.
            std::panic::resume_unwind(Box::new("a pretended break-down"));
        }
        self.fate.see(&Sight::Entry(entry));
        if self.fate.is_decided() {
            self.fate.crash();
            return Ok(());
        }
        self.fate.step(|| step_of(&entry.event.kind));
        self.hands.act_now_and_then();
        Ok(())
    }
}

/// The step behind an event, in words.
fn step_of(kind: &EventKind) -> String {
    let words = format!("{kind:?}");
    let name = words.split([' ', '{', '(']).next().unwrap_or_default();
    match kind {
        EventKind::ToolProposed { name: tool, .. }
        | EventKind::ToolRequestBound { tool_name: tool, .. }
        | EventKind::ToolExecutionStart { name: tool, .. } => format!("after {name} of {tool}"),
        EventKind::ToolEnd(result) => format!("after {name} of {}", result.name),
        _ => format!("after {name}"),
    }
}
