//! The processes port: run one command to its end, hand out its bytes as they come, leave nothing behind.
//!
//! A command gets a process group of its own, exactly the environment given, and the null device (or exactly the
//! bytes given) as standard input. Only the port stands here; the real side is [`system::SystemProcesses`].

pub mod confinement;
pub mod containment;
#[cfg(test)]
pub(crate) mod marked;
mod pipes;
pub mod shim;
pub mod system;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use thiserror::Error;

use self::confinement::{Confinement, ConfinementError};
use crate::cancellation::{CancelReason, Cancellation};
use crate::effects::processes::containment::Unavailable;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Takes the bytes of a running command, in order of arrival.
pub trait OutputSink: Send + Sync {
    /// One chunk; must not block.
    fn push(&self, stream: Stream, bytes: &[u8]);
}

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
        let (level, survivors) = (ContainmentLevel::Group, Vec::new());
        Self { status, stopped, output_held, killed_background, level, survivors, confinement: None }
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
    /// The program could not be started.
    #[error("cannot start {program}: {source}")]
    Start {
        /// The program.
        program: String,
        /// The system's own words.
        source: std::io::Error,
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
        source: std::io::Error,
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
