//! What a call owes at its end: the leases that it borrowed, its one ending, and the events that were not sent.
//!
//! Whoever comes to the end first pays, the route or the epilogue of a route that was lost; the other finds nothing.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use toolwarden_actors::budget::Amount;
use toolwarden_actors::budget_ledger::Reservation;
use toolwarden_actors::bulkhead::Permit;
use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::journal::{Journal, JournalError};
use toolwarden_actors::lease::Afterwards;

use crate::call_result::CallResult;
use crate::event::Event;

/// Events of a call that needs no person and no long wait: proposed, bound, started, ended.
const NOTES_USUAL: usize = 4;

/// What a call owes at its end, to be paid by whoever comes to it first: its route, or the epilogue of a route that
/// was lost. A route that was given up on, because its tool spins, may go on later: it finds nothing to pay.
pub(super) struct Debts {
    /// None once they were called in.
    leases: Mutex<Option<Leases>>,
    pub(super) ending: OnceLock<Arc<CallResult>>,
    /// Events in their order that the journal has not been sent: they go with the next one that is waited for, and
    /// before anything is waited for that may take long. Every message saved is a wake-up saved.
    notes: Mutex<Vec<Event>>,
}

impl Debts {
    /// Those of a call that begins with this event.
    pub(super) fn of(proposed: Event) -> Self {
        let mut notes = Vec::with_capacity(NOTES_USUAL);
        notes.push(proposed);
        Self { leases: Mutex::new(Some(Leases::default())), ending: OnceLock::new(), notes: Mutex::new(notes) }
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, Vec<Event>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an event for the journal.
    pub(super) fn note(&self, event: Event) {
        self.notes().push(event);
    }

    /// Sends what was kept.
    pub(super) fn send_notes(&self, journal: &Journal<Event>) {
        let mut notes = self.notes();
        if !notes.is_empty() {
            journal.note_all(std::mem::take(&mut *notes));
        }
    }

    /// Sends what was kept and this event, at once, and gives what waits until they are stored.
    pub(super) fn write(
        &self,
        journal: &Journal<Event>,
        event: Event,
    ) -> impl Future<Output = Result<u64, JournalError>> + Send + use<> {
        let mut notes = self.notes();
        let mut events = std::mem::take(&mut *notes);
        events.push(event);
        journal.append_all(events)
    }

    /// Keeps what was lent. False for a route that was given up on meanwhile: nobody would pay for it any more, so
    /// its leases go home here and it must not start anything.
    pub(super) fn owe(&self, leases: Leases) -> bool {
        match &mut *self.leases.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(owed) => *owed = leases,
            None => return false,
        }
        true
    }

    /// Calls in what was lent; the next one to ask gets nothing.
    pub(super) fn leases(&self) -> Leases {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// Whether the ending is the caller's to tell; true once.
    pub(super) fn takes_ending(&self, result: &Arc<CallResult>) -> bool {
        self.ending.set(Arc::clone(result)).is_ok()
    }
}

/// What a call has borrowed.
#[derive(Default)]
pub(super) struct Leases {
    pub(super) reservation: Option<Reservation>,
    pub(super) permit: Option<Permit>,
}

impl Leases {
    /// Goes from home to home, and then does what is to be done afterwards.
    pub(super) fn go_home(self, used: Amount, health: CallHealth, then: Afterwards) {
        let Self { reservation, permit } = self;
        let settle = move |then| match reservation {
            Some(reservation) => reservation.settle_then(used, then),
            None => drop(then),
        };
        match permit {
            Some(permit) => permit.settle_then(health, Afterwards::call(move || settle(then))),
            None => settle(then),
        }
    }
}
