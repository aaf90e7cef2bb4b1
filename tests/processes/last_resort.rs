//! The last resort: a program that asked for it ends what a shim leaves that was killed as a whole, and nothing else.

use std::process::{Command, ExitCode};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::shim::last_resort::take_orphans;
use toolwarden_tools::effects::processes::{ProcessStatus, Processes as _};

use crate::command::{Heard, Ready, SELF, guarded, spec};
use crate::level::block_on;
use crate::trace;

/// The argument that makes this program a host with a last resort.
pub(crate) const HOST: &str = "--play-last-resort";

/// How long something may take to show, on a busy machine.
const SHOW_WAIT: Duration = Duration::from_secs(30);

/// Waits until `look` finds something, while everything else goes on.
async fn until<T>(look: impl Fn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look() {
                return found;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SHOW_WAIT, found).await.unwrap()
}

/// Has two commands run, kills the keeper and the warden of one, and looks at what becomes of both.
pub(crate) fn play() -> ExitCode {
    take_orphans().unwrap();
    let (own, folders) = (std::process::id(), [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
    let marks = [trace::unique_mark(), trace::unique_mark()];
    let end_of = |pid: u32| kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
    block_on(async {
        let mut ready = folders.each_ref().map(|folder| Ready::new(folder.path()));
        let (processes, stop, heard) = (guarded(), Cancellation::new(), Heard::new());
        let hostile = "setsid sleep 600 & setsid -f sleep 600; (trap '' TERM; setsid sleep 600; :) &";
        let lines = [0, 1].map(|at| ready[at].line(&format!("echo $PPID; {hostile}"), "sleep 600; :", &marks[at], ""));
        let spared = processes.run(spec(&lines[0], &marks[0]), Heard::new(), stop.clone());
        let struck = processes.run(spec(&lines[1], &marks[1]), heard.clone(), Cancellation::new());
        let strike = async {
            for ready in &mut ready {
                ready.all(1).await;
            }
            let warden = until(|| heard.out().lines().next().and_then(|line| line.parse::<u32>().ok())).await;
            for keeper in trace::children(own, "toolwarden") {
                end_of(keeper);
            }
            end_of(warden);
        };
        let ends = async {
            let (end, ()) = tokio::join!(struck, strike);
            // Nothing is left of it, which is known although both who held it are gone.
            let end = end.unwrap();
            assert_eq!((end.status, end.survivors), (ProcessStatus::Unknown, vec![]));
            assert_eq!(trace::living(&marks[1]), vec![]);
            // The other command lost its keeper, and goes on until it is stopped.
            assert!(!trace::living(&marks[0]).is_empty());
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(spared, ends);
        assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
        assert_eq!(trace::living(&marks[0]), vec![]);
        // A new keeper serves the next command, and nobody stays as a zombie.
        let end = processes.run(spec("exit 5", ""), Heard::new(), Cancellation::new()).await.unwrap();
        assert_eq!(end.status, ProcessStatus::Exited { code: 5 });
        until(|| trace::zombies().is_empty().then_some(())).await;
    });
    ExitCode::SUCCESS
}

pub(crate) fn orphans_of_a_killed_shim_are_ended() {
    assert!(Command::new(SELF).arg(HOST).status().unwrap().success());
}
