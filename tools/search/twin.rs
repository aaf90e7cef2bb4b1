//! A tree in memory behind the files port, for the tests of searching.
//!
//! It is a workspace in memory that can do besides what a real folder cannot be made to do on demand: refuse one file, and
//! call back when a file is opened.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement,
};
use crate::workspace::memory::MemoryFiles;
use crate::workspace_path::WorkspacePath;

/// Called with the path of each file that is opened.
type OnOpen = Arc<dyn Fn(&WorkspacePath) + Send + Sync>;

/// A tree of files in memory; folders are there because files lie in them.
#[derive(Default, Clone)]
pub(crate) struct TreeTwin {
    files: Arc<MemoryFiles>,
    odd: Arc<Mutex<Odd>>,
    on_open: Option<OnOpen>,
}

/// What is no plain file, although a file stands in its place.
#[derive(Default)]
struct Odd {
    refused: BTreeMap<WorkspacePath, io::ErrorKind>,
    links: BTreeMap<WorkspacePath, WorkspacePath>,
}

impl TreeTwin {
    /// A tree of these files.
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let twin = Self::default();
        for (path, text) in files {
            twin.put(path, text.as_bytes());
        }
        twin
    }

    /// Writes a file.
    pub(crate) fn put(&self, path: &str, bytes: &[u8]) {
        let replacement = Replacement { bytes, expected: Expected::Any, create_folders: true };
        self.files.replace(&at(path), &replacement).unwrap();
    }

    /// Makes a file that this user may not open.
    pub(crate) fn refuse(&self, path: &str) {
        self.refuse_with(path, io::ErrorKind::PermissionDenied);
    }

    /// Makes a file that cannot be opened, with what the system says.
    pub(crate) fn refuse_with(&self, path: &str, kind: io::ErrorKind) {
        self.put(path, b"?");
        self.odd.lock().unwrap().refused.insert(at(path), kind);
    }

    /// Makes a link.
    pub(crate) fn link(&self, path: &str, to: &str) {
        self.put(path, b"");
        self.odd.lock().unwrap().links.insert(at(path), at(to));
    }

    /// The same tree, calling back when a file is opened.
    pub(crate) fn on_open(mut self, call: impl Fn(&WorkspacePath) + Send + Sync + 'static) -> Self {
        self.on_open = Some(Arc::new(call));
        self
    }

    fn link_at(&self, path: &WorkspacePath) -> Option<WorkspacePath> {
        self.odd.lock().unwrap().links.get(path).cloned()
    }
}

impl Files for TreeTwin {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(self.link_at(path).unwrap_or_else(|| path.clone()))
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        match self.link_at(path) {
            Some(to) if links == Links::Follow => self.stat(&to, links),
            Some(_) => Ok(FileStat { kind: FileKind::Link, ..self.files.stat(path, links)? }),
            None => self.files.stat(path, links),
        }
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        if let Some(call) = &self.on_open {
            call(path);
        }
        let refused = self.odd.lock().unwrap().refused.get(path).copied();
        if let Some(kind) = refused {
            return Err(FileError::Io { op: "open", path: path.to_string(), source: kind.into() });
        }
        match self.link_at(path) {
            Some(to) => self.open(&to),
            None => self.files.open(path),
        }
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        let mut entries = self.files.list(path)?;
        let odd = self.odd.lock().unwrap();
        entries.iter_mut().filter(|entry| odd.links.contains_key(&entry.path)).for_each(|entry| {
            entry.kind = FileKind::Link;
        });
        Ok(entries)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.files.replace(path, replacement)
    }
}

/// Bytes as an open file.
pub(crate) fn open_bytes(bytes: &[u8]) -> Box<dyn OpenFile> {
    let twin = TreeTwin::default();
    twin.put("f", bytes);
    twin.open(&at("f")).unwrap()
}

/// A workspace path from its printed form.
pub(crate) fn at(path: &str) -> WorkspacePath {
    WorkspacePath::parse(path, "/ws").unwrap()
}
