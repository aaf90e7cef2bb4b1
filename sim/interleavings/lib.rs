//! The shipped mounts of lanes, ledger, tree, confirmations, journal, fact log, fan-outs and supervisors, on shuttle's
//! scheduler.
//!
//! Their files are those of `actors/`, as `build.rs` writes them down again; ractor and tokio's channels are the real
//! ones. What runs next is chosen wherever a task waits, before every message and every answer is sent, and at every
//! look at a shared number, at random or by priorities (PCT). Nothing here decides anything. What must stay true: a
//! module changed in `actors/` is the module that is searched.

#![expect(unused_imports, reason = "a module that sends nothing has the way to send all the same")]

/// Where somebody else may go first.
pub mod moment {
    use ractor::{ActorRef, Message, MessagingErr};

    /// Sends a message, and lets anybody go first right before that.
    pub trait CastAtAnyMoment<M> {
        /// As ractor's `cast`.
        ///
        /// # Errors
        /// The message, when the actor is gone.
        fn cast_at_any_moment(&self, message: M) -> Result<(), MessagingErr<M>>;
    }

    impl<M: Message> CastAtAnyMoment<M> for ActorRef<M> {
        fn cast_at_any_moment(&self, message: M) -> Result<(), MessagingErr<M>> {
            tokio::switch();
            self.cast(message)
        }
    }
}

/// What is broken on purpose.
pub mod planted {
    use std::cell::Cell;

    thread_local! {
        // All tasks of one search are on one thread.
        static PLANTED: Cell<&'static str> = const { Cell::new("") };
    }

    /// Breaks this from here on, in the searches of this thread; nothing when empty.
    pub fn plant(what: &'static str) {
        PLANTED.set(what);
    }

    /// Whether this is broken.
    pub fn is(what: &str) -> bool {
        PLANTED.get() == what
    }
}

/// As shipped.
pub mod budget {
    include!(concat!(env!("OUT_DIR"), "/budget.rs"));
}
/// As shipped.
pub mod event_queue {
    include!(concat!(env!("OUT_DIR"), "/event_queue.rs"));
}
/// As shipped.
pub mod lease {
    include!(concat!(env!("OUT_DIR"), "/lease.rs"));
}
/// As shipped.
pub mod millisecond {
    include!(concat!(env!("OUT_DIR"), "/millisecond.rs"));
}
/// As shipped.
pub mod retention {
    include!(concat!(env!("OUT_DIR"), "/retention.rs"));
}
/// As shipped.
pub mod slot {
    include!(concat!(env!("OUT_DIR"), "/slot.rs"));
}
/// As shipped.
pub mod turnstile {
    include!(concat!(env!("OUT_DIR"), "/turnstile.rs"));
}
/// As shipped.
pub mod accounts {
    include!(concat!(env!("OUT_DIR"), "/accounts.rs"));
}
/// As shipped.
pub mod child_spec {
    include!(concat!(env!("OUT_DIR"), "/child_spec.rs"));
}
/// As shipped.
pub mod circuit_breaker {
    include!(concat!(env!("OUT_DIR"), "/circuit_breaker.rs"));
}
/// As shipped.
pub mod open_questions {
    include!(concat!(env!("OUT_DIR"), "/open_questions.rs"));
}
/// As shipped.
pub mod waiting_line {
    include!(concat!(env!("OUT_DIR"), "/waiting_line.rs"));
}
/// As shipped.
pub mod node_machine {
    include!(concat!(env!("OUT_DIR"), "/node_machine.rs"));
}
/// As shipped.
pub mod permit_pool {
    include!(concat!(env!("OUT_DIR"), "/permit_pool.rs"));
}
/// As shipped.
pub mod budget_ledger {
    include!(concat!(env!("OUT_DIR"), "/budget_ledger.rs"));
}
/// As shipped.
pub mod bulkhead {
    include!(concat!(env!("OUT_DIR"), "/bulkhead.rs"));
}
/// As shipped.
pub mod confirmations {
    include!(concat!(env!("OUT_DIR"), "/confirmations.rs"));
}
/// As shipped.
pub mod journal {
    include!(concat!(env!("OUT_DIR"), "/journal.rs"));
}
/// As shipped.
pub mod node {
    include!(concat!(env!("OUT_DIR"), "/node.rs"));
}
/// As shipped.
pub mod fan_out {
    include!(concat!(env!("OUT_DIR"), "/fan_out.rs"));
}
/// As shipped.
pub mod members {
    include!(concat!(env!("OUT_DIR"), "/members.rs"));
}
/// As shipped.
pub mod fact_log {
    include!(concat!(env!("OUT_DIR"), "/fact_log.rs"));
}
/// As shipped.
pub mod restart_intensity {
    include!(concat!(env!("OUT_DIR"), "/restart_intensity.rs"));
}
/// As shipped.
pub mod child {
    include!(concat!(env!("OUT_DIR"), "/child.rs"));
}
/// As shipped.
pub mod supervision_report {
    include!(concat!(env!("OUT_DIR"), "/supervision_report.rs"));
}
/// As shipped.
pub mod supervision {
    include!(concat!(env!("OUT_DIR"), "/supervision.rs"));
}
/// As shipped.
#[expect(dead_code, reason = "the dynamic supervisor, which is not here, needs one way more")]
pub mod nursery {
    include!(concat!(env!("OUT_DIR"), "/nursery.rs"));
}
/// As shipped.
pub mod supervisor {
    include!(concat!(env!("OUT_DIR"), "/supervisor.rs"));
}
