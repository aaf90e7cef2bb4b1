//! `git diff`: what differs from a commit or between two, in pages of bytes.
//!
//! An offset counts bytes of the text as it is shown (bytes that are not UTF-8 are shown as U+FFFD), so that the
//! pages joined are the whole text. A page ends at the end of a line where it can. Git tells the changed names
//! before the changes, in the same run; files that may not be read here are left out by name, old name and new.

use std::sync::Arc;

use serde_json::{Value, json};

use super::intake::{Intake, LIST_BYTES_MAX};
use super::listing::{path_of, pathspec};
use super::parameter::Parameters;
use super::program::{Git, Ran};
use crate::builtin::reach::{self, Step, wrong};
use crate::outcome::ToolOutcome;
use crate::workspace_path::WorkspacePath;

/// Bytes of a page when none are asked for.
pub(super) const DIFF_BYTES_DEFAULT: u64 = 64 * 1024;
/// Fewest bytes of a page.
pub(super) const DIFF_BYTES_MIN: u64 = 256;
/// Most bytes of a page; more are lowered to it, and the result says so.
pub(super) const DIFF_BYTES_MAX: u64 = 100 * 1024;
/// Most files that are left out by name.
const WITHHELD_MAX: usize = 1000;

/// Shows one page of the differences.
pub(super) async fn show(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let offset = parameters.byte_offset();
    let requested = parameters.max_bytes().unwrap_or(DIFF_BYTES_DEFAULT);
    if requested < DIFF_BYTES_MIN {
        return Err(wrong(format!("max_bytes must be at least {DIFF_BYTES_MIN}")));
    }
    let applied = requested.min(DIFF_BYTES_MAX);
    let target = commits(parameters.target.as_deref().unwrap_or("HEAD"));
    let mut specs = match &parameters.path {
        Some(path) => vec![pathspec(&reach::path(git.ctx(), path)?)?],
        None => vec![pathspec(&WorkspacePath::root())?],
    };
    let git = git.without_filters().await?;
    let page = || Page { offset, room: applied as usize, ..Page::default() };
    let mut ran = run(&git, &target, &specs, page()).await?;
    let mut target = target;
    if ran.code != 0 && parameters.target.is_none() && git.is_unborn().await? {
        // Everything differs from nothing.
        target = git.list(&["hash-object", "-t", "tree", "/dev/null"]).await?.first_line();
        ran = run(&git, &target, &specs, page()).await?;
    }
    let mut shown = git.wanted(ran)?;
    let withheld = withheld(&git, &shown).await?;
    if !withheld.is_empty() {
        specs.extend(withheld.iter().map(exclusion));
        shown = git.wanted(run(&git, &target, &specs, page()).await?)?;
    }
    shown.finish();
    let outcome = shown.outcome(requested, applied)?;
    let names: Vec<String> = withheld.iter().map(ToString::to_string).collect();
    Ok(match names.is_empty() {
        true => outcome,
        false => ToolOutcome {
            output: format!("{}[{} files are left out: they may not be read here]\n", outcome.output, names.len()),
            ..outcome
        }
        .with("withheld", names),
    })
}

async fn run(git: &Git<'_>, target: &str, specs: &[String], page: Page) -> Step<Ran<Page>> {
    let mut call = vec!["diff", "--patch-with-raw", "-z", "--no-ext-diff", "--no-textconv", "--no-color"];
    call.extend(["--find-renames", "--src-prefix=a/", "--dst-prefix=b/", "--no-relative", "--unified=3"]);
    // Looking into submodules would run git by their configuration too; the last one undoes an order file.
    call.extend(["--submodule=short", "--ignore-submodules=dirty", "-O/dev/null", "--end-of-options"]);
    call.extend([target, "--"]);
    call.extend(specs.iter().map(String::as_str));
    git.run(&call, page).await
}

/// The target with every name in it meaning a commit: a bare tree or blob could show a file under another name.
fn commits(target: &str) -> String {
    let commit = |name: &str| format!("{}^{{commit}}", if name.is_empty() { "HEAD" } else { name });
    for dots in ["...", ".."] {
        if let Some((from, to)) = target.split_once(dots) {
            return format!("{}{dots}{}", commit(from), commit(to));
        }
    }
    commit(target)
}

/// The changed files that may not be read here, with their other name when they were renamed.
async fn withheld(git: &Git<'_>, page: &Page) -> Step<Vec<WorkspacePath>> {
    if page.names_cut {
        return Err(wrong("more files differ than can be looked at; give a path"));
    }
    let files = Arc::clone(git.ctx().workspace.files());
    let changes = page.changes.clone();
    let found = reach::blocking(git.ctx(), git.op(), false, move |_| {
        let denied = |path: &WorkspacePath| files.may_read(path).is_err();
        let changes = changes.into_iter().filter(|change| change.iter().any(denied));
        changes.flatten().take(WITHHELD_MAX + 1).collect::<Vec<_>>()
    });
    let found = found.await?;
    if found.len() > WITHHELD_MAX {
        return Err(wrong("too many of the files that differ may not be read here; give a path"));
    }
    Ok(found)
}

/// A pathspec that leaves out a file whose name need not be UTF-8: each odd byte matches any.
fn exclusion(path: &WorkspacePath) -> String {
    let mut glob = String::from(":(top,exclude,glob)");
    for chunk in path.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '\\') {
                glob.push('\\');
            }
            glob.push(c);
        }
        glob.extend(chunk.invalid().iter().map(|_| '?'));
    }
    glob
}

/// One page of a diff while it is printed.
#[derive(Debug, Default)]
struct Page {
    /// Where it starts in the text.
    offset: u64,
    /// How many bytes it may have.
    room: usize,
    /// The name that is being read, until the names are over.
    name: Vec<u8>,
    names_bytes: usize,
    names_over: bool,
    names_cut: bool,
    /// How many names the current change still has.
    names_due: usize,
    /// The names of each changed file.
    changes: Vec<Vec<WorkspacePath>>,
    /// The start of a character whose end has not arrived.
    unfinished: Vec<u8>,
    text: String,
    /// Nothing more fits.
    full: bool,
    /// Whether the offset lies inside a character.
    misplaced: bool,
    total_bytes: u64,
}

impl Intake for Page {
    fn take(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !self.names_over {
            let Some(end) = memchr::memchr(0, rest) else {
                self.keep_name(rest);
                return;
            };
            self.keep_name(&rest[..end]);
            self.end_name();
            rest = &rest[end + 1..];
        }
        self.take_text(rest);
    }
}

impl Page {
    fn keep_name(&mut self, bytes: &[u8]) {
        self.names_bytes += bytes.len();
        if self.names_bytes > LIST_BYTES_MAX {
            self.names_cut = true;
        } else {
            self.name.extend_from_slice(bytes);
        }
    }

    /// A field of the list of names is whole: what changed and how, then one name, or two of a renaming.
    fn end_name(&mut self) {
        let field = std::mem::take(&mut self.name);
        if self.names_due > 0 {
            self.names_due -= 1;
            if let Some(change) = self.changes.last_mut() {
                change.push(path_of(&field));
            }
        } else if field.starts_with(b":") {
            let kind = field.rsplit(|byte| *byte == b' ').next().and_then(|kind| kind.first());
            self.names_due = if matches!(kind, Some(b'R' | b'C')) { 2 } else { 1 };
            if !self.names_cut {
                self.changes.push(Vec::new());
            }
        } else {
            self.names_over = true;
        }
    }

    fn take_text(&mut self, bytes: &[u8]) {
        let waiting = std::mem::take(&mut self.unfinished);
        let joined;
        let bytes = if waiting.is_empty() {
            bytes
        } else {
            joined = [waiting.as_slice(), bytes].concat();
            &joined
        };
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.take_str(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            // At the very end it may be a character that goes on.
            let error = std::str::from_utf8(invalid).err();
            if chunks.peek().is_none() && error.is_some_and(|error| error.error_len().is_none()) {
                self.unfinished = invalid.to_vec();
            } else {
                self.take_str("\u{fffd}");
            }
        }
    }

    fn take_str(&mut self, text: &str) {
        let start = self.total_bytes;
        self.total_bytes += text.len() as u64;
        if self.full || self.total_bytes <= self.offset {
            return;
        }
        let skipped = self.offset.saturating_sub(start) as usize;
        if !text.is_char_boundary(skipped) {
            self.misplaced = true;
            self.full = true;
            return;
        }
        let fresh = &text[skipped..];
        let end = fresh.floor_char_boundary(self.room - self.text.len());
        self.text.push_str(&fresh[..end]);
        self.full = end < fresh.len();
    }

    /// Nothing more comes.
    fn finish(&mut self) {
        if !std::mem::take(&mut self.unfinished).is_empty() {
            self.take_str("\u{fffd}");
        }
        if self.full
            && let Some(end) = self.text.rfind('\n')
        {
            self.text.truncate(end + 1);
        }
    }

    fn outcome(self, requested: u64, applied: u64) -> Step<ToolOutcome> {
        let (offset, total) = (self.offset, self.total_bytes);
        if self.misplaced {
            return Err(wrong(format!("byte_offset {offset} lies inside a character; use the next_byte_offset given")));
        }
        if offset > total {
            return Err(wrong(format!(
                "byte_offset {offset} lies behind the end: there are {total} bytes; start at 0"
            )));
        }
        let returned = self.text.len() as u64;
        let next = Some(offset + returned).filter(|next| *next < total);
        let mut text = self.text;
        match next {
            Some(next) => {
                if !text.ends_with('\n') {
                    text.push('\n');
                }
                text.push_str(&format!("[bytes {offset} to {next} of {total}; go on with byte_offset {next}]\n"));
            }
            None if total == 0 => text.push_str("Nothing differs.\n"),
            None if returned == 0 => text.push_str(&format!("[the end: there are {total} bytes]\n")),
            None => {}
        }
        let page = json!({
            "byte_offset": offset,
            "requested_max_bytes": requested,
            "applied_max_bytes": applied,
            "returned_bytes": returned,
            "total_bytes": total,
            "next_byte_offset": next,
            "truncated": next.is_some(),
            "limit_clamped": requested > applied,
        });
        Ok(ToolOutcome::success(text).with("changed_files", Value::from(self.changes.len())).with("page", page))
    }
}

#[cfg(test)]
mod tests {
    use super::{Page, commits, exclusion};
    use crate::builtin::git::intake::Intake as _;
    use crate::builtin::git::listing::path_of;

    const NAMES: &[u8] = b":1 2 a b M\0x\0:1 2 a b R100\0old\0new\0\0";

    fn page(bytes: &[u8], chunk: usize, offset: u64, room: usize) -> Page {
        let mut page = Page { offset, room, ..Page::default() };
        for part in [NAMES, bytes].concat().chunks(chunk) {
            page.take(part);
        }
        page.finish();
        page
    }

    #[test]
    fn pages_joined_are_the_whole_however_it_arrives() {
        let bytes = b"a\xff\xe4\xb8\xad\n\xf0\x9f\x98\x80tail\n\xe4\xb8";
        let whole = String::from_utf8_lossy(bytes);
        for chunk in [1, 2, 3, 7, 100] {
            let (mut text, mut offset) = (String::new(), 0);
            while offset < whole.len() as u64 {
                let page = page(bytes, chunk, offset, 7);
                assert!(!page.misplaced && !page.text.is_empty() && page.text.len() <= 7);
                assert_eq!(page.total_bytes, whole.len() as u64);
                text.push_str(&page.text);
                offset += page.text.len() as u64;
            }
            assert_eq!(text, whole);
        }
        assert!(page(bytes, 3, 2, 7).misplaced);
        assert_eq!(page(b"ab\ncd", 1, 0, 4).text, "ab\n");
    }

    #[test]
    fn names_come_before_the_text() {
        let page = page(b"diff", 1, 0, 300);
        let names: Vec<Vec<String>> =
            page.changes.iter().map(|change| change.iter().map(ToString::to_string).collect()).collect();
        assert_eq!(names, [vec!["x"], vec!["old", "new"]]);
        assert_eq!(page.text, "diff");
    }

    #[test]
    fn targets_mean_commits_and_exclusions_are_literal() {
        assert_eq!(commits("main"), "main^{commit}");
        assert_eq!(commits("a..b"), "a^{commit}..b^{commit}");
        assert_eq!(commits("a..."), "a^{commit}...HEAD^{commit}");
        assert_eq!(exclusion(&path_of(b"a*\xff")), ":(top,exclude,glob)a\\*?");
    }
}
