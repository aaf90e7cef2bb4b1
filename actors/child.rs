//! The life of one supervised child: started, running, asked to stop, killed, gone.
//!
//! Pure, and shared by both supervisors. A child that is still starting is stopped by the same steps as one that
//! runs (asked, then killed), so nothing has to wait for a slow start. Every order carries an incarnation: what
//! comes late, about an incarnation that is no longer the child's, changes nothing.

use std::sync::Arc;
use std::time::Duration;

use ractor::{ActorCell, SupervisionEvent};

use crate::child_spec::{ChildKind, ChildTerms, Restart, Shutdown, StartError};

/// How long a killed child may take to be gone before it is given up: only one that never yields needs it.
pub const KILL_CONFIRM: Duration = Duration::from_secs(5);

/// The reason that ractor gives for a killed actor.
pub const KILLED: &str = "killed";

/// One start of one child; never used twice by a supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Incarnation(pub u64);

/// How a child ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// By itself or by a stop, without a reason; `post_stop` ran.
    Normal,
    /// By a stop with a reason, as OTP's `shutdown`; `post_stop` ran.
    Shutdown {
        /// The reason.
        reason: Arc<str>,
    },
    /// By a kill; `post_stop` did not run.
    Killed,
    /// It panicked or returned an error; `post_stop` did not run.
    Failed {
        /// The error's text.
        message: Arc<str>,
    },
    /// It is gone and nobody was told how, as OTP's `noproc`.
    Lost,
}

/// How far the stop of a child went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStage {
    /// It was asked.
    Asked,
    /// It was killed.
    Killed,
}

/// Where a child is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Life {
    /// Not there: stopped on request, or ended and not to be restarted.
    Absent,
    /// Not there: a restart failed and is to be tried again.
    Restarting,
    /// Being started.
    Starting(Incarnation),
    /// There.
    Running(Incarnation),
    /// Ended by itself; what follows is decided in its turn.
    Exited(Incarnation, Exit),
    /// Being stopped.
    Stopping(Incarnation, StopStage),
}

/// What the mount has to do about a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order<W> {
    /// Start it and report [`ChildEvent::Started`] or [`ChildEvent::StartFailed`].
    Start {
        /// The new incarnation.
        incarnation: Incarnation,
        /// How.
        work: W,
    },
    /// Ask it to stop; while it starts, cancel the start.
    Ask {
        /// Which.
        incarnation: Incarnation,
    },
    /// Kill it; while it starts, drop the start.
    Kill {
        /// Which.
        incarnation: Incarnation,
    },
    /// Report [`ChildEvent::Overdue`] with this stage after a span, unless it is gone by then.
    Watch {
        /// Which.
        incarnation: Incarnation,
        /// What it was told before the span began.
        stage: StopStage,
        /// The span.
        after: Duration,
    },
    /// Forget it: it cannot be killed.
    Abandon {
        /// Which.
        incarnation: Incarnation,
    },
}

/// What the mount tells about a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChildEvent {
    /// It is up.
    Started {
        /// Which.
        incarnation: Incarnation,
    },
    /// It did not come up, and nothing of it is left.
    StartFailed {
        /// Which.
        incarnation: Incarnation,
        /// Why.
        error: StartError,
    },
    /// It is gone; never before its [`Self::Started`].
    Exited {
        /// Which.
        incarnation: Incarnation,
        /// How.
        exit: Exit,
    },
    /// The span of a [`Order::Watch`] has passed.
    Overdue {
        /// Which.
        incarnation: Incarnation,
        /// The order's stage.
        stage: StopStage,
    },
}

/// A child as its supervisor sees it.
#[derive(Debug, Clone)]
pub struct Child<W> {
    /// Its terms.
    pub terms: ChildTerms,
    /// How it is started.
    pub work: W,
    /// Where it is.
    pub life: Life,
}

/// A child in a list for people and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildView {
    /// Its terms.
    pub terms: ChildTerms,
    /// Where it is.
    pub life: Life,
}

/// Children by number, as OTP's `count_children`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChildCount {
    /// Specifications held, running or not.
    pub specs: usize,
    /// Children that are there, those being stopped included.
    pub active: usize,
    /// Specifications of supervisors.
    pub supervisors: usize,
    /// Specifications of workers.
    pub workers: usize,
}

impl<W: Clone> Child<W> {
    /// A child that was never started.
    pub fn new(terms: ChildTerms, work: W) -> Self {
        Self { terms, work, life: Life::Absent }
    }

    /// The incarnation it has now.
    pub fn incarnation(&self) -> Option<Incarnation> {
        match self.life {
            Life::Absent | Life::Restarting => None,
            Life::Starting(incarnation)
            | Life::Running(incarnation)
            | Life::Exited(incarnation, _)
            | Life::Stopping(incarnation, _) => Some(incarnation),
        }
    }

    /// Whether nothing of it runs.
    pub fn is_gone(&self) -> bool {
        matches!(self.life, Life::Absent | Life::Restarting | Life::Exited(..))
    }

    /// Starts it.
    pub fn start(&mut self, incarnation: Incarnation) -> Order<W> {
        self.life = Life::Starting(incarnation);
        Order::Start { incarnation, work: self.work.clone() }
    }

    /// Begins to stop it; no orders when it is gone or being stopped already.
    pub fn stop(&mut self) -> Vec<Order<W>> {
        let (Life::Starting(incarnation) | Life::Running(incarnation)) = self.life else {
            return Vec::new();
        };
        match self.terms.shutdown {
            Shutdown::BrutalKill => self.kill(incarnation),
            Shutdown::Infinity => {
                self.life = Life::Stopping(incarnation, StopStage::Asked);
                vec![Order::Ask { incarnation }]
            }
            Shutdown::Timeout(after) => {
                self.life = Life::Stopping(incarnation, StopStage::Asked);
                vec![Order::Ask { incarnation }, Order::Watch { incarnation, stage: StopStage::Asked, after }]
            }
        }
    }

    /// Takes note that it is up; a child that was to stop meanwhile is told again, now that it can hear.
    pub fn started(&mut self) -> Vec<Order<W>> {
        match self.life {
            Life::Starting(incarnation) => {
                self.life = Life::Running(incarnation);
                Vec::new()
            }
            Life::Stopping(incarnation, StopStage::Asked) => vec![Order::Ask { incarnation }],
            Life::Stopping(incarnation, StopStage::Killed) => vec![Order::Kill { incarnation }],
            _ => Vec::new(),
        }
    }

    /// Goes one step further with a child that did not stop in time: kill, then give up.
    pub fn overdue(&mut self, stage: StopStage) -> Vec<Order<W>> {
        match self.life {
            Life::Stopping(incarnation, StopStage::Asked) if stage == StopStage::Asked => self.kill(incarnation),
            Life::Stopping(incarnation, StopStage::Killed) if stage == StopStage::Killed => {
                self.life = Life::Absent;
                vec![Order::Abandon { incarnation }]
            }
            _ => Vec::new(),
        }
    }

    /// Whether an exit of this kind is followed by a restart.
    pub fn is_restarted_after(&self, exit: &Exit) -> bool {
        match self.terms.restart {
            Restart::Permanent => true,
            Restart::Transient => exit.is_abnormal(),
            Restart::Temporary => false,
        }
    }

    /// The child as a list shows it.
    pub fn view(&self) -> ChildView {
        ChildView { terms: self.terms.clone(), life: self.life.clone() }
    }

    fn kill(&mut self, incarnation: Incarnation) -> Vec<Order<W>> {
        let stage = StopStage::Killed;
        self.life = Life::Stopping(incarnation, stage);
        vec![Order::Kill { incarnation }, Order::Watch { incarnation, stage, after: KILL_CONFIRM }]
    }
}

impl ChildEvent {
    /// The incarnation it is about.
    pub fn incarnation(&self) -> Incarnation {
        match *self {
            Self::Started { incarnation }
            | Self::StartFailed { incarnation, .. }
            | Self::Exited { incarnation, .. }
            | Self::Overdue { incarnation, .. } => incarnation,
        }
    }
}

impl Exit {
    /// Whether a transient child is restarted after it.
    pub fn is_abnormal(&self) -> bool {
        !matches!(self, Self::Normal | Self::Shutdown { .. })
    }

    /// Reads ractor's event; `None` when it is not about an end.
    ///
    /// A kill is known by its reason: ractor hands over the state of a killed actor, too, unless the kill cut its
    /// `post_start` or `post_stop`. So nobody may stop an actor with the reason [`KILLED`].
    pub fn of(event: &SupervisionEvent) -> Option<(&ActorCell, Self)> {
        match event {
            SupervisionEvent::ActorTerminated(cell, None, _) => Some((cell, Self::Killed)),
            SupervisionEvent::ActorTerminated(cell, Some(_), None) => Some((cell, Self::Normal)),
            SupervisionEvent::ActorTerminated(cell, Some(_), Some(reason)) if reason == KILLED => {
                Some((cell, Self::Killed))
            }
            SupervisionEvent::ActorTerminated(cell, Some(_), Some(reason)) => {
                Some((cell, Self::Shutdown { reason: reason.as_str().into() }))
            }
            SupervisionEvent::ActorFailed(cell, error) => {
                Some((cell, Self::Failed { message: error.to_string().into() }))
            }
            _ => None,
        }
    }
}

impl ChildCount {
    /// Counts children.
    pub fn of<'a, W: Clone + 'a>(children: impl IntoIterator<Item = &'a Child<W>>) -> Self {
        let mut count = Self::default();
        for child in children {
            count.specs += 1;
            match child.terms.kind {
                ChildKind::Supervisor => count.supervisors += 1,
                ChildKind::Worker => count.workers += 1,
            }
            if matches!(child.life, Life::Running(_) | Life::Stopping(..)) {
                count.active += 1;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::{Child, Exit, Incarnation, KILL_CONFIRM, Life, Order, StopStage};
    use crate::child_spec::{ChildKind, ChildTerms, Restart, Shutdown};
    use std::time::Duration;

    const ONE: Incarnation = Incarnation(1);

    fn child(shutdown: Shutdown) -> Child<()> {
        let (restart, kind) = (Restart::Permanent, ChildKind::Worker);
        let mut child = Child::new(ChildTerms { id: "a".into(), restart, significant: false, shutdown, kind }, ());
        child.start(ONE);
        child
    }

    fn watch(stage: StopStage, after: Duration) -> Order<()> {
        Order::Watch { incarnation: ONE, stage, after }
    }

    #[test]
    fn a_child_is_asked_then_killed_when_its_time_is_up_then_given_up() {
        let span = Duration::from_millis(70);
        let mut child = child(Shutdown::Timeout(span));
        assert!(child.started().is_empty());
        assert_eq!(child.stop(), [Order::Ask { incarnation: ONE }, watch(StopStage::Asked, span)]);
        assert!(child.stop().is_empty(), "asked once");
        let kill = [Order::Kill { incarnation: ONE }, watch(StopStage::Killed, KILL_CONFIRM)];
        assert_eq!(child.overdue(StopStage::Asked), kill);
        assert!(child.overdue(StopStage::Asked).is_empty(), "a late timer changes nothing");
        assert_eq!(child.overdue(StopStage::Killed), [Order::Abandon { incarnation: ONE }]);
        assert!(child.is_gone());
    }

    #[test]
    fn brutal_kill_never_asks() {
        let mut child = child(Shutdown::BrutalKill);
        assert_eq!(child.stop(), [Order::Kill { incarnation: ONE }, watch(StopStage::Killed, KILL_CONFIRM)]);
    }

    #[test]
    fn infinity_sets_no_limit() {
        let mut child = child(Shutdown::Infinity);
        child.started();
        assert_eq!(child.stop(), [Order::Ask { incarnation: ONE }]);
    }

    #[test]
    fn a_child_that_comes_up_while_it_is_being_stopped_is_told_again() {
        let mut asked = child(Shutdown::Infinity);
        asked.stop();
        assert_eq!(asked.started(), [Order::Ask { incarnation: ONE }]);
        assert_eq!(asked.life, Life::Stopping(ONE, StopStage::Asked));
        let mut killed = child(Shutdown::BrutalKill);
        killed.stop();
        assert_eq!(killed.started(), [Order::Kill { incarnation: ONE }]);
    }

    #[test]
    fn restart_types_by_exit() {
        let failed = Exit::Failed { message: "x".into() };
        let shutdown = Exit::Shutdown { reason: "done".into() };
        let cases = [
            (Exit::Normal, [true, false, false]),
            (shutdown, [true, false, false]),
            (Exit::Killed, [true, true, false]),
            (failed, [true, true, false]),
            (Exit::Lost, [true, true, false]),
        ];
        for (exit, expected) in cases {
            for (restart, expected) in
                [Restart::Permanent, Restart::Transient, Restart::Temporary].into_iter().zip(expected)
            {
                let mut child = child(Shutdown::Infinity);
                child.terms.restart = restart;
                assert_eq!(child.is_restarted_after(&exit), expected, "{restart:?} {exit:?}");
            }
        }
    }
}
