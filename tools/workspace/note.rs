//! The note of a change of several files: what is about to happen, for whoever finds it half done.
//!
//! It stands at the workspace's root under a name that says which process wrote it. `….undo` means: not final yet,
//! put back what was changed; `….done`: final, only the kept old files are to go. A workspace that is opened carries
//! out the notes of processes that have ended, before it looks at anything else. What somebody else wrote over a file
//! since then stays. A note may come with a repository, from anybody: nothing is done for it that leads out of the
//! workspace or into `.git`, and nothing goes but names of our own form and files that are what it says to the inode.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::beneath::Beneath;
use super::leftover;
use super::replacement::{harmless, rename_to_new};
use crate::effects::files::FileError;
use crate::workspace_path::WorkspacePath;

/// How the name of a note ends while its change can be taken back.
const UNDO_SUFFIX: &str = ".undo";
/// How it ends once the change is final.
const DONE_SUFFIX: &str = ".done";
/// The form of notes; one of another form is left alone.
const VERSION: u32 = 1;
/// Longest note that is read, in bytes.
const NOTE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Most names of the root that are looked at for notes.
const NAMES_MAX: usize = 100_000;

/// A note that stands at the root.
pub(super) struct Note {
    root: OwnedFd,
    name: String,
}

/// What a note says.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// Folders that were made, outermost first.
    folders: Vec<String>,
    steps: Vec<NotedStep>,
}

/// One change of one file; paths in printed form, names in the folder of `path`.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NotedStep {
    pub(super) path: String,
    /// Where the file goes, for one that is moved.
    pub(super) to: Option<String>,
    /// The name that the old file is kept under.
    pub(super) kept: String,
    /// The name of the new content before it gets its own.
    pub(super) temp: Option<String>,
    pub(super) old: Option<Mark>,
    pub(super) new: Option<Mark>,
}

/// What a file is known by, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Mark {
    inode: u64,
    size_bytes: i64,
    modified_s: i64,
    modified_ns: i64,
}

impl Mark {
    pub(super) fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size_bytes: stat.st_size,
            modified_s: stat.st_mtime,
            modified_ns: i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
        }
    }
}

impl Note {
    /// Writes a note and makes it durable.
    pub(super) fn write(
        beneath: &Beneath,
        steps: Vec<NotedStep>,
        folders: &[WorkspacePath],
    ) -> Result<Self, FileError> {
        let at_root = WorkspacePath::root();
        let fail = |errno| beneath.error("write the note of a change of several files into", &at_root, errno);
        let folders = folders.iter().map(ToString::to_string).collect();
        let content = serde_json::to_vec(&Content { version: VERSION, folders, steps }).unwrap_or_default();
        let name = leftover::name(UNDO_SUFFIX);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = beneath.root().try_clone_to_owned().map_err(|error| fail(errno_of(&error)))?;
        let file = rustix::fs::openat(&root, &name, flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
        let mut note = File::from(file);
        let written = note.write_all(&content).and_then(|()| note.sync_all()).map_err(|error| errno_of(&error));
        if let Err(errno) = written.and_then(|()| rustix::fs::fsync(&root).or_else(harmless)) {
            let _ = rustix::fs::unlinkat(&root, &name, AtFlags::empty());
            return Err(fail(errno));
        }
        Ok(Self { root, name })
    }

    /// Makes the change final.
    pub(super) fn seal(&mut self) -> Result<(), Errno> {
        let done = self.name.replace(UNDO_SUFFIX, DONE_SUFFIX);
        rustix::fs::renameat(&self.root, &self.name, &self.root, &done)?;
        match rustix::fs::fsync(&self.root).or_else(harmless) {
            Ok(()) => {
                self.name = done;
                Ok(())
            }
            Err(errno) => {
                // Not known to be final, so it is not.
                rustix::fs::renameat(&self.root, &done, &self.root, &self.name)?;
                Err(errno)
            }
        }
    }

    /// Takes the note away: there is nothing to be put right any more.
    pub(super) fn remove(self) {
        let _ = rustix::fs::unlinkat(&self.root, &self.name, AtFlags::empty());
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Puts right what processes that have ended left half done. What cannot be put right now stays for the next time.
pub(super) fn recover(beneath: &Beneath) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::openat(beneath.root(), ".", flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    let Ok(entries) = entries else { return };
    let mut notes = Vec::new();
    for entry in entries.take(NAMES_MAX).flatten() {
        let Ok(name) = entry.file_name().to_str() else { continue };
        if name.starts_with(leftover::TEMP_PREFIX) && (name.ends_with(UNDO_SUFFIX) || name.ends_with(DONE_SUFFIX)) {
            notes.push(name.to_owned());
        }
    }
    notes.sort();
    for name in notes {
        recover_one(beneath, &name);
    }
}

fn recover_one(beneath: &Beneath, name: &str) {
    let root = beneath.root();
    let Ok(stat) = rustix::fs::statat(root, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
    let modified_unix_s = u64::try_from(stat.st_mtime).unwrap_or(0);
    let is_left = |suffix| leftover::is_left(name, suffix, modified_unix_s);
    if !is_left(UNDO_SUFFIX) && !is_left(DONE_SUFFIX) {
        return;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::openat(root, name, flags, Mode::empty()) else { return };
    // Two that open the workspace at once: one of them does it.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return;
    }
    let mut bytes = Vec::new();
    let whole = File::from(file).take(NOTE_BYTES_MAX).read_to_end(&mut bytes).is_ok();
    let content = serde_json::from_slice::<Content>(&bytes).ok().filter(|content| content.version == VERSION);
    let done = match content {
        Some(content) if name.ends_with(UNDO_SUFFIX) => take_back(beneath, &content),
        Some(content) => content.steps.iter().all(|step| forget(beneath, step)),
        // Cut off while it was written: nothing had been changed by then.
        None => whole && serde_json::from_slice::<serde::de::IgnoredAny>(&bytes).is_err(),
    };
    if done {
        tracing::warn!(note = name, "a change of several files had been cut off and was put right");
        let _ = rustix::fs::unlinkat(root, name, AtFlags::empty());
    }
}

/// Puts everything back that was changed; returns whether all of it is as it was, or somebody else's by now.
fn take_back(beneath: &Beneath, content: &Content) -> bool {
    let mut all = true;
    for step in content.steps.iter().rev() {
        all &= step_back(beneath, step).is_ok();
    }
    for folder in content.folders.iter().rev() {
        if let Some((above, name)) = folder_of(beneath, folder) {
            let _ = rustix::fs::unlinkat(&above, &*name, AtFlags::REMOVEDIR);
        }
    }
    all
}

/// Puts one file back.
fn step_back(beneath: &Beneath, step: &NotedStep) -> Result<(), Errno> {
    if ![Some(&step.kept), step.temp.as_ref()].into_iter().flatten().all(|name| is_ours(name)) {
        return Ok(());
    }
    // A folder that is gone took everything in it along.
    let Some((folder, name)) = folder_of(beneath, &step.path) else { return Ok(()) };
    let mark = |folder: &OwnedFd, name: &std::ffi::OsStr| {
        rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| Mark::of(&stat))
    };
    let now = mark(&folder, &name);
    if let Some(to) = &step.to {
        if let Some((to_folder, to_name)) = folder_of(beneath, to)
            && now.is_none()
            && mark(&to_folder, &to_name) == step.old
        {
            rename_to_new(&to_folder, to_name.as_os_str(), &folder, name.as_os_str())?;
            rustix::fs::fsync(&folder).or_else(harmless)?;
        }
        return Ok(());
    }
    let kept = mark(&folder, step.kept.as_ref());
    match (kept, step.old) {
        // Gone or ours: the old one goes back there. Else the old one stands there still, or somebody's new one.
        (Some(_), _) if now.is_none() || now == step.new => {
            rustix::fs::renameat(&folder, &step.kept, &folder, &*name)?;
        }
        (Some(_), _) => rustix::fs::unlinkat(&folder, &step.kept, AtFlags::empty())?,
        // A new file.
        (None, None) if now.is_some() && now == step.new => rustix::fs::unlinkat(&folder, &*name, AtFlags::empty())?,
        _ => {}
    }
    if let Some(temp) = &step.temp {
        let _ = rustix::fs::unlinkat(&folder, temp, AtFlags::empty());
    }
    rustix::fs::fsync(&folder).or_else(harmless)
}

/// Lets go of the old file that was kept.
fn forget(beneath: &Beneath, step: &NotedStep) -> bool {
    if !is_ours(&step.kept) {
        return true;
    }
    let Some((folder, _)) = folder_of(beneath, &step.path) else { return true };
    matches!(rustix::fs::unlinkat(&folder, &step.kept, AtFlags::empty()), Ok(()) | Err(Errno::NOENT))
}

/// Whether a name has the form that we give.
fn is_ours(name: &str) -> bool {
    name.starts_with(leftover::TEMP_PREFIX) && !name.contains('/')
}

/// The folder of a path, open, and the last name; none when the folder is not there.
fn folder_of(beneath: &Beneath, printed: &str) -> Option<(OwnedFd, std::ffi::OsString)> {
    let path = WorkspacePath::parse(printed, "").ok()?;
    let (above, name) = (path.parent()?, path.name()?.to_owned());
    if path.names().any(|name| name == ".git") {
        return None;
    }
    let folder = beneath.open_plain(&above, OFlags::RDONLY | OFlags::DIRECTORY).ok()?;
    Some((folder, name))
}
