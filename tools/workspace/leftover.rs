//! Temp files that a killed process left behind: how they are named, and when they may go.
//!
//! A name says which process made it (pid namespace, pid, start time), so that a file of a process that still runs
//! is never taken: `.toolwarden-<namespace>-<pid>-<start>-<count>.tmp`. Processes of another pid namespace cannot
//! be looked up; their files go by age. What a change of several files needs to be taken back has other endings, and
//! is not swept: `transaction` knows when it may go.

use std::fs;
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};

/// How the name of every temp file starts.
pub(super) const TEMP_PREFIX: &str = ".toolwarden-";
/// How the name of a temp file ends.
pub(super) const TEMP_SUFFIX: &str = ".tmp";
/// Age after which a temp file of another pid namespace counts as left behind.
const FOREIGN_AGE_MAX: Duration = Duration::from_secs(3600);
/// Most names looked at in one folder.
const SWEEP_NAMES_MAX: usize = 100_000;

/// A name that was not given out before, with this ending.
pub(super) fn name(suffix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    numbered(COUNT.fetch_add(1, Ordering::Relaxed), suffix)
}

fn numbered(count: u64, suffix: &str) -> String {
    let Maker { namespace, pid, start } = maker();
    format!("{TEMP_PREFIX}{namespace}-{pid}-{start}-{count}{suffix}")
}

/// Whether a name has this ending and its maker has ended, by all that can be known.
pub(super) fn is_left(name: &str, suffix: &str, modified_unix_s: u64) -> bool {
    Maker::of_name(name, suffix).is_some_and(|maker| maker.is_gone(modified_unix_s))
}

/// Removes what dead processes left in this folder; returns how many files went. What cannot be read or removed
/// stays for the next time.
pub(super) fn sweep(folder: impl AsFd) -> usize {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = rustix::fs::openat(&folder, ".", flags, Mode::empty()).and_then(rustix::fs::Dir::new);
    let Ok(entries) = entries else { return 0 };
    let mut removed = 0;
    for entry in entries.take(SWEEP_NAMES_MAX).flatten() {
        let name = entry.file_name().to_str().ok();
        let Some(made_by) = name.and_then(|name| Maker::of_name(name, TEMP_SUFFIX)) else { continue };
        let Ok(stat) = rustix::fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && made_by.is_gone(u64::try_from(stat.st_mtime).unwrap_or(0)) {
            removed += usize::from(rustix::fs::unlinkat(&folder, entry.file_name(), AtFlags::empty()).is_ok());
        }
    }
    removed
}

/// The process that made a temp file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Maker {
    /// Inode of its pid namespace.
    namespace: u64,
    pid: u32,
    /// Clock ticks from boot to its start.
    start: u64,
}

impl Maker {
    fn of_name(name: &str, suffix: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(TEMP_PREFIX)?.strip_suffix(suffix)?.split('-');
        let namespace = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        let start = parts.next()?.parse().ok()?;
        parts.next()?.parse::<u64>().ok()?;
        parts.next().is_none().then_some(Self { namespace, pid, start })
    }

    #[expect(clippy::disallowed_methods, reason = "the real side of the files port")]
    fn is_gone(self, modified_unix_s: u64) -> bool {
        if self.namespace == maker().namespace {
            return start_of(&self.pid.to_string()) != Some(self.start);
        }
        let now_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |span| span.as_secs());
        now_unix_s.saturating_sub(modified_unix_s) > FOREIGN_AGE_MAX.as_secs()
    }
}

/// This process.
fn maker() -> Maker {
    static MAKER: OnceLock<Maker> = OnceLock::new();
    *MAKER.get_or_init(|| {
        let namespace = fs::read_link("/proc/self/ns/pid").ok();
        let digits: Option<String> =
            namespace.map(|link| link.to_string_lossy().chars().filter(char::is_ascii_digit).collect());
        Maker {
            namespace: digits.and_then(|digits| digits.parse().ok()).unwrap_or(0),
            pid: std::process::id(),
            start: start_of("self").unwrap_or(0),
        }
    })
}

/// When a process started, in clock ticks since boot; none when there is no such process.
#[expect(clippy::disallowed_methods, reason = "the real side of the files port")]
fn start_of(process: &str) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The command's name may hold blanks and parentheses; the start time is the 20th field after it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use super::{Maker, TEMP_SUFFIX, maker, numbered, sweep};

    // Case C040: what a killed process left is known by its name and goes; what a living one uses stays.
    #[test]
    fn only_files_of_dead_processes_go() {
        let folder = tempfile::tempdir().unwrap();
        let me = maker();
        let dead = format!(".toolwarden-{}-{}-{}-0.tmp", me.namespace, me.pid, me.start + 1);
        let foreign = format!(".toolwarden-{}-{}-{}-0.tmp", me.namespace + 1, me.pid, me.start);
        let names = [dead.as_str(), &foreign, &numbered(7, TEMP_SUFFIX), ".toolwarden-notes.tmp", "other.tmp"];
        for name in names {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        assert_eq!(sweep(std::fs::File::open(folder.path()).unwrap()), 1);
        for name in &names[1..] {
            assert!(folder.path().join(name).exists(), "{name}");
        }
        assert!(!folder.path().join(dead).exists());
        assert_eq!(Maker::of_name(&numbered(1, TEMP_SUFFIX), TEMP_SUFFIX), Some(me));
    }
}
