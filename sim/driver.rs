//! One way to run any scenario: by its driver, with choices, to a story.
//!
//! Commands, tables, shrinking and timelines go through here and know nothing of how a driver works. A driver keeps to
//! three rules: all of its randomness comes from the choices, the same choices give the same digest, and the list of
//! choices that it took is the replay.

use crate::checkers;
use crate::mutants;
use crate::scenario::{Plan, Scenario};
use crate::seed::Choices;
use crate::story::{Story, Telling};
use crate::tamper::{Tamper, Untouched};
use crate::tree;
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
    }
}

fn machines(workload: &Workload, choices: Choices, tamper: &mut dyn Tamper, telling: Telling) -> Story {
    tree::run(workload, choices, tamper, checkers::all(workload), telling)
}
