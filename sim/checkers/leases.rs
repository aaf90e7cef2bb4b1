//! Every lease is home in the end, and went home once: slots and reservations, however their holders ended.
//!
//! That includes a body that never yields again: its node's epilogue pays what it owes.

use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;

/// What is out, by the world's own count.
#[derive(Debug, Default)]
pub struct Leases {
    slots: Dense<()>,
    reservations: Dense<()>,
}

impl Checker for Leases {
    fn name(&self) -> &'static str {
        "leases"
    }

    fn promise(&self) -> &'static str {
        "every lease comes home once"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Slot, Subject::Budget]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::SlotLent { ticket } => {
                must(self.slots.insert(*ticket, ()).is_none(), || format!("slot {ticket} was lent twice"))
            }
            Happening::SlotHome { ticket } => {
                must(self.slots.remove(*ticket).is_some(), || format!("slot {ticket} came home twice"))
            }
            Happening::Reserved { reservation, .. } => {
                must(self.reservations.insert(*reservation, ()).is_none(), || {
                    format!("reservation {reservation} was made twice")
                })
            }
            Happening::Settled { reservation, .. } => must(self.reservations.remove(*reservation).is_some(), || {
                format!("reservation {reservation} was settled twice")
            }),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, remains: &Remains) -> Result<(), String> {
        let (slots, reservations) = (self.slots.len(), self.reservations.len());
        must(slots == 0, || format!("{slots} slots never came home"))?;
        must(reservations == 0, || format!("{reservations} reservations never came home"))?;
        let Remains { slots, slots_waiting, reservations, .. } = remains;
        must(*slots == 0, || format!("the lane counts {slots} slots out, none is"))?;
        must(*slots_waiting == 0, || format!("{slots_waiting} calls still wait for a slot"))?;
        must(*reservations == 0, || format!("the ledger counts {reservations} reservations out, none is"))
    }
}
