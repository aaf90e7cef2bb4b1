//! `git checkout`: switches the working tree to a branch, tag or commit.
//!
//! Local changes stay, or git refuses; only `force` gives them up. No hook and no filter program runs, so a
//! repository that filters files is refused (see [`Git::refuse_filtered`]).

use serde_json::json;

use super::intake::Kept;
use super::parameter::{Parameters, needed};
use super::program::Git;
use crate::builtin::reach::Step;
use crate::outcome::ToolOutcome;

/// Switches to `ref`.
pub(super) async fn switch(git: &Git<'_>, parameters: &Parameters) -> Step<ToolOutcome> {
    let reference = needed(git.op(), "ref", parameters.reference.as_ref())?;
    let git = git.without_filters().await?;
    git.refuse_filtered().await?;
    let mut call = vec!["checkout", "--quiet", "--no-recurse-submodules"];
    call.extend(parameters.force().then_some("--force"));
    // What stands before the dashes is never taken for a path.
    call.extend([reference, "--"]);
    git.list(&call).await?;
    let (head, branch) = (["rev-parse", "--verify", "HEAD"], ["symbolic-ref", "--quiet", "--short", "HEAD"]);
    let (head, branch) = tokio::join!(git.list(&head), git.run(&branch, Kept::default()));
    let (head, branch) = (head?.first_line(), branch?);
    let branch = (branch.code == 0).then(|| branch.out.first_line());
    let place = match &branch {
        Some(branch) => format!("branch {branch}"),
        None => "no branch (detached HEAD); make one before you commit".into(),
    };
    Ok(ToolOutcome::success(format!(
        "Switched to {reference}: now at {} on {place}\n",
        head.get(..12).unwrap_or(&head)
    ))
    .with("ref", reference)
    .with("head", head)
    .with("detached", branch.is_none())
    .with("branch", json!(branch)))
}
