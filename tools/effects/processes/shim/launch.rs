//! Starting a command: the one place where something is done between fork and exec.
//!
//! A command leads a session of its own, has its three streams and nothing else, and no signal is blocked or
//! ignored. The quick way is the C library's, which copies no memory. Where the child has to be born elsewhere, or
//! something has to be done in it that the C library does not know, it is forked, and `become_command` runs in it.
//!
//! What must stay true: what fails before exec is told as a number and runs nothing.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::libc;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::SigSet;
use nix::sys::wait::waitpid;
use nix::unistd::{Pid, execve, setsid};
use rustix::pipe::{PipeFlags, pipe_with};

use super::fork::{BROKEN, Birth, fork_into, restore_signals};
use super::wire::Request;

/// The streams of a command. Without input it gets the standard input of this process: the null device.
pub(super) struct Streams {
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
    pub(super) input: Option<OwnedFd>,
}

/// Starts the command in the current folder.
///
/// # Errors
/// The system's.
pub(super) fn launch(request: &Request, streams: &Streams, cgroup: Option<BorrowedFd<'_>>) -> Result<Pid, Errno> {
    match cgroup {
        None => spawn(request, streams),
        Some(_) => fork_and_exec(request, streams, Birth { cgroup, awaits_exec: true, namespace: None }),
    }
}

fn spawn(request: &Request, streams: &Streams) -> Result<Pid, Errno> {
    let mut actions = PosixSpawnFileActions::init()?;
    let input = streams.input.iter().map(|input| (input, 0));
    for (descriptor, number) in input.chain([(&streams.out, 1), (&streams.err, 2)]) {
        actions.add_dup2(descriptor.as_raw_fd(), number)?;
    }
    let mut attributes = PosixSpawnAttr::init()?;
    let session = PosixSpawnFlags::from_bits_retain(libc::POSIX_SPAWN_SETSID.into());
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF | PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | session)?;
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_sigmask(&SigSet::empty())?;
    posix_spawn(request.file.as_c_str(), &actions, &attributes, &request.arguments, &request.environment)
}

fn fork_and_exec(request: &Request, streams: &Streams, birth: Birth<'_>) -> Result<Pid, Errno> {
    let errno = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
    // Its far end closes with exec; before that a number may come.
    let (near, far) = pipe_with(PipeFlags::CLOEXEC).map_err(errno)?;
    let forked = fork_into(birth, || {
        let Err(failed) = become_command(request, streams);
        let _ = rustix::io::write(&far, &(failed as i32).to_ne_bytes());
        BROKEN
    });
    let child = forked.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)))?;
    drop(far);
    let mut failed = [0; 4];
    loop {
        return match rustix::io::read(near.as_fd(), &mut failed) {
            Ok(0) => Ok(child),
            Ok(_) => {
                // It is the only child, and ends at once.
                let _ = waitpid(child, None);
                Err(Errno::from_raw(i32::from_ne_bytes(failed)))
            }
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => Err(errno(error)),
        };
    }
}

/// Everything between fork and exec, in the child; returns only what failed.
fn become_command(request: &Request, streams: &Streams) -> Result<Infallible, Errno> {
    setsid()?;
    let errno = |error: rustix::io::Errno| Errno::from_raw(error.raw_os_error());
    if let Some(input) = &streams.input {
        rustix::stdio::dup2_stdin(input).map_err(errno)?;
    }
    rustix::stdio::dup2_stdout(&streams.out).map_err(errno)?;
    rustix::stdio::dup2_stderr(&streams.err).map_err(errno)?;
    restore_signals()?;
    execve(&request.file, &request.arguments, &request.environment)
}
