//! Pauses between two looks at an output that is long: many bytes for one waking.
//!
//! Whoever waits for a pipe is woken for every few KiB that a busy command writes, and then the waking takes longer
//! than the reading. So a long output is left alone for a moment at a time, in which its pipe fills. The pauses are
//! shorter than a tick of the runtime's timers, so they have a timer of their own. What must stay true: an output that
//! has become quiet is waited for again and not looked at for ever.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, TimerSetTimeFlags};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe::Receiver;

/// The pause while bytes come: a pipe of a mebibyte takes about four times as long to fill.
const PAUSE: Duration = Duration::from_micros(250);
/// What a timer gives when it is read: how often it went off.
const COUNT_BYTES: usize = 8;
/// How often a pause that brought nothing is doubled before the output is waited for again.
const DOUBLED_MAX: u32 = 4;

/// The pauses of one command's outputs.
pub(super) struct Pace {
    timer: TimerFd,
    /// The same timer as something that is read: to the runtime it is as good as a pipe, from which eight bytes come
    /// when a pause is over.
    bell: Receiver,
    is_set: bool,
    /// How many pauses in a row brought nothing.
    idle: u32,
}

impl Pace {
    /// Pauses that have not begun.
    ///
    /// # Errors
    /// The system's, when it has no timer left.
    pub(super) fn new() -> io::Result<Self> {
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let bell = Receiver::from_owned_fd_unchecked(timer.as_fd().try_clone_to_owned()?)?;
        Ok(Self { timer, bell, is_set: false, idle: 0 })
    }

    /// Whether it is time for a look; else the task is woken when it is.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        if self.is_set {
            let mut count = [0; 2 * COUNT_BYTES];
            let read = Pin::new(&mut self.bell).poll_read(context, &mut ReadBuf::new(&mut count));
            // A timer that cannot be read is none to wait for.
            self.is_set = matches!(read, Poll::Pending);
        }
        !self.is_set
    }

    /// Begins the next pause after a look; says whether there is one: not after some that brought nothing, or where the
    /// timer cannot be set.
    pub(super) fn begin(&mut self, brought_bytes: bool) -> bool {
        self.idle = if brought_bytes { 0 } else { self.idle + 1 };
        if self.idle > DOUBLED_MAX {
            return false;
        }
        let pause = Expiration::OneShot(TimeSpec::from_duration(PAUSE * 2_u32.pow(self.idle)));
        self.is_set = self.timer.set(pause, TimerSetTimeFlags::empty()).is_ok();
        self.is_set
    }
}

/// Reads what an output holds now; none when nothing is there yet.
pub(super) fn read_now(pipe: &OwnedFd, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::io::read(pipe, &mut *buffer) {
            Ok(count) => return Ok(Some(count)),
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::{DOUBLED_MAX, Pace};

    #[tokio::test]
    async fn a_quiet_output_is_waited_for_again_after_a_few_pauses() {
        let mut pace = Pace::new().unwrap();
        assert!(poll_fn(|context| Poll::Ready(pace.is_over(context))).await, "none has begun");
        let mut pauses = 0;
        while pace.begin(false) {
            pauses += 1;
            poll_fn(|context| if pace.is_over(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
        assert_eq!(pauses, DOUBLED_MAX);
        assert!(pace.begin(true), "something came");
    }
}
