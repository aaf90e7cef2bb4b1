//! A node's cradle: where its children are born by whoever wants them, as long as there is only one answer.
//!
//! To ask a node for a child is a message, and a turn of the node to read it; every call of a tool is a child, and paid
//! for that. While a node is open and has room it takes every child, so whoever wants one bears it here, linked to the
//! node as any other, and begins its work; the node takes it in as the first thing of its next turn. Once the node is
//! shut, or was told to end, wishes go to its mailbox, where they are refused in their order.
//! What must stay true: nothing is born in a shut cradle, and the node's machine knows of all that was born before it
//! takes its next event, so that a cancel misses no child and no child ends before the machine has heard of it. Both
//! hold because a birth and a step of the machine exclude each other by the one lock of the cradle. Nothing is left in it
//! when its node goes, however it goes: whoever waits would wait for ever.

use std::fmt;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use ractor::Actor as _;
use tokio::task::unconstrained;

use super::{Birth, CHILDREN_MAX, Child, Ending, Newborn, NodeActor, NodeHandle, NodeId, NodeMachine, Shared};

/// The cradle of one node.
#[derive(Default)]
pub(super) struct Cradle {
    inside: Mutex<Inside>,
}

/// What is in a cradle.
#[derive(Default)]
pub(super) struct Inside {
    /// How many more may be born here; 0 while it is shut.
    room: usize,
    /// Whether it stays shut: somebody told the node to end, and it has not read that yet.
    is_closed: bool,
    /// Born since the node looked.
    born: Vec<(NodeId, Child)>,
}

impl Cradle {
    /// Lets nothing be born here any more; what comes after this finds a message of the same sender before it.
    pub(super) fn close(&self) {
        self.look_inside().is_closed = true;
    }

    /// Lets go of whatever is in it, for its node is gone, and lets nothing be born any more.
    pub(super) fn clear(&self) {
        let left = std::mem::replace(&mut *self.look_inside(), Inside { is_closed: true, ..Inside::default() });
        // What waits for a child may do anything when it learns that it is lost: not under the lock.
        drop(left);
    }

    /// What is in it; nothing is born while this is held.
    pub(super) fn look_inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bears a child of this node, or gives the birth back when the node is to be asked.
    pub(super) fn bear(&self, node: &NodeHandle, birth: Birth) -> Result<(), Birth> {
        let tree = &node.shared.tree;
        let Some(runtime) = tree.runtime.get() else { return Err(birth) };
        let mut inside = self.look_inside();
        if inside.is_closed || inside.room == 0 {
            return Err(birth);
        }
        // Whoever wants the child may be on another runtime, or on none.
        let _here = runtime.enter();
        let Birth { id, spec, body, epilogue, ended } = birth;
        let shared = Shared::of(tree, id, spec.kind);
        let newborn = Newborn { shared: Arc::clone(&shared), spec, body: None, epilogue };
        let spawned = NodeActor::spawn_linked(None, NodeActor, newborn, node.actor.get_cell());
        // A node waits for nothing before it lives; and whether its caller has had a long turn is no reason to.
        match unconstrained(spawned).now_or_never() {
            Some(Ok((actor, _))) => {
                inside.room -= 1;
                inside.born.push((id, Child { actor: actor.clone(), ended }));
                drop(inside);
                // Before the node's first turn: whatever reaches the node from now on finds a body that has begun.
                NodeHandle { actor, shared }.begin(body);
            }
            // The node's actor is gone, and what was to be its child with it.
            Some(Err(_)) | None => {
                drop(inside);
                drop(ended.send((Ending::lost(), None)));
            }
        }
        Ok(())
    }
}

impl Inside {
    /// What was born since the last look.
    pub(super) fn take_born(&mut self) -> impl Iterator<Item = (NodeId, Child)> + '_ {
        self.born.drain(..)
    }

    /// Opens or shuts it, as the machine is.
    pub(super) fn follow(&mut self, machine: &NodeMachine) {
        self.room = if machine.is_open() { CHILDREN_MAX.saturating_sub(machine.child_count()) } else { 0 };
    }
}

impl fmt::Debug for Cradle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = self.look_inside();
        write!(out, "{} born, room for {}", inside.born.len(), inside.room)
    }
}
