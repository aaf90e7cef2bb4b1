//! Mutants of what is lent: slots and reservations that are given away twice, kept, or never noticed again.

use std::time::Duration;

use toolwarden_actors::accounts::{AccountId, Accounts, LedgerError, ReservationId};
use toolwarden_actors::budget::Amount;
use toolwarden_actors::permit_pool::{Effect as PoolEffect, Message as PoolMessage, PermitPool};

use crate::message::SlotWaiter;
use crate::tamper::{Slip, Tamper};

use super::{Mutant, machine, slip};

/// All of them.
pub(super) const LENT: [Mutant; 13] = [
    machine("permit-not-returned", "each third slot is lost", || Box::<NotReturned>::default(), "wide", "bulkhead", 60),
    machine("former-life-forgotten", "a new lane forgets slots out", || Box::new(NoHeirs), "scarce", "bulkhead", 200),
    machine("over-lent", "whoever would wait is let through", || Box::new(OverLent), "scarce", "bulkhead", 20),
    machine("line-not-served", "a free slot goes to nobody", || Box::new(NotServed), "scarce", "bulkhead", 60),
    machine("lent-twice", "one question, two slots", || Box::new(LentTwice), "wide", "leases", 5),
    machine("not-settled", "a reservation without a word is kept", || Box::new(NotSettled), "wide", "leases", 20),
    machine("nothing-booked", "a reservation books nothing", || Box::new(NothingBooked), "scarce", "budget", 60),
    machine("spent-for-free", "what was used is not recorded", || Box::new(SpentForFree), "scarce", "budget", 60),
    machine("half-booked", "a reservation books half", || Box::new(HalfBooked), "scarce", "budget", 200),
    slip(
        "late-lease-kept",
        "a lease comes after the debts are paid",
        Slip::KeepsLateLeases,
        "late-lease",
        "leases",
        3000,
    ),
    slip("debts-forgotten", "an epilogue pays nothing", Slip::ForgetsDebts, "wide", "leases", 60),
    slip("dropped-lease-leaks", "a dropped task keeps its slot", Slip::LeaksDroppedLeases, "wide", "leases", 60),
    slip("line-forgotten", "a lane that fails answers nobody", Slip::ForgetsTheLine, "restart-storm", "bulkhead", 60),
];

type Pool = PermitPool<SlotWaiter>;
type Asked = PoolMessage<SlotWaiter>;
type Answers = Vec<PoolEffect<SlotWaiter>>;

#[derive(Default)]
struct NotReturned {
    returns: usize,
}

impl Tamper for NotReturned {
    fn pool(&mut self, pool: &mut Pool, now: Duration, message: Asked, effects: &mut Answers) {
        if matches!(message, PoolMessage::Return { .. }) {
            self.returns += 1;
            if self.returns.is_multiple_of(3) {
                return;
            }
        }
        pool.step(now, message, effects);
    }
}

struct NoHeirs;

impl Tamper for NoHeirs {
    fn pool(&mut self, pool: &mut Pool, now: Duration, message: Asked, effects: &mut Answers) {
        if !matches!(message, PoolMessage::Elsewhere { .. }) {
            pool.step(now, message, effects);
        }
    }
}

struct OverLent;

impl Tamper for OverLent {
    fn pool(&mut self, pool: &mut Pool, now: Duration, message: Asked, effects: &mut Answers) {
        if let PoolMessage::Acquire { ticket, waiter, .. } = &message
            && pool.in_use() == pool.status(now).permits
        {
            effects.push(PoolEffect::Grant { ticket: *ticket, waiter: *waiter });
            return;
        }
        pool.step(now, message, effects);
    }
}

struct NotServed;

impl Tamper for NotServed {
    fn pool(&mut self, pool: &mut Pool, now: Duration, message: Asked, effects: &mut Answers) {
        let is_return = matches!(message, PoolMessage::Return { .. });
        pool.step(now, message, effects);
        if is_return {
            effects.clear();
        }
    }
}

struct LentTwice;

impl Tamper for LentTwice {
    fn pool(&mut self, pool: &mut Pool, now: Duration, message: Asked, effects: &mut Answers) {
        pool.step(now, message, effects);
        if let Some(PoolEffect::Grant { ticket, waiter }) = effects.first() {
            let again = PoolEffect::Grant { ticket: *ticket, waiter: *waiter };
            effects.push(again);
        }
    }
}

struct NotSettled;

impl Tamper for NotSettled {
    fn settle(&mut self, accounts: &mut Accounts, reservation: ReservationId, used: Option<Amount>) {
        // Released without a word: taken for one that is still at work.
        if used.is_some() {
            accounts.settle(reservation, used);
        }
    }
}

struct NothingBooked;

impl Tamper for NothingBooked {
    fn reserve(
        &mut self,
        accounts: &mut Accounts,
        account: &AccountId,
        _amount: Amount,
    ) -> Result<ReservationId, LedgerError> {
        accounts.reserve(account, Amount::default()).map(|(reservation, _)| reservation)
    }
}

struct SpentForFree;

impl Tamper for SpentForFree {
    fn settle(&mut self, accounts: &mut Accounts, reservation: ReservationId, _used: Option<Amount>) {
        accounts.settle(reservation, None);
    }
}

struct HalfBooked;

impl Tamper for HalfBooked {
    fn reserve(
        &mut self,
        accounts: &mut Accounts,
        account: &AccountId,
        amount: Amount,
    ) -> Result<ReservationId, LedgerError> {
        let half = Amount { calls: amount.calls / 2, ..amount };
        accounts.reserve(account, half).map(|(reservation, _)| reservation)
    }
}
