//! Covers what is denied inside of what may be written, in a mount namespace of the command's own.
//!
//! The rules for files cannot deny there: who may make files in a folder may read what is in it. So something that
//! cannot be read is mounted over the denied path, for this command alone. What is mounted over can be neither linked
//! nor renamed nor removed, and confined commands cannot unmount anything: Landlock and the filter both refuse it.
//!
//! What must stay true: there is one thread; it comes before the rules, which forbid mounting; whoever gains rights by
//! the namespace that this takes loses them before the command runs.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, getegid, geteuid};
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change, mount_remount,
};
use rustix::thread::{CapabilitySet, CapabilitySets};

use super::checked::Checked;
use super::{Step, Unconfined};

/// A device that nobody can open where devices do nothing.
const DEVICE: &str = "/dev/null";
/// Nothing beneath is of use.
const DEAD: MountFlags =
    MountFlags::RDONLY.union(MountFlags::NODEV).union(MountFlags::NOSUID).union(MountFlags::NOEXEC);
/// What the kernel puts before the name of a folder in somebody else's mount namespace.
const UNREACHABLE: &[u8] = b"(unreachable)";
/// An empty folder that takes nothing.
const EMPTY: &std::ffi::CStr = c"mode=0,size=4k,nr_inodes=1";

/// Covers the denied paths that stand in what may be written; those that are not there are left.
pub(super) fn cover(checked: &Checked, held: &CapabilitySets) -> Result<(), Unconfined> {
    let covered: Vec<&PathBuf> = checked.covered().filter(|path| path.symlink_metadata().is_ok()).collect();
    if covered.is_empty() {
        return Ok(());
    }
    enter(held).map_err(refused)?;
    let ways: BTreeSet<&Path> = covered.iter().flat_map(|path| checked.way_to(path)).collect();
    // In order, so that those above come first.
    for folder in ways {
        mount_bind_recursive(folder, folder).map_err(|error| refused(error.into()))?;
    }
    for path in covered {
        cover_one(path).map_err(refused)?;
    }
    come_here_again().map_err(refused)
}

/// Enters the working folder by its name. It was handed over, and may stand in somebody else's mount namespace, in
/// which nothing is covered.
fn come_here_again() -> io::Result<()> {
    let held = rustix::fs::stat(".")?;
    let here = rustix::process::getcwd(Vec::new())?.into_bytes();
    let here = here.strip_prefix(UNREACHABLE).unwrap_or(&here);
    chdir(here)?;
    let found = rustix::fs::stat(".")?;
    // It is another one where something stands over it, or where it was renamed meanwhile.
    if (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino) { Ok(()) } else { Err(Errno::ESTALE.into()) }
}

/// A mount namespace in which nothing that is mounted is seen elsewhere.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn enter(held: &CapabilitySets) -> io::Result<()> {
    if held.effective.contains(CapabilitySet::SYS_ADMIN) {
        unshare(CloneFlags::CLONE_NEWNS)?;
    } else {
        let (user, group) = (geteuid(), getegid());
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUSER)?;
        // Everybody stays who they are.
        fs::write("/proc/self/setgroups", "deny")?;
        fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
        fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    }
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

fn cover_one(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(mount("none", path, "tmpfs", DEAD, EMPTY)?);
    }
    mount_bind(DEVICE, path)?;
    Ok(mount_remount(path, MountFlags::BIND | DEAD, "")?)
}

fn refused(error: io::Error) -> Unconfined {
    let errno = Errno::from_raw(error.raw_os_error().unwrap_or(Errno::EIO as i32));
    Unconfined { step: Step::Cover, errno }
}
