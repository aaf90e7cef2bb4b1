//! `git` with repositories that were made to do harm, or that somebody left in disorder.
#![expect(clippy::disallowed_methods, reason = "tests prepare real repositories")]

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use nix::sys::stat::Mode;
use nix::unistd::{Uid, User, mkfifo};
use serde_json::{Value, json};

use super::tests::{Repository, context_in, kind};
use crate::builtin::testing::call;
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::files::{FileError, FileStat, Files, FolderEntry, Links, OpenFile, Replacement};
use crate::effects::processes::system::SystemProcesses;
use crate::effects::processes::{CommandSpec, OutputSink, Processes as _, Stream};
use crate::outcome::ToolErrorKind;
use crate::workspace_path::WorkspacePath;

/// Every call of the tool that looks at something, and of those that change something and succeed here.
fn every_call() -> Vec<Value> {
    vec![
        json!({"command": "status"}),
        json!({"command": "log"}),
        json!({"command": "log", "path": "a.txt"}),
        json!({"command": "diff"}),
        json!({"command": "diff", "target": "HEAD~1"}),
        json!({"command": "branch"}),
        json!({"command": "stash"}),
        json!({"command": "remote"}),
        json!({"command": "worktree"}),
        json!({"command": "branch", "name": "made"}),
        json!({"command": "stash", "message": "away", "include_untracked": true}),
        json!({"command": "checkout", "ref": "side"}),
        json!({"command": "worktree", "subcommand": "create", "name": "tree"}),
        json!({"command": "worktree", "subcommand": "remove", "path": ".worktrees/tree", "force": true}),
    ]
}

impl Repository {
    /// With two commits, a second branch, local changes, and files whose times do not fit the index.
    fn lively() -> Self {
        let repository = Self::new();
        repository.git(&["branch", "side"]);
        repository.commit("a.txt", "two\n");
        repository.write("a.txt", "three\n");
        repository.write("new.txt", "new\n");
        // As if just unpacked: git has to look into it to see that nothing changed.
        repository.write("b.txt", "x\ny\n");
        repository
    }

    /// A command line that leaves a trace of this name when it runs.
    fn canary(&self, name: &str) -> String {
        let folder = self.folder.path().join("traces");
        fs::create_dir_all(&folder).unwrap();
        format!("touch '{}/{name}'; cat", folder.display())
    }

    /// The file of a program that is this command line.
    fn script(&self, line: &str) -> String {
        let file = self.folder.path().join("script");
        fs::write(&file, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file.display().to_string()
    }

    /// The names of the canaries that ran.
    fn traces(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder.path().join("traces")) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn set(&self, key: &str, value: &str) {
        self.git(&["config", key, value]);
    }

    /// Gives the last commit a signature, which whoever shows it has to have checked by a program.
    fn sign(&self) {
        let signature = "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n";
        let signed = self.git(&["cat-file", "commit", "HEAD"]).replacen("\n\n", signature, 1);
        let file = self.folder.path().join("signed");
        fs::write(&file, signed).unwrap();
        let id = self.git(&["hash-object", "-t", "commit", "-w", file.to_str().unwrap()]);
        self.git(&["update-ref", "HEAD", id.trim()]);
    }
}

/// Keys that name a program, but for filters.
const PROGRAMS: [&str; 18] = [
    "core.fsmonitor",
    "core.pager",
    "pager.log",
    "pager.diff",
    "pager.status",
    "core.editor",
    "sequence.editor",
    "core.sshCommand",
    "core.askPass",
    "core.gitProxy",
    "credential.helper",
    "diff.external",
    "diff.evil.command",
    "diff.evil.textconv",
    "merge.evil.driver",
    "gpg.program",
    "interactive.diffFilter",
    "alias.status",
];
/// Keys of filters, odd names too.
const FILTERS: [&str; 4] =
    ["filter.evil.clean", "filter.evil.smudge", "filter.process.process", "filter.a=b \"c\".clean"];

// Cases C087, C089: what the repository's configuration names does not run, whatever the call is.
#[tokio::test]
async fn no_program_of_the_configuration_runs() {
    for (keys, attributes, proof) in [
        (
            PROGRAMS.as_slice(),
            "*.txt diff=evil merge=evil\n",
            ["core.fsmonitor", "diff.evil.command", "gpg.program"].as_slice(),
        ),
        (
            FILTERS.as_slice(),
            "a.txt filter=evil\nb.txt filter=process\n",
            ["filter.evil.clean", "filter.process.process"].as_slice(),
        ),
    ] {
        let repository = Repository::lively();
        repository.sign();
        for key in keys {
            let canary = repository.canary(key);
            let value = match key.split('.').next() {
                Some("alias") => format!("!{canary}"),
                // No shell reads this one: it is a file.
                Some("gpg") => repository.script(&canary),
                _ => canary,
            };
            repository.set(key, &value);
        }
        repository.set("log.showSignature", "true");
        // Outside the working tree, so that changes are not refused for it.
        fs::write(repository.root.join(".git/info/attributes"), attributes).unwrap();
        for arguments in every_call() {
            let outcome = repository.run(arguments.clone()).await;
            assert_eq!(repository.traces(), Vec::<String>::new(), "{arguments}");
            // Files with a filter are not written without it.
            let refused = kind(&outcome) == "unsupported" || arguments["subcommand"] == "remove";
            assert!(outcome.is_success() || (refused && keys == FILTERS), "{arguments}: {}", outcome.output);
        }
        // Plain git does run them, or this would prove nothing.
        repository.write("a.txt", "four\n");
        for command in [&["status"][..], &["diff"], &["log", "--all"]] {
            repository.plain(&repository.root, command).output().unwrap();
        }
        for key in proof {
            assert!(repository.traces().iter().any(|trace| trace == key), "{key}: {:?}", repository.traces());
        }
    }
}

#[tokio::test]
async fn no_hook_runs() {
    let repository = Repository::lively();
    let hooks = repository.root.join("own-hooks");
    for folder in [repository.root.join(".git/hooks"), hooks.clone()] {
        fs::create_dir_all(&folder).unwrap();
        for name in ["post-checkout", "post-index-change", "reference-transaction", "pre-commit", "fsmonitor-watchman"]
        {
            let hook = folder.join(name);
            fs::write(&hook, format!("#!/bin/sh\n{}\n", repository.canary(name))).unwrap();
            fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }
    // Plain git does run them, or this would prove nothing.
    repository.plain(&repository.root, &["checkout", "-q", "-f", "side"]).output().unwrap();
    assert!(repository.traces().contains(&"post-checkout".to_owned()));
    fs::remove_dir_all(repository.folder.path().join("traces")).unwrap();
    fs::create_dir(repository.folder.path().join("traces")).unwrap();
    repository
        .plain(&repository.root, &["-c", "core.hooksPath=/dev/null", "checkout", "-qf", "main"])
        .output()
        .unwrap();
    for path in [None, Some("own-hooks")] {
        if let Some(path) = path {
            repository.set("core.hooksPath", path);
        }
        for arguments in every_call() {
            if path.is_none() || arguments["command"] != "branch" {
                repository.run(arguments.clone()).await;
            }
            assert_eq!(repository.traces(), Vec::<String>::new(), "{arguments}");
        }
    }
}

#[tokio::test]
async fn filtered_files_are_looked_at_without_the_filter_and_not_written() {
    let repository = Repository::lively();
    repository.write(".gitattributes", "b.txt filter=lfs\n");
    let diff = repository.good(json!({"command": "diff"})).await;
    assert!(diff.output.contains("+three"));
    for arguments in [
        json!({"command": "checkout", "ref": "side", "force": true}),
        json!({"command": "stash", "subcommand": "create"}),
        json!({"command": "worktree", "subcommand": "create", "name": "x"}),
    ] {
        let outcome = repository.bad(arguments).await;
        assert_eq!(kind(&outcome), "unsupported");
        assert!(outcome.output.contains("b.txt has a content filter"), "{}", outcome.output);
    }
}

// Case C095: an option in the place of a name writes no file, also when it gets as far as git.
#[tokio::test]
async fn an_argument_that_is_an_option_does_nothing() {
    let repository = Repository::lively();
    for arguments in [
        json!({"command": "log", "ref": "--output=../inj.txt"}),
        json!({"command": "diff", "target": "--output=../inj.txt"}),
        json!({"command": "diff", "target": "HEAD..--output=../inj.txt"}),
        json!({"command": "checkout", "ref": "-f"}),
        json!({"command": "branch", "name": "-D", "base": "side"}),
        json!({"command": "branch", "name": "x", "base": "--force"}),
        json!({"command": "worktree", "subcommand": "create", "name": "--lock"}),
    ] {
        let outcome = repository.bad(arguments).await;
        assert_eq!(kind(&outcome), "invalid_argument");
    }
    for path in ["--output=../inj.txt", "-f", ":(exclude)a.txt", ":/"] {
        for command in ["status", "log", "diff"] {
            let outcome = repository.run(json!({"command": command, "path": path})).await;
            assert!(!outcome.output.contains("a.txt"), "{command} {path}: {}", outcome.output);
        }
    }
    assert!(!repository.folder.path().join("inj.txt").exists());
}

// Case C091: nothing asks for a password, for nothing reaches a server: not even for objects that are missing.
#[tokio::test]
async fn nothing_reaches_the_network() {
    let repository = Repository::lively();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    server.set_nonblocking(true).unwrap();
    let blob = repository.git(&["rev-parse", "HEAD:a.txt"]);
    let (folder, name) = blob.trim().split_at(2);
    fs::remove_file(repository.root.join(".git/objects").join(folder).join(name)).unwrap();
    let address = server.local_addr().unwrap();
    for url in [
        format!("http://{address}/x.git"),
        format!("ext::sh -c {}", repository.canary("ext").replace(' ', "% ")),
        "../up".into(),
    ] {
        repository.set("remote.origin.url", &url);
        repository.set("remote.origin.promisor", "true");
        repository.set("remote.origin.uploadpack", &repository.canary("uploadpack"));
        repository.set("protocol.ext.allow", "always");
        repository.set("protocol.allow", "always");
        let outcome = repository.bad(json!({"command": "diff", "target": "HEAD"})).await;
        assert_eq!(repository.traces(), Vec::<String>::new(), "{url}");
        assert!(server.accept().is_err(), "{url}: {}", outcome.output);
    }
}

#[tokio::test]
async fn a_working_tree_elsewhere_does_not_count() {
    let repository = Repository::new();
    let elsewhere = repository.folder.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("a.txt"), "secret\n").unwrap();
    repository.set("core.worktree", &elsewhere.display().to_string());
    let diff = repository.good(json!({"command": "diff"})).await;
    assert_eq!(diff.metadata["changed_files"], 0, "{}", diff.output);
    repository.good(json!({"command": "checkout", "ref": "main", "force": true})).await;
    assert_eq!(fs::read_to_string(elsewhere.join("a.txt")).unwrap(), "secret\n");
    // A folder that looks like a bare repository is none.
    let bare = Repository::none();
    bare.git(&["init", "-q", "--bare", "."]);
    let outcome = bare.bad(json!({"command": "status"})).await;
    assert_eq!(kind(&outcome), "unsupported", "{}", outcome.output);
}

/// Makes the repository of a folder lead elsewhere.
type Pointing<'a> = &'a dyn Fn(&std::path::Path);

#[tokio::test]
async fn a_repository_elsewhere_is_used_only_if_it_knows_the_workspace() {
    let private = Repository::new();
    let theirs = private.root.join(".git").display().to_string();
    private.git(&["worktree", "add", "-q", "../linked"]);
    let ways: [(&str, Pointing<'_>); 4] = [
        ("file", &|root| fs::write(root.join(".git"), format!("gitdir: {theirs}\n")).unwrap()),
        ("worktree", &|root| fs::write(root.join(".git"), format!("gitdir: {theirs}/worktrees/linked\n")).unwrap()),
        ("link", &|root| std::os::unix::fs::symlink(&theirs, root.join(".git")).unwrap()),
        ("commondir", &|root| {
            fs::create_dir(root.join(".git")).unwrap();
            fs::write(root.join(".git/HEAD"), "ref: refs/heads/main\n").unwrap();
            fs::write(root.join(".git/commondir"), format!("{theirs}\n")).unwrap();
        }),
    ];
    for (way, point) in ways {
        let pointing = Repository::none();
        point(&pointing.root);
        for arguments in every_call() {
            let outcome = pointing.bad(arguments.clone()).await;
            assert!(!outcome.output.contains("first"), "{way}: {arguments}");
            assert_eq!(kind(&outcome), "unsupported", "{way}: {arguments}: {}", outcome.output);
        }
    }
    assert_eq!(private.git(&["branch", "--list", "made", "tree"]), "");
    // A worktree and a submodule are known by their repositories.
    let linked = private.folder.path().join("linked");
    let outcome = call(&private.tool, &context_in(&linked), json!({"command": "status"})).await;
    assert_eq!(outcome.metadata.get("is_worktree"), Some(&json!(true)), "{}", outcome.output);
    let outer = Repository::new();
    outer.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &theirs, "inner"]);
    let outcome = call(&outer.tool, &context_in(&outer.root.join("inner")), json!({"command": "log"})).await;
    assert!(outcome.output.ends_with("first\n"), "{}", outcome.output);
}

// Case C092: a lock that is there is named, and stays.
#[tokio::test]
async fn a_lock_that_is_there_is_named_and_kept() {
    let repository = Repository::lively();
    repository.write(".git/index.lock", "");
    repository.good(json!({"command": "status"})).await;
    let outcome = repository.bad(json!({"command": "checkout", "ref": "side", "force": true})).await;
    assert_eq!((kind(&outcome).as_str(), &outcome.metadata["lock"]), ("transport", &json!(".git/index.lock")));
    assert!(outcome.output.contains(".git/index.lock is there"), "{}", outcome.output);
    assert!(repository.root.join(".git/index.lock").exists());
}

// Case C092: git is stopped with TERM first, so that it takes its lock away.
#[tokio::test]
async fn a_change_that_is_cancelled_half_way_leaves_no_lock() {
    let repository = Repository::new();
    repository.git(&["branch", "side"]);
    repository.commit("sub/file", "x\n");
    repository.git(&["checkout", "-q", "side"]);
    // Git opens this one while it holds the index, and nobody ever writes to it.
    fs::create_dir_all(repository.root.join("sub")).unwrap();
    mkfifo(&repository.root.join("sub/.gitattributes"), Mode::S_IRWXU).unwrap();
    let lock = repository.root.join(".git/index.lock");
    let half_way = async {
        while !lock.exists() {
            tokio::task::yield_now().await;
        }
        repository.ctx.cancel.cancel(CancelReason::Requested);
    };
    let (outcome, ()) = tokio::join!(repository.bad(json!({"command": "checkout", "ref": "main"})), half_way);
    assert!(matches!(outcome.error, Some(ToolErrorKind::Cancelled { .. })), "{}", outcome.output);
    assert!(!lock.exists());
    assert!(!outcome.output.contains("index.lock"), "{}", outcome.output);
    assert_eq!(repository.git(&["symbolic-ref", "--short", "HEAD"]), "side\n");
}

// Case C097: somebody else's repository is named, and used only when the person's own configuration says so.
#[tokio::test]
async fn a_repository_of_somebody_else_is_refused_by_name() {
    if !Uid::effective().is_root() {
        return;
    }
    let repository = Repository::lively();
    repository.set("filter.evil.clean", &repository.canary("clean"));
    fs::write(repository.root.join(".git/info/attributes"), "* filter=evil\n").unwrap();
    let nobody = User::from_name("nobody").unwrap().unwrap();
    for path in [repository.root.clone(), repository.root.join(".git")] {
        std::os::unix::fs::chown(path, Some(nobody.uid.as_raw()), None).unwrap();
    }
    let home = repository.folder.path().join("home/.gitconfig");
    for command in ["status", "log", "diff", "branch", "remote", "stash", "worktree"] {
        let outcome = repository.bad(json!({ "command": command })).await;
        assert_eq!(kind(&outcome), "unsupported", "{command}: {}", outcome.output);
        let root = repository.root.display().to_string();
        assert!(outcome.output.contains(&root) && outcome.output.contains("another user"), "{}", outcome.output);
        assert!(!home.exists(), "{command}");
    }
    fs::write(&home, "[safe]\n\tdirectory = /elsewhere\n").unwrap();
    repository.bad(json!({"command": "status"})).await;
    for trusted in
        [repository.root.display().to_string(), "*".into(), format!("{}/*", repository.folder.path().display())]
    {
        let text = format!("[safe]\n\tdirectory = {trusted}\n");
        fs::write(&home, &text).unwrap();
        for command in ["status", "diff", "log"] {
            repository.good(json!({ "command": command })).await;
        }
        assert_eq!(fs::read_to_string(&home).unwrap(), text);
    }
    assert_eq!(repository.traces(), Vec::<String>::new(), "the filter of a trusted repository ran");
}

/// The files of a workspace whose policy denies one name.
struct Guarded(Arc<dyn Files>);

impl Files for Guarded {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.0.canonical(path)
    }
    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.0.stat(path, links)
    }
    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.may_read(path)?;
        self.0.open(path)
    }
    fn may_read(&self, path: &WorkspacePath) -> Result<(), FileError> {
        match path.to_string().ends_with(".env") {
            true => Err(FileError::Denied { path: path.to_string(), rule: "deny[0] read(**/*.env)".into() }),
            false => Ok(()),
        }
    }
    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.0.list(path)
    }
    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.0.replace(path, replacement)
    }
}

#[tokio::test]
async fn a_diff_leaves_out_what_may_not_be_read() {
    let mut repository = Repository::new();
    let lines = "same\n".repeat(20);
    repository.commit("prod[1].env", &format!("{lines}key=zz9\n"));
    repository.write("prod[1].env", &format!("{lines}key=zz8\n"));
    repository.write("a.txt", "two\n");
    repository.ctx.workspace =
        repository.ctx.workspace.with_files(Arc::new(Guarded(repository.ctx.workspace.files().clone())));
    let diff = repository.good(json!({"command": "diff"})).await;
    assert!(diff.output.contains("+two") && !diff.output.contains("zz"), "{}", diff.output);
    assert_eq!(diff.metadata["withheld"], json!(["prod[1].env"]));
    // Nor under another name.
    repository.git(&["mv", "-f", "prod[1].env", "plain.txt"]);
    let diff = repository.good(json!({"command": "diff"})).await;
    assert!(diff.output.contains("+two") && !diff.output.contains("zz"), "{}", diff.output);
    assert_eq!(diff.metadata["withheld"], json!(["prod[1].env", "plain.txt"]));
    for target in ["HEAD:prod[1].env", "HEAD^{tree}"] {
        repository.bad(json!({"command": "diff", "target": target})).await;
    }
}

/// Takes nothing in.
struct Deaf;

impl OutputSink for Deaf {
    fn push(&self, _stream: Stream, _bytes: &[u8]) {}
}

// Case C089: the output has an end without anybody at a terminal, and plain git under the same port has too.
#[tokio::test]
async fn a_fancy_pager_is_not_waited_for() {
    let repository = Repository::lively();
    repository.set("core.pager", "less -+F");
    repository.set("pager.branch", "sleep 600");
    repository.good(json!({"command": "log"})).await;
    repository.good(json!({"command": "branch"})).await;
    let plain = CommandSpec {
        program: "git".into(),
        arguments: vec!["log".into()],
        environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        folder: repository.root.clone(),
        stdin: None,
        grace: std::time::Duration::from_secs(1),
        drain: std::time::Duration::from_secs(1),
        confinement: None,
    };
    SystemProcesses.run(plain, Arc::new(Deaf), Cancellation::new()).await.unwrap();
}
