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
    /// Files that had been changed, or of which that is not known, and that could not be put back, with why.
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

/// Makes the changes in their order; takes back what was made when one fails. A change that fails in a way that leaves
/// open whether it happened (its folder could not be synced, its answer did not come) is looked at: it counts as made
/// when it stands there.
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
                Err(halted) => {
                    let Halted { error, made: after_all, unknown } = *halted;
                    made.extend(after_all);
                    let unrestored = unknown.into_iter().map(|path| (path.clone(), not_known(&path))).collect();
                    TogetherError { unrestored, ..TogetherError::before_anything(index, error) }
                }
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

/// A change that failed.
struct Halted {
    error: FileError,
    /// It was made all the same.
    made: Option<Made>,
    /// A file that may have been changed, and could not be looked at or cleared away.
    unknown: Option<WorkspacePath>,
}

/// How a file stands of which a change has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// As before, or as somebody else made it since.
    Unchanged,
    /// As the change was to leave it.
    Changed,
    /// It cannot be looked at.
    Unknown,
}

impl Halted {
    fn made(error: FileError, made: Made) -> Box<Self> {
        Box::new(Self { error, made: Some(made), unknown: None })
    }

    fn unknown(error: FileError, unknown: Option<WorkspacePath>) -> Box<Self> {
        Box::new(Self { error, made: None, unknown })
    }
}

impl From<FileError> for Box<Halted> {
    fn from(error: FileError) -> Self {
        Halted::unknown(error, None)
    }
}

fn make<F: Files + ?Sized>(files: &F, change: &FileChange<'_>) -> Result<Made, Box<Halted>> {
    let path = change.path().clone();
    let (made, result) = match change {
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
            let result = files.replace(&path, &Replacement { bytes, expected, create_folders: true }).map(|_| ());
            (Made { path, before, after: Some(Digest::of(bytes)), moved_to: None }, result)
        }
        FileChange::Remove { expected, .. } => {
            let before = content(files, &path)?;
            let result = files.remove(&path, expected);
            (Made { path, before, after: None, moved_to: None }, result)
        }
        FileChange::Move { to, expected, .. } => return make_move(files, path, to, expected),
    };
    let Err(error) = result else { return Ok(made) };
    Err(match standing(files, &made.path, made.after.as_ref(), &error) {
        Standing::Unchanged => error.into(),
        Standing::Changed => Halted::made(error, made),
        Standing::Unknown => Halted::unknown(error, Some(made.path)),
    })
}

/// A copy under the new name; then the old one goes.
fn make_move<F: Files + ?Sized>(
    files: &F,
    path: WorkspacePath,
    to: &WorkspacePath,
    expected: &Expected,
) -> Result<Made, Box<Halted>> {
    let before = content(files, &path)?;
    let Some(bytes) = before.as_deref() else { return Err(FileError::NotFound { path: path.to_string() }.into()) };
    let digest = Digest::of(bytes);
    // The copy is ours alone; where it cannot go either, it has to be told.
    let without_copy = |error: FileError| {
        let gone = remove_surely(files, to, &digest);
        Halted::unknown(error, gone.err().map(|_| to.clone()))
    };
    if let Err(error) = files.replace(to, &Replacement { bytes, expected: Expected::Absent, create_folders: true }) {
        return Err(match standing(files, to, Some(&digest), &error) {
            Standing::Unchanged => error.into(),
            Standing::Changed | Standing::Unknown => without_copy(error),
        });
    }
    let Err(error) = files.remove(&path, expected) else {
        return Ok(Made { path, before, after: None, moved_to: Some(to.clone()) });
    };
    Err(match standing(files, &path, None, &error) {
        Standing::Unchanged => without_copy(error),
        Standing::Changed => Halted::made(error, Made { path, before, after: None, moved_to: Some(to.clone()) }),
        // The copy may be all that there is: it stays.
        Standing::Unknown => Halted::unknown(error, Some(path)),
    })
}

/// How a file stands whose change failed so; `after` is what the change was to leave there.
fn standing<F: Files + ?Sized>(files: &F, path: &WorkspacePath, after: Option<&Digest>, error: &FileError) -> Standing {
    // Everything else was refused before anything happened.
    if !matches!(error, FileError::Io { .. } | FileError::Stopped { .. }) {
        return Standing::Unchanged;
    }
    match content(files, path) {
        Ok(now) if now.as_deref().map(Digest::of).as_ref() == after => Standing::Changed,
        Ok(_) => Standing::Unchanged,
        Err(_) => Standing::Unknown,
    }
}

/// Removes what is ours; that it is gone is what counts.
fn remove_surely<F: Files + ?Sized>(files: &F, path: &WorkspacePath, ours: &Digest) -> Result<(), FileError> {
    match files.remove(path, &Expected::Content(ours.clone())) {
        Err(FileError::NotFound { .. }) => Ok(()),
        Err(error) if standing(files, path, None, &error) == Standing::Changed => Ok(()),
        removed => removed,
    }
}

fn left_there(path: &WorkspacePath, old: &WorkspacePath) -> FileError {
    let source = std::io::Error::other(format!("it holds what {old} held, which could not be put back"));
    FileError::Io { op: "move back", path: path.to_string(), source }
}

fn not_known(path: &WorkspacePath) -> FileError {
    let source = std::io::Error::other("whether it was changed is not known");
    FileError::Io { op: "look at", path: path.to_string(), source }
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
        let back = match &before {
            Some(bytes) => {
                let expected = after.map_or(Expected::Absent, Expected::Content);
                let replacement = Replacement { bytes, expected, create_folders: true };
                match files.replace(&path, &replacement) {
                    // It stands there again; that the system is not sure to keep it was so before.
                    Err(error) if standing(files, &path, Some(&Digest::of(bytes)), &error) == Standing::Changed => {
                        Ok(())
                    }
                    replaced => replaced.map(|_| ()),
                }
            }
            None => after.map_or(Ok(()), |after| remove_surely(files, &path, &after)),
        };
        match back {
            Ok(()) => failed.restored.push(path),
            Err(error) => {
                // What stays of a file that cannot go back is where it went.
                let left = moved_to.map(|to| (to.clone(), left_there(&to, &path)));
                failed.unrestored.extend([(path, error)].into_iter().chain(left));
                continue;
            }
        }
        if let (Some(to), Some(bytes)) = (moved_to, &before)
            && let Err(error) = remove_surely(files, &to, &Digest::of(bytes))
        {
            failed.unrestored.push((to, error));
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

#[cfg(test)]
mod tests;
