//! A warden's seat: what it has of the keeper, and how requests come to it.
//!
//! All wardens wait on one socket, and the kernel gives each message to one of them. What must stay true: whoever
//! takes a request counts itself out of the idle ones, so that the keeper knows when another is needed.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, getppid};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::confinement::Confinement;

/// The most descriptors that come with a request.
pub(super) const DESCRIPTORS_MAX: usize = 6;

/// What a warden has of the keeper.
pub(super) struct Seat {
    /// Where requests come in; shared with all other wardens.
    pub(super) requests: OwnedFd,
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

/// What comes with a request.
pub(super) struct Handed {
    /// The lease, the request and the orders; back goes the receipt.
    pub(super) lease: UnixStream,
    pub(super) reports: File,
    pub(super) folder: OwnedFd,
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    pub(super) input: Option<OwnedFd>,
}

/// What came on the keeper's socket.
pub(super) enum Received {
    Request(Handed),
    /// A message without the descriptors of a request.
    Nonsense,
    /// The host is gone.
    End,
}

/// Waits for a request.
pub(super) fn receive(requests: &OwnedFd) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let received = recvmsg(requests, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)
        .map_err(|error| Errno::from_raw(error.raw_os_error()))?;
    if received.bytes == 0 {
        return Ok(Received::End);
    }
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let mut next = || descriptors.next();
    let (Some(lease), Some(reports), Some(folder), Some(out), Some(err)) = (next(), next(), next(), next(), next())
    else {
        return Ok(Received::Nonsense);
    };
    Ok(Received::Request(Handed { lease: lease.into(), reports: reports.into(), folder, out, err, input: next() }))
}
