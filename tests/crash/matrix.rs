//! The matrix: every story, killed at every step, and gone on with.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use toolwarden::fact_book::StoredFact;
use toolwarden::facts::Fact;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::Store as _;
use toolwarden_tools::effects::store::directory::{DirectoryStore, Durability};

use super::deadly::Steps;
use super::story::{STORIES, Stage, Story, play};

const STORY: &str = "TOOLWARDEN_CRASH_STORY";
const FOLDER: &str = "TOOLWARDEN_CRASH_FOLDER";
const KILL_AT: &str = "TOOLWARDEN_CRASH_KILL_AT";

/// Steps that make a store.
const STORE_STEPS: u64 = 14;

fn story(name: &str) -> &'static Story {
    STORIES.iter().find(|story| story.name == name).unwrap()
}

fn play_here(story: &Story, folder: &Path, kill_at: u64) -> BTreeMap<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(play(story, &Stage::at(folder), Steps::new(kill_at)))
}

/// The other process: does nothing unless it is told to.
#[test]
fn a_process_that_is_killed() {
    let Ok(name) = std::env::var(STORY) else { return };
    let kill_at = std::env::var(KILL_AT).unwrap().parse().unwrap();
    play_here(story(&name), Path::new(&std::env::var(FOLDER).unwrap()), kill_at);
}

fn play_there(story: &Story, folder: &Path, kill_at: u64) -> ExitStatus {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "matrix::a_process_that_is_killed", "--nocapture"])
        .env(STORY, story.name)
        .env(FOLDER, folder)
        .env(KILL_AT, kill_at.to_string())
        .output()
        .unwrap();
    let is_killed = output.status.signal() == Some(9);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(is_killed || output.status.success(), "{} at {kill_at}: {}: {words}", story.name, output.status);
    output.status
}

/// The facts in a store, as (session, sequence, digest), and how many of them are turns of a model.
fn stored(stage: &Stage) -> (BTreeSet<String>, usize) {
    let (mut facts, mut turns) = (BTreeSet::new(), 0);
    if !stage.store().exists() {
        return (facts, turns);
    }
    let store = DirectoryStore::at(&stage.store(), Durability::Buffered).unwrap();
    for session in store.sessions().unwrap() {
        let found = store.look(&session).unwrap();
        assert_eq!(found.damage, None);
        for (sequence, bytes) in found.log.iter() {
            facts.insert(format!("{session} {sequence} {}", Digest::of(bytes)));
            let fact: StoredFact<Fact> = serde_json::from_slice(bytes).unwrap();
            turns += usize::from(matches!(fact.fact, Fact::ModelTurn { .. }));
        }
    }
    (facts, turns)
}

/// Kills a story at every step, and once more while it goes on; gives how many instants that were.
fn kill_everywhere(name: &str) -> u64 {
    let story = story(name);
    let whole = tempfile::tempdir().unwrap();
    let answers = play_here(story, whole.path(), 0);
    let effects = sorted(Stage::at(whole.path()).lines("effects"));
    let asked = Stage::at(whole.path()).lines("asked").len();
    let mut killed = 0;
    // How a store is made is the same in all of them.
    let first = if name == STORIES[0].name { 1 } else { STORE_STEPS };
    for kill_at in first.. {
        let folder = tempfile::tempdir().unwrap();
        if play_there(story, folder.path(), kill_at).success() {
            break;
        }
        killed += 1;
        // While it goes on it dies again, each time at another step.
        if kill_at % 6 == 0 && !play_there(story, folder.path(), kill_at % 17 + 1).success() {
            killed += 1;
        }
        let stage = Stage::at(folder.path());
        let (facts, turns) = stored(&stage);
        let acknowledged: BTreeSet<String> = stage.lines("acknowledged").into_iter().collect();
        let lost: Vec<&String> = acknowledged.difference(&facts).collect();
        assert!(lost.is_empty(), "{name} at {kill_at}: lost {lost:?}");
        let asked_before = stage.lines("asked").len();
        assert_eq!(play_here(story, folder.path(), 0), answers, "{name} at {kill_at}");
        let done = sorted(stage.lines("effects"));
        assert!(is_part_of(&done, &effects), "{name} at {kill_at}: an effect was done twice: {done:?}");
        if story.counts_turns {
            let asked_again = stage.lines("asked").len() - asked_before;
            assert_eq!(turns + asked_again, asked, "{name} at {kill_at}: a stored turn was asked for again");
        }
    }
    println!("{name}: {killed} instants");
    killed
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// Whether each line of `part` stands in `whole`, as often at the least; both sorted.
fn is_part_of(part: &[String], whole: &[String]) -> bool {
    let mut rest = whole.iter();
    part.iter().all(|line| rest.any(|other| other == line))
}

#[test]
fn effects() {
    let killed = kill_everywhere("effects");
    assert!(killed >= 80, "only {killed} instants");
}

#[test]
fn reads_and_an_effect() {
    let killed = kill_everywhere("reads_and_an_effect");
    assert!(killed >= 90, "only {killed} instants");
}

#[test]
fn conversation() {
    let killed = kill_everywhere("conversation");
    assert!(killed >= 90, "only {killed} instants");
}

#[test]
fn beside_each_other() {
    let killed = kill_everywhere("beside_each_other");
    assert!(killed >= 70, "only {killed} instants");
}

#[test]
fn nested() {
    let killed = kill_everywhere("nested");
    assert!(killed >= 70, "only {killed} instants");
}

/// A task in the background goes on after its process died, whenever that was, and its effect is done once at the most.
#[test]
fn in_the_background() {
    let killed = kill_everywhere("in_the_background");
    assert!(killed >= 100, "only {killed} instants");
}

#[test]
fn fork() {
    let killed = kill_everywhere("fork");
    assert!(killed >= 90, "only {killed} instants");
}

#[test]
fn the_checks_of_the_matrix_find_what_they_are_for() {
    let lines = |text: &str| sorted(text.split(' ').map(str::to_owned).collect());
    assert!(is_part_of(&lines("a b"), &lines("a b c")) && is_part_of(&lines("a a"), &lines("a a")));
    assert!(!is_part_of(&lines("a a"), &lines("a b")) && !is_part_of(&lines("d"), &lines("a b c")));
}
