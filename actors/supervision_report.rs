//! What supervisors tell about their children and themselves: OTP's supervisor and progress reports.
//!
//! A report is a value that the pure machine emits; the mount writes it to the log and hands it to whoever asked.
//! Reports inform, they decide nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ractor::ActorId;
use thiserror::Error;

use crate::child::Exit;
use crate::child_spec::{ChildId, StartError};

/// Receives reports in their order, on the supervisor's own task: it must return at once.
pub type ReportSink = Arc<dyn Fn(&Report) + Send + Sync>;

/// Something that happened in a supervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A child is up.
    ChildStarted {
        /// Which.
        id: ChildId,
    },
    /// A child ended that was not being stopped.
    ChildExited {
        /// Which.
        id: ChildId,
        /// How.
        exit: Exit,
    },
    /// A child did not start; at a restart it is tried again.
    StartFailed {
        /// Which.
        id: ChildId,
        /// Why.
        error: StartError,
    },
    /// A child did not stop in its time and was killed.
    Overdue {
        /// Which.
        id: ChildId,
    },
    /// A child that was asked to stop failed instead.
    ShutdownError {
        /// Which.
        id: ChildId,
        /// How it ended.
        exit: Exit,
    },
    /// A child could not even be killed; it runs on unsupervised.
    Abandoned {
        /// Which.
        id: ChildId,
    },
    /// All first children are up.
    Up,
    /// All children are gone and the supervisor ends.
    Ended {
        /// Why.
        ending: Ending,
    },
}

/// Why a supervisor ends.
///
/// Shutdowns end it normally. The other two end it as a failure, so that a supervisor above restarts it or gives up
/// in its turn; OTP exits with `shutdown` there too, which a transient supervisor would not survive.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Ending {
    /// It was asked to.
    #[error("shutdown")]
    Shutdown,
    /// A significant child ended.
    #[error("shutdown, as the significant child {id} ended")]
    AutoShutdown {
        /// The last one.
        id: ChildId,
    },
    /// Restarting did not help.
    #[error("restart intensity reached: child {id} would be restarted more than {restarts_max} times in {period:?}")]
    IntensityReached {
        /// The child that asked for one restart too many.
        id: ChildId,
        /// Restarts allowed.
        restarts_max: u32,
        /// In this span.
        period: Duration,
    },
    /// A first child did not start.
    #[error("child {id} did not start: {error}")]
    StartFailed {
        /// Which.
        id: ChildId,
        /// Why.
        error: StartError,
    },
}

impl Ending {
    /// Whether the supervisor above should see a failure.
    pub fn is_abnormal(&self) -> bool {
        matches!(self, Self::IntensityReached { .. } | Self::StartFailed { .. })
    }
}

impl Report {
    /// Writes it to the log: progress at debug, what went wrong at warn.
    pub fn log(&self, supervisor: ActorId) {
        let is_trouble = match self {
            Self::ChildStarted { .. } | Self::Up => false,
            Self::ChildExited { exit, .. } => exit.is_abnormal(),
            Self::Ended { ending } => ending.is_abnormal(),
            _ => true,
        };
        if is_trouble {
            tracing::warn!(%supervisor, report = %self, "supervision");
        } else {
            tracing::debug!(%supervisor, report = %self, "supervision");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ChildStarted { id } => write!(out, "child {id} is up"),
            Self::ChildExited { id, exit } => write!(out, "child {id} ended: {exit}"),
            Self::StartFailed { id, error } => write!(out, "child {id} did not start: {error}"),
            Self::Overdue { id } => write!(out, "child {id} did not stop in its time and is killed"),
            Self::ShutdownError { id, exit } => write!(out, "child {id} did not stop cleanly: {exit}"),
            Self::Abandoned { id } => write!(out, "child {id} cannot be killed and runs on unsupervised"),
            Self::Up => out.write_str("all children are up"),
            Self::Ended { ending } => write!(out, "the supervisor ends: {ending}"),
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Normal => out.write_str("normal"),
            Self::Shutdown { reason } => write!(out, "shutdown ({reason})"),
            Self::Killed => out.write_str("killed"),
            Self::Failed { message } => write!(out, "failed ({message})"),
            Self::Lost => out.write_str("lost"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, Report};
    use crate::child_spec::StartError;
    use std::time::Duration;

    #[test]
    fn a_failure_below_reads_as_one_line() {
        let error = StartError::Child { id: "journal".into(), source: Box::new(StartError::failed("disk is gone")) };
        let report = Report::Ended { ending: Ending::StartFailed { id: "storage".into(), error } };
        assert_eq!(
            report.to_string(),
            "the supervisor ends: child storage did not start: its child journal failed: it could not start: disk is gone"
        );
    }

    #[test]
    fn only_giving_up_is_abnormal() {
        let reached = Ending::IntensityReached { id: "a".into(), restarts_max: 1, period: Duration::from_secs(5) };
        assert!(reached.is_abnormal());
        assert!(Ending::StartFailed { id: "a".into(), error: StartError::Died }.is_abnormal());
        assert!(!Ending::Shutdown.is_abnormal());
        assert!(!Ending::AutoShutdown { id: "a".into() }.is_abnormal());
    }
}
