//! Where segments are kept on disk: a folder of the cache for each root, never beside the user's own files.
//!
//! One process owns the folder of a root, by a lock that goes with the process. Whoever does not get it works with
//! files that have no name and are gone when they are closed. What is found is used only as far as its checksum and,
//! file by file, its stamp allow, so nothing here needs to be synced: a torn segment is thrown away.

#![expect(clippy::disallowed_methods, reason = "the real side of the segment cache")]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Timestamps};

use crate::digest::Digest;
use crate::search::segment::{Segment, SegmentError, SegmentFile};

/// Most segments found in one folder that are looked at.
pub const SEGMENTS_MAX: usize = 1024;
/// Most roots whose segments are kept; beyond it the ones unused for longest go.
pub const ROOTS_KEPT_MAX: usize = 64;
/// Version of the folder's layout; segments have their own.
const VERSION: &str = "search-1";
/// Begin of the name of a segment.
const SEGMENT: &str = "segment-";
/// Begin of the name of one that is being written.
const PART: &str = "part-";

/// The folder for one root.
#[derive(Debug)]
pub struct SegmentCache {
    folder: PathBuf,
    /// Held open for its lock; none when another process has it.
    lock: Option<File>,
    /// A file of our own, to see what time the disk thinks it is.
    clock: File,
    next: u64,
}

/// A segment that was kept.
#[derive(Debug)]
pub struct Kept {
    /// It, open.
    pub segment: Segment,
    /// Its files.
    pub files: Vec<SegmentFile>,
    /// Where it stands; none when it has no name.
    pub path: Option<PathBuf>,
}

impl SegmentCache {
    /// Opens the folder for a root, making it when it is not there.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(cache: &Path, root: &Path) -> io::Result<Self> {
        let all = cache.join(VERSION);
        let name = Digest::of(root.as_os_str().as_bytes()).to_string();
        let folder = all.join(name.trim_start_matches("sha256:"));
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let clock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(folder.join("lock"))?;
        let owned = rustix::fs::flock(&clock, FlockOperation::NonBlockingLockExclusive).is_ok();
        let lock = if owned { Some(clock.try_clone()?) } else { None };
        let opened = Self { folder, lock, clock, next: 0 };
        if owned {
            opened.now_unix_ns()?;
            forget_old_roots(&all, &opened.folder);
        }
        Ok(opened)
    }

    /// What time it is by the clock that stamps files on this disk, in nanoseconds since 1970.
    ///
    /// # Errors
    /// What the system says.
    pub fn now_unix_ns(&self) -> io::Result<i128> {
        let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        rustix::fs::futimens(&self.clock, &Timestamps { last_access: now, last_modification: now })?;
        let facts = self.clock.metadata()?;
        Ok(i128::from(facts.mtime()) * 1_000_000_000 + i128::from(facts.mtime_nsec()))
    }

    /// Whether what is written here is found again by the next process.
    pub fn is_kept(&self) -> bool {
        self.lock.is_some()
    }

    /// The segments that are there, oldest first; damaged ones are removed. Nothing when another process has them.
    pub fn load(&mut self) -> Vec<Kept> {
        let mut kept = Vec::new();
        if self.lock.is_none() {
            return kept;
        }
        let mut names: Vec<(u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten().take(4 * SEGMENTS_MAX) {
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.strip_prefix(SEGMENT).and_then(|number| number.parse().ok()) {
                Some(number) => names.push((number, entry.path())),
                None if name.starts_with(PART) => self.remove(&entry.path()),
                None => {}
            }
        }
        names.sort();
        self.next = names.last().map_or(0, |(number, _)| number + 1);
        for (_, path) in names.into_iter().take(SEGMENTS_MAX) {
            match File::open(&path).map_err(SegmentError::from).and_then(Segment::open) {
                Ok((segment, files)) => kept.push(Kept { segment, files, path: Some(path) }),
                Err(error) => {
                    tracing::info!(%error, "a segment of the search index is made anew");
                    self.remove(&path);
                }
            }
        }
        kept
    }

    /// Writes a segment and opens it.
    ///
    /// # Errors
    /// [`SegmentError`], also when the disk is full.
    pub fn put(&mut self, bytes: &[u8]) -> Result<Kept, SegmentError> {
        let number = self.next;
        self.next += 1;
        let part = self.folder.join(format!("{PART}{}-{number}", std::process::id()));
        let written = OpenOptions::new()
            .create_new(true)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&part)
            .and_then(|mut file| file.write_all(bytes).map(|()| file));
        let file = match written {
            Ok(file) => file,
            Err(error) => {
                self.remove(&part);
                return Err(error.into());
            }
        };
        let mut path = None;
        if self.lock.is_some() {
            let named = self.folder.join(format!("{SEGMENT}{number}"));
            fs::rename(&part, &named)?;
            path = Some(named);
        } else {
            self.remove(&part);
        }
        let (segment, files) = Segment::written(file, bytes)?;
        Ok(Kept { segment, files, path })
    }

    /// Removes a segment's file; whoever has it open keeps what is in it.
    pub fn remove(&self, path: &Path) {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::info!(%error, path = %path.display(), "a file of the search index stays");
        }
    }
}

/// Removes the folders of roots that were not used for longest, but none that is in use.
fn forget_old_roots(all: &Path, own: &Path) {
    let entries = fs::read_dir(all).into_iter().flatten().flatten().take(4 * ROOTS_KEPT_MAX);
    let used = |entry: &fs::DirEntry| entry.path().join("lock").metadata().map(|facts| facts.mtime()).unwrap_or(0);
    let mut roots: Vec<(i64, PathBuf)> = entries.map(|entry| (used(&entry), entry.path())).collect();
    roots.sort();
    let surplus = roots.len().saturating_sub(ROOTS_KEPT_MAX);
    for (_, folder) in roots.into_iter().take(surplus).filter(|(_, folder)| folder != own) {
        let Ok(lock) = File::open(folder.join("lock")) else { continue };
        if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _stays = fs::remove_dir_all(&folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{ROOTS_KEPT_MAX, SegmentCache};
    use crate::search::segment::SegmentFile;
    use crate::search::segment_builder::SegmentBuilder;
    use crate::search::text::Extent;

    fn segment(path: &str) -> Vec<u8> {
        let mut builder = SegmentBuilder::default();
        let file = SegmentFile { path: path.into(), stamp: None, binary_at_byte: None, extent: Extent::default() };
        builder.begin();
        builder.read(b"text");
        builder.add(file);
        builder.finish()
    }

    fn paths(cache: &mut SegmentCache) -> Vec<String> {
        let kept = cache.load();
        kept.iter().map(|kept| String::from_utf8(kept.files[0].path.clone()).unwrap()).collect()
    }

    #[test]
    fn segments_outlive_their_process_and_damaged_ones_go() {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new("/some/root");
        let mut cache = SegmentCache::open(folder.path(), root).unwrap();
        assert!(cache.is_kept() && cache.load().is_empty());
        let one = cache.put(&segment("one")).unwrap().path.unwrap();
        cache.put(&segment("two")).unwrap();
        // Another process does not get the folder, and leaves nothing in it.
        let mut other = SegmentCache::open(folder.path(), root).unwrap();
        assert!(!other.is_kept() && other.load().is_empty());
        assert!(other.put(&segment("three")).unwrap().path.is_none());
        drop(other);
        drop(cache);
        let mut again = SegmentCache::open(folder.path(), root).unwrap();
        assert_eq!(paths(&mut again), ["one", "two"]);
        again.put(&segment("four")).unwrap();
        fs::write(&one, b"torn").unwrap();
        assert_eq!(paths(&mut again), ["two", "four"]);
        assert!(!one.exists());
        let mut elsewhere = SegmentCache::open(folder.path(), Path::new("/other/root")).unwrap();
        assert!(elsewhere.load().is_empty());
    }

    #[test]
    fn roots_do_not_pile_up() {
        let folder = tempfile::tempdir().unwrap();
        let used = SegmentCache::open(folder.path(), Path::new("/used")).unwrap();
        for number in 0..ROOTS_KEPT_MAX + 10 {
            SegmentCache::open(folder.path(), Path::new(&format!("/root/{number}"))).unwrap();
        }
        let left = fs::read_dir(folder.path().join("search-1")).unwrap().count();
        assert!(left <= ROOTS_KEPT_MAX + 1, "{left}");
        assert!(used.folder.exists());
    }
}
