//! What steps have come to that is not in the log of their run: kept while the process lives, so that it can be recorded.
//!
//! A step has done its work, and the record of that is refused (the disk is full), or the call ends while the record of an
//! earlier step is still waited for. The next call of the run finds a step that began and has no end. What this process
//! knows of its end is recorded then, and the step does not run again; another process can only run it again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::canonical_json::value_bytes;
use crate::digest::Digest;
use crate::outcome::Trust;
use crate::workflow::event::Entry;

/// Runs of which something is kept; of more, those that were begun with first are forgotten.
const RUNS_MAX: usize = 64;
/// Most bytes that are kept of all runs together.
const BYTES_MAX: usize = 16 * 1024 * 1024;

/// A step of a run, and which attempt of it.
type Attempted = (String, u32);

/// What an attempt came to.
pub(super) type Outcome = (Result<Value, String>, Trust);

/// See the head of the file.
#[derive(Default)]
pub(super) struct Unrecorded {
    runs: Mutex<Runs>,
}

#[derive(Default)]
struct Runs {
    runs: IndexMap<Digest, BTreeMap<Attempted, Outcome>>,
    bytes: usize,
}

impl Unrecorded {
    /// Keeps what an attempt came to until that is recorded.
    pub(super) fn keep(&self, run: &Digest, step_id: &str, attempt: u32, outcome: Outcome) {
        let bytes = bytes_of(step_id, &outcome);
        if bytes > BYTES_MAX {
            return;
        }
        let mut runs = self.runs();
        runs.forget(run, step_id, attempt);
        runs.runs.entry(run.clone()).or_default().insert((step_id.to_owned(), attempt), outcome);
        runs.bytes += bytes;
        while runs.bytes > BYTES_MAX || runs.runs.len() > RUNS_MAX {
            runs.forget_oldest();
        }
    }

    /// What an attempt came to, when that is known.
    pub(super) fn of(&self, run: &Digest, step_id: &str, attempt: u32) -> Option<Outcome> {
        self.runs().runs.get(run)?.get(&(step_id.to_owned(), attempt)).cloned()
    }

    /// The steps of a run of which something is kept, by id.
    pub(super) fn steps(&self, run: &Digest) -> Vec<String> {
        let runs = self.runs();
        let attempts = runs.runs.get(run).into_iter().flat_map(BTreeMap::keys);
        attempts.map(|(step_id, _)| step_id.clone()).collect()
    }

    /// It is recorded.
    pub(super) fn forget(&self, run: &Digest, step_id: &str, attempt: u32) {
        self.runs().forget(run, step_id, attempt);
    }

    /// The run has ended: nothing of it will be recorded any more.
    pub(super) fn forget_run(&self, run: &Digest) {
        self.runs().forget_run(run);
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Runs {
    fn forget(&mut self, run: &Digest, step_id: &str, attempt: u32) {
        let Some(kept) = self.runs.get_mut(run) else { return };
        if let Some(outcome) = kept.remove(&(step_id.to_owned(), attempt)) {
            self.bytes -= bytes_of(step_id, &outcome);
        }
        if kept.is_empty() {
            self.runs.shift_remove(run);
        }
    }

    fn forget_run(&mut self, run: &Digest) {
        let kept = self.runs.shift_remove(run).unwrap_or_default();
        self.bytes -= kept.iter().map(|((step_id, _), outcome)| bytes_of(step_id, outcome)).sum::<usize>();
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.runs.keys().next().cloned() else { return };
        self.forget_run(&oldest);
    }
}

/// What tells a run from every other one, also from one that was begun again under its id: where its log stands, and
/// how it begins.
pub(super) fn run_key(root: &str, first: &Entry) -> Digest {
    Digest::of_json(&json!({ "root": root, "first": first }))
}

fn bytes_of(step_id: &str, (result, _): &Outcome) -> usize {
    step_id.len() + result.as_ref().map_or_else(String::len, value_bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{BYTES_MAX, RUNS_MAX, Unrecorded};
    use crate::digest::Digest;
    use crate::outcome::Trust;

    fn run(number: usize) -> Digest {
        Digest::of(number.to_string().as_bytes())
    }

    #[test]
    fn what_is_kept_is_bounded_and_goes_with_its_record() {
        let unrecorded = Unrecorded::default();
        let text = |bytes: usize| (Ok(json!("x".repeat(bytes))), Trust::External);
        let keep = |number, step, attempt, bytes| unrecorded.keep(&run(number), step, attempt, text(bytes));
        keep(1, "a", 1, 10);
        keep(1, "a", 1, 20);
        keep(1, "b", 2, 30);
        assert_eq!(unrecorded.of(&run(1), "a", 1), Some(text(20)));
        assert_eq!((unrecorded.of(&run(1), "a", 2), unrecorded.of(&run(2), "a", 1)), (None, None));
        assert_eq!(unrecorded.steps(&run(1)), ["a", "b"]);
        unrecorded.forget(&run(1), "a", 1);
        assert_eq!(unrecorded.steps(&run(1)), ["b"]);
        unrecorded.forget_run(&run(1));
        assert_eq!((unrecorded.steps(&run(1)), unrecorded.runs().bytes), (vec![], 0));
        // The oldest runs go first, by their number and by their bytes.
        (0..=RUNS_MAX).for_each(|number| keep(number, "a", 1, 1));
        assert_eq!((unrecorded.steps(&run(0)).len(), unrecorded.steps(&run(1)).len()), (0, 1));
        keep(99, "a", 1, BYTES_MAX - 10);
        assert_eq!((unrecorded.steps(&run(99)).len(), unrecorded.steps(&run(RUNS_MAX)).len()), (1, 1));
        keep(99, "a", 1, BYTES_MAX + 1);
        keep(100, "a", 1, BYTES_MAX - 10);
        assert_eq!((unrecorded.steps(&run(99)).len(), unrecorded.steps(&run(100)).len()), (0, 1));
        assert!(unrecorded.runs().bytes <= BYTES_MAX);
    }
}
