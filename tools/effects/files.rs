//! The files port: one folder and what is beneath it, and no way out of it.
//!
//! Calls are blocking and meant to be short: small files are read and written inline, long work (walking a tree,
//! streaming a large file) runs on the blocking pool, in the tool that does it. A path never leaves the root, not
//! by `..`, not by a link, not by a race between check and use: every access is made beneath an open descriptor.

pub mod together;

use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use self::together::{FileChange, TogetherError};
use crate::cancellation::{CancelReason, Cancellation};
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

    /// As [`Self::open`], for a path that was just listed as a regular file: what it is need not be looked at first.
    ///
    /// # Errors
    /// As [`Self::open`].
    fn open_listed(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.open(path)
    }

    /// The folder on this machine whose content this port gives, unaltered; none when what is read through it may be
    /// anything else. Whatever stands before another port and alters nothing passes it on.
    fn folder_on_disk(&self) -> Option<&Path> {
        None
    }

    /// Whether [`Self::may_read`] can say no.
    fn is_guarded(&self) -> bool {
        false
    }

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

    /// As [`Files::list`], with the sizes of files where the listing itself tells them: asking for each is slow where
    /// every question crosses a network. Whatever stands before another port must pass it on.
    ///
    /// # Errors
    /// As [`Files::list`].
    fn list_sized(&self, path: &WorkspacePath) -> Result<Vec<SizedEntry>, FileError> {
        Ok(self.list(path)?.into_iter().map(|entry| SizedEntry { entry, size_bytes: None }).collect())
    }

    /// Most entries that one search should look at, where each costs a request; none where looking is cheap.
    /// Whatever stands before another port must pass it on.
    fn walk_entries_max(&self) -> Option<u64> {
        None
    }

    /// The same files, whose accesses end when this signal is given; none where an access is too short for that.
    /// Whatever stands before another port must pass it on.
    fn bound_to(&self, _cancel: &Cancellation) -> Option<Arc<dyn Files>> {
        None
    }

    /// Whether a file can come in pieces here. Whatever stands before another port must pass it on.
    fn takes_pieces(&self) -> bool {
        false
    }

    /// Begins a file that comes in pieces; missing folders above it are made. Whatever stands before another port must
    /// pass it on, when it lets files be written.
    ///
    /// # Errors
    /// [`FileError`], the same that [`Files::replace`] gives for such a place.
    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        Err(FileError::Unsupported { op: "begin", path: path.to_string() })
    }

    /// Whether a file at this path may be written here, whether there is one or not. Asked when a call writes to a path
    /// that it did not name. Whatever stands before another port must pass it on.
    ///
    /// # Errors
    /// [`FileError::Denied`].
    fn may_write(&self, _path: &WorkspacePath) -> Result<(), FileError> {
        Ok(())
    }

    /// Replaces or creates a file as a whole: a reader sees the old bytes or the new ones, also after a crash.
    /// Keeps the mode (and the owner where allowed) of what it replaces; follows a link inside the workspace.
    ///
    /// # Errors
    /// [`FileError::Changed`] when [`Replacement::expected`] does not fit what is there; the file is then unchanged.
    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError>;

    /// Removes a regular file; the folders above it stay. A link is not followed.
    ///
    /// # Errors
    /// As [`Self::replace`]; [`FileError::Unsupported`] where files cannot be removed.
    fn remove(&self, path: &WorkspacePath, _expected: &Expected) -> Result<(), FileError> {
        Err(FileError::Unsupported { op: "remove", path: path.to_string() })
    }

    /// Makes several changes, all of them or none. `go_on` is asked between the steps; once it says no, what was
    /// done is taken back. Where a provider has no better way, the changes are made one after the other; when one fails,
    /// those before it are taken back, and itself too where it happened all the same. A process that is killed half-way
    /// then leaves them half done, and so may a second failure on the way back, which is told by name.
    ///
    /// # Errors
    /// [`TogetherError`], which says what was taken back and what could not be.
    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        together::one_by_one(self, changes, go_on)
    }

    /// Opens or makes a log: a file that is only appended to, and held for writing by nobody else. Missing folders
    /// above it are made. No link is followed, neither above it nor at its name.
    ///
    /// # Errors
    /// [`FileError::Held`] while somebody else holds it, [`FileError::NotAFile`] for anything but a file with one name,
    /// and [`FileError::Unsupported`] where this port keeps no logs.
    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        Err(FileError::Unsupported { op: "keep the log", path: path.to_string() })
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

/// A file that comes in pieces. Its bytes stand beside the place that they are for, under no name or one of their own,
/// until [`NewFile::put`] gives them their place; dropped before that, they are gone.
pub trait NewFile: Send + Sync {
    /// Makes room for so many bytes, where the file system can.
    ///
    /// # Errors
    /// [`FileError::Io`] when there is no room.
    fn reserve(&self, bytes: u64) -> Result<(), FileError>;

    /// Writes bytes from a place on.
    ///
    /// # Errors
    /// [`FileError::Io`].
    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), FileError>;

    /// Reads bytes that were written, from a place on; 0 at the end.
    ///
    /// # Errors
    /// [`FileError::Io`].
    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize, FileError>;

    /// Tells that the bytes before a place are not needed again: whoever keeps them may begin to make them durable, so
    /// that [`NewFile::put`] finds little left to do.
    fn done_before(&self, _at: u64) {}

    /// Cuts it, or makes it longer with zeros.
    ///
    /// # Errors
    /// [`FileError::Io`].
    fn set_size(&self, bytes: u64) -> Result<(), FileError>;

    /// Makes it durable and gives it its place in one step, if what is there now is what is expected. `goes_on` is
    /// asked right before that step; when it says no, nothing was done.
    ///
    /// # Errors
    /// [`FileError::Exists`] and [`FileError::Changed`]; what is there is untouched then. [`FileError::Stopped`] when
    /// it was not to go on.
    fn put(&self, expected: &Expected, goes_on: &dyn Fn() -> Result<(), CancelReason>) -> Result<FileStat, FileError>;
}

/// An open regular file.
pub trait OpenFile: Read + Seek + Send {
    /// What it was when it was opened.
    fn stat(&self) -> &FileStat;

    /// The path without links that it was opened by, where the provider knows it; else [`Files::canonical`] tells.
    fn canonical(&self) -> Option<&WorkspacePath> {
        None
    }

    /// What it is now: somebody may write to it while it is read. What it was when it was opened, where the provider
    /// gives out contents that cannot change.
    ///
    /// # Errors
    /// What the system says.
    fn stat_now(&self) -> std::io::Result<FileStat> {
        Ok(*self.stat())
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

/// What tells one state of a file from another without reading it. Two states within one tick of the file system's
/// clock can have the same stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// Device and inode.
    pub identity: (u64, u64),
    /// Size in bytes.
    pub size_bytes: u64,
    /// Last change, in nanoseconds since 1970.
    pub modified_unix_ns: i128,
}

impl FileStat {
    /// Its stamp.
    pub fn stamp(&self) -> FileStamp {
        let Self { identity, size_bytes, modified_unix_ns, .. } = *self;
        FileStamp { identity, size_bytes, modified_unix_ns }
    }
}

impl FileStamp {
    /// Span after a change in which another one may leave the stamp as it is, in milliseconds.
    const TICK_MS_MAX: i128 = 2000;

    /// Whether any change from this moment on gives another stamp: the last one is long enough ago.
    pub fn is_settled(&self, now_unix_ms: u64) -> bool {
        i128::from(now_unix_ms) - self.modified_unix_ns / 1_000_000 > Self::TICK_MS_MAX
    }
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderEntry {
    /// Its whole path.
    pub path: WorkspacePath,
    /// What it is; links are not followed.
    pub kind: FileKind,
}

/// One name in a folder, with its size where it is known already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizedEntry {
    /// The name.
    pub entry: FolderEntry,
    /// Size of a file in bytes, where the listing tells it.
    pub size_bytes: Option<u64>,
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
    /// This kind of workspace cannot do it.
    #[error("this workspace cannot {op} {path}")]
    Unsupported {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: String,
    },
    /// The sandbox of the session is read-only, and tools keep to it as commands do.
    #[error(
        "{path} is not written: the sandbox of this session is read_only (--sandbox read-only, FileAccess::ReadOnly); \
         open the session with workspace_write or without a sandbox to change files"
    )]
    Sandboxed {
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
    /// It ended before it was done: it took too long, or nobody wanted it any more.
    #[error("{op} {path}: {reason}")]
    Stopped {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: String,
        /// Why it ended.
        reason: CancelReason,
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

impl FileError {
    /// Whether another try may find it otherwise: the system failed, and did not refuse.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() != std::io::ErrorKind::PermissionDenied)
    }
}
