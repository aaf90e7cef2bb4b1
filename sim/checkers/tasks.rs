//! A task in the background begins once, only when its turn stands and its session is open, and has one ending, which is
//! delivered only if its turn stood; one whose run is over before that is told to end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use super::{Checker, must};
use crate::happening::{Happening, Subject};
use crate::remains::Remains;

/// The tasks there were.
#[derive(Debug, Default)]
pub struct Tasks {
    tasks: BTreeMap<NodeId, Task>,
    closed: BTreeSet<NodeId>,
    /// Whether any of their runs was over too early.
    any_fell: bool,
}

#[derive(Debug)]
struct Task {
    turn: NodeId,
    session: NodeId,
    stands: bool,
    began: bool,
    told_to_end: bool,
    ended: bool,
    /// Since when its run is over without its turn standing.
    fell_at: Option<Duration>,
}

impl Tasks {
    fn task(&mut self, task: NodeId) -> Result<&mut Task, String> {
        self.tasks.get_mut(&task).ok_or_else(|| format!("task {} was never registered", task.0))
    }
}

impl Checker for Tasks {
    fn name(&self) -> &'static str {
        "tasks"
    }

    fn promise(&self) -> &'static str {
        "a background task begins when its turn stands, and has one ending"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Task]
    }

    fn tick(&mut self, now: Duration) -> Result<(), String> {
        if !self.any_fell {
            return Ok(());
        }
        let left = self
            .tasks
            .iter()
            .find(|(_, task)| task.fell_at.is_some_and(|fell_at| now > fell_at) && !task.told_to_end && !task.ended);
        must(left.is_none(), || format!("the run is over, and nobody tells its task to end: {left:?}"))
    }

    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::TaskRegistered { task, turn, session } => {
                let closed = self.closed.contains(session);
                must(!closed, || format!("task {} is registered in a session that is closing", task.0))?;
                let (turn, session) = (*turn, *session);
                let (stands, began, told_to_end, ended) = (false, false, false, false);
                self.tasks.insert(*task, Task { turn, session, stands, began, told_to_end, ended, fell_at: None });
                Ok(())
            }
            Happening::TurnStood { turn } => {
                // One that was told to end before that, because its run died, does not begin any more.
                let waits = |task: &&mut Task| task.turn == *turn && !task.ended && !task.told_to_end;
                for task in self.tasks.values_mut().filter(waits) {
                    task.stands = true;
                }
                Ok(())
            }
            Happening::RunOver { turn } => {
                for task in self.tasks.values_mut().filter(|task| task.turn == *turn && !task.stands && !task.ended) {
                    task.fell_at = Some(now);
                    self.any_fell = true;
                }
                Ok(())
            }
            Happening::TaskBegan { task: id } => {
                let task = self.task(*id)?;
                must(task.stands, || format!("task {} begins, and its turn does not stand", id.0))?;
                must(!std::mem::replace(&mut task.began, true), || format!("task {} begins twice", id.0))
            }
            Happening::TaskCancelled { task: id } => {
                let task = self.task(*id)?;
                let again = std::mem::replace(&mut task.told_to_end, true);
                must(!again, || format!("task {} is told to end twice", id.0))
            }
            Happening::TaskEnded { task: id, delivered } => {
                let closed = self.tasks.get(id).is_some_and(|task| self.closed.contains(&task.session));
                let task = self.task(*id)?;
                must(!std::mem::replace(&mut task.ended, true), || format!("task {} ends twice", id.0))?;
                let stands = task.stands;
                must(!delivered || (stands && !closed), || {
                    format!("the result of task {} is delivered to nobody", id.0)
                })?;
                must(*delivered || !stands || closed, || format!("the result of task {} is not delivered", id.0))
            }
            Happening::TasksClosed { session } => {
                self.closed.insert(*session);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        let open: Vec<u64> = self.tasks.iter().filter(|(_, task)| !task.ended).map(|(id, _)| id.0).collect();
        must(open.is_empty(), || format!("tasks that have no ending: {open:?}"))
    }
}
