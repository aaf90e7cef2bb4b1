//! Tells what changes in folders, so that nobody has to look at every file again.
//!
//! The kernel queues a change before the system call that makes it returns, so whoever drains the queue knows of every
//! change that was finished before. What it cannot tell (stores through a mapping that outlives its descriptor, writes
//! through a name outside of the watched folders, other machines on a network file system) is listed where the watch
//! is used.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Bytes of changes read at once.
const BUFFER_BYTES: usize = 64 * 1024;
/// Most changes taken in one go; beyond it the watch counts as overrun.
const CHANGES_MAX: usize = 1_000_000;

/// File systems whose every change passes this kernel, by their magic numbers: ext, xfs, btrfs, tmpfs, f2fs, overlay.
const LOCAL_FILE_SYSTEMS: [u64; 6] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0xf2f5_2010, 0x794c_7630];

/// Gives watches.
pub trait FolderWatches: fmt::Debug + Send + Sync {
    /// Begins to watch nothing.
    ///
    /// # Errors
    /// [`WatchError::Refused`] when there is none to be had.
    fn begin(&self) -> Result<Box<dyn FolderWatch>, WatchError>;
}

/// Folders that are watched; readable when there is something to drain.
pub trait FolderWatch: fmt::Debug + Send + Sync + AsFd {
    /// Watches an open folder; a folder that is watched already keeps its number.
    ///
    /// # Errors
    /// [`WatchError`].
    fn add(&self, folder: BorrowedFd<'_>) -> Result<i32, WatchError>;

    /// Ends watching a folder; one that went away is not watched any more anyway.
    fn remove(&self, watch: i32);

    /// Hands over all changes that happened until now.
    ///
    /// # Errors
    /// [`WatchError::Overrun`] when some were lost: nothing is known then.
    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError>;
}

/// The watches of the kernel, inotify.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemWatches;

/// One queue of inotify.
#[derive(Debug)]
struct Inotify {
    queue: OwnedFd,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which watched folder.
    pub watch: i32,
    /// The name in it; none when the folder itself is meant.
    pub name: Option<OsString>,
    /// What happened.
    pub kind: ChangeKind,
}

/// What happened to a name or a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// A name came, went, or now stands for something else.
    Name,
    /// The content of a file.
    Content,
    /// Rights or other facts.
    Facts,
    /// The folder is no longer watched: it went away.
    Gone,
}

/// Why changes are not known.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// More changes than the queue holds.
    #[error("more changes than can be kept")]
    Overrun,
    /// The folder is on a file system whose changes others can make unseen.
    #[error("changes on this file system are not told")]
    NotLocal,
    /// The kernel refused, usually for its limit of watches (fs.inotify.max_user_watches).
    #[error("folders cannot be watched: {0}")]
    Refused(#[from] io::Error),
}

impl FolderWatches for SystemWatches {
    /// Refused when the kernel gives no queue (fs.inotify.max_user_instances).
    fn begin(&self) -> Result<Box<dyn FolderWatch>, WatchError> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        Ok(Box::new(Inotify { queue }))
    }
}

/// Whether an open file or folder is on a file system whose every change passes this kernel.
pub fn is_local(open: BorrowedFd<'_>) -> bool {
    // The field is signed or not, by platform.
    rustix::fs::fstatfs(open).is_ok_and(|system| LOCAL_FILE_SYSTEMS.contains(&(system.f_type as u64 & 0xffff_ffff)))
}

impl FolderWatch for Inotify {
    fn add(&self, folder: BorrowedFd<'_>) -> Result<i32, WatchError> {
        if !is_local(folder) {
            return Err(WatchError::NotLocal);
        }
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let flags = WatchFlags::MODIFY
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        Ok(inotify::add_watch(&self.queue, path, flags).map_err(io::Error::from)?)
    }

    fn remove(&self, watch: i32) {
        let _gone = inotify::remove_watch(&self.queue, watch);
    }

    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError> {
        let mut buffer = vec![MaybeUninit::<u8>::uninit(); BUFFER_BYTES];
        let mut reader = inotify::Reader::new(&self.queue, &mut buffer);
        for _ in 0..CHANGES_MAX {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(WatchError::Refused(errno.into())),
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                return Err(WatchError::Overrun);
            }
            let names = ReadFlags::CREATE | ReadFlags::DELETE | ReadFlags::MOVED_FROM | ReadFlags::MOVED_TO;
            let kind = if flags.intersects(names) {
                ChangeKind::Name
            } else if flags.intersects(ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED) {
                ChangeKind::Gone
            } else if flags.contains(ReadFlags::ATTRIB) {
                ChangeKind::Facts
            } else {
                ChangeKind::Content
            };
            let name = event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec()));
            take(Change { watch: event.wd(), name, kind });
        }
        Err(WatchError::Overrun)
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests change real files")]

    use std::os::fd::AsFd as _;

    use super::{Change, ChangeKind, FolderWatches as _, SystemWatches};

    #[test]
    fn a_change_is_known_as_soon_as_its_call_returned() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "1").unwrap();
        let open = std::fs::File::open(folder.path()).unwrap();
        let watch = SystemWatches.begin().unwrap();
        let number = watch.add(open.as_fd()).unwrap();
        assert_eq!(watch.add(open.as_fd()).unwrap(), number);
        let changes = || {
            let mut all = Vec::new();
            watch.drain(&mut |change| all.push(change)).unwrap();
            all
        };
        let has = |all: &[Change], name: &str, kind: ChangeKind| {
            all.contains(&Change { watch: number, name: Some(name.into()), kind })
        };
        assert!(changes().is_empty());
        for round in 0..200 {
            std::fs::write(folder.path().join("a"), round.to_string()).unwrap();
            assert!(has(&changes(), "a", ChangeKind::Content), "{round}");
        }
        std::fs::rename(folder.path().join("a"), folder.path().join("b")).unwrap();
        let all = changes();
        assert!(has(&all, "a", ChangeKind::Name) && has(&all, "b", ChangeKind::Name), "{all:?}");
        drop(open);
        std::fs::remove_dir_all(folder.path()).unwrap();
        assert!(changes().iter().any(|change| change.name.is_none() && change.kind == ChangeKind::Gone));
        watch.remove(number);
    }
}
