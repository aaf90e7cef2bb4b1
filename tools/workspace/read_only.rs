//! Files that may be read and not be written: what is handed out where writing was not granted, or where the sandbox
//! of the session says so.
//!
//! A capability is more than a flag beside the files: whoever holds a workspace without `write` has nothing in its
//! hands that writes. In a sandbox the tools that write are there all the same, and say by which option they are held.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::cancellation::Cancellation;
use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{
    Expected, FileError, FileStat, Files, FolderEntry, Links, LogFile, NewFile, OpenFile, Replacement, SizedEntry,
};
use crate::workspace_path::WorkspacePath;

/// The same files without their way to be replaced.
pub(super) struct ReadOnlyFiles {
    files: Arc<dyn Files>,
    why: Why,
}

/// Why files are not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// Whoever holds them was not granted it.
    NotGranted,
    /// The session's sandbox is read-only.
    Sandbox,
}

impl ReadOnlyFiles {
    /// Stands before these files.
    pub(super) fn over(files: Arc<dyn Files>, why: Why) -> Arc<dyn Files> {
        Arc::new(Self { files, why })
    }

    fn refused(&self, path: &WorkspacePath) -> FileError {
        let path = path.to_string();
        match self.why {
            Why::Sandbox => FileError::Sandboxed { path },
            Why::NotGranted => {
                let source = io::Error::new(io::ErrorKind::PermissionDenied, "writing is not granted here");
                FileError::Io { op: "write", path, source }
            }
        }
    }
}

impl Files for ReadOnlyFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.files.open(path)
    }

    fn open_listed(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.files.open_listed(path)
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        self.files.folder_on_disk()
    }

    fn is_guarded(&self) -> bool {
        self.files.is_guarded()
    }

    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.files.may_read(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn list_sized(&self, path: &WorkspacePath) -> Result<Vec<SizedEntry>, FileError> {
        self.files.list_sized(path)
    }

    fn walk_entries_max(&self) -> Option<u64> {
        self.files.walk_entries_max()
    }

    fn bound_to(&self, cancel: &Cancellation) -> Option<Arc<dyn Files>> {
        self.files.bound_to(cancel).map(|files| Self::over(files, self.why))
    }

    /// As behind it in a sandbox, where the tools that take pieces are there and say why they write nothing.
    fn takes_pieces(&self) -> bool {
        self.why == Why::Sandbox && self.files.takes_pieces()
    }

    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        Err(self.refused(path))
    }

    fn may_write(&self, path: &WorkspacePath) -> Result<(), FileError> {
        Err(self.refused(path))
    }

    fn replace(&self, path: &WorkspacePath, _replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Err(self.refused(path))
    }

    fn remove(&self, path: &WorkspacePath, _expected: &Expected) -> Result<(), FileError> {
        Err(self.refused(path))
    }

    fn change_together(&self, changes: &[FileChange<'_>], _go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        match changes.first() {
            Some(first) => Err(TogetherError::before_anything(0, self.refused(first.path()))),
            None => Ok(()),
        }
    }

    /// None: what needs one does without ([`FileError::Unsupported`]).
    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        Err(FileError::Unsupported { op: "keep the log", path: path.to_string() })
    }
}
