//! The simulation's own tests of worlds: the same choices are the same world, and what no world may do.

#![expect(clippy::disallowed_methods, reason = "tests start other processes and read how long they take")]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::driver::run;
use toolwarden_tools::workflow::event::{Entry, Event};

use crate::happening::TraceDigest;
use crate::narrative::Narrator;
use crate::planted;
use crate::play::{Act, Faults, Move, Play};
use crate::plays::shipped;
use crate::resumption::{Met, compare};
use crate::scenario::Plan;
use crate::scenario::shipped::named;
use crate::seed::Choices;
use crate::shrink::shrink;
use crate::sight::{Sight, Watcher};
use crate::stage::{Cast, Performance, chores, perform};
use crate::story::Moment;
use crate::systematic::systematic;
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

/// A story as people read it.
fn lines(story: &[Moment]) -> Vec<String> {
    let mut narrator = Narrator::default();
    story.iter().map(|moment| narrator.line(moment)).collect()
}

#[test]
fn a_plain_world_comes_to_its_end() {
    let world = go(&small(), Choices::from_list(Vec::new()), true);
    println!("{}", lines(&world.story).join("\n"));
    assert_eq!(world.violation, None);
    let told = world.aftermath.told[0].outcome.as_ref().unwrap();
    assert_eq!((told.status.as_str(), told.text.as_str()), ("completed", "all done"));
    assert_eq!(world.aftermath.files["notes.txt"], b"hello");
}

/// Panics with the place where two stories of one seed part.
fn differ(play: &Play, seed: u64) -> ! {
    let story = || lines(&go(play, Choices::from_seed(seed), true).story);
    let (one, other) = (story(), story());
    let at = one.iter().zip(&other).position(|(one, other)| one != other).unwrap_or(0);
    let around = |story: &[String]| {
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

/// How many seeds of a shipped play every test run takes.
const SEEDS: u64 = 12;

/// How many of those plays that take long.
const FEW_SEEDS: u64 = 4;

/// Plays of which a world takes more than a tenth of a second in a build that is not optimised.
const LONG: [&str; 5] =
    ["world-cancel-storm", "world-download-in-parts", "world-everything", "world-nested-limits", "world-rude-commands"];

/// How many seeds of this play every test run takes.
fn seeds_of(name: &str) -> u64 {
    if LONG.contains(&name) { FEW_SEEDS } else { SEEDS }
}

/// Plays a shipped play for these seeds, until one is broken; gives what they met.
fn sweep(name: &str, play: &Play, seeds: std::ops::Range<u64>, broken: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut met = BTreeSet::new();
    for seed in seeds {
        let world = go(play, Choices::from_seed(seed), false);
        if let Some(violation) = world.violation {
            let told = go(play, Choices::from_seed(seed), true);
            println!("{}", lines(&told.story).join("\n"));
            broken.push(format!("{} seed {seed}: {violation}", name));
            break;
        }
        met.extend(world.coverage);
    }
    met
}

/// What some plays are about has to happen in them.
const SOMEWHERE: [(&str, &str); 17] = [
    ("world-compaction", "a summary that is asked for"),
    ("world-downloads", "a server that leads away"),
    ("world-edits", "a file that somebody else changed"),
    ("world-elsewhere", "a host elsewhere that dies"),
    ("world-forks", "a fork"),
    ("world-long-answers", "a stream that is not well"),
    ("world-models", "a stream that is not well"),
    ("world-models-claude", "a stream that is not well"),
    ("world-models-responses", "a stream that is not well"),
    ("world-objects", "a stream without its end"),
    ("world-objects", "an object that does not fit"),
    ("world-objects", "an object that is cut"),
    ("world-objects-chat", "an object that does not fit"),
    ("world-objects-claude", "an object that does not fit"),
    ("world-old-snapshots", "a snapshot of an older version"),
    ("world-patches", "a file that somebody else changed"),
    ("world-rude-commands", "a command that forked when it was told to end"),
];

#[test]
fn no_seed_breaks_a_promise_in_any_shipped_play() {
    let mut broken = Vec::new();
    for (name, play) in plays() {
        let met = sweep(&name, &play, 0..seeds_of(&name), &mut broken);
        println!("{}: {} unusual things: {met:?}", name, met.len());
        if met.is_empty() && broken.is_empty() {
            broken.push(format!("{name}: nothing unusual happened"));
        }
        let missed = SOMEWHERE.iter().find(|(play, what)| *play == name && !met.contains(what));
        if let (Some((_, what)), true) = (missed, broken.is_empty()) {
            broken.push(format!("{name}: no seed had {what}"));
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Worlds in which a promise was broken once; `FOUND.md` says what it was.
#[test]
fn a_world_that_was_bad_stays_good() {
    let mut broken = Vec::new();
    let plays: BTreeMap<String, Play> = plays().into_iter().collect();
    for (name, seed) in [
        ("world-compaction", 17),
        ("world-objects", 126),
        ("world-plain-patches", 44),
        ("world-programs", 97),
        ("world-workflow-cancel", 355),
    ] {
        sweep(name, &plays[name], seed..seed + 1, &mut broken);
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

/// A crash at any step changes nothing but what it met: answers, results, files and effects are those of the run that was
/// not interrupted.
#[test]
fn a_run_that_was_interrupted_comes_to_the_same_answer() {
    let two = Play {
        sessions: vec![vec!["go".to_owned(), "again".to_owned()]],
        turns: format!("{}\n{{\"when\": \"again\", \"text\": \"once more\"}}", small().turns),
        ..small()
    };
    for play in [small(), two] {
        let play = Play { keeps: true, ..play };
        let plain = go(&play, Choices::from_list(Vec::new()), false);
        assert!(plain.steps > 20, "{}", plain.steps);
        let (mut interrupted, mut whole) = (0, 0);
        for step in 1..=plain.steps {
            let moves = vec![Move { step, act: Act::Crash, session: 0 }];
            let world = go(&Play { moves, ..play.clone() }, Choices::from_list(Vec::new()), false);
            assert_eq!((world.violation.clone(), world.aftermath.crashes), (None, 1), "step {step}");
            match compare(&plain, &world) {
                Ok(met) if met == Met::default() => whole += 1,
                Ok(_) => interrupted += 1,
                Err(difference) => panic!("step {step}: {difference}"),
            }
        }
        // Both happen, so both were looked at.
        assert!(interrupted > 0 && whole > 0, "{interrupted} interrupted, {whole} whole");
    }
}

/// What a comparison is worth: a file, an effect, a result or an answer that differs is found.
#[test]
fn a_difference_from_the_run_that_was_not_interrupted_is_found() {
    let world = || go(&Play { keeps: true, ..small() }, Choices::from_list(Vec::new()), false);
    let plain = world();
    assert_eq!(compare(&plain, &plain), Ok(Met::default()));
    let differs = |spoil: fn(&mut Performance)| {
        let mut other = world();
        spoil(&mut other);
        compare(&plain, &other).unwrap_err()
    };
    assert!(differs(|world| drop(world.aftermath.files.remove("notes.txt"))).contains("1 files are missing"));
    let changed = |world: &mut Performance| drop(world.aftermath.files.insert("notes.txt".to_owned(), Vec::new()));
    assert!(differs(changed).contains("notes.txt holds"));
    assert!(differs(|world| *world.effects.get_mut("a").unwrap() += 1).contains("2 times"));
    assert!(differs(|world| world.effects.clear()).contains("1 effects are missing"));
    assert!(differs(|world| world.aftermath.told.clear()).contains("told of 0 prompts"));
    let another = |world: &mut Performance| world.aftermath.told[0].outcome.as_mut().unwrap().text.clear();
    assert!(differs(another).contains("the answer is"));
    assert!(differs(|world| world.aftermath.kept.clear()).contains("the sessions are"));
}

/// Runs of the small world that are gone through in order.
const ORDERED_RUNS: usize = 250;

#[test]
fn a_tiny_world_keeps_its_promises_whatever_is_done_at_each_step() {
    let mut tiny = named("world-tiny").unwrap().unwrap();
    // Three of its seven ways; `scripts/search` takes all of them.
    if let Plan::World(play) = &mut tiny.plan {
        play.acts = vec![Act::CancelRun, Act::Close, Act::Kill];
    }
    let Plan::World(play) = &tiny.plan else { panic!("it is a world") };
    let plain = go(play, Choices::from_list(Vec::new()), false);
    let covered = systematic(ORDERED_RUNS, |choices| {
        let story = run(&tiny, choices);
        (story.violation, story.choices, story.bounds)
    });
    println!("{covered:?}");
    assert!(covered.violation.is_none() && covered.departures() >= Some(1), "{covered:?}");
    // Each of its acts at each entry of the journal is among the runs with one departure.
    let entries = lines(&go(play, Choices::from_list(Vec::new()), true).story);
    let entries = entries.iter().filter(|line| line.contains("  journal ")).count();
    assert!(covered.levels[1].done >= entries * play.acts.len(), "{entries} entries, {} steps", plain.steps);
}

#[test]
fn a_search_of_worlds_says_which_fault_met_what() {
    let mut met = BTreeSet::new();
    for (name, seeds) in
        [("world-cancel-storm", 0..8), ("world-confirmation-races", 0..8), ("world-rude-commands", 0..8)]
    {
        let scenario = named(name).unwrap().unwrap();
        for seed in seeds {
            met.extend(run(&scenario, scenario.choices(seed)).sometimes.into_keys());
        }
    }
    let states: BTreeSet<&str> = met.iter().map(|(_, state)| *state).collect();
    for wanted in ["a model that was asked", "several tools at work", "a question to a person", "a command at work"] {
        assert!(states.contains(wanted), "{wanted}: {states:?}");
    }
    assert!(met.iter().any(|(what, _)| *what == "a cancelled run"), "{met:?}");
}

/// Bad input: a world that cannot end is bounded, and says what it waits for.
#[test]
fn a_world_that_cannot_end_says_what_it_waits_for() {
    let play = Play {
        turns: r#"{"calls": [{"tool": "chore", "arguments": {"deaf": true, "ms": 900000000000}}]}"#.to_owned(),
        run_ms: None,
        ..Play::default()
    };
    let world = go(&play, Choices::from_list(Vec::new()), false);
    let violation = world.violation.unwrap();
    assert_eq!((violation.checker, violation.promise), ("world", "a world ends"));
    let (bound, waits) = ("had not ended after 24 hours of virtual time", "of chore has started and not ended");
    assert!(violation.text.contains(bound) && violation.text.contains(waits), "{}", violation.text);
}

/// Keeps what stands in the logs of a world.
#[derive(Default)]
struct Logs(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Watcher for Logs {
    fn name(&self) -> &'static str {
        "logs"
    }

    fn promise(&self) -> &'static str {
        "none"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        let mut logs = self.0.lock().unwrap();
        match sight {
            Sight::Logged { path, bytes, .. } => logs.entry((*path).to_owned()).or_default().extend_from_slice(bytes),
            Sight::LogCut { path, bytes } => logs.entry((*path).to_owned()).or_default().truncate(*bytes as usize),
            _ => {}
        }
        Ok(())
    }
}

/// What a world leaves in its logs, without the moments.
fn logs_of(play: &Play) -> (Performance, Vec<(String, Vec<Event>)>) {
    let logs = Arc::new(Mutex::new(BTreeMap::new()));
    let mut watchers = watchers::all(play);
    watchers.push(Box::new(Logs(Arc::clone(&logs))));
    let cast = Cast { choices: Choices::from_list(Vec::new()), watchers, tools: chores(false), tells: false };
    let world = perform(play, cast).unwrap();
    let logs = std::mem::take(&mut *logs.lock().unwrap());
    let events = |bytes: Vec<u8>| {
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec);
        lines.map(|line| without_moments(serde_json::from_slice::<Entry>(&line).unwrap().event)).collect()
    };
    (world, logs.into_iter().map(|(path, bytes)| (path, events(bytes))).collect())
}

/// Without what another process gives another name to: moments, and the ids of child runs.
fn without_moments(event: Event) -> Event {
    match event {
        Event::StepCompleted { step_id, output } if output.get("tool").is_some() => {
            Event::StepCompleted { step_id, output: output["exit_code"].clone() }
        }
        Event::StepRetrying { step_id, attempt, error, .. } => {
            Event::StepRetrying { step_id, attempt, error, retry_at_ms: 0 }
        }
        other => other,
    }
}

/// The play of a workflow as it is written, with nothing that goes wrong by itself.
fn calm(name: &str) -> Play {
    let (_, play) = plays().into_iter().find(|(known, _)| known == name).unwrap();
    Play { faults: Faults::default(), acts: Vec::new(), ..play }
}

/// Killed at any step and called again, a workflow ends with the log of one that nobody disturbed.
#[test]
fn a_workflow_that_is_cut_off_at_any_step_ends_with_the_same_log() {
    let play = calm("world-workflow");
    let (plain, whole) = logs_of(&play);
    assert_eq!((plain.violation, whole.len()), (None, 2));
    assert!(whole.iter().all(|(_, events)| matches!(events.last(), Some(Event::RunCompleted { .. }))), "{whole:?}");
    for (act, each) in [(Act::Crash, 4), (Act::CancelCall, 9)] {
        for step in (1..=plain.steps).step_by(each) {
            let moves = vec![Move { step, act, session: 0 }];
            let (world, logs) = logs_of(&Play { moves, ..play.clone() });
            assert_eq!(world.violation, None, "{act:?} at step {step}");
            // A step that was cancelled by itself has failed for good; a call that was cancelled is gone on with.
            if act == Act::Crash {
                assert_eq!(logs, whole, "{act:?} at step {step}");
            }
        }
    }
}

/// A script can be cancelled at each step of its life, each of its calls among them.
#[test]
fn a_program_can_be_cancelled_at_every_step() {
    let play = Play { sessions: vec![vec!["go".to_owned()]], ..calm("world-programs") };
    let plain = go(&play, Choices::from_list(Vec::new()), false);
    let told = plain.aftermath.told[0].outcome.as_ref().unwrap();
    assert_eq!((plain.violation, told.text.as_str()), (None, "the program is done"));
    let mut cancelled = 0;
    for (act, each) in [(Act::CancelCall, 1), (Act::CancelRun, 3), (Act::DropRun, 5)] {
        for step in (1..=plain.steps).step_by(each) {
            let moves = vec![Move { step, act, session: 0 }];
            let world = go(&Play { moves, ..play.clone() }, Choices::from_list(Vec::new()), false);
            assert_eq!(world.violation, None, "{act:?} at step {step}");
            cancelled += u64::from(world.acted.is_some());
        }
    }
    assert!(cancelled > plain.steps / 2, "{cancelled} of {}", plain.steps);
}

/// An object can be cancelled at each step of its life, and its process killed: no request goes on, and none is given twice.
/// Takes longer than other tests: each step is a world.
#[test]
fn an_object_can_be_cancelled_at_every_step() {
    let play = Play { sessions: vec![vec!["go".to_owned()]], ..calm("world-objects") };
    let plain = go(&play, Choices::from_list(Vec::new()), false);
    let told = plain.aftermath.told[0].outcome.as_ref().unwrap();
    assert_eq!((plain.violation, told.status.as_str()), (None, "completed"));
    let mut acted = 0;
    for (act, each) in [(Act::CancelCall, 1), (Act::Crash, 7), (Act::DropRun, 11)] {
        for step in (1..=plain.steps).step_by(each) {
            let moves = vec![Move { step, act, session: 0 }];
            let world = go(&Play { moves, ..play.clone() }, Choices::from_list(Vec::new()), false);
            assert_eq!(world.violation, None, "{act:?} at step {step}");
            acted += u64::from(world.acted.is_some());
        }
    }
    assert!(acted > plain.steps / 2, "{acted} of {}", plain.steps);
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
