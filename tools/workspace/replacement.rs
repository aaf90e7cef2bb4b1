//! Replacing a file as a whole: new bytes beside it, made durable, then renamed over it.
//!
//! A reader sees the old bytes or the new ones, never a mixture or nothing, also after a crash. What must hold
//! (content, kind, link count) is checked under an in-process lock right before the rename, so that two
//! replacements of one path never both win against the same content. A temp file is removed on every way out; one
//! that a killed process left is known by its name and swept later.

use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Access, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Stat, Uid};
use rustix::io::Errno;

use super::beneath::{Beneath, RACES_MAX, not_a_file, stat_of};
use super::leftover;
use crate::digest::{Digest, RunningDigest};
use crate::effects::files::{Expected, FileError, FileStat, Replacement};
use crate::workspace_path::WorkspacePath;

/// What could not be done when a folder cannot be synced into which a file has just been put.
pub(super) const UNSYNCED: &str = "make sure that a crash keeps the new content, which stands there now, of";
/// How many locks the paths of the process share.
const STRIPES: usize = 64;
/// How many names are tried for a temp file.
const TEMP_NAMES_MAX: usize = 64;
/// Buffer for hashing what is there, in bytes.
const HASH_BUFFER_BYTES: usize = 256 * 1024;
/// Mode of a new file before the umask.
const NEW_FILE_MODE: u32 = 0o666;

static LOCKS: [Mutex<()>; STRIPES] = [const { Mutex::new(()) }; STRIPES];

/// One replacement on its way.
pub(super) struct Replacing<'r> {
    beneath: &'r Beneath,
    asked: &'r WorkspacePath,
    wanted: &'r Replacement<'r>,
}

/// Why one try did not come to its end.
pub(super) enum Halt {
    /// Somebody put a link where the target stood; the path must be resolved again.
    Raced,
    /// For good.
    Failed(FileError),
}

impl From<FileError> for Halt {
    fn from(error: FileError) -> Self {
        Self::Failed(error)
    }
}

impl<'r> Replacing<'r> {
    pub(super) fn new(beneath: &'r Beneath, asked: &'r WorkspacePath, wanted: &'r Replacement<'r>) -> Self {
        Self { beneath, asked, wanted }
    }

    /// Does it; `enter` is told the folder before anything is written there.
    pub(super) fn run(&self, enter: impl Fn(&OwnedFd)) -> Result<FileStat, FileError> {
        for _ in 0..RACES_MAX {
            let (target, folder) = self.place()?;
            let name = target.name().unwrap_or_default();
            enter(&folder);
            match self.write_beside(&folder, name) {
                Ok(stat) => return Ok(stat),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Raced) => {}
            }
        }
        Err(self.fail("replace", Errno::LOOP))
    }

    /// The target without links, which is never the root, and its open folder.
    pub(super) fn place(&self) -> Result<(WorkspacePath, OwnedFd), FileError> {
        for _ in 0..RACES_MAX {
            let target = self.beneath.canonical(self.asked)?;
            if target.is_root() {
                return Err(FileError::NotAFile { path: self.asked.to_string(), kind: "folder" });
            }
            let above = target.parent().unwrap_or_else(WorkspacePath::root);
            match self.folder(&above) {
                Err(Errno::LOOP) => {}
                Err(errno) => return Err(self.folder_error(&above, errno)),
                Ok(folder) => return Ok((target, folder)),
            }
        }
        Err(self.fail("replace", Errno::LOOP))
    }

    /// The folder of the target, made when it is missing and that is wanted.
    pub(super) fn folder(&self, path: &WorkspacePath) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        match self.beneath.open_plain(path, flags) {
            Err(Errno::NOENT) if self.wanted.create_folders => {}
            decided => return decided,
        }
        let step = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = self.beneath.open_plain(&WorkspacePath::root(), flags)?;
        for name in path.names() {
            let next = match rustix::fs::openat(&at, name, step, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o777)) {
                        Ok(()) => rustix::fs::fsync(&at).or_else(harmless)?,
                        Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    rustix::fs::openat(&at, name, step, Mode::empty())?
                }
                decided => decided?,
            };
            at = next;
        }
        Ok(at)
    }

    pub(super) fn folder_error(&self, folder: &WorkspacePath, errno: Errno) -> FileError {
        let at_root = folder.is_root();
        match (self.beneath.error("open", folder, errno), errno) {
            (FileError::NotFound { .. }, Errno::NOTDIR) => FileError::NotAFolder { path: folder.to_string() },
            (FileError::NotFound { .. }, _) if at_root => {
                FileError::WorkspaceMissing { root: self.beneath.label().to_owned() }
            }
            (error, _) => error,
        }
    }

    /// Writes the new bytes beside the target and renames them over it.
    fn write_beside(&self, folder: &OwnedFd, name: &OsStr) -> Result<FileStat, Halt> {
        // A first look, so that a refusal costs no write; it is looked at again under the lock.
        let before = self.look(folder, name)?;
        if let Expected::Absent = self.wanted.expected
            && before.is_some()
        {
            return Err(FileError::Exists { path: self.asked.to_string() }.into());
        }
        let mut temp =
            Temp::create(folder, before.is_none()).map_err(|errno| self.fail("create a file beside", errno))?;
        temp.file.write_all(self.wanted.bytes).map_err(|source| self.io("write", source))?;
        if let Some(old) = &before {
            take_after(&temp.file, old).map_err(|errno| self.fail("set the mode of", errno))?;
        }
        temp.file.sync_all().map_err(|source| self.io("sync", source))?;

        let _turn = lock(folder, name);
        let now = self.look(folder, name)?;
        self.check_content(folder, name)?;
        if let Some(old) = &now
            && before.as_ref().is_none_or(|before| owner_and_mode(before) != owner_and_mode(old))
        {
            take_after(&temp.file, old).map_err(|errno| self.fail("set the mode of", errno))?;
        }
        self.put(&mut temp, folder, name)?;
        let stat = rustix::fs::fstat(&temp.file).map_err(|errno| self.fail("stat", errno))?;
        rustix::fs::fsync(folder).or_else(harmless).map_err(|errno| self.fail(UNSYNCED, errno))?;
        Ok(stat_of(&stat))
    }

    /// Renames the temp file over the target.
    fn put(&self, temp: &mut Temp<&OwnedFd>, folder: &OwnedFd, name: &OsStr) -> Result<(), FileError> {
        let mut result = Err(Errno::INVAL);
        if self.wanted.expected == Expected::Absent {
            result = rustix::fs::renameat_with(folder, &temp.name, folder, name, RenameFlags::NOREPLACE);
        }
        if matches!(result, Err(Errno::INVAL | Errno::NOSYS)) {
            result = rustix::fs::renameat(folder, &temp.name, folder, name);
        }
        match result {
            Ok(()) => {
                temp.named = false;
                Ok(())
            }
            Err(Errno::EXIST) => Err(FileError::Exists { path: self.asked.to_string() }),
            Err(errno) => Err(self.fail("rename over", errno)),
        }
    }

    /// What stands at the target now; refused when it may not be replaced.
    pub(super) fn look(&self, folder: &OwnedFd, name: &OsStr) -> Result<Option<Stat>, Halt> {
        let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.fail("stat", errno).into()),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {}
            FileType::Symlink => return Err(Halt::Raced),
            _ => return Err(not_a_file(self.asked, stat.st_mode).into()),
        }
        if stat.st_nlink > 1 && !self.beneath.parts_hard_links() {
            let (path, link_count) = (self.asked.to_string(), stat.st_nlink);
            return Err(FileError::HardLinked { path, link_count }.into());
        }
        // A rename asks the folder alone; a file that was made read-only is meant to stay.
        match rustix::fs::accessat(folder, name, Access::WRITE_OK, AtFlags::EACCESS) {
            Err(errno @ (Errno::ACCESS | Errno::ROFS)) => Err(self.fail("write", errno).into()),
            _ => Ok(Some(stat)),
        }
    }

    /// Compares the bytes that are there with what they must be.
    pub(super) fn check_content(&self, folder: &OwnedFd, name: &OsStr) -> Result<(), FileError> {
        let Expected::Content(expected) = &self.wanted.expected else {
            return Ok(());
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let actual = match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Ok(fd) => Some(digest_of(File::from(fd)).map_err(|source| self.io("read", source))?),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(self.fail("open", errno)),
        };
        if actual.as_ref() == Some(expected) {
            return Ok(());
        }
        Err(FileError::Changed {
            path: self.asked.to_string(),
            expected: expected.to_string(),
            actual: actual.map_or_else(|| "absent".to_owned(), |digest| digest.to_string()),
        })
    }

    pub(super) fn fail(&self, op: &'static str, errno: Errno) -> FileError {
        self.beneath.error(op, self.asked, errno)
    }

    pub(super) fn io(&self, op: &'static str, source: std::io::Error) -> FileError {
        FileError::Io { op, path: self.asked.to_string(), source }
    }
}

/// New bytes under a name of their own; the name goes when this is dropped before the rename.
pub(super) struct Temp<F: AsFd> {
    pub(super) folder: F,
    pub(super) name: String,
    pub(super) file: File,
    pub(super) named: bool,
}

impl<F: AsFd> Temp<F> {
    /// A new empty file. The bytes of an existing one are nobody else's to see before its mode is set.
    pub(super) fn create(folder: F, new: bool) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(if new { NEW_FILE_MODE } else { 0o600 });
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..TEMP_NAMES_MAX {
            let name = leftover::name(leftover::TEMP_SUFFIX);
            match rustix::fs::openat(&folder, &name, flags, mode) {
                Ok(fd) => return Ok(Self { folder, name, file: File::from(fd), named: true }),
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::EXIST)
    }
}

impl<F: AsFd> Drop for Temp<F> {
    fn drop(&mut self) {
        if self.named {
            let _ = rustix::fs::unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// Gives a file the owner and the mode of the one that it replaces. Bits that act for the owner are dropped when the
/// owner cannot be kept.
pub(super) fn take_after(file: &File, old: &Stat) -> Result<(), Errno> {
    let now = rustix::fs::fstat(file)?;
    let mut mode = old.st_mode & 0o7777;
    if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid) {
        let owned = rustix::fs::fchown(file, Some(Uid::from_raw(old.st_uid)), Some(Gid::from_raw(old.st_gid)));
        if owned.is_err() {
            mode &= 0o777;
            if rustix::fs::fchown(file, None, Some(Gid::from_raw(old.st_gid))).is_err() {
                // The group's rights were given to another group.
                mode &= !0o070 | ((mode & 0o007) << 3);
            }
        }
    }
    rustix::fs::fchmod(file, Mode::from_raw_mode(mode))
}

fn owner_and_mode(stat: &Stat) -> (u32, u32, u32) {
    (stat.st_uid, stat.st_gid, stat.st_mode)
}

/// Some file systems cannot sync a folder; the rename is as durable as they make it.
pub(super) fn harmless(errno: Errno) -> Result<(), Errno> {
    match errno {
        Errno::INVAL | Errno::NOTSUP | Errno::NOSYS | Errno::ROFS | Errno::BADF => Ok(()),
        errno => Err(errno),
    }
}

/// Renames to a name that must be free.
pub(super) fn rename_to_new(
    folder: &OwnedFd,
    name: impl rustix::path::Arg + Copy,
    to: &OwnedFd,
    new: impl rustix::path::Arg + Copy,
) -> Result<(), Errno> {
    match rustix::fs::renameat_with(folder, name, to, new, RenameFlags::NOREPLACE) {
        // File systems that do not know the flag.
        Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::statat(to, new, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => rustix::fs::renameat(folder, name, to, new),
            Err(errno) => Err(errno),
        },
        decided => decided,
    }
}

/// Waits for the turn of one path in this process.
pub(super) fn lock(folder: &OwnedFd, name: &OsStr) -> MutexGuard<'static, ()> {
    lock_stripe(stripe(folder, name))
}

/// Waits for a lock by its number; who needs several takes them in the order of their numbers.
pub(super) fn lock_stripe(stripe: usize) -> MutexGuard<'static, ()> {
    LOCKS[stripe].lock().unwrap_or_else(PoisonError::into_inner)
}

/// The number of a path's lock.
pub(super) fn stripe(folder: &OwnedFd, name: &OsStr) -> usize {
    let mut hash = DefaultHasher::new();
    if let Ok(stat) = rustix::fs::fstat(folder.as_fd()) {
        (stat.st_dev, stat.st_ino).hash(&mut hash);
    }
    name.as_bytes().hash(&mut hash);
    usize::try_from(hash.finish() % STRIPES as u64).unwrap_or(0)
}

/// The digest of everything that is left to read.
fn digest_of(mut file: File) -> std::io::Result<Digest> {
    let mut buffer = vec![0; HASH_BUFFER_BYTES];
    let mut digest = RunningDigest::default();
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(digest.finish()),
            Ok(bytes) => digest.update(&buffer[..bytes]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
