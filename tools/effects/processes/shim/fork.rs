//! Forking without exec, and setting signals back to what they do by default: what has no safe form here.
//!
//! It stands alone so that nothing else may be unsafe. What must stay true: the calling process has one thread.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{ForkResult, Pid, fork};

/// The exit code of a child whose body panicked, or of a shim that could not begin.
pub(super) const BROKEN: i32 = 101;

/// Forks; the child runs `body` and exits with what it returns. To be called in a process with one thread only.
///
/// # Errors
/// The system's, when there is no room for another process.
pub(super) fn fork_into(body: impl FnOnce() -> i32) -> io::Result<Pid> {
    #[expect(unsafe_code, reason = "fork has no safe form")]
    // SAFETY: the danger of fork is the state of other threads, which is frozen in the child: a lock held by one of
    // them, the allocator's among them, is held for ever. Keeper and scopes start no thread, and the keeper refuses
    // to begin where there is more than one (`keeper::Keeper::enter`).
    let forked = unsafe { fork() }?;
    match forked {
        ForkResult::Parent { child } => Ok(child),
        // The frames below are the parent's: the child must not unwind or return into them.
        ForkResult::Child => std::process::exit(catch_unwind(AssertUnwindSafe(body)).unwrap_or(BROKEN)),
    }
}

/// Blocks and ignores no signal from here on.
///
/// # Errors
/// The system's.
pub(super) fn reset_signals() -> Result<(), Errno> {
    for number in Signal::iterator().filter(|number| !matches!(number, Signal::SIGKILL | Signal::SIGSTOP)) {
        #[expect(unsafe_code, reason = "a handler could be anything; the default one cannot")]
        // SAFETY: no code of this process is made a handler.
        unsafe { signal(number, SigHandler::SigDfl) }?;
    }
    SigSet::empty().thread_set_mask()
}
