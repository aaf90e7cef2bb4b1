//! Goes through a small scenario in order instead of at random: every run with no departure from the plain order, then
//! every run with one, then with two, until there are no more or the bound is reached, and says how much that was.
//!
//! A departure is a choice that is not 0: a message that overtakes, a fault, an odd body. Most faults of concurrent
//! programs need few of them, so a level that was gone through is worth more than as many runs at random.

use crate::checkers::Violation;
use crate::seed::Choices;

/// Most runs that may be asked for.
pub const RUNS_MAX: usize = 10_000_000;

/// How much was gone through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Covered {
    /// By the number of departures, from none on.
    pub levels: Vec<Level>,
    /// Runs in all.
    pub runs: usize,
    /// The first run that broke a promise, and its choices.
    pub violation: Option<(Violation, Vec<u32>)>,
}

/// The runs with the same number of departures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Level {
    /// How many were run.
    pub done: usize,
    /// How many there are.
    pub all: usize,
}

impl Covered {
    /// The most departures of which every run was made; none when not even the plain run was.
    pub fn departures(&self) -> Option<usize> {
        self.levels.iter().take_while(|level| level.done == level.all).count().checked_sub(1)
    }

    /// Whether there is no run that was not made.
    pub fn is_everything(&self) -> bool {
        self.levels.iter().all(|level| level.done == level.all)
    }
}

/// What one run gives back: what broke, its choices, and what each of them was below.
pub type Bounded = (Option<Violation>, Vec<u32>, Vec<u32>);

/// Runs in order of departures until one breaks a promise, there are no more, or `runs_max` are made. Every run has to
/// keep its bounds.
pub fn systematic(runs_max: usize, mut run: impl FnMut(Choices) -> Bounded) -> Covered {
    let runs_max = runs_max.min(RUNS_MAX);
    let mut covered = Covered::default();
    let (mut level, mut all) = (vec![Vec::new()], 1);
    while all > 0 && covered.runs < runs_max {
        let (mut next, mut next_all) = (Vec::new(), 0_usize);
        let mut done = 0;
        for list in std::mem::take(&mut level) {
            if covered.runs >= runs_max {
                break;
            }
            let begins = list.len();
            let (violation, taken, bounds) = run(Choices::from_list(list).keeping_bounds());
            covered.runs += 1;
            done += 1;
            if let Some(violation) = violation {
                covered.levels.push(Level { done, all });
                covered.violation = Some((violation, taken));
                return covered;
            }
            for (at, bound) in bounds.iter().enumerate().skip(begins) {
                next_all = next_all.saturating_add((*bound as usize).saturating_sub(1));
                // What cannot be run any more need not be kept.
                let room = runs_max.saturating_sub(covered.runs).saturating_sub(next.len());
                let prefix = taken.get(..at).unwrap_or_default();
                next.extend((1..*bound).take(room).map(|number| [prefix, &[number]].concat()));
            }
        }
        covered.levels.push(Level { done, all });
        (level, all) = (next, next_all);
    }
    if all > 0 {
        covered.levels.push(Level { done: 0, all });
    }
    covered
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Bounded, Level, systematic};
    use crate::checkers::Violation;
    use crate::seed::Choices;

    /// Three choices: below 2, below 3, and below 2 again, when the first was 1.
    fn small(mut choices: Choices, is_bad: impl Fn(&[u32]) -> bool) -> Bounded {
        if choices.below(2) == 1 {
            choices.below(2);
        }
        choices.below(3);
        let (taken, bounds) = choices.into_bounded();
        let bad = Violation { checker: "x", promise: "y", at: Duration::ZERO, text: String::new() };
        (is_bad(&taken).then_some(bad), taken, bounds)
    }

    #[test]
    fn every_run_is_made_once_and_counted_by_its_departures() {
        let mut seen = std::collections::BTreeSet::new();
        let covered = systematic(1_000, |choices| {
            let (bad, taken, bounds) = small(choices, |_| false);
            assert!(seen.insert(taken.clone()), "{taken:?} twice");
            (bad, taken, bounds)
        });
        // 0 x 3 and 1 x 2 x 3.
        assert_eq!((covered.runs, seen.len()), (9, 9));
        let level = |done, all| Level { done, all };
        assert_eq!(covered.levels, [level(1, 1), level(3, 3), level(3, 3), level(2, 2)]);
        assert!(covered.is_everything() && covered.departures() == Some(3));
    }

    #[test]
    fn the_bound_is_kept_and_what_was_left_out_is_told() {
        let covered = systematic(3, |choices| small(choices, |_| false));
        assert_eq!((covered.runs, covered.departures()), (3, Some(0)));
        assert_eq!(covered.levels[1], Level { done: 2, all: 3 });
        assert!(!covered.is_everything());
    }

    #[test]
    fn the_first_bad_run_has_the_fewest_departures() {
        let covered = systematic(1_000, |choices| small(choices, |taken| taken.iter().sum::<u32>() >= 2));
        assert_eq!(covered.violation.unwrap().1, [0, 2]);
    }
}
