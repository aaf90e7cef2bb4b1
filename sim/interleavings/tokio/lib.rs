//! What the mounts take from tokio, with the tasks and the timers of a scheduler that tries orders.
//!
//! Channels and signals are tokio's own: they wake, and who runs then is chosen. Tasks are shuttle's. Time is a number
//! that moves only when [`time::pass`] says so, so that a timer is one more thing whose moment is chosen. Whoever sends
//! an answer can be held up right before it.

pub use real::select;

/// Lets anybody else go first, here, in the middle of whatever runs; a look at a shared number is such a place.
pub fn switch() {
    // What falls while a task is torn down has nobody to let go first.
    if !std::thread::panicking() {
        shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }
}

/// tokio's own, but for the sender of one answer.
pub mod sync {
    pub use real::sync::{Notify, broadcast, mpsc, watch};

    /// One answer.
    pub mod oneshot {
        pub use real::sync::oneshot::{Receiver, error};

        /// tokio's, held up before it sends.
        #[derive(Debug)]
        pub struct Sender<T>(real::sync::oneshot::Sender<T>);

        impl<T> Sender<T> {
            /// Sends the answer.
            ///
            /// # Errors
            /// The answer, when nobody waits for it.
            pub fn send(self, answer: T) -> Result<(), T> {
                super::super::switch();
                self.0.send(answer)
            }

            /// Whether nobody waits.
            pub fn is_closed(&self) -> bool {
                self.0.is_closed()
            }
        }

        /// For one answer.
        pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
            let (sender, receiver) = real::sync::oneshot::channel();
            (Sender(sender), receiver)
        }
    }
}

/// Tasks, which shuttle runs.
pub mod task {
    pub use shuttle::future::{AbortHandle, JoinHandle, spawn, yield_now};

    /// Who goes first is chosen in any case.
    pub mod coop {
        /// The same future.
        pub fn cooperative<F: Future>(future: F) -> F {
            future
        }
    }
}

pub use task::spawn;

/// Time that somebody lets pass.
pub mod time {
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::future::Future;
    use std::ops::{Add, Sub};
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    pub use std::time::Duration;

    #[derive(Default)]
    struct Clock {
        now: Duration,
        next: u64,
        timers: BTreeMap<(Duration, u64), Waker>,
    }

    thread_local! {
        // All tasks of one run are on one thread.
        static CLOCK: RefCell<Clock> = RefCell::default();
    }

    /// Begins a run at zero, without timers.
    pub fn begin() {
        let before = CLOCK.with_borrow_mut(std::mem::take);
        drop(before);
    }

    /// Lets time pass until the next timer rings; false when there is none.
    pub fn pass() -> bool {
        let due = CLOCK.with_borrow_mut(|clock| {
            let ((at, _), waker) = clock.timers.pop_first()?;
            clock.now = clock.now.max(at);
            Some(waker)
        });
        let found = due.is_some();
        if let Some(waker) = due {
            waker.wake();
        }
        found
    }

    /// A moment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// This moment.
        pub fn now() -> Self {
            Self(CLOCK.with_borrow(|clock| clock.now))
        }

        /// How long ago it was.
        pub fn elapsed(&self) -> Duration {
            Self::now().0.saturating_sub(self.0)
        }

        /// The moment so much later; none when there is none.
        pub fn checked_add(&self, span: Duration) -> Option<Self> {
            self.0.checked_add(span).map(Self)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        fn add(self, span: Duration) -> Self {
            Self(self.0.saturating_add(span))
        }
    }

    impl Sub for Instant {
        type Output = Duration;

        fn sub(self, other: Self) -> Duration {
            self.0.saturating_sub(other.0)
        }
    }

    /// Waits for a moment.
    #[derive(Debug)]
    pub struct Sleep {
        until: Duration,
        key: Option<(Duration, u64)>,
    }

    impl Future for Sleep {
        type Output = ();

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            CLOCK.with_borrow_mut(|clock| {
                if let Some(key) = self.key.take() {
                    clock.timers.remove(&key);
                }
                if clock.now >= self.until {
                    return Poll::Ready(());
                }
                clock.next += 1;
                let key = (self.until, clock.next);
                clock.timers.insert(key, cx.waker().clone());
                self.key = Some(key);
                Poll::Pending
            })
        }
    }

    impl Drop for Sleep {
        fn drop(&mut self) {
            if let Some(key) = self.key.take() {
                let waker = CLOCK.with_borrow_mut(|clock| clock.timers.remove(&key));
                drop(waker);
            }
        }
    }

    /// Waits for a moment.
    pub fn sleep_until(at: Instant) -> Sleep {
        Sleep { until: at.0, key: None }
    }

    /// Waits for a span.
    pub fn sleep(span: Duration) -> Sleep {
        sleep_until(Instant::now() + span)
    }
}
