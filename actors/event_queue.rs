//! A queue from one writer to one reader that grows as far as its reader lags, and then loses the oldest.
//!
//! Thousands of readers wait for events that are few most of the time, so room for the largest lag is not taken before a
//! reader lags, and is given back when it has caught up. What must stay true: to put something in never waits, the reader
//! learns how much it lost before it gets what came after that, and a queue whose writer went gives all that is left.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::task::coop::cooperative;

/// Room that a queue keeps when it is empty, in items.
const ROOM_KEPT: usize = 32;

/// The end that puts items in. When it goes, the queue ends.
#[derive(Debug)]
pub struct QueueWriter<T> {
    queue: Arc<Mutex<Queue<T>>>,
    items_max: usize,
}

/// The end that takes items out.
#[derive(Debug)]
pub struct QueueReader<T> {
    queue: Arc<Mutex<Queue<T>>>,
}

/// What is taken out.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// The next item.
    Item(T),
    /// The reader was too slow: this many items are gone.
    Missed(u64),
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    missed: u64,
    /// Whoever waits for the next item.
    waiting: Option<Waker>,
    has_writer: bool,
    has_reader: bool,
}

/// A queue that holds at most this many items.
pub fn queue<T>(items_max: usize) -> (QueueWriter<T>, QueueReader<T>) {
    let queue = Queue { items: VecDeque::new(), missed: 0, waiting: None, has_writer: true, has_reader: true };
    let queue = Arc::new(Mutex::new(queue));
    (QueueWriter { queue: Arc::clone(&queue), items_max }, QueueReader { queue })
}

impl<T> QueueWriter<T> {
    /// Puts an item in; says whether anybody can still take it out.
    pub fn put(&self, item: T) -> bool {
        let mut queue = lock(&self.queue);
        if !queue.has_reader {
            return false;
        }
        // What is lost is dropped when nobody is kept waiting any more.
        let lost = if queue.items.len() >= self.items_max { queue.items.pop_front() } else { None };
        queue.missed += u64::from(lost.is_some());
        queue.items.push_back(item);
        let waiting = queue.waiting.take();
        drop(queue);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
        true
    }

    /// Whether anybody can still take something out.
    pub fn has_reader(&self) -> bool {
        lock(&self.queue).has_reader
    }
}

impl<T> Drop for QueueWriter<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.has_writer = false;
        let waiting = queue.waiting.take();
        drop(queue);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }
}

impl<T> QueueReader<T> {
    /// The next item; none when the writer went and nothing is left. A reader that never has to wait lets others go first
    /// now and then.
    pub async fn next(&mut self) -> Option<Taken<T>> {
        cooperative(poll_fn(|context| self.poll_next(context))).await
    }

    /// The next item when there is one already.
    pub fn try_next(&mut self) -> Option<Taken<T>> {
        lock(&self.queue).take()
    }

    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Taken<T>>> {
        let mut queue = lock(&self.queue);
        let taken = queue.take();
        if taken.is_some() || !queue.has_writer {
            return Poll::Ready(taken);
        }
        queue.waiting = Some(context.waker().clone());
        Poll::Pending
    }
}

impl<T> Drop for QueueReader<T> {
    fn drop(&mut self) {
        let mut queue = lock(&self.queue);
        queue.has_reader = false;
        let left = std::mem::take(&mut queue.items);
        drop(queue);
        drop(left);
    }
}

impl<T> Queue<T> {
    fn take(&mut self) -> Option<Taken<T>> {
        if self.missed > 0 {
            return Some(Taken::Missed(std::mem::take(&mut self.missed)));
        }
        let item = self.items.pop_front()?;
        if self.items.is_empty() && self.items.capacity() > ROOM_KEPT {
            self.items.shrink_to(ROOM_KEPT);
        }
        Some(Taken::Item(item))
    }
}

/// Nothing that can panic is done under the lock but taking memory.
fn lock<T>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt as _;

    use super::{ROOM_KEPT, Taken, lock, queue};

    #[tokio::test]
    async fn a_waiting_reader_gets_what_comes_and_the_end() {
        let (writer, mut reader) = queue(4);
        let reading = tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Some(Taken::Item(item)) = reader.next().await {
                taken.push(item);
            }
            taken
        });
        for item in 0..3 {
            tokio::task::yield_now().await;
            assert!(writer.put(item));
        }
        drop(writer);
        assert_eq!(reading.await.unwrap(), [0, 1, 2]);
    }

    #[tokio::test]
    async fn what_a_reader_lost_is_told_before_what_came_after_it() {
        let (writer, mut reader) = queue(3);
        (0..5).for_each(|item| assert!(writer.put(item)));
        assert_eq!(reader.next().await, Some(Taken::Missed(2)));
        assert_eq!(reader.next().await, Some(Taken::Item(2)));
        (5..7).for_each(|item| assert!(writer.put(item)));
        drop(writer);
        let rest: Vec<_> = std::iter::from_fn(|| reader.try_next()).collect();
        assert_eq!(rest, [Taken::Missed(1), Taken::Item(4), Taken::Item(5), Taken::Item(6)]);
        assert_eq!(reader.next().await, None);
    }

    #[test]
    fn room_is_taken_by_lag_alone_and_given_back() {
        let (writer, mut reader) = queue(4096);
        let room = |writer: &super::QueueWriter<u64>| lock(&writer.queue).items.capacity();
        assert_eq!(room(&writer), 0);
        (0..10_000).for_each(|item| assert!(writer.put(item)));
        assert!((4096..=8192).contains(&room(&writer)), "{}", room(&writer));
        assert_eq!(reader.try_next(), Some(Taken::Missed(10_000 - 4096)));
        while reader.try_next().is_some() {}
        assert!(room(&writer) <= ROOM_KEPT, "{}", room(&writer));
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let (writer, reader) = queue(8);
        let item = std::sync::Arc::new(());
        assert!(writer.put(std::sync::Arc::clone(&item)) && writer.has_reader());
        drop(reader);
        assert_eq!(std::sync::Arc::strong_count(&item), 1);
        assert!(!writer.put(std::sync::Arc::clone(&item)) && !writer.has_reader());
    }

    #[tokio::test]
    async fn a_reader_that_never_waits_lets_others_go_first() {
        const ITEMS: usize = 2000;
        let (writer, mut reader) = queue(ITEMS);
        (0..ITEMS).for_each(|item| assert!(writer.put(item)));
        let mut at_once = 0;
        while reader.next().now_or_never().is_some() {
            at_once += 1;
        }
        assert!(at_once < ITEMS);
        assert_eq!(reader.next().await, Some(Taken::Item(at_once)));
    }

    #[test]
    fn it_is_a_queue_that_forgets_its_oldest() {
        const STEPS: usize = 12;
        // Every order of putting in and taking out.
        for (orders, max) in (0..1_u32 << STEPS).flat_map(|orders| [1, 2, 5].map(|max| (orders, max))) {
            let (writer, mut reader) = queue(max);
            let (mut expected, mut missed) = (VecDeque::new(), 0);
            for step in 0..STEPS {
                if orders >> step & 1 == 1 {
                    assert!(writer.put(step));
                    expected.push_back(step);
                    if expected.len() > max {
                        expected.pop_front();
                        missed += 1;
                    }
                } else if missed > 0 {
                    assert_eq!(reader.try_next(), Some(Taken::Missed(missed)), "{orders:b} {max}");
                    missed = 0;
                } else {
                    assert_eq!(reader.try_next(), expected.pop_front().map(Taken::Item), "{orders:b} {max}");
                }
            }
        }
    }
}
