//! A lease: something lent that goes home exactly once, however its holder ends.
//!
//! Giving a thing back by hand is forgotten on the paths that nobody tests: a panic, an abort, a message that dies
//! in a mailbox. So the thing lent *is* the lease: [`Lease::settle`] brings it home with a word about its use, and
//! dropping it, for whatever reason, brings it home without one. Both take the home out first, so a second way home
//! does not exist.
//!
//! What has to wait until a lease is home travels with it, as an [`Afterwards`]: each home hands it on to the next.
//! Nobody waits for an answer in between, and only one actor is woken at a time.

use std::fmt;

/// Where a lease came from and goes back to.
pub trait Home: Send + 'static {
    /// What the holder may say when it gives the lease back.
    type Word: Send;

    /// Takes the lease back; without a word when it was dropped. Drops `then` when the lease is home, or when it has
    /// no home any more. Runs inside `drop`: it must not block or panic.
    fn take_back(self, word: Option<Self::Word>, then: Afterwards);
}

/// Something to be done afterwards: it is done once, when this is dropped, wherever that is.
#[must_use = "what is to be done afterwards is done as soon as this is dropped"]
#[derive(Default)]
pub struct Afterwards(Option<Box<dyn FnOnce() + Send>>);

impl Afterwards {
    /// Does this; it must not block or panic.
    pub fn call(then: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(then)))
    }
}

impl Drop for Afterwards {
    fn drop(&mut self) {
        if let Some(then) = self.0.take() {
            then();
        }
    }
}

impl fmt::Debug for Afterwards {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0.is_some() { "Afterwards(open)" } else { "Afterwards(nothing)" })
    }
}

/// Something lent; its holder is whoever owns this value.
#[must_use = "a lease goes home as soon as it is dropped"]
pub struct Lease<H: Home> {
    // Empty once the lease is home.
    home: Option<H>,
}

impl<H: Home> Lease<H> {
    /// Lends what goes home to `home`.
    pub fn new(home: H) -> Self {
        Self { home: Some(home) }
    }

    /// Brings it home with a word about its use.
    pub fn settle(self, word: H::Word) {
        self.settle_then(word, Afterwards::default());
    }

    /// As [`Self::settle`]; what is to be done afterwards is done once it is home.
    pub fn settle_then(mut self, word: H::Word, then: Afterwards) {
        if let Some(home) = self.home.take() {
            home.take_back(Some(word), then);
        }
    }
}

impl<H: Home> Drop for Lease<H> {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.take_back(None, Afterwards::default());
        }
    }
}

impl<H: Home> fmt::Debug for Lease<H> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.home.is_some() { "Lease(out)" } else { "Lease(home)" })
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex};

    use super::{Afterwards, Home, Lease};

    #[derive(Clone, Default)]
    struct Shelf(Arc<Mutex<Vec<Option<u8>>>>);

    impl Home for Shelf {
        type Word = u8;
        fn take_back(self, word: Option<u8>, then: Afterwards) {
            self.0.lock().unwrap().push(word);
            drop(then);
        }
    }

    #[test]
    fn settling_goes_home_once_with_the_word_and_dropping_without() {
        let shelf = Shelf::default();
        Lease::new(shelf.clone()).settle(7);
        drop(Lease::new(shelf.clone()));
        assert_eq!(*shelf.0.lock().unwrap(), [Some(7), None]);
    }

    #[test]
    fn what_comes_afterwards_is_done_once_when_all_are_home() {
        let shelf = Shelf::default();
        let (one, other) = (Lease::new(shelf.clone()), Lease::new(shelf.clone()));
        let seen = shelf.clone();
        let last = Afterwards::call(move || seen.0.lock().unwrap().push(Some(99)));
        one.settle_then(1, Afterwards::call(move || other.settle_then(2, last)));
        assert_eq!(*shelf.0.lock().unwrap(), [Some(1), Some(2), Some(99)]);
    }

    #[test]
    fn a_panicking_holder_gives_back() {
        let shelf = Shelf::default();
        let lease = Lease::new(shelf.clone());
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _held = lease;
            panic!("the holder breaks");
        }));
        assert!(panicked.is_err());
        assert_eq!(*shelf.0.lock().unwrap(), [None]);
    }

    #[tokio::test]
    async fn an_aborted_holder_gives_back() {
        let shelf = Shelf::default();
        let lease = Lease::new(shelf.clone());
        let holder = tokio::spawn(async move {
            let _held = lease;
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        assert!(shelf.0.lock().unwrap().is_empty());
        holder.abort();
        assert!(holder.await.unwrap_err().is_cancelled());
        assert_eq!(*shelf.0.lock().unwrap(), [None]);
    }

    #[test]
    fn a_lease_inside_a_message_nobody_reads_gives_back() {
        let shelf = Shelf::default();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        assert!(sender.send(Lease::new(shelf.clone())).is_ok());
        assert!(shelf.0.lock().unwrap().is_empty());
        drop(receiver);
        assert_eq!(*shelf.0.lock().unwrap(), [None]);
    }
}
