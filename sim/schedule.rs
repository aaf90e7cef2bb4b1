//! The schedule: what is under way between actors, and which of it may come next.
//!
//! Messages of one sender to one receiver keep their order, and nothing stronger is promised: that is all that
//! mailboxes promise. A timer is a message from a sender of its own that is ready later. What is next is a choice
//! among all that could come now: the heads of the lines that are ready before the oldest one is overdue. So a
//! message may be overtaken by any other, but it arrives within [`LATENCY_MAX`] of virtual time, and the promises
//! about time that the checkers look at have a meaning. Choice 0 is what has been ready longest.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The longest that a message, or a timer that ran out, is on its way.
pub const LATENCY_MAX: Duration = Duration::from_millis(5);

/// Most heads that are offered as the next; the others come later.
pub const CANDIDATES_MAX: usize = 48;

/// What is under way; `A` names an actor and `M` is a message.
#[derive(Debug)]
pub struct Schedule<A, M> {
    now: Duration,
    next_number: u64,
    lines: BTreeMap<Line<A>, VecDeque<Pending<M>>>,
    /// The head of every line, by the moment it is ready and then by age.
    heads: BTreeMap<(Duration, u64), Line<A>>,
}

/// A sender and a receiver.
type Line<A> = (A, A);

#[derive(Debug)]
struct Pending<M> {
    ready_at: Duration,
    number: u64,
    message: M,
}

/// A message that arrives.
#[derive(Debug)]
pub struct Delivery<A, M> {
    /// Who sent it.
    pub from: A,
    /// Who gets it.
    pub to: A,
    /// What it is.
    pub message: M,
}

impl<A: Copy + Ord, M> Schedule<A, M> {
    /// Nothing under way, at moment zero.
    pub fn new() -> Self {
        Self { now: Duration::ZERO, next_number: 0, lines: BTreeMap::new(), heads: BTreeMap::new() }
    }

    /// The virtual moment: the span since the run began.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Sends a message.
    pub fn send(&mut self, from: A, to: A, message: M) {
        self.send_after(Duration::ZERO, from, to, message);
    }

    /// Sends a message that is ready after a span; behind what the sender sent before.
    pub fn send_after(&mut self, span: Duration, from: A, to: A, message: M) {
        let number = self.next_number;
        self.next_number += 1;
        let ready_at = self.now.saturating_add(span);
        let line = self.lines.entry((from, to)).or_default();
        if line.is_empty() {
            self.heads.insert((ready_at, number), (from, to));
        }
        line.push_back(Pending { ready_at, number, message });
    }

    /// Takes back all that this sender has under way to this receiver: a timer that is no longer wanted.
    pub fn forget(&mut self, from: A, to: A) {
        if let Some(line) = self.lines.remove(&(from, to))
            && let Some(head) = line.front()
        {
            self.heads.remove(&(head.ready_at, head.number));
        }
    }

    /// Takes out all that is under way to this receiver, oldest first: its mailbox is gone.
    pub fn empty_mailbox(&mut self, to: A) -> Vec<M> {
        let lines: Vec<Line<A>> = self.lines.keys().filter(|line| line.1 == to).copied().collect();
        let mut lost = Vec::new();
        for line in lines {
            let Some(pending) = self.lines.remove(&line) else { continue };
            if let Some(head) = pending.front() {
                self.heads.remove(&(head.ready_at, head.number));
            }
            lost.extend(pending.into_iter().map(|pending| (pending.number, pending.message)));
        }
        lost.sort_by_key(|(number, _)| *number);
        lost.into_iter().map(|(_, message)| message).collect()
    }

    /// How many different messages could come next; 0 when nothing is under way.
    pub fn candidates(&self) -> usize {
        let Some((first, _)) = self.heads.first_key_value() else { return 0 };
        // What has been ready longest is not kept waiting past its time.
        let horizon = first.0.saturating_add(LATENCY_MAX);
        self.heads.range(..=(horizon, u64::MAX)).take(CANDIDATES_MAX).count()
    }

    /// Delivers one of the candidates; time moves to the moment at which it is ready.
    pub fn deliver(&mut self, candidate: usize) -> Option<Delivery<A, M>> {
        let (key, line) = self.heads.iter().nth(candidate).map(|(key, line)| (*key, *line))?;
        self.heads.remove(&key);
        let pending = self.lines.get_mut(&line)?;
        let Pending { message, .. } = pending.pop_front()?;
        match pending.front() {
            Some(next) => {
                self.heads.insert((next.ready_at, next.number), line);
            }
            None => {
                self.lines.remove(&line);
            }
        }
        self.now = self.now.max(key.0);
        Some(Delivery { from: line.0, to: line.1, message })
    }
}

impl<A: Copy + Ord, M> Default for Schedule<A, M> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{LATENCY_MAX, Schedule};
    use crate::seed::Generator;

    fn drain(schedule: &mut Schedule<u8, u32>, seed: u64) -> Vec<(u8, u8, u32)> {
        let mut generator = Generator::new(seed);
        let mut seen = Vec::new();
        while let candidates @ 1.. = schedule.candidates() {
            let pick = generator.below(u32::try_from(candidates).unwrap()) as usize;
            let delivery = schedule.deliver(pick).unwrap();
            seen.push((delivery.from, delivery.to, delivery.message));
        }
        seen
    }

    fn filled() -> Schedule<u8, u32> {
        let mut schedule = Schedule::new();
        for number in 0..60 {
            schedule.send(u8::try_from(number % 3).unwrap(), u8::try_from(number % 2).unwrap(), number);
        }
        schedule
    }

    #[test]
    fn pairs_keep_their_order_and_nothing_else_does() {
        let mut overtakes = 0;
        for seed in 0..50 {
            let seen = drain(&mut filled(), seed);
            let mut last: BTreeMap<(u8, u8), u32> = BTreeMap::new();
            for (from, to, number) in &seen {
                assert!(last.insert((*from, *to), *number).is_none_or(|before| before < *number));
            }
            assert_eq!(seen.len(), 60);
            overtakes += seen.windows(2).filter(|pair| pair[0].2 > pair[1].2).count();
        }
        assert!(overtakes > 500, "{overtakes}");
    }

    #[test]
    fn choice_zero_is_the_order_of_sending() {
        let mut schedule = filled();
        let order: Vec<u32> = std::iter::from_fn(|| schedule.deliver(0).map(|delivery| delivery.message)).collect();
        assert!(order.is_sorted());
    }

    #[test]
    fn nothing_is_later_than_the_latency_allows_and_time_never_goes_back() {
        for seed in 0..50 {
            let mut generator = Generator::new(seed);
            let mut schedule = Schedule::new();
            let mut due = BTreeMap::new();
            for number in 0..100_u32 {
                let span = Duration::from_micros(u64::from(generator.below(40_000)));
                schedule.send_after(span, number, 0, number);
                due.insert(number, span);
            }
            let mut now = Duration::ZERO;
            while let candidates @ 1.. = schedule.candidates() {
                let pick = generator.below(u32::try_from(candidates).unwrap()) as usize;
                let number = schedule.deliver(pick).unwrap().message;
                assert!(schedule.now() >= now && schedule.now() >= due[&number]);
                assert!(schedule.now() <= due[&number] + LATENCY_MAX);
                now = schedule.now();
            }
        }
    }

    #[test]
    fn a_forgotten_timer_and_an_emptied_mailbox_are_gone() {
        let mut schedule = filled();
        schedule.forget(0, 0);
        let lost = schedule.empty_mailbox(1);
        assert_eq!(lost.len(), 30);
        assert!(lost.is_sorted());
        assert_eq!(drain(&mut schedule, 1).len(), 20);
    }
}
