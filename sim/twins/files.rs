//! The twin of the files port: a workspace in memory, at the level of the port.
//!
//! Faults: opening and reading fail (EIO), reads give odd pieces; a change fails before anything changed (no space
//! left, EIO) or after it (the folder cannot be synced: the new bytes are there, and nobody is told so); the process
//! crashes before a change, between its rename and its sync, or behind it, and then the old bytes are there or the new
//! ones, and a torn temporary. What a command wrote ([`PretendedFiles::scribble`]) is not synced: a crash loses it or
//! tears it. Several changes made together are all made or none, also in a crash; or, in a `plain` workspace, one after
//! the other by the port's own way. Somebody outside may add a line to a file that a tool has just opened. There are no links and no special files here; the real side has tests of its own
//! for those.

pub mod disk;
mod landing;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwarden_tools::effects::files::together::{FileChange, TogetherError, one_by_one};
use toolwarden_tools::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, LogFile, NewFile, OpenFile, Replacement,
};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::fate::Fate;
use crate::sight::Sight;
use crate::twins::logs::PretendedLogs;

use self::disk::Disk;
use self::landing::Landing;

/// The files of a world; clones share them.
#[derive(Clone)]
pub struct PretendedFiles {
    fate: Fate,
    faulty: bool,
    plain: bool,
    outsiders: bool,
    outside: Arc<AtomicU64>,
    disk: Arc<Mutex<Disk>>,
    /// A rename that a crash found without its sync.
    unsynced: Arc<Mutex<Option<Vec<u8>>>>,
    logs: PretendedLogs,
}

/// What goes wrong with one change, once it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PutFault {
    /// The rename is made, and the folder cannot be synced.
    Unsynced,
    /// The process crashes with the temporary written.
    CrashBefore,
    /// It crashes between rename and sync.
    CrashBetween,
    /// It crashes with everything done.
    CrashBehind,
}

impl PretendedFiles {
    /// An empty workspace; a `faulty` one fails and crashes, and a `plain` one makes several changes one by one.
    pub fn new(fate: Fate, faulty: bool, plain: bool) -> Self {
        let logs = PretendedLogs::new(fate.clone(), faulty);
        Self {
            fate,
            faulty,
            plain,
            outsiders: false,
            outside: Arc::default(),
            disk: Arc::default(),
            unsynced: Arc::default(),
            logs,
        }
    }

    /// With somebody outside who changes files between the look of a tool and its change.
    #[must_use]
    pub fn with_outsiders(mut self, outsiders: bool) -> Self {
        self.outsiders = outsiders;
        self
    }

    /// Somebody outside adds a line to a file that was just opened.
    fn meddle(&self, path: &WorkspacePath) {
        if !self.outsiders || self.fate.rare(1).is_none() {
            return;
        }
        self.fate.met("a file that somebody else changed");
        let mark = format!("mark-outside-{}", self.outside.fetch_add(1, Ordering::Relaxed));
        let before = self.disk().get(path.as_bytes()).map(|file| Arc::clone(&file.bytes));
        let bytes = [before.as_deref().unwrap_or_default(), mark.as_bytes(), b"\n"].concat();
        self.put_away(path, &bytes);
        self.fate.see(&Sight::Outside { path: &path.to_string(), mark: &mark });
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unsynced(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file there, as from the beginning.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.disk().put(self.fate.now(), path.as_bytes(), Arc::from(bytes), true);
    }

    /// Writes a file as a command does: whole, and not synced.
    pub fn scribble(&self, path: &str, bytes: &[u8]) {
        if self.fate.is_dead() {
            return;
        }
        self.fate.see(&Sight::Unsure { path });
        self.disk().put(self.fate.now(), path.as_bytes(), Arc::from(bytes), false);
    }

    /// All files, temporaries too.
    pub fn all(&self) -> BTreeMap<String, Vec<u8>> {
        self.disk().iter().map(|(path, file)| (shown(path), file.bytes.to_vec())).collect()
    }

    /// Temporaries whose process lives: once nothing is under way there must be none.
    pub fn leaks(&self) -> Vec<String> {
        self.disk().own_temporaries().map(|path| shown(path)).collect()
    }

    /// What the end of the process leaves of what was not synced.
    pub fn end_process(&self) {
        self.logs.end_process();
        if let Some(path) = self.unsynced().take() {
            let is_there = self.fate.below(2) == 0;
            self.disk().settle_rename(&path, is_there);
        }
        self.disk().end_process(|kinds| self.fate.below(kinds));
    }

    fn rare(&self, kinds: u32) -> Option<u32> {
        if self.faulty { self.fate.rare(kinds) } else { None }
    }

    fn io(op: &'static str, path: &WorkspacePath, kind: ErrorKind) -> FileError {
        FileError::Io { op, path: path.to_string(), source: kind.into() }
    }

    /// A fault of something that writes and changes nothing that can be seen.
    fn fails(&self, op: &'static str, path: &WorkspacePath) -> Result<(), FileError> {
        if self.fate.is_dead() {
            return Err(Self::io(op, path, ErrorKind::Other));
        }
        match self.rare(3) {
            None => Ok(()),
            Some(0) => {
                self.fate.met("no space for a file");
                Err(Self::io(op, path, ErrorKind::StorageFull))
            }
            Some(1) => {
                self.fate.met("a file that cannot be written");
                Err(Self::io(op, path, ErrorKind::Other))
            }
            Some(_) => {
                self.fate.met("a crash before a replacement");
                self.fate.crash();
                Err(Self::io(op, path, ErrorKind::Other))
            }
        }
    }

    /// A fault of something that reads.
    fn reads(&self, op: &'static str, path: &WorkspacePath) -> Result<(), FileError> {
        if self.fate.is_dead() || self.rare(1).is_some() {
            self.fate.met("a file that cannot be read");
            return Err(Self::io(op, path, ErrorKind::Other));
        }
        Ok(())
    }

    /// What goes wrong with a change; some of it before it is under way.
    fn put_fault(&self, path: &WorkspacePath) -> Result<Option<PutFault>, FileError> {
        if self.fate.is_dead() {
            return Err(Self::io("replace", path, ErrorKind::Other));
        }
        match self.rare(6) {
            Some(0) => {
                self.fate.met("no space for a file");
                Err(Self::io("replace", path, ErrorKind::StorageFull))
            }
            Some(1) => {
                self.fate.met("a file that cannot be written");
                Err(Self::io("replace", path, ErrorKind::Other))
            }
            Some(2) => Ok(Some(PutFault::CrashBefore)),
            Some(3) => Ok(Some(PutFault::CrashBehind)),
            Some(4) => Ok(Some(PutFault::CrashBetween)),
            Some(_) => Ok(Some(PutFault::Unsynced)),
            None => Ok(None),
        }
    }

    /// Gives a temporary its place. `landed` says of a file that came in pieces whether another one stood there.
    fn rename(
        &self,
        temporary: &[u8],
        path: &WorkspacePath,
        bytes: &Arc<[u8]>,
        fault: Option<PutFault>,
        landed: Option<bool>,
    ) -> Result<FileStat, FileError> {
        let name = path.to_string();
        let gone = |what| {
            self.fate.met(what);
            self.fate.crash();
            Self::io("replace", path, ErrorKind::Other)
        };
        if fault == Some(PutFault::CrashBefore) {
            return Err(gone("a crash before a replacement"));
        }
        let mut disk = self.disk();
        disk.remove(temporary);
        disk.put(self.fate.now(), path.as_bytes(), Arc::clone(bytes), false);
        drop(disk);
        if let Some(replaces) = landed {
            self.fate.see(&Sight::Landed { path: &name, bytes, replaces });
        }
        match fault {
            Some(PutFault::CrashBetween) => {
                self.fate.see(&Sight::Unsure { path: &name });
                *self.unsynced() = Some(path.as_bytes().to_vec());
                return Err(gone("a crash between rename and sync"));
            }
            Some(PutFault::Unsynced) => {
                self.fate.met("a folder that cannot be synced");
                self.fate.see(&Sight::Unsure { path: &name });
                // It may be lost by a crash; that it is kept is the harder case for whoever was told that it failed.
                self.disk().sync(path.as_bytes());
                return Err(Self::io("sync the folder of", path, ErrorKind::Other));
            }
            _ => {}
        }
        let number = {
            let mut disk = self.disk();
            disk.sync(path.as_bytes());
            disk.count_change()
        };
        self.fate.see(&Sight::Replaced { path: &name, bytes, number });
        if fault == Some(PutFault::CrashBehind) {
            return Err(gone("a crash behind a replacement"));
        }
        self.disk().stat(path)
    }

    /// Takes a file away for good, and says so.
    fn take_away(&self, path: &WorkspacePath) {
        let number = {
            let mut disk = self.disk();
            disk.remove(path.as_bytes());
            disk.count_change()
        };
        self.fate.see(&Sight::Removed { path: &path.to_string(), number });
    }

    /// Puts a file there for good, and says so.
    fn put_away(&self, path: &WorkspacePath, bytes: &[u8]) {
        let number = {
            let mut disk = self.disk();
            disk.put(self.fate.now(), path.as_bytes(), Arc::from(bytes), true);
            disk.count_change()
        };
        self.fate.see(&Sight::Replaced { path: &path.to_string(), bytes, number });
    }

    /// Whether a change can be made.
    fn check_change(&self, change: &FileChange<'_>) -> Result<(), FileError> {
        let disk = self.disk();
        match change {
            FileChange::Put { path, expected, .. } => {
                let wanted = Replacement { bytes: b"", expected: expected.clone(), create_folders: true };
                disk.check(path, &wanted)
            }
            FileChange::Remove { path, expected } => disk.check_there(path, expected),
            FileChange::Move { from, to, expected } => {
                disk.check_there(from, expected)?;
                disk.check(to, &Replacement { bytes: b"", expected: Expected::Absent, create_folders: true })
            }
        }
    }

    /// Makes a change that can be made.
    fn make(&self, change: &FileChange<'_>) {
        match change {
            FileChange::Put { path, bytes, .. } => self.put_away(path, bytes),
            FileChange::Remove { path, .. } => self.take_away(path),
            FileChange::Move { from, to, .. } => {
                let bytes = self.disk().get(from.as_bytes()).map(|file| Arc::clone(&file.bytes));
                self.take_away(from);
                self.put_away(to, bytes.as_deref().unwrap_or_default());
            }
        }
    }
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Files for PretendedFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(path.clone())
    }

    fn stat(&self, path: &WorkspacePath, _links: Links) -> Result<FileStat, FileError> {
        self.disk().stat(path)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        let fails_in = match self.rare(2) {
            Some(0) => {
                self.fate.met("a file that cannot be opened");
                return Err(Self::io("open", path, ErrorKind::Other));
            }
            fails => fails.is_some(),
        };
        let disk = self.disk();
        let stat = disk.stat(path)?;
        let Some(file) = disk.get(path.as_bytes()) else {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        };
        let content = Cursor::new(Arc::clone(&file.bytes));
        drop(disk);
        self.meddle(path);
        if fails_in {
            self.fate.met("a file that cannot be read");
        }
        Ok(Box::new(OpenPretendedFile {
            content,
            stat,
            canonical: path.clone(),
            fails_in,
            piece: 1 + self.fate.usual(4),
        }))
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        let disk = self.disk();
        if disk.stat(path)?.kind != FileKind::Folder {
            return Err(FileError::NotAFolder { path: path.to_string() });
        }
        let mut entries: Vec<FolderEntry> = Vec::new();
        for (rest, _) in disk.beneath(path) {
            let mut names = rest.splitn(2, |byte| *byte == b'/');
            let name = path.child(OsStr::from_bytes(names.next().unwrap_or_default()));
            let kind = if names.next().is_some() { FileKind::Folder } else { FileKind::File };
            if entries.last().is_none_or(|last| last.path != name) {
                entries.push(FolderEntry { path: name, kind });
            }
        }
        entries.sort_by(|one, other| one.path.as_bytes().cmp(other.path.as_bytes()));
        entries.dedup_by(|one, other| one.path == other.path);
        Ok(entries)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        self.logs.open(path)
    }

    fn takes_pieces(&self) -> bool {
        true
    }

    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        Ok(Box::new(Landing::begin(self, path)?))
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        let fault = self.put_fault(path)?;
        let bytes: Arc<[u8]> = Arc::from(replacement.bytes);
        let temporary = {
            let mut disk = self.disk();
            disk.check(path, replacement)?;
            disk.begin_temporary(self.fate.now(), path, Arc::clone(&bytes))
        };
        self.rename(&temporary, path, &bytes, fault, None)
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        let fault = self.put_fault(path)?;
        self.disk().check_there(path, expected)?;
        if matches!(fault, Some(PutFault::CrashBefore | PutFault::CrashBetween)) {
            self.fate.met("a crash before a removal");
            self.fate.crash();
            return Err(Self::io("remove", path, ErrorKind::Other));
        }
        if fault == Some(PutFault::Unsynced) {
            self.fate.met("a folder that cannot be synced");
            self.fate.see(&Sight::Unsure { path: &path.to_string() });
            self.disk().remove(path.as_bytes());
            return Err(Self::io("sync the folder of", path, ErrorKind::Other));
        }
        self.take_away(path);
        match fault {
            Some(PutFault::CrashBehind) => {
                self.fate.met("a crash behind a removal");
                self.fate.crash();
                Err(Self::io("remove", path, ErrorKind::Other))
            }
            _ => Ok(()),
        }
    }

    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        if self.plain {
            return one_by_one(self, changes, go_on);
        }
        // What is written beside the targets, until all of it has its place.
        let mut temporaries = Vec::new();
        let clean = |temporaries: Vec<Vec<u8>>| temporaries.iter().for_each(|path| self.disk().remove(path));
        let mut fault = None;
        for (index, change) in changes.iter().enumerate() {
            let prepared = if go_on() {
                let fails = |error| TogetherError::before_anything(index, error);
                let checked = self.put_fault(change.path()).and_then(|fault| Ok((fault, self.check_change(change)?)));
                checked.map(|(fault, ())| fault).map_err(fails)
            } else {
                Err(TogetherError::stopped(change.path()))
            };
            match prepared {
                Ok(met) => fault = fault.or(met),
                Err(failed) => {
                    clean(temporaries);
                    return Err(failed);
                }
            }
            if let FileChange::Put { path, bytes, .. } = change {
                temporaries.push(self.disk().begin_temporary(self.fate.now(), path, Arc::from(*bytes)));
            }
        }
        let gone = |what| {
            self.fate.met(what);
            self.fate.crash();
            let path = changes.first().map_or_else(WorkspacePath::root, |change| change.path().clone());
            Err(TogetherError::before_anything(0, Self::io("change", &path, ErrorKind::Other)))
        };
        if matches!(fault, Some(PutFault::CrashBefore | PutFault::CrashBetween)) {
            return gone("a crash before several changes");
        }
        if fault == Some(PutFault::Unsynced) {
            self.fate.met("several changes that were taken back");
            clean(temporaries);
            let failed = self.check_first(changes);
            return Err(failed);
        }
        clean(temporaries);
        changes.iter().for_each(|change| self.make(change));
        match fault {
            Some(PutFault::CrashBehind) => gone("a crash behind several changes"),
            _ => Ok(()),
        }
    }
}

impl PretendedFiles {
    /// The failure of changes that were made and taken back.
    fn check_first(&self, changes: &[FileChange<'_>]) -> TogetherError {
        let path = changes.first().map_or_else(WorkspacePath::root, |change| change.path().clone());
        TogetherError {
            index: Some(changes.len().saturating_sub(1)),
            error: Box::new(Self::io("sync the folder of", &path, ErrorKind::Other)),
            restored: changes.iter().map(|change| change.path().clone()).collect(),
            unrestored: Vec::new(),
        }
    }
}

struct OpenPretendedFile {
    content: Cursor<Arc<[u8]>>,
    stat: FileStat,
    canonical: WorkspacePath,
    fails_in: bool,
    /// How much of what is asked for comes at once: all of it, or a part of so many.
    piece: usize,
}

impl Read for OpenPretendedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fails_in && self.content.position() > 0 {
            return Err(ErrorKind::Other.into());
        }
        let length = buffer.len().div_ceil(self.piece);
        let read = self.content.read(&mut buffer[..length])?;
        // A short file fails as well: at its end.
        if self.fails_in && read == 0 && length > 0 {
            return Err(ErrorKind::Other.into());
        }
        Ok(read)
    }
}

impl Seek for OpenPretendedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.content.seek(to)
    }
}

impl OpenFile for OpenPretendedFile {
    fn stat(&self) -> &FileStat {
        &self.stat
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        Some(&self.canonical)
    }
}
