//! A workspace in memory: files without a disk, gone with the process.
//!
//! Folders are there because files lie in them. Nothing here is a link, so every path is its own canonical form. A
//! number that goes up with each change stands in for the time of the change: nothing here asks a clock.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Workspace, WorkspaceCapabilities};
use crate::digest::Digest;
use crate::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement,
};
use crate::workspace_path::WorkspacePath;

/// Most bytes that the files of one workspace in memory may hold together, when its host says nothing else.
pub const MEMORY_WORKSPACE_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Most files of one workspace in memory.
pub const MEMORY_FILES_MAX: usize = 100_000;
/// How the root is shown to people.
const DISPLAY_ROOT: &str = "memory:";
/// Mode of every file: there is nobody to keep out.
const FILE_MODE: u32 = 0o644;

/// Files in memory.
#[derive(Debug)]
pub struct MemoryFiles {
    tree: Mutex<Tree>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Tree {
    files: BTreeMap<WorkspacePath, Held>,
    bytes: usize,
    changes: u64,
}

#[derive(Debug, Clone)]
struct Held {
    bytes: Arc<[u8]>,
    /// Which change made it, from 1.
    change: u64,
}

impl Held {
    fn stat(&self) -> FileStat {
        FileStat {
            kind: FileKind::File,
            size_bytes: self.bytes.len() as u64,
            mode: FILE_MODE,
            link_count: 1,
            modified_unix_ns: i128::from(self.change),
            identity: (0, self.change),
        }
    }
}

/// Opens an empty workspace in memory. No command runs in it, whatever is wanted.
pub fn open(wanted: WorkspaceCapabilities) -> Workspace {
    Workspace::new(DISPLAY_ROOT, wanted, Arc::new(MemoryFiles::default()), None)
}

impl Default for MemoryFiles {
    fn default() -> Self {
        Self::new(MEMORY_WORKSPACE_BYTES_MAX)
    }
}

impl MemoryFiles {
    /// No files yet, and at most so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { tree: Mutex::default(), bytes_max }
    }

    fn look<T>(&self, look: impl FnOnce(&mut Tree) -> T) -> T {
        look(&mut self.tree.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Files for MemoryFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(path.clone())
    }

    fn stat(&self, path: &WorkspacePath, _links: Links) -> Result<FileStat, FileError> {
        self.look(|tree| match tree.files.get(path) {
            Some(held) => Ok(held.stat()),
            None if tree.is_folder(path) => Ok(FOLDER),
            None => Err(FileError::NotFound { path: path.to_string() }),
        })
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.look(|tree| match tree.files.get(path) {
            Some(held) => Ok(Box::new(OpenBytes {
                stat: held.stat(),
                canonical: path.clone(),
                cursor: Cursor::new(Arc::clone(&held.bytes)),
            }) as Box<dyn OpenFile>),
            None if tree.is_folder(path) => Err(FileError::NotAFile { path: path.to_string(), kind: "folder" }),
            None => Err(FileError::NotFound { path: path.to_string() }),
        })
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.look(|tree| {
            if tree.files.contains_key(path) {
                return Err(FileError::NotAFolder { path: path.to_string() });
            }
            let entries = tree.entries(path);
            if entries.is_empty() && !path.is_root() {
                return Err(FileError::NotFound { path: path.to_string() });
            }
            Ok(entries)
        })
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.look(|tree| {
            if tree.is_folder(path) {
                return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
            }
            let Some(held) = tree.files.get(path) else {
                return Err(FileError::NotFound { path: path.to_string() });
            };
            check_expected(path, Some(held), expected)?;
            tree.bytes -= held.bytes.len();
            tree.files.remove(path);
            Ok(())
        })
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.look(|tree| {
            tree.check_place(path, replacement.create_folders)?;
            check_expected(path, tree.files.get(path), &replacement.expected)?;
            let before = tree.files.get(path).map_or(0, |held| held.bytes.len());
            let after = tree.bytes - before + replacement.bytes.len();
            let is_one_more = !tree.files.contains_key(path);
            if after > self.bytes_max || (is_one_more && tree.files.len() >= MEMORY_FILES_MAX) {
                let source = io::Error::new(
                    io::ErrorKind::StorageFull,
                    format!(
                        "a workspace in memory holds at most {MEMORY_FILES_MAX} files and {} bytes",
                        self.bytes_max
                    ),
                );
                return Err(FileError::Io { op: "write", path: path.to_string(), source });
            }
            tree.changes += 1;
            let held = Held { bytes: replacement.bytes.into(), change: tree.changes };
            let stat = held.stat();
            tree.bytes = after;
            tree.files.insert(path.clone(), held);
            Ok(stat)
        })
    }
}

/// What is known of any folder.
const FOLDER: FileStat = FileStat {
    kind: FileKind::Folder,
    size_bytes: 0,
    mode: 0o755,
    link_count: 1,
    modified_unix_ns: 0,
    identity: (0, 0),
};

impl Tree {
    fn is_folder(&self, path: &WorkspacePath) -> bool {
        path.is_root() || {
            let inside = inside_of(path);
            self.below(&inside).next().is_some()
        }
    }

    /// The files whose paths begin so.
    fn below<'t>(&'t self, inside: &'t [u8]) -> impl Iterator<Item = (&'t WorkspacePath, &'t Held)> {
        let first = WorkspacePath::from_relative(path_of(inside));
        self.files
            .range((Bound::Included(first), Bound::Unbounded))
            .take_while(move |(path, _)| path.as_bytes().starts_with(inside))
    }

    fn entries(&self, folder: &WorkspacePath) -> Vec<FolderEntry> {
        let inside = inside_of(folder);
        let mut entries: BTreeMap<WorkspacePath, FileKind> = BTreeMap::new();
        for (path, _) in self.below(&inside) {
            let rest = &path.as_bytes()[inside.len()..];
            let name_bytes = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
            let kind = if name_bytes < rest.len() { FileKind::Folder } else { FileKind::File };
            let entry = WorkspacePath::from_relative(path_of(&path.as_bytes()[..inside.len() + name_bytes]));
            entries.insert(entry, kind);
        }
        entries.into_iter().map(|(path, kind)| FolderEntry { path, kind }).collect()
    }

    /// Whether a file may stand at the path: no folder does, and every name above it is a folder or may be made.
    fn check_place(&self, path: &WorkspacePath, create_folders: bool) -> Result<(), FileError> {
        if self.is_folder(path) {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        }
        let mut above = path.parent();
        while let Some(folder) = above.filter(|folder| !folder.is_root()) {
            if self.files.contains_key(&folder) {
                return Err(FileError::NotAFolder { path: folder.to_string() });
            }
            if !create_folders && !self.is_folder(&folder) {
                return Err(FileError::NotFound { path: folder.to_string() });
            }
            above = folder.parent();
        }
        Ok(())
    }
}

fn check_expected(path: &WorkspacePath, now: Option<&Held>, expected: &Expected) -> Result<(), FileError> {
    match (expected, now) {
        (Expected::Any, _) | (Expected::Absent, None) => Ok(()),
        (Expected::Absent, Some(_)) => Err(FileError::Exists { path: path.to_string() }),
        (Expected::Content(expected), now) => {
            let actual = now.map(|held| Digest::of(&held.bytes));
            if actual.as_ref() == Some(expected) {
                return Ok(());
            }
            Err(FileError::Changed {
                path: path.to_string(),
                expected: expected.to_string(),
                actual: actual.map_or_else(|| "absent".to_owned(), |digest| digest.to_string()),
            })
        }
    }
}

/// How the paths of everything in a folder begin.
fn inside_of(folder: &WorkspacePath) -> Vec<u8> {
    let mut bytes = folder.as_bytes().to_vec();
    if !bytes.is_empty() {
        bytes.push(b'/');
    }
    bytes
}

fn path_of(bytes: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt as _;
    std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// An open file: its bytes as they were when it was opened.
struct OpenBytes {
    stat: FileStat,
    canonical: WorkspacePath,
    cursor: Cursor<Arc<[u8]>>,
}

impl Read for OpenBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cursor.read(buffer)
    }
}

impl Seek for OpenBytes {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.cursor.seek(to)
    }
}

impl OpenFile for OpenBytes {
    fn stat(&self) -> &FileStat {
        &self.stat
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        Some(&self.canonical)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::{Expected, FileError, FileKind, Files as _, Links, MemoryFiles, Replacement, WorkspacePath};
    use crate::digest::Digest;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, "").unwrap()
    }

    fn put(files: &MemoryFiles, text: &str, bytes: &[u8], expected: Expected) -> Result<(), FileError> {
        files.replace(&path(text), &Replacement { bytes, expected, create_folders: true }).map(|_| ())
    }

    fn content(files: &MemoryFiles, text: &str) -> String {
        let mut read = String::new();
        files.open(&path(text)).unwrap().read_to_string(&mut read).unwrap();
        read
    }

    #[test]
    fn folders_are_there_because_files_lie_in_them() {
        let files = MemoryFiles::default();
        assert!(files.list(&path(".")).unwrap().is_empty());
        for name in ["a/b/f", "a.txt", "a-b/g", "a/z"] {
            put(&files, name, b"x", Expected::Absent).unwrap();
        }
        let shown = |at: &str| -> Vec<String> {
            files
                .list(&path(at))
                .unwrap()
                .iter()
                .map(|entry| format!("{}{}", entry.kind.as_str(), entry.path))
                .collect()
        };
        assert_eq!(shown("."), ["dira", "dira-b", "filea.txt"]);
        assert_eq!(shown("a"), ["dira/b", "filea/z"]);
        assert_eq!(files.stat(&path("a/b"), Links::Stay).unwrap().kind, FileKind::Folder);
        assert!(matches!(files.list(&path("a.txt")), Err(FileError::NotAFolder { .. })));
        assert!(matches!(files.list(&path("no")), Err(FileError::NotFound { .. })));
        assert!(matches!(files.open(&path("a")), Err(FileError::NotAFile { .. })));
        assert!(matches!(files.stat(&path("a.t"), Links::Follow), Err(FileError::NotFound { .. })));
    }

    #[test]
    fn what_is_expected_must_be_there() {
        let files = MemoryFiles::default();
        put(&files, "f", b"one", Expected::Absent).unwrap();
        assert!(matches!(put(&files, "f", b"x", Expected::Absent), Err(FileError::Exists { .. })));
        let changed = put(&files, "f", b"x", Expected::Content(Digest::of(b"other"))).unwrap_err();
        assert!(matches!(&changed, FileError::Changed { actual, .. } if *actual == Digest::of(b"one").to_string()));
        let before = files.open(&path("f")).unwrap();
        put(&files, "f", b"two", Expected::Content(Digest::of(b"one"))).unwrap();
        assert_eq!(content(&files, "f"), "two");
        assert_ne!(before.stat().identity, files.stat(&path("f"), Links::Follow).unwrap().identity);
        for (place, is_right) in [
            ("f/g", |error: &FileError| matches!(error, FileError::NotAFolder { path } if path == "f")),
            (".", |error: &FileError| matches!(error, FileError::NotAFile { .. })),
        ] as [(&str, fn(&FileError) -> bool); 2]
        {
            let error = put(&files, place, b"", Expected::Any).unwrap_err();
            assert!(is_right(&error), "{place}: {error}");
        }
        let unmade = Replacement { bytes: b"", expected: Expected::Any, create_folders: false };
        assert!(matches!(files.replace(&path("no/f"), &unmade), Err(FileError::NotFound { .. })));
    }

    #[test]
    fn what_is_removed_is_what_was_expected() {
        let files = MemoryFiles::default();
        put(&files, "d/f", b"one", Expected::Absent).unwrap();
        let other = files.remove(&path("d/f"), &Expected::Content(Digest::of(b"other")));
        assert!(matches!(other, Err(FileError::Changed { .. })));
        assert!(matches!(files.remove(&path("d"), &Expected::Any), Err(FileError::NotAFile { .. })));
        files.remove(&path("d/f"), &Expected::Content(Digest::of(b"one"))).unwrap();
        assert!(matches!(files.remove(&path("d/f"), &Expected::Any), Err(FileError::NotFound { .. })));
        assert!(files.list(&path(".")).unwrap().is_empty());
    }

    #[test]
    fn it_is_bounded_and_a_refused_write_changes_nothing() {
        let files = MemoryFiles::new(8);
        put(&files, "f", b"12345678", Expected::Any).unwrap();
        let full = put(&files, "g", b"1", Expected::Any).unwrap_err();
        assert!(matches!(&full, FileError::Io { source, .. } if source.kind() == std::io::ErrorKind::StorageFull));
        put(&files, "f", b"1234", Expected::Any).unwrap();
        put(&files, "g", b"1234", Expected::Any).unwrap();
        assert_eq!((content(&files, "f"), content(&files, "g")), ("1234".into(), "1234".into()));
    }
}
