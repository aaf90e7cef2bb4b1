//! A node's ending comes after its body and after the endings of its children, and says for whom it cannot vouch.
//!
//! Only a body that would not stop may outlive its node, and the ending says that it was abandoned.
//! A child whose actor died has no ending of its own, and what was beneath it is killed with nobody waiting for it:
//! so the ending above must count that child as unsettled. Beneath a dead node, and only there, nodes may live on
//! for the moment that their kill takes.

use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{End, Happening, Subject};

/// Who lives beneath whom.
#[derive(Debug, Default)]
pub struct Settled {
    nodes: Dense<Place>,
}

/// What is known of a node.
#[derive(Debug, Default)]
struct Place {
    parent: Option<NodeId>,
    lives: bool,
    body_runs: bool,
    /// Children that live.
    living: usize,
    /// Children that died without an ending.
    died: usize,
}

impl Settled {
    fn gone(&mut self, node: NodeId) -> Option<NodeId> {
        let place = self.nodes.get_mut(node.0)?;
        let (parent, lived) = (place.parent?, std::mem::take(&mut place.lives));
        self.nodes.or_default(parent.0).living -= usize::from(lived);
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

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, parent: Some(parent), .. } => {
                let place = self.nodes.or_default(node.0);
                place.parent = Some(*parent);
                let lived = std::mem::replace(&mut place.lives, true);
                self.nodes.or_default(parent.0).living += usize::from(!lived);
            }
            Happening::Died { node } => {
                if let Some(parent) = self.gone(*node) {
                    self.nodes.or_default(parent.0).died += 1;
                }
            }
            Happening::BodyAsked { node } => {
                self.nodes.or_default(node.0).body_runs = true;
            }
            Happening::BodyOver { node } => {
                self.nodes.or_default(node.0).body_runs = false;
            }
            Happening::Ended { node, unsettled, body } => {
                let place = self.nodes.or_default(node.0);
                let (runs, living, died) = (place.body_runs, place.living, place.died);
                must(!runs || *body == End::Abandoned, || format!("node {} ended before its body", node.0))?;
                self.gone(*node);
                must(living == 0, || {
                    let mut children =
                        self.nodes.iter().filter(|(_, child)| child.parent == Some(*node) && child.lives);
                    format!("node {} ended before its child {:?}", node.0, children.next().map(|(child, _)| child))
                })?;
                must(died == *unsettled, || {
                    format!("node {} reports {unsettled} unsettled children, and {died} have died", node.0)
                })?;
            }
            _ => {}
        }
        Ok(())
    }
}
