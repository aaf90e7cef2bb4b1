//! `git branch`: the branches of the repository and its remotes, and a new one.

use serde_json::{Value, json};

use super::intake::shown;
use super::listing::{LIST_LIMIT_DEFAULT, page_of, page_request};
use super::parameter::{Parameters, needed};
use super::program::Git;
use crate::builtin::reach::Step;
use crate::outcome::ToolOutcome;

/// Sign of the current one, name, what it merely points to, upstream, commit, subject.
const FORMAT: &str =
    "--format=%(HEAD)%00%(refname:short)%00%(symref)%00%(upstream:short)%00%(objectname)%00%(subject)%00";
/// How many fields that are.
const FIELDS: usize = 6;

/// Lists one page of the branches: local ones, then those of remotes.
pub(super) async fn list(git: &Git<'_>, arguments: &Value) -> Step<ToolOutcome> {
    let page = page_request(arguments, LIST_LIMIT_DEFAULT)?;
    let printed = git.list(&["for-each-ref", FORMAT, "refs/heads", "refs/remotes"]).await?;
    let fields: Vec<&[u8]> = printed.fields().collect();
    let branches = fields.chunks_exact(FIELDS).filter(|branch| branch[2].is_empty());
    let branches: Vec<&[&[u8]]> = branches.collect();
    let is_current = |branch: &&&[&[u8]]| branch[0].ends_with(b"*");
    let current = branches.iter().find(is_current).map(|branch| shown(branch[1]));
    let (mut text, facts) = page_of(&page, &branches, |branch| {
        let sign = if is_current(&branch) { '*' } else { ' ' };
        let upstream = if branch[3].is_empty() { String::new() } else { format!(" [{}]", shown(branch[3])) };
        let commit = &branch[4][..branch[4].len().min(12)];
        format!("{sign} {}{upstream} {} {}", shown(branch[1]), shown(commit), shown(branch[5]))
    })?;
    if branches.is_empty() {
        text.push_str("There is no branch with a commit yet.\n");
    }
    Ok(ToolOutcome::success(text)
        .with("count", facts.returned_items)
        .with("current", json!(current))
        .with("page", facts.to_value()))
}

/// Makes a branch without switching to it.
pub(super) async fn create(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let name = needed(git.op(), "name", parameters.name.as_ref())?;
    let base = parameters.base();
    git.list(&["branch", "--end-of-options", name, base]).await?;
    Ok(ToolOutcome::success(format!("Created branch {name} at {base}; checkout switches to it.\n"))
        .with("branch", name)
        .with("base", base))
}
