//! Looks at what a command left running, to name it: a look and nothing more.
//!
//! What is seen here may be gone a moment later, so nobody is signalled by it. The looks are bounded, for a fork bomb
//! has no end.

use std::fs;

use crate::effects::processes::{LEFT_COMMAND_BYTES_MAX, LEFT_MAX, LeftProcess};

/// Most processes that are looked at for one list.
const LOOKS_MAX: usize = 4096;

/// The descendants of a process, nearest first.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
pub(super) fn below(pid: u32) -> Vec<LeftProcess> {
    let (mut waiting, mut found) = (vec![pid], Vec::new());
    let mut at = 0;
    while let Some(parent) = waiting.get(at).copied().filter(|_| at < LOOKS_MAX && found.len() < LEFT_MAX) {
        at += 1;
        // A process without threads of its own has its children in one list; of others the main thread's are seen.
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
        for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
            waiting.push(child);
            if found.len() < LEFT_MAX {
                found.extend(named(child));
            }
        }
    }
    found
}

/// The living members of a process group, but for its leader.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
pub(super) fn in_group(group: u32) -> Vec<LeftProcess> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_member = |pid: &u32| *pid != group && group_of(*pid) == Some(group);
    pids.take(LOOKS_MAX).filter(is_member).filter_map(named).take(LEFT_MAX).collect()
}

#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn group_of(pid: u32) -> Option<u32> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state, parent and group follow the last one.
    let end = memchr::memrchr(b')', &stat)?;
    String::from_utf8_lossy(&stat[end..]).split_ascii_whitespace().nth(3)?.parse().ok()
}

/// A process with its command line; none for a zombie, which has no command line any more.
#[expect(clippy::disallowed_methods, reason = "the real side of the processes port")]
fn named(pid: u32) -> Option<LeftProcess> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
    let line = line.strip_suffix(&[0]).unwrap_or(&line);
    let line = String::from_utf8_lossy(&line[..line.len().min(LEFT_COMMAND_BYTES_MAX)]).replace('\0', " ");
    // A character that was cut became a longer one.
    let command = line[..line.floor_char_boundary(LEFT_COMMAND_BYTES_MAX)].to_owned();
    Some(LeftProcess { pid, command })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests look at real processes")]

    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::{below, in_group};

    #[test]
    fn children_are_named_by_parent_and_by_group() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        let is_child = |left: &&super::LeftProcess| left.pid == child.id();
        // The child may belong to another thread of this test program.
        let seen = below(std::process::id());
        assert!(seen.iter().find(is_child).is_none_or(|left| left.command == "sleep 600"), "{seen:?}");
        assert!(in_group(child.id()).is_empty());
        let own = nix::unistd::getpgrp().as_raw().cast_unsigned();
        assert!(in_group(own).iter().find(is_child).is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(below(child.id()).is_empty());
    }
}
