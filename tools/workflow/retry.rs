//! How often a step is tried, and how long is waited in between: the jitter follows from the run, the step and the
//! attempt, so that a run that is replayed waits as it did.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Most attempts of a step.
pub const ATTEMPTS_MAX: u32 = 10;
/// Longest wait between two attempts: one day, in milliseconds.
pub const DELAY_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// How the wait grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backoff {
    /// No wait.
    #[default]
    Immediate,
    /// The same wait each time.
    Fixed,
    /// Twice as long each time, and a random part of that.
    Exponential,
}

/// When a step that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryPolicy {
    /// Attempts in all, the first one included; at most [`ATTEMPTS_MAX`].
    pub max_attempts: u32,
    /// How the wait grows.
    #[serde(default)]
    pub backoff: Backoff,
    /// The first wait, in milliseconds.
    #[serde(default)]
    pub delay_ms: u64,
    /// The longest wait, in milliseconds.
    #[serde(default = "longest")]
    pub max_delay_ms: u64,
}

fn longest() -> u64 {
    60_000
}

impl RetryPolicy {
    /// What is wrong with it, if anything.
    pub fn fault(&self) -> Option<String> {
        if !(1..=ATTEMPTS_MAX).contains(&self.max_attempts) {
            return Some(format!("retry.max_attempts is {}; it is 1 to {ATTEMPTS_MAX}", self.max_attempts));
        }
        let longest = self.delay_ms.max(self.max_delay_ms);
        (longest > DELAY_MS_MAX).then(|| format!("retry waits {longest} ms; at most {DELAY_MS_MAX} are taken"))
    }

    /// The wait after this attempt (from 1) has failed, in milliseconds; none when it was the last one.
    pub fn delay_ms(&self, run_id: &str, step_id: &str, attempt: u32) -> Option<u64> {
        if attempt >= self.max_attempts {
            return None;
        }
        Some(match self.backoff {
            Backoff::Immediate => 0,
            Backoff::Fixed => self.delay_ms.min(self.max_delay_ms),
            Backoff::Exponential => {
                let doublings = (attempt - 1).min(32);
                let whole = self.delay_ms.saturating_mul(1 << doublings).min(self.max_delay_ms);
                chance(run_id, step_id, attempt) % (whole + 1)
            }
        })
    }
}

fn chance(run_id: &str, step_id: &str, attempt: u32) -> u64 {
    let digest = Digest::of_domain("toolwarden.workflow-jitter", format!("{run_id}\n{step_id}\n{attempt}").as_bytes());
    u64::from_str_radix(&digest.hex()[..15], 16).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Backoff, RetryPolicy};

    #[test]
    fn waits_grow_within_their_bound_and_are_the_same_again() {
        let policy = RetryPolicy { max_attempts: 9, backoff: Backoff::Exponential, delay_ms: 100, max_delay_ms: 1_000 };
        for attempt in 1..9 {
            let delay = policy.delay_ms("run", "step", attempt).unwrap();
            assert!(delay <= (100 << (attempt - 1)).min(1_000));
            assert_eq!(policy.delay_ms("run", "step", attempt), Some(delay));
        }
        assert_eq!(policy.delay_ms("run", "step", 9), None);
        let spread: std::collections::BTreeSet<_> =
            (0..20).map(|step| policy.delay_ms("run", &step.to_string(), 8).unwrap()).collect();
        assert!(spread.len() > 10, "steps do not wait in step: {spread:?}");
        let fixed = RetryPolicy { backoff: Backoff::Fixed, ..policy };
        assert_eq!((fixed.delay_ms("r", "s", 1), fixed.delay_ms("r", "s", 8)), (Some(100), Some(100)));
        assert!(RetryPolicy { max_attempts: 0, ..policy }.fault().is_some());
        assert!(RetryPolicy { max_delay_ms: u64::MAX, ..policy }.fault().is_some());
        assert_eq!(policy.fault(), None);
    }
}
