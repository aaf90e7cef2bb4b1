//! The line before a lane: fair between sessions, first come first served within one, and nobody starves.
//!
//! Sessions with waiting calls take turns, so a session that floods the lane delays mostly itself. Turns alone
//! would make its last call wait longer the more sessions there are, so age counts as well: once a call has seen
//! [`AGED_AFTER_CALLS`] others leave, every second place goes to the oldest such call. Hence the bound: a call
//! leaves at the latest as the (`AGED_AFTER_CALLS` + 2 x `length_max`)-th after it came, and with `s` sessions
//! waiting the next call of a session leaves within 2 x `s`.
//!
//! The line has a length. When it is full, a newcomer pushes out the newest call of the longest session if that
//! one has at least two more waiting than its own, else it is turned away itself: a flood cannot keep others out.

use std::collections::BTreeMap;

use toolwarden_tools::ids::{InvocationId, SessionId};

/// After this many calls left since it came, a call counts as old.
pub const AGED_AFTER_CALLS: u64 = 64;

/// The calls that wait; `W` is the way back to the caller.
#[derive(Debug)]
pub struct WaitingLine<W> {
    length_max: usize,
    calls: BTreeMap<Ticket, Waiting<W>>,
    arrivals: BTreeMap<u64, Ticket>,
    sessions: BTreeMap<SessionId, SessionLine>,
    // Whose turn comes when; one entry for each session that has calls here.
    turns: BTreeMap<u64, SessionId>,
    next_arrival: u64,
    next_turn: u64,
    left: u64,
    old_is_next: bool,
}

/// Who holds, or waits for, a permit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its session: permits are shared out fairly between sessions.
    pub session: SessionId,
    /// The call.
    pub invocation: InvocationId,
}

/// The number of one attempt to get a permit; the handle gives each number once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// A waiting call.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting<W> {
    /// Who will hold the permit.
    pub holder: Holder,
    /// The way back.
    pub waiter: W,
    arrival: u64,
    left_before: u64,
}

#[derive(Debug)]
struct SessionLine {
    turn: u64,
    by_arrival: BTreeMap<u64, Ticket>,
}

impl<W> WaitingLine<W> {
    /// An empty line for at most this many calls.
    pub fn new(length_max: usize) -> Self {
        Self {
            length_max,
            calls: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            sessions: BTreeMap::new(),
            turns: BTreeMap::new(),
            next_arrival: 0,
            next_turn: 0,
            left: 0,
            old_is_next: false,
        }
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether this call waits.
    pub fn contains(&self, ticket: Ticket) -> bool {
        self.calls.contains_key(&ticket)
    }

    /// Puts a call at the end of its session's line. Returns the way back of the call that has no place: of
    /// another one that was pushed out, or of this one.
    pub fn join(&mut self, ticket: Ticket, holder: Holder, waiter: W) -> Option<W> {
        let mut pushed_out = None;
        if self.calls.len() >= self.length_max {
            let Some(newest) = self.newest_of_a_flood(&holder.session) else { return Some(waiter) };
            pushed_out = self.leave(newest).map(|waiting| waiting.waiter);
        }
        let arrival = self.next_arrival;
        self.next_arrival += 1;
        let session = self.sessions.entry(holder.session.clone()).or_insert_with(|| {
            let turn = self.next_turn;
            self.next_turn += 1;
            self.turns.insert(turn, holder.session.clone());
            SessionLine { turn, by_arrival: BTreeMap::new() }
        });
        session.by_arrival.insert(arrival, ticket);
        self.arrivals.insert(arrival, ticket);
        self.calls.insert(ticket, Waiting { holder, waiter, arrival, left_before: self.left });
        pushed_out
    }

    /// Takes one call out, wherever it stands.
    pub fn leave(&mut self, ticket: Ticket) -> Option<Waiting<W>> {
        let waiting = self.calls.remove(&ticket)?;
        self.arrivals.remove(&waiting.arrival);
        if let Some(session) = self.sessions.get_mut(&waiting.holder.session) {
            session.by_arrival.remove(&waiting.arrival);
            if session.by_arrival.is_empty() {
                self.turns.remove(&session.turn);
                self.sessions.remove(&waiting.holder.session);
            }
        }
        Some(waiting)
    }

    /// Takes out the call whose turn it is.
    pub fn take_next(&mut self) -> Option<(Ticket, Waiting<W>)> {
        let old = self.oldest_if_old().filter(|_| self.old_is_next);
        let ticket = match old {
            Some(ticket) => {
                self.old_is_next = false;
                ticket
            }
            None => {
                self.old_is_next = true;
                self.next_in_turn()?
            }
        };
        self.left += 1;
        self.leave(ticket).map(|waiting| (ticket, waiting))
    }

    /// Takes all out, in order of their coming.
    pub fn empty(&mut self) -> Vec<W> {
        let tickets: Vec<Ticket> = self.arrivals.values().copied().collect();
        tickets.into_iter().filter_map(|ticket| self.leave(ticket)).map(|waiting| waiting.waiter).collect()
    }

    fn oldest_if_old(&self) -> Option<Ticket> {
        let ticket = *self.arrivals.values().next()?;
        let waiting = self.calls.get(&ticket)?;
        (self.left - waiting.left_before >= AGED_AFTER_CALLS).then_some(ticket)
    }

    fn next_in_turn(&mut self) -> Option<Ticket> {
        let (_, session) = self.turns.pop_first()?;
        let line = self.sessions.get_mut(&session)?;
        line.turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(line.turn, session);
        line.by_arrival.values().next().copied()
    }

    fn newest_of_a_flood(&self, newcomer: &SessionId) -> Option<Ticket> {
        let own = self.sessions.get(newcomer).map_or(0, |line| line.by_arrival.len());
        let longest = self.sessions.values().max_by_key(|line| line.by_arrival.len())?;
        let flood = longest.by_arrival.len() >= own + 2;
        longest.by_arrival.values().next_back().copied().filter(|_| flood)
    }
}

#[cfg(test)]
mod tests {
    use super::{AGED_AFTER_CALLS, Holder, Ticket, WaitingLine};

    fn holder(session: &str, call: u64) -> Holder {
        Holder { session: session.into(), invocation: format!("{session}{call}").into() }
    }

    fn line(length_max: usize) -> WaitingLine<u64> {
        WaitingLine::new(length_max)
    }

    fn join(line: &mut WaitingLine<u64>, session: &str, call: u64) -> Option<u64> {
        line.join(Ticket(call), holder(session, call), call)
    }

    fn order(line: &mut WaitingLine<u64>) -> Vec<u64> {
        std::iter::from_fn(|| line.take_next().map(|(ticket, _)| ticket.0)).collect()
    }

    #[test]
    fn sessions_take_turns_and_calls_of_one_keep_their_order() {
        let mut line = line(16);
        for call in 1..=4 {
            assert_eq!(join(&mut line, "a", call), None);
        }
        join(&mut line, "b", 11);
        join(&mut line, "c", 21);
        join(&mut line, "b", 12);
        assert_eq!(order(&mut line), [1, 11, 21, 2, 12, 3, 4]);
        assert!(line.sessions.is_empty() && line.turns.is_empty() && line.arrivals.is_empty());
    }

    #[test]
    fn a_session_that_comes_back_does_not_get_a_second_turn_in_the_same_round() {
        let mut line = line(16);
        for (session, call) in [("a", 1), ("b", 11), ("c", 21)] {
            join(&mut line, session, call);
        }
        assert_eq!(line.take_next().unwrap().0, Ticket(1));
        join(&mut line, "a", 2);
        assert_eq!(order(&mut line), [11, 21, 2]);
    }

    #[test]
    fn one_that_leaves_is_gone_and_unknown_ones_change_nothing() {
        let mut line = line(16);
        (1..=3).for_each(|call| assert_eq!(join(&mut line, "a", call), None));
        assert_eq!(line.leave(Ticket(2)).unwrap().waiter, 2);
        assert!(line.leave(Ticket(2)).is_none());
        assert_eq!(order(&mut line), [1, 3]);
    }

    #[test]
    fn a_full_line_turns_away_the_flood_and_not_the_others() {
        let mut line = line(4);
        (1..=4).for_each(|call| assert_eq!(join(&mut line, "flood", call), None));
        assert_eq!(join(&mut line, "flood", 5), Some(5));
        assert_eq!(join(&mut line, "other", 11), Some(4));
        assert_eq!(join(&mut line, "other", 12), Some(3));
        // Two each: nobody floods any more.
        assert_eq!(join(&mut line, "other", 13), Some(13));
        assert_eq!(join(&mut line, "third", 21), Some(12));
        assert_eq!(line.len(), 4);
    }

    #[test]
    fn no_line_takes_nobody() {
        assert_eq!(join(&mut line(0), "a", 1), Some(1));
    }

    /// The last call of a flood, with new sessions coming in before every place, leaves within the stated bound;
    /// a single call of a session leaves within two rounds of turns.
    #[test]
    fn the_stated_bounds_hold_under_a_stream_of_newcomers() {
        const LENGTH_MAX: usize = 100;
        let mut line = line(LENGTH_MAX);
        (0..60).for_each(|call| assert_eq!(join(&mut line, "flood", call), None));
        let mut came = std::collections::BTreeMap::new();
        let mut longest_wait_of_a_newcomer = 0;
        let mut last_of_the_flood_left_at = None;
        for step in 0..400_u64 {
            let newcomer = 1000 + step;
            let sessions = line.sessions.len() as u64 + 1;
            if join(&mut line, &format!("s{step}"), newcomer).is_none() {
                came.insert(newcomer, (step, sessions));
            }
            let (Ticket(call), _) = line.take_next().unwrap();
            if call == 59 {
                last_of_the_flood_left_at = Some(step + 1);
            }
            if let Some((since, sessions)) = came.remove(&call) {
                assert!(step - since <= 2 * sessions, "call {call} waited {} turns of {sessions}", step - since);
                longest_wait_of_a_newcomer = longest_wait_of_a_newcomer.max(step - since);
            }
        }
        let left_at = last_of_the_flood_left_at.unwrap();
        assert!(left_at <= AGED_AFTER_CALLS + 2 * LENGTH_MAX as u64, "the last of the flood left as the {left_at}th");
        assert!(longest_wait_of_a_newcomer > 0);
    }
}
