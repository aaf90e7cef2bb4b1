//! Planted faults of an index: changes that nobody hears of, and files and words that are taken for what they were.

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_tools::effects::files::{FileError, FileStat, Files, FolderEntry, Links, OpenFile, Replacement};
use toolwarden_tools::effects::folder_watch::{Change, ChangeKind, WatchError};
use toolwarden_tools::search::told_files::ToldFiles;
use toolwarden_tools::search::tree::TreeError;
use toolwarden_tools::workspace_path::WorkspacePath;

use super::ground::Ground;

/// One change of so many is not heard of.
const DROPS_ONE_IN: u64 = 5;
/// Largest file that is kept as it was, in bytes.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;

/// A deliberate fault.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    /// Its name in scenario files.
    pub name: &'static str,
    /// What is broken.
    pub about: &'static str,
    /// It is found within so many seeds.
    pub seeds_max: u64,
    slip: Slip,
}

/// All of them.
pub const ALL: [Planted; 7] = [
    planted("change-unheard", "now and then a change is not heard of, and nothing is read anew", Slip::Drops),
    planted("overrun-ignored", "changes that were lost are taken for none", Slip::IgnoresOverruns),
    planted("heard-late", "a change is heard of one question too late", Slip::HearsLate),
    planted("names-unheard", "only new contents are heard of, and no new names", Slip::NamesOnly),
    planted("watched-late", "a folder is watched after it was listed", Slip::WatchesLate),
    planted("candidate-unverified", "a file is searched as it was when it was indexed", Slip::Stale),
    planted("words-stale", "the words of a file are those that it had when they were first kept", Slip::StaleWords),
];

/// The one of this name.
pub fn named(name: &str) -> Option<Planted> {
    ALL.into_iter().find(|planted| planted.name == name)
}

const fn planted(name: &'static str, about: &'static str, slip: Slip) -> Planted {
    Planted { name, about, seeds_max: 80, slip }
}

/// How hearing of changes is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Drops,
    IgnoresOverruns,
    HearsLate,
    NamesOnly,
    WatchesLate,
    Stale,
    StaleWords,
}

impl Planted {
    /// Puts it before what tells of changes of these files.
    pub(super) fn before(self, told: Arc<dyn ToldFiles>, files: Arc<Ground>) -> Arc<dyn ToldFiles> {
        Arc::new(Deaf {
            told,
            stale: Stale { files, as_they_were: Mutex::default() },
            slip: self.slip,
            heard: AtomicU64::new(0),
            kept: Mutex::default(),
            late: Mutex::default(),
        })
    }

    /// Puts it before the files of a search that uses the index.
    pub(super) fn before_files(self, files: Arc<Ground>) -> Arc<dyn Files> {
        match self.slip {
            Slip::Stale => Arc::new(Stale { files, as_they_were: Mutex::default() }),
            _ => files,
        }
    }
}

/// Hears of changes, and not of all.
struct Deaf {
    told: Arc<dyn ToldFiles>,
    stale: Stale,
    slip: Slip,
    heard: AtomicU64,
    kept: Mutex<Vec<Change>>,
    /// Folders that are to be watched at the next question.
    late: Mutex<Vec<WorkspacePath>>,
}

impl ToldFiles for Deaf {
    fn files(&self) -> &dyn Files {
        match self.slip {
            // The index opens files this way to take their words, and never to take their grams.
            Slip::StaleWords => &self.stale,
            _ => self.told.files(),
        }
    }

    fn open_with_change(&self, path: &WorkspacePath) -> Result<(Box<dyn OpenFile>, i128), FileError> {
        self.told.open_with_change(path)
    }

    fn look_at(&self, path: &WorkspacePath) -> Option<(FileStat, i128)> {
        self.told.look_at(path)
    }

    fn watch(&self, path: &WorkspacePath) -> Result<Option<i32>, TreeError> {
        let number = self.told.watch(path)?;
        if let (Slip::WatchesLate, Some(number)) = (self.slip, number) {
            // What happens until the folder is listed goes by.
            self.told.unwatch(number);
            self.late.lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        }
        Ok(number)
    }

    fn unwatch(&self, watch: i32) {
        self.told.unwatch(watch);
    }

    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError> {
        let late = std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner));
        for path in late {
            // One that is gone by now needs no watch.
            let _ = self.told.watch(&path);
        }
        let mut changes = Vec::new();
        match self.told.drain(&mut |change| changes.push(change)) {
            Err(WatchError::Overrun) if self.slip == Slip::IgnoresOverruns => {}
            drained => drained?,
        }
        if self.slip == Slip::HearsLate {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut *kept, &mut changes);
        }
        for change in changes {
            let number = self.heard.fetch_add(1, Ordering::Relaxed);
            let is_heard = match self.slip {
                Slip::Drops => !number.is_multiple_of(DROPS_ONE_IN),
                Slip::NamesOnly => change.kind != ChangeKind::Name,
                _ => true,
            };
            if is_heard {
                take(change);
            }
        }
        Ok(())
    }
}

/// Gives each file as it was when it was first opened, but for rules.
struct Stale {
    files: Arc<Ground>,
    as_they_were: Mutex<BTreeMap<WorkspacePath, Arc<[u8]>>>,
}

impl Files for Stale {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        let file = self.files.open(path)?;
        if path.name().is_some_and(speaks_of_rules) {
            return Ok(file);
        }
        let stat = *file.stat();
        let mut bytes = Vec::new();
        let read = file.take(KEPT_BYTES_MAX).read_to_end(&mut bytes);
        read.map_err(|source| FileError::Io { op: "read", path: path.to_string(), source })?;
        let mut kept = self.as_they_were.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = kept.entry(path.clone()).or_insert_with(|| Arc::from(bytes));
        Ok(Box::new(Was { content: Cursor::new(Arc::clone(bytes)), stat }))
    }

    fn folder_on_disk(&self) -> Option<&std::path::Path> {
        self.files.folder_on_disk()
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.files.replace(path, replacement)
    }
}

fn speaks_of_rules(name: &std::ffi::OsStr) -> bool {
    name == ".gitignore"
}

/// A file as it was.
struct Was {
    content: Cursor<Arc<[u8]>>,
    stat: FileStat,
}

impl std::io::Read for Was {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.content.read(buffer)
    }
}

impl std::io::Seek for Was {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.content.seek(to)
    }
}

impl OpenFile for Was {
    fn stat(&self) -> &FileStat {
        &self.stat
    }
}
