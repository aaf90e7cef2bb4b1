//! The digest of an artifact while it is written: taken here at first, and beside the writing once there is much.
//!
//! Hashing a long output takes longer than writing it; with both at the same time it costs only the longer one. The
//! thread ends with its queue, which is bounded: a writer that is faster than the hash waits for it. Pieces are large,
//! because each one handed over wakes somebody, and their memory goes round: it comes back empty and is filled again.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use toolwarden_tools::digest::{Digest, RunningDigest};

/// From how many bytes on work beside the writing is worth a thread.
pub(super) const BESIDE_FROM_BYTES: u64 = 1024 * 1024;
/// Most pieces that wait to be hashed.
const PIECES_MAX: usize = 6;
/// What is handed over at once, in bytes.
const PIECE_BYTES: usize = 256 * 1024;

/// A digest in the making.
pub(super) struct Hashing {
    bytes: u64,
    way: Way,
}

enum Way {
    Here(RunningDigest),
    Beside(Beside),
}

struct Beside {
    /// What is not handed over yet.
    piece: Vec<u8>,
    pieces: SyncSender<Vec<u8>>,
    empty: Receiver<Vec<u8>>,
    hash: JoinHandle<RunningDigest>,
}

impl Beside {
    fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (fits, rest) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.piece.len()));
            self.piece.extend_from_slice(fits);
            bytes = rest;
            if self.piece.len() == PIECE_BYTES {
                let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(PIECE_BYTES));
                // It ends only with its queue; if it broke, the end says so.
                let _ = self.pieces.send(std::mem::replace(&mut self.piece, next));
            }
        }
    }

    fn finish(self) -> Option<RunningDigest> {
        let Self { piece, pieces, hash, .. } = self;
        drop(pieces);
        let mut digest = hash.join().ok()?;
        digest.update(&piece);
        Some(digest)
    }
}

impl Hashing {
    pub(super) fn new() -> Self {
        Self { bytes: 0, way: Way::Here(RunningDigest::default()) }
    }

    /// How many bytes were taken.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes the next bytes.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        match &mut self.way {
            Way::Here(digest) => {
                digest.update(bytes);
                if self.bytes >= BESIDE_FROM_BYTES {
                    self.way = beside(digest.clone());
                }
            }
            Way::Beside(beside) => beside.update(bytes),
        }
    }

    /// The digest of all of it; none when the thread broke.
    pub(super) fn finish(self) -> Option<Digest> {
        match self.way {
            Way::Here(digest) => Some(digest.finish()),
            Way::Beside(beside) => beside.finish().map(RunningDigest::finish),
        }
    }
}

/// Goes on in a thread; or here, where the system gives none.
fn beside(digest: RunningDigest) -> Way {
    let (pieces, queue) = sync_channel::<Vec<u8>>(PIECES_MAX);
    let (emptied, empty) = sync_channel(PIECES_MAX);
    let begun = digest.clone();
    let thread = Builder::new().name("artifact-hash".to_owned()).spawn(move || {
        let mut digest = begun;
        for mut piece in queue {
            digest.update(&piece);
            piece.clear();
            // With enough of them on their way back, this one goes.
            let _ = emptied.try_send(piece);
        }
        digest
    });
    match thread {
        Ok(hash) => Way::Beside(Beside { piece: Vec::with_capacity(PIECE_BYTES), pieces, empty, hash }),
        Err(_) => Way::Here(digest),
    }
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::digest::Digest;

    use super::{BESIDE_FROM_BYTES, Hashing};

    #[test]
    fn the_digest_is_the_same_either_way() {
        let bytes: Vec<u8> = (0..3 * BESIDE_FROM_BYTES).map(|at| (at % 251) as u8).collect();
        for length in [0, 5, BESIDE_FROM_BYTES, BESIDE_FROM_BYTES + 1, 3 * BESIDE_FROM_BYTES] {
            let bytes = &bytes[..usize::try_from(length).unwrap()];
            for step in [1000, 70_000, 10_000_000] {
                let mut hashing = Hashing::new();
                bytes.chunks(step).for_each(|piece| hashing.update(piece));
                assert_eq!((hashing.bytes(), hashing.finish()), (length, Some(Digest::of(bytes))), "{step}");
            }
        }
    }
}
