//! A tree in memory behind the files port, for the tests of searching.
//!
//! It can do what a real folder cannot be made to do on demand: refuse one file, and call back when a file is opened.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

use crate::effects::files::{FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement};
use crate::workspace_path::WorkspacePath;

/// Called with the path of each file that is opened.
type OnOpen = Arc<dyn Fn(&WorkspacePath) + Send + Sync>;

/// A tree of files in memory; folders are there because files lie in them.
#[derive(Default, Clone)]
pub(crate) struct TreeTwin {
    nodes: Arc<Mutex<BTreeMap<WorkspacePath, Node>>>,
    on_open: Option<OnOpen>,
}

#[derive(Clone)]
enum Node {
    File(Arc<Vec<u8>>),
    Refused,
    Link(WorkspacePath),
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
        self.insert(path, Node::File(Arc::new(bytes.to_vec())));
    }

    /// Makes a file that cannot be opened.
    pub(crate) fn refuse(&self, path: &str) {
        self.insert(path, Node::Refused);
    }

    /// Makes a link.
    pub(crate) fn link(&self, path: &str, to: &str) {
        self.insert(path, Node::Link(at(to)));
    }

    /// The same tree, calling back when a file is opened.
    pub(crate) fn on_open(mut self, call: impl Fn(&WorkspacePath) + Send + Sync + 'static) -> Self {
        self.on_open = Some(Arc::new(call));
        self
    }

    fn insert(&self, path: &str, node: Node) {
        self.nodes.lock().unwrap().insert(at(path), node);
    }

    fn node(&self, path: &WorkspacePath) -> Option<Node> {
        self.nodes.lock().unwrap().get(path).cloned()
    }

    fn is_folder(&self, path: &WorkspacePath) -> bool {
        path.is_root() || {
            let inside = prefix_of(path);
            self.nodes.lock().unwrap().keys().any(|key| key.as_bytes().starts_with(&inside))
        }
    }
}

impl Files for TreeTwin {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(match self.node(path) {
            Some(Node::Link(to)) => to,
            _ => path.clone(),
        })
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        match self.node(path) {
            Some(Node::Link(to)) if links == Links::Follow => self.stat(&to, links),
            Some(Node::Link(_)) => Ok(stat(FileKind::Link, 0)),
            Some(Node::File(bytes)) => Ok(stat(FileKind::File, bytes.len())),
            Some(Node::Refused) => Ok(stat(FileKind::File, 1)),
            None if self.is_folder(path) => Ok(stat(FileKind::Folder, 0)),
            None => Err(FileError::NotFound { path: path.to_string() }),
        }
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        if let Some(call) = &self.on_open {
            call(path);
        }
        match self.node(path) {
            Some(Node::File(bytes)) => Ok(open_bytes(&bytes)),
            Some(Node::Link(to)) => self.open(&to),
            Some(Node::Refused) => Err(FileError::Io {
                op: "open",
                path: path.to_string(),
                source: io::Error::from(io::ErrorKind::PermissionDenied),
            }),
            None => Err(FileError::NotFound { path: path.to_string() }),
        }
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        let inside = prefix_of(path);
        let mut entries: BTreeMap<Vec<u8>, FileKind> = BTreeMap::new();
        for (key, node) in self.nodes.lock().unwrap().iter() {
            let Some(rest) = key.as_bytes().strip_prefix(inside.as_slice()) else { continue };
            let kind = match node {
                _ if rest.contains(&b'/') => FileKind::Folder,
                Node::Link(_) => FileKind::Link,
                _ => FileKind::File,
            };
            let name = rest.split(|byte| *byte == b'/').next().unwrap_or_default();
            entries.insert([inside.as_slice(), name].concat(), kind);
        }
        let path_of = |bytes: &[u8]| {
            use std::os::unix::ffi::OsStrExt as _;
            WorkspacePath::from_relative(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes)))
        };
        Ok(entries.into_iter().map(|(bytes, kind)| FolderEntry { path: path_of(&bytes), kind }).collect())
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.nodes.lock().unwrap().insert(path.clone(), Node::File(Arc::new(replacement.bytes.to_vec())));
        Ok(stat(FileKind::File, replacement.bytes.len()))
    }
}

/// Bytes as an open file.
pub(crate) fn open_bytes(bytes: &[u8]) -> Box<dyn OpenFile> {
    Box::new(OpenBytes { cursor: Cursor::new(bytes.to_vec()), stat: stat(FileKind::File, bytes.len()) })
}

/// A workspace path from its printed form.
pub(crate) fn at(path: &str) -> WorkspacePath {
    WorkspacePath::parse(path, "/ws").unwrap()
}

struct OpenBytes {
    cursor: Cursor<Vec<u8>>,
    stat: FileStat,
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
}

fn prefix_of(path: &WorkspacePath) -> Vec<u8> {
    let mut bytes = path.as_bytes().to_vec();
    if !bytes.is_empty() {
        bytes.push(b'/');
    }
    bytes
}

fn stat(kind: FileKind, size: usize) -> FileStat {
    FileStat { kind, size_bytes: size as u64, mode: 0o644, link_count: 1, modified_unix_ns: 0, identity: (0, 0) }
}
