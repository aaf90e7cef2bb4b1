//! The child runs of one session, its children's included: who runs, what each came to, and how one is told to end.
//!
//! What is decided about tasks in the background is decided by the board ([`TaskBoard`]); here stand the ways to reach
//! them. What must stay true: every child run is counted before it is started, and never more than the limit; one that
//! is listed can be cancelled from that moment on; the first word about its end stays; the list is bounded, and one that
//! runs is never forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde::Serialize;
use tokio::sync::{oneshot, watch};
use toolwarden_actors::node::{Canceller, NodeHandle};
use toolwarden_actors::task_board::{BoardEffect, BoardError, BoardEvent, TaskBoard, TaskEnd};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::{ChildResult, DelegateError};
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, TaskId};

use crate::fact_book::FactBook;
use crate::models::Message;
use crate::task_limits::TaskLimits;

/// Most child runs that are listed; beyond it the one that ended first is forgotten.
pub const LISTED_TASKS_MAX: usize = 1024;
/// Most conversations and whole answers of child runs that are kept after they have ended; of the answers of those that
/// ended before, [`KEPT_ANSWER_BYTES`] are.
pub const KEPT_TRANSCRIPTS_MAX: usize = 32;
/// What is kept of an older answer, in bytes.
pub const KEPT_ANSWER_BYTES: usize = 4000;

/// A child run, as its session knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SubagentTask {
    /// Its id.
    pub task_id: TaskId,
    /// Its own session.
    pub session_id: SessionId,
    /// Whose child it is.
    pub parent_session_id: SessionId,
    /// The call of `task` that started it.
    pub parent_invocation: InvocationId,
    /// Its agent.
    pub agent: String,
    /// A few words.
    pub description: String,
    /// Whether it goes on after that call.
    pub background: bool,
    /// When it was started, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// How it stands.
    pub status: SubagentStatus,
}

/// How a child run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SubagentStatus {
    /// It has not ended.
    Running,
    /// It came to an answer.
    Completed,
    /// It came to none.
    Failed,
    /// It was told to end first.
    Cancelled,
}

/// How the end of a child run is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ToldEnd {
    /// Whether it was told to end first.
    pub(crate) cancelled: bool,
    /// Whether the session's conversation gets its result.
    pub(crate) deliver: bool,
}

/// The child runs of one session; made by its runtime.
pub struct TaskBook {
    limits: TaskLimits,
    started: AtomicU64,
    facts: Arc<FactBook>,
    /// The session's, from its beginning on.
    node: OnceLock<NodeHandle>,
    pages: Mutex<Pages>,
}

struct Pages {
    board: TaskBoard<TaskId, RunId>,
    last: u64,
    entries: BTreeMap<u64, Entry>,
    numbers: BTreeMap<TaskId, u64>,
    /// Those that have ended, the first to be forgotten in front.
    ended: VecDeque<u64>,
    /// Those of them whose conversation and whole answer are kept.
    whole: VecDeque<u64>,
}

struct Entry {
    task: SubagentTask,
    /// Opens when it may begin.
    gate: Option<oneshot::Sender<()>>,
    canceller: Option<Canceller>,
    /// A cancel that came before there was a way to pass it on.
    cancel: Option<CancelReason>,
    transcript: Option<Arc<FactBook>>,
    result: watch::Sender<Option<Arc<ChildResult>>>,
}

impl TaskBook {
    /// No child runs yet in this process; `facts` are the session's, and say how many there were in others.
    pub(crate) fn new(limits: TaskLimits, facts: Arc<FactBook>) -> Arc<Self> {
        let pages = Pages {
            board: TaskBoard::new(limits.background_max),
            last: 0,
            entries: BTreeMap::new(),
            numbers: BTreeMap::new(),
            ended: VecDeque::new(),
            whole: VecDeque::new(),
        };
        let (started, node) = (AtomicU64::new(facts.look(|state| state.child_runs)), OnceLock::new());
        Arc::new(Self { limits, started, facts, node, pages: Mutex::new(pages) })
    }

    /// The session has begun, and this is its node; counts once.
    pub(crate) fn hang_on(&self, node: &NodeHandle) {
        let _ = self.node.set(node.clone());
    }

    /// The node that tasks in the background live under.
    pub(crate) fn node(&self) -> Option<&NodeHandle> {
        self.node.get()
    }

    /// The facts of the session.
    pub(crate) fn facts(&self) -> &Arc<FactBook> {
        &self.facts
    }

    /// How many child runs run beside each other.
    pub(crate) fn width(&self) -> usize {
        self.limits.width.max(1)
    }

    /// Counts child runs that are about to be started: all of them or none.
    ///
    /// # Errors
    /// [`DelegateError::Spent`].
    pub(crate) fn count_in(&self, children: usize) -> Result<(), DelegateError> {
        let total_max = self.limits.total_max;
        let wanted = u64::try_from(children).unwrap_or(u64::MAX);
        let counted = self.started.fetch_update(Ordering::AcqRel, Ordering::Acquire, |started| {
            started.checked_add(wanted).filter(|sum| *sum <= total_max)
        });
        match counted {
            Ok(_) => Ok(()),
            Err(started) => Err(DelegateError::Spent { total_max, left: total_max.saturating_sub(started) }),
        }
    }

    /// Counts child runs of a child run that goes on, which had them in another process.
    pub(crate) fn count_before(&self, child_runs: u64) {
        self.started.fetch_add(child_runs, Ordering::AcqRel);
    }

    /// Takes back what was counted of child runs that were not started.
    pub(crate) fn count_out(&self, children: usize) {
        self.started.fetch_sub(u64::try_from(children).unwrap_or(0), Ordering::AcqRel);
    }

    /// Lists a child run that its call waits for.
    pub(crate) fn list(&self, task: SubagentTask) {
        self.pages().enter(task, None);
    }

    /// Registers a task in the background; it may begin when what is returned says so.
    ///
    /// # Errors
    /// [`DelegateError::Full`] and [`DelegateError::Closing`].
    pub(crate) fn register(
        &self,
        task: SubagentTask,
        turn: Option<RunId>,
    ) -> Result<oneshot::Receiver<()>, DelegateError> {
        let (gate, opens) = oneshot::channel();
        let mut pages = self.pages();
        let effects = pages.board.register(task.task_id.clone(), turn).map_err(|error| match error {
            BoardError::Full { open_max } => DelegateError::Full { open_max },
            BoardError::Closed | BoardError::Known => DelegateError::Closing,
        })?;
        pages.enter(task, Some(gate));
        pages.carry_out(effects);
        Ok(opens)
    }

    /// The way to end a listed child run.
    pub(crate) fn reach(&self, task: &TaskId, canceller: Canceller) {
        let mut pages = self.pages();
        let Some(entry) = pages.entry(task) else { return };
        if let Some(reason) = entry.cancel.take() {
            canceller.cancel(reason);
        }
        entry.canceller = Some(canceller);
    }

    /// The conversation of a listed child run.
    pub(crate) fn transcribe(&self, task: &TaskId, facts: &Arc<FactBook>) {
        if let Some(entry) = self.pages().entry(task) {
            entry.transcript = Some(Arc::clone(facts));
        }
    }

    /// A child run has ended; says how that is to be told, once.
    pub(crate) fn ended(&self, result: &Arc<ChildResult>) -> Option<ToldEnd> {
        let mut pages = self.pages();
        let (task, success) = (&result.task, result.success);
        let number = pages.numbers.get(task).copied()?;
        let entry = pages.entries.get_mut(&number)?;
        if entry.result.borrow().is_some() {
            return None;
        }
        let mut told = ToldEnd { cancelled: entry.task.status == SubagentStatus::Cancelled, deliver: false };
        if entry.task.background {
            let effects = pages.board.step(BoardEvent::Ended { task: task.clone(), success });
            for effect in effects {
                if let BoardEffect::End { end, deliver, .. } = effect {
                    told = ToldEnd { cancelled: end == TaskEnd::Cancelled, deliver };
                }
            }
        }
        let entry = pages.entries.get_mut(&number)?;
        entry.task.status = match (told.cancelled, success) {
            (true, _) => SubagentStatus::Cancelled,
            (false, true) => SubagentStatus::Completed,
            (false, false) => SubagentStatus::Failed,
        };
        (entry.gate, entry.canceller) = (None, None);
        entry.result.send_replace(Some(Arc::clone(result)));
        pages.ended.push_back(number);
        pages.whole.push_back(number);
        pages.forget_old();
        Some(told)
    }

    /// The calls of a turn of this run have their results: what it started in the background begins.
    pub(crate) fn turn_stands(&self, run: &RunId) {
        self.step(BoardEvent::TurnStands(run.clone()));
    }

    /// The run ends without that: what waits for it never begins.
    pub(crate) fn turn_fell(&self, run: &RunId) {
        self.step(BoardEvent::TurnFell(run.clone()));
    }

    /// Ends every task in the background; no more start.
    pub(crate) fn close(&self, reason: CancelReason) {
        self.step(BoardEvent::Close { reason });
    }

    /// Tells one child run to end; false when there is none of this id that runs.
    pub(crate) fn cancel(&self, task: &TaskId, reason: &CancelReason) -> bool {
        let mut pages = self.pages();
        let Some(entry) = pages.entry(task).filter(|entry| entry.task.status == SubagentStatus::Running) else {
            return false;
        };
        if entry.task.background {
            let effects = pages.board.step(BoardEvent::Cancel { task: task.clone(), reason: reason.clone() });
            pages.carry_out(effects);
        } else {
            entry.cancel(reason.clone());
        }
        true
    }

    /// Tells every task in the background to end; returns whether there was any.
    pub(crate) fn cancel_background(&self, reason: &CancelReason) -> bool {
        let running: Vec<TaskId> = self
            .tasks()
            .into_iter()
            .filter(|task| task.background && task.status == SubagentStatus::Running)
            .map(|task| task.task_id)
            .collect();
        let cancelled = running.iter().filter(|task| self.cancel(task, reason)).count();
        cancelled > 0
    }

    /// All that are listed, in the order they were started.
    pub(crate) fn tasks(&self) -> Vec<SubagentTask> {
        self.pages().entries.values().map(|entry| entry.task.clone()).collect()
    }

    /// Those that have not ended.
    pub(crate) fn pending(&self) -> Vec<SubagentTask> {
        let pages = self.pages();
        let open = pages.entries.values().filter(|entry| entry.result.borrow().is_none());
        open.map(|entry| entry.task.clone()).collect()
    }

    /// One of them.
    pub(crate) fn task(&self, task: &TaskId) -> Option<SubagentTask> {
        self.pages().entry(task).map(|entry| entry.task.clone())
    }

    /// What one of them came to; waits until it has ended. None when there is none of this id.
    pub(crate) async fn result(&self, task: &TaskId) -> Option<Arc<ChildResult>> {
        let mut result = self.pages().entry(task).map(|entry| entry.result.subscribe())?;
        // One that is forgotten has ended, and its last word is still here.
        let ended = result.wait_for(Option::is_some).await.ok()?;
        ended.clone()
    }

    /// The conversation of one of them, as far as it has come; none when it is not kept any more.
    pub(crate) fn transcript(&self, task: &TaskId) -> Option<Vec<Message>> {
        let facts = self.pages().entry(task)?.transcript.clone()?;
        Some(facts.look(|state| state.messages.clone()))
    }

    fn step(&self, event: BoardEvent<TaskId, RunId>) {
        let mut pages = self.pages();
        let effects = pages.board.step(event);
        pages.carry_out(effects);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pages {
    fn entry(&mut self, task: &TaskId) -> Option<&mut Entry> {
        self.entries.get_mut(self.numbers.get(task)?)
    }

    fn enter(&mut self, task: SubagentTask, gate: Option<oneshot::Sender<()>>) {
        self.last += 1;
        self.numbers.insert(task.task_id.clone(), self.last);
        let entry =
            Entry { task, gate, canceller: None, cancel: None, transcript: None, result: watch::Sender::new(None) };
        self.entries.insert(self.last, entry);
    }

    fn carry_out(&mut self, effects: Vec<BoardEffect<TaskId>>) {
        for effect in effects {
            match effect {
                BoardEffect::Start(task) => {
                    if let Some(gate) = self.entry(&task).and_then(|entry| entry.gate.take()) {
                        // A task that is gone already needs no gate.
                        let _ = gate.send(());
                    }
                }
                BoardEffect::Cancel(task, reason) => {
                    if let Some(entry) = self.entry(&task) {
                        entry.cancel(reason);
                    }
                }
                // Told by whoever steps it.
                BoardEffect::End { .. } => {}
            }
        }
    }

    fn forget_old(&mut self) {
        while self.whole.len() > KEPT_TRANSCRIPTS_MAX {
            let Some(number) = self.whole.pop_front() else { return };
            if let Some(entry) = self.entries.get_mut(&number) {
                entry.transcript = None;
                entry.result.send_if_modified(|result| match result {
                    Some(result) if result.output.len() > KEPT_ANSWER_BYTES => {
                        let end = result.output.floor_char_boundary(KEPT_ANSWER_BYTES);
                        let output = result.output[..end].to_owned();
                        *result = Arc::new(ChildResult { output, ..ChildResult::clone(result) });
                        true
                    }
                    _ => false,
                });
            }
        }
        while self.entries.len() > LISTED_TASKS_MAX {
            let Some(number) = self.ended.pop_front() else { return };
            if let Some(entry) = self.entries.remove(&number) {
                self.numbers.remove(&entry.task.task_id);
                self.board.forget(&entry.task.task_id);
            }
        }
    }
}

impl Entry {
    fn cancel(&mut self, reason: CancelReason) {
        self.task.status = SubagentStatus::Cancelled;
        match &self.canceller {
            Some(canceller) => canceller.cancel(reason),
            None => self.cancel = Some(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolwarden_tools::cancellation::CancelReason;
    use toolwarden_tools::context::{ChildResult, DelegateError};

    use super::{
        KEPT_ANSWER_BYTES, KEPT_TRANSCRIPTS_MAX, LISTED_TASKS_MAX, SubagentStatus, SubagentTask, TaskBook, ToldEnd,
    };
    use crate::fact_book::FactBook;
    use crate::task_limits::TaskLimits;

    fn task(number: usize, background: bool) -> SubagentTask {
        SubagentTask {
            task_id: format!("task-{number}").as_str().into(),
            session_id: format!("task-run-{number}").as_str().into(),
            parent_session_id: "s".into(),
            parent_invocation: "call".into(),
            agent: "explore".to_owned(),
            description: "looks".to_owned(),
            background,
            started_at_ms: 1,
            status: SubagentStatus::Running,
        }
    }

    fn result(number: usize, success: bool) -> Arc<ChildResult> {
        Arc::new(ChildResult {
            task: format!("task-{number}").as_str().into(),
            session: format!("task-run-{number}").as_str().into(),
            agent: "explore".to_owned(),
            success,
            output: "done".to_owned(),
            source_anchors: Vec::new(),
            structured: None,
            artifact: None,
        })
    }

    fn book(limits: TaskLimits) -> Arc<TaskBook> {
        TaskBook::new(limits, FactBook::in_memory())
    }

    #[test]
    fn child_runs_are_counted_before_they_start_and_all_or_none() {
        let book = book(TaskLimits { total_max: 3, ..TaskLimits::default() });
        book.count_in(2).unwrap();
        assert_eq!(book.count_in(2), Err(DelegateError::Spent { total_max: 3, left: 1 }));
        book.count_in(1).unwrap();
        book.count_out(1);
        book.count_in(1).unwrap();
        assert_eq!(book.count_in(1), Err(DelegateError::Spent { total_max: 3, left: 0 }));
    }

    #[tokio::test]
    async fn a_task_begins_with_its_turn_and_its_result_can_be_waited_for() {
        let book = book(TaskLimits { background_max: 1, ..TaskLimits::default() });
        let mut opens = book.register(task(1, true), Some("run".into())).unwrap();
        assert_eq!(book.register(task(2, true), None).unwrap_err(), DelegateError::Full { open_max: 1 });
        assert!(opens.try_recv().is_err());
        book.turn_stands(&"run".into());
        opens.await.unwrap();
        let waits = tokio::spawn({
            let book = Arc::clone(&book);
            async move { book.result(&"task-1".into()).await.unwrap().output.clone() }
        });
        assert_eq!(book.ended(&result(1, true)), Some(ToldEnd { cancelled: false, deliver: true }));
        assert_eq!(book.ended(&result(1, false)), None, "there is one ending");
        assert_eq!(waits.await.unwrap(), "done");
        assert_eq!(book.task(&"task-1".into()).unwrap().status, SubagentStatus::Completed);
        assert!(book.result(&"task-9".into()).await.is_none());
    }

    #[test]
    fn a_cancel_is_not_taken_back_by_what_a_task_comes_to() {
        let book = book(TaskLimits::default());
        book.list(task(1, false));
        book.register(task(2, true), None).unwrap();
        for number in [1, 2] {
            let id = format!("task-{number}").as_str().into();
            assert!(book.cancel(&id, &CancelReason::Requested));
            assert!(!book.cancel(&id, &CancelReason::Requested));
            let told = book.ended(&result(number, true)).unwrap();
            assert!(told.cancelled);
            assert_eq!(book.task(&id).unwrap().status, SubagentStatus::Cancelled);
        }
        assert!(!book.cancel(&"task-7".into(), &CancelReason::Requested));
    }

    #[test]
    fn the_list_is_bounded_and_whoever_runs_stays_in_it() {
        let book = book(TaskLimits::default());
        book.list(task(0, false));
        for number in 1..LISTED_TASKS_MAX + 50 {
            book.list(task(number, false));
            let long = ChildResult { output: "x".repeat(5_000), ..ChildResult::clone(&result(number, true)) };
            book.ended(&Arc::new(long));
        }
        assert_eq!(book.tasks().len(), LISTED_TASKS_MAX);
        let kept = |number: usize| {
            let pages = book.pages();
            let entry = &pages.entries[&u64::try_from(number + 1).unwrap()];
            entry.result.borrow().as_ref().unwrap().output.len()
        };
        let last = LISTED_TASKS_MAX + 49;
        assert_eq!((kept(last), kept(last - KEPT_TRANSCRIPTS_MAX)), (5_000, KEPT_ANSWER_BYTES));
        assert!(book.task(&"task-0".into()).is_some() && book.task(&"task-1".into()).is_none());
    }
}
