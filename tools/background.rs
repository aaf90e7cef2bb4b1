//! Background processes: commands that a session holds by name, until they end, are stopped, or the session ends.
//!
//! Only the port stands here, and what it tells; the runtime implements it, for it knows the session's node. What a
//! background process prints goes to a ring of its own (see [`ring`]), so it can be read later and never blocks.

pub mod ring;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;

use self::ring::{RingCounts, RingRead};
use crate::cancellation::CancelReason;
use crate::effects::processes::{CommandSpec, Leftover, ProcessEnd, ProcessError};
use crate::ids::{BackgroundId, InvocationId};

/// Most background processes that run in one session at a time; a further one is refused.
pub const RUNNING_MAX: usize = 16;
/// Most background processes that one session lists; beyond it the one that ended first is forgotten.
pub const LISTED_MAX: usize = 32;
/// Bytes of output that are held for each background process.
pub const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Longest command line that is kept to tell a background process by, in bytes.
pub const LINE_BYTES_MAX: usize = 1024;

/// The background processes of one session.
pub trait Background: Send + Sync {
    /// Starts a command and returns soon, with what it has come to by then. Dropping the future does not end it.
    ///
    /// # Errors
    /// [`BackgroundError::Full`].
    fn start(&self, start: BackgroundStart) -> BoxFuture<'_, Result<BackgroundStatus, BackgroundError>>;

    /// What becomes of processes that a command in the foreground leaves running.
    fn leftover(&self) -> Leftover;

    /// All that are listed, the oldest first.
    fn list(&self) -> Vec<BackgroundStatus>;

    /// Reads output; see [`ReadFrom`].
    ///
    /// # Errors
    /// [`BackgroundError::Unknown`].
    fn read(&self, id: &str, from: ReadFrom, bytes_max: usize) -> Result<BackgroundRead, BackgroundError>;

    /// Ends one in order (TERM, grace, KILL, reaped) and waits for its end. One that has ended does not mind.
    ///
    /// # Errors
    /// [`BackgroundError::Unknown`].
    fn stop(&self, id: &str) -> BoxFuture<'_, Result<BackgroundStatus, BackgroundError>>;
}

/// What to start.
#[derive(Debug, Clone)]
pub struct BackgroundStart {
    /// The call that wants it.
    pub invocation: InvocationId,
    /// The command line to tell it by.
    pub line: String,
    /// What is run.
    pub command: CommandSpec,
    /// After this span it is stopped; none for as long as the session lives.
    pub timeout: Option<Duration>,
}

/// Where a read begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadFrom {
    /// Behind what the last read of this kind gave.
    New,
    /// At this byte of the output of both streams together.
    Cursor(u64),
}

/// How a background process stands.
#[derive(Debug, Clone)]
pub struct BackgroundStatus {
    /// Its id.
    pub id: BackgroundId,
    /// Its command line, at most [`LINE_BYTES_MAX`].
    pub line: String,
    /// The call that started it, or whose command left it running.
    pub invocation: InvocationId,
    /// When it was started or left, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// Its end; none while it runs.
    pub end: Option<BackgroundEnd>,
    /// What it printed.
    pub output: RingCounts,
    /// Bytes that no read of what is new has given yet, those that were overwritten meanwhile not counted.
    pub unread_bytes: u64,
}

/// How a background process ended.
#[derive(Debug, Clone)]
pub struct BackgroundEnd {
    /// When, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// What it came to.
    pub how: BackgroundOutcome,
}

/// What a background process came to.
#[derive(Debug, Clone)]
pub enum BackgroundOutcome {
    /// Nothing is left of it but what the end names.
    Ended(Box<ProcessEnd>),
    /// It could not be started, or was lost.
    Failed(Arc<ProcessError>),
    /// It was given up with its session before it had ended; whatever it held was killed.
    GivenUp {
        /// Why it was to end, when it was told to.
        reason: Option<CancelReason>,
    },
}

/// One read of a background process.
#[derive(Debug, Clone)]
pub struct BackgroundRead {
    /// What was read.
    pub output: RingRead,
    /// How it stands after that.
    pub status: BackgroundStatus,
}

/// Why a background process could not be started or found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BackgroundError {
    /// Too many run.
    #[error("{RUNNING_MAX} background processes run in this session already; stop one of them first")]
    Full,
    /// There is none of this id.
    #[error("there is no background process {id:?}; list shows those there are")]
    Unknown {
        /// The id.
        id: String,
    },
}
