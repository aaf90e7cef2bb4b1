//! How often a supervisor may restart children before it gives up: OTP's restart intensity, a sliding window.
//!
//! More than `restarts_max` restarts within `period` mean that restarting does not help; the supervisor then ends
//! itself, so that the level above decides. A restart that is exactly `period` old still counts, as in OTP. The
//! window keeps `restarts_max + 1` moments at most.

use std::collections::VecDeque;
use std::time::Duration;

use thiserror::Error;

/// Highest restart intensity that can be asked for, in restarts; bounds the window's memory.
pub const RESTARTS_MAX: u32 = 10_000;

/// At most `restarts_max` restarts within `period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartIntensity {
    restarts_max: u32,
    period: Duration,
}

impl RestartIntensity {
    /// Checks and makes an intensity; 0 restarts mean that the first one is one too many.
    ///
    /// # Errors
    /// [`IntensityError`] for an empty period or more than [`RESTARTS_MAX`] restarts.
    pub fn new(restarts_max: u32, period: Duration) -> Result<Self, IntensityError> {
        if period.is_zero() {
            return Err(IntensityError::ZeroPeriod);
        }
        if restarts_max > RESTARTS_MAX {
            return Err(IntensityError::TooMany { restarts_max });
        }
        Ok(Self { restarts_max, period })
    }

    /// Restarts that are allowed within [`Self::period`].
    pub fn restarts_max(self) -> u32 {
        self.restarts_max
    }

    /// The span that is looked back upon.
    pub fn period(self) -> Duration {
        self.period
    }
}

impl Default for RestartIntensity {
    /// OTP's default: 1 restart in 5 seconds.
    fn default() -> Self {
        Self { restarts_max: 1, period: Duration::from_secs(5) }
    }
}

/// The restarts that still count.
#[derive(Debug, Clone)]
pub struct RestartWindow {
    intensity: RestartIntensity,
    restarted_at: VecDeque<Duration>,
}

impl RestartWindow {
    /// A window without restarts.
    pub fn new(intensity: RestartIntensity) -> Self {
        Self { intensity, restarted_at: VecDeque::new() }
    }

    /// Counts one restart at `now` (monotonic) and returns whether the intensity still allows it.
    pub fn admit(&mut self, now: Duration) -> bool {
        while let Some(oldest) = self.restarted_at.front()
            && now.saturating_sub(*oldest) > self.intensity.period
        {
            self.restarted_at.pop_front();
        }
        // Once the limit is passed nothing more needs to be remembered.
        if u32::try_from(self.restarted_at.len()).unwrap_or(u32::MAX) > self.intensity.restarts_max {
            return false;
        }
        self.restarted_at.push_back(now);
        u32::try_from(self.restarted_at.len()).unwrap_or(u32::MAX) <= self.intensity.restarts_max
    }

    /// The intensity in force.
    pub fn intensity(&self) -> RestartIntensity {
        self.intensity
    }
}

/// Why an intensity makes no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum IntensityError {
    /// Nothing happens within no time, so nothing would ever be counted.
    #[error("the period of a restart intensity is zero; use at least a millisecond (5 seconds is usual)")]
    ZeroPeriod,
    /// The window would grow without need.
    #[error("{restarts_max} restarts in one period are too many; use {RESTARTS_MAX} at most")]
    TooMany {
        /// What was asked for.
        restarts_max: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::{IntensityError, RESTARTS_MAX, RestartIntensity, RestartWindow};
    use std::time::Duration;

    fn window(restarts_max: u32, period_s: u64) -> RestartWindow {
        RestartWindow::new(RestartIntensity::new(restarts_max, Duration::from_secs(period_s)).unwrap())
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_default_is_one_restart_in_five_seconds() {
        let mut window = RestartWindow::new(RestartIntensity::default());
        assert!(window.admit(ms(0)));
        assert!(!window.admit(ms(4_999)));
        let mut window = RestartWindow::new(RestartIntensity::default());
        assert!(window.admit(ms(0)));
        assert!(window.admit(ms(5_001)));
    }

    #[test]
    fn more_than_max_r_restarts_within_max_t_are_refused() {
        let mut window = window(3, 1);
        assert!([0, 100, 200].into_iter().all(|at| window.admit(ms(at))));
        assert!(!window.admit(ms(300)));
    }

    #[test]
    fn the_window_slides() {
        let mut window = window(2, 1);
        // Two in any second, for ever.
        for at in (0..100_000).step_by(501) {
            assert!(window.admit(ms(at)), "at {at} ms");
        }
    }

    #[test]
    fn a_restart_exactly_one_period_old_still_counts() {
        let mut window = window(1, 5);
        assert!(window.admit(ms(1_000)));
        assert!(!window.admit(ms(6_000)));
    }

    #[test]
    fn intensity_zero_refuses_the_first_restart() {
        assert!(!window(0, 5).admit(ms(0)));
    }

    #[test]
    fn the_window_never_holds_more_than_one_past_the_limit() {
        let mut window = window(2, 3_600);
        for at in 0..1_000 {
            let _ = window.admit(ms(at));
        }
        assert_eq!(window.restarted_at.len(), 3);
    }

    #[test]
    fn an_empty_period_and_a_huge_count_are_refused() {
        assert_eq!(RestartIntensity::new(1, Duration::ZERO), Err(IntensityError::ZeroPeriod));
        let restarts_max = RESTARTS_MAX + 1;
        assert_eq!(RestartIntensity::new(restarts_max, ms(1)), Err(IntensityError::TooMany { restarts_max }));
    }
}
