//! Files of which every change is told: what an index stands on.
//!
//! A folder is watched before it is listed, and whoever drains what was told knows of every change whose call had
//! returned by then. What must stay true: a change that cannot be told is told as a loss of everything.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use crate::effects::files::{FileError, FileStat, Files, OpenFile};
use crate::effects::folder_watch::{Change, FolderWatch, FolderWatches, WatchError};
use crate::search::tree::TreeError;
use crate::workspace::local::LocalFiles;
use crate::workspace_path::WorkspacePath;

/// Files and what is told of them.
pub trait ToldFiles: Send + Sync {
    /// The files.
    fn files(&self) -> &dyn Files;

    /// Opens a regular file that no link leads to, with the last change of anything about it, in nanoseconds since
    /// 1970.
    ///
    /// # Errors
    /// What the system says.
    fn open_with_change(&self, path: &WorkspacePath) -> Result<(Box<dyn OpenFile>, i128), FileError>;

    /// What stands at a path that no link leads to, with the last change of anything about it; none when nothing does.
    fn look_at(&self, path: &WorkspacePath) -> Option<(FileStat, i128)>;

    /// Begins to watch a folder; none when it is not there, or when the folder above tells whatever becomes of it. A
    /// folder that is watched already keeps its number.
    ///
    /// # Errors
    /// [`TreeError`]: it cannot be watched.
    fn watch(&self, path: &WorkspacePath) -> Result<Option<i32>, TreeError>;

    /// Ends watching a folder.
    fn unwatch(&self, watch: i32);

    /// Hands over all changes that happened until now.
    ///
    /// # Errors
    /// [`WatchError::Overrun`] when some were lost: nothing is known then.
    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError>;

    /// Readable when there is something to drain; none where nobody can wait for that.
    fn told(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Begins to be told; what was told to somebody before is nothing to whoever begins.
pub type BeginTelling = Box<dyn Fn() -> Result<Arc<dyn ToldFiles>, TreeError> + Send + Sync>;

/// Files on this machine.
pub struct ToldLocalFiles {
    files: Arc<LocalFiles>,
    /// None where nobody tells.
    watch: Option<Box<dyn FolderWatch>>,
}

impl ToldLocalFiles {
    /// Begins to watch nothing.
    ///
    /// # Errors
    /// [`WatchError::Refused`].
    pub fn begin(files: Arc<LocalFiles>, watches: &dyn FolderWatches) -> Result<Self, WatchError> {
        Ok(Self { files, watch: Some(watches.begin()?) })
    }

    /// Of which nobody tells: for whoever looks at the stamps of files.
    pub(crate) fn untold(files: Arc<LocalFiles>) -> Self {
        Self { files, watch: None }
    }
}

impl ToldFiles for ToldLocalFiles {
    fn files(&self) -> &dyn Files {
        &*self.files
    }

    fn open_with_change(&self, path: &WorkspacePath) -> Result<(Box<dyn OpenFile>, i128), FileError> {
        self.files.open_with_change(path)
    }

    fn look_at(&self, path: &WorkspacePath) -> Option<(FileStat, i128)> {
        self.files.look_at(path)
    }

    fn watch(&self, path: &WorkspacePath) -> Result<Option<i32>, TreeError> {
        let Some(watch) = &self.watch else { return Ok(None) };
        // What may not be opened cannot be listed either; a change of its rights is told by the folder above, and so is
        // what went or became a link. Anything else (no descriptors left, no /proc) would leave it unwatched unnoticed.
        let folder = match self.files.open_folder(path) {
            Ok(folder) => folder,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(FileError::Io { ref source, .. }) if is_told_by_the_folder_above(source) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match watch.add(folder.as_fd()) {
            Ok(number) => Ok(Some(number)),
            Err(_) if rustix::fs::fstat(&folder).is_ok_and(|stat| stat.st_nlink == 0) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn unwatch(&self, watch: i32) {
        if let Some(own) = &self.watch {
            own.remove(watch);
        }
    }

    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError> {
        self.watch.as_ref().map_or(Ok(()), |watch| watch.drain(take))
    }

    fn told(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(|watch| watch.as_fd())
    }
}

fn is_told_by_the_folder_above(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NOTDIR))
}
