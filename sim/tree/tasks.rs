//! The simulated tasks in the background: one board for each session, the real machine, and the nodes behind it.
//!
//! As in the shipped runtime a board outlives whoever registered in it: its word reaches a task through the session's
//! node, after the wish for that task, and the ending of a task reaches its board however the task's node ends.

use std::collections::{BTreeMap, BTreeSet};

use toolwarden_actors::node::NodeKind;

use toolwarden_actors::node_machine::{NodeEvent, NodeId};
use toolwarden_actors::task_board::{BoardEffect, BoardEvent, TaskBoard};
use toolwarden_tools::cancellation::CancelReason;

use crate::happening::Happening;
use crate::message::{Address, Birth, BodyMessage, Message};
use crate::tamper::Slip;

use super::World;

/// Tasks that one session has open at a time.
const OPEN_MAX: usize = 3;

/// The boards of all sessions.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    boards: BTreeMap<NodeId, TaskBoard<NodeId, NodeId>>,
    /// Tasks that may begin.
    open: BTreeSet<NodeId>,
}

impl Tasks {
    /// Whether a task may begin.
    pub(super) fn may_begin(&self, task: NodeId) -> bool {
        self.open.contains(&task)
    }
}

impl World<'_> {
    /// A call wants a task that goes on after it.
    pub(super) fn register_task(&mut self, call: NodeId, session: NodeId) {
        let Some(turn) = self.run_of(call) else { return };
        let script = self.workload.later(&mut self.choices);
        let task = self.next_node();
        let board = self.tasks.boards.entry(session).or_insert_with(|| TaskBoard::new(OPEN_MAX));
        let Ok(effects) = board.register(task, Some(turn)) else {
            self.covers("a task in the background that was turned away");
            return;
        };
        self.happens(Happening::Wanted { node: task, waited: false });
        self.happens(Happening::TaskRegistered { task, turn, session });
        let birth = Birth { node: task, script, session, waiter: None };
        self.schedule.send(Address::Board(session), Address::Node(session), Message::Spawn(Box::new(birth)));
        self.carry_out_board(session, effects);
    }

    /// All calls of a run's turn have their results.
    pub(super) fn turn_stands(&mut self, turn: NodeId, session: NodeId) {
        self.happens(Happening::TurnStood { turn });
        self.step_board(session, BoardEvent::TurnStands(turn));
    }

    /// A session ends: its tasks are told to.
    pub(super) fn close_tasks(&mut self, session: NodeId) {
        self.happens(Happening::TasksClosed { session });
        // One that never had any starts none from here on either.
        self.tasks.boards.entry(session).or_insert_with(|| TaskBoard::new(OPEN_MAX));
        self.step_board(session, BoardEvent::Close { reason: CancelReason::SessionClosed });
    }

    /// A node has ended, died or never come to life: as a run it makes no more turns stand, as a task it has ended.
    pub(super) fn node_is_over(&mut self, id: NodeId, session: NodeId, kind: NodeKind, returned: bool) {
        if kind != NodeKind::Run || !self.tasks.boards.contains_key(&session) {
            return;
        }
        self.happens(Happening::RunOver { turn: id });
        self.step_board(session, BoardEvent::TurnFell(id));
        if !self.tamper.slips(Slip::ForgetsTaskEnds) {
            self.step_board(session, BoardEvent::Ended { task: id, success: returned });
        }
    }

    fn step_board(&mut self, session: NodeId, event: BoardEvent<NodeId, NodeId>) {
        let Some(board) = self.tasks.boards.get_mut(&session) else { return };
        let effects = self.tamper.board(board, event);
        self.carry_out_board(session, effects);
    }

    fn carry_out_board(&mut self, session: NodeId, effects: Vec<BoardEffect<NodeId>>) {
        for effect in effects {
            match effect {
                BoardEffect::Start(task) => self.let_begin(task),
                BoardEffect::Cancel(task, reason) => {
                    self.happens(Happening::TaskCancelled { task });
                    let cancel = Message::Event(NodeEvent::CancelChild(task, reason));
                    self.schedule.send(Address::Board(session), Address::Node(session), cancel);
                }
                BoardEffect::End { task, deliver, .. } => {
                    if deliver {
                        self.covers("a task in the background whose result was delivered");
                    }
                    self.happens(Happening::TaskEnded { task, delivered: deliver });
                }
            }
        }
    }

    /// Opens the gate of a task; one whose body has not begun finds it open.
    fn let_begin(&mut self, task: NodeId) {
        self.covers("a task in the background that was let begin");
        self.tasks.open.insert(task);
        self.send(Address::Body(task), Message::Body(BodyMessage::TurnStands));
    }

    /// The run that a call is inside of.
    fn run_of(&self, call: NodeId) -> Option<NodeId> {
        let mut at = call;
        loop {
            let node = self.nodes.get(at.0)?;
            if node.kind == NodeKind::Run {
                return Some(at);
            }
            at = node.parent()?;
        }
    }
}
