//! The decisions of a dynamic supervisor: many alike children that come and go, one-for-one.
//!
//! Children start, restart and stop independently of each other and at the same time; a shutdown asks all of them at
//! once, each within its own time. A child that is terminated, or ends and is not restarted, is forgotten. What
//! reaching the restart intensity means, see [`Ending`].

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

use crate::child::{Child, ChildCount, ChildEvent, ChildView, Exit, Incarnation, Life, Order, StopStage};
use crate::child_spec::{AutoShutdown, ChildId, ChildTerms, Shutdown, SpecError, StartError};
use crate::restart_intensity::{RestartIntensity, RestartWindow};
use crate::supervision_report::{Ending, Report};

/// Most children unless the flags say otherwise.
pub const MAX_CHILDREN: usize = 1_024;
/// Most calls that wait for the end of one child.
pub const TERMINATE_WAITERS_MAX: usize = 64;

/// How a dynamic supervisor supervises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DynamicFlags {
    /// Most children at a time, those being started, restarted or stopped included.
    pub max_children: usize,
    /// How many restarts are tolerated, over all children.
    pub intensity: RestartIntensity,
}

impl Default for DynamicFlags {
    fn default() -> Self {
        Self { max_children: MAX_CHILDREN, intensity: RestartIntensity::default() }
    }
}

/// What a dynamic supervisor hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<W, S, T> {
    /// Start a child.
    StartChild {
        /// Its terms.
        terms: ChildTerms,
        /// How to start it.
        work: W,
        /// Where the answer goes.
        reply: S,
    },
    /// Stop a child and forget it.
    TerminateChild {
        /// Which.
        id: ChildId,
        /// Where the answer goes.
        reply: T,
    },
    /// Something about a child.
    Child(ChildEvent),
    /// End.
    Shutdown,
}

/// What a dynamic supervisor wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect<W, S, T> {
    /// Do something about a child.
    Child(Order<W>),
    /// Answer a [`Event::StartChild`].
    Started {
        /// Where to.
        to: S,
        /// The answer; the child is named by its incarnation.
        answer: Result<Incarnation, DynamicSupervisorError>,
    },
    /// Answer a [`Event::TerminateChild`].
    Terminated {
        /// Where to.
        to: T,
        /// The answer.
        answer: Result<(), DynamicSupervisorError>,
    },
    /// Tell what happened.
    Report(Report),
    /// End; the last effect there is.
    End(Ending),
}

type Effects<W, S, T> = Vec<Effect<W, S, T>>;

/// The decisions of a dynamic supervisor. `W` is how children are started, `S` and `T` where the answers to starts
/// and terminations go: it looks into none of them.
#[derive(Debug)]
pub struct DynamicSupervision<W, S, T> {
    max_children: usize,
    window: RestartWindow,
    children: BTreeMap<ChildId, Charge<W, S, T>>,
    /// Children by their current incarnation.
    ids: BTreeMap<Incarnation, ChildId>,
    ending: Option<Ending>,
    incarnations: u64,
}

/// A child and who waits for it.
#[derive(Debug)]
struct Charge<W, S, T> {
    child: Child<W>,
    starter: Option<S>,
    terminators: Vec<T>,
}

impl<W: Clone, S, T> DynamicSupervision<W, S, T> {
    /// A supervisor without children.
    pub fn new(flags: DynamicFlags) -> Self {
        Self {
            max_children: flags.max_children,
            window: RestartWindow::new(flags.intensity),
            children: BTreeMap::new(),
            ids: BTreeMap::new(),
            ending: None,
            incarnations: 0,
        }
    }

    /// Takes one event at a monotonic moment and says what is to be done.
    pub fn step(&mut self, now: Duration, event: Event<W, S, T>) -> Vec<Effect<W, S, T>> {
        let mut effects = Vec::new();
        match event {
            Event::StartChild { terms, work, reply } => match self.admit(&terms) {
                Ok(()) => self.start_child(terms, work, reply, &mut effects),
                Err(error) => effects.push(Effect::Started { to: reply, answer: Err(error) }),
            },
            Event::TerminateChild { id, reply } => self.terminate_child(id, reply, &mut effects),
            Event::Child(event) => self.child_event(now, event, &mut effects),
            Event::Shutdown => self.end(Ending::Shutdown, &mut effects),
        }
        effects
    }

    /// All children, sorted by id.
    pub fn which_children(&self) -> Vec<ChildView> {
        self.children.values().map(|charge| charge.child.view()).collect()
    }

    /// The number of children.
    pub fn count_children(&self) -> ChildCount {
        ChildCount::of(self.children.values().map(|charge| &charge.child))
    }

    /// What may still run and how long it may take to stop.
    pub fn stop_order(&self) -> Vec<(Incarnation, Shutdown)> {
        let children = self.children.values().map(|charge| &charge.child);
        children.filter_map(|child| Some((child.incarnation()?, child.terms.shutdown))).collect()
    }

    fn admit(&self, terms: &ChildTerms) -> Result<(), DynamicSupervisorError> {
        if self.ending.is_some() {
            return Err(DynamicSupervisorError::ShuttingDown);
        }
        terms.check(AutoShutdown::Never)?;
        if self.children.contains_key(&terms.id) {
            return Err(DynamicSupervisorError::AlreadyStarted { id: terms.id.clone() });
        }
        if self.children.len() >= self.max_children {
            return Err(DynamicSupervisorError::MaxChildren { max_children: self.max_children });
        }
        Ok(())
    }

    fn start_child(&mut self, terms: ChildTerms, work: W, reply: S, effects: &mut Effects<W, S, T>) {
        let id = terms.id.clone();
        let charge = Charge { child: Child::new(terms, work), starter: Some(reply), terminators: Vec::new() };
        self.children.insert(id.clone(), charge);
        self.begin(id, effects);
    }

    fn begin(&mut self, id: ChildId, effects: &mut Effects<W, S, T>) {
        let Some(charge) = self.children.get_mut(&id) else { return };
        let incarnation = Incarnation(self.incarnations);
        self.incarnations += 1;
        effects.push(Effect::Child(charge.child.start(incarnation)));
        self.ids.insert(incarnation, id);
    }

    fn terminate_child(&mut self, id: ChildId, reply: T, effects: &mut Effects<W, S, T>) {
        let refusal = match self.children.get_mut(&id) {
            None => DynamicSupervisorError::NotFound { id },
            Some(charge) if charge.terminators.len() >= TERMINATE_WAITERS_MAX => DynamicSupervisorError::Busy { id },
            Some(charge) => {
                charge.terminators.push(reply);
                effects.extend(charge.child.stop().into_iter().map(Effect::Child));
                return;
            }
        };
        effects.push(Effect::Terminated { to: reply, answer: Err(refusal) });
    }

    fn child_event(&mut self, now: Duration, event: ChildEvent, effects: &mut Effects<W, S, T>) {
        let incarnation = event.incarnation();
        let Some(id) = self.ids.get(&incarnation).cloned() else { return };
        let Some(charge) = self.children.get_mut(&id) else { return };
        let is_stopping = matches!(charge.child.life, Life::Stopping(..));
        if matches!(event, ChildEvent::StartFailed { .. } | ChildEvent::Exited { .. }) {
            self.ids.remove(&incarnation);
        }
        match event {
            ChildEvent::Started { .. } => {
                effects.extend(charge.child.started().into_iter().map(Effect::Child));
                if !is_stopping {
                    effects.push(Effect::Report(Report::ChildStarted { id }));
                    if let Some(to) = charge.starter.take() {
                        effects.push(Effect::Started { to, answer: Ok(incarnation) });
                    }
                }
            }
            ChildEvent::StartFailed { .. } if is_stopping => self.gone(&id, StartError::Cancelled, effects),
            ChildEvent::StartFailed { error, .. } => {
                effects.push(Effect::Report(Report::StartFailed { id: id.clone(), error: error.clone() }));
                if charge.starter.is_some() {
                    self.gone(&id, error, effects);
                } else {
                    self.restart(now, id, effects);
                }
            }
            ChildEvent::Exited { exit, .. } => {
                if let Life::Stopping(_, stage) = charge.child.life {
                    let was_expected = stage == StopStage::Killed && exit == Exit::Killed;
                    if exit.is_abnormal() && !was_expected {
                        effects.push(Effect::Report(Report::ShutdownError { id: id.clone(), exit }));
                    }
                    self.gone(&id, StartError::Cancelled, effects);
                    return;
                }
                effects.push(Effect::Report(Report::ChildExited { id: id.clone(), exit: exit.clone() }));
                if charge.child.is_restarted_after(&exit) {
                    self.restart(now, id, effects);
                } else {
                    self.gone(&id, StartError::Died, effects);
                }
            }
            ChildEvent::Overdue { stage, .. } => self.overdue(incarnation, id, stage, effects),
        }
    }

    fn overdue(&mut self, incarnation: Incarnation, id: ChildId, stage: StopStage, effects: &mut Effects<W, S, T>) {
        let Some(charge) = self.children.get_mut(&id) else { return };
        let orders = charge.child.overdue(stage);
        if orders.is_empty() {
            return;
        }
        let is_given_up = charge.child.is_gone();
        effects.push(Effect::Report(match stage {
            StopStage::Asked => Report::Overdue { id: id.clone() },
            StopStage::Killed => Report::Abandoned { id: id.clone() },
        }));
        effects.extend(orders.into_iter().map(Effect::Child));
        if is_given_up {
            self.ids.remove(&incarnation);
            self.gone(&id, StartError::Cancelled, effects);
        }
    }

    /// Restarts a child if the intensity allows it.
    fn restart(&mut self, now: Duration, id: ChildId, effects: &mut Effects<W, S, T>) {
        if self.window.admit(now) {
            self.begin(id, effects);
            return;
        }
        let intensity = self.window.intensity();
        self.gone(&id, StartError::Died, effects);
        let (restarts_max, period) = (intensity.restarts_max(), intensity.period());
        self.end(Ending::IntensityReached { id, restarts_max, period }, effects);
    }

    /// Forgets a child that is not there any more and answers all who wait for it.
    fn gone(&mut self, id: &ChildId, error: StartError, effects: &mut Effects<W, S, T>) {
        let Some(charge) = self.children.remove(id) else { return };
        if let Some(to) = charge.starter {
            let refusal = match self.ending {
                Some(_) => DynamicSupervisorError::ShuttingDown,
                None => DynamicSupervisorError::Start { id: id.clone(), source: error },
            };
            effects.push(Effect::Started { to, answer: Err(refusal) });
        }
        effects.extend(charge.terminators.into_iter().map(|to| Effect::Terminated { to, answer: Ok(()) }));
        self.end_when_empty(effects);
    }

    /// Begins the end: all children are stopped at once. Only the first reason counts.
    fn end(&mut self, ending: Ending, effects: &mut Effects<W, S, T>) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(ending);
        for charge in self.children.values_mut() {
            effects.extend(charge.child.stop().into_iter().map(Effect::Child));
        }
        self.end_when_empty(effects);
    }

    fn end_when_empty(&mut self, effects: &mut Effects<W, S, T>) {
        if !self.children.is_empty() {
            return;
        }
        if let Some(ending) = self.ending.clone() {
            effects.push(Effect::Report(Report::Ended { ending: ending.clone() }));
            effects.push(Effect::End(ending));
        }
    }
}

/// Why a dynamic supervisor did not do what it was called for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DynamicSupervisorError {
    /// It is full.
    #[error("{max_children} children are there, which is the limit; try again when some have ended")]
    MaxChildren {
        /// The limit.
        max_children: usize,
    },
    /// A child of this name is there, or is being started or stopped.
    #[error("child {id} is there already; ids must be unique at any time")]
    AlreadyStarted {
        /// The name.
        id: ChildId,
    },
    /// No such child.
    #[error("there is no child {id}; it may have ended")]
    NotFound {
        /// The name.
        id: ChildId,
    },
    /// Too many wait for the child's end already.
    #[error("{TERMINATE_WAITERS_MAX} calls wait for the end of child {id} already")]
    Busy {
        /// The name.
        id: ChildId,
    },
    /// The child cannot be supervised as specified.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The child did not start, or was terminated before it was up.
    #[error("child {id} did not start: {source}")]
    Start {
        /// The child.
        id: ChildId,
        /// Why.
        source: StartError,
    },
    /// The supervisor ends and takes no more children.
    #[error("the supervisor shuts down")]
    ShuttingDown,
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
