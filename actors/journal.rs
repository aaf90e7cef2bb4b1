//! The journal: every event of the runtime in one order, with numbers that are never used twice.
//!
//! What was acknowledged is in the sink before the acknowledgement; readers get events after the sink has them
//! (durable before visible). A slow reader never blocks anybody: it loses the oldest events and is told how many.
//! An invocation has exactly one ending: a second one is refused, counted and logged as the bug it is.
//!
//! Holds: the next sequence number, the open invocations, the sink, the readers. Supervised by: the root, first up
//! and last down. Restart: permanent. Mailbox bound: a handful of messages for each live invocation (deltas are
//! paced by the tools). Reports: nothing; a failing sink is told to the readers as a fault of the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr, SupervisionEvent};
use thiserror::Error;
use tokio::sync::oneshot;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::ids::{InvocationId, SessionId};

use crate::event_queue::{QueueReader, QueueWriter, Taken, queue};
use crate::lease::Afterwards;
use crate::retention::{Page, Retention, RetentionLimits};
use crate::slot::Slot;

/// How many events a reader may lag behind before it loses the oldest.
pub const READER_LAG_MAX: usize = 4096;

/// How long a reader waits for the journal's answer to a question. A writer waits for as long as its sink takes: a
/// timer for each event would cost more than the event.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What the journal must know of an event to keep its promises.
pub trait JournalEvent: fmt::Debug + Send + Sync + 'static {
    /// The top session that the event belongs to: its readers get it.
    fn root_session(&self) -> &SessionId;

    /// What the event means in the life of an invocation.
    fn moment(&self) -> Moment<'_>;

    /// About how much memory it takes, in bytes.
    fn bytes(&self) -> usize {
        size_of_val(self)
    }
}

/// What an event means in the life of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment<'a> {
    /// The invocation exists from here on.
    Opens(&'a InvocationId),
    /// The invocation ends here.
    Ends(&'a InvocationId),
    /// Anything else.
    Other,
}

/// An event with its place in the order.
#[derive(Debug)]
pub struct Entry<E> {
    /// 1 for the first event, then one more each; never given twice, not by a journal that is started again either.
    pub sequence: u64,
    /// Milliseconds since 1970; never goes back within a journal.
    pub unix_ms: u64,
    /// The event.
    pub event: E,
}

/// Takes entries for keeps, in order; called by one journal at a time.
pub trait JournalSink<E>: Send {
    /// Stores an entry; it is durable, as far as this sink goes, when the call returns.
    ///
    /// # Errors
    /// Whatever the medium says; the journal goes on without this sink and tells its readers.
    fn append(&mut self, entry: &Entry<E>) -> std::io::Result<()>;
}

/// What a reader gets.
#[derive(Debug)]
pub enum Reading<E> {
    /// The next entry.
    Entry(Arc<Entry<E>>),
    /// The reader was too slow: this many entries are gone.
    Missed {
        /// How many.
        count: u64,
    },
    /// The sink failed with these words; entries after this one are not stored.
    SinkFailed(String),
}

/// Why an event is not in the journal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JournalError {
    /// The journal is not running.
    #[error("the journal is not running; the runtime is shutting down or restarting it")]
    NotRunning,
    /// The invocation has its ending already, or never began.
    #[error("invocation {invocation} has no open life to end")]
    SecondEnding {
        /// Which one.
        invocation: InvocationId,
    },
}

/// The decisions of the journal, without I/O.
#[derive(Debug, Default)]
pub struct JournalMachine {
    sequence: u64,
    unix_ms: u64,
    open: BTreeSet<InvocationId>,
    refused_endings: u64,
}

impl JournalMachine {
    /// Gives the event its place, or refuses a second ending.
    ///
    /// # Errors
    /// [`JournalError::SecondEnding`].
    pub fn admit(&mut self, now_unix_ms: u64, moment: Moment<'_>) -> Result<(u64, u64), JournalError> {
        match moment {
            Moment::Opens(id) => {
                self.open.insert(id.clone());
            }
            Moment::Ends(id) => {
                if !self.open.remove(id) {
                    self.refused_endings += 1;
                    return Err(JournalError::SecondEnding { invocation: id.clone() });
                }
            }
            Moment::Other => {}
        }
        self.sequence += 1;
        self.unix_ms = self.unix_ms.max(now_unix_ms);
        Ok((self.sequence, self.unix_ms))
    }

    /// How things stand.
    pub fn status(&self) -> JournalStatus {
        JournalStatus {
            last_sequence: self.sequence,
            open_invocations: self.open.len(),
            refused_endings: self.refused_endings,
        }
    }
}

/// How a journal stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalStatus {
    /// The last number given; 0 when there is none.
    pub last_sequence: u64,
    /// Invocations without an ending.
    pub open_invocations: usize,
    /// Endings that were refused; not 0 means a bug.
    pub refused_endings: u64,
}

/// A way to write to and read from the journal; follows a restarted journal. Cheap to clone.
pub struct Journal<E: JournalEvent> {
    slot: Slot<JournalMessage<E>>,
    /// The last number given, also by a journal that has ended.
    last_sequence: Arc<AtomicU64>,
    retains: Option<RetentionLimits>,
}

impl<E: JournalEvent> Clone for Journal<E> {
    fn clone(&self) -> Self {
        Self { slot: self.slot.clone(), last_sequence: Arc::clone(&self.last_sequence), retains: self.retains }
    }
}

impl<E: JournalEvent> Journal<E> {
    /// A handle to a journal that [`start`] will put behind it.
    pub fn new() -> Self {
        Self { slot: Slot::new(), last_sequence: Arc::default(), retains: None }
    }

    /// The same, with numbers that go on after this one.
    #[must_use]
    pub fn after(self, sequence: u64) -> Self {
        self.last_sequence.store(sequence, Ordering::Relaxed);
        self
    }

    /// The same, with events that are kept to be read again.
    #[must_use]
    pub fn retaining(mut self, limits: RetentionLimits) -> Self {
        self.retains = Some(limits);
        self
    }

    /// Events of a top session that are kept, after this sequence. None when nothing is known of the session, or
    /// nothing is kept.
    ///
    /// # Errors
    /// [`JournalError::NotRunning`].
    pub async fn page(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> Result<Option<Page<Entry<E>>>, JournalError> {
        let actor = self.slot.get().map_err(|_| JournalError::NotRunning)?;
        let ask = |reply| JournalMessage::Page(session, after, limit, reply);
        match actor.call(ask, Some(ANSWER_TIMEOUT)).await {
            Ok(ractor::rpc::CallResult::Success(page)) => Ok(page),
            _ => Err(JournalError::NotRunning),
        }
    }

    /// Writes an event without waiting: it is in the order, but perhaps not yet in the sink.
    pub fn note(&self, event: E) {
        self.send(JournalMessage::Append(event, Told::Nobody));
    }

    /// As [`Self::note`], for events that follow each other without one of somebody else in between.
    pub fn note_all(&self, events: Vec<E>) {
        self.send(JournalMessage::AppendAll(events, Told::Nobody));
    }

    /// Writes an event, at once, and gives what waits until the sink has it: a small future, without the event.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn append(&self, event: E) -> impl Future<Output = Result<u64, JournalError>> + Send + use<E> {
        let (reply, answer) = oneshot::channel();
        self.send(JournalMessage::Append(event, Told::Writer(reply)));
        stored(answer)
    }

    /// As [`Self::append`], for events that follow each other without one of somebody else in between. The answer is
    /// that to the last of them.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn append_all(&self, events: Vec<E>) -> impl Future<Output = Result<u64, JournalError>> + Send + use<E> {
        let (reply, answer) = oneshot::channel();
        self.send(JournalMessage::AppendAll(events, Told::Writer(reply)));
        stored(answer)
    }

    /// As [`Self::note_all`]; what is to be done afterwards is done once the sink has them, or when the journal is gone.
    pub fn note_all_then(&self, events: Vec<E>, then: Afterwards) {
        if !self.send(JournalMessage::AppendAll(events, Told::Then(then))) {
            tracing::warn!("events that somebody waits for are not in the journal: it is not running");
        }
    }

    /// Whether there is a journal; one that is gone drops the message, and whom it was to tell with it.
    fn send(&self, message: JournalMessage<E>) -> bool {
        self.slot.get().is_ok_and(|actor| actor.cast(message).is_ok())
    }

    /// Reads from now on: everything, or one top session's events with those of its child sessions.
    ///
    /// # Errors
    /// [`JournalError::NotRunning`].
    pub async fn subscribe(&self, session: Option<SessionId>) -> Result<Reader<E>, JournalError> {
        let actor = self.slot.get().map_err(|_| JournalError::NotRunning)?;
        match actor.call(|reply| JournalMessage::Subscribe(session, reply), Some(ANSWER_TIMEOUT)).await {
            Ok(ractor::rpc::CallResult::Success(queue)) => Ok(Reader { queue }),
            _ => Err(JournalError::NotRunning),
        }
    }

    /// How the journal stands, after everything that this caller wrote before.
    ///
    /// # Errors
    /// [`JournalError::NotRunning`].
    pub async fn status(&self) -> Result<JournalStatus, JournalError> {
        let actor = self.slot.get().map_err(|_| JournalError::NotRunning)?;
        match actor.call(JournalMessage::Status, Some(ANSWER_TIMEOUT)).await {
            Ok(ractor::rpc::CallResult::Success(status)) => Ok(status),
            _ => Err(JournalError::NotRunning),
        }
    }
}

impl<E: JournalEvent> Default for Journal<E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads entries in order; ends when the journal does.
pub struct Reader<E> {
    queue: QueueReader<Shared<E>>,
}

impl<E> Reader<E> {
    /// The next reading; none when the journal has ended.
    pub async fn next(&mut self) -> Option<Reading<E>> {
        self.queue.next().await.map(Reading::of)
    }

    /// The next reading when there is one already.
    pub fn try_next(&mut self) -> Option<Reading<E>> {
        self.queue.try_next().map(Reading::of)
    }
}

impl<E> Reading<E> {
    fn of(taken: Taken<Shared<E>>) -> Self {
        match taken {
            Taken::Item(Shared::Entry(entry)) => Self::Entry(entry),
            Taken::Item(Shared::SinkFailed(words)) => Self::SinkFailed(words.to_string()),
            Taken::Missed(count) => Self::Missed { count },
        }
    }
}

/// What goes through the readers' queues.
#[derive(Debug)]
enum Shared<E> {
    Entry(Arc<Entry<E>>),
    SinkFailed(Arc<str>),
}

impl<E> Clone for Shared<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Entry(entry) => Self::Entry(Arc::clone(entry)),
            Self::SinkFailed(words) => Self::SinkFailed(Arc::clone(words)),
        }
    }
}

/// Starts the journal under a supervisor and puts it behind `journal`.
///
/// # Errors
/// [`SpawnErr`] when the supervisor is stopping.
pub async fn start<E: JournalEvent>(
    journal: &Journal<E>,
    supervisor: ActorCell,
    clock: Arc<dyn Clock>,
    sink: Option<Box<dyn JournalSink<E>>>,
) -> Result<ActorCell, SpawnErr> {
    let (actor, _) =
        Actor::spawn_linked(None, JournalActor(std::marker::PhantomData), (clock, sink, journal.clone()), supervisor)
            .await?;
    let cell = actor.get_cell();
    journal.slot.put(actor);
    Ok(cell)
}

/// Asks the journal behind an actor cell to stop once everything that was told before is in the sink.
pub fn shut_down(cell: &ActorCell) {
    if cell.drain().is_err() {
        cell.stop(None);
    }
}

/// Whom to tell once the sink has what was written.
enum Told {
    Nobody,
    /// Who wrote it; of several events, about the last.
    Writer(oneshot::Sender<Result<u64, JournalError>>),
    /// Whoever comes next.
    Then(Afterwards),
}

impl Told {
    /// A writer that no longer waits for its answer is no fault of the journal's.
    fn of(self, stored: Result<u64, JournalError>) {
        match self {
            Self::Nobody => {}
            Self::Writer(reply) => drop(reply.send(stored)),
            Self::Then(then) => drop(then),
        }
    }
}

/// What waits for the journal's acknowledgement.
async fn stored(answer: oneshot::Receiver<Result<u64, JournalError>>) -> Result<u64, JournalError> {
    answer.await.unwrap_or(Err(JournalError::NotRunning))
}

enum JournalMessage<E: JournalEvent> {
    Append(E, Told),
    AppendAll(Vec<E>, Told),
    Subscribe(Option<SessionId>, RpcReplyPort<QueueReader<Shared<E>>>),
    Status(RpcReplyPort<JournalStatus>),
    Page(SessionId, u64, usize, RpcReplyPort<Option<Page<Entry<E>>>>),
}

struct JournalActor<E>(std::marker::PhantomData<fn() -> E>);

struct JournalState<E> {
    machine: JournalMachine,
    clock: Arc<dyn Clock>,
    sink: Option<Box<dyn JournalSink<E>>>,
    /// Those who read everything.
    everyone: Vec<QueueWriter<Shared<E>>>,
    by_session: BTreeMap<SessionId, Vec<QueueWriter<Shared<E>>>>,
    last_sequence: Arc<AtomicU64>,
    retention: Option<Retention<Entry<E>>>,
}

impl<E: JournalEvent> JournalState<E> {
    fn append(&mut self, event: E) -> Result<u64, JournalError> {
        let (sequence, unix_ms) = self.machine.admit(self.clock.unix_ms(), event.moment()).inspect_err(|error| {
            tracing::error!(%error, ?event, "an ending was refused");
        })?;
        self.last_sequence.store(sequence, Ordering::Relaxed);
        let entry = Entry { sequence, unix_ms, event };
        if let Some(sink) = &mut self.sink
            && let Err(error) = sink.append(&entry)
        {
            tracing::error!(%error, sequence, "the journal's sink failed; going on without it");
            self.sink = None;
            let words: Arc<str> = error.to_string().into();
            for readers in self.by_session.values_mut().chain([&mut self.everyone]) {
                give(readers, &Shared::SinkFailed(Arc::clone(&words)));
            }
        }
        self.publish(entry);
        Ok(sequence)
    }

    fn publish(&mut self, entry: Entry<E>) {
        let has_session = self.by_session.contains_key(entry.event.root_session());
        if self.everyone.is_empty() && !has_session && self.retention.is_none() {
            return;
        }
        let entry = Arc::new(entry);
        let session = entry.event.root_session();
        if let Some(retention) = &mut self.retention {
            retention.keep(session, entry.sequence, &entry, entry.event.bytes());
        }
        give(&mut self.everyone, &Shared::Entry(Arc::clone(&entry)));
        if has_session && let Some(readers) = self.by_session.get_mut(session) {
            give(readers, &Shared::Entry(Arc::clone(&entry)));
            if readers.is_empty() {
                self.by_session.remove(session);
            }
        }
    }

    fn subscribe(&mut self, session: Option<SessionId>) -> QueueReader<Shared<E>> {
        let (writer, reader) = queue(READER_LAG_MAX);
        match session {
            None => {
                self.everyone.retain(QueueWriter::has_reader);
                self.everyone.push(writer);
            }
            Some(session) => {
                // A session that has closed tells nothing any more, so only this finds out that its readers went.
                self.by_session.retain(|_, readers| {
                    readers.retain(QueueWriter::has_reader);
                    !readers.is_empty()
                });
                self.by_session.entry(session).or_default().push(writer);
            }
        }
        reader
    }
}

/// Gives this to all readers, and forgets those that went.
fn give<E>(readers: &mut Vec<QueueWriter<Shared<E>>>, shared: &Shared<E>) {
    readers.retain(|reader| reader.put(shared.clone()));
}

type Start<E> = (Arc<dyn Clock>, Option<Box<dyn JournalSink<E>>>, Journal<E>);

impl<E: JournalEvent> Actor for JournalActor<E> {
    type Msg = JournalMessage<E>;
    type State = JournalState<E>;
    type Arguments = Start<E>;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        (clock, sink, journal): Start<E>,
    ) -> Result<Self::State, ActorProcessingErr> {
        let Journal { last_sequence, retains, .. } = journal;
        // A journal that is started again gives no number twice.
        let machine = JournalMachine { sequence: last_sequence.load(Ordering::Relaxed), ..JournalMachine::default() };
        let retention = retains.map(Retention::new);
        Ok(JournalState {
            machine,
            clock,
            sink,
            everyone: Vec::new(),
            by_session: BTreeMap::new(),
            last_sequence,
            retention,
        })
    }

    async fn handle(
        &self,
        _myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            JournalMessage::Append(event, told) => told.of(state.append(event)),
            JournalMessage::AppendAll(events, told) => {
                if let Some(last) = events.into_iter().map(|event| state.append(event)).last() {
                    told.of(last);
                }
            }
            JournalMessage::Subscribe(session, reply) => {
                drop(reply.send(state.subscribe(session)));
            }
            JournalMessage::Status(reply) => {
                drop(reply.send(state.machine.status()));
            }
            JournalMessage::Page(session, after, limit, reply) => {
                drop(reply.send(state.retention.as_ref().and_then(|kept| kept.page(&session, after, limit))));
            }
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

    use toolwarden_tools::effects::clock::Clock;

    use super::*;

    #[derive(Debug)]
    struct Note {
        session: SessionId,
        id: InvocationId,
        kind: u8,
    }

    impl JournalEvent for Note {
        fn root_session(&self) -> &SessionId {
            &self.session
        }

        fn moment(&self) -> Moment<'_> {
            match self.kind {
                0 => Moment::Opens(&self.id),
                1 => Moment::Ends(&self.id),
                _ => Moment::Other,
            }
        }
    }

    fn note(session: &str, id: &str, kind: u8) -> Note {
        Note { session: session.into(), id: id.into(), kind }
    }

    /// A wall clock that jumps back.
    #[derive(Default)]
    struct Jumping(AtomicU64);

    impl Clock for Jumping {
        fn monotonic(&self) -> Duration {
            Duration::ZERO
        }

        fn unix_ms(&self) -> u64 {
            1_000_000 - self.0.fetch_add(1, Ordering::Relaxed)
        }
    }

    struct Sink {
        stored: Arc<Mutex<Vec<u64>>>,
        room: usize,
    }

    impl JournalSink<Note> for Sink {
        fn append(&mut self, entry: &Entry<Note>) -> std::io::Result<()> {
            if self.room == 0 {
                return Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
            }
            self.room -= 1;
            self.stored.lock().unwrap().push(entry.sequence);
            Ok(())
        }
    }

    struct Parent;

    impl Actor for Parent {
        type Msg = ();
        type State = ();
        type Arguments = ();

        async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
            Ok(())
        }
    }

    async fn journal(room: usize) -> (Journal<Note>, Arc<Mutex<Vec<u64>>>, ActorRef<()>) {
        let (parent, _) = Actor::spawn(None, Parent, ()).await.unwrap();
        let stored = Arc::new(Mutex::new(Vec::new()));
        let sink = Box::new(Sink { stored: Arc::clone(&stored), room });
        let journal = Journal::new();
        start(&journal, parent.get_cell(), Arc::new(Jumping::default()), Some(sink)).await.unwrap();
        (journal, stored, parent)
    }

    #[tokio::test]
    async fn numbers_go_up_time_never_goes_back_and_a_second_ending_is_refused() {
        let (journal, stored, parent) = journal(99).await;
        let mut reader = journal.subscribe(None).await.unwrap();
        assert_eq!(journal.append(note("s", "a", 0)).await, Ok(1));
        assert_eq!(journal.append(note("s", "a", 1)).await, Ok(2));
        let second = journal.append(note("s", "a", 1)).await;
        assert_eq!(second, Err(JournalError::SecondEnding { invocation: "a".into() }));
        journal.note(note("s", "b", 0));
        let status = journal.status().await.unwrap();
        assert_eq!(status, JournalStatus { last_sequence: 3, open_invocations: 1, refused_endings: 1 });
        let mut times = Vec::new();
        for sequence in 1..=3 {
            let Some(Reading::Entry(entry)) = reader.next().await else { panic!("no entry") };
            assert_eq!(entry.sequence, sequence);
            times.push(entry.unix_ms);
        }
        assert!(times.is_sorted());
        assert_eq!(*stored.lock().unwrap(), [1, 2, 3]);
        parent.stop(None);
    }

    #[tokio::test]
    async fn a_reader_of_one_session_gets_that_session_alone() {
        let (journal, _, parent) = journal(99).await;
        let mut reader = journal.subscribe(Some("mine".into())).await.unwrap();
        journal.append(note("other", "a", 0)).await.unwrap();
        journal.append(note("mine", "b", 0)).await.unwrap();
        let Some(Reading::Entry(entry)) = reader.next().await else { panic!("no entry") };
        assert_eq!(entry.event.id.as_str(), "b");
        assert!(reader.try_next().is_none());
        parent.stop(None);
    }

    #[tokio::test]
    async fn readers_of_closed_sessions_are_forgotten() {
        let clock = Arc::new(Jumping::default());
        let mut state: JournalState<Note> = JournalState {
            machine: JournalMachine::default(),
            clock,
            sink: None,
            everyone: Vec::new(),
            by_session: BTreeMap::new(),
            last_sequence: Arc::default(),
            retention: None,
        };
        let kept = state.subscribe(Some("kept".into()));
        for session in ["a", "b", "c"] {
            drop(state.subscribe(Some(session.into())));
        }
        drop(state.subscribe(Some("last".into())));
        let left: Vec<&str> = state.by_session.keys().map(SessionId::as_str).collect();
        assert_eq!(left, ["kept", "last"]);
        drop(kept);
    }

    #[tokio::test]
    async fn a_slow_reader_blocks_nobody_and_is_told_what_it_missed() {
        let (journal, _, parent) = journal(usize::MAX).await;
        let mut reader = journal.subscribe(None).await.unwrap();
        let sent = READER_LAG_MAX as u64 + 10;
        for _ in 0..sent {
            journal.note(note("s", "a", 9));
        }
        assert_eq!(journal.status().await.unwrap().last_sequence, sent);
        let Some(Reading::Missed { count }) = reader.next().await else { panic!("not told") };
        let Some(Reading::Entry(entry)) = reader.next().await else { panic!("no entry") };
        assert_eq!(entry.sequence, count + 1);
        parent.stop(None);
    }

    #[tokio::test]
    async fn a_full_disk_is_told_to_readers_and_the_journal_goes_on() {
        let (journal, stored, parent) = journal(1).await;
        let mut reader = journal.subscribe(None).await.unwrap();
        for id in ["a", "b", "c"] {
            journal.append(note("s", id, 0)).await.unwrap();
        }
        assert!(matches!(reader.next().await, Some(Reading::Entry(_))));
        assert!(matches!(reader.next().await, Some(Reading::SinkFailed(_))));
        assert!(matches!(reader.next().await, Some(Reading::Entry(_))));
        assert_eq!(*stored.lock().unwrap(), [1]);
        parent.stop(None);
    }

    #[tokio::test]
    async fn what_was_told_before_the_shut_down_is_stored() {
        let (journal, stored, parent) = journal(usize::MAX).await;
        let cell = journal.slot.get().unwrap().get_cell();
        for _ in 0..500 {
            journal.note(note("s", "a", 9));
        }
        shut_down(&cell);
        cell.wait(None).await.unwrap();
        assert_eq!(stored.lock().unwrap().len(), 500);
        parent.stop(None);
    }

    #[tokio::test]
    async fn a_journal_that_is_not_there_says_so() {
        let journal: Journal<Note> = Journal::new();
        assert_eq!(journal.append(note("s", "a", 0)).await, Err(JournalError::NotRunning));
    }
}
