//! The two drivers agree: the same script gives outcomes in worlds that the machines allow too.
//!
//! The script is a run with one batch of two calls, which may be cancelled at any moment. An outcome is which calls there
//! were and the order of all endings in the journal. Under our own schedule the machines come to many such orders; the
//! shipped runtime, whose mailboxes keep far more order, must not come to one that the machines do not know.
//!
//! Openings are left out: a machine's call is opened by whoever proposes it, and the shipped call says so itself, a
//! moment later, together with its next event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use toolwarden::event::EventKind;
use toolwarden_actors::node_machine::NodeId;
use toolwarden_tools::ids::InvocationId;

use crate::checkers;
use crate::happening::Happening;
use crate::play::{Act, Play};
use crate::seed::Choices;
use crate::sight::{Sight, Watcher};
use crate::stage::{Cast, chores, perform};
use crate::story::{Telling, What};
use crate::tamper::Untouched;
use crate::tree;
use crate::workload::{Behaviour, Bodies, FaultKind, Faults, Limits, Manner, Mix, Shape, Workload};

/// How many seeds the machines get to show what they allow.
const MACHINE_SEEDS: u64 = 6_000;
/// How many seeds worlds are played for.
const WORLD_SEEDS: u64 = 150;

/// Endings in their order; calls are numbered as they open.
#[derive(Debug)]
struct Order<K> {
    numbers: BTreeMap<K, usize>,
    steps: String,
}

impl<K> Default for Order<K> {
    fn default() -> Self {
        Self { numbers: BTreeMap::new(), steps: String::new() }
    }
}

impl<K: Ord> Order<K> {
    fn opens(&mut self, call: K) {
        let number = self.numbers.len();
        self.numbers.insert(call, number);
    }

    fn ends(&mut self, call: &K) {
        let number = self.numbers.get(call).copied().unwrap_or(usize::MAX);
        self.steps.push_str(&format!("{number} "));
    }
}

fn workload() -> Workload {
    Workload {
        tree: Shape { sessions: 1, runs: 1, calls: 1, depth: 2, members: 2, width: 2, exact: true },
        limits: Limits { permits: 4, queue_max: 16, calls_max: 100, ..Limits::default() },
        bodies: Bodies { manners: vec![Manner::Prompt, Manner::Settling], graces_ms: vec![2_000], asks_one_in: 0 },
        calls: Mix::new([(Behaviour::Batch, 1)]),
        leaves: Mix::new([(Behaviour::Work, 2), (Behaviour::Slow, 1), (Behaviour::Panic, 1)]),
        faults: Faults {
            one_in: Some(30),
            kinds: vec![FaultKind::Cancel, FaultKind::CancelFromAbove],
            ..Faults::default()
        },
        ..Workload::default()
    }
}

fn of_machines() -> BTreeSet<String> {
    let workload = workload();
    let order = |seed| {
        let choices = Choices::from_seed(seed);
        let story = tree::run(&workload, choices, &mut Untouched, checkers::all(&workload), Telling::Whole);
        assert_eq!(story.violation, None);
        let mut order = Order::<NodeId>::default();
        for moment in story.moments {
            match moment.what {
                What::Happening(Happening::Entry { invocation, ending: false, .. }) => order.opens(invocation),
                What::Happening(Happening::Entry { invocation, ending: true, .. }) => order.ends(&invocation),
                _ => {}
            }
        }
        order.steps
    };
    (0..MACHINE_SEEDS).map(order).collect()
}

/// Keeps the order of a world's journal.
#[derive(Clone, Default)]
struct Orders(Arc<Mutex<Order<InvocationId>>>);

impl Watcher for Orders {
    fn name(&self) -> &'static str {
        "order"
    }

    fn promise(&self) -> &'static str {
        "the order is kept for the test"
    }

    fn see(&mut self, _at: Duration, sight: &Sight<'_>) -> Result<(), String> {
        let mut order = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Sight::Entry(entry) = sight {
            match &entry.event.kind {
                EventKind::ToolProposed { id, .. } => order.opens(id.clone()),
                EventKind::ToolEnd(result) => order.ends(&result.id),
                _ => {}
            }
        }
        Ok(())
    }
}

fn of_worlds() -> BTreeMap<String, u64> {
    let member = |ms: u64| json!({ "tool": "peek", "args": { "ms": ms } });
    let batch = json!({ "invocations": [member(2), member(5)], "max_concurrency": 2 });
    let turns = [json!({ "calls": [{ "tool": "batch", "arguments": batch }] }), json!({ "text": "done" })];
    let mut play = Play {
        turns: turns.map(|turn| turn.to_string()).join("\n"),
        acts: vec![Act::CancelRun, Act::CancelAll, Act::CancelCall],
        acts_max: 2,
        ..Play::default()
    };
    play.faults.tools = true;
    let mut orders = BTreeMap::new();
    for seed in 0..WORLD_SEEDS {
        let kept = Orders::default();
        let cast = Cast {
            choices: Choices::from_seed(seed),
            watchers: vec![Box::new(kept.clone())],
            tools: chores(true),
            tells: false,
        };
        perform(&play, cast).unwrap();
        let order = kept.0.lock().unwrap().steps.clone();
        orders.entry(order).or_insert(seed);
    }
    orders
}

#[test]
fn what_worlds_come_to_the_machines_allow() {
    let (machines, worlds) = (of_machines(), of_worlds());
    println!("machines: {machines:?}\nworlds: {worlds:?}");
    assert!(worlds.len() >= 3, "{worlds:?}");
    for (order, seed) in worlds {
        assert!(machines.contains(&order), "the world of seed {seed} went {order}, and no machine did");
    }
}
