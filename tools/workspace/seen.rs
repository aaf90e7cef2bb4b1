//! What a session has read: the digest of each file's bytes as they were last shown to it.
//!
//! A write over a file that changed since is refused (`version_conflict`). The map's order reaches nothing.

use dashmap::DashMap;

use crate::digest::Digest;
use crate::workspace_path::WorkspacePath;

/// Most files remembered; beyond it nothing more is added, and a write to a file that is not remembered is
/// not checked.
pub const SEEN_FILES_MAX: usize = 65_536;

/// Digests of the files that one session has read or written, by canonical path.
#[derive(Debug, Default)]
pub struct SeenFiles {
    digests: DashMap<WorkspacePath, Digest>,
}

impl SeenFiles {
    /// Remembers what a file held when this session last read or wrote it.
    pub fn record(&self, path: WorkspacePath, digest: Digest) {
        if self.digests.len() < SEEN_FILES_MAX || self.digests.contains_key(&path) {
            self.digests.insert(path, digest);
        }
    }

    /// What the file held then; none when this session never saw it.
    pub fn digest(&self, path: &WorkspacePath) -> Option<Digest> {
        self.digests.get(path).map(|entry| entry.clone())
    }
}
