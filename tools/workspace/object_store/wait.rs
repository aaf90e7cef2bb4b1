//! Lets a caller that blocks wait for a request that does not.
//!
//! The files port is called from anywhere: from a worker of the host's runtime, from the blocking pool, from a plain
//! thread. So requests run on a thread of their own, and the caller waits. A worker of a runtime with several threads
//! hands its other tasks over first.

use std::io;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;

use crate::cancellation::{CancelReason, Cancellation};

/// The thread that carries out requests; it ends when this is dropped.
pub(super) struct Waiter {
    handle: Handle,
    _ends_on_drop: oneshot::Sender<()>,
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ended {
    /// Nobody wants it any more.
    Cancelled(CancelReason),
    /// It took too long.
    Timeout,
    /// The thread is gone.
    Gone,
}

impl Waiter {
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (ends_on_drop, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name("object-store".to_owned()).spawn(move || {
            // An error says that the other end was dropped, which is what is waited for.
            let _dropped = runtime.block_on(ended);
        })?;
        Ok(Self { handle, _ends_on_drop: ends_on_drop })
    }

    /// Carries out a request; it is dropped when it ends early.
    pub(super) fn wait<T: Send + 'static>(
        &self,
        timeout: Duration,
        cancel: Option<&Cancellation>,
        request: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Ended> {
        if let Some(reason) = cancel.and_then(Cancellation::reason) {
            return Err(Ended::Cancelled(reason.clone()));
        }
        let (answer, answered) = sync_channel(1);
        let cancel = cancel.cloned();
        let cancelled = async move {
            match cancel {
                Some(cancel) => cancel.cancelled().await,
                None => std::future::pending().await,
            }
        };
        self.handle.spawn(async move {
            let done = tokio::select! {
                biased;
                reason = cancelled => Err(Ended::Cancelled(reason)),
                done = tokio::time::timeout(timeout, request) => done.map_err(|_elapsed| Ended::Timeout),
            };
            // The caller waits for it; a caller whose thread panicked does not.
            let _sent = answer.send(done);
        });
        let wait = move || answered.recv().unwrap_or(Err(Ended::Gone));
        match Handle::try_current() {
            Ok(here) if here.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Ended, Waiter};
    use crate::cancellation::{CancelReason, Cancellation};

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_request_is_answered_cancelled_or_out_of_time() {
        let waiter = Waiter::start().unwrap();
        assert_eq!(waiter.wait(LONG, None, async { 7 }), Ok(7));
        let never = std::future::pending::<()>;
        assert_eq!(waiter.wait(Duration::from_millis(1), None, never()), Err(Ended::Timeout));
        let cancel = Cancellation::new();
        let (later, reason) = (cancel.clone(), CancelReason::Requested);
        let request = async move {
            later.cancel(CancelReason::Requested);
            std::future::pending::<()>().await;
        };
        assert_eq!(waiter.wait(LONG, Some(&cancel), request), Err(Ended::Cancelled(reason.clone())));
        assert_eq!(waiter.wait(LONG, Some(&cancel), async {}), Err(Ended::Cancelled(reason)));
    }

    #[tokio::test]
    async fn it_may_be_waited_for_inside_a_runtime_of_one_thread() {
        assert_eq!(Waiter::start().unwrap().wait(LONG, None, async { 7 }), Ok(7));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_worker_that_waits_hands_its_tasks_over() {
        let waiter = Waiter::start().unwrap();
        let (told, tell) = tokio::sync::oneshot::channel();
        tokio::spawn(async move { told.send(7) });
        let waiting = tokio::spawn(async move { waiter.wait(LONG, None, tell) });
        assert_eq!(waiting.await.unwrap(), Ok(Ok(7)));
    }
}
