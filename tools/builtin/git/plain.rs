//! What a look at a plain repository tells without running git: each git of its own would cost as much as the whole
//! call on a small repository, and a tenth of it on a large one.
//!
//! Plain is a `.git` that is a folder in the workspace's own, shares nothing with other working trees, and has one
//! configuration file. What must stay true: these looks only ever say yes where git would say the same; anything odd,
//! and anything that cannot be read here, is left to git.

use std::io::Read as _;

use super::program::Git;
use crate::effects::files::{FileError, FileKind, Files, Links};
use crate::workspace_path::WorkspacePath;

/// Longest configuration that is looked at, in bytes.
const CONFIG_BYTES_MAX: u64 = 64 * 1024;

/// Whether the repository lies in the workspace and has no other working tree's folders.
pub(super) fn is_plain(git: &Git<'_>) -> bool {
    let files = git.ctx().workspace.files();
    let is_folder = files.stat(&beneath(".git"), Links::Stay).is_ok_and(|stat| stat.kind == FileKind::Folder);
    is_folder && is_absent(files.as_ref(), ".git/commondir")
}

/// Whether its configuration names no filter driver: no such word stands in it, and it includes no other file.
pub(super) fn names_no_filter(git: &Git<'_>) -> bool {
    let files = git.ctx().workspace.files();
    if !is_plain(git) || !is_absent(files.as_ref(), ".git/config.worktree") {
        return false;
    }
    let Ok(file) = files.open(&beneath(".git/config")) else { return false };
    let mut text = Vec::new();
    let is_read = file.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut text).is_ok();
    text.make_ascii_lowercase();
    let holds = |word: &str| memchr::memmem::find(&text, word.as_bytes()).is_some();
    is_read && text.len() as u64 <= CONFIG_BYTES_MAX && !holds("filter") && !holds("include")
}

fn is_absent(files: &dyn Files, path: &str) -> bool {
    matches!(files.stat(&beneath(path), Links::Stay), Err(FileError::NotFound { .. }))
}

fn beneath(path: &str) -> WorkspacePath {
    WorkspacePath::from_relative(path.as_ref())
}
