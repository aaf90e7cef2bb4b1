//! The place between the world and the machines: here a test plants a fault, and the shipped simulation none.
//!
//! Every step of every machine goes through one method. The methods as they stand hand the machine's own answer on;
//! whoever overrides one builds a machine that is broken in one way, without touching the machine. A checker is
//! believed only once such a machine was caught by it.

use std::time::Duration;

use toolwarden_actors::accounts::{AccountId, Accounts, LedgerError, ReservationId};
use toolwarden_actors::budget::Amount;
use toolwarden_actors::fan_out::{Effect as FanEffect, Event as FanEvent, FanOut};
use toolwarden_actors::journal::{JournalError, JournalMachine, Moment};
use toolwarden_actors::node::{NodeEffect, NodeEvent, NodeId, NodeMachine};
use toolwarden_actors::open_questions::{AskId, OpenQuestions};
use toolwarden_actors::permit_pool::{Effect as PoolEffect, Message as PoolMessage, PermitPool};

use crate::message::{AskWaiter, SlotWaiter};

/// The machines as the world reaches them.
pub trait Tamper {
    /// A step of a node.
    fn node(&mut self, _id: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
    }

    /// A step of the lane.
    fn pool(
        &mut self,
        pool: &mut PermitPool<SlotWaiter>,
        now: Duration,
        message: PoolMessage<SlotWaiter>,
        effects: &mut Vec<PoolEffect<SlotWaiter>>,
    ) {
        pool.step(now, message, effects);
    }

    /// A reservation.
    ///
    /// # Errors
    /// As [`Accounts::reserve`].
    fn reserve(
        &mut self,
        accounts: &mut Accounts,
        account: &AccountId,
        amount: Amount,
    ) -> Result<ReservationId, LedgerError> {
        accounts.reserve(account, amount).map(|(reservation, _)| reservation)
    }

    /// The end of a reservation.
    fn settle(&mut self, accounts: &mut Accounts, reservation: ReservationId, used: Option<Amount>) {
        accounts.settle(reservation, used);
    }

    /// A question that nobody waits for any more.
    fn withdraw(&mut self, questions: &mut OpenQuestions<AskWaiter>, ask: AskId) {
        questions.withdraw(ask);
    }

    /// An entry for the journal.
    ///
    /// # Errors
    /// As [`JournalMachine::admit`].
    fn admit(
        &mut self,
        journal: &mut JournalMachine,
        unix_ms: u64,
        moment: Moment<'_>,
    ) -> Result<(u64, u64), JournalError> {
        journal.admit(unix_ms, moment)
    }

    /// A step of a fan-out.
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        fan.step(now, event)
    }

    /// Whether a body still says its invocation's ending when its epilogue said it, or the other way round.
    fn says_endings_twice(&self) -> bool {
        false
    }

    /// Whether the journal's mailbox keeps the order of causes across senders, as one inside a process does.
    fn journal_keeps_causes(&self) -> bool {
        true
    }
}

/// The machines as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Untouched;

impl Tamper for Untouched {}
