//! The twin of the clock: virtual time, and a wall clock that can be moved.
//!
//! Faults: the wall clock jumps, forwards and back, when the host says so. Monotonic time only ever goes on, at the
//! speed of tokio's paused clock, also across the end of a process.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use toolwarden_tools::effects::clock::Clock;

use crate::fate::Fate;

/// What the wall clock says when a world begins: 2026-01-01, in milliseconds since 1970.
const BEGINS_UNIX_MS: i64 = 1_767_225_600_000;

/// Tells a world's time.
pub struct PretendedClock {
    fate: Fate,
    moved_ms: AtomicI64,
}

impl PretendedClock {
    /// The clock of this world.
    pub fn new(fate: Fate) -> Self {
        Self { fate, moved_ms: AtomicI64::new(0) }
    }

    /// Moves the wall clock.
    pub fn jump(&self, by_ms: i64) {
        self.moved_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for PretendedClock {
    fn monotonic(&self) -> Duration {
        self.fate.now()
    }

    fn unix_ms(&self) -> u64 {
        let since = i64::try_from(self.fate.now().as_millis()).unwrap_or(i64::MAX);
        let now = BEGINS_UNIX_MS.saturating_add(since).saturating_add(self.moved_ms.load(Ordering::Relaxed));
        u64::try_from(now).unwrap_or(0)
    }
}
