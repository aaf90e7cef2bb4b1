//! A model's turn is read as it was sent or not at all: no cut is taken for an answer and no half call is made. What is
//! shown of a turn while it comes is, at its end, the turn: an attempt that failed is called back under its number.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden::event::EventKind;
use toolwarden::models::{CallArguments, ModelTurn};

use super::must;
use crate::sight::{Sight, Watcher};

/// What is shown of each run, where models are asked over a line.
#[derive(Debug, Default)]
pub struct Turns {
    looks: bool,
    runs: BTreeMap<String, Shown>,
    /// The texts of the turns that were read.
    texts: BTreeSet<String>,
}

#[derive(Debug, Default)]
struct Shown {
    /// The turn that is shown now, and those before it.
    turn: Option<u32>,
    ended: Option<u32>,
    text: String,
}

impl Turns {
    /// Looks only where models are asked over a line.
    pub fn new(looks: bool) -> Self {
        Self { looks, ..Self::default() }
    }

    fn shown(&mut self, run: &str, kind: &EventKind) -> Result<(), String> {
        let shown = self.runs.entry(run.to_owned()).or_default();
        match kind {
            EventKind::AgentStart { .. } => *shown = Shown::default(),
            EventKind::TurnStart { turn } => {
                let follows = match (shown.turn, shown.ended) {
                    (Some(now), _) => *turn == now,
                    (None, Some(ended)) => *turn == ended + 1,
                    (None, None) => true,
                };
                must(follows, || format!("turn {turn} of {run} begins after {:?} and {:?}", shown.turn, shown.ended))?;
                shown.turn = Some(*turn);
                shown.text.clear();
            }
            EventKind::TextDelta { delta } => {
                must(shown.turn.is_some(), || format!("text of {run} is shown outside of any turn"))?;
                shown.text.push_str(delta);
            }
            EventKind::TurnEnd { turn, .. } => {
                must(shown.turn == Some(*turn), || {
                    format!("turn {turn} of {run} ends, and {:?} was shown", shown.turn)
                })?;
                must(self.texts.contains(&shown.text), || {
                    format!("turn {turn} of {run} was shown as {:?}, which is no turn that was read", shown.text)
                })?;
                (shown.ended, shown.turn) = (shown.turn, None);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Compares what was read with what was sent.
fn compare(sent: &ModelTurn, read: &ModelTurn, is_intact: bool) -> Result<(), String> {
    let calls =
        |turn: &ModelTurn| turn.calls.iter().map(|call| (call.id.clone(), call.tool.clone())).collect::<Vec<_>>();
    if is_intact {
        must(sent.text == read.text, || format!("{:?} was sent and {:?} is read", sent.text, read.text))?;
        must(calls(sent) == calls(read), || format!("{:?} were called and {:?} are read", calls(sent), calls(read)))?;
        for (sent, read) in sent.calls.iter().zip(&read.calls) {
            let same = match (&sent.arguments, &read.arguments) {
                (CallArguments::Parsed(sent), CallArguments::Parsed(read)) => sent == read,
                // What was no JSON stays none.
                (CallArguments::Malformed { .. }, CallArguments::Malformed { .. }) => true,
                _ => false,
            };
            must(same, || format!("{:?} was called and {:?} is read", sent.arguments, read.arguments))?;
        }
        return Ok(());
    }
    must(read.calls.len() <= sent.calls.len(), || {
        format!("{} calls were sent and {} are read", sent.calls.len(), read.calls.len())
    })
}

impl Watcher for Turns {
    fn name(&self) -> &'static str {
        "turns"
    }

    fn promise(&self) -> &'static str {
        "a turn is taken whole, and shown as it is taken"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        if !self.looks {
            return Ok(());
        }
        match sight {
            Sight::Turned { sent, read: Some(read), is_intact } => {
                self.texts.insert(read.text.clone());
                compare(sent, read, *is_intact)
            }
            Sight::Entry(entry) => match &entry.event.run {
                Some(run) => self.shown(run.as_str(), &entry.event.kind),
                None => Ok(()),
            },
            // What was told of a turn may be lost with the process, and the turn itself stored.
            Sight::Crashed | Sight::JournalBroke => {
                self.runs.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
