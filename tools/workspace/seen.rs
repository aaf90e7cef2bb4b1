//! What a session has read: the digest of each file's bytes as they were last shown to it.
//!
//! Of a large file of which only a part was read, its stamp (identity, size, time of change) is remembered instead. A
//! write over a file that changed since is refused (`version_conflict`). Changes of one session to one path take
//! turns in the order they were called, so that of two edits the second sees what the first did. The map's order
//! reaches nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::digest::Digest;
use crate::effects::files::FileStamp;
use crate::workspace_path::WorkspacePath;

/// Most files remembered; beyond it nothing more is added, and a write to a file that is not remembered is
/// not checked.
pub const SEEN_FILES_MAX: usize = 65_536;
/// How many queues the paths of a session share.
const QUEUES: usize = 64;

/// Into how many parts the map is split: few, for every session has one.
const SHARDS: usize = 4;

/// What a session knows of the state in which it saw a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The digest of its bytes.
    Digest(Digest),
    /// Its stamp: it was large, and a part of it was read.
    Stamp(FileStamp),
}

/// States of the files that one session has read or written, by canonical path.
#[derive(Debug)]
pub struct SeenFiles {
    states: DashMap<WorkspacePath, Seen>,
    /// Made for the first change: most sessions only read.
    queues: OnceLock<Queues>,
}

impl Default for SeenFiles {
    fn default() -> Self {
        Self { states: DashMap::with_shard_amount(SHARDS), queues: OnceLock::new() }
    }
}

/// The right to change some paths; others wait until it is dropped.
#[must_use]
pub struct Turn {
    _held: Vec<OwnedMutexGuard<()>>,
}

impl SeenFiles {
    /// Remembers what a file held when this session last read or wrote it.
    pub fn record(&self, path: WorkspacePath, digest: Digest) {
        self.insert(path, Seen::Digest(digest));
    }

    /// Remembers in which state a large file was when a part of it was read.
    pub fn record_stamp(&self, path: WorkspacePath, stamp: FileStamp) {
        self.insert(path, Seen::Stamp(stamp));
    }

    fn insert(&self, path: WorkspacePath, seen: Seen) {
        if self.states.len() < SEEN_FILES_MAX || self.states.contains_key(&path) {
            self.states.insert(path, seen);
        }
    }

    /// The state that the file had then; none when this session never saw it.
    pub fn seen(&self, path: &WorkspacePath) -> Option<Seen> {
        self.states.get(path).map(|entry| entry.clone())
    }

    /// What the file held then; none when this session never saw it, or only a part of it.
    pub fn digest(&self, path: &WorkspacePath) -> Option<Digest> {
        match self.seen(path) {
            Some(Seen::Digest(digest)) => Some(digest),
            _ => None,
        }
    }

    /// Waits for the turn to change these canonical paths, first come first served. Take all that one call needs at
    /// once: a second turn inside the first may wait for itself.
    pub async fn turn(&self, paths: &[WorkspacePath]) -> Turn {
        // In the order of the queues, so that two calls never hold what the other waits for.
        let wanted: BTreeSet<usize> = paths.iter().map(queue_of).collect();
        let mut held = Vec::with_capacity(wanted.len());
        let queues = self.queues.get_or_init(Queues::default);
        for queue in wanted {
            held.push(Arc::clone(&queues.0[queue]).lock_owned().await);
        }
        Turn { _held: held }
    }
}

fn queue_of(path: &WorkspacePath) -> usize {
    let mut hash = DefaultHasher::new();
    path.hash(&mut hash);
    usize::try_from(hash.finish() % QUEUES as u64).unwrap_or(0)
}

struct Queues(Box<[Arc<Mutex<()>>]>);

impl Default for Queues {
    fn default() -> Self {
        Self((0..QUEUES).map(|_| Arc::default()).collect())
    }
}

impl fmt::Debug for Queues {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{QUEUES} queues")
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::SeenFiles;
    use crate::workspace_path::WorkspacePath;

    #[tokio::test]
    async fn one_path_one_turn_in_the_order_of_the_calls() {
        let seen = SeenFiles::default();
        let one = WorkspacePath::parse("a", "").unwrap();
        let many: Vec<_> = (0..200).map(|n| WorkspacePath::parse(&format!("f{n}"), "").unwrap()).collect();
        let first = seen.turn(std::slice::from_ref(&one)).await;
        let mut second = Box::pin(seen.turn(std::slice::from_ref(&one)));
        assert!((&mut second).now_or_never().is_none());
        let mut third = Box::pin(seen.turn(&many));
        assert!((&mut third).now_or_never().is_none(), "200 paths need every queue");
        drop(first);
        let second = second.now_or_never().unwrap();
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        assert!(third.now_or_never().is_some());
    }
}
