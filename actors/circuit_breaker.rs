//! A circuit breaker: after several failures in a row, calls are turned away at once for a while.
//!
//! What is down is not helped by more calls, and callers are better told now than after a time-out each. Closed
//! lets all through; [`BreakerLimits::failures_max`] failures in a row open it; once the open span is over, one
//! call at a time is let through as a probe (half-open); its success closes, its failure opens for twice as long,
//! up to a bound. Only time and reports move it: there is no timer, and a report from before the last move counts
//! for nothing, so a straggler can neither close nor open it.

use std::time::Duration;

use crate::millisecond::whole_ms;

/// When a breaker opens and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerLimits {
    /// This many failures in a row open it; 0 counts as 1.
    pub failures_max: u32,
    /// How long it stays open the first time.
    pub open_min: Duration,
    /// The longest that doubling may make it stay open.
    pub open_max: Duration,
}

impl Default for BreakerLimits {
    fn default() -> Self {
        Self { failures_max: 5, open_min: Duration::from_secs(1), open_max: Duration::from_secs(60) }
    }
}

/// How a call ended, as far as the health of what it called is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallHealth {
    /// What was called works.
    Succeeded,
    /// What was called does not work (not: the caller asked for nonsense).
    Failed,
    /// The call says nothing about it: cancelled, refused, or its holder vanished.
    #[default]
    Neutral,
}

/// Leave for one call; brings its report back to the state that gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    epoch: u64,
}

/// How a breaker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerStatus {
    /// Calls go through.
    Closed {
        /// Failures in a row so far.
        failures: u32,
    },
    /// Calls are turned away.
    Open {
        /// Milliseconds until a probe is let through.
        retry_after_ms: u64,
    },
    /// One call at a time goes through as a probe.
    HalfOpen {
        /// Whether it is under way.
        probing: bool,
    },
}

/// One breaker.
#[derive(Debug, Clone)]
pub struct CircuitBreaker {
    limits: BreakerLimits,
    phase: Phase,
    // Counts the moves between phases.
    epoch: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Closed { failures: u32 },
    Open { until: Duration, span: Duration },
    HalfOpen { span: Duration, probing: bool },
}

impl CircuitBreaker {
    /// A closed breaker.
    pub fn new(limits: BreakerLimits) -> Self {
        Self { limits, phase: Phase::Closed { failures: 0 }, epoch: 0 }
    }

    /// Whether a call would be let through now.
    ///
    /// # Errors
    /// The span after which asking again makes sense.
    pub fn check(&mut self, now: Duration) -> Result<(), Duration> {
        if let Phase::Open { until, span } = self.phase {
            if now < until {
                return Err(until - now);
            }
            self.enter(Phase::HalfOpen { span, probing: false });
        }
        match self.phase {
            Phase::HalfOpen { probing: true, .. } => Err(self.retry_during_probe()),
            _ => Ok(()),
        }
    }

    /// Whether at most one call may go on now.
    pub fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::HalfOpen { .. })
    }

    /// When to ask again while another call is the probe.
    pub fn retry_during_probe(&self) -> Duration {
        self.limits.open_min
    }

    /// Lets one call through; in half-open it becomes the probe.
    ///
    /// # Errors
    /// The span after which asking again makes sense.
    pub fn admit(&mut self, now: Duration) -> Result<Pass, Duration> {
        self.check(now)?;
        if let Phase::HalfOpen { probing, .. } = &mut self.phase {
            *probing = true;
        }
        Ok(Pass { epoch: self.epoch })
    }

    /// Takes the report of a call that was let through.
    pub fn report(&mut self, pass: Pass, health: CallHealth, now: Duration) {
        if pass.epoch != self.epoch {
            return;
        }
        match (&mut self.phase, health) {
            (Phase::Closed { failures }, CallHealth::Succeeded) => *failures = 0,
            (Phase::Closed { failures }, CallHealth::Failed) => {
                *failures += 1;
                if *failures >= self.limits.failures_max.max(1) {
                    let span = self.limits.open_min.min(self.limits.open_max);
                    self.enter(Phase::Open { until: now.saturating_add(span), span });
                }
            }
            (Phase::HalfOpen { .. }, CallHealth::Succeeded) => self.enter(Phase::Closed { failures: 0 }),
            (Phase::HalfOpen { span, .. }, CallHealth::Failed) => {
                let span = span.saturating_mul(2).min(self.limits.open_max);
                self.enter(Phase::Open { until: now.saturating_add(span), span });
            }
            (Phase::HalfOpen { probing, .. }, CallHealth::Neutral) => *probing = false,
            (Phase::Closed { .. } | Phase::Open { .. }, _) => {}
        }
    }

    /// How it stands.
    pub fn status(&self, now: Duration) -> BreakerStatus {
        match self.phase {
            Phase::Closed { failures } => BreakerStatus::Closed { failures },
            Phase::Open { until, .. } if now < until => BreakerStatus::Open { retry_after_ms: whole_ms(until - now) },
            Phase::Open { .. } => BreakerStatus::HalfOpen { probing: false },
            Phase::HalfOpen { probing, .. } => BreakerStatus::HalfOpen { probing },
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{BreakerLimits, BreakerStatus, CallHealth, CircuitBreaker};

    const LIMITS: BreakerLimits =
        BreakerLimits { failures_max: 3, open_min: Duration::from_secs(1), open_max: Duration::from_secs(3) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fail(breaker: &mut CircuitBreaker, now: Duration) {
        let pass = breaker.admit(now).unwrap();
        breaker.report(pass, CallHealth::Failed, now);
    }

    fn opened(now: Duration) -> CircuitBreaker {
        let mut breaker = CircuitBreaker::new(LIMITS);
        (0..3).for_each(|_| fail(&mut breaker, now));
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open() {
        let mut breaker = CircuitBreaker::new(LIMITS);
        for health in [CallHealth::Failed, CallHealth::Failed, CallHealth::Succeeded, CallHealth::Failed] {
            let pass = breaker.admit(at(0)).unwrap();
            breaker.report(pass, health, at(0));
        }
        let neutral = breaker.admit(at(0)).unwrap();
        breaker.report(neutral, CallHealth::Neutral, at(0));
        assert_eq!(breaker.status(at(0)), BreakerStatus::Closed { failures: 1 });
        fail(&mut breaker, at(0));
        fail(&mut breaker, at(0));
        assert_eq!(breaker.admit(at(0)), Err(at(1)));
        assert_eq!(breaker.status(at(0)), BreakerStatus::Open { retry_after_ms: 1000 });
    }

    #[test]
    fn one_probe_at_a_time_and_its_success_closes() {
        let mut breaker = opened(at(0));
        let probe = breaker.admit(at(1)).unwrap();
        assert_eq!(breaker.admit(at(1)), Err(at(1)));
        assert_eq!(breaker.status(at(1)), BreakerStatus::HalfOpen { probing: true });
        breaker.report(probe, CallHealth::Neutral, at(1));
        let probe = breaker.admit(at(1)).unwrap();
        breaker.report(probe, CallHealth::Succeeded, at(1));
        assert_eq!(breaker.status(at(1)), BreakerStatus::Closed { failures: 0 });
    }

    #[test]
    fn failed_probes_double_the_span_up_to_the_bound_and_closing_resets_it() {
        let mut breaker = opened(at(0));
        fail(&mut breaker, at(1));
        assert_eq!(breaker.check(at(1)), Err(at(2)));
        fail(&mut breaker, at(3));
        assert_eq!(breaker.check(at(3)), Err(at(3)));
        fail(&mut breaker, at(6));
        assert_eq!(breaker.check(at(6)), Err(at(3)));
        let probe = breaker.admit(at(9)).unwrap();
        breaker.report(probe, CallHealth::Succeeded, at(9));
        (0..3).for_each(|_| fail(&mut breaker, at(9)));
        assert_eq!(breaker.check(at(9)), Err(at(1)));
    }

    #[test]
    fn a_straggler_from_before_the_last_move_counts_for_nothing() {
        let mut breaker = CircuitBreaker::new(LIMITS);
        let early = breaker.admit(at(0)).unwrap();
        (0..3).for_each(|_| fail(&mut breaker, at(0)));
        breaker.report(early, CallHealth::Succeeded, at(0));
        assert_eq!(breaker.check(at(0)), Err(at(1)));
        let probe = breaker.admit(at(1)).unwrap();
        breaker.report(early, CallHealth::Failed, at(1));
        assert_eq!(breaker.status(at(1)), BreakerStatus::HalfOpen { probing: true });
        breaker.report(probe, CallHealth::Succeeded, at(1));
        assert_eq!(breaker.status(at(1)), BreakerStatus::Closed { failures: 0 });
    }
}
