//! Takes away what would let a command around its confinement: privileges that it could gain, and those of root.
//!
//! Root keeps what concerns files alone, for the rules say which: a container's root works on files of others. All
//! else goes, above all what reads the memory or the environment of other processes, and raw devices.

use nix::errno::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::{Step, Unconfined};

/// What root may go on doing to files that the rules let it write.
const KEPT: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER).union(CapabilitySet::FSETID);
/// The highest number that a capability can have.
const CAPABILITY_MAX: u32 = 63;

/// No program that is run from here on gives more rights than there are: setuid and file capabilities do nothing.
/// Returns what capabilities there are.
pub(super) fn bind() -> Result<CapabilitySets, Unconfined> {
    rustix::thread::set_no_new_privs(true).map_err(refused)?;
    rustix::thread::capabilities(None).map_err(refused)
}

/// Gives up all capabilities but those that are kept of `held`, also those that a namespace has given or that a later
/// exec could give back.
pub(super) fn give_up(held: &CapabilitySets) -> Result<(), Unconfined> {
    let now = rustix::thread::capabilities(None).map_err(refused)?;
    if (now.permitted | now.effective | now.inheritable).is_empty() {
        return Ok(());
    }
    rustix::thread::clear_ambient_capability_set().map_err(refused)?;
    if now.effective.contains(CapabilitySet::SETPCAP) {
        for number in 0..=CAPABILITY_MAX {
            let one = CapabilitySet::from_bits_retain(1 << number);
            // The kernel does not know those beyond its last.
            if !KEPT.contains(one) && rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
                rustix::thread::remove_capability_from_bounding_set(one).map_err(refused)?;
            }
        }
    }
    // Where the bounding set cannot be made smaller, a later exec gives none back without new privileges.
    let kept = CapabilitySets {
        effective: held.effective & KEPT,
        permitted: held.permitted & KEPT,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, kept).map_err(refused)
}

fn refused(error: rustix::io::Errno) -> Unconfined {
    Unconfined { step: Step::Capabilities, errno: Errno::from_raw(error.raw_os_error()) }
}
