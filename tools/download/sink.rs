//! Where the pieces of a download go: one thread writes them, another hashes what was written, behind the first.
//!
//! Both end when the sink ends or is dropped. Pieces come in any order; the hash follows the bytes that are there
//! without a gap. What waits between the network and the disk is bounded in number, and each piece by what one read of
//! a connection gives.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::digest::{Digest, RunningDigest};
use crate::effects::files::{FileError, NewFile};

/// Pieces that wait to be written.
const PIECES_MAX: usize = 16;
/// Bytes hashed at a time.
const HASH_BYTES: usize = 1024 * 1024;

/// Takes the pieces of one file.
pub(super) struct Sink {
    pieces: mpsc::Sender<Piece>,
    writer: JoinHandle<Result<(), FileError>>,
    hasher: JoinHandle<Result<(u64, Digest), FileError>>,
    marks: DropMark,
}

struct Piece {
    at: u64,
    bytes: Bytes,
}

/// Held for as long as a thread of a sink works; whoever has the other end sees the last one go.
pub(super) type Alive = mpsc::Sender<()>;

/// What has been written.
#[derive(Default)]
struct Marks {
    state: Mutex<Written>,
    moved: Condvar,
}

#[derive(Default)]
struct Written {
    /// Everything before is there.
    whole: u64,
    /// What is there behind a gap: from, to.
    islands: BTreeMap<u64, u64>,
    /// No more comes.
    closed: bool,
    /// Nobody wants the digest any more.
    dropped: bool,
}

impl Marks {
    fn change(&self, change: impl FnOnce(&mut Written)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }

    /// Waits for more than `hashed`; none when no more comes or nobody wants it.
    fn more_than(&self, hashed: u64) -> Option<u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waits = |state: &mut Written| state.whole <= hashed && !state.closed && !state.dropped;
        let state = self.moved.wait_while(state, waits).unwrap_or_else(PoisonError::into_inner);
        (!state.dropped && state.whole > hashed).then_some(state.whole)
    }
}

impl Written {
    fn add(&mut self, at: u64, bytes: u64) {
        self.islands.insert(at, at + bytes);
        while let Some(island) = self.islands.first_entry().filter(|island| *island.key() <= self.whole) {
            self.whole = self.whole.max(island.remove());
        }
    }
}

impl Sink {
    /// Begins at the start of a file.
    pub(super) fn begin(file: &Arc<dyn NewFile>, alive: &Alive) -> Self {
        let (pieces, mut coming) = mpsc::channel::<Piece>(PIECES_MAX);
        let marks = Arc::new(Marks::default());
        let (written, to, held) = (Arc::clone(&marks), Arc::clone(file), alive.clone());
        let writer = tokio::task::spawn_blocking(move || {
            let _held = held;
            let mut done = Ok(());
            while let Some(Piece { at, bytes }) = coming.blocking_recv() {
                if let Err(error) = to.write_at(&bytes, at) {
                    done = Err(error);
                    break;
                }
                written.change(|state| state.add(at, bytes.len() as u64));
            }
            written.change(|state| state.closed = true);
            done
        });
        let (read, from, held) = (Arc::clone(&marks), Arc::clone(file), alive.clone());
        let hasher = tokio::task::spawn_blocking(move || {
            let _held = held;
            hash(&*from, &read)
        });
        Self { pieces, writer, hasher, marks: DropMark(marks) }
    }

    /// Takes a piece. When it is refused, writing has failed and [`Self::finish`] tells why.
    pub(super) async fn take(&self, at: u64, bytes: Bytes) -> Result<(), Closed> {
        self.pieces.send(Piece { at, bytes }).await.map_err(|_| Closed)
    }

    /// Waits until everything is written and hashed; how many bytes there are without a gap, and their digest.
    pub(super) async fn finish(self) -> Result<(u64, Digest), FileError> {
        // The mark is dropped last: until then the digest is wanted.
        let Self { pieces, writer, hasher, marks: _wanted } = self;
        drop(pieces);
        joined(writer.await).unwrap_or_else(|| Err(gone()))?;
        joined(hasher.await).unwrap_or_else(|| Err(gone()))
    }

    /// Ends without a result, and waits for that; what went wrong with writing, if anything.
    pub(super) async fn abandon(self) -> Result<(), FileError> {
        let Self { pieces, writer, hasher, marks } = self;
        drop((pieces, marks));
        let written = joined(writer.await).unwrap_or_else(|| Err(gone()));
        let _unwanted = joined(hasher.await);
        written
    }
}

/// Writing has failed.
#[derive(Debug)]
pub(super) struct Closed;

/// Tells the hasher that nobody wants its result any more.
struct DropMark(Arc<Marks>);

impl Drop for DropMark {
    fn drop(&mut self) {
        self.0.change(|state| state.dropped = true);
    }
}

fn hash(file: &dyn NewFile, marks: &Marks) -> Result<(u64, Digest), FileError> {
    let mut digest = RunningDigest::default();
    let mut buffer = vec![0; HASH_BYTES];
    let mut hashed = 0;
    while let Some(whole) = marks.more_than(hashed) {
        let wanted = usize::try_from(whole - hashed).map_or(buffer.len(), |left| left.min(buffer.len()));
        match file.read_at(&mut buffer[..wanted], hashed)? {
            0 => break,
            read => {
                digest.update(&buffer[..read]);
                hashed += read as u64;
            }
        }
    }
    Ok((hashed, digest.finish()))
}

/// The result of a thread; a bug stays a bug, whichever thread it shows on.
fn joined<T>(result: Result<T, tokio::task::JoinError>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_shut_down) => None,
        },
    }
}

/// The runtime ended under it.
fn gone() -> FileError {
    let source = std::io::Error::other("the runtime shut down meanwhile");
    FileError::Io { op: "write", path: String::new(), source }
}
