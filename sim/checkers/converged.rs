//! Once faults have stopped and the host has closed, everything comes to rest within a bounded time.

use std::time::Duration;

use toolwarden_actors::node_machine::{ABORT_WAIT, BACKSTOP};

use super::cancelled::DELIVERIES_MAX;
use super::{Checker, must};
use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;
use crate::script::TOP_GRACE;

/// When the last node ended.
#[derive(Debug)]
pub struct Converged {
    close_at: Duration,
    last_end_at: Duration,
}

impl Converged {
    /// For a host that closes at this moment.
    pub fn new(close_at: Duration) -> Self {
        Self { close_at, last_end_at: Duration::ZERO }
    }
}

impl Checker for Converged {
    fn name(&self) -> &'static str {
        "converged"
    }

    fn promise(&self) -> &'static str {
        "everything comes to rest"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        if matches!(happening, Happening::Ended { .. } | Happening::Died { .. }) {
            self.last_end_at = now;
        }
        Ok(())
    }

    fn finish(&mut self, remains: &Remains) -> Result<(), String> {
        // What the top had to kill from above takes its own descendants with it, one delivery a level.
        let slack = LATENCY_MAX * (2 * DELIVERIES_MAX + 16);
        let due = self.close_at + TOP_GRACE + ABORT_WAIT + BACKSTOP + slack;
        must(self.last_end_at <= due, || format!("the last node ended at {:?}, due {due:?}", self.last_end_at))?;
        must(remains.nodes == 0, || format!("{} nodes live", remains.nodes))?;
        must(remains.bodies == 0, || format!("{} bodies that could end have not", remains.bodies))
    }
}
