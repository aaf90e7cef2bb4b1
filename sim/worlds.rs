//! The simulation's own tests of worlds: the same choices are the same world, and what no world may do.

#![expect(clippy::disallowed_methods, reason = "tests start other processes and read how long they take")]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use crate::happening::TraceDigest;
use crate::planted;
use crate::play::{Act, Faults, Move, Play};
use crate::plays::shipped;
use crate::seed::Choices;
use crate::shrink::shrink;
use crate::sight::{Sight, Watcher};
use crate::stage::{Cast, Performance, chores, perform};
use crate::watchers;

/// The shipped plays, each with its name.
fn plays() -> Vec<(String, Play)> {
    shipped().unwrap().into_iter().map(|named| (named.name, named.world)).collect()
}

fn go(play: &Play, choices: Choices, tells: bool) -> Performance {
    let cast = Cast { choices, watchers: watchers::all(play), tools: chores(play.faults.tools), tells };
    perform(play, cast).unwrap()
}

fn small() -> Play {
    Play {
        turns: r#"{"calls": [{"tool": "peek", "arguments": {"ms": 5}}, {"tool": "chore", "arguments": {"effect": "a", "ms": 20}}]}
{"calls": [{"tool": "write", "arguments": {"file_path": "notes.txt", "content": "hello"}}, {"tool": "bash", "arguments": {"command": "echo hi; sleep 1"}}]}
{"text": "all done"}"#
            .to_owned(),
        ..Play::default()
    }
}

fn wild() -> Play {
    Play {
        keeps: true,
        faults: Faults::ALL,
        hostile: true,
        acts: vec![Act::CancelRun, Act::CancelCall, Act::CancelAll, Act::DropRun, Act::Steer, Act::Save, Act::Crash],
        sessions: vec![vec!["go".to_owned(), "again".to_owned()], vec!["go".to_owned()]],
        turns: small().turns + "\n" + &small().turns.replace("\"a\"", "\"b\""),
        ..small()
    }
}

#[test]
fn a_plain_world_comes_to_its_end() {
    let world = go(&small(), Choices::from_list(Vec::new()), true);
    for (at, line) in &world.story {
        println!("{at:?} {line}");
    }
    assert_eq!(world.violation, None);
    let told = world.aftermath.told[0].outcome.as_ref().unwrap();
    assert_eq!((told.status.as_str(), told.text.as_str()), ("completed", "all done"));
    assert_eq!(world.aftermath.files["notes.txt"], b"hello");
}

/// Panics with the place where two stories of one seed part.
fn differ(play: &Play, seed: u64) -> ! {
    let story = || go(play, Choices::from_seed(seed), true).story;
    let (one, other) = (story(), story());
    let at = one.iter().zip(&other).position(|(one, other)| one != other).unwrap_or(0);
    let around = |story: &[(Duration, String)]| {
        story.iter().skip(at.saturating_sub(3)).take(5).map(|line| format!("{line:?}\n")).collect::<String>()
    };
    panic!("seed {seed} parts at {at}:\n{}\n{}", around(&one), around(&other));
}

#[test]
fn the_same_choices_are_the_same_world() {
    let mut plays = vec![small(), wild()];
    plays.extend(self::plays().into_iter().map(|(_, play)| play));
    for play in plays {
        for seed in 0..2 {
            let first = go(&play, Choices::from_seed(seed), false);
            if go(&play, Choices::from_seed(seed), false).digest != first.digest {
                differ(&play, seed);
            }
            let third = std::thread::scope(|scope| {
                scope.spawn(|| go(&play, Choices::from_list(first.choices.clone()), false).digest).join().unwrap()
            });
            assert_eq!(third, first.digest, "seed {seed}");
        }
    }
}

/// How many seeds of each shipped play every test run takes.
const SEEDS: u64 = 6;

/// Plays a shipped play for these seeds, until one is broken; gives what they met.
fn sweep(name: &str, play: &Play, seeds: std::ops::Range<u64>, broken: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut met = BTreeSet::new();
    for seed in seeds {
        let world = go(play, Choices::from_seed(seed), false);
        if let Some(violation) = world.violation {
            let told = go(play, Choices::from_seed(seed), true);
            let lines: Vec<String> = told.story.iter().map(|(at, line)| format!("{at:?} {line}")).collect();
            println!("{}", lines.join("\n"));
            broken.push(format!("{} seed {seed}: {violation}", name));
            break;
        }
        met.extend(world.coverage);
    }
    met
}

#[test]
fn no_seed_breaks_a_promise_in_any_shipped_play() {
    let mut broken = Vec::new();
    for (name, play) in plays() {
        let met = sweep(&name, &play, 0..SEEDS, &mut broken);
        println!("{}: {} unusual things: {met:?}", name, met.len());
        assert!(!met.is_empty(), "{}: nothing unusual happened", name);
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// A part that is broken in one way is found, by the promise that it breaks and by few seeds.
#[test]
fn every_planted_fault_is_caught() {
    let plays: BTreeMap<String, Play> = plays().into_iter().collect();
    let mut faults = Vec::new();
    for planted in planted::all() {
        let play = Play { mutant: Some(planted.name.to_owned()), ..plays[planted.scenario].clone() };
        let seeded = |seed| go(&play, Choices::from_seed(seed), false).violation;
        match (0..planted.seeds_max).find_map(|seed| Some((seed, seeded(seed)?))) {
            None => faults.push(format!("{}: not caught within {} seeds", planted.name, planted.seeds_max)),
            Some((seed, violation)) => {
                println!("{}: seed {seed}: {violation}", planted.name);
                if violation.checker != planted.watcher {
                    faults.push(format!("{}: {} finds it: {violation}", planted.name, violation.checker));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Run by hand, with as many seeds as there is patience for.
#[test]
#[ignore = "a long search, for nights"]
fn a_long_search_of_worlds() {
    let mut broken = Vec::new();
    for (name, play) in plays() {
        let begun = on_processor();
        let met = sweep(&name, &play, 0..LONG_SEEDS, &mut broken);
        println!("{}: {:?}: {met:?}", name, on_processor() - begun);
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// How many seeds of each play the long search takes.
const LONG_SEEDS: u64 = 300;

/// One number for a seed of each shipped play: what is printed by each process.
fn digest_of_all() -> u64 {
    let mut all = TraceDigest::new();
    for (_, play) in plays() {
        go(&play, Choices::from_seed(7), false).digest.hash(&mut all);
    }
    all.finish()
}

/// Run by the test below, in processes of its own.
#[test]
#[ignore = "prints a digest for another test"]
fn print_the_digest_of_all() {
    println!("digest of all: {}", digest_of_all());
}

#[test]
fn two_processes_come_to_the_same_worlds() {
    let print = || {
        let program = std::env::current_exe().unwrap();
        let test = ["--exact", "worlds::print_the_digest_of_all", "--ignored", "--nocapture"];
        let output = std::process::Command::new(program).args(test).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().find_map(|line| line.split("digest of all: ").nth(1).map(str::to_owned)).unwrap()
    };
    let (one, other) = (std::thread::spawn(print), digest_of_all());
    assert_eq!(one.join().unwrap(), other.to_string());
}

/// A crash at any step changes no answer, and no effect is done twice: the run that goes on is the run that would have
/// been, but for calls that were under way.
#[test]
fn a_run_that_was_interrupted_comes_to_the_same_answer() {
    let play = Play { keeps: true, ..small() };
    let plain = go(&play, Choices::from_list(Vec::new()), false);
    assert!(plain.steps > 20, "{}", plain.steps);
    let told = |world: &Performance| {
        let told: Vec<_> = world.aftermath.told.iter().map(|told| told.outcome.clone()).collect();
        told.into_iter().map(|outcome| outcome.map(|outcome| (outcome.status, outcome.text))).collect::<Vec<_>>()
    };
    for step in 1..=plain.steps {
        let moves = vec![Move { step, act: Act::Crash, session: 0 }];
        let world = go(&Play { moves, ..play.clone() }, Choices::from_list(Vec::new()), false);
        assert_eq!((world.violation.clone(), world.aftermath.crashes), (None, 1), "step {step}");
        assert_eq!(told(&world), told(&plain), "step {step}");
    }
}

/// Takes it for bad when anything is done after a crash: a promise that is easy to break.
#[derive(Default)]
struct NothingAfterACrash {
    crashed: bool,
}

impl Watcher for NothingAfterACrash {
    fn name(&self) -> &'static str {
        "planted"
    }

    fn promise(&self) -> &'static str {
        "nothing is done after a crash"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        self.crashed |= matches!(sight, Sight::Crashed);
        match sight {
            Sight::Effect { .. } if self.crashed => Err("something is done".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Most worlds that the test of shrinking plays.
const SHRINK_TRIES: usize = 150;

#[test]
fn a_bad_world_shrinks_to_what_matters() {
    let play = Play { keeps: true, acts: vec![Act::Save, Act::Crash], ..small() };
    let bad = |choices| {
        let watchers = vec![Box::<NothingAfterACrash>::default() as Box<dyn Watcher>];
        perform(&play, Cast { choices, watchers, tools: chores(false), tells: false }).unwrap()
    };
    let found = (0..60).map(|seed| bad(Choices::from_seed(seed))).find(|world| world.violation.is_some()).unwrap();
    let mut tries = 0;
    let shrunk = shrink(found.choices.clone(), |choices| {
        tries += 1;
        tries < SHRINK_TRIES && bad(Choices::from_list(choices.to_vec())).violation.is_some()
    });
    println!("{} choices, now {:?} after {tries} worlds", found.choices.len(), shrunk.choices);
    // One crash at one step; everything else plain.
    let matters = shrunk.choices.iter().filter(|choice| **choice != 0).count();
    assert!(matters <= 2 && shrunk.choices.len() < found.choices.len(), "{shrunk:?}");
    assert!(bad(Choices::from_list(shrunk.choices)).violation.is_some());
}

/// How long this thread has been on a processor.
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

/// Run by hand, optimised: how many worlds a second of a processor's time.
#[test]
#[ignore = "measures"]
fn how_fast_worlds_are() {
    for (name, play) in plays() {
        let (mut worlds, mut lasted, begun) = (0_u32, Duration::ZERO, on_processor());
        while on_processor() - begun < Duration::from_secs(2) {
            lasted += go(&play, Choices::from_seed(u64::from(worlds)), false).lasted;
            worlds += 1;
        }
        let took = on_processor() - begun;
        let rate = f64::from(worlds) / took.as_secs_f64();
        let speed = lasted.as_secs_f64() / took.as_secs_f64();
        println!("{}: {rate:.0} worlds a CPU-second, {speed:.0} times real time", name);
    }
}
