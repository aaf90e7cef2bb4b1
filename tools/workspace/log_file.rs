//! A log beneath a workspace: opened without following any link, held by a lock, appended to and synced.
//!
//! A folder or name on the way that is a link is refused, and so is a file with a second name: both could lead what is
//! written out of the workspace.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::beneath::{Beneath, not_a_file};
use crate::effects::files::{FileError, LogFile};
use crate::workspace_path::WorkspacePath;

/// Opens or makes a log; see [`crate::effects::files::Files::open_log`].
pub(super) fn open_log(beneath: &Beneath, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
    let fail = |errno| match errno {
        Errno::LOOP | Errno::NOTDIR => FileError::NotAFolder { path: format!("{path} (a link is not followed here)") },
        errno => beneath.error("open a log", path, errno),
    };
    let (Some(name), Some(above)) = (path.name(), path.parent()) else { return Err(fail(Errno::ISDIR)) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // The root's own descriptor only names it, and cannot be synced.
    let mut folder: OwnedFd = rustix::fs::openat(beneath.root(), ".", flags, Mode::empty()).map_err(fail)?;
    for part in above.names() {
        let at = folder.as_fd();
        let mut made = false;
        let next = match rustix::fs::openat(at, part, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(at, part, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(Errno::EXIST) => made = true,
                    Err(errno) => return Err(fail(errno)),
                }
                rustix::fs::openat(at, part, flags, Mode::empty())
            }
            opened => opened,
        };
        let next = next.map_err(fail)?;
        if made {
            // Its name must be as durable as what will be written beneath it.
            rustix::fs::fsync(at).map_err(fail)?;
        }
        folder = next;
    }
    let at = folder.as_fd();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o600)).map_err(|errno| match errno {
        Errno::LOOP => FileError::NotAFile { path: path.to_string(), kind: "link" },
        errno => fail(errno),
    })?;
    let stat = rustix::fs::fstat(&log).map_err(fail)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(not_a_file(path, stat.st_mode));
    }
    if stat.st_nlink > 1 {
        return Err(FileError::HardLinked { path: path.to_string(), link_count: stat.st_nlink });
    }
    match rustix::fs::flock(&log, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Err(FileError::Held { path: path.to_string() }),
        Err(errno) => return Err(fail(errno)),
    }
    rustix::fs::fsync(at).map_err(fail)?;
    Ok(Box::new(LocalLog { file: File::from(log) }))
}

struct LocalLog {
    file: File,
}

impl LogFile for LocalLog {
    fn read(&mut self, bytes_max: u64) -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0))?;
        (&mut self.file).take(bytes_max + 1).read_to_end(&mut bytes)?;
        match u64::try_from(bytes.len()).is_ok_and(|length| length <= bytes_max) {
            true => Ok(bytes),
            false => Err(ErrorKind::FileTooLarge.into()),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::End(0))?;
        self.file.write_all(bytes)?;
        self.file.sync_data()
    }

    fn cut(&mut self, bytes: u64) -> std::io::Result<()> {
        self.file.set_len(bytes)?;
        self.file.sync_data()
    }
}

impl Drop for LocalLog {
    fn drop(&mut self) {
        // A process that is being started beside it has a copy of the descriptor until its exec; the lock is the file's
        // own, and must not stay with that.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::os::unix::fs::symlink;

    use rustix::fs::FlockOperation;

    use super::LocalLog;
    use crate::effects::files::{FileError, Files as _};
    use crate::workspace::local::LocalFiles;
    use crate::workspace_path::WorkspacePath;

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, "/").unwrap()
    }

    #[test]
    fn a_log_is_held_appended_to_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let (files, _) = LocalFiles::open(folder.path()).unwrap();
        let place = path(".a3s/workflow/run.jsonl");
        let mut log = files.open_log(&place).unwrap();
        assert_eq!(log.read(100).unwrap(), b"");
        log.append(b"one\n").unwrap();
        assert!(matches!(files.open_log(&place), Err(FileError::Held { .. })));
        drop(log);
        let mut log = files.open_log(&place).unwrap();
        log.append(b"two\ncut").unwrap();
        log.cut(8).unwrap();
        assert_eq!(log.read(8).unwrap(), b"one\ntwo\n");
        assert_eq!(log.read(7).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
    }

    /// As a process has it that is being started while the log is closed.
    #[test]
    fn a_copy_of_its_descriptor_does_not_hold_a_log_that_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("run.jsonl")).unwrap();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        let copy = file.try_clone().unwrap();
        drop(LocalLog { file });
        let (files, _) = LocalFiles::open(folder.path()).unwrap();
        assert!(files.open_log(&path("run.jsonl")).is_ok());
        drop(copy);
    }

    #[test]
    fn no_link_is_followed() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (files, _) = LocalFiles::open(folder.path()).unwrap();
        symlink(outside.path(), folder.path().join(".a3s")).unwrap();
        assert!(files.open_log(&path(".a3s/run.jsonl")).is_err());
        std::fs::create_dir(folder.path().join("inside")).unwrap();
        symlink("inside", folder.path().join("alias")).unwrap();
        assert!(files.open_log(&path("alias/run.jsonl")).is_err(), "not even inside");
        std::fs::write(outside.path().join("target"), "old").unwrap();
        symlink(outside.path().join("target"), folder.path().join("run.jsonl")).unwrap();
        assert!(matches!(files.open_log(&path("run.jsonl")), Err(FileError::NotAFile { kind: "link", .. })));
        std::fs::hard_link(outside.path().join("target"), folder.path().join("hard.jsonl")).unwrap();
        assert!(matches!(files.open_log(&path("hard.jsonl")), Err(FileError::HardLinked { .. })));
        assert!(files.open_log(&path("inside")).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_to_string(outside.path().join("target")).unwrap(), "old");
    }
}
