//! The folders and files of a workspace as they stand in memory, so that a search need not walk.
//!
//! A tree holds what a walk without hidden names would yield, folder by folder, in the same order and with the same
//! counts of what stays out. It is changed by listing single folders anew; whoever holds an older state keeps it, for
//! folders are shared and copied when they change. What is known of each file's content stands beside its name.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use crate::effects::files::{FileError, FileKind, FileStat, Files, FolderEntry};
use crate::search::rule_stack::{Level, RuleFaults, RuleStack, Stay, exclude_of, sort_entries};
use crate::search::walk::{WALK_DEPTH_MAX, WalkCounts, is_on_the_way};
use crate::workspace_path::WorkspacePath;

/// Most files and folders of a tree that is kept.
pub const TREE_ENTRIES_MAX: usize = 1_000_000;

/// Which folder of a tree.
pub type FolderId = u32;

/// The root's number.
pub const ROOT: FolderId = 0;

/// What is known of the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Content {
    /// Nothing: it must be looked at.
    #[default]
    Unknown,
    /// Nothing yet: it is being read.
    Pending,
    /// Nothing, and nothing will be: too large, or it cannot be watched or read.
    Never,
    /// It stands in a segment.
    Indexed {
        /// Which segment.
        segment: u32,
        /// Which file of it.
        file: u16,
        /// Whether a NUL ended its text.
        binary: bool,
    },
}

/// One name of a folder that a walk yields or enters.
#[derive(Debug, Clone)]
pub struct Node {
    name: Box<[u8]>,
    /// What it is.
    pub what: What,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub enum What {
    /// A folder.
    Folder(FolderId),
    /// A regular file.
    File(Content),
    /// A link.
    Link,
}

/// One folder.
#[derive(Debug, Clone)]
pub struct Folder {
    path: WorkspacePath,
    parent: Option<FolderId>,
    nodes: Vec<Node>,
    level: Arc<Level>,
    faults: RuleFaults,
    /// What of its entries stays out.
    left_out: WalkCounts,
    /// The number of its watch.
    pub watch: Option<i32>,
}

/// A state of the tree.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    folders: Vec<Option<Arc<Folder>>>,
    free: Vec<FolderId>,
    entries: usize,
}

/// Why there is no tree.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// More than [`TREE_ENTRIES_MAX`] entries, or deeper than a walk goes.
    #[error("the tree is too large or too deep to be kept")]
    TooLarge,
    /// A folder cannot be watched.
    #[error(transparent)]
    Watch(#[from] crate::effects::folder_watch::WatchError),
    /// The root cannot be read, or a folder cannot for a reason that may pass.
    #[error(transparent)]
    File(#[from] FileError),
    /// Rules cannot be read for a reason that may pass: what they hide would be guessed.
    #[error("the ignore rules of {folder} cannot be read now")]
    Rules {
        /// Where they stand.
        folder: String,
    },
    /// The work was stopped.
    #[error("stopped")]
    Stopped,
}

/// What a tree asks of the world while it grows.
pub trait Ground {
    /// The files beneath.
    fn files(&self) -> &dyn Files;

    /// Begins to watch a folder, before it is listed; none when the folder is not there any more.
    ///
    /// # Errors
    /// [`TreeError`], which ends the tree.
    fn watch(&mut self, path: &WorkspacePath, id: FolderId) -> Result<Option<i32>, TreeError>;

    /// Ends watching a folder.
    fn unwatch(&mut self, watch: i32);
}

impl Tree {
    /// Reads everything below the root.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn build(ground: &mut dyn Ground) -> Result<Self, TreeError> {
        let mut tree = Self::default();
        tree.grow(ground, WorkspacePath::root(), None)?;
        Ok(tree)
    }

    /// How many files, links and folders it has.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// A folder.
    pub fn folder(&self, id: FolderId) -> Option<&Folder> {
        self.folders.get(id as usize)?.as_deref()
    }

    /// The folders in which a repository begins, with its exclude file as it was when the rules were read.
    pub fn repositories(&self) -> Vec<(FolderId, WorkspacePath, Option<FileStat>)> {
        let all = self.folders.iter().enumerate();
        let begins = all.filter_map(|(id, folder)| folder.as_ref().map(|folder| (id as FolderId, folder)));
        begins
            .filter(|(_, folder)| folder.level.is_repository())
            .map(|(id, folder)| (id, exclude_of(&folder.path), folder.level.exclude_stat()))
            .collect()
    }

    /// What is known of a file; none when there is no such file.
    pub fn content_at(&self, path: &WorkspacePath) -> Option<Content> {
        let folder = self.folder(self.find_folder(&path.parent()?)?)?;
        match folder.nodes[folder.place(path.name()?.as_bytes(), false).ok()?].what {
            What::File(content) => Some(content),
            _ => None,
        }
    }

    /// The folder at a path; none when the tree has no such folder.
    pub fn find_folder(&self, path: &WorkspacePath) -> Option<FolderId> {
        let mut id = ROOT;
        for name in path.names() {
            let folder = self.folder(id)?;
            match folder.nodes[folder.place(name.as_bytes(), true).ok()?].what {
                What::Folder(next) => id = next,
                _ => return None,
            }
        }
        Some(id)
    }

    /// What is known of a file of a folder, to change it; none when there is no such file.
    pub fn content_mut(&mut self, id: FolderId, name: &[u8]) -> Option<&mut Content> {
        let slot = self.folders.get_mut(id as usize)?.as_mut()?;
        let at = slot.place(name, false).ok()?;
        match &mut Arc::make_mut(slot).nodes[at].what {
            What::File(content) => Some(content),
            _ => None,
        }
    }

    /// As [`Self::content_mut`], by the path.
    pub fn content_at_mut(&mut self, path: &WorkspacePath) -> Option<&mut Content> {
        let id = self.find_folder(&path.parent()?)?;
        self.content_mut(id, path.name()?.as_bytes())
    }

    /// Forgets what is known of every file beneath a folder.
    pub fn forget(&mut self, id: FolderId) {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let Some(Some(slot)) = self.folders.get_mut(id as usize) else { continue };
            for node in &mut Arc::make_mut(slot).nodes {
                match &mut node.what {
                    What::File(content) => *content = Content::Unknown,
                    What::Folder(next) => open.push(*next),
                    What::Link => {}
                }
            }
        }
    }

    /// Takes names out of a folder, with everything beneath them, because they may stand for something else now.
    pub fn forget_names(&mut self, ground: &mut dyn Ground, id: FolderId, names: &BTreeSet<OsString>) {
        let Some(Some(slot)) = self.folders.get_mut(id as usize) else { return };
        let (gone, stay): (Vec<Node>, Vec<Node>) = std::mem::take(&mut Arc::make_mut(slot).nodes)
            .into_iter()
            .partition(|node| names.contains(std::ffi::OsStr::from_bytes(&node.name)));
        Arc::make_mut(slot).nodes = stay;
        self.entries -= gone.len();
        for node in gone {
            if let What::Folder(id) = node.what {
                self.drop_folder(ground, id);
            }
        }
    }

    /// Lists a folder anew. With `rules`, its rules are read again and everything beneath is listed and judged anew.
    ///
    /// # Errors
    /// [`TreeError`], after which the tree is of no use.
    pub fn relist(&mut self, ground: &mut dyn Ground, id: FolderId, rules: bool) -> Result<(), TreeError> {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let Some(folder) = self.folders.get(id as usize).and_then(Clone::clone) else { continue };
            let before: BTreeMap<Box<[u8]>, What> =
                folder.nodes.iter().map(|node| (node.name.clone(), node.what)).collect();
            self.entries -= before.len();
            let mut fresh =
                self.read_folder(ground.files(), &folder.path, folder.parent, (!rules).then_some(&folder))?;
            fresh.watch = folder.watch;
            self.entries += fresh.nodes.len();
            let mut kept: BTreeSet<FolderId> = BTreeSet::new();
            let mut grow: Vec<usize> = Vec::new();
            for (at, node) in fresh.nodes.iter_mut().enumerate() {
                match (&mut node.what, before.get(&node.name)) {
                    (What::File(content), Some(What::File(known))) => *content = *known,
                    (What::Folder(id), Some(What::Folder(known))) => {
                        *id = *known;
                        kept.insert(*known);
                        if rules {
                            open.push(*known);
                        }
                    }
                    (What::Folder(_), _) => grow.push(at),
                    _ => {}
                }
            }
            for what in before.into_values() {
                if let What::Folder(id) = what
                    && !kept.contains(&id)
                {
                    self.drop_folder(ground, id);
                }
            }
            let paths: Vec<(usize, WorkspacePath)> =
                grow.into_iter().map(|at| (at, fresh.child(&fresh.nodes[at]))).collect();
            self.folders[id as usize] = Some(Arc::new(fresh));
            for (at, path) in paths {
                let grown = self.grow(ground, path, Some(id))?;
                if let Some(slot) = &mut self.folders[id as usize] {
                    Arc::make_mut(slot).nodes[at].what = What::Folder(grown);
                }
            }
        }
        Ok(())
    }

    /// Reads a folder and everything below it.
    fn grow(
        &mut self,
        ground: &mut dyn Ground,
        path: WorkspacePath,
        parent: Option<FolderId>,
    ) -> Result<FolderId, TreeError> {
        let top = self.reserve();
        let mut open = vec![(top, path, parent)];
        while let Some((id, path, parent)) = open.pop() {
            if path.names().count() > WALK_DEPTH_MAX {
                return Err(TreeError::TooLarge);
            }
            // Watched before it is listed: what changes in between is told.
            let watch = ground.watch(&path, id)?;
            let mut folder = self.read_folder(ground.files(), &path, parent, None)?;
            folder.watch = watch;
            self.entries += folder.nodes.len();
            if self.entries > TREE_ENTRIES_MAX {
                return Err(TreeError::TooLarge);
            }
            for at in 0..folder.nodes.len() {
                if matches!(folder.nodes[at].what, What::Folder(_)) {
                    let child = self.reserve();
                    open.push((child, folder.child(&folder.nodes[at]), Some(id)));
                    folder.nodes[at].what = What::Folder(child);
                }
            }
            self.folders[id as usize] = Some(Arc::new(folder));
        }
        Ok(top)
    }

    fn reserve(&mut self) -> FolderId {
        self.free.pop().unwrap_or_else(|| {
            self.folders.push(None);
            (self.folders.len() - 1) as FolderId
        })
    }

    fn drop_folder(&mut self, ground: &mut dyn Ground, id: FolderId) {
        let mut open = vec![id];
        while let Some(id) = open.pop() {
            let Some(folder) = self.folders.get_mut(id as usize).and_then(Option::take) else { continue };
            self.entries -= folder.nodes.len();
            if let Some(watch) = folder.watch {
                ground.unwatch(watch);
            }
            self.free.push(id);
            open.extend(folder.nodes.iter().filter_map(|node| match node.what {
                What::Folder(id) => Some(id),
                _ => None,
            }));
        }
    }

    /// Lists and judges one folder; its folders have no number yet. Rules are taken from `rules` when given.
    fn read_folder(
        &self,
        files: &dyn Files,
        path: &WorkspacePath,
        parent: Option<FolderId>,
        rules: Option<&Folder>,
    ) -> Result<Folder, TreeError> {
        let mut left_out = WalkCounts::default();
        let mut entries = match files.list(path) {
            Ok(entries) => entries,
            Err(FileError::NotFound { .. }) if parent.is_some() => Vec::new(),
            // Nobody tells when such an error has passed, so what is in there would not be known.
            Err(error) if parent.is_none() || error.may_pass() => return Err(error.into()),
            Err(_) => {
                left_out.unreadable += 1;
                Vec::new()
            }
        };
        let mut faults = RuleFaults::default();
        let level = match rules {
            Some(folder) => {
                faults = folder.faults;
                Arc::clone(&folder.level)
            }
            None => Arc::new(Level::read(files, path, &entries, &mut faults)),
        };
        if faults.passing {
            return Err(TreeError::Rules { folder: path.to_string() });
        }
        let mut stack = RuleStack::default();
        for level in self.levels_above(parent).into_iter().rev() {
            stack.push(level);
        }
        stack.push(Arc::clone(&level));
        sort_entries(&mut entries);
        let mut nodes = Vec::with_capacity(entries.len());
        for entry in &entries {
            match stack.judge(entry, false) {
                Stay::In => {}
                Stay::Never => continue,
                Stay::Hidden => {
                    left_out.hidden += 1;
                    continue;
                }
                Stay::Ignored => {
                    left_out.ignored += 1;
                    continue;
                }
            }
            let what = match entry.kind {
                FileKind::File => What::File(Content::Unknown),
                FileKind::Link => What::Link,
                FileKind::Folder => What::Folder(FolderId::MAX),
                FileKind::Special => {
                    left_out.special += 1;
                    continue;
                }
            };
            nodes.push(Node { name: entry.path.name().map(|name| name.as_bytes().into()).unwrap_or_default(), what });
        }
        nodes.shrink_to_fit();
        Ok(Folder { path: path.clone(), parent, nodes, level, faults, left_out, watch: None })
    }

    /// The rules of the folders above, innermost first.
    fn levels_above(&self, mut folder: Option<FolderId>) -> Vec<Arc<Level>> {
        let mut levels = Vec::new();
        while let Some(id) = folder {
            let Some(here) = self.folder(id) else { break };
            levels.push(Arc::clone(&here.level));
            folder = here.parent;
        }
        levels
    }
}

impl Folder {
    /// Where it is.
    pub fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// The folder it is in; none for the root.
    pub fn parent(&self) -> Option<FolderId> {
        self.parent
    }

    fn child(&self, node: &Node) -> WorkspacePath {
        self.path.child(std::ffi::OsStr::from_bytes(&node.name))
    }

    /// The place of a name among the nodes.
    fn place(&self, name: &[u8], is_folder: bool) -> Result<usize, usize> {
        self.nodes.binary_search_by(|node| {
            let common = node.name.len().min(name.len());
            let next = |name: &[u8], is_folder: bool| name.get(common).copied().or(is_folder.then_some(b'/'));
            let node_is_folder = matches!(node.what, What::Folder(_));
            node.name[..common]
                .cmp(&name[..common])
                .then_with(|| next(&node.name, node_is_folder).cmp(&next(name, is_folder)))
                // `a` and `a/` differ there; a folder `a` and a file `a/`, which cannot be, do not matter.
                .then_with(|| node_is_folder.cmp(&is_folder))
        })
    }
}

/// A walk over a state of the tree, in the order of whole paths, with the counts of a walk over the files.
pub struct TreeWalk<'a> {
    tree: &'a Tree,
    below: Option<WorkspacePath>,
    open: Vec<(&'a Folder, usize)>,
    /// What was yielded last, and its folder.
    last: Option<(&'a Folder, &'a Node)>,
    /// Room for its path, which is put together only when it is asked for.
    path: Vec<u8>,
    counts: WalkCounts,
}

/// What a walk over the tree yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// A regular file.
    File(Content),
    /// A link.
    Link,
}

impl<'a> TreeWalk<'a> {
    /// Starts at a folder; only folders on the way to `below` or beneath it are entered.
    pub fn start(tree: &'a Tree, start: FolderId, below: Option<WorkspacePath>) -> Self {
        let counts = WalkCounts::default();
        let mut walk = Self { tree, below, open: Vec::new(), last: None, path: Vec::new(), counts };
        let mut above = tree.folder(start).and_then(|folder| folder.parent);
        while let Some(folder) = above.and_then(|id| tree.folder(id)) {
            walk.count_faults(folder.faults);
            above = folder.parent;
        }
        walk.enter(start);
        walk
    }

    /// What was left out so far.
    pub fn counts(&self) -> WalkCounts {
        self.counts
    }

    /// The path of what was yielded last.
    pub fn path(&mut self) -> &[u8] {
        self.path.clear();
        if let Some((folder, node)) = self.last {
            if !folder.path.is_root() {
                self.path.extend_from_slice(folder.path.as_bytes());
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&node.name);
        }
        &self.path
    }

    /// The next file or link; its path is [`Self::path`].
    pub fn next_leaf(&mut self) -> Option<Leaf> {
        loop {
            let (folder, at) = self.open.last_mut()?;
            let folder: &'a Folder = folder;
            let Some(node) = folder.nodes.get(*at) else {
                self.open.pop();
                continue;
            };
            *at += 1;
            self.last = Some((folder, node));
            match node.what {
                What::File(content) => return Some(Leaf::File(content)),
                What::Link => return Some(Leaf::Link),
                What::Folder(id) => {
                    if self.is_entered() {
                        self.enter(id);
                    }
                }
            }
        }
    }

    /// Whether the folder that was met last is on the way.
    fn is_entered(&mut self) -> bool {
        let Some(below) = self.below.take() else { return true };
        let is_entered = is_on_the_way(self.path(), below.as_bytes());
        self.below = Some(below);
        is_entered
    }

    fn enter(&mut self, id: FolderId) {
        let Some(folder) = self.tree.folder(id) else { return };
        self.count_faults(folder.faults);
        self.counts.ignored += folder.left_out.ignored;
        self.counts.hidden += folder.left_out.hidden;
        self.counts.special += folder.left_out.special;
        self.counts.unreadable += folder.left_out.unreadable;
        self.open.push((folder, 0));
    }

    fn count_faults(&mut self, faults: RuleFaults) {
        self.counts.unreadable += faults.unreadable;
        self.counts.rule_faults += faults.lines;
    }
}

/// An entry of a walk over the tree, as a walk over the files would yield it.
pub fn entry_of(path: &[u8], leaf: Leaf) -> FolderEntry {
    let kind = match leaf {
        Leaf::File(_) => FileKind::File,
        Leaf::Link => FileKind::Link,
    };
    FolderEntry { path: WorkspacePath::from_relative(std::path::Path::new(std::ffi::OsStr::from_bytes(path))), kind }
}

#[cfg(test)]
mod tests {
    use super::{Ground, Leaf, ROOT, Tree, TreeError, TreeWalk};
    use crate::effects::files::Files;
    use crate::search::twin::{TreeTwin, at};
    use crate::search::walk::{Walk, WalkOptions};
    use crate::workspace_path::WorkspacePath;

    struct Unwatched(TreeTwin);

    impl Ground for Unwatched {
        fn files(&self) -> &dyn Files {
            &self.0
        }

        fn watch(&mut self, _: &WorkspacePath, _: u32) -> Result<Option<i32>, TreeError> {
            Ok(None)
        }

        fn unwatch(&mut self, _: i32) {}
    }

    fn agree(tree: &Tree, twin: &TreeTwin, start: &str, below: Option<&str>) {
        let options = WalkOptions { below: below.map(at), ..WalkOptions::default() };
        let mut walk = Walk::start(twin, &at(start), options).unwrap();
        let expected: Vec<String> = walk.by_ref().map(|entry| entry.path.to_string()).collect();
        let id = tree.find_folder(&at(start)).unwrap();
        let mut over = TreeWalk::start(tree, id, below.map(at));
        let mut found = Vec::new();
        while let Some(leaf) = over.next_leaf() {
            let _: Leaf = leaf;
            found.push(String::from_utf8(over.path().to_vec()).unwrap());
        }
        assert_eq!(found, expected, "{start} {below:?}");
        assert_eq!(over.counts(), walk.counts(), "{start} {below:?}");
    }

    // Found while the simulation was given reads that fail: rules that could not be read for a moment were taken for none, and
    // nobody tells when the moment has passed.
    #[test]
    fn what_cannot_be_read_for_now_is_not_guessed() {
        for path in [".gitignore", "sub/.ignore", "repo/.git/info/exclude"] {
            let twin = TreeTwin::of(&[("a.log", ""), ("sub/b.log", ""), ("repo/.git/HEAD", "")]);
            twin.refuse_with(path, std::io::ErrorKind::Other);
            let error = Tree::build(&mut Unwatched(twin.clone())).err();
            assert!(matches!(error, Some(TreeError::Rules { .. })), "{path}: {error:?}");
            // Whoever lets it be read changes its rights, and that is told.
            twin.refuse(path);
            let tree = Tree::build(&mut Unwatched(twin.clone())).unwrap();
            agree(&tree, &twin, ".", None);
        }
    }

    #[test]
    fn a_tree_yields_what_a_walk_yields() {
        let twin = TreeTwin::of(&[
            (".gitignore", "*.tmp\n*.bak\nout/\n"),
            (".ignore", "!kept.bak\n*.big\n"),
            ("kept.bak", ""),
            ("a.big", ""),
            ("a.txt", ""),
            ("a/b", ""),
            ("a-b/c", ""),
            ("a0", ""),
            ("out/x", ""),
            ("sub/.gitignore", "!b.tmp\n\u{0}x\n"),
            ("sub/b.tmp", ""),
            ("sub/c.tmp", ""),
            ("sub/deep/er/d.tmp", ""),
            ("sub/deep/er/e", ""),
            ("repo/.git/info/exclude", "*.priv\n"),
            ("repo/d.tmp", ""),
            ("repo/e.priv", ""),
            (".hid/x", ""),
        ]);
        twin.link("to", "a.txt");
        let mut ground = Unwatched(twin.clone());
        let mut tree = Tree::build(&mut ground).unwrap();
        let check = |tree: &Tree| {
            for (start, below) in [
                (".", None),
                ("sub", None),
                ("sub/deep", None),
                ("repo", None),
                (".", Some("sub/deep")),
                (".", Some("a")),
                (".", Some("nowhere/at")),
            ] {
                agree(tree, &twin, start, below);
            }
        };
        check(&tree);
        let repositories = tree.repositories();
        assert_eq!((repositories.len(), &repositories[0].1), (1, &at("repo/.git/info/exclude")));
        assert!(repositories[0].2.is_some());
        assert!(tree.find_folder(&at("out")).is_none() && tree.find_folder(&at("a.txt")).is_none());
        // New names, a folder among them.
        twin.put("sub/new/file", b"");
        twin.put("sub/other", b"");
        let sub = tree.find_folder(&at("sub")).unwrap();
        let old = tree.clone();
        tree.relist(&mut ground, sub, false).unwrap();
        check(&tree);
        assert!(old.find_folder(&at("sub/new")).is_none());
        // Other rules.
        twin.put(".gitignore", b"sub/deep/\n");
        tree.relist(&mut ground, ROOT, true).unwrap();
        agree(&tree, &twin, ".", None);
        assert!(tree.find_folder(&at("sub/deep")).is_none() && tree.find_folder(&at("out")).is_some());
        let built = Tree::build(&mut ground).unwrap();
        assert_eq!(tree.len(), built.len());
    }
}
