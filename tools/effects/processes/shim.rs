//! The shim: small processes between this one and each command, which no descendant of the command can escape.
//!
//! ```text
//! host ── keeper            one for each GuardedProcesses; sub-reaper; forks wardens; takes what a killed warden leaves
//!          └─ warden        one for each running command; sub-reaper; reused when nothing is left of its command
//!              └─ command   in a session of its own, and whatever it starts
//! ```
//!
//! The kernel gives every orphan to the nearest sub-reaper above it, so whatever a command does (`setsid`, double
//! forks, closed pipes) its descendants become direct children of its warden as their parents end. A warden ends a
//! command in rounds: signal every direct child, reap the dead, look again, until the kernel says that there are no
//! children (ECHILD), which is the proof that nothing is left. The socket between host and warden is the lease: its
//! end of file means that the host let go or died, even by SIGKILL, and ends the command at once.
//!
//! At the higher levels a warden is the first process of a PID namespace (`namespace`), or a command is born in a
//! cgroup of its own (`cgroup`); `enclosure` holds what differs, and `launch` what is done between fork and exec.
//!
//! What must stay true:
//! - **A signal never reaches a stranger**: keeper and wardens signal only children that they have not reaped, and
//!   all of a namespace or a cgroup that they made.
//! - **They have one thread**, so that forking without exec is sound; so [`enter_if_asked`] comes before all else.
//! - **They hold nothing of the host** but the sockets they were given, and the ends of a command's output until it is
//!   reaped: no memory, no locks, no environment.

pub(super) mod cgroup;
mod controller;
mod enclosure;
mod fork;
pub mod guarded;
mod handle;
mod keeper;
pub mod last_resort;
mod launch;
mod namespace;
mod offspring;
mod seat;
mod warden;
mod wire;

/// The argument that asks a program to be the keeper; private to this crate, and not to be given by people.
const ARGUMENT: &str = "--toolwarden-process-shim";

/// Becomes the shim, and never returns, if this process was started as one; does nothing otherwise.
///
/// To be called first in `main`, before any thread (and so any async runtime) is started, by a program that is named
/// in [`SystemProcesses::with_shim`](crate::effects::processes::system::SystemProcesses::with_shim).
pub fn enter_if_asked() {
    let is_asked = std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT);
    if is_asked {
        let containment = wire::from_arguments(std::env::args_os().skip(2));
        std::process::exit(keeper::keep(containment.as_ref()));
    }
}
