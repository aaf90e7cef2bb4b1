//! Tells a scan on a blocking thread that nobody wants its result any more.
//!
//! Two things end a scan: the call is cancelled, or its future is dropped. A scan looks between files and between
//! buffers, so it ends within one read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cancellation::Cancellation;

/// The listening side; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    cancel: Cancellation,
    dropped: Arc<AtomicBool>,
}

/// The waiting side: when it is dropped, the scan is to end.
#[derive(Debug)]
pub struct StopOnDrop(Arc<AtomicBool>);

impl Stop {
    /// Listens to this cancel signal, and to the guard that comes with it.
    pub fn new(cancel: Cancellation) -> (Self, StopOnDrop) {
        let dropped = Arc::new(AtomicBool::new(false));
        (Self { cancel, dropped: Arc::clone(&dropped) }, StopOnDrop(dropped))
    }

    /// Whether to end now.
    pub fn is_given(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) || self.cancel.is_cancelled()
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Stop;
    use crate::cancellation::{CancelReason, Cancellation};

    #[test]
    fn both_ways_of_ending_are_seen() {
        let cancel = Cancellation::new();
        let (stop, guard) = Stop::new(cancel.clone());
        assert!(!stop.is_given());
        cancel.cancel(CancelReason::Requested);
        assert!(stop.is_given());
        drop(guard);
        let (other, guard) = Stop::new(Cancellation::new());
        assert!(!other.is_given());
        drop(guard);
        assert!(other.is_given());
    }
}
