//! The twin of the files port: a workspace in memory, at the level of the port.
//!
//! Faults: opening and reading fail (EIO), reads give odd pieces; a replacement fails before anything changed (no
//! space left, EIO) or the process crashes around it, and then the old bytes are there or the new ones, as the port
//! promises. What a command wrote ([`PretendedFiles::scribble`]) is not synced: a crash loses it or tears it. There
//! are no links and no special files here; the real side has tests of its own for those.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, LogFile, OpenFile, Replacement,
};
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::fate::Fate;
use crate::sight::Sight;
use crate::twins::logs::PretendedLogs;

/// Mode bits of every file.
const MODE: u32 = 0o644;
/// Mode bits of every folder.
const FOLDER_MODE: u32 = 0o755;

/// The files of a world; clones share them.
#[derive(Clone)]
pub struct PretendedFiles {
    fate: Fate,
    faulty: bool,
    disk: Arc<Mutex<Disk>>,
    logs: PretendedLogs,
}

#[derive(Default)]
struct Disk {
    files: BTreeMap<Vec<u8>, File>,
    next_inode: u64,
    replacements: u64,
}

#[derive(Clone)]
struct File {
    bytes: Arc<[u8]>,
    /// What is there after a crash, where that may be something else.
    synced: Option<Option<Arc<[u8]>>>,
    inode: u64,
    modified_unix_ns: i128,
}

impl PretendedFiles {
    /// An empty workspace; a `faulty` one fails and crashes.
    pub fn new(fate: Fate, faulty: bool) -> Self {
        let logs = PretendedLogs::new(fate.clone(), faulty);
        Self { fate, faulty, disk: Arc::default(), logs }
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a file there, as from the beginning.
    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.write(path.as_bytes(), bytes, None);
    }

    /// Writes a file as a command does: whole, and not synced.
    pub fn scribble(&self, path: &str, bytes: &[u8]) {
        if self.fate.is_dead() {
            return;
        }
        let before = self.disk().files.get(path.as_bytes()).map(|file| Arc::clone(&file.bytes));
        self.write(path.as_bytes(), bytes, Some(before));
    }

    /// All files.
    pub fn all(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.disk();
        let shown = |path: &Vec<u8>| String::from_utf8_lossy(path).into_owned();
        disk.files.iter().map(|(path, file)| (shown(path), file.bytes.to_vec())).collect()
    }

    /// What a crash leaves of what was not synced.
    pub fn end_process(&self) {
        self.logs.end_process();
        let fates: Vec<u32> = self.disk().files.values().map(|file| u32::from(file.synced.is_some())).collect();
        let fates: Vec<u32> =
            fates.into_iter().map(|unsynced| if unsynced == 1 { self.fate.below(3) } else { 0 }).collect();
        let mut disk = self.disk();
        let mut gone = Vec::new();
        for ((path, file), fate) in disk.files.iter_mut().zip(fates) {
            let Some(synced) = file.synced.take() else { continue };
            match (fate, synced) {
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
            disk.files.remove(&path);
        }
    }

    fn write(&self, path: &[u8], bytes: &[u8], synced: Option<Option<Arc<[u8]>>>) {
        let modified_unix_ns = i128::try_from(self.fate.now().as_nanos()).unwrap_or(i128::MAX);
        let mut disk = self.disk();
        disk.next_inode += 1;
        let inode = disk.next_inode;
        disk.files.insert(path.to_vec(), File { bytes: Arc::from(bytes), synced, inode, modified_unix_ns });
    }

    fn rare(&self, kinds: u32) -> Option<u32> {
        if self.faulty { self.fate.rare(kinds) } else { None }
    }

    fn io(op: &'static str, path: &WorkspacePath, kind: ErrorKind) -> FileError {
        FileError::Io { op, path: path.to_string(), source: kind.into() }
    }

    /// Fails when one of the folders above is a file.
    fn check_above(&self, disk: &Disk, path: &WorkspacePath) -> Result<(), FileError> {
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| !folder.is_root()) {
            if disk.files.contains_key(folder.as_bytes()) {
                return Err(FileError::NotAFolder { path: folder.to_string() });
            }
            above = folder.parent();
        }
        Ok(())
    }
}

impl Disk {
    /// What stands beneath a folder.
    fn beneath(&self, folder: &WorkspacePath) -> impl Iterator<Item = (&[u8], &File)> {
        let prefix = match folder.is_root() {
            true => Vec::new(),
            false => [folder.as_bytes(), b"/"].concat(),
        };
        let from = self.files.range(prefix.clone()..);
        let length = prefix.len();
        from.take_while(move |(path, _)| path.starts_with(&prefix)).map(move |(path, file)| (&path[length..], file))
    }

    fn stat(&self, path: &WorkspacePath) -> Result<FileStat, FileError> {
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
}

impl File {
    fn stat(&self) -> FileStat {
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
        let Some(file) = disk.files.get(path.as_bytes()) else {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        };
        let content = Cursor::new(Arc::clone(&file.bytes));
        drop(disk);
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

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        if self.fate.is_dead() {
            return Err(Self::io("replace", path, ErrorKind::Other));
        }
        let fault = self.rare(4);
        match fault {
            Some(0) => {
                self.fate.met("no space for a file");
                return Err(Self::io("replace", path, ErrorKind::StorageFull));
            }
            Some(1) => {
                self.fate.met("a file that cannot be written");
                return Err(Self::io("replace", path, ErrorKind::Other));
            }
            Some(2) => {
                self.fate.met("a crash before a replacement");
                self.fate.crash();
                return Err(Self::io("replace", path, ErrorKind::Other));
            }
            _ => {}
        }
        let number = {
            let mut disk = self.disk();
            self.check_above(&disk, path)?;
            check_expected(&disk, path, replacement)?;
            disk.replacements += 1;
            disk.replacements
        };
        self.write(path.as_bytes(), replacement.bytes, None);
        let shown = path.to_string();
        self.fate.see(&Sight::Replaced { path: &shown, bytes: replacement.bytes, number });
        if fault == Some(3) {
            self.fate.met("a crash behind a replacement");
            self.fate.crash();
            return Err(Self::io("replace", path, ErrorKind::Other));
        }
        self.disk().stat(path)
    }
}

fn check_expected(disk: &Disk, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<(), FileError> {
    let found = match disk.stat(path) {
        Ok(stat) if stat.kind == FileKind::File => disk.files.get(path.as_bytes()),
        Ok(_) => return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" }),
        Err(_) => None,
    };
    let has_folder = path.parent().is_none_or(|above| disk.stat(&above).is_ok());
    if found.is_none() && !replacement.create_folders && !has_folder {
        return Err(FileError::NotFound { path: path.to_string() });
    }
    match (&replacement.expected, found) {
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
