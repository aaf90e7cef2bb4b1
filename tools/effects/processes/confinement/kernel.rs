//! What this kernel gives to confine commands with.
//!
//! It is found out by doing it, once, in a thread that ends right after: both Landlock and seccomp bind a thread and
//! what comes of it, and a version number alone would not say that a container engine lets them through.

use std::sync::OnceLock;

use landlock::{
    ABI, AccessFs, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _,
};

use super::filtered;
use super::{Confinement, ConfinementError, FileAccess};

/// The first version of Landlock that keeps commands from emptying files that they may not write.
pub const LANDLOCK_ABI_MIN: u32 = 3;

/// What a kernel gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelSupport {
    /// The version of Landlock; 0 when there is none, or when it is switched off.
    pub landlock_abi: u32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
}

impl KernelSupport {
    /// What the kernel of this machine gives; found out once.
    pub fn of_this_machine() -> Self {
        static FOUND: OnceLock<KernelSupport> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let probing = std::thread::Builder::new()
                .name("sandbox-probe".into())
                .spawn(|| Self { landlock_abi: landlock_abi(), seccomp: filtered::is_there() });
            let found = probing.ok().and_then(|thread| thread.join().ok());
            // Where no thread can be had, nothing is promised.
            found.unwrap_or(Self { landlock_abi: 0, seccomp: false })
        })
    }

    /// Whether this confinement can be put in force.
    ///
    /// # Errors
    /// [`ConfinementError::NoLandlock`] and [`ConfinementError::NoSeccomp`].
    pub fn suffices(self, confinement: &Confinement) -> Result<(), ConfinementError> {
        if confinement.files() != FileAccess::Off && self.landlock_abi < LANDLOCK_ABI_MIN {
            return Err(ConfinementError::NoLandlock { abi: self.landlock_abi });
        }
        if !confinement.is_off() && !self.seccomp {
            return Err(ConfinementError::NoSeccomp);
        }
        Ok(())
    }
}

/// Restricts the calling thread to what it could do anyway.
fn landlock_abi() -> u32 {
    let restricted = || {
        let all = PathBeneath::new(PathFd::new("/").ok()?, AccessFs::Execute);
        let rules = Ruleset::default().handle_access(AccessFs::Execute).ok()?.create().ok()?;
        rules.add_rule(all).ok()?.restrict_self().ok()
    };
    match restricted().map(|status| status.landlock) {
        Some(LandlockStatus::Available { kernel_abi: Some(newer), .. }) => u32::try_from(newer).unwrap_or(0),
        Some(LandlockStatus::Available { effective_abi, .. }) if effective_abi != ABI::Unsupported => {
            effective_abi as u32
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests look at real files")]

    use super::{KernelSupport, LANDLOCK_ABI_MIN};
    use crate::effects::processes::confinement::{Confinement, ConfinementError, FileAccess};

    #[test]
    fn what_is_missing_is_named() {
        let files = Confinement::new(FileAccess::ReadOnly);
        let network = Confinement::new(FileAccess::Off).without_network();
        let kernel = |landlock_abi, seccomp| KernelSupport { landlock_abi, seccomp };
        for abi in 0..LANDLOCK_ABI_MIN {
            let refused = kernel(abi, true).suffices(&files).unwrap_err();
            assert!(matches!(refused, ConfinementError::NoLandlock { abi: told } if told == abi));
            assert!(refused.to_string().contains("switched off"), "{refused}");
            assert!(kernel(abi, true).suffices(&network).is_ok());
        }
        assert!(kernel(LANDLOCK_ABI_MIN, true).suffices(&files).is_ok());
        for confinement in [&files, &network] {
            let refused = kernel(LANDLOCK_ABI_MIN, false).suffices(confinement).unwrap_err();
            assert!(matches!(refused, ConfinementError::NoSeccomp));
        }
        assert!(kernel(0, false).suffices(&Confinement::default()).is_ok());
    }

    #[test]
    fn probing_binds_nobody_else() {
        let found = KernelSupport::of_this_machine();
        assert_eq!(found, KernelSupport::of_this_machine());
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert!(!status.lines().any(|line| line.split_ascii_whitespace().eq(["NoNewPrivs:", "1"])), "{status}");
    }
}
