//! The real side of the processes port at the level [`ContainmentLevel::SubReaper`]: commands under a shim.
//!
//! What must stay true: dropping the future closes the lease, which ends the command at once; an end without
//! survivors is told only when a scope or the keeper has said that nothing is left; every wait but the one for the
//! command itself has a bound.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rustix::fs::{Mode, OFlags};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::handle::{Handed, Handle};
use super::wire::{FINISH, Report, Request, STOP};
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::processes::pipes::Pipes;
use crate::effects::processes::system::{find_program, refusal};
use crate::effects::processes::{
    CommandSpec, ContainmentLevel, Left, LeftProcess, Leftover, OutputSink, ProcessEnd, ProcessError, ProcessStatus,
    Processes, left,
};

/// How long a scope may take to report after the grace of a command, before it is given up.
const REPORT_WAIT: Duration = Duration::from_millis(1300);
/// The pause between two looks at a command that no scope is known to have taken.
const UNTAKEN_PAUSE: Duration = Duration::from_millis(100);
/// How often a command that no scope took is handed over.
const ATTEMPTS: usize = 3;
/// How long what a stopped command wrote last is still read.
const LAST_READ: Duration = Duration::from_millis(20);

/// Runs commands on this machine under a shim; made by
/// [`SystemProcesses::with_shim`](crate::effects::processes::system::SystemProcesses::with_shim). Clones share it;
/// with the last one it ends.
#[derive(Clone)]
pub struct GuardedProcesses {
    shim: Arc<Handle>,
}

impl GuardedProcesses {
    pub(in crate::effects::processes) fn new(executable: PathBuf) -> Self {
        Self { shim: Arc::new(Handle::new(executable)) }
    }
}

impl Processes for GuardedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let shim = Arc::clone(&self.shim);
        Box::pin(async move {
            for _ in 0..ATTEMPTS {
                let (handed, pipes) = start(&shim, &command).await?;
                match Attendance::new(&command, handed, pipes).attend(sink.as_ref(), &stop).await {
                    Ok(end) => return Ok(end),
                    Err(Failure::Process(error)) => return Err(error),
                    // It was not run, so that it can be handed over once more.
                    Err(Failure::Untaken) => {}
                }
            }
            let source = io::Error::other("the shim was killed again and again before it took the command");
            Err(ProcessError::Start { program: command.program.clone(), source })
        })
    }
}

/// Hands a command to a scope.
async fn start(shim: &Handle, command: &CommandSpec) -> Result<(Handed, Pipes), ProcessError> {
    let refused = |source| ProcessError::Start { program: command.program.clone(), source };
    let path = command.environment.get("PATH").map_or("", String::as_str);
    let file = find_program(&command.program, path).ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
    let request = Request::new(&file, command).and_then(|request| request.to_bytes()).map_err(refused)?;
    let folder = folder(command)?;
    let (pipes, far) = Pipes::open(command.stdin.clone()).map_err(refused)?;
    let mut descriptors = vec![folder.as_fd(), far.out.as_fd(), far.err.as_fd()];
    descriptors.extend(far.input.as_ref().map(|input| input.as_fd()));
    let handed = shim.hand_over(&request, &descriptors).await.map_err(refused)?;
    Ok((handed, pipes))
}

/// The working directory, held by descriptor: what happens to its name from here on does not matter.
fn folder(command: &CommandSpec) -> Result<OwnedFd, ProcessError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(&command.folder, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => {
            ProcessError::Folder { program: command.program.clone(), folder: command.folder.clone() }
        }
        error => refusal(command, error.into()),
    })
}

/// What is known of a running command.
struct Attendance<'a> {
    command: &'a CommandSpec,
    handed: Handed,
    pipes: Pipes,
    status: Option<ProcessStatus>,
    stopped: Option<CancelReason>,
    /// Whether the scope was told to end what the command left behind.
    is_finishing: bool,
    /// Whether what the command left behind goes on.
    is_kept: bool,
    left: Vec<LeftProcess>,
    output_held: bool,
}

/// Why there is no end to tell of.
enum Failure {
    /// No scope has taken the command, and none will.
    Untaken,
    Process(ProcessError),
}

/// What a scope or the keeper said last.
struct Gone {
    killed_background: bool,
    survivors: Vec<u32>,
}

impl<'a> Attendance<'a> {
    fn new(command: &'a CommandSpec, handed: Handed, pipes: Pipes) -> Self {
        let (status, stopped, left) = (None, None, Vec::new());
        Self { command, handed, pipes, status, stopped, is_finishing: false, is_kept: false, left, output_held: false }
    }

    async fn attend(mut self, sink: &dyn OutputSink, stop: &Cancellation) -> Result<ProcessEnd, Failure> {
        let gone = self.gone(sink, stop).await?;
        // Nobody is left to write, unless a pipe was handed to a stranger or something survives.
        let last_read = if self.stopped.is_some() || self.is_finishing { LAST_READ } else { self.command.drain };
        let is_drained = timeout(last_read, self.pipes.drained(sink)).await.is_ok();
        Ok(ProcessEnd {
            status: self.status.unwrap_or(ProcessStatus::Unknown),
            stopped: self.stopped,
            output_held: self.output_held || !is_drained,
            killed_background: gone.killed_background,
            level: ContainmentLevel::SubReaper,
            survivors: gone.survivors,
            left: self.left,
            handed_over: None,
        })
    }

    /// Moves output and orders until nothing is left of the command.
    async fn gone(&mut self, sink: &dyn OutputSink, stop: &Cancellation) -> Result<Gone, Failure> {
        // Set when it is needed.
        let mut drain = pin!(sleep_until(Instant::now()));
        let mut overdue = pin!(sleep_until(Instant::now()));
        let mut untaken = pin!(sleep(UNTAKEN_PAUSE));
        let mut is_taken = false;
        loop {
            let is_ending = self.stopped.is_some() || self.is_finishing;
            let is_draining = self.status.is_some() && !is_ending && !self.is_kept;
            tokio::select! { biased;
                report = self.handed.reports.next() => match report.map_err(|source| self.lost(source))? {
                    Some(Report::Ended { status }) => {
                        self.status = Some(status);
                        drain.as_mut().reset(Instant::now() + self.command.drain);
                    }
                    Some(Report::Gone { killed_background, survivors }) => {
                        return Ok(Gone { killed_background, survivors });
                    }
                    Some(Report::Failed { errno }) => {
                        let source = io::Error::from_raw_os_error(errno);
                        return Err(Failure::Process(refusal(self.command, source)));
                    }
                    Some(_) => return Err(self.lost(io::ErrorKind::InvalidData.into())),
                    None => return self.sweep().await,
                },
                reason = stop.cancelled(), if !is_ending => {
                    // The command's own end came first and stays; then only the drain is cut.
                    if is_draining {
                        self.finish();
                    } else {
                        self.stopped = Some(reason);
                        self.handed.order(STOP);
                    }
                }
                () = overdue.as_mut(), if is_ending => return self.sweep().await,
                () = drain.as_mut(), if is_draining => self.leave(sink),
                () = untaken.as_mut(), if !is_taken => {
                    is_taken = self.handed.scope().is_some();
                    if !is_taken && !self.handed.is_awaited() {
                        return self.sweep().await;
                    }
                    untaken.as_mut().reset(Instant::now() + UNTAKEN_PAUSE);
                }
                () = self.pipes.serve_until(sink, is_draining) => self.leave(sink),
            }
            if !is_ending && (self.stopped.is_some() || self.is_finishing) {
                overdue.as_mut().reset(Instant::now() + self.command.grace + REPORT_WAIT);
            }
        }
    }

    /// The command has ended, and something of it still runs: asks what becomes of that.
    fn leave(&mut self, sink: &dyn OutputSink) {
        let scope = self.handed.scope().and_then(|scope| u32::try_from(scope).ok());
        self.left = scope.map(left::below).unwrap_or_default();
        let status = self.status.unwrap_or(ProcessStatus::Unknown);
        let told = Left { status, level: ContainmentLevel::SubReaper, processes: self.left.clone() };
        match sink.left(&told) {
            Leftover::Keep => self.is_kept = true,
            Leftover::Stop => self.finish(),
        }
    }

    fn finish(&mut self) {
        self.is_finishing = true;
        self.output_held = !self.pipes.are_closed();
        self.handed.order(FINISH);
    }

    /// The scope is gone, or does not answer: the keeper ends what is left.
    async fn sweep(&mut self) -> Result<Gone, Failure> {
        self.handed.let_go();
        let Some(scope) = self.handed.scope() else { return Err(Failure::Untaken) };
        let survivors = self.handed.sweep(scope).await.map_err(|source| self.lost(source))?;
        Ok(Gone { killed_background: false, survivors })
    }

    fn lost(&self, source: io::Error) -> Failure {
        Failure::Process(ProcessError::Wait { program: self.command.program.clone(), source })
    }
}
