//! What a script's thread waits at: the outcomes of its calls, and the word to stop.
//!
//! The thread looks here while it runs (the interrupt) and while it waits; both sides only ever hold the lock for a
//! moment. It is bounded by the calls that are under way, which the desk bounds. In a pretended world both sides take
//! turns: the desk waits here until the script waits too, so that nothing depends on how fast either thread is.

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
    rested: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: VecDeque<(u64, ToolOutcome)>,
    stop: Option<Stop>,
    /// Whether the script waits, and nothing has come for it.
    rests: bool,
    /// Whether its thread has said its last word.
    is_gone: bool,
}

/// How often the desk looks whether a script that runs has filled the way to it.
const LOOKS_AGAIN: Duration = Duration::from_millis(2);
/// How long a desk that takes turns waits for a script that spins, in looks.
const LOOKS_MAX: u32 = 5_000;

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a call's outcome over.
    pub(super) fn deliver(&self, call: u64, outcome: ToolOutcome) {
        let mut state = self.state();
        state.ended.push_back((call, outcome));
        state.rests = false;
        drop(state);
        self.changed.notify_one();
    }

    /// Tells the script to stop; the first reason stays.
    pub(super) fn stop(&self, stop: Stop) {
        let mut state = self.state();
        state.stop.get_or_insert(stop);
        state.rests = false;
        drop(state);
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
        let mut state = self.state();
        if state.ended.is_empty() && state.stop.is_none() {
            state.rests = true;
            self.rested.notify_all();
        }
        let waited = self
            .changed
            .wait_timeout_while(state, span, |state| state.ended.is_empty() && state.stop.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        let mut state = waited.0;
        state.rests = false;
        if let Some(stop) = &state.stop {
            return Arrival::Stopped(stop.clone());
        }
        match state.ended.is_empty() {
            true => Arrival::Nothing,
            false => Arrival::Ended(std::mem::take(&mut state.ended)),
        }
    }
}

impl Mailbox {
    /// The script's thread has said its last word.
    pub(super) fn leave(&self) {
        self.state().is_gone = true;
        self.rested.notify_all();
    }

    /// Waits until the script waits or is gone, or until it cannot go on because of what `is_full` tells. A script that
    /// spins is waited for no longer than [`LOOKS_MAX`] looks.
    pub(super) fn wait_for_rest(&self, is_full: impl Fn() -> bool) {
        let mut state = self.state();
        for _ in 0..LOOKS_MAX {
            if state.rests || state.is_gone || is_full() {
                return;
            }
            state = self.rested.wait_timeout(state, LOOKS_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
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

    #[test]
    fn who_takes_turns_waits_until_the_other_one_waits() {
        let mailbox = Arc::new(Mailbox::default());
        let other = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || {
            let mut seen = Vec::new();
            while let Arrival::Ended(ended) = other.wait(Duration::from_secs(30)) {
                seen.extend(ended.into_iter().map(|(call, _)| call));
            }
            other.leave();
            seen
        });
        for call in 1..=100 {
            mailbox.wait_for_rest(|| false);
            assert!(mailbox.state().ended.is_empty(), "it has taken what was there");
            mailbox.deliver(call, ToolOutcome::success("a"));
        }
        mailbox.stop(Stop::Deadline);
        mailbox.wait_for_rest(|| false);
        assert!(mailbox.state().is_gone);
        // What came just before the word to stop may not be seen any more.
        assert!(thread.join().unwrap().len() >= 99);
        mailbox.wait_for_rest(|| true);
    }
}
