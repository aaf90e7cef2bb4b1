//! Hostile commands, and the runner that they meet.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::stat::Mode;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;
use toolwarden_tools::effects::processes::containment::Containment;
use toolwarden_tools::effects::processes::shim::guarded::GuardedProcesses;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{CommandSpec, OutputSink, Stream};

use crate::trace;

/// Where this program is: a shim, too.
pub(crate) const SELF: &str = "/proc/self/exe";
/// The argument that makes this program a sub-reaper that runs a script.
pub(crate) const SUB_REAPER: &str = "--play-sub-reaper";
/// The folders that programs are found in.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// How long all commands of a test may take to be ready.
const READY_WAIT: Duration = Duration::from_secs(60);

/// A hostile command: what it sets up, and how it goes on when it has said that it is ready. `MARK` stands for the
/// mark, `SELF` for this program, `END` for what the test wants at the end.
pub(crate) const HOSTILE: &[(&str, &str, &str)] = &[
    ("plain child", "true", "(END)"),
    ("background", "sleep 600 & sleep 600 >/dev/null & (sleep 600; :) &", "END"),
    ("setsid", "setsid sleep 600 & setsid -f sleep 600", "END"),
    ("nohup", "nohup sleep 600 >/dev/null & disown", "END"),
    ("double fork", "(setsid sh -c '(sleep 600; :) & sleep 600 & exit' &)", "END"),
    ("chain of sessions", "setsid sh -c 'setsid sh -c \"setsid sleep 600 & sleep 600\" & sleep 600' &", "END"),
    ("closed pipes", "sleep 600 >&- 2>&- <&- & setsid sleep 600 >&- 2>&- <&- &", "END"),
    ("TERM ignored", "trap '' TERM INT HUP; sleep 600 & (setsid sleep 600; :) &", "END"),
    ("fork bomb of 200", "for i in {1..100}; do sleep 600 & setsid sleep 600 & done", "END"),
    ("process substitution", "exec 7> >(sleep 600; cat); exec 8< <(sleep 600)", "END"),
    ("exec chain", "setsid sleep 600 &", "exec sh -c 'exec sh -c \"END\"'"),
    ("stopped", "sleep 600 & kill -STOP $!; (trap '' TERM; setsid sleep 600; :) & kill -STOP $!", "END"),
    ("forks on TERM", "(trap 'setsid sleep 600 & sleep 600 &' TERM; while :; do sleep 600 & wait $!; done) &", "END"),
    ("respawns", "(trap '' TERM; while :; do setsid sleep 600 & sleep 0.02; done) &", "END"),
    ("kills its parent", "sleep 600 & setsid sleep 600 &", "kill -9 $PPID; END"),
    ("sub-reaper", "SELF --play-sub-reaper '(setsid sleep 600 &); sleep 600' &", "END"),
    (
        "no environment",
        "env -i bash -c 'exec -a MARK setsid sleep 600' & (env -i bash -c 'exec -a MARK sleep 600' &)",
        "END",
    ),
];

/// Runs a script in a process that is a sub-reaper.
pub(crate) fn play_sub_reaper(script: &[String]) -> ExitCode {
    set_child_subreaper(true).unwrap();
    eprintln!("{}", Command::new("bash").arg("-c").args(script).exec());
    ExitCode::FAILURE
}

/// A named pipe that commands tell of their readiness.
pub(crate) struct Ready {
    path: PathBuf,
    pipe: pipe::Receiver,
}

impl Ready {
    pub(crate) fn new(folder: &Path) -> Self {
        let path = folder.join("ready");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        Self::open(&path)
    }

    /// Opens one that is there.
    pub(crate) fn open(path: &Path) -> Self {
        // Held for writing too, so that nobody waits for a reader or finds none.
        let pipe = pipe::OpenOptions::new().read_write(true).open_receiver(path).unwrap();
        Self { path: path.to_owned(), pipe }
    }

    /// The lines of all hostile commands, each ending with `end`.
    pub(crate) fn lines(&self, mark: &str, end: &str) -> Vec<String> {
        HOSTILE.iter().map(|(_, set_up, then)| self.line(set_up, then, mark, end)).collect()
    }

    pub(crate) fn line(&self, set_up: &str, then: &str, mark: &str, end: &str) -> String {
        let own = std::fs::read_link(SELF).unwrap();
        let line = format!("{set_up}\necho >'{}'\n{then}", self.path.display());
        line.replace("MARK", mark).replace("SELF", &own.display().to_string()).replace("END", end)
    }

    /// Waits until `count` commands are ready.
    pub(crate) async fn all(&mut self, count: usize) {
        let mut told = vec![0; count];
        timeout(READY_WAIT, self.pipe.read_exact(&mut told)).await.expect("the commands are not ready").unwrap();
    }
}

pub(crate) fn guarded() -> GuardedProcesses {
    SystemProcesses::with_shim(SELF)
}

pub(crate) fn contained(containment: &Containment) -> GuardedProcesses {
    SystemProcesses::contained(SELF, containment.clone())
}

/// A line for the port.
pub(crate) fn spec(line: &str, mark: &str) -> CommandSpec {
    CommandSpec {
        program: "bash".into(),
        arguments: vec!["-c".into(), line.into()],
        environment: environment(mark),
        folder: PathBuf::from("/"),
        stdin: None,
        grace: Duration::from_millis(300),
        drain: Duration::from_millis(200),
        confinement: None,
    }
}

pub(crate) fn environment(mark: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("PATH".into(), PATH.into()), (trace::NAME.into(), mark.into())])
}

/// Keeps everything.
#[derive(Default)]
pub(crate) struct Heard {
    out: Mutex<Vec<u8>>,
    err: Mutex<Vec<u8>>,
}

impl OutputSink for Heard {
    fn push(&self, stream: Stream, bytes: &[u8]) {
        let kept = if stream == Stream::Out { &self.out } else { &self.err };
        kept.lock().unwrap().extend_from_slice(bytes);
    }
}

impl Heard {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8(self.out.lock().unwrap().clone()).unwrap()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8(self.err.lock().unwrap().clone()).unwrap()
    }
}
