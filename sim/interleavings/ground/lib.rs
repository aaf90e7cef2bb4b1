//! The little of `toolwarden-tools` that the mounts here need: its own files, without what it takes to run tools.
//!
//! Most of that crate reaches the world, and takes minutes to build. What stands here is read from its files, so that
//! nothing is said twice; only the names of lanes and the wish for a fan-out, which stand between tools there, are written
//! down again, and work off the thread is a task.

#[path = "../../../tools/cancellation.rs"]
pub mod cancellation;
#[path = "../../../tools/canonical_json.rs"]
pub mod canonical_json;
#[path = "../../../tools/digest.rs"]
pub mod digest;
#[path = "../../../tools/ids.rs"]
pub mod ids;

#[path = "../../../tools/effects/clock.rs"]
pub mod clock;

/// The clock, the store's port, and work off the thread.
pub mod effects {
    pub use crate::clock;

    /// As shipped, without the stores themselves.
    #[expect(dead_code, reason = "what only the stores need comes with the port")]
    pub mod store {
        include!(concat!(env!("OUT_DIR"), "/store.rs"));
    }

    /// Work that would hold a thread up: a task like any other here, so that its moment is chosen.
    pub mod blocking {
        /// Begins such work; it goes on when nobody waits for it.
        pub fn off_thread<T: Send + 'static>(
            work: impl FnOnce() -> T + Send + 'static,
        ) -> interleaved_tokio::task::JoinHandle<T> {
            interleaved_tokio::spawn(async move { work() })
        }
    }
}

/// How a fan-out goes, as a tool asks for it.
pub mod context {
    /// The same three words as there.
    #[derive(Debug, Clone, Copy)]
    pub struct FanOutPolicy {
        /// At most this many at a time.
        pub width: usize,
        /// End once this many have succeeded.
        pub enough_successes: Option<usize>,
        /// End after this many milliseconds with what there is.
        pub timeout_ms: Option<u64>,
    }
}

/// The names of lanes.
pub mod tool {
    use std::fmt;

    /// Two of them are enough here.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Lane {
        /// Reads.
        Query,
        /// Everything that changes something.
        Execute,
    }

    impl fmt::Display for Lane {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str(if *self == Self::Query { "query" } else { "execute" })
        }
    }
}
