//! The twin of the logs of a workspace: files that are only appended to, each held by one writer.
//!
//! Faults: an append fails before anything is there, or with a half of it there; the process crashes with a half of it
//! there, or with all of it and nobody told. What an append had acknowledged is never lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwarden_tools::effects::files::{FileError, LogFile};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::fate::Fate;
use crate::sight::Sight;

/// The logs of a world; clones share them.
#[derive(Clone)]
pub struct PretendedLogs {
    fate: Fate,
    faulty: bool,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    logs: BTreeMap<String, Vec<u8>>,
    held: BTreeSet<String>,
    /// Which process of the world this is: a log that was opened in another one is nobody's any more.
    process: u64,
}

impl PretendedLogs {
    /// No logs yet; `faulty` ones fail and crash.
    pub fn new(fate: Fate, faulty: bool) -> Self {
        Self { fate, faulty, kept: Arc::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a process held is free when it has ended.
    pub fn end_process(&self) {
        let mut kept = self.kept();
        kept.held.clear();
        kept.process += 1;
    }

    /// Opens or makes a log.
    ///
    /// # Errors
    /// [`FileError::Held`] while somebody holds it.
    pub fn open(&self, path: &WorkspacePath) -> std::result::Result<Box<dyn LogFile>, FileError> {
        let path = path.to_string();
        if self.fate.is_dead() {
            return Err(FileError::Io { op: "open", path, source: ErrorKind::Other.into() });
        }
        let mut kept = self.kept();
        if !kept.held.insert(path.clone()) {
            return Err(FileError::Held { path });
        }
        kept.logs.entry(path.clone()).or_default();
        let process = kept.process;
        drop(kept);
        Ok(Box::new(OpenLog { logs: self.clone(), path, process }))
    }
}

struct OpenLog {
    logs: PretendedLogs,
    path: String,
    process: u64,
}

impl OpenLog {
    /// Puts these on the disk, as all that was asked for or as what a failure left of it.
    fn put(&self, bytes: &[u8], is_whole: bool) {
        self.logs.kept().logs.entry(self.path.clone()).or_default().extend_from_slice(bytes);
        self.logs.fate.see(&Sight::Logged { path: &self.path, bytes, is_whole });
    }
}

impl LogFile for OpenLog {
    fn read(&mut self, bytes_max: u64) -> Result<Vec<u8>> {
        let bytes = self.logs.kept().logs.get(&self.path).cloned().unwrap_or_default();
        match bytes.len() as u64 > bytes_max {
            true => Err(ErrorKind::FileTooLarge.into()),
            false => Ok(bytes),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let fate = &self.logs.fate;
        if fate.is_dead() {
            return Err(ErrorKind::Other.into());
        }
        let fault = if self.logs.faulty { fate.rare(4) } else { None };
        let failed = |kind: ErrorKind| Err(Error::from(kind));
        match fault {
            Some(0) => {
                fate.met("a record that is not written");
                return failed(ErrorKind::StorageFull);
            }
            Some(1) => {
                fate.met("a record that is written in part");
                self.put(&bytes[..bytes.len() / 2], false);
                return failed(ErrorKind::Other);
            }
            Some(2) => {
                fate.met("a crash in a record");
                self.put(&bytes[..bytes.len() / 2], false);
                fate.crash();
                return failed(ErrorKind::Other);
            }
            _ => self.put(bytes, true),
        }
        if fault.is_some() {
            fate.met("a crash behind a record");
            fate.crash();
            return failed(ErrorKind::Other);
        }
        Ok(())
    }

    fn cut(&mut self, bytes: u64) -> Result<()> {
        if self.logs.fate.is_dead() {
            return Err(ErrorKind::Other.into());
        }
        let length = usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(log) = self.logs.kept().logs.get_mut(&self.path) {
            log.truncate(length);
        }
        self.logs.fate.see(&Sight::LogCut { path: &self.path, bytes });
        Ok(())
    }
}

impl Drop for OpenLog {
    fn drop(&mut self) {
        let mut kept = self.logs.kept();
        if kept.process == self.process {
            kept.held.remove(&self.path);
        }
    }
}
