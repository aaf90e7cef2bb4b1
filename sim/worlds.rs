//! The simulation's own tests of worlds: the same choices are the same world, and what no world may do.

use std::sync::Arc;

use crate::fate::Fate;
use crate::play::{Act, Faults, Play};
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
    let cast = Cast { choices, watchers: watchers::all(play), tools: tools(play.faults.tools), tells, at_step: None };
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
        turns: small().turns + "\n" + &small().turns,
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

#[test]
fn the_same_choices_are_the_same_world() {
    for play in [small(), wild()] {
        for seed in 0..60 {
            let first = go(&play, Choices::from_seed(seed), false);
            let second = go(&play, Choices::from_seed(seed), false);
            if first.digest != second.digest {
                let (one, other) =
                    (go(&play, Choices::from_seed(seed), true), go(&play, Choices::from_seed(seed), true));
                let differs = one.story.iter().zip(&other.story).position(|(one, other)| one != other);
                let at = differs.unwrap_or(0);
                panic!(
                    "seed {seed} at {at}:\n{:#?}\n{:#?}",
                    &one.story[at.saturating_sub(5)..(at + 2).min(one.story.len())],
                    &other.story[at..(at + 2).min(other.story.len())]
                );
            }
            let third = std::thread::scope(|scope| {
                scope.spawn(|| go(&play, Choices::from_list(first.choices.clone()), false).digest).join().unwrap()
            });
            assert_eq!(third, first.digest, "seed {seed}");
            if let Some(violation) = first.violation {
                panic!("seed {seed}: {violation}");
            }
        }
    }
}
