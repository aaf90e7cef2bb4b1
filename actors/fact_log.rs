//! The fact log: takes facts of all sessions and makes them durable together, one batch under way at a time.
//!
//! While the store works on a batch the next one gathers, so the slower the medium, the more sessions share one wait
//! for it. What must stay true: facts reach the store in the order they were appended, an acknowledged fact is
//! durable, and every append has one answer, also when the store breaks down.
//!
//! Holds: the appends that wait, whether a batch is under way, and a timer until the store does what batches left.
//! Supervised by: the root, after the journal. Restart: permanent; appends under way are answered with an error. Mailbox
//! bound: one message for each append that waits, at most [`WAITING_FACTS_MAX`] in all. Reports: nothing.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, MessagingErr, SpawnErr, SupervisionEvent};
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::store::{Append, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use crate::slot::Slot;

/// Most appends that wait.
pub const WAITING_FACTS_MAX: usize = 65_536;
/// Most facts of one batch.
pub const BATCH_FACTS_MAX: usize = 8192;
/// Bytes of facts after which a batch is full.
pub const BATCH_BYTES: usize = 16 * 1024 * 1024;

/// How long what a batch left may wait for more of the kind.
pub const CATCH_UP_AFTER: Duration = Duration::from_millis(50);

/// Length of a session's log, in bytes, above which what its snapshot holds is cut off, when not said otherwise.
pub const LOG_KEPT_BYTES: u64 = 16 * 1024 * 1024;

/// Why a fact is not in the log.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FactLogError {
    /// The log is not running.
    #[error("the fact log is not running; the runtime is shutting down or restarting it")]
    NotRunning,
    /// Too much waits for the medium.
    #[error("{WAITING_FACTS_MAX} facts wait to be stored already; the medium is too slow")]
    Overloaded,
    /// The store said no.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The decisions of the log, without I/O: what goes into the next batch, and when.
#[derive(Debug)]
pub struct FactLogMachine<W> {
    waiting: VecDeque<(Option<Append>, W)>,
    under_way: bool,
}

impl<W> Default for FactLogMachine<W> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: false }
    }
}

/// What goes to the store at once.
#[derive(Debug)]
pub struct Batch<W> {
    /// The facts, in order.
    pub facts: Vec<Append>,
    /// Who waits for each.
    pub waiters: Vec<W>,
    /// Who waits for all that came before.
    pub marks: Vec<W>,
}

impl<W> FactLogMachine<W> {
    /// Takes a fact, or gives its waiter back when too many wait.
    ///
    /// # Errors
    /// The waiter.
    pub fn append(&mut self, fact: Append, waiter: W) -> Result<(), W> {
        if self.waiting.len() >= WAITING_FACTS_MAX {
            return Err(waiter);
        }
        self.waiting.push_back((Some(fact), waiter));
        Ok(())
    }

    /// Takes somebody who waits for everything that was appended before; given back when too many wait.
    ///
    /// # Errors
    /// The waiter.
    pub fn mark(&mut self, waiter: W) -> Result<(), W> {
        if self.waiting.len() >= WAITING_FACTS_MAX {
            return Err(waiter);
        }
        self.waiting.push_back((None, waiter));
        Ok(())
    }

    /// The next batch, when there is one and none is under way; it is under way then.
    pub fn begin(&mut self) -> Option<Batch<W>> {
        if self.under_way || self.waiting.is_empty() {
            return None;
        }
        let (mut facts, mut waiters, mut marks, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), 0_usize);
        while facts.len() < BATCH_FACTS_MAX
            && bytes < BATCH_BYTES
            && let Some((fact, waiter)) = self.waiting.pop_front()
        {
            match fact {
                Some(fact) => {
                    bytes = bytes.saturating_add(fact.payload.len());
                    facts.push(fact);
                    waiters.push(waiter);
                }
                None => marks.push(waiter),
            }
        }
        self.under_way = true;
        Some(Batch { facts, waiters, marks })
    }

    /// The batch under way is done.
    pub fn end(&mut self) {
        self.under_way = false;
    }
}

/// A way to the log; follows a restarted one. Cheap to clone.
#[derive(Clone)]
pub struct FactLog {
    slot: Slot<FactLogMessage>,
    store: Arc<dyn Store>,
    kept_bytes: u64,
}

/// Whether a fact has become durable; it does whether this is waited for or not.
pub struct Written {
    answer: oneshot::Receiver<Result<(), FactLogError>>,
}

impl Written {
    /// Waits until the fact is durable.
    ///
    /// # Errors
    /// [`FactLogError`].
    pub async fn durable(self) -> Result<(), FactLogError> {
        self.answer.await.unwrap_or(Err(FactLogError::NotRunning))
    }
}

impl FactLog {
    /// A handle to a log over this store that [`start`] will put behind it.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { slot: Slot::new(), store, kept_bytes: LOG_KEPT_BYTES }
    }

    /// The same, whose sessions keep logs of this length, in bytes, before what their snapshots hold is cut off.
    #[must_use]
    pub fn keeping(self, bytes: u64) -> Self {
        Self { kept_bytes: bytes, ..self }
    }

    /// The length of a log that is never cut, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// The store beneath: sessions are opened and given free there.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Appends a fact behind all that this caller appended before.
    pub fn append(&self, fact: Append) -> Written {
        let (reply, answer) = oneshot::channel();
        if let Ok(actor) = self.slot.get() {
            // A message that is not taken drops its reply, which is an answer.
            drop(actor.cast(FactLogMessage::Append(fact, reply)));
        }
        Written { answer }
    }

    /// What is durable once all facts are that this caller appended before.
    pub fn mark(&self) -> Written {
        let (reply, answer) = oneshot::channel();
        if let Ok(actor) = self.slot.get() {
            drop(actor.cast(FactLogMessage::Mark(reply)));
        }
        Written { answer }
    }
}

/// Starts the log under a supervisor and puts it behind `log`.
///
/// # Errors
/// [`SpawnErr`] when the supervisor is stopping.
pub async fn start(log: &FactLog, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
    let (actor, _) = Actor::spawn_linked(None, FactLogActor, Arc::clone(&log.store), supervisor).await?;
    let cell = actor.get_cell();
    log.slot.put(actor);
    Ok(cell)
}

/// Asks the log behind an actor cell to stop once everything that was appended before is with the store.
pub fn shut_down(cell: &ActorCell) {
    if cell.drain().is_err() {
        cell.stop(None);
    }
}

type Waiter = oneshot::Sender<Result<(), FactLogError>>;

enum FactLogMessage {
    Append(Append, Waiter),
    Mark(Waiter),
    Done,
    CatchUp,
}

struct FactLogActor;

struct FactLogState {
    machine: FactLogMachine<Waiter>,
    store: Arc<dyn Store>,
    /// Until the store does what batches left.
    pause: Option<JoinHandle<Result<(), MessagingErr<FactLogMessage>>>>,
}

impl FactLogState {
    fn go_on(&mut self, myself: &ActorRef<FactLogMessage>) {
        while let Some(batch) = self.machine.begin() {
            let store = Arc::clone(&self.store);
            if !store.blocks() {
                write(&*store, batch);
                self.machine.end();
                continue;
            }
            let myself = myself.clone();
            // It goes on by itself.
            drop(off_thread(move || {
                write(&*store, batch);
                // Nobody needs to know when the log is gone.
                drop(myself.cast(FactLogMessage::Done));
            }));
        }
    }
}

/// Writes a batch and answers everybody in it.
fn write(store: &dyn Store, batch: Batch<Waiter>) {
    let Batch { facts, waiters, marks } = batch;
    let answers = catch_unwind(AssertUnwindSafe(|| store.append(&facts))).unwrap_or_default();
    let mut answers = answers.into_iter();
    for (fact, waiter) in facts.iter().zip(waiters) {
        let answer = answers.next().unwrap_or_else(|| Err(broken(&fact.session)));
        // Whoever does not wait is told by its next fact.
        drop(waiter.send(answer.map_err(FactLogError::from)));
    }
    for waiter in marks {
        drop(waiter.send(Ok(())));
    }
}

/// Does what batches left.
fn catch_up(store: &dyn Store) {
    if catch_unwind(AssertUnwindSafe(|| store.catch_up())).is_err() {
        tracing::error!("the store broke down behind its answers");
    }
}

fn broken(session: &SessionId) -> StoreError {
    StoreError::Broken { session: session.clone(), message: "the store broke down".to_owned() }
}

impl Actor for FactLogActor {
    type Msg = FactLogMessage;
    type State = FactLogState;
    type Arguments = Arc<dyn Store>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        store: Arc<dyn Store>,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(FactLogState { machine: FactLogMachine::default(), store, pause: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            FactLogMessage::Append(fact, waiter) => {
                if let Err(waiter) = state.machine.append(fact, waiter) {
                    drop(waiter.send(Err(FactLogError::Overloaded)));
                }
            }
            FactLogMessage::Mark(waiter) => {
                if let Err(waiter) = state.machine.mark(waiter) {
                    drop(waiter.send(Err(FactLogError::Overloaded)));
                }
            }
            FactLogMessage::Done => {
                state.machine.end();
                if state.store.is_behind() {
                    state.pause.get_or_insert_with(|| myself.send_after(CATCH_UP_AFTER, || FactLogMessage::CatchUp));
                }
            }
            FactLogMessage::CatchUp => {
                state.pause = None;
                let store = Arc::clone(&state.store);
                // It goes on by itself; a batch waits for it in the store.
                drop(off_thread(move || catch_up(&*store)));
            }
        }
        state.go_on(&myself);
        Ok(())
    }

    async fn post_stop(&self, _myself: ActorRef<Self::Msg>, state: &mut Self::State) -> Result<(), ActorProcessingErr> {
        if let Some(pause) = state.pause.take() {
            pause.abort();
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Self::Msg>,
        _event: SupervisionEvent,
        _state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use toolwarden_tools::effects::store::memory::MemoryStore;
    use toolwarden_tools::effects::store::record::Recovered;
    use toolwarden_tools::effects::store::{OnDamage, Store};

    use super::*;
    use crate::onlooker::root;

    fn fact(session: &str, sequence: u64) -> Append {
        Append { session: session.into(), sequence, payload: Arc::from(&b"fact"[..]) }
    }

    #[test]
    fn a_batch_gathers_while_one_is_under_way_and_keeps_the_order() {
        let mut machine = FactLogMachine::default();
        assert!(machine.begin().is_none());
        machine.append(fact("a", 1), 1).unwrap();
        assert_eq!(machine.begin().unwrap().waiters, [1]);
        for number in 2..5 {
            machine.append(fact("a", number), number).unwrap();
            assert!(machine.begin().is_none());
        }
        machine.end();
        let batch = machine.begin().unwrap();
        assert_eq!((batch.waiters, batch.facts[0].sequence), (vec![2, 3, 4], 2));
    }

    #[test]
    fn batches_and_the_line_before_them_are_bounded() {
        let mut machine = FactLogMachine::default();
        for number in 0..WAITING_FACTS_MAX {
            machine.append(fact("a", number as u64), number).unwrap();
        }
        assert_eq!(machine.append(fact("a", 0), 7), Err(7));
        assert_eq!(machine.begin().unwrap().facts.len(), BATCH_FACTS_MAX);
        let mut machine = FactLogMachine::default();
        for number in 0..3 {
            let payload: Arc<[u8]> = vec![0; BATCH_BYTES].into();
            machine.append(Append { payload, ..fact("a", 1) }, number).unwrap();
        }
        assert_eq!(machine.begin().unwrap().waiters, [0]);
    }

    /// A store whose appends wait to be let go, and may break down.
    struct Gated {
        inside: MemoryStore,
        began: Sender<usize>,
        gate: Mutex<Receiver<bool>>,
        caught_up: AtomicU32,
    }

    impl Gated {
        /// The store, whoever hears how long each batch is, and whoever lets it go.
        fn new() -> (Arc<Self>, Receiver<usize>, Sender<bool>) {
            let (began, begins) = channel();
            let (open, gate) = channel();
            let store =
                Self { inside: MemoryStore::default(), began, gate: Mutex::new(gate), caught_up: AtomicU32::new(0) };
            for session in ["a", "b"] {
                store.create(&session.into(), None, None).unwrap();
            }
            (Arc::new(store), begins, open)
        }
    }

    impl Store for Gated {
        fn create(
            &self,
            session: &SessionId,
            snapshot: Option<&[u8]>,
            first: Option<&Append>,
        ) -> Result<(), StoreError> {
            self.inside.create(session, snapshot, first)
        }

        fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError> {
            self.inside.open(session, damage)
        }

        fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
            self.began.send(batch.len()).unwrap();
            assert!(self.gate.lock().unwrap().recv().unwrap(), "broken on purpose");
            self.inside.append(batch)
        }

        fn is_behind(&self) -> bool {
            true
        }

        fn catch_up(&self) {
            self.caught_up.fetch_add(1, Ordering::SeqCst);
        }

        fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
            self.inside.save_snapshot(session, bytes)
        }

        fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
            self.inside.begin_anew(session)
        }

        fn release(&self, session: &SessionId) {
            self.inside.release(session);
        }

        fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
            self.inside.look(session)
        }

        fn next_epoch(&self) -> Result<u64, StoreError> {
            self.inside.next_epoch()
        }

        fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
            self.inside.sessions()
        }
    }

    #[tokio::test]
    async fn appends_that_come_meanwhile_share_the_next_wait_and_every_one_is_answered() {
        let (store, begins, open) = Gated::new();
        let onlooker = root().await;
        let log = FactLog::new(Arc::clone(&store) as _);
        start(&log, onlooker.clone()).await.unwrap();
        let first = log.append(fact("a", 1));
        let begins = off_thread(move || (begins.recv().unwrap(), begins)).await.ok().unwrap();
        assert_eq!(begins.0, 1);
        let rest: Vec<Written> = (2..40).map(|number| log.append(fact("a", number))).collect();
        let other = log.append(fact("b", 1));
        let mark = log.mark();
        open.send(true).unwrap();
        open.send(true).unwrap();
        first.durable().await.unwrap();
        for written in rest {
            written.durable().await.unwrap();
        }
        other.durable().await.unwrap();
        mark.durable().await.unwrap();
        assert_eq!(store.look(&"a".into()).unwrap().log.len(), 39);
        let begins = begins.1;
        let second = off_thread(move || begins.recv().unwrap()).await.ok().unwrap();
        assert_eq!(second, 39, "one wait for all that came meanwhile");
        // The store breaks down: an answer all the same, and the log goes on.
        let lost = log.append(fact("a", 40));
        open.send(false).unwrap();
        assert!(matches!(lost.durable().await, Err(FactLogError::Store(StoreError::Broken { .. }))));
        onlooker.stop(None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_batches_left_is_done_once_after_a_pause_and_not_behind_a_stop() {
        let (store, _begins, open) = Gated::new();
        let onlooker = root().await;
        let log = FactLog::new(Arc::clone(&store) as _);
        let cell = start(&log, onlooker.clone()).await.unwrap();
        let caught_up = || store.caught_up.load(Ordering::SeqCst);
        for number in 1..4 {
            open.send(true).unwrap();
            log.append(fact("a", number)).durable().await.unwrap();
        }
        assert_eq!(caught_up(), 0, "more may come");
        tokio::time::sleep(CATCH_UP_AFTER * 3).await;
        assert_eq!(caught_up(), 1);
        open.send(true).unwrap();
        log.append(fact("a", 4)).durable().await.unwrap();
        shut_down(&cell);
        cell.wait(None).await.unwrap();
        tokio::time::sleep(CATCH_UP_AFTER * 3).await;
        assert_eq!(caught_up(), 1);
        onlooker.stop(None);
    }

    #[tokio::test]
    async fn a_log_that_is_not_there_says_so() {
        let log = FactLog::new(Arc::new(MemoryStore::default()));
        assert_eq!(log.append(fact("a", 1)).durable().await, Err(FactLogError::NotRunning));
    }
}
