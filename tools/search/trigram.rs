//! What is known of a workspace: its tree, kept true by a watch, and the segments that say which files hold a gram.
//!
//! A file is either known through a segment or must be looked at. Whatever happens to it makes it unknown again before
//! anybody asks: the kernel tells of a change before the call that made it returns, and every view is taken after all
//! that was told has been heard. So a view lets through every file that could match as it is now; the match itself is
//! decided by reading.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, PoisonError, RwLock};

use crate::effects::files::{FileStat, Files, Links};
use crate::effects::folder_watch::{Change, ChangeKind, WatchError};
use crate::search::ranked_text::is_oversized;
use crate::search::requirement::Requirement;
use crate::search::rule_stack::speaks_of_rules;
use crate::search::segment::{FileSet, Segment};
use crate::search::text::Extent;
use crate::search::told_files::ToldFiles;
use crate::search::tree::{Content, FolderId, Ground, Leaf, ROOT, Tree, TreeError, TreeWalk, entry_of};
use crate::search::word_cache::{VersionId, WordCache};
use crate::search::words::FileWords;
use crate::workspace_path::WorkspacePath;

/// Most repositories inside of a workspace whose own exclude files are kept an eye on.
pub const REPOSITORIES_MAX: usize = 64;
/// Most changed files that are remembered by name; beyond it they are looked for.
const TOUCHED_MAX: usize = 4096;

/// A segment and where it is kept.
#[derive(Debug, Clone)]
pub struct KnownSegment {
    /// Which one, of all that there ever were; given when it is added.
    pub serial: u64,
    /// It.
    pub segment: Arc<Segment>,
    /// Its file, when it has a name.
    pub path: Option<std::path::PathBuf>,
}

/// All that is known; changed under one lock.
pub struct Knowledge {
    told: Arc<dyn ToldFiles>,
    watched: BTreeMap<i32, FolderId>,
    tree: Arc<Tree>,
    segments: Arc<Vec<Option<KnownSegment>>>,
    /// Segments that there ever were.
    serials: u64,
    words: Arc<RwLock<WordCache>>,
    /// The exclude file of each repository, as it was when the rules were read.
    excludes: Vec<(FolderId, WorkspacePath, Option<FileStat>)>,
    /// Files of which nothing is known since a change.
    touched: BTreeSet<WorkspacePath>,
    /// Whether any other file may be unknown too.
    scatter: bool,
}

/// What became of a claimed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settled {
    /// Where it is.
    pub path: WorkspacePath,
    /// What is known of it now.
    pub content: Content,
}

/// A tree that grows over files of which every change is told, each folder watched before it is listed.
struct Watching<'a> {
    told: &'a dyn ToldFiles,
    watched: &'a mut BTreeMap<i32, FolderId>,
    stop: &'a dyn Fn() -> bool,
}

impl Ground for Watching<'_> {
    fn files(&self) -> &dyn Files {
        self.told.files()
    }

    fn watch(&mut self, path: &WorkspacePath, id: FolderId) -> Result<Option<i32>, TreeError> {
        if (self.stop)() {
            return Err(TreeError::Stopped);
        }
        let Some(number) = self.told.watch(path)? else { return Ok(None) };
        if self.watched.insert(number, id).is_some_and(|known| known != id) {
            // One folder in two places (a bind mount): its changes could not be told apart.
            let twice = std::io::Error::other("a folder stands twice in the tree");
            return Err(WatchError::Refused(twice).into());
        }
        Ok(Some(number))
    }

    fn unwatch(&mut self, watch: i32) {
        self.watched.remove(&watch);
        self.told.unwatch(watch);
    }
}

/// What happened to one folder since the last look.
#[derive(Default)]
struct FolderChange {
    /// Names that may stand for something else now.
    names: BTreeSet<OsString>,
    /// Whether rules or rights changed, so that all beneath must be judged anew.
    rules: bool,
}

impl Knowledge {
    /// Reads the tree and begins to watch it.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn read(told: Arc<dyn ToldFiles>, stop: &dyn Fn() -> bool) -> Result<Self, TreeError> {
        let mut watched = BTreeMap::new();
        let tree = Tree::build(&mut Watching { told: &*told, watched: &mut watched, stop })?;
        let mut known = Self {
            told,
            watched,
            tree: Arc::new(tree),
            segments: Arc::default(),
            serials: 0,
            words: Arc::default(),
            excludes: Vec::new(),
            touched: BTreeSet::new(),
            scatter: true,
        };
        known.look_for_repositories()?;
        // Rules may have been written while the tree was read.
        known.refresh()?;
        Ok(known)
    }

    /// The files that it is about.
    pub fn told(&self) -> &Arc<dyn ToldFiles> {
        &self.told
    }

    /// The tree as it is.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The segments as they are.
    pub fn segments(&self) -> &Arc<Vec<Option<KnownSegment>>> {
        &self.segments
    }

    /// Whether there may be files to index.
    pub fn has_unknown(&self) -> bool {
        self.scatter || !self.touched.is_empty()
    }

    /// Hears of all that changed until now, and makes the tree true again. Returns whether anything had changed.
    ///
    /// # Errors
    /// [`TreeError`]: nothing is known any more.
    pub fn refresh(&mut self) -> Result<bool, TreeError> {
        let mut changes: Vec<Change> = Vec::new();
        self.told.drain(&mut |change| {
            // Writing piece by piece says the same again and again.
            if changes.last() != Some(&change) {
                changes.push(change);
            }
        })?;
        let mut folders: BTreeMap<FolderId, FolderChange> = BTreeMap::new();
        for change in changes {
            self.hear(change, &mut folders)?;
        }
        for (id, path, before) in &self.excludes {
            if self.told.files().stat(path, Links::Stay).ok() != *before {
                folders.entry(*id).or_default().rules = true;
            }
        }
        if folders.is_empty() {
            return Ok(false);
        }
        let told = Arc::clone(&self.told);
        let mut ground = Watching { told: &*told, watched: &mut self.watched, stop: &|| false };
        let tree = Arc::make_mut(&mut self.tree);
        // First everything that may have moved goes, so that it can be met again elsewhere.
        for (id, change) in &folders {
            tree.forget_names(&mut ground, *id, &change.names);
        }
        for (id, change) in &folders {
            if change.rules || !change.names.is_empty() {
                tree.relist(&mut ground, *id, change.rules)?;
            }
        }
        let relisted = |change: &&FolderChange| change.rules || !change.names.is_empty();
        if folders.values().any(|change| relisted(&change)) {
            self.look_for_repositories()?;
        }
        self.scatter |= folders.values().any(|change| change.rules);
        for (id, change) in folders {
            let Some(path) = self.tree.folder(id).map(|folder| folder.path().clone()) else { continue };
            for name in change.names {
                self.touch(path.child(&name));
            }
        }
        Ok(true)
    }

    /// Remembers a name of which nothing is known: a file, or a folder with new files in it.
    fn touch(&mut self, path: WorkspacePath) {
        match self.tree.content_at(&path) {
            Some(Content::Unknown) if self.touched.len() < TOUCHED_MAX => {
                self.touched.insert(path);
            }
            Some(Content::Unknown) => self.scatter = true,
            Some(_) => {}
            None => self.scatter |= self.tree.find_folder(&path).is_some(),
        }
    }

    /// Takes one change; what is to be done with folders is gathered.
    fn hear(&mut self, change: Change, folders: &mut BTreeMap<FolderId, FolderChange>) -> Result<(), TreeError> {
        let Some(&id) = self.watched.get(&change.watch) else { return Ok(()) };
        let tree = Arc::make_mut(&mut self.tree);
        match (change.kind, change.name) {
            (ChangeKind::Name, Some(name)) => {
                let folder = folders.entry(id).or_default();
                folder.rules |= speaks_of_rules(name.as_bytes());
                folder.names.insert(name);
            }
            (ChangeKind::Content | ChangeKind::Facts, Some(name)) => {
                let folder = folders.entry(id).or_default();
                folder.rules |= speaks_of_rules(name.as_bytes());
                match tree.content_mut(id, name.as_bytes()) {
                    Some(content) => {
                        *content = Content::Unknown;
                        let path = tree.folder(id).map(|folder| folder.path().child(&name));
                        path.into_iter().for_each(|path| self.touch(path));
                    }
                    // New rights of a folder: it tells of them itself, unless it could not be watched so far.
                    None if change.kind == ChangeKind::Facts => {
                        folder.names.insert(name);
                    }
                    None => {}
                }
            }
            (ChangeKind::Gone, _) => {
                let Some(parent) = tree.folder(id).and_then(|folder| folder.parent()) else {
                    return Err(WatchError::Overrun.into());
                };
                let name = tree.folder(id).and_then(|folder| folder.path().name().map(ToOwned::to_owned));
                folders.entry(parent).or_default().names.extend(name);
            }
            (_, None) => {
                tree.forget(id);
                folders.entry(id).or_default().rules = true;
            }
        }
        Ok(())
    }

    fn look_for_repositories(&mut self) -> Result<(), TreeError> {
        self.excludes = self.tree.repositories();
        if self.excludes.len() > REPOSITORIES_MAX { Err(TreeError::TooLarge) } else { Ok(()) }
    }

    /// Files that nothing is known of, at most `limit`; they count as being read from now on.
    pub fn claim(&mut self, limit: usize) -> Vec<WorkspacePath> {
        let mut claimed = Vec::new();
        let by_name = !self.scatter;
        if self.scatter {
            let mut walk = TreeWalk::start(&self.tree, ROOT, None);
            while claimed.len() < limit {
                let Some(leaf) = walk.next_leaf() else {
                    self.scatter = false;
                    self.touched.clear();
                    break;
                };
                if leaf == Leaf::File(Content::Unknown) {
                    claimed.push(entry_of(walk.path(), leaf).path);
                }
            }
        } else {
            while let Some(path) = self.touched.pop_first() {
                claimed.push(path);
                if claimed.len() == limit {
                    break;
                }
            }
        }
        self.begin(&claimed);
        if by_name {
            // What was touched may have gone since.
            claimed.retain(|path| self.tree.content_at(path) == Some(Content::Pending));
        }
        claimed
    }

    /// Marks files that nothing is known of as being read.
    pub fn begin(&mut self, paths: &[WorkspacePath]) {
        let tree = Arc::make_mut(&mut self.tree);
        for path in paths {
            if let Some(content @ Content::Unknown) = tree.content_at_mut(path) {
                *content = Content::Pending;
            }
        }
    }

    /// Takes over what was learnt of claimed files, unless they changed meanwhile.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub fn settle(&mut self, settled: &[Settled]) -> Result<(), TreeError> {
        // Everything that happened until the files were read has been told by now.
        self.refresh()?;
        let tree = Arc::make_mut(&mut self.tree);
        for file in settled {
            if let Some(content @ Content::Pending) = tree.content_at_mut(&file.path) {
                *content = file.content;
                self.scatter |= file.content == Content::Unknown;
            }
        }
        Ok(())
    }

    /// Adds a segment; returns its number.
    pub fn add_segment(&mut self, mut segment: KnownSegment) -> u32 {
        self.serials += 1;
        segment.serial = self.serials;
        let segments = Arc::make_mut(&mut self.segments);
        let number = segments.iter().position(Option::is_none).unwrap_or(segments.len());
        if number == segments.len() {
            segments.push(None);
        }
        segments[number] = Some(segment);
        number as u32
    }

    /// How many files are known through each segment.
    pub fn living(&self) -> Vec<usize> {
        let mut living = vec![0; self.segments.len()];
        let mut walk = TreeWalk::start(&self.tree, ROOT, None);
        while let Some(leaf) = walk.next_leaf() {
            if let Leaf::File(Content::Indexed { segment, .. }) = leaf
                && let Some(count) = living.get_mut(segment as usize)
            {
                *count += 1;
            }
        }
        living
    }

    /// Lets segments go; files that were known through them are unknown again. Returns the segments.
    pub fn drop_segments(&mut self, numbers: &BTreeSet<u32>) -> Vec<KnownSegment> {
        let snapshot = Arc::clone(&self.tree);
        let mut walk = TreeWalk::start(&snapshot, ROOT, None);
        let mut lost = Vec::new();
        while let Some(leaf) = walk.next_leaf() {
            if let Leaf::File(Content::Indexed { segment, .. }) = leaf
                && numbers.contains(&segment)
            {
                lost.push(entry_of(walk.path(), leaf).path);
            }
        }
        drop(snapshot);
        self.scatter |= !lost.is_empty();
        let tree = Arc::make_mut(&mut self.tree);
        for path in &lost {
            if let Some(content) = tree.content_at_mut(path) {
                *content = Content::Unknown;
            }
        }
        let segments = Arc::make_mut(&mut self.segments);
        numbers.iter().filter_map(|number| segments.get_mut(*number as usize)?.take()).collect()
    }

    /// The files that stand in a segment and whose words are not kept: all of them when the whole is not more text than
    /// `text_bytes_max`, else those among `paths`.
    pub fn without_words(&self, paths: &[WorkspacePath], text_bytes_max: u64) -> Vec<(WorkspacePath, Content)> {
        let words = read(&self.words);
        let lacks = |content: Content| {
            let ranked = |extent| !is_oversized(extent) && !matches!(content, Content::Indexed { binary: true, .. });
            version_of(&self.segments, content).is_some_and(|(id, extent)| ranked(extent) && words.get(id).is_none())
        };
        let (mut all, mut bytes) = (Vec::new(), 0);
        let mut walk = TreeWalk::start(&self.tree, ROOT, None);
        while let Some(leaf) = walk.next_leaf() {
            let Leaf::File(content) = leaf else { continue };
            bytes += version_of(&self.segments, content).map_or(0, |(_, extent)| u64::from(extent.text_bytes));
            if bytes > text_bytes_max {
                let asked = paths.iter().filter_map(|path| Some((path.clone(), self.tree.content_at(path)?)));
                return asked.filter(|(_, content)| lacks(*content)).collect();
            }
            if lacks(content) {
                all.push((entry_of(walk.path(), leaf).path, content));
            }
        }
        all
    }

    /// Keeps the words of a file that were read since its content was `content`; whether there was room, or no need
    /// because it has changed.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub fn keep_words(&mut self, path: &WorkspacePath, content: Content, read: FileWords) -> Result<bool, TreeError> {
        // Everything that happened until the file was read has been told by now.
        self.refresh()?;
        let now = self.tree.content_at(path).filter(|now| *now == content);
        let Some((id, _)) = now.and_then(|now| version_of(&self.segments, now)) else { return Ok(true) };
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        Ok(words.keep(id, path.clone(), read))
    }

    /// Lets go of words of files that are no more what they were.
    pub fn prune_words(&mut self) {
        let mut words = self.words.write().unwrap_or_else(PoisonError::into_inner);
        words.prune(|id, path| {
            let now = self.tree.content_at(path).and_then(|content| version_of(&self.segments, content));
            now.is_some_and(|(now, _)| now == id)
        });
    }

    /// How many files the words are kept of, and the memory that it takes in bytes.
    pub fn words_kept(&self) -> (usize, usize) {
        let words = read(&self.words);
        (words.len(), words.bytes())
    }

    /// A view of what is known now, after all that changed was heard.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub fn view(&mut self) -> Result<View, TreeError> {
        self.refresh()?;
        let (tree, segments, words) = (&self.tree, &self.segments, &self.words);
        Ok(View { tree: Arc::clone(tree), segments: Arc::clone(segments), words: Arc::clone(words) })
    }
}

fn read(words: &RwLock<WordCache>) -> std::sync::RwLockReadGuard<'_, WordCache> {
    words.read().unwrap_or_else(PoisonError::into_inner)
}

/// The version of a file that stands in a segment, and how much text it has.
fn version_of(segments: &[Option<KnownSegment>], content: Content) -> Option<(VersionId, Extent)> {
    let Content::Indexed { segment, file, .. } = content else { return None };
    let known = segments.get(segment as usize)?.as_ref()?;
    Some(((known.serial, file), known.segment.extent(file)?))
}

/// What was known at one moment; stays as it is.
#[derive(Clone)]
pub struct View {
    tree: Arc<Tree>,
    segments: Arc<Vec<Option<KnownSegment>>>,
    words: Arc<RwLock<WordCache>>,
}

impl View {
    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// How much text a file has; none when nothing is known of it.
    pub fn extent_of(&self, content: Content) -> Option<Extent> {
        version_of(&self.segments, content).map(|(_, extent)| extent)
    }

    /// The words of a file; none when they are not kept.
    pub fn words_of(&self, content: Content) -> Option<Arc<FileWords>> {
        let (id, _) = version_of(&self.segments, content)?;
        read(&self.words).get(id).cloned()
    }

    /// Which files may hold what is required.
    pub fn candidates(&self, required: &Requirement) -> Candidates {
        Candidates::of(&self.segments, required)
    }
}

/// Which files may hold what is wanted.
pub struct Candidates {
    /// By segment; where there is none, every file may.
    sets: Vec<Option<FileSet>>,
}

impl Candidates {
    /// The files of these segments that may hold what is required.
    pub(crate) fn of(segments: &[Option<KnownSegment>], required: &Requirement) -> Self {
        let found = |known: &Option<KnownSegment>| known.as_ref().map(|known| known.segment.files_with(required));
        let sets = if required.is_nothing() { Vec::new() } else { segments.iter().map(found).collect() };
        Self { sets }
    }

    /// Whether a file must be looked at.
    pub fn may_hold(&self, content: Content) -> bool {
        match content {
            Content::Indexed { segment, file, .. } => match self.sets.get(segment as usize) {
                Some(Some(set)) => set.holds(usize::from(file)),
                _ => true,
            },
            Content::Unknown | Content::Pending | Content::Never => true,
        }
    }
}
