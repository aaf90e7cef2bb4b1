//! For tests: processes found by a mark in their environment, which survives `setsid`, `nohup` and double forks.
#![expect(clippy::disallowed_methods, reason = "tests look at real processes")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The name of the marking variable.
pub(crate) const NAME: &str = "TOOLWARDEN_TEST_MARK";
/// How long a process may take to start, or to be gone when it was killed, on a busy machine.
const CHANGE_MAX: Duration = Duration::from_secs(10);

/// A value that no other test uses.
pub(crate) fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("mark-{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The command lines of living processes with this mark. The environment of a zombie is empty, so those do not count.
pub(crate) fn living(mark: &str) -> Vec<String> {
    let wanted = format!("{NAME}={mark}");
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes()) {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

/// Lets others run until no process with this mark is alive; what still lives at the end.
pub(crate) fn outliving(mark: &str) -> Vec<String> {
    looked_for(mark, Vec::is_empty)
}

/// Lets others run until a process with this mark and command line is alive (between fork and exec it has the line
/// of its parent); whether it ever was.
pub(crate) fn appears(mark: &str, line: &str) -> bool {
    let found = |living: &Vec<String>| living.iter().any(|living| living.trim_end() == line);
    found(&looked_for(mark, found))
}

fn looked_for(mark: &str, enough: impl Fn(&Vec<String>) -> bool) -> Vec<String> {
    let started_at = Instant::now();
    loop {
        let living = living(mark);
        if enough(&living) || started_at.elapsed() > CHANGE_MAX {
            return living;
        }
        std::thread::yield_now();
    }
}

/// The zombies among the children of this process.
pub(crate) fn zombies() -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; state and parent follow the last one.
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let mut fields = after.split(' ');
        if fields.next() == Some("Z") && fields.next() == Some(own.as_str()) {
            found.push(stat);
        }
    }
    found
}

/// How many descriptors this process holds.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
