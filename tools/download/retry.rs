//! When a request is sent again, and after how long.
//!
//! What failed on the way, what was malformed and what a server turned away for now is tried a few times, with longer
//! and longer waits; a server that says how long to wait is waited for, within a bound.

use std::time::{Duration, UNIX_EPOCH};

/// How often one piece of work is tried.
pub const ATTEMPTS_MAX: u32 = 3;
/// The first wait; each further one is twice as long.
const WAIT: Duration = Duration::from_millis(200);
/// The longest wait that a server may ask for.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// Most bytes of the field that are looked at.
const FIELD_BYTES_MAX: usize = 64;

/// How long to wait after so many attempts, from 1.
pub(super) fn backoff(attempts: u32) -> Duration {
    WAIT.saturating_mul(1 << attempts.saturating_sub(1).min(8))
}

/// How long a server asks to wait: its `Retry-After`, in seconds or as a date.
pub fn retry_after(text: &str, now_unix_ms: u64) -> Option<Duration> {
    let text = text.trim();
    if text.is_empty() || text.len() > FIELD_BYTES_MAX {
        return None;
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(at.saturating_sub(Duration::from_millis(now_unix_ms)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{backoff, retry_after};

    #[test]
    fn both_forms_are_read() {
        let now_unix_ms = 784_111_777_000;
        assert_eq!(retry_after(" 7 ", now_unix_ms), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:40 GMT", now_unix_ms), Some(Duration::from_secs(3)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:00 GMT", now_unix_ms), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999999999999999999", now_unix_ms), Some(Duration::from_secs(u64::MAX)));
        for wrong in ["", "soon", "-1", "1.5", "1 s"] {
            assert_eq!(retry_after(wrong, now_unix_ms), None, "{wrong}");
        }
    }

    #[test]
    fn waits_double() {
        let waits: Vec<u128> = (1..4).map(|attempts| backoff(attempts).as_millis()).collect();
        assert_eq!(waits, [200, 400, 800]);
    }
}
