//! The cgroup of a command: that it has one, that it ends with it, and that it is ended as a whole.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::containment::{CgroupPlan, Containment};
use toolwarden_tools::effects::processes::{CommandSpec, ContainmentLevel, ProcessStatus, Processes as _};

use crate::command::{Heard, Ready, contained, spec};
use crate::level::{EXITED, block_on, cgroups, is_available_or_refused, own_cgroup, run};
use crate::trace;

fn level() -> Containment {
    Containment::Cgroup(CgroupPlan::default())
}

pub(crate) fn a_command_has_one_of_its_own() {
    if !is_available_or_refused(&level()) {
        return;
    }
    let own = own_cgroup().unwrap();
    block_on(async {
        let (end, out) = run(&level(), spec("grep ^0:: /proc/self/cgroup; kill -USR1 $$", "")).await;
        let end = end.unwrap();
        assert_eq!((end.level, end.status), (ContainmentLevel::Cgroup, ProcessStatus::Signalled { signal: 10 }));
        assert!(out.trim().rsplit_once('/').unwrap().1.starts_with("toolwarden-"), "{out}");
        assert_eq!(cgroups(), Vec::<std::path::PathBuf>::new());
        // Also what the command made in it, where it may.
        let line = format!("leaf='{}'$(sed -n 's/^0:://p' /proc/self/cgroup)", own.display());
        let line = format!(
            "{line}; mkdir -p \"$leaf/a/b\" \"$leaf/c\"; ls -d \"$leaf\"/a/b | wc -l; sleep 600 & echo $! > \"$leaf/a/b/cgroup.procs\""
        );
        let own_path = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        if own_path.lines().any(|line| line == "0::/") {
            let mark = trace::unique_mark();
            let (end, out) = run(&level(), spec(&line, &mark)).await;
            let end = end.unwrap();
            assert_eq!((out.as_str(), end.status, end.killed_background), ("1\n", EXITED, true));
            assert_eq!((trace::living(&mark), cgroups()), (vec![], vec![]));
        }
        // Same streams, session and signals as at any other level.
        let line = "read -r _ _ _ _ group session tty _ < /proc/$$/stat; echo $(( group == $$ && session == $$ )) $tty";
        assert_eq!(run(&level(), spec(line, "")).await.1, "1 0\n");
        let given = CommandSpec { stdin: Some(b"given".to_vec()), ..spec("cat; ls /proc/self/fd | wc -l", "") };
        assert_eq!(run(&level(), given).await.1, "given4\n");
        let (_, out) = run(&level(), spec("exec grep -E '^Sig(Blk|Ign):' /proc/self/status", "")).await;
        assert!(out.lines().all(|line| line.ends_with("\t0000000000000000")) && out.lines().count() == 2, "{out}");
        let absent = CommandSpec { program: "/no/such/shell".into(), ..spec("", "") };
        let text = run(&level(), absent).await.0.unwrap_err().to_string();
        assert!(text.contains("No such file"), "{text}");
        assert_eq!(cgroups(), Vec::<std::path::PathBuf>::new());
    });
}

pub(crate) fn a_killed_shim_leaves_nothing() {
    if !is_available_or_refused(&level()) {
        return;
    }
    let (mark, own) = (trace::unique_mark(), std::process::id());
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let mut ready = Ready::new(folder.path());
        let processes = contained(&level());
        let line = ready.line("trap '' TERM; setsid sleep 600 & (setsid -f sleep 600)", "sleep 600; :", &mark, "");
        let command = CommandSpec { grace: Duration::from_secs(60), ..spec(&line, &mark) };
        let running = processes.run(command, Heard::new(), Cancellation::new());
        let begin = async {
            ready.all(1).await;
            let keepers = trace::children(own, "toolwarden");
            let wardens: Vec<u32> = keepers.iter().flat_map(|keeper| trace::children(*keeper, "toolwarden")).collect();
            for pid in keepers.iter().chain(&wardens) {
                kill(Pid::from_raw(i32::try_from(*pid).unwrap()), Signal::SIGKILL).unwrap();
            }
        };
        let (end, ()) = tokio::join!(running, begin);
        // The host has ended it from its side, and knows.
        let end = end.unwrap();
        assert_eq!((end.status, end.survivors), (ProcessStatus::Unknown, vec![]));
        assert_eq!((trace::living(&mark), cgroups()), (vec![], vec![]));
    });
}

// What comes into the cgroup from elsewhere is nobody's child here, so that only the kernel's count tells of it.
pub(crate) fn what_is_put_there_is_ended_too() {
    if !is_available_or_refused(&level()) {
        return;
    }
    let mark = trace::unique_mark();
    let folder = tempfile::tempdir().unwrap();
    let mut stranger = std::process::Command::new("sleep").arg("600").env(trace::NAME, &mark).spawn().unwrap();
    block_on(async {
        let mut ready = Ready::new(folder.path());
        let line = ready.line("true", "sleep 600", &mark, "");
        let stop = Cancellation::new();
        let processes = contained(&level());
        let running = processes.run(spec(&line, &mark), Heard::new(), stop.clone());
        let begin = async {
            ready.all(1).await;
            let leaf = cgroups().into_iter().find(|leaf| {
                std::fs::read_to_string(leaf.join("cgroup.procs")).is_ok_and(|members| !members.is_empty())
            });
            std::fs::write(leaf.unwrap().join("cgroup.procs"), stranger.id().to_string()).unwrap();
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, begin);
        assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
    });
    let status = stranger.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    assert_eq!((trace::living(&mark), cgroups()), (vec![], vec![]));
}
