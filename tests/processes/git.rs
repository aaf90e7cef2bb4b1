//! Git under the shim: a change that is ended half-way leaves the repository usable, and what the tool costs.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use toolwarden::prelude::*;

use crate::command::PATH;
use crate::matrix::{call, runtime};
use crate::trace;

/// Runs git itself, as the person who owns the repository.
pub(crate) fn git(folder: &Path, arguments: &[&str]) -> String {
    let identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"];
    let mut git = Command::new("git");
    git.args(identity).args(arguments).current_dir(folder).env_clear().env("PATH", PATH);
    let ran = git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").output().unwrap();
    assert!(ran.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}

/// How a change is ended half-way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Cancel,
    Drop,
    Deadline,
    Close,
    ShutDown,
}

// Case C092: however a call that changes the repository is ended half-way, no lock stays, the next change works.
pub(crate) fn a_change_ended_half_way_leaves_no_lock() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for end in [End::Cancel, End::Drop, End::Deadline, End::Close, End::ShutDown] {
        tokio.block_on(async {
            let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
            let root = folder.path();
            let pipe = half_changed(root);
            let runtime = runtime(&mark).await;
            let mut builder = runtime.session(root);
            if end == End::Deadline {
                builder = builder.tool_timeout(Duration::from_secs(1));
            }
            let session = builder.open().await.unwrap();
            let call = Box::pin(session.tool("git", json!({"command": "checkout", "ref": "main"})));
            let lock = root.join(".git/index.lock");
            let half_way = async {
                while !lock.exists() {
                    tokio::task::yield_now().await;
                }
                match end {
                    End::Cancel => drop(session.cancel(&CancelTarget::Everything, &CancelReason::Requested)),
                    End::Close => session.close().await,
                    End::ShutDown => runtime.shut_down().await,
                    End::Drop | End::Deadline => {}
                }
            };
            if end == End::Drop {
                tokio::select! { biased;
                    () = half_way => {}
                    result = call => panic!("it ended: {result:?}"),
                }
                trace::vanishes(|| lock.exists().then_some(()).into_iter().collect()).expect("the lock stays");
            } else {
                let (result, ()) = tokio::join!(call, half_way);
                let result: Arc<CallResult> = result.unwrap();
                assert!(!result.is_success(), "{end:?}: {}", result.output);
                assert!(!result.output.contains("index.lock"), "{end:?}: {}", result.output);
                assert!(result.metadata.get("lock").is_none_or(Value::is_null));
                assert_eq!(result.metadata["containment"], json!({"level": "sub_reaper", "survivors": []}), "{end:?}");
            }
            assert!(!lock.exists(), "{end:?}");
            assert_eq!(git(root, &["symbolic-ref", "--short", "HEAD"]), "side\n");
            std::fs::remove_file(&pipe).unwrap();
            git(root, &["checkout", "-q", "main"]);
            runtime.shut_down().await;
            trace::vanishes(|| trace::living(&mark)).expect("left behind");
        });
    }
}

// Case C092: git in the middle of a change while its host is killed: TERM comes first, so it takes its lock away.
pub(crate) fn a_killed_host_leaves_no_lock() {
    let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
    let root = folder.path();
    let pipe = half_changed(root);
    let mut host = Command::new(crate::command::SELF)
        .arg(crate::matrix::HOST)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let plan = json!({
        "folder": root, "mark": mark, "level": "sub_reaper", "lines": [], "background": false,
        "git": {"command": "checkout", "ref": "main"},
    });
    writeln!(host.stdin.take().unwrap(), "{plan}").unwrap();
    let lock = root.join(".git/index.lock");
    trace::vanishes(|| (!lock.exists()).then_some("no lock yet").into_iter().collect()).unwrap();
    let keepers = trace::children(host.id(), "toolwarden");
    let mut shims: BTreeSet<u32> = keepers.iter().flat_map(|keeper| trace::children(*keeper, "toolwarden")).collect();
    assert!(!shims.is_empty());
    shims.extend(&keepers);
    kill(Pid::from_raw(host.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    host.wait().unwrap();
    // A warden ends when nothing is left of its command.
    trace::vanishes(|| trace::alive(&shims)).expect("the shim is still there");
    assert!(!lock.exists());
    std::fs::remove_file(&pipe).unwrap();
    git(root, &["checkout", "-q", "main"]);
}

/// A repository on the branch `side` in which `checkout main` takes the index and then waits for ever: git opens the
/// pipe that is given back while it holds the index, and nobody ever writes to it.
fn half_changed(root: &Path) -> PathBuf {
    git(root, &["init", "-q"]);
    git(root, &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(root, &["branch", "side"]);
    std::fs::create_dir(root.join("sub")).unwrap();
    std::fs::write(root.join("sub/file"), "x\n").unwrap();
    git(root, &["add", "."]);
    git(root, &["commit", "-q", "-m", "second"]);
    git(root, &["checkout", "-q", "side"]);
    std::fs::create_dir_all(root.join("sub")).unwrap();
    let pipe = root.join("sub/.gitattributes");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    pipe
}

// Case C092: a hook that never returns, in a commit through `bash`: TERM comes first, so git takes its lock away.
pub(crate) fn a_hook_that_never_returns() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
        let root = folder.path();
        git(root, &["init", "-q"]);
        git(root, &["commit", "-q", "--allow-empty", "-m", "first"]);
        std::fs::write(root.join("file"), "x").unwrap();
        let hook = root.join(".git/hooks/pre-commit");
        std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
        std::fs::write(&hook, "#!/bin/sh\ntouch .git/began\nsleep 300\n").unwrap();
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let runtime = runtime(&mark).await;
        let session = runtime.session(root).open().await.unwrap();
        let line = "git add . && git -c user.name=a -c user.email=a@b commit -qam second";
        let result = call(&session, line, 2000).await.unwrap();
        assert!(
            matches!(result.error_kind, Some(ToolErrorKind::Timeout { duration_ms: 2000, .. })),
            "{}",
            result.output
        );
        assert!(root.join(".git/began").exists(), "{}", result.output);
        assert!(!root.join(".git/index.lock").exists());
        assert_eq!(trace::living(&mark), []);
        assert_eq!(git(root, &["log", "--format=%s"]), "first\n");
        git(root, &["commit", "-q", "--no-verify", "-m", "second"]);
        runtime.shut_down().await;
    });
}

/// How many files the repository of the figures has.
const FILES: usize = 20_000;
/// How often each is measured; what is short, ten times as often.
const ROUNDS: usize = 40;

/// `status`, `log` and `diff` of a large repository, by the tool and by git itself in turns: printed, not judged.
pub(crate) fn figure() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Spawned, so that what is measured wakes up where it runs.
    let measured = tokio.spawn(async {
        let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
        let root = folder.path();
        git(root, &["init", "-q"]);
        for n in 0..FILES {
            let below = root.join(format!("folder{}", n / 100));
            if n % 100 == 0 {
                std::fs::create_dir(&below).unwrap();
            }
            std::fs::write(below.join(format!("file{n}")), format!("text {n}\n").repeat(20)).unwrap();
            if n % 1000 == 999 {
                git(root, &["add", "."]);
                git(root, &["commit", "-q", "-m", &format!("commit {n}")]);
            }
        }
        // What differs: some files here and there.
        for n in (0..FILES).step_by(1000) {
            std::fs::write(root.join(format!("folder{}/file{n}", n / 100)), "another text\n").unwrap();
        }
        let runtime = runtime(&mark).await;
        let session = runtime.session(root).open().await.unwrap();
        let status =
            ["status", "--porcelain=v2", "-z", "--branch", "--untracked-files=normal", "--ignore-submodules=dirty"];
        let log = ["log", "-z", "--format=tformat:%H%x00%an%x00%aI%x00%P%x00%s", "--max-count=11"];
        let diff = ["diff", "--patch-with-raw", "-z", "--no-ext-diff", "--find-renames", "HEAD"];
        for (name, bare, rounds) in
            [("status", &status[..], ROUNDS), ("log", &log[..], 10 * ROUNDS), ("diff", &diff[..], ROUNDS)]
        {
            let (mut bare_took, mut tool_took) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                let started_at = Instant::now();
                let mut command = tokio::process::Command::new("git");
                command.args(["--no-pager", "--no-optional-locks"]).args(bare).current_dir(root).env_clear();
                command.env("PATH", PATH).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let ran = command.spawn().unwrap().wait_with_output().await.unwrap();
                bare_took.push(started_at.elapsed());
                assert!(ran.status.success() && !ran.stdout.is_empty());
                let started_at = Instant::now();
                let result = session.tool("git", json!({"command": name})).await.unwrap();
                tool_took.push(started_at.elapsed());
                assert!(result.is_success(), "{}", result.output);
            }
            let [bare, tool] = [bare_took, tool_took].map(crate::figure::median);
            let ratio = tool.as_secs_f64() / bare.as_secs_f64();
            println!("  git {name} of {FILES} files: git itself {bare:?}, the tool {tool:?} ({ratio:.2}x)");
        }
        runtime.shut_down().await;
    });
    tokio.block_on(measured).unwrap();
}
