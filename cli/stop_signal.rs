//! The signals that ask this program to end, as something to wait for.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that asks for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopSignal {
    /// Ctrl-C.
    Interrupt,
    /// `kill`.
    Terminate,
    /// The terminal went away.
    HangUp,
}

impl StopSignal {
    /// What a shell reports for it: 128 and the signal's number.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::HangUp => 129,
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }

    /// The word for it in messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::HangUp => "SIGHUP",
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// Listens; from its making on, none of the signals ends the program by itself.
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl StopSignals {
    /// Begins to listen. A hang-up that was ignored before (`nohup`) stays ignored.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub(crate) fn listen() -> io::Result<Self> {
        let hang_up = if hang_up_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hang_up })
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> StopSignal {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        // A stream of signals ends with tokio's runtime, and this future with it.
        tokio::select! {
            biased;
            Some(()) = self.interrupt.recv() => StopSignal::Interrupt,
            Some(()) = self.terminate.recv() => StopSignal::Terminate,
            Some(()) = hang_up => StopSignal::HangUp,
            else => std::future::pending().await,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "what was ignored from the start is told by /proc alone")]
fn hang_up_is_ignored() -> bool {
    ignores_hang_up(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
}

/// Bit 0 of the mask of ignored signals stands for SIGHUP.
fn ignores_hang_up(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::ignores_hang_up;

    #[test]
    fn an_ignored_hang_up_is_seen() {
        assert!(ignores_hang_up("Name:\tx\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\n"));
        assert!(!ignores_hang_up(""));
    }
}
