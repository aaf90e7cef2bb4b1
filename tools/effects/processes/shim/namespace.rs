//! The inside of a PID namespace, of which a warden is the first process.
//!
//! Whatever is started in there cannot leave it, cannot see or signal what is outside, and is killed by the kernel
//! when the warden ends, however that happens; the warden itself cannot be killed from within. Pids mean other
//! processes inside than outside: signals are sent by the inner ones (all at once), results name the outer ones.
//!
//! What must stay true: the signal to everything is sent by the first process of a new namespace and nobody else.

use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::prctl::set_dumpable;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, getpid};
use rustix::fs::{CWD, Mode, OFlags, fstat, openat, readlinkat};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

use super::fork::NamespaceKind;
use super::offspring::children_in;
use super::wire::{Fault, Step};

/// Who a command in the namespace is to be: who the keeper is.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    user: Uid,
    group: Gid,
}

impl Owner {
    /// Whoever this process acts as.
    pub(super) fn of_this_process() -> Self {
        Self { user: Uid::effective(), group: Gid::effective() }
    }
}

/// The namespace that this process is the first of.
pub(super) struct Namespace {
    /// This process, as it is known outside.
    outside: Pid,
    /// The `/proc` outside.
    processes: OwnedFd,
}

impl Namespace {
    /// Makes the namespace that this process was just born into ready for a command.
    ///
    /// # Errors
    /// What cannot be done here.
    pub(super) fn enter(kind: NamespaceKind, owner: Owner) -> Result<Self, Fault> {
        let fault = |step| move |errno: rustix::io::Errno| Fault { step, errno: errno.raw_os_error() };
        let outside = readlinkat(CWD, "/proc/self", Vec::new()).map_err(fault(Step::ProcMount))?;
        let outside = outside.to_str().ok().and_then(|pid| pid.parse().ok()).map(Pid::from_raw);
        let outside = outside.filter(|outside| getpid() == FIRST && *outside != FIRST);
        let outside = outside.ok_or(Fault { step: Step::Namespace, errno: Errno::EINVAL as i32 })?;
        if kind == NamespaceKind::WithUser {
            // The files of a process that may not be traced belong to root.
            let _ = set_dumpable(true);
            let mapped = map(owner);
            let _ = set_dumpable(false);
            mapped.map_err(|errno| Fault { step: Step::UserMap, errno })?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let processes = openat(CWD, "/proc", flags, Mode::empty()).map_err(fault(Step::ProcMount))?;
        // What the host mounts later is seen here; what is mounted here is not seen by the host.
        mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
            .map_err(fault(Step::ProcMount))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount("proc", "/proc", "proc", flags, None).map_err(fault(Step::ProcMount))?;
        Ok(Self { outside, processes })
    }

    /// This process, as it is known outside.
    pub(super) fn outside(&self) -> Pid {
        self.outside
    }

    /// The same folder by way of the mounts that are seen here. Beneath those of the host a command could work, but
    /// would be told that the path of its folder cannot be reached.
    pub(super) fn folder_here(&self, folder: &OwnedFd) -> Option<OwnedFd> {
        let link = format!("/proc/self/fd/{}", folder.as_raw_fd());
        let path = readlinkat(CWD, link, Vec::new()).ok()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let here = openat(CWD, path, flags, Mode::empty()).ok()?;
        let (wanted, found) = (fstat(folder).ok()?, fstat(&here).ok()?);
        ((wanted.st_dev, wanted.st_ino) == (found.st_dev, found.st_ino)).then_some(here)
    }

    /// Signals everything in the namespace but this process.
    pub(super) fn tell_all(&self, signal: Signal) {
        // Anywhere else this would be everything on the machine.
        if getpid() == FIRST && self.outside != FIRST {
            let _ = kill(Pid::from_raw(-1), signal);
        }
    }

    /// The direct children of this process, as they are known outside.
    pub(super) fn children_outside(&self) -> Vec<Pid> {
        children_in(self.processes.as_fd(), self.outside).unwrap_or_default().into_iter().collect()
    }
}

/// The first process of a namespace.
const FIRST: Pid = Pid::from_raw(1);

/// Gives the new user namespace the one user and group that there were before it.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn map(owner: Owner) -> Result<(), i32> {
    let write = |file: &str, text: String| {
        let mut file = std::fs::OpenOptions::new().write(true).open(file)?;
        // The kernel takes it in one piece or not at all.
        file.write_all(text.as_bytes())
    };
    let (user, group) = (owner.user, owner.group);
    write("/proc/self/setgroups", "deny".into())
        .and_then(|()| write("/proc/self/uid_map", format!("{user} {user} 1")))
        .and_then(|()| write("/proc/self/gid_map", format!("{group} {group} 1")))
        .map_err(|error| error.raw_os_error().unwrap_or(Errno::EIO as i32))
}
