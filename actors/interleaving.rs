//! For tests: random deliveries to machines, in which order is kept for each sender and nothing else is promised.
//!
//! That is exactly what mailboxes promise, so a machine that holds under this holds under any schedule.

use std::collections::{BTreeMap, VecDeque};

/// A small seeded generator (xorshift64*): the same seed gives the same run everywhere.
pub(crate) struct Dice(u64);

impl Dice {
    /// From a seed; any seed will do.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number below `sides`, which is at least 1.
    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        usize::try_from(high).unwrap_or(0) % sides
    }
}

/// Messages under way, in one queue for each sender.
pub(crate) struct Interleaving<M> {
    queues: BTreeMap<usize, VecDeque<M>>,
}

impl<M> Interleaving<M> {
    /// Nothing under way.
    pub(crate) fn new() -> Self {
        Self { queues: BTreeMap::new() }
    }

    /// One more message from this sender.
    pub(crate) fn send(&mut self, sender: usize, message: M) {
        self.queues.entry(sender).or_default().push_back(message);
    }

    /// The next message of a random sender.
    pub(crate) fn deliver(&mut self, dice: &mut Dice) -> Option<M> {
        let senders: Vec<usize> = self.queues.keys().copied().collect();
        let sender = *senders.get(dice.roll(senders.len().max(1)))?;
        let queue = self.queues.get_mut(&sender)?;
        let message = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&sender);
        }
        message
    }

    /// All messages under way.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &M> {
        self.queues.values().flatten()
    }
}
