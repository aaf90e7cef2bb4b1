//! What a search came to, as a table: scenarios down, checkers across, and in each field how many runs broke it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use toolwarden_sim::campaign::Tally;
use toolwarden_sim::scenario::Scenario;

/// The table, and below it a line for each promise that was broken.
pub(super) fn table(scenarios: &[Scenario], tallies: &[Tally]) -> String {
    let mut checkers: Vec<&'static str> = Vec::new();
    for tally in tallies {
        for checker in tally.checkers.iter().chain(tally.broken.keys()) {
            if !checkers.contains(checker) {
                checkers.push(checker);
            }
        }
    }
    let widest = scenarios.iter().map(|scenario| scenario.name.len()).max().unwrap_or(0).max("scenario".len());
    let mut out = format!("{:<widest$}  {:>8}", "scenario", "runs");
    for checker in &checkers {
        let _ = write!(out, "  {checker}");
    }
    for (scenario, tally) in scenarios.iter().zip(tallies) {
        let _ = write!(out, "\n{:<widest$}  {:>8}", scenario.name, tally.runs);
        for checker in &checkers {
            let field = match tally.broken.get(checker) {
                Some((times, _)) => format!("{times} BAD"),
                None if tally.checkers.contains(checker) => "ok".to_owned(),
                None => "-".to_owned(),
            };
            let _ = write!(out, "  {field:<width$}", width = checker.len());
        }
        out.truncate(out.trim_end().len());
    }
    for (scenario, tally) in scenarios.iter().zip(tallies) {
        for (checker, (times, seed)) in &tally.broken {
            let named = &scenario.name;
            let _ = write!(
                out,
                "\nBROKEN: {named}: {checker} in {times} runs, first with seed {seed}; toolwarden sim shrink {seed} \
                 --scenario {named}"
            );
        }
    }
    let runs: u64 = tallies.iter().map(|tally| tally.runs).sum();
    let steps: u64 = tallies.iter().map(|tally| tally.steps).sum();
    let broken: u64 = tallies.iter().flat_map(|tally| tally.broken.values()).map(|(times, _)| times).sum();
    let _ = write!(out, "\n{runs} runs, {steps} steps, {broken} broken promises");
    out
}

/// Which fault met which state how often, over all scenarios.
pub(super) fn sometimes(tallies: &[Tally]) -> String {
    let mut all: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for tally in tallies {
        for (meeting, times) in &tally.sometimes {
            *all.entry(*meeting).or_default() += times;
        }
    }
    let lines: Vec<String> =
        all.iter().map(|((fault, state), times)| format!("{times:>9} x {fault} met {state}")).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use toolwarden_sim::campaign::campaign;
    use toolwarden_sim::scenario::{Plan, shipped};

    use super::{sometimes, table};

    #[test]
    fn the_table_has_every_checker_and_says_how_to_go_on_from_what_broke() {
        let mut bad = shipped::named("wide").unwrap().unwrap();
        if let Plan::Machines(workload) = &mut bad.plan {
            workload.mutant = Some("second-ending".to_owned());
        }
        let scenarios = [shipped::named("tiny").unwrap().unwrap(), bad];
        let tallies = campaign(&scenarios, 0..40, NonZeroUsize::MIN, &|| true, |_| {});
        let text = table(&scenarios, &tallies);
        assert!(text.contains("leases  "), "{text}");
        assert!(text.contains("BROKEN: wide: terminal in 40 runs, first with seed 0"), "{text}");
        assert!(text.contains("80 runs, "), "{text}");
        assert!(sometimes(&tallies).contains(" x cancel met "), "{}", sometimes(&tallies));
    }
}
