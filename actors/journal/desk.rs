//! The journal's desk: where its books lie, for whoever comes when nobody writes and nothing waits to be written.
//!
//! To ask the journal's actor is a wake-up, and its turn another one, for each call that ends; mostly nobody writes and
//! nothing waits, and then whoever ends a call writes its events himself. Everybody else sends a message, the actor
//! too writes only at the desk, and a message holds a ticket until it is dealt with.
//! What must stay true: one at a time writes; and nobody who writes himself overtakes a message, his own or one that he
//! can know of. The first holds by the lock, the second because tickets are counted before their messages are sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// The desk of one life of the journal; nothing lies on it before that life has begun, nor after its end.
pub(super) struct Desk<B> {
    books: Mutex<Option<B>>,
    tickets: AtomicUsize,
}

/// A message is on its way, or waits, or is being dealt with.
pub(super) struct Ticket<B>(Arc<Desk<B>>);

impl<B> Desk<B> {
    /// An empty desk.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { books: Mutex::new(None), tickets: AtomicUsize::new(0) })
    }

    /// A ticket for a message that is sent now.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket<B> {
        self.tickets.fetch_add(1, Ordering::AcqRel);
        Ticket(Arc::clone(self))
    }

    /// A place at the desk, when nobody has it and no message is on its way.
    pub(super) fn try_sit_down(&self) -> Option<MutexGuard<'_, Option<B>>> {
        if self.tickets.load(Ordering::Acquire) > 0 { None } else { self.books.try_lock().ok() }
    }

    /// A place at the desk, sooner or later.
    pub(super) async fn sit_down(&self) -> MutexGuard<'_, Option<B>> {
        self.books.lock().await
    }
}

impl<B> Drop for Ticket<B> {
    fn drop(&mut self) {
        self.0.tickets.fetch_sub(1, Ordering::AcqRel);
    }
}
