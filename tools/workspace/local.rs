//! A folder on this machine, held by descriptor.
//!
//! The real side of the files port. The descriptor pins the folder: it may be renamed while it is in use, and when
//! it is removed every access says so. Special files are never opened for real: their kind is looked at first,
//! through a descriptor that neither blocks nor wakes anybody.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::beneath::{Beneath, RACES_MAX, kind_of, not_a_file, stat_of};
use super::landing::Landing;
use super::log_file::open_log;
use super::replacement::Replacing;
use super::transaction::Transaction;
use super::{Commands, Workspace, WorkspaceCapabilities, WriteAllowance, leftover, note};
use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{
    Expected, FileError, FileKind, FileStat, Files, FolderEntry, Links, LogFile, NewFile, OpenFile, Replacement,
};
use crate::effects::processes::Processes;
use crate::workspace_path::WorkspacePath;

/// Most names that one folder may have to be listed.
pub const FOLDER_ENTRIES_MAX: usize = 1_000_000;
/// Folders whose leftovers were swept; beyond it they are swept no more.
const SWEPT_FOLDERS_MAX: usize = 4096;
/// Most folders visited by [`LocalFiles::sweep_leftovers`].
const SWEEP_FOLDERS_MAX: usize = 1_000_000;

/// The files beneath one folder of this machine.
pub struct LocalFiles {
    beneath: Arc<Beneath>,
    swept: Mutex<BTreeSet<(u64, u64)>>,
}

/// Opens a folder of this machine as a workspace; commands run in it when there is a runner.
///
/// # Errors
/// [`FileError::WorkspaceMissing`] when there is no such folder, [`FileError::NotAFolder`] when it is none.
pub fn open(
    root: &Path,
    wanted: WorkspaceCapabilities,
    processes: Option<Arc<dyn Processes>>,
) -> Result<Workspace, FileError> {
    open_allowing(root, wanted, processes, WriteAllowance::default())
}

/// As [`open`], where more may be written than usual.
///
/// # Errors
/// As [`open`].
pub fn open_allowing(
    root: &Path,
    wanted: WorkspaceCapabilities,
    processes: Option<Arc<dyn Processes>>,
    allowance: WriteAllowance,
) -> Result<Workspace, FileError> {
    let (files, folder) = LocalFiles::open_allowing(root, allowance)?;
    let display_root = files.beneath.label().to_owned();
    let commands = processes.map(|processes| Commands { processes, folder });
    Ok(Workspace::new(display_root, wanted, Arc::new(files), commands).with_allowance(allowance))
}

impl LocalFiles {
    /// Opens a folder; returns its absolute path without links too.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(root: &Path) -> Result<(Self, std::path::PathBuf), FileError> {
        Self::open_allowing(root, WriteAllowance::default())
    }

    #[expect(clippy::disallowed_methods, reason = "the real side of the files port")]
    fn open_allowing(root: &Path, allowance: WriteAllowance) -> Result<(Self, std::path::PathBuf), FileError> {
        let shown = root.display().to_string();
        let fail = |source: std::io::Error| match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => FileError::WorkspaceMissing { root: shown.clone() },
            Some(Errno::NOTDIR) => FileError::NotAFolder { path: shown.clone() },
            _ => FileError::Io { op: "open the workspace", path: shown.clone(), source },
        };
        let absolute = std::fs::canonicalize(root).map_err(fail)?;
        let dir = Dir::open_ambient_dir(&absolute, ambient_authority()).map_err(fail)?;
        let files = Self {
            beneath: Arc::new(Beneath::new(dir, absolute.as_os_str(), allowance.hard_links)),
            swept: Mutex::default(),
        };
        // First: what was cut off half-way is put right before anything is looked at.
        note::recover(&files.beneath);
        files.sweep_once(files.beneath.root());
        Ok((files, absolute))
    }

    /// Opens a folder that no link leads to, for watching it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_folder(&self, path: &WorkspacePath) -> Result<OwnedFd, FileError> {
        let opened = self.beneath.open_plain(path, OFlags::RDONLY | OFlags::DIRECTORY);
        opened.map_err(|errno| self.beneath.error("watch", path, errno))
    }

    /// Opens a regular file that no link leads to, with the last change of anything about it, in nanoseconds since 1970.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_with_change(&self, path: &WorkspacePath) -> Result<(Box<dyn OpenFile>, i128), FileError> {
        match self.open_regular(path)? {
            Some((file, changed_unix_ns)) => Ok((Box::new(file), changed_unix_ns)),
            None => Err(FileError::NotFound { path: path.to_string() }),
        }
    }

    /// Opens a regular file without a look beforehand; none when it takes more than that. Not blocking, should it have
    /// become a pipe since it was listed.
    fn open_regular(&self, path: &WorkspacePath) -> Result<Option<(LocalFile, i128)>, FileError> {
        let Ok(fd) = self.beneath.open_plain(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) else {
            return Ok(None);
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.beneath.error("open", path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_a_file(path, stat.st_mode));
        }
        let file = LocalFile { file: File::from(fd), stat: stat_of(&stat), canonical: path.clone() };
        Ok(Some((file, changed_unix_ns(&stat))))
    }

    /// What stands at a path that no link leads to, with the last change of anything about it, in nanoseconds since
    /// 1970; none when nothing does.
    pub fn look_at(&self, path: &WorkspacePath) -> Option<(FileStat, i128)> {
        let fd = self.beneath.open_plain(path, OFlags::PATH | OFlags::NOFOLLOW).ok()?;
        let stat = rustix::fs::fstat(fd).ok()?;
        Some((stat_of(&stat), changed_unix_ns(&stat)))
    }

    /// Removes the temp files that killed processes left anywhere beneath the root; returns how many went. Walks
    /// the whole tree: for a background task. Without it a folder is swept when it is first written to.
    pub fn sweep_leftovers(&self) -> usize {
        let mut open = vec![WorkspacePath::root()];
        let mut removed = 0;
        let mut visited = 0;
        while let Some(path) = open.pop() {
            visited += 1;
            if visited > SWEEP_FOLDERS_MAX {
                break;
            }
            let Ok(folder) = self.beneath.open_plain(&path, OFlags::RDONLY | OFlags::DIRECTORY) else { continue };
            removed += leftover::sweep(&folder);
            let entries = entries_of(folder, &path).unwrap_or_default();
            open.extend(entries.into_iter().filter(|entry| entry.kind == FileKind::Folder).map(|entry| entry.path));
        }
        removed
    }

    /// Sweeps a folder the first time it is seen.
    fn sweep_once(&self, folder: impl std::os::fd::AsFd) {
        let Ok(stat) = rustix::fs::fstat(&folder) else { return };
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.len() < SWEPT_FOLDERS_MAX && swept.insert((stat.st_dev, stat.st_ino)) {
            drop(swept);
            leftover::sweep(folder);
        }
    }
}

impl Files for LocalFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.beneath.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        let fail = |errno| self.beneath.error("stat", path, errno);
        let fd = match links {
            Links::Follow => self.beneath.open("stat", path, OFlags::PATH)?.1,
            Links::Stay => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW;
                match (self.beneath.open_plain(path, flags), path.name(), path.parent()) {
                    (Ok(fd), ..) => fd,
                    // A link above the last name.
                    (Err(Errno::LOOP), Some(name), Some(above)) => {
                        let plain = self.beneath.canonical(&above)?.child(name);
                        self.beneath.open_plain(&plain, flags).map_err(fail)?
                    }
                    (Err(errno), ..) => return Err(fail(errno)),
                }
            }
        };
        rustix::fs::fstat(fd).map(|stat| stat_of(&stat)).map_err(fail)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        let fail = |errno| self.beneath.error("open", path, errno);
        // One look in the place of three calls; whatever else it is, or becomes meanwhile, is decided below.
        if self.beneath.is_regular_name(path)
            && let Ok(Some((file, _))) = self.open_regular(path)
        {
            return Ok(Box::new(file));
        }
        for _ in 0..RACES_MAX {
            // Opening a pipe or a device for real can wake or end what waits at its other side.
            let (plain, probe) = self.beneath.open("open", path, OFlags::PATH)?;
            let stat = rustix::fs::fstat(probe).map_err(fail)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(not_a_file(path, stat.st_mode));
            }
            let fd = match self.beneath.open_plain(&plain, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
                Err(Errno::LOOP | Errno::NXIO) => continue,
                opened => opened.map_err(fail)?,
            };
            let stat = rustix::fs::fstat(&fd).map_err(fail)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                return Ok(Box::new(LocalFile { file: File::from(fd), stat: stat_of(&stat), canonical: plain }));
            }
        }
        Err(fail(Errno::LOOP))
    }

    fn open_listed(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        match self.open_regular(path)? {
            Some((file, _)) => Ok(Box::new(file)),
            None => self.open(path),
        }
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        Some(self.beneath.absolute())
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = match self.beneath.open("list", path, flags) {
            Ok((_, folder)) => folder,
            // A missing name and a file in the place of a folder give the same error here; a look tells them apart.
            Err(FileError::NotFound { .. }) => {
                let stat = self.stat(path, Links::Follow)?;
                return Err(match stat.kind {
                    FileKind::Folder => FileError::NotFound { path: path.to_string() },
                    _ => FileError::NotAFolder { path: path.to_string() },
                });
            }
            Err(error) => return Err(error),
        };
        entries_of(folder, path).map_err(|source| match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => self.beneath.error("list", path, Errno::NOENT),
            _ => FileError::Io { op: "list", path: path.to_string(), source },
        })
    }

    fn takes_pieces(&self) -> bool {
        true
    }

    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        let landing = Landing::begin(&self.beneath, path, |folder| self.sweep_once(folder))?;
        Ok(Box::new(landing))
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Replacing::new(&self.beneath, path, replacement).run(|folder| self.sweep_once(folder))
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        open_log(&self.beneath, path)
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        let change = FileChange::Remove { path: path.clone(), expected: expected.clone() };
        self.change_together(std::slice::from_ref(&change), &|| true).map_err(|failed| *failed.error)
    }

    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        Transaction::run(&self.beneath, changes, go_on, &|folder| self.sweep_once(folder))
    }
}

fn changed_unix_ns(stat: &rustix::fs::Stat) -> i128 {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec)
}

/// The entries of an open folder, sorted by the bytes of their names.
fn entries_of(folder: OwnedFd, path: &WorkspacePath) -> std::io::Result<Vec<FolderEntry>> {
    let mut entries = Vec::new();
    let mut open = rustix::fs::Dir::read_from(&folder)?;
    while let Some(entry) = open.read() {
        let entry = entry?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        if entries.len() >= FOLDER_ENTRIES_MAX {
            return Err(std::io::Error::other(format!("more than {FOLDER_ENTRIES_MAX} entries")));
        }
        let kind = match entry.file_type() {
            // Some file systems do not say; a name that went meanwhile is left out.
            FileType::Unknown => match rustix::fs::statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => kind_of(stat.st_mode),
                Err(_) => continue,
            },
            known => kind_of(known.as_raw_mode()),
        };
        entries.push(FolderEntry { path: path.child(name), kind });
    }
    // A folder that was removed while it is open looks empty.
    if entries.is_empty() && rustix::fs::fstat(&folder)?.st_nlink == 0 {
        return Err(Errno::NOENT.into());
    }
    entries.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    Ok(entries)
}

/// An open file of this machine.
struct LocalFile {
    file: File,
    stat: FileStat,
    canonical: WorkspacePath,
}

impl Read for LocalFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Seek for LocalFile {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

impl OpenFile for LocalFile {
    fn stat(&self) -> &FileStat {
        &self.stat
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        Some(&self.canonical)
    }

    fn stat_now(&self) -> std::io::Result<FileStat> {
        Ok(stat_of(&rustix::fs::fstat(&self.file)?))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::fs::{self, Permissions};
    use std::io::Read as _;
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::super::WriteAllowance;
    use super::{
        Expected, FileError, FileKind, Files as _, Links, LocalFiles, Replacement, WorkspaceCapabilities, WorkspacePath,
    };
    use crate::digest::Digest;
    fn path(text: &str) -> WorkspacePath {
        WorkspacePath::parse(text, "").unwrap()
    }

    fn local(root: &Path) -> LocalFiles {
        LocalFiles::open(root).unwrap().0
    }

    fn content(files: &LocalFiles, text: &str) -> Result<String, FileError> {
        let mut read = String::new();
        files.open(&path(text))?.read_to_string(&mut read).unwrap();
        Ok(read)
    }

    fn put(files: &LocalFiles, text: &str, bytes: &[u8], expected: Expected) -> Result<(), FileError> {
        files.replace(&path(text), &Replacement { bytes, expected, create_folders: true }).map(|_| ())
    }

    fn names(root: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_workspace_must_be_there_and_stay_there() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("ws");
        assert!(matches!(LocalFiles::open(&root), Err(FileError::WorkspaceMissing { .. })));
        fs::write(&root, "").unwrap();
        assert!(matches!(LocalFiles::open(&root), Err(FileError::NotAFolder { .. })));
        fs::remove_file(&root).unwrap();
        fs::create_dir(&root).unwrap();
        fs::write(root.join("f"), "x").unwrap();
        let workspace = super::open(&root, WorkspaceCapabilities::local_default(), None).unwrap();
        assert!(!workspace.capabilities().exec);
        assert_eq!(Path::new(workspace.display_root()), fs::canonicalize(&root).unwrap());
        let files = workspace.files();
        assert!(matches!(files.open(&path("none")), Err(FileError::NotFound { .. })));
        fs::remove_dir_all(&root).unwrap();
        let gone = [
            files.open(&path("f")).err(),
            files.list(&path(".")).err(),
            files.stat(&path("f"), Links::Follow).err(),
            files.replace(&path("g"), &Replacement { bytes: b"", expected: Expected::Any, create_folders: true }).err(),
        ];
        for error in gone {
            assert!(matches!(error, None | Some(FileError::WorkspaceMissing { .. })), "{error:?}");
        }
    }

    #[test]
    fn special_files_are_refused_without_blocking() {
        let root = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.path().join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        let _listening = UnixListener::bind(root.path().join("socket")).unwrap();
        fs::create_dir(root.path().join("folder")).unwrap();
        symlink("pipe", root.path().join("link")).unwrap();
        let files = local(root.path());
        for (name, kind) in [("pipe", "pipe"), ("link", "pipe"), ("socket", "socket"), ("folder", "folder")] {
            let error = files.open(&path(name)).err().unwrap();
            assert!(matches!(error, FileError::NotAFile { kind: is, .. } if is == kind), "{name}: {error}");
            assert!(matches!(put(&files, name, b"x", Expected::Any), Err(FileError::NotAFile { .. })), "{name}");
        }
        assert!(matches!(files.list(&path("pipe")), Err(FileError::NotAFolder { .. })));
        assert!(matches!(put(&files, ".", b"", Expected::Any), Err(FileError::NotAFile { .. })));
    }

    #[test]
    fn files_made_on_the_fly_are_read() {
        let files = local(Path::new("/proc/self"));
        let opened = files.open(&path("status")).unwrap();
        assert_eq!(opened.stat().size_bytes, 0);
        assert!(content(&files, "status").unwrap().contains("Pid:"));
    }

    #[test]
    fn listings_are_sorted_by_bytes_and_keep_the_asked_path() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("d/sub")).unwrap();
        for name in ["b", "A", "a.b", "a"] {
            fs::write(root.path().join("d").join(name), "").unwrap();
        }
        symlink("d", root.path().join("l")).unwrap();
        let files = local(root.path());
        let listed = files.list(&path("l")).unwrap();
        let shown: Vec<_> = listed.iter().map(|entry| entry.path.to_string()).collect();
        assert_eq!(shown, ["l/A", "l/a", "l/a.b", "l/b", "l/sub"]);
        assert_eq!(listed[4].kind, FileKind::Folder);
        assert_eq!(files.stat(&path("l"), Links::Stay).unwrap().kind, FileKind::Link);
        assert_eq!(files.stat(&path("l/sub"), Links::Stay).unwrap().kind, FileKind::Folder);
        assert_eq!(files.stat(&path("l"), Links::Follow).unwrap().kind, FileKind::Folder);
    }

    // Case C038.
    #[test]
    fn modes_are_kept_and_new_files_follow_the_umask() {
        let root = tempfile::tempdir().unwrap();
        let files = local(root.path());
        for mode in [0o755, 0o600, 0o444] {
            let name = format!("f{mode:o}");
            fs::write(root.path().join(&name), "old").unwrap();
            fs::set_permissions(root.path().join(&name), Permissions::from_mode(mode)).unwrap();
            let result = put(&files, &name, b"new", Expected::Any);
            let kept = fs::metadata(root.path().join(&name)).unwrap().permissions().mode() & 0o7777;
            assert_eq!(kept, mode);
            assert_eq!(result.is_ok(), mode != 0o444 || rustix_is_root(root.path()));
        }
        put(&files, "new/deep/file", b"new", Expected::Absent).unwrap();
        fs::write(root.path().join("plain"), "").unwrap();
        let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode("new/deep/file"), mode("plain"));
    }

    // Case C038: the owner stays where that is allowed: anybody's for root, one's own for others.
    #[test]
    fn owners_are_kept_where_that_is_allowed() {
        use std::os::unix::fs::{MetadataExt as _, chown};
        let root = tempfile::tempdir().unwrap();
        let files = local(root.path());
        let path = root.path().join("f");
        fs::write(&path, "old").unwrap();
        if rustix_is_root(root.path()) {
            chown(&path, Some(12_345), Some(23_456)).unwrap();
        }
        fs::set_permissions(&path, Permissions::from_mode(0o4750)).unwrap();
        let facts = |stat: &fs::Metadata| (stat.uid(), stat.gid(), stat.mode() & 0o7777, stat.len());
        let before = facts(&fs::metadata(&path).unwrap());
        put(&files, "f", b"new", Expected::Any).unwrap();
        assert_eq!(facts(&fs::metadata(&path).unwrap()), before);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    fn rustix_is_root(folder: &Path) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(folder).unwrap().uid() == 0
    }

    // Case R15; links are followed, not replaced.
    #[test]
    fn hard_links_are_not_written_and_links_are_written_through() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("ws");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(outer.path().join("outside"), "safe").unwrap();
        fs::hard_link(outer.path().join("outside"), root.join("hard")).unwrap();
        fs::write(root.join("d/target"), "old").unwrap();
        symlink("d/target", root.join("link")).unwrap();
        symlink(outer.path().join("outside"), root.join("out")).unwrap();
        let files = local(&root);
        assert!(matches!(put(&files, "hard", b"x", Expected::Any), Err(FileError::HardLinked { link_count: 2, .. })));
        assert!(matches!(put(&files, "out", b"x", Expected::Any), Err(FileError::Outside { .. })));
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "safe");
        put(&files, "link", b"new", Expected::Content(Digest::of(b"old"))).unwrap();
        assert_eq!(content(&files, "d/target").unwrap(), "new");
        assert!(fs::symlink_metadata(root.join("link")).unwrap().is_symlink());
    }

    // Case R15: where it is allowed, one name gets a file of its own, and the other keeps what it had.
    #[test]
    fn a_file_with_two_names_is_replaced_where_that_is_allowed() {
        let (folder, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outer.path().join("outside"), "safe").unwrap();
        fs::hard_link(outer.path().join("outside"), folder.path().join("hard")).unwrap();
        let allowance = WriteAllowance { hard_links: true, ..WriteAllowance::default() };
        let (files, _) = LocalFiles::open_allowing(folder.path(), allowance).unwrap();
        put(&files, "hard", b"new", Expected::Content(Digest::of(b"safe"))).unwrap();
        assert_eq!(fs::read_to_string(outer.path().join("outside")).unwrap(), "safe");
        assert_eq!(content(&files, "hard").unwrap(), "new");
        assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(outer.path().join("outside")).unwrap()), 1);
    }

    #[test]
    fn what_is_expected_must_be_there_and_no_temp_file_stays() {
        let root = tempfile::tempdir().unwrap();
        let files = local(root.path());
        put(&files, "f", b"one", Expected::Absent).unwrap();
        assert!(matches!(put(&files, "f", b"x", Expected::Absent), Err(FileError::Exists { .. })));
        let changed = put(&files, "f", b"x", Expected::Content(Digest::of(b"other"))).unwrap_err();
        assert!(matches!(&changed, FileError::Changed { actual, .. } if *actual == Digest::of(b"one").to_string()));
        let absent = put(&files, "g", b"x", Expected::Content(Digest::of(b"other"))).unwrap_err();
        assert!(matches!(&absent, FileError::Changed { actual, .. } if actual == "absent"));
        assert!(matches!(put(&files, "f/g", b"x", Expected::Any), Err(FileError::NotAFolder { .. })));
        put(&files, "f", b"two", Expected::Content(Digest::of(b"one"))).unwrap();
        assert_eq!(content(&files, "f").unwrap(), "two");
        assert_eq!(names(root.path()), ["f"]);
        let unmade = Replacement { bytes: b"", expected: Expected::Any, create_folders: false };
        assert!(matches!(files.replace(&path("no/f"), &unmade), Err(FileError::NotFound { .. })));
    }

    #[test]
    fn of_two_replacements_against_one_content_one_wins() {
        let root = tempfile::tempdir().unwrap();
        let files = local(root.path());
        put(&files, "n", b"0", Expected::Absent).unwrap();
        let wins: usize = std::thread::scope(|scope| {
            let rivals: Vec<_> = (0..4)
                .map(|rival: u8| {
                    let files = &files;
                    scope.spawn(move || {
                        let bytes = [b'a' + rival];
                        usize::from(put(files, "n", &bytes, Expected::Content(Digest::of(b"0"))).is_ok())
                    })
                })
                .collect();
            rivals.into_iter().map(|rival| rival.join().unwrap()).sum()
        });
        assert_eq!(wins, 1);
    }

    // Case C040: whoever reads while a file is rewritten sees one whole content.
    #[test]
    fn a_reader_never_sees_a_part() {
        const SIZE: usize = 1 << 20;
        let root = tempfile::tempdir().unwrap();
        let files = local(root.path());
        put(&files, "f", &vec![b'0'; SIZE], Expected::Absent).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut observed = 0_usize;
                while !done.load(Ordering::Relaxed) || observed == 0 {
                    let bytes = fs::read(root.path().join("f")).unwrap();
                    assert_eq!(bytes.len(), SIZE);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    observed += 1;
                }
            });
            for round in 0..50_u8 {
                put(&files, "f", &vec![b'a' + round % 26; SIZE], Expected::Any).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(names(root.path()), ["f"]);
    }

    // Case C064: a folder that is swapped for a link all the time is never written through.
    #[test]
    fn a_swapped_folder_lets_nothing_out() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("ws");
        let outside = outer.path().join("outside");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("x"), "secret").unwrap();
        let files = local(&root);
        let done = AtomicBool::new(false);
        let (inside, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let both_seen = || inside.load(Ordering::Relaxed) > 0 && refused.load(Ordering::Relaxed) > 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                symlink(&outside, root.join("link")).unwrap();
                for swap in 0..1_000_000 {
                    if swap >= 10_000 && both_seen() {
                        break;
                    }
                    // d is the folder, then the link, then the folder again.
                    fs::rename(root.join("d"), root.join("folder")).unwrap();
                    fs::rename(root.join("link"), root.join("d")).unwrap();
                    fs::rename(root.join("d"), root.join("link")).unwrap();
                    fs::rename(root.join("folder"), root.join("d")).unwrap();
                }
                done.store(true, Ordering::Relaxed);
            });
            let mut round = 0_usize;
            while !done.load(Ordering::Relaxed) {
                let written = Replacement { bytes: b"mine", expected: Expected::Any, create_folders: false };
                // A durable write holds up the renames of everybody: most rounds read, the same way in.
                let result = if round.is_multiple_of(16) {
                    files.replace(&path("d/x"), &written).map(|_| String::from("mine"))
                } else {
                    content(&files, "d/x")
                };
                round += 1;
                match result {
                    Ok(text) => {
                        assert_eq!(text, "mine");
                        inside.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(FileError::Outside { .. } | FileError::NotFound { .. }) => {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(other) => panic!("{other}"),
                }
            }
        });
        assert!(both_seen(), "{inside:?} inside, {refused:?} refused");
        assert_eq!(fs::read_to_string(outside.join("x")).unwrap(), "secret");
        assert_eq!(names(&outside), ["x"]);
    }

    #[test]
    fn leftovers_of_the_dead_are_swept() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        let me = crate::workspace::leftover::name(".tmp");
        let parts: Vec<&str> = me.trim_end_matches(".tmp").split('-').collect();
        let dead = format!("{}-{}-{}-1-0.tmp", parts[0], parts[1], parts[2]);
        for folder in ["", "a", "a/b"] {
            fs::write(root.path().join(folder).join(&dead), "").unwrap();
        }
        let files = local(root.path());
        assert!(!root.path().join(&dead).exists(), "the root is swept when it is opened");
        put(&files, "a/f", b"", Expected::Any).unwrap();
        assert!(!root.path().join("a").join(&dead).exists(), "a folder is swept when it is first written to");
        assert_eq!(files.sweep_leftovers(), 1);
    }
}
