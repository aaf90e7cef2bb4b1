//! A world that has ended, as its tests look at it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use toolwarden::call_result::CallResult;
use toolwarden::event::EventKind;
use toolwarden::run::RunOutcome;

use super::case::Case;
use crate::play::Act;
use crate::sight::{Sight, Watcher};
use crate::stage::Performance;

/// A world that has ended.
#[derive(Debug)]
pub struct Ended {
    case: Case,
    performed: Performance,
    results: Vec<Arc<CallResult>>,
}

impl Ended {
    pub(super) fn new(case: Case, performed: Performance, results: &Results) -> Self {
        Self { case, performed, results: results.take() }
    }

    /// The outcome of the last prompt; none when its session closed first or whoever waited for it was made to leave.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.performed.aftermath.told.last().and_then(|told| told.outcome.as_ref())
    }

    /// How the last prompt ended: `completed`, `cancelled`, …; `unanswered` when the host was told nothing.
    pub fn status(&self) -> &'static str {
        self.outcome().map_or("unanswered", |outcome| outcome.status.as_str())
    }

    /// The model's last words; may be empty.
    pub fn answer(&self) -> &str {
        self.outcome().map_or("", |outcome| outcome.text.as_str())
    }

    /// Whether something was done to it, or may have gone wrong in it.
    pub fn was_disturbed(&self) -> bool {
        self.case != Case::Plain
    }

    /// What was done to it, where it was one thing.
    pub fn act(&self) -> Option<Act> {
        match self.case {
            Case::At { act, .. } => Some(act),
            _ => None,
        }
    }

    /// The results of the calls of a tool, in the order in which they ended.
    pub fn calls<'a>(&'a self, tool: &'a str) -> impl Iterator<Item = &'a CallResult> {
        self.results.iter().map(|result| &**result).filter(move |result| result.name.as_str() == tool)
    }

    /// The workspace's files at the end.
    pub fn files(&self) -> &BTreeMap<String, Vec<u8>> {
        &self.performed.aftermath.files
    }

    /// The text of a file at the end; none when there is none.
    pub fn file(&self, path: &str) -> Option<String> {
        self.files().get(path).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// How many steps it took.
    pub fn steps(&self) -> u64 {
        self.performed.steps
    }

    /// How long it took, in its own time.
    pub fn lasted(&self) -> Duration {
        self.performed.lasted
    }

    /// Which unusual things happened in it.
    pub fn met(&self) -> impl Iterator<Item = &'static str> {
        self.performed.coverage.iter().copied()
    }

    /// The digest of everything that was seen in it.
    pub fn digest(&self) -> u64 {
        self.performed.digest
    }
}

/// Keeps the results of all calls; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Results(Arc<Mutex<Vec<Arc<CallResult>>>>);

impl Results {
    fn take(&self) -> Vec<Arc<CallResult>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watcher for Results {
    fn name(&self) -> &'static str {
        "results"
    }

    fn promise(&self) -> &'static str {
        "results are kept for the test"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        if let Sight::Entry(entry) = sight
            && let EventKind::ToolEnd(result) = &entry.event.kind
        {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(result));
        }
        Ok(())
    }
}
