//! The faults that a run may make: what hosts, clocks and broken actors do, at any moment or right behind an effect.
//!
//! Each fault notes what it met, so that a search can say which faults have met which states, and which never have.

use std::time::Duration;

use toolwarden_actors::node::NodeKind;

use toolwarden_actors::node_machine::{NodeEvent, NodeId};
use toolwarden_tools::cancellation::CancelReason;

use crate::happening::Happening;
use crate::message::{Address, LedgerMessage, Message};
use crate::workload::{CancelTarget, FaultKind};

use super::World;

/// What follows an effect of a node, when a fault does.
const AT_EFFECTS: [FaultKind; 4] = [FaultKind::Cancel, FaultKind::Kill, FaultKind::Crash, FaultKind::CancelFromAbove];

impl World<'_> {
    /// The kinds of faults that this world makes.
    pub(super) fn fault_kinds(&self) -> &[FaultKind] {
        match self.workload.faults.kinds.as_slice() {
            [] => &FaultKind::ALL,
            some => some,
        }
    }

    /// Makes a fault of the kind of this number, at a node of its choice: the youngest by default, because its start
    /// is likely still under way.
    pub(super) fn make_fault(&mut self, number: u32) {
        let Some(kind) = self.fault_kinds().get(number as usize).copied() else { return };
        let at = self.choices.below(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)) as usize;
        let Some(node) = self.nodes.iter().rev().nth(at).map(|(id, _)| NodeId(id)) else { return };
        let met = match kind {
            FaultKind::LaneFails => self.lane.words(self.schedule.now()),
            FaultKind::StoreFails if self.store.is_busy() => "a fact log with a batch under way",
            FaultKind::StoreFails => "an idle fact log",
            FaultKind::DeskFails if self.desk.questions_are_open() => "a desk with questions open",
            FaultKind::DeskFails => "an idle desk",
            _ => self.condition(node),
        };
        self.fault(kind, node, met);
    }

    /// Right behind the effects of a step of a node's machine, a fault now and then.
    pub(super) fn fault_point(&mut self, node: NodeId, met: &'static str) {
        let one_in = self.workload.faults.at_effects_one_in;
        if one_in == 0 || self.faults_stopped {
            return;
        }
        let kinds = u32::try_from(AT_EFFECTS.len()).unwrap_or(0);
        if let Some(number) = self.choices.rarely(one_in, kinds)
            && let Some(kind) = AT_EFFECTS.get(number as usize)
        {
            self.fault(*kind, node, met);
        }
    }

    fn fault(&mut self, kind: FaultKind, node: NodeId, met: &'static str) {
        let is_shared = matches!(kind, FaultKind::LaneFails | FaultKind::DeskFails | FaultKind::StoreFails);
        self.happens(Happening::Fault { kind, node: (!is_shared).then_some(node) });
        *self.sometimes.entry((kind.words(), met)).or_default() += 1;
        let before = std::mem::replace(&mut self.current, Address::Client);
        match kind {
            FaultKind::Cancel => self.strike(node, NodeEvent::Cancel(CancelReason::Requested)),
            FaultKind::CancelTwice => {
                self.covers("a cancel given twice");
                self.strike(node, NodeEvent::Cancel(CancelReason::SessionClosed));
                self.strike(node, NodeEvent::Cancel(CancelReason::Requested));
            }
            FaultKind::Kill => self.strike(node, NodeEvent::Kill(CancelReason::Requested)),
            FaultKind::CancelFromAbove => self.strike_from_above(node),
            FaultKind::Deadline => self.limit(node, Duration::from_millis(3)),
            FaultKind::Crash => self.crash(node),
            FaultKind::LaneFails => self.lane_fails(),
            FaultKind::DeskFails => self.desk_fails(),
            FaultKind::StoreFails => self.store_fails(),
            FaultKind::AccountCloses => {
                self.covers("an account closed while it is used");
                let session = self.bodies.get(node.0).map_or(node, |body| body.session);
                self.send(Address::Ledger, Message::Ledger(LedgerMessage::Close(session)));
            }
        }
        self.bring_home();
        self.current = before;
    }

    /// The host cancels all that live of a kind.
    pub(super) fn strike_all(&mut self, what: CancelTarget) {
        let kind = match what {
            CancelTarget::Everything => NodeKind::Sessions,
            CancelTarget::Sessions => NodeKind::Session,
            CancelTarget::Runs => NodeKind::Run,
            CancelTarget::Calls => NodeKind::Invocation,
            CancelTarget::Batches => NodeKind::FanOut,
            CancelTarget::Commands => NodeKind::ProcessGroup,
        };
        let of_kind = self.nodes.iter().filter(|(_, node)| node.kind == kind);
        let hit: Vec<NodeId> = of_kind.map(|(id, _)| NodeId(id)).collect();
        for node in hit {
            let met = self.condition(node);
            *self.sometimes.entry(("cancel at a set time", met)).or_default() += 1;
            self.strike(node, NodeEvent::Cancel(CancelReason::Requested));
        }
    }

    fn strike(&mut self, node: NodeId, event: NodeEvent) {
        self.send(Address::Node(node), Message::Event(event));
    }

    /// Cancels a node through its parent, as a canceller does.
    fn strike_from_above(&mut self, node: NodeId) {
        let parent = self.nodes.get(node.0).and_then(|node| node.parent());
        if let Some(parent) = parent {
            self.strike(parent, NodeEvent::CancelChild(node, CancelReason::EnoughResults));
        }
    }

    /// The node's actor fails: a bug in it, as far as its parent can see.
    fn crash(&mut self, node: NodeId) {
        if self.nodes.get(node.0).is_some_and(|node| !node.is_top()) {
            let has_children = self.nodes.get(node.0).is_some_and(|node| !node.children.is_empty());
            self.covers(if has_children { "a crash above children" } else { "a crash" });
            self.die(node);
        }
    }
}
