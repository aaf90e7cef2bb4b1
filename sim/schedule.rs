//! The schedule: what is under way between actors, and which of it may come next.
//!
//! Messages of one sender to one receiver keep their order, and nothing stronger is promised: that is all that
//! mailboxes promise. A timer is a message from a sender of its own that is ready later. What is next is a choice
//! among all that could come now: the heads of the lines that are ready before the oldest one is overdue. So a
//! message may be overtaken by any other, but it arrives within [`LATENCY_MAX`] of virtual time, and the promises
//! about time that the checkers look at have a meaning. Choice 0 is what has been ready longest.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Duration;

/// The longest that a message, or a timer that ran out, is on its way.
pub const LATENCY_MAX: Duration = Duration::from_nanos(LATENCY_MAX_NS);
const LATENCY_MAX_NS: u64 = 5_000_000;

/// Most heads that are offered as the next; the others come later.
pub const CANDIDATES_MAX: usize = 48;

/// What is under way; `A` names an actor and `M` is a message.
///
/// Everything under way has a place, places are used again, and each holds on to the one behind it in its line; so a
/// message is moved in once and out once.
#[derive(Debug)]
pub struct Schedule<A, M> {
    now: Duration,
    now_ns: u64,
    next_number: u64,
    places: Vec<Place<A, M>>,
    free: Vec<u32>,
    /// The place of the last one of every line; [`NONE`] when nothing is under way on it.
    lines: Vec<u32>,
    /// Looked up and never gone through, so its order reaches nothing.
    line_of: HashMap<(A, A), u32, BuildHasherDefault<Mixer>>,
    /// The heads of all lines, what is ready longest last: what comes and goes is mostly at that end.
    heads: Vec<Head>,
    /// How many of them, the first ones, are not ready yet. What is sent without delay comes right behind those, and no
    /// search is needed for it.
    early: usize,
}

/// Room that is made at once, for things under way and for lines; a usual run of a tree of forty nodes needs no more.
const ROOM: usize = 128;
const LINES_ROOM: usize = 896;

/// No place, or no line.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Place<A, M> {
    ready_ns: u64,
    number: u64,
    from: A,
    to: A,
    line: u32,
    /// The place of the one behind it in its line.
    next: u32,
    /// Empty when the place is free.
    message: Option<M>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    ready_ns: u64,
    number: u64,
    place: u32,
}

/// Something under way that can be taken back.
#[derive(Debug, Clone, Copy)]
pub struct Alarm {
    place: u32,
    number: u64,
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

impl<A: Copy + Eq + Hash, M> Schedule<A, M> {
    /// Nothing under way, at moment zero.
    pub fn new() -> Self {
        Self {
            now: Duration::ZERO,
            now_ns: 0,
            next_number: 0,
            places: Vec::with_capacity(ROOM),
            free: Vec::with_capacity(ROOM),
            lines: Vec::with_capacity(LINES_ROOM),
            line_of: HashMap::with_capacity_and_hasher(LINES_ROOM, BuildHasherDefault::default()),
            heads: Vec::with_capacity(ROOM),
            early: 0,
        }
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
        let line = match self.line_of.get(&(from, to)) {
            Some(line) => *line,
            None => {
                let line = small(self.lines.len());
                self.lines.push(NONE);
                self.line_of.insert((from, to), line);
                line
            }
        };
        let place = self.put(span, from, to, line, message);
        let Some(last) = self.lines.get_mut(line as usize) else { return };
        let before = std::mem::replace(last, place);
        match self.places.get_mut(before as usize) {
            Some(before) => before.next = place,
            None => self.lead(place),
        }
    }

    /// Sends a message whose sender sends no other, and that can be taken back: a timer.
    pub fn wind(&mut self, span: Duration, from: A, to: A, message: M) -> Alarm {
        let number = self.next_number;
        let place = self.put(span, from, to, NONE, message);
        self.lead(place);
        Alarm { place, number }
    }

    /// Takes back what was wound; nothing when it has arrived already.
    pub fn forget(&mut self, alarm: Alarm) {
        let Some(place) = self.places.get(alarm.place as usize) else { return };
        if place.number != alarm.number || place.message.is_none() {
            return;
        }
        if let Some(at) = self.head_at(place.ready_ns, place.number) {
            self.pull(at);
        }
        self.take(alarm.place);
    }

    /// Takes out all that is under way to this receiver, oldest first: its mailbox is gone.
    pub fn empty_mailbox(&mut self, to: A) -> Vec<M> {
        let is_lost = |place: &Place<A, M>| place.message.is_some() && place.to == to;
        let mut lost: Vec<(u64, u32)> =
            (0..).zip(&self.places).filter(|(_, place)| is_lost(place)).map(|(at, place)| (place.number, at)).collect();
        lost.sort_unstable();
        let places = &self.places;
        self.heads.retain(|head| places.get(head.place as usize).is_none_or(|place| place.to != to));
        self.count_early();
        for (_, at) in &lost {
            let line = self.places.get(*at as usize).map_or(NONE, |place| place.line);
            if let Some(last) = self.lines.get_mut(line as usize) {
                *last = NONE;
            }
        }
        lost.into_iter().filter_map(|(_, at)| self.take(at)).map(|delivery| delivery.message).collect()
    }

    /// How many different messages could come next; 0 when nothing is under way.
    pub fn candidates(&self) -> usize {
        let Some(first) = self.heads.last() else { return 0 };
        // What has been ready longest is not kept waiting past its time.
        let horizon_ns = first.ready_ns.saturating_add(LATENCY_MAX_NS);
        let offered = self.heads.get(self.heads.len().saturating_sub(CANDIDATES_MAX)..).unwrap_or_default();
        offered.len() - offered.partition_point(|head| head.ready_ns > horizon_ns)
    }

    /// Delivers one of the candidates; time moves to the moment at which it is ready.
    pub fn deliver(&mut self, candidate: usize) -> Option<Delivery<A, M>> {
        let at = self.heads.len().checked_sub(candidate.checked_add(1)?)?;
        let head = self.pull(at);
        let place = self.places.get(head.place as usize)?;
        let (line, next) = (place.line, place.next);
        if next != NONE {
            self.lead(next);
        } else if let Some(last) = self.lines.get_mut(line as usize) {
            *last = NONE;
        }
        if head.ready_ns > self.now_ns {
            self.now_ns = head.ready_ns;
            self.now = Duration::from_nanos(head.ready_ns);
            self.count_early();
        }
        self.take(head.place)
    }

    /// Gives a message a place.
    fn put(&mut self, span: Duration, from: A, to: A, line: u32, message: M) -> u32 {
        let number = self.next_number;
        self.next_number += 1;
        let ready_ns = self.now_ns.saturating_add(nanos(span));
        let new = Place { ready_ns, number, from, to, line, next: NONE, message: Some(message) };
        let free = self.free.pop();
        match free.and_then(|at| self.places.get_mut(at as usize)) {
            Some(place) => *place = new,
            None => self.places.push(new),
        }
        free.unwrap_or_else(|| small(self.places.len() - 1))
    }

    /// Takes what is at a place; the place is free then.
    fn take(&mut self, at: u32) -> Option<Delivery<A, M>> {
        let place = self.places.get_mut(at as usize)?;
        let message = place.message.take()?;
        self.free.push(at);
        Some(Delivery { from: place.from, to: place.to, message })
    }

    /// What is at a place leads its line from now on.
    fn lead(&mut self, at: u32) {
        let Some(Place { ready_ns, number, .. }) = self.places.get(at as usize) else { return };
        let head = Head { ready_ns: *ready_ns, number: *number, place: at };
        let is_early = head.ready_ns > self.now_ns;
        let is_last_sent = head.ready_ns == self.now_ns && head.number + 1 == self.next_number;
        let later = match is_last_sent {
            true => self.early,
            false => self.heads.partition_point(|held| held.order() > head.order()),
        };
        self.heads.insert(later, head);
        self.early += usize::from(is_early);
    }

    /// Takes out a head.
    fn pull(&mut self, at: usize) -> Head {
        self.early -= usize::from(at < self.early);
        self.heads.remove(at)
    }

    /// Counts the heads that are not ready yet: time has moved.
    fn count_early(&mut self) {
        self.early = self.heads.partition_point(|head| head.ready_ns > self.now_ns);
    }

    fn head_at(&self, ready_ns: u64, number: u64) -> Option<usize> {
        self.heads.binary_search_by(|head| (ready_ns, number).cmp(&head.order())).ok()
    }
}

impl Head {
    fn order(&self) -> (u64, u64) {
        (self.ready_ns, self.number)
    }
}

impl<A: Copy + Eq + Hash, M> Default for Schedule<A, M> {
    fn default() -> Self {
        Self::new()
    }
}

/// Mixes the names of a sender and a receiver.
#[derive(Debug, Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word.cast_unsigned() as u64);
    }
}

/// A span in nanoseconds; the longest there is when it is longer than five centuries.
fn nanos(span: Duration) -> u64 {
    span.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(span.subsec_nanos()))
}

/// The number of a place or a line. As many as do not fit in it do not fit into memory.
fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(NONE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{CANDIDATES_MAX, LATENCY_MAX, Schedule};
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
        let [first, second] = [9, 4].map(|ms| schedule.wind(Duration::from_millis(ms), 7, 0, 100));
        schedule.forget(first);
        let lost = schedule.empty_mailbox(1);
        assert_eq!(lost.len(), 30);
        assert!(lost.is_sorted());
        assert_eq!(drain(&mut schedule, 1).len(), 31);
        // It has arrived: whatever has its place now stays.
        schedule.send(1, 0, 9);
        schedule.forget(second);
        schedule.send(1, 1, 10);
        assert_eq!(schedule.empty_mailbox(1), [10]);
        assert_eq!(schedule.candidates(), 1);
        assert_eq!(schedule.deliver(0).unwrap().message, 9);
        assert!(schedule.deliver(0).is_none());
    }

    /// What the schedule is, said with ordered maps: the same in every step, whatever is done.
    #[test]
    fn it_offers_and_delivers_what_the_plain_description_does() {
        for seed in 0..200 {
            let mut generator = Generator::new(seed);
            let (mut schedule, mut plain) = (Schedule::new(), Plain::default());
            let mut alarms = Vec::new();
            for number in 0..400_u32 {
                let span = Duration::from_micros(u64::from([0, 0, 0, generator.below(9_000)][(number % 4) as usize]));
                let (from, to) = (generator.below(5), generator.below(4));
                match generator.below(8) {
                    0..4 => {
                        schedule.send_after(span, from, to, number);
                        plain.send(span, (from, to), number);
                    }
                    4 => {
                        alarms.push((schedule.wind(span, 100 + number, to, number), (100 + number, to)));
                        plain.send(span, (100 + number, to), number);
                    }
                    5 if !alarms.is_empty() => {
                        let at = generator.below(u32::try_from(alarms.len()).unwrap()) as usize;
                        let (alarm, line) = alarms.swap_remove(at);
                        schedule.forget(alarm);
                        plain.lines.remove(&line);
                    }
                    6 if generator.below(20) == 0 => assert_eq!(schedule.empty_mailbox(to), plain.empty(to)),
                    _ => {
                        let candidates = plain.candidates();
                        assert_eq!(schedule.candidates(), candidates.len());
                        let pick = generator.below(u32::try_from(candidates.len()).unwrap()) as usize;
                        let got = schedule.deliver(pick).map(|got| ((got.from, got.to), got.message));
                        assert_eq!(got, candidates.get(pick).map(|line| (*line, plain.deliver(*line))));
                        assert_eq!(schedule.now(), plain.now);
                    }
                }
            }
        }
    }

    #[derive(Default)]
    struct Plain {
        now: Duration,
        lines: BTreeMap<(u32, u32), Vec<(Duration, u32)>>,
    }

    impl Plain {
        fn send(&mut self, span: Duration, line: (u32, u32), number: u32) {
            self.lines.entry(line).or_default().push((self.now + span, number));
        }

        fn candidates(&self) -> Vec<(u32, u32)> {
            let heads = self.lines.iter().filter_map(|(line, waiting)| Some((*waiting.first()?, *line)));
            let mut heads: Vec<_> = heads.collect();
            heads.sort_unstable();
            let horizon = heads.first().map_or(Duration::ZERO, |((ready_at, _), _)| *ready_at + LATENCY_MAX);
            let ready = heads.into_iter().take_while(|((ready_at, _), _)| *ready_at <= horizon);
            ready.map(|(_, line)| line).take(CANDIDATES_MAX).collect()
        }

        fn deliver(&mut self, line: (u32, u32)) -> u32 {
            let (ready_at, number) = self.lines.get_mut(&line).unwrap().remove(0);
            self.now = self.now.max(ready_at);
            number
        }

        fn empty(&mut self, to: u32) -> Vec<u32> {
            let lines = self.lines.iter_mut().filter(|(line, _)| line.1 == to);
            let mut lost: Vec<u32> =
                lines.flat_map(|(_, waiting)| waiting.drain(..)).map(|(_, number)| number).collect();
            lost.sort_unstable();
            lost
        }
    }
}
