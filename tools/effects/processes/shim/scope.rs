//! A scope: the process above one running command, which ends it and everything that came of it.
//!
//! It waits for a request on the keeper's socket, starts the command, and reports. What the command started is gone
//! when the kernel says that there are no children left, because every orphan below became one. Then the scope
//! serves the next request: nothing can be left to come to it.
//!
//! What must stay true: the host's end of the lease is all that keeps a command running; only children that are not
//! reaped are signalled; a report of nothing left is sent after ECHILD alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::signal::{Signal, killpg};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, chdir, fchdir, getpid, getppid, setsid};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};

use super::launch::{Launched, Streams, launch};
use super::offspring::{self, Reaped};
use super::wire::{FINISH, Report, Request, STOP};

/// The most descriptors that come with a request.
pub(super) const DESCRIPTORS_MAX: usize = 6;
/// How long what a command left behind may take to obey TERM.
const BACKGROUND_GRACE: Duration = Duration::from_millis(200);
/// After this long without a death, what is being killed is reported as surviving.
const STUCK_WAIT: Duration = Duration::from_millis(500);
/// After this long in all, what is being killed is reported as surviving.
const KILL_WAIT: Duration = Duration::from_millis(1200);
/// The pause between two rounds of KILL in which nobody died, before and after the report of survivors.
const ROUND_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// What a scope has of the keeper.
pub(super) struct Seat {
    /// Where requests come in; shared with all other scopes.
    pub(super) requests: OwnedFd,
    /// A semaphore that counts the idle scopes.
    pub(super) idle: OwnedFd,
    /// Tells the keeper that no scope is idle.
    pub(super) bell: OwnedFd,
    /// SIGCHLD.
    pub(super) exits: SignalFd,
    /// The keeper.
    pub(super) keeper: Pid,
}

/// The life of a scope; `counted` says whether it adds itself to the idle ones (not when it replaces one that died
/// while it was counted). Returns the exit code: 0 when it is not needed any more.
pub(super) fn serve(seat: &Seat, mut counted: bool) -> i32 {
    // In a session of its own no signal to a group can meet it together with the host or the keeper.
    let _ = setsid();
    let _ = set_name(c"toolwarden-scope");
    if set_child_subreaper(true).is_err() {
        return super::fork::BROKEN;
    }
    let mut is_used = false;
    loop {
        // An idle scope ends with the keeper, without which it would serve once more and never be replaced.
        let _ = set_pdeathsig(Signal::SIGKILL);
        if getppid() != seat.keeper {
            return 0;
        }
        if counted {
            let _ = rustix::io::write(&seat.idle, &1_u64.to_ne_bytes());
        }
        counted = true;
        let handed = loop {
            match receive(&seat.requests) {
                Ok(Received::Request(handed)) => break Some(handed),
                Ok(Received::Nonsense) => break None,
                Ok(Received::End) => return 0,
                Err(Errno::EINTR) => {}
                // The socket's time is over: nobody needed this scope for a while.
                Err(Errno::EAGAIN) if is_used && seat.leave() => return 0,
                Err(Errno::EAGAIN) => {}
                Err(_) => return super::fork::BROKEN,
            }
        };
        let _ = set_pdeathsig(None);
        let is_leased = match handed {
            Some(handed) => run(seat, handed),
            None => {
                seat.take();
                true
            }
        };
        if !is_leased {
            return 0;
        }
        // It must not keep a folder busy.
        let _ = chdir("/");
        is_used = true;
    }
}

impl Seat {
    /// Counts this scope out; says whether others are idle.
    fn count_out(&self) -> bool {
        let _ = rustix::io::read(&self.idle, &mut [0; 8]);
        let mut look = [PollFd::new(self.idle.as_fd(), PollFlags::POLLIN)];
        poll(&mut look, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Begins to work.
    fn take(&self) {
        if !self.count_out() {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// Leaves, unless this is the last idle one.
    fn leave(&self) -> bool {
        let others = self.count_out();
        if !others {
            let _ = rustix::io::write(&self.idle, &1_u64.to_ne_bytes());
        }
        others
    }
}

/// What comes with a request.
struct Handed {
    /// The lease, the request and the orders; back goes the receipt.
    lease: UnixStream,
    reports: File,
    folder: OwnedFd,
    out: OwnedFd,
    err: OwnedFd,
    input: Option<OwnedFd>,
}

/// What came on the keeper's socket.
enum Received {
    Request(Handed),
    /// A message without the descriptors of a request.
    Nonsense,
    /// The host is gone.
    End,
}

/// Waits for a request.
fn receive(requests: &OwnedFd) -> Result<Received, Errno> {
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

/// Serves one request to the end of everything that came of it. Says whether the host still held the lease then: one
/// that let go may have this scope killed yet, which must not hit another command.
fn run(seat: &Seat, handed: Handed) -> bool {
    let Handed { mut lease, mut reports, folder, out, err, input } = handed;
    let Some(request) = read_request(&mut lease) else {
        seat.take();
        return false;
    };
    // The receipt comes before the last look at the lease: a host that lets go and then finds no receipt knows that
    // nothing will be started, and may hand the command to another.
    let _ = rustix::io::write(&lease, &getpid().as_raw().to_le_bytes());
    if !is_leased(&lease) {
        seat.take();
        return false;
    }
    let streams = Streams { out: &out, err: &err, input: input.as_ref() };
    let entered = fchdir(&folder).map_err(|errno| Report::Failed { errno: errno as i32 });
    let launched = entered.and_then(|()| launch(&request, &streams));
    // The next request can wait for that long, and this one need not wait for a fork.
    seat.take();
    drop((folder, out, err, input));
    match launched {
        // The folder for temporary files goes when nothing is left that could write to it.
        Ok(Launched { leader, temporary: _temporary }) => {
            Scope::new(lease, reports, leader, request.grace).guard(&seat.exits)
        }
        Err(report) => reports.write_all(&report.to_bytes()).is_ok(),
    }
}

/// Whether the host holds the other end.
fn is_leased(lease: &UnixStream) -> bool {
    let seen = recv(lease, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK).map(|(_, length)| length);
    matches!(seen, Ok(1) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
}

/// Reads exactly the request: an order may have come close behind it.
fn read_request(lease: &mut UnixStream) -> Option<Request> {
    let mut first = [0; 4];
    lease.read_exact(&mut first).ok()?;
    let mut rest = vec![0; Request::length(first)?];
    lease.read_exact(&mut rest).ok()?;
    Request::from_bytes(&rest)
}

/// How far the end of a command is.
enum Phase {
    /// It runs.
    Running,
    /// It was asked to end, and has until then.
    Asked { kill_at: Instant },
    /// It is being killed.
    Killing { began_at: Instant, died_at: Instant, is_reported: bool },
}

/// One running command.
struct Scope {
    lease: UnixStream,
    reports: File,
    /// Whether the host may still say something.
    is_leased: bool,
    /// The command itself, until it is reaped.
    leader: Option<Pid>,
    grace: Duration,
    phase: Phase,
    /// Who was sent TERM, and is not reaped.
    asked: BTreeSet<Pid>,
    killed_background: bool,
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn now() -> Instant {
    Instant::now()
}

impl Scope {
    fn new(lease: UnixStream, reports: File, leader: Pid, grace: Duration) -> Self {
        let (leader, phase, asked) = (Some(leader), Phase::Running, BTreeSet::new());
        Self { lease, reports, is_leased: true, leader, grace, phase, asked, killed_background: false }
    }

    /// Returns when nothing is left; says whether the host held the lease until then.
    fn guard(mut self, exits: &SignalFd) -> bool {
        loop {
            let (mut news, is_over) = self.reap();
            if is_over {
                let gone = Report::Gone { killed_background: self.killed_background, survivors: Vec::new() };
                news.extend(gone.to_bytes());
            }
            if !news.is_empty() && self.reports.write_all(&news).is_err() {
                self.is_leased = false;
                self.kill_from_now_on();
            }
            if is_over {
                return self.is_leased;
            }
            let pause = self.round();
            self.wait(exits, pause);
        }
    }

    /// Reaps all who ended; what is to be reported of it, and whether there are no children left.
    fn reap(&mut self) -> (Vec<u8>, bool) {
        let mut news = Vec::new();
        loop {
            match offspring::reap() {
                Reaped::Ended(pid, status) => {
                    self.asked.remove(&pid);
                    if let Phase::Killing { died_at, .. } = &mut self.phase {
                        *died_at = now();
                    }
                    if self.leader == Some(pid) {
                        self.leader = None;
                        news.extend(Report::Ended { status }.to_bytes());
                    }
                }
                // A command may suspend its own; that is nobody else's business.
                Reaped::Stopped(_) => {}
                Reaped::Nothing => return (news, false),
                Reaped::NoChildren => return (news, true),
            }
        }
    }

    /// Does what the phase asks for; how long to wait for news after that, for ever when none.
    fn round(&mut self) -> Option<Duration> {
        match &self.phase {
            Phase::Running => None,
            Phase::Asked { kill_at } => {
                let left = kill_at.saturating_duration_since(now());
                if left.is_zero() {
                    self.kill_from_now_on();
                    return self.round();
                }
                self.ask();
                Some(left)
            }
            Phase::Killing { .. } => Some(self.kill()),
        }
    }

    /// Sends TERM to the command's group, and to every direct child that has not had it. Those who come up when
    /// their parents obey have it in a later round.
    fn ask(&mut self) {
        for child in offspring::children().unwrap_or_default() {
            if self.asked.insert(child) {
                if self.leader == Some(child) {
                    let _ = killpg(child, Signal::SIGTERM);
                    let _ = killpg(child, Signal::SIGCONT);
                } else {
                    offspring::ask_to_end(child);
                }
                self.killed_background |= self.leader.is_none();
            }
        }
    }

    /// One round of KILL; the pause after it.
    fn kill(&mut self) -> Duration {
        if let Some(leader) = self.leader {
            // Whoever is still in its group need not come up first. The number is the leader's until it is reaped.
            let _ = killpg(leader, Signal::SIGKILL);
        }
        let children = offspring::children().unwrap_or_default();
        for child in &children {
            offspring::tell(*child, Signal::SIGKILL);
        }
        self.killed_background |= self.leader.is_none() && !children.is_empty();
        let Phase::Killing { began_at, died_at, is_reported } = &mut self.phase else { return ROUND_PAUSE.0 };
        if *is_reported {
            return ROUND_PAUSE.1;
        }
        if died_at.elapsed() >= STUCK_WAIT || began_at.elapsed() >= KILL_WAIT {
            *is_reported = true;
            let survivors = children.iter().filter_map(|child| u32::try_from(child.as_raw()).ok()).collect();
            let report = Report::Gone { killed_background: self.killed_background, survivors };
            let _ = self.reports.write_all(&report.to_bytes());
        }
        ROUND_PAUSE.0
    }

    fn kill_from_now_on(&mut self) {
        if !matches!(self.phase, Phase::Killing { .. }) {
            self.phase = Phase::Killing { began_at: now(), died_at: now(), is_reported: false };
        }
    }

    /// Waits for a death or a word from the host.
    fn wait(&mut self, exits: &SignalFd, pause: Option<Duration>) {
        // Rounded up, so that a deadline is over when the wait for it is.
        let timeout = pause.map_or(PollTimeout::NONE, |pause| {
            let ms = pause.as_micros().div_ceil(1000).min(i32::MAX.unsigned_abs().into());
            i32::try_from(ms).ok().and_then(|ms| PollTimeout::try_from(ms).ok()).unwrap_or(PollTimeout::MAX)
        });
        let mut look =
            [PollFd::new(exits.as_fd(), PollFlags::POLLIN), PollFd::new(self.lease.as_fd(), PollFlags::POLLIN)];
        let watched = if self.is_leased { 2 } else { 1 };
        let _ = poll(&mut look[..watched], timeout);
        let is_spoken_to = self.is_leased && look[1].any().unwrap_or(true);
        while matches!(exits.read_signal(), Ok(Some(_))) {}
        if is_spoken_to {
            self.listen();
        }
    }

    /// Takes one order; the end of the lease is the order to kill.
    fn listen(&mut self) {
        let mut order = [0];
        let heard = recv(&self.lease, &mut order, RecvFlags::DONTWAIT).map(|(_, length)| length);
        let grace = match (heard, order[0]) {
            (Ok(1), STOP) => self.grace,
            (Ok(1), FINISH) => self.grace.min(BACKGROUND_GRACE),
            (Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR), _) => return,
            _ => {
                self.is_leased = false;
                return self.kill_from_now_on();
            }
        };
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Asked { kill_at: now() + grace };
        }
    }
}

/// The null device, for reading and writing.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
pub(super) fn null_device() -> io::Result<File> {
    File::options().read(true).write(true).open("/dev/null")
}
