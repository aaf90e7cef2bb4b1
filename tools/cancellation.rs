//! The cancel signal that a tool sees: set once, with its reason, and never taken back.
//!
//! Cancellation itself is a message down the supervision tree; this is how it looks from inside the work that is
//! to end. The first reason stays.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Why something is to end before its work is done.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "cancel", rename_all = "snake_case")]
pub enum CancelReason {
    /// Whoever asked for the work asked for its end (Ctrl-C, an API call).
    Requested,
    /// Whoever waited for the result went away.
    CallerGone,
    /// The deadline passed; the span that was allowed, in milliseconds.
    Deadline {
        /// Allowed span.
        timeout_ms: u64,
    },
    /// The session closed.
    SessionClosed,
    /// The runtime shuts down.
    Shutdown,
    /// The parent ended, so nobody is left to want the result.
    ParentEnded,
    /// Enough siblings succeeded (`min_success_count`).
    EnoughResults,
    /// A sibling failed and the fan-out was to stop at the first failure.
    SiblingFailed,
}

impl fmt::Display for CancelReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Requested => out.write_str("cancelled on request"),
            Self::CallerGone => out.write_str("cancelled because the caller went away"),
            Self::Deadline { timeout_ms } => write!(out, "deadline of {timeout_ms} ms passed"),
            Self::SessionClosed => out.write_str("cancelled because the session closed"),
            Self::Shutdown => out.write_str("cancelled because the runtime shuts down"),
            Self::ParentEnded => out.write_str("cancelled because its parent ended"),
            Self::EnoughResults => out.write_str("cancelled because enough siblings succeeded"),
            Self::SiblingFailed => out.write_str("cancelled because a sibling failed"),
        }
    }
}

/// A one-way signal, shared between the one who cancels and the work that listens. Cheap to make and to clone: every
/// call has one.
#[derive(Clone, Debug, Default)]
pub struct Cancellation {
    shared: Arc<Signal>,
}

#[derive(Debug, Default)]
struct Signal {
    reason: OnceLock<CancelReason>,
    given: Notify,
}

impl Cancellation {
    /// A signal that nobody has given yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the signal; only the first reason counts. Returns whether this call was the first.
    pub fn cancel(&self, reason: CancelReason) -> bool {
        let first = self.shared.reason.set(reason).is_ok();
        self.shared.given.notify_waiters();
        first
    }

    /// The reason, once the signal was given.
    pub fn reason(&self) -> Option<&CancelReason> {
        self.shared.reason.get()
    }

    /// Whether the signal was given.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits for the signal and returns its reason; for ever when it never comes.
    pub async fn cancelled(&self) -> CancelReason {
        loop {
            // Made before the look at the reason, which is set before the notice: between the two nothing is missed.
            let given = self.shared.given.notified();
            if let Some(reason) = self.reason() {
                return reason.clone();
            }
            given.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CancelReason, Cancellation};

    #[tokio::test]
    async fn the_first_reason_stays() {
        let signal = Cancellation::new();
        assert!(!signal.is_cancelled());
        assert!(signal.cancel(CancelReason::Deadline { timeout_ms: 5 }));
        assert!(!signal.clone().cancel(CancelReason::Requested));
        assert_eq!(signal.cancelled().await, CancelReason::Deadline { timeout_ms: 5 });
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn everybody_who_waits_is_told_whenever_they_began() {
        for _ in 0..200 {
            let signal = Cancellation::new();
            let waits: Vec<_> = (0..4)
                .map(|_| {
                    let signal = signal.clone();
                    tokio::spawn(async move { signal.cancelled().await })
                })
                .collect();
            signal.cancel(CancelReason::Requested);
            for wait in waits {
                assert_eq!(wait.await.unwrap(), CancelReason::Requested);
            }
        }
    }
}
