//! What a simulated run came to: its digest, what broke, what unusual things met, and, when it is asked for, all of it.
//!
//! Every driver tells its runs in this form, so that commands, tables, timelines and shrinking know one kind of run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::checkers::Violation;
use crate::happening::Happening;
use crate::message::Address;
use crate::sign::Sign;

/// Most moments that are kept of one run; the ones after that are only counted.
pub const MOMENTS_MAX: usize = 200_000;

/// A run.
#[derive(Debug, Clone, Default)]
pub struct Story {
    /// The digest of everything that happened.
    pub digest: u64,
    /// All choices: the replay.
    pub choices: Vec<u32>,
    /// What each choice was below, when the choices kept that.
    pub bounds: Vec<u32>,
    /// Deliveries, or what the driver counts as a step.
    pub steps: usize,
    /// Nodes that were wanted.
    pub nodes: u64,
    /// How long it took, in virtual time.
    pub lasted: Duration,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// The names of the checkers that watched.
    pub checkers: Vec<&'static str>,
    /// Which of the unusual things happened.
    pub coverage: BTreeSet<&'static str>,
    /// How often each fault met each state.
    pub sometimes: BTreeMap<Meeting, u64>,
    /// Everything that happened, when it was asked for.
    pub moments: Vec<Moment>,
    /// Moments beyond [`MOMENTS_MAX`].
    pub moments_lost: u64,
}

/// A fault, and the state of what it met, in plain words.
pub type Meeting = (&'static str, &'static str);

/// Whether a run keeps everything that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Telling {
    /// Only what it comes to.
    Short,
    /// Everything.
    Whole,
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    /// At which virtual moment.
    pub at: Duration,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Something that checkers look at.
    Happening(Happening),
    /// A message arrived.
    Delivery {
        /// Who sent it.
        from: Address,
        /// Who got it.
        to: Address,
        /// What it was, in a few words.
        words: &'static str,
    },
    /// Something that was seen of a world.
    Seen {
        /// In plain words.
        words: String,
        /// What a picture shows of it.
        signs: Vec<Sign>,
    },
}
