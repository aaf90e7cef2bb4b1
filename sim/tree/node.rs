//! The simulated mount of a node: gives events to its machine and carries its effects out on the schedule.

use std::time::Duration;

use toolwarden_actors::node::NodeKind;

use toolwarden_actors::node_machine::{BodyEnd, Ending, NodeEffect, NodeEvent, NodeId, NodeMachine, NodeTimer};
use toolwarden_tools::cancellation::CancelReason;

use crate::happening::{End, Happening};
use crate::message::{Address, Birth, BodyMessage, JournalMessage, Message, body_over};
use crate::schedule::Alarm;
use crate::script::Script;
use crate::tamper::Slip;

use super::World;
use super::body::Body;

/// A live node's state.
#[derive(Debug)]
pub(super) struct Node {
    machine: NodeMachine,
    pub(super) kind: NodeKind,
    session: NodeId,
    parent: Option<NodeId>,
    /// The body's work until it begins.
    script: Option<Script>,
    alarms: Vec<Alarm>,
    /// Children that are wanted, in the order of their numbers.
    births: Vec<Birth>,
    /// The children that live, in the order of their numbers, and who waits for each.
    pub(super) children: Vec<(NodeId, Option<NodeId>)>,
}

impl Node {
    /// Nodes that must not be struck: the top has a supervisor of another kind above it.
    pub(super) fn is_top(&self) -> bool {
        self.parent.is_none()
    }

    pub(super) fn parent(&self) -> Option<NodeId> {
        self.parent
    }

    fn has_child(&self, child: NodeId) -> bool {
        self.children.binary_search_by_key(&child, |(id, _)| *id).is_ok()
    }

    fn take_birth(&mut self, child: NodeId) -> Option<Birth> {
        let at = self.births.iter().position(|birth| birth.node == child)?;
        Some(self.births.remove(at))
    }
}

fn lost() -> Ending {
    Ending { body: BodyEnd::Lost, cancel: None, unsettled_children: 0 }
}

/// What a machine just did, in plain words, for a fault that follows it.
fn effect_words(effect: &NodeEffect) -> &'static str {
    match effect {
        NodeEffect::StartBody => "a node that just started its body",
        NodeEffect::SignalBody(_) => "a node that just signalled its body",
        NodeEffect::AbortBody => "a node that just aborted its body",
        NodeEffect::StartChild(_) => "a node that just started a child",
        NodeEffect::RefuseChild(..) => "a node that just refused a child",
        NodeEffect::CancelChild(..) => "a node that just cancelled a child",
        NodeEffect::KillChild(..) | NodeEffect::KillActor(_) => "a node that just killed a child",
        NodeEffect::Arm(..) => "a node that just armed a timer",
        NodeEffect::End(_) => "a node that just ended",
    }
}

impl World<'_> {
    /// Makes a node's actor, as a linked spawn does; it may begin once it reads its start.
    pub(super) fn give_life(&mut self, id: NodeId, script: Script, session: NodeId, parent: Option<NodeId>) {
        let (kind, grace) = (script.kind, script.grace);
        let node = Node {
            machine: NodeMachine::new(grace),
            kind,
            session,
            parent,
            script: Some(script),
            alarms: Vec::new(),
            births: Vec::new(),
            children: Vec::new(),
        };
        self.nodes.insert(id.0, Box::new(node));
        self.happens(Happening::Born { node: id, parent, kind: kind.into(), grace });
        self.send(Address::Node(id), Message::Start);
    }

    pub(super) fn node_hears(&mut self, id: NodeId, message: Message) {
        if !self.nodes.contains(id.0) {
            self.lose(message);
            return;
        }
        match message {
            Message::Start => self.node_steps(id, NodeEvent::Start),
            Message::Event(event) => {
                self.note_event(id, &event);
                self.node_steps(id, event);
            }
            Message::Spawn(birth) => {
                let child = birth.node;
                if let Some(node) = self.nodes.get_mut(id.0) {
                    let at = node.births.partition_point(|held| held.node < child);
                    node.births.insert(at, *birth);
                }
                self.node_steps(id, NodeEvent::Spawn(child));
            }
            Message::ChildOver(child, ending) => self.child_over(id, child, ending),
            Message::Die => self.die(id),
            other => drop(other),
        }
    }

    fn note_event(&mut self, id: NodeId, event: &NodeEvent) {
        match event {
            NodeEvent::Cancel(_) | NodeEvent::Kill(_) | NodeEvent::Timer(NodeTimer::Deadline { .. }) => {
                if self.nodes.get(id.0).is_some_and(|node| node.script.is_some()) {
                    self.covers("a cancel before the start");
                }
                self.happens(Happening::CancelRead { node: id });
            }
            NodeEvent::BodyEnded(_) => self.happens(Happening::BodyEndRead { node: id }),
            NodeEvent::Timer(NodeTimer::Backstop) => self.covers("a backstop"),
            _ => {}
        }
    }

    fn node_steps(&mut self, id: NodeId, event: NodeEvent) {
        // Carrying out an effect takes no further step, so one list serves all steps.
        let mut effects = std::mem::take(&mut self.effects);
        if let Some(node) = self.nodes.get_mut(id.0) {
            self.tamper.node(id, &mut node.machine, event, &mut effects);
        }
        let met = effects.last().map(effect_words);
        for effect in effects.drain(..) {
            self.carry_out(id, effect);
        }
        self.effects = effects;
        if let Some(met) = met {
            self.fault_point(id, met);
        }
    }

    fn carry_out(&mut self, id: NodeId, effect: NodeEffect) {
        match effect {
            NodeEffect::StartBody => self.start_body(id),
            NodeEffect::SignalBody(_) => {
                // The signal is set at once; the body's task is woken when its turn comes.
                if let Some(body) = self.bodies.get_mut(id.0) {
                    body.signalled = true;
                }
                self.tell_body(id, BodyMessage::Signal);
            }
            NodeEffect::AbortBody => self.tell_body(id, BodyMessage::Abort),
            NodeEffect::StartChild(child) => self.start_child(id, child),
            NodeEffect::RefuseChild(child, reason) => {
                let birth = self.nodes.get_mut(id.0).and_then(|node| node.take_birth(child));
                if let Some(birth) = birth {
                    self.covers("a refused child");
                    let ending = Ending { body: BodyEnd::NeverStarted, cancel: Some(reason), unsettled_children: 0 };
                    self.miscarry(&birth, ending);
                }
            }
            NodeEffect::CancelChild(child, reason) => self.tell_child(id, child, NodeEvent::Cancel(reason)),
            NodeEffect::KillChild(child, reason) => self.tell_child(id, child, NodeEvent::Kill(reason)),
            NodeEffect::KillActor(child) => {
                if self.nodes.get(id.0).is_some_and(|node| node.has_child(child)) {
                    self.covers("a child killed from above");
                    self.schedule.send(Address::Link(id), Address::Node(child), Message::Die);
                }
            }
            NodeEffect::Arm(timer, span) => self.arm(id, timer, span),
            NodeEffect::End(ending) => self.node_ends(id, ending),
        }
    }

    /// Limits a node's life from now on, as its body does.
    pub(super) fn limit(&mut self, id: NodeId, span: Duration) {
        let timeout_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        self.arm(id, NodeTimer::Deadline { timeout_ms }, span);
    }

    fn arm(&mut self, id: NodeId, timer: NodeTimer, span: Duration) {
        let address = self.timer();
        if let Some(node) = self.nodes.get_mut(id.0) {
            let message = Message::Event(NodeEvent::Timer(timer));
            node.alarms.push(self.schedule.wind(span, address, Address::Node(id), message));
        }
    }

    fn start_body(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(id.0) else { return };
        let Some(script) = node.script.take() else { return };
        let asks = (node.kind == NodeKind::Invocation).then_some(script.asks);
        let body = Body::new(id, node.session, script);
        self.bodies.insert(id.0, Box::new(body));
        self.happens(Happening::BodyAsked { node: id });
        if let Some(asks) = asks {
            self.happens(Happening::Proposed { node: id, asks });
        }
        self.tell_body(id, BodyMessage::Begin);
    }

    fn start_child(&mut self, id: NodeId, child: NodeId) {
        let Some(node) = self.nodes.get_mut(id.0) else { return };
        let Some(birth) = node.take_birth(child) else { return };
        let Birth { script, session, waiter, .. } = birth;
        let at = node.children.partition_point(|(held, _)| *held < child);
        node.children.insert(at, (child, waiter));
        self.give_life(child, script, session, Some(id));
    }

    fn tell_child(&mut self, id: NodeId, child: NodeId, event: NodeEvent) {
        if self.nodes.get(id.0).is_some_and(|node| node.has_child(child)) {
            self.send(Address::Node(child), Message::Event(event));
        }
    }

    /// The supervision event of a child: hands the ending in its state on to whoever waits.
    fn child_over(&mut self, id: NodeId, child: NodeId, ending: Option<Ending>) {
        let Some(node) = self.nodes.get_mut(id.0) else { return };
        let Ok(at) = node.children.binary_search_by_key(&child, |(held, _)| *held) else { return };
        let (_, waiter) = node.children.remove(at);
        let event = if ending.is_some() { NodeEvent::ChildEnded(child) } else { NodeEvent::ChildLost(child) };
        self.tell_waiter(child, waiter, ending.unwrap_or_else(lost));
        self.node_steps(id, event);
    }

    fn tell_waiter(&mut self, child: NodeId, waiter: Option<NodeId>, ending: Ending) {
        if let Some(body) = waiter {
            self.happens(Happening::WaiterTold { node: child });
            if self.tamper.slips(Slip::TellsWaitersTwice) {
                self.happens(Happening::WaiterTold { node: child });
            }
            self.tell_body(body, BodyMessage::ChildEnd(child, ending));
        }
    }

    /// The node publishes its ending and stops; its parent hears of it through the link.
    fn node_ends(&mut self, id: NodeId, ending: Ending) {
        let end = End::from(&ending.body);
        self.happens(Happening::Ended { node: id, body: end, unsettled: ending.unsettled_children });
        let Some(node) = self.nodes.remove(id.0) else { return };
        if ending.unsettled_children > 0 {
            self.covers("an ending with unsettled children");
        }
        match end {
            End::Returned => {}
            End::Abandoned => self.covers("an abandoned body"),
            End::Aborted => self.covers("an aborted body"),
            End::Panicked => self.covers("a panic"),
            End::NeverStarted => self.covers("a body that never began"),
            End::Lost => {}
        }
        if end != End::Returned {
            self.say_ending(id, node.kind);
        }
        self.node_is_over(id, node.session, node.kind, end == End::Returned);
        self.take_down(id, &node);
        if let Some(parent) = node.parent {
            let over = Message::ChildOver(id, Some(ending));
            self.schedule.send(Address::Link(id), Address::Node(parent), over);
        }
        self.lose_births(node.births);
    }

    /// The node's actor is killed or fails: its state is lost, with its body and its births, and what is beneath it
    /// is killed by the links.
    pub(super) fn die(&mut self, id: NodeId) {
        let Some(node) = self.nodes.remove(id.0) else { return };
        self.happens(Happening::Died { node: id });
        self.say_ending(id, node.kind);
        self.node_is_over(id, node.session, node.kind, false);
        self.take_down(id, &node);
        self.schedule.send(Address::Node(id), Address::Body(id), Message::Body(BodyMessage::Abort));
        if let Some(parent) = node.parent {
            self.schedule.send(Address::Link(id), Address::Node(parent), Message::ChildOver(id, None));
        }
        self.lose_births(node.births);
    }

    /// What goes with a node's state, however it goes: timers, and the life of what is still linked beneath.
    fn take_down(&mut self, id: NodeId, node: &Node) {
        for alarm in &node.alarms {
            self.schedule.forget(*alarm);
        }
        for (child, waiter) in &node.children {
            self.schedule.send(Address::Link(id), Address::Node(*child), Message::Die);
            // The way back goes with the state, and whoever waits learns it.
            if !self.tamper.slips(Slip::ForgetsWaiters) {
                self.tell_waiter(*child, *waiter, lost());
            }
        }
    }

    fn lose_births(&mut self, births: Vec<Birth>) {
        for birth in births {
            self.miscarry(&birth, lost());
        }
    }

    /// A message that nobody reads any more: what it carries is dropped.
    fn lose(&mut self, message: Message) {
        if let Message::Spawn(birth) = message {
            self.covers("a wish that died with its node");
            self.miscarry(&birth, lost());
        }
    }

    /// A node that never comes to life.
    fn miscarry(&mut self, birth: &Birth, ending: Ending) {
        self.say_ending(birth.node, birth.script.kind);
        self.node_is_over(birth.node, birth.session, birth.script.kind, false);
        self.tell_waiter(birth.node, birth.waiter, ending);
    }

    /// The epilogue of an invocation: its leases go home, and its ending is said when its body did not say it.
    fn say_ending(&mut self, id: NodeId, kind: NodeKind) {
        if let Some(body) = self.bodies.get_mut(id.0)
            && !self.tamper.slips(Slip::ForgetsDebts)
        {
            body.pay_debts();
        }
        if kind == NodeKind::Invocation
            && (self.endings_said.insert(id.0, ()).is_none() || self.tamper.slips(Slip::SaysEndingsTwice))
        {
            self.write(JournalMessage::Ends(id, false));
        }
    }

    /// A body tells its node that its task is over.
    pub(super) fn body_tells_end(&mut self, id: NodeId, end: BodyEnd) {
        self.happens(Happening::BodyOver { node: id });
        self.schedule.send(Address::Body(id), Address::Node(id), body_over(end));
    }

    pub(super) fn cancel_child(&mut self, id: NodeId, child: NodeId, reason: CancelReason) {
        self.schedule.send(Address::Body(id), Address::Node(id), Message::Event(NodeEvent::CancelChild(child, reason)));
    }

    /// How a node stands, in plain words, for what a fault met.
    pub(super) fn condition(&self, id: NodeId) -> &'static str {
        match (self.nodes.get(id.0), self.bodies.get(id.0)) {
            (None, _) => "a node that is gone",
            (Some(node), None) if node.script.is_some() => "a node that has not begun",
            (Some(node), None) if node.children.is_empty() => "a node whose body is over",
            (Some(_), None) => "a node that waits for its children",
            (Some(_), Some(body)) => body.words(),
        }
    }
}
