//! `git worktree`: further working trees of the repository, inside the workspace.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::{Value, json};

use super::intake::{Kept, shown};
use super::listing::{LIST_LIMIT_DEFAULT, page_of, page_request, path_of};
use super::parameter::{Parameters, needed};
use super::program::Git;
use crate::builtin::reach::{self, Step, fault, wrong};
use crate::outcome::ToolOutcome;
use crate::workspace_path::WorkspacePath;

/// Where worktrees go that are given a name alone.
const FOLDER: &str = ".worktrees";

/// One working tree as git tells of it.
#[derive(Debug, Default)]
struct Worktree {
    path: String,
    head: String,
    branch: Option<String>,
    notes: Vec<String>,
}

/// Lists one page of the worktrees, the main one first.
pub(super) async fn list(git: &Git<'_>, arguments: &Value) -> Step<ToolOutcome> {
    let page = page_request(arguments, LIST_LIMIT_DEFAULT)?;
    let printed = git.list(&["worktree", "list", "--porcelain", "-z"]).await?;
    let mut worktrees: Vec<Worktree> = Vec::new();
    for field in printed.fields() {
        let (key, value) = field.iter().position(|byte| *byte == b' ').map_or((field, b"".as_slice()), |at| {
            let (key, value) = field.split_at(at);
            (key, &value[1..])
        });
        if key == b"worktree" {
            worktrees.push(Worktree { path: place(git, value), ..Worktree::default() });
            continue;
        }
        let Some(worktree) = worktrees.last_mut() else { continue };
        match key {
            b"HEAD" => worktree.head = shown(&value[..value.len().min(12)]),
            b"branch" => worktree.branch = Some(shown(value.strip_prefix(b"refs/heads/").unwrap_or(value))),
            b"" | b"detached" => {}
            note => worktree.notes.push(shown(note)),
        }
    }
    let (text, facts) = page_of(&page, &worktrees, |worktree| {
        let branch = worktree.branch.as_deref().unwrap_or("(detached)");
        let notes: String = worktree.notes.iter().map(|note| format!(" [{note}]")).collect();
        format!("{} {} {branch}{notes}", worktree.path, worktree.head)
    })?;
    Ok(ToolOutcome::success(text).with("count", facts.returned_items).with("page", facts.to_value()))
}

/// An absolute path as it is shown: from the workspace when it lies inside.
fn place(git: &Git<'_>, absolute: &[u8]) -> String {
    let absolute = Path::new(std::ffi::OsStr::from_bytes(absolute));
    match absolute.strip_prefix(git.root()) {
        Ok(below) => WorkspacePath::from_relative(below).to_string(),
        Err(_) => path_of(absolute.as_os_str().as_bytes()).to_string(),
    }
}

/// Makes a worktree with a branch of its own, or with one that is there.
pub(super) async fn create(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let name = needed(git.op(), "name", parameters.name.as_ref())?;
    let path = match &parameters.path {
        Some(path) => folder(git, path)?,
        None => folder(git, &format!("{FOLDER}/{name}"))?,
    };
    let at = argument(&path)?;
    let git = git.without_filters().await?;
    git.refuse_filtered().await?;
    let (branch, base) = (name, parameters.base());
    let mut call = vec!["worktree", "add", "--quiet"];
    if parameters.new_branch() {
        call.extend(["-b", branch, "--end-of-options", &at, base]);
    } else {
        call.extend(["--end-of-options", &at, branch]);
    }
    git.list(&call).await?;
    let ignored = git.run(&["check-ignore", "--quiet", "--", &at], Kept::default()).await?;
    let mut text = format!("Created the worktree {path} on branch {branch}\n");
    if ignored.code == 1 {
        text.push_str("[it is not ignored here: keep it out of commits, for example by a line in .git/info/exclude]\n");
    }
    let base = parameters.new_branch().then_some(base);
    Ok(ToolOutcome::success(text).with("path", path.to_string()).with("branch", branch).with("base", json!(base)))
}

/// Removes a worktree and its folder; its branch stays.
pub(super) async fn remove(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let path = folder(git, needed(git.op(), "path", parameters.path.as_ref())?)?;
    let at = argument(&path)?;
    let mut call = vec!["worktree", "remove"];
    call.extend(parameters.force().then_some("--force"));
    call.extend(["--end-of-options", &at]);
    // Git looks at the worktree's changes by the worktree's own configuration.
    let inside = git.clone().within(&path).without_filters().await;
    let git = match inside {
        Ok(inside) => inside.within(&WorkspacePath::root()),
        // There may be no such folder (any more): git says what it knows of it.
        Err(_) => git.without_filters().await?,
    };
    git.list(&call).await?;
    Ok(ToolOutcome::success(format!("Removed the worktree {path}; its branch is still there.\n"))
        .with("path", path.to_string()))
}

/// A folder inside the workspace, without links, and not among git's own files.
fn folder(git: &Git<'_>, text: &str) -> Step<WorkspacePath> {
    let path = reach::path(git.ctx(), text)?;
    let path = git.ctx().workspace.files().canonical(&path).map_err(|error| fault(&error))?;
    if path.is_root() || path.names().any(|name| name.eq_ignore_ascii_case(".git")) {
        return Err(wrong(format!("path: {path} cannot be a worktree; name a folder of its own")));
    }
    Ok(path)
}

/// A path as an argument that cannot be an option.
fn argument(path: &WorkspacePath) -> Step<String> {
    let text = path.as_path().to_str();
    text.map(|text| format!("./{text}")).ok_or_else(|| wrong(format!("path: {path} is not UTF-8; choose another")))
}
