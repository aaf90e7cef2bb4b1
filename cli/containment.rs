//! How far commands are to be held, as the command line says it.

use std::sync::Arc;

use clap::ValueEnum;
use toolwarden_tools::effects::processes::containment::{CgroupPlan, Containment, Unavailable};
use toolwarden_tools::effects::processes::shim::guarded::GuardedProcesses;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{ContainmentLevel, Processes};

/// This program, also when its file has been replaced since it started: it is its own shim.
const OWN_PROGRAM: &str = "/proc/self/exe";

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
    pub(crate) async fn processes(asked: Option<Self>) -> Result<Arc<dyn Processes>, Unavailable> {
        let Some(guarded) = asked.unwrap_or_default().guarded() else { return Ok(Arc::new(SystemProcesses)) };
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

    use super::Level;

    #[test]
    fn every_level_can_be_chosen_by_the_name_that_results_have() {
        for level in ContainmentLevel::ALL {
            assert_eq!(Level::from_str(level.as_str(), false), Ok(Level::from(level)));
            let guarded = Level::from(level).guarded().map(|guarded| guarded.level());
            assert_eq!(guarded, (level != ContainmentLevel::Group).then_some(level));
        }
    }
}
