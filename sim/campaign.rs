//! A campaign: many scenarios times many seeds, on several threads, told in order.
//!
//! Runs are handed out in rounds of a bounded size and told in the order of their seeds, so that what is printed does
//! not depend on how many threads there were. A run that panics is a broken promise like any other: it is told with
//! its seed, and the campaign goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::checkers::Violation;
use crate::driver::run;
use crate::scenario::Scenario;
use crate::story::{Meeting, Story};

/// Runs of a round for each thread.
pub const ROUND_RUNS: usize = 64;
/// Most threads.
pub const JOBS_MAX: usize = 256;

/// What one run came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Which scenario, by its place in the list.
    pub scenario: usize,
    /// The seed.
    pub seed: u64,
    /// The digest of everything that happened.
    pub digest: u64,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
}

/// What all runs of one scenario came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Deliveries of all of them.
    pub steps: u64,
    /// The names of the checkers that watched.
    pub checkers: Vec<&'static str>,
    /// How often each checker found something, and the first seed that showed it.
    pub broken: BTreeMap<&'static str, (u64, u64)>,
    /// How often each fault met each state.
    pub sometimes: BTreeMap<Meeting, u64>,
    /// Which of the unusual things happened.
    pub coverage: BTreeSet<&'static str>,
    /// Nodes of all runs.
    pub nodes: u64,
}

impl Tally {
    fn add(&mut self, seed: u64, story: &Story) {
        self.runs += 1;
        self.steps += story.steps as u64;
        self.nodes += story.nodes;
        self.coverage.extend(&story.coverage);
        if self.checkers.is_empty() {
            self.checkers.clone_from(&story.checkers);
        }
        if let Some(violation) = &story.violation {
            self.broken.entry(violation.checker).or_insert((0, seed)).0 += 1;
        }
        for (meeting, times) in &story.sometimes {
            *self.sometimes.entry(*meeting).or_default() += times;
        }
    }
}

/// Runs every scenario with every seed, as long as `goes_on` says so, and tells each run in the order of the seeds.
/// `goes_on` is asked once a round and between runs, from several threads.
pub fn campaign(
    scenarios: &[Scenario],
    seeds: Range<u64>,
    jobs: NonZeroUsize,
    goes_on: &(dyn Fn() -> bool + Sync),
    mut tell: impl FnMut(&Verdict),
) -> Vec<Tally> {
    let mut tallies = vec![Tally::default(); scenarios.len()];
    let jobs = jobs.get().min(JOBS_MAX);
    let mut next = seeds.start;
    // A round is some seeds, each with every scenario.
    let seeds_a_round = (ROUND_RUNS * jobs).div_ceil(scenarios.len().max(1)) as u64;
    while next < seeds.end && !scenarios.is_empty() && goes_on() {
        let end = seeds.end.min(next.saturating_add(seeds_a_round));
        for (at, story) in round(scenarios, next..end, jobs, goes_on).into_iter().enumerate() {
            let (scenario, seed) = (at % scenarios.len(), next + (at / scenarios.len()) as u64);
            // The campaign was ended before this run began.
            let Some(story) = story else { continue };
            if let Some(tally) = tallies.get_mut(scenario) {
                tally.add(seed, &story);
            }
            tell(&Verdict { scenario, seed, digest: story.digest, violation: story.violation });
        }
        next = end;
    }
    tallies
}

/// Runs of one round, in order; none where the campaign was ended before.
fn round(
    scenarios: &[Scenario],
    seeds: Range<u64>,
    jobs: usize,
    goes_on: &(dyn Fn() -> bool + Sync),
) -> Vec<Option<Story>> {
    let count = usize::try_from(seeds.end - seeds.start).unwrap_or(0).saturating_mul(scenarios.len());
    let done: Mutex<Vec<Option<Story>>> = Mutex::new(std::iter::repeat_with(|| None).take(count).collect());
    let taken = AtomicUsize::new(0);
    let work = || {
        while goes_on() {
            let at = taken.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                break;
            }
            let Some(scenario) = scenarios.get(at % scenarios.len()) else { break };
            let story = run_caught(scenario, seeds.start + (at / scenarios.len()) as u64);
            if let Some(place) = done.lock().unwrap_or_else(PoisonError::into_inner).get_mut(at) {
                *place = Some(story);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs {
            scope.spawn(work);
        }
        work();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// A run whose panic is a broken promise.
pub fn run_caught(scenario: &Scenario, seed: u64) -> Story {
    catch_unwind(AssertUnwindSafe(|| run(scenario, scenario.choices(seed)))).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<&str>().map(ToString::to_string);
        let words = words.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
        let violation =
            Violation { checker: "panic", promise: "nothing in a run panics", at: Duration::ZERO, text: words };
        Story { violation: Some(violation), ..Story::default() }
    })
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::{Verdict, campaign};
    use crate::scenario::{Scenario, shipped};

    fn scenarios() -> Vec<Scenario> {
        ["tiny", "plain"].map(|name| shipped::named(name).unwrap().unwrap()).to_vec()
    }

    fn all(jobs: usize) -> Vec<Verdict> {
        let mut told = Vec::new();
        campaign(&scenarios(), 5..45, NonZeroUsize::new(jobs).unwrap(), &|| true, |verdict| told.push(verdict.clone()));
        told
    }

    #[test]
    fn what_is_told_does_not_depend_on_how_many_threads_there_are() {
        let one = all(1);
        assert_eq!(one, all(4));
        let order: Vec<(u64, usize)> = one.iter().map(|verdict| (verdict.seed, verdict.scenario)).collect();
        assert!(order.is_sorted() && order.len() == 80, "{order:?}");
    }

    #[test]
    fn it_ends_when_it_is_told_to_and_counts_what_was_run() {
        let asked = AtomicU64::new(0);
        let tallies = campaign(
            &scenarios(),
            0..u64::MAX,
            NonZeroUsize::MIN,
            &|| asked.fetch_add(1, Ordering::Relaxed) < 30,
            |_| {},
        );
        let runs: u64 = tallies.iter().map(|tally| tally.runs).sum();
        assert!((1..=30).contains(&runs), "{runs}");
        assert!(tallies[0].checkers.contains(&"leases") && tallies[0].broken.is_empty());
    }

    #[test]
    fn a_broken_promise_is_counted_with_its_first_seed() {
        let mut scenario = shipped::named("wide").unwrap().unwrap();
        if let crate::scenario::Plan::Machines(workload) = &mut scenario.plan {
            workload.mutant = Some("second-ending".to_owned());
        }
        let tallies = campaign(&[scenario], 0..20, NonZeroUsize::MIN, &|| true, |_| {});
        assert_eq!(tallies[0].broken["terminal"], (20, 0));
    }
}
