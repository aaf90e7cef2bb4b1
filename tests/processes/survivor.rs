//! Survivors: what this user may not kill is named while it lives, and a level that can kill it does.
//!
//! A host that is nobody runs a program with root's set-user-id bit, which makes itself root altogether. That takes
//! root to set up; elsewhere the test says that it did not run.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Pid, Uid, chown, getuid, setgid, setgroups, setuid};
use serde_json::{Value, json};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::containment::{CgroupPlan, Containment};
use toolwarden_tools::effects::processes::{ContainmentLevel, Processes as _};

use crate::command::{Heard, Ready, SELF, contained, spec};
use crate::level::{block_on, own_cgroup};
use crate::{level, trace};

/// The argument that makes this program a host that gives up being root.
pub(crate) const NOBODY: &str = "--play-nobody";
/// The argument that makes this program, with the set-user-id bit, root altogether.
pub(crate) const ROOT: &str = "--play-root";
/// The user and group that everybody may be.
const NOBODY_ID: u32 = 65534;

/// Becomes root if it may, says that it is ready, and sleeps until it is killed.
pub(crate) fn play_root(ready: &str) -> ExitCode {
    let _ = setuid(Uid::from_raw(0));
    std::fs::write(ready, "\n").unwrap();
    let Err(error) = nix::unistd::execv(c"/bin/sleep", &[c"sleep", c"600"]);
    eprintln!("{error}");
    ExitCode::FAILURE
}

/// Runs one command as nobody, cancels it when it is ready, and prints how it ended.
pub(crate) fn play_nobody() -> ExitCode {
    let plan: Value = serde_json::from_reader(std::io::stdin()).unwrap();
    let text = |name: &str| plan[name].as_str().map(str::to_owned);
    if let Some(join) = text("join") {
        std::fs::write(Path::new(&join).join("cgroup.procs"), "0").unwrap();
    }
    setgroups(&[]).unwrap();
    setgid(Gid::from_raw(NOBODY_ID)).unwrap();
    setuid(Uid::from_raw(NOBODY_ID)).unwrap();
    let containment = match text("parent") {
        Some(parent) => Containment::Cgroup(CgroupPlan { parent: Some(parent.into()), ..CgroupPlan::default() }),
        None => level::named(&text("level").unwrap()),
    };
    let told = block_on(async {
        let mut ready = Ready::open(&PathBuf::from(text("ready").unwrap()));
        let (stop, processes) = (Cancellation::new(), contained(&containment));
        if let Err(reason) = processes.probe().await {
            return json!({"unavailable": reason.kind(), "reason": reason.to_string()});
        }
        let running = processes.run(spec(&text("line").unwrap(), &text("mark").unwrap()), Heard::new(), stop.clone());
        let begin = async {
            ready.all(1).await;
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, begin);
        let end = end.unwrap();
        json!({"level": end.level.as_str(), "survivors": end.survivors})
    });
    println!("{told}");
    ExitCode::SUCCESS
}

/// Folders that nobody can use, gone afterwards.
struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
    /// A cgroup that was delegated to nobody, with one for the host in it.
    delegated: Option<PathBuf>,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let program = folder.path().join("become-root");
        std::fs::copy(SELF, &program).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let delegated = own_cgroup().map(|own| own.join(format!("test-{}", std::process::id())));
        let delegated = delegated.filter(|delegated| std::fs::create_dir_all(delegated.join("host")).is_ok());
        if let Some(delegated) = &delegated {
            for path in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads", "host", "host/cgroup.procs"] {
                let owner = (Some(Uid::from_raw(NOBODY_ID)), Some(Gid::from_raw(NOBODY_ID)));
                chown(&delegated.join(path), owner.0, owner.1).unwrap();
            }
        }
        Self { folder, program, delegated }
    }

    /// What a host that is nobody says of a command that starts the program; pids and command lines of what is left
    /// are with it.
    fn told(&self, level: ContainmentLevel) -> (Value, Vec<(u32, String)>) {
        let mark = trace::unique_mark();
        let ready = self.folder.path().join("ready");
        nix::unistd::mkfifo(&ready, Mode::S_IRWXU).unwrap();
        std::fs::set_permissions(&ready, PermissionsExt::from_mode(0o666)).unwrap();
        let (program, fifo) = (self.program.display(), ready.display());
        let line = format!("trap '' TERM; setsid sleep 600 & setsid '{program}' {ROOT} '{fifo}' & sleep 600");
        let mut plan = json!({"level": level.as_str(), "ready": ready, "mark": mark, "line": line});
        if level == ContainmentLevel::Cgroup {
            let delegated = self.delegated.as_ref().unwrap();
            plan["parent"] = delegated.display().to_string().into();
            plan["join"] = delegated.join("host").display().to_string().into();
        }
        let mut host = Command::new(SELF).arg(NOBODY).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        write!(host.stdin.take().unwrap(), "{plan}").unwrap();
        let ended = host.wait_with_output().unwrap();
        std::fs::remove_file(ready).unwrap();
        let told = serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        (told, trace::living(&mark))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(delegated) = &self.delegated {
            let _ = std::fs::remove_dir(delegated.join("host"));
            let _ = std::fs::remove_dir(delegated);
        }
    }
}

pub(crate) fn what_cannot_be_killed_is_named() {
    if !getuid().is_root() {
        println!("  not run: only root can make a program that another user may not kill");
        return;
    }
    let place = Place::new();
    // The sub-reaper of nobody may not kill root's process, and says so.
    let (told, left) = place.told(ContainmentLevel::SubReaper);
    assert_eq!(told["level"], "sub_reaper", "{told}");
    assert_eq!(left.len(), 1, "{told} {left:?}; the temporary folder must not be mounted nosuid");
    assert_eq!(told["survivors"], json!([left[0].0]), "{left:?}");
    // Nobody else can; and then the shim, which has kept trying, ends too.
    kill(Pid::from_raw(left[0].0.try_into().unwrap()), Signal::SIGKILL).unwrap();
    trace::vanishes(|| trace::alive(&left.iter().map(|(pid, _)| *pid).collect())).expect("left behind");

    // In a user namespace nobody becomes root, so that all can be killed.
    let (told, left) = place.told(ContainmentLevel::PidNamespace);
    match told["unavailable"].as_str() {
        Some(kind) => assert!(["namespace", "user_map", "proc_mount"].contains(&kind), "{told}"),
        None => assert_eq!((told, left), (json!({"level": "pid_namespace", "survivors": []}), vec![])),
    }

    // The kernel kills root's process for nobody, in a cgroup that was delegated to nobody.
    if place.delegated.is_none() {
        println!("  not run at level cgroup: no cgroup can be delegated here");
        return;
    }
    let (told, left) = place.told(ContainmentLevel::Cgroup);
    match told["unavailable"].as_str() {
        Some(kind) => assert_eq!(kind, "cgroup_kill", "{told}"),
        None => assert_eq!((told, left), (json!({"level": "cgroup", "survivors": []}), vec![])),
    }
    let delegated = place.delegated.as_ref().unwrap();
    let leaves = || {
        std::fs::read_dir(delegated)
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name() != "host" && entry.path().is_dir())
    };
    trace::vanishes(|| leaves().map(|entry| entry.path()).collect()).expect("cgroups");
}
