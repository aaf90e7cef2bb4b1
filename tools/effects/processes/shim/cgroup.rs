//! A cgroup of its own for each command: where it is made, what it may hold, and how all in it is ended at once.
//!
//! The kernel kills everything in a cgroup by one word, also what this user may not signal, and says when it is
//! empty. What must stay true: a cgroup is removed only when it is empty, and a limit that was asked for is set
//! before anything runs: in the same folder where its controller is there, else in the controller's own hierarchy.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::Pid;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};

use super::controller::{ControllerLeaf, ControllerParent};
use super::wire::{Fault, Step};
use crate::effects::processes::containment::{CgroupLimit, CgroupPlan};

/// Most bytes read of a file of a cgroup.
const FILE_BYTES_MAX: usize = 64 * 1024;
/// Most cgroups that a command may have made in its own before the rest is left where it is.
const NESTED_MAX: usize = 1024;
/// How deep those may be nested.
const DEPTH_MAX: usize = 32;

/// The folder that cgroups are made in.
pub(super) struct CgroupParent {
    folder: OwnedFd,
    limits: Vec<(CgroupLimit, String)>,
    /// Where the limits are set whose controllers are not in the folder.
    elsewhere: Vec<ControllerParent>,
}

/// The cgroup of one command.
pub(super) struct Leaf {
    parent: OwnedFd,
    name: String,
    folder: OwnedFd,
    elsewhere: Vec<ControllerLeaf>,
}

/// The name of the cgroup of a warden's command.
pub(super) fn leaf_name(warden: Pid) -> String {
    format!("toolwarden-{warden}")
}

impl CgroupParent {
    /// Opens the folder and sees to it that limits can be set in it.
    ///
    /// # Errors
    /// What cannot be done here.
    pub(super) fn open(folder: &Path, plan: &CgroupPlan) -> Result<Self, Fault> {
        let folder = open_folder(CWD, folder).map_err(|errno| Fault::of(Step::CgroupMake, errno))?;
        let processes = plan.processes_max.map(|most| (CgroupLimit::Processes, most.to_string()));
        let memory = plan.memory_bytes_max.map(|most| (CgroupLimit::Memory, most.to_string()));
        let mut parent = Self { folder, limits: Vec::new(), elsewhere: Vec::new() };
        let controllers = read(parent.folder.as_fd(), "cgroup.controllers").unwrap_or_default();
        for (limit, most) in processes.into_iter().chain(memory) {
            if controllers.split_ascii_whitespace().any(|controller| controller == limit.controller()) {
                let word = format!("+{}", limit.controller());
                write(&parent.folder, "cgroup.subtree_control", &word)
                    .map_err(|errno| Fault::of(limit.step(), errno))?;
                parent.limits.push((limit, most));
            } else {
                parent.elsewhere.push(ControllerParent::open(limit, &most)?);
            }
        }
        Ok(parent)
    }

    /// Makes the cgroup of a command. One that is left of a process that had the same pid is replaced.
    ///
    /// # Errors
    /// What cannot be done here.
    pub(super) fn make(&self, name: String) -> Result<Leaf, Fault> {
        let fault = |errno| Fault::of(Step::CgroupMake, errno);
        let make = || mkdirat(&self.folder, &name, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH);
        match make() {
            Err(rustix::io::Errno::EXIST) => {
                if let Some(left) = self.find(&name).map_err(fault)? {
                    left.remove();
                }
                make().map_err(fault)?;
            }
            made => made.map_err(fault)?,
        }
        let mut leaf = self.find(&name).map_err(fault)?.ok_or(Fault::of(Step::CgroupMake, rustix::io::Errno::NOENT))?;
        for (limit, most) in &self.limits {
            if let Err(errno) = write(&leaf.folder, limit.file(), most) {
                leaf.remove();
                return Err(Fault::of(limit.step(), errno));
            }
        }
        // What is left of a process with the same pid was found with the folder.
        leaf.elsewhere.drain(..).for_each(|left| left.remove());
        for parent in &self.elsewhere {
            match parent.make(&name) {
                Ok(made) => leaf.elsewhere.push(made),
                Err(fault) => {
                    leaf.remove();
                    return Err(fault);
                }
            }
        }
        Ok(leaf)
    }

    /// The cgroup of this name, if there is one.
    pub(super) fn find(&self, name: &str) -> Result<Option<Leaf>, rustix::io::Errno> {
        let folder = match open_folder(&self.folder, Path::new(name)) {
            Ok(folder) => folder,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let parent = rustix::io::fcntl_dupfd_cloexec(&self.folder, 0)?;
        let elsewhere = self.elsewhere.iter().filter_map(|parent| parent.find(name)).collect();
        Ok(Some(Leaf { parent, name: name.to_owned(), folder, elsewhere }))
    }
}

impl Leaf {
    /// What a process is born into.
    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }

    /// Puts this process where those limits are that the folder itself does not hold.
    ///
    /// # Errors
    /// What cannot be done here; then the process must not go on.
    pub(super) fn join_elsewhere(&self) -> Result<(), Fault> {
        self.elsewhere.iter().try_for_each(ControllerLeaf::join)
    }

    /// Kills everything in it, and whatever is started there meanwhile.
    ///
    /// # Errors
    /// The system's; not found where the kernel does not know how.
    pub(super) fn kill(&self) -> Result<(), rustix::io::Errno> {
        write(&self.folder, "cgroup.kill", "1")
    }

    /// Whether something runs in it. What cannot be read is taken to be populated, unless it is gone.
    pub(super) fn is_populated(&self) -> bool {
        match read(self.folder.as_fd(), "cgroup.events") {
            Ok(events) => !events.lines().any(|line| line == "populated 0"),
            Err(errno) => !matches!(errno, rustix::io::Errno::NODEV | rustix::io::Errno::NOENT),
        }
    }

    /// The processes in it, without those in cgroups that the command made beneath it.
    pub(super) fn members(&self) -> Vec<Pid> {
        let listed = read(self.folder.as_fd(), "cgroup.procs").unwrap_or_default();
        listed.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
    }

    /// Removes it with all that the command made beneath it, if nothing is in it.
    pub(super) fn remove(&self) {
        if unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR) == Err(rustix::io::Errno::BUSY) {
            let mut left = NESTED_MAX;
            remove_beneath(self.folder.as_fd(), DEPTH_MAX, &mut left);
            let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
        }
        self.elsewhere.iter().for_each(ControllerLeaf::remove);
    }
}

fn remove_beneath(folder: BorrowedFd<'_>, depth: usize, left: &mut usize) {
    let Ok(listed) = rustix::fs::Dir::read_from(folder) else { return };
    for entry in listed.flatten().filter(|entry| entry.file_type() == rustix::fs::FileType::Directory) {
        let name = entry.file_name();
        if name == c"." || name == c".." || *left == 0 || depth == 0 {
            continue;
        }
        *left -= 1;
        if unlinkat(folder, name, AtFlags::REMOVEDIR) == Err(rustix::io::Errno::BUSY) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            if let Ok(nested) = openat(folder, name, flags, Mode::empty()) {
                remove_beneath(nested.as_fd(), depth - 1, left);
            }
            let _ = unlinkat(folder, name, AtFlags::REMOVEDIR);
        }
    }
}

pub(super) fn open_folder(beneath: impl std::os::fd::AsFd, path: &Path) -> Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(beneath, path, flags, Mode::empty())
}

pub(super) fn write(folder: impl std::os::fd::AsFd, file: &str, text: &str) -> Result<(), rustix::io::Errno> {
    let file = openat(folder, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, text.as_bytes()).map(|_| ())
}

/// Reads a small file; what is beyond [`FILE_BYTES_MAX`] is left out.
fn read(folder: BorrowedFd<'_>, file: &str) -> Result<String, rustix::io::Errno> {
    let file = openat(folder, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let (mut bytes, mut length) = (vec![0; FILE_BYTES_MAX], 0);
    while length < bytes.len() {
        match rustix::io::read(&file, &mut bytes[length..])? {
            0 => break,
            count => length += count,
        }
    }
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The cgroup v2 folder that this process is in, if it can be seen from here.
///
/// # Errors
/// The system's, where `/proc` cannot be read.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
pub(in crate::effects::processes) fn own_folder() -> io::Result<Option<PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    match std::fs::read_to_string("/proc/self/cgroup") {
        Ok(membership) => Ok(folder_in(&mounts, &membership)),
        Err(error) if error.raw_os_error() == Some(Errno::ENOENT as i32) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The folder that a `mountinfo` and a `cgroup` file of `/proc` lead to.
fn folder_in(mounts: &str, membership: &str) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        if kind.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let (root, mount_point) = (unescaped(fields.next()?), unescaped(fields.next()?));
        // In a cgroup namespace, what is outside of it begins with a step up.
        let beneath = Path::new(own).strip_prefix(&root).ok().filter(|_| !own.starts_with("/.."))?;
        let folder = Path::new(&mount_point).join(beneath);
        // Joining nothing would end in a slash.
        Some(folder.components().collect())
    })
}

/// A path of `mountinfo`, where space, tab, newline and backslash stand as three octal digits.
pub(super) fn unescaped(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (escape, sign)| text.replace(escape, sign))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::folder_in;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
         32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const BOUND: &str = "30 23 0:26 /docker/abc /sys/fs/my\\040group ro,nosuid - cgroup2 cgroup rw\n";

    #[test]
    fn the_own_folder_is_found_wherever_it_is_mounted() {
        let found = |mounts: &str, membership: &str| folder_in(mounts, membership);
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(found(HYBRID, "4:memory:/x\n0::/\n"), path("/sys/fs/cgroup/unified"));
        assert_eq!(
            found(UNIFIED, "0::/user.slice/user@1000.service/a b\n"),
            path("/sys/fs/cgroup/user.slice/user@1000.service/a b")
        );
        assert_eq!(found(BOUND, "0::/docker/abc\n"), path("/sys/fs/my group"));
        assert_eq!(found(BOUND, "0::/docker/abc/in\n"), path("/sys/fs/my group/in"));
    }

    #[test]
    fn a_folder_that_cannot_be_seen_is_none() {
        assert_eq!(folder_in(BOUND, "0::/docker/other\n"), None);
        assert_eq!(folder_in(BOUND, "0::/docker/abcd\n"), None);
        assert_eq!(folder_in(UNIFIED, "0::/../outside\n"), None);
        assert_eq!(folder_in(UNIFIED, "4:memory:/x\n"), None);
        assert_eq!(folder_in("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "0::/\n"), None);
        assert_eq!(folder_in("", ""), None);
    }
}
