//! The sweep over seeds, the same run twice, and the mutants that show what the checkers are worth.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use crate::campaign::campaign;
use crate::driver::run;
use crate::mutants;
use crate::scenario::{Scenario, shipped};
use crate::seed::Choices;
use crate::shrink::shrink;
use crate::story::Story;
use crate::systematic::systematic;

/// Seeds of each shipped scenario in every test run; the long job of `scripts/` takes more.
const SEEDS: u64 = 500;

fn named(name: &str) -> Scenario {
    shipped::named(name).unwrap().unwrap()
}

/// The scenario with a mutant in the place of the machines.
fn broken(name: &str, mutant: &str) -> Scenario {
    let mut scenario = named(name);
    if let crate::scenario::Plan::Machines(workload) = &mut scenario.plan {
        workload.mutant = Some(mutant.to_owned());
    }
    scenario
}

/// Those for the machines; worlds have their own tests, beside this file.
fn machines() -> Vec<Scenario> {
    let all = shipped::all().unwrap();
    all.into_iter().filter(|scenario| scenario.workload().is_some()).collect()
}

fn seeded(scenario: &Scenario, seed: u64) -> Story {
    run(scenario, scenario.choices(seed))
}

fn listed(scenario: &Scenario, list: &[u32]) -> Story {
    run(scenario, Choices::from_list(list.to_vec()))
}

const EVERYWHERE: [&str; 19] = [
    "a backstop",
    "a body that never began",
    "a budget that refuses",
    "a cancel before the start",
    "a cancel given twice",
    "a child killed from above",
    "a crash",
    "a crash above children",
    "a fan-out that ended early",
    "a lane that fails with slots out",
    "a panic",
    "a question that nobody answered",
    "a refused child",
    "a slot that crossed its withdrawal",
    "a slot taken in passing",
    "a slot taken in passing that somebody waits for",
    "a wish that died with its node",
    "an abandoned body",
    "an aborted body",
];

/// In some scenarios; what a scenario is about has to happen in it.
const SOMEWHERE: [(&str, &str); 7] = [
    ("scarce", "a full line"),
    ("scarce", "an account closed while it is used"),
    ("races", "a desk that fails with questions open"),
    ("slow-journal", "a record that failed"),
    ("slow-journal", "a batch that was stored and not acknowledged"),
    ("restart-storm", "a lane that fails with slots out"),
    ("open-breaker", "an open breaker"),
];

#[test]
fn no_seed_breaks_a_promise_in_any_scenario_of_the_machines() {
    let (mut everything, scenarios) = (BTreeSet::new(), machines());
    let jobs = NonZeroUsize::new(2).unwrap();
    let mut digests = vec![BTreeSet::new(); scenarios.len()];
    let tallies = campaign(&scenarios, 0..SEEDS, jobs, &|| true, |verdict| {
        let name = &scenarios[verdict.scenario].name;
        assert!(verdict.violation.is_none(), "{name} seed {}: {:?}", verdict.seed, verdict.violation);
        digests[verdict.scenario].insert(verdict.digest);
    });
    for ((scenario, tally), digests) in scenarios.iter().zip(tallies).zip(digests) {
        println!("{}: {} nodes a run, {} different runs", scenario.name, tally.nodes / SEEDS, digests.len());
        let wanted = SOMEWHERE.iter().filter(|(name, _)| *name == scenario.name);
        let missed: Vec<_> = wanted.filter(|(_, what)| !tally.coverage.contains(what)).collect();
        assert!(missed.is_empty(), "no seed had {missed:?}");
        assert!(digests.len() as u64 > SEEDS / 4, "{}: only {} different runs", scenario.name, digests.len());
        everything.extend(tally.coverage);
    }
    let missed: Vec<_> = EVERYWHERE.iter().filter(|what| !everything.contains(*what)).collect();
    assert!(missed.is_empty(), "no seed had {missed:?}");
}

#[test]
fn the_same_seed_is_the_same_run_also_in_a_fresh_thread_and_so_is_its_list() {
    for scenario in machines() {
        for seed in 0..20 {
            let first = seeded(&scenario, seed);
            assert_eq!(seeded(&scenario, seed).digest, first.digest);
            let other = scenario.clone();
            assert_eq!(std::thread::spawn(move || seeded(&other, seed).digest).join().unwrap(), first.digest);
            let replay = listed(&scenario, &first.choices);
            assert_eq!((replay.digest, replay.choices, replay.steps), (first.digest, first.choices, first.steps));
        }
    }
}

#[test]
fn without_choices_everything_goes_well_and_nothing_is_left() {
    for name in ["wide", "deep", "scarce", "plain", "sixteen-wide", "tiny"] {
        let story = listed(&named(name), &[]);
        assert_eq!(story.violation, None);
        let odd: Vec<_> = story.coverage.iter().filter(|what| !what.starts_with("a slot taken in passing")).collect();
        assert!(story.nodes >= 4 && odd.is_empty(), "{name}: {odd:?}");
    }
}

/// The two scenarios that the pace is measured with are as large as they say.
#[test]
fn the_measured_trees_are_whole() {
    for (name, nodes) in [("plain", 3 + 4 * (2 + 8)), ("sixteen-wide", 3 + 2 * (2 + 32))] {
        assert_eq!(listed(&named(name), &[]).nodes, nodes, "{name}");
    }
}

/// A machine or a mount that is broken in one way is found, by the promise that it breaks and by few seeds.
#[test]
fn every_mutant_is_caught() {
    let mut faults = Vec::new();
    for mutant in mutants::all() {
        let scenario = broken(mutant.scenario, mutant.name);
        let first = (0..mutant.seeds_max).find_map(|seed| Some((seed, seeded(&scenario, seed).violation?)));
        match first {
            None => faults.push(format!("{}: not caught within {} seeds", mutant.name, mutant.seeds_max)),
            Some((seed, violation)) => {
                println!("{}: seed {seed}: {violation}", mutant.name);
                if violation.checker != mutant.checker {
                    faults.push(format!("{}: {} finds it: {violation}", mutant.name, violation.checker));
                }
            }
        }
    }
    assert!(mutants::all().count() >= 25);
    assert!(faults.is_empty(), "{faults:#?}");
}

/// The shortest of several bad runs shrinks best: a long one may get stuck where no single cut helps.
#[test]
fn a_bad_run_shrinks_to_the_choices_that_matter() {
    let scenario = broken("deep", "cancel-lost-before-start");
    let bad = |story: &Story| story.violation.as_ref().is_some_and(|broken| broken.checker == "cancelled");
    let runs = (0..400).map(|seed| seeded(&scenario, seed)).filter(bad);
    let lists: Vec<Vec<u32>> = runs.map(|run| run.choices).collect();
    let shortest = lists.iter().min_by_key(|list| list.len()).unwrap();
    let longest = lists.iter().max_by_key(|list| list.len()).unwrap();
    // Six plain steps to a node that has not begun; a cancel; the cancel before the start.
    for (list, length_max, matter_max) in [(shortest, 9, 2), (longest, 60, 8)] {
        let shrunk = shrink(list.clone(), |choices| bad(&listed(&scenario, choices)));
        println!("{} choices, now {:?} after {} runs", list.len(), shrunk.choices, shrunk.attempts);
        assert!(shrunk.choices.len() <= length_max, "{shrunk:?}");
        assert!(shrunk.choices.iter().filter(|choice| **choice != 0).count() <= matter_max, "{shrunk:?}");
        assert!(bad(&listed(&scenario, &shrunk.choices)));
        // The machine as it is has no trouble with the same choices.
        assert_eq!(listed(&named("deep"), &shrunk.choices).violation, None);
    }
}

/// A late lease, in the scenario that looks for it: with the mount that had the bug a seed shows it, without it none.
#[test]
fn what_was_found_stays_fixed() {
    let old = broken("late-lease", "late-lease-kept");
    let seed = (0..3_000).find(|seed| seeded(&old, *seed).violation.is_some()).unwrap();
    let choices = seeded(&old, seed).choices;
    assert_eq!(listed(&named("late-lease"), &choices).violation, None);
}

/// Bad input: a run that is too large to end within its bound says what is under way.
#[test]
fn a_run_that_cannot_end_says_what_it_waits_for() {
    let text = "name = \"endless\"\nabout = \"Far too much.\"\ndriver = \"machines\"\n[tree]\nsessions = 256\n\
                runs = 256\n";
    let scenario = Scenario::parse("endless.toml", text).unwrap();
    let violation = listed(&scenario, &[]).violation.unwrap();
    assert_eq!(violation.checker, "ends");
    assert!(violation.text.contains("steps were not enough; under way: "), "{}", violation.text);
}

#[test]
fn a_tiny_world_keeps_its_promises_whatever_departs_from_its_plain_order() {
    let tiny = named("tiny");
    let covered = systematic(4_000, |choices| {
        let story = run(&tiny, choices);
        (story.violation, story.choices, story.bounds)
    });
    println!("{covered:?}");
    assert!(covered.violation.is_none() && covered.departures() >= Some(1), "{:?}", covered.violation);
}
