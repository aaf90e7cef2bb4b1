//! What ractor takes from async-std, so that its own code runs on a scheduler that tries orders: tasks and timers.
//!
//! ractor can be built for another runtime than tokio, and that is the one door through which its tasks can be handed
//! to shuttle without a change in it. Its channels stay tokio's. What must stay true: nothing here decides anything.

/// Futures with an end in time.
pub mod future {
    pub use std::future::Future;
    use std::pin::pin;
    use std::time::Duration;

    /// The time was over first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct TimeoutError;

    /// Waits for a future for so long.
    ///
    /// # Errors
    /// [`TimeoutError`].
    pub async fn timeout<F: Future>(span: Duration, future: F) -> Result<F::Output, TimeoutError> {
        let (mut future, mut sleep) = (pin!(future), pin!(interleaved_tokio::time::sleep(span)));
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(output) = future.as_mut().poll(cx) {
                return std::task::Poll::Ready(Ok(output));
            }
            sleep.as_mut().poll(cx).map(|()| Err(TimeoutError))
        })
        .await
    }
}

/// Tasks.
pub mod task {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use std::time::Duration;

    /// A task's result; dropped, the task goes on.
    #[derive(Debug)]
    pub struct JoinHandle<T>(shuttle::future::JoinHandle<T>);

    impl<T> Future for JoinHandle<T> {
        type Output = T;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
            match Pin::new(&mut self.0).poll(cx) {
                Poll::Ready(Ok(output)) => Poll::Ready(output),
                // Nobody here aborts shuttle's task: ractor ends the future inside of it.
                Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
            }
        }
    }

    /// Starts a task.
    pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        JoinHandle(shuttle::future::spawn(future))
    }

    /// Starts a task that is not sent.
    pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        JoinHandle(shuttle::future::spawn_local(future))
    }

    /// Waits for a future.
    pub fn block_on<F: Future>(future: F) -> F::Output {
        shuttle::future::block_on(future)
    }

    /// Waits for a span.
    pub async fn sleep(span: Duration) {
        interleaved_tokio::time::sleep(span).await;
    }

    /// Starts tasks with a name, which nobody asks for here.
    #[derive(Debug, Default)]
    pub struct Builder;

    impl Builder {
        /// A builder.
        pub fn new() -> Self {
            Self
        }

        /// With a name.
        #[must_use]
        pub fn name(self, _name: String) -> Self {
            self
        }

        /// Starts the task.
        ///
        /// # Errors
        /// Never.
        pub fn spawn<F>(self, future: F) -> std::io::Result<JoinHandle<F::Output>>
        where
            F: Future + Send + 'static,
            F::Output: Send + 'static,
        {
            Ok(spawn(future))
        }
    }
}

/// The name of a macro that ractor passes on and does not use.
pub mod test {}
