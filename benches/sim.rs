//! What searching costs: runs of the machines and of worlds in a second of one core, shrinking, and the replay of a
//! recorded session.
//!
//! Plain loops instead of criterion: what is asked is how many different runs fit into a second, and no two are alike.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]
#![expect(clippy::disallowed_methods, reason = "a bench measures real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use toolwarden::fact_book::StoredFact;
use toolwarden::facts::{Fact, RunBounds};
use toolwarden::models::{CallArguments, ModelCall, ModelTurn, ToolResult};
use toolwarden::run_status::RunStatus;
use toolwarden_sim::driver::run;
use toolwarden_sim::minimise::minimise;
use toolwarden_sim::recording::{Wish, replay};
use toolwarden_sim::scenario::{Plan, Scenario, shipped};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::{Append, Store};
use toolwarden_tools::ids::SessionId;

/// The program's own allocator: a run makes thousands of small things.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long each row is measured.
const MEASURED: Duration = Duration::from_secs(3);
/// Seeds among which those with whole trees are looked for, and how many of them are timed.
const SEEDS_LOOKED_AT: u64 = 20_000;
const SEEDS_TIMED: usize = 200;
/// Facts of the recorded session.
const FACTS: usize = 10_000;

fn main() {
    pace("plain", "4 batches x 8 calls with faults", 40, 5_000);
    pace("plain", "the same, as far as each seed lets it come", 0, 0);
    pace("sixteen-wide", "2 batches x 32 calls, 16 at a time, with faults", 68, 2_000);
    pace("wide", "everything that can meet", 0, 0);
    pace("world-cancel-storm", "a world of 40 nodes", 36, 1_000);
    pace("world-cancel-storm", "the same, as far as each seed lets it come", 0, 0);
    waiting();
    shrinking();
    recorded();
}

fn row(what: &str, ours: &str, target: &str, is_met: bool) {
    println!("{what} | {ours} | {target} | {}", if is_met { "met" } else { "NOT MET" });
}

fn named(name: &str) -> Scenario {
    shipped::named(name).expect("shipped files load").expect("shipped")
}

/// Time that this thread was on a core.
fn on_core() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux says how long a thread ran");
    let nanos = text.split_ascii_whitespace().next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.expect("a number"))
}

/// Runs of whole trees: a seed counts when its run comes to so many nodes, for one that is cancelled at once costs nothing.
fn pace(name: &str, what: &str, nodes_min: u64, target: u64) {
    let scenario = named(name);
    let whole = |seed: &u64| run(&scenario, scenario.choices(*seed)).nodes >= nodes_min;
    let seeds: Vec<u64> = (0..SEEDS_LOOKED_AT).filter(whole).take(SEEDS_TIMED).collect();
    assert!(!seeds.is_empty(), "no seed of {name} has {nodes_min} nodes");
    let (began, core, mut runs, mut steps, mut nodes) = (Instant::now(), on_core(), 0_u64, 0, 0);
    for seed in seeds.iter().cycle() {
        let story = run(&scenario, scenario.choices(*seed));
        assert!(story.violation.is_none(), "{:?}", story.violation);
        (runs, steps, nodes) = (runs + 1, steps + story.steps as u64, nodes + story.nodes);
        if began.elapsed() >= MEASURED {
            break;
        }
    }
    let spent = (on_core() - core).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "shown to a few digits")]
    let a_second = runs as f64 / spent;
    #[expect(clippy::cast_precision_loss, reason = "shown to a few digits")]
    let is_met = a_second >= target as f64;
    let (steps, nodes, different) = (steps / runs, nodes / runs, seeds.len());
    let figure = format!("{a_second:.0} runs a CPU-second, {steps} steps and {nodes} nodes a run, {different} seeds");
    let target = if target == 0 { String::new() } else { format!("at least {target}") };
    row(&format!("{name}: {what}"), &figure, &target, is_met);
}

/// Virtual time of a world that waits a lot, against real time.
fn waiting() {
    let scenario = named("world-waiting");
    let (began, core, mut seed, mut virtual_time) = (Instant::now(), on_core(), 0, Duration::ZERO);
    while began.elapsed() < MEASURED {
        virtual_time += run(&scenario, scenario.choices(seed)).lasted;
        seed += 1;
    }
    let times = virtual_time.as_secs_f64() / (on_core() - core).as_secs_f64();
    row("world-waiting: virtual against CPU time", &format!("{times:.0} x"), "at least 1000 x", times >= 1_000.0);
}

fn shrinking() {
    let mut machines = named("wide");
    if let Plan::Machines(workload) = &mut machines.plan {
        workload.mutant = Some("dropped-lease-leaks".to_owned());
    }
    shrink("a case of the machines", &machines, 0, Duration::from_secs(5));
    // Of the planted faults of worlds the one that takes longest.
    let mut world = named("world-edits");
    if let Plan::World(play) = &mut world.plan {
        play.mutant = Some("failure-untold".to_owned());
    }
    shrink("a case of a world", &world, 7, Duration::from_secs(30));
}

fn shrink(what: &str, scenario: &Scenario, seed: u64, target: Duration) {
    let core = on_core();
    let small = minimise(scenario, scenario.choices(seed)).expect("it fails");
    let spent = on_core() - core;
    let choices = small.scenario.choices.unwrap_or_default().len();
    let figure = format!("{spent:.2?}, {} runs, {choices} choices left", small.attempts);
    row(&format!("shrinking {what}"), &figure, &format!("under {target:?}"), spent < target);
}

/// A session of many runs with a call each.
fn facts() -> Vec<Fact> {
    let mut facts = Vec::with_capacity(FACTS);
    let bounds = RunBounds { rounds_max: 9, malformed_rounds_max: 1, same_call_max: 3 };
    for number in 0.. {
        let (call, invocation) = (format!("c{number}"), format!("i{number}"));
        let wanted = ModelCall {
            id: call.clone(),
            tool: "read".into(),
            arguments: CallArguments::from_value(serde_json::json!({ "file_path": format!("src/{number}.rs") })),
        };
        let turn = |turn: ModelTurn| Fact::ModelTurn { turn: Box::new(turn), withheld: Vec::new() };
        let output = "a line of some forty bytes, as files have\n".repeat(8);
        let result = ToolResult { call_id: call.clone(), tool: "read".into(), output, success: true };
        facts.extend([
            Fact::UserMessage {
                run: format!("r{number}").into(),
                text: "and then?".to_owned(),
                pictures: Vec::new(),
                bounds,
            },
            turn(ModelTurn::calling("let me look", vec![wanted])),
            Fact::CallBound {
                call,
                invocation: invocation.clone().into(),
                arguments: Digest::of(invocation.as_bytes()),
                idempotent: true,
            },
            Fact::CallStarted { invocation: invocation.into() },
            Fact::CallEnded { result, source_anchors: Vec::new(), artifacts: Vec::new() },
            turn(ModelTurn::answer("it is so")),
            Fact::Ending { status: RunStatus::Completed, text: "it is so".to_owned() },
        ]);
        if facts.len() >= FACTS {
            break;
        }
    }
    facts.truncate(FACTS);
    facts
}

fn recorded() {
    let (store, session) = (MemoryStore::default(), SessionId::from("s"));
    store.create(&session, None, None).expect("a session");
    let appends: Vec<Append> = (1..)
        .zip(facts())
        .map(|(sequence, fact)| {
            let stored = StoredFact { at_ms: sequence, fact };
            let payload = Arc::from(serde_json::to_vec(&stored).expect("facts are JSON"));
            Append { session: session.clone(), sequence, payload }
        })
        .collect();
    assert!(store.append(&appends).into_iter().all(|answer| answer.is_ok()));
    for (what, branch) in [("replay of 10,000 facts", false), ("the same, branched at every point", true)] {
        let found = store.look(&session).expect("it is there");
        let core = on_core();
        let recording = replay("s", found, Wish { lines: true, branch }).expect("it is whole");
        let spent = on_core() - core;
        assert_eq!(recording.facts, FACTS as u64);
        row(what, &format!("{spent:.2?}"), "under 1 s", spent < Duration::from_secs(1));
    }
}
