//! A commit log: facts of several sessions in one file, so that one sync makes all of them durable.
//!
//! It belongs to one store of one process, which holds its lock; a log without a holder was left by a dead process,
//! and is needed until every session in it was filled up.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::effects::store::directory::medium::Medium;
use crate::effects::store::directory::{Lock, fail, open_file, read_bounded};
use crate::effects::store::record::{HEADER_BYTES, encode, scan};
use crate::effects::store::{Append, LOG_BYTES_MAX, StoreError};
use crate::ids::SessionId;

/// Length of what stands before a session's name: the name's length and the fact's sequence.
const PREFIX_BYTES: usize = 9;

/// The commit log of this process.
pub(super) struct CommitLog {
    path: PathBuf,
    file: File,
    bytes: u64,
    next: u64,
    /// Nothing is built on a log whose end is unknown; what is in it may be needed all the same.
    failed: bool,
}

/// Facts with their sequences, by session.
type BySession = BTreeMap<SessionId, Vec<(u64, Vec<u8>)>>;

/// The commit log of a process that is gone.
pub(super) struct DeadLog {
    path: PathBuf,
    _lock: Lock,
}

impl CommitLog {
    pub(super) fn make(folder: &Path, medium: &dyn Medium) -> Result<Self, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}-{}.log", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = folder.join(name);
        // Not emptied: a dead process of the same number may have left one.
        let file = open_file(&path).map_err(|error| fail("make", &path, &error))?;
        file.try_lock().map_err(|error| match error {
            TryLockError::Error(error) => fail("lock", &path, &error),
            TryLockError::WouldBlock => fail("lock", &path, &std::io::ErrorKind::WouldBlock.into()),
        })?;
        let bytes = file.metadata().map_err(|error| fail("read", &path, &error))?.len();
        if bytes > 0 {
            return Err(fail("make", &path, &std::io::ErrorKind::AlreadyExists.into()));
        }
        medium.sync_folder(folder).map_err(|error| fail("sync", folder, &error))?;
        Ok(Self { path, file, bytes: 0, next: 1, failed: false })
    }

    pub(super) fn append(&mut self, facts: &[&Append], medium: &dyn Medium) -> Result<(), StoreError> {
        if self.failed {
            return Err(fail("write", &self.path, &std::io::ErrorKind::Other.into()));
        }
        let lengths =
            facts.iter().map(|fact| HEADER_BYTES + PREFIX_BYTES + fact.session.as_str().len() + fact.payload.len());
        let mut frames = Vec::with_capacity(lengths.sum());
        let mut payload = Vec::new();
        for fact in facts {
            let name = fact.session.as_str().as_bytes();
            payload.clear();
            // Names are bounded when a session is made.
            payload.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
            payload.extend_from_slice(&fact.sequence.to_le_bytes());
            payload.extend_from_slice(name);
            payload.extend_from_slice(&fact.payload);
            encode(self.next, &payload, &mut frames);
            self.next += 1;
        }
        let written = medium.write(&self.file, self.bytes, &frames).and_then(|()| medium.sync(&self.file));
        self.failed = written.is_err();
        written.map_err(|error| fail("write", &self.path, &error))?;
        self.bytes += u64::try_from(frames.len()).unwrap_or(u64::MAX);
        Ok(())
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn empty(&mut self, medium: &dyn Medium) -> Result<(), StoreError> {
        let emptied = medium.truncate(&self.file, 0).and_then(|()| medium.sync(&self.file));
        emptied.map_err(|error| fail("empty", &self.path, &error))?;
        (self.bytes, self.next) = (0, 1);
        Ok(())
    }

    pub(super) fn remove(self, medium: &dyn Medium) -> Result<(), StoreError> {
        medium.remove(&self.path).map_err(|error| fail("remove", &self.path, &error))
    }
}

impl DeadLog {
    /// Each session's facts, in order.
    pub(super) fn records(&self) -> Result<BySession, StoreError> {
        let bytes = read_bounded(&self.path, LOG_BYTES_MAX)?.unwrap_or_default();
        let mut records = BySession::new();
        // What is not whole at the end was never acknowledged.
        for (_, record) in scan(bytes).log.iter() {
            let Some((prefix, rest)) = record.split_at_checked(PREFIX_BYTES) else { continue };
            let Some((name, fact)) = rest.split_at_checked(usize::from(prefix[0])) else { continue };
            let Ok(name) = std::str::from_utf8(name) else { continue };
            let mut sequence = [0; 8];
            sequence.copy_from_slice(&prefix[1..]);
            records.entry(name.into()).or_default().push((u64::from_le_bytes(sequence), fact.to_vec()));
        }
        Ok(records)
    }

    pub(super) fn remove(self, medium: &dyn Medium) -> Result<(), StoreError> {
        medium.remove(&self.path).map_err(|error| fail("remove", &self.path, &error))
    }
}

/// Whether there is a commit log, held or not.
#[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
pub(super) fn is_any(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

/// The commit logs that nobody holds.
#[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
pub(super) fn left_by_the_dead(folder: &Path) -> Result<Vec<DeadLog>, StoreError> {
    let mut dead = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(|error| fail("list", folder, &error))? {
        let path = entry.map_err(|error| fail("list", folder, &error))?.path();
        // It may be gone by now: its owner is done with it.
        let Ok(file) = File::options().read(true).write(true).open(&path) else { continue };
        match file.try_lock() {
            Ok(()) => dead.push(DeadLog { path, _lock: Lock(file) }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(fail("lock", &path, &error)),
        }
    }
    dead.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(dead)
}
