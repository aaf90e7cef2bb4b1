//! Files that may be read and not be written: what is handed out where writing was not granted.
//!
//! A capability is more than a flag beside the files: whoever holds a workspace without `write` has nothing in its
//! hands that writes.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::cancellation::Cancellation;
use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{
    Expected, FileError, FileStat, Files, FolderEntry, Links, OpenFile, Replacement, SizedEntry,
};
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

    fn open_listed(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.0.open_listed(path)
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        self.0.folder_on_disk()
    }

    fn is_guarded(&self) -> bool {
        self.0.is_guarded()
    }

    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        self.0.may_read(path)
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.0.list(path)
    }

    fn list_sized(&self, path: &WorkspacePath) -> Result<Vec<SizedEntry>, FileError> {
        self.0.list_sized(path)
    }

    fn walk_entries_max(&self) -> Option<u64> {
        self.0.walk_entries_max()
    }

    fn bound_to(&self, cancel: &Cancellation) -> Option<Arc<dyn Files>> {
        self.0.bound_to(cancel).map(|files| Arc::new(Self(files)) as _)
    }

    fn may_write(&self, path: &WorkspacePath) -> Result<(), FileError> {
        Err(refused(path))
    }

    fn replace(&self, path: &WorkspacePath, _replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Err(refused(path))
    }

    fn remove(&self, path: &WorkspacePath, _expected: &Expected) -> Result<(), FileError> {
        Err(refused(path))
    }

    fn change_together(&self, changes: &[FileChange<'_>], _go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        match changes.first() {
            Some(first) => Err(TogetherError::before_anything(0, refused(first.path()))),
            None => Ok(()),
        }
    }
}

fn refused(path: &WorkspacePath) -> FileError {
    let source = io::Error::new(io::ErrorKind::PermissionDenied, "writing is not granted here");
    FileError::Io { op: "write", path: path.to_string(), source }
}
