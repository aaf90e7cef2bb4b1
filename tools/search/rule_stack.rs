//! The ignore rules that hold at a place of the tree: those of its folder, and of every folder above it.
//!
//! A level is read once and never changes, so a walk and a resident tree share it. What a level could not read is
//! told to whoever reads it.

use std::io::Read as _;
use std::sync::Arc;

use crate::effects::files::{FileError, FileKind, FileStat, Files, FolderEntry, Links};
use crate::search::ignore_rules::{IgnoreRules, Verdict};
use crate::workspace_path::WorkspacePath;

/// Largest ignore file that is read, in bytes.
pub const IGNORE_FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The rules that hold at a place, outermost folder first.
#[derive(Debug, Clone, Default)]
pub struct RuleStack {
    levels: Vec<Arc<Level>>,
}

/// What rules say of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// It is looked at.
    In,
    /// Its name begins with a dot.
    Hidden,
    /// An ignore rule speaks against it.
    Ignored,
    /// It is a `.git`, which is never looked at and never counted.
    Never,
}

/// What could not be taken of the rules of a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleFaults {
    /// Ignore files that could not be read.
    pub unreadable: u64,
    /// Lines that could not be taken.
    pub lines: u64,
    /// Whether one was unreadable for a reason that may pass, so that the next look may find other rules.
    pub passing: bool,
}

impl RuleStack {
    /// Goes into a folder.
    pub fn push(&mut self, level: Arc<Level>) {
        self.levels.push(level);
    }

    /// Leaves it.
    pub fn pop(&mut self) {
        self.levels.pop();
    }

    /// Judges an entry of the innermost folder.
    pub fn judge(&self, entry: &FolderEntry, hidden: bool) -> Stay {
        let name = entry.path.name().map(std::os::unix::ffi::OsStrExt::as_bytes).unwrap_or_default();
        if name == b".git" {
            return Stay::Never;
        }
        if name.starts_with(b".") && !hidden {
            return Stay::Hidden;
        }
        if self.hides(entry) { Stay::Ignored } else { Stay::In }
    }

    fn hides(&self, entry: &FolderEntry) -> bool {
        let is_folder = entry.kind == FileKind::Folder;
        let ask = |rules: &Option<IgnoreRules>, level: &Level| match rules {
            Some(rules) => rules.verdict(&entry.path.as_bytes()[level.prefix_bytes..], is_folder),
            None => Verdict::Silent,
        };
        for level in self.levels.iter().rev() {
            match ask(&level.ignore, level) {
                Verdict::Silent => {}
                verdict => return verdict == Verdict::Hide,
            }
        }
        for level in self.levels.iter().rev() {
            match ask(&level.gitignore, level) {
                Verdict::Silent => {}
                verdict => return verdict == Verdict::Hide,
            }
            if level.repository {
                return ask(&level.exclude, level) == Verdict::Hide;
            }
        }
        false
    }
}

/// The rules of one folder.
#[derive(Debug, Default)]
pub struct Level {
    /// How much of a path leads to the folder, with the slash.
    prefix_bytes: usize,
    ignore: Option<IgnoreRules>,
    gitignore: Option<IgnoreRules>,
    exclude: Option<IgnoreRules>,
    /// The file of `exclude` as it was just before it was read.
    exclude_stat: Option<FileStat>,
    /// Whether a repository begins here.
    repository: bool,
}

impl Level {
    /// Reads the rules of a folder with these entries.
    pub fn read(files: &dyn Files, folder: &WorkspacePath, entries: &[FolderEntry], faults: &mut RuleFaults) -> Self {
        let prefix_bytes = if folder.is_root() { 0 } else { folder.as_bytes().len() + 1 };
        let mut level = Self { prefix_bytes, ..Self::default() };
        for entry in entries {
            // Most names are told apart by their first byte.
            match (&entry.path.as_bytes()[prefix_bytes.min(entry.path.as_bytes().len())..], entry.kind) {
                // A link is not read: git does not follow one either.
                (b".gitignore", FileKind::File) => level.gitignore = read_rules(files, &entry.path, faults),
                (b".ignore", FileKind::File) => level.ignore = read_rules(files, &entry.path, faults),
                (b".git", FileKind::Folder) => {
                    level.repository = true;
                    let exclude = exclude_of(folder);
                    level.exclude_stat = files.stat(&exclude, Links::Stay).ok();
                    if level.exclude_stat.is_some_and(|stat| stat.kind == FileKind::File) {
                        level.exclude = read_rules(files, &exclude, faults);
                    }
                }
                // A worktree or a submodule: its folder of facts lies elsewhere.
                (b".git", FileKind::File) => level.repository = true,
                _ => {}
            }
        }
        level
    }

    /// Whether a repository begins here.
    pub fn is_repository(&self) -> bool {
        self.repository
    }

    /// The repository's own exclude file as it was just before it was read; none when there was none.
    pub fn exclude_stat(&self) -> Option<FileStat> {
        self.exclude_stat
    }
}

/// Where the repository in a folder keeps rules that are not shared.
pub fn exclude_of(folder: &WorkspacePath) -> WorkspacePath {
    folder.child(".git".as_ref()).child("info".as_ref()).child("exclude".as_ref())
}

/// Whether a file of this name holds rules, or makes a repository.
pub fn speaks_of_rules(name: &[u8]) -> bool {
    matches!(name, b".gitignore" | b".ignore" | b".git")
}

fn read_rules(files: &dyn Files, path: &WorkspacePath, faults: &mut RuleFaults) -> Option<IgnoreRules> {
    let mut content = Vec::new();
    let unread = match files.open(path) {
        Ok(file) => file.take(IGNORE_FILE_BYTES_MAX + 1).read_to_end(&mut content).is_err().then_some(true),
        Err(FileError::NotFound { .. }) => return None,
        Err(error) => Some(error.may_pass()),
    };
    if let Some(passing) = unread {
        faults.unreadable += 1;
        faults.passing |= passing;
        return None;
    }
    if content.len() as u64 > IGNORE_FILE_BYTES_MAX {
        faults.lines += 1;
        content.truncate(IGNORE_FILE_BYTES_MAX as usize);
        // The last line may be cut: half a rule could hide anything.
        let whole = content.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        content.truncate(whole);
    }
    let (rules, lines) = IgnoreRules::parse(&content);
    faults.lines += lines as u64;
    rules
}

/// Puts the entries of one folder in the order of whole paths.
pub fn sort_entries(entries: &mut [FolderEntry]) {
    // A folder sorts as its name and a slash, for that is how the paths in it begin.
    let order = |one: &FolderEntry, other: &FolderEntry| {
        let (a, b) = (one.path.as_bytes(), other.path.as_bytes());
        let common = a.len().min(b.len());
        let next = |path: &[u8], entry: &FolderEntry| match path.get(common) {
            Some(byte) => Some(*byte),
            None => (entry.kind == FileKind::Folder).then_some(b'/'),
        };
        a[..common].cmp(&b[..common]).then_with(|| next(a, one).cmp(&next(b, other)))
    };
    // Listed by name, they nearly always stand in this order already.
    if !entries.is_sorted_by(|one, other| order(one, other).is_le()) {
        entries.sort_by(order);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Level, RuleFaults, RuleStack, Stay};
    use crate::effects::files::{FileKind, Files as _, FolderEntry};
    use crate::search::twin::{TreeTwin, at};

    #[test]
    fn entries_are_judged_by_name_then_by_rules() {
        let twin = TreeTwin::of(&[(".gitignore", "*.o\n"), ("a.o", ""), ("b", ""), (".git/x", ""), (".env", "")]);
        let mut faults = RuleFaults::default();
        let entries = twin.list(&at(".")).unwrap();
        let level = Level::read(&twin, &at("."), &entries, &mut faults);
        assert!(level.is_repository());
        let mut stack = RuleStack::default();
        stack.push(Arc::new(level));
        let judge = |name: &str, hidden| stack.judge(&FolderEntry { path: at(name), kind: FileKind::File }, hidden);
        assert_eq!(judge("a.o", false), Stay::Ignored);
        assert_eq!(judge("b", false), Stay::In);
        assert_eq!((judge(".env", false), judge(".env", true)), (Stay::Hidden, Stay::In));
        assert_eq!(judge(".git", true), Stay::Never);
    }
}
