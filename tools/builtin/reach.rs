//! How the file tools reach a file: a path from an argument, one translation of errors, and blocking work that
//! ends when nobody wants its result any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cancellation::{CancelReason, Cancellation};
use crate::context::ToolContext;
use crate::effects::blocking::{Lost, off_thread};
use crate::effects::files::FileError;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workspace_path::WorkspacePath;

/// Work on at most this many bytes is done inline; a hop to the blocking pool costs more.
pub(crate) const INLINE_BYTES_MAX: u64 = 256 * 1024;

/// A step of a call; an error ends the call with that outcome.
pub(crate) type Step<T> = Result<T, Box<ToolOutcome>>;

/// The path that an argument names.
///
/// # Errors
/// The outcome that says what is wrong with it.
pub(crate) fn path(ctx: &ToolContext, text: &str) -> Step<WorkspacePath> {
    WorkspacePath::parse(text, ctx.workspace.display_root()).map_err(|error| wrong(error.to_string()))
}

/// The outcome of arguments that cannot be carried out.
pub(crate) fn wrong(message: impl Into<String>) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::invalid_argument(message))
}

/// The outcome of a call that ended before its work was done.
pub(crate) fn ended(op: &str, reason: &CancelReason) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::ended_early(op, reason))
}

/// The outcome of a failed file access.
pub(crate) fn fault(error: &FileError) -> Box<ToolOutcome> {
    // A port whose files are far away has errors of its own behind those of reading.
    let behind = |source: &io::Error| source.get_ref()?.downcast_ref::<FileError>().map(fault);
    if let FileError::Io { source, .. } = error
        && let Some(outcome) = behind(source)
    {
        return outcome;
    }
    let text = error.to_string();
    let kind = match error {
        FileError::Stopped { op, reason, .. } => return ended(op, reason),
        FileError::NotFound { path } => {
            let text = format!("{text}; list its folder with ls to see what is there");
            return Box::new(ToolOutcome::error(ToolErrorKind::NotFound { path: path.clone() }, text));
        }
        FileError::Outside { .. } | FileError::NotAFile { .. } | FileError::NotAFolder { .. } => {
            ToolErrorKind::InvalidArgument { message: text.clone() }
        }
        FileError::Exists { path } => {
            ToolErrorKind::VersionConflict { path: path.clone(), expected: "absent".into(), actual: None }
        }
        FileError::Changed { path, expected, actual } => ToolErrorKind::VersionConflict {
            path: path.clone(),
            expected: expected.clone(),
            actual: Some(actual.clone()),
        },
        FileError::WorkspaceMissing { .. }
        | FileError::HardLinked { .. }
        | FileError::Held { .. }
        | FileError::Unsupported { .. }
        | FileError::Sandboxed { .. }
        | FileError::Denied { .. } => ToolErrorKind::Unsupported { message: text.clone() },
        FileError::Io { op, source, .. } => match source.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ToolErrorKind::Unsupported { message: text.clone() }
            }
            io::ErrorKind::InvalidFilename | io::ErrorKind::InvalidInput => {
                ToolErrorKind::InvalidArgument { message: text.clone() }
            }
            _ => ToolErrorKind::Transport { op: (*op).to_owned() },
        },
    };
    Box::new(ToolOutcome::error(kind, text))
}

/// Tells blocking work to end: the call was cancelled, or its future was dropped.
#[derive(Clone)]
pub(crate) struct Stop {
    cancel: Cancellation,
    dropped: Arc<AtomicBool>,
}

impl Stop {
    pub(crate) fn of(ctx: &ToolContext) -> Self {
        Self { cancel: ctx.cancel.clone(), dropped: Arc::default() }
    }

    /// Why the work is to end, once it is.
    pub(crate) fn reason(&self) -> Option<CancelReason> {
        let dropped = || self.dropped.load(Ordering::Relaxed).then_some(CancelReason::CallerGone);
        self.cancel.reason().cloned().or_else(dropped)
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking work inline when it is `short`, else on the blocking pool.
///
/// # Errors
/// The outcome of a call that the runtime's own end cut short.
pub(crate) async fn blocking<T: Send + 'static>(
    ctx: &ToolContext,
    op: &str,
    short: bool,
    work: impl FnOnce(&Stop) -> T + Send + 'static,
) -> Step<T> {
    let stop = Stop::of(ctx);
    if short {
        return Ok(work(&stop));
    }
    let _dropped = StopOnDrop(Arc::clone(&stop.dropped));
    match off_thread(move || work(&stop)).await {
        Ok(done) => Ok(done),
        // A bug stays a bug, whichever thread it shows on.
        Err(Lost::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(Lost::Ended) => Err(ended(op, &CancelReason::Shutdown)),
    }
}

#[cfg(test)]
mod tests {
    use super::{FileError, ToolErrorKind, fault};

    #[test]
    fn each_error_has_its_kind() {
        let path = || "f".to_owned();
        let io = |kind: std::io::ErrorKind| FileError::Io { op: "open", path: path(), source: kind.into() };
        let outcomes = [
            (FileError::NotFound { path: path() }, "not_found"),
            (FileError::Outside { path: path(), via: Some("l".into()) }, "invalid_argument"),
            (FileError::NotAFile { path: path(), kind: "pipe" }, "invalid_argument"),
            (FileError::Exists { path: path() }, "version_conflict"),
            (FileError::HardLinked { path: path(), link_count: 2 }, "unsupported"),
            (FileError::Sandboxed { path: path() }, "unsupported"),
            (FileError::WorkspaceMissing { root: path() }, "unsupported"),
            (io(std::io::ErrorKind::PermissionDenied), "unsupported"),
            (io(std::io::ErrorKind::StorageFull), "transport"),
        ];
        for (error, kind) in outcomes {
            let outcome = fault(&error);
            assert_eq!(serde_json::to_value(outcome.error.as_ref().unwrap()).unwrap()["type"], kind);
            assert!(outcome.output.contains('f') && !outcome.is_success());
        }
        let changed = fault(&FileError::Changed { path: path(), expected: "a".into(), actual: "b".into() });
        assert!(
            matches!(changed.error, Some(ToolErrorKind::VersionConflict { actual: Some(actual), .. }) if actual == "b")
        );
    }
}
