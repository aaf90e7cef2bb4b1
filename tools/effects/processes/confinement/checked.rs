//! A confinement whose paths are looked at: real, without links, and with no other name for what is denied.
//!
//! Landlock judges the path that a file is reached by, not the file. So a denied file with a second name (a hard link)
//! somewhere else could be read by that. The kernel keeps confined commands from making such a name: a link or a
//! rename may not lead to where more is allowed. What is left are names that were there before, and those can be
//! counted: a file knows how many names it has. When not all of them are denied, the command is refused.
//!
//! What must stay true: what is denied inside of what may be written is covered (`covered`), and holds nothing
//! that may be used.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Confinement, ConfinementError, FileAccess};

/// The most files and folders beneath denied paths; they are looked at before each command.
pub const NAMES_MAX: usize = 20_000;
/// Where folders for temporary files are made when the command's environment names no place.
const TEMPORARY: &str = "/tmp";

/// What the shim needs to know to put a confinement in force. All paths are absolute and without links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::effects::processes) struct Checked {
    pub(super) files: FileAccess,
    pub(super) is_offline: bool,
    pub(super) has_local_sockets: bool,
    /// What may be written, and so read.
    pub(super) writable: Vec<PathBuf>,
    /// What may be read although it stands beneath what is denied.
    pub(super) readable: Vec<PathBuf>,
    pub(super) denied: Vec<PathBuf>,
    /// Where a folder for temporary files is to be made.
    pub(in crate::effects::processes) temporary: Option<PathBuf>,
}

impl Checked {
    /// Looks at the paths of a confinement; `temporary` is where the command would put temporary files.
    ///
    /// # Errors
    /// [`ConfinementError`], for paths that cannot be used and for denied files with other names.
    pub(in crate::effects::processes) fn new(
        confinement: &Confinement,
        temporary: Option<&str>,
    ) -> Result<Self, ConfinementError> {
        let mut checked = Self {
            files: confinement.files,
            is_offline: confinement.is_offline,
            has_local_sockets: confinement.has_local_sockets,
            writable: Vec::new(),
            readable: Vec::new(),
            denied: Vec::new(),
            temporary: None,
        };
        if confinement.files == FileAccess::Off {
            let named = [&confinement.denied, &confinement.writable, &confinement.readable];
            return match named.into_iter().flatten().next() {
                Some(path) => Err(ConfinementError::Pointless { path: path.clone() }),
                None => Ok(checked),
            };
        }
        let used = |path, what| there(path, what).and_then(|found| unmoved(found, path, what, confinement.is_pinned));
        let workspace = used(&confinement.workspace, "the workspace")?;
        let writable = confinement.writable.iter().map(|path| used(path, "written"));
        checked.writable = writable.collect::<Result<_, _>>()?;
        let readable = confinement.readable.iter().map(|path| used(path, "read"));
        checked.readable = readable.collect::<Result<_, _>>()?;
        let denied = confinement.denied.iter().map(|path| real(path, "denied"));
        checked.denied = denied.collect::<Result<_, _>>()?;
        match confinement.files {
            FileAccess::WorkspaceWrite => checked.writable.push(workspace),
            // It stays readable also where it stands beneath something denied.
            _ => checked.readable.push(workspace),
        }
        // Not where other commands could move it about.
        let is_apart = |place: &PathBuf| !checked.writable.iter().any(|writable| place.starts_with(writable));
        let named =
            temporary.and_then(|place| there(Path::new(place), "used for temporary files").ok()).filter(is_apart);
        checked.temporary = Some(match named {
            Some(place) => place,
            None => there(Path::new(TEMPORARY), "used for temporary files")?,
        });
        checked.covers_hide_nothing()?;
        checked.names_are_denied()?;
        Ok(checked)
    }

    /// What is denied inside of what may be written, where the rules for files cannot deny.
    pub(super) fn covered(&self) -> impl Iterator<Item = &PathBuf> {
        self.denied.iter().filter(|denied| self.writable.iter().any(|writable| denied.starts_with(writable)))
    }

    /// The folders between what may be written and what is denied in it, which a command could rename.
    pub(super) fn way_to<'a>(&self, denied: &'a Path) -> impl Iterator<Item = &'a Path> {
        let within =
            |folder: &&Path| self.writable.iter().any(|writable| folder.starts_with(writable) && folder != writable);
        denied.ancestors().skip(1).filter(within)
    }

    /// Refuses a working folder that is covered.
    ///
    /// # Errors
    /// [`ConfinementError::Folder`].
    pub(in crate::effects::processes) fn may_work_in(&self, folder: &Path) -> Result<(), ConfinementError> {
        match self.covered().any(|denied| folder.starts_with(denied)) {
            true => Err(ConfinementError::Folder { folder: folder.to_owned() }),
            false => Ok(()),
        }
    }

    fn covers_hide_nothing(&self) -> Result<(), ConfinementError> {
        for denied in self.covered() {
            if let Some(used) = self.writable.iter().chain(&self.readable).find(|used| used.starts_with(denied)) {
                let (denied, used) = (denied.clone(), used.clone());
                return Err(ConfinementError::Contradiction { denied, used });
            }
        }
        Ok(())
    }

    /// Whether a path is given back although it stands beneath a denied one.
    fn is_given(&self, path: &Path) -> bool {
        let deepest = |paths: &[PathBuf]| {
            paths.iter().filter(|given| path.starts_with(given)).map(|given| given.components().count()).max()
        };
        deepest(&self.readable).max(deepest(&self.writable)) > deepest(&self.denied)
    }

    /// Counts the names of every file that is denied.
    #[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
    fn names_are_denied(&self) -> Result<(), ConfinementError> {
        let mut counted: BTreeMap<(u64, u64), (PathBuf, u64, u64)> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for denied in &self.denied {
            let mut open = vec![denied.clone()];
            while let Some(path) = open.pop() {
                if self.is_given(&path) || !seen.insert(path.clone()) {
                    continue;
                }
                if seen.len() > NAMES_MAX {
                    return Err(ConfinementError::TooMuch { path: denied.clone(), names_max: NAMES_MAX });
                }
                let unseen = |source| ConfinementError::Path { path: path.clone(), what: "looked into", source };
                let found = match fs::symlink_metadata(&path) {
                    Ok(found) => found,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(unseen(error)),
                };
                if found.is_dir() {
                    for entry in fs::read_dir(&path).map_err(unseen)? {
                        open.push(entry.map_err(unseen)?.path());
                        if open.len() > NAMES_MAX {
                            return Err(ConfinementError::TooMuch { path: denied.clone(), names_max: NAMES_MAX });
                        }
                    }
                } else if !found.is_symlink() && found.nlink() > 1 {
                    let counts = counted.entry((found.dev(), found.ino())).or_insert((path, found.nlink(), 0));
                    counts.2 += 1;
                }
            }
        }
        match counted.into_values().find(|(_, names, denied_names)| denied_names < names) {
            Some((path, names, denied_names)) => Err(ConfinementError::OtherNames { path, names, denied_names }),
            None => Ok(()),
        }
    }

    /// As texts, none of which holds a NUL.
    pub(in crate::effects::processes) fn to_texts(&self) -> Vec<CString> {
        let files = match self.files {
            FileAccess::Off => b'o',
            FileAccess::WorkspaceWrite => b'w',
            FileAccess::ReadOnly => b'r',
        };
        let flag = |is: bool| if is { b'1' } else { b'0' };
        let mut texts = vec![vec![files, flag(self.is_offline), flag(self.has_local_sockets)]];
        let lists = [(b'W', &self.writable), (b'R', &self.readable), (b'D', &self.denied)];
        let paths = lists.into_iter().flat_map(|(kind, paths)| paths.iter().map(move |path| (kind, path)));
        for (kind, path) in paths.chain(self.temporary.iter().map(|path| (b'T', path))) {
            texts.push([&[kind], path.as_os_str().as_bytes()].concat());
        }
        // A path of the system holds no NUL.
        texts.into_iter().filter_map(|text| CString::new(text).ok()).collect()
    }

    /// Reads what [`Self::to_texts`] wrote.
    pub(in crate::effects::processes) fn from_texts(texts: &[CString]) -> Option<Self> {
        let (first, paths) = texts.split_first()?;
        let flag =
            |byte: u8| [(b'0', false), (b'1', true)].into_iter().find_map(|(is, what)| (is == byte).then_some(what));
        let [files, is_offline, has_local_sockets] = *first.as_bytes() else { return None };
        let files = match files {
            b'o' => FileAccess::Off,
            b'w' => FileAccess::WorkspaceWrite,
            b'r' => FileAccess::ReadOnly,
            _ => return None,
        };
        let (is_offline, has_local_sockets) = (flag(is_offline)?, flag(has_local_sockets)?);
        let (writable, readable, denied) = (Vec::new(), Vec::new(), Vec::new());
        let mut checked = Self { files, is_offline, has_local_sockets, writable, readable, denied, temporary: None };
        for text in paths {
            let (kind, path) = text.as_bytes().split_first()?;
            let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
            match kind {
                b'W' => checked.writable.push(path),
                b'R' => checked.readable.push(path),
                b'D' => checked.denied.push(path),
                b'T' => checked.temporary = Some(path),
                _ => return None,
            }
        }
        Some(checked)
    }
}

impl Confinement {
    /// The same with its paths as they are now, without links. Commands may change links in what they may write; so
    /// what is looked at later must lead to the same place.
    pub(super) fn pinned(mut self) -> Self {
        for (paths, what) in [(&mut self.writable, "written"), (&mut self.readable, "read")] {
            for path in paths {
                // One that is not there keeps its name, and must be there by it.
                *path = there(path, what).unwrap_or_else(|_| path.clone());
            }
        }
        for path in &mut self.denied {
            *path = real(path, "denied").unwrap_or_else(|_| path.clone());
        }
        self.workspace = there(&self.workspace, "the workspace").unwrap_or(self.workspace);
        Self { is_pinned: true, ..self }
    }
}

/// A pinned path has to lead to itself.
fn unmoved(found: PathBuf, path: &Path, what: &'static str, is_pinned: bool) -> Result<PathBuf, ConfinementError> {
    if !is_pinned || found == path {
        return Ok(found);
    }
    let source = io::Error::other("it leads elsewhere than it did at first");
    Err(ConfinementError::Path { path: path.to_owned(), what, source })
}

/// A path that must be there, without links.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn there(path: &Path, what: &'static str) -> Result<PathBuf, ConfinementError> {
    let refused = |source| ConfinementError::Path { path: path.to_owned(), what, source };
    absolute(path).and_then(|()| fs::canonicalize(path)).map_err(refused)
}

/// A path without links, of which the last parts need not be there.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn real(path: &Path, what: &'static str) -> Result<PathBuf, ConfinementError> {
    let refused = |source| ConfinementError::Path { path: path.to_owned(), what, source };
    absolute(path).map_err(refused)?;
    let (mut there, mut absent) = (path, Vec::new());
    loop {
        match fs::canonicalize(there) {
            Ok(found) => return Ok(absent.iter().rev().fold(found, |path, name| path.join(name))),
            // A link that leads nowhere yet may lead somewhere by the time the command runs.
            Err(error) if error.kind() != io::ErrorKind::NotFound || there.is_symlink() => return Err(refused(error)),
            Err(error) => match (there.file_name(), there.parent()) {
                (Some(name), Some(above)) => {
                    absent.push(name);
                    there = above;
                }
                _ => return Err(refused(error)),
            },
        }
    }
}

fn absolute(path: &Path) -> io::Result<()> {
    if path.is_absolute() { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not absolute")) }
}

#[cfg(test)]
mod tests;
