//! A limit whose controller stands in a hierarchy of its own (cgroup v1): a folder there for each command.
//!
//! On a hybrid system the controllers of v1 are not in the folders of v2, so a limit is set where its controller is. A
//! process cannot be born there, so the command's process puts itself in before it becomes the command. What must stay
//! true: nothing of the command runs outside of the folder, and the limit is set before the folder is used.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, Mode, mkdirat, unlinkat};

use super::cgroup::{open_folder, unescaped, write};
use super::wire::Fault;
use crate::effects::processes::containment::CgroupLimit;

/// How often a folder is removed whose last process has just been reaped: the kernel lets go of it a moment later.
const REMOVALS_MAX: usize = 50;
/// The pause between two of them, in milliseconds.
const REMOVAL_PAUSE_MS: u64 = 1;

/// Where the folders of one limit are made.
pub(super) struct ControllerParent {
    limit: CgroupLimit,
    folder: OwnedFd,
    most: String,
}

/// The folder of one command.
pub(super) struct ControllerLeaf {
    limit: CgroupLimit,
    parent: OwnedFd,
    name: String,
    folder: OwnedFd,
}

impl ControllerParent {
    /// The folder of this process in the hierarchy of the limit's controller.
    ///
    /// # Errors
    /// Not found where there is no such hierarchy, and what the system says.
    pub(super) fn open(limit: CgroupLimit, most: &str) -> Result<Self, Fault> {
        let fault = |errno| Fault::of(limit.step(), errno);
        let own = own_folder(limit.controller()).ok().flatten().ok_or_else(|| fault(rustix::io::Errno::NOENT))?;
        let folder = open_folder(CWD, &own).map_err(fault)?;
        Ok(Self { limit, folder, most: most.to_owned() })
    }

    /// Makes the folder of a command with its limit; one that is left of a process with the same pid is replaced.
    ///
    /// # Errors
    /// What cannot be done here.
    pub(super) fn make(&self, name: &str) -> Result<ControllerLeaf, Fault> {
        let fault = |errno| Fault::of(self.limit.step(), errno);
        if let Some(left) = self.find(name) {
            left.remove();
        }
        mkdirat(&self.folder, name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH).map_err(fault)?;
        let leaf = self.find(name).ok_or_else(|| fault(rustix::io::Errno::NOENT))?;
        match write(&leaf.folder, file(self.limit), &self.most) {
            Ok(()) => {
                if self.limit == CgroupLimit::Memory {
                    // Memory and swap together, where the kernel counts them; without it only memory is bounded.
                    let _ = write(&leaf.folder, "memory.memsw.limit_in_bytes", &self.most);
                }
                Ok(leaf)
            }
            Err(errno) => {
                leaf.remove();
                Err(fault(errno))
            }
        }
    }

    /// The folder of this name, if there is one.
    pub(super) fn find(&self, name: &str) -> Option<ControllerLeaf> {
        let folder = open_folder(&self.folder, name.as_ref()).ok()?;
        let parent = rustix::io::fcntl_dupfd_cloexec(&self.folder, 0).ok()?;
        Some(ControllerLeaf { limit: self.limit, parent, name: name.to_owned(), folder })
    }
}

impl ControllerLeaf {
    /// Puts this process in.
    ///
    /// # Errors
    /// What the system says; then the process must not go on.
    pub(super) fn join(&self) -> Result<(), Fault> {
        write(&self.folder, "cgroup.procs", "0").map_err(|errno| Fault::of(self.limit.step(), errno))
    }

    /// Removes it, when nothing is in it.
    pub(super) fn remove(&self) {
        for _ in 0..REMOVALS_MAX {
            if unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) != Err(rustix::io::Errno::BUSY) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(REMOVAL_PAUSE_MS));
        }
    }
}

/// The file of a limit in a hierarchy of its own.
fn file(limit: CgroupLimit) -> &'static str {
    match limit {
        CgroupLimit::Processes => "pids.max",
        CgroupLimit::Memory => "memory.limit_in_bytes",
    }
}

/// The folder that this process is in, in the hierarchy of this controller.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn own_folder(controller: &str) -> io::Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(folder_in(&mounts, &std::fs::read_to_string("/proc/self/cgroup")?, controller))
}

/// The folder that a `mountinfo` and a `cgroup` file of `/proc` lead to.
fn folder_in(mounts: &str, membership: &str, controller: &str) -> Option<PathBuf> {
    let names = |list: &str| list.split(',').any(|name| name == controller);
    let own = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next().filter(|controllers| names(controllers)).and_then(|_| fields.next())
    })?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        if kind.next() != Some("cgroup") || !kind.nth(1).is_some_and(names) {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let (root, mount_point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        let beneath = std::path::Path::new(own).strip_prefix(&root).ok().filter(|_| !own.starts_with("/.."))?;
        Some(PathBuf::from(mount_point).join(beneath).components().collect())
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::folder_in;

    const HYBRID: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
         36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
         39 31 0:36 /box /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const MEMBER: &str = "8:pids:/box/in\n6:cpu,cpuacct:/\n4:memory:/a b\n9:name=systemd:/\n0::/\n";

    #[test]
    fn the_own_folder_of_a_controller_is_found() {
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(folder_in(HYBRID, MEMBER, "pids"), path("/sys/fs/cgroup/pids/in"));
        assert_eq!(folder_in(HYBRID, MEMBER, "memory"), path("/sys/fs/cgroup/memory/a b"));
        assert_eq!(folder_in(HYBRID, MEMBER, "cpuacct"), path("/sys/fs/cgroup/cpu,cpuacct"));
    }

    #[test]
    fn a_controller_without_a_hierarchy_is_none() {
        assert_eq!(folder_in(HYBRID, MEMBER, "hugetlb"), None);
        assert_eq!(folder_in(HYBRID, "8:pids:/elsewhere\n", "pids"), None);
        assert_eq!(folder_in("", MEMBER, "pids"), None);
        assert_eq!(folder_in(HYBRID, "", "pids"), None);
    }
}
