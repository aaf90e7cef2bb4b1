//! The permit pool: each rule by itself, then all of them over random orders of deliveries.

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
    bench.step(Message::Elsewhere { permits: 2 });
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
    bench.step(Message::Elsewhere { permits: 2 });
    assert_eq!(bench.acquire("a", 1), []);
    assert_eq!(bench.pool.in_use(), 2);
    assert_eq!(bench.step(Message::Elsewhere { permits: 1 }), [Told::Granted(1)]);
}

#[test]
fn a_lane_that_ends_tells_those_who_wait() {
    let mut bench = Bench::new(1, 4, None);
    (1..=3).for_each(|ticket| drop(bench.acquire("a", ticket)));
    let mut effects = Vec::new();
    bench.pool.close(&mut effects);
    let told: Vec<_> =
        effects.iter().map(|effect| matches!(effect, Effect::Shed { waiter: 2 | 3, shed: Shed::NotRunning })).collect();
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
