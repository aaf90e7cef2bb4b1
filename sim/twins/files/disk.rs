//! The disk beneath the pretended files: what is there, what of it a crash may take, and whose temporaries stand around.
//!
//! A new content is written under a temporary name and renamed into place; until its folder is synced a crash decides
//! which of the two is there. Temporaries stand among the files and can be listed: one that a crash left goes when a
//! later process enters its folder, and one that nobody holds any more, with its process alive, is a leak.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::files::{Expected, FileError, FileKind, FileStat, Replacement};
use toolwarden_tools::workspace_path::WorkspacePath;

/// How the name of every temporary begins.
pub const TEMPORARY_PREFIX: &str = ".toolwarden-";
/// Mode bits of every file.
const MODE: u32 = 0o644;
/// Mode bits of every folder.
const FOLDER_MODE: u32 = 0o755;

/// What is on the disk.
#[derive(Default)]
pub(super) struct Disk {
    files: BTreeMap<Vec<u8>, File>,
    /// Whose each temporary is, by the number of the process.
    temporaries: BTreeMap<Vec<u8>, u64>,
    next_inode: u64,
    changes: u64,
    process: u64,
}

#[derive(Clone)]
pub(super) struct File {
    pub(super) bytes: Arc<[u8]>,
    /// What is there after a crash, where that may be something else; nothing at all when none.
    synced: Option<Option<Arc<[u8]>>>,
    inode: u64,
    modified_unix_ns: i128,
}

impl File {
    pub(super) fn stat(&self) -> FileStat {
        FileStat {
            kind: FileKind::File,
            size_bytes: self.bytes.len() as u64,
            mode: MODE,
            link_count: 1,
            modified_unix_ns: self.modified_unix_ns,
            identity: (1, self.inode),
        }
    }
}

impl Disk {
    /// All that is there, temporaries too.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Vec<u8>, &File)> {
        self.files.iter()
    }

    pub(super) fn get(&self, path: &[u8]) -> Option<&File> {
        self.files.get(path)
    }

    /// Temporaries of the process that lives now.
    pub(super) fn own_temporaries(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.temporaries.iter().filter(|(_, process)| **process == self.process).map(|(path, _)| path)
    }

    /// The number of one more change that was acknowledged.
    pub(super) fn count_change(&mut self) -> u64 {
        self.changes += 1;
        self.changes
    }

    /// Puts bytes at a path; `durable` when no crash takes them.
    pub(super) fn put(&mut self, now: Duration, path: &[u8], bytes: Arc<[u8]>, durable: bool) {
        let before = self.files.get(path);
        let synced = match (durable, before) {
            (true, _) => None,
            (false, Some(File { synced: Some(synced), .. })) => Some(synced.clone()),
            (false, before) => Some(before.map(|file| Arc::clone(&file.bytes))),
        };
        self.next_inode += 1;
        let modified_unix_ns = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
        self.files.insert(path.to_vec(), File { bytes, synced, inode: self.next_inode, modified_unix_ns });
    }

    /// Takes a file away for good.
    pub(super) fn remove(&mut self, path: &[u8]) {
        self.files.remove(path);
        self.temporaries.remove(path);
    }

    /// What is at the path no crash takes any more.
    pub(super) fn sync(&mut self, path: &[u8]) {
        if let Some(file) = self.files.get_mut(path) {
            file.synced = None;
        }
    }

    /// A new temporary beside a path; what earlier processes left there goes first.
    pub(super) fn begin_temporary(&mut self, now: Duration, beside: &WorkspacePath, bytes: Arc<[u8]>) -> Vec<u8> {
        let folder = beside.parent().unwrap_or_else(WorkspacePath::root);
        let beneath = prefix(&folder);
        let is_left = |(path, process): &(&Vec<u8>, &u64)| {
            let rest = path.strip_prefix(beneath.as_slice());
            **process != self.process && rest.is_some_and(|rest| !rest.contains(&b'/'))
        };
        let left: Vec<Vec<u8>> = self.temporaries.iter().filter(is_left).map(|(path, _)| path.clone()).collect();
        for path in left {
            self.remove(&path);
        }
        self.next_inode += 1;
        let name = format!("{TEMPORARY_PREFIX}{}-{}.tmp", self.process, self.next_inode);
        let path = [beneath.as_slice(), name.as_bytes()].concat();
        self.put(now, &path, bytes, false);
        self.temporaries.insert(path.clone(), self.process);
        path
    }

    /// What the end of a process leaves of what was not synced: `decide` chooses among as many as it is told.
    pub(super) fn end_process(&mut self, mut decide: impl FnMut(u32) -> u32) {
        let mut gone = Vec::new();
        for (path, file) in &mut self.files {
            let Some(synced) = file.synced.take() else { continue };
            // A rename is there or not; only what was written in place, or is a temporary, can be torn.
            match (decide(3), synced) {
                (0, _) => {}
                (1, Some(bytes)) => file.bytes = bytes,
                (1, None) => gone.push(path.clone()),
                _ => {
                    let half = file.bytes.len() / 2;
                    file.bytes = Arc::from(&file.bytes[..half]);
                }
            }
        }
        for path in gone {
            self.remove(&path);
        }
        self.process += 1;
    }

    /// What a rename that was not synced left: the new bytes, or the old ones.
    pub(super) fn settle_rename(&mut self, path: &[u8], is_there: bool) {
        let Some(file) = self.files.get_mut(path) else { return };
        match file.synced.take() {
            Some(Some(bytes)) if !is_there => file.bytes = bytes,
            Some(None) if !is_there => self.remove(path),
            _ => {}
        }
    }

    /// What stands beneath a folder, by the rest of its path.
    pub(super) fn beneath(&self, folder: &WorkspacePath) -> impl Iterator<Item = (&[u8], &File)> {
        let prefix = prefix(folder);
        let from = self.files.range(prefix.clone()..);
        let length = prefix.len();
        from.take_while(move |(path, _)| path.starts_with(&prefix)).map(move |(path, file)| (&path[length..], file))
    }

    pub(super) fn stat(&self, path: &WorkspacePath) -> Result<FileStat, FileError> {
        if let Some(file) = self.files.get(path.as_bytes()) {
            return Ok(file.stat());
        }
        if path.is_root() || self.beneath(path).next().is_some() {
            return Ok(FileStat {
                kind: FileKind::Folder,
                size_bytes: 0,
                mode: FOLDER_MODE,
                link_count: 2,
                modified_unix_ns: 0,
                identity: (1, 0),
            });
        }
        Err(FileError::NotFound { path: path.to_string() })
    }

    /// Fails when a file cannot stand there, or what stands there is not what is expected.
    pub(super) fn check(&self, path: &WorkspacePath, wanted: &Replacement<'_>) -> Result<(), FileError> {
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| !folder.is_root()) {
            if self.files.contains_key(folder.as_bytes()) {
                return Err(FileError::NotAFolder { path: folder.to_string() });
            }
            above = folder.parent();
        }
        let found = match self.stat(path) {
            Ok(stat) if stat.kind == FileKind::File => self.files.get(path.as_bytes()),
            Ok(_) => return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" }),
            Err(_) => None,
        };
        let has_folder = path.parent().is_none_or(|above| self.stat(&above).is_ok());
        if found.is_none() && !wanted.create_folders && !has_folder {
            return Err(FileError::NotFound { path: path.to_string() });
        }
        match (&wanted.expected, found) {
            (Expected::Absent, Some(_)) => Err(FileError::Exists { path: path.to_string() }),
            (Expected::Content(expected), found) => {
                let actual = found.map(|file| Digest::of(&file.bytes));
                if actual.as_ref() == Some(expected) {
                    return Ok(());
                }
                let actual = actual.map_or_else(|| "absent".to_owned(), |actual| actual.to_string());
                Err(FileError::Changed { path: path.to_string(), expected: expected.to_string(), actual })
            }
            _ => Ok(()),
        }
    }

    /// As [`Self::check`], for a file that must be there.
    pub(super) fn check_there(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.stat(path)?;
        self.check(path, &Replacement { bytes: b"", expected: expected.clone(), create_folders: false })
    }
}

/// How the paths of everything in a folder begin.
fn prefix(folder: &WorkspacePath) -> Vec<u8> {
    match folder.is_root() {
        true => Vec::new(),
        false => [folder.as_bytes(), b"/"].concat(),
    }
}

/// Whether a path has the name of a temporary.
pub fn is_temporary(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.starts_with(TEMPORARY_PREFIX))
}
