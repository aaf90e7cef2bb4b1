//! How long a session may take to end: one place, for a parent must wait longer than its child.

use std::time::Duration;

/// What a session or run has from its cancel to being dropped: more than a call with all its allowances, because
/// its own end waits for them.
pub const SESSION_GRACE: Duration = Duration::from_secs(30);
