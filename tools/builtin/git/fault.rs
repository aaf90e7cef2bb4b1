//! What went wrong in git, told as a typed error that says what to do next.
//!
//! Git's messages are read in the C locale; what is not known here is passed on in git's own words, cleaned and cut.

use std::io;
use std::path::Path;

use super::program::{Git, busy};
use crate::effects::processes::ProcessError;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::screen_text;
use crate::workspace_path::WorkspacePath;

/// Where an outcome says which folder belongs to somebody else.
pub(super) const UNTRUSTED_FOLDER: &str = "untrusted_folder";
/// Most lines of git's own words that are passed on.
const LINES_MAX: usize = 20;
/// Most bytes of git's own words that are passed on.
const WORDS_BYTES_MAX: usize = 2048;
/// What git says of a name that is no commit.
const UNKNOWN_NAMES: [&str; 9] = [
    "bad revision",
    "unknown revision",
    "invalid reference",
    "not a valid object name",
    "ambiguous argument",
    "not a commit",
    "expected commit type",
    "invalid object name",
    "needed a single revision",
];
/// What git says of other arguments that cannot be carried out.
const UNUSABLE: [&str; 8] = [
    "already exists",
    "is not a valid branch name",
    "is not a working tree",
    "is a main working tree",
    "already checked out",
    "already used by worktree",
    "would be overwritten by checkout",
    "no merge base",
];

/// The outcome of a run that failed.
pub(super) fn of(git: &Git<'_>, code: i32, complaint: &str) -> Box<ToolOutcome> {
    let op = git.op();
    let words = words(complaint);
    let has = |text: &str| complaint.contains(text);
    let invalid = |text: String| Box::new(ToolOutcome::invalid_argument(text));
    if has("dubious ownership") {
        let folder = between(complaint, "repository at '", "'").unwrap_or(git.ctx().workspace.display_root());
        let text = format!(
            "{op}: the repository in {folder} belongs to another user, and its configuration could do anything in \
             your name. If you trust it, the person at this machine can add exactly this folder to safe.directory in \
             their own git configuration; it is not changed from here"
        );
        return Box::new(ToolOutcome::clone(&unsupported(&text)).with(UNTRUSTED_FOLDER, folder));
    }
    if has("not a git repository") || has("cannot use bare repository") || has("must be run in a work tree") {
        return unsupported(&format!(
            "{op}: {} is no git repository with a working tree; only one whose .git stands in this folder itself is \
             used, not one above or below it",
            git.ctx().workspace.display_root()
        ));
    }
    if has(".lock': File exists") {
        let lock = between(complaint, "nable to create '", "'").unwrap_or("a lock file");
        let lock = Path::new(lock)
            .strip_prefix(git.root())
            .map_or_else(|_| lock.to_owned(), |below| WorkspacePath::from_relative(below).to_string());
        let text = format!(
            "{op}: {lock} is there, so another git is at work, or one was killed here and left it behind. Try again \
             in a moment; remove that file only when no other git runs"
        );
        return Box::new(busy(op, text).with("lock", lock));
    }
    if has("initial commit") || has("does not have any commits") {
        return invalid(format!("{op}: there is no commit yet on this branch; make the first one with bash"));
    }
    if has("lazy fetching disabled") || has("promisor") || has("could not fetch") {
        return unsupported(&format!(
            "{op}: some objects were never fetched from the remote (a partial clone), and this tool does not use the \
             network; fetch them with bash"
        ));
    }
    if UNKNOWN_NAMES.iter().any(|text| has(text)) {
        return invalid(format!("{op}: {words}\nNo such branch, tag or commit; branch lists them, log shows commits"));
    }
    if has("contains modified or untracked files") {
        return invalid(format!("{op}: {words}\nLook at the changes first; force removes it with them"));
    }
    if UNUSABLE.iter().any(|text| has(text)) {
        return invalid(format!("{op}: {words}"));
    }
    Box::new(ToolOutcome::failure(format!("{op}: git ended with exit code {code}\n{words}").trim_end()))
}

/// The outcome of a git that could not be started.
pub(super) fn of_start(op: &str, error: &ProcessError) -> Box<ToolOutcome> {
    match error {
        ProcessError::Folder { folder, .. } => {
            let path = folder.display().to_string();
            Box::new(ToolOutcome::error(ToolErrorKind::NotFound { path }, format!("{op}: {error}")))
        }
        ProcessError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => unsupported(
            "there is no git in the PATH that commands get here; the host has to install it or to extend that PATH",
        ),
        ProcessError::Unconfined { .. } => unsupported(&format!("{op}: {error}")),
        ProcessError::Start { .. }
        | ProcessError::Containment { .. }
        | ProcessError::Wait { .. }
        | ProcessError::Unsupervised { .. } => Box::new(ToolOutcome::failure(format!("{op}: {error}"))),
    }
}

/// The outcome of what cannot be done here.
pub(super) fn unsupported(message: &str) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.into() }, message))
}

/// Git's own words without its hints, cleaned and cut.
fn words(complaint: &str) -> String {
    let cleaned = screen_text::settled(complaint);
    let lines = cleaned.lines().map(str::trim_end).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    let lines = lines.map(|line| line.trim_start_matches("fatal: ").trim_start_matches("error: "));
    let mut text = lines.take(LINES_MAX).collect::<Vec<_>>().join("\n");
    text.truncate(text.floor_char_boundary(WORDS_BYTES_MAX));
    text
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    rest.split_once(end).map(|(found, _)| found)
}

#[cfg(test)]
mod tests {
    use super::{WORDS_BYTES_MAX, between, words};

    #[test]
    fn words_are_cleaned_and_cut() {
        assert_eq!(words("fatal: a\x1b[31mb\nhint: try\n\nerror: c\n"), "ab\nc");
        assert!(words(&"é".repeat(5000)).len() <= WORDS_BYTES_MAX);
        assert_eq!(words(&"x\n".repeat(100)).lines().count(), 20);
        assert_eq!(between("at '/a b' x", "at '", "'"), Some("/a b"));
        assert_eq!(between("at '/a b", "at '", "'"), None);
    }
}
