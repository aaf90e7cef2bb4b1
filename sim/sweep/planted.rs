//! Machines that are broken in one way each.

use std::collections::BTreeSet;
use std::time::Duration;

use toolwarden_actors::accounts::{AccountId, Accounts, LedgerError, ReservationId};
use toolwarden_actors::budget::Amount;
use toolwarden_actors::fan_out::{Effect as FanEffect, Event as FanEvent, FanOut};
use toolwarden_actors::journal::{JournalError, JournalMachine, Moment};
use toolwarden_actors::node::{BodyEnd, Ending, NodeEffect, NodeEvent, NodeId, NodeMachine, NodeTimer};
use toolwarden_actors::open_questions::{AskId, OpenQuestions};
use toolwarden_actors::permit_pool::{Effect as PoolEffect, Message as PoolMessage, PermitPool};

use crate::message::{AskWaiter, SlotWaiter};
use crate::script::{DEEP, SCARCE, WIDE, Workload};
use crate::tamper::Tamper;

/// A planted fault, and what is known of its discovery.
pub(super) struct Planted {
    pub(super) name: &'static str,
    pub(super) make: fn() -> Box<dyn Tamper>,
    pub(super) workload: Workload,
    /// The promise that finds it.
    pub(super) promise: &'static str,
    /// It is found within so many seeds.
    pub(super) seeds_max: u64,
}

const CHILDREN: &str = "a node ends after its body and its children";
const LEASES: &str = "every lease comes home once";
const CANCEL: &str = "a cancel is obeyed in time";
const REACH: &str = "a cancel reaches every level at once";
const JOURNAL: &str = "the journal has every call once, from opening to ending, without a gap";
const LANE: &str = "a lane lends what it has and answers everybody once";
const BUDGET: &str = "nothing is reserved beyond a budget";
const QUESTIONS: &str = "a question is answered once, and approved by a person only";
const FANS: &str = "a fan-out keeps its width and waits for its members";

/// All planted faults.
pub(super) const PLANTED: [Planted; 19] = [
    plant("an ending before the children", || Box::new(EndingBeforeChildren), WIDE, CHILDREN, 20),
    plant("a child that died is not counted", || Box::new(LostChildForgotten), WIDE, CHILDREN, 60),
    plant("an ending before the body", || Box::new(AbortTakenForEnd), WIDE, CHILDREN, 20),
    plant("a second ending", || Box::new(SecondEnding), WIDE, "a node ends exactly once", 5),
    plant("a cancel lost before the start", || Box::<CancelLostBeforeStart>::default(), DEEP, CANCEL, 400),
    plant("a spinning body waited for", || Box::new(SpinWaitedFor), SCARCE, CANCEL, 60),
    plant("a child not told", || Box::new(ChildNotTold), WIDE, REACH, 20),
    plant("a kill not passed on", || Box::new(KillNotPassedOn), WIDE, REACH, 60),
    plant("a body not aborted", || Box::new(BodyNotAborted), WIDE, "everything comes to rest", 60),
    plant("a permit not returned", || Box::<PermitNotReturned>::default(), WIDE, LEASES, 20),
    plant("a former life forgotten", || Box::new(FormerLifeForgotten), SCARCE, LANE, 200),
    plant("an over-lent lane", || Box::new(OverLent), SCARCE, LANE, 20),
    plant("a reservation not settled", || Box::new(NotSettled), WIDE, LEASES, 20),
    plant("a reservation that books nothing", || Box::new(NothingBooked), SCARCE, BUDGET, 60),
    plant("a withdrawn question kept", || Box::new(QuestionKept), WIDE, QUESTIONS, 200),
    plant("a gap in the journal", || Box::new(JournalGap), WIDE, JOURNAL, 5),
    plant("an ending said by body and epilogue", || Box::new(SaidTwice), WIDE, JOURNAL, 200),
    plant("a journal that forgets causes", || Box::new(CausesForgotten), WIDE, JOURNAL, 200),
    plant("a member started twice", || Box::new(MemberTwice), WIDE, FANS, 60),
];

const fn plant(
    name: &'static str,
    make: fn() -> Box<dyn Tamper>,
    workload: Workload,
    promise: &'static str,
    seeds_max: u64,
) -> Planted {
    Planted { name, make, workload, promise, seeds_max }
}

struct EndingBeforeChildren;

impl Tamper for EndingBeforeChildren {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        let returned = event == NodeEvent::BodyEnded(BodyEnd::Returned);
        machine.step(event, effects);
        if returned && machine.child_count() > 0 {
            effects.push(NodeEffect::End(Ending { body: BodyEnd::Returned, cancel: None, unsettled_children: 0 }));
        }
    }
}

struct LostChildForgotten;

impl Tamper for LostChildForgotten {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        let event = match event {
            NodeEvent::ChildLost(child) => NodeEvent::ChildEnded(child),
            other => other,
        };
        machine.step(event, effects);
    }
}

struct AbortTakenForEnd;

impl Tamper for AbortTakenForEnd {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        if effects.contains(&NodeEffect::AbortBody) {
            machine.step(NodeEvent::BodyEnded(BodyEnd::Aborted), effects);
        }
    }
}

struct SecondEnding;

impl Tamper for SecondEnding {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        if let Some(end @ NodeEffect::End(_)) = effects.last().cloned() {
            effects.push(end);
        }
    }
}

/// A cancel is believed to need a body.
#[derive(Default)]
pub(super) struct CancelLostBeforeStart {
    started: BTreeSet<NodeId>,
}

impl Tamper for CancelLostBeforeStart {
    fn node(&mut self, id: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        match event {
            NodeEvent::Start => {
                self.started.insert(id);
            }
            NodeEvent::Cancel(_) | NodeEvent::Kill(_) if !self.started.contains(&id) => return,
            _ => {}
        }
        machine.step(event, effects);
    }
}

struct SpinWaitedFor;

impl Tamper for SpinWaitedFor {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        if event != NodeEvent::Timer(NodeTimer::AbortWait) {
            machine.step(event, effects);
        }
    }
}

struct ChildNotTold;

impl Tamper for ChildNotTold {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| !matches!(effect, NodeEffect::CancelChild(child, _) if child.0 % 3 == 0));
    }
}

struct KillNotPassedOn;

impl Tamper for KillNotPassedOn {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| !matches!(effect, NodeEffect::KillChild(..)));
    }
}

struct BodyNotAborted;

impl Tamper for BodyNotAborted {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| *effect != NodeEffect::AbortBody);
    }
}

/// Every third permit that comes home is not noticed.
#[derive(Default)]
struct PermitNotReturned {
    returns: usize,
}

impl Tamper for PermitNotReturned {
    fn pool(
        &mut self,
        pool: &mut PermitPool<SlotWaiter>,
        now: Duration,
        message: PoolMessage<SlotWaiter>,
        effects: &mut Vec<PoolEffect<SlotWaiter>>,
    ) {
        if matches!(message, PoolMessage::Return { .. }) {
            self.returns += 1;
            if self.returns.is_multiple_of(3) {
                return;
            }
        }
        pool.step(now, message, effects);
    }
}

struct FormerLifeForgotten;

impl Tamper for FormerLifeForgotten {
    fn pool(
        &mut self,
        pool: &mut PermitPool<SlotWaiter>,
        now: Duration,
        message: PoolMessage<SlotWaiter>,
        effects: &mut Vec<PoolEffect<SlotWaiter>>,
    ) {
        if !matches!(message, PoolMessage::Elsewhere { .. }) {
            pool.step(now, message, effects);
        }
    }
}

/// Whoever would have to wait is let through as well.
struct OverLent;

impl Tamper for OverLent {
    fn pool(
        &mut self,
        pool: &mut PermitPool<SlotWaiter>,
        now: Duration,
        message: PoolMessage<SlotWaiter>,
        effects: &mut Vec<PoolEffect<SlotWaiter>>,
    ) {
        if let PoolMessage::Acquire { ticket, waiter, .. } = &message
            && pool.in_use() == pool.status(now).permits
        {
            effects.push(PoolEffect::Grant { ticket: *ticket, waiter: *waiter });
            return;
        }
        pool.step(now, message, effects);
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

struct QuestionKept;

impl Tamper for QuestionKept {
    fn withdraw(&mut self, _: &mut OpenQuestions<AskWaiter>, _: AskId) {}
}

struct JournalGap;

impl Tamper for JournalGap {
    fn admit(
        &mut self,
        journal: &mut JournalMachine,
        unix_ms: u64,
        moment: Moment<'_>,
    ) -> Result<(u64, u64), JournalError> {
        if matches!(moment, Moment::Ends(_)) {
            journal.admit(unix_ms, Moment::Other)?;
        }
        journal.admit(unix_ms, moment)
    }
}

struct SaidTwice;

impl Tamper for SaidTwice {
    fn says_endings_twice(&self) -> bool {
        true
    }
}

struct CausesForgotten;

impl Tamper for CausesForgotten {
    fn journal_keeps_causes(&self) -> bool {
        false
    }
}

struct MemberTwice;

impl Tamper for MemberTwice {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        let mut effects = fan.step(now, event);
        if let Some(start @ FanEffect::Start { .. }) = effects.first().cloned() {
            effects.push(start);
        }
        effects
    }
}
