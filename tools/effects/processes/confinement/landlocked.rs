//! Puts the part of a confinement that concerns files in force, with Landlock, on the calling thread.
//!
//! Landlock knows grants and no denials, and a grant covers all that is beneath. So a denied path is denied by not
//! granting any folder above it: of those folders, everything else that stands in them is granted one by one. What
//! comes to be in them later is not granted. Names, sizes and times are not covered: the kernel shows them to all.
//!
//! What must stay true: there is one thread; whatever cannot be granted is left out, and so denied.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, PathBeneath, Ruleset,
    RulesetAttr as _, RulesetCreated, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope,
};
use nix::errno::Errno;
use rustix::fs::{FileType, Mode, OFlags};

use super::checked::Checked;
use super::{FileAccess, Step, Unconfined};

/// The most grants.
const GRANTS_MAX: usize = 50_000;
/// Devices belong to the machine and not to a user; these do no harm.
const DEVICES: &str = "/dev";
const DEVICES_WRITTEN: [&str; 3] = ["/dev/null", "/dev/zero", "/dev/full"];
const DEVICES_READ: [&str; 2] = ["/dev/random", "/dev/urandom"];
/// Where everything begins.
const ROOT: &str = "/";

/// What may be done beneath a path.
type Rights = BitFlags<AccessFs>;

/// Restricts this thread, and everything that it becomes and starts. `temporary` may be written.
pub(super) fn restrict(checked: &Checked, temporary: Option<&Path>) -> Result<(), Unconfined> {
    let confines_files = checked.files != FileAccess::Off;
    let refused = |errno| Unconfined { step: Step::Landlock, errno };
    let mut rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    if confines_files {
        rules = rules.handle_access(AccessFs::from_all(ABI::V3)).map_err(|error| refused(number(&error)))?;
    }
    // What follows is more than is promised: it is taken where it is there.
    let more = move || -> Result<Ruleset, RulesetError> {
        let mut rules = rules.set_compatibility(CompatLevel::BestEffort);
        if confines_files {
            rules = rules.handle_access(AccessFs::IoctlDev)?;
        }
        if checked.is_offline {
            rules = rules.handle_access(AccessNet::from_all(ABI::V4))?;
        }
        rules.scope(Scope::from_all(ABI::V6))
    };
    let created = more().and_then(Ruleset::create).map_err(|error| refused(number(&error)))?;
    let granted = if confines_files { grant_all(created, checked, temporary)? } else { created };
    let status = granted.restrict_self().map_err(|error| refused(number(&error)))?;
    if confines_files && status.ruleset == RulesetStatus::NotEnforced {
        return Err(refused(Errno::EOPNOTSUPP));
    }
    Ok(())
}

fn number(error: &RulesetError) -> Errno {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(raw) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Errno::from_raw(raw);
        }
        next = error.source();
    }
    // The crate itself found that something is not there.
    Errno::EOPNOTSUPP
}

fn reading() -> Rights {
    AccessFs::from_read(ABI::V3)
}

fn writing() -> Rights {
    // Devices are made by nobody.
    AccessFs::from_all(ABI::V3) & !(AccessFs::MakeChar | AccessFs::MakeBlock)
}

fn grant_all(
    mut rules: RulesetCreated,
    checked: &Checked,
    temporary: Option<&Path>,
) -> Result<RulesetCreated, Unconfined> {
    let mut grants = BTreeMap::new();
    // Names can be seen anyway; without this no folder above a denied path could be listed.
    grants.insert(PathBuf::from(ROOT), AccessFs::ReadDir.into());
    // What is covered needs no rule, and what is around it may be written.
    let covered: Vec<&PathBuf> = checked.covered().collect();
    let ruled = checked.denied.iter().filter(|denied| !covered.contains(denied));
    let denied: Vec<&Path> = ruled.map(PathBuf::as_path).chain([Path::new(DEVICES)]).collect();
    let given = [Path::new(ROOT)].into_iter().chain(checked.readable.iter().map(PathBuf::as_path));
    for path in given {
        read_all_but(path, &denied, &mut grants)?;
    }
    let devices = DEVICES_WRITTEN.iter().map(|path| (*path, writing() | AccessFs::IoctlDev));
    for (path, rights) in devices.chain(DEVICES_READ.iter().map(|path| (*path, reading()))) {
        grants.insert(PathBuf::from(path), rights);
    }
    for path in checked.writable.iter().map(PathBuf::as_path).chain(temporary) {
        *grants.entry(path.to_owned()).or_default() |= writing();
    }
    for (path, rights) in grants {
        rules = grant(rules, &path, rights)?;
    }
    Ok(rules)
}

/// Grants reading of `path`, but for what is denied beneath it; what is denied itself is not granted at all.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn read_all_but(path: &Path, denied: &[&Path], grants: &mut BTreeMap<PathBuf, Rights>) -> Result<(), Unconfined> {
    let refused = |errno| Unconfined { step: Step::Listing, errno };
    let mut open = vec![path.to_owned()];
    while let Some(next) = open.pop() {
        // One that is given by name may stand beneath what is denied.
        if denied.contains(&next.as_path()) {
            continue;
        }
        if !denied.iter().any(|denied| denied.starts_with(&next)) {
            *grants.entry(next).or_default() |= reading();
            if grants.len() > GRANTS_MAX {
                return Err(refused(Errno::E2BIG));
            }
            continue;
        }
        let listed = match fs::read_dir(&next) {
            Ok(listed) => listed,
            // What is no folder, or is not there, holds nothing else.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => continue,
            // Who may not list it may still open what is in it by name; that is not granted.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            Err(error) => return Err(refused(Errno::from_raw(error.raw_os_error().unwrap_or(0)))),
        };
        for entry in listed.flatten() {
            // What a link leads to is granted where it stands.
            if entry.file_type().is_ok_and(|kind| !kind.is_symlink()) {
                open.push(entry.path());
            }
            if open.len() > GRANTS_MAX {
                return Err(refused(Errno::E2BIG));
            }
        }
    }
    Ok(())
}

/// Adds one grant; what is gone meanwhile is left out.
fn grant(rules: RulesetCreated, path: &Path, rights: Rights) -> Result<RulesetCreated, Unconfined> {
    // A link is never followed: the paths had none when they were looked at.
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let Ok(held) = opened else { return Ok(rules) };
    let kind = rustix::fs::fstat(&held).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let rights = match kind {
        Ok(FileType::Directory) => rights,
        Ok(FileType::Symlink) | Err(_) => return Ok(rules),
        Ok(_) => rights & AccessFs::from_file(ABI::V5),
    };
    let added = rules.add_rule(PathBeneath::new(held, rights).set_compatibility(CompatLevel::BestEffort));
    added.map_err(|error| Unconfined { step: Step::Landlock, errno: number(&error) })
}
