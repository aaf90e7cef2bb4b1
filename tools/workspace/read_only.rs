//! Files that may be read and not be written: what is handed out where writing was not granted.
//!
//! A capability is more than a flag beside the files: whoever holds a workspace without `write` has nothing in its
//! hands that writes.

use std::io;
use std::sync::Arc;

use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{Expected, FileError, FileStat, Files, FolderEntry, Links, OpenFile, Replacement};
use crate::workspace_path::WorkspacePath;

/// The same files without their way to be replaced.
pub(super) struct ReadOnlyFiles(pub(super) Arc<dyn Files>);

impl Files for ReadOnlyFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.0.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.0.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.0.open(path)
    }

    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.0.may_read(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.0.list(path)
    }

    fn replace(&self, path: &WorkspacePath, _replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Err(not_granted(path))
    }

    fn remove(&self, path: &WorkspacePath, _expected: &Expected) -> Result<(), FileError> {
        Err(not_granted(path))
    }

    fn change_together(&self, changes: &[FileChange<'_>], _go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        match changes.first() {
            Some(first) => Err(TogetherError::before_anything(0, not_granted(first.path()))),
            None => Ok(()),
        }
    }
}

fn not_granted(path: &WorkspacePath) -> FileError {
    let source = io::Error::new(io::ErrorKind::PermissionDenied, "writing is not granted here");
    FileError::Io { op: "write", path: path.to_string(), source }
}
