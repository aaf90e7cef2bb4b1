//! The decisions of one lane: who gets a permit, who waits, who is turned away.
//!
//! A lane lets at most `permits` calls run, keeps at most `queue_max` waiting ([`WaitingLine`] says in which
//! order), and sheds the rest at once with a typed reason, because a long line helps nobody. With a breaker it
//! also stops sending calls to what is down: opening it turns away everybody who waits.
//!
//! What must stay true, whatever the order of messages from different senders: a permit counts as out from the
//! grant until its `Return`; never more than `permits` are out; every waiter gets exactly one answer or withdrew
//! (the way back `W` is moved out once). A withdrawal that crosses its grant changes nothing here: the permit
//! inside the lost grant comes home by itself. No message can make a ticket wait or count twice.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;
use toolwarden_tools::cancellation::CancelReason;

use crate::circuit_breaker::{BreakerLimits, BreakerStatus, CallHealth, CircuitBreaker, Pass};
use crate::millisecond::whole_ms;
use crate::waiting_line::{Holder, Ticket, WaitingLine};

/// The shortest span that a turned away caller is told to wait.
pub const RETRY_AFTER_MIN: Duration = Duration::from_millis(50);
/// The longest span that a turned away caller is told to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// What a call is taken to last while none has ended yet.
pub const HOLD_GUESS: Duration = Duration::from_millis(500);

/// How much a lane carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BulkheadLimits {
    /// Calls that may run at a time; 0 counts as 1, because a lane that lets nobody through only hangs callers.
    pub permits: usize,
    /// Calls that may wait.
    pub queue_max: usize,
    /// When to stop calling what is down; never, when none.
    pub breaker: Option<BreakerLimits>,
}

/// Why there is no permit. A refusal: nothing was done yet, and the call may be made again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Shed {
    /// Too many wait already.
    #[error("{queued} calls are waiting already; try again in {retry_after_ms} ms")]
    QueueFull {
        /// How many.
        queued: usize,
        /// When a place is likely, in milliseconds.
        retry_after_ms: u64,
    },
    /// What the lane calls failed several times in a row.
    #[error("the last calls of this kind all failed; try again in {retry_after_ms} ms")]
    BreakerOpen {
        /// When calls are tried again, in milliseconds.
        retry_after_ms: u64,
    },
    /// The caller was told to end while it waited.
    #[error("{0} while waiting for a free slot")]
    Cancelled(CancelReason),
    /// The lane is not up.
    #[error("the lane is not running; try again once its supervisor has started it")]
    NotRunning,
}

/// What a lane is told. `W` is the way back to a caller.
#[derive(Debug)]
pub enum Message<W> {
    /// A call wants a permit.
    Acquire {
        /// Its number.
        ticket: Ticket,
        /// Who asks.
        holder: Holder,
        /// Where the answer goes.
        waiter: W,
    },
    /// A caller no longer waits.
    Withdraw {
        /// Its number.
        ticket: Ticket,
    },
    /// A permit comes home.
    Return {
        /// The number it was granted under.
        ticket: Ticket,
        /// How the call went.
        health: CallHealth,
    },
    /// This many permits of the lane's former lives are still out.
    Inherited {
        /// How many.
        permits: usize,
    },
}

/// What a lane wants done.
#[derive(Debug)]
pub enum Effect<W> {
    /// Hand a permit over.
    Grant {
        /// Under this number.
        ticket: Ticket,
        /// To whom.
        waiter: W,
    },
    /// Turn a caller away.
    Shed {
        /// Whom.
        waiter: W,
        /// Why.
        shed: Shed,
    },
}

/// How a lane stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BulkheadStatus {
    /// Permits out.
    pub in_use: usize,
    /// Calls waiting.
    pub waiting: usize,
    /// Permits in all.
    pub permits: usize,
    /// How its breaker stands, when it has one.
    pub breaker: Option<BreakerStatus>,
    /// Who holds the permits, in the order they asked.
    pub holders: Vec<Holder>,
}

/// One lane's state.
#[derive(Debug)]
pub struct PermitPool<W> {
    permits: usize,
    out: BTreeMap<Ticket, Grant>,
    inherited: usize,
    line: WaitingLine<W>,
    breaker: Option<CircuitBreaker>,
    // A running mean of how long permits stay out, for telling when a place is likely.
    hold_mean: Option<Duration>,
}

#[derive(Debug)]
struct Grant {
    holder: Holder,
    pass: Option<Pass>,
    granted_at: Duration,
}

impl<W> PermitPool<W> {
    /// An idle lane.
    pub fn new(limits: BulkheadLimits) -> Self {
        Self {
            permits: limits.permits.max(1),
            out: BTreeMap::new(),
            inherited: 0,
            line: WaitingLine::new(limits.queue_max),
            breaker: limits.breaker.map(CircuitBreaker::new),
            hold_mean: None,
        }
    }

    /// Takes one message; what is to be done is added to `effects`, in order.
    pub fn step(&mut self, now: Duration, message: Message<W>, effects: &mut Vec<Effect<W>>) {
        match message {
            Message::Acquire { ticket, holder, waiter } => self.acquire(now, ticket, holder, waiter, effects),
            Message::Withdraw { ticket } => {
                self.line.leave(ticket);
            }
            Message::Return { ticket, health } => self.take_back(now, ticket, health, effects),
            Message::Inherited { permits } => self.inherited = permits,
        }
        self.serve(now, effects);
    }

    /// Turns away everybody who waits: the lane ends.
    pub fn close(&mut self, effects: &mut Vec<Effect<W>>) {
        effects.extend(self.line.empty().into_iter().map(|waiter| Effect::Shed { waiter, shed: Shed::NotRunning }));
    }

    /// How it stands.
    pub fn status(&self, now: Duration) -> BulkheadStatus {
        BulkheadStatus {
            in_use: self.in_use(),
            waiting: self.line.len(),
            permits: self.permits,
            breaker: self.breaker.as_ref().map(|breaker| breaker.status(now)),
            holders: self.out.values().map(|grant| grant.holder.clone()).collect(),
        }
    }

    /// Permits out.
    pub fn in_use(&self) -> usize {
        self.out.len() + self.inherited
    }

    fn acquire(&mut self, now: Duration, ticket: Ticket, holder: Holder, waiter: W, effects: &mut Vec<Effect<W>>) {
        if self.out.contains_key(&ticket) || self.line.contains(ticket) {
            // Not from our handle. Two waiters under one number cannot both be kept apart: the newcomer goes.
            effects.push(Effect::Shed { waiter, shed: Shed::NotRunning });
            return;
        }
        if let Err(retry_after) = self.check_breaker(now) {
            effects.push(Effect::Shed { waiter, shed: Shed::BreakerOpen { retry_after_ms: whole_ms(retry_after) } });
            return;
        }
        if self.line.is_empty() && self.in_use() < self.permits {
            self.grant(now, ticket, holder, waiter, effects);
            return;
        }
        if let Some(waiter) = self.line.join(ticket, holder, waiter) {
            let shed = Shed::QueueFull { queued: self.line.len(), retry_after_ms: whole_ms(self.retry_after()) };
            effects.push(Effect::Shed { waiter, shed });
        }
    }

    fn take_back(&mut self, now: Duration, ticket: Ticket, health: CallHealth, effects: &mut Vec<Effect<W>>) {
        let Some(grant) = self.out.remove(&ticket) else { return };
        let held = now.saturating_sub(grant.granted_at);
        self.hold_mean = Some(self.hold_mean.map_or(held, |mean| (mean.saturating_mul(7).saturating_add(held)) / 8));
        let (Some(breaker), Some(pass)) = (&mut self.breaker, grant.pass) else { return };
        breaker.report(pass, health, now);
        if let Err(retry_after) = breaker.check(now) {
            let retry_after_ms = whole_ms(retry_after);
            let waiters = self.line.empty().into_iter();
            effects.extend(waiters.map(|waiter| Effect::Shed { waiter, shed: Shed::BreakerOpen { retry_after_ms } }));
        }
    }

    /// Hands out what is free to those whose turn it is.
    fn serve(&mut self, now: Duration, effects: &mut Vec<Effect<W>>) {
        while !self.line.is_empty() && self.in_use() < self.permits {
            if self.breaker.as_mut().is_some_and(|breaker| breaker.check(now).is_err()) {
                return;
            }
            let Some((ticket, waiting)) = self.line.take_next() else { return };
            self.grant(now, ticket, waiting.holder, waiting.waiter, effects);
        }
    }

    fn grant(&mut self, now: Duration, ticket: Ticket, holder: Holder, waiter: W, effects: &mut Vec<Effect<W>>) {
        let pass = match &mut self.breaker {
            None => None,
            Some(breaker) => match breaker.admit(now) {
                Ok(pass) => Some(pass),
                Err(retry_after) => {
                    let shed = Shed::BreakerOpen { retry_after_ms: whole_ms(retry_after) };
                    effects.push(Effect::Shed { waiter, shed });
                    return;
                }
            },
        };
        self.out.insert(ticket, Grant { holder, pass, granted_at: now });
        effects.push(Effect::Grant { ticket, waiter });
    }

    /// Half-open lets one call go on; while it waits for a permit, the others are turned away as well.
    fn check_breaker(&mut self, now: Duration) -> Result<(), Duration> {
        let Some(breaker) = &mut self.breaker else { return Ok(()) };
        breaker.check(now)?;
        if breaker.is_half_open() && !self.line.is_empty() {
            return Err(breaker.retry_during_probe());
        }
        Ok(())
    }

    fn retry_after(&self) -> Duration {
        let rounds = u32::try_from(self.line.len() / self.permits + 1).unwrap_or(u32::MAX);
        let guess = self.hold_mean.unwrap_or(HOLD_GUESS).saturating_mul(rounds);
        guess.clamp(RETRY_AFTER_MIN, RETRY_AFTER_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::{BulkheadLimits, Effect, Message, PermitPool, RETRY_AFTER_MAX, Shed};
    use crate::circuit_breaker::{BreakerLimits, BreakerStatus, CallHealth};
    use crate::interleaving::{Dice, Interleaving};
    use crate::waiting_line::{Holder, Ticket};

    const BREAKER: BreakerLimits =
        BreakerLimits { failures_max: 2, open_min: Duration::from_secs(1), open_max: Duration::from_secs(4) };

    /// What a pool told each ticket.
    #[derive(Debug, PartialEq)]
    enum Told {
        Granted(u64),
        Shed(u64, Shed),
    }

    struct Bench {
        pool: PermitPool<u64>,
        now: Duration,
    }

    impl Bench {
        fn new(permits: usize, queue_max: usize, breaker: Option<BreakerLimits>) -> Self {
            Self { pool: PermitPool::new(BulkheadLimits { permits, queue_max, breaker }), now: Duration::ZERO }
        }

        fn step(&mut self, message: Message<u64>) -> Vec<Told> {
            let mut effects = Vec::new();
            self.pool.step(self.now, message, &mut effects);
            effects
                .into_iter()
                .map(|effect| match effect {
                    Effect::Grant { ticket, waiter } => {
                        assert_eq!(ticket.0, waiter);
                        Told::Granted(waiter)
                    }
                    Effect::Shed { waiter, shed } => Told::Shed(waiter, shed),
                })
                .collect()
        }

        fn acquire(&mut self, session: &str, ticket: u64) -> Vec<Told> {
            let holder = Holder { session: session.into(), invocation: format!("call-{ticket}").into() };
            self.step(Message::Acquire { ticket: Ticket(ticket), holder, waiter: ticket })
        }

        fn back(&mut self, ticket: u64, health: CallHealth) -> Vec<Told> {
            self.step(Message::Return { ticket: Ticket(ticket), health })
        }
    }

    #[test]
    fn permits_then_line_then_shedding() {
        let mut bench = Bench::new(1, 1, None);
        assert_eq!(bench.acquire("a", 1), [Told::Granted(1)]);
        assert_eq!(bench.acquire("a", 2), []);
        let full = Shed::QueueFull { queued: 1, retry_after_ms: 1000 };
        assert_eq!(bench.acquire("a", 3), [Told::Shed(3, full)]);
        let status = bench.pool.status(bench.now);
        assert_eq!((status.in_use, status.waiting, status.permits, status.breaker), (1, 1, 1, None));
        assert_eq!(bench.back(1, CallHealth::Succeeded), [Told::Granted(2)]);
        assert_eq!(bench.back(2, CallHealth::Neutral), []);
        assert_eq!(bench.pool.in_use(), 0);
    }

    #[test]
    fn a_permit_comes_home_once_and_strangers_change_nothing() {
        let mut bench = Bench::new(1, 4, None);
        bench.acquire("a", 1);
        bench.acquire("a", 2);
        assert_eq!(bench.back(1, CallHealth::Neutral), [Told::Granted(2)]);
        assert_eq!(bench.back(1, CallHealth::Neutral), []);
        assert_eq!(bench.back(99, CallHealth::Failed), []);
        assert_eq!(bench.acquire("a", 2), [Told::Shed(2, Shed::NotRunning)]);
        assert_eq!(bench.pool.in_use(), 1);
    }

    #[test]
    fn a_withdrawal_empties_the_place_and_never_the_permit() {
        let mut bench = Bench::new(1, 4, None);
        bench.acquire("a", 1);
        bench.acquire("a", 2);
        bench.acquire("a", 3);
        assert_eq!(bench.step(Message::Withdraw { ticket: Ticket(2) }), []);
        assert_eq!(bench.step(Message::Withdraw { ticket: Ticket(1) }), []);
        assert_eq!(bench.pool.in_use(), 1);
        assert_eq!(bench.back(1, CallHealth::Neutral), [Told::Granted(3)]);
    }

    #[test]
    fn the_advice_when_to_come_back_follows_how_long_calls_last() {
        let mut bench = Bench::new(1, 0, None);
        bench.acquire("a", 1);
        bench.now = Duration::from_secs(4);
        bench.back(1, CallHealth::Succeeded);
        bench.acquire("a", 2);
        let full = Shed::QueueFull { queued: 0, retry_after_ms: 4000 };
        assert_eq!(bench.acquire("a", 3), [Told::Shed(3, full)]);
        bench.now = Duration::from_secs(100_000);
        bench.back(2, CallHealth::Succeeded);
        bench.acquire("a", 4);
        let [Told::Shed(5, Shed::QueueFull { retry_after_ms, .. })] = bench.acquire("a", 5)[..] else { panic!() };
        assert_eq!(Duration::from_millis(retry_after_ms), RETRY_AFTER_MAX);
    }

    #[test]
    fn opening_turns_away_all_who_wait_and_half_open_lets_one_through() {
        let mut bench = Bench::new(2, 4, Some(BREAKER));
        (1..=4).for_each(|ticket| drop(bench.acquire("a", ticket)));
        assert_eq!(bench.back(1, CallHealth::Failed), [Told::Granted(3)]);
        let open = || Shed::BreakerOpen { retry_after_ms: 1000 };
        assert_eq!(bench.back(2, CallHealth::Failed), [Told::Shed(4, open())]);
        assert_eq!(bench.acquire("a", 5), [Told::Shed(5, open())]);
        bench.now = Duration::from_secs(1);
        assert_eq!(bench.acquire("a", 6), [Told::Granted(6)]);
        assert_eq!(bench.acquire("a", 7), [Told::Shed(7, open())]);
        assert_eq!(bench.back(6, CallHealth::Succeeded), []);
        assert_eq!(bench.acquire("a", 8), [Told::Granted(8)]);
        assert_eq!(bench.pool.status(bench.now).breaker, Some(BreakerStatus::Closed { failures: 0 }));
    }

    #[test]
    fn in_half_open_with_no_free_permit_one_waits_to_be_the_probe() {
        let mut bench = Bench::new(3, 4, Some(BREAKER));
        (1..=3).for_each(|ticket| drop(bench.acquire("a", ticket)));
        bench.back(1, CallHealth::Failed);
        bench.back(2, CallHealth::Failed);
        bench.step(Message::Inherited { permits: 2 });
        bench.now = Duration::from_secs(1);
        assert_eq!(bench.acquire("a", 4), []);
        let open = Shed::BreakerOpen { retry_after_ms: 1000 };
        assert_eq!(bench.acquire("b", 5), [Told::Shed(5, open.clone())]);
        assert_eq!(bench.back(3, CallHealth::Succeeded), [Told::Granted(4)]);
        assert_eq!(bench.acquire("b", 6), [Told::Shed(6, open)]);
    }

    #[test]
    fn permits_of_a_former_life_count_until_they_are_home() {
        let mut bench = Bench::new(2, 4, None);
        bench.step(Message::Inherited { permits: 2 });
        assert_eq!(bench.acquire("a", 1), []);
        assert_eq!(bench.pool.in_use(), 2);
        assert_eq!(bench.step(Message::Inherited { permits: 1 }), [Told::Granted(1)]);
    }

    #[test]
    fn a_lane_that_ends_tells_those_who_wait() {
        let mut bench = Bench::new(1, 4, None);
        (1..=3).for_each(|ticket| drop(bench.acquire("a", ticket)));
        let mut effects = Vec::new();
        bench.pool.close(&mut effects);
        let told: Vec<_> = effects
            .iter()
            .map(|effect| matches!(effect, Effect::Shed { waiter: 2 | 3, shed: Shed::NotRunning }))
            .collect();
        assert_eq!(told, [true, true]);
    }

    const PERMITS: usize = 3;
    const QUEUE_MAX: usize = 5;
    const CALLERS: usize = 10;

    enum Under {
        ToPool(Message<u64>),
        Answer(Told),
    }

    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Caller {
        Idle,
        Waiting(u64),
        Holding(u64),
    }

    /// Callers that ask, give up, vanish and give back at random, their messages delivered in random order.
    struct World {
        bench: Bench,
        under_way: Interleaving<Under>,
        callers: [Caller; CALLERS],
        answers: BTreeMap<u64, u32>,
        withdrawn: Vec<u64>,
        tickets: u64,
        crossings: u32,
        sheds: u32,
    }

    impl World {
        fn new() -> Self {
            Self {
                bench: Bench::new(PERMITS, QUEUE_MAX, Some(BREAKER)),
                under_way: Interleaving::new(),
                callers: [Caller::Idle; CALLERS],
                answers: BTreeMap::new(),
                withdrawn: Vec::new(),
                tickets: 0,
                crossings: 0,
                sheds: 0,
            }
        }

        fn act(&mut self, caller: usize, dice: &mut Dice) {
            match self.callers[caller] {
                Caller::Idle => {
                    let ticket = self.tickets;
                    self.tickets += 1;
                    let session = format!("s{}", caller % 3).as_str().into();
                    let holder = Holder { session, invocation: format!("{ticket}").into() };
                    let message = Message::Acquire { ticket: Ticket(ticket), holder, waiter: ticket };
                    self.under_way.send(caller, Under::ToPool(message));
                    self.callers[caller] = Caller::Waiting(ticket);
                }
                Caller::Waiting(ticket) => {
                    // Its own word comes after its question; the word of its parent may come before.
                    let sender = if dice.roll(2) == 0 { caller } else { 1000 };
                    self.under_way.send(sender, Under::ToPool(Message::Withdraw { ticket: Ticket(ticket) }));
                    self.withdrawn.push(ticket);
                    self.callers[caller] = Caller::Idle;
                }
                Caller::Holding(ticket) => {
                    let health = [CallHealth::Succeeded, CallHealth::Failed, CallHealth::Neutral][dice.roll(3)];
                    self.give_back(caller, ticket, health);
                    self.callers[caller] = Caller::Idle;
                }
            }
        }

        fn give_back(&mut self, sender: usize, ticket: u64, health: CallHealth) {
            self.under_way.send(sender, Under::ToPool(Message::Return { ticket: Ticket(ticket), health }));
        }

        fn deliver(&mut self, dice: &mut Dice) -> bool {
            match self.under_way.deliver(dice) {
                None => return false,
                Some(Under::ToPool(message)) => {
                    for told in self.bench.step(message) {
                        let (Told::Granted(ticket) | Told::Shed(ticket, _)) = told;
                        *self.answers.entry(ticket).or_default() += 1;
                        self.under_way.send(2000 + usize::try_from(ticket).unwrap(), Under::Answer(told));
                    }
                }
                Some(Under::Answer(Told::Granted(ticket))) => {
                    match self.callers.iter().position(|caller| *caller == Caller::Waiting(ticket)) {
                        Some(caller) => self.callers[caller] = Caller::Holding(ticket),
                        None => {
                            // Dead mailbox: the permit in the grant goes home by itself.
                            self.crossings += 1;
                            self.give_back(3000, ticket, CallHealth::Neutral);
                        }
                    }
                }
                Some(Under::Answer(Told::Shed(ticket, _))) => {
                    self.sheds += 1;
                    if let Some(caller) = self.callers.iter().position(|caller| *caller == Caller::Waiting(ticket)) {
                        self.callers[caller] = Caller::Idle;
                    }
                }
            }
            true
        }

        fn check(&self) {
            let held = self.callers.iter().filter(|caller| matches!(caller, Caller::Holding(_))).count();
            let travelling = self.under_way.iter().filter(|message| {
                matches!(message, Under::Answer(Told::Granted(_)) | Under::ToPool(Message::Return { .. }))
            });
            assert!(self.bench.pool.in_use() <= PERMITS);
            assert_eq!(self.bench.pool.in_use(), held + travelling.count(), "permits out have an owner or travel");
            assert!(self.bench.pool.status(self.bench.now).waiting <= QUEUE_MAX);
            assert!(self.answers.values().all(|count| *count == 1));
        }
    }

    #[test]
    fn the_invariants_hold_in_any_order_of_deliveries() {
        let (mut crossings, mut sheds) = (0, 0);
        for seed in 0..300 {
            let mut dice = Dice::new(seed);
            let mut world = World::new();
            for _ in 0..300 {
                world.bench.now += Duration::from_millis(10 * dice.roll(10) as u64);
                match dice.roll(5) {
                    0 | 1 => {
                        let caller = dice.roll(CALLERS);
                        world.act(caller, &mut dice);
                    }
                    _ => drop(world.deliver(&mut dice)),
                }
                world.check();
            }
            // No more new calls: holders give back, everything under way arrives.
            loop {
                while world.deliver(&mut dice) {
                    world.check();
                }
                let Some(holder) = world.callers.iter().position(|caller| matches!(caller, Caller::Holding(_))) else {
                    break;
                };
                world.act(holder, &mut dice);
            }
            let status = world.bench.pool.status(world.bench.now);
            assert_eq!((status.in_use, status.waiting), (0, 0), "seed {seed}: all home, nobody waits");
            assert!(world.callers.iter().all(|caller| *caller == Caller::Idle), "seed {seed}: everybody was answered");
            for ticket in 0..world.tickets {
                let answered = world.answers.contains_key(&ticket);
                assert!(answered || world.withdrawn.contains(&ticket), "seed {seed}: ticket {ticket} was forgotten");
            }
            crossings += world.crossings;
            sheds += world.sheds;
        }
        assert!(crossings > 100 && sheds > 100, "the runs reach what they are to reach: {crossings} {sheds}");
    }
}
