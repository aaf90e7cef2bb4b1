//! The decisions of a supervisor, as OTP documents them: strategies, restart types, intensity, auto-shutdown, calls.
//!
//! Children start in order and stop in reverse. One operation goes on at a time, as in OTP's process, but nothing
//! waits inside: what comes meanwhile is kept for its turn, and a shutdown cuts any operation short. Three points
//! differ from OTP: reaching the restart intensity is a failure (see [`Ending`]), children are listed in start
//! order, and one that cannot even be killed is given up after a while instead of being waited for for ever.

use std::collections::VecDeque;
use std::time::Duration;

use thiserror::Error;

use crate::child::{Child, ChildCount, ChildEvent, ChildView, Exit, Incarnation, Life, Order, StopStage};
use crate::child_spec::{AutoShutdown, ChildId, ChildTerms, Restart, Shutdown, SpecError, StartError, check_children};
use crate::restart_intensity::{RestartIntensity, RestartWindow};
use crate::supervision_report::{Ending, Report};

/// Most children of one supervisor; the dynamic supervisor is for many.
pub const CHILDREN_MAX: usize = 1_024;
/// Most calls that wait for their turn in one supervisor.
pub const PENDING_CALLS_MAX: usize = 1_024;

/// Which children are restarted together with one that is to be restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// None.
    #[default]
    OneForOne,
    /// All.
    OneForAll,
    /// Those that were started after it.
    RestForOne,
}

/// How a supervisor supervises: OTP's supervisor flags, with OTP's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SupervisorFlags {
    /// Which children are restarted together.
    pub strategy: Strategy,
    /// How many restarts are tolerated.
    pub intensity: RestartIntensity,
    /// Whether it ends with its significant children.
    pub auto_shutdown: AutoShutdown,
}

/// A call that changes children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call<W, R> {
    /// Add and start a child.
    StartChild {
        /// Its terms.
        terms: ChildTerms,
        /// How to start it.
        work: W,
        /// Where the answer goes.
        reply: R,
    },
    /// Stop a child.
    TerminateChild {
        /// Which.
        id: ChildId,
        /// Where the answer goes.
        reply: R,
    },
    /// Start an absent child.
    RestartChild {
        /// Which.
        id: ChildId,
        /// Where the answer goes.
        reply: R,
    },
    /// Forget an absent child.
    DeleteChild {
        /// Which.
        id: ChildId,
        /// Where the answer goes.
        reply: R,
    },
}

/// What a supervisor hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<W, R> {
    /// Start the first children; comes once, first.
    Begin,
    /// Something about a child.
    Child(ChildEvent),
    /// A call.
    Call(Call<W, R>),
    /// End in order.
    Shutdown,
}

/// What a supervisor wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<W, R> {
    /// Do something about a child.
    Child(Order<W>),
    /// Answer a call; a child that was started is named by its incarnation.
    Reply {
        /// Where to.
        to: R,
        /// The answer.
        answer: Result<Option<Incarnation>, SupervisorError>,
    },
    /// Tell what happened.
    Report(Report),
    /// End; the last effect there is.
    End(Ending),
}

/// The decisions of a supervisor. `W` is how children are started and `R` where answers go: it looks into neither.
#[derive(Debug)]
pub struct Supervision<W, R> {
    flags: SupervisorFlags,
    window: RestartWindow,
    /// In start order.
    children: Vec<Child<W>>,
    operation: Option<Operation<R>>,
    /// What came while an operation was going on: at most one entry a child, and the bounded calls.
    pending: VecDeque<Pending<W, R>>,
    ending: Option<Ending>,
    ended: bool,
    incarnations: u64,
}

/// Children to stop, one after the other, then children to start, one after the other.
#[derive(Debug)]
struct Operation<R> {
    stop: VecDeque<ChildId>,
    start: VecDeque<ChildId>,
    purpose: Purpose<R>,
}

#[derive(Debug)]
enum Purpose<R> {
    Begin,
    Restart,
    StartChild { reply: R },
    RestartChild { reply: R },
    TerminateChild { reply: R },
    End,
}

#[derive(Debug)]
enum Pending<W, R> {
    Exit(Incarnation),
    TryAgain(ChildId),
    Call(Call<W, R>),
}

type Effects<W, R> = Vec<Effect<W, R>>;

impl<W: Clone, R> Supervision<W, R> {
    /// A supervisor of these children, none of them started.
    ///
    /// # Errors
    /// [`SpecError`] when they cannot be supervised so.
    pub fn new(flags: SupervisorFlags, children: impl IntoIterator<Item = (ChildTerms, W)>) -> Result<Self, SpecError> {
        let children: Vec<_> = children.into_iter().map(|(terms, work)| Child::new(terms, work)).collect();
        if children.len() > CHILDREN_MAX {
            return Err(SpecError::TooMany { count: children.len(), children_max: CHILDREN_MAX });
        }
        check_children(children.iter().map(|child| &child.terms), flags.auto_shutdown)?;
        Ok(Self {
            flags,
            window: RestartWindow::new(flags.intensity),
            children,
            operation: None,
            pending: VecDeque::new(),
            ending: None,
            ended: false,
            incarnations: 0,
        })
    }

    /// Takes one event at a monotonic moment and says what is to be done.
    pub fn step(&mut self, now: Duration, event: Event<W, R>) -> Vec<Effect<W, R>> {
        let mut effects = Vec::new();
        match event {
            Event::Begin => {
                let start = self.children.iter().map(|child| child.terms.id.clone()).collect();
                self.operation = Some(Operation { stop: VecDeque::new(), start, purpose: Purpose::Begin });
            }
            Event::Child(event) => self.child_event(event, &mut effects),
            Event::Call(call) => self.take_call(call, &mut effects),
            Event::Shutdown => self.end(Ending::Shutdown, &mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    /// All children in start order.
    pub fn which_children(&self) -> Vec<ChildView> {
        self.children.iter().map(Child::view).collect()
    }

    /// The number of children.
    pub fn count_children(&self) -> ChildCount {
        ChildCount::of(&self.children)
    }

    /// What may still run and how long it may take to stop, in the order in which it is to be stopped.
    pub fn stop_order(&self) -> Vec<(Incarnation, Shutdown)> {
        let children = self.children.iter().rev();
        children.filter_map(|child| Some((child.incarnation()?, child.terms.shutdown))).collect()
    }

    /// Goes on until something has to be waited for.
    fn advance(&mut self, now: Duration, effects: &mut Effects<W, R>) {
        while !self.ended {
            let Some(mut operation) = self.operation.take() else {
                let Some(next) = self.pending.pop_front() else { return };
                self.take_pending(now, next, effects);
                continue;
            };
            let is_waiting = if let Some(id) = operation.stop.front() {
                let is_gone = self.stop_one(id, effects);
                if is_gone {
                    operation.stop.pop_front();
                }
                !is_gone
            } else if let Some(id) = operation.start.front() {
                let is_up = self.start_one(id, effects);
                if is_up {
                    operation.start.pop_front();
                }
                !is_up
            } else {
                self.finish(operation.purpose, effects);
                continue;
            };
            self.operation = Some(operation);
            if is_waiting {
                return;
            }
        }
    }

    /// Stops a child if that was not begun; returns whether it is gone.
    fn stop_one(&mut self, id: &ChildId, effects: &mut Effects<W, R>) -> bool {
        let Some(index) = self.index_of(id) else { return true };
        let Some(child) = self.children.get_mut(index) else { return true };
        effects.extend(child.stop().into_iter().map(Effect::Child));
        if child.is_gone() {
            self.settle_absent(index);
            return true;
        }
        false
    }

    /// Starts a child if that was not begun; returns whether it came up.
    fn start_one(&mut self, id: &ChildId, effects: &mut Effects<W, R>) -> bool {
        let next = Incarnation(self.incarnations);
        let Some(child) = self.children.iter_mut().find(|child| child.terms.id == *id) else { return true };
        match child.life {
            Life::Running(_) | Life::Exited(..) => true,
            Life::Starting(_) | Life::Stopping(..) => false,
            Life::Absent | Life::Restarting => {
                self.incarnations += 1;
                effects.push(Effect::Child(child.start(next)));
                false
            }
        }
    }

    fn finish(&mut self, purpose: Purpose<R>, effects: &mut Effects<W, R>) {
        match purpose {
            Purpose::Begin => effects.push(Effect::Report(Report::Up)),
            // Answered when the child came up.
            Purpose::Restart | Purpose::StartChild { .. } | Purpose::RestartChild { .. } => {}
            Purpose::TerminateChild { reply } => effects.push(Effect::Reply { to: reply, answer: Ok(None) }),
            Purpose::End => {
                self.ended = true;
                let ending = self.ending.clone().unwrap_or(Ending::Shutdown);
                effects.push(Effect::Report(Report::Ended { ending: ending.clone() }));
                effects.push(Effect::End(ending));
            }
        }
    }

    fn child_event(&mut self, event: ChildEvent, effects: &mut Effects<W, R>) {
        let incarnation = event.incarnation();
        let Some(index) = self.position_of(incarnation) else { return };
        let Some(child) = self.children.get_mut(index) else { return };
        let id = child.terms.id.clone();
        match event {
            ChildEvent::Started { .. } => {
                effects.extend(child.started().into_iter().map(Effect::Child));
                if matches!(child.life, Life::Running(_)) {
                    effects.push(Effect::Report(Report::ChildStarted { id }));
                    self.answer_started(incarnation, effects);
                }
            }
            ChildEvent::StartFailed { error, .. } => match child.life {
                Life::Starting(_) => self.start_failed(index, error, effects),
                _ => child.life = Life::Absent,
            },
            ChildEvent::Exited { exit, .. } => match child.life {
                Life::Stopping(_, stage) => {
                    child.life = Life::Absent;
                    let was_expected = stage == StopStage::Killed && exit == Exit::Killed;
                    if exit.is_abnormal() && !was_expected {
                        effects.push(Effect::Report(Report::ShutdownError { id, exit }));
                    }
                }
                _ => {
                    child.life = Life::Exited(incarnation, exit.clone());
                    effects.push(Effect::Report(Report::ChildExited { id, exit }));
                    if self.ending.is_none() {
                        self.pending.push_back(Pending::Exit(incarnation));
                    }
                }
            },
            ChildEvent::Overdue { stage, .. } => {
                let orders = child.overdue(stage);
                if !orders.is_empty() {
                    effects.push(Effect::Report(match stage {
                        StopStage::Asked => Report::Overdue { id },
                        StopStage::Killed => Report::Abandoned { id },
                    }));
                }
                effects.extend(orders.into_iter().map(Effect::Child));
            }
        }
    }

    /// Answers the call that a child was started for.
    fn answer_started(&mut self, incarnation: Incarnation, effects: &mut Effects<W, R>) {
        let Some(Operation { stop, start, purpose }) = self.operation.take() else { return };
        let purpose = match purpose {
            Purpose::StartChild { reply } | Purpose::RestartChild { reply } => {
                effects.push(Effect::Reply { to: reply, answer: Ok(Some(incarnation)) });
                Purpose::Restart
            }
            other => other,
        };
        self.operation = Some(Operation { stop, start, purpose });
    }

    /// What a failed start means depends on what it was for.
    fn start_failed(&mut self, index: usize, error: StartError, effects: &mut Effects<W, R>) {
        let Some(child) = self.children.get_mut(index) else { return };
        child.life = Life::Absent;
        let id = child.terms.id.clone();
        effects.push(Effect::Report(Report::StartFailed { id: id.clone(), error: error.clone() }));
        let Some(operation) = self.operation.take() else { return };
        match operation.purpose {
            Purpose::Begin => self.end(Ending::StartFailed { id, error }, effects),
            Purpose::Restart => {
                child.life = Life::Restarting;
                self.pending.push_back(Pending::TryAgain(id));
            }
            Purpose::StartChild { reply } => {
                self.children.remove(index);
                effects.push(Effect::Reply { to: reply, answer: Err(SupervisorError::Start { id, source: error }) });
            }
            Purpose::RestartChild { reply } => {
                effects.push(Effect::Reply { to: reply, answer: Err(SupervisorError::Start { id, source: error }) });
            }
            // The start belonged to an operation that this one has cut short.
            Purpose::TerminateChild { .. } | Purpose::End => self.operation = Some(operation),
        }
    }

    fn take_pending(&mut self, now: Duration, pending: Pending<W, R>, effects: &mut Effects<W, R>) {
        match pending {
            Pending::Exit(incarnation) => {
                // An operation may have settled it meanwhile.
                if let Some(index) = self.position_of(incarnation) {
                    self.decide(now, index, effects);
                }
            }
            // It may have been terminated or restarted by a call meanwhile.
            Pending::TryAgain(id) => {
                if let Some(index) = self.index_of(&id)
                    && self.children.get(index).is_some_and(|child| child.life == Life::Restarting)
                {
                    self.restart(now, index, effects);
                }
            }
            Pending::Call(call) => self.carry_out(call, effects),
        }
    }

    /// Decides what follows from the end of a child.
    fn decide(&mut self, now: Duration, index: usize, effects: &mut Effects<W, R>) {
        let Some(child) = self.children.get(index) else { return };
        let Life::Exited(_, exit) = &child.life else { return };
        if child.is_restarted_after(exit) {
            self.restart(now, index, effects);
            return;
        }
        let (id, is_significant) = (child.terms.id.clone(), child.terms.significant);
        self.settle_absent(index);
        let is_last = || !self.children.iter().any(|child| child.terms.significant && child.life != Life::Absent);
        let ends = match self.flags.auto_shutdown {
            AutoShutdown::Never => false,
            AutoShutdown::AnySignificant => is_significant,
            AutoShutdown::AllSignificant => is_significant && is_last(),
        };
        if ends {
            self.end(Ending::AutoShutdown { id }, effects);
        }
    }

    /// Restarts a child and those that the strategy ties to it, if the intensity allows it.
    fn restart(&mut self, now: Duration, index: usize, effects: &mut Effects<W, R>) {
        let Some(child) = self.children.get(index) else { return };
        let id = child.terms.id.clone();
        if !self.window.admit(now) {
            self.settle_absent(index);
            let intensity = self.window.intensity();
            let (restarts_max, period) = (intensity.restarts_max(), intensity.period());
            self.end(Ending::IntensityReached { id, restarts_max, period }, effects);
            return;
        }
        let group = match self.flags.strategy {
            Strategy::OneForOne => self.children.get(index..=index),
            Strategy::OneForAll => self.children.get(..),
            Strategy::RestForOne => self.children.get(index..),
        };
        let group = group.unwrap_or_default();
        let stop = group.iter().rev().map(|child| child.terms.id.clone()).collect();
        // Temporary children are stopped with their group and forgotten by then, so they never come back.
        let start = group.iter().map(|child| child.terms.id.clone()).collect();
        self.operation = Some(Operation { stop, start, purpose: Purpose::Restart });
    }

    /// Begins the end, from whatever is going on; only the first reason counts.
    fn end(&mut self, ending: Ending, effects: &mut Effects<W, R>) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        let refuse = |to| Effect::Reply { to, answer: Err(SupervisorError::ShuttingDown) };
        if let Some(operation) = self.operation.take() {
            effects.extend(operation.purpose.into_reply().map(refuse));
        }
        for pending in self.pending.drain(..) {
            if let Pending::Call(call) = pending {
                effects.push(refuse(call.into_reply()));
            }
        }
        // A child whose stop goes on is waited for first, then the others are stopped in reverse start order.
        let (stopping, others): (Vec<_>, Vec<_>) =
            self.children.iter().rev().partition(|child| matches!(child.life, Life::Stopping(..)));
        let stop = stopping.into_iter().chain(others).map(|child| child.terms.id.clone()).collect();
        self.operation = Some(Operation { stop, start: VecDeque::new(), purpose: Purpose::End });
    }

    fn take_call(&mut self, call: Call<W, R>, effects: &mut Effects<W, R>) {
        let refusal = match self.ending {
            Some(_) => SupervisorError::ShuttingDown,
            None if self.pending.len() >= PENDING_CALLS_MAX => SupervisorError::Busy,
            None => {
                self.pending.push_back(Pending::Call(call));
                return;
            }
        };
        effects.push(Effect::Reply { to: call.into_reply(), answer: Err(refusal) });
    }

    fn carry_out(&mut self, call: Call<W, R>, effects: &mut Effects<W, R>) {
        let (to, outcome) = match call {
            Call::StartChild { terms, work, reply } => (reply, self.check_start(terms, work)),
            Call::RestartChild { id, reply } => (reply, self.check_absent(&id).map(|_| Task::RestartChild(id))),
            Call::TerminateChild { id, reply } => {
                let found = self.index_of(&id).ok_or(SupervisorError::NotFound { id: id.clone() });
                (reply, found.map(|_| Task::TerminateChild(id)))
            }
            Call::DeleteChild { id, reply } => {
                let deleted = self.check_absent(&id).map(|index| {
                    self.children.remove(index);
                    Task::Nothing
                });
                (reply, deleted)
            }
        };
        let (stop, start, purpose) = match outcome {
            Err(error) => {
                effects.push(Effect::Reply { to, answer: Err(error) });
                return;
            }
            Ok(Task::Nothing) => {
                effects.push(Effect::Reply { to, answer: Ok(None) });
                return;
            }
            Ok(Task::StartChild(id)) => (None, Some(id), Purpose::StartChild { reply: to }),
            Ok(Task::RestartChild(id)) => (None, Some(id), Purpose::RestartChild { reply: to }),
            Ok(Task::TerminateChild(id)) => (Some(id), None, Purpose::TerminateChild { reply: to }),
        };
        self.operation =
            Some(Operation { stop: stop.into_iter().collect(), start: start.into_iter().collect(), purpose });
    }

    /// Adds a child, absent, at the end.
    fn check_start(&mut self, terms: ChildTerms, work: W) -> Result<Task, SupervisorError> {
        terms.check(self.flags.auto_shutdown)?;
        let id = terms.id.clone();
        match self.children.iter().find(|child| child.terms.id == id).map(|child| &child.life) {
            Some(Life::Absent) => return Err(SupervisorError::AlreadyPresent { id }),
            Some(_) => return Err(SupervisorError::AlreadyStarted { id }),
            None if self.children.len() >= CHILDREN_MAX => {
                return Err(SpecError::TooMany { count: CHILDREN_MAX + 1, children_max: CHILDREN_MAX }.into());
            }
            None => self.children.push(Child::new(terms, work)),
        }
        Ok(Task::StartChild(id))
    }

    fn check_absent(&self, id: &ChildId) -> Result<usize, SupervisorError> {
        let id = id.clone();
        let Some(index) = self.index_of(&id) else { return Err(SupervisorError::NotFound { id }) };
        match self.children.get(index).map(|child| &child.life) {
            Some(Life::Absent) | None => Ok(index),
            Some(Life::Restarting) => Err(SupervisorError::Restarting { id }),
            Some(_) => Err(SupervisorError::Running { id }),
        }
    }

    /// Notes that nothing of a child runs or is to run; a temporary one is forgotten.
    fn settle_absent(&mut self, index: usize) {
        let Some(child) = self.children.get_mut(index) else { return };
        child.life = Life::Absent;
        if child.terms.restart == Restart::Temporary {
            self.children.remove(index);
        }
    }

    fn position_of(&self, incarnation: Incarnation) -> Option<usize> {
        self.children.iter().position(|child| child.incarnation() == Some(incarnation))
    }

    fn index_of(&self, id: &ChildId) -> Option<usize> {
        self.children.iter().position(|child| child.terms.id == *id)
    }
}

/// What a call asks for, once it was checked.
enum Task {
    StartChild(ChildId),
    RestartChild(ChildId),
    TerminateChild(ChildId),
    Nothing,
}

impl<R> Purpose<R> {
    fn into_reply(self) -> Option<R> {
        match self {
            Self::Begin | Self::Restart | Self::End => None,
            Self::StartChild { reply } | Self::RestartChild { reply } | Self::TerminateChild { reply } => Some(reply),
        }
    }
}

impl<W, R> Call<W, R> {
    fn into_reply(self) -> R {
        match self {
            Self::StartChild { reply, .. }
            | Self::TerminateChild { reply, .. }
            | Self::RestartChild { reply, .. }
            | Self::DeleteChild { reply, .. } => reply,
        }
    }
}

/// Why a supervisor did not do what it was called for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SupervisorError {
    /// No such child.
    #[error("there is no child {id}; which_children lists those there are")]
    NotFound {
        /// The name.
        id: ChildId,
    },
    /// A child of this name is there.
    #[error("child {id} is started already")]
    AlreadyStarted {
        /// The name.
        id: ChildId,
    },
    /// A child of this name is known, but stopped.
    #[error("child {id} is known but not running; restart it, or delete it first")]
    AlreadyPresent {
        /// The name.
        id: ChildId,
    },
    /// Only for an absent child.
    #[error("child {id} is running; terminate it first")]
    Running {
        /// The name.
        id: ChildId,
    },
    /// Only for an absent child.
    #[error("child {id} is being restarted; terminate it first, or wait")]
    Restarting {
        /// The name.
        id: ChildId,
    },
    /// The child cannot be supervised as specified.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The child did not start.
    #[error("child {id} did not start: {source}")]
    Start {
        /// The child.
        id: ChildId,
        /// Why.
        source: StartError,
    },
    /// The supervisor ends and takes no more calls.
    #[error("the supervisor shuts down")]
    ShuttingDown,
    /// Too many calls wait already.
    #[error("{PENDING_CALLS_MAX} calls wait for this supervisor already; try again later")]
    Busy,
    /// No supervisor is there: not started yet, ended, or about to be restarted.
    #[error("the supervisor is not running; try again once it has been started")]
    NotRunning,
    /// No answer in time; what was called for goes on.
    #[error("the supervisor did not answer within {timeout:?}; it goes on with what it was called for")]
    TimedOut {
        /// How long was waited.
        timeout: Duration,
    },
}

#[cfg(test)]
mod tests;
