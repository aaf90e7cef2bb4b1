//! Why a script did not come to its result, in words that say what to change.

use std::fmt;

use thiserror::Error;

use super::mailbox::Stop;
use super::{HEAP_BYTES_MAX, RESULT_BYTES_MAX, STACK_BYTES_MAX};
use crate::cancellation::CancelReason;

/// Longest piece of a source line that is shown, in bytes.
const SHOWN_LINE_BYTES: usize = 160;

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Fault {
    /// It cannot be read as JavaScript.
    #[error("the script cannot be read: {message}{place}")]
    Syntax {
        /// What the engine says.
        message: String,
        /// Where.
        place: Place,
    },
    /// A zero byte in the source.
    #[error("the script has a NUL character in it; take it out")]
    Nul,
    /// It threw.
    #[error("the script threw {message}{place}")]
    Thrown {
        /// The error's name and message.
        message: String,
        /// Where.
        place: Place,
    },
    /// There is nothing to call.
    #[error("the script defines no function run; write: async function run(ctx, inputs) {{ … return result }}")]
    NoRun,
    /// Its promise cannot settle any more.
    #[error("the script waits for a promise that nothing will settle: no tool call is under way any more")]
    NeverSettles,
    /// More memory than it may have.
    #[error("the script used up its memory, {} MiB; keep less at a time, and return less", HEAP_BYTES_MAX >> 20)]
    Memory,
    /// More stack than it may have.
    #[error("the script used up its stack, {} KiB: a call or a value is nested too deep{place}", STACK_BYTES_MAX >> 10)]
    Stack {
        /// Where.
        place: Place,
    },
    /// The result is no JSON.
    #[error("the result of the script cannot be given back: {0}")]
    NotJson(String),
    /// The result is too large.
    #[error("the result of the script is larger than {} MiB of JSON; write it to a file, or return less", RESULT_BYTES_MAX >> 20)]
    ResultTooLarge,
    /// Its time was over.
    #[error("the script was stopped after {timeout_ms} ms, its limits.timeoutMs")]
    TimedOut {
        /// What it had.
        timeout_ms: u64,
    },
    /// Its call was cancelled.
    #[error("the script was stopped: {0}")]
    Cancelled(CancelReason),
    /// Its thread does not stop.
    #[error("the script was told to stop and did not: it may still be running")]
    Stuck,
    /// No thread could be made, or the engine gave up.
    #[error("the script could not be run: {0}; try again when the host has more room")]
    Host(String),
}

impl Fault {
    /// Which limit was met, by its name.
    pub(crate) fn limit(&self) -> Option<&'static str> {
        match self {
            Self::Memory => Some("memory"),
            Self::Stack { .. } => Some("stack"),
            Self::ResultTooLarge => Some("result"),
            Self::TimedOut { .. } => Some("timeoutMs"),
            _ => None,
        }
    }

    pub(super) fn of_stop(stop: Stop, timeout_ms: u64) -> Self {
        match stop {
            Stop::Deadline => Self::TimedOut { timeout_ms },
            Stop::Cancelled(reason) => Self::Cancelled(reason),
        }
    }
}

/// A line of the script, or nothing where none is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    line: Option<(usize, String)>,
}

impl Place {
    /// The innermost place in the script that a stack of the engine names.
    pub(super) fn in_stack(stack: &str, name: &str, source: &str) -> Self {
        let line = stack.lines().find_map(|frame| {
            let (_, after) = frame.split_once(&format!("{name}:"))?;
            let digits = after.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<usize>().ok()
        });
        Self { line: line.map(|line| (line, shown(source, line))) }
    }
}

fn shown(source: &str, line: usize) -> String {
    let text = source.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    let end = text.floor_char_boundary(SHOWN_LINE_BYTES.min(text.len()));
    let more = if end < text.len() { "…" } else { "" };
    format!("{}{more}", &text[..end])
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            None => Ok(()),
            Some((line, text)) if text.is_empty() => write!(out, "\n  at line {line} of the script"),
            Some((line, text)) => write!(out, "\n  at line {line} of the script: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn the_innermost_place_in_the_script_is_named() {
        let stack = "    at located (toolwarden:9:9)\n    at run (a.js:2:7)\n    at <anonymous> (a.js:9:1)\n";
        let place = Place::in_stack(stack, "a.js", "one\n  two();\nthree");
        assert_eq!(place.to_string(), "\n  at line 2 of the script: two();");
        assert_eq!(Place::in_stack("    at native\n", "a.js", "").to_string(), "");
        let long = "é".repeat(500);
        assert!(Place::in_stack("    at a.js:1:1", "a.js", &long).to_string().len() < 250);
    }
}
