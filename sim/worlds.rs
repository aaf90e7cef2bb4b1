//! The simulation's own tests of worlds: the same choices are the same world, and what no world may do.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::fate::Fate;
use crate::play::{Act, Faults, Play};
use crate::plays::{NamedPlay, shipped};
use crate::seed::Choices;
use crate::stage::{Cast, MakeTools, Performance, perform};
use crate::twins::chore::Chore;
use crate::watchers;

fn tools(faulty: bool) -> MakeTools {
    Arc::new(move |fate: &Fate| {
        vec![Arc::new(Chore::chore(fate.clone(), faulty)) as _, Arc::new(Chore::peek(fate.clone(), faulty)) as _]
    })
}

fn go(play: &Play, choices: Choices, tells: bool) -> Performance {
    let cast = Cast { choices, watchers: watchers::all(play), tools: tools(play.faults.tools), tells };
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
    let around = |story: &[(std::time::Duration, String)]| {
        story.iter().skip(at.saturating_sub(3)).take(5).map(|line| format!("{line:?}\n")).collect::<String>()
    };
    panic!("seed {seed} parts at {at}:\n{}\n{}", around(&one), around(&other));
}

#[test]
fn the_same_choices_are_the_same_world() {
    let mut plays = vec![small(), wild()];
    plays.extend(shipped().unwrap().into_iter().map(|named| named.world));
    for play in plays {
        for seed in 0..4 {
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
const SEEDS: u64 = 12;

/// Plays a shipped play for these seeds, until one is broken; gives what they met.
fn sweep(named: &NamedPlay, seeds: std::ops::Range<u64>, broken: &mut Vec<String>) -> BTreeSet<&'static str> {
    let mut met = BTreeSet::new();
    for seed in seeds {
        let world = go(&named.world, Choices::from_seed(seed), false);
        if let Some(violation) = world.violation {
            let told = go(&named.world, Choices::from_seed(seed), true);
            let lines: Vec<String> = told.story.iter().map(|(at, line)| format!("{at:?} {line}")).collect();
            println!("{}", lines.join("\n"));
            broken.push(format!("{} seed {seed}: {violation}", named.name));
            break;
        }
        met.extend(world.coverage);
    }
    met
}

#[test]
fn no_seed_breaks_a_promise_in_any_shipped_play() {
    let mut broken = Vec::new();
    for named in shipped().unwrap() {
        assert_eq!((named.driver.as_str(), named.about.is_empty()), ("world", false), "{}", named.name);
        let met = sweep(&named, 0..SEEDS, &mut broken);
        println!("{}: {} unusual things: {met:?}", named.name, met.len());
        assert!(!met.is_empty(), "{}: nothing unusual happened", named.name);
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// Run by hand, with as many seeds as there is patience for.
#[test]
#[ignore = "a long search, for nights"]
fn a_long_search_of_worlds() {
    let mut broken = Vec::new();
    for named in shipped().unwrap() {
        let met = sweep(&named, 0..LONG_SEEDS, &mut broken);
        println!("{}: {met:?}", named.name);
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

/// How many seeds of each play the long search takes.
const LONG_SEEDS: u64 = 300;
