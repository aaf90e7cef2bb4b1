//! The host's hold of its keeper: started at the first need, again when it was lost, let go with the last handle.
//!
//! What must stay true: a command that may have begun is never handed over a second time; nothing is started at a
//! lower level because a keeper is missing, or because the level is not available.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::Pid;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::ARGUMENT;
use super::cgroup::{CgroupParent, leaf_name};
use super::last_resort::{self, Attended};
use super::seat::DESCRIPTORS_MAX;
use super::wire::{Fault, Report, VERSION, to_arguments};
use crate::effects::processes::ContainmentLevel;
use crate::effects::processes::containment::{CgroupPlan, Containment, Unavailable};

/// How long a keeper may take to say that it is ready.
const READY_WAIT: Duration = Duration::from_secs(10);
/// How long the keeper may take to answer a wish for a sweep.
const SWEEP_WAIT: Duration = Duration::from_secs(3);
/// How often a request is handed to a new keeper when the one before ends while it is sent.
const ATTEMPTS: usize = 3;
/// Bytes read from a line at once.
const READ_BYTES: usize = 512;

/// The pause between two looks at a cgroup that nobody but this process can end.
const CGROUP_PAUSE: Duration = Duration::from_millis(5);

/// Where the keeper is, if there is one.
pub(super) struct Handle {
    executable: PathBuf,
    containment: Containment,
    keeper: Mutex<Option<Arc<Keeper>>>,
}

/// One running keeper. When the last copy is dropped its sockets close, and it ends when its wardens have.
struct Keeper {
    calls: OwnedFd,
    host: BlockingStream,
    /// Where it makes cgroups, and what those may hold.
    cgroups: Option<CgroupPlan>,
    level: ContainmentLevel,
}

/// Why a command is not handed over.
#[derive(Debug, Error)]
pub(super) enum HandOverError {
    /// The level that was chosen is not available.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There is no keeper, or it cannot be spoken to.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Where reports come from.
pub(super) struct Reports<R> {
    source: R,
    heard: Vec<u8>,
}

/// A command that was handed over.
pub(super) struct Handed {
    pub(super) reports: Reports<Receiver>,
    /// The lease, whose end ends the command; orders go this way, and the warden's pid comes back before it starts
    /// anything. It stands apart from the reports, and unknown to tokio, because nobody needs to wake up for it.
    lease: BlockingStream,
    warden: Option<(i32, Attended)>,
    keeper: Arc<Keeper>,
}

impl From<rustix::io::Errno> for HandOverError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Io(errno.into())
    }
}

impl Handle {
    pub(super) fn new(executable: PathBuf, containment: Containment) -> Self {
        Self { executable, containment, keeper: Mutex::new(None) }
    }

    /// The level that commands run at, or are refused.
    pub(super) fn level(&self) -> ContainmentLevel {
        self.containment.level()
    }

    /// What commands are held with.
    pub(super) fn containment(&self) -> &Containment {
        &self.containment
    }

    /// Another one of the same program.
    pub(super) fn held_with(&self, containment: Containment) -> Self {
        Self::new(self.executable.clone(), containment)
    }

    /// Sees to it that a keeper is there, which has tried out the level.
    ///
    /// # Errors
    /// [`HandOverError`].
    pub(super) async fn prepare(&self) -> Result<(), HandOverError> {
        self.keeper().await.map(|_| ())
    }

    /// Has a warden wait for a command. It wakes up while the rest is made ready.
    ///
    /// # Errors
    /// [`HandOverError`].
    pub(super) async fn call_warden(&self) -> Result<Handed, HandOverError> {
        for _ in 0..ATTEMPTS {
            let keeper = self.keeper().await?;
            let (lease, far_lease) = BlockingStream::pair()?;
            let (reports, far_reports) = pipe_with(PipeFlags::CLOEXEC)?;
            if send(&keeper.calls, &[0], &[far_lease.as_fd(), far_reports.as_fd()]).await.is_err() {
                self.forget(&keeper).await;
                continue;
            }
            lease.set_nonblocking(true)?;
            rustix::io::ioctl_fionbio(&reports, true)?;
            let reports = Reports::from(Receiver::from_owned_fd_unchecked(reports)?);
            return Ok(Handed { reports, lease, warden: None, keeper });
        }
        Err(io::Error::other("the shim ended again and again").into())
    }

    /// The running keeper, or a new one.
    async fn keeper(&self) -> Result<Arc<Keeper>, HandOverError> {
        let mut current = self.keeper.lock().await;
        if let Some(keeper) = current.as_ref().filter(|keeper| keeper.is_alive()) {
            return Ok(Arc::clone(keeper));
        }
        let keeper = Arc::new(Keeper::start(&self.executable, &self.containment).await?);
        *current = Some(Arc::clone(&keeper));
        Ok(keeper)
    }

    /// Does not use this keeper again.
    async fn forget(&self, lost: &Arc<Keeper>) {
        let mut current = self.keeper.lock().await;
        if current.as_ref().is_some_and(|keeper| Arc::ptr_eq(keeper, lost)) {
            *current = None;
        }
    }
}

impl Keeper {
    #[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
    async fn start(executable: &Path, containment: &Containment) -> Result<Self, HandOverError> {
        let (containment, cgroups) = placed(containment)?;
        let kind = SocketType::SEQPACKET;
        let (calls, far_calls) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&calls, true)?;
        let (host, far_host) = UnixStream::pair()?;
        let far_host = far_host.into_std()?;
        far_host.set_nonblocking(false)?;
        let mut command = Command::new(executable);
        command
            .arg(ARGUMENT)
            .args(to_arguments(&containment))
            .env_clear()
            .current_dir("/")
            .stdin(far_calls)
            .stdout(OwnedFd::from(far_host))
            .stderr(Stdio::null());
        let started = last_resort::start(|| {
            let child = command.spawn()?;
            let pid = child.id();
            Ok((child, pid))
        });
        let mut child = started.map_err(|error| named(executable, "cannot be started as the shim", error))?;
        // Its ends of the sockets.
        drop(command);
        // It outlives its sockets a little. Where the async runtime ends first, tokio's next one reaps it.
        tokio::spawn(async move {
            let pid = child.id();
            drop(child.wait().await);
            last_resort::keeper_ended(pid).await;
        });
        let mut reports = Reports::from(host);
        let refused = |reason: &str| Err(io::Error::other(format!("{} {reason}", executable.display())).into());
        match timeout(READY_WAIT, reports.next()).await {
            Ok(Ok(Some(Report::Ready { version: VERSION }))) => {
                Ok(Self { calls, host: reports.source.into_std()?, cgroups, level: containment.level() })
            }
            Ok(Ok(Some(Report::Ready { .. }))) => refused("is a shim of another version; use the same build for both"),
            Ok(Ok(Some(Report::Failed { errno }))) => {
                let error = io::Error::from_raw_os_error(errno);
                Err(named(executable, "cannot be the shim here", error).into())
            }
            Ok(Ok(Some(Report::Unavailable { fault }))) => Err(fault.reason(&parent_of(cgroups.as_ref())).into()),
            _ => refused("did not answer as a shim; its main must call shim::enter_if_asked before anything else"),
        }
    }

    /// Whether the keeper holds its end; it never sends anything after its first word.
    fn is_alive(&self) -> bool {
        let seen = recv(&self.host, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        matches!(seen, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
    }
}

/// What the keeper is told: where cgroups are made is found by the host, whose errors name it.
fn placed(containment: &Containment) -> Result<(Containment, Option<CgroupPlan>), Unavailable> {
    let Containment::Cgroup(plan) = containment else { return Ok((containment.clone(), None)) };
    let plan = CgroupPlan { parent: Some(plan.folder()?), ..plan.clone() };
    Ok((Containment::Cgroup(plan.clone()), Some(plan)))
}

/// The folder that errors name.
fn parent_of(plan: Option<&CgroupPlan>) -> PathBuf {
    plan.and_then(|plan| plan.parent.clone()).unwrap_or_default()
}

/// Sends bytes with descriptors in one message, waiting while the socket is full; how many bytes it took.
async fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let once = |socket: BorrowedFd<'_>| -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    };
    match once(socket.as_fd()) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        done => return done,
    }
    // A copy, because many may wait for the one socket, and it belongs to no async runtime.
    let waiting = UnixStream::from_std(socket.as_fd().try_clone_to_owned()?.into())?;
    loop {
        waiting.writable().await?;
        match waiting.try_io(Interest::WRITABLE, || once(waiting.as_fd())) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
    }
}

/// Writes the rest of a long request.
async fn send_rest(lease: &BlockingStream, rest: &[u8]) -> io::Result<()> {
    if rest.is_empty() {
        return Ok(());
    }
    UnixStream::from_std(lease.try_clone()?)?.write_all(rest).await
}

impl<R: AsyncRead + Unpin> From<R> for Reports<R> {
    fn from(source: R) -> Self {
        Self { source, heard: Vec::new() }
    }
}

impl<R: AsyncRead + Unpin> Reports<R> {
    /// The next report, none after the last. May be dropped at any await.
    pub(super) async fn next(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = Report::take(&mut self.heard)? {
                return Ok(Some(report));
            }
            self.heard.reserve(READ_BYTES);
            if self.source.read_buf(&mut self.heard).await? == 0 {
                return Ok(None);
            }
        }
    }
}

impl Handed {
    /// Hands the request and its descriptors (folder, outputs, maybe input) to the warden that was called.
    ///
    /// # Errors
    /// When nobody will take it. A request that is not whole is never run.
    pub(super) async fn send(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let written = send(&self.lease, request, descriptors).await?;
        send_rest(&self.lease, &request[written..]).await
    }

    /// The warden that has taken the command, if one has: from then on it may run.
    pub(super) fn warden(&mut self) -> Option<i32> {
        let mut pid = [0; 4];
        let read = |pid: &mut [u8]| recv(&self.lease, pid, RecvFlags::DONTWAIT).map(|(_, length)| length);
        if self.warden.is_none() && read(&mut pid) == Ok(pid.len()) {
            let warden = i32::from_le_bytes(pid);
            self.warden = Some((warden, Attended::new(warden)));
        }
        self.warden.as_ref().map(|(warden, _)| *warden)
    }

    /// Gives an order; a warden that cannot take it is gone, which the next report tells.
    pub(super) fn order(&self, order: u8) {
        let _ = rustix::net::send(&self.lease, &[order], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Why the command cannot be held as it should be.
    pub(super) fn reason(&self, fault: Fault) -> Unavailable {
        fault.reason(&parent_of(self.keeper.cgroups.as_ref()))
    }

    /// Whether somebody will take the command, if nobody has.
    pub(super) fn is_awaited(&self) -> bool {
        self.keeper.is_alive()
    }

    /// Ends the lease, from which what was said can still be read: no warden can start the command any more, and one that has, has said so.
    pub(super) fn let_go(&self) {
        let _ = rustix::net::shutdown(&self.lease, rustix::net::Shutdown::Both);
    }

    /// Has the keeper kill the warden, if it lives, and everything that was below it; the pids of what survives.
    /// Without a keeper, what is in the warden's cgroup is killed from here, or what has come to this process.
    ///
    /// # Errors
    /// When there is neither.
    pub(super) async fn sweep(&self, warden: i32) -> io::Result<Vec<u32>> {
        let swept = async {
            let (near, far) = UnixStream::pair()?;
            let far = far.into_std()?;
            far.set_nonblocking(false)?;
            send(&self.keeper.host, &warden.to_le_bytes(), &[far.as_fd()]).await?;
            drop(far);
            Reports::from(near).next().await
        };
        match (timeout(SWEEP_WAIT, swept).await, &self.keeper.cgroups) {
            (Ok(Ok(Some(Report::Gone { survivors, .. }))), _) => Ok(survivors),
            (_, Some(plan)) => end_cgroup(plan, warden).await,
            _ => match (last_resort::end_orphans().await, self.keeper.level) {
                (Some(survivors), _) => Ok(survivors),
                (None, ContainmentLevel::PidNamespace) => {
                    Err(io::Error::other("its shim was killed as a whole, and the kernel ends what it started"))
                }
                (None, _) => Err(io::Error::other("its shim was killed as a whole, so what it started may still run")),
            },
        }
    }
}

/// Kills what is in the cgroup of a warden that is gone together with its keeper; the pids of what survives.
async fn end_cgroup(plan: &CgroupPlan, warden: i32) -> io::Result<Vec<u32>> {
    let parent = CgroupParent::open(&parent_of(Some(plan)), plan);
    let parent = parent.map_err(|fault| io::Error::from_raw_os_error(fault.errno))?;
    let Some(leaf) = parent.find(&leaf_name(Pid::from_raw(warden)))? else { return Ok(Vec::new()) };
    let emptied = async {
        while leaf.is_populated() {
            leaf.kill()?;
            sleep(CGROUP_PAUSE).await;
        }
        Ok::<(), rustix::io::Errno>(())
    };
    if let Ok(emptied) = timeout(SWEEP_WAIT, emptied).await {
        emptied?;
        leaf.remove();
    }
    Ok(leaf.members().iter().filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect())
}

fn named(executable: &Path, what: &str, error: io::Error) -> io::Error {
    // Not of the same kind: it says nothing of the command.
    io::Error::other(format!("{} {what}: {error}", executable.display()))
}
