//! Alarms: the timers of all nodes of a tree, kept by one task.
//!
//! A node sets a timer with every cancel and every limit, and nearly always ends before it runs out. A task for each
//! would cost more than the rest of the cancel; here setting a timer and taking it back are an insert and a remove,
//! and wake nobody: the task finds out when the moment comes that it sleeps to.
//! What must stay true: an alarm that was taken back never rings, and what its call held is gone at once; the task
//! ends with the tree, and before that when it wakes to find no alarm set.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// When an alarm rings whose moment lies beyond what the clock can count to: in thirty years.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The alarms of one tree; clones share them.
#[derive(Clone, Default)]
pub(super) struct Alarms {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    armed: Mutex<Armed>,
    /// There is a moment before the one that the task sleeps to, or there are no alarms any more.
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Armed {
    next_number: u64,
    /// By their moments, and of one moment in the order they were set.
    calls: BTreeMap<Key, Call>,
    /// Until when the task sleeps; none when there is no task.
    sleeps_to: Option<Instant>,
}

type Key = (Instant, u64);
type Call = Box<dyn FnOnce() + Send>;

/// An alarm that is set; dropped before its moment, it does not ring.
#[must_use = "an alarm that is dropped does not ring"]
pub(super) struct Alarm {
    alarms: Alarms,
    key: Key,
}

impl Alarms {
    /// Calls `call` after this span, on the task of the alarms: it must be short.
    pub(super) fn set(&self, span: Duration, call: impl FnOnce() + Send + 'static) -> Alarm {
        let now = Instant::now();
        let at = now.checked_add(span).unwrap_or_else(|| now + FAR);
        let mut armed = self.shared.lock();
        let key = (at, armed.next_number);
        armed.next_number += 1;
        armed.calls.insert(key, Box::new(call));
        match armed.sleeps_to {
            None => {
                armed.sleeps_to = Some(at);
                tokio::spawn(watch(Arc::downgrade(&self.shared), Arc::clone(&self.shared.changed)));
            }
            Some(sleeps_to) if at < sleeps_to => self.shared.changed.notify_one(),
            Some(_) => {}
        }
        drop(armed);
        Alarm { alarms: self.clone(), key }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let call = self.alarms.shared.lock().calls.remove(&self.key);
        // What the call holds may have an end of its own: not under the lock.
        drop(call);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Armed> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one call whose moment has come, or says when the next one is; none when no alarm is set.
    fn take_due(&self) -> Option<Result<Call, Instant>> {
        let mut armed = self.lock();
        let Some(first) = armed.calls.first_entry() else {
            armed.sleeps_to = None;
            return None;
        };
        let at = first.key().0;
        if at <= Instant::now() {
            return Some(Ok(first.remove()));
        }
        armed.sleeps_to = Some(at);
        Some(Err(at))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.changed.notify_one();
    }
}

/// Rings the alarms until none is set. Holds them only while it looks at them.
async fn watch(alarms: Weak<Shared>, changed: Arc<Notify>) {
    while let Some(due) = alarms.upgrade().and_then(|shared| shared.take_due()) {
        match due {
            Ok(call) => call(),
            Err(at) => tokio::select! {
                biased;
                () = changed.notified() => {}
                () = tokio::time::sleep_until(at) => {}
            },
        }
    }
}

impl fmt::Debug for Alarms {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} alarms", self.shared.lock().calls.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::{Alarm, Alarms};

    const SECOND: Duration = Duration::from_secs(1);

    fn set(alarms: &Alarms, seconds: u32, name: &'static str, rung: &mpsc::Sender<&'static str>) -> Alarm {
        let rung = rung.clone();
        alarms.set(SECOND * seconds, move || rung.try_send(name).unwrap())
    }

    async fn idle(alarms: &Alarms) {
        for _ in 0..100 {
            if alarms.shared.lock().sleeps_to.is_none() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("the task is still there");
    }

    #[tokio::test(start_paused = true)]
    async fn they_ring_in_the_order_of_their_moments() {
        let (rung, mut rings) = mpsc::channel(8);
        let (alarms, began_at) = (Alarms::default(), Instant::now());
        let _late = set(&alarms, 9, "late", &rung);
        let _early = set(&alarms, 2, "early", &rung);
        let _also_early = set(&alarms, 2, "also early", &rung);
        for (name, seconds) in [("early", 2), ("also early", 2), ("late", 9)] {
            assert_eq!(rings.recv().await, Some(name));
            assert_eq!(began_at.elapsed().as_secs(), seconds);
        }
        idle(&alarms).await;
        let _again = set(&alarms, 1, "again", &rung);
        assert_eq!(rings.recv().await, Some("again"));
    }

    // Found in a review: a host may give a call all the time there is.
    #[tokio::test(start_paused = true)]
    async fn a_span_beyond_the_clock_breaks_nothing() {
        let alarms = Alarms::default();
        let (rung, mut rings) = mpsc::channel(8);
        let _never = alarms.set(Duration::MAX, || panic!("it rings"));
        let _early = set(&alarms, 2, "early", &rung);
        assert_eq!(rings.recv().await, Some("early"));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_taken_back_never_rings_and_holds_nothing() {
        let (rung, mut rings) = mpsc::channel(8);
        let (alarms, began_at) = (Alarms::default(), Instant::now());
        let late = set(&alarms, 9, "late", &rung);
        tokio::task::yield_now().await;
        let early = set(&alarms, 2, "early", &rung);
        drop((early, late, rung));
        assert_eq!(rings.recv().await, None, "what the calls held is gone");
        assert_eq!(began_at.elapsed(), Duration::ZERO, "and at once");
        tokio::time::sleep(SECOND * 9).await;
        idle(&alarms).await;
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_ends_with_the_alarms() {
        let (rung, _rings) = mpsc::channel(8);
        let alarms = Alarms::default();
        let runtime = tokio::runtime::Handle::current();
        let tasks = || runtime.metrics().num_alive_tasks();
        let set = set(&alarms, 9, "never", &rung);
        tokio::task::yield_now().await;
        assert_eq!(tasks(), 1);
        drop((set, alarms));
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
