//! A warden's seat: what it has of the keeper, and how calls and requests come to it.
//!
//! All wardens wait on one socket, and the kernel gives each call to one of them; the request follows on the lease that
//! came with the call. What must stay true: whoever takes a call counts itself out of the idle ones, so that the keeper
//! knows when another is needed.

use std::fs::File;
use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, getppid};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::confinement::Confinement;
use super::launch::Streams;
use super::wire::Request;

/// The most descriptors that come with a message.
pub(super) const DESCRIPTORS_MAX: usize = 4;

/// What a warden has of the keeper.
pub(super) struct Seat {
    /// Where calls come in; shared with all other wardens.
    pub(super) calls: OwnedFd,
    /// A semaphore that counts the idle wardens.
    pub(super) idle: OwnedFd,
    /// Tells the keeper that no warden is idle.
    pub(super) bell: OwnedFd,
    /// SIGCHLD.
    pub(super) exits: SignalFd,
    /// The keeper.
    pub(super) keeper: Pid,
    /// The keeper's end, where there is a way to be told of it; its pid says nothing inside of a namespace.
    pub(super) keeper_end: Option<OwnedFd>,
    /// What commands are held with.
    pub(super) confinement: Confinement,
}

impl Seat {
    pub(super) fn is_keeper_there(&self) -> bool {
        match &self.keeper_end {
            Some(end) => {
                let mut look = [PollFd::new(end.as_fd(), PollFlags::POLLIN)];
                poll(&mut look, PollTimeout::ZERO) == Ok(0)
            }
            None => getppid() == self.keeper,
        }
    }

    /// Counts this warden out; says whether others are idle.
    fn count_out(&self) -> bool {
        let _ = rustix::io::read(&self.idle, &mut [0; 8]);
        let mut look = [PollFd::new(self.idle.as_fd(), PollFlags::POLLIN)];
        poll(&mut look, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Begins to work.
    pub(super) fn take(&self) {
        if !self.count_out() {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Leaves, unless this is the last idle one.
    pub(super) fn leave(&self) -> bool {
        let others = self.count_out();
        if !others {
            let _ = rustix::io::write(&self.idle, &1_u64.to_ne_bytes());
        }
        others
    }
}

/// A call: what comes on the keeper's socket.
pub(super) struct Call {
    /// The lease: the request comes this way, and the orders; back goes the receipt.
    pub(super) lease: UnixStream,
    pub(super) reports: File,
}

/// What came on the keeper's socket.
pub(super) enum Received {
    Call(Call),
    /// A message without the descriptors of a call.
    Nonsense,
    /// The host is gone.
    End,
}

/// What comes with a request.
pub(super) struct Handed {
    pub(super) request: Request,
    pub(super) folder: OwnedFd,
    pub(super) streams: Streams,
}

/// Waits for a call.
pub(super) fn receive(calls: &OwnedFd) -> Result<Received, Errno> {
    let mut byte = [0];
    let (length, descriptors) = receive_with_descriptors(calls, &mut byte)?;
    if length == 0 {
        return Ok(Received::End);
    }
    let mut descriptors = descriptors.into_iter();
    let (Some(lease), Some(reports)) = (descriptors.next(), descriptors.next()) else { return Ok(Received::Nonsense) };
    Ok(Received::Call(Call { lease: lease.into(), reports: reports.into() }))
}

/// Reads exactly the request: an order may have come close behind it. Nothing, when the host let go before.
pub(super) fn receive_request(lease: &mut UnixStream) -> Option<Handed> {
    let mut first = [0; 4];
    // The descriptors come with the first byte.
    let (length, descriptors) = loop {
        match receive_with_descriptors(&*lease, &mut first) {
            Err(Errno::EINTR) => {}
            received => break received.ok()?,
        }
    };
    lease.read_exact(&mut first[length..]).ok().filter(|()| length > 0)?;
    let mut rest = vec![0; Request::length(first)?];
    lease.read_exact(&mut rest).ok()?;
    let request = Request::from_bytes(&rest)?;
    let mut descriptors = descriptors.into_iter();
    let (folder, out, err) = (descriptors.next()?, descriptors.next()?, descriptors.next()?);
    Some(Handed { request, folder, streams: Streams { out, err, input: descriptors.next() } })
}

fn receive_with_descriptors(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    let descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    Ok((received.bytes, descriptors.collect()))
}
