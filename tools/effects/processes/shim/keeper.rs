//! The keeper: one small process that forks wardens, and takes what is left when a warden is killed.
//!
//! It keeps at least one warden idle, so that no command waits for a fork. It is a sub-reaper above all wardens: when
//! a command kills its own warden, the orphans come here, and whatever is not a warden is killed on sight.
//!
//! What must stay true: one thread; only children that are not reaped are signalled, and what is in the cgroup of a
//! killed warden; it ends when the host is gone and every warden has ended.

use std::collections::BTreeSet;
use std::io::{self, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_dumpable, set_name};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, close, getpid, setsid};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::PidfdFlags;

use super::cgroup::Leaf;
use super::confinement::Confinement;
use super::fork::{BROKEN, fork_into};
use super::offspring::{self, Reaped};
use super::seat::Seat;
use super::warden::{self, null_device};
use super::wire::{Fault, Report, VERSION};
use crate::effects::processes::ProcessStatus;
use crate::effects::processes::containment::Containment;

/// The most wardens there are at a time; further calls wait in the socket.
const WARDENS_MAX: usize = 512;
/// How long a warden that was needed once stays idle.
const IDLE_WAIT: Duration = Duration::from_secs(30);
/// How long a sweep may take before what is left is reported as surviving.
const SWEEP_WAIT: Duration = Duration::from_millis(1200);
/// The pause between two looks while something is due: in the first second of it, and later.
const ROUND_PAUSE: (u16, u16) = (20, 500);
/// The pause after a warden could not begin.
const BROKEN_PAUSE: Duration = Duration::from_millis(100);
/// The most sweeps that wait at a time.
const SWEEPS_MAX: usize = 512;
/// The bytes of a wish for a sweep: the pid of the warden.
pub(super) const SWEEP_BYTES: usize = 4;

/// Is the keeper until it is not needed any more; the exit code.
pub(super) fn keep(containment: Option<&Containment>) -> i32 {
    match Keeper::enter(containment) {
        Ok(mut keeper) => {
            keeper.run();
            0
        }
        // The host was told, or sees the end of its socket.
        Err(_) => BROKEN,
    }
}

/// A host that lost a warden, or lost patience with it, and waits for the end of what is left.
struct Sweep {
    warden: Pid,
    answer: UnixStream,
    until: Instant,
}

struct Keeper {
    seat: Seat,
    host: UnixStream,
    is_host_there: bool,
    wardens: BTreeSet<Pid>,
    /// The cgroups of killed wardens.
    left: Vec<Leaf>,
    sweeps: Vec<Sweep>,
    /// Since when there may be orphans here.
    orphaned_at: Option<Instant>,
    /// Whether a list without orphans was seen since the last one with some.
    is_doubtful: bool,
    /// Whether a warden is asked for.
    is_wanted: bool,
    /// How many wardens died, each of which may have been counted as idle.
    dead: usize,
    /// When a warden could not begin, if that was the last to end badly.
    broken_at: Option<Instant>,
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn now() -> Instant {
    Instant::now()
}

impl Keeper {
    /// Makes this process the keeper: its sockets are what was standard input (calls) and output (the host).
    fn enter(containment: Option<&Containment>) -> Result<Self, Refusal> {
        close_inherited();
        let calls = io::stdin().as_fd().try_clone_to_owned()?;
        let host = UnixStream::from(io::stdout().as_fd().try_clone_to_owned()?);
        let mut told = host.try_clone()?;
        let prepared = Self::prepare(calls, host, containment).map_err(|refusal| refusal.tell(&mut told));
        // No warden may inherit it.
        drop(told);
        let mut keeper = prepared?;
        keeper.fork(true).map_err(|error| Refusal::from(error).tell(&mut keeper.host))?;
        keeper.host.write_all(&Report::Ready { version: VERSION }.to_bytes())?;
        Ok(keeper)
    }

    fn prepare(calls: OwnedFd, host: UnixStream, containment: Option<&Containment>) -> Result<Self, Refusal> {
        let null = null_device()?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        if threads()? != 1 {
            return Err(io::Error::from(Errno::EBUSY).into());
        }
        // Only a shim of another version is asked for what this one does not know.
        let containment = containment.ok_or(Errno::EPROTO).map_err(io::Error::from)?;
        // Fails where it leads a group already; then it has no session of its own, which is no harm.
        let _ = setsid();
        let _ = set_name(c"toolwarden-shim");
        set_child_subreaper(true)?;
        // Nothing but KILL ends it: it has to see the end of the host and of the wardens.
        SigSet::all().thread_block()?;
        let exits = SigSet::from_iter([Signal::SIGCHLD]);
        let exits = SignalFd::with_flags(&exits, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        // Without a list of children nothing can be promised.
        offspring::children()?;
        let confinement = Confinement::prepare(containment)?;
        // A command of the same user could else take it over, or a warden, as a debugger does.
        set_dumpable(false)?;
        set_socket_timeout(&calls, Timeout::Recv, Some(IDLE_WAIT))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let seat = Seat {
            calls,
            idle: eventfd(0, flags | EventfdFlags::SEMAPHORE)?,
            bell: eventfd(0, flags)?,
            exits,
            keeper: getpid(),
            keeper_end: rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).ok(),
            confinement,
        };
        Ok(Self {
            seat,
            host,
            is_host_there: true,
            wardens: BTreeSet::new(),
            left: Vec::new(),
            sweeps: Vec::new(),
            orphaned_at: None,
            is_doubtful: false,
            is_wanted: false,
            dead: 0,
            broken_at: None,
        })
    }

    fn run(&mut self) {
        loop {
            self.reap();
            self.end_orphans();
            self.answer();
            self.fill();
            if !self.is_host_there && self.wardens.is_empty() && self.orphaned_at.is_none() {
                return;
            }
            self.wait();
        }
    }

    /// Reaps all who ended, and wakes wardens that were stopped.
    fn reap(&mut self) {
        loop {
            match offspring::reap() {
                Reaped::Ended(pid, status) => {
                    // An ordinary end leaves nothing behind.
                    if self.wardens.remove(&pid) && status != (ProcessStatus::Exited { code: 0 }) {
                        self.dead += 1;
                        self.left.extend(self.seat.confinement.left_by(pid));
                        self.broken_at = (status == ProcessStatus::Exited { code: BROKEN }).then(now);
                        self.expect_orphans();
                    }
                }
                Reaped::Stopped(pid) => {
                    offspring::tell(pid, Signal::SIGCONT);
                }
                Reaped::Nothing | Reaped::NoChildren => return,
            }
        }
    }

    fn expect_orphans(&mut self) {
        self.is_doubtful = true;
        self.orphaned_at.get_or_insert_with(now);
    }

    /// Kills whatever is here and is no warden.
    fn end_orphans(&mut self) {
        while self.orphaned_at.is_some() {
            let is_populated = self.end_left();
            let orphans = self.orphans();
            if !orphans.is_empty() || is_populated {
                self.is_doubtful = true;
                for orphan in orphans {
                    offspring::tell(orphan, Signal::SIGKILL);
                }
                return;
            }
            // A list that was made while someone came may lack him; the second one does not.
            if !self.is_doubtful {
                self.orphaned_at = None;
            }
            self.is_doubtful = false;
        }
    }

    /// Kills what is in the cgroups of killed wardens; says whether there is something.
    fn end_left(&mut self) -> bool {
        self.left.retain(|leaf| {
            let is_populated = leaf.is_populated();
            if is_populated {
                let _ = leaf.kill();
            } else {
                leaf.remove();
            }
            is_populated
        });
        !self.left.is_empty()
    }

    fn orphans(&self) -> BTreeSet<Pid> {
        &offspring::children().unwrap_or_default() - &self.wardens
    }

    /// Answers the sweeps that are over, or have waited long enough.
    fn answer(&mut self) {
        let (wardens, is_clean) = (&self.wardens, self.orphaned_at.is_none());
        let is_over = |sweep: &Sweep| (is_clean && !wardens.contains(&sweep.warden)) || now() >= sweep.until;
        let over: Vec<Sweep> = self.sweeps.extract_if(.., |sweep| is_over(sweep)).collect();
        for mut sweep in over {
            let mut left = self.orphans();
            left.extend(self.wardens.get(&sweep.warden));
            left.extend(self.left.iter().flat_map(Leaf::members));
            let survivors = left.iter().filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect();
            // What a killed warden leaves is in the background of nobody: it was part of the command.
            let _ = sweep.answer.write_all(&Report::Gone { killed_background: false, survivors }.to_bytes());
        }
    }

    /// Forks the wardens that are due; what cannot be forked now is tried again.
    fn fill(&mut self) {
        if !self.is_host_there {
            (self.is_wanted, self.dead) = (false, 0);
        }
        // One that could not begin is not tried again at once, or nothing else would be done.
        if self.broken_at.is_some_and(|at| at.elapsed() < BROKEN_PAUSE) {
            return;
        }
        while self.dead > 0 && self.wardens.len() < WARDENS_MAX && self.fork(false).is_ok() {
            self.dead -= 1;
        }
        if self.is_wanted && self.wardens.len() < WARDENS_MAX && self.fork(true).is_ok() {
            self.is_wanted = false;
        }
    }

    fn fork(&mut self, counted: bool) -> io::Result<()> {
        let answers = self.sweeps.iter().map(|sweep| sweep.answer.as_raw_fd());
        let not_theirs: Vec<i32> = answers.chain([self.host.as_raw_fd()]).collect();
        let warden = fork_into(self.seat.confinement.birth(), || {
            // Only the keeper itself may hold these: their end is how the host sees the keeper's.
            for number in not_theirs {
                let _ = close(number);
            }
            warden::serve(&self.seat, counted)
        })?;
        self.wardens.insert(warden);
        Ok(())
    }

    fn wait(&mut self) {
        let waiting = PollFlags::POLLIN;
        let mut look = [
            PollFd::new(self.seat.exits.as_fd(), waiting),
            PollFd::new(self.seat.bell.as_fd(), waiting),
            PollFd::new(self.host.as_fd(), waiting),
        ];
        let is_due = self.orphaned_at.is_some() || !self.sweeps.is_empty() || self.dead > 0 || self.is_wanted;
        let is_old = self.orphaned_at.is_some_and(|since| since.elapsed() > Duration::from_secs(1));
        let timeout = match (is_due, is_old && self.sweeps.is_empty()) {
            (false, _) => PollTimeout::NONE,
            (true, false) => PollTimeout::from(ROUND_PAUSE.0),
            (true, true) => PollTimeout::from(ROUND_PAUSE.1),
        };
        let watched = if self.is_host_there { 3 } else { 2 };
        let _ = poll(&mut look[..watched], timeout);
        let is_spoken_to = self.is_host_there && look[2].any().unwrap_or(true);
        while matches!(self.seat.exits.read_signal(), Ok(Some(_))) {}
        self.is_wanted |= rustix::io::read(&self.seat.bell, &mut [0; 8]).is_ok();
        if is_spoken_to {
            self.listen();
        }
    }

    /// Takes one wish for a sweep; the end of the socket is the end of the host.
    fn listen(&mut self) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut wish = [0; SWEEP_BYTES];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let heard = recvmsg(&self.host, &mut [IoSliceMut::new(&mut wish)], &mut control, flags);
        let length = match heard {
            Ok(heard) => heard.bytes,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return,
            Err(_) => 0,
        };
        if length == 0 {
            self.is_host_there = false;
            return;
        }
        let answer = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let Some(answer) = answer.filter(|_| length == SWEEP_BYTES && self.sweeps.len() < SWEEPS_MAX) else { return };
        let warden = Pid::from_raw(i32::from_le_bytes(wish));
        // It is not reaped, or it would not be in the list.
        if self.wardens.contains(&warden) {
            offspring::tell(warden, Signal::SIGKILL);
        }
        self.expect_orphans();
        self.sweeps.push(Sweep { warden, answer: answer.into(), until: now() + SWEEP_WAIT });
    }
}

/// Why there is no keeper.
enum Refusal {
    /// The level is not available.
    Level(Fault),
    Other(io::Error),
}

impl Refusal {
    /// Tells the host.
    fn tell(self, host: &mut UnixStream) -> Self {
        let report = match &self {
            Self::Level(fault) => Report::Unavailable { fault: *fault },
            Self::Other(error) => Report::Failed { errno: error.raw_os_error().unwrap_or(Errno::EIO as i32) },
        };
        let _ = host.write_all(&report.to_bytes());
        self
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Level(fault)
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Other(error)
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Other(errno.into())
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Other(errno.into())
    }
}

/// Closes what the host leaked into this process: a descriptor held here would be held for as long as the host runs.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn close_inherited() {
    let listed = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // The one that the list itself was read by is closed already.
        let _ = close(number);
    }
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn threads() -> io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}
