//! The direct children of a shim process: found, signalled and reaped.
//!
//! Only what has been listed as a child and is not reaped yet is ever signalled: until then the kernel gives its pid
//! to nobody else. A list may lack a child that came while it was made, so one list proves nothing; ECHILD does.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{WaitOptions, WaitStatus, wait};

use crate::effects::processes::ProcessStatus;

/// What one look for a changed child found.
pub(super) enum Reaped {
    /// It ended, and is reaped now.
    Ended(Pid, ProcessStatus),
    /// It was stopped.
    Stopped(Pid),
    /// There are children, and none has changed.
    Nothing,
    /// There are no children: the kernel's own word.
    NoChildren,
}

/// Looks for a child that ended or was stopped; never waits.
pub(super) fn reap() -> Reaped {
    // Children that were cloned to give no SIGCHLD count as well.
    let all = WaitOptions::from_bits_retain(nix::libc::__WALL.cast_unsigned());
    loop {
        return match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED | all) {
            Ok(Some((pid, status))) => {
                let pid = Pid::from_raw(pid.as_raw_nonzero().get());
                if status.stopped() { Reaped::Stopped(pid) } else { Reaped::Ended(pid, status_of(status)) }
            }
            Ok(None) => Reaped::Nothing,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => Reaped::NoChildren,
        };
    }
}

fn status_of(status: WaitStatus) -> ProcessStatus {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => ProcessStatus::Exited { code },
        (None, Some(signal)) => ProcessStatus::Signalled { signal },
        (None, None) => ProcessStatus::Unknown,
    }
}

/// The direct children of the only thread of a process, as a `/proc` that is held open knows them.
///
/// # Errors
/// The system's, where that cannot be read.
pub(super) fn children_in(processes: BorrowedFd<'_>, parent: Pid) -> io::Result<BTreeSet<Pid>> {
    let path = format!("{parent}/task/{parent}/children");
    let file = openat(processes, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut pids = String::new();
    fs::File::from(file).read_to_string(&mut pids)?;
    Ok(pids.split_ascii_whitespace().filter_map(pid_of).collect())
}

/// The direct children of this process, dead ones that are not reaped yet among them.
///
/// # Errors
/// The system's, where `/proc` cannot be read.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
pub(super) fn children() -> io::Result<BTreeSet<Pid>> {
    let mut found = BTreeSet::new();
    for task in fs::read_dir("/proc/self/task")?.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(pids) => found.extend(pids.split_ascii_whitespace().filter_map(pid_of)),
            // The kernel was built without that file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return children_by_parent(),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn children_by_parent() -> io::Result<BTreeSet<Pid>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(pid_of) else { continue };
        // The name in parentheses may hold anything; state and parent follow the last one.
        let stat = fs::read(entry.path().join("stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let parent = stat.rsplit_once(')').and_then(|(_, after)| after.split_ascii_whitespace().nth(1));
        if parent.and_then(pid_of) == Some(getpid()) {
            found.insert(pid);
        }
    }
    Ok(found)
}

fn pid_of(text: &str) -> Option<Pid> {
    text.parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw)
}

/// Signals one direct child; says whether this process may.
pub(super) fn tell(child: Pid, signal: Signal) -> bool {
    kill(child, signal) != Err(Errno::EPERM)
}

/// Asks one direct child to end; whoever is suspended must wake up to hear it.
pub(super) fn ask_to_end(child: Pid) {
    tell(child, Signal::SIGTERM);
    tell(child, Signal::SIGCONT);
}
