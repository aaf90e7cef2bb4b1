//! The background processes of a session: each a node under the session's own, with a ring for its output.
//!
//! A process is started here, or handed over by a call whose command ended and left something running. Either way it
//! hangs on the session: the call and the run that began it may end or be cancelled without ending it, and the
//! session's end, the runtime's or the host's ends it. The list is shared state of handles, like that of the calls on
//! their way; what decides over a process is its node.
//!
//! What must stay true: a process that is listed as running has a node that runs it; every listed process comes to
//! have an end, whatever happens to its node, and whoever listens is told it once; lists and outputs are bounded.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::watch;
use tokio::time::timeout;
use toolwarden_tools::background::ring::OutputRing;
use toolwarden_tools::background::{
    Background, BackgroundEnd, BackgroundError, BackgroundOutcome, BackgroundRead, BackgroundStart, BackgroundStatus,
    LINE_BYTES_MAX, LISTED_MAX, OUTPUT_BYTES_MAX, RUNNING_MAX, ReadFrom,
};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::processes::{Left, Leftover, OutputSink, ProcessEnd, ProcessError, Processes, Stream};
use toolwarden_tools::ids::{BackgroundId, InvocationId};

use crate::node::{Canceller, NodeHandle, NodeKind, NodeSpec};

/// What a process group may take to be reaped and reported after its own grace.
pub const REAP_ALLOWANCE: Duration = Duration::from_millis(1500);

/// How long a start waits for an end: what fails at once is told at once.
const START_WAIT: Duration = Duration::from_millis(100);

/// A running command, as the processes port gives it.
pub(crate) type Running = BoxFuture<'static, Result<ProcessEnd, ProcessError>>;

/// Is told the end of each background process that was held, once. Must not block, and must not hold the processes.
pub type EndListener = Arc<dyn Fn(&BackgroundStatus) + Send + Sync>;

/// The background processes of one session; clones share them.
#[derive(Clone)]
pub struct BackgroundProcesses {
    shared: Arc<Shared>,
}

struct Shared {
    /// The session's, from its beginning on, and who is told of ends.
    hangs_on: OnceLock<(NodeHandle, EndListener)>,
    port: Arc<dyn Processes>,
    clock: Arc<dyn Clock>,
    leftover: Leftover,
    book: Mutex<Book>,
}

/// All that are listed, by number.
#[derive(Default)]
struct Book {
    last: u64,
    entries: BTreeMap<u64, Arc<Entry>>,
}

/// One process.
pub(crate) struct Entry {
    id: BackgroundId,
    line: String,
    invocation: InvocationId,
    started_at_ms: u64,
    clock: Arc<dyn Clock>,
    output: Mutex<Output>,
    canceller: OnceLock<Canceller>,
    /// Who is told its end; none while nobody holds it.
    listener: OnceLock<EndListener>,
    is_over: AtomicBool,
    end: watch::Sender<Option<BackgroundEnd>>,
}

struct Output {
    ring: OutputRing,
    /// Where the next read of what is new begins.
    read_to: u64,
}

impl BackgroundProcesses {
    /// The background processes of a session that is about to begin; commands run through `port`.
    pub fn new(port: Arc<dyn Processes>, clock: Arc<dyn Clock>, leftover: Leftover) -> Self {
        let (hangs_on, book) = (OnceLock::new(), Mutex::default());
        Self { shared: Arc::new(Shared { hangs_on, port, clock, leftover, book }) }
    }

    /// The session has begun, this is its node, and `listener` is told of ends; counts once.
    pub fn hang_on(&self, node: &NodeHandle, listener: EndListener) {
        let _ = self.shared.hangs_on.set((node.clone(), listener));
    }

    /// Lists a new process, which somebody is to [`hold`](Self::hold).
    ///
    /// # Errors
    /// [`BackgroundError::Full`].
    pub(crate) fn open(&self, line: &str, invocation: InvocationId) -> Result<Arc<Entry>, BackgroundError> {
        let mut book = self.book();
        if book.entries.values().filter(|entry| entry.is_running()).count() >= RUNNING_MAX {
            return Err(BackgroundError::Full);
        }
        while book.entries.len() >= LISTED_MAX {
            let ended = |entry: &Entry| entry.end.borrow().as_ref().map(|end| end.ended_at_ms);
            let first = book.entries.iter().filter_map(|(number, entry)| Some((ended(entry)?, *number))).min();
            let Some((_, number)) = first else { return Err(BackgroundError::Full) };
            book.entries.remove(&number);
        }
        book.last += 1;
        let number = book.last;
        let entry = Arc::new(Entry {
            id: BackgroundId::new(format!("bg-{number}")),
            line: line[..line.floor_char_boundary(LINE_BYTES_MAX)].to_owned(),
            invocation,
            started_at_ms: self.shared.clock.unix_ms(),
            clock: Arc::clone(&self.shared.clock),
            output: Mutex::new(Output { ring: OutputRing::new(OUTPUT_BYTES_MAX), read_to: 0 }),
            canceller: OnceLock::new(),
            listener: OnceLock::new(),
            is_over: AtomicBool::new(false),
            end: watch::Sender::new(None),
        });
        book.entries.insert(number, Arc::clone(&entry));
        Ok(entry)
    }

    /// Runs a process to its end as a node of the session. A session that is ending drops it, which kills it.
    pub(crate) fn hold(
        &self,
        entry: &Arc<Entry>,
        mut running: Running,
        stop: Cancellation,
        grace: Duration,
        limit: Option<Duration>,
    ) {
        let Some((node, listener)) = self.shared.hangs_on.get() else { return entry.give_up() };
        // Set once: an entry is held once.
        let _ = entry.listener.set(Arc::clone(listener));
        let spec = NodeSpec { kind: NodeKind::ProcessGroup, grace: grace + REAP_ALLOWANCE };
        let (ends, lost) = (Arc::clone(entry), Arc::clone(entry));
        let waiter = node.spawn_with_epilogue(
            spec,
            move |node| async move {
                // Held to the end: a limit that is dropped is lifted.
                let _limit = limit.map(|limit| node.limit(limit));
                let end = tokio::select! {
                    biased;
                    end = &mut running => end,
                    reason = node.cancellation().cancelled() => {
                        stop.cancel(reason);
                        running.await
                    }
                };
                ends.over(match end {
                    Ok(end) => BackgroundOutcome::Ended(Box::new(end)),
                    Err(error) => BackgroundOutcome::Failed(Arc::new(error)),
                });
            },
            move |ending| lost.over(BackgroundOutcome::GivenUp { reason: ending.cancel.clone() }),
        );
        let _ = entry.canceller.set(waiter.canceller());
        waiter.detach();
    }

    fn find(&self, id: &str) -> Result<Arc<Entry>, BackgroundError> {
        let found = self.book().entries.values().find(|entry| entry.id.as_str() == id).map(Arc::clone);
        found.ok_or_else(|| BackgroundError::Unknown { id: id.to_owned() })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.shared.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Background for BackgroundProcesses {
    fn start(&self, start: BackgroundStart) -> BoxFuture<'_, Result<BackgroundStatus, BackgroundError>> {
        let BackgroundStart { invocation, line, command, timeout: limit } = start;
        let opened = self.open(&line, invocation).inspect(|entry| {
            let (stop, grace) = (Cancellation::new(), command.grace);
            let running = self.shared.port.run(command, Arc::clone(entry) as _, stop.clone());
            self.hold(entry, running, stop, grace, limit);
        });
        async move {
            let entry = opened?;
            // However it is, it is told how it stands.
            let _ = timeout(START_WAIT, entry.ended()).await;
            Ok(entry.status())
        }
        .boxed()
    }

    fn leftover(&self) -> Leftover {
        self.shared.leftover
    }

    fn list(&self) -> Vec<BackgroundStatus> {
        let entries: Vec<Arc<Entry>> = self.book().entries.values().map(Arc::clone).collect();
        entries.iter().map(|entry| entry.status()).collect()
    }

    fn read(&self, id: &str, from: ReadFrom, bytes_max: usize) -> Result<BackgroundRead, BackgroundError> {
        let entry = self.find(id)?;
        let output = entry.read(from, bytes_max);
        Ok(BackgroundRead { output, status: entry.status() })
    }

    fn stop(&self, id: &str) -> BoxFuture<'_, Result<BackgroundStatus, BackgroundError>> {
        let found = self.find(id);
        async move {
            let entry = found?;
            if let Some(canceller) = entry.canceller.get() {
                canceller.cancel(CancelReason::Requested);
            }
            // Bounded by its node, which gives up after grace and allowance.
            entry.ended().await;
            Ok(entry.status())
        }
        .boxed()
    }
}

impl Entry {
    /// Its id.
    pub(crate) fn id(&self) -> &BackgroundId {
        &self.id
    }

    /// Whether a node runs it, or ran it.
    pub(crate) fn is_held(&self) -> bool {
        self.canceller.get().is_some()
    }

    /// Nobody holds it, and nobody will.
    pub(crate) fn give_up(&self) {
        self.over(BackgroundOutcome::GivenUp { reason: None });
    }

    fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Tells its end, once: to whoever listens, and then to all who look or wait.
    fn over(&self, how: BackgroundOutcome) {
        if self.is_over.swap(true, Ordering::AcqRel) {
            return;
        }
        self.output().ring.finish();
        let end = BackgroundEnd { ended_at_ms: self.clock.unix_ms(), how };
        if let Some(listener) = self.listener.get() {
            listener(&BackgroundStatus { end: Some(end.clone()), ..self.status() });
        }
        self.end.send_replace(Some(end));
    }

    async fn ended(&self) {
        // The sender is here, so the wait ends with the end alone.
        let _ = self.end.subscribe().wait_for(Option::is_some).await;
    }

    fn read(&self, from: ReadFrom, bytes_max: usize) -> toolwarden_tools::background::ring::RingRead {
        let mut output = self.output();
        match from {
            ReadFrom::Cursor(cursor) => output.ring.read(cursor, bytes_max),
            ReadFrom::New => {
                let read = output.ring.read(output.read_to, bytes_max);
                output.read_to = read.next;
                read
            }
        }
    }

    fn status(&self) -> BackgroundStatus {
        // The end first: what is printed after the look at the output could not be counted.
        let end = self.end.borrow().clone();
        let output = self.output();
        BackgroundStatus {
            id: self.id.clone(),
            line: self.line.clone(),
            invocation: self.invocation.clone(),
            started_at_ms: self.started_at_ms,
            end,
            output: output.ring.counts(),
            unread_bytes: output.ring.held_behind(output.read_to),
        }
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OutputSink for Entry {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        self.output().ring.push(stream, bytes);
    }

    /// What a background command leaves running goes on under its name.
    fn left(&self, _left: &Left) -> Leftover {
        Leftover::Keep
    }
}
