//! Several changes of files that belong together: what they are, and how a failure of one is told.
//!
//! All of them are made, or none is left made. The way for providers without a better one is here too: one change
//! after the other, and back again when one fails.

use std::io::Read as _;

use thiserror::Error;

use super::{Expected, FileError, Files, Links, Replacement};
use crate::digest::Digest;
use crate::workspace_path::WorkspacePath;

/// One change of a file.
#[derive(Debug, Clone)]
pub enum FileChange<'a> {
    /// A new content, for a file that is there or a new one; folders above it are made.
    Put {
        /// Where.
        path: WorkspacePath,
        /// The content.
        bytes: &'a [u8],
        /// What must be there now.
        expected: Expected,
        /// Permission bits; those of the file that was there when none, or those of any new file.
        mode: Option<u32>,
    },
    /// The file goes; folders above it stay.
    Remove {
        /// Which.
        path: WorkspacePath,
        /// What must be there now.
        expected: Expected,
    },
    /// The file gets another name, where nothing is yet; folders above that are made.
    Move {
        /// Its name now.
        from: WorkspacePath,
        /// Its new name.
        to: WorkspacePath,
        /// What must be there now.
        expected: Expected,
    },
}

impl FileChange<'_> {
    /// The file that it changes, by its name before.
    pub fn path(&self) -> &WorkspacePath {
        match self {
            Self::Put { path, .. } | Self::Remove { path, .. } => path,
            Self::Move { from, .. } => from,
        }
    }
}

/// Why changes were not made.
#[derive(Debug, Error)]
#[error("{}{error}", if unrestored.is_empty() { "" } else { "some files could not be put back: " })]
pub struct TogetherError {
    /// The change that failed, by its number from 0; none when it was not a change but the end that was asked for.
    pub index: Option<usize>,
    /// Why.
    #[source]
    pub error: Box<FileError>,
    /// Files that had been changed and are again what they were.
    pub restored: Vec<WorkspacePath>,
    /// Files that had been changed and could not be put back, with why.
    pub unrestored: Vec<(WorkspacePath, FileError)>,
}

impl TogetherError {
    /// One change failed and nothing had been changed.
    pub fn before_anything(index: usize, error: FileError) -> Self {
        Self { index: Some(index), error: Box::new(error), restored: Vec::new(), unrestored: Vec::new() }
    }

    /// The end was asked for; nothing is changed.
    pub fn stopped(at: &WorkspacePath) -> Self {
        let source = std::io::Error::from(std::io::ErrorKind::Interrupted);
        let error = FileError::Io { op: "change", path: at.to_string(), source };
        Self { index: None, error: Box::new(error), restored: Vec::new(), unrestored: Vec::new() }
    }

    /// Whether it was the end that was asked for.
    pub fn is_stop(&self) -> bool {
        self.index.is_none()
    }
}

/// Makes the changes in their order; takes back what was made when one fails.
pub fn one_by_one<F: Files + ?Sized>(
    files: &F,
    changes: &[FileChange<'_>],
    go_on: &dyn Fn() -> bool,
) -> Result<(), TogetherError> {
    let mut made: Vec<Made> = Vec::new();
    for (index, change) in changes.iter().enumerate() {
        let failed = if go_on() {
            match make(files, change) {
                Ok(made_now) => {
                    made.push(made_now);
                    continue;
                }
                Err(error) => TogetherError::before_anything(index, error),
            }
        } else {
            TogetherError::stopped(change.path())
        };
        return Err(take_back(files, made, failed));
    }
    Ok(())
}

/// A change that was made, and what there was before.
struct Made {
    path: WorkspacePath,
    before: Option<Vec<u8>>,
    after: Option<Digest>,
    /// Where it went, for one that was moved.
    moved_to: Option<WorkspacePath>,
}

fn make<F: Files + ?Sized>(files: &F, change: &FileChange<'_>) -> Result<Made, FileError> {
    let path = change.path().clone();
    match change {
        FileChange::Put { bytes, expected, .. } => {
            let before = match expected {
                Expected::Absent => None,
                _ => content(files, &path)?,
            };
            // What was read is what goes: nobody else's change is taken for it later.
            let expected = before.as_deref().map_or(Expected::Absent, |before| match expected {
                Expected::Content(digest) => Expected::Content(digest.clone()),
                _ => Expected::Content(Digest::of(before)),
            });
            files.replace(&path, &Replacement { bytes, expected, create_folders: true })?;
            Ok(Made { path, before, after: Some(Digest::of(bytes)), moved_to: None })
        }
        FileChange::Remove { expected, .. } => {
            let before = content(files, &path)?;
            files.remove(&path, expected)?;
            Ok(Made { path, before, after: None, moved_to: None })
        }
        FileChange::Move { to, expected, .. } => {
            let before = content(files, &path)?;
            let Some(bytes) = before.as_deref() else { return Err(FileError::NotFound { path: path.to_string() }) };
            files.replace(to, &Replacement { bytes, expected: Expected::Absent, create_folders: true })?;
            if let Err(error) = files.remove(&path, expected) {
                // The copy is ours alone; where it cannot go either, the error that counts is the first one.
                let _ = files.remove(to, &Expected::Content(Digest::of(bytes)));
                return Err(error);
            }
            Ok(Made { path, before, after: None, moved_to: Some(to.clone()) })
        }
    }
}

fn content<F: Files + ?Sized>(files: &F, path: &WorkspacePath) -> Result<Option<Vec<u8>>, FileError> {
    let mut file = match files.open(path) {
        Ok(file) => file,
        Err(FileError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    let read = file.read_to_end(&mut bytes);
    read.map_err(|source| FileError::Io { op: "read", path: path.to_string(), source })?;
    Ok(Some(bytes))
}

fn take_back<F: Files + ?Sized>(files: &F, made: Vec<Made>, mut failed: TogetherError) -> TogetherError {
    for Made { path, before, after, moved_to } in made.into_iter().rev() {
        let expected = after.map_or(Expected::Absent, Expected::Content);
        let mut back = match &before {
            Some(bytes) => files.replace(&path, &Replacement { bytes, expected, create_folders: true }).map(|_| ()),
            None => files.remove(&path, &expected),
        };
        if let (Ok(()), Some(to), Some(bytes)) = (&back, &moved_to, &before) {
            back = files.remove(to, &Expected::Content(Digest::of(bytes)));
        }
        match back {
            Ok(()) => failed.restored.push(path),
            Err(error) => failed.unrestored.push((path, error)),
        }
    }
    failed.restored.sort();
    failed
}

/// Whether anything, a link too, stands at a path.
///
/// # Errors
/// What [`Files::stat`] says, but for a path where nothing is.
pub fn is_taken(files: &dyn Files, path: &WorkspacePath) -> Result<bool, FileError> {
    match files.stat(path, Links::Stay) {
        Ok(_) => Ok(true),
        Err(FileError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
