//! Blobs as files of one folder: the real side of the port.
//!
//! A new blob is a file beside the others, synced, renamed to its name without replacing anything, and its folder
//! synced; only then it counts. Every process that may write here holds a lock on a file in `live/` for as long as
//! it does, and nothing is removed while another one is held: what that process refers to is not known here. What
//! a killed process left of a blob that had no name yet goes when the folder is opened next.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::num::NonZeroU64;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::{BlobError, BlobStat, Blobs, NewBlob, OpenBlob};
use crate::digest::Digest;

/// Where the files of living processes are.
const LIVE: &str = "live";
/// Where the files of blobs without a name are.
const NEW: &str = "new";
/// The lock for what must not happen at the same time: coming, and removing.
const GATE: &str = "gate";
/// How many hex digits name the folder of a blob.
const FOLDER_DIGITS: usize = 2;
/// Most entries looked at in one folder.
const ENTRIES_MAX: usize = 1_000_000;
/// Most names tried for a new file.
const NAMES_MAX: u32 = 64;

/// After how many bytes the system is told to begin writing them to the disk.
const WRITEBACK_BYTES: u64 = 8 * 1024 * 1024;

const FOLDER_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Others on this machine have no business with what tools gave.
const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// Numbers of files that this process makes.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Keeps blobs in a folder; clones share it.
#[derive(Debug, Clone)]
pub struct FolderBlobs {
    place: Arc<Place>,
}

#[derive(Debug)]
struct Place {
    label: String,
    root: OwnedFd,
    /// Held for as long as this process may write here; none when it only reads.
    live: Option<Live>,
}

/// The sign that a process is there.
#[derive(Debug)]
struct Live {
    name: String,
    folder: OwnedFd,
    new: OwnedFd,
    _lock: File,
}

impl FolderBlobs {
    /// Opens a folder, making it when it is not there.
    ///
    /// # Errors
    /// [`BlobError::Io`] when it cannot be made or written.
    pub fn open(path: &Path) -> Result<Self, BlobError> {
        let label = path.display().to_string();
        let failed = |op| {
            let label = label.clone();
            move |errno: Errno| BlobError::of_io(op, &label, errno.into())
        };
        make_folders(path).map_err(|source| BlobError::of_io("make", &label, source))?;
        let root =
            rustix::fs::open(path, FOLDER_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty()).map_err(failed("open"))?;
        let gate = locked(&root, GATE, FlockOperation::LockExclusive).map_err(failed("lock"))?;
        let folder = folder_in(&root, LIVE).map_err(failed("make"))?;
        let new = folder_in(&root, NEW).map_err(failed("make"))?;
        let (name, lock) = new_file(&folder).map_err(failed("write in"))?;
        sweep(&folder, Some(&name)).map_err(failed("look through"))?;
        sweep(&new, None).map_err(failed("look through"))?;
        drop(gate);
        let live = Live { name, folder, new, _lock: lock };
        Ok(Self { place: Arc::new(Place { label, root, live: Some(live) }) })
    }

    /// Opens a folder that is there, to read in it alone.
    ///
    /// # Errors
    /// [`BlobError::Io`] when it cannot be opened.
    pub fn open_for_reading(path: &Path) -> Result<Self, BlobError> {
        let label = path.display().to_string();
        let root = rustix::fs::open(path, FOLDER_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
            .map_err(|errno| BlobError::of_io("open", &label, errno.into()))?;
        Ok(Self { place: Arc::new(Place { label, root, live: None }) })
    }
}

impl Place {
    fn fail(&self, op: &'static str, errno: Errno) -> BlobError {
        BlobError::of_io(op, &self.label, errno.into())
    }

    fn live(&self) -> Result<&Live, BlobError> {
        self.live.as_ref().ok_or(BlobError::ReadOnly)
    }
}

impl Live {
    /// Whether another process holds a file here; what ended ones left goes.
    fn has_others(&self) -> Result<bool, Errno> {
        sweep(&self.folder, Some(&self.name))
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // What stays is swept by the next one.
        let _ = rustix::fs::unlinkat(&self.folder, self.name.as_str(), AtFlags::empty());
    }
}

impl Blobs for FolderBlobs {
    fn begin(&self) -> Result<Box<dyn NewBlob>, BlobError> {
        let live = self.place.live()?;
        let (name, file) = new_file(&live.new).map_err(|errno| self.place.fail("write in", errno))?;
        Ok(Box::new(NewFile { place: Arc::clone(&self.place), name: Some(name), file, bytes: 0, given_bytes: 0 }))
    }

    fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError> {
        let (folder, file) = name.hex().split_at(FOLDER_DIGITS);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = || {
            let folder = rustix::fs::openat(&self.place.root, folder, FOLDER_FLAGS, Mode::empty())?;
            let file = rustix::fs::openat(folder, file, flags, Mode::empty())?;
            let stat = rustix::fs::fstat(&file)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok((file, u64::try_from(stat.st_size).unwrap_or(0))),
                _ => Err(Errno::NOENT),
            }
        };
        match open() {
            Ok((file, bytes)) => Ok(Box::new(OpenFile { file: File::from(file), bytes })),
            Err(Errno::NOENT | Errno::LOOP) => Err(BlobError::Missing { name: name.to_string() }),
            Err(errno) => Err(self.place.fail("open a file in", errno)),
        }
    }

    fn remove(&self, name: &Digest) -> Result<(), BlobError> {
        let live = self.place.live()?;
        let fail = |errno| self.place.fail("remove a file in", errno);
        let _gate = locked(&self.place.root, GATE, FlockOperation::LockExclusive).map_err(fail)?;
        if live.has_others().map_err(fail)? {
            return Err(BlobError::InUse);
        }
        let (folder, file) = name.hex().split_at(FOLDER_DIGITS);
        let removed = rustix::fs::openat(&self.place.root, folder, FOLDER_FLAGS, Mode::empty())
            .and_then(|folder| rustix::fs::unlinkat(&folder, file, AtFlags::empty()));
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(fail(errno)),
        }
    }

    fn list(&self) -> Result<Vec<BlobStat>, BlobError> {
        let fail = |errno| self.place.fail("look through", errno);
        let mut blobs = Vec::new();
        for folder_name in names_in(&self.place.root).map_err(fail)? {
            let Some(digits) = folder_name.to_str().ok().filter(|name| name.len() == FOLDER_DIGITS) else { continue };
            let Ok(folder) = rustix::fs::openat(&self.place.root, digits, FOLDER_FLAGS, Mode::empty()) else {
                continue;
            };
            for name in names_in(&folder).map_err(fail)? {
                let digest = name.to_str().ok().and_then(|name| Digest::from_hex(&[digits, name].concat()));
                let stat = rustix::fs::statat(&folder, name.as_c_str(), AtFlags::SYMLINK_NOFOLLOW);
                let (Some(name), Ok(stat)) = (digest, stat) else { continue };
                let stored_s = u64::try_from(stat.st_mtime).unwrap_or(0);
                blobs.push(BlobStat {
                    name,
                    bytes: u64::try_from(stat.st_size).unwrap_or(0),
                    stored_unix_ms: stored_s.saturating_mul(1000),
                });
            }
        }
        blobs.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(blobs)
    }
}

/// A blob without a name.
struct NewFile {
    place: Arc<Place>,
    /// Its own name; none once it has its digest's.
    name: Option<String>,
    file: File,
    bytes: u64,
    /// How many of them are on their way to the disk.
    given_bytes: u64,
}

impl NewBlob for NewFile {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|source| BlobError::of_io("write in", &self.place.label, source))?;
        if self.bytes - self.given_bytes >= WRITEBACK_BYTES {
            // Written while the output still comes, so that the sync at its end finds little left to do. The advice says
            // that the bytes are not needed again, and begins writing them; where it does nothing, the sync does it all.
            let length = NonZeroU64::new(self.bytes - self.given_bytes);
            let _ = rustix::fs::fadvise(&self.file, self.given_bytes, length, Advice::DontNeed);
            self.given_bytes = self.bytes;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BlobError> {
        self.file.sync_all().map_err(|source| BlobError::of_io("sync a file in", &self.place.label, source))
    }

    fn publish(mut self: Box<Self>, name: &Digest) -> Result<bool, BlobError> {
        let place = Arc::clone(&self.place);
        let live = place.live()?;
        let fail = |errno| place.fail("name a file in", errno);
        let Some(own) = self.name.take() else { return Err(fail(Errno::NOENT)) };
        let (folder, file) = name.hex().split_at(FOLDER_DIGITS);
        let named = folder_in(&place.root, folder).and_then(|folder| {
            let is_new = match rustix::fs::renameat_with(&live.new, &own, &folder, file, RenameFlags::NOREPLACE) {
                Ok(()) => true,
                Err(Errno::EXIST) => self.settle_with(&live.new, &own, &folder, file)?,
                Err(errno) => return Err(errno),
            };
            rustix::fs::fsync(&folder).map(|()| is_new)
        });
        named.map_err(|errno| {
            self.name = Some(own);
            fail(errno)
        })
    }
}

impl NewFile {
    /// There is a file of this name. One of another size was cut short by a fault of the disk: the whole one takes
    /// its place.
    fn settle_with(&self, new: &OwnedFd, own: &str, folder: &OwnedFd, file: &str) -> Result<bool, Errno> {
        let stat = rustix::fs::statat(folder, file, AtFlags::SYMLINK_NOFOLLOW)?;
        if u64::try_from(stat.st_size) == Ok(self.bytes) {
            rustix::fs::unlinkat(new, own, AtFlags::empty())?;
            return Ok(false);
        }
        tracing::warn!(folder = %self.place.label, file, "an artifact was damaged and has been written again");
        rustix::fs::renameat(new, own, folder, file).map(|()| true)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let (Some(name), Some(live)) = (&self.name, &self.place.live) {
            // What stays is swept by the next process.
            let _ = rustix::fs::unlinkat(&live.new, name.as_str(), AtFlags::empty());
        }
    }
}

struct OpenFile {
    file: File,
    bytes: u64,
}

impl Read for OpenFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Seek for OpenFile {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.file.seek(to)
    }
}

impl OpenBlob for OpenFile {
    fn size_bytes(&self) -> u64 {
        self.bytes
    }
}

/// Makes a folder and those above it.
fn make_folders(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE.bits()).create(path)
}

/// The folder of this name, made durably when it is missing.
fn folder_in(root: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    match rustix::fs::openat(root, name, FOLDER_FLAGS, Mode::empty()) {
        Err(Errno::NOENT) => {}
        decided => return decided,
    }
    match rustix::fs::mkdirat(root, name, FOLDER_MODE) {
        Ok(()) => rustix::fs::fsync(root)?,
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    rustix::fs::openat(root, name, FOLDER_FLAGS, Mode::empty())
}

/// A new file with a name that nobody has, locked for as long as it is open.
fn new_file(folder: &OwnedFd) -> Result<(String, File), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for _ in 0..NAMES_MAX {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{count}", rustix::process::getpid().as_raw_nonzero());
        match rustix::fs::openat(folder, &name, flags, FILE_MODE) {
            Ok(file) => {
                rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
                return Ok((name, File::from(file)));
            }
            // Left by a process that had this number before, or made in another container.
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EXIST)
}

/// Opens a file for its lock alone, and waits until it has it.
fn locked(folder: &OwnedFd, name: &str, how: FlockOperation) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, name, flags, FILE_MODE)?;
    rustix::fs::flock(&file, how)?;
    Ok(file)
}

/// Removes the files that nobody holds locked; whether there are others but `own`.
fn sweep(folder: &OwnedFd, own: Option<&str>) -> Result<bool, Errno> {
    let mut has_others = false;
    for name in names_in(folder)? {
        if own.is_some_and(|own| own.as_bytes() == name.to_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(folder, name.as_c_str(), flags, Mode::empty()) else { continue };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let _ = rustix::fs::unlinkat(folder, name.as_c_str(), AtFlags::empty());
            }
            Err(_) => has_others = true,
        }
    }
    Ok(has_others)
}

fn names_in(folder: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let again = rustix::fs::openat(folder.as_fd(), ".", FOLDER_FLAGS, Mode::empty())?;
    let entries = Dir::new(again)?.take(ENTRIES_MAX);
    let mut names = Vec::new();
    for entry in entries {
        let name = entry?.file_name().to_owned();
        if !matches!(name.to_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::{Path, PathBuf};

    use super::super::{BlobError, Blobs, open_checked};
    use super::FolderBlobs;
    use crate::digest::Digest;

    fn keep(blobs: &dyn Blobs, bytes: &[u8]) -> (Digest, bool) {
        let name = Digest::of(bytes);
        let mut new = blobs.begin().unwrap();
        bytes.chunks(3).for_each(|part| new.write(part).unwrap());
        new.sync().unwrap();
        let is_new = new.publish(&name).unwrap();
        (name, is_new)
    }

    fn path_of(root: &Path, name: &Digest) -> PathBuf {
        root.join(&name.hex()[..2]).join(&name.hex()[2..])
    }

    fn files(root: &Path) -> usize {
        fs::read_dir(root.join("new")).unwrap().count()
    }

    #[test]
    fn the_same_bytes_are_kept_once_and_privately() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b");
        let (one, other) = (FolderBlobs::open(&path).unwrap(), FolderBlobs::open(&path).unwrap());
        let (name, is_new) = keep(&one, b"some bytes");
        assert_eq!((keep(&other, b"some bytes"), is_new), ((name.clone(), false), true));
        assert_eq!(one.list().unwrap().len(), 1);
        assert_eq!((other.list().unwrap()[0].bytes, files(&path)), (10, 0));
        let mut text = String::new();
        open_checked(&other, &name).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "some bytes");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(path_of(&path, &name)).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn damage_is_seen_and_mended_only_by_the_same_bytes() {
        let root = tempfile::tempdir().unwrap();
        let blobs = FolderBlobs::open(root.path()).unwrap();
        let (name, _) = keep(&blobs, b"some bytes");
        fs::write(path_of(root.path(), &name), b"some Bytes").unwrap();
        assert!(matches!(open_checked(&blobs, &name), Err(BlobError::Damaged { .. })));
        fs::write(path_of(root.path(), &name), b"some").unwrap();
        assert!(matches!(open_checked(&blobs, &name), Err(BlobError::Damaged { .. })));
        assert_eq!(keep(&blobs, b"some bytes"), (name.clone(), true));
        assert!(open_checked(&blobs, &name).is_ok());
        assert!(matches!(blobs.open(&Digest::of(b"other")), Err(BlobError::Missing { .. })));
    }

    #[test]
    fn nothing_is_removed_while_another_process_is_there() {
        let root = tempfile::tempdir().unwrap();
        let blobs = FolderBlobs::open(root.path()).unwrap();
        let (name, _) = keep(&blobs, b"some bytes");
        let other = FolderBlobs::open(root.path()).unwrap();
        assert!(matches!(blobs.remove(&name), Err(BlobError::InUse)));
        drop(other);
        blobs.remove(&name).unwrap();
        blobs.remove(&name).unwrap();
        assert!(matches!(blobs.open(&name), Err(BlobError::Missing { .. })));
    }

    #[test]
    fn what_has_no_name_leaves_nothing_and_what_a_killed_process_left_goes() {
        let root = tempfile::tempdir().unwrap();
        let blobs = FolderBlobs::open(root.path()).unwrap();
        let mut new = blobs.begin().unwrap();
        new.write(b"half").unwrap();
        fs::write(root.path().join("new/1-7"), b"left behind").unwrap();
        fs::write(root.path().join("live/1-8"), b"").unwrap();
        assert_eq!(files(root.path()), 2);
        drop(FolderBlobs::open(root.path()).unwrap());
        assert_eq!(files(root.path()), 1, "what is written now stays");
        drop(new);
        assert_eq!(files(root.path()), 0);
        assert!(!root.path().join("live/1-8").exists());
    }

    #[test]
    fn a_reader_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (name, _) = keep(&FolderBlobs::open(root.path()).unwrap(), b"some bytes");
        let reader = FolderBlobs::open_for_reading(root.path()).unwrap();
        assert!(open_checked(&reader, &name).is_ok());
        assert!(matches!(reader.begin(), Err(BlobError::ReadOnly)));
        assert!(matches!(reader.remove(&name), Err(BlobError::ReadOnly)));
        assert!(FolderBlobs::open_for_reading(&root.path().join("none")).is_err());
        assert_eq!(fs::read_dir(root.path().join("live")).unwrap().count(), 0);
    }
}
