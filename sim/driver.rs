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
use crate::staleness;
use crate::story::{Story, Telling};
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
        Plan::Index(index) => staleness::run(index, choices, telling),
    }
}

fn world(play: &Play, choices: Choices, telling: Telling) -> Story {
    let (watchers, faulty) = (watchers::all(play), play.faults.tools);
    let checkers = watchers.iter().map(|watcher| watcher.name()).collect();
    let tools = chores(faulty);
    match perform(play, Cast { choices, watchers, tools, tells: telling == Telling::Whole }) {
        Ok(performed) => Story {
            digest: performed.digest,
            choices: performed.choices,
            bounds: performed.bounds,
            steps: usize::try_from(performed.steps).unwrap_or(usize::MAX),
            nodes: performed.nodes,
            lasted: performed.lasted,
            violation: performed.violation,
            checkers,
            coverage: performed.coverage,
            sometimes: performed.sometimes,
            moments: performed.story,
            moments_lost: performed.moments_lost,
        },
        // It was checked when it was loaded; what is left is a system that gives nothing.
        Err(error) => {
            let violation = Violation {
                checker: "stage",
                promise: "a play is performed",
                at: Duration::ZERO,
                text: error.to_string(),
            };
            Story { violation: Some(violation), checkers, ..Story::default() }
        }
    }
}

fn machines(workload: &Workload, choices: Choices, tamper: &mut dyn Tamper, telling: Telling) -> Story {
    tree::run(workload, choices, tamper, checkers::all(workload), telling)
}
