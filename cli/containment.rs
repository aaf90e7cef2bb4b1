//! How far commands are to be held, as the command line says it.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use toolwarden_tools::effects::processes::containment::{
    CgroupPlan, CommandLimits, Containment, MEMORY_BYTES_MIN, PROCESSES_MIN, Unavailable,
};
use toolwarden_tools::effects::processes::shim::guarded::GuardedProcesses;
use toolwarden_tools::effects::processes::shim::last_resort::take_orphans;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{ContainmentLevel, Processes};

/// This program, also when its file has been replaced since it started: it is its own shim.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// How far commands are held, and what each may use.
#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct HoldArgs {
    /// How far commands are held; refused where that is not available [default: sub_reaper]
    #[arg(long, value_enum, value_name = "LEVEL")]
    containment: Option<Level>,

    /// The most processes and threads of one command; it takes a cgroup, and is refused where none can hold it
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(i64::from(PROCESSES_MIN)..))]
    max_processes: Option<u32>,

    /// The most memory of one command, such as 512M or 2G; it takes a cgroup, and is refused where none can hold it
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    max_memory: Option<u64>,
}

/// Bytes, with K, M, G or T for the powers of 1,024.
fn parse_memory(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        Some((at, 't' | 'T')) => (&text[..at], 40),
        _ => (text, 0),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes
        .filter(|bytes| *bytes >= MEMORY_BYTES_MIN)
        .ok_or_else(|| format!("give bytes, or a number with K, M, G or T, and at least {}M", MEMORY_BYTES_MIN >> 20))
}

impl HoldArgs {
    /// The level that is wanted, as results name it.
    pub(crate) fn level(self, settings: CommandLimits) -> &'static str {
        match (self.containment, self.limits(settings).is_none()) {
            (None | Some(Level::SubReaper), false) => Level::Cgroup.as_str(),
            (level, _) => level.unwrap_or_default().as_str(),
        }
    }

    /// What each command may use: what the command line says, else the settings.
    fn limits(self, settings: CommandLimits) -> CommandLimits {
        CommandLimits {
            processes_max: self.max_processes.or(settings.processes_max),
            memory_bytes_max: self.max_memory.or(settings.memory_bytes_max),
        }
    }

    /// What runs commands as it was asked for. A level or limits that were asked for are tried out at once; what was
    /// not asked for is tried out by the first command.
    ///
    /// # Errors
    /// Why that is not available here.
    pub(crate) async fn processes(self, settings: CommandLimits) -> Result<Arc<dyn Processes>, Unavailable> {
        let processes = Level::processes(self.containment).await?;
        match self.limits(settings) {
            limits if limits.is_none() => Ok(processes),
            limits => processes.limited(limits).await,
        }
    }
}

/// A level to choose, named as results name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Level {
    /// A process group: what leaves it is lost from sight
    Group,
    /// A sub-reaper: nothing leaves, and all ends with toolwarden
    #[default]
    SubReaper,
    /// A PID namespace: besides, commands see and signal nothing but their own
    PidNamespace,
    /// A sub-reaper and a cgroup: besides, what this user may not signal is killed
    Cgroup,
}

impl Level {
    /// The level as results name it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Group => ContainmentLevel::Group,
            Self::SubReaper => ContainmentLevel::SubReaper,
            Self::PidNamespace => ContainmentLevel::PidNamespace,
            Self::Cgroup => ContainmentLevel::Cgroup,
        }
        .as_str()
    }
}

impl From<ContainmentLevel> for Level {
    fn from(level: ContainmentLevel) -> Self {
        match level {
            ContainmentLevel::Group => Self::Group,
            ContainmentLevel::SubReaper => Self::SubReaper,
            ContainmentLevel::PidNamespace => Self::PidNamespace,
            ContainmentLevel::Cgroup => Self::Cgroup,
        }
    }
}

impl Level {
    /// What runs commands at the level that was asked for, if one was. That one is tried out at once; what was not
    /// asked for is tried out by the first command.
    ///
    /// # Errors
    /// Why the level is not available here.
    async fn processes(asked: Option<Self>) -> Result<Arc<dyn Processes>, Unavailable> {
        let level = asked.unwrap_or_default();
        let Some(guarded) = level.guarded() else { return Ok(Arc::new(SystemProcesses)) };
        if level == Self::SubReaper {
            // This program starts nothing else. Where the system does not know how, commands are held all the same.
            let _ = take_orphans();
        }
        if asked.is_some() {
            guarded.probe().await?;
        }
        Ok(Arc::new(guarded))
    }

    /// Whether commands can run at this level here.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn probe(self) -> Result<(), Unavailable> {
        match self.guarded() {
            Some(guarded) => guarded.probe().await,
            None => Ok(()),
        }
    }

    fn guarded(self) -> Option<GuardedProcesses> {
        let containment = match self {
            Self::Group => return None,
            Self::SubReaper => Containment::SubReaper,
            Self::PidNamespace => Containment::PidNamespace,
            Self::Cgroup => Containment::Cgroup(CgroupPlan::default()),
        };
        Some(SystemProcesses::contained(OWN_PROGRAM, containment))
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use toolwarden_tools::effects::processes::ContainmentLevel;
    use toolwarden_tools::effects::processes::containment::CommandLimits;

    use super::{HoldArgs, Level, parse_memory};

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_memory("512M"), Ok(512 << 20));
        assert_eq!(parse_memory("2g"), Ok(2 << 30));
        assert_eq!(parse_memory("8388608"), Ok(8 << 20));
        for bad in ["", "M", "1M", "-5G", "1.5G", "99999999999999T", "5GB", "12界"] {
            assert!(parse_memory(bad).unwrap_err().contains("at least 4M"), "{bad}");
        }
    }

    #[test]
    fn the_command_line_goes_before_the_settings_and_limits_take_a_cgroup() {
        let settings = CommandLimits { processes_max: Some(7), memory_bytes_max: Some(1 << 30) };
        let args = HoldArgs { max_processes: Some(9), ..HoldArgs::default() };
        assert_eq!(args.limits(settings), CommandLimits { processes_max: Some(9), ..settings });
        assert_eq!(args.level(CommandLimits::default()), "cgroup");
        assert_eq!(HoldArgs::default().level(CommandLimits::default()), "sub_reaper");
        let group = HoldArgs { containment: Some(Level::Group), ..args };
        assert_eq!(group.level(settings), "group", "it is refused under its own name");
    }

    #[test]
    fn every_level_can_be_chosen_by_the_name_that_results_have() {
        for level in ContainmentLevel::ALL {
            assert_eq!(Level::from_str(level.as_str(), false), Ok(Level::from(level)));
            let guarded = Level::from(level).guarded().map(|guarded| guarded.level());
            assert_eq!(guarded, (level != ContainmentLevel::Group).then_some(level));
        }
    }
}
