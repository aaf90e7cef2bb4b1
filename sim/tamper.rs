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
use toolwarden_actors::node_machine::{NodeEffect, NodeEvent, NodeId, NodeMachine};
use toolwarden_actors::open_questions::{AskId, OpenQuestions};
use toolwarden_actors::permit_pool::{Effect as PoolEffect, Message as PoolMessage, PermitPool};
use toolwarden_actors::task_board::{BoardEffect, BoardEvent, TaskBoard};

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

    /// A step of the tasks in the background.
    fn board(
        &mut self,
        board: &mut TaskBoard<NodeId, NodeId>,
        event: BoardEvent<NodeId, NodeId>,
    ) -> Vec<BoardEffect<NodeId>> {
        board.step(event)
    }

    /// Whether the mount around the machines makes this slip.
    fn slips(&self, _slip: Slip) -> bool {
        false
    }
}

/// What a mount can do wrong though every machine is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slip {
    /// A body says its invocation's ending when its epilogue said it already, or the other way round.
    SaysEndingsTwice,
    /// The journal's mailbox does not keep the order of causes across senders, as one inside a process does.
    ForgetsCauses,
    /// A call does not wait for a person.
    SkipsConfirmation,
    /// A call does not reserve.
    SkipsBudget,
    /// A call does not ask for a slot.
    SkipsAdmission,
    /// A call does not wait until its start is durable.
    StartsBeforeRecord,
    /// A no is taken for a yes.
    HearsNoAsYes,
    /// A tool that panicked is started again.
    RetriesAfterEffects,
    /// The fact log says that a record is durable when its batch begins.
    AcknowledgesBeforeSync,
    /// A node that dies forgets who waits for its children.
    ForgetsWaiters,
    /// Whoever waits for a node is told its ending twice.
    TellsWaitersTwice,
    /// What is lent to a call that was given up on stays with it.
    KeepsLateLeases,
    /// A node's epilogue does not pay what its body owes.
    ForgetsDebts,
    /// The slots of a task that is dropped are lost with it.
    LeaksDroppedLeases,
    /// A lane that fails does not turn away those who wait.
    ForgetsTheLine,
    /// A desk that fails does not deny its questions.
    ForgetsTheQuestions,
    /// A task in the background begins as soon as it is registered.
    BeginsBeforeItsTurn,
    /// The end of a task in the background is not told.
    ForgetsTaskEnds,
}

/// The machines as they are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Untouched;

impl Tamper for Untouched {}
