//! The host's hold of its keeper: started at the first need, again when it was lost, let go with the last handle.
//!
//! What must stay true: a command that may have begun is never handed over a second time; nothing is started at a
//! lower level because a keeper is missing.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::ARGUMENT;
use super::scope::DESCRIPTORS_MAX;
use super::wire::{Report, VERSION};

/// How long a keeper may take to say that it is ready.
const READY_WAIT: Duration = Duration::from_secs(10);
/// How long the keeper may take to answer a wish for a sweep.
const SWEEP_WAIT: Duration = Duration::from_secs(3);
/// How often a request is handed to a new keeper when the one before ends while it is sent.
const ATTEMPTS: usize = 3;
/// Bytes read from a line at once.
const READ_BYTES: usize = 512;

/// Where the keeper is, if there is one.
pub(super) struct Handle {
    executable: PathBuf,
    keeper: Mutex<Option<Arc<Keeper>>>,
}

/// One running keeper. When the last copy is dropped its sockets close, and it ends when its scopes have.
struct Keeper {
    requests: OwnedFd,
    host: BlockingStream,
}

/// The connection to a scope: the lease of one command, whose end ends it, with reports in the other direction.
pub(super) struct Line {
    stream: UnixStream,
    heard: Vec<u8>,
}

/// A command that was handed over.
pub(super) struct Handed {
    pub(super) line: Line,
    /// Where the scope writes its pid before it starts the command. Apart from the reports, because nobody needs to
    /// wake up for it.
    receipt: OwnedFd,
    scope: Option<i32>,
    keeper: Arc<Keeper>,
}

impl Handle {
    pub(super) fn new(executable: PathBuf) -> Self {
        Self { executable, keeper: Mutex::new(None) }
    }

    /// Hands a request and its descriptors (folder, outputs, maybe input) to whichever scope takes it.
    ///
    /// # Errors
    /// Why there is no keeper, or why it cannot be spoken to.
    pub(super) async fn hand_over(&self, request: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<Handed> {
        for _ in 0..ATTEMPTS {
            let keeper = self.keeper().await?;
            let (near, far) = BlockingStream::pair()?;
            near.set_nonblocking(true)?;
            let (receipt, far_receipt) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            // As much as there is room for, before anybody is woken: the scope finds it, and nobody waits for tokio
            // to learn that a new socket can be written to.
            let written = rustix::net::send(&near, request, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0);
            let mut all = vec![far.as_fd(), far_receipt.as_fd()];
            all.extend_from_slice(descriptors);
            let is_sent = send(&keeper.requests, &[0], &all).await.is_ok();
            drop((far, far_receipt));
            let mut line = Line { stream: UnixStream::from_std(near)?, heard: Vec::new() };
            // A request that is not whole is never run.
            if is_sent && line.stream.write_all(&request[written..]).await.is_ok() {
                return Ok(Handed { line, receipt, scope: None, keeper });
            }
            self.forget(&keeper).await;
        }
        Err(io::Error::other("the shim ended again and again"))
    }

    /// The running keeper, or a new one.
    async fn keeper(&self) -> io::Result<Arc<Keeper>> {
        let mut current = self.keeper.lock().await;
        if let Some(keeper) = current.as_ref().filter(|keeper| keeper.is_alive()) {
            return Ok(Arc::clone(keeper));
        }
        let keeper = Arc::new(Keeper::start(&self.executable).await?);
        *current = Some(Arc::clone(&keeper));
        Ok(keeper)
    }

    async fn forget(&self, lost: &Arc<Keeper>) {
        let mut current = self.keeper.lock().await;
        if current.as_ref().is_some_and(|keeper| Arc::ptr_eq(keeper, lost)) {
            *current = None;
        }
    }
}

impl Keeper {
    #[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
    async fn start(executable: &Path) -> io::Result<Self> {
        let kind = SocketType::SEQPACKET;
        let (requests, far_requests) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&requests, true)?;
        let (host, far_host) = UnixStream::pair()?;
        let far_host = far_host.into_std()?;
        far_host.set_nonblocking(false)?;
        let mut child = Command::new(executable)
            .arg(ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(far_requests)
            .stdout(OwnedFd::from(far_host))
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| named(executable, "cannot be started as the shim", error))?;
        // It outlives its sockets a little. Where the async runtime ends first, tokio's next one reaps it.
        tokio::spawn(async move { child.wait().await });
        let mut line = Line { stream: host, heard: Vec::new() };
        let refused = |reason: &str| Err(io::Error::other(format!("{} {reason}", executable.display())));
        match timeout(READY_WAIT, line.next()).await {
            Ok(Ok(Some(Report::Ready { version: VERSION }))) => Ok(Self { requests, host: line.stream.into_std()? }),
            Ok(Ok(Some(Report::Ready { .. }))) => refused("is a shim of another version; use the same build for both"),
            Ok(Ok(Some(Report::Failed { errno }))) => {
                let error = io::Error::from_raw_os_error(errno);
                Err(named(executable, "cannot be the shim here", error))
            }
            _ => refused("did not answer as a shim; its main must call shim::enter_if_asked before anything else"),
        }
    }

    /// Whether the keeper holds its end; it never sends anything after its first word.
    fn is_alive(&self) -> bool {
        let seen = recv(&self.host, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK);
        matches!(seen, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
    }
}

/// Sends bytes with descriptors in one message, waiting while the socket is full.
async fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let once = |socket: BorrowedFd<'_>| -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        Ok(())
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

impl Line {
    /// The next report, none after the last. May be dropped at any await.
    pub(super) async fn next(&mut self) -> io::Result<Option<Report>> {
        loop {
            if let Some(report) = Report::take(&mut self.heard)? {
                return Ok(Some(report));
            }
            self.heard.reserve(READ_BYTES);
            match self.stream.read_buf(&mut self.heard).await {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                // The other end closed before it had read everything.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Gives an order; a scope that cannot take it is gone, which the next report tells.
    pub(super) fn order(&self, order: u8) {
        let _ = self.stream.try_write(&[order]);
    }
}

impl Handed {
    /// The scope that has taken the command, if one has: from then on it may run.
    pub(super) fn scope(&mut self) -> Option<i32> {
        let mut pid = [0; 4];
        if self.scope.is_none() && rustix::io::read(&self.receipt, &mut pid) == Ok(pid.len()) {
            self.scope = Some(i32::from_le_bytes(pid));
        }
        self.scope
    }

    /// Whether somebody will take the command, if nobody has.
    pub(super) fn is_awaited(&self) -> bool {
        self.keeper.is_alive()
    }

    /// Ends the lease and keeps the receipt: no scope can start the command any more, and one that has, has said so.
    pub(super) fn let_go(&self) {
        let _ = rustix::net::shutdown(&self.line.stream, rustix::net::Shutdown::Both);
    }

    /// Has the keeper kill the scope, if it lives, and everything that was below it; the pids of what survives.
    ///
    /// # Errors
    /// When there is no keeper any more.
    pub(super) async fn sweep(&self, scope: i32) -> io::Result<Vec<u32>> {
        let swept = async {
            let (near, far) = UnixStream::pair()?;
            let far = far.into_std()?;
            far.set_nonblocking(false)?;
            send(&self.keeper.host, &scope.to_le_bytes(), &[far.as_fd()]).await?;
            drop(far);
            Line { stream: near, heard: Vec::new() }.next().await
        };
        match timeout(SWEEP_WAIT, swept).await {
            Ok(Ok(Some(Report::Gone { survivors, .. }))) => Ok(survivors),
            _ => Err(io::Error::other("its shim was killed as a whole, so what it started may still run")),
        }
    }
}

fn named(executable: &Path, what: &str, error: io::Error) -> io::Error {
    // Not of the same kind: it says nothing of the command.
    io::Error::other(format!("{} {what}: {error}", executable.display()))
}
