//! What a command leaves in `/proc`: marked processes, zombies, descriptors.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the marking variable.
pub(crate) const NAME: &str = "TOOLWARDEN_TEST_MARK";
/// How long something may take to be gone on a busy machine.
const GONE_WAIT: Duration = Duration::from_secs(20);

/// A value that no other test uses.
pub(crate) fn unique_mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("mark-{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn parts(pid: u32, file: &str) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    bytes.split(|byte| *byte == 0).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// State and parent of a process.
fn state(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; state and parent follow the last one.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// The living processes with this mark in their environment or in their arguments: pid and command line.
pub(crate) fn living(mark: &str) -> Vec<(u32, String)> {
    let variable = format!("{NAME}={mark}");
    let is_marked = |pid: u32| {
        parts(pid, "environ").contains(&variable) || parts(pid, "cmdline").iter().any(|part| part.contains(mark))
    };
    pids().filter(|pid| is_marked(*pid)).map(|pid| (pid, parts(pid, "cmdline").join(" "))).collect()
}

/// Waits until `look` finds nothing; how long it took, or what it still found.
pub(crate) fn vanishes<T>(look: impl Fn() -> Vec<T>) -> Result<Duration, Vec<T>> {
    let started_at = Instant::now();
    loop {
        let found = look();
        if found.is_empty() {
            return Ok(started_at.elapsed());
        }
        if started_at.elapsed() > GONE_WAIT {
            return Err(found);
        }
        std::thread::yield_now();
    }
}

/// The living children of a process whose name begins with `name`.
pub(crate) fn children(parent: u32, name: &str) -> BTreeSet<u32> {
    let is_child = |pid: &u32| state(*pid).is_some_and(|(state, of)| of == parent && state != "Z");
    let is_named = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(name));
    pids().filter(|pid| is_child(pid) && is_named(pid)).collect()
}

/// Which of these are alive.
pub(crate) fn alive(pids: &BTreeSet<u32>) -> Vec<u32> {
    pids.iter().copied().filter(|pid| state(*pid).is_some_and(|(state, _)| state != "Z")).collect()
}

/// The zombies among the children of this process.
pub(crate) fn zombies() -> Vec<u32> {
    let own = std::process::id();
    pids().filter(|pid| state(*pid).is_some_and(|(state, parent)| state == "Z" && parent == own)).collect()
}

/// How many descriptors this process holds, or another one.
pub(crate) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The resident memory of a process, in KiB.
pub(crate) fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}
