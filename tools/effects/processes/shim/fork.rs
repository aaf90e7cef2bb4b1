//! Forking without exec, and being born elsewhere: what has no safe form.
//!
//! It stands alone so that nothing else may be unsafe. What must stay true: the calling process has one thread.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::SigSet;
use nix::unistd::{ForkResult, Pid, fork};

/// The exit code of a child whose body panicked, or of a shim that could not begin.
pub(super) const BROKEN: i32 = 101;

/// Where and how a child is born.
#[derive(Clone, Copy, Default)]
pub(super) struct Birth<'a> {
    /// As the first process of a new PID namespace, with mounts of its own.
    pub(super) namespace: Option<NamespaceKind>,
    /// In this cgroup v2 folder.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
    /// Whether this process waits until the child has called exec or has ended.
    pub(super) awaits_exec: bool,
}

/// Whose rights make a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NamespaceKind {
    /// This user's own.
    Plain,
    /// Those that a user namespace gives.
    WithUser,
}

/// `CLONE_INTO_CGROUP`, which the C headers cannot name in an int.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Room for the kernel's `struct sigaction`, in words: handler, flags, restorer, mask.
const SIGACTION_WORDS: usize = 8;
/// The bytes of the kernel's set of signals.
const SIGNAL_SET_BYTES: usize = 8;

/// The kernel's `struct clone_args`, up to and with its third version.
#[repr(C)]
#[derive(Default)]
struct CloneRequest {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

impl Birth<'_> {
    fn request(self) -> CloneRequest {
        let namespace = match self.namespace {
            None => 0,
            Some(NamespaceKind::Plain) => libc::CLONE_NEWPID | libc::CLONE_NEWNS,
            Some(NamespaceKind::WithUser) => libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWUSER,
        };
        let flags = namespace | if self.awaits_exec { libc::CLONE_VFORK } else { 0 };
        CloneRequest {
            flags: u64::from(flags.cast_unsigned()) | if self.cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 },
            exit_signal: u64::from(libc::SIGCHLD.cast_unsigned()),
            cgroup: self.cgroup.map_or(0, |folder| u64::from(folder.as_raw_fd().cast_unsigned())),
            ..CloneRequest::default()
        }
    }

    fn is_ordinary(self) -> bool {
        self.namespace.is_none() && self.cgroup.is_none() && !self.awaits_exec
    }
}

/// Forks; the child runs `body` and exits with what it returns. To be called in a process with one thread only.
///
/// # Errors
/// The system's, when there is no room for another process, or when it may not be born there.
pub(super) fn fork_into(birth: Birth<'_>, body: impl FnOnce() -> i32) -> io::Result<Pid> {
    match split(birth)? {
        ForkResult::Parent { child } => Ok(child),
        // The frames below are the parent's: the child must not unwind or return into them.
        ForkResult::Child => std::process::exit(catch_unwind(AssertUnwindSafe(body)).unwrap_or(BROKEN)),
    }
}

fn split(birth: Birth<'_>) -> io::Result<ForkResult> {
    if birth.is_ordinary() {
        #[expect(unsafe_code, reason = "fork has no safe form")]
        // SAFETY: the danger of fork is the state of other threads, which is frozen in the child: a lock held by one
        // of them, the allocator's among them, is held for ever. Keeper and wardens start no thread, and the keeper
        // refuses to begin where there is more than one (`keeper::Keeper::enter`).
        return Ok(unsafe { fork() }?);
    }
    let mut request = birth.request();
    #[expect(unsafe_code, reason = "fork has no safe form")]
    // SAFETY: without CLONE_VM and without a stack this is a fork, of which the same holds. The C library's own
    // preparations for a fork are for other threads. The kernel reads the request, which lives until the call
    // returns, and is told its size.
    let returned = unsafe { libc::syscall(libc::SYS_clone3, &raw mut request, size_of::<CloneRequest>()) };
    match libc::pid_t::try_from(returned) {
        Ok(0) => Ok(ForkResult::Child),
        Ok(child) if child > 0 => Ok(ForkResult::Parent { child: Pid::from_raw(child) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets every signal do what it does by default, and none wait: what was ignored would be ignored after exec too.
///
/// # Errors
/// The system's.
pub(super) fn restore_signals() -> Result<(), Errno> {
    // The kernel's own `struct sigaction`, all zero: the default, no flags, no mask. The C library's function would
    // refuse the two signals that it keeps for threads, and it starts programs with those ignored.
    let default = [0_u64; SIGACTION_WORDS];
    for number in 1..=libc::SIGRTMAX() {
        #[expect(unsafe_code, reason = "a handler could do anything; the default one has no code")]
        // SAFETY: the kernel reads one structure, for which there is room, and installs no handler. It fails for KILL
        // and STOP, which are as they should be.
        unsafe {
            let nothing = std::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, number, default.as_ptr(), nothing, SIGNAL_SET_BYTES)
        };
    }
    SigSet::empty().thread_set_mask()
}
