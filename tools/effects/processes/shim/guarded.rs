//! The real side of the processes port at the levels that need a shim, from [`ContainmentLevel::SubReaper`] up.
//!
//! What must stay true: dropping the future closes the lease, which ends the command at once; an end without
//! survivors is told only when a warden or the keeper has said that nothing is left; every wait but the one for the
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

use super::handle::{HandOverError, Handed, Handle};
use super::wire::{FINISH, Report, Request, STOP};
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::processes::confinement::checked::Checked;
use crate::effects::processes::confinement::kernel::KernelSupport;
use crate::effects::processes::confinement::{ConfinementError, Step};
use crate::effects::processes::containment::{CommandLimits, Containment, Unavailable};
use crate::effects::processes::pipes::Pipes;
use crate::effects::processes::system::{find_program, refusal};
use crate::effects::processes::{
    CommandSpec, ContainmentLevel, Left, LeftProcess, Leftover, OutputSink, ProcessEnd, ProcessError, ProcessStatus,
    Processes, left,
};

/// How long a warden may take to report after the grace of a command, before it is given up.
const REPORT_WAIT: Duration = Duration::from_millis(1300);
/// The pause between two looks at a command that no warden is known to have taken.
const UNTAKEN_PAUSE: Duration = Duration::from_millis(100);
/// How often a command that no warden took is handed over.
const ATTEMPTS: usize = 3;
/// How long what a stopped command wrote last is still read.
const LAST_READ: Duration = Duration::from_millis(20);

/// Runs commands on this machine under a shim; made by
/// [`SystemProcesses::with_shim`](crate::effects::processes::system::SystemProcesses::with_shim) and
/// [`contained`](crate::effects::processes::system::SystemProcesses::contained). Clones share it; with the last one it
/// ends.
#[derive(Clone)]
pub struct GuardedProcesses {
    shim: Arc<Handle>,
    kernel: Option<KernelSupport>,
}

impl GuardedProcesses {
    pub(in crate::effects::processes) fn new(executable: PathBuf, containment: Containment) -> Self {
        Self { shim: Arc::new(Handle::new(executable, containment)), kernel: None }
    }

    /// Takes this for what the kernel gives, instead of finding it out. It changes what is refused, and never what
    /// is put in force.
    #[must_use]
    pub fn on_kernel(self, support: KernelSupport) -> Self {
        Self { kernel: Some(support), ..self }
    }

    /// The level that commands run at, or are refused.
    pub fn level(&self) -> ContainmentLevel {
        self.shim.level()
    }

    /// Starts the shim, if it is not there, which tries out the level; so that a host knows before the first command.
    /// Takes some milliseconds the first time.
    ///
    /// # Errors
    /// Why the level is not available here. Commands are refused for the same reason.
    pub async fn probe(&self) -> Result<(), Unavailable> {
        self.shim.prepare().await.map_err(|error| match error {
            HandOverError::Unavailable(reason) => reason,
            HandOverError::Io(error) => Unavailable::Shim { reason: error.to_string() },
        })
    }
}

impl Processes for GuardedProcesses {
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>> {
        let (shim, kernel) = (Arc::clone(&self.shim), self.kernel);
        Box::pin(async move {
            for _ in 0..ATTEMPTS {
                let checked = check(&command, kernel).await?;
                let Some((handed, pipes)) = start(&shim, &command, checked).await? else { continue };
                match Attendance::new(&command, shim.level(), handed, pipes).attend(sink.as_ref(), &stop).await {
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

    fn limited(&self, limits: CommandLimits) -> BoxFuture<'static, Result<Arc<dyn Processes>, Unavailable>> {
        let (shim, kernel) = (Arc::clone(&self.shim), self.kernel);
        Box::pin(async move {
            let containment = limits.held_with(shim.containment())?;
            let limited = Self { shim: Arc::new(shim.held_with(containment)), kernel };
            limited.probe().await?;
            Ok(Arc::new(limited) as _)
        })
    }
}

/// Looks at what a command is to be confined to; none when to nothing.
async fn check(command: &CommandSpec, kernel: Option<KernelSupport>) -> Result<Option<Checked>, ProcessError> {
    let Some(confinement) = command.confinement.clone().filter(|confinement| !confinement.is_off()) else {
        return Ok(None);
    };
    let (temporary, folder) = (command.environment.get("TMPDIR").cloned(), command.folder.clone());
    let checking = tokio::task::spawn_blocking(move || {
        kernel.unwrap_or_else(KernelSupport::of_this_machine).suffices(&confinement)?;
        let checked = Checked::new(&confinement, temporary.as_deref())?;
        checked.may_work_in(&folder)?;
        Ok(checked)
    });
    let program = || command.program.clone();
    match checking.await {
        Ok(checked) => checked.map(Some).map_err(|source| ProcessError::Unconfined { program: program(), source }),
        Err(error) => Err(ProcessError::Start { program: program(), source: io::Error::other(error) }),
    }
}

/// Hands a command to a warden; nothing, when the one that was called is gone.
async fn start(
    shim: &Handle,
    command: &CommandSpec,
    checked: Option<Checked>,
) -> Result<Option<(Handed, Pipes)>, ProcessError> {
    let refused = |source| ProcessError::Start { program: command.program.clone(), source };
    let handed = shim.call_warden().await.map_err(|error| match error {
        HandOverError::Io(error) => refused(error),
        HandOverError::Unavailable(reason) => {
            ProcessError::Containment { program: command.program.clone(), level: shim.level(), reason }
        }
    })?;
    let path = command.environment.get("PATH").map_or("", String::as_str);
    let file = find_program(&command.program, path).ok_or_else(|| refused(io::ErrorKind::NotFound.into()))?;
    let request = Request::new(&file, command, checked).and_then(|request| request.to_bytes()).map_err(refused)?;
    let folder = folder(command)?;
    let (pipes, far) = Pipes::open(command.stdin.clone()).map_err(refused)?;
    let mut descriptors = vec![folder.as_fd(), far.out.as_fd(), far.err.as_fd()];
    descriptors.extend(far.input.as_ref().map(|input| input.as_fd()));
    let is_sent = handed.send(&request, &descriptors).await.is_ok();
    Ok(is_sent.then_some((handed, pipes)))
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
    level: ContainmentLevel,
    handed: Handed,
    pipes: Pipes,
    status: Option<ProcessStatus>,
    stopped: Option<CancelReason>,
    /// Whether the warden was told to end what the command left behind.
    is_finishing: bool,
    /// Whether what the command left behind goes on.
    is_kept: bool,
    left: Vec<LeftProcess>,
    output_held: bool,
}

/// Why there is no end to tell of.
enum Failure {
    /// No warden has taken the command, and none will.
    Untaken,
    Process(ProcessError),
}

/// What a warden or the keeper said last.
struct Gone {
    killed_background: bool,
    survivors: Vec<u32>,
}

impl<'a> Attendance<'a> {
    fn new(command: &'a CommandSpec, level: ContainmentLevel, handed: Handed, pipes: Pipes) -> Self {
        let (status, stopped, left) = (None, None, Vec::new());
        let (is_finishing, is_kept, output_held) = (false, false, false);
        Self { command, level, handed, pipes, status, stopped, is_finishing, is_kept, left, output_held }
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
            level: self.level,
            survivors: gone.survivors,
            left: self.left,
            handed_over: None,
            confinement: self.command.confinement.clone(),
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
                    Some(Report::Unconfined { step, errno }) => {
                        let Some(step) = Step::numbered(step) else {
                            return Err(self.lost(io::ErrorKind::InvalidData.into()));
                        };
                        let source = ConfinementError::Step { step, source: io::Error::from_raw_os_error(errno) };
                        let program = self.command.program.clone();
                        return Err(Failure::Process(ProcessError::Unconfined { program, source }));
                    }
                    Some(Report::Unavailable { fault }) => {
                        let (program, level) = (self.command.program.clone(), self.level);
                        let reason = self.handed.reason(fault);
                        return Err(Failure::Process(ProcessError::Containment { program, level, reason }));
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
                    is_taken = self.handed.warden().is_some();
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
        let warden = self.handed.warden().and_then(|warden| u32::try_from(warden).ok());
        self.left = warden.map(left::below).unwrap_or_default();
        let status = self.status.unwrap_or(ProcessStatus::Unknown);
        let confinement = self.command.confinement.clone();
        let told = Left { status, level: self.level, confinement, processes: self.left.clone() };
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

    /// The warden is gone, or does not answer: the keeper ends what is left.
    async fn sweep(&mut self) -> Result<Gone, Failure> {
        self.handed.let_go();
        let Some(warden) = self.handed.warden() else { return Err(Failure::Untaken) };
        let survivors = self.handed.sweep(warden).await.map_err(|source| self.lost(source))?;
        Ok(Gone { killed_background: false, survivors })
    }

    fn lost(&self, source: io::Error) -> Failure {
        Failure::Process(ProcessError::Wait { program: self.command.program.clone(), source })
    }
}
