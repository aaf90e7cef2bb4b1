//! What a script's thread waits at: the outcomes of its calls, and the word to stop.
//!
//! The thread looks here while it runs (the interrupt) and while it waits; both sides only ever hold the lock for a
//! moment. It is bounded by the calls that are under way, which the desk bounds.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cancellation::CancelReason;
use crate::outcome::ToolOutcome;

/// Why a script stops before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stop {
    /// Its time is over.
    Deadline,
    /// Its call was cancelled.
    Cancelled(CancelReason),
}

/// What a wait came to.
#[derive(Debug)]
pub(super) enum Arrival {
    /// These calls have ended.
    Ended(VecDeque<(u64, ToolOutcome)>),
    /// It is to stop.
    Stopped(Stop),
    /// Nothing within the span.
    Nothing,
}

/// See the head of the file.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    ended: VecDeque<(u64, ToolOutcome)>,
    stop: Option<Stop>,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a call's outcome over.
    pub(super) fn deliver(&self, call: u64, outcome: ToolOutcome) {
        self.state().ended.push_back((call, outcome));
        self.changed.notify_one();
    }

    /// Tells the script to stop; the first reason stays.
    pub(super) fn stop(&self, stop: Stop) {
        self.state().stop.get_or_insert(stop);
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Whether it is to stop; cheap.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Why it is to stop, once it is.
    pub(super) fn stopped(&self) -> Option<Stop> {
        self.is_stopped().then(|| self.state().stop.clone()).flatten()
    }

    /// Waits for outcomes or the word to stop, for at most `span`.
    pub(super) fn wait(&self, span: Duration) -> Arrival {
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, span, |state| state.ended.is_empty() && state.stop.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = waited.0;
        if let Some(stop) = &state.stop {
            return Arrival::Stopped(stop.clone());
        }
        match state.ended.is_empty() {
            true => Arrival::Nothing,
            false => Arrival::Ended(std::mem::take(&mut state.ended)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::{Arrival, Mailbox, Stop};
    use crate::cancellation::CancelReason;
    use crate::outcome::ToolOutcome;

    #[test]
    fn outcomes_come_in_order_and_the_first_word_to_stop_stays() {
        let mailbox = Arc::new(Mailbox::default());
        assert!(matches!(mailbox.wait(Duration::ZERO), Arrival::Nothing));
        let other = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || other.wait(Duration::from_secs(30)));
        mailbox.deliver(1, ToolOutcome::success("a"));
        let Arrival::Ended(ended) = thread.join().unwrap() else { panic!("nothing arrived") };
        assert_eq!(ended, [(1, ToolOutcome::success("a"))]);
        mailbox.stop(Stop::Cancelled(CancelReason::Requested));
        mailbox.stop(Stop::Deadline);
        assert_eq!(mailbox.stopped(), Some(Stop::Cancelled(CancelReason::Requested)));
        assert!(matches!(mailbox.wait(Duration::from_secs(30)), Arrival::Stopped(Stop::Cancelled(_))));
    }
}
