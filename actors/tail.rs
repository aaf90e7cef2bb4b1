//! A tail: a session's events from any sequence on, first those that are kept, then those that come, as one stream.
//!
//! What must stay true: between what is read back and what comes, no event is lost and none comes twice; a reader
//! that falls behind reads back again; and what is gone for good is told, with where it was. Memory is bounded: one
//! page, and what the journal lets a reader lag.

use std::collections::VecDeque;
use std::sync::Arc;

use toolwarden_tools::ids::SessionId;

use crate::journal::{Entry, Journal, JournalError, JournalEvent, Reader, Reading};

/// Events that are read back at a time.
const PAGE_EVENTS: usize = 256;

/// A session's events from a sequence on.
pub struct Tail<E: JournalEvent> {
    journal: Journal<E>,
    session: SessionId,
    reader: Reader<E>,
    page: VecDeque<Arc<Entry<E>>>,
    /// The last sequence that was given, or was told to be gone.
    last: u64,
    reads_back: bool,
    /// Whether the reader lost events that were not read back yet.
    has_missed: bool,
}

/// What a tail gives.
#[derive(Debug)]
pub enum TailReading<E> {
    /// The next event.
    Entry(Arc<Entry<E>>),
    /// Events after `after` are gone; the next one is `next` or later.
    Gap {
        /// The last sequence before the gap.
        after: u64,
        /// The oldest sequence that is still kept; none when nothing is.
        next: Option<u64>,
    },
    /// The journal's sink failed with these words.
    SinkFailed(String),
}

impl<E: JournalEvent> Tail<E> {
    /// Follows a top session from after this sequence on; 0 for all that is kept.
    ///
    /// # Errors
    /// [`JournalError::NotRunning`].
    pub async fn follow(journal: &Journal<E>, session: SessionId, after: u64) -> Result<Self, JournalError> {
        // First listen, then read back: what comes in between is seen twice, and given once.
        let reader = journal.subscribe(Some(session.clone())).await?;
        Ok(Self {
            journal: journal.clone(),
            session,
            reader,
            page: VecDeque::new(),
            last: after,
            reads_back: true,
            has_missed: false,
        })
    }

    /// The next reading; none when the journal has ended.
    pub async fn next(&mut self) -> Option<TailReading<E>> {
        loop {
            if let Some(entry) = self.page.pop_front() {
                self.last = entry.sequence;
                return Some(TailReading::Entry(entry));
            }
            if self.reads_back {
                match self.read_back().await {
                    Some(gap) => return Some(gap),
                    None => continue,
                }
            }
            match self.reader.next().await? {
                Reading::Entry(entry) if entry.sequence <= self.last => {}
                Reading::Entry(entry) => {
                    self.last = entry.sequence;
                    return Some(TailReading::Entry(entry));
                }
                Reading::Missed { .. } => (self.reads_back, self.has_missed) = (true, true),
                Reading::SinkFailed(words) => return Some(TailReading::SinkFailed(words)),
            }
        }
    }

    /// Takes the next page; gives a gap when there is one before it.
    async fn read_back(&mut self) -> Option<TailReading<E>> {
        // A journal that has ended has nothing more to read back; the reader says so.
        let page = self.journal.page(self.session.clone(), self.last, PAGE_EVENTS).await.ok().flatten();
        let has_missed = std::mem::take(&mut self.has_missed);
        let Some(page) = page else {
            self.reads_back = false;
            return has_missed.then_some(TailReading::Gap { after: self.last, next: None });
        };
        self.reads_back = page.has_more;
        self.page.extend(page.entries);
        if !page.retention_gap {
            return None;
        }
        let gap = TailReading::Gap { after: self.last, next: page.first_available };
        // What is gone up to here is told once.
        self.last = page.first_available.unwrap_or(page.latest_exclusive).saturating_sub(1).max(self.last);
        Some(gap)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use toolwarden_tools::effects::clock::SystemClock;
    use toolwarden_tools::ids::SessionId;

    use super::{Tail, TailReading};
    use crate::journal::{Journal, JournalEvent, Moment, READER_LAG_MAX, start};
    use crate::onlooker::root;
    use crate::retention::RetentionLimits;

    #[derive(Debug)]
    struct Told(SessionId);

    impl JournalEvent for Told {
        fn root_session(&self) -> &SessionId {
            &self.0
        }

        fn moment(&self) -> Moment<'_> {
            Moment::Other
        }
    }

    async fn journal(events_max: usize) -> Journal<Told> {
        let limits = RetentionLimits { events_max, bytes_max: usize::MAX, ..RetentionLimits::default() };
        let journal = Journal::new().retaining(limits);
        start(&journal, root().await, Arc::new(SystemClock::new()), None).await.unwrap();
        journal
    }

    fn tell(journal: &Journal<Told>, count: usize) {
        for _ in 0..count {
            journal.note(Told("s".into()));
        }
    }

    async fn sequence(tail: &mut Tail<Told>) -> u64 {
        match tail.next().await.unwrap() {
            TailReading::Entry(entry) => entry.sequence,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_lost_or_doubled_at_the_seam() {
        const EACH: usize = 2000;
        let journal = journal(usize::MAX).await;
        tell(&journal, EACH);
        let writer = journal.clone();
        let writing = tokio::spawn(async move {
            for _ in 0..EACH {
                writer.append(Told("s".into())).await.unwrap();
            }
        });
        // Read from the beginning while more comes, and from the middle.
        for after in [0, 1500] {
            let mut tail = Tail::follow(&journal, "s".into(), after).await.unwrap();
            for expected in after + 1..=2 * EACH as u64 {
                assert_eq!(sequence(&mut tail).await, expected);
            }
        }
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn a_reader_that_fell_behind_reads_back_what_it_missed() {
        let journal = journal(usize::MAX).await;
        let mut tail = Tail::follow(&journal, "s".into(), 0).await.unwrap();
        let count = 3 * READER_LAG_MAX;
        tell(&journal, count);
        for expected in 1..=count as u64 {
            assert_eq!(sequence(&mut tail).await, expected);
        }
    }

    #[tokio::test]
    async fn what_is_gone_for_good_is_told_with_its_place() {
        let journal = journal(100).await;
        let mut tail = Tail::follow(&journal, "s".into(), 0).await.unwrap();
        tell(&journal, 10);
        for expected in 1..=10 {
            assert_eq!(sequence(&mut tail).await, expected);
        }
        let count = 2 * READER_LAG_MAX;
        tell(&journal, count);
        let last = 10 + count as u64;
        assert_eq!(journal.status().await.unwrap().last_sequence, last);
        // The reader's own lag is larger than what is kept: it begins with what it still has.
        match tail.next().await.unwrap() {
            TailReading::Gap { after: 10, next } => assert_eq!(next, Some(last - 99)),
            other => panic!("{other:?}"),
        }
        for expected in last - 99..=last {
            assert_eq!(sequence(&mut tail).await, expected);
        }
        tell(&journal, 1);
        assert_eq!(sequence(&mut tail).await, last + 1);
    }

    // Found in a review: where nothing is kept, what the reader lost was not told.
    #[tokio::test]
    async fn what_is_lost_is_told_where_nothing_is_kept() {
        let journal: Journal<Told> = Journal::new();
        start(&journal, root().await, Arc::new(SystemClock::new()), None).await.unwrap();
        let mut tail = Tail::follow(&journal, "s".into(), 0).await.unwrap();
        tell(&journal, 1);
        assert_eq!(sequence(&mut tail).await, 1);
        let count = 2 * READER_LAG_MAX as u64;
        tell(&journal, 2 * READER_LAG_MAX);
        assert_eq!(journal.status().await.unwrap().last_sequence, 1 + count);
        assert!(matches!(tail.next().await, Some(TailReading::Gap { after: 1, next: None })));
        assert!(sequence(&mut tail).await > 2);
    }

    #[tokio::test]
    async fn numbers_go_on_after_those_of_another_process() {
        let journal: Journal<Told> = Journal::new().after(700);
        start(&journal, root().await, Arc::new(SystemClock::new()), None).await.unwrap();
        assert_eq!(journal.append(Told("s".into())).await, Ok(701));
        // Started again in its place, as a supervisor would.
        start(&journal, root().await, Arc::new(SystemClock::new()), None).await.unwrap();
        assert_eq!(journal.append(Told("s".into())).await, Ok(702));
    }
}
