//! The decisions about the background tasks of one session: which may start when, which are cancelled, what each came to.
//!
//! A background task is registered before the call that wants it returns, and starts only once the turn that wanted it
//! stands: whoever is told of a task by a turn that falls would otherwise pay for work that nobody knows of. What must
//! stay true: a task starts once and only after its turn stood; each has one ending, and the first word about it stays; a
//! result is delivered once, to a session that is open, and only of a task whose turn stood; nothing starts in a session
//! that is closing, and there are never more open tasks than the limit.
//!
//! There is no actor here: whoever holds the tasks feeds the board what happened and carries out what it wants.

use std::collections::BTreeMap;

use thiserror::Error;
use toolwarden_tools::cancellation::CancelReason;

/// Background tasks that one session has open at a time, when the host says nothing else.
pub const OPEN_TASKS_MAX: usize = 16;

/// How a background task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaskEnd {
    /// It came to an answer.
    Succeeded,
    /// It came to none.
    Failed,
    /// It was told to end first, whatever it came to afterwards.
    Cancelled,
}

/// How far a background task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskPhase {
    /// It waits for its turn to stand.
    Registered,
    /// It runs.
    Running,
    /// It was told to end, and has not yet.
    Ending,
    /// It has ended.
    Ended(TaskEnd),
}

/// What happened; `K` names tasks, `T` turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoardEvent<K, T> {
    /// The turn's calls all have their results, and those are kept.
    TurnStands(T),
    /// The turn came to nothing.
    TurnFell(T),
    /// A task has ended, by itself or because it was told to.
    Ended {
        /// Which.
        task: K,
        /// Whether it came to an answer.
        success: bool,
    },
    /// Somebody wants a task to end.
    Cancel {
        /// Which.
        task: K,
        /// Why.
        reason: CancelReason,
    },
    /// The session ends.
    Close {
        /// Why.
        reason: CancelReason,
    },
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BoardEffect<K> {
    /// Let it begin.
    Start(K),
    /// Tell it to end.
    Cancel(K, CancelReason),
    /// Tell its one ending; deliver what it came to when `deliver` says so.
    End {
        /// Which.
        task: K,
        /// How.
        end: TaskEnd,
        /// Whether whoever asked for it is to get the result.
        deliver: bool,
    },
}

/// Why a task cannot be registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BoardError {
    /// As many are open as may be.
    #[error("{open_max} background tasks are open in this session already; wait for one of them, or cancel one")]
    Full {
        /// How many that is.
        open_max: usize,
    },
    /// The session ends.
    #[error("the session is closing; no more tasks start in it")]
    Closed,
    /// There is one of this name.
    #[error("a task of this id is registered already")]
    Known,
}

/// The background tasks of a session.
#[derive(Debug)]
pub struct TaskBoard<K, T> {
    open_max: usize,
    tasks: BTreeMap<K, Task<T>>,
    closed: bool,
}

#[derive(Debug)]
struct Task<T> {
    phase: TaskPhase,
    /// The turn that it waits for.
    turn: Option<T>,
    /// Whether its turn stood.
    stood: bool,
}

impl<K: Ord + Clone, T: PartialEq> TaskBoard<K, T> {
    /// A board for so many open tasks; 0 counts as 1.
    pub fn new(open_max: usize) -> Self {
        Self { open_max: open_max.max(1), tasks: BTreeMap::new(), closed: false }
    }

    /// Registers a task; one without a turn starts at once.
    ///
    /// # Errors
    /// [`BoardError`]; nothing was registered then.
    pub fn register(&mut self, task: K, turn: Option<T>) -> Result<Vec<BoardEffect<K>>, BoardError> {
        if self.closed {
            return Err(BoardError::Closed);
        }
        if self.tasks.contains_key(&task) {
            return Err(BoardError::Known);
        }
        if self.open() >= self.open_max {
            return Err(BoardError::Full { open_max: self.open_max });
        }
        let (phase, stood) = match turn {
            Some(_) => (TaskPhase::Registered, false),
            None => (TaskPhase::Running, true),
        };
        let effects = if stood { vec![BoardEffect::Start(task.clone())] } else { Vec::new() };
        self.tasks.insert(task, Task { phase, turn, stood });
        Ok(effects)
    }

    /// Takes what happened; returns what is to be done, in order. Word of a task that is not open changes nothing.
    pub fn step(&mut self, event: BoardEvent<K, T>) -> Vec<BoardEffect<K>> {
        let mut effects = Vec::new();
        match event {
            BoardEvent::TurnStands(turn) => {
                for (key, task) in self.waiting_for(&turn) {
                    task.phase = TaskPhase::Running;
                    task.stood = true;
                    effects.push(BoardEffect::Start(key.clone()));
                }
            }
            BoardEvent::TurnFell(turn) => {
                for (key, task) in self.waiting_for(&turn) {
                    task.phase = TaskPhase::Ending;
                    effects.push(BoardEffect::Cancel(key.clone(), CancelReason::ParentEnded));
                }
            }
            BoardEvent::Ended { task: key, success } => {
                let closed = self.closed;
                let Some(task) = self.tasks.get_mut(&key) else { return effects };
                let end = match task.phase {
                    TaskPhase::Ended(_) => return effects,
                    TaskPhase::Ending => TaskEnd::Cancelled,
                    TaskPhase::Registered | TaskPhase::Running if success => TaskEnd::Succeeded,
                    TaskPhase::Registered | TaskPhase::Running => TaskEnd::Failed,
                };
                task.phase = TaskPhase::Ended(end);
                effects.push(BoardEffect::End { task: key, end, deliver: task.stood && !closed });
            }
            BoardEvent::Cancel { task: key, reason } => {
                if let Some(task) = self.tasks.get_mut(&key).filter(|task| task.is_told_to_end()) {
                    task.phase = TaskPhase::Ending;
                    effects.push(BoardEffect::Cancel(key, reason));
                }
            }
            BoardEvent::Close { reason } => {
                self.closed = true;
                for (key, task) in self.tasks.iter_mut().filter(|(_, task)| task.is_told_to_end()) {
                    task.phase = TaskPhase::Ending;
                    effects.push(BoardEffect::Cancel(key.clone(), reason.clone()));
                }
            }
        }
        effects
    }

    /// How far a task is; none when it is not known.
    pub fn phase(&self, task: &K) -> Option<TaskPhase> {
        self.tasks.get(task).map(|task| task.phase)
    }

    /// How many tasks have not ended.
    pub fn open(&self) -> usize {
        self.tasks.values().filter(|task| !matches!(task.phase, TaskPhase::Ended(_))).count()
    }

    /// Forgets a task that has ended.
    pub fn forget(&mut self, task: &K) {
        if matches!(self.phase(task), Some(TaskPhase::Ended(_))) {
            self.tasks.remove(task);
        }
    }

    fn waiting_for<'a>(&'a mut self, turn: &'a T) -> impl Iterator<Item = (&'a K, &'a mut Task<T>)> {
        let is_waiting = |task: &Task<T>| task.phase == TaskPhase::Registered && task.turn.as_ref() == Some(turn);
        self.tasks.iter_mut().filter(move |(_, task)| is_waiting(task))
    }
}

impl<T> Task<T> {
    fn is_told_to_end(&self) -> bool {
        matches!(self.phase, TaskPhase::Registered | TaskPhase::Running)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use toolwarden_tools::cancellation::CancelReason;

    use super::{BoardEffect, BoardError, BoardEvent, TaskBoard, TaskEnd, TaskPhase};
    use crate::interleaving::Dice;

    type Board = TaskBoard<u32, u32>;

    const REQUESTED: CancelReason = CancelReason::Requested;

    fn ended(task: u32, success: bool) -> BoardEvent<u32, u32> {
        BoardEvent::Ended { task, success }
    }

    fn end(task: u32, end: TaskEnd, deliver: bool) -> Vec<BoardEffect<u32>> {
        vec![BoardEffect::End { task, end, deliver }]
    }

    #[test]
    fn a_task_starts_when_its_turn_stands_and_never_before() {
        let mut board = Board::new(4);
        assert_eq!(board.register(1, Some(7)).unwrap(), []);
        assert_eq!(board.register(2, Some(8)).unwrap(), []);
        assert_eq!(board.register(3, None).unwrap(), [BoardEffect::Start(3)]);
        assert_eq!(board.phase(&1), Some(TaskPhase::Registered));
        assert_eq!(board.step(BoardEvent::TurnStands(7)), [BoardEffect::Start(1)]);
        assert_eq!(board.step(BoardEvent::TurnStands(7)), []);
        assert_eq!(board.step(ended(1, true)), end(1, TaskEnd::Succeeded, true));
        assert_eq!(board.step(ended(1, false)), [], "there is one ending");
        assert_eq!(board.step(ended(3, false)), end(3, TaskEnd::Failed, true));
        assert_eq!(board.open(), 1);
    }

    #[test]
    fn a_task_whose_turn_fell_never_starts_and_is_told_to_nobody() {
        let mut board = Board::new(4);
        board.register(1, Some(7)).unwrap();
        assert_eq!(board.step(BoardEvent::TurnFell(7)), [BoardEffect::Cancel(1, CancelReason::ParentEnded)]);
        assert_eq!(board.step(BoardEvent::TurnStands(7)), []);
        assert_eq!(board.step(ended(1, true)), end(1, TaskEnd::Cancelled, false));
    }

    #[test]
    fn a_cancel_stays_whatever_the_task_comes_to() {
        let mut board = Board::new(4);
        board.register(1, None).unwrap();
        let cancel = || BoardEvent::Cancel { task: 1, reason: REQUESTED };
        assert_eq!(board.step(cancel()), [BoardEffect::Cancel(1, REQUESTED)]);
        assert_eq!(board.step(cancel()), []);
        assert_eq!(board.step(ended(1, true)), end(1, TaskEnd::Cancelled, true));
        assert_eq!(board.step(BoardEvent::Cancel { task: 9, reason: REQUESTED }), []);
    }

    #[test]
    fn a_session_that_closes_ends_all_and_delivers_nothing() {
        let mut board = Board::new(4);
        board.register(1, None).unwrap();
        board.register(2, Some(7)).unwrap();
        let closed = CancelReason::SessionClosed;
        let told = board.step(BoardEvent::Close { reason: closed.clone() });
        assert_eq!(told, [BoardEffect::Cancel(1, closed.clone()), BoardEffect::Cancel(2, closed)]);
        assert_eq!(board.step(BoardEvent::TurnStands(7)), []);
        assert_eq!(board.register(3, None), Err(BoardError::Closed));
        assert_eq!(board.step(ended(1, true)), end(1, TaskEnd::Cancelled, false));
        assert_eq!(board.step(ended(2, false)), end(2, TaskEnd::Cancelled, false));
    }

    #[test]
    fn open_tasks_have_a_limit_and_ended_ones_make_room() {
        let mut board = Board::new(0);
        board.register(1, None).unwrap();
        assert_eq!(board.register(1, None), Err(BoardError::Known));
        assert_eq!(board.register(2, None), Err(BoardError::Full { open_max: 1 }));
        board.step(ended(1, true));
        board.forget(&1);
        assert_eq!(board.phase(&1), None);
        board.register(2, None).unwrap();
        board.forget(&2);
        assert_eq!(board.phase(&2), Some(TaskPhase::Running), "what has not ended is not forgotten");
    }

    /// Tasks, turns, cancels and the end of the session, in any order.
    #[test]
    fn the_promises_hold_in_any_order() {
        for seed in 0..2_000 {
            let mut dice = Dice::new(seed);
            let open_max = 1 + dice.roll(4);
            let mut board = Board::new(open_max);
            let (mut turns, mut stood): (BTreeMap<u32, u32>, BTreeSet<u32>) = Default::default();
            let (mut started, mut ends, mut told) = (BTreeSet::new(), BTreeMap::new(), BTreeSet::new());
            let mut closed = false;
            for next in 0..60 {
                let task = u32::try_from(dice.roll(12)).unwrap();
                let turn = u32::try_from(dice.roll(4)).unwrap();
                let effects = match dice.roll(12) {
                    0..=3 => {
                        // Turn 3 stands for a host, who has none.
                        let wanted = (turn != 3).then_some(turn);
                        match board.register(task, wanted) {
                            Ok(effects) => {
                                turns.insert(task, turn);
                                if wanted.is_none() {
                                    stood.insert(task);
                                }
                                effects
                            }
                            Err(_) => continue,
                        }
                    }
                    4 | 5 => {
                        let waiting = turns
                            .iter()
                            .filter(|(task, of)| **of == turn && board.phase(task) == Some(TaskPhase::Registered));
                        stood.extend(waiting.map(|(task, _)| *task).collect::<Vec<_>>());
                        board.step(BoardEvent::TurnStands(turn))
                    }
                    6 => board.step(BoardEvent::TurnFell(turn)),
                    7 => {
                        let reason = REQUESTED;
                        board.step(BoardEvent::Cancel { task, reason })
                    }
                    8 if next > 45 => {
                        closed = true;
                        board.step(BoardEvent::Close { reason: CancelReason::SessionClosed })
                    }
                    _ => board.step(ended(task, dice.roll(2) == 0)),
                };
                for effect in effects {
                    match effect {
                        BoardEffect::Start(task) => {
                            assert!(started.insert(task), "seed {seed}: {task} starts twice");
                            assert!(stood.contains(&task) && !told.contains(&task) && !closed, "seed {seed}");
                        }
                        BoardEffect::Cancel(task, _) => assert!(told.insert(task), "seed {seed}: {task} told twice"),
                        BoardEffect::End { task, end, deliver } => {
                            assert_eq!(ends.insert(task, end), None, "seed {seed}: {task} ends twice");
                            assert_eq!(end == TaskEnd::Cancelled, told.contains(&task), "seed {seed}");
                            assert_eq!(deliver, stood.contains(&task) && !closed, "seed {seed}");
                        }
                    }
                }
                assert!(board.open() <= open_max, "seed {seed}");
            }
        }
    }
}
