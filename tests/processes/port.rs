//! The port under a shim, command by command: what it promises besides leaving nothing.

use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{
    CommandSpec, ContainmentLevel, ProcessEnd, ProcessError, ProcessStatus, Processes as _,
};

use crate::command::{Heard, Ready, guarded, spec};
use crate::trace;

const EXITED: ProcessStatus = ProcessStatus::Exited { code: 0 };

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

fn run(command: CommandSpec) -> (Result<ProcessEnd, ProcessError>, String, String) {
    let heard = Heard::new();
    let end = block_on(guarded().run(command, heard.clone(), Cancellation::new()));
    (end, heard.out(), heard.err())
}

pub(crate) fn status_and_streams() {
    let (end, out, err) = run(spec("echo out; echo err >&2; exit 7", ""));
    assert_eq!((out.as_str(), err.as_str()), ("out\n", "err\n"));
    let expected = ProcessEnd {
        status: ProcessStatus::Exited { code: 7 },
        stopped: None,
        output_held: false,
        killed_background: false,
        level: ContainmentLevel::SubReaper,
        survivors: Vec::new(),
        confinement: None,
    };
    assert_eq!(end.unwrap(), expected);
    for (line, signal) in [("kill -9 $$", 9), ("kill -SEGV $$", 11), ("kill -36 $$", 36), ("kill -PIPE $$", 13)] {
        assert_eq!(run(spec(line, "")).0.unwrap().status, ProcessStatus::Signalled { signal }, "{line}");
    }
}

pub(crate) fn what_a_command_inherits() {
    let (_, out, _) = run(spec("exec env", "m"));
    let mut lines: Vec<&str> = out.lines().filter(|line| !line.starts_with("_=")).collect();
    lines.sort_unstable();
    // PWD and SHLVL are the shell's own.
    assert_eq!(lines, ["PATH=/usr/local/bin:/usr/bin:/bin", "PWD=/", "SHLVL=0", "TOOLWARDEN_TEST_MARK=m"], "{out}");
    // Pid, group and session are one number, and there is no terminal.
    let (_, out, _) = run(spec(
        "read -r _ _ _ _ group session tty _ < /proc/$$/stat; echo $(( group == $$ && session == $$ )) $tty",
        "",
    ));
    assert_eq!(out, "1 0\n");
    let (_, out, _) = run(spec("exec grep -E '^Sig(Blk|Ign):' /proc/self/status", ""));
    let numbers = out.lines().map(|line| u64::from_str_radix(&line[8..], 16).unwrap());
    // The C library ignores two of its own, beyond the 31 that have names, in whatever it starts.
    assert_eq!(numbers.map(|signals| signals & 0x7fff_ffff).collect::<Vec<u64>>(), [0, 0], "{out}");
    let (_, out, _) = run(spec("exec find /proc/self/fd -type l -lname '*[^/0-9]*' -printf '%f '", ""));
    // The last one is the list itself.
    assert!(out.starts_with("0 1 2 ") && out.split(' ').filter(|number| !number.is_empty()).count() <= 5, "{out}");
    let folder = tempfile::tempdir().unwrap();
    let (_, out, _) = run(CommandSpec { folder: folder.path().to_owned(), ..spec("pwd -P", "") });
    assert_eq!(out.trim_end(), folder.path().canonicalize().unwrap().to_str().unwrap());
}

// Case C006: standard input is empty, or exactly what was given.
pub(crate) fn standard_input_ends() {
    assert_eq!(run(spec("cat; read x; echo got:$x", "")).1, "got:\n");
    let bytes = "0123456789abcde\n".repeat(64 * 1024);
    let (_, echoed, _) = run(CommandSpec { stdin: Some(bytes.clone().into()), ..spec("cat; echo done", "") });
    assert_eq!(echoed, bytes.clone() + "done\n");
    let (end, deaf, _) = run(CommandSpec { stdin: Some(bytes.into()), ..spec("echo deaf", "") });
    assert_eq!((deaf.as_str(), end.unwrap().status), ("deaf\n", EXITED));
    assert_eq!(run(CommandSpec { stdin: Some(Vec::new()), ..spec("cat; echo empty", "") }).1, "empty\n");
}

// Case C001: the shell's end counts, not the end of the pipe; and here nothing can leave the group unseen.
pub(crate) fn background() {
    for (line, held) in [
        ("sleep 600 & echo hi", true),
        ("setsid sleep 600 & echo hi", true),
        ("sleep 600 >/dev/null 2>&1 & echo hi", false),
        ("(setsid sh -c 'trap \"\" TERM; sleep 600; :' >/dev/null 2>&1 &) ; echo hi", false),
    ] {
        let mark = trace::unique_mark();
        let started_at = Instant::now();
        let (end, out, _) = run(spec(line, &mark));
        let end = end.unwrap();
        assert_eq!((out.as_str(), end.status), ("hi\n", EXITED), "{line}");
        assert_eq!((end.output_held, end.killed_background, end.survivors), (held, true, vec![]), "{line}");
        assert_eq!(trace::living(&mark), [], "{line}");
        assert!(started_at.elapsed() < Duration::from_secs(5), "{line}: {:?}", started_at.elapsed());
    }
    let patient = CommandSpec { drain: Duration::from_secs(30), ..spec("(sleep 0.02; echo late) & echo first", "") };
    let (end, out, _) = run(patient);
    assert_eq!((out.as_str(), end.unwrap().output_held), ("first\nlate\n", false));
}

pub(crate) fn an_obedient_tree_ends_at_once() {
    let mark = trace::unique_mark();
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let mut ready = Ready::new(folder.path());
        let line = ready.line("for i in {1..25}; do setsid sleep 600 & sleep 600 & done", "wait", &mark, "");
        let stop = Cancellation::new();
        let command = CommandSpec { grace: Duration::from_secs(60), ..spec(&line, &mark) };
        let processes = guarded();
        let running = processes.run(command, Heard::new(), stop.clone());
        let begin = async {
            ready.all(1).await;
            stop.cancel(CancelReason::Requested);
            Instant::now()
        };
        let (end, stopped_at) = tokio::join!(running, begin);
        let end = end.unwrap();
        assert_eq!((end.stopped, end.status), (Some(CancelReason::Requested), ProcessStatus::Signalled { signal: 15 }));
        assert_eq!(trace::living(&mark), []);
        assert!(stopped_at.elapsed() < Duration::from_secs(5), "{:?}", stopped_at.elapsed());
        // And one that tidies up is given the time.
        let heard = Heard::new();
        let line = ready.line("trap 'echo tidy; exit 3' TERM", "while :; do read -rt 1 _ < <(sleep 1); done", "", "");
        let stop = Cancellation::new();
        let running = processes.run(spec(&line, &mark), heard.clone(), stop.clone());
        let begin = async {
            ready.all(1).await;
            stop.cancel(CancelReason::Requested);
        };
        let (end, ()) = tokio::join!(running, begin);
        assert_eq!((end.unwrap().status, heard.out().as_str()), (ProcessStatus::Exited { code: 3 }, "tidy\n"));
    });
}

pub(crate) fn what_cannot_start_says_why() {
    let (absent, ..) = run(CommandSpec { program: "no-such-shell".into(), ..spec("", "") });
    assert!(matches!(absent, Err(ProcessError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound));
    let (absent, ..) = run(CommandSpec { program: "/no/such/shell".into(), ..spec("", "") });
    assert!(matches!(absent, Err(ProcessError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound));
    let gone = PathBuf::from("/no/such/folder");
    let (homeless, ..) = run(CommandSpec { folder: gone.clone(), ..spec("", "") });
    assert!(matches!(homeless, Err(ProcessError::Folder { folder, .. }) if folder == gone));
    let (nul, ..) = run(CommandSpec { arguments: vec!["a\0b".into()], ..spec("", "") });
    assert!(matches!(nul, Err(ProcessError::Start { .. })));
    let (long, ..) = run(CommandSpec { arguments: vec!["-c".into(), ": ".repeat(1 << 20)], ..spec("", "") });
    let is_too_long = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ArgumentListTooLong;
    assert!(matches!(long, Err(ProcessError::Start { source, .. }) if is_too_long(&source)));
}

pub(crate) fn what_is_no_shim_is_refused() {
    let run = |executable: &str| {
        let shim = SystemProcesses::with_shim(executable);
        let ran = block_on(shim.run(spec("echo ran", ""), Heard::new(), Cancellation::new()));
        ran.unwrap_err().to_string()
    };
    let text = run("/bin/true");
    assert!(text.contains("/bin/true") && text.contains("enter_if_asked"), "{text}");
    let text = run("/no/such/shim");
    assert!(text.contains("/no/such/shim cannot be started as the shim"), "{text}");
}

pub(crate) fn a_killed_keeper_is_replaced() {
    let mark = trace::unique_mark();
    let folder = tempfile::tempdir().unwrap();
    let own = std::process::id();
    block_on(async {
        let mut ready = Ready::new(folder.path());
        let processes = guarded();
        let line = ready.line("setsid sleep 600 &", "sleep 600; :", &mark, "");
        let stop = Cancellation::new();
        let running = processes.run(spec(&line, &mark), Heard::new(), stop.clone());
        let begin = async {
            ready.all(1).await;
            let keepers = trace::children(own, "toolwarden");
            for keeper in &keepers {
                kill(Pid::from_raw(i32::try_from(*keeper).unwrap()), Signal::SIGKILL).unwrap();
            }
            trace::vanishes(|| trace::alive(&keepers)).unwrap();
            // A new one serves the next command.
            let end = processes.run(spec("exit 5", ""), Heard::new(), Cancellation::new()).await.unwrap();
            assert_eq!(end.status, ProcessStatus::Exited { code: 5 });
            stop.cancel(CancelReason::Requested);
        };
        // The warden of the running command needs no keeper.
        let (end, ()) = tokio::join!(running, begin);
        assert_eq!(end.unwrap().survivors, Vec::<u32>::new());
        assert_eq!(trace::living(&mark), []);
    });
}

pub(crate) fn a_stopped_warden_is_woken() {
    let mark = trace::unique_mark();
    let (end, ..) = run(spec("setsid sleep 600 & kill -STOP $PPID; exit 6", &mark));
    let end = end.unwrap();
    assert_eq!((end.status, end.killed_background), (ProcessStatus::Exited { code: 6 }, true));
    assert_eq!(trace::living(&mark), []);
}

pub(crate) fn a_killed_warden_is_swept_after() {
    for line in ["kill -9 $PPID; exit 0", "setsid sleep 600 & kill -9 $PPID; exec sleep 600"] {
        let mark = trace::unique_mark();
        let (end, ..) = run(spec(line, &mark));
        let end = end.unwrap();
        assert_eq!((end.status, end.survivors), (ProcessStatus::Unknown, vec![]), "{line}");
        assert_eq!(trace::living(&mark), [], "{line}");
    }
}

// A request may be longer than a socket holds.
pub(crate) fn a_long_request_arrives_whole() {
    let variables = (0..12).map(|number| (format!("LONG_{number}"), "x".repeat(100_000)));
    let mut command = spec("printf %s \"${#LONG_0} ${#LONG_11}\"", "");
    command.environment.extend(variables);
    let (end, out, _) = run(command);
    assert_eq!((end.unwrap().status, out.as_str()), (EXITED, "100000 100000"));
}
