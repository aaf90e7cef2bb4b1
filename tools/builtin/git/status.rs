//! `git status`: the branch, and the files that differ, with their raw names.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::intake::{Kept, shown};
use super::listing::{LIST_LIMIT_DEFAULT, page_of, page_request, path_of, pathspec};
use super::parameter::Parameters;
use super::program::Git;
use crate::builtin::reach::{self, Step};
use crate::outcome::ToolOutcome;
use crate::workspace_path::WorkspacePath;

/// What git tells of branch and files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    /// None before the first commit.
    head: Option<String>,
    /// None when HEAD is detached.
    branch: Option<String>,
    upstream: Option<String>,
    /// Commits ahead of and behind the upstream.
    ahead_behind: Option<(u64, u64)>,
    entries: Vec<Entry>,
}

/// One file that differs.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Index and working tree, as two letters.
    letters: String,
    path: WorkspacePath,
    /// Where it was before it was renamed.
    from: Option<WorkspacePath>,
}

/// Shows one page of the status.
pub(super) async fn show(git: &Git<'_>, parameters: &Parameters, arguments: &Value) -> Step<ToolOutcome> {
    let page = page_request(arguments, LIST_LIMIT_DEFAULT)?;
    let below = match &parameters.path {
        Some(path) => Some(pathspec(&reach::path(git.ctx(), path)?)?),
        None => None,
    };
    let unfiltered = git.without_filters().await?;
    let mut call = vec!["status", "--porcelain=v2", "-z", "--branch", "--untracked-files=normal"];
    // Looking into submodules would run git by their configuration too.
    call.extend(["--ignore-submodules=dirty", "--find-renames", "--"]);
    call.extend(below.as_deref());
    let printed = unfiltered.list(&call).await?;
    let status = Status::parse(&printed);
    let mut text = status.heading();
    let (lines, facts) = page_of(&page, &status.entries, Entry::line)?;
    text.push_str(&lines);
    if status.entries.is_empty() {
        text.push_str("Nothing differs from the last commit.\n");
    }
    if !printed.is_whole() {
        text.push_str("[there are more differing files than can be listed; give a path]\n");
    }
    let (ahead, behind) = status.ahead_behind.unzip();
    Ok(ToolOutcome::success(text)
        .with("branch", json!(status.branch))
        .with("head", json!(status.head))
        .with("detached", status.branch.is_none())
        .with("upstream", json!(status.upstream))
        .with("ahead", json!(ahead))
        .with("behind", json!(behind))
        .with("dirty_count", status.entries.len())
        .with("is_dirty", !status.entries.is_empty())
        .with("page", facts.to_value()))
}

impl Status {
    /// Reads NUL-ended porcelain v2.
    pub(super) fn parse(printed: &Kept) -> Self {
        let mut status = Self::default();
        let mut fields = printed.fields();
        while let Some(field) = fields.next() {
            let (kind, rest) = field.split_at_checked(2).unwrap_or((field, b""));
            match kind {
                b"# " => status.header(&shown(rest)),
                b"1 " => status.entries.extend(Entry::of(rest, 7, None)),
                // The name before the renaming is a field of its own.
                b"2 " => {
                    let from = fields.next().map(path_of);
                    status.entries.extend(Entry::of(rest, 8, from));
                }
                b"u " => status.entries.extend(Entry::of(rest, 9, None)),
                b"? " => {
                    status.entries.push(Entry { letters: "??".into(), path: path_of(rest), from: None });
                }
                _ => {}
            }
        }
        status
    }

    fn header(&mut self, line: &str) {
        let Some((key, value)) = line.split_once(' ') else { return };
        match key {
            "branch.oid" => self.head = (value != "(initial)").then(|| value.to_owned()),
            "branch.head" => self.branch = (value != "(detached)").then(|| value.to_owned()),
            "branch.upstream" => self.upstream = Some(value.to_owned()),
            "branch.ab" => {
                let numbers = value.split_once(' ').and_then(|(ahead, behind)| {
                    Some((ahead.strip_prefix('+')?.parse().ok()?, behind.strip_prefix('-')?.parse().ok()?))
                });
                self.ahead_behind = numbers;
            }
            _ => {}
        }
    }

    fn heading(&self) -> String {
        let short = |oid: &str| oid.get(..12).unwrap_or(oid).to_owned();
        let mut text = match (&self.branch, &self.head) {
            (Some(branch), Some(head)) => format!("On branch {branch} at {}", short(head)),
            (Some(branch), None) => format!("On branch {branch}, which has no commit yet"),
            (None, Some(head)) => format!("On no branch (detached HEAD) at {}", short(head)),
            (None, None) => "On no branch".into(),
        };
        match (&self.upstream, self.ahead_behind) {
            (Some(upstream), Some((0, 0))) => {
                let _ = write!(text, ", level with {upstream}");
            }
            (Some(upstream), Some((ahead, behind))) => {
                let _ = write!(text, ", {ahead} ahead of and {behind} behind {upstream}");
            }
            (Some(upstream), None) => {
                let _ = write!(text, "; its upstream {upstream} is gone");
            }
            (None, _) => {}
        }
        text.push('\n');
        text
    }
}

impl Entry {
    /// An entry whose path comes after its letters and so many more words.
    fn of(rest: &[u8], words: usize, from: Option<WorkspacePath>) -> Option<Self> {
        let mut parts = rest.splitn(words + 1, |byte| *byte == b' ');
        let letters = shown(parts.next()?);
        let path = path_of(parts.last()?);
        Some(Self { letters, path, from })
    }

    fn line(&self) -> String {
        match &self.from {
            Some(from) => format!("{} {from} -> {}", self.letters, self.path),
            None => format!("{} {}", self.letters, self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Status;
    use crate::builtin::git::intake::{Intake as _, Kept};

    #[test]
    fn porcelain_is_read_with_names_as_they_are() {
        let mut kept = Kept::default();
        kept.take(b"# branch.oid 0123456789abcdef\0# branch.head main\0# branch.upstream origin/main\0");
        kept.take(b"# branch.ab +1 -2\0# stash 1\0");
        kept.take(b"1 .M N... 100644 100644 100644 aaaa bbbb sp ace.txt\0");
        kept.take(b"2 R. N... 100644 100644 100644 aaaa bbbb R100 new \xff\0old\nname\0");
        kept.take(b"u UU N... 100644 100644 100644 100644 aaaa bbbb cccc both\0? -rf/\0? cut");
        let status = Status::parse(&kept);
        let lines: Vec<_> = status.entries.iter().map(super::Entry::line).collect();
        assert_eq!(lines, [".M sp ace.txt", "R. \"old\\nname\" -> \"new \\377\"", "UU both", "?? -rf/"]);
        assert_eq!(status.heading(), "On branch main at 0123456789ab, 1 ahead of and 2 behind origin/main\n");
    }
}
