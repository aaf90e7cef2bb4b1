//! How the directory store changes the disk: the few steps between which a process may die or a disk may be full.
//!
//! Tests put their own medium in its place, which fails or kills the process at a chosen step.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Changes files.
pub trait Medium: Send + Sync {
    /// Makes a folder and those above it, where they are not there.
    ///
    /// # Errors
    /// Whatever the system says.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file, or empties it.
    ///
    /// # Errors
    /// Whatever the system says.
    fn create_file(&self, path: &Path) -> io::Result<File>;

    /// Writes all bytes at this place.
    ///
    /// # Errors
    /// Whatever the system says; a part of the bytes may be there then.
    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts a file to this length.
    ///
    /// # Errors
    /// Whatever the system says.
    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Whatever the system says; what is durable is unknown then.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Puts a file or folder in the place of another at once.
    ///
    /// # Errors
    /// Whatever the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// Whatever the system says.
    fn sync_folder(&self, path: &Path) -> io::Result<()>;

    /// Takes a file away.
    ///
    /// # Errors
    /// Whatever the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real disk.
#[derive(Debug, Clone, Copy)]
pub struct Disk;

#[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
impl Medium for Disk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        File::options().read(true).write(true).create(true).truncate(true).open(path)
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn truncate(&self, file: &File, bytes: u64) -> io::Result<()> {
        file.set_len(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}
