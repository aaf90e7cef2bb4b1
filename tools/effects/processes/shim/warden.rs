//! A warden: the process above one running command, which ends it and everything that came of it.
//!
//! It waits for a call on the keeper's socket, starts the command that is asked for, and reports. What the command started is gone
//! when the kernel says that there are no children left, because every orphan below became one. Then the warden
//! serves the next request: nothing can be left to come to it.
//!
//! What must stay true: the host's end of the lease is all that keeps a command running; only children that are not
//! reaped are signalled; a report of nothing left is sent after ECHILD alone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::{set_child_subreaper, set_name, set_pdeathsig};
use nix::sys::signal::{Signal, killpg};
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Pid, chdir, fchdir, setsid};
use rustix::net::{RecvFlags, recv};

use super::enclosure::{Hold, Ward};
use super::fork::BROKEN;
use super::launch::{Launched, Streams, launch};
use super::offspring::{self, Reaped};
use super::seat::{Call, Handed, Received, Seat, receive, receive_request};
use super::wire::{FINISH, Report, STOP};

/// How long what a command left behind may take to obey TERM.
const BACKGROUND_GRACE: Duration = Duration::from_millis(200);
/// How long a command may take to obey TERM when its host has let go or died: enough for a program to take its locks
/// away (git's `index.lock`), and little beside what killing a tree takes.
const ORPHAN_GRACE: Duration = Duration::from_millis(10);
/// After this long without a death, what is being killed is reported as surviving.
const STUCK_WAIT: Duration = Duration::from_millis(500);
/// After this long in all, what is being killed is reported as surviving.
const KILL_WAIT: Duration = Duration::from_millis(1200);
/// The pause between two rounds of KILL in which nobody died, before and after the report of survivors.
const ROUND_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// The pause between two looks at a cgroup that is still populated when there are no children.
const CGROUP_PAUSE: Duration = Duration::from_millis(1);

/// The life of a warden; `counted` says whether it adds itself to the idle ones (not when it replaces one that died
/// while it was counted). Returns the exit code: 0 when it is not needed any more.
pub(super) fn serve(seat: &Seat, mut counted: bool) -> i32 {
    // In a session of its own no signal to a group can meet it together with the host or the keeper.
    let _ = setsid();
    let _ = set_name(c"toolwarden-ward");
    let Ok(ward) = seat.enclosure.enter() else { return BROKEN };
    if set_child_subreaper(true).is_err() {
        return BROKEN;
    }
    let mut is_used = false;
    loop {
        // An idle warden ends with the keeper, without which it would serve once more and never be replaced.
        let _ = set_pdeathsig(Signal::SIGKILL);
        if !seat.is_keeper_there() {
            return 0;
        }
        if counted {
            let _ = rustix::io::write(&seat.idle, &1_u64.to_ne_bytes());
        }
        counted = true;
        let call = loop {
            match receive(&seat.calls) {
                Ok(Received::Call(call)) => break Some(call),
                Ok(Received::Nonsense) => break None,
                Ok(Received::End) => return 0,
                Err(Errno::EINTR) => {}
                // The socket's time is over: nobody needed this warden for a while.
                Err(Errno::EAGAIN) if is_used && seat.leave() => return 0,
                Err(Errno::EAGAIN) => {}
                Err(_) => return BROKEN,
            }
        };
        let _ = set_pdeathsig(None);
        let is_leased = match call {
            Some(call) => run(seat, &ward, call),
            None => {
                seat.take();
                true
            }
        };
        if !is_leased || ward.is_used_once() {
            return 0;
        }
        // It must not keep a folder busy.
        let _ = chdir("/");
        is_used = true;
    }
}

/// Serves one call to the end of everything that came of it. Says whether the host still held the lease then, or has
/// never heard of this warden: one that let go may have it killed yet, which must not hit another command.
fn run(seat: &Seat, ward: &Ward, call: Call) -> bool {
    let Call { mut lease, mut reports } = call;
    let Some(handed) = receive_request(&mut lease) else {
        seat.take();
        return true;
    };
    // The receipt comes before the last look at the lease: a host that lets go and then finds no receipt knows that
    // nothing will be started, and may hand the command to another.
    let _ = rustix::io::write(&lease, &ward.pid().as_raw().to_le_bytes());
    if !is_leased(&lease) {
        seat.take();
        return false;
    }
    let started = begin(seat, ward, &handed);
    // The next call can wait for that long, and this one need not wait for a fork.
    seat.take();
    let Handed { request, folder, streams: Streams { out, err, input } } = handed;
    drop((folder, input));
    match started {
        // The folder for temporary files goes when nothing is left that could write to it.
        Ok((Launched { leader, temporary: _temporary }, hold)) => {
            Warden::new(lease, reports, leader, [out, err], request.grace, hold).guard(&seat.exits)
        }
        Err(report) => reports.write_all(&report.to_bytes()).is_ok(),
    }
}

/// Starts a command with what holds it; else what is to be reported.
fn begin<'a>(seat: &Seat, ward: &'a Ward, handed: &Handed) -> Result<(Launched, Hold<'a>), Report> {
    let hold = seat.enclosure.hold(ward).map_err(|fault| Report::Unavailable { fault })?;
    let here = hold.folder_here(&handed.folder);
    let entered =
        fchdir(here.as_ref().unwrap_or(&handed.folder)).map_err(|errno| Report::Failed { errno: errno as i32 });
    match entered.and_then(|()| launch(&handed.request, &handed.streams, hold.cgroup())) {
        Ok(launched) => Ok((launched, hold)),
        Err(report) => {
            hold.end();
            Err(report)
        }
    }
}

/// Whether the host holds the other end.
fn is_leased(lease: &UnixStream) -> bool {
    let seen = recv(lease, &mut [0], RecvFlags::DONTWAIT | RecvFlags::PEEK).map(|(_, length)| length);
    matches!(seen, Ok(1) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
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
struct Warden<'a> {
    lease: UnixStream,
    reports: File,
    /// Whether the host may still say something.
    is_leased: bool,
    /// The command itself, until it is reaped.
    leader: Option<Pid>,
    /// Where it writes, until it is reaped: the host hears of the end of its output with the report that comes of that,
    /// and not on its own a little earlier, which would wake it twice and keep this process waiting meanwhile.
    outputs: Option<[OwnedFd; 2]>,
    grace: Duration,
    phase: Phase,
    /// Who was sent TERM, and is not reaped.
    asked: BTreeSet<Pid>,
    /// Whether everything was sent TERM at once.
    has_asked_all: bool,
    killed_background: bool,
    hold: Hold<'a>,
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn now() -> Instant {
    Instant::now()
}

impl<'a> Warden<'a> {
    fn new(
        lease: UnixStream,
        reports: File,
        leader: Pid,
        outputs: [OwnedFd; 2],
        grace: Duration,
        hold: Hold<'a>,
    ) -> Self {
        let (leader, phase, asked) = (Some(leader), Phase::Running, BTreeSet::new());
        Self {
            lease,
            reports,
            is_leased: true,
            leader,
            outputs: Some(outputs),
            grace,
            phase,
            asked,
            has_asked_all: false,
            killed_background: false,
            hold,
        }
    }

    /// Returns when nothing is left; says whether the host held the lease until then.
    fn guard(mut self, exits: &SignalFd) -> bool {
        loop {
            let (mut news, is_alone) = self.reap();
            let is_over = is_alone && !self.hold.is_populated();
            if is_alone && !is_over {
                // Somebody whose parent is elsewhere was put into its cgroup.
                self.kill_from_now_on();
            }
            if is_over {
                self.hold.end();
                let gone = Report::Gone { killed_background: self.killed_background, survivors: Vec::new() };
                news.extend(gone.to_bytes());
            }
            if !news.is_empty() && self.reports.write_all(&news).is_err() {
                self.orphan();
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
                        self.outputs = None;
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

    /// Sends TERM to everything at once where there is a way; else to the command's group, and to every direct child
    /// that has not had it. Those who come up when their parents obey have it in a later round.
    fn ask(&mut self) {
        let reaches_all = self.hold.reaches_all();
        for child in offspring::children().unwrap_or_default() {
            if !self.asked.insert(child) {
                continue;
            }
            self.killed_background |= self.leader.is_none();
            if reaches_all {
                continue;
            }
            if self.leader == Some(child) {
                let _ = killpg(child, Signal::SIGTERM);
                let _ = killpg(child, Signal::SIGCONT);
            } else {
                offspring::ask_to_end(child);
            }
        }
        if reaches_all && !self.has_asked_all {
            self.has_asked_all = true;
            self.hold.tell_all(Signal::SIGTERM);
            self.hold.tell_all(Signal::SIGCONT);
        }
    }

    /// One round of KILL; the pause after it.
    fn kill(&mut self) -> Duration {
        self.hold.tell_all(Signal::SIGKILL);
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
            let survivors = self.hold.survivors();
            let survivors = survivors.iter().filter_map(|pid| u32::try_from(pid.as_raw()).ok()).collect();
            let report = Report::Gone { killed_background: self.killed_background, survivors };
            let _ = self.reports.write_all(&report.to_bytes());
        }
        if children.is_empty() { CGROUP_PAUSE } else { ROUND_PAUSE.0 }
    }

    fn kill_from_now_on(&mut self) {
        if !matches!(self.phase, Phase::Killing { .. }) {
            self.phase = Phase::Killing { began_at: now(), died_at: now(), is_reported: false };
        }
    }

    /// The host has let go or died: nobody waits for a grace any more.
    fn orphan(&mut self) {
        self.is_leased = false;
        let at_the_latest = now() + ORPHAN_GRACE;
        match &mut self.phase {
            Phase::Running => self.phase = Phase::Asked { kill_at: at_the_latest },
            Phase::Asked { kill_at } => *kill_at = at_the_latest.min(*kill_at),
            Phase::Killing { .. } => {}
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

    /// Takes one order; the end of the lease is the order to end everything at once.
    fn listen(&mut self) {
        let mut order = [0];
        let heard = recv(&self.lease, &mut order, RecvFlags::DONTWAIT).map(|(_, length)| length);
        let grace = match (heard, order[0]) {
            (Ok(1), STOP) => self.grace,
            (Ok(1), FINISH) => self.grace.min(BACKGROUND_GRACE),
            (Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR), _) => return,
            _ => return self.orphan(),
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
