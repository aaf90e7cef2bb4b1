//! What is kept of the events of each session, so that a reader can page back and a slow one can catch up.
//!
//! Bounded by events and bytes a session, and by sessions; the oldest go first. What must stay true: a page says
//! whether something is gone before it, so nobody takes a part for the whole.

use std::collections::VecDeque;
use std::sync::Arc;

use indexmap::IndexMap;
use toolwarden_tools::ids::SessionId;

/// Most events of one page.
pub const PAGE_EVENTS_MAX: usize = 1000;

/// Most sessions of which it is known, when nothing of them is kept any more, up to where something was.
const FORGOTTEN_MAX: usize = 65_536;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Most events of one top session, those of its children included.
    pub events_max: usize,
    /// Most bytes of one top session's events, by their own estimate.
    pub bytes_max: usize,
    /// Most top sessions; the one that was heard of first goes first.
    pub sessions_max: usize,
}

impl Default for RetentionLimits {
    fn default() -> Self {
        Self { events_max: 4096, bytes_max: 4 * 1024 * 1024, sessions_max: 256 }
    }
}

/// A page of a session's events.
#[derive(Debug)]
pub struct Page<T> {
    /// The events, oldest first.
    pub entries: Vec<Arc<T>>,
    /// The sequence of the oldest event that is still kept.
    pub first_available: Option<u64>,
    /// One more than the sequence of the latest event of the session.
    pub latest_exclusive: u64,
    /// What to ask after for the next page; none when this page is empty.
    pub next_after: Option<u64>,
    /// Whether events between what was asked after and this page are gone.
    pub retention_gap: bool,
    /// Whether more are kept behind this page.
    pub has_more: bool,
}

/// The events that are kept.
#[derive(Debug)]
pub struct Retention<T> {
    limits: RetentionLimits,
    sessions: IndexMap<SessionId, Kept<T>>,
    /// The sequence of the latest event of sessions of which nothing is kept, the one that went first at the front.
    forgotten: IndexMap<SessionId, u64>,
}

#[derive(Debug)]
struct Kept<T> {
    entries: VecDeque<KeptEntry<T>>,
    bytes: usize,
    /// The sequence of the latest event that is gone; 0 when none is.
    gone_through: u64,
    latest: u64,
}

#[derive(Debug)]
struct KeptEntry<T> {
    sequence: u64,
    bytes: usize,
    entry: Arc<T>,
}

impl<T> Retention<T> {
    /// Keeps nothing yet.
    pub fn new(limits: RetentionLimits) -> Self {
        Self { limits, sessions: IndexMap::new(), forgotten: IndexMap::new() }
    }

    /// Keeps an event of this top session.
    pub fn keep(&mut self, session: &SessionId, sequence: u64, entry: &Arc<T>, bytes: usize) {
        let kept = match self.sessions.get_mut(session) {
            Some(kept) => kept,
            None => {
                while self.sessions.len() >= self.limits.sessions_max.max(1) {
                    let Some((gone, kept)) = self.sessions.shift_remove_index(0) else { break };
                    if self.forgotten.len() >= FORGOTTEN_MAX {
                        self.forgotten.shift_remove_index(0);
                    }
                    self.forgotten.insert(gone, kept.latest);
                }
                // One that is heard of again had events before.
                let gone_through = self.forgotten.shift_remove(session).unwrap_or(0);
                let fresh = Kept { entries: VecDeque::new(), bytes: 0, gone_through, latest: 0 };
                self.sessions.entry(session.clone()).or_insert(fresh)
            }
        };
        kept.latest = sequence;
        kept.bytes = kept.bytes.saturating_add(bytes);
        kept.entries.push_back(KeptEntry { sequence, bytes, entry: Arc::clone(entry) });
        while kept.entries.len() > self.limits.events_max || kept.bytes > self.limits.bytes_max {
            let Some(oldest) = kept.entries.pop_front() else { break };
            kept.bytes -= oldest.bytes;
            kept.gone_through = oldest.sequence;
        }
    }

    /// The events of a top session after this sequence, at most `limit` of them and at most [`PAGE_EVENTS_MAX`]. None
    /// when nothing is known of the session.
    pub fn page(&self, session: &SessionId, after: u64, limit: usize) -> Option<Page<T>> {
        let kept = self.sessions.get(session)?;
        let from = kept.entries.partition_point(|kept| kept.sequence <= after);
        let limit = limit.clamp(1, PAGE_EVENTS_MAX);
        let page = || kept.entries.range(from..).take(limit);
        let entries: Vec<Arc<T>> = page().map(|kept| Arc::clone(&kept.entry)).collect();
        Some(Page {
            first_available: kept.entries.front().map(|oldest| oldest.sequence),
            latest_exclusive: kept.latest + 1,
            next_after: page().next_back().map(|kept| kept.sequence),
            retention_gap: kept.gone_through > after,
            has_more: from + entries.len() < kept.entries.len(),
            entries,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(limits: RetentionLimits, sequences: impl IntoIterator<Item = u64>) -> Retention<u64> {
        let mut retention = Retention::new(limits);
        for sequence in sequences {
            retention.keep(&"s".into(), sequence, &Arc::new(sequence), 10);
        }
        retention
    }

    fn sequences(page: &Page<u64>) -> Vec<u64> {
        page.entries.iter().map(|entry| **entry).collect()
    }

    #[test]
    fn pages_follow_each_other_without_a_hole() {
        // Every third event is this session's.
        let retention = kept(RetentionLimits::default(), (1..=30).map(|number| number * 3));
        let (mut after, mut all) = (0, Vec::new());
        loop {
            let page = retention.page(&"s".into(), after, 7).unwrap();
            assert!(!page.retention_gap);
            assert_eq!((page.first_available, page.latest_exclusive), (Some(3), 91));
            all.extend(sequences(&page));
            match page.next_after {
                Some(next) => after = next,
                None => break,
            }
            assert_eq!(page.has_more, after < 90);
        }
        assert_eq!(all, (1..=30).map(|number| number * 3).collect::<Vec<_>>());
        assert!(retention.page(&"other".into(), 0, 7).is_none());
    }

    #[test]
    fn what_is_gone_is_told() {
        let limits = RetentionLimits { events_max: 3, ..RetentionLimits::default() };
        let retention = kept(limits, 1..=10);
        let page = retention.page(&"s".into(), 0, 100).unwrap();
        assert_eq!((sequences(&page), page.retention_gap, page.first_available), (vec![8, 9, 10], true, Some(8)));
        assert!(retention.page(&"s".into(), 6, 100).unwrap().retention_gap);
        assert!(!retention.page(&"s".into(), 7, 100).unwrap().retention_gap, "the event before the first is known");
        let limits = RetentionLimits { bytes_max: 25, ..RetentionLimits::default() };
        assert_eq!(sequences(&kept(limits, 1..=10).page(&"s".into(), 0, 100).unwrap()), [9, 10]);
        // An event that is larger than all that may be kept is gone at once, and told to be.
        let limits = RetentionLimits { bytes_max: 5, ..RetentionLimits::default() };
        let page = kept(limits, 1..=2).page(&"s".into(), 0, 100).unwrap();
        assert_eq!((page.entries.len(), page.retention_gap, page.latest_exclusive), (0, true, 3));
    }

    #[test]
    fn the_session_heard_of_first_goes_first() {
        let limits = RetentionLimits { sessions_max: 2, ..RetentionLimits::default() };
        let mut retention = Retention::new(limits);
        for (sequence, session) in ["a", "b", "a", "c"].into_iter().enumerate() {
            retention.keep(&session.into(), sequence as u64 + 1, &Arc::new(()), 1);
        }
        let known = |session: &str| retention.page(&session.into(), 0, 9).is_some();
        assert_eq!(["a", "b", "c"].map(known), [false, true, true]);
        // Found in a review: one that is heard of again looked as if nothing were gone.
        retention.keep(&"a".into(), 5, &Arc::new(()), 1);
        let gap = |session: &str, after| retention.page(&session.into(), after, 9).unwrap().retention_gap;
        assert_eq!((gap("a", 0), gap("a", 2), gap("a", 3), gap("c", 0)), (true, true, false, false));
    }
}
