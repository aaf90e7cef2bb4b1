//! Makes a failing case small: first its choices, then its world (fewer faults, cancels, sessions, runs, calls, members,
//! levels, plainer bodies), searching again after each step, then its choices once more.
//!
//! What is kept fails by the same checker, always. The case is written as a scenario file with its choices in it, so
//! that anybody can run it again with one command and nothing but that file.

use crate::driver::run;
use crate::play::{self, Play};
use crate::scenario::{Plan, Scenario};
use crate::seed::Choices;
use crate::shrink::shrink;
use crate::stage::check;
use crate::staleness::Staleness;
use crate::workload::{Behaviour, FaultKind, Mix, Workload};

/// Seeds that are tried in a tree of the machines that was made smaller, or in an index.
pub const SEARCH_SEEDS: u64 = 120;
/// The same in a world of the shipped parts, each run of which takes milliseconds.
pub const WORLD_SEARCH_SEEDS: u64 = 40;
/// Most steps towards a smaller world.
pub const STEPS_MAX: usize = 64;
/// No further step is made after so many runs.
pub const ATTEMPTS_MAX: usize = 30_000;
/// A search in a smaller world stops after so many failing runs and takes the shortest.
const ENOUGH: usize = 3;

/// A case that was made small.
#[derive(Debug, Clone, PartialEq)]
pub struct Small {
    /// The scenario with the choices in it.
    pub scenario: Scenario,
    /// How many runs it took.
    pub attempts: usize,
}

/// Makes the case of these choices small; none when it does not break a promise at all.
pub fn minimise(scenario: &Scenario, choices: Choices) -> Option<Small> {
    let story = run(scenario, choices);
    let checker = story.violation?.checker;
    let mut search = Search { checker, attempts: 1 };
    let mut scenario = scenario.clone();
    let mut list = search.cut(&scenario, story.choices);
    // Round and round: what made no difference in a larger world is tried again only when all else has been tried, and
    // when all have been tried in vain one after the other, nothing smaller fails.
    let (mut at, mut in_vain, mut steps) = (0, 0, 0);
    while steps < STEPS_MAX && search.attempts < ATTEMPTS_MAX {
        let plans = smaller(&scenario.plan);
        let count = plans.len();
        if in_vain >= count {
            break;
        }
        at %= count;
        let Some(plan) = plans.into_iter().nth(at) else { break };
        let candidate = Scenario { plan, choices: None, ..scenario.clone() };
        match search.again(&candidate, &list) {
            Some(found) => {
                // What was cut already and still fails has little more to give until the world is as small as it gets.
                if found != list {
                    list = search.cut(&candidate, found);
                }
                scenario = candidate;
                (in_vain, steps) = (0, steps + 1);
            }
            None => (at, in_vain) = (at + 1, in_vain + 1),
        }
    }
    let list = search.cut(&scenario, list);
    scenario.choices = Some(list);
    Some(Small { scenario, attempts: search.attempts })
}

struct Search {
    checker: &'static str,
    attempts: usize,
}

impl Search {
    /// The choices of a run when it fails as wanted.
    fn failing(&mut self, scenario: &Scenario, choices: Choices) -> Option<Vec<u32>> {
        self.attempts += 1;
        let story = run(scenario, choices);
        story.violation.is_some_and(|violation| violation.checker == self.checker).then_some(story.choices)
    }

    fn cut(&mut self, scenario: &Scenario, list: Vec<u32>) -> Vec<u32> {
        let checker = self.checker;
        let shrunk = shrink(list, |list| {
            let story = run(scenario, Choices::from_list(list.to_vec()));
            story.violation.is_some_and(|violation| violation.checker == checker)
        });
        self.attempts += shrunk.attempts;
        shrunk.choices
    }

    /// Looks for a failing run in a world that was made smaller: the same choices first, then other seeds.
    fn again(&mut self, scenario: &Scenario, list: &[u32]) -> Option<Vec<u32>> {
        if self.failing(scenario, Choices::from_list(list.to_vec())).is_some() {
            return Some(list.to_vec());
        }
        let seeds = if matches!(scenario.plan, Plan::World(_)) { WORLD_SEARCH_SEEDS } else { SEARCH_SEEDS };
        let mut found: Vec<Vec<u32>> = Vec::new();
        for seed in 0..seeds {
            found.extend(self.failing(scenario, Choices::from_seed(seed)));
            if found.len() >= ENOUGH {
                break;
            }
        }
        found.into_iter().min_by_key(Vec::len)
    }
}

/// Every way to make a plan one step smaller, the largest steps first.
fn smaller(plan: &Plan) -> Vec<Plan> {
    match plan {
        Plan::Machines(workload) => {
            let worlds = smaller_worlds(workload);
            worlds.into_iter().map(|workload| Plan::Machines(Box::new(workload))).collect()
        }
        Plan::Index(index) => smaller_indexes(index).into_iter().map(|index| Plan::Index(Box::new(index))).collect(),
        Plan::World(play) => smaller_plays(play).into_iter().map(|play| Plan::World(Box::new(play))).collect(),
    }
}

fn smaller_worlds(workload: &Workload) -> Vec<Workload> {
    let mut worlds = Vec::new();
    let mut changed = |change: &dyn Fn(&mut Workload)| {
        let mut world = workload.clone();
        change(&mut world);
        if world != *workload {
            worlds.push(world);
        }
    };
    let none = |world: &mut Workload| (world.faults.one_in, world.faults.at_effects_one_in) = (Some(0), 0);
    changed(&none);
    changed(&|world| world.faults.at_effects_one_in = 0);
    changed(&|world| world.cancel.clear());
    for at in 0..workload.cancel.len() {
        changed(&|world| {
            let _ = world.cancel.remove(at);
        });
    }
    // Without faults their kinds make no difference.
    if workload.faults.one_in != Some(0) {
        for kind in FaultKind::ALL {
            changed(&|world| leave_one_out(&mut world.faults.kinds, kind));
        }
    }
    for of in [
        (|world| &mut world.tree.sessions) as fn(&mut Workload) -> &mut u32,
        |world| &mut world.tree.runs,
        |world| &mut world.tree.calls,
        |world| &mut world.tree.members,
        |world| &mut world.tree.width,
    ] {
        changed(&|world| *of(world) = 1);
        changed(&|world| *of(world) = of(world).div_ceil(2));
        changed(&|world| *of(world) = of(world).saturating_sub(1).max(1));
    }
    changed(&|world| world.tree.depth = 0);
    changed(&|world| world.tree.depth = world.tree.depth.saturating_sub(1));
    changed(&|world| world.bodies.asks_one_in = 0);
    changed(&|world| world.bodies.manners.truncate(1));
    changed(&|world| world.bodies.graces_ms.truncate(1));
    changed(&|world| world.limits.sync_ms_max = 0);
    for of in [
        (|world| &mut world.commands) as fn(&mut Workload) -> &mut Mix,
        |world| &mut world.leaves,
        |world| &mut world.calls,
    ] {
        changed(&|world| *of(world) = Mix::new([(Behaviour::Work, 1)]));
        let kinds: Vec<Behaviour> = of(&mut workload.clone()).weights().iter().map(|(kind, _)| *kind).collect();
        for kind in kinds.iter().filter(|_| kinds.len() > 1) {
            changed(&|world| *of(world) = without(of(world), *kind));
        }
    }
    changed(&|world| world.tree.exact = true);
    worlds
}

fn smaller_indexes(index: &Staleness) -> Vec<Staleness> {
    let steps = [index.steps / 2, index.steps.saturating_sub(1)].into_iter().filter(|steps| *steps > 0);
    let fewer = steps.map(|steps| Staleness { steps, ..index.clone() });
    let calmer = [Staleness { races: false, ..index.clone() }, Staleness { faults: false, ..index.clone() }];
    fewer.chain(calmer).filter(|smaller| smaller != index).collect()
}

fn smaller_plays(play: &Play) -> Vec<Play> {
    let mut plays = Vec::new();
    let mut changed = |change: &dyn Fn(&mut Play)| {
        let mut smaller = play.clone();
        change(&mut smaller);
        if smaller != *play {
            plays.push(smaller);
        }
    };
    changed(&|play| play.sessions.truncate(1));
    for at in 0..play.sessions.len() {
        changed(&|play| play.sessions.get_mut(at).into_iter().for_each(|prompts| prompts.truncate(1)));
    }
    changed(&|play| play.acts.clear());
    for at in 0..play.acts.len() {
        changed(&|play| drop(play.acts.drain(at..=at)));
    }
    for at in 0..play.moves.len() {
        changed(&|play| drop(play.moves.drain(at..=at)));
    }
    changed(&|play| play.acts_max = play.acts_max.min(1));
    changed(&|play| play.faults = play::Faults::default());
    for of in [
        (|faults| &mut faults.files) as fn(&mut play::Faults) -> &mut bool,
        |faults| &mut faults.processes,
        |faults| &mut faults.store,
        |faults| &mut faults.blobs,
        |faults| &mut faults.http,
        |faults| &mut faults.model,
        |faults| &mut faults.person,
        |faults| &mut faults.tools,
    ] {
        changed(&|play| *of(&mut play.faults) = false);
    }
    changed(&|play| play.hostile = false);
    changed(&|play| play.files.clear());
    changed(&|play| play.pages.clear());
    changed(&|play| play.offers.clear());
    changed(&|play| play.outsiders = false);
    changed(&|play| play.plain_files = false);
    // A turn of the model is a line of its script.
    let turns: Vec<&str> = play.turns.lines().filter(|line| !line.trim().is_empty()).collect();
    for at in (0..turns.len()).filter(|_| turns.len() > 1) {
        let rest: Vec<&str> = turns.iter().enumerate().filter(|(turn, _)| *turn != at).map(|(_, line)| *line).collect();
        changed(&|play| play.turns = rest.join("\n"));
    }
    plays.retain(|play| check(play).is_ok());
    plays
}

/// Takes a kind out of a list of which the empty one means all.
fn leave_one_out(kinds: &mut Vec<FaultKind>, out: FaultKind) {
    if kinds.is_empty() {
        kinds.extend(FaultKind::ALL);
    }
    if kinds.len() > 1 {
        kinds.retain(|kind| *kind != out);
    }
}

fn without(mix: &Mix, out: Behaviour) -> Mix {
    Mix::new(mix.weights().iter().copied().filter(|(behaviour, _)| *behaviour != out))
}

#[cfg(test)]
mod tests {
    use super::minimise;
    use crate::driver::run;
    use crate::scenario::{Plan, Scenario, shipped};

    fn broken(name: &str, mutant: &str) -> Scenario {
        let mut scenario = shipped::named(name).unwrap().unwrap();
        if let Plan::Machines(workload) = &mut scenario.plan {
            workload.mutant = Some(mutant.to_owned());
        }
        scenario
    }

    #[test]
    fn a_case_gets_small_in_its_world_and_its_choices_and_still_fails_from_its_file() {
        let scenario = broken("wide", "dropped-lease-leaks");
        let small = minimise(&scenario, scenario.choices(0)).unwrap();
        let workload = small.scenario.workload().unwrap();
        // One tool that panics with a slot in its hand is what it takes.
        println!("{} runs: {}", small.attempts, small.scenario.to_text().unwrap());
        let crate::workload::Shape { sessions, runs, calls, members, .. } = workload.tree;
        assert!(sessions == 1 && runs * calls * members <= 6, "{workload:?}");
        assert_eq!(workload.faults.one_in, Some(0));
        assert!(small.scenario.choices.as_ref().unwrap().len() <= 30, "{:?}", small.scenario.choices);
        let again = Scenario::parse("small.toml", &small.scenario.to_text().unwrap()).unwrap();
        let story = run(&again, again.choices(7));
        assert_eq!(story.violation.unwrap().checker, "leases");
    }

    #[test]
    fn what_breaks_nothing_cannot_be_made_small() {
        let scenario = shipped::named("tiny").unwrap().unwrap();
        assert!(minimise(&scenario, scenario.choices(0)).is_none());
    }
}
