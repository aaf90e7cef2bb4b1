//! The twin of the processes port: commands that are as rude as real ones, at the level of the port.
//!
//! The last argument is the command line, as `bash` gives it; its simple commands are read one by one:
//! `echo TEXT`, `sleep SECONDS`, `exit CODE`, `flood BYTES`, `deaf` (ignores TERM), `daemon SECONDS` (leaves a process
//! behind that runs so long), `fork` (answers TERM by leaving a process behind that hears nothing but KILL), `hang` (until
//! it is killed), `write FILE TEXT` (unsynced). Anything else exits with 127.
//!
//! Faults: a command cannot be started (no processes, no memory) or is lost track of; it answers TERM late, not at all, or
//! with a fork; its output comes in odd pieces, cut inside of characters; a process of it holds the pipes; one survives its
//! KILL for a while and is named. All of it ends with the process of the world, as at every level but the lowest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{Instant, sleep, sleep_until};
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::processes::{
    CommandSpec, ContainmentLevel, Left, LeftProcess, Leftover, OutputSink, ProcessEnd, ProcessError, ProcessStatus,
    Processes, Stream,
};

use crate::fate::Fate;
use crate::sight::Sight;
use crate::twins::files::PretendedFiles;

/// Number of the signal KILL.
const KILL: i32 = 9;
/// Number of the signal TERM.
const TERM: i32 = 15;
/// Most bytes that `flood` writes.
const FLOOD_BYTES_MAX: usize = 1024 * 1024;
/// Longest `sleep` and `daemon`, in seconds.
const SLEEP_SECONDS_MAX: f64 = 86_400.0;

/// Runs commands; clones count them together.
#[derive(Clone)]
pub struct PretendedProcesses {
    fate: Fate,
    faulty: bool,
    files: PretendedFiles,
    next: Arc<AtomicU64>,
}

impl PretendedProcesses {
    /// The commands of this world, which write into these files.
    pub fn new(fate: Fate, files: PretendedFiles, faulty: bool) -> Self {
        Self { fate, faulty, files, next: Arc::default() }
    }

    fn rare(&self, kinds: u32) -> Option<u32> {
        if self.faulty { self.fate.rare(kinds) } else { None }
    }
}

/// One step of a command line.
enum Step {
    Echo(String),
    Sleep(Duration),
    Flood(usize),
    Deaf,
    Daemon(Duration),
    Fork,
    Hang,
    Write(String, String),
    Exit(i32),
}

fn steps(line: &str) -> Vec<Step> {
    let simple = line.split(';').flat_map(|part| part.split("&&")).map(str::trim).filter(|part| !part.is_empty());
    simple.map(step).collect()
}

fn step(simple: &str) -> Step {
    let (word, rest) = simple.split_once(' ').unwrap_or((simple, ""));
    let rest = rest.trim();
    let span = || Duration::from_secs_f64(rest.parse::<f64>().unwrap_or(0.0).clamp(0.0, SLEEP_SECONDS_MAX));
    match word {
        "echo" => Step::Echo(format!("{rest}\n")),
        "sleep" => Step::Sleep(span()),
        "flood" => Step::Flood(rest.parse().unwrap_or(0).min(FLOOD_BYTES_MAX)),
        "deaf" => Step::Deaf,
        "daemon" => Step::Daemon(span()),
        "fork" => Step::Fork,
        "hang" => Step::Hang,
        "write" => {
            let (file, text) = rest.split_once(' ').unwrap_or((rest, ""));
            Step::Write(file.to_owned(), text.to_owned())
        }
        "exit" => Step::Exit(rest.parse().unwrap_or(1)),
        "true" => Step::Exit(0),
        _ => Step::Exit(127),
    }
}

impl Processes for PretendedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let world = self.clone();
        Box::pin(async move { world.live(command, sink, stop).await })
    }
}

/// Tells that nothing is left of a command, however its future goes.
struct Alive {
    fate: Fate,
    command: u64,
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.fate.see(&Sight::CommandOver { command: self.command });
    }
}

/// A command under way.
struct Running {
    world: PretendedProcesses,
    sink: Arc<dyn OutputSink>,
    deaf: bool,
    /// Answers TERM with one more process.
    forks: bool,
    /// Until when what it left behind runs.
    daemon_until: Option<Instant>,
}

impl PretendedProcesses {
    async fn live(
        self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> Result<ProcessEnd, ProcessError> {
        let program = command.program.clone();
        let lost = match self.rare(3) {
            Some(0) => {
                self.fate.met("a command that cannot be started");
                let source = std::io::Error::from_raw_os_error(11);
                return Err(ProcessError::Start { program, source });
            }
            Some(1) => true,
            Some(_) => {
                self.fate.met("a command that starts late");
                sleep(Duration::from_millis(1_500)).await;
                false
            }
            None => false,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.fate.see(&Sight::CommandStarted { command: number });
        let alive = Alive { fate: self.fate.clone(), command: number };
        let line = command.arguments.last().cloned().unwrap_or_default();
        let mut running = Running { world: self, sink, deaf: false, forks: false, daemon_until: None };
        let (mut status, mut stopped) = (ProcessStatus::Exited { code: 0 }, None);
        let reason = {
            let work = running.work(&line);
            tokio::pin!(work);
            tokio::select! {
                biased;
                code = &mut work => {
                    status = ProcessStatus::Exited { code };
                    None
                }
                reason = stop.cancelled() => Some(reason),
            }
        };
        if let Some(reason) = reason {
            status = ProcessStatus::Signalled { signal: running.end(command.grace).await };
            stopped = Some(reason);
        }
        if lost {
            running.world.fate.met("a command that was lost track of");
            drop(alive);
            return Err(ProcessError::Wait { program, source: std::io::ErrorKind::Other.into() });
        }
        let end = running.settle(status, stopped, &command, &stop).await;
        drop(alive);
        Ok(end)
    }
}

impl Running {
    /// Does what the line says; gives the exit code.
    async fn work(&mut self, line: &str) -> i32 {
        for step in steps(line) {
            match step {
                Step::Echo(text) => self.print(Stream::Out, text.as_bytes()).await,
                Step::Sleep(span) => sleep(span).await,
                Step::Flood(bytes) => self.print(Stream::Out, &vec![b'x'; bytes]).await,
                Step::Deaf => self.deaf = true,
                Step::Daemon(span) => {
                    self.daemon_until = Some(Instant::now() + span);
                }
                Step::Fork => self.forks = true,
                Step::Hang => std::future::pending().await,
                Step::Write(file, text) => self.world.files.scribble(&file, text.as_bytes()),
                Step::Exit(code) => return code,
            }
        }
        0
    }

    /// Output in pieces of odd sizes, with pauses.
    async fn print(&self, stream: Stream, bytes: &[u8]) {
        let pieces = 1 + self.world.fate.usual(4);
        for piece in bytes.chunks(bytes.len().div_ceil(pieces).max(1)) {
            self.sink.push(stream, piece);
            if pieces > 1 {
                sleep(Duration::from_millis(1)).await;
            }
        }
    }

    /// TERM, grace, KILL; gives the signal that ended it.
    async fn end(&mut self, grace: Duration) -> i32 {
        let rude = self.world.rare(2);
        if self.forks || rude == Some(1) {
            self.world.fate.met("a command that forked when it was told to end");
            let fork = self.world.next.fetch_add(1, Ordering::Relaxed);
            self.world.fate.see(&Sight::CommandStarted { command: fork });
            // It ends with this: by KILL when the grace is over, or with whoever carries the command.
            let _alive = Alive { fate: self.world.fate.clone(), command: fork };
            sleep(grace).await;
            return TERM;
        }
        if self.deaf || rude == Some(0) {
            self.world.fate.met("a command that did not hear TERM");
            sleep(grace).await;
            return KILL;
        }
        let reacts = [Duration::ZERO, Duration::from_millis(5), grace / 2];
        sleep(reacts[self.world.fate.usual(reacts.len())]).await;
        TERM
    }

    /// What is left when the command itself has ended.
    async fn settle(
        self,
        status: ProcessStatus,
        stopped: Option<toolwarden_tools::cancellation::CancelReason>,
        command: &CommandSpec,
        stop: &Cancellation,
    ) -> ProcessEnd {
        let fate = &self.world.fate;
        let mut end = ProcessEnd {
            status,
            stopped,
            output_held: false,
            killed_background: false,
            level: ContainmentLevel::SubReaper,
            survivors: Vec::new(),
            left: Vec::new(),
            handed_over: None,
            confinement: None,
        };
        if let Some(until) = self.daemon_until.filter(|until| *until > Instant::now() && end.stopped.is_none()) {
            fate.met("a process that was left behind");
            end.left = vec![LeftProcess { pid: 4_000_000, command: "daemon".to_owned() }];
            let left =
                Left { status, level: ContainmentLevel::SubReaper, confinement: None, processes: end.left.clone() };
            match self.sink.left(&left) {
                Leftover::Stop => end.killed_background = true,
                Leftover::Keep => {
                    tokio::select! {
                        biased;
                        () = sleep_until(until) => {}
                        reason = stop.cancelled() => {
                            sleep(command.grace / 2).await;
                            end.stopped = Some(reason);
                        }
                    }
                }
            }
        }
        match self.world.rare(2) {
            Some(0) => {
                fate.met("pipes that were held");
                sleep(command.drain).await;
                end.output_held = true;
            }
            Some(_) => {
                fate.met("a process that could not be killed in time");
                sleep(Duration::from_millis(500)).await;
                end.survivors = vec![4_000_001];
            }
            None => {}
        }
        end
    }
}
