//! A file that comes in pieces, until it has its place.
//!
//! Its bytes have no name at first (`O_TMPFILE`): whatever ends the process leaves nothing behind. File systems that
//! cannot do that get a named temp file beside the target, which is removed on every way out and swept after a crash.
//! The place is given in one step: a link that fails when something is there, or a rename over what may be replaced.

use std::ffi::OsString;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::beneath::{Beneath, stat_of};
use super::leftover;
use super::replacement::{Halt, Replacing, UNSYNCED, harmless, lock, take_after};
use crate::cancellation::CancelReason;
use crate::effects::files::{Expected, FileError, FileStat, NewFile, Replacement};
use crate::workspace_path::WorkspacePath;

/// How many names are tried for a temp file.
const TEMP_NAMES_MAX: usize = 64;
/// After how many bytes the system is told to begin writing them to the disk.
const WRITEBACK_BYTES: u64 = 8 * 1024 * 1024;
/// Mode of a new file before the umask.
const NEW_FILE_MODE: u32 = 0o666;
/// Mode of a named temp file until it replaces something: its bytes are nobody else's to see before.
const PRIVATE_MODE: u32 = 0o600;

/// One file on its way.
pub(super) struct Landing {
    beneath: Arc<Beneath>,
    asked: WorkspacePath,
    /// The target without links.
    target: WorkspacePath,
    folder: OwnedFd,
    file: File,
    /// The temp file's name, where it needs one.
    temp: Option<OsString>,
    /// How many bytes are on their way to the disk.
    given_bytes: AtomicU64,
}

impl Landing {
    /// Begins; `enter` is told the folder before anything is written there.
    pub(super) fn begin(
        beneath: &Arc<Beneath>,
        asked: &WorkspacePath,
        enter: impl Fn(&OwnedFd),
    ) -> Result<Self, FileError> {
        let wanted = Replacement { bytes: &[], expected: Expected::Any, create_folders: true };
        let replacing = Replacing::new(beneath, asked, &wanted);
        let (target, folder) = replacing.place()?;
        // A refusal that is certain now need not wait for the last byte.
        let before = match replacing.look(&folder, target.name().unwrap_or_default()) {
            Ok(before) => before,
            Err(Halt::Failed(error)) => return Err(error),
            Err(Halt::Raced) => return Err(replacing.fail("begin", Errno::LOOP)),
        };
        enter(&folder);
        let (file, temp) =
            new_file(&folder, before.as_ref()).map_err(|errno| replacing.fail("create a file beside", errno))?;
        Ok(Self {
            beneath: Arc::clone(beneath),
            asked: asked.clone(),
            target,
            folder,
            file,
            temp,
            given_bytes: AtomicU64::new(0),
        })
    }

    fn io(&self, op: &'static str, source: std::io::Error) -> FileError {
        FileError::Io { op, path: self.asked.to_string(), source }
    }

    /// Refuses when the folder that was opened is not the one at the path any more.
    fn check_folder(&self, replacing: &Replacing<'_>) -> Result<(), FileError> {
        let above = self.target.parent().unwrap_or_else(WorkspacePath::root);
        let fail = |errno| replacing.fail("open the folder of", errno);
        let now = self.beneath.open_plain(&above, OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
        let (now, then) = (rustix::fs::fstat(now).map_err(fail)?, rustix::fs::fstat(&self.folder).map_err(fail)?);
        if (now.st_dev, now.st_ino) == (then.st_dev, then.st_ino) {
            return Ok(());
        }
        let reason = "its folder was moved or replaced meanwhile; nothing was written";
        Err(self.io("write", std::io::Error::other(reason)))
    }

    /// Gives the bytes their name.
    fn name(&self, is_new: bool, must_be_new: bool) -> Result<(), Errno> {
        let name = self.target.name().unwrap_or_default();
        let rename = |from: &OsString, must_be_new: bool| {
            let mut renamed = Err(Errno::INVAL);
            if must_be_new {
                renamed = rustix::fs::renameat_with(&self.folder, from, &self.folder, name, RenameFlags::NOREPLACE);
            }
            if matches!(renamed, Err(Errno::INVAL | Errno::NOSYS)) {
                renamed = rustix::fs::renameat(&self.folder, from, &self.folder, name);
            }
            renamed
        };
        if let Some(temp) = &self.temp {
            return rename(temp, must_be_new);
        }
        let own = own_path(&self.file);
        let link = |to: &std::ffi::OsStr| rustix::fs::linkat(CWD, &own, &self.folder, to, AtFlags::SYMLINK_FOLLOW);
        if is_new {
            match link(name) {
                Err(Errno::EXIST) if !must_be_new => {}
                decided => return decided,
            }
        }
        let temp = free_name(|temp| link(temp.as_ref()))?;
        rename(&temp, false).inspect_err(|_| {
            let _ = rustix::fs::unlinkat(&self.folder, &temp, AtFlags::empty());
        })
    }
}

impl NewFile for Landing {
    fn reserve(&self, bytes: u64) -> Result<(), FileError> {
        if bytes == 0 {
            return Ok(());
        }
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) | Ok(()) => Ok(()),
            Err(errno) => Err(self.io("make room for", errno.into())),
        }
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), FileError> {
        self.file.write_all_at(bytes, at).map_err(|source| self.io("write", source))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize, FileError> {
        loop {
            match self.file.read_at(buffer, at) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                other => return other.map_err(|source| self.io("read back", source)),
            }
        }
    }

    fn done_before(&self, at: u64) {
        let given = self.given_bytes.load(Ordering::Relaxed);
        if let Some(length) = at.checked_sub(given).filter(|length| *length >= WRITEBACK_BYTES) {
            // The advice begins writing them; where it does nothing, the sync does it all.
            let _ = rustix::fs::fadvise(&self.file, given, NonZeroU64::new(length), Advice::DontNeed);
            self.given_bytes.store(at, Ordering::Relaxed);
        }
    }

    fn set_size(&self, bytes: u64) -> Result<(), FileError> {
        self.file.set_len(bytes).map_err(|source| self.io("set the size of", source))
    }

    fn put(&self, expected: &Expected, goes_on: &dyn Fn() -> Result<(), CancelReason>) -> Result<FileStat, FileError> {
        self.file.sync_all().map_err(|source| self.io("sync", source))?;
        let wanted = Replacement { bytes: &[], expected: expected.clone(), create_folders: false };
        let replacing = Replacing::new(&self.beneath, &self.asked, &wanted);
        let name = self.target.name().unwrap_or_default();
        let _turn = lock(&self.folder, name);
        self.check_folder(&replacing)?;
        let now = match replacing.look(&self.folder, name) {
            Ok(now) => now,
            Err(Halt::Failed(error)) => return Err(error),
            Err(Halt::Raced) => return Err(replacing.fail("write", Errno::LOOP)),
        };
        let must_be_new = *expected == Expected::Absent;
        if must_be_new && now.is_some() {
            return Err(FileError::Exists { path: self.asked.to_string() });
        }
        replacing.check_content(&self.folder, name)?;
        if let Some(old) = &now {
            take_after(&self.file, old).map_err(|errno| replacing.fail("set the mode of", errno))?;
        }
        goes_on().map_err(|reason| FileError::Stopped { op: "write", path: self.asked.to_string(), reason })?;
        self.name(now.is_none(), must_be_new).map_err(|errno| match errno {
            Errno::EXIST => FileError::Exists { path: self.asked.to_string() },
            errno => replacing.fail("put in place", errno),
        })?;
        let stat = rustix::fs::fstat(&self.file).map_err(|errno| replacing.fail("stat", errno))?;
        rustix::fs::fsync(&self.folder).or_else(harmless).map_err(|errno| replacing.fail(UNSYNCED, errno))?;
        Ok(stat_of(&stat))
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if let Some(temp) = &self.temp {
            // Once it was put in place the name is gone, and no other process makes the same one.
            let _ = rustix::fs::unlinkat(&self.folder, temp, AtFlags::empty());
        }
    }
}

/// A new file without a name, or with that of a temp file where there must be one.
fn new_file(folder: &OwnedFd, before: Option<&Stat>) -> Result<(File, Option<OsString>), Errno> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(NEW_FILE_MODE);
    if let Ok(nameless) = rustix::fs::openat(folder, ".", flags | OFlags::TMPFILE, mode) {
        let file = File::from(nameless);
        // Without /proc it could never be named.
        if rustix::fs::statat(CWD, own_path(&file), AtFlags::empty()).is_ok() {
            return Ok((file, None));
        }
    }
    let mode = if before.is_some() { Mode::from_raw_mode(PRIVATE_MODE) } else { mode };
    let mut made = None;
    let name = free_name(|name| {
        made = Some(rustix::fs::openat(folder, name, flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW, mode)?);
        Ok(())
    })?;
    made.map(|made| (File::from(made), Some(name))).ok_or(Errno::EXIST)
}

/// Makes something under a temp name that is free.
fn free_name(mut make: impl FnMut(&str) -> Result<(), Errno>) -> Result<OsString, Errno> {
    for _ in 0..TEMP_NAMES_MAX {
        let name = leftover::name(leftover::TEMP_SUFFIX);
        match make(&name) {
            Ok(()) => return Ok(name.into()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

/// How an open file without a name is named to the system.
fn own_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::Path;

    use crate::cancellation::CancelReason;
    use crate::digest::Digest;
    use crate::effects::files::{Expected, FileError, Files as _, NewFile};
    use crate::workspace::local::LocalFiles;
    use crate::workspace_path::WorkspacePath;

    fn begin(root: &Path, path: &str) -> Result<Box<dyn NewFile>, FileError> {
        LocalFiles::open(root).unwrap().0.begin(&WorkspacePath::parse(path, "").unwrap())
    }

    fn put(file: &dyn NewFile, expected: &Expected) -> Result<u64, FileError> {
        file.put(expected, &|| Ok(())).map(|stat| stat.size_bytes)
    }

    fn names(root: &Path) -> Vec<String> {
        let entries = fs::read_dir(root).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn pieces_in_any_order_become_one_file_in_one_step() {
        let root = tempfile::tempdir().unwrap();
        let file = begin(root.path(), "a/b/f").unwrap();
        file.reserve(8).unwrap();
        file.write_at(b"5678", 4).unwrap();
        assert_eq!(names(&root.path().join("a/b")).len(), 0, "no name before it is whole");
        file.write_at(b"1234", 0).unwrap();
        let mut buffer = [0; 16];
        assert_eq!((file.read_at(&mut buffer, 2).unwrap(), &buffer[..6]), (6, &b"345678"[..]));
        assert_eq!(put(&*file, &Expected::Absent).unwrap(), 8);
        assert_eq!(fs::read(root.path().join("a/b/f")).unwrap(), b"12345678");
        let umask_mode = {
            fs::write(root.path().join("plain"), "").unwrap();
            fs::metadata(root.path().join("plain")).unwrap().permissions().mode()
        };
        assert_eq!(fs::metadata(root.path().join("a/b/f")).unwrap().permissions().mode(), umask_mode);
    }

    #[test]
    fn what_is_there_is_replaced_only_as_expected() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let file = begin(root.path(), "f").unwrap();
        file.write_at(b"new", 0).unwrap();
        assert!(matches!(put(&*file, &Expected::Absent), Err(FileError::Exists { .. })));
        let other = Expected::Content(Digest::of(b"other"));
        assert!(matches!(put(&*file, &other), Err(FileError::Changed { .. })));
        let stopped = file.put(&Expected::Any, &|| Err(CancelReason::Requested));
        assert!(matches!(stopped, Err(FileError::Stopped { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        put(&*file, &Expected::Content(Digest::of(b"old"))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o750);
        assert_eq!(names(root.path()), ["f"]);
        drop(begin(root.path(), "g").unwrap());
        assert_eq!(names(root.path()), ["f"]);
    }

    #[test]
    fn no_place_outside_and_none_that_moved() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("ws");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(outer.path().join("outside"), "safe").unwrap();
        symlink("..", root.join("out")).unwrap();
        fs::hard_link(outer.path().join("outside"), root.join("hard")).unwrap();
        assert!(matches!(begin(&root, "out/x"), Err(FileError::Outside { .. })));
        assert!(matches!(begin(&root, "hard"), Err(FileError::HardLinked { .. })));
        assert!(matches!(begin(&root, "d"), Err(FileError::NotAFile { .. })));
        assert!(matches!(begin(&root, "."), Err(FileError::NotAFile { .. })));
        let file = begin(&root, "d/x").unwrap();
        file.write_at(b"mine", 0).unwrap();
        fs::rename(root.join("d"), outer.path().join("elsewhere")).unwrap();
        assert!(put(&*file, &Expected::Absent).is_err());
        fs::create_dir(root.join("d")).unwrap();
        assert!(put(&*file, &Expected::Absent).is_err());
        assert!(names(&outer.path().join("elsewhere")).is_empty() && names(&root.join("d")).is_empty());
    }
}
