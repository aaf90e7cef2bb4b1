//! A node's ending comes after its body and after the endings of its children, and says for whom it cannot vouch.
//!
//! Only a body that would not stop may outlive its node, and the ending says that it was abandoned.
//! A child whose actor died has no ending of its own, and what was beneath it is killed with nobody waiting for it:
//! so the ending above must count that child as unsettled. Beneath a dead node, and only there, nodes may live on
//! for the moment that their kill takes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_actors::node::NodeId;

use super::{Checker, must};
use crate::happening::{End, Happening};

/// Who lives beneath whom.
#[derive(Debug, Default)]
pub struct Settled {
    parents: BTreeMap<NodeId, NodeId>,
    living: BTreeMap<NodeId, BTreeSet<NodeId>>,
    died: BTreeMap<NodeId, usize>,
    bodies: BTreeSet<NodeId>,
}

impl Settled {
    fn gone(&mut self, node: NodeId) -> Option<NodeId> {
        let parent = self.parents.get(&node).copied()?;
        if let Some(living) = self.living.get_mut(&parent) {
            living.remove(&node);
        }
        Some(parent)
    }
}

impl Checker for Settled {
    fn name(&self) -> &'static str {
        "settled"
    }

    fn promise(&self) -> &'static str {
        "a node ends after its body and its children"
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, parent: Some(parent), .. } => {
                self.parents.insert(*node, *parent);
                self.living.entry(*parent).or_default().insert(*node);
            }
            Happening::Died { node } => {
                if let Some(parent) = self.gone(*node) {
                    *self.died.entry(parent).or_default() += 1;
                }
            }
            Happening::BodyAsked { node } => {
                self.bodies.insert(*node);
            }
            Happening::BodyOver { node } => {
                self.bodies.remove(node);
            }
            Happening::Ended { node, unsettled, body } => {
                let runs = self.bodies.contains(node);
                must(!runs || *body == End::Abandoned, || format!("node {} ended before its body", node.0))?;
                self.gone(*node);
                let living = self.living.get(node).and_then(BTreeSet::first);
                must(living.is_none(), || format!("node {} ended before its child {:?}", node.0, living))?;
                let died = self.died.get(node).copied().unwrap_or(0);
                must(died == *unsettled, || {
                    format!("node {} reports {unsettled} unsettled children, and {died} have died", node.0)
                })?;
            }
            _ => {}
        }
        Ok(())
    }
}
