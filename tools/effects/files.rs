//! The files port: one folder and what is beneath it, and no way out of it.
//!
//! Calls are blocking and meant to be short: small files are read and written inline, long work (walking a tree,
//! streaming a large file) runs on the blocking pool, in the tool that does it. A path never leaves the root, not
//! by `..`, not by a link, not by a race between check and use: every access is made beneath an open descriptor.

use std::io::{Read, Seek};

use thiserror::Error;

use crate::digest::Digest;
use crate::workspace_path::WorkspacePath;

/// Reads and replaces files beneath one root.
pub trait Files: Send + Sync {
    /// The path with every link in it followed; names beyond the last existing folder stay as written.
    ///
    /// # Errors
    /// [`FileError::Outside`] when a link leaves the workspace.
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError>;

    /// What stands at the path.
    ///
    /// # Errors
    /// [`FileError::NotFound`] and whatever the file system says.
    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError>;

    /// Opens a regular file for reading, following links inside the workspace.
    ///
    /// # Errors
    /// [`FileError::NotAFile`] for folders, sockets, pipes and devices, which could block or never end.
    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError>;

    /// Whether what the file at the path holds may be shown here, whether there is one or not. Asked before
    /// somebody else (git) reads it. Whatever stands before another port must pass it on.
    ///
    /// # Errors
    /// [`FileError::Denied`].
    fn may_read(&self, _path: &WorkspacePath) -> Result<(), FileError> {
        Ok(())
    }

    /// The entries of a folder, sorted by name (bytes).
    ///
    /// # Errors
    /// [`FileError::NotAFolder`] when it is none.
    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError>;

    /// Replaces or creates a file as a whole: a reader sees the old bytes or the new ones, also after a crash.
    /// Keeps the mode (and the owner where allowed) of what it replaces; follows a link inside the workspace.
    ///
    /// # Errors
    /// [`FileError::Changed`] when [`Replacement::expected`] does not fit what is there; the file is then unchanged.
    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError>;

    /// Opens or makes a log: a file that is only appended to, and held for writing by nobody else. Missing folders
    /// above it are made. No link is followed, neither above it nor at its name.
    ///
    /// # Errors
    /// [`FileError::Held`] while somebody else holds it, [`FileError::NotAFile`] for anything but a file with one name,
    /// and [`FileError::Io`] where this port keeps no logs ([`std::io::ErrorKind::Unsupported`]).
    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        let source = std::io::Error::new(std::io::ErrorKind::Unsupported, "no logs are kept here");
        Err(FileError::Io { op: "open a log", path: path.to_string(), source })
    }
}

/// A log that is held for writing.
pub trait LogFile: Send + Sync {
    /// All of it, at most `bytes_max` bytes.
    ///
    /// # Errors
    /// What the system says, and [`std::io::ErrorKind::FileTooLarge`] for more than `bytes_max`.
    fn read(&mut self, bytes_max: u64) -> std::io::Result<Vec<u8>>;

    /// Puts bytes at its end; they are on the disk when this returns.
    ///
    /// # Errors
    /// What the system says; a part of the bytes may be there then.
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()>;

    /// Cuts it to this length.
    ///
    /// # Errors
    /// What the system says.
    fn cut(&mut self, bytes: u64) -> std::io::Result<()>;
}

/// An open regular file.
pub trait OpenFile: Read + Seek + Send {
    /// What it was when it was opened.
    fn stat(&self) -> &FileStat;

    /// The path without links that it was opened by, where the provider knows it; else [`Files::canonical`] tells.
    fn canonical(&self) -> Option<&WorkspacePath> {
        None
    }
}

/// What to do with a link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// Look at what it points to.
    Follow,
    /// Look at the link.
    Stay,
}

/// The kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A symbolic link.
    Link,
    /// A socket, pipe or device.
    Special,
}

impl FileKind {
    /// The word for it in a listing: `file`, `dir`, `link` or `special`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Folder => "dir",
            Self::Link => "link",
            Self::Special => "special",
        }
    }
}

/// What is known of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes; 0 for files that make their content on the fly (`/proc`).
    pub size_bytes: u64,
    /// Permission bits.
    pub mode: u32,
    /// How many names the file has.
    pub link_count: u64,
    /// Last change, in nanoseconds since 1970.
    pub modified_unix_ns: i128,
    /// Device and inode.
    pub identity: (u64, u64),
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its whole path.
    pub path: WorkspacePath,
    /// What it is; links are not followed.
    pub kind: FileKind,
}

/// A whole new content for a file.
#[derive(Debug, Clone)]
pub struct Replacement<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// What must be there now.
    pub expected: Expected,
    /// Whether missing folders above it are made.
    pub create_folders: bool,
}

/// What must be at a path for a replacement to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// Anything or nothing.
    Any,
    /// Nothing.
    Absent,
    /// A file whose bytes have this digest.
    Content(Digest),
}

/// Why a file access failed; paths are workspace paths in printed form.
#[derive(Debug, Error)]
pub enum FileError {
    /// Nothing there.
    #[error("no such file or folder: {path}")]
    NotFound {
        /// Where.
        path: String,
    },
    /// The path leaves the workspace.
    #[error("{path} leaves the workspace{}; use a path inside it", .via.as_ref().map(|via| format!(" (through the link {via})")).unwrap_or_default())]
    Outside {
        /// Where.
        path: String,
        /// The link that leads out, when one does.
        via: Option<String>,
    },
    /// The workspace itself is not there: never was, or went while it was in use.
    #[error("the workspace folder {root} is missing or was removed; make it again or open another")]
    WorkspaceMissing {
        /// The folder, as it is shown to people.
        root: String,
    },
    /// It is not a regular file.
    #[error("{path} is a {kind}, not a regular file")]
    NotAFile {
        /// Where.
        path: String,
        /// What it is instead.
        kind: &'static str,
    },
    /// It is not a folder.
    #[error("{path} is not a folder")]
    NotAFolder {
        /// Where.
        path: String,
    },
    /// It exists already.
    #[error("{path} exists already")]
    Exists {
        /// Where.
        path: String,
    },
    /// Its content is not the expected one.
    #[error("{path} changed: expected {expected}, found {actual}; read it again")]
    Changed {
        /// Where.
        path: String,
        /// The digest that was expected.
        expected: String,
        /// The digest that is there, or `absent`.
        actual: String,
    },
    /// It has another name, which may lie outside of the workspace.
    #[error(
        "{path} has {link_count} hard links, and another name of it may lie outside of the workspace; it is not written"
    )]
    HardLinked {
        /// Where.
        path: String,
        /// How many names it has.
        link_count: u64,
    },
    /// Somebody else writes it.
    #[error("{path} is written by somebody else now; try again when they are done")]
    Held {
        /// Where.
        path: String,
    },
    /// A rule of the session says no.
    #[error("{path} is denied by policy ({rule})")]
    Denied {
        /// Where.
        path: String,
        /// The rule.
        rule: String,
    },
    /// The operating system said no.
    #[error("{op} {path}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: String,
        /// The system's own words.
        source: std::io::Error,
    },
}
