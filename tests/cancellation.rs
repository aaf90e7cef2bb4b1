//! Promise: whatever is cancelled, and however, ends once and soon, and leaves nothing: no child, lease, process or
//! temp file.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "cancellation/moment.rs"]
mod moment;
#[path = "cancellation/reach.rs"]
mod reach;
#[path = "cancellation/soak.rs"]
mod soak;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;
#[path = "cancellation/way.rs"]
mod way;
