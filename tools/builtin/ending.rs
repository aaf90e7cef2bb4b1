//! How a command of the shell ended, as the outcome of a call; told alike by `bash` and by `process`.

use std::io;

use nix::sys::signal::Signal;

use crate::effects::processes::{ProcessError, ProcessStatus};
use crate::outcome::{ToolErrorKind, ToolOutcome};

/// The outcome of a command that ended by itself; its text is what to say of the ending.
pub(super) fn of_status(status: ProcessStatus) -> ToolOutcome {
    match status {
        ProcessStatus::Exited { code: 0 } => ToolOutcome::success(""),
        ProcessStatus::Exited { code } => {
            ToolOutcome { exit_code: code, ..ToolOutcome::failure(format!("exit code {code}")) }
        }
        // The number that a shell would give for it.
        ProcessStatus::Signalled { signal } => {
            ToolOutcome { exit_code: 128 + signal, ..ToolOutcome::failure(format!("ended by {}", signal_name(signal))) }
        }
        ProcessStatus::Unknown => ToolOutcome::failure("it is not known how the command ended"),
    }
}

/// The outcome of a command that was not run, or not to its end.
pub(super) fn of_error(error: &ProcessError) -> ToolOutcome {
    let text = error.to_string();
    if let Some(outcome) = of_exhaustion("bash", error) {
        return outcome;
    }
    match error {
        ProcessError::FolderClosed { .. } | ProcessError::Unconfined { .. } => *unsupported(&text),
        ProcessError::Folder { folder, .. } => {
            ToolOutcome::error(ToolErrorKind::NotFound { path: folder.display().to_string() }, text)
        }
        ProcessError::Start { source, .. } if source.kind() == io::ErrorKind::NotFound => *unsupported(
            "there is no bash in the PATH that commands get here; the host has to install it or to extend that PATH",
        ),
        ProcessError::Start { source, .. } if source.kind() == io::ErrorKind::ArgumentListTooLong => {
            ToolOutcome::invalid_argument(
                "command and environment are too long together; write a script file and run it",
            )
        }
        _ => ToolOutcome::failure(text),
    }
}

/// The outcome of a command that was not run because its host has run out of something.
pub(super) fn of_exhaustion(op: &str, error: &ProcessError) -> Option<ToolOutcome> {
    let text =
        format!("{op}: {error}. The host has no more {}; let something end first, then try again", error.exhausted()?);
    Some(ToolOutcome::error(ToolErrorKind::Transport { op: op.to_owned() }, text))
}

/// The outcome of what cannot be done here.
pub(super) fn unsupported(message: &str) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.into() }, message))
}

/// The name of a signal, or its number where it has none.
pub(super) fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.as_str().to_owned())
}
