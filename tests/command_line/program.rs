//! The built program, run in a folder of its own, and the processes that it starts.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// The variable that marks the processes of one test.
pub(crate) const MARK: &str = "TOOLWARDEN_TEST_MARK";
/// How long anything may take before a test is given up, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the program stands: beside the folder of the test's own executable.
pub(crate) fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("toolwarden");
    assert!(path.is_file(), "{} is missing: run `cargo build -p toolwarden-cli` first", path.display());
    path
}

/// A folder to work in, gone at the end.
pub(crate) struct Workspace {
    folder: TempDir,
}

impl Workspace {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// A pipe with a name.
    pub(crate) fn fifo(&self, path: &str) {
        let made = Command::new("mkfifo").arg(self.path().join(path)).status().unwrap();
        assert!(made.success());
    }

    /// `script.jsonl` with these turns.
    pub(crate) fn script(&self, turns: &[Value]) {
        let lines: Vec<String> = turns.iter().map(ToString::to_string).collect();
        self.write("script.jsonl", &lines.join("\n"));
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.path().join(path).exists()
    }

    pub(crate) fn events(&self, path: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path().join(path)).unwrap();
        assert!(text.ends_with('\n'));
        text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"")
    }

    pub(crate) fn run_with(&self, args: &[&str], input: &[u8]) -> Ran {
        let mut running = Running::start(self, args, |_| {});
        if let Some(mut stdin) = running.stdin.take() {
            // A program that reads no further than it has to closes its end.
            let _ = stdin.write_all(input);
        }
        running.ended()
    }
}

/// The program at work.
pub(crate) struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Option<JoinHandle<String>>,
    err: Receiver<String>,
    err_read: String,
}

impl Running {
    pub(crate) fn start(workspace: &Workspace, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(program());
        command.args(args).current_dir(workspace.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let (lines, err) = channel();
        let stderr = child.stderr.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                // The test may have ended.
                let _ = lines.send(line.unwrap() + "\n");
            }
        });
        Self { stdin: child.stdin.take(), child, out: None, err, err_read: String::new() }
    }

    pub(crate) fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Goes away from standard output without having read anything.
    pub(crate) fn close_output(&mut self) {
        drop(self.child.stdout.take());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    /// Waits until this stands on standard error.
    pub(crate) fn says(&mut self, text: &str) {
        while !self.err_read.contains(text) {
            match self.err.recv_timeout(PATIENCE) {
                Ok(line) => self.err_read.push_str(&line),
                Err(error) => panic!("{text:?} was not said ({error}): {}", self.err_read),
            }
        }
    }

    /// Waits until this stands on standard error, and gives its line.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        self.says(text);
        self.err_read.lines().find(|line| line.contains(text)).unwrap().to_owned()
    }

    /// Waits for the end.
    pub(crate) fn ended(mut self) -> Ran {
        if let Some(mut stdout) = self.child.stdout.take() {
            self.out = Some(std::thread::spawn(move || {
                let mut text = String::new();
                stdout.read_to_string(&mut text).unwrap();
                text
            }));
        }
        // The readers end with the program; one that hangs is ended for the sake of the message.
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.err.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.err_read.push_str(&line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    kill(pid, Signal::SIGKILL).unwrap();
                    panic!("the program did not end: {}", self.err_read);
                }
            }
        }
        let status = self.child.wait().unwrap();
        let out = self.out.take().map_or_else(String::new, |out| out.join().unwrap());
        Ran { status, out, err: self.err_read }
    }
}

/// How it ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.status.code(), Some(code), "{self:?}");
        self
    }

    /// Standard output as one line of JSON.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.out.matches('\n').count(), 1, "one line: {self:?}");
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A mark that no other test has.
pub(crate) fn unique_mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("command-line-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The command lines of living processes with this mark.
pub(crate) fn living(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " ").trim_end().to_owned());
        }
    }
    found
}

/// Waits until a process with this mark has this command line.
pub(crate) fn appears(mark: &str, line: &str) {
    let seen = looked_for(mark, |living| living.iter().any(|living| living == line));
    assert!(seen.iter().any(|living| living == line), "{line} never ran: {seen:?}");
}

/// What still lives of this mark when its processes had time to die of a kill.
pub(crate) fn outliving(mark: &str) -> Vec<String> {
    looked_for(mark, <[String]>::is_empty)
}

fn looked_for(mark: &str, enough: impl Fn(&[String]) -> bool) -> Vec<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = living(mark);
        if enough(&found) || Instant::now() > deadline {
            return found;
        }
        std::thread::yield_now();
    }
}
