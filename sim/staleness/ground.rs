//! The pretended workspace of an index: files, folders and names, and the watch that tells of their changes.
//!
//! It tells as the kernel does: a folder is known by its identity and not by its name, a change is in the queue before
//! its call returns, and nothing is told of what is not watched.
//!
//! Faults: a change is told twice, the queue runs over, a folder cannot be watched, no queue is to be had, a file cannot be
//! read by the index. With `races` the workspace is changed while the index lists, opens and reads, and a change is made
//! whose call has not returned yet: its bytes are there, and it is told later.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::hash::{Hash as _, Hasher as _};
use std::io::{self, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwarden_tools::effects::files::{
    FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement,
};
use toolwarden_tools::effects::folder_watch::{Change, ChangeKind, WatchError};
use toolwarden_tools::search::told_files::ToldFiles;
use toolwarden_tools::search::tree::TreeError;
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::fate::Fate;
use crate::happening::TraceDigest;

/// The identity of the root.
pub(super) const IDENTITY: (u64, u64) = (1, 1);
/// Most changes that are made in the middle of what the index does, for each of its turns.
const MEDDLES_MAX: u32 = 6;
/// Most changes that wait to be told.
const QUEUE_MAX: usize = 4_096;

const FOLDERS: [&str; 5] = ["", "a", "a/b", "lib", "out"];
const NAMES: [&str; 5] = ["m.rs", "n.rs", "o.txt", "p", "q.log"];
const TEXTS: [&str; 6] =
    ["alpha one\nbeta\n", "Gamma x\n", "delta_one\nalpha\n", "nothing of it\n", "", "one alpha\nbetas two\n"];
const RULES: [&str; 5] = ["*.log\n", "out/\n", "*.txt\n!o.txt\n", "a/b\n", ""];

/// The workspace.
pub(super) struct Ground {
    fate: Fate,
    races: bool,
    faults: bool,
    state: Mutex<State>,
    /// Whether nothing is changed and nothing fails for a while.
    peace: AtomicBool,
    /// Changes that may still be made in this turn of the index.
    meddles: AtomicU32,
}

#[derive(Default)]
struct State {
    /// Files by path: which inode.
    files: BTreeMap<Vec<u8>, u64>,
    inodes: BTreeMap<u64, Inode>,
    /// Folders by path: which inode; the root is 1.
    folders: BTreeMap<Vec<u8>, u64>,
    next: u64,
    /// The watch of each folder's inode, and its number.
    watches: BTreeMap<u64, i32>,
    next_watch: i32,
    queue: VecDeque<Change>,
    overrun: bool,
    /// Changes that were made and whose calls have not returned.
    untold: Vec<Change>,
    digest: TraceDigest,
}

#[derive(Clone)]
struct Inode {
    bytes: Arc<[u8]>,
    names: u64,
    changed: i128,
}

impl State {
    fn parent(path: &[u8]) -> (&[u8], &OsStr) {
        let at = path.iter().rposition(|byte| *byte == b'/');
        let (folder, name) = at.map_or((&b""[..], path), |at| (&path[..at], &path[at + 1..]));
        (folder, OsStr::from_bytes(name))
    }

    /// What is to be told of a name, where its folder is watched.
    fn of_name(&self, path: &[u8], kind: ChangeKind) -> Option<Change> {
        let (folder, name) = Self::parent(path);
        let watch = *self.watches.get(self.folders.get(folder)?)?;
        Some(Change { watch, name: Some(OsString::from(name)), kind })
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Makes the folders of a path; gives what is to be told.
    fn make_folders(&mut self, path: &[u8], told: &mut Vec<Change>) {
        for end in (0..path.len()).filter(|at| path[*at] == b'/') {
            let folder = path[..end].to_vec();
            if !self.folders.contains_key(&folder) {
                let inode = self.fresh();
                self.folders.insert(folder.clone(), inode);
                told.extend(self.of_name(&folder, ChangeKind::Name));
            }
        }
    }

    /// Writes a file in place, or makes it.
    fn write(&mut self, path: &[u8], bytes: &[u8]) -> Vec<Change> {
        let mut told = Vec::new();
        if self.folders.contains_key(path) || self.is_below_a_file(path) {
            return told;
        }
        self.make_folders(path, &mut told);
        let changed = i128::from(self.fresh());
        let inode = match self.files.get(path) {
            Some(inode) => *inode,
            None => {
                let inode = self.fresh();
                self.files.insert(path.to_vec(), inode);
                told.extend(self.of_name(path, ChangeKind::Name));
                inode
            }
        };
        let names = self.inodes.get(&inode).map_or(1, |known| known.names);
        self.inodes.insert(inode, Inode { bytes: Arc::from(bytes), names, changed });
        told.extend(self.of_name(path, ChangeKind::Content));
        told
    }

    fn is_below_a_file(&self, path: &[u8]) -> bool {
        (0..path.len()).any(|at| path[at] == b'/' && self.files.contains_key(&path[..at]))
    }

    /// Takes a name away.
    fn unlink(&mut self, path: &[u8]) -> Vec<Change> {
        let Some(inode) = self.files.remove(path) else { return Vec::new() };
        let names = self.inodes.get_mut(&inode).map(|known| {
            known.names -= 1;
            known.names
        });
        if names == Some(0) {
            self.inodes.remove(&inode);
        }
        self.of_name(path, ChangeKind::Name).into_iter().collect()
    }

    /// Gives a file another name, in the place of whatever file has that.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Vec<Change> {
        let blocked = from == to || self.folders.contains_key(to) || self.is_below_a_file(to);
        let has_folder = self.folders.contains_key(Self::parent(to).0);
        let Some(inode) = self.files.get(from).copied().filter(|_| !blocked && has_folder) else { return Vec::new() };
        let mut told = self.unlink(to);
        self.files.remove(from);
        self.files.insert(to.to_vec(), inode);
        told.extend(self.of_name(from, ChangeKind::Name));
        told.extend(self.of_name(to, ChangeKind::Name));
        told
    }

    /// Gives a folder another name, with all that is in it.
    fn rename_folder(&mut self, from: &[u8], to: &[u8]) -> Vec<Change> {
        let inside = |path: &[u8], of: &[u8]| path == of || path.strip_prefix(of).is_some_and(|rest| rest[0] == b'/');
        let is_taken = self.folders.contains_key(to) || self.files.contains_key(to) || self.is_below_a_file(to);
        let has_folder = self.folders.contains_key(Self::parent(to).0);
        if from.is_empty() || !self.folders.contains_key(from) || is_taken || !has_folder || inside(to, from) {
            return Vec::new();
        }
        let moved = |path: &[u8]| [to, &path[from.len()..]].concat();
        let folders: Vec<Vec<u8>> = self.folders.keys().filter(|path| inside(path, from)).cloned().collect();
        let files: Vec<Vec<u8>> = self.files.keys().filter(|path| inside(path, from)).cloned().collect();
        let before = self.of_name(from, ChangeKind::Name);
        for path in folders {
            let inode = self.folders.remove(&path).unwrap_or_default();
            self.folders.insert(moved(&path), inode);
        }
        for path in files {
            let inode = self.files.remove(&path).unwrap_or_default();
            self.files.insert(moved(&path), inode);
        }
        before.into_iter().chain(self.of_name(to, ChangeKind::Name)).collect()
    }

    /// Takes a folder away, with all that is in it.
    fn remove_folder(&mut self, path: &[u8]) -> Vec<Change> {
        let inside = |known: &[u8]| known.strip_prefix(path).is_some_and(|rest| rest.first() == Some(&b'/'));
        if path.is_empty() || !self.folders.contains_key(path) {
            return Vec::new();
        }
        let files: Vec<Vec<u8>> = self.files.keys().filter(|known| inside(known)).cloned().collect();
        let mut told: Vec<Change> = files.iter().flat_map(|file| self.unlink(file)).collect();
        let folders = self.folders.keys().filter(|known| known.as_slice() == path || inside(known));
        let mut folders: Vec<Vec<u8>> = folders.cloned().collect();
        // The deepest goes first, as whoever removes them must.
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        for folder in folders {
            told.extend(self.of_name(&folder, ChangeKind::Name));
            let inode = self.folders.remove(&folder).unwrap_or_default();
            if let Some(watch) = self.watches.remove(&inode) {
                told.push(Change { watch, name: None, kind: ChangeKind::Gone });
            }
        }
        told
    }
}

impl Ground {
    pub(super) fn new(fate: Fate, races: bool, faults: bool) -> Self {
        let mut state = State { next: IDENTITY.1, ..State::default() };
        state.folders.insert(Vec::new(), IDENTITY.1);
        Self {
            fate,
            races,
            faults,
            state: Mutex::new(state),
            peace: AtomicBool::new(false),
            meddles: AtomicU32::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn digest(&self) -> u64 {
        self.state().digest.finish()
    }

    /// A workspace to begin with.
    pub(super) fn make(&self) {
        for (at, text) in TEXTS.iter().enumerate() {
            let path = place(FOLDERS[at % FOLDERS.len()], NAMES[at % NAMES.len()]);
            self.state().write(&path, text.as_bytes());
        }
    }

    fn one_of(&self, words: &[&'static str]) -> &'static str {
        words[self.fate.below(words.len() as u32) as usize]
    }

    fn rare(&self) -> bool {
        self.faults && !self.peace.load(Ordering::Relaxed) && self.fate.rare(1).is_some()
    }

    /// Changes something, all of it at once; says what.
    pub(super) fn change(&self) -> String {
        let (words, told) = self.make_change();
        self.tell(told);
        words
    }

    fn make_change(&self) -> (String, Vec<Change>) {
        let path = place(self.one_of(&FOLDERS), self.one_of(&NAMES));
        let shown = String::from_utf8_lossy(&path).into_owned();
        let kind = self.fate.below(12);
        let with = |change: &mut dyn FnMut(&mut State) -> Vec<Change>| change(&mut self.state());
        let (words, told) = match kind {
            0..=4 => {
                let text = self.one_of(&TEXTS);
                (format!("{shown} is written: {text:?}"), with(&mut |state| state.write(&path, text.as_bytes())))
            }
            5 => (format!("{shown} is removed"), with(&mut |state| state.unlink(&path))),
            6 => {
                let to = place(self.one_of(&FOLDERS), self.one_of(&NAMES));
                let words = format!("{shown} is renamed to {}", String::from_utf8_lossy(&to));
                (words, with(&mut |state| state.rename(&path, &to)))
            }
            7 => {
                // A new content under another name, and then in the place of the old one.
                let (part, text) = (b"part.tmp".to_vec(), self.one_of(&TEXTS));
                let words = format!("{shown} is replaced: {text:?}");
                let told = with(&mut |state| {
                    let mut told = state.write(&part, text.as_bytes());
                    told.extend(state.rename(&part, &path));
                    told
                });
                (words, told)
            }
            8 => {
                let (from, to) = (self.one_of(&FOLDERS), self.one_of(&FOLDERS));
                let told = with(&mut |state| state.rename_folder(from.as_bytes(), to.as_bytes()));
                (format!("the folder {from} is renamed to {to}"), told)
            }
            9 => {
                let folder = self.one_of(&FOLDERS);
                (format!("the folder {folder} is removed"), with(&mut |state| state.remove_folder(folder.as_bytes())))
            }
            10 => {
                let (rules, folder) = (self.one_of(&RULES), self.one_of(&FOLDERS));
                let path = place(folder, ".gitignore");
                let told = with(&mut |state| state.write(&path, rules.as_bytes()));
                (format!("the rules of {folder:?} are {rules:?}"), told)
            }
            _ => {
                let to = place(self.one_of(&FOLDERS), self.one_of(&NAMES));
                let words = format!("{shown} gets a second name, {}", String::from_utf8_lossy(&to));
                let told = with(&mut |state| {
                    let is_free = !state.files.contains_key(&to) && !state.folders.contains_key(&to);
                    let has_folder = state.folders.contains_key(State::parent(&to).0);
                    let Some(inode) = state.files.get(&path).copied().filter(|_| is_free && has_folder) else {
                        return Vec::new();
                    };
                    state.files.insert(to.clone(), inode);
                    if let Some(known) = state.inodes.get_mut(&inode) {
                        known.names += 1;
                    }
                    state
                        .of_name(&path, ChangeKind::Facts)
                        .into_iter()
                        .chain(state.of_name(&to, ChangeKind::Name))
                        .collect()
                });
                (words, told)
            }
        };
        let mut state = self.state();
        words.hash(&mut state.digest);
        drop(state);
        (words, told)
    }

    /// Puts changes into the queue.
    fn tell(&self, told: Vec<Change>) {
        for change in told {
            let twice = self.rare();
            let mut state = self.state();
            if state.queue.len() >= QUEUE_MAX {
                state.overrun = true;
                state.queue.clear();
            }
            if twice {
                self.fate.met("a change that is told twice");
                state.queue.push_back(change.clone());
            }
            state.queue.push_back(change);
        }
    }

    /// All calls that make changes return.
    pub(super) fn settle(&self) {
        let untold = std::mem::take(&mut self.state().untold);
        self.tell(untold);
        self.meddles.store(MEDDLES_MAX, Ordering::Relaxed);
    }

    /// Does something while nothing is changed and nothing fails.
    pub(super) fn in_peace<T>(&self, work: impl FnOnce() -> T) -> T {
        self.peace.store(true, Ordering::Relaxed);
        let done = work();
        self.peace.store(false, Ordering::Relaxed);
        done
    }

    /// In the middle of what the index does, something is changed, now and then.
    fn meddle(&self) {
        if !self.races || self.peace.load(Ordering::Relaxed) || self.meddles.load(Ordering::Relaxed) == 0 {
            return;
        }
        match self.fate.usual(6) {
            1 => {
                self.meddles.fetch_sub(1, Ordering::Relaxed);
                self.fate.met("a change while the index reads");
                self.change();
            }
            2 => {
                self.meddles.fetch_sub(1, Ordering::Relaxed);
                self.fate.met("a change that is told late");
                let (_, told) = self.make_change();
                self.state().untold.extend(told);
            }
            _ => {}
        }
    }

    /// Begins to be told, with nothing in the queue and nothing watched.
    pub(super) fn begin(self: &Arc<Self>) -> Result<Arc<dyn ToldFiles>, TreeError> {
        let mut state = self.state();
        state.queue.clear();
        state.overrun = false;
        state.watches.clear();
        drop(state);
        Ok(Arc::clone(self) as _)
    }

    fn stat_of(state: &State, path: &WorkspacePath) -> Option<(FileStat, i128)> {
        if let Some(inode) = state.files.get(path.as_bytes()) {
            let known = state.inodes.get(inode)?;
            let stat = FileStat {
                kind: FileKind::File,
                size_bytes: known.bytes.len() as u64,
                mode: 0o644,
                link_count: known.names,
                modified_unix_ns: known.changed,
                identity: (1, *inode),
            };
            return Some((stat, known.changed));
        }
        let inode = state.folders.get(path.as_bytes())?;
        let stat = FileStat {
            kind: FileKind::Folder,
            size_bytes: 0,
            mode: 0o755,
            link_count: 2,
            modified_unix_ns: 0,
            identity: (1, *inode),
        };
        Some((stat, 0))
    }

    fn opened(&self, path: &WorkspacePath) -> Result<(OpenGround, i128), FileError> {
        let state = self.state();
        let Some((stat, changed)) = Self::stat_of(&state, path) else {
            return Err(FileError::NotFound { path: path.to_string() });
        };
        let Some(known) = state.files.get(path.as_bytes()).and_then(|inode| state.inodes.get(inode)) else {
            return Err(FileError::NotAFile { path: path.to_string(), kind: "folder" });
        };
        let content = Cursor::new(Arc::clone(&known.bytes));
        Ok((OpenGround { content, stat, canonical: path.clone(), fails: false }, changed))
    }
}

fn place(folder: &str, name: &str) -> Vec<u8> {
    if folder.is_empty() { name.as_bytes().to_vec() } else { format!("{folder}/{name}").into_bytes() }
}

impl Files for Ground {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(path.clone())
    }

    fn stat(&self, path: &WorkspacePath, _links: Links) -> Result<FileStat, FileError> {
        let found = Self::stat_of(&self.state(), path);
        found.map(|(stat, _)| stat).ok_or_else(|| FileError::NotFound { path: path.to_string() })
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        // Outside of peace only the index opens files this way: for their words, and for the rules in them.
        self.meddle();
        let mut file = self.opened(path)?.0;
        file.fails = self.rare();
        if file.fails {
            self.fate.met("words or rules that the index cannot read");
        }
        self.meddle();
        Ok(Box::new(file))
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        Some(Path::new(super::ROOT))
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.meddle();
        let state = self.state();
        match Self::stat_of(&state, path) {
            None => return Err(FileError::NotFound { path: path.to_string() }),
            Some((stat, _)) if stat.kind != FileKind::Folder => {
                return Err(FileError::NotAFolder { path: path.to_string() });
            }
            Some(_) => {}
        }
        let all = state.files.keys().map(|path| (path, FileKind::File));
        let all = all.chain(state.folders.keys().filter(|path| !path.is_empty()).map(|path| (path, FileKind::Folder)));
        let here = all.filter(|(known, _)| State::parent(known).0 == path.as_bytes());
        let mut entries: Vec<FolderEntry> =
            here.map(|(known, kind)| FolderEntry { path: path.child(State::parent(known).1), kind }).collect();
        entries.sort_by(|one, other| one.path.as_bytes().cmp(other.path.as_bytes()));
        Ok(entries)
    }

    fn replace(&self, path: &WorkspacePath, _replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Err(FileError::Unsupported { op: "replace", path: path.to_string() })
    }
}

impl ToldFiles for Ground {
    fn files(&self) -> &dyn Files {
        self
    }

    fn open_with_change(&self, path: &WorkspacePath) -> Result<(Box<dyn OpenFile>, i128), FileError> {
        self.meddle();
        if self.rare() {
            self.fate.met("a file that the index cannot read");
            let source = ErrorKind::Other.into();
            return Err(FileError::Io { op: "open", path: path.to_string(), source });
        }
        let (mut file, changed) = self.opened(path)?;
        file.fails = self.rare();
        self.meddle();
        Ok((Box::new(file), changed))
    }

    fn look_at(&self, path: &WorkspacePath) -> Option<(FileStat, i128)> {
        Self::stat_of(&self.state(), path)
    }

    fn watch(&self, path: &WorkspacePath) -> Result<Option<i32>, TreeError> {
        self.meddle();
        if self.rare() {
            self.fate.met("a folder that cannot be watched");
            return Err(WatchError::Refused(ErrorKind::StorageFull.into()).into());
        }
        let mut state = self.state();
        let Some(inode) = state.folders.get(path.as_bytes()).copied() else { return Ok(None) };
        state.next_watch += 1;
        let fresh = state.next_watch;
        Ok(Some(*state.watches.entry(inode).or_insert(fresh)))
    }

    fn unwatch(&self, watch: i32) {
        self.state().watches.retain(|_, known| *known != watch);
    }

    fn drain(&self, take: &mut dyn FnMut(Change)) -> Result<(), WatchError> {
        if self.rare() {
            self.state().overrun = true;
        }
        let mut state = self.state();
        if std::mem::take(&mut state.overrun) {
            self.fate.met("a queue that ran over");
            state.queue.clear();
            return Err(WatchError::Overrun);
        }
        let all = std::mem::take(&mut state.queue);
        drop(state);
        all.into_iter().for_each(take);
        Ok(())
    }
}

struct OpenGround {
    content: Cursor<Arc<[u8]>>,
    stat: FileStat,
    canonical: WorkspacePath,
    fails: bool,
}

impl Read for OpenGround {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.fails {
            return Err(ErrorKind::Other.into());
        }
        self.content.read(buffer)
    }
}

impl Seek for OpenGround {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.content.seek(to)
    }
}

impl OpenFile for OpenGround {
    fn stat(&self) -> &FileStat {
        &self.stat
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        Some(&self.canonical)
    }
}
