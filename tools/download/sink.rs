//! Where the pieces of a download go: one thread writes them, another hashes what was written, behind the first.
//!
//! Both end when the sink ends or is dropped. Pieces come in any order; the hash follows the bytes that are there
//! without a gap. What waits between the network and the disk is bounded in number, and each piece by what one read of
//! a connection gives.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::digest::{Digest, RunningDigest};
use crate::effects::blocking::{Labour, Lost, OffThread, off_thread_by_pieces};
use crate::effects::files::{FileError, NewFile};

/// Pieces that wait to be written.
const PIECES_MAX: usize = 16;
/// Bytes hashed at a time.
const HASH_BYTES: usize = 1024 * 1024;

/// Takes the pieces of one file.
pub(super) struct Sink {
    pieces: mpsc::Sender<Piece>,
    writer: OffThread<Result<(), FileError>>,
    hasher: OffThread<Result<(u64, Digest), FileError>>,
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
        let (pieces, coming) = mpsc::channel::<Piece>(PIECES_MAX);
        let marks = Arc::new(watch::Sender::new(Written::default()));
        let hasher = off_thread_by_pieces(Hasher {
            file: Arc::clone(file),
            written: marks.subscribe(),
            digest: RunningDigest::default(),
            buffer: vec![0; HASH_BYTES],
            hashed: 0,
            failed: None,
            _alive: alive.clone(),
        });
        let writer = off_thread_by_pieces(Writer {
            file: Arc::clone(file),
            coming,
            marks: Closing(Arc::clone(&marks)),
            done: Ok(()),
            _alive: alive.clone(),
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
struct DropMark(Arc<watch::Sender<Written>>);

impl Drop for DropMark {
    fn drop(&mut self) {
        self.0.send_modify(|written| written.dropped = true);
    }
}

/// Tells the hasher that no more is written, however writing ends.
struct Closing(Arc<watch::Sender<Written>>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.send_modify(|written| written.closed = true);
    }
}

/// Writes what comes.
struct Writer {
    file: Arc<dyn NewFile>,
    coming: mpsc::Receiver<Piece>,
    marks: Closing,
    done: Result<(), FileError>,
    _alive: Alive,
}

impl Labour for Writer {
    type Piece = Piece;
    type Outcome = Result<(), FileError>;

    async fn next(&mut self) -> Option<Piece> {
        self.coming.recv().await
    }

    fn take(&mut self, piece: Piece) -> ControlFlow<()> {
        let Piece { at, bytes } = piece;
        match self.file.write_at(&bytes, at) {
            Ok(()) => {
                self.marks.0.send_modify(|written| written.add(at, bytes.len() as u64));
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.done = Err(error);
                ControlFlow::Break(())
            }
        }
    }

    fn finish(self) -> Result<(), FileError> {
        self.done
    }
}

/// Hashes what was written, behind the writer.
struct Hasher {
    file: Arc<dyn NewFile>,
    written: watch::Receiver<Written>,
    digest: RunningDigest,
    buffer: Vec<u8>,
    hashed: u64,
    failed: Option<FileError>,
    _alive: Alive,
}

impl Labour for Hasher {
    /// How many bytes are there without a gap.
    type Piece = u64;
    type Outcome = Result<(u64, Digest), FileError>;

    async fn next(&mut self) -> Option<u64> {
        let hashed = self.hashed;
        let more = |written: &Written| written.whole > hashed || written.closed || written.dropped;
        let written = self.written.wait_for(|written| more(written)).await.ok()?;
        (!written.dropped && written.whole > hashed).then_some(written.whole)
    }

    fn take(&mut self, whole: u64) -> ControlFlow<()> {
        let wanted = usize::try_from(whole - self.hashed).map_or(self.buffer.len(), |left| left.min(self.buffer.len()));
        match self.file.read_at(&mut self.buffer[..wanted], self.hashed) {
            Ok(0) => ControlFlow::Break(()),
            Ok(read) => {
                self.digest.update(&self.buffer[..read]);
                self.hashed += read as u64;
                self.file.done_before(self.hashed);
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    fn finish(self) -> Result<(u64, Digest), FileError> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok((self.hashed, self.digest.finish())),
        }
    }
}

/// The result of a thread; a bug stays a bug, whichever thread it shows on.
fn joined<T>(result: Result<T, Lost>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(Lost::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(Lost::Ended) => None,
    }
}

/// The runtime ended under it.
fn gone() -> FileError {
    let source = std::io::Error::other("the runtime shut down meanwhile");
    FileError::Io { op: "write", path: String::new(), source }
}
