//! The blocking port: work that would hold a thread up is done where it holds nobody up.
//!
//! The real side is tokio's blocking pool. A thread may have a twin in its place, for as long as it pretends a world:
//! there, when such work is done is a decision like any other, and not the operating system's. What must stay true:
//! work that was begun goes on when nobody waits for it any more.

use std::any::Any;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};

/// A piece of work, with nothing to give back: its outcome goes where it knows.
pub type Work = Box<dyn FnOnce() + Send>;

/// Stands in the place of the blocking pool on one thread.
pub trait BlockingTwin {
    /// Sees to it that the work is done, on this thread, sooner or later.
    fn take(&self, work: Work);
}

thread_local! {
    static TWIN: RefCell<Option<Rc<dyn BlockingTwin>>> = const { RefCell::new(None) };
}

/// Puts a twin in the place of the blocking pool for work that is begun on this thread, until what is returned goes.
#[must_use]
pub fn pretend(twin: Rc<dyn BlockingTwin>) -> Pretending {
    Pretending { before: TWIN.replace(Some(twin)) }
}

/// Whether a twin is in place on this thread: then nothing may wait for another thread's own pace.
pub fn is_pretended() -> bool {
    TWIN.with_borrow(Option::is_some)
}

/// A twin is in place.
pub struct Pretending {
    before: Option<Rc<dyn BlockingTwin>>,
}

impl Drop for Pretending {
    fn drop(&mut self) {
        // A thread that is ending has no twin any more.
        let _ = TWIN.try_with(|twin| twin.replace(self.before.take()));
    }
}

/// Why work gave nothing back.
pub enum Lost {
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
    /// The runtime ended first.
    Ended,
}

/// Work under way; await it for what it gives.
pub struct OffThread<T> {
    way: Way<T>,
}

enum Way<T> {
    Pool(JoinHandle<T>),
    Twin(oneshot::Receiver<Result<T, Lost>>),
}

/// Begins work that may hold a thread up.
pub fn off_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> OffThread<T> {
    let twin = TWIN.with_borrow(Clone::clone);
    let way = match twin {
        None => Way::Pool(tokio::task::spawn_blocking(work)),
        Some(twin) => {
            let (done, outcome) = oneshot::channel();
            twin.take(Box::new(move || {
                let result = catch_unwind(AssertUnwindSafe(work)).map_err(Lost::Panicked);
                // Nobody may be waiting any more.
                drop(done.send(result));
            }));
            Way::Twin(outcome)
        }
    };
    OffThread { way }
}

impl<T> Future for OffThread<T> {
    type Output = Result<T, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.way {
            Way::Pool(handle) => ready!(Pin::new(handle).poll(cx)).map_err(lost),
            Way::Twin(outcome) => ready!(Pin::new(outcome).poll(cx)).unwrap_or(Err(Lost::Ended)),
        })
    }
}

/// Work that is done piece by piece, each as it comes: it holds a thread for as long as there may be more.
pub trait Labour: Send + Sized + 'static {
    /// What comes.
    type Piece: Send + 'static;
    /// What it comes to.
    type Outcome: Send + 'static;

    /// Waits for the next piece; none when no more comes.
    fn next(&mut self) -> impl Future<Output = Option<Self::Piece>> + Send;

    /// Does what is to be done with a piece; it may hold the thread up. Says whether more is wanted.
    fn take(&mut self, piece: Self::Piece) -> ControlFlow<()>;

    /// What it came to.
    fn finish(self) -> Self::Outcome;
}

/// Begins work that comes in pieces: on a thread of its own, or, where a twin is in place, each piece as work of its own.
pub fn off_thread_by_pieces<L: Labour>(mut labour: L) -> OffThread<L::Outcome> {
    if TWIN.with_borrow(Option::is_none) {
        let runtime = Handle::current();
        let way = Way::Pool(tokio::task::spawn_blocking(move || {
            while let Some(piece) = runtime.block_on(labour.next()) {
                if labour.take(piece).is_break() {
                    break;
                }
            }
            labour.finish()
        }));
        return OffThread { way };
    }
    let (done, outcome) = oneshot::channel();
    tokio::spawn(async move {
        while let Some(piece) = labour.next().await {
            let step = off_thread(move || {
                let flow = labour.take(piece);
                (labour, flow)
            });
            match step.await {
                Ok((after, flow)) => {
                    labour = after;
                    if flow.is_break() {
                        break;
                    }
                }
                Err(lost) => {
                    drop(done.send(Err(lost)));
                    return;
                }
            }
        }
        drop(done.send(off_thread(move || labour.finish()).await));
    });
    OffThread { way: Way::Twin(outcome) }
}

fn lost(error: JoinError) -> Lost {
    error.try_into_panic().map_or(Lost::Ended, Lost::Panicked)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ops::ControlFlow;
    use std::rc::Rc;

    use tokio::sync::mpsc;

    use super::{BlockingTwin, Labour, Lost, Work, is_pretended, off_thread, off_thread_by_pieces, pretend};

    #[derive(Default)]
    struct Held(RefCell<Vec<Work>>);

    impl BlockingTwin for Held {
        fn take(&self, work: Work) {
            self.0.borrow_mut().push(work);
        }
    }

    #[tokio::test]
    async fn work_is_done_elsewhere_and_a_panic_is_handed_back() {
        let here = std::thread::current().id();
        assert!(off_thread(move || std::thread::current().id() != here).await.is_ok_and(|elsewhere| elsewhere));
        let panicked = off_thread(|| panic!("on purpose")).await;
        assert!(matches!(panicked, Err(Lost::Panicked(words)) if words.is::<&str>()));
    }

    #[tokio::test]
    async fn a_twin_decides_when_and_only_for_as_long_as_it_is_there() {
        let held = Rc::new(Held::default());
        let here = std::thread::current().id();
        assert!(!is_pretended());
        let pretending = pretend(Rc::clone(&held) as _);
        assert!(is_pretended());
        let work = off_thread(move || std::thread::current().id() == here);
        let dropped = off_thread(|| ());
        drop(pretending);
        held.0.borrow_mut().drain(..1).for_each(|work| work());
        assert!(work.await.is_ok_and(|on_this_thread| on_this_thread));
        held.0.borrow_mut().clear();
        assert!(matches!(dropped.await, Err(Lost::Ended)));
        assert!(off_thread(move || std::thread::current().id() != here).await.is_ok_and(|elsewhere| elsewhere));
    }

    /// Adds up what comes, until it is too much.
    struct Sum {
        coming: mpsc::Receiver<u32>,
        sum: u32,
    }

    impl Labour for Sum {
        type Piece = u32;
        type Outcome = u32;

        async fn next(&mut self) -> Option<u32> {
            self.coming.recv().await
        }

        fn take(&mut self, piece: u32) -> ControlFlow<()> {
            assert_ne!(piece, 13, "on purpose");
            self.sum += piece;
            if self.sum > 100 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }

        fn finish(self) -> u32 {
            self.sum
        }
    }

    async fn sum(pieces: &[u32]) -> Result<u32, Lost> {
        let (pieces_to, coming) = mpsc::channel(1);
        let sum = off_thread_by_pieces(Sum { coming, sum: 0 });
        for piece in pieces {
            // Refused once it has enough.
            let _ = pieces_to.send(*piece).await;
        }
        drop(pieces_to);
        sum.await
    }

    /// Does each piece of work as soon as the runtime comes to it.
    struct AtOnce;

    impl BlockingTwin for AtOnce {
        fn take(&self, work: Work) {
            tokio::spawn(async move { work() });
        }
    }

    #[tokio::test]
    async fn pieces_are_taken_in_order_on_a_thread_and_by_a_twin() {
        for is_pretended in [false, true] {
            let _pretending = is_pretended.then(|| pretend(Rc::new(AtOnce)));
            assert!(matches!(sum(&[1, 2, 3]).await, Ok(6)), "{is_pretended}");
            assert!(matches!(sum(&[60, 50, 40, 30]).await, Ok(110)), "{is_pretended}");
            assert!(matches!(sum(&[1, 13, 2]).await, Err(Lost::Panicked(_))), "{is_pretended}");
        }
    }
}
