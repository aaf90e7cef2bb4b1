//! How a tool waits for the calls or runs that it has started below itself.
//!
//! A parent ends after its children have settled: a cancel reaches them down the tree, and what they had done by
//! then is worth keeping. But a child that does not answer must not keep the parent, so the wait after a cancel
//! is bounded, and giving up drops the future, which ends whatever still runs.

use std::pin::pin;
use std::time::Duration;

use crate::context::ToolContext;

/// How long children have to settle after a cancel: longer than a command that ignores TERM takes to be killed.
pub(crate) const SETTLE_GRACE: Duration = Duration::from_secs(12);

/// Waits for work below; none when a cancel came and the work did not settle within [`SETTLE_GRACE`].
pub(crate) async fn settled<T>(ctx: &ToolContext, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    tokio::select! {
        biased;
        // What is finished counts, also when the cancel came at the same moment.
        done = &mut work => return Some(done),
        _ = ctx.cancel.cancelled() => {}
    }
    tokio::time::timeout(SETTLE_GRACE, work).await.ok()
}
