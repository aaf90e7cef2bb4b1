//! Pieces that the promises share: a world to work in, a record of all its events, tools and models to drive it.
//!
//! Nothing here sleeps: a test waits for an event, for a gate, or for a fact that others bring about. Every wait
//! ends with a panic that says what did not come.

pub(crate) mod child_tree;
pub(crate) mod model;
pub(crate) mod process;
pub(crate) mod record;
pub(crate) mod tool;
pub(crate) mod world;

use std::time::Duration;

/// How long anything that is waited for may take on a busy machine.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(30);

/// Lets others run until `what` is there; panics with `wanted` when it never is.
#[expect(clippy::disallowed_methods, reason = "a paused clock would never reach the end of the wait")]
pub(crate) async fn until<T>(wanted: &str, mut what: impl AsyncFnMut() -> Option<T>) -> T {
    let waits_until = std::time::Instant::now() + WAIT_MAX;
    loop {
        if let Some(found) = what().await {
            return found;
        }
        assert!(std::time::Instant::now() < waits_until, "never came: {wanted}");
        tokio::task::yield_now().await;
    }
}
