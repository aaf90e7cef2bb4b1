//! Walks a folder in path order and yields what a search may look at.
//!
//! Nothing is cached and nothing recurses. Order is the byte order of whole paths, so the walk is already sorted.
//! Ignore files are read as git reads them: a rule in a deeper folder wins over one above it, `.ignore` wins over
//! `.gitignore`, `.gitignore` over `.git/info/exclude`; what lies in an excluded folder cannot be shown again; a
//! folder with a `.git` in it is a repository of its own, for which outer `.gitignore` files do not speak. Files
//! outside of any repository are judged the same way. Whether git tracks a file plays no part, and neither do
//! ignore files above the workspace or in the user's home. Links are yielded but never followed.

use std::sync::Arc;

use crate::effects::files::{FileError, FileKind, Files, FolderEntry, Links};
use crate::search::rule_stack::{Level, RuleFaults, RuleStack, Stay, sort_entries};
use crate::workspace_path::WorkspacePath;

/// Deepest folder that is entered, in folders below the start.
pub const WALK_DEPTH_MAX: usize = 256;
/// Most entries looked at in one walk.
pub const WALK_ENTRIES_MAX: u64 = 2_000_000;

/// What a walk looks at.
#[derive(Debug, Clone)]
pub struct WalkOptions {
    /// Whether names that begin with a dot are entered and yielded; `.git` never is.
    pub hidden: bool,
    /// Only folders on the way to this path, or beneath it, are entered.
    pub below: Option<WorkspacePath>,
    /// Most entries looked at.
    pub entries_max: u64,
}

impl Default for WalkOptions {
    fn default() -> Self {
        Self { hidden: false, below: None, entries_max: WALK_ENTRIES_MAX }
    }
}

/// What a walk left out, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WalkCounts {
    /// Files, links and folders hidden by ignore rules; a folder counts as one.
    pub ignored: u64,
    /// Files, links and folders whose name begins with a dot; a folder counts as one.
    pub hidden: u64,
    /// Sockets, pipes and devices.
    pub special: u64,
    /// Folders and ignore files that could not be read.
    pub unreadable: u64,
    /// Lines of ignore files that could not be taken.
    pub rule_faults: u64,
    /// Whether the walk ended early at its limit of entries, or left a folder out for its depth.
    pub truncated: bool,
}

/// A walk under way.
pub struct Walk<'a> {
    files: &'a dyn Files,
    start: WorkspacePath,
    options: WalkOptions,
    /// A file that was named explicitly, yielded as it is.
    single: Option<FolderEntry>,
    /// What is not visited yet of each folder on the way, outermost first; the last level of rules belongs to the last.
    open: Vec<std::vec::IntoIter<FolderEntry>>,
    rules: RuleStack,
    counts: WalkCounts,
    entries: u64,
}

impl<'a> Walk<'a> {
    /// Starts at a folder or at a single file. The start itself is named explicitly: no rule hides it.
    ///
    /// # Errors
    /// What the files port says of the start: it is not there, leaves the workspace, is neither file nor folder, or
    /// lies in a `.git` folder ([`StartError::InGit`]).
    pub fn start(files: &'a dyn Files, start: &WorkspacePath, options: WalkOptions) -> Result<Self, StartError> {
        let start = files.canonical(start)?;
        if start.names().any(|name| name == ".git") {
            return Err(StartError::InGit { path: start.to_string() });
        }
        let kind = files.stat(&start, Links::Follow)?.kind;
        let entries_max = files.walk_entries_max().map_or(options.entries_max, |most| options.entries_max.min(most));
        let options = WalkOptions { entries_max, ..options };
        let mut walk = Self {
            files,
            start: start.clone(),
            options,
            single: None,
            open: Vec::new(),
            rules: RuleStack::default(),
            counts: WalkCounts::default(),
            entries: 0,
        };
        match kind {
            FileKind::Folder => {
                walk.load_rules_above(&start);
                let entries = files.list(&start)?;
                walk.enter(&start, entries);
            }
            FileKind::File => walk.single = Some(FolderEntry { path: start, kind }),
            other => return Err(FileError::NotAFile { path: start.to_string(), kind: other.as_str() }.into()),
        }
        Ok(walk)
    }

    /// What was left out so far.
    pub fn counts(&self) -> WalkCounts {
        self.counts
    }

    /// Whether the start is a single file that was not yielded yet.
    pub fn is_single_file(&self) -> bool {
        self.single.is_some()
    }

    /// Where it starts, without links.
    pub fn start_path(&self) -> &WorkspacePath {
        &self.start
    }

    /// Whether the rules hide an entry of the start; to be asked before the walk goes on.
    pub fn is_ignored(&self, entry: &FolderEntry) -> bool {
        self.rules.judge(entry, true) == Stay::Ignored
    }

    /// Reads the rules of the folders above the start, outermost first.
    fn load_rules_above(&mut self, start: &WorkspacePath) {
        let mut above = Vec::new();
        let mut folder = start.parent();
        while let Some(path) = folder {
            folder = path.parent();
            above.push(path);
        }
        for path in above.iter().rev() {
            let found = |name: &str| {
                let path = path.child(name.as_ref());
                self.files.stat(&path, Links::Stay).ok().map(|stat| FolderEntry { path, kind: stat.kind })
            };
            let entries: Vec<FolderEntry> = [".git", ".gitignore", ".ignore"].into_iter().filter_map(found).collect();
            self.push_level(path, &entries);
        }
    }

    /// Puts a folder's entries on the stack, in the order of whole paths.
    fn enter(&mut self, folder: &WorkspacePath, mut entries: Vec<FolderEntry>) {
        self.push_level(folder, &entries);
        sort_entries(&mut entries);
        self.open.push(entries.into_iter());
    }

    fn push_level(&mut self, folder: &WorkspacePath, entries: &[FolderEntry]) {
        let mut faults = RuleFaults::default();
        self.rules.push(Arc::new(Level::read(self.files, folder, entries, &mut faults)));
        self.counts.unreadable += faults.unreadable;
        self.counts.rule_faults += faults.lines;
    }

    /// Whether an entry stays out; counts it when it does.
    fn leaves_out(&mut self, entry: &FolderEntry) -> bool {
        match self.rules.judge(entry, self.options.hidden) {
            Stay::In => return false,
            Stay::Never => {}
            Stay::Hidden => self.counts.hidden += 1,
            Stay::Ignored => self.counts.ignored += 1,
        }
        true
    }

    fn is_on_the_way(&self, folder: &WorkspacePath) -> bool {
        self.options.below.as_ref().is_none_or(|below| is_on_the_way(folder.as_bytes(), below.as_bytes()))
    }

    fn descend(&mut self, folder: &WorkspacePath) {
        if self.open.len() > WALK_DEPTH_MAX {
            self.counts.truncated = true;
            return;
        }
        match self.files.list(folder) {
            Ok(entries) => self.enter(folder, entries),
            // It went away since its parent was listed.
            Err(FileError::NotFound { .. }) => {}
            Err(_) => self.counts.unreadable += 1,
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = FolderEntry;

    /// The next file or link.
    fn next(&mut self) -> Option<FolderEntry> {
        if let Some(single) = self.single.take() {
            return Some(single);
        }
        while let Some(folder) = self.open.last_mut() {
            let Some(entry) = folder.next() else {
                self.open.pop();
                self.rules.pop();
                continue;
            };
            if self.entries >= self.options.entries_max {
                self.counts.truncated = true;
                self.open.clear();
                return None;
            }
            self.entries += 1;
            if self.leaves_out(&entry) || (entry.kind == FileKind::Folder && !self.is_on_the_way(&entry.path)) {
                continue;
            }
            match entry.kind {
                FileKind::Folder => self.descend(&entry.path),
                FileKind::Special => self.counts.special += 1,
                FileKind::File | FileKind::Link => return Some(entry),
            }
        }
        None
    }
}

/// Whether a folder leads to `below` or lies beneath it.
pub(crate) fn is_on_the_way(folder: &[u8], below: &[u8]) -> bool {
    let (shorter, longer) = if folder.len() <= below.len() { (folder, below) } else { (below, folder) };
    shorter.is_empty() || (longer.starts_with(shorter) && matches!(longer.get(shorter.len()), None | Some(b'/')))
}

/// Why a walk cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The start lies in a folder named `.git`.
    #[error("{path} lies in a .git folder, which is never searched; use the git or the read tool")]
    InGit {
        /// Where.
        path: String,
    },
    /// The files port refused.
    #[error(transparent)]
    File(#[from] FileError),
}

#[cfg(test)]
mod tests {
    use super::{StartError, Walk, WalkCounts, WalkOptions};
    use crate::effects::files::FileError;
    use crate::search::twin::{TreeTwin, at};

    fn paths(twin: &TreeTwin, start: &str, hidden: bool) -> (Vec<String>, WalkCounts) {
        let options = WalkOptions { hidden, ..WalkOptions::default() };
        let mut walk = Walk::start(twin, &at(start), options).unwrap();
        let paths = walk.by_ref().map(|entry| entry.path.to_string()).collect();
        (paths, walk.counts())
    }

    #[test]
    fn order_is_that_of_whole_paths() {
        let twin = TreeTwin::of(&[("a/b", ""), ("a.txt", ""), ("a-b/c", ""), ("b", ""), ("a/é", ""), ("a0", "")]);
        let (found, _) = paths(&twin, ".", false);
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(found, sorted);
        assert_eq!(found.len(), 6);
    }

    // Case C070: an excluded folder stays shut; the rest can be shown again.
    #[test]
    fn negated_rules_give_what_git_gives() {
        let twin = TreeTwin::of(&[(".gitignore", "*\n!*.md\n"), ("r.md", ""), ("docs/a.md", "")]);
        assert_eq!(paths(&twin, ".", false).0, ["r.md"]);
        let twin = TreeTwin::of(&[(".gitignore", "t*\n!tools\n"), ("tools/run", ""), ("test/x", "")]);
        assert_eq!(paths(&twin, ".", false).0, ["tools/run"]);
        let rules = "/lib/*/*\n!/lib/*/keep\n";
        let twin = TreeTwin::of(&[(".gitignore", rules), ("lib/one/keep/f", ""), ("lib/one/other", "")]);
        assert_eq!(paths(&twin, ".", false).0, ["lib/one/keep/f"]);
    }

    // Case C072: what is hidden is counted, and an explicit path is always searched.
    #[test]
    fn hidden_entries_are_counted_and_explicit_paths_are_searched() {
        let twin = TreeTwin::of(&[
            (".gitignore", "*.log\nbuild/\n"),
            ("keep.log", ""),
            ("build/a", ""),
            ("build/b.log", ""),
            (".env", ""),
            (".git/config", ""),
            ("x", ""),
        ]);
        let (found, counts) = paths(&twin, ".", false);
        assert_eq!(found, ["x"]);
        // .gitignore and .env are hidden by their names, .git is not even counted.
        assert_eq!((counts.ignored, counts.hidden), (2, 2));
        assert_eq!(paths(&twin, "keep.log", false).0, ["keep.log"]);
        let (found, counts) = paths(&twin, "build", false);
        assert_eq!((found, counts.ignored), (vec!["build/a".to_owned()], 1));
        assert_eq!(paths(&twin, ".", true).0, [".env", ".gitignore", "x"]);
    }

    #[test]
    fn inner_rules_win_and_a_repository_is_its_own() {
        let twin = TreeTwin::of(&[
            (".gitignore", "*.tmp\n*.bak\n"),
            (".ignore", "!kept.bak\n*.big\n"),
            ("kept.bak", ""),
            ("a.big", ""),
            ("sub/.gitignore", "!b.tmp\n"),
            ("sub/b.tmp", ""),
            ("sub/c.tmp", ""),
            ("repo/.git/info/exclude", "*.priv\n"),
            ("repo/d.tmp", ""),
            ("repo/e.priv", ""),
            ("repo/f.big", ""),
        ]);
        assert_eq!(paths(&twin, ".", false).0, ["kept.bak", "repo/d.tmp", "sub/b.tmp"]);
        // The rules above the start hold below it.
        assert_eq!(paths(&twin, "sub", false).0, ["sub/b.tmp"]);
    }

    #[test]
    fn limits_are_told() {
        let twin = TreeTwin::of(&[("a", ""), ("b", ""), ("c", "")]);
        let options = WalkOptions { entries_max: 2, ..WalkOptions::default() };
        let mut walk = Walk::start(&twin, &at("."), options).unwrap();
        assert_eq!(walk.by_ref().count(), 2);
        assert!(walk.counts().truncated);
        let deep = TreeTwin::of(&[(&format!("{}f", "d/".repeat(300)), "")]);
        let (found, counts) = paths(&deep, ".", false);
        assert!(found.is_empty() && counts.truncated);
    }

    #[test]
    fn only_folders_on_the_way_are_entered() {
        let twin = TreeTwin::of(&[("src/a/x", ""), ("src/b/y", ""), ("srcs/z", ""), ("src/top", "")]);
        let options = WalkOptions { below: Some(at("src/a")), ..WalkOptions::default() };
        let walk = Walk::start(&twin, &at("."), options).unwrap();
        let found: Vec<String> = walk.map(|entry| entry.path.to_string()).collect();
        assert_eq!(found, ["src/a/x", "src/top"]);
    }

    #[test]
    fn a_start_that_cannot_be_is_an_error() {
        let twin = TreeTwin::of(&[("a", ""), (".git/config", "")]);
        let start = |path| Walk::start(&twin, &at(path), WalkOptions::default()).err();
        assert!(matches!(start("nope"), Some(StartError::File(FileError::NotFound { .. }))));
        assert!(matches!(start(".git/config"), Some(StartError::InGit { .. })));
    }
}
