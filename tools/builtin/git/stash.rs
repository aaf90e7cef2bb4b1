//! `git stash`: changes that were put away, and putting them away.

use serde_json::Value;

use super::intake::{Kept, shown};
use super::listing::{LIST_LIMIT_DEFAULT, page_of, page_request};
use super::parameter::Parameters;
use super::program::Git;
use crate::builtin::reach::{Step, wrong};
use crate::outcome::ToolOutcome;

/// Commit, date, note.
const FORMAT: &str = "--format=tformat:%H%x00%cI%x00%gs";
/// How many fields that are.
const FIELDS: usize = 3;

/// Lists one page of the stashes, newest first.
pub(super) async fn list(git: &Git<'_>, arguments: &Value) -> Step<ToolOutcome> {
    let page = page_request(arguments, LIST_LIMIT_DEFAULT)?;
    let printed = git.list(&["stash", "list", "-z", FORMAT, "--no-show-signature", "--encoding=UTF-8"]).await?;
    let fields: Vec<&[u8]> = printed.fields().collect();
    let stashes: Vec<(usize, &[&[u8]])> = fields.chunks_exact(FIELDS).enumerate().collect();
    let (mut text, facts) =
        page_of(&page, &stashes, |(at, stash)| format!("stash@{{{at}}} {} {}", shown(stash[1]), shown(stash[2])))?;
    if stashes.is_empty() {
        text.push_str("Nothing is put away.\n");
    }
    Ok(ToolOutcome::success(text).with("count", facts.returned_items).with("page", facts.to_value()))
}

/// Puts the local changes away.
pub(super) async fn create(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let git = git.without_filters().await?;
    git.refuse_filtered().await?;
    if git.is_unborn().await? {
        return Err(wrong("git stash create: there is no commit yet to go back to; make the first one with bash"));
    }
    let before = top(&git).await?;
    let mut call = vec!["stash", "push", "--quiet"];
    call.extend(parameters.include_untracked().then_some("--include-untracked"));
    let message = parameters.message.as_ref().map(|message| format!("--message={message}"));
    call.extend(message.as_deref());
    let signed = with_identity(&git).await?;
    signed.list(&call).await?;
    let after = top(&git).await?;
    let created = after.is_some() && after != before;
    let text = if created {
        "Put away as stash@{0}; git stash pop in bash brings it back.\n"
    } else {
        "There was nothing to put away.\n"
    };
    let outcome = ToolOutcome::success(text).with("created", created);
    Ok(match after.filter(|_| created) {
        Some(commit) => outcome.with("stash", "stash@{0}").with("commit", commit),
        None => outcome,
    })
}

/// The newest stash, as a commit.
async fn top(git: &Git<'_>) -> Step<Option<String>> {
    let ran = git.run(&["rev-parse", "--verify", "--quiet", "refs/stash"], Kept::default()).await?;
    Ok((ran.code == 0).then(|| ran.out.first_line()))
}

/// The same git with the name and address that the person's and the repository's configuration give, since a
/// stash is a commit; without them git signs with its own name.
async fn with_identity<'a>(git: &Git<'a>) -> Step<Git<'a>> {
    let mut signed = git.clone();
    let user = git.with_user_configuration();
    for (key, variables) in [
        ("user.name", ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"]),
        ("user.email", ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"]),
    ] {
        let ran = user.run(&["config", "--get", key], Kept::default()).await?;
        let value = ran.out.first_line();
        if ran.code == 0 && !value.is_empty() {
            for variable in variables {
                signed = signed.with(variable, value.clone());
            }
        }
    }
    Ok(signed)
}
