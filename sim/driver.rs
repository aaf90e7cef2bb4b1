//! One way to run any scenario: by its driver, with choices, to a story.
//!
//! Commands, tables, shrinking and timelines go through here and know nothing of how a driver works. A driver keeps to
//! three rules: all of its randomness comes from the choices, the same choices give the same digest, and the list of
//! choices that it took is the replay.

use std::time::Duration;

use crate::checkers::{self, Violation};
use crate::mutants;
use crate::play::Play;
use crate::scenario::{Plan, Scenario};
use crate::seed::Choices;
use crate::stage::{Cast, chores, perform};
use crate::story::{MOMENTS_MAX, Moment, Story, Telling, What};
use crate::tamper::{Tamper, Untouched};
use crate::tree;
use crate::watchers;
use crate::workload::Workload;

/// Runs a scenario and says what it came to.
pub fn run(scenario: &Scenario, choices: Choices) -> Story {
    go(scenario, choices, Telling::Short)
}

/// Runs a scenario and tells everything.
pub fn tell(scenario: &Scenario, choices: Choices) -> Story {
    go(scenario, choices, Telling::Whole)
}

fn go(scenario: &Scenario, choices: Choices, telling: Telling) -> Story {
    match &scenario.plan {
        Plan::Machines(workload) => {
            let mutant = workload.mutant.as_deref().and_then(mutants::named);
            match mutant {
                Some(mutant) => machines(workload, choices, &mut *mutant.make(), telling),
                None => machines(workload, choices, &mut Untouched, telling),
            }
        }
        Plan::World(play) => world(play, choices, telling),
    }
}

fn machines(workload: &Workload, choices: Choices, tamper: &mut dyn Tamper, telling: Telling) -> Story {
    tree::run(workload, choices, tamper, checkers::all(workload), telling)
}

fn world(play: &Play, choices: Choices, telling: Telling) -> Story {
    let watchers = watchers::all(play);
    let checkers = watchers.iter().map(|watcher| watcher.name()).collect();
    let tells = telling == Telling::Whole;
    let cast = Cast { choices, watchers, tools: chores(play.faults.tools), tells };
    let performed = match perform(play, cast) {
        Ok(performed) => performed,
        Err(error) => {
            let promise = "a world can be made of its play";
            let violation = Violation { checker: "world", promise, at: Duration::ZERO, text: error.to_string() };
            return Story { violation: Some(violation), checkers, ..Story::default() };
        }
    };
    let kept = performed.story.len().min(MOMENTS_MAX);
    let moments_lost = (performed.story.len() - kept) as u64;
    let note = |(at, line)| Moment { at, what: What::Note(line) };
    Story {
        digest: performed.digest,
        choices: performed.choices,
        steps: usize::try_from(performed.steps).unwrap_or(usize::MAX),
        nodes: performed.nodes,
        lasted: performed.lasted,
        violation: performed.violation,
        checkers,
        coverage: performed.coverage,
        moments: performed.story.into_iter().take(kept).map(note).collect(),
        moments_lost,
        ..Story::default()
    }
}
