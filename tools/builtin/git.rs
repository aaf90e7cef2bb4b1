//! `git`: looks at and changes the repository of the workspace, with the real git program.
//!
//! Only the repository whose `.git` stands in the workspace's own folder is used, never one above it. A repository's
//! own configuration is written by whoever made it, so no program named there is run by any command of this tool:
//! no hook, filter, pager, external diff or helper (see `program`); nothing here reaches the network, and nothing
//! waits for a key. Whoever wants hooks, filters or a remote uses `bash`, where a person is asked.

mod branch;
mod checkout;
mod diff;
mod fault;
mod folder;
mod intake;
mod listing;
mod log;
mod parameter;
mod plain;
mod program;
mod remote;
mod stash;
mod status;
mod worktree;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use self::diff::{DIFF_BYTES_DEFAULT, DIFF_BYTES_MAX, DIFF_BYTES_MIN};
use self::folder::RepositoryFolder;
use self::listing::{LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX};
use self::log::LOG_LIMIT_DEFAULT;
use self::parameter::{Command, Parameters, Subcommand};
use self::program::Git;
use super::reach::{self, Step};
use crate::context::ToolContext;
use crate::declaration::{Capabilities, OutputKind};
use crate::effects::files::FileError;
use crate::ids::ToolName;
use crate::outcome::ToolOutcome;
use crate::pagination::cursor_schema;
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::PATH_BYTES_MAX;

/// How many read-only calls may run beside each other.
const PARALLELISM: usize = 8;

/// The tool.
pub struct GitTool {
    environment: BTreeMap<String, String>,
}

impl GitTool {
    /// A git whose program is found along the `PATH` of this environment, and whose user is that of its `HOME`.
    pub fn new(environment: BTreeMap<String, String>) -> Self {
        Self { environment }
    }
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("git"),
        description: "Look at and change the git repository of the workspace. status: branch and changed files (two \
            letters: in the index, in the working tree; ? untracked, U conflict). log: commits of ref (default HEAD), \
            newest first. diff: working tree against target (default HEAD; also a..b or a...b), in pages of bytes. \
            branch: list, or create name at base. checkout: switch to ref. stash: list, or put changes away when \
            subcommand is create or message is given. remote: list remotes. worktree: list, create (name, path, base) \
            or remove (path). Hooks, filters and the network are never used here: commit, merge, pull, push and \
            stash pop go through bash."
            .into(),
        parameters: parameters(),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Execute,
        needs: Needs { exec: true, ..Needs::default() },
    }
}

fn parameters() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["command"],
        "properties": {
            "command": {
                "type": "string",
                "enum": ["status", "log", "branch", "checkout", "diff", "stash", "remote", "worktree"],
                "description": "What to do.",
            },
            "subcommand": {
                "type": "string", "enum": ["list", "create", "remove"],
                "description": "For worktree (default list), and list or create for branch and stash.",
            },
            "name": text("branch create: the new branch; worktree create: the worktree's name and its branch."),
            "path": {
                "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                "description": "status, log, diff: only what is beneath this path; worktree: its folder in the \
                    workspace, .worktrees/NAME when left out.",
            },
            "ref": text("checkout: branch, tag or commit to switch to; log: where to start."),
            "force": {
                "type": "boolean", "default": false,
                "description": "checkout: give up local changes; worktree remove: also with changes in it.",
            },
            "target": text("diff: a commit or branch to compare with, a..b or a...b."),
            "max_count": {"type": "integer", "minimum": 1, "description": "Deprecated: use limit."},
            "limit": {
                "type": "integer", "minimum": 1,
                "description": format!(
                    "Most items to return; {LOG_LIMIT_DEFAULT} for log, else {LIST_LIMIT_DEFAULT}; lowered to \
                    {LIST_LIMIT_MAX} when larger."
                ),
            },
            "cursor": cursor_schema(),
            "byte_offset": {
                "type": "integer", "minimum": 0, "default": 0,
                "description": "diff: where to go on, the next_byte_offset of the page before.",
            },
            "max_bytes": {
                "type": "integer", "minimum": DIFF_BYTES_MIN, "default": DIFF_BYTES_DEFAULT,
                "description": format!("diff: most bytes to return; lowered to {DIFF_BYTES_MAX} when larger."),
            },
            "message": text("stash: a note to find it by."),
            "include_untracked": {
                "type": "boolean", "default": false,
                "description": "stash: put untracked files away too.",
            },
            "remote_name": text("remote: only this one."),
            "new_branch": {
                "type": "boolean", "default": true,
                "description": "worktree create: make a new branch; else the branch of this name is used.",
            },
            "base": {
                "type": "string", "default": "HEAD",
                "description": "branch and worktree create: where the new branch starts.",
            },
        },
    })
}

impl Tool for GitTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        match Parameters::from_arguments(arguments) {
            Ok(parameters) if parameters.is_read() => {
                let output_kind = if parameters.command == Command::Diff { OutputKind::Diff } else { OutputKind::Text };
                Capabilities { output_kind, ..Capabilities::read_only_paginated(PARALLELISM) }
            }
            _ => Capabilities { cancellation_safe: true, ..Capabilities::conservative() },
        }
    }

    /// One line like a command line without the word git: `status`, `checkout --force main`,
    /// `worktree create NAME PATH BASE`. Flags come before values, and a value that is no plain word is quoted, so
    /// that no value can pass for something else.
    fn subject(&self, arguments: &Value) -> Subject {
        Subject::Text(match Parameters::from_arguments(arguments) {
            Ok(parameters) => parameters.line(),
            Err(_) => arguments.to_string(),
        })
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { self.answer(ctx, &arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

impl GitTool {
    async fn answer(&self, ctx: &ToolContext, arguments: &Value) -> Step<ToolOutcome> {
        let parameters = Parameters::from_arguments(arguments)?;
        let git = Git::new(ctx, &self.environment, &parameters)?;
        if ctx.workspace.is_sandboxed_read_only() && !parameters.is_read() {
            return Err(reach::fault(&FileError::Sandboxed { path: ".git".to_owned() }));
        }
        let answer = carry_out(&git, &parameters, arguments).await;
        // Somebody else's repository is used when the user's own configuration says so, and not otherwise.
        let answer = match answer {
            Err(ended) => match git.trusting(&ended).await {
                Ok(Some(trusting)) => carry_out(&trusting, &parameters, arguments).await,
                Ok(None) => Err(ended),
                Err(other) => Err(other),
            },
            done => done,
        };
        Ok(git.telling(answer.unwrap_or_else(|ended| *ended)))
    }
}

/// Does it, if there is a repository that may be used. A look is taken meanwhile and shown only then.
async fn carry_out(git: &Git<'_>, parameters: &Parameters, arguments: &Value) -> Step<ToolOutcome> {
    let find = RepositoryFolder::find(git);
    if !parameters.is_read() {
        find.await?;
        return act(git, parameters, arguments).await;
    }
    // Only these three see for themselves whose repository it is: the others would answer from anybody's.
    let sees_owner = matches!(parameters.command, Command::Status | Command::Log | Command::Diff);
    let plain = if sees_owner { RepositoryFolder::plain(git) } else { None };
    let (folder, answer) = match plain {
        Some(plain) => match act(git, parameters, arguments).await {
            Ok(answer) => (plain, answer),
            // What is wrong with the repository itself is said first.
            Err(ended) => return find.await.and(Err(ended)),
        },
        None => {
            let (folder, answer) = tokio::join!(find, act(git, parameters, arguments));
            (folder?, answer?)
        }
    };
    Ok(match parameters.command {
        Command::Status => answer.with("is_worktree", folder.is_linked()),
        _ => answer,
    })
}

async fn act(git: &Git<'_>, parameters: &Parameters, arguments: &Value) -> Step<ToolOutcome> {
    match (parameters.command, parameters.subcommand()) {
        (Command::Status, _) => status::show(git, parameters, arguments).await,
        (Command::Log, _) => log::show(git, parameters, arguments).await,
        (Command::Diff, _) => diff::show(git, parameters).await,
        (Command::Checkout, _) => checkout::switch(git, parameters).await,
        (Command::Remote, _) => remote::list(git, parameters, arguments).await,
        (Command::Branch, Subcommand::List) => branch::list(git, arguments).await,
        (Command::Branch, _) => branch::create(git, parameters).await,
        (Command::Stash, Subcommand::List) => stash::list(git, arguments).await,
        (Command::Stash, _) => stash::create(git, parameters).await,
        (Command::Worktree, Subcommand::List) => worktree::list(git, arguments).await,
        (Command::Worktree, Subcommand::Create) => worktree::create(git, parameters).await,
        (Command::Worktree, Subcommand::Remove) => worktree::remove(git, parameters).await,
    }
}

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;
