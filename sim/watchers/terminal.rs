//! Every run and every child run ends exactly once; the host gets one answer for each prompt; a tool does not work any
//! more when its call has ended, and a child run has ended before the call that started it.
//!
//! The counting is that of the machines' own checker, to which a run is a node.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden_actors::node_machine::NodeId;
use toolwarden_tools::ids::InvocationId;

use super::must;
use super::numbering::Numbering;
use crate::checkers::Checker as _;
use crate::happening::{End, Happening, Kind};
use crate::sight::{Aftermath, Call, Sight, Watcher};

/// The kind of the error that ends a run which could not be stored.
const STORE_FAILED: &str = "store_failed";

/// Which runs are open.
#[derive(Debug, Default)]
pub struct Terminal {
    ends: crate::checkers::terminal::Terminal,
    names: Numbering,
    /// Runs and child runs without an ending, by number.
    open: BTreeSet<u64>,
    born: BTreeSet<u64>,
    /// Open child runs of each call.
    children: BTreeMap<InvocationId, BTreeSet<u64>>,
    owners: BTreeMap<u64, InvocationId>,
    at_work: BTreeSet<InvocationId>,
    /// How often everything was lost: a run that goes on after a crash begins once more.
    lives: u64,
    /// How often a run ended without that being stored: it goes on when its session is opened again.
    unstored: BTreeMap<String, u64>,
}

impl Terminal {
    fn number(&mut self, name: &str) -> u64 {
        let (lives, unstored) = (self.lives, self.unstored.get(name).copied().unwrap_or_default());
        self.names.of(&format!("{lives} {unstored} {name}"))
    }

    fn begins(&mut self, at: Duration, name: &str) -> Result<u64, String> {
        let node = self.number(name);
        self.born.insert(node);
        self.open.insert(node);
        let born = Happening::Born { node: NodeId(node), parent: None, kind: Kind::Run, grace: Duration::ZERO };
        self.ends.see(at, &born).map_err(|error| format!("{name}: {error}"))?;
        Ok(node)
    }

    fn ends(&mut self, at: Duration, name: &str) -> Result<(), String> {
        let node = self.number(name);
        if !self.born.contains(&node) {
            // It was ended before it could begin, and is told all the same.
            self.begins(at, name)?;
        }
        self.open.remove(&node);
        if let Some(owner) = self.owners.get(&node)
            && let Some(children) = self.children.get_mut(owner)
        {
            children.remove(&node);
        }
        let ended = Happening::Ended { node: NodeId(node), body: End::Returned, unsettled: 0 };
        self.ends.see(at, &ended).map_err(|error| format!("{name}: {error}"))
    }

    /// What was open is lost with its process, or with the journal.
    fn lose(&mut self, at: Duration) -> Result<(), String> {
        self.lives += 1;
        self.at_work.clear();
        self.children.clear();
        for node in std::mem::take(&mut self.open) {
            self.ends.see(at, &Happening::Died { node: NodeId(node) })?;
        }
        Ok(())
    }
}

impl Watcher for Terminal {
    fn name(&self) -> &'static str {
        "terminal"
    }

    fn promise(&self) -> &'static str {
        "everything that begins ends exactly once, children first"
    }

    fn see(&mut self, at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Entry(entry) => {
                let run = entry.event.run.as_ref();
                match (&entry.event.kind, run) {
                    (EventKind::AgentStart { .. }, Some(run)) => self.begins(at, run.as_str()).map(drop),
                    (EventKind::Error { kind, .. }, Some(run)) if kind == STORE_FAILED => {
                        self.ends(at, run.as_str())?;
                        *self.unstored.entry(run.to_string()).or_default() += 1;
                        Ok(())
                    }
                    (EventKind::AgentEnd { .. } | EventKind::Error { .. }, Some(run)) => self.ends(at, run.as_str()),
                    (EventKind::SubagentStart { task_id, parent_invocation, background, .. }, _) => {
                        let node = self.begins(at, task_id.as_str())?;
                        if *background {
                            // It goes on after its call.
                            return Ok(());
                        }
                        self.owners.insert(node, parent_invocation.clone());
                        self.children.entry(parent_invocation.clone()).or_default().insert(node);
                        Ok(())
                    }
                    (EventKind::SubagentEnd { task_id, .. }, _) => self.ends(at, task_id.as_str()),
                    (EventKind::ToolEnd(result), _) => {
                        let open = self.children.get(&result.id).map_or(0, BTreeSet::len);
                        must(open == 0, || format!("{} ended before {open} child runs of it", Call(&result.id)))?;
                        must(!self.at_work.contains(&result.id), || {
                            format!("{} has ended, and its tool still works", Call(&result.id))
                        })
                    }
                    _ => Ok(()),
                }
            }
            Sight::Began { invocation, .. } => must(self.at_work.insert((*invocation).clone()), || {
                format!("the tool of {} was started twice", Call(invocation))
            }),
            Sight::Over { invocation, .. } => {
                self.at_work.remove(*invocation);
                Ok(())
            }
            Sight::Crashed | Sight::JournalBroke => self.lose(at),
            _ => Ok(()),
        }
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        must(self.at_work.is_empty(), || format!("tools still work: {:?}", self.at_work))?;
        must(self.open.is_empty(), || format!("{} runs have no ending", self.open.len()))?;
        for pair in aftermath.told.windows(2) {
            let twice = (pair[0].session, pair[0].prompt) == (pair[1].session, pair[1].prompt);
            must(!twice, || format!("prompt {} of session {} was answered twice", pair[0].prompt, pair[0].session))?;
        }
        Ok(())
    }
}
