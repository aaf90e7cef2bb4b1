//! Several files changed as one: all of them or none, also when the process is killed half-way.
//!
//! First everything that can fail is done beside the targets: new contents are written and synced under temp names,
//! and what must hold is checked. Then a note at the workspace's root says what is about to happen, the old files are
//! kept under names beside theirs, and the new ones are renamed into place, all under the locks of their paths. When
//! a step fails the old files go back; when the process dies, the note tells the next one that opens the workspace
//! (`note`). A reader of one file sees its old bytes or its new ones; who reads several may see some of each for as
//! long as the renames take.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::beneath::{Beneath, RACES_MAX, not_a_file};
use super::leftover;
use super::note::{Mark, Note, NotedStep};
use super::replacement::{Halt, Replacing, Temp, harmless, lock_stripe, rename_to_new, stripe, take_after};
use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{Expected, FileError, Replacement};
use crate::workspace_path::WorkspacePath;

/// How the name ends that an old file is kept under.
const KEPT_SUFFIX: &str = ".old";
/// Buffer for copying an old file where it cannot be linked, in bytes.
const COPY_BUFFER_BYTES: usize = 256 * 1024;

/// Changes on their way.
pub(super) struct Transaction<'t> {
    beneath: &'t Beneath,
    steps: Vec<Step<'t>>,
    /// Folders that were made for new files, outermost first.
    folders: Vec<WorkspacePath>,
}

/// One change on its way.
struct Step<'t> {
    change: &'t FileChange<'t>,
    place: Place,
    /// Where the file goes, for one that is moved.
    to: Option<Place>,
    /// The new content, until it has its name.
    temp: Option<Temp<Rc<OwnedFd>>>,
    /// What stood there.
    old: Option<Stat>,
    /// What its new content is known by.
    new: Option<Mark>,
    /// The name that the old file is kept under.
    kept: String,
    is_kept: bool,
    is_done: bool,
}

/// A name in an open folder.
struct Place {
    path: WorkspacePath,
    folder: Rc<OwnedFd>,
    name: OsString,
}

impl<'t> Transaction<'t> {
    /// Makes the changes; `enter` is told each folder before anything is written there.
    pub(super) fn run(
        beneath: &'t Beneath,
        changes: &'t [FileChange<'t>],
        go_on: &dyn Fn() -> bool,
        enter: &dyn Fn(&OwnedFd),
    ) -> Result<(), TogetherError> {
        let mut transaction = Self { beneath, steps: Vec::with_capacity(changes.len()), folders: Vec::new() };
        for (index, change) in changes.iter().enumerate() {
            let prepared = if go_on() {
                transaction.prepare(change, enter).map_err(|error| TogetherError::before_anything(index, error))
            } else {
                Err(TogetherError::stopped(change.path()))
            };
            match prepared {
                Ok(step) => transaction.steps.push(step),
                Err(failed) => {
                    transaction.steps.clear();
                    transaction.remove_folders();
                    return Err(failed);
                }
            }
        }
        transaction.commit(go_on)
    }

    /// Everything that can be done of a change without changing anything that was there.
    fn prepare(&mut self, change: &'t FileChange<'t>, enter: &dyn Fn(&OwnedFd)) -> Result<Step<'t>, FileError> {
        let kept = leftover::name(KEPT_SUFFIX);
        let mut step = match change {
            FileChange::Put { path, bytes, expected, mode } => {
                let place = self.place(path, true)?;
                enter(&place.folder);
                let old = place.look(self.beneath)?;
                if *expected == Expected::Absent && old.is_some() {
                    return Err(FileError::Exists { path: path.to_string() });
                }
                let fail = |op, errno| self.beneath.error(op, path, errno);
                let io = |op, source| FileError::Io { op, path: path.to_string(), source };
                let mut temp = Temp::create(Rc::clone(&place.folder), old.is_none())
                    .map_err(|errno| fail("create a file beside", errno))?;
                temp.file.write_all(bytes).map_err(|source| io("write", source))?;
                if let Some(old) = &old {
                    take_after(&temp.file, old).map_err(|errno| fail("set the mode of", errno))?;
                }
                if let Some(mode) = mode {
                    let mode = Mode::from_raw_mode(mode & 0o7777);
                    rustix::fs::fchmod(&temp.file, mode).map_err(|errno| fail("set the mode of", errno))?;
                }
                temp.file.sync_all().map_err(|source| io("sync", source))?;
                let new = rustix::fs::fstat(&temp.file).map_err(|errno| fail("stat", errno))?;
                let new = Some(Mark::of(&new));
                Step { change, place, to: None, temp: Some(temp), old, new, kept, is_kept: false, is_done: false }
            }
            FileChange::Remove { path, .. } => {
                let place = self.place(path, false)?;
                enter(&place.folder);
                Step { change, place, to: None, temp: None, old: None, new: None, kept, is_kept: false, is_done: false }
            }
            FileChange::Move { from, to, .. } => {
                let (place, to) = (self.place(from, false)?, Some(self.place(to, true)?));
                Step { change, place, to, temp: None, old: None, new: None, kept, is_kept: false, is_done: false }
            }
        };
        step.check(self.beneath)?;
        Ok(step)
    }

    /// Opens the folder of a path; a link at its end is followed only where the change is a new content.
    fn place(&mut self, path: &WorkspacePath, make_folders: bool) -> Result<Place, FileError> {
        let wanted = Replacement { bytes: b"", expected: Expected::Any, create_folders: make_folders };
        let replacing = Replacing::new(self.beneath, path, &wanted);
        for _ in 0..RACES_MAX {
            let target = match path.parent() {
                // What goes or moves is the name itself, never what a link points to.
                Some(above) => self.beneath.canonical(&above)?.child(path.name().unwrap_or_default()),
                None => return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" }),
            };
            let target = if make_folders { self.beneath.canonical(&target)? } else { target };
            let (Some(above), Some(name)) = (target.parent(), target.name()) else {
                return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
            };
            let missing = if make_folders { self.missing_folders(&above) } else { Vec::new() };
            match replacing.folder(&above) {
                Err(Errno::LOOP) => {}
                Err(errno) => return Err(replacing.folder_error(&above, errno)),
                Ok(folder) => {
                    self.folders.extend(missing);
                    let name = name.to_owned();
                    return Ok(Place { path: target, folder: Rc::new(folder), name });
                }
            }
        }
        Err(self.beneath.error("change", path, Errno::LOOP))
    }

    /// The folders of a path that are not there, outermost first.
    fn missing_folders(&self, path: &WorkspacePath) -> Vec<WorkspacePath> {
        let mut missing = Vec::new();
        let mut at = Some(path.clone());
        while let Some(folder) = at.filter(|folder| !folder.is_root()) {
            if !matches!(self.beneath.open_plain(&folder, OFlags::PATH), Err(Errno::NOENT)) {
                break;
            }
            at = folder.parent();
            missing.push(folder);
        }
        missing.reverse();
        missing
    }

    /// Changes everything, or nothing.
    fn commit(mut self, go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        let places = self.steps.iter().flat_map(|step| std::iter::once(&step.place).chain(&step.to));
        let stripes: BTreeSet<usize> = places.map(|place| stripe(&place.folder, &place.name)).collect();
        let _turn: Vec<_> = stripes.into_iter().map(lock_stripe).collect();
        let mut note = None;
        let made = self.change(go_on, &mut note).and_then(|()| self.seal(note.as_mut()));
        let failed = match made {
            Ok(()) => {
                // From here on a process that dies leaves nothing to be put right but names.
                let _ = go_on();
                None
            }
            Err(failure) => Some(self.take_back(failure)),
        };
        // What could not be put back is left to whoever opens the workspace when this process has ended.
        if failed.as_ref().is_none_or(|failed| failed.unrestored.is_empty()) {
            self.steps.iter_mut().for_each(Step::forget_old);
            if let Some(note) = note {
                note.remove();
            }
        }
        match failed {
            None => Ok(()),
            Some(failed) => {
                self.steps.clear();
                self.remove_folders();
                Err(failed)
            }
        }
    }

    /// The steps that change something, each durable as far as the next one needs it.
    fn change(&mut self, go_on: &dyn Fn() -> bool, note: &mut Option<Note>) -> Result<(), TogetherError> {
        let beneath = self.beneath;
        let fail = |index| move |error| TogetherError::before_anything(index, error);
        for (index, step) in self.steps.iter_mut().enumerate() {
            step.check(beneath).map_err(fail(index))?;
        }
        if self.steps.len() > 1 {
            let steps = self.steps.iter().map(Step::noted).collect();
            *note = Some(Note::write(beneath, steps, &self.folders).map_err(fail(0))?);
        }
        for (index, step) in self.steps.iter_mut().enumerate() {
            proceed(go_on, step)?;
            if note.is_some() {
                step.keep_old(beneath).map_err(fail(index))?;
            }
        }
        if note.is_some() {
            self.sync_folders()?;
        }
        for (index, step) in self.steps.iter_mut().enumerate() {
            proceed(go_on, step)?;
            step.make(beneath, note.is_some()).map_err(fail(index))?;
        }
        self.sync_folders()?;
        self.steps.first().map_or(Ok(()), |first| proceed(go_on, first))
    }

    /// Makes it final.
    fn seal(&self, note: Option<&mut Note>) -> Result<(), TogetherError> {
        match (note, self.steps.first()) {
            (Some(note), Some(first)) => note.seal().map_err(|errno| {
                let error = self.beneath.error("sync the note of", first.change.path(), errno);
                TogetherError::before_anything(0, error)
            }),
            _ => Ok(()),
        }
    }

    fn sync_folders(&self) -> Result<(), TogetherError> {
        let mut synced = BTreeSet::new();
        for (index, step) in self.steps.iter().enumerate() {
            for place in std::iter::once(&step.place).chain(&step.to) {
                if synced.insert(place.path.parent()) {
                    rustix::fs::fsync(&*place.folder).or_else(harmless).map_err(|errno| {
                        let error = self.beneath.error("sync the folder of", &place.path, errno);
                        TogetherError::before_anything(index, error)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Puts back what was changed, the last change first.
    fn take_back(&mut self, mut failed: TogetherError) -> TogetherError {
        for step in self.steps.iter_mut().rev().filter(|step| step.is_done) {
            let path = step.change.path().clone();
            match step.undo(self.beneath) {
                Ok(()) => failed.restored.push(path),
                Err(error) => failed.unrestored.push((path, error)),
            }
        }
        failed.restored.sort();
        failed
    }

    /// Removes the folders that were made, as far as they are empty.
    fn remove_folders(&mut self) {
        for folder in self.folders.drain(..).rev() {
            if let (Some(above), Some(name)) = (folder.parent(), folder.name())
                && let Ok(above) = self.beneath.open_plain(&above, OFlags::RDONLY | OFlags::DIRECTORY)
            {
                let _ = rustix::fs::unlinkat(&above, name, AtFlags::REMOVEDIR);
            }
        }
    }
}

fn proceed(go_on: &dyn Fn() -> bool, step: &Step<'_>) -> Result<(), TogetherError> {
    if go_on() { Ok(()) } else { Err(TogetherError::stopped(step.change.path())) }
}

impl Step<'_> {
    /// Whether everything is as the change expects it; takes down what is there.
    fn check(&mut self, beneath: &Beneath) -> Result<(), FileError> {
        let path = self.place.path.to_string();
        let expected = match self.change {
            FileChange::Put { expected, .. } => {
                self.old = self.place.look(beneath)?;
                expected
            }
            FileChange::Remove { expected, .. } | FileChange::Move { expected, .. } => {
                // That it has other names does not matter: those stay.
                self.old = self.place.stat_file(beneath)?;
                if self.old.is_none() {
                    return Err(FileError::NotFound { path });
                }
                expected
            }
        };
        if self.old.is_some() && *expected == Expected::Absent {
            return Err(FileError::Exists { path });
        }
        if let Some(to) = &self.to
            && to.stat(beneath)?.is_some()
        {
            return Err(FileError::Exists { path: to.path.to_string() });
        }
        let wanted = Replacement { bytes: b"", expected: expected.clone(), create_folders: false };
        Replacing::new(beneath, &self.place.path, &wanted).check_content(&self.place.folder, &self.place.name)
    }

    fn noted(&self) -> NotedStep {
        NotedStep {
            path: self.place.path.to_string(),
            to: self.to.as_ref().map(|to| to.path.to_string()),
            kept: self.kept.clone(),
            temp: self.temp.as_ref().map(|temp| temp.name.clone()),
            old: self.old.as_ref().map(Mark::of),
            new: self.new,
        }
    }

    /// Keeps the old file under another name beside it, where a new one is to take its place.
    fn keep_old(&mut self, beneath: &Beneath) -> Result<(), FileError> {
        let (FileChange::Put { .. }, Some(old)) = (self.change, &self.old) else { return Ok(()) };
        let Place { folder, path, .. } = &self.place;
        let name = self.place.name.as_os_str();
        let fail = |errno| beneath.error("keep the old content of", path, errno);
        match rustix::fs::linkat(&**folder, name, &**folder, &self.kept, AtFlags::empty()) {
            Ok(()) => {}
            // File systems without links, and files of others that may not be linked.
            Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP | Errno::MLINK | Errno::NOSYS) => {
                copy(folder, name, &self.kept, old).map_err(fail)?;
            }
            Err(errno) => return Err(fail(errno)),
        }
        self.is_kept = true;
        Ok(())
    }

    /// Changes what everybody sees.
    fn make(&mut self, beneath: &Beneath, keep: bool) -> Result<(), FileError> {
        let Place { folder, path, .. } = &self.place;
        let name = self.place.name.as_os_str();
        let fail = |errno| match errno {
            Errno::EXIST => FileError::Exists { path: self.to.as_ref().map_or(path, |to| &to.path).to_string() },
            errno => beneath.error("change", path, errno),
        };
        match (self.change, &mut self.temp, &self.to) {
            (FileChange::Put { .. }, Some(temp), _) => {
                let replaced = match self.old {
                    Some(_) => rustix::fs::renameat(&**folder, &temp.name, &**folder, name),
                    None => rename_to_new(folder, temp.name.as_str(), folder, name),
                };
                replaced.map_err(fail)?;
                temp.named = false;
            }
            (FileChange::Move { .. }, _, Some(to)) => {
                rename_to_new(folder, name, &to.folder, to.name.as_os_str()).map_err(fail)?;
            }
            _ if keep => {
                rustix::fs::renameat(&**folder, name, &**folder, &self.kept).map_err(fail)?;
                self.is_kept = true;
            }
            _ => rustix::fs::unlinkat(&**folder, name, AtFlags::empty()).map_err(fail)?,
        }
        self.is_done = true;
        Ok(())
    }

    /// Puts back what [`Self::make`] changed.
    fn undo(&mut self, beneath: &Beneath) -> Result<(), FileError> {
        let Place { folder, path, .. } = &self.place;
        let name = self.place.name.as_os_str();
        let fail = |errno| beneath.error("put back", path, errno);
        match (self.change, &self.to) {
            (FileChange::Put { .. }, _) => {
                // Not over what somebody else wrote since.
                let now = self.place.stat(beneath)?.as_ref().map(Mark::of);
                if now != self.new {
                    let (expected, actual) = ("what was just written".to_owned(), "something else".to_owned());
                    return Err(FileError::Changed { path: path.to_string(), expected, actual });
                }
                if self.is_kept {
                    rustix::fs::renameat(&**folder, &self.kept, &**folder, name).map_err(fail)?;
                } else if self.old.is_none() {
                    rustix::fs::unlinkat(&**folder, name, AtFlags::empty()).map_err(fail)?;
                } else {
                    return Err(fail(Errno::NOENT));
                }
            }
            (FileChange::Move { .. }, Some(to)) => {
                rename_to_new(&to.folder, to.name.as_os_str(), folder, name).map_err(fail)?;
            }
            _ => rename_to_new(folder, self.kept.as_str(), folder, name).map_err(fail)?,
        }
        self.is_kept = false;
        self.is_done = false;
        rustix::fs::fsync(&**folder).or_else(harmless).map_err(fail)
    }

    /// Lets go of the old file that was kept.
    fn forget_old(&mut self) {
        if std::mem::take(&mut self.is_kept) {
            let _ = rustix::fs::unlinkat(&*self.place.folder, &self.kept, AtFlags::empty());
        }
    }
}

impl Place {
    /// What stands there; refused when no new content may take its place.
    fn look(&self, beneath: &Beneath) -> Result<Option<Stat>, FileError> {
        let wanted = Replacement { bytes: b"", expected: Expected::Any, create_folders: false };
        match Replacing::new(beneath, &self.path, &wanted).look(&self.folder, &self.name) {
            Ok(stat) => Ok(stat),
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Raced) => Err(not_a_file(&self.path, FileType::Symlink.as_raw_mode())),
        }
    }

    fn stat(&self, beneath: &Beneath) -> Result<Option<Stat>, FileError> {
        match rustix::fs::statat(&*self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(beneath.error("stat", &self.path, errno)),
        }
    }

    /// What stands there, which must be a regular file.
    fn stat_file(&self, beneath: &Beneath) -> Result<Option<Stat>, FileError> {
        match self.stat(beneath)? {
            Some(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
                Err(not_a_file(&self.path, stat.st_mode))
            }
            stat => Ok(stat),
        }
    }
}

/// Keeps a copy, where a link cannot be made.
fn copy(folder: &Rc<OwnedFd>, name: &OsStr, kept: &str, old: &Stat) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let from = rustix::fs::openat(&**folder, name, flags, Mode::empty())?;
    let mut temp = Temp::create(Rc::clone(folder), false)?;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        let read = match rustix::io::read(&from, &mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        temp.file.write_all(&buffer[..read]).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    }
    take_after(&temp.file, old)?;
    rustix::fs::fsync(&temp.file)?;
    rename_to_new(folder, temp.name.as_str(), folder, kept)?;
    temp.named = false;
    Ok(())
}

#[cfg(test)]
mod tests;
