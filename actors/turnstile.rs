//! The count of a lane's permits, and the way to one without a question: as long as nobody waits, a caller takes a
//! free permit in passing.
//!
//! A question to the lane's actor and its answer are two wake-ups, which is more than most calls cost otherwise, and a
//! lane with free permits and no line has only one answer. So callers and lane share this one word. It is shut while
//! somebody waits (nobody overtakes the line) and while the lane decides, and for good where every call must be
//! looked at. What must stay true, whoever does what at the same moment: never more than `permits` are out; nothing
//! passes once it is shut; and a permit that comes home to a shut turnstile is told to the lane, because somebody may
//! be waiting for it. All three hold because count and bar are one word, changed in one step.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The bit that says that nothing passes; the others count.
const SHUT: usize = 1 << (usize::BITS - 1);

/// One lane's turnstile.
#[derive(Debug)]
pub struct Turnstile {
    permits: usize,
    state: AtomicUsize,
}

/// Whether the lane is to be told of a permit that came home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lane that is not told may keep somebody waiting"]
pub enum Homecoming {
    /// Nobody waits.
    Unnoticed,
    /// Somebody may wait for it.
    ToBeTold,
}

impl Turnstile {
    /// A shut one of a lane with so many permits; 0 counts as 1.
    pub fn new(permits: usize) -> Self {
        Self { permits: permits.clamp(1, SHUT - 1), state: AtomicUsize::new(SHUT) }
    }

    /// Takes a permit, when one is free and nobody waits.
    pub fn pass(&self) -> bool {
        let next = |state: usize| (state < self.permits).then_some(state + 1);
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
    }

    /// The lane lends a permit itself.
    pub fn lend(&self) {
        self.state.fetch_add(1, Ordering::AcqRel);
    }

    /// A permit comes home, however it was taken.
    pub fn come_home(&self) -> Homecoming {
        let before = self.state.fetch_sub(1, Ordering::AcqRel);
        if before & SHUT == 0 { Homecoming::Unnoticed } else { Homecoming::ToBeTold }
    }

    /// Lets nothing pass from here on; returns how many permits are out at this moment.
    pub fn shut(&self) -> usize {
        self.state.fetch_or(SHUT, Ordering::AcqRel) & !SHUT
    }

    /// Lets calls pass as far as there are permits.
    pub fn open(&self) {
        self.state.fetch_and(!SHUT, Ordering::AcqRel);
    }

    /// Permits out.
    pub fn out(&self) -> usize {
        self.state.load(Ordering::Acquire) & !SHUT
    }

    /// Whether a call that comes now will have to ask the lane.
    pub fn turns_away(&self) -> bool {
        self.state.load(Ordering::Acquire) >= self.permits
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Homecoming, Turnstile};

    #[test]
    fn it_lets_pass_what_there_is_and_only_while_it_is_open() {
        let turnstile = Turnstile::new(2);
        assert!(!turnstile.pass() && turnstile.turns_away(), "the lane opens it");
        turnstile.open();
        assert_eq!((turnstile.pass(), turnstile.pass(), turnstile.pass()), (true, true, false));
        assert_eq!(turnstile.come_home(), Homecoming::Unnoticed);
        assert_eq!(turnstile.shut(), 1);
        assert!(!turnstile.pass());
        turnstile.lend();
        assert_eq!((turnstile.out(), turnstile.come_home(), turnstile.out()), (2, Homecoming::ToBeTold, 1));
        turnstile.open();
        assert!(turnstile.pass());
    }

    #[test]
    fn a_lane_without_permits_has_one() {
        let turnstile = Turnstile::new(0);
        turnstile.open();
        assert!(turnstile.pass() && !turnstile.pass());
    }

    /// Threads pass while another shuts, counts and opens: never too many are out, what is counted while it is shut
    /// only gets less, and each permit that comes home then is told.
    #[test]
    fn the_count_holds_while_all_happens_at_once() {
        const PERMITS: usize = 3;
        const ROUNDS: usize = 20_000;
        let turnstile = Turnstile::new(PERMITS);
        let (running, told) = (AtomicUsize::new(0), AtomicUsize::new(0));
        turnstile.open();
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    let mut passed = 0;
                    while passed < ROUNDS {
                        if !turnstile.pass() {
                            std::thread::yield_now();
                            continue;
                        }
                        passed += 1;
                        assert!(running.fetch_add(1, Ordering::SeqCst) < PERMITS, "too many passed");
                        running.fetch_sub(1, Ordering::SeqCst);
                        if turnstile.come_home() == Homecoming::ToBeTold {
                            told.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            threads.spawn(|| {
                for _ in 0..ROUNDS {
                    let told_before = told.load(Ordering::SeqCst);
                    let out = turnstile.shut();
                    assert!(out <= PERMITS);
                    // Whatever was out then and has come home since said so.
                    while turnstile.out() > 0 {
                        std::thread::yield_now();
                    }
                    while told.load(Ordering::SeqCst) - told_before < out {
                        std::thread::yield_now();
                    }
                    turnstile.open();
                }
            });
        });
        assert_eq!(turnstile.out(), 0);
    }
}
