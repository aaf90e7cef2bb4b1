//! Mutants of tasks in the background: begun too early, told twice or never, left waiting, delivered to nobody.

use toolwarden_actors::node_machine::NodeId;
use toolwarden_actors::task_board::{BoardEffect, BoardEvent, TaskBoard};

use crate::tamper::{Slip, Tamper};

use super::{Mutant, machine, slip};

/// All of them.
pub(super) const TASKS: [Mutant; 6] = [
    slip("task-before-turn", "a task does not wait for its turn", Slip::BeginsBeforeItsTurn, SCENARIO, "tasks", 5),
    slip("task-end-forgotten", "the end of a task is not told", Slip::ForgetsTaskEnds, SCENARIO, "tasks", 5),
    machine(
        "task-of-fallen-turn",
        "a turn that fell is not noticed",
        || Box::new(TurnNeverFalls),
        SCENARIO,
        "tasks",
        60,
    ),
    machine("task-end-told-twice", "a cancelled task ends twice", || Box::new(EndsTwice), SCENARIO, "tasks", 60),
    machine(
        "task-told-after-close",
        "a session that closed is told",
        || Box::new(ToldAfterClose),
        SCENARIO,
        "tasks",
        60,
    ),
    machine("task-started-by-any-turn", "any turn lets any task begin", || Box::new(AnyTurn), SCENARIO, "tasks", 60),
];

const SCENARIO: &str = "background-tasks";

type Board = TaskBoard<NodeId, NodeId>;
type Event = BoardEvent<NodeId, NodeId>;
type Effects = Vec<BoardEffect<NodeId>>;

struct TurnNeverFalls;

impl Tamper for TurnNeverFalls {
    fn board(&mut self, board: &mut Board, event: Event) -> Effects {
        match event {
            BoardEvent::TurnFell(_) => Vec::new(),
            other => board.step(other),
        }
    }
}

struct EndsTwice;

impl Tamper for EndsTwice {
    fn board(&mut self, board: &mut Board, event: Event) -> Effects {
        let mut effects = board.step(event);
        if let Some(end @ BoardEffect::End { deliver: true, .. }) = effects.last().cloned() {
            effects.push(end);
        }
        effects
    }
}

struct ToldAfterClose;

impl Tamper for ToldAfterClose {
    fn board(&mut self, board: &mut Board, event: Event) -> Effects {
        let mut effects = board.step(event);
        for effect in &mut effects {
            if let BoardEffect::End { deliver, .. } = effect {
                *deliver = true;
            }
        }
        effects
    }
}

/// Every task that is registered may begin with the next turn that stands, whose ever it is.
struct AnyTurn;

impl Tamper for AnyTurn {
    fn board(&mut self, board: &mut Board, event: Event) -> Effects {
        let fell = match &event {
            BoardEvent::TurnFell(turn) => Some(*turn),
            _ => None,
        };
        match fell {
            Some(turn) => board.step(BoardEvent::TurnStands(turn)),
            None => board.step(event),
        }
    }
}
