//! The sweep over seeds, the same run twice, and the planted faults that show what the checkers are worth.

mod planted;

use std::collections::BTreeSet;

use crate::checkers;
use crate::script::{DEEP, SCARCE, WIDE, WORKLOADS, Workload};
use crate::seed::Choices;
use crate::shrink::shrink;
use crate::tamper::{Tamper, Untouched};
use crate::tree::{Run, run};

use self::planted::{CancelLostBeforeStart, PLANTED};

/// Seeds of one sweep.
const SEEDS: u64 = 2_000;

fn go(workload: Workload, choices: Choices, tamper: &mut dyn Tamper) -> Run {
    run(workload, choices, tamper, checkers::all(&workload))
}

fn untouched(workload: Workload, seed: u64) -> Run {
    go(workload, Choices::from_seed(seed), &mut Untouched)
}

/// Runs all seeds; every one of these unusual things must have happened in some of them.
fn sweep(workload: Workload, wanted: &[&'static str]) {
    let (mut coverage, mut digests, mut nodes) = (BTreeSet::new(), BTreeSet::new(), 0);
    for seed in 0..SEEDS {
        let run = untouched(workload, seed);
        if let Some(violation) = run.violation {
            panic!("{} seed {seed}: {violation}\nreplay: {:?}", workload.name, run.choices);
        }
        coverage.extend(run.coverage);
        digests.insert(run.digest);
        nodes += run.nodes;
    }
    println!("{}: {} nodes a run, {} different runs, {coverage:?}", workload.name, nodes / SEEDS, digests.len());
    assert!(digests.len() as u64 > SEEDS * 9 / 10, "only {} different runs", digests.len());
    let missed: Vec<_> = wanted.iter().filter(|what| !coverage.contains(*what)).collect();
    assert!(missed.is_empty(), "no seed had {missed:?}");
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

#[test]
fn no_seed_breaks_a_promise_in_a_wide_world() {
    sweep(WIDE, &EVERYWHERE);
}

#[test]
fn no_seed_breaks_a_promise_in_a_deep_world() {
    sweep(DEEP, &EVERYWHERE);
}

#[test]
fn no_seed_breaks_a_promise_in_a_scarce_world() {
    sweep(SCARCE, &[&EVERYWHERE[..], &["a full line", "an account closed while it is used"]].concat());
}

/// Run by hand, with as many seeds as there is patience for.
#[test]
#[ignore = "a long search, for nights"]
fn a_long_search() {
    for workload in WORKLOADS {
        for seed in SEEDS..SEEDS + 20_000 {
            let run = untouched(workload, seed);
            assert!(run.violation.is_none(), "{} seed {seed}: {:?}", workload.name, run.violation);
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run_also_in_a_fresh_thread_and_so_is_its_list() {
    for workload in WORKLOADS {
        for seed in 0..100 {
            let first = untouched(workload, seed);
            assert_eq!(untouched(workload, seed).digest, first.digest);
            assert_eq!(std::thread::spawn(move || untouched(workload, seed).digest).join().unwrap(), first.digest);
            let replay = go(workload, Choices::from_list(first.choices.clone()), &mut Untouched);
            assert_eq!((replay.digest, replay.choices, replay.steps), (first.digest, first.choices, first.steps));
        }
    }
}

#[test]
fn without_choices_everything_goes_well_and_nothing_is_left() {
    for workload in WORKLOADS {
        let run = go(workload, Choices::from_list(Vec::new()), &mut Untouched);
        assert_eq!(run.violation, None);
        assert!(run.nodes >= 4 && run.coverage.is_empty(), "{run:?}");
    }
}

/// A machine that is broken in one way is found, by the promise that it breaks and by few seeds.
#[test]
fn every_planted_fault_is_caught() {
    for planted in PLANTED {
        let first = (0..planted.seeds_max).find_map(|seed| {
            let run = go(planted.workload, Choices::from_seed(seed), &mut *(planted.make)());
            run.violation.map(|violation| (seed, violation))
        });
        let Some((seed, violation)) = first else {
            panic!("{}: not caught within {} seeds", planted.name, planted.seeds_max);
        };
        println!("{}: seed {seed}: {violation}", planted.name);
        assert_eq!(violation.promise, planted.promise, "{}: {violation}", planted.name);
    }
}

/// The shortest of several bad runs shrinks best: a long one may get stuck where no single cut helps.
#[test]
fn a_bad_run_shrinks_to_the_choices_that_matter() {
    let broken = |choices| go(DEEP, choices, &mut CancelLostBeforeStart::default());
    let bad = |run: &Run| run.violation.as_ref().is_some_and(|broken| broken.promise == "a cancel is obeyed in time");
    let runs = (0..400).map(|seed| broken(Choices::from_seed(seed))).filter(bad);
    let lists: Vec<Vec<u32>> = runs.map(|run| run.choices).collect();
    let shortest = lists.iter().min_by_key(|list| list.len()).unwrap();
    let longest = lists.iter().max_by_key(|list| list.len()).unwrap();
    // Six plain steps to a node that has not begun; a cancel; the cancel before the start.
    for (list, length_max, matter_max) in [(shortest, 9, 2), (longest, 60, 8)] {
        let shrunk = shrink(list.clone(), |choices| bad(&broken(Choices::from_list(choices.to_vec()))));
        println!("{} choices, now {:?} after {} runs", list.len(), shrunk.choices, shrunk.attempts);
        assert!(shrunk.choices.len() <= length_max, "{shrunk:?}");
        assert!(shrunk.choices.iter().filter(|choice| **choice != 0).count() <= matter_max, "{shrunk:?}");
        assert!(bad(&broken(Choices::from_list(shrunk.choices.clone()))));
        // The machine as it is has no trouble with the same choices.
        assert_eq!(go(DEEP, Choices::from_list(shrunk.choices), &mut Untouched).violation, None);
    }
}

/// What the sweep found once, kept as the choices that showed it; `FOUND.md` tells what each was.
#[test]
fn what_was_found_stays_fixed() {
    let late_lease = [
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 5, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 11, 13, 0, 0, 11, 6, 6,
    ];
    let run = go(WIDE, Choices::from_list(late_lease.to_vec()), &mut Untouched);
    assert_eq!(run.violation, None);
}
