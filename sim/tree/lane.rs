//! The simulated lane: the permit pool, the way of its slots, and its lives.
//!
//! Kept as the shipped mount keeps it: permits are counted by themselves, so that a new life of the lane knows how
//! many of the former ones are still out.

use std::time::Duration;

use toolwarden_actors::circuit_breaker::{BreakerLimits, CallHealth};
use toolwarden_actors::lease::Lease;
use toolwarden_actors::node::NodeId;
use toolwarden_actors::permit_pool::{BulkheadLimits, Effect, Message as PoolMessage, PermitPool, Shed};
use toolwarden_actors::waiting_line::{Holder, Ticket};

use crate::happening::Happening;
use crate::message::{Address, BodyMessage, Message, SlotHome, SlotWaiter};
use crate::tamper::Slip;
use crate::workload::Workload;

use super::World;
use super::node::invocation_id;

/// The lane, in its present life.
#[derive(Debug)]
pub(super) struct Lane {
    limits: BulkheadLimits,
    pool: PermitPool<SlotWaiter>,
    life: u64,
    /// Permits out, of all lives.
    live: usize,
    /// Permits out, of this life.
    own_live: usize,
    inherited: usize,
    next_ticket: u64,
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
        let pool = PermitPool::new(limits);
        Self { limits, pool, life: 0, live: 0, own_live: 0, inherited: 0, next_ticket: 0 }
    }

    pub(super) fn in_use(&self) -> usize {
        self.pool.in_use()
    }

    /// In plain words, for what a fault met.
    pub(super) fn words(&self, now: Duration) -> &'static str {
        match (self.live, self.waiting(now)) {
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
    pub(super) fn ask_for_slot(&mut self, body: NodeId, session: NodeId) -> Ticket {
        let ticket = Ticket(self.lane.next_ticket);
        self.lane.next_ticket += 1;
        self.happens(Happening::SlotAsked { ticket: ticket.0 });
        self.happens(Happening::SlotFor { ticket: ticket.0, node: body });
        let holder = Holder { session: super::ledger::session_id(session), invocation: invocation_id(body) };
        let waiter = SlotWaiter { body, ticket };
        self.send(Address::Lane, Message::Pool(PoolMessage::Acquire { ticket, holder, waiter }));
        ticket
    }

    pub(super) fn lane_hears(&mut self, message: PoolMessage<SlotWaiter>) {
        self.recount();
        self.step_pool(message);
    }

    pub(super) fn lane_recounts(&mut self) {
        self.recount();
    }

    fn recount(&mut self) {
        let permits = self.lane.live.saturating_sub(self.lane.own_live);
        if permits != self.lane.inherited {
            self.lane.inherited = permits;
            self.step_pool(PoolMessage::Inherited { permits });
        }
    }

    fn step_pool(&mut self, message: PoolMessage<SlotWaiter>) {
        let mut effects = Vec::new();
        self.tamper.pool(&mut self.lane.pool, self.schedule.now(), message, &mut effects);
        for effect in effects {
            match effect {
                Effect::Grant { ticket, waiter } => {
                    self.lane.live += 1;
                    self.lane.own_live += 1;
                    self.happens(Happening::SlotLent { ticket: ticket.0 });
                    let home = SlotHome { homecoming: self.homecoming.clone(), ticket, life: self.lane.life };
                    self.tell_body(waiter.body, BodyMessage::Slot(ticket, Ok(Lease::new(home))));
                }
                Effect::Shed { waiter, shed } => self.shed(waiter, shed),
            }
        }
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

    pub(super) fn slot_comes_home(&mut self, ticket: Ticket, life: u64, health: CallHealth) {
        self.happens(Happening::SlotHome { ticket: ticket.0 });
        // Counted first and told then.
        self.lane.live = self.lane.live.saturating_sub(1);
        if life == self.lane.life {
            self.lane.own_live = self.lane.own_live.saturating_sub(1);
        }
        self.send(Address::Lane, Message::Pool(PoolMessage::Return { ticket, health }));
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
        if self.lane.live > 0 {
            self.covers("a lane that fails with slots out");
        }
        self.lane.pool = PermitPool::new(self.lane.limits);
        self.lane.life += 1;
        self.lane.own_live = 0;
        self.lane.inherited = 0;
        self.send(Address::Lane, Message::Recount);
    }
}
