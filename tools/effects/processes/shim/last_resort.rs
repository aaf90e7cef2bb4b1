//! The last resort: what a shim leaves that was killed as a whole comes to this process, which ends it.
//!
//! The orphans of a killed warden go to the keeper. Those of a warden and a keeper that are killed together go to the next
//! sub-reaper above, which is init unless this process is one. It is one only when its program asks for that: where others
//! in the process start children too, nobody can tell theirs from orphans.
//!
//! What must stay true: nobody is signalled but direct children of this process that are not reaped; keepers, and wardens
//! whose commands the host attends to, are spared; only pids that were found so are waited for, one by one, so that no
//! other part of the process loses the end of its own child.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use super::offspring;

/// How long orphans may take to be gone before they are told as survivors.
const ORPHANS_WAIT: Duration = Duration::from_secs(3);
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(5);
/// How long a warden without a keeper is spared that the host may have called and not heard of yet.
const WARDEN_WAIT: Duration = Duration::from_millis(500);
/// Looks in a row that must find nobody: a list may lack a child that came while it was made.
const EMPTY_LOOKS: u32 = 2;
/// The name of a warden, as the system shows it.
const WARDEN_NAME: &str = "toolwarden-ward";

static CHILDREN: Mutex<Children> = Mutex::new(Children::new());

/// The children that are not orphans.
struct Children {
    takes_orphans: bool,
    keepers: BTreeSet<Pid>,
    wardens: BTreeSet<Pid>,
}

impl Children {
    const fn new() -> Self {
        Self { takes_orphans: false, keepers: BTreeSet::new(), wardens: BTreeSet::new() }
    }
}

fn known() -> MutexGuard<'static, Children> {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has what is left of a shim that is killed as a whole come to this process, which ends it.
///
/// For a program that starts no children but through [`GuardedProcesses`](super::guarded::GuardedProcesses): whoever else
/// becomes its child is taken for an orphan and killed. It holds until the process ends.
///
/// # Errors
/// What the system says.
pub fn take_orphans() -> io::Result<()> {
    set_child_subreaper(true)?;
    known().takes_orphans = true;
    Ok(())
}

/// Starts a keeper; nobody looks for orphans meanwhile.
pub(super) fn start<T>(start: impl FnOnce() -> io::Result<(T, Option<u32>)>) -> io::Result<T> {
    let mut known = known();
    let (keeper, pid) = start()?;
    known.keepers.extend(pid.and_then(|pid| i32::try_from(pid).ok()).map(Pid::from_raw));
    Ok(keeper)
}

/// A keeper is gone and reaped: what it leaves behind has become this process's, and is taken care of.
pub(super) async fn keeper_ended(pid: Option<u32>) {
    if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok()) {
        known().keepers.remove(&Pid::from_raw(pid));
    }
    drop(end_orphans().await);
}

/// A warden with the command that it runs, spared for as long as somebody attends to it.
pub(super) struct Attended(Pid);

impl Attended {
    pub(super) fn new(warden: i32) -> Self {
        let warden = Pid::from_raw(warden);
        known().wardens.insert(warden);
        Self(warden)
    }
}

impl Drop for Attended {
    fn drop(&mut self) {
        known().wardens.remove(&self.0);
        // One that has lost its keeper ends now, and nobody else would reap it.
        if let (true, Ok(runtime)) = (is_child(self.0), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async { drop(end_orphans().await) });
        }
    }
}

fn is_child(pid: Pid) -> bool {
    known().takes_orphans && offspring::children().is_ok_and(|children| children.contains(&pid))
}

/// Ends all orphans; the pids of those that are left. None where orphans do not come to this process.
pub(super) async fn end_orphans() -> Option<Vec<u32>> {
    if !known().takes_orphans {
        return None;
    }
    let began_at = Instant::now();
    let mut empty = 0;
    loop {
        let left = look(began_at.elapsed() < WARDEN_WAIT);
        empty = if left.is_empty() { empty + 1 } else { 0 };
        if empty >= EMPTY_LOOKS {
            return Some(Vec::new());
        }
        if began_at.elapsed() >= ORPHANS_WAIT {
            return Some(left.into_iter().filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect());
        }
        sleep(LOOK_PAUSE).await;
    }
}

/// One look at the orphans: reaps the dead and kills the others; those that may still live.
fn look(spares_wardens: bool) -> Vec<Pid> {
    let known = known();
    let Ok(children) = offspring::children() else { return Vec::new() };
    let orphans = children.into_iter().filter(|child| !known.keepers.contains(child) && !known.wardens.contains(child));
    let mut left = Vec::new();
    for orphan in orphans {
        if !is_reaped(orphan) {
            left.push(orphan);
            if !(spares_wardens && is_warden(orphan)) {
                offspring::tell(orphan, Signal::SIGKILL);
            }
        }
    }
    left
}

/// Takes the status of a child that has ended; whether it had.
fn is_reaped(child: Pid) -> bool {
    let status = waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
    !matches!(status, Ok(WaitStatus::StillAlive))
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn is_warden(pid: Pid) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == WARDEN_NAME)
}
