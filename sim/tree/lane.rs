//! The simulated lane: the permit pool, the way of its slots, and its lives.
//!
//! Kept as the shipped mount keeps it: the real turnstile counts the permits, so that a new life of the lane knows how
//! many of the former ones are still out, and lets calls pass that need not ask. Nothing happens between two steps of
//! the world, so only whole steps cross each other here; the turnstile's own tests let the parts of a step cross.

use std::time::Duration;

use toolwarden_actors::circuit_breaker::{BreakerLimits, CallHealth};
use toolwarden_actors::lease::Lease;
use toolwarden_actors::node_machine::NodeId;
use toolwarden_actors::permit_pool::{BulkheadLimits, Effect, Message as PoolMessage, PermitPool, Shed};
use toolwarden_actors::turnstile::{Homecoming, Turnstile};
use toolwarden_actors::waiting_line::{Holder, Ticket};

use crate::happening::Happening;
use crate::message::{Address, BodyMessage, Message, SlotHome, SlotWaiter};
use crate::tamper::Slip;
use crate::workload::Workload;

use super::World;
use super::name;

/// The lane, in its present life.
#[derive(Debug)]
pub(super) struct Lane {
    limits: BulkheadLimits,
    passing: bool,
    pool: PermitPool<SlotWaiter>,
    life: u64,
    /// Counts the permits out, of all lives.
    turnstile: Turnstile,
    /// Permits out that this life lent.
    own_live: usize,
    elsewhere: usize,
    next_ticket: u64,
    /// What the pool wants done; empty between its steps.
    effects: Vec<Effect<SlotWaiter>>,
}

impl Lane {
    pub(super) fn new(workload: &Workload) -> Self {
        let sizes = workload.limits;
        let breaker = BreakerLimits { failures_max: sizes.breaker_failures, ..BreakerLimits::default() };
        let limits = BulkheadLimits {
            permits: sizes.permits as usize,
            queue_max: sizes.queue_max as usize,
            breaker: (sizes.breaker_failures > 0).then_some(breaker),
        };
        let (pool, turnstile) = (PermitPool::new(limits), Turnstile::new(limits.permits));
        let passing = sizes.passing && pool.lets_pass();
        if passing {
            turnstile.open();
        }
        Self {
            limits,
            passing,
            pool,
            life: 0,
            turnstile,
            own_live: 0,
            elsewhere: 0,
            next_ticket: 0,
            effects: Vec::new(),
        }
    }

    /// Slots out: those that the pool lent, as it believes, and the others, as they are counted.
    pub(super) fn in_use(&self) -> usize {
        self.pool.in_use() - self.elsewhere + self.turnstile.out().saturating_sub(self.own_live)
    }

    /// In plain words, for what a fault met.
    pub(super) fn words(&self, now: Duration) -> &'static str {
        match (self.turnstile.out(), self.waiting(now)) {
            (0, 0) => "an idle lane",
            (0, _) => "a lane with a line and no slot out",
            (_, 0) => "a lane with slots out",
            _ => "a lane with slots out and a line",
        }
    }

    pub(super) fn waiting(&self, now: Duration) -> usize {
        self.pool.status(now).waiting
    }
}

impl World<'_> {
    /// Takes a slot in passing, or asks for one.
    pub(super) fn want_slot(&mut self, body: NodeId, session: NodeId) -> Result<Lease<SlotHome>, Ticket> {
        let ticket = Ticket(self.lane.next_ticket);
        self.lane.next_ticket += 1;
        self.happens(Happening::SlotAsked { ticket: ticket.0 });
        self.happens(Happening::SlotFor { ticket: ticket.0, node: body });
        if self.lane.turnstile.pass() {
            self.covers("a slot taken in passing");
            self.happens(Happening::SlotLent { ticket: ticket.0 });
            return Ok(Lease::new(SlotHome { homecoming: self.homecoming.clone(), ticket, lent_by: None }));
        }
        let holder = Holder { session: name::session(session), invocation: name::call(body) };
        let waiter = SlotWaiter { body, ticket };
        self.send(Address::Lane, Message::Pool(PoolMessage::Acquire { ticket, holder, waiter }));
        Err(ticket)
    }

    pub(super) fn lane_hears(&mut self, message: PoolMessage<SlotWaiter>) {
        self.recount();
        self.step_pool(message);
        self.open_if_idle();
    }

    pub(super) fn lane_recounts(&mut self) {
        self.recount();
        self.open_if_idle();
    }

    fn recount(&mut self) {
        let permits = self.lane.turnstile.shut().saturating_sub(self.lane.own_live);
        if permits != self.lane.elsewhere {
            self.lane.elsewhere = permits;
            self.step_pool(PoolMessage::Elsewhere { permits });
        }
    }

    fn open_if_idle(&mut self) {
        if self.lane.passing && self.lane.pool.lets_pass() {
            self.lane.turnstile.open();
        }
    }

    fn step_pool(&mut self, message: PoolMessage<SlotWaiter>) {
        let mut effects = std::mem::take(&mut self.lane.effects);
        self.tamper.pool(&mut self.lane.pool, self.schedule.now(), message, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Grant { ticket, waiter } => {
                    self.lane.turnstile.lend();
                    self.lane.own_live += 1;
                    self.happens(Happening::SlotLent { ticket: ticket.0 });
                    let lent_by = Some(self.lane.life);
                    let home = SlotHome { homecoming: self.homecoming.clone(), ticket, lent_by };
                    self.tell_body(waiter.body, BodyMessage::Slot(ticket, Ok(Lease::new(home))));
                }
                Effect::Shed { waiter, shed } => self.shed(waiter, shed),
            }
        }
        self.lane.effects = effects;
    }

    fn shed(&mut self, waiter: SlotWaiter, shed: Shed) {
        self.covers(match shed {
            Shed::QueueFull { .. } => "a full line",
            Shed::BreakerOpen { .. } => "an open breaker",
            _ => "a lane that is not there",
        });
        self.happens(Happening::SlotShed { ticket: waiter.ticket.0 });
        self.tell_body(waiter.body, BodyMessage::Slot(waiter.ticket, Err(shed)));
    }

    pub(super) fn slot_comes_home(&mut self, ticket: Ticket, lent_by: Option<u64>, health: CallHealth) {
        self.happens(Happening::SlotHome { ticket: ticket.0 });
        // Counted first and told then.
        if lent_by == Some(self.lane.life) {
            self.lane.own_live = self.lane.own_live.saturating_sub(1);
        }
        match (self.lane.turnstile.come_home(), lent_by) {
            (_, Some(_)) => self.send(Address::Lane, Message::Pool(PoolMessage::Return { ticket, health })),
            (Homecoming::ToBeTold, None) => {
                self.covers("a slot taken in passing that somebody waits for");
                self.send(Address::Lane, Message::Recount);
            }
            (Homecoming::Unnoticed, None) => {}
        }
    }

    /// The lane's actor fails and is started anew at once: the line and the mailbox are gone, the permits are not.
    pub(super) fn lane_fails(&mut self) {
        self.current = Address::Lane;
        let mut told = Vec::new();
        if !self.tamper.slips(Slip::ForgetsTheLine) {
            self.lane.pool.close(&mut told);
        }
        for message in self.schedule.empty_mailbox(Address::Lane) {
            if let Message::Pool(PoolMessage::Acquire { waiter, .. }) = message {
                told.push(Effect::Shed { waiter, shed: Shed::NotRunning });
            }
        }
        for effect in told {
            if let Effect::Shed { waiter, shed } = effect {
                self.shed(waiter, shed);
            }
        }
        if self.lane.turnstile.out() > 0 {
            self.covers("a lane that fails with slots out");
        }
        self.lane.pool = PermitPool::new(self.lane.limits);
        self.lane.life += 1;
        self.lane.own_live = 0;
        self.lane.elsewhere = 0;
        self.send(Address::Lane, Message::Recount);
    }
}
