//! A planted secret is nowhere but where it was planted: not in the journal, not in facts, snapshots or blobs, and not
//! in what the host is told.

use std::time::Duration;

use memchr::memmem::Finder;

use super::must;
use crate::sight::{Aftermath, Sight, Watcher};

/// What is looked for.
#[derive(Debug)]
pub struct Secrets {
    secret: Finder<'static>,
    planted: bool,
}

impl Secrets {
    /// Looks for this word; for nothing when it is empty. Where nobody planted it, the journal is not read for it.
    pub fn new(secret: &str, planted: bool) -> Self {
        Self { secret: Finder::new(secret.as_bytes()).into_owned(), planted }
    }

    fn clean(&self, place: &str, bytes: &[u8]) -> Result<(), String> {
        let is_there = !self.secret.needle().is_empty() && self.secret.find(bytes).is_some();
        must(!is_there, || format!("the planted secret is in {place}"))
    }
}

impl Watcher for Secrets {
    fn name(&self) -> &'static str {
        "secrets"
    }

    fn promise(&self) -> &'static str {
        "no secret gets out"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        match sight {
            Sight::Stored { payload, .. } => self.clean("a fact", payload),
            Sight::Saved { bytes, .. } => self.clean("a snapshot", bytes),
            Sight::Kept { bytes } => self.clean("a whole output", bytes),
            _ => Ok(()),
        }
    }

    fn reads_lines(&self) -> bool {
        self.planted
    }

    fn read(&mut self, line: &[u8]) -> Result<(), String> {
        self.clean("the journal", line)
    }

    fn finish(&mut self, aftermath: &Aftermath) -> Result<(), String> {
        // What is told goes to whoever asked; where sessions are kept, it was stored before.
        let outcomes = aftermath.told.iter().filter_map(|told| told.outcome.as_ref());
        match aftermath.kept.is_empty() {
            true => Ok(()),
            false => outcomes.map(|outcome| outcome.text.as_bytes()).try_for_each(|text| self.clean("an answer", text)),
        }
    }
}
