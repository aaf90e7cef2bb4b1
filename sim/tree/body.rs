//! Simulated bodies: they play their scripts, hold leases and waiters, and are as rude as real tools can be.
//!
//! What a real task does is kept: an abort takes effect only where the task waits, a task that is dropped drops what
//! it holds, and a waiter that is dropped cancels its child.

use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::fan_out::{Effect as FanEffect, Event as FanEvent, FanOut};
use toolwarden_actors::lease::Lease;
use toolwarden_actors::node::NodeKind;
use toolwarden_actors::node_machine::{BodyEnd, Ending, NodeId};
use toolwarden_actors::open_questions::{Answer, AskId};
use toolwarden_actors::permit_pool::Message as PoolMessage;
use toolwarden_actors::waiting_line::Ticket;
use toolwarden_tools::cancellation::CancelReason;

use crate::happening::{Happening, Stage};
use crate::message::{
    Address, Birth, BodyMessage, DeskMessage, JournalMessage, LedgerMessage, Message, ReservationHome, SlotHome,
    StoreMessage,
};
use crate::script::{Act, Script, closing};
use crate::tamper::Slip;
use crate::workload::Manner;

use super::World;

/// A body under way.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) node: NodeId,
    pub(super) session: NodeId,
    kind: NodeKind,
    depth: u32,
    manner: Manner,
    /// What is left to do, the next last.
    acts: Vec<Act>,
    wait: Wait,
    pub(super) signalled: bool,
    /// The signal was obeyed: what is left to do is closing.
    closing: bool,
    /// The task was aborted, and is gone when it waits next.
    aborted: bool,
    slots: Vec<Lease<SlotHome>>,
    reservations: Vec<(Lease<ReservationHome>, u64)>,
    /// Its debts were paid for it: what is lent to it now goes home at once.
    paid_for: bool,
    /// Calls to use from the reservation that was asked for.
    to_use: u64,
    /// The children whose endings it waits for, in the order of their numbers.
    waiters: Vec<NodeId>,
    fan: Option<Fan>,
    retried: bool,
}

/// What a body waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// For its turn.
    Turn,
    Span(u64),
    /// Not waiting at all: at work without a pause.
    Spin(u64),
    SpinForEver,
    Ever,
    Account,
    Slot(Ticket),
    Budget,
    Person(AskId),
    Children,
    Fan,
    Store,
    Gate,
}

#[derive(Debug)]
struct Fan {
    machine: FanOut<()>,
    /// The node of each member that was started.
    nodes: Vec<Option<NodeId>>,
    wake: Option<u64>,
    cancelled: bool,
}

/// What comes of an act.
enum Flow {
    On,
    Waits(Wait),
    Over(BodyEnd),
    /// Over, and the journal tells its node so once it has the ending.
    Told,
}

impl Body {
    pub(super) fn new(node: NodeId, session: NodeId, script: Script) -> Self {
        let Script { kind, manner, mut acts, depth, .. } = script;
        if kind == NodeKind::Invocation {
            acts.extend_from_slice(closing(kind));
        }
        acts.reverse();
        Self {
            node,
            session,
            kind,
            depth,
            manner,
            acts,
            wait: Wait::Turn,
            signalled: false,
            closing: false,
            aborted: false,
            slots: Vec::new(),
            paid_for: false,
            reservations: Vec::new(),
            to_use: 0,
            waiters: Vec::new(),
            fan: None,
            retried: false,
        }
    }

    pub(super) fn spins_for_ever(&self) -> bool {
        self.wait == Wait::SpinForEver
    }

    /// What it waits for, in plain words.
    pub(super) fn words(&self) -> &'static str {
        match self.wait {
            Wait::Turn => "a body that is about to begin",
            Wait::Span(_) => "a body at work",
            Wait::Spin(_) | Wait::SpinForEver => "a body that does not yield",
            Wait::Ever => "a body that hangs",
            Wait::Account => "a body that waits for its account",
            Wait::Slot(_) => "a body that waits for a slot",
            Wait::Budget => "a body that waits for a reservation",
            Wait::Person(_) => "a body that waits for a person",
            Wait::Children => "a body that waits for children",
            Wait::Fan => "a body that runs a fan-out",
            Wait::Store => "a body that waits for its record",
            Wait::Gate => "a task that waits for its turn",
        }
    }

    /// Its node has ended without it: its invocation's debts are paid for it, also when it never stops.
    pub(super) fn pay_debts(&mut self) {
        self.slots.clear();
        self.reservations.clear();
        self.paid_for = true;
    }

    fn spins(&self) -> bool {
        matches!(self.wait, Wait::Spin(_) | Wait::SpinForEver)
    }

    /// What is left to do once the work is given up.
    fn give_up(&mut self) {
        self.closing = true;
        self.acts.clear();
        self.acts.extend(closing(self.kind).iter().rev().cloned());
    }
}

impl World<'_> {
    pub(super) fn body_hears(&mut self, id: NodeId, message: BodyMessage) {
        let Some(mut body) = self.bodies.remove(id.0) else {
            if matches!(message, BodyMessage::Slot(_, Ok(_))) {
                // Nobody is there any more: it goes home with the message.
                self.covers("a slot that crossed its withdrawal");
            }
            return;
        };
        match message {
            BodyMessage::Begin => {
                body.wait = Wait::Turn;
                self.play(body);
                return;
            }
            BodyMessage::Abort => {
                body.aborted = true;
                if !body.spins() {
                    self.drop_body(body, BodyEnd::Aborted);
                    return;
                }
            }
            BodyMessage::Signal => {
                if !body.spins() {
                    self.body_is_told(body);
                    return;
                }
            }
            message => {
                if self.body_gets(&mut body, message) {
                    body.wait = Wait::Turn;
                    self.play(body);
                    return;
                }
            }
        }
        self.bodies.insert(id.0, body);
    }

    /// Takes an answer; returns whether it is the one that is waited for.
    fn body_gets(&mut self, body: &mut Body, message: BodyMessage) -> bool {
        match message {
            BodyMessage::Elapsed(token) => {
                if let Some(fan) = &mut body.fan
                    && fan.wake == Some(token)
                {
                    fan.wake = None;
                    return self.fan_steps(body, FanEvent::Tick);
                }
                body.wait == Wait::Span(token) || body.wait == Wait::Spin(token)
            }
            BodyMessage::ChildEnd(child, ending) => self.child_ended(body, child, &ending),
            BodyMessage::Slot(ticket, answer) => {
                if body.wait != Wait::Slot(ticket) {
                    // Nobody waits for it any more: a slot in it goes home.
                    self.covers("a slot that crossed its withdrawal");
                    return false;
                }
                match answer {
                    Ok(_) if body.paid_for && !self.tamper.slips(Slip::KeepsLateLeases) => body.give_up(),
                    Ok(slot) => {
                        body.slots.push(slot);
                        self.happens(Happening::Passed { node: body.node, stage: Stage::Admission });
                    }
                    Err(_) => body.give_up(),
                }
                true
            }
            BodyMessage::Budget(reservation) => {
                if body.wait != Wait::Budget {
                    return false;
                }
                match reservation {
                    Some(_) if body.paid_for => body.give_up(),
                    Some(reservation) => {
                        body.reservations.push((reservation, body.to_use));
                        self.happens(Happening::Passed { node: body.node, stage: Stage::Budget });
                    }
                    None => body.give_up(),
                }
                true
            }
            BodyMessage::Answered(ask, answer) => {
                if body.wait != Wait::Person(ask) {
                    return false;
                }
                if matches!(answer, Answer::Approved | Answer::ApprovedAlways) {
                    self.happens(Happening::Passed { node: body.node, stage: Stage::Confirmation });
                } else if !self.tamper.slips(Slip::HearsNoAsYes) {
                    body.give_up();
                }
                true
            }
            BodyMessage::AccountReady => body.wait == Wait::Account,
            BodyMessage::Recorded(durable) => {
                if body.wait != Wait::Store {
                    return false;
                }
                if !durable {
                    self.covers("a record that failed");
                    body.give_up();
                }
                true
            }
            BodyMessage::TurnStands => {
                if body.wait != Wait::Gate {
                    return false;
                }
                self.happens(Happening::TaskBegan { task: body.node });
                true
            }
            BodyMessage::Begin | BodyMessage::Signal | BodyMessage::Abort => false,
        }
    }

    fn child_ended(&mut self, body: &mut Body, child: NodeId, ending: &Ending) -> bool {
        let Ok(at) = body.waiters.binary_search(&child) else { return false };
        body.waiters.remove(at);
        let member = body.fan.as_ref().and_then(|fan| fan.nodes.iter().position(|node| *node == Some(child)));
        if let Some(member) = member {
            self.happens(Happening::MemberEnded { node: body.node, member });
            let event = match ending.body {
                BodyEnd::Returned => FanEvent::Finished { member, result: (), success: true },
                BodyEnd::Lost => FanEvent::Crashed { member, message: "lost".to_owned() },
                _ => FanEvent::Finished { member, result: (), success: false },
            };
            return self.fan_steps(body, event);
        }
        body.wait == Wait::Children && body.waiters.is_empty()
    }

    /// The cancel signal reaches a body that waits for something.
    fn body_is_told(&mut self, mut body: Box<Body>) {
        if let Some(fan) = &mut body.fan
            && body.manner != Manner::Deaf
            && !std::mem::replace(&mut fan.cancelled, true)
        {
            if self.fan_steps(&mut body, FanEvent::Cancel { reason: CancelReason::Requested }) {
                body.wait = Wait::Turn;
                self.play(body);
            } else {
                self.bodies.insert(body.node.0, body);
            }
            return;
        }
        let keeps_waiting = match body.wait {
            Wait::Children => body.manner == Manner::Settling,
            // What was begun at the end is ended; a fan-out waits for its members.
            Wait::Fan | Wait::Turn => true,
            _ => false,
        };
        if body.closing || body.manner == Manner::Deaf || keeps_waiting {
            self.bodies.insert(body.node.0, body);
            return;
        }
        match body.wait {
            Wait::Slot(ticket) => {
                self.happens(Happening::SlotGivenUp { ticket: ticket.0 });
                self.send(Address::Lane, Message::Pool(PoolMessage::Withdraw { ticket }));
            }
            Wait::Person(ask) => {
                self.happens(Happening::Withdrawn { ask: ask.0 });
                self.send(Address::Desk, Message::Desk(Box::new(DeskMessage::Withdraw(ask))));
            }
            _ => {}
        }
        body.wait = Wait::Turn;
        self.play(body);
    }

    /// Plays until something has to be waited for.
    fn play(&mut self, mut body: Box<Body>) {
        loop {
            if body.signalled && !body.closing && body.manner != Manner::Deaf {
                if body.manner == Manner::Prompt {
                    self.drop_waiters(&mut body);
                }
                body.give_up();
                if body.manner == Manner::Settling {
                    body.acts.push(Act::AwaitChildren);
                }
            }
            let flow = match body.acts.pop() {
                Some(act) => self.perform(&mut body, act),
                None => Flow::Over(BodyEnd::Returned),
            };
            match flow {
                Flow::On => {}
                Flow::Waits(wait) => {
                    body.wait = wait;
                    if body.aborted && !body.spins() {
                        self.drop_body(body, BodyEnd::Aborted);
                    } else {
                        self.bodies.insert(body.node.0, body);
                    }
                    return;
                }
                Flow::Over(BodyEnd::Panicked(_))
                    if body.kind == NodeKind::Invocation
                        && !body.retried
                        && self.tamper.slips(Slip::RetriesAfterEffects) =>
                {
                    body.retried = true;
                    body.acts.push(Act::Begin);
                }
                Flow::Over(end) => {
                    self.drop_body(body, end);
                    return;
                }
                Flow::Told => {
                    let node = body.node;
                    self.let_go(body, true);
                    self.happens(Happening::BodyOver { node });
                    self.write(JournalMessage::Ends(node, true));
                    return;
                }
            }
        }
    }

    fn perform(&mut self, body: &mut Body, act: Act) -> Flow {
        let id = body.node;
        match act {
            Act::Work(span) => Flow::Waits(Wait::Span(self.wake_body_after(id, span))),
            Act::Spin(span) => Flow::Waits(Wait::Spin(self.wake_body_after(id, span))),
            Act::SpinForEver => Flow::Waits(Wait::SpinForEver),
            Act::Hang => Flow::Waits(Wait::Ever),
            Act::Panic => Flow::Over(BodyEnd::Panicked("the script says so".to_owned())),
            Act::Limit(span) => {
                self.limit(id, span);
                Flow::On
            }
            Act::OpenAccount => {
                self.send(Address::Ledger, Message::Ledger(LedgerMessage::Open(body.session)));
                Flow::Waits(Wait::Account)
            }
            Act::CloseAccount => {
                self.send(Address::Ledger, Message::Ledger(LedgerMessage::Close(body.session)));
                Flow::On
            }
            Act::Ask if self.tamper.slips(Slip::SkipsConfirmation) => Flow::On,
            Act::Reserve { .. } if self.tamper.slips(Slip::SkipsBudget) => Flow::On,
            Act::Slot if self.tamper.slips(Slip::SkipsAdmission) => Flow::On,
            Act::Reserve { asked: calls, used } => {
                body.to_use = used;
                let wish = LedgerMessage::Reserve { session: body.session, calls, body: id };
                self.send(Address::Ledger, Message::Ledger(wish));
                Flow::Waits(Wait::Budget)
            }
            Act::Slot => match self.want_slot(id, body.session) {
                Ok(slot) if body.paid_for && !self.tamper.slips(Slip::KeepsLateLeases) => {
                    drop(slot);
                    body.give_up();
                    Flow::On
                }
                Ok(slot) => {
                    body.slots.push(slot);
                    self.happens(Happening::Passed { node: id, stage: Stage::Admission });
                    Flow::On
                }
                Err(ticket) => Flow::Waits(Wait::Slot(ticket)),
            },
            Act::Ask => Flow::Waits(Wait::Person(self.ask_person(id, body.session))),
            Act::Record => {
                self.send(Address::Store, Message::Store(StoreMessage::Record(id)));
                if self.tamper.slips(Slip::StartsBeforeRecord) { Flow::On } else { Flow::Waits(Wait::Store) }
            }
            // Nobody vouches for a call that was given up on: its tool does not start.
            Act::Begin if body.paid_for && !self.tamper.slips(Slip::KeepsLateLeases) => {
                body.give_up();
                Flow::On
            }
            Act::Begin => {
                self.happens(Happening::ToolBegan { node: id });
                Flow::On
            }
            Act::Fail => {
                go_home(body, CallHealth::Failed);
                Flow::On
            }
            Act::GoHome => {
                go_home(body, CallHealth::Succeeded);
                Flow::On
            }
            Act::Spawn { kind, count, waited } => {
                for _ in 0..count {
                    self.spawn(body, kind, waited);
                }
                Flow::On
            }
            Act::AwaitChildren if body.waiters.is_empty() => Flow::On,
            Act::AwaitChildren => Flow::Waits(Wait::Children),
            Act::DropWaiters => {
                self.drop_waiters(body);
                Flow::On
            }
            Act::FanOut { members, plan } => self.begin_fan(body, members, *plan),
            Act::Later => {
                self.register_task(id, body.session);
                Flow::On
            }
            Act::AwaitTurn if self.tasks.may_begin(id) || self.tamper.slips(Slip::BeginsBeforeItsTurn) => {
                self.happens(Happening::TaskBegan { task: id });
                Flow::On
            }
            Act::AwaitTurn => Flow::Waits(Wait::Gate),
            Act::TurnStands => {
                self.turn_stands(id, body.session);
                Flow::On
            }
            Act::CloseTasks => {
                self.close_tasks(body.session);
                Flow::On
            }
            Act::WriteEnding => {
                if self.endings_said.insert(id.0, ()).is_some() && !self.tamper.slips(Slip::SaysEndingsTwice) {
                    return Flow::On;
                }
                Flow::Told
            }
        }
    }

    fn wake_body_after(&mut self, id: NodeId, span: std::time::Duration) -> u64 {
        let token = self.number();
        let message = Message::Body(BodyMessage::Elapsed(token));
        self.schedule.wind(span, Address::Timer(token), Address::Body(id), message);
        token
    }

    /// Asks its own node for a child.
    fn spawn(&mut self, body: &mut Body, kind: NodeKind, waited: bool) -> NodeId {
        let depth = if kind == NodeKind::Invocation { body.depth.saturating_sub(1) } else { body.depth };
        let script = self.workload.script(kind, depth, &mut self.choices);
        let node = self.next_node();
        let session = if kind == NodeKind::Session { node } else { body.session };
        self.happens(Happening::Wanted { node, waited });
        if kind == NodeKind::Invocation {
            self.write(JournalMessage::Opens(node));
        }
        if waited {
            // Numbers are counted up, so it is the largest.
            body.waiters.push(node);
        }
        let birth = Birth { node, script, session, waiter: waited.then_some(body.node) };
        self.schedule.send(Address::Body(body.node), Address::Node(body.node), Message::Spawn(Box::new(birth)));
        node
    }

    fn drop_waiters(&mut self, body: &mut Body) {
        if body.fan.take().is_some() {
            self.happens(Happening::FanDropped { node: body.node });
        }
        for child in std::mem::take(&mut body.waiters) {
            self.cancel_child(body.node, child, CancelReason::CallerGone);
        }
    }

    /// The task is gone, and tells its node so.
    fn drop_body(&mut self, body: Box<Body>, end: BodyEnd) {
        let node = body.node;
        self.let_go(body, end == BodyEnd::Returned);
        self.body_tells_end(node, end);
    }

    /// What a task held is dropped.
    fn let_go(&mut self, mut body: Box<Body>, returned: bool) {
        match body.wait {
            Wait::Slot(ticket) => {
                self.happens(Happening::SlotGivenUp { ticket: ticket.0 });
                self.send(Address::Lane, Message::Pool(PoolMessage::Withdraw { ticket }));
            }
            Wait::Person(ask) => {
                self.happens(Happening::Withdrawn { ask: ask.0 });
                self.send(Address::Desk, Message::Desk(Box::new(DeskMessage::Withdraw(ask))));
            }
            _ => {}
        }
        self.drop_waiters(&mut body);
        if returned {
            go_home(&mut body, CallHealth::Succeeded);
        } else if self.tamper.slips(Slip::LeaksDroppedLeases) {
            body.slots.drain(..).for_each(std::mem::forget);
        }
        drop(body);
        self.bring_home();
    }

    fn begin_fan(&mut self, body: &mut Body, members: usize, plan: toolwarden_actors::fan_out::FanOutPlan) -> Flow {
        let Ok(mut machine) = FanOut::new(members, plan) else { return Flow::On };
        self.happens(Happening::FanBegan { node: body.node, members, width: plan.width });
        let effects = machine.begin(self.schedule.now());
        body.fan = Some(Fan { machine, nodes: vec![None; members], wake: None, cancelled: false });
        if self.carry_out_fan(body, effects) { Flow::On } else { Flow::Waits(Wait::Fan) }
    }

    /// Returns whether the fan-out is done.
    fn fan_steps(&mut self, body: &mut Body, event: FanEvent<()>) -> bool {
        let now = self.schedule.now();
        let Some(fan) = &mut body.fan else { return false };
        let effects = self.tamper.fan_out(&mut fan.machine, now, event);
        self.carry_out_fan(body, effects)
    }

    fn carry_out_fan(&mut self, body: &mut Body, effects: Vec<FanEffect>) -> bool {
        for effect in effects {
            match effect {
                FanEffect::Start { member } => {
                    self.happens(Happening::MemberBegan { node: body.node, member });
                    let kind = if body.depth == 0 { NodeKind::ProcessGroup } else { NodeKind::Invocation };
                    let node = self.spawn(body, kind, true);
                    if let Some(slot) = body.fan.as_mut().and_then(|fan| fan.nodes.get_mut(member)) {
                        *slot = Some(node);
                    }
                }
                FanEffect::Cancel { member, reason } => {
                    self.happens(Happening::FanEndsEarly { node: body.node });
                    let node = body.fan.as_ref().and_then(|fan| fan.nodes.get(member).copied().flatten());
                    if let Some(node) = node {
                        self.cancel_child(body.node, node, reason);
                    }
                }
                FanEffect::Wake { at } => {
                    let span = at.saturating_sub(self.schedule.now());
                    let token = self.wake_body_after(body.node, span);
                    if let Some(fan) = &mut body.fan {
                        fan.wake = Some(token);
                    }
                }
                FanEffect::Done => {}
            }
        }
        if !body.fan.as_ref().is_some_and(|fan| fan.machine.is_done()) {
            return false;
        }
        let end = body.fan.take().and_then(|fan| fan.machine.finish());
        let ends = end.as_ref().map_or(0, |end| end.members.len());
        if end.is_some_and(|end| end.ended_early.is_some()) {
            self.covers("a fan-out that ended early");
        }
        self.happens(Happening::FanDone { node: body.node, ends });
        true
    }
}

fn go_home(body: &mut Body, health: CallHealth) {
    for slot in body.slots.drain(..) {
        slot.settle(health);
    }
    for (reservation, used) in body.reservations.drain(..) {
        reservation.settle(used);
    }
}
