//! Input and surroundings that are hard on a shell: typed errors, nothing lost, nothing left.

use std::future::Future;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Instant;

use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use toolwarden::prelude::*;
use toolwarden_tools::effects::processes::Processes;
use toolwarden_tools::effects::processes::system::SystemProcesses;

use crate::command::{PATH, SELF, environment, guarded};
use crate::matrix::{HOST, call, runtime};
use crate::trace;

/// The argument that makes this program run out of descriptors.
pub(crate) const STARVED: &str = "--play-starved";
/// The argument that makes this program a user who may not enter every folder.
pub(crate) const STRANGER: &str = "--play-stranger";

/// Whose ids nobody has.
const NOBODY: u32 = 65_534;

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(work)
}

/// Plays a part in a process of its own, whose limits and ids are nobody else's.
fn play(part: &str, folder: &Path) {
    let status = Command::new(SELF).arg(part).arg(folder).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{part}: {status}");
}

/// Ten thousand children that live for a moment, half of them orphans: all are reaped, none is lost sight of.
pub(crate) fn ten_thousand_short_lived_children() {
    block_on(async {
        let (folder, mark) = (tempfile::tempdir().unwrap(), trace::unique_mark());
        let runtime = runtime(&mark).await;
        let session = runtime.session(folder.path()).open().await.unwrap();
        let line = "for i in {1..5000}; do (:); (: &); done; sleep 600 & echo $i; exit 4";
        let result = call(&session, line, 120_000).await.unwrap();
        assert_eq!(result.metadata["exit_code"], 4, "{}", result.output);
        assert!(result.output.starts_with("5000\n"), "{}", result.output);
        assert_eq!(result.metadata["containment"], json!({"level": "sub_reaper", "survivors": []}));
        assert_eq!(trace::living(&mark), []);
        trace::vanishes(trace::zombies).expect("zombies");
        // The scope that served it serves the next one.
        assert_eq!(call(&session, "echo next", 60_000).await.unwrap().output, "next\n");
        runtime.shut_down().await;
    });
}

/// However few descriptors are free, a call answers with what it is, leaves nothing, and the next one works.
pub(crate) fn descriptors_run_out() {
    let folder = tempfile::tempdir().unwrap();
    play(STARVED, folder.path());
}

pub(crate) fn play_starved(folder: &str) -> ExitCode {
    const LIMIT: u64 = 96;
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(LIMIT), maximum }).unwrap();
    let own = std::process::id();
    block_on(async {
        for (name, processes) in
            [("group", Arc::new(SystemProcesses) as Arc<dyn Processes>), ("shim", Arc::new(guarded()))]
        {
            let mark = trace::unique_mark();
            let runtime =
                Runtime::builder().processes(processes).environment(environment(&mark)).build().await.unwrap();
            let session = runtime.session(folder).open().await.unwrap();
            for line in ["true", "git init -q ."] {
                assert!(call(&session, line, 60_000).await.unwrap().is_success());
            }
            let before = trace::descriptors(own);
            let mut refused = 0;
            for free in 0..20 {
                let mut held = Vec::new();
                while let Ok(file) = std::fs::File::open("/dev/null") {
                    held.push(file);
                }
                held.truncate(held.len().saturating_sub(free));
                // At the level of the group, what leaves the group is lost from sight by all means.
                let line = if name == "shim" { "echo out; setsid sleep 600 &" } else { "echo out; sleep 600 &" };
                let calls = [
                    ("bash", json!({"command": line, "stdin": "x"})),
                    ("bash", json!({"command": "echo out", "background": true})),
                    ("git", json!({"command": "status"})),
                ];
                for (tool, arguments) in calls {
                    let result = session.tool(tool, arguments.clone()).await.unwrap();
                    if !result.is_success() {
                        refused += 1;
                        let told =
                            format!("{name}, {free} free, {arguments}: {} {:?}", result.output, result.error_kind);
                        assert!(matches!(result.error_kind, Some(ToolErrorKind::Transport { .. })), "{told}");
                        assert!(result.output.contains("file descriptors"), "{told}");
                    } else if tool == "bash" {
                        assert!(result.output.contains("out\n"), "{}", result.output);
                    }
                }
                drop(held);
                // Nothing is left of any of them, and the next call finds everything as it was.
                let next = call(&session, "echo next", 60_000).await.unwrap();
                assert_eq!(next.output, "next\n", "{name}, {free}: {:?}", next.error_kind);
            }
            assert!(refused >= 6, "{name}: only {refused} were refused");
            trace::vanishes(|| trace::living(&mark)).expect("left behind");
            let more = || trace::descriptors(own).checked_sub(before).filter(|more| *more > 2).into_iter().collect();
            trace::vanishes(more).expect("more descriptors than before");
            runtime.shut_down().await;
            std::fs::remove_dir_all(Path::new(folder).join(".git")).unwrap();
        }
        trace::vanishes(trace::zombies).expect("zombies");
    });
    ExitCode::SUCCESS
}

/// A folder that may not be entered or read is told from one that is not there, by a user whom modes bind.
pub(crate) fn a_folder_that_may_not_be_entered() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    play(STRANGER, folder.path());
}

pub(crate) fn play_stranger(folder: &str) -> ExitCode {
    if Uid::effective().is_root() {
        setgroups(&[]).unwrap();
        setgid(Gid::from_raw(NOBODY)).unwrap();
        setuid(Uid::from_raw(NOBODY)).unwrap();
    }
    let workspace = Path::new(folder).join("workspace");
    let closed = workspace.join("closed");
    std::fs::create_dir_all(closed.join("deep")).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    block_on(async {
        for (name, processes) in
            [("group", Arc::new(SystemProcesses) as Arc<dyn Processes>), ("shim", Arc::new(guarded()))]
        {
            let mark = trace::unique_mark();
            let runtime =
                Runtime::builder().processes(processes).environment(environment(&mark)).build().await.unwrap();
            let session = runtime.session(&workspace).open().await.unwrap();
            for cwd in ["closed", "closed/deep"] {
                for background in [false, true] {
                    let arguments = json!({"command": "touch made", "cwd": cwd, "background": background});
                    let result = session.tool("bash", arguments).await.unwrap();
                    let told = format!("{name}, {cwd}: {} {:?}", result.output, result.error_kind);
                    assert!(!result.is_success() && result.error_kind.is_some(), "{told}");
                    assert!(result.output.contains("closed") && result.output.contains("ermission denied"), "{told}");
                }
            }
            assert!(!workspace.join("made").exists());
            assert_eq!(call(&session, "echo next", 60_000).await.unwrap().output, "next\n", "{name}");
            // The workspace itself.
            std::fs::set_permissions(&workspace, std::fs::Permissions::from_mode(0o000)).unwrap();
            let result = call(&session, "touch made", 60_000).await.unwrap();
            std::fs::set_permissions(&workspace, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert!(!result.is_success() && result.error_kind.is_some(), "{name}: {}", result.output);
            assert_eq!(call(&session, "echo next", 60_000).await.unwrap().output, "next\n", "{name}");
            assert_eq!(trace::living(&mark), []);
            runtime.shut_down().await;
        }
    });
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::remove_dir_all(&workspace).unwrap();
    ExitCode::SUCCESS
}

// Case R02: nothing appears in the workspace, neither while commands run nor after the host was killed.
pub(crate) fn the_workspace_stays_as_it_is() {
    block_on(async {
        let (workspace, beside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mark = trace::unique_mark();
        let git = |arguments: &str| {
            let command = format!("cd '{}' && git {arguments}", workspace.path().display());
            let ran = Command::new("bash").args(["-c", &command]).env("PATH", PATH).output().unwrap();
            assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
            String::from_utf8(ran.stdout).unwrap()
        };
        git("init -q .");
        std::fs::write(workspace.path().join("kept.txt"), "kept").unwrap();
        let entries = || {
            let names = std::fs::read_dir(workspace.path()).unwrap();
            let mut names: Vec<String> =
                names.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            (names, git("status --porcelain --ignored"))
        };
        let before = entries();
        let mut ready = crate::command::Ready::new(beside.path());
        for background in [false, true] {
            let mut host = Command::new(SELF).arg(HOST).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            let lines = ready.lines(&mark, "sleep 600; :");
            let lines = &lines[..toolwarden_tools::background::RUNNING_MAX];
            let plan = json!({"folder": workspace.path(), "mark": mark, "level": "sub_reaper", "lines": lines, "background": background});
            writeln!(host.stdin.take().unwrap(), "{plan}").unwrap();
            ready.all(lines.len()).await;
            assert_eq!(entries(), before, "while commands run");
            // A real file of a name that others use for themselves can be written meanwhile.
            std::fs::write(workspace.path().join(".env"), "A=1").unwrap();
            host.kill().unwrap();
            host.wait().unwrap();
            trace::vanishes(|| trace::living(&mark)).expect("left behind");
            assert_eq!(std::fs::read_to_string(workspace.path().join(".env")).unwrap(), "A=1");
            std::fs::remove_file(workspace.path().join(".env")).unwrap();
            assert_eq!(entries(), before, "after the host was killed");
        }
    });
}

// Case R03: what a command costs does not grow with the tree it runs in.
pub(crate) fn a_large_tree_costs_nothing() {
    const FILES: usize = 20_000;
    const ROUNDS: usize = 15;
    block_on(async {
        let (small, large, mark) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), trace::unique_mark());
        for n in 0..FILES {
            let folder = large.path().join(format!("folder{}", n / 200));
            if n % 200 == 0 {
                std::fs::create_dir(&folder).unwrap();
            }
            std::fs::write(folder.join(format!("file{n}")), "text").unwrap();
        }
        let runtime = runtime(&mark).await;
        let mut took: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
        let small = runtime.session(small.path()).open().await.unwrap();
        let large = runtime.session(large.path()).open().await.unwrap();
        for _ in 0..ROUNDS {
            for (session, took) in [&small, &large].into_iter().zip(&mut took) {
                let started_at = Instant::now();
                assert!(call(session, "true", 60_000).await.unwrap().is_success());
                took.push(started_at.elapsed().as_secs_f64() * 1000.0);
            }
        }
        let [small_ms, large_ms] = took.map(|mut took| {
            took.sort_by(f64::total_cmp);
            took[took.len() / 2]
        });
        println!("  true: {small_ms:.1} ms in an empty workspace, {large_ms:.1} ms in one of {FILES} files");
        // A scan of that tree takes hundreds of milliseconds in this build.
        assert!(large_ms < small_ms * 1.5 + 10.0, "{small_ms} ms and {large_ms} ms");
        runtime.shut_down().await;
    });
}

/// A shell or a git that is not there is told as such, in the foreground and in the background.
pub(crate) fn a_missing_program_is_told() {
    block_on(async {
        for processes in [Arc::new(SystemProcesses) as Arc<dyn Processes>, Arc::new(guarded())] {
            let folder = tempfile::tempdir().unwrap();
            let empty = std::collections::BTreeMap::from([("PATH".to_owned(), folder.path().display().to_string())]);
            let runtime = Runtime::builder().processes(processes).environment(empty).build().await.unwrap();
            let session = runtime.session(folder.path()).open().await.unwrap();
            for (tool, arguments) in [
                ("bash", json!({"command": "true"})),
                ("bash", json!({"command": "true", "background": true})),
                ("git", json!({"command": "status"})),
            ] {
                let result = session.tool(tool, arguments.clone()).await.unwrap();
                assert!(
                    matches!(result.error_kind, Some(ToolErrorKind::Unsupported { .. })),
                    "{arguments}: {}",
                    result.output
                );
                assert!(result.output.contains(&format!("no {tool} in the PATH")), "{}", result.output);
            }
            runtime.shut_down().await;
        }
    });
}

/// A folder that goes between two calls, and one that a call takes from under itself.
pub(crate) fn a_folder_that_goes() {
    block_on(async {
        for processes in [Arc::new(SystemProcesses) as Arc<dyn Processes>, Arc::new(guarded())] {
            let folder = tempfile::tempdir().unwrap();
            let mark = trace::unique_mark();
            let runtime =
                Runtime::builder().processes(processes).environment(environment(&mark)).build().await.unwrap();
            let session = runtime.session(folder.path()).open().await.unwrap();
            let within = |line: &str| json!({"command": line, "cwd": "d"});
            let run = async |arguments: Value| session.tool("bash", arguments).await.unwrap();
            // Case C010, in the workspace's own folder and in the one that is named.
            assert!(run(json!({"command": "mkdir -p d && cd d && rmdir ../d"})).await.is_success());
            assert_eq!(run(json!({"command": "echo ok"})).await.output, "ok\n");
            assert!(matches!(run(within("echo no")).await.error_kind, Some(ToolErrorKind::NotFound { .. })));
            std::fs::create_dir(folder.path().join("d")).unwrap();
            let gone = run(within("rmdir ../d && echo gone; exec sleep 0")).await;
            assert_eq!(gone.output, "gone\n", "{:?}", gone.metadata);
            assert!(matches!(run(within("echo no")).await.error_kind, Some(ToolErrorKind::NotFound { .. })));
            std::fs::write(folder.path().join("d"), "").unwrap();
            assert!(matches!(run(within("echo no")).await.error_kind, Some(ToolErrorKind::InvalidArgument { .. })));
            runtime.shut_down().await;
        }
    });
}
