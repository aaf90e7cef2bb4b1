//! Time: monotonic moments for spans and deadlines, wall time only for the stamps that people read.
//!
//! Waiting is done with tokio's timers, which the simulation pauses; this port only tells the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Time since some fixed moment; never goes back.
    fn monotonic(&self) -> Duration;

    /// Milliseconds since 1970-01-01 UTC, as the machine believes; may jump.
    fn unix_ms(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    started_at: Instant,
}

impl SystemClock {
    /// Counts from now.
    #[expect(clippy::disallowed_methods, reason = "the real side of the clock port")]
    pub fn new() -> Self {
        Self { started_at: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.started_at.elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "the real side of the clock port")]
    fn unix_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }
}
