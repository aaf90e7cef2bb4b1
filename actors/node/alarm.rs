//! Alarms: the timers of all nodes of a tree, kept by one task.
//!
//! A node sets a timer with every cancel and every limit, and nearly always ends before it runs out. A task for each
//! would cost more than the rest of the cancel; here setting a timer and taking it back are an insert and a remove.
//! What must stay true: an alarm that was taken back never rings, and when none is set no task and no timer is left,
//! so that a paused clock has nothing to jump to.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The alarms of one tree; clones share them.
#[derive(Clone, Default)]
pub(super) struct Alarms {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    armed: Mutex<Armed>,
    /// The first moment is another one than before.
    changed: Notify,
}

#[derive(Default)]
struct Armed {
    next_number: u64,
    /// By their moments, and of one moment in the order they were set.
    calls: BTreeMap<Key, Call>,
    /// Whether the task is there that waits for the first of them.
    is_watched: bool,
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
        let mut armed = self.shared.lock();
        let key = (Instant::now() + span, armed.next_number);
        armed.next_number += 1;
        armed.calls.insert(key, Box::new(call));
        if !std::mem::replace(&mut armed.is_watched, true) {
            tokio::spawn(watch(Arc::clone(&self.shared)));
        } else if armed.is_first(key) {
            self.shared.changed.notify_one();
        }
        drop(armed);
        Alarm { alarms: self.clone(), key }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        let mut armed = self.alarms.shared.lock();
        let was_first = armed.is_first(self.key);
        let call = armed.calls.remove(&self.key);
        if was_first {
            self.alarms.shared.changed.notify_one();
        }
        drop(armed);
        // What the call holds may have an end of its own: not under the lock.
        drop(call);
    }
}

impl Armed {
    fn is_first(&self, key: Key) -> bool {
        self.calls.first_key_value().is_some_and(|(first, _)| *first == key)
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
            armed.is_watched = false;
            return None;
        };
        let at = first.key().0;
        Some(if at <= Instant::now() { Ok(first.remove()) } else { Err(at) })
    }
}

/// Rings the alarms until none is set.
async fn watch(shared: Arc<Shared>) {
    while let Some(due) = shared.take_due() {
        match due {
            Ok(call) => call(),
            Err(at) => tokio::select! {
                biased;
                () = shared.changed.notified() => {}
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
            if !alarms.shared.lock().is_watched {
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

    #[tokio::test(start_paused = true)]
    async fn one_that_is_taken_back_never_rings_and_holds_no_timer() {
        let (rung, mut rings) = mpsc::channel(8);
        let (alarms, began_at) = (Alarms::default(), Instant::now());
        let early = set(&alarms, 2, "early", &rung);
        let late = set(&alarms, 9, "late", &rung);
        tokio::task::yield_now().await;
        drop(early);
        drop(late);
        idle(&alarms).await;
        assert_eq!(began_at.elapsed(), Duration::ZERO, "no time passed on a clock that only timers move");
        drop(rung);
        assert_eq!(rings.recv().await, None, "what the calls held is gone");
    }
}
