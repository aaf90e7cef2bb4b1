//! A cancel reaches every level at once: a node that read one, or whose body is over, has told each of its children
//! by the next delivery, and takes no new ones.

use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::schedule::LATENCY_MAX;

/// Who has been told, and who is to be told until when.
#[derive(Debug, Default)]
pub struct Reached {
    nodes: Dense<Place>,
    /// How many are still to be told.
    waiting: usize,
}

/// What is known of a node.
#[derive(Debug, Default)]
struct Place {
    born: bool,
    told: bool,
    closed: bool,
    /// Until when it is to be told.
    due: Option<Duration>,
    /// Its youngest child.
    youngest: Option<NodeId>,
    /// The child of its parent that came before it.
    elder: Option<NodeId>,
}

impl Reached {
    fn close(&mut self, now: Duration, node: NodeId) {
        let place = self.nodes.or_default(node.0);
        if std::mem::replace(&mut place.closed, true) {
            return;
        }
        let mut next = place.youngest;
        while let Some(child) = next {
            let place = self.nodes.or_default(child.0);
            if !place.told {
                self.waiting += usize::from(place.due.replace(now + LATENCY_MAX).is_none());
            }
            next = place.elder;
        }
    }

    fn told(&mut self, node: NodeId) -> &mut Place {
        let place = self.nodes.or_default(node.0);
        place.told = true;
        self.waiting -= usize::from(place.due.take().is_some());
        place
    }

    fn waiting(&self) -> impl Iterator<Item = (u64, Duration)> {
        self.nodes.iter().filter_map(|(node, place)| Some((node, place.due?)))
    }
}

impl Checker for Reached {
    fn name(&self) -> &'static str {
        "reached"
    }

    fn promise(&self) -> &'static str {
        "a cancel reaches every level at once"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Life]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        if self.waiting == 0 {
            return Ok(());
        }
        let late = self.waiting().find(|(_, due)| *due < now);
        must(late.is_none(), || format!("{late:?}: not told by then, and it is {now:?} now"))
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::Born { node, parent: Some(parent), .. } => {
                let is_new = !std::mem::replace(&mut self.nodes.or_default(node.0).born, true);
                let above = self.nodes.or_default(parent.0);
                let closed = above.closed;
                if is_new {
                    let elder = above.youngest.replace(*node);
                    self.nodes.or_default(node.0).elder = elder;
                }
                must(!closed, || format!("node {} bears a child and is ending", parent.0))?;
            }
            Happening::CancelRead { node } => {
                self.told(*node);
                self.close(now, *node);
            }
            Happening::BodyEndRead { node } => self.close(now, *node),
            Happening::Ended { node, .. } | Happening::Died { node } => {
                // Whatever it was still to be told makes no difference any more.
                self.told(*node).closed = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        must(self.waiting == 0, || format!("never told: {:?}", self.waiting().collect::<Vec<_>>()))
    }
}
