//! The living side of a supervisor's children: their cells, running starts and timers.
//!
//! The mount of both supervisors. It carries out [`Order`]s without ever waiting, and turns ractor's events into
//! [`ChildEvent`]s in the order the machines rely on: a supervision event overtakes the message that a start has
//! finished, so the end of a child that is not known yet is kept until its start is.
//!
//! A start runs in a task of its own. If the supervisor goes meanwhile, the task is dropped, ractor refuses the
//! link, or the child is killed with its supervisor: none is left over in any order. A child that its start did not
//! link is linked here; one that can no longer be linked is watched until it is gone.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ractor::{ActorCell, ActorId, ActorRef, Message, SupervisionEvent};
use tokio::task::AbortHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::child::{ChildEvent, Exit, Incarnation, KILL_CONFIRM, Order, StopStage};
use crate::child_spec::{AskToStop, ChildWork, Shutdown, StartError, StartRequest};

/// Ends of unknown actors that are remembered while starts run; a start may end several before it succeeds.
const EARLY_EXITS_MAX: usize = 1_024;

/// What the nursery's tasks send to their supervisor's mailbox; at most one start and one timer a child.
#[derive(Debug)]
pub(crate) enum NurseryNote {
    StartEnded { incarnation: Incarnation, result: Result<ActorCell, StartError> },
    Overdue { incarnation: Incarnation, stage: StopStage },
    Gone { incarnation: Incarnation },
}

/// Cells, starts and timers by incarnation.
pub(crate) struct Nursery<M> {
    supervisor: ActorRef<M>,
    cots: BTreeMap<Incarnation, Cot>,
    incarnations: BTreeMap<ActorId, Incarnation>,
    early_exits: BTreeMap<ActorId, Exit>,
    /// Start tasks that have not reported yet.
    starting: usize,
    /// Children whose end was handed out; forgotten at the next call, so that the machine's answers still find them.
    departed: Vec<Incarnation>,
    /// Set when a start was dropped: what it had spawned by then may be linked here without being known.
    strays: bool,
}

struct Cot {
    ask_to_stop: AskToStop,
    occupant: Occupant,
    timer: Option<Timer>,
}

enum Occupant {
    Starting { cancelled: CancellationToken, dropped: CancellationToken, _with_the_cot: DropGuard },
    Running(ActorCell),
}

/// Aborts its task with itself.
struct Timer(AbortHandle);

impl<M: Message + From<NurseryNote>> Nursery<M> {
    pub(crate) fn new(supervisor: ActorRef<M>) -> Self {
        Self {
            supervisor,
            cots: BTreeMap::new(),
            incarnations: BTreeMap::new(),
            early_exits: BTreeMap::new(),
            starting: 0,
            departed: Vec::new(),
            strays: false,
        }
    }

    /// The supervisor this belongs to.
    pub(crate) fn supervisor(&self) -> &ActorRef<M> {
        &self.supervisor
    }

    /// The cell of a child that is up.
    pub(crate) fn cell(&self, incarnation: Incarnation) -> Option<&ActorCell> {
        match &self.cots.get(&incarnation)?.occupant {
            Occupant::Running(cell) => Some(cell),
            Occupant::Starting { .. } => None,
        }
    }

    /// Does what the machine decided; never waits.
    pub(crate) fn carry_out(&mut self, order: Order<ChildWork>) {
        match order {
            Order::Start { incarnation, work } => self.start(incarnation, work),
            Order::Ask { incarnation } => {
                if let Some(cot) = self.cots.get(&incarnation) {
                    match &cot.occupant {
                        Occupant::Running(cell) => (cot.ask_to_stop)(cell),
                        Occupant::Starting { cancelled, .. } => cancelled.cancel(),
                    }
                }
            }
            Order::Kill { incarnation } => {
                if let Some(cot) = self.cots.get(&incarnation) {
                    match &cot.occupant {
                        Occupant::Running(cell) => cell.kill(),
                        // Its task then reports that it was cancelled.
                        Occupant::Starting { dropped, .. } => dropped.cancel(),
                    }
                }
            }
            Order::Watch { incarnation, stage, after } => {
                let wake = move || M::from(NurseryNote::Overdue { incarnation, stage });
                let timer = Timer(self.supervisor.send_after(after, wake).abort_handle());
                if let Some(cot) = self.cots.get_mut(&incarnation) {
                    cot.timer = Some(timer);
                }
            }
            Order::Abandon { incarnation } => self.forget(incarnation),
        }
    }

    /// Takes a note from one of its own tasks; at most a start and an end come of it, in this order.
    pub(crate) fn take_note(&mut self, note: NurseryNote) -> Vec<ChildEvent> {
        self.forget_departed();
        match note {
            NurseryNote::StartEnded { incarnation, result } => self.start_ended(incarnation, result),
            NurseryNote::Overdue { incarnation, stage } => vec![ChildEvent::Overdue { incarnation, stage }],
            // A supervision event is sent before an actor counts as stopped, and read before any message: if one was
            // sent, the cot is empty by now.
            NurseryNote::Gone { incarnation } if self.cots.contains_key(&incarnation) => {
                self.departed.push(incarnation);
                vec![ChildEvent::Exited { incarnation, exit: Exit::Lost }]
            }
            NurseryNote::Gone { .. } => Vec::new(),
        }
    }

    /// Takes an event from ractor; something comes of it when it is the end of a known child.
    pub(crate) fn take_event(&mut self, event: &SupervisionEvent) -> Option<ChildEvent> {
        self.forget_departed();
        let (cell, exit) = Exit::of(event)?;
        if let Some(incarnation) = self.incarnations.get(&cell.get_id()).copied() {
            self.departed.push(incarnation);
            return Some(ChildEvent::Exited { incarnation, exit });
        }
        if self.starting > 0 && self.early_exits.len() < EARLY_EXITS_MAX {
            self.early_exits.insert(cell.get_id(), exit);
        }
        None
    }

    /// Stops children one after the other, each within its time. This and [`Self::close_at_once`] are for the one
    /// case in which events cannot drive a stop any more: ractor's own `stop` of a supervisor.
    pub(crate) async fn close_in_order(&mut self, order: impl IntoIterator<Item = (Incarnation, Shutdown)>) {
        for (incarnation, shutdown) in order {
            // A start that still runs is dropped with its cot.
            if let Some(cot) = self.cots.remove(&incarnation) {
                cot.close(shutdown).await;
            }
        }
    }

    /// Stops children at the same time, each within its time.
    pub(crate) async fn close_at_once(&mut self, children: impl IntoIterator<Item = (Incarnation, Shutdown)>) {
        let cots = children.into_iter().filter_map(|(of, shutdown)| Some(self.cots.remove(&of)?.close(shutdown)));
        join_all(cots.collect::<Vec<_>>()).await;
    }

    fn start(&mut self, incarnation: Incarnation, work: ChildWork) {
        let (cancelled, dropped) = (CancellationToken::new(), CancellationToken::new());
        let request = StartRequest { supervisor: self.supervisor.get_cell(), cancelled: cancelled.clone() };
        let (start, supervisor, is_dropped) = (work.start, self.supervisor.clone(), dropped.clone());
        tokio::spawn(async move {
            // The factory itself is called inside, so that its panic is caught too.
            let starting = AssertUnwindSafe(async move { start(request).await }).catch_unwind();
            let result = tokio::select! {
                biased;
                () = is_dropped.cancelled() => Err(StartError::Cancelled),
                started = starting => started.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))),
            };
            let cell = result.as_ref().ok().cloned();
            let note = NurseryNote::StartEnded { incarnation, result };
            if supervisor.cast(note.into()).is_err() {
                // Nobody is left to supervise it.
                cell.inspect(ActorCell::kill);
            }
        });
        self.starting += 1;
        let occupant = Occupant::Starting { cancelled, dropped: dropped.clone(), _with_the_cot: dropped.drop_guard() };
        self.cots.insert(incarnation, Cot { ask_to_stop: work.ask_to_stop, occupant, timer: None });
    }

    fn start_ended(&mut self, incarnation: Incarnation, result: Result<ActorCell, StartError>) -> Vec<ChildEvent> {
        self.starting = self.starting.saturating_sub(1);
        let events = match result {
            // Abandoned: it was given up while its start could not be dropped.
            result if !self.cots.contains_key(&incarnation) => {
                let _ = result.inspect(ActorCell::kill);
                Vec::new()
            }
            Err(error) => {
                self.strays |= error == StartError::Cancelled;
                self.forget(incarnation);
                vec![ChildEvent::StartFailed { incarnation, error }]
            }
            Ok(cell) => self.move_in(incarnation, cell),
        };
        self.starts_settled();
        events
    }

    fn move_in(&mut self, incarnation: Incarnation, cell: ActorCell) -> Vec<ChildEvent> {
        let started = ChildEvent::Started { incarnation };
        let child = cell.get_id();
        if let Some(cot) = self.cots.get_mut(&incarnation) {
            cot.occupant = Occupant::Running(cell.clone());
        }
        self.incarnations.insert(child, incarnation);
        if let Some(exit) = self.early_exits.remove(&child) {
            self.departed.push(incarnation);
            return vec![started, ChildEvent::Exited { incarnation, exit }];
        }
        let myself = self.supervisor.get_cell();
        if cell.try_get_supervisor().as_ref() != Some(&myself) {
            cell.link(myself);
            let supervisor = self.supervisor.clone();
            tokio::spawn(async move {
                let _ = cell.wait(None).await;
                let _ = supervisor.cast(NurseryNote::Gone { incarnation }.into());
            });
        }
        vec![started]
    }

    fn forget_departed(&mut self) {
        for incarnation in std::mem::take(&mut self.departed) {
            self.forget(incarnation);
        }
    }

    fn forget(&mut self, incarnation: Incarnation) {
        if let Some(Cot { occupant: Occupant::Running(cell), .. }) = self.cots.remove(&incarnation) {
            self.incarnations.remove(&cell.get_id());
        }
    }

    /// Once no start runs, every linked actor must be a known child: kills what dropped starts have left behind.
    fn starts_settled(&mut self) {
        if self.starting > 0 {
            return;
        }
        self.early_exits.clear();
        if std::mem::take(&mut self.strays) {
            let mut linked = self.supervisor.get_children();
            // ractor keeps them in hash order.
            linked.sort_by_key(|cell| cell.get_id());
            for cell in linked {
                if !self.incarnations.contains_key(&cell.get_id()) {
                    cell.kill();
                }
            }
        }
    }
}

impl Cot {
    async fn close(self, shutdown: Shutdown) {
        let Occupant::Running(cell) = self.occupant else { return };
        let timeout = match shutdown {
            Shutdown::BrutalKill => None,
            Shutdown::Timeout(timeout) => Some(Some(timeout)),
            Shutdown::Infinity => Some(None),
        };
        if let Some(timeout) = timeout {
            (self.ask_to_stop)(&cell);
            if cell.wait(timeout).await.is_ok() {
                return;
            }
        }
        cell.kill();
        if cell.wait(Some(KILL_CONFIRM)).await.is_err() {
            tracing::warn!(child = %cell.get_id(), "a child cannot be killed and runs on unsupervised");
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn panicked(panic: &(dyn Any + Send)) -> StartError {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    StartError::Panicked { message: Arc::from(text.unwrap_or("no message")) }
}

#[cfg(test)]
mod tests;
