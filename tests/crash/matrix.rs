//! The matrix: every story, killed at every step, and gone on with.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};

use toolwarden::fact_book::StoredFact;
use toolwarden::facts::Fact;
use toolwarden::models::Message;
use toolwarden::snapshot::Snapshot;
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

/// What a store holds.
#[derive(Default)]
struct Stored {
    /// Facts, as "session sequence digest".
    facts: BTreeSet<String>,
    /// How many turns of a model there are among all facts.
    turns: usize,
    /// Up to which fact the snapshot of each session holds all of them.
    snapshots: BTreeMap<String, u64>,
    /// The facts that were cut off.
    cut: u64,
}

impl Stored {
    /// Whether a fact is in its log or in its snapshot.
    fn holds(&self, fact: &str) -> bool {
        let mut words = fact.split(' ');
        let (session, sequence) = (words.next().unwrap(), words.next().unwrap().parse::<u64>().unwrap());
        self.facts.contains(fact) || self.snapshots.get(session).is_some_and(|position| sequence <= *position)
    }
}

fn is_turn(bytes: &[u8]) -> bool {
    let fact: StoredFact<Fact> = serde_json::from_slice(bytes).unwrap();
    matches!(fact.fact, Fact::ModelTurn { .. })
}

fn stored(stage: &Stage) -> Stored {
    let mut stored = Stored::default();
    if !stage.store().exists() {
        return stored;
    }
    let store = DirectoryStore::at(&stage.store(), Durability::Buffered).unwrap();
    for session in store.sessions().unwrap() {
        let found = store.look(&session).unwrap();
        assert_eq!(found.damage, None);
        for (sequence, bytes) in found.log.iter() {
            stored.facts.insert(format!("{session} {sequence} {}", Digest::of(bytes)));
            stored.turns += usize::from(is_turn(bytes));
        }
        let Some(bytes) = found.snapshot else { continue };
        let snapshot = Snapshot::read(bytes, &session).unwrap();
        let first = found.log.first_sequence().unwrap_or(1);
        if first > 1 && snapshot.head.log_from == 1 {
            assert!(first <= snapshot.head.position + 1, "{session}: facts are in neither log nor snapshot");
            stored.cut += first - 1;
            // Turns that are not in the log any more are in the conversation.
            let said = snapshot.state().unwrap().messages;
            let said = said.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
            let still = found.log.iter().filter(|(sequence, _)| *sequence <= snapshot.head.position);
            stored.turns += said - still.filter(|(_, bytes)| is_turn(bytes)).count();
        }
        stored.snapshots.insert(session.to_string(), snapshot.head.position);
    }
    stored
}

/// Kills a story at every step, and once more while it goes on; gives how many instants that were.
fn kill_everywhere(name: &str) -> u64 {
    let story = story(name);
    let whole = tempfile::tempdir().unwrap();
    let answers = play_here(story, whole.path(), 0);
    let effects = sorted(Stage::at(whole.path()).lines("effects"));
    let asked = Stage::at(whole.path()).lines("asked").len();
    let (mut killed, mut cut) = (0, 0);
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
        let kept = stored(&stage);
        cut += kept.cut;
        let acknowledged: BTreeSet<String> = stage.lines("acknowledged").into_iter().collect();
        let lost: Vec<&String> = acknowledged.iter().filter(|fact| !kept.holds(fact)).collect();
        assert!(lost.is_empty(), "{name} at {kill_at}: lost {lost:?}");
        let asked_before = stage.lines("asked").len();
        assert_eq!(play_here(story, folder.path(), 0), answers, "{name} at {kill_at}");
        let done = sorted(stage.lines("effects"));
        assert!(is_part_of(&done, &effects), "{name} at {kill_at}: an effect was done twice: {done:?}");
        if story.counts_turns {
            let asked_again = stage.lines("asked").len() - asked_before;
            assert_eq!(kept.turns + asked_again, asked, "{name} at {kill_at}: a stored turn was asked for again");
        }
    }
    assert_eq!(cut > 0, story.cuts_logs, "{name}: {cut} facts were cut off");
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

// Logs that are cut whenever a snapshot is saved: at each instant every acknowledged fact is in the log or in the
// snapshot, and the session goes on as if nothing had been cut.
#[test]
fn cut() {
    let killed = kill_everywhere("cut");
    assert!(killed >= 150, "only {killed} instants");
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
