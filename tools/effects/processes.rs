//! The processes port: run one command to its end, hand out its bytes as they come, leave nothing behind.
//!
//! A command gets a process group of its own, exactly the environment given, and the null device (or exactly the
//! bytes given) as standard input. Only the port stands here; the real side is [`system::SystemProcesses`].

pub mod confinement;
pub mod containment;
mod left;
#[cfg(test)]
pub(crate) mod marked;
mod pipes;
pub mod shim;
pub mod system;

use std::collections::BTreeMap;
use std::future::ready;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use nix::errno::Errno;
use serde::Serialize;
use thiserror::Error;

use self::confinement::{Confinement, ConfinementError};
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::processes::containment::{CommandLimits, Unavailable};
use crate::ids::BackgroundId;

/// Runs commands.
pub trait Processes: Send + Sync {
    /// Runs `command` to its end. When `stop` is given it ends in order: TERM to the group, grace, KILL to the
    /// group, reaped. Dropping the future kills the group at once.
    fn run(
        &self,
        command: CommandSpec,
        sink: Arc<dyn OutputSink>,
        stop: Cancellation,
    ) -> BoxFuture<'static, Result<ProcessEnd, ProcessError>>;

    /// The same runner with limits for each command, which have been tried out.
    ///
    /// # Errors
    /// Why they cannot be held here. A runner that knows no limits refuses all of them.
    fn limited(&self, _limits: CommandLimits) -> BoxFuture<'static, Result<Arc<dyn Processes>, Unavailable>> {
        Box::pin(ready(Err(Unavailable::Limits { level: ContainmentLevel::Group })))
    }
}

/// What to run. Nothing is inherited that does not stand here.
#[derive(Debug, Clone)]
pub struct CommandSpec {
    /// The program: a path, or a name that is found along the absolute folders in the `PATH` of `environment`.
    pub program: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The whole environment.
    pub environment: BTreeMap<String, String>,
    /// The working directory.
    pub folder: PathBuf,
    /// Bytes for standard input; none means the null device.
    pub stdin: Option<Vec<u8>>,
    /// The span from TERM to KILL.
    pub grace: Duration,
    /// How long output is still read after the command itself has ended, because a background child of it may
    /// hold the pipes for ever.
    pub drain: Duration,
    /// What the kernel keeps it from; none means nothing.
    pub confinement: Option<Arc<Confinement>>,
}

/// Which stream a chunk came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Stream {
    /// Standard output.
    #[serde(rename = "stdout")]
    Out,
    /// Standard error.
    #[serde(rename = "stderr")]
    Err,
}

/// Takes the bytes of a running command, in order of arrival.
pub trait OutputSink: Send + Sync {
    /// One chunk; must not block.
    fn push(&self, stream: Stream, bytes: &[u8]);

    /// The command itself has ended, and what it left running is about to be stopped: says whether it is, or goes
    /// on. Asked at most once, and only at a level that loses nothing of what goes on
    /// ([`ContainmentLevel::SubReaper`]); then [`Processes::run`] ends when nothing is left, and a stop ends all of
    /// it in order. Must not block.
    fn left(&self, _left: &Left) -> Leftover {
        Leftover::Stop
    }
}

/// What becomes of what a command leaves running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Leftover {
    /// It is stopped.
    #[default]
    Stop,
    /// It goes on.
    Keep,
}

/// A command that ended and left something running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The command's own status.
    pub status: ProcessStatus,
    /// What is held of what still runs.
    pub level: ContainmentLevel,
    /// What the kernel keeps it from.
    pub confinement: Option<Arc<Confinement>>,
    /// What still runs, as far as it was seen: at most [`LEFT_MAX`].
    pub processes: Vec<LeftProcess>,
}

/// One process that a command left running, at the moment of the look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftProcess {
    /// Its pid.
    pub pid: u32,
    /// The start of its command line, at most [`LEFT_COMMAND_BYTES_MAX`].
    pub command: String,
}

/// Most processes that are named of what a command left running.
pub const LEFT_MAX: usize = 32;
/// Longest command line of a process that is named, in bytes.
pub const LEFT_COMMAND_BYTES_MAX: usize = 200;

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEnd {
    /// The command's own status.
    pub status: ProcessStatus,
    /// Why it was stopped, when it did not end by itself.
    pub stopped: Option<CancelReason>,
    /// Whether a background child still held a pipe when the drain was over.
    pub output_held: bool,
    /// Whether children of the command were still running when it had ended, and were stopped.
    pub killed_background: bool,
    /// What was held when the command ran, and so what an empty list of survivors is worth.
    pub level: ContainmentLevel,
    /// Pids that are known to be left (at most 64): what could not be killed in time. A later look may find them
    /// gone.
    pub survivors: Vec<u32>,
    /// What the command left running when it had ended, as far as it was seen before it was stopped or handed over.
    pub left: Vec<LeftProcess>,
    /// The background process of the session that what was left now is; none when it was stopped.
    pub handed_over: Option<BackgroundId>,
    /// What the kernel kept it from, as it was put in force.
    pub confinement: Option<Arc<Confinement>>,
}

impl ProcessEnd {
    /// An end at [`ContainmentLevel::Group`] of which no survivor is known.
    pub(crate) fn group(
        status: ProcessStatus,
        stopped: Option<CancelReason>,
        output_held: bool,
        killed_background: bool,
    ) -> Self {
        let (level, survivors, left) = (ContainmentLevel::Group, Vec::new(), Vec::new());
        let (handed_over, confinement) = (None, None);
        Self { status, stopped, output_held, killed_background, level, survivors, left, handed_over, confinement }
    }
}

/// How far the descendants of a command are held; `PROCESSES.md` states what each level promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainmentLevel {
    /// Its process group: what leaves the group is lost from sight, and nothing is ended when this process is
    /// killed.
    Group,
    /// A sub-reaper of its own: no descendant can leave, and all end with this process, however it ends.
    SubReaper,
    /// A PID namespace of its own: the same, and what a command kills cannot be what holds it.
    PidNamespace,
    /// A sub-reaper and a cgroup of its own: also what this user may not signal is killed, and how many processes
    /// and how much memory there are can be bounded.
    Cgroup,
}

impl ContainmentLevel {
    /// All levels, in the order of `PROCESSES.md`.
    pub const ALL: [Self; 4] = [Self::Group, Self::SubReaper, Self::PidNamespace, Self::Cgroup];

    /// The level as results name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::SubReaper => "sub_reaper",
            Self::PidNamespace => "pid_namespace",
            Self::Cgroup => "cgroup",
        }
    }
}

/// The status of an ended process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessStatus {
    /// It called exit.
    Exited {
        /// 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// It could not be reaped in time.
    Unknown,
}

impl ProcessError {
    /// What the host has run out of, when that is why the command was not run.
    pub fn exhausted(&self) -> Option<&'static str> {
        let (Self::Start { source, .. } | Self::Wait { source, .. }) = self else { return None };
        match Errno::from_raw(source.raw_os_error()?) {
            Errno::EMFILE | Errno::ENFILE => Some("free file descriptors (its limit is shown by ulimit -n)"),
            Errno::EAGAIN => Some("processes that it may start (its limit is shown by ulimit -u)"),
            Errno::ENOMEM => Some("free memory"),
            Errno::ENOSPC => Some("space on its disk"),
            _ => None,
        }
    }
}

/// Why a command could not be run.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// The working directory is not there (any more); another one can be tried.
    #[error("there is no folder {} to run {program} in", .folder.display())]
    Folder {
        /// The program.
        program: String,
        /// The missing folder.
        folder: PathBuf,
    },
    /// The working directory may not be entered; another one can be tried.
    #[error("permission denied: the folder {} may not be entered, so {program} cannot run in it", .folder.display())]
    FolderClosed {
        /// The program.
        program: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The program could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's own words.
        source: io::Error,
    },
    /// Commands cannot be contained here as the host wants it, and are never run with less.
    #[error(
        "{program} was not started: containment level {} is not available here: {reason}. The host can choose another \
         level; `toolwarden doctor` shows them",
        .level.as_str()
    )]
    Containment {
        /// The program.
        program: String,
        /// The level that the host chose.
        level: ContainmentLevel,
        /// Why it is not available.
        reason: Unavailable,
    },
    /// Waiting for it failed.
    #[error("lost track of {program}: {source}")]
    Wait {
        /// The program.
        program: String,
        /// The system's own words.
        source: io::Error,
    },
    /// It was to be confined, and was not run because it could not be.
    #[error("{program} was not run, because it could not be confined: {source}")]
    Unconfined {
        /// The program.
        program: String,
        /// Why.
        source: ConfinementError,
    },
    /// The node that was to run it ended first.
    #[error("{program} was not run to its end: {reason}")]
    Unsupervised {
        /// The program.
        program: String,
        /// What happened.
        reason: String,
    },
}
