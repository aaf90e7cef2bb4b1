//! Processes found by a mark in their environment, which survives `setsid`, `nohup` and double forks.

use std::sync::atomic::{AtomicU64, Ordering};

use super::until;

/// The name of the marking variable.
pub(crate) const MARK: &str = "TOOLWARDEN_PROMISE_MARK";

/// A value that no other test uses.
pub(crate) fn unique_mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("mark-{}-{}-", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The command lines of living processes with this mark. The environment of a zombie is empty, so those do not count.
#[expect(clippy::disallowed_methods, reason = "tests look at real processes")]
pub(crate) fn living(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
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

/// Waits until so many marked processes run exactly this command line (between fork and exec a process has the line
/// of its parent).
pub(crate) async fn appear(mark: &str, line: &str, count: usize) {
    until(&format!("{count} times {line:?}"), async || {
        let running = living(mark).iter().filter(|living| living.trim_end() == line).count();
        (running == count).then_some(())
    })
    .await;
}
