//! The faults that a run may make: what hosts, clocks and broken actors do at any moment.

use std::time::Duration;

use toolwarden_actors::node::{NodeEvent, NodeId};
use toolwarden_tools::cancellation::CancelReason;

use crate::happening::Happening;
use crate::message::{Address, LedgerMessage, Message};

use super::World;

/// How many kinds of faults there are.
pub(super) const FAULTS: u32 = 8;

impl World<'_> {
    /// Makes a fault of this kind, below [`FAULTS`], at a node of its choice: the youngest by default, because its
    /// start is likely still under way.
    pub(super) fn make_fault(&mut self, kind: u32) {
        let living = self.living();
        let at = self.choices.below(u32::try_from(living.len()).unwrap_or(u32::MAX)) as usize;
        let Some(node) = living.iter().nth(at).map(|node| node.0) else { return };
        self.happens(Happening::Fault { kind });
        self.current = Address::Client;
        match kind {
            0 => self.strike(node, NodeEvent::Cancel(CancelReason::Requested)),
            1 => {
                self.covers("a cancel given twice");
                self.strike(node, NodeEvent::Cancel(CancelReason::SessionClosed));
                self.strike(node, NodeEvent::Cancel(CancelReason::Requested));
            }
            2 => self.strike(node, NodeEvent::Kill(CancelReason::Requested)),
            3 => self.strike_from_above(node),
            4 => self.limit(node, Duration::from_millis(3)),
            5 => self.crash(node),
            6 => self.lane_fails(),
            _ => {
                self.covers("an account closed while it is used");
                let session = self.bodies.get(&node).map_or(node, |body| body.session);
                self.send(Address::Ledger, Message::Ledger(LedgerMessage::Close(session)));
            }
        }
        self.bring_home();
    }

    fn strike(&mut self, node: NodeId, event: NodeEvent) {
        self.send(Address::Node(node), Message::Event(event));
    }

    /// Cancels a node through its parent, as a canceller does.
    fn strike_from_above(&mut self, node: NodeId) {
        let parent = self.nodes.get(&node).and_then(super::node::Node::parent);
        if let Some(parent) = parent {
            self.strike(parent, NodeEvent::CancelChild(node, CancelReason::EnoughResults));
        }
    }

    /// The node's actor fails: a bug in it, as far as its parent can see.
    fn crash(&mut self, node: NodeId) {
        if self.nodes.get(&node).is_some_and(|node| !node.is_top()) {
            let has_children = self.nodes.get(&node).is_some_and(|node| !node.children.is_empty());
            self.covers(if has_children { "a crash above children" } else { "a crash" });
            self.die(node);
        }
    }
}
