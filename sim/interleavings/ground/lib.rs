//! The little of `toolwarden-tools` that the mounts here need: its own files, without what it takes to run tools.
//!
//! Most of that crate reaches the world, and takes minutes to build. What stands here is read from its files, so that
//! nothing is said twice; only the names of lanes, which stand between tools there, are written down again.

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

/// The clock alone.
pub mod effects {
    pub use crate::clock;
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
