//! Containment: how far the descendants of commands are to be held, and why that cannot always be had.
//!
//! A host chooses; nothing is ever lowered on the quiet. So a level that is not available is an error with a reason
//! that says what to change, and limits can be given only with the level that can hold them.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::effects::processes::ContainmentLevel;
use crate::effects::processes::shim::cgroup::own_folder;

/// What a shim is to hold commands with; given to
/// [`SystemProcesses::contained`](crate::effects::processes::system::SystemProcesses::contained).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Containment {
    /// [`ContainmentLevel::SubReaper`]; needs no rights.
    #[default]
    SubReaper,
    /// [`ContainmentLevel::PidNamespace`]; needs to be root, or user namespaces.
    PidNamespace,
    /// [`ContainmentLevel::Cgroup`]; needs a cgroup v2 folder that may be written.
    Cgroup(CgroupPlan),
}

impl Containment {
    /// The level that this gives.
    pub fn level(&self) -> ContainmentLevel {
        match self {
            Self::SubReaper => ContainmentLevel::SubReaper,
            Self::PidNamespace => ContainmentLevel::PidNamespace,
            Self::Cgroup(_) => ContainmentLevel::Cgroup,
        }
    }
}

/// Where the cgroup of each command is made, and what it may hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CgroupPlan {
    /// The cgroup v2 folder to make them in; none means the one that this process is in.
    pub parent: Option<PathBuf>,
    /// The most processes and threads of one command at a time (`pids.max`); none means no bound.
    pub processes_max: Option<u32>,
    /// The most memory of one command, in bytes (`memory.max`); none means no bound.
    pub memory_bytes_max: Option<u64>,
}

/// What each command of a session may use at the most; given to
/// [`Processes::limited`](crate::effects::processes::Processes::limited).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CommandLimits {
    /// The most processes and threads of one command at a time, at least [`PROCESSES_MIN`]; none means no bound.
    pub processes_max: Option<u32>,
    /// The most memory of one command, in bytes, at least [`MEMORY_BYTES_MIN`]; none means no bound.
    pub memory_bytes_max: Option<u64>,
}

/// The least number of processes that a command can be limited to.
pub const PROCESSES_MIN: u32 = 1;
/// The least memory that a command can be limited to, in bytes: below it not even a shell starts.
pub const MEMORY_BYTES_MIN: u64 = 4 * 1024 * 1024;

impl CommandLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// How commands are to be held so that they keep to these limits.
    ///
    /// # Errors
    /// [`Unavailable::Limits`] where a level cannot hold any, and [`Unavailable::LimitRange`].
    pub(crate) fn held_with(self, containment: &Containment) -> Result<Containment, Unavailable> {
        let plan = match containment {
            Containment::SubReaper => CgroupPlan::default(),
            Containment::Cgroup(plan) => plan.clone(),
            Containment::PidNamespace => return Err(Unavailable::Limits { level: containment.level() }),
        };
        let Self { processes_max, memory_bytes_max } = self;
        if processes_max.is_some_and(|most| most < PROCESSES_MIN) {
            return Err(Unavailable::LimitRange { limit: CgroupLimit::Processes, least: PROCESSES_MIN.into() });
        }
        if memory_bytes_max.is_some_and(|most| most < MEMORY_BYTES_MIN) {
            return Err(Unavailable::LimitRange { limit: CgroupLimit::Memory, least: MEMORY_BYTES_MIN });
        }
        Ok(Containment::Cgroup(CgroupPlan { processes_max, memory_bytes_max, ..plan }))
    }
}

impl CgroupPlan {
    /// The folder that cgroups are made in.
    ///
    /// # Errors
    /// [`Unavailable::NoCgroup`].
    pub fn folder(&self) -> Result<PathBuf, Unavailable> {
        match &self.parent {
            Some(parent) => Ok(parent.clone()),
            None => own_folder().ok().flatten().ok_or(Unavailable::NoCgroup),
        }
    }
}

/// Why a level is not available here. Each says what can be changed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// The program that was to be the shim is none, or cannot be started.
    #[error("{reason}")]
    Shim {
        /// What happened.
        reason: String,
    },
    /// No PID namespace can be made.
    #[error(
        "no PID namespace can be made ({}); run as root, or let users make user namespaces \
         (user.max_user_namespaces, kernel.unprivileged_userns_clone, the container's seccomp profile)",
        words(*.errno)
    )]
    Namespace {
        /// The system's number for the reason.
        errno: i32,
    },
    /// The user namespace around the PID namespace cannot be given this user.
    #[error(
        "the user namespace cannot be given this user ({}); run as root, or look at kernel.apparmor_restrict_unprivileged_userns",
        words(*.errno)
    )]
    UserMap {
        /// The system's number for the reason.
        errno: i32,
    },
    /// A PID namespace needs a `/proc` of its own.
    #[error(
        "no /proc can be mounted in the PID namespace ({}); a container must not mask parts of its /proc for that",
        words(*.errno)
    )]
    ProcMount {
        /// The system's number for the reason.
        errno: i32,
    },
    /// There is no cgroup v2.
    #[error(
        "no cgroup v2 file system is mounted where this process can see its own cgroup; mount one, or name a folder of one"
    )]
    NoCgroup,
    /// No cgroup can be made.
    #[error(
        "no cgroup can be made in {} ({}); run as root, or have the folder delegated (systemd: Delegate=yes)",
        .parent.display(), words(*.errno)
    )]
    CgroupMake {
        /// Where.
        parent: PathBuf,
        /// The system's number for the reason.
        errno: i32,
    },
    /// A cgroup cannot be killed as a whole.
    #[error("cgroups in {} have no cgroup.kill; that needs Linux 5.14 and cgroup v2", .parent.display())]
    CgroupKill {
        /// Where.
        parent: PathBuf,
    },
    /// No process can be started in a cgroup there.
    #[error(
        "no process can be started in a cgroup in {} ({}); this process has to be in a cgroup of the same delegated folder",
        .parent.display(), words(*.errno)
    )]
    CgroupJoin {
        /// Where.
        parent: PathBuf,
        /// The system's number for the reason.
        errno: i32,
    },
    /// Limits were given to a runner that can hold none.
    #[error(
        "commands that run at the level {} cannot be limited in processes or memory; limits need the level cgroup, \
         which holds all that sub_reaper does", .level.as_str()
    )]
    Limits {
        /// The level of the runner.
        level: ContainmentLevel,
    },
    /// A limit was given under which no command can run.
    #[error("{} must be at least {least}", .limit.file())]
    LimitRange {
        /// Which.
        limit: CgroupLimit,
        /// The least that is taken.
        least: u64,
    },
    /// A limit was given that no controller can hold here.
    #[error(
        "{} cannot be set on cgroups in {} ({}); the controller {} must be in that folder, which then must hold no \
         process itself, or in a hierarchy of cgroup v1 that may be written",
        .limit.file(), .parent.display(), words(*.errno), .limit.controller()
    )]
    CgroupLimit {
        /// Which.
        limit: CgroupLimit,
        /// Where.
        parent: PathBuf,
        /// The system's number for the reason.
        errno: i32,
    },
}

impl Unavailable {
    /// One word for the kind of the reason, as `toolwarden doctor --json` names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Shim { .. } => "shim",
            Self::Namespace { .. } => "namespace",
            Self::UserMap { .. } => "user_map",
            Self::ProcMount { .. } => "proc_mount",
            Self::NoCgroup => "no_cgroup",
            Self::CgroupMake { .. } => "cgroup_make",
            Self::CgroupKill { .. } => "cgroup_kill",
            Self::CgroupJoin { .. } => "cgroup_join",
            Self::CgroupLimit { .. } => "cgroup_limit",
            Self::Limits { .. } => "limits",
            Self::LimitRange { .. } => "limit_range",
        }
    }
}

/// A limit of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CgroupLimit {
    /// How many processes and threads.
    Processes,
    /// How much memory.
    Memory,
}

impl CgroupLimit {
    /// The file that the limit is written to.
    pub fn file(self) -> &'static str {
        match self {
            Self::Processes => "pids.max",
            Self::Memory => "memory.max",
        }
    }

    /// The controller that the file belongs to.
    pub fn controller(self) -> &'static str {
        match self {
            Self::Processes => "pids",
            Self::Memory => "memory",
        }
    }
}

fn words(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

#[cfg(test)]
mod tests {
    use super::{CgroupLimit, CgroupPlan, CommandLimits, Containment, MEMORY_BYTES_MIN, Unavailable};
    use crate::effects::processes::ContainmentLevel;

    #[test]
    fn limits_take_a_cgroup_and_say_when_they_cannot_have_one() {
        let limits = CommandLimits { processes_max: Some(20), memory_bytes_max: Some(64 << 20) };
        let parent = Some("/sys/fs/cgroup/mine".into());
        let plan = |parent| {
            Containment::Cgroup(CgroupPlan { parent, processes_max: Some(20), memory_bytes_max: Some(64 << 20) })
        };
        assert_eq!(limits.held_with(&Containment::SubReaper), Ok(plan(None)));
        let chosen = CgroupPlan { parent: parent.clone(), ..CgroupPlan::default() };
        assert_eq!(limits.held_with(&Containment::Cgroup(chosen)), Ok(plan(parent)));
        let refused = limits.held_with(&Containment::PidNamespace).unwrap_err();
        assert_eq!(refused, Unavailable::Limits { level: ContainmentLevel::PidNamespace });
        assert!(refused.to_string().contains("need the level cgroup"), "{refused}");
    }

    #[test]
    fn limits_under_which_nothing_runs_are_refused_with_the_least_that_is_taken() {
        let of = |processes_max, memory_bytes_max| {
            CommandLimits { processes_max, memory_bytes_max }.held_with(&Containment::SubReaper).unwrap_err()
        };
        assert_eq!(of(Some(0), None), Unavailable::LimitRange { limit: CgroupLimit::Processes, least: 1 });
        assert_eq!(of(None, Some(MEMORY_BYTES_MIN - 1)).to_string(), "memory.max must be at least 4194304");
    }
}
