//! The PID namespace: what a command sees from within, and what its end is made of.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::containment::Containment;
use toolwarden_tools::effects::processes::{CommandSpec, ContainmentLevel, Processes as _};

use crate::command::{Heard, Ready, contained, spec};
use crate::level::{EXITED, block_on, is_available_or_refused, run};
use crate::trace;

const LEVEL: Containment = Containment::PidNamespace;

pub(crate) fn a_command_sees_its_own_alone() {
    if !is_available_or_refused(&LEVEL) {
        return;
    }
    block_on(async {
        let own = std::process::id();
        let line = "echo $PPID; kill -9 1; kill -9 -1; ls -d /proc/[0-9]* | wc -l; test -e /proc/1/environ && id -u";
        let (end, out) = run(&LEVEL, spec(&format!("trap '' TERM; {line}; kill -0 {own}2 || echo gone"), "")).await;
        let end = end.unwrap();
        assert_eq!((end.level, end.survivors), (ContainmentLevel::PidNamespace, vec![]));
        // kill -1 hits all but the first process and the shell itself.
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines[0], "1", "{out}");
        assert!(lines[1].parse::<u32>().is_ok_and(|count| count <= 4), "{out}");
        assert_eq!(lines[2..], [nix::unistd::getuid().to_string().as_str(), "gone"], "{out}");
        // What is mounted in it is not seen outside.
        let folder = tempfile::tempdir().unwrap();
        let mount = format!("mount -t tmpfs none '{0}' && touch '{0}/in' && ls '{0}'", folder.path().display());
        let (_, out) = run(&LEVEL, spec(&mount, "")).await;
        assert!(out.is_empty() || out == "in\n", "{out}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // Its folder is on a mount that it sees, or the system would say that the folder cannot be reached.
        let line = "exec 5<.; id=$(sed -n 's/^mnt_id:[[:space:]]*//p' /proc/self/fdinfo/5); grep -c \"^$id \" /proc/self/mountinfo; pwd -P";
        let here = CommandSpec { folder: folder.path().to_owned(), ..spec(line, "") };
        assert_eq!(run(&LEVEL, here).await.1, format!("1\n{}\n", folder.path().display()));
        // Each command has a namespace of its own, also where a warden served before.
        let processes = contained(&LEVEL);
        for _ in 0..3 {
            let heard = Heard::new();
            let end = processes.run(spec("echo $$", ""), heard.clone(), Cancellation::new()).await.unwrap();
            assert_eq!((end.status, heard.out().as_str()), (EXITED, "2\n"));
        }
    });
}

pub(crate) fn a_killed_shim_leaves_nothing() {
    if !is_available_or_refused(&LEVEL) {
        return;
    }
    let (mark, own) = (trace::unique_mark(), std::process::id());
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let mut ready = Ready::new(folder.path());
        let processes = contained(&LEVEL);
        let line = ready.line("trap '' TERM; setsid sleep 600 & (setsid -f sleep 600)", "sleep 600; :", &mark, "");
        let command = CommandSpec { grace: Duration::from_secs(60), ..spec(&line, &mark) };
        let running = processes.run(command, Heard::new(), Cancellation::new());
        let begin = async {
            ready.all(1).await;
            let keepers = trace::children(own, "toolwarden");
            let wardens: Vec<u32> = keepers.iter().flat_map(|keeper| trace::children(*keeper, "toolwarden")).collect();
            // All of the shim at once, as no command could.
            for pid in keepers.iter().chain(&wardens) {
                kill(Pid::from_raw(i32::try_from(*pid).unwrap()), Signal::SIGKILL).unwrap();
            }
        };
        let (end, ()) = tokio::join!(running, begin);
        // Who could have said that nothing is left is dead; the kernel saw to it.
        let text = end.unwrap_err().to_string();
        assert!(text.contains("killed"), "{text}");
        trace::vanishes(|| trace::living(&mark)).expect("left behind");
    });
}
