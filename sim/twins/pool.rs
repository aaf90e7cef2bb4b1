//! The twin of the blocking pool: work is done on the world's own thread, after a span of virtual time.
//!
//! Faults: work is slow, so that other things happen meanwhile and a crash finds it undone. A process that crashed
//! does no more work.

use std::time::Duration;

use toolwarden_tools::effects::blocking::{BlockingTwin, Work};

use crate::fate::Fate;

/// Spans that work usually waits for its turn, in milliseconds.
const WAITS_MS: [u64; 4] = [0, 1, 3, 20];
/// How long slow work waits, in milliseconds.
const SLOW_MS: u64 = 2_000;

/// Does blocking work.
pub struct PretendedPool {
    fate: Fate,
}

impl PretendedPool {
    /// The pool of this world.
    pub fn new(fate: Fate) -> Self {
        Self { fate }
    }
}

impl BlockingTwin for PretendedPool {
    fn take(&self, work: Work) {
        let waits_ms = match self.fate.rare(1) {
            Some(_) => {
                self.fate.met("slow blocking work");
                SLOW_MS
            }
            None => WAITS_MS[self.fate.usual(WAITS_MS.len())],
        };
        let fate = self.fate.clone();
        tokio::spawn(async move {
            if waits_ms > 0 {
                tokio::time::sleep(Duration::from_millis(waits_ms)).await;
            }
            if !fate.is_dead() {
                work();
            }
        });
    }
}
