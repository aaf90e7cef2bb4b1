//! Sweeps.

use std::collections::BTreeMap;

use crate::checkers;
use crate::script::WORKLOADS;
use crate::seed::Choices;
use crate::tamper::Untouched;
use crate::tree::run;

#[test]
fn explore() {
    for workload in WORKLOADS {
        let (mut bad, mut steps, mut nodes) = (BTreeMap::new(), 0, 0);
        let mut coverage: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 0..1000 {
            let run = run(workload, Choices::from_seed(seed), &mut Untouched, checkers::all(&workload));
            steps += run.steps;
            nodes += run.nodes;
            for what in run.coverage {
                *coverage.entry(what).or_default() += 1;
            }
            if let Some(violation) = run.violation {
                let entry = bad.entry(violation.promise).or_insert((0, seed, violation.to_string()));
                entry.0 += 1;
            }
        }
        println!("{}: {} steps, {} nodes a run, {bad:#?} {coverage:#?}", workload.name, steps / 1000, nodes / 1000);
    }
}
