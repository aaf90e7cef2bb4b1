//! A folder held by descriptor: opens what is beneath it and resolves links without ever leaving it.
//!
//! Everything is opened by a path without any link in it (`openat2`: beneath, no links; on kernels without it, one
//! name at a time with `O_NOFOLLOW`), so a folder that is swapped for a link between check and use gives an error
//! and never a way out. Links are followed here, not by the kernel: a target is read, folded beneath the root, and
//! refused when it leads out; absolute targets that point inside are taken too.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::effects::files::{FileError, FileKind, FileStat};
use crate::workspace_path::WorkspacePath;

/// Most links followed for one path, as Linux does.
pub(super) const LINK_HOPS_MAX: usize = 40;
/// How often an access is tried anew when somebody changes the folders under it.
pub(super) const RACES_MAX: usize = 16;

/// The root of a workspace.
pub(super) struct Beneath {
    root: Dir,
    /// How the root is shown to people; also what an absolute link inside the workspace starts with.
    label: String,
    absolute: Vec<u8>,
    openat2: bool,
    parts_hard_links: bool,
}

impl Beneath {
    /// `parts_hard_links`: whether a file with several names may be replaced under one of them.
    pub(super) fn new(root: Dir, absolute: &OsStr, parts_hard_links: bool) -> Self {
        let label = absolute.to_string_lossy().into_owned();
        Self { root, label, absolute: absolute.as_bytes().to_vec(), openat2: true, parts_hard_links }
    }

    /// Whether a file with several names may be replaced under one of them.
    pub(super) fn parts_hard_links(&self) -> bool {
        self.parts_hard_links
    }

    /// How the root is shown to people.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// The path of the root when it was opened.
    pub(super) fn absolute(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.absolute))
    }

    /// The root's descriptor.
    pub(super) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a path in which no name is a link; [`Errno::LOOP`] when one is. With `PATH` and `NOFOLLOW` together
    /// the last name may be a link, and the link itself is opened.
    pub(super) fn open_plain(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        if self.openat2 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            for _ in 0..RACES_MAX {
                match rustix::fs::openat2(&self.root, path.as_path(), flags, Mode::empty(), resolve) {
                    // The kernel saw a rename underway and could not decide.
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    // Kernels and seccomp filters that do not know the call.
                    Err(Errno::NOSYS | Errno::PERM) => break,
                    decided => return decided,
                }
            }
        }
        self.walk_plain(path, flags)
    }

    /// Whether a path is one name, and a regular file has it at this moment. Of longer paths nothing is said: a link
    /// above the last name would be followed by such a look, wherever it leads.
    pub(super) fn is_regular_name(&self, path: &WorkspacePath) -> bool {
        let mut names = path.names();
        let (Some(name), None) = (names.next(), names.next()) else { return false };
        let look = rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT);
        look.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
    }

    /// [`Self::open_plain`] by one `openat` a name.
    fn walk_plain(&self, path: &WorkspacePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        let mut names = path.names().peekable();
        let mut folder: Option<OwnedFd> = None;
        while let Some(name) = names.next() {
            let at = folder.as_ref().map_or_else(|| self.root(), |fd| fd.as_fd());
            let last = names.peek().is_none();
            let may_be_link = last && flags.contains(OFlags::PATH | OFlags::NOFOLLOW);
            if !may_be_link {
                let stat = rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW)?;
                if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
                    return Err(Errno::LOOP);
                }
            }
            let with = if last { flags } else { OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC };
            let next = rustix::fs::openat(at, name, with | OFlags::NOFOLLOW, Mode::empty())?;
            if last {
                return Ok(next);
            }
            folder = Some(next);
        }
        rustix::fs::openat(self.root(), ".", flags, Mode::empty())
    }

    /// Opens a path, following the links in it; returns the path without links too.
    pub(super) fn open(
        &self,
        op: &'static str,
        path: &WorkspacePath,
        flags: OFlags,
    ) -> Result<(WorkspacePath, OwnedFd), FileError> {
        for _ in 0..RACES_MAX {
            match self.open_plain(path, flags) {
                Ok(fd) => return Ok((path.clone(), fd)),
                Err(Errno::LOOP) => {}
                Err(errno) => return Err(self.error(op, path, errno)),
            }
            let canonical = self.resolve(path)?;
            match self.open_plain(&canonical, flags) {
                Ok(fd) => return Ok((canonical, fd)),
                Err(Errno::LOOP) => {}
                Err(errno) => return Err(self.error(op, path, errno)),
            }
        }
        Err(self.error(op, path, Errno::LOOP))
    }

    /// The path without links; names that do not exist stay as written.
    pub(super) fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        match self.open_plain(path, OFlags::PATH) {
            Ok(_) => Ok(path.clone()),
            Err(_) => self.resolve(path),
        }
    }

    /// Follows links one by one.
    fn resolve(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        for _ in 0..RACES_MAX {
            match Resolving::new(self, path).run() {
                Err(FileError::Io { source, .. }) if source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
                decided => return decided,
            }
        }
        Err(self.error("resolve", path, Errno::LOOP))
    }

    /// The names of a link's target beneath the root, outermost first, and whether they start at the root; none
    /// when an absolute target lies elsewhere.
    fn target_names<'t>(&self, target: &'t [u8]) -> Option<(bool, Vec<&'t [u8]>)> {
        let from_root = target.starts_with(b"/");
        let below = if from_root {
            let rest = target.strip_prefix(self.absolute.strip_suffix(b"/").unwrap_or(&self.absolute))?;
            (rest.is_empty() || rest.starts_with(b"/")).then_some(rest)?
        } else {
            target
        };
        Some((from_root, below.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()))
    }

    /// The error for what the system said; a missing file in a missing workspace is a missing workspace.
    pub(super) fn error(&self, op: &'static str, path: &WorkspacePath, errno: Errno) -> FileError {
        let path = path.to_string();
        match errno {
            Errno::NOENT | Errno::NOTDIR => match rustix::fs::fstat(&self.root) {
                Ok(root) if root.st_nlink > 0 => FileError::NotFound { path },
                _ => FileError::WorkspaceMissing { root: self.label.clone() },
            },
            Errno::XDEV => FileError::Outside { path, via: None },
            errno => FileError::Io { op, path, source: errno.into() },
        }
    }
}

/// A path whose links are being followed.
struct Resolving<'b> {
    beneath: &'b Beneath,
    asked: &'b WorkspacePath,
    /// Names resolved so far.
    done: WorkspacePath,
    /// Names to come, the next one last.
    pending: Vec<OsString>,
    /// The link followed last.
    via: Option<WorkspacePath>,
    hops: usize,
}

impl<'b> Resolving<'b> {
    fn new(beneath: &'b Beneath, asked: &'b WorkspacePath) -> Self {
        let mut pending: Vec<OsString> = asked.names().map(OsStr::to_owned).collect();
        pending.reverse();
        Self { beneath, asked, done: WorkspacePath::root(), pending, via: None, hops: 0 }
    }

    fn run(mut self) -> Result<WorkspacePath, FileError> {
        // Beyond a name that does not exist nothing can be a link.
        let mut exists = true;
        while let Some(name) = self.pending.pop() {
            if name == ".." {
                self.done = self.done.parent().ok_or_else(|| self.outside())?;
                continue;
            }
            let next = self.done.child(&name);
            if !exists {
                self.done = next;
                continue;
            }
            match self.beneath.open_plain(&next, OFlags::PATH | OFlags::NOFOLLOW) {
                Ok(fd) => self.step(next, &fd)?,
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    exists = false;
                    self.done = next;
                }
                Err(errno) => return Err(self.beneath.error("resolve", &next, errno)),
            }
        }
        Ok(self.done)
    }

    /// Goes on to an existing name, through it when it is a link.
    fn step(&mut self, next: WorkspacePath, fd: &OwnedFd) -> Result<(), FileError> {
        let fail = |errno| self.beneath.error("resolve", self.asked, errno);
        let stat = rustix::fs::fstat(fd).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            self.done = next;
            return Ok(());
        }
        let target = rustix::fs::readlinkat(fd, "", Vec::new()).map_err(fail)?;
        self.hops += 1;
        if self.hops > LINK_HOPS_MAX {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidInput, "a link leads round and round");
            return Err(FileError::Io { op: "resolve", path: self.asked.to_string(), source });
        }
        self.via = Some(next);
        let (from_root, names) = self.beneath.target_names(target.as_bytes()).ok_or_else(|| self.outside())?;
        if from_root {
            self.done = WorkspacePath::root();
        }
        self.pending.extend(names.into_iter().rev().map(|name| OsString::from_vec(name.to_vec())));
        Ok(())
    }

    fn outside(&self) -> FileError {
        FileError::Outside { path: self.asked.to_string(), via: self.via.as_ref().map(ToString::to_string) }
    }
}

/// The kind behind a mode.
pub(super) fn kind_of(mode: u32) -> FileKind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Folder,
        FileType::Symlink => FileKind::Link,
        _ => FileKind::Special,
    }
}

/// What the system knows of a file, in our words.
pub(super) fn stat_of(stat: &Stat) -> FileStat {
    FileStat {
        kind: kind_of(stat.st_mode),
        size_bytes: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        link_count: stat.st_nlink,
        modified_unix_ns: i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec),
        identity: (stat.st_dev, stat.st_ino),
    }
}

/// The error for something that is there and is not a regular file.
pub(super) fn not_a_file(path: &WorkspacePath, mode: u32) -> FileError {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => "folder",
        FileType::Fifo => "pipe",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        FileType::Symlink => "link",
        _ => "special file",
    };
    FileError::NotAFile { path: path.to_string(), kind }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::os::unix::fs::symlink;

    use cap_std::ambient_authority;

    use super::{Beneath, Dir, FileError, OFlags, WorkspacePath};

    fn beneath(root: &std::path::Path, openat2: bool) -> Beneath {
        let root = std::fs::canonicalize(root).unwrap();
        let dir = Dir::open_ambient_dir(&root, ambient_authority()).unwrap();
        Beneath { openat2, ..Beneath::new(dir, root.as_os_str(), false) }
    }

    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, "").unwrap()
    }

    // Case C062, with and without openat2: links inside work, links out are refused with the link that leads out.
    #[test]
    fn links_stay_beneath_the_root() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("ws");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/file"), "x").unwrap();
        std::fs::write(outer.path().join("secret"), "s").unwrap();
        symlink("a/b", root.join("inside")).unwrap();
        symlink("../a/b/file", root.join("a/up")).unwrap();
        symlink(std::fs::canonicalize(&root).unwrap().join("a"), root.join("absolute")).unwrap();
        symlink("..", root.join("out")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        symlink("a/../../secret", root.join("climb")).unwrap();
        symlink("round", root.join("round")).unwrap();
        symlink("a/new/file", root.join("dangling")).unwrap();
        for openat2 in [true, false] {
            let beneath = beneath(&root, openat2);
            let canonical = |text: &str| beneath.canonical(&path(text)).map(|found| found.to_string());
            assert_eq!(canonical("inside/file").unwrap(), "a/b/file");
            assert_eq!(canonical("a/up").unwrap(), "a/b/file");
            assert_eq!(canonical("absolute/b").unwrap(), "a/b");
            assert_eq!(canonical("dangling").unwrap(), "a/new/file");
            assert_eq!(canonical("no/such/name").unwrap(), "no/such/name");
            for (text, link) in [("out/secret", "out"), ("etc/hostname", "etc"), ("climb", "climb"), ("etc", "etc")] {
                let error = beneath.open("open", &path(text), OFlags::RDONLY).unwrap_err();
                assert!(matches!(&error, FileError::Outside { via: Some(via), .. } if via == link), "{text}: {error}");
            }
            assert!(matches!(canonical("round"), Err(FileError::Io { .. })));
            assert_eq!(
                beneath.open("open", &path("absolute/b/file"), OFlags::RDONLY).unwrap().0.to_string(),
                "a/b/file"
            );
        }
    }
}
