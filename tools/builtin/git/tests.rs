//! `git` with real repositories.
#![expect(clippy::disallowed_methods, reason = "tests prepare real repositories")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::GitTool;
use crate::builtin::testing::{call, context_over};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::effects::processes::system::SystemProcesses;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::Tool as _;
use crate::workspace::{WorkspaceCapabilities, local};

/// A repository in a folder of its own.
pub(super) struct Repository {
    /// Holds everything; the home of the person is `home` in it.
    pub(super) folder: TempDir,
    /// The workspace.
    pub(super) root: PathBuf,
    pub(super) tool: GitTool,
    pub(super) ctx: ToolContext,
}

impl Repository {
    /// Without any commit.
    pub(super) fn empty() -> Self {
        let repository = Self::none();
        repository.git(&["init", "-q", "-b", "main"]);
        repository.git(&["config", "user.name", "Tester"]);
        repository.git(&["config", "user.email", "tester@example.org"]);
        repository
    }

    /// With one commit of `a.txt` and `b.txt`.
    pub(super) fn new() -> Self {
        let repository = Self::empty();
        repository.write("a.txt", "one\n");
        repository.write("b.txt", "x\ny\n");
        repository.git(&["add", "."]);
        repository.git(&["commit", "-qm", "first"]);
        repository
    }

    /// A workspace that is no repository.
    pub(super) fn none() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("work");
        fs::create_dir(&root).unwrap();
        fs::create_dir(folder.path().join("home")).unwrap();
        let home = folder.path().join("home").display().to_string();
        let host = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", &home)];
        let tool = GitTool::new(BTreeMap::from(host.map(|(name, value)| (name.to_owned(), value.to_owned()))));
        let ctx = context_in(&root);
        Self { folder, root, tool, ctx }
    }

    /// Plain git, to prepare and to compare; returns what it printed.
    pub(super) fn git(&self, arguments: &[&str]) -> String {
        let out = self.plain(&self.root, arguments).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    pub(super) fn plain(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.args(arguments).current_dir(folder).env("HOME", self.folder.path().join("home"));
        command.env("GIT_CONFIG_NOSYSTEM", "1").stdin(Stdio::null());
        command
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn commit(&self, name: &str, text: &str) {
        self.write(name, text);
        self.git(&["add", "."]);
        self.git(&["commit", "-qm", &format!("change {name}")]);
    }

    pub(super) async fn run(&self, arguments: Value) -> ToolOutcome {
        call(&self.tool, &self.ctx, arguments).await
    }

    pub(super) async fn good(&self, arguments: Value) -> ToolOutcome {
        let outcome = self.run(arguments.clone()).await;
        assert!(outcome.is_success(), "{arguments}: {}", outcome.output);
        outcome
    }

    pub(super) async fn bad(&self, arguments: Value) -> ToolOutcome {
        let outcome = self.run(arguments.clone()).await;
        assert!(!outcome.is_success(), "{arguments}: {}", outcome.output);
        outcome
    }
}

pub(super) fn context_in(root: &Path) -> ToolContext {
    context_over(local::open(root, WorkspaceCapabilities::local_default(), Some(Arc::new(SystemProcesses))).unwrap())
}

pub(super) fn kind(outcome: &ToolOutcome) -> String {
    serde_json::to_value(&outcome.error).unwrap()["type"].as_str().unwrap_or("none").to_owned()
}

// Case C093: names come back raw, and a quoted one reads back.
#[tokio::test]
async fn status_tells_the_branch_and_raw_names() {
    let repository = Repository::new();
    let clean = repository.good(json!({"command": "status"})).await;
    assert_eq!((&clean.metadata["branch"], &clean.metadata["is_dirty"]), (&json!("main"), &json!(false)));
    assert_eq!(clean.metadata["is_worktree"], json!(false));
    assert_eq!(clean.metadata["containment"], json!({"level": "group", "survivors": []}));
    assert_eq!(clean.metadata["sandbox"], json!({"files": "off", "network": "on"}));
    repository.write("ä.txt", "");
    repository.write("sp ace.txt", "");
    repository.write("-rf", "");
    fs::write(repository.root.join(OsStr::from_bytes(b"bad\xff\n")), "").unwrap();
    repository.git(&["mv", "b.txt", "new\tname"]);
    repository.write("a.txt", "two\n");
    let status = repository.good(json!({"command": "status"})).await;
    let lines: Vec<&str> = status.output.lines().skip(1).collect();
    let expected =
        [".M a.txt", "R. b.txt -> \"new\\tname\"", "?? -rf", "?? \"bad\\377\\n\"", "?? sp ace.txt", "?? ä.txt"];
    assert_eq!(lines, expected);
    assert_eq!((&status.metadata["dirty_count"], &status.metadata["is_dirty"]), (&json!(6), &json!(true)));
    let page = repository.good(json!({"command": "status", "limit": 2, "cursor": "2"})).await;
    assert_eq!(page.metadata["page"]["next_cursor"], "4");
    assert!(page.output.contains("?? -rf\n") && !page.output.contains("a.txt"));
    let below = repository.good(json!({"command": "status", "path": "sp ace.txt"})).await;
    assert_eq!(below.metadata["dirty_count"], 1);
    repository.git(&["checkout", "-q", "--detach"]);
    let detached = repository.good(json!({"command": "status"})).await;
    assert_eq!((&detached.metadata["branch"], &detached.metadata["detached"]), (&Value::Null, &json!(true)));
}

#[tokio::test]
async fn a_repository_without_a_commit_is_no_error() {
    let repository = Repository::empty();
    let status = repository.good(json!({"command": "status"})).await;
    assert_eq!((&status.metadata["branch"], &status.metadata["head"]), (&json!("main"), &Value::Null));
    let log = repository.good(json!({"command": "log"})).await;
    assert_eq!((&log.metadata["count"], &log.metadata["page"]["total_items"]), (&json!(0), &json!(0)));
    repository.write("a.txt", "one\n");
    repository.git(&["add", "."]);
    let diff = repository.good(json!({"command": "diff"})).await;
    assert!(diff.output.contains("+one"), "{}", diff.output);
    for list in ["branch", "stash", "remote", "worktree"] {
        repository.good(json!({ "command": list })).await;
    }
    for changing in [
        json!({"command": "branch", "name": "x"}),
        json!({"command": "stash", "subcommand": "create"}),
        json!({"command": "log", "ref": "main"}),
        json!({"command": "checkout", "ref": "nope"}),
    ] {
        assert_eq!(kind(&repository.bad(changing).await), "invalid_argument");
    }
}

#[tokio::test]
async fn what_is_no_repository_is_said() {
    let none = Repository::none();
    for command in ["status", "log", "diff", "branch", "stash", "remote", "worktree"] {
        let outcome = none.bad(json!({ "command": command })).await;
        assert_eq!(kind(&outcome), "unsupported", "{command}: {}", outcome.output);
        assert!(outcome.output.contains("is no git repository"), "{command}: {}", outcome.output);
    }
    // A repository above the workspace is not looked for.
    let above = Repository::new();
    fs::create_dir(above.root.join("sub")).unwrap();
    let below = context_in(&above.root.join("sub"));
    let outcome = call(&above.tool, &below, json!({"command": "status"})).await;
    assert!(outcome.output.contains("is no git repository"), "{}", outcome.output);
}

#[tokio::test]
async fn without_git_the_error_says_so() {
    let repository = Repository::new();
    let tool = GitTool::new([("PATH".to_owned(), String::new())].into());
    let outcome = call(&tool, &repository.ctx, json!({"command": "status"})).await;
    assert_eq!(kind(&outcome), "unsupported");
    assert!(outcome.output.contains("no git in the PATH"), "{}", outcome.output);
    let mut none = WorkspaceCapabilities::local_default();
    none.git = false;
    let ctx = context_over(local::open(&repository.root, none, Some(Arc::new(SystemProcesses))).unwrap());
    let outcome = call(&repository.tool, &ctx, json!({"command": "status"})).await;
    assert_eq!(kind(&outcome), "unsupported");
}

/// Makes so many commits fast.
fn fill(repository: &Repository, commits: usize) {
    use std::io::Write as _;
    let mut import = String::new();
    for at in 1..=commits {
        let subject = format!("commit {at}");
        import.push_str(&format!(
            "commit refs/heads/main\ncommitter T <t@e> {} +0000\ndata {}\n{subject}\n",
            1_700_000_000 + at,
            subject.len()
        ));
    }
    let mut plain = repository.plain(&repository.root, &["fast-import", "--quiet", "--force"]);
    let mut child = plain.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(import.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn pages_of_the_log_hold_every_commit_once() {
    let repository = Repository::empty();
    fill(&repository, 3000);
    let (mut got, mut cursor, mut pages) = (Vec::new(), json!(""), 0);
    loop {
        let page = repository.good(json!({"command": "log", "limit": 200, "cursor": cursor})).await;
        let count = page.metadata["count"].as_u64().unwrap() as usize;
        got.extend(page.output.lines().take(count).map(|line| line.rsplit_once(": ").unwrap().1.to_owned()));
        pages += 1;
        cursor = page.metadata["page"]["next_cursor"].clone();
        let total = &page.metadata["page"]["total_items"];
        assert_eq!(*total, if cursor.is_null() { json!(3000) } else { Value::Null });
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(pages, 15);
    assert_eq!(got, (1..=3000).rev().map(|at| format!("commit {at}")).collect::<Vec<_>>());
    let behind = repository.good(json!({"command": "log", "cursor": "3500"})).await;
    assert_eq!((&behind.metadata["count"], &behind.metadata["page"]["total_items"]), (&json!(0), &Value::Null));
    let first = repository.good(json!({"command": "log"})).await;
    assert_eq!((&first.metadata["count"], &first.metadata["page"]["applied_limit"]), (&json!(10), &json!(10)));
}

#[tokio::test]
async fn the_log_is_scanned_to_its_cap_and_no_further() {
    let repository = Repository::empty();
    fill(&repository, 5001);
    let last = repository.good(json!({"command": "log", "limit": 200, "cursor": "4990"})).await;
    assert_eq!(last.metadata["count"], 10);
    let page = &last.metadata["page"];
    assert_eq!((&page["truncated"], &page["next_cursor"]), (&json!(true), &Value::Null));
    assert_eq!(kind(&repository.bad(json!({"command": "log", "cursor": "5000"})).await), "invalid_argument");
}

#[tokio::test]
async fn the_log_starts_at_a_ref_and_keeps_to_a_path() {
    let repository = Repository::new();
    repository.commit("c.txt", "c\n");
    let all = repository.good(json!({"command": "log"})).await;
    assert!(all.output.contains(": change c.txt\n") && all.output.contains("Tester: first\n"), "{}", all.output);
    let first = repository.good(json!({"command": "log", "ref": "HEAD~1"})).await;
    assert_eq!(first.metadata["count"], 1);
    let below = repository.good(json!({"command": "log", "path": "c.txt"})).await;
    assert_eq!(below.metadata["count"], 1);
    // A path is no pattern, and an unknown one no error.
    assert_eq!(repository.good(json!({"command": "log", "path": "*.txt"})).await.metadata["count"], 0);
    let unknown = repository.bad(json!({"command": "log", "ref": "nope"})).await;
    assert_eq!(kind(&unknown), "invalid_argument");
    assert!(unknown.output.contains("nope") && unknown.output.contains("branch lists them"), "{}", unknown.output);
}

#[tokio::test]
async fn pages_of_a_diff_joined_are_the_whole() {
    let repository = Repository::new();
    repository.write("a.txt", &"zwölf Boxkämpfer 中文 😀\n".repeat(60));
    fs::write(repository.root.join("b.txt"), b"x\nlatin \xe4\n").unwrap();
    let expected =
        String::from_utf8_lossy(&repository.plain(&repository.root, &["diff", "HEAD"]).output().unwrap().stdout)
            .into_owned();
    for max_bytes in [256, 1000, 65536, 9_000_000] {
        let (mut text, mut offset) = (String::new(), json!(0));
        while !offset.is_null() {
            let page = repository.good(json!({"command": "diff", "byte_offset": offset, "max_bytes": max_bytes})).await;
            let facts = &page.metadata["page"];
            let returned = facts["returned_bytes"].as_u64().unwrap() as usize;
            assert!(returned > 0 && returned <= max_bytes);
            assert_eq!(facts["total_bytes"], json!(expected.len()));
            assert_eq!(facts["limit_clamped"], json!(max_bytes > 102_400));
            text.push_str(&page.output[..returned]);
            offset = facts["next_byte_offset"].clone();
        }
        assert_eq!(text, expected);
    }
    let inside = expected.find('ö').unwrap() + 1;
    for (arguments, words) in [
        (json!({"command": "diff", "byte_offset": inside}), "inside a character"),
        (json!({"command": "diff", "byte_offset": 9_999_999}), "behind the end"),
        (json!({"command": "diff", "target": "nope"}), "No such branch"),
        (json!({"command": "diff", "target": "HEAD^{tree}"}), "commit"),
    ] {
        let outcome = repository.bad(arguments).await;
        assert_eq!(kind(&outcome), "invalid_argument", "{}", outcome.output);
        assert!(outcome.output.contains(words), "{}", outcome.output);
    }
    let end = repository.good(json!({"command": "diff", "byte_offset": expected.len()})).await;
    assert_eq!(end.metadata["page"]["next_byte_offset"], Value::Null);
}

#[tokio::test]
async fn a_diff_has_targets_and_paths() {
    let repository = Repository::new();
    assert_eq!(repository.good(json!({"command": "diff"})).await.output, "Nothing differs.\n");
    repository.git(&["branch", "old"]);
    repository.commit("c.txt", "c\n");
    repository.write("a.txt", "two\n");
    let changed = |outcome: ToolOutcome| outcome.metadata["changed_files"].as_u64().unwrap();
    assert_eq!(changed(repository.good(json!({"command": "diff"})).await), 1);
    assert_eq!(changed(repository.good(json!({"command": "diff", "target": "old"})).await), 2);
    assert_eq!(changed(repository.good(json!({"command": "diff", "target": "old..main"})).await), 1);
    assert_eq!(changed(repository.good(json!({"command": "diff", "target": "old..."})).await), 1);
    assert_eq!(changed(repository.good(json!({"command": "diff", "target": "old", "path": "a.txt"})).await), 1);
}

#[tokio::test]
async fn branches_are_listed_made_and_switched_to() {
    let repository = Repository::new();
    let made = repository.good(json!({"command": "branch", "name": "feature/x", "base": "main"})).await;
    assert_eq!((&made.metadata["branch"], &made.metadata["base"]), (&json!("feature/x"), &json!("main")));
    let again = repository.bad(json!({"command": "branch", "name": "feature/x"})).await;
    assert_eq!(kind(&again), "invalid_argument");
    assert_eq!(kind(&repository.bad(json!({"command": "branch", "name": "a..b"})).await), "invalid_argument");
    let list = repository.good(json!({"command": "branch"})).await;
    let names: Vec<&str> = list.output.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(names, ["feature/x", "*"]);
    assert_eq!(list.metadata["current"], "main");
    let switched = repository.good(json!({"command": "checkout", "ref": "feature/x"})).await;
    assert_eq!((&switched.metadata["branch"], &switched.metadata["detached"]), (&json!("feature/x"), &json!(false)));
    repository.commit("a.txt", "theirs\n");
    let detached = repository.good(json!({"command": "checkout", "ref": "HEAD~1"})).await;
    assert_eq!((&detached.metadata["branch"], &detached.metadata["detached"]), (&Value::Null, &json!(true)));
    repository.write("a.txt", "mine\n");
    let refused = repository.bad(json!({"command": "checkout", "ref": "feature/x"})).await;
    assert_eq!(kind(&refused), "invalid_argument");
    assert!(refused.output.contains("a.txt"), "{}", refused.output);
    assert_eq!(fs::read_to_string(repository.root.join("a.txt")).unwrap(), "mine\n");
    repository.good(json!({"command": "checkout", "ref": "feature/x", "force": true})).await;
    assert_eq!(fs::read_to_string(repository.root.join("a.txt")).unwrap(), "theirs\n");
    // A path is never taken for a ref.
    assert_eq!(kind(&repository.bad(json!({"command": "checkout", "ref": "a.txt"})).await), "invalid_argument");
    assert_eq!(kind(&repository.bad(json!({"command": "checkout"})).await), "invalid_argument");
}

#[tokio::test]
async fn changes_are_put_away_and_listed() {
    let repository = Repository::new();
    let nothing = repository.good(json!({"command": "stash", "subcommand": "create"})).await;
    assert_eq!(nothing.metadata["created"], json!(false));
    repository.write("a.txt", "mine\n");
    repository.write("new.txt", "new\n");
    let made = repository.good(json!({"command": "stash", "message": "--half done", "include_untracked": true})).await;
    assert_eq!(made.metadata["created"], json!(true));
    assert!(!repository.root.join("new.txt").exists());
    assert_eq!(repository.git(&["log", "-1", "--format=%an", "stash@{0}"]), "Tester\n");
    let list = repository.good(json!({"command": "stash"})).await;
    assert_eq!(list.metadata["count"], 1);
    assert!(list.output.starts_with("stash@{0} ") && list.output.contains("--half done"), "{}", list.output);
}

#[tokio::test]
async fn worktrees_stay_inside_the_workspace() {
    let repository = Repository::new();
    let made = repository.good(json!({"command": "worktree", "subcommand": "create", "name": "side"})).await;
    assert_eq!(made.metadata["path"], ".worktrees/side");
    let list = repository.good(json!({"command": "worktree"})).await;
    let lines: Vec<&str> = list.output.lines().collect();
    assert!(lines[0].starts_with(". ") && lines[1].starts_with(".worktrees/side "), "{lines:?}");
    assert!(lines[0].ends_with(" main") && lines[1].ends_with(" side"), "{lines:?}");
    let side = context_in(&repository.root.join(".worktrees/side"));
    let status = call(&repository.tool, &side, json!({"command": "status"})).await;
    assert_eq!((&status.metadata["branch"], &status.metadata["is_worktree"]), (&json!("side"), &json!(true)));
    repository.write(".worktrees/side/new.txt", "x");
    let dirty = repository.bad(json!({"command": "worktree", "subcommand": "remove", "path": ".worktrees/side"})).await;
    assert!(dirty.output.contains("force"), "{}", dirty.output);
    let remove = json!({"command": "worktree", "subcommand": "remove", "path": ".worktrees/side", "force": true});
    repository.good(remove).await;
    assert!(!repository.root.join(".worktrees/side").exists());
    let again =
        json!({"command": "worktree", "subcommand": "create", "name": "side", "path": "w", "new_branch": false});
    repository.good(again).await;
    for path in ["../out", ".git/x", ".", "w/../.GIT/x"] {
        let outside = json!({"command": "worktree", "subcommand": "create", "name": "n", "path": path});
        assert_eq!(kind(&repository.bad(outside).await), "invalid_argument", "{path}");
    }
    std::os::unix::fs::symlink(repository.folder.path(), repository.root.join("link")).unwrap();
    let through = json!({"command": "worktree", "subcommand": "create", "name": "n", "path": "link/x"});
    assert_eq!(kind(&repository.bad(through).await), "invalid_argument");
    let none = json!({"command": "worktree", "subcommand": "remove", "path": "nothing"});
    assert_eq!(kind(&repository.bad(none).await), "invalid_argument");
}

#[tokio::test]
async fn remotes_are_listed_without_passwords() {
    let repository = Repository::new();
    repository.git(&["remote", "add", "origin", "https://me:zz9@example.org/x.git"]);
    repository.git(&["remote", "add", "other.dot", "git@example.org:y.git"]);
    repository.git(&["remote", "set-url", "--push", "origin", "https://example.org/push.git"]);
    let list = repository.good(json!({"command": "remote"})).await;
    let expected =
        "origin https://example.org/x.git (push: https://example.org/push.git)\nother.dot git@example.org:y.git\n";
    assert_eq!(list.output, expected);
    let one = repository.good(json!({"command": "remote", "remote_name": "other.dot"})).await;
    assert_eq!(one.metadata["remotes"], json!(["other.dot"]));
    assert_eq!(kind(&repository.bad(json!({"command": "remote", "remote_name": "nope"})).await), "invalid_argument");
}

#[tokio::test]
async fn a_cancelled_call_runs_nothing() {
    let repository = Repository::new();
    repository.ctx.cancel.cancel(CancelReason::Requested);
    let outcome = repository.bad(json!({"command": "checkout", "ref": "main"})).await;
    assert!(matches!(outcome.error, Some(ToolErrorKind::Cancelled { .. })));
}

#[test]
fn reads_run_beside_each_other_and_changes_do_not() {
    let tool = GitTool::new(BTreeMap::new());
    for read in ["status", "log", "diff", "remote", "branch", "stash", "worktree"] {
        let capabilities = tool.capabilities(&json!({ "command": read }));
        assert!(capabilities.allows_parallel_batch() && capabilities.max_parallelism == 8, "{read}");
    }
    for change in [json!({"command": "checkout", "ref": "x"}), json!({"command": "stash", "message": "x"}), json!({})] {
        assert!(!tool.capabilities(&change).read_only, "{change}");
    }
}
