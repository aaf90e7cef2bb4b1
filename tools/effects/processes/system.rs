//! The real side of the processes port: a command in a process group of its own, on tokio.
//!
//! Starting takes the `posix_spawn` path of the standard library, which costs the same from a small and a huge
//! process; so there is no `pre_exec` closure, the program is an absolute path, and the command gets a group but
//! not a session: it keeps the controlling terminal, if this process has one, as a background group that may not
//! read from it.
//!
//! What must stay true:
//! - **A signal never reaches a stranger.** A group's number is the leader's pid, and the kernel gives neither away
//!   while the leader is alive or a zombie. So the leader's end is only looked at (`WNOWAIT`), the group is killed
//!   while the zombie still holds the number, and the leader is reaped last. After that the group is only probed.
//! - **Nothing outlives the future.** Dropping it at any moment kills the group (see `Leader`); the leader is then
//!   reaped by tokio's orphan queue.
//! - **Every wait has a bound**, for a process in an uninterruptible sleep does not die even of KILL.
//!
//! A process that left the group (`setsid`) is not found by any of this; [`SystemProcesses::with_shim`] does that.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{AccessFlags, Pid, access};
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::cancellation::Cancellation;
use crate::effects::processes::confinement::ConfinementError;
use crate::effects::processes::containment::Containment;
use crate::effects::processes::pipes::Pipes;
use crate::effects::processes::shim::guarded::GuardedProcesses;
use crate::effects::processes::{CommandSpec, OutputSink, ProcessEnd, ProcessError, ProcessStatus, Processes};

/// How long a killed command may take to die.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// How long what a killed command wrote last is still read.
const LAST_READ: Duration = Duration::from_millis(20);
/// How long the rest of a killed group may take to be gone.
const GROUP_WAIT: Duration = Duration::from_millis(500);
/// First and longest pause between two looks at a dying group, for whose end no event exists.
const GROUP_PAUSE: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(16));

/// Runs commands on this machine, each in a process group: [`Group`](crate::effects::processes::ContainmentLevel::Group).
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemProcesses;

impl SystemProcesses {
    /// Runs commands under a shim instead, which loses none of their descendants:
    /// [`SubReaper`](crate::effects::processes::ContainmentLevel::SubReaper).
    ///
    /// `executable` is the path of a program that calls
    /// [`enter_if_asked`](crate::effects::processes::shim::enter_if_asked) first in its `main`; a host that does so
    /// itself gives `/proc/self/exe`. It is started at the first command; when it cannot be, commands are refused
    /// and never run at a lower level.
    pub fn with_shim(executable: impl Into<PathBuf>) -> GuardedProcesses {
        Self::contained(executable, Containment::SubReaper)
    }

    /// As [`Self::with_shim`], with commands contained as the host chooses. What is not available is known from
    /// [`GuardedProcesses::probe`]; commands are refused then with [`ProcessError::Containment`].
    pub fn contained(executable: impl Into<PathBuf>, containment: Containment) -> GuardedProcesses {
        GuardedProcesses::new(executable.into(), containment)
    }
}

impl Processes for SystemProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        Box::pin(async move { run(&command, sink.as_ref(), &stop).await })
    }
}

async fn run(command: &CommandSpec, sink: &dyn OutputSink, stop: &Cancellation) -> Result<ProcessEnd, ProcessError> {
    let program = &command.program;
    if command.confinement.as_ref().is_some_and(|confinement| !confinement.is_off()) {
        let source = ConfinementError::NeedsShim;
        return Err(ProcessError::Unconfined { program: program.clone(), source });
    }
    let lost = |source| ProcessError::Wait { program: program.clone(), source };
    // Before the start, or the end of a very short command could be missed.
    let mut exits =
        signal(SignalKind::child()).map_err(|source| ProcessError::Start { program: program.clone(), source })?;
    let (mut leader, mut pipes) = start(command)?;

    let stopped = tokio::select! { biased;
        ended = leader.ended(&mut exits) => {
            ended.map_err(lost)?;
            None
        }
        reason = stop.cancelled() => Some(reason),
        () = pipes.serve(sink) => None, // never comes
    };
    if stopped.is_some() {
        leader.terminate();
        let in_order = async { tokio::join!(leader.ended(&mut exits), pipes.drained(sink)).0 };
        if let Ok(ended) = timeout(command.grace, in_order).await {
            ended.map_err(lost)?;
        }
    } else {
        tokio::select! { biased;
            () = pipes.drained(sink) => {}
            _ = stop.cancelled() => {} // the command's own end came first and stays; only the drain is cut
            () = sleep(command.drain) => {}
        }
    }
    let output_held = !pipes.are_closed();

    leader.kill();
    let dying = async { tokio::join!(leader.ended(&mut exits), timeout(LAST_READ, pipes.drained(sink))).0 };
    if let Ok(ended) = timeout(KILL_WAIT, dying).await {
        ended.map_err(lost)?;
    }
    drop(pipes);
    let Some(status) = leader.reap().map_err(lost)? else {
        let unknown = ProcessEnd::group(ProcessStatus::Unknown, stopped, output_held, false);
        return Ok(ProcessEnd { survivors: leader.pid.as_raw().try_into().into_iter().collect(), ..unknown });
    };
    let killed_background = leader.group_gone().await;
    Ok(ProcessEnd::group(status, stopped, output_held, killed_background))
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn start(command: &CommandSpec) -> Result<(Leader, Pipes), ProcessError> {
    let refused = |source| ProcessError::Start { program: command.program.clone(), source };
    let path = command.environment.get("PATH").map_or("", String::as_str);
    let program = find_program(&command.program, path).ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
    let (pipes, far) = Pipes::open(command.stdin.clone()).map_err(refused)?;
    let spawned = Command::new(program)
        .arg0(&command.program)
        .args(&command.arguments)
        .env_clear()
        .envs(&command.environment)
        .current_dir(&command.folder)
        .process_group(0)
        .stdin(far.input.map_or_else(Stdio::null, Stdio::from))
        .stdout(far.out)
        .stderr(far.err)
        .spawn();
    let child = match spawned {
        Ok(child) => child,
        // The system has one word for a missing program and a missing working directory; the program is there.
        Err(source) if matches!(source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(if command.folder.is_dir() {
                refused(source)
            } else {
                ProcessError::Folder { program: command.program.clone(), folder: command.folder.clone() }
            });
        }
        Err(source) => return Err(refused(source)),
    };
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).ok_or_else(|| refused(io::Error::other("no pid")))?;
    Ok((Leader { child, pid: Pid::from_raw(pid), holds_number: true }, pipes))
}

/// The file of a program. A name is looked for in the absolute folders of `path` alone: a relative one would let
/// the working directory decide what runs.
pub(super) fn find_program(program: &str, path: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    path.split(':')
        .filter(|folder| folder.starts_with('/'))
        .map(|folder| Path::new(folder).join(program))
        .find(|file| file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

/// The command itself, first of its group, until it is reaped; kills the group when it is dropped before that.
struct Leader {
    child: Child,
    /// Its pid, and so its group's number.
    pid: Pid,
    /// Whether the leader is alive or a zombie, so that the number cannot belong to anyone else.
    holds_number: bool,
}

impl Leader {
    /// Waits for its end and leaves it a zombie.
    async fn ended(&mut self, exits: &mut SignalStream) -> io::Result<()> {
        loop {
            match waitid(Id::Pid(self.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT) {
                Ok(WaitStatus::StillAlive) => {}
                // A real-time signal ended it; nix has no word for those.
                Ok(_) | Err(Errno::EINVAL) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    // Someone else reaped it: the number may be a stranger's by now.
                    self.holds_number = false;
                    return Err(error.into());
                }
            }
            if exits.recv().await.is_none() {
                return Err(io::Error::other("no more signals from the runtime"));
            }
        }
    }

    /// Asks the group to end; whoever is suspended must wake up to hear it.
    fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    fn kill(&self) {
        self.signal(Signal::SIGKILL);
    }

    fn signal(&self, signal: Signal) {
        if self.holds_number {
            // Fails where all that is left has other credentials: nothing can be done about those.
            let _ = killpg(self.pid, signal);
        }
    }

    /// Takes its status, if it has ended; from then on the group must not be signalled.
    fn reap(&mut self) -> io::Result<Option<ProcessStatus>> {
        let status = self.child.try_wait()?;
        self.holds_number = status.is_none();
        Ok(status.map(status_of))
    }

    /// Waits, at most [`GROUP_WAIT`], until nothing is left of the killed group; says whether there was anything
    /// besides the leader. To be called when the leader is reaped: the zombie would count as a member.
    async fn group_gone(&self) -> bool {
        let mut found = false;
        let mut pause = GROUP_PAUSE.0;
        let gone = async {
            while killpg(self.pid, None) != Err(Errno::ESRCH) {
                found = true;
                // Where this process is pid 1 or a sub-reaper the dead come to it.
                let dead = || waitid(Id::PGid(self.pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
                while dead().is_ok_and(|status| status != WaitStatus::StillAlive) {}
                sleep(pause).await;
                pause = (pause * 2).min(GROUP_PAUSE.1);
            }
        };
        let _ = timeout(GROUP_WAIT, gone).await;
        found
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.kill();
    }
}

fn status_of(status: ExitStatus) -> ProcessStatus {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessStatus::Exited { code },
        (None, Some(signal)) => ProcessStatus::Signalled { signal },
        (None, None) => ProcessStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests look at real processes")]

    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::{Arc, Mutex};
    use std::time::{Duration, Instant};

    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use tokio::sync::Notify;

    use super::{KILL_WAIT, SystemProcesses};
    use crate::cancellation::{CancelReason, Cancellation};
    use crate::effects::processes::{
        CommandSpec, OutputSink, ProcessEnd, ProcessError, ProcessStatus, Processes as _, Stream, marked,
    };

    /// Keeps everything and tells of every chunk.
    #[derive(Default)]
    struct Heard {
        out: Mutex<Vec<u8>>,
        err: Mutex<Vec<u8>>,
        news: Notify,
    }

    impl OutputSink for Heard {
        fn push(&self, stream: Stream, bytes: &[u8]) {
            let kept = if stream == Stream::Out { &self.out } else { &self.err };
            kept.lock().unwrap().extend_from_slice(bytes);
            self.news.notify_one();
        }
    }

    impl Heard {
        fn out(&self) -> String {
            String::from_utf8(self.out.lock().unwrap().clone()).unwrap()
        }

        async fn until(&self, text: &str) {
            while !self.out().contains(text) {
                self.news.notified().await;
            }
        }
    }

    struct Ran {
        end: ProcessEnd,
        out: String,
        heard: Arc<Heard>,
        took: Duration,
    }

    fn command(line: &str, mark: &str) -> CommandSpec {
        CommandSpec {
            program: "bash".into(),
            arguments: vec!["-c".into(), line.into()],
            environment: BTreeMap::from([
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                (marked::NAME.into(), mark.into()),
            ]),
            folder: PathBuf::from("/"),
            stdin: None,
            grace: Duration::from_millis(300),
            drain: Duration::from_millis(200),
            confinement: None,
        }
    }

    async fn run(command: CommandSpec) -> Ran {
        let (heard, started_at) = (Arc::new(Heard::default()), Instant::now());
        let end = SystemProcesses.run(command, heard.clone(), Cancellation::new()).await.unwrap();
        Ran { end, out: heard.out(), heard, took: started_at.elapsed() }
    }

    /// Runs a line until it says `ready`, then stops it; nothing with the mark may be left.
    async fn stopped_when_ready(line: &str) -> Ran {
        let mark = marked::unique();
        let (heard, stop, started_at) = (Arc::new(Heard::default()), Cancellation::new(), Instant::now());
        let running = SystemProcesses.run(command(line, &mark), heard.clone(), stop.clone());
        let ready = async {
            heard.until("ready").await;
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, ready);
        assert_eq!(marked::living(&mark), Vec::<String>::new(), "{line}");
        Ran { end: end.unwrap(), out: heard.out(), heard, took: started_at.elapsed() }
    }

    const EXITED: ProcessStatus = ProcessStatus::Exited { code: 0 };

    #[tokio::test]
    async fn both_streams_and_the_status_come_back() {
        let ran = run(command("echo out; echo err >&2; exit 7", "")).await;
        assert_eq!(ran.out, "out\n");
        assert_eq!(*ran.heard.err.lock().unwrap(), b"err\n");
        assert_eq!(ran.end, ProcessEnd::group(ProcessStatus::Exited { code: 7 }, None, false, false));
        for (line, signal) in [("kill -9 $$", 9), ("kill -SEGV $$", 11), ("kill -36 $$", 36)] {
            assert_eq!(run(command(line, "")).await.end.status, ProcessStatus::Signalled { signal }, "{line}");
        }
    }

    #[tokio::test]
    async fn the_environment_is_what_was_given_and_the_group_is_its_own() {
        let ran = run(command("exec env", "m")).await;
        let mut lines: Vec<&str> = ran.out.lines().filter(|line| !line.starts_with("_=")).collect();
        lines.sort_unstable();
        // PWD and SHLVL are the shell's own.
        assert_eq!(
            lines,
            ["PATH=/usr/local/bin:/usr/bin:/bin", "PWD=/", "SHLVL=0", "TOOLWARDEN_TEST_MARK=m"],
            "{}",
            ran.out
        );
        let ran = run(command("read -r _ _ _ _ group _ < /proc/$$/stat; echo $(( group == $$ ))", "")).await;
        assert_eq!(ran.out, "1\n");
    }

    // Case C001: the shell's end counts, not the end of the pipe.
    #[tokio::test]
    async fn a_background_child_does_not_hold_the_call() {
        for (line, held) in [
            ("sleep 600 & echo hi", true),
            ("sleep 600 >/dev/null & echo hi", true),
            ("sleep 600 >/dev/null 2>&1 & echo hi", false),
        ] {
            let mark = marked::unique();
            let ran = run(command(line, &mark)).await;
            assert_eq!((ran.out.as_str(), ran.end.status), ("hi\n", EXITED), "{line}");
            assert_eq!((ran.end.output_held, ran.end.killed_background), (held, true), "{line}");
            assert_eq!(marked::living(&mark), Vec::<String>::new(), "{line}");
            assert!(ran.took < Duration::from_secs(5), "{line}: {:?}", ran.took);
        }
    }

    #[tokio::test]
    async fn what_left_the_group_is_reported_as_holding_the_output() {
        let ran = run(command("echo $(setsid sh -c 'echo $$; exec sleep 600 >/dev/null' &)", "")).await;
        let pid = ran.out.lines().next().and_then(|line| line.parse().ok()).unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        assert!(ran.end.output_held);
        assert!(!ran.end.killed_background);
    }

    #[tokio::test]
    async fn output_that_comes_late_within_the_drain_is_kept() {
        let patient =
            CommandSpec { drain: Duration::from_secs(30), ..command("(sleep 0.02; echo late) & echo first", "") };
        let ran = run(patient).await;
        assert_eq!(ran.out, "first\nlate\n");
        assert!(!ran.end.output_held);
        assert!(ran.took < Duration::from_secs(30), "{:?}", ran.took);
    }

    // Case C003: the whole group is ended.
    #[tokio::test]
    async fn a_stop_ends_a_pipeline_as_a_whole() {
        let ran = stopped_when_ready("echo ready; sh -c 'sleep 600 | cat'; :").await;
        assert_eq!(ran.end.stopped, Some(CancelReason::Requested));
        assert_eq!(ran.end.status, ProcessStatus::Signalled { signal: 15 });
        assert!(!ran.end.output_held);
    }

    // Case C004: a grace, then KILL.
    #[tokio::test]
    async fn a_command_that_ignores_term_is_killed_after_the_grace() {
        let ran = stopped_when_ready("trap '' TERM INT HUP; echo ready; while :; do sleep 1; done").await;
        assert_eq!(ran.end.status, ProcessStatus::Signalled { signal: 9 });
        assert!(ran.took >= Duration::from_millis(300), "{:?}", ran.took);
        assert!(ran.took < Duration::from_secs(5) + KILL_WAIT, "{:?}", ran.took);
    }

    #[tokio::test]
    async fn a_command_may_tidy_up_within_the_grace() {
        let ran = stopped_when_ready(
            "trap 'echo tidy; exit 3' TERM; echo ready; while :; do read -rt 1 _ < <(exec sleep 1); done",
        )
        .await;
        assert_eq!((ran.end.status, ran.out.as_str()), (ProcessStatus::Exited { code: 3 }, "ready\ntidy\n"));
    }

    #[tokio::test]
    async fn a_suspended_command_hears_the_stop() {
        let ran = stopped_when_ready("trap 'echo woken; exit 4' TERM; echo ready; kill -STOP $$; sleep 600").await;
        assert_eq!((ran.end.status, ran.out.as_str()), (ProcessStatus::Exited { code: 4 }, "ready\nwoken\n"));
    }

    // Case C006: standard input is empty, or exactly what was given.
    #[tokio::test]
    async fn standard_input_ends() {
        assert_eq!(run(command("cat; read x; echo got:$x", "")).await.out, "got:\n");
        // More than a pipe holds, to a reader that writes as much itself, and to one that never reads.
        let bytes = "0123456789abcde\n".repeat(64 * 1024);
        let echoed = run(CommandSpec { stdin: Some(bytes.clone().into()), ..command("cat; echo done", "") }).await;
        assert_eq!(echoed.out.len(), bytes.len() + "done\n".len());
        assert!(echoed.out.starts_with(&bytes) && echoed.out.ends_with("done\n"));
        let deaf = run(CommandSpec { stdin: Some(bytes.into()), ..command("echo deaf", "") }).await;
        assert_eq!((deaf.out.as_str(), deaf.end.status), ("deaf\n", EXITED));
        let closed =
            CommandSpec { stdin: Some(b"late".to_vec()), ..command("exec 2>&-; cat >/dev/stdout; exec >&-", "") };
        assert_eq!(run(closed).await.out, "late");
        assert_eq!(run(CommandSpec { stdin: Some(Vec::new()), ..command("cat; echo empty", "") }).await.out, "empty\n");
    }

    #[tokio::test]
    async fn an_endless_stream_does_not_starve_the_other() {
        let stop = Cancellation::new();
        let heard = Arc::new(Counting::default());
        let running = SystemProcesses.run(
            command("yes & while :; do echo err >&2; done", &marked::unique()),
            heard.clone(),
            stop.clone(),
        );
        let both = async {
            heard.both.notified().await;
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, both);
        assert_eq!(end.unwrap().stopped, Some(CancelReason::Requested));
    }

    /// Tells when both streams have brought a mebibyte and a line.
    #[derive(Default)]
    struct Counting {
        bytes: Mutex<(usize, usize)>,
        both: Notify,
    }

    impl OutputSink for Counting {
        fn push(&self, stream: Stream, bytes: &[u8]) {
            let mut counts = self.bytes.lock().unwrap();
            *(if stream == Stream::Out { &mut counts.0 } else { &mut counts.1 }) += bytes.len();
            if counts.0 > 1 << 20 && counts.1 > 0 {
                self.both.notify_one();
            }
        }
    }

    // Case C182: a dropped future leaves nothing.
    #[tokio::test]
    async fn dropping_the_future_kills_the_group() {
        let mark = marked::unique();
        let heard = Arc::new(Heard::default());
        let line = "trap '' TERM; sh -c 'sleep 88 & echo ready; wait'";
        let task = tokio::spawn(SystemProcesses.run(command(line, &mark), heard.clone(), Cancellation::new()));
        heard.until("ready").await;
        assert!(marked::appears(&mark, "sleep 88"));
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(marked::outliving(&mark), Vec::<String>::new());
    }

    #[tokio::test]
    async fn what_cannot_start_says_why() {
        let sink = || Arc::new(Heard::default());
        let start = |command| SystemProcesses.run(command, sink(), Cancellation::new());
        let absent = start(CommandSpec { program: "no-such-shell".into(), ..command("", "") }).await;
        assert!(
            matches!(absent, Err(ProcessError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound)
        );
        let folder = PathBuf::from("/no/such/folder");
        let homeless = start(CommandSpec { folder: folder.clone(), ..command("", "") }).await;
        assert!(matches!(homeless, Err(ProcessError::Folder { folder: missing, .. }) if missing == folder));
        let nul = start(CommandSpec { arguments: vec!["a\0b".into()], ..command("", "") }).await;
        assert!(matches!(nul, Err(ProcessError::Start { .. })));
        // A relative folder in PATH does not decide what runs.
        let mut relative = CommandSpec { folder: PathBuf::from("/usr/bin"), ..command("", "") };
        relative.environment.insert("PATH".into(), ".::bin".into());
        assert!(matches!(start(relative).await, Err(ProcessError::Start { .. })));
    }
}
