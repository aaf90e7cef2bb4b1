//! Searches orders of three to six of the shipped mounts, at random and by priorities, and finds what is planted.
//!
//! A story is played once for each order, in a runtime of its own; it looks at its end, and on the way, whether the
//! promise holds. A task that waits for ever is found by shuttle itself. `ORDERS=20000` plays so many of each kind.

#![expect(
    clippy::disallowed_methods,
    reason = "how many orders are played is said from outside, and how long it took is told"
)]

#[path = "stories/desk.rs"]
mod desk;
#[path = "stories/facts.rs"]
mod facts;
#[path = "stories/journal.rs"]
mod journal;
#[path = "stories/lane.rs"]
mod lane;
#[path = "stories/ledger.rs"]
mod ledger;
#[path = "stories/members.rs"]
mod members;
#[path = "stories/supervisor.rs"]
mod supervisor;
#[path = "stories/tree.rs"]
mod tree;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tokio::time;
use toolwarden_interleavings::planted::plant;

/// Orders of each story and each kind in every test run.
const ORDERS: usize = 80;
/// Orders in which something that was planted has to show.
const PLANTED_ORDERS_MAX: usize = 3_000;
/// Bytes of each task's stack: actors are deep without optimisation.
const STACK_BYTES: usize = 512 * 1024;
/// Looks around of one order; more are a story without an end.
const STEPS_MAX: usize = 20_000;
/// How often a thread that goes on is put behind another one, by priorities: most faults need few such moments.
const DEPTH: usize = 3;

/// Played once for each order.
type Story = fn();

const STORIES: [(&str, Story); 13] = [
    ("a lane of one permit under a cancel", lane::one_permit),
    ("a lane of two permits that starts again", lane::a_new_life),
    ("a ledger that four calls share", ledger::shared),
    ("a tree that is cancelled while it grows", tree::cancelled_while_it_grows),
    ("a tree that is cancelled and killed while nobody waits", tree::killed_while_nobody_waits),
    ("a desk with two people and a cancel", desk::two_people),
    ("a journal of three writers and a reader", journal::three_writers),
    ("a fact log of two writers, a mark and a cut", facts::marked_and_cut),
    ("a fact log that starts again", facts::a_new_life),
    ("a fan-out that is cancelled", members::cancelled),
    ("a supervisor whose child breaks while all is shut down", supervisor::broken_while_it_shuts_down),
    ("a supervisor whose child breaks again and again", supervisor::broken_again),
    ("a supervisor that is shut down while one starts below", supervisor::shut_down_while_one_starts_below),
];

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.failure_persistence = FailurePersistence::Print;
    // That weaker orderings of shared numbers are not told from the strongest one is said in SIMULATION.md.
    config.silence_warnings = true;
    config
}

fn orders() -> usize {
    std::env::var("ORDERS").ok().and_then(|orders| orders.parse().ok()).unwrap_or(ORDERS)
}

fn at_random(story: Story, orders: usize) {
    Runner::new(RandomScheduler::new_from_seed(7, orders), config()).run(story);
}

fn by_priorities(story: Story, orders: usize) {
    Runner::new(PctScheduler::new_from_seed(7, DEPTH, orders), config()).run(story);
}

thread_local! {
    // How many orders this thread's test has played.
    static PLAYED: Cell<usize> = const { Cell::new(0) };
}

/// The story in a world that begins at zero; time passes at any moment, so often.
fn play<T>(passes: usize, story: impl Future<Output = T>) -> T {
    time::begin();
    PLAYED.set(PLAYED.get() + 1);
    shuttle::future::block_on(async move {
        let clock = tokio::spawn(async move {
            for _ in 0..passes {
                tokio::task::yield_now().await;
                time::pass();
            }
        });
        let told = story.await;
        clock.await.unwrap();
        told
    })
}

/// Waits until this is so, and lets time pass meanwhile; a story in which it never is fails by its length.
async fn until(mut so: impl AsyncFnMut() -> bool) {
    while !so().await {
        time::pass();
        tokio::task::yield_now().await;
    }
}

/// A supervisor that lets its children end.
struct Onlooker;

impl Actor for Onlooker {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

/// The actor at the top.
async fn root() -> ActorCell {
    Actor::spawn(None, Onlooker, ()).await.unwrap().0.get_cell()
}

/// Ends everything below the top, and the top.
async fn end(root: ActorCell, below: impl IntoIterator<Item = ActorCell>) {
    for cell in below {
        cell.stop(None);
        let _ = cell.wait(None).await;
    }
    root.stop(None);
    let _ = root.wait(None).await;
}

#[test]
fn no_order_breaks_a_promise() {
    for (name, story) in STORIES {
        let began = std::time::Instant::now();
        at_random(story, orders());
        by_priorities(story, orders());
        println!("{name}: {} orders at random, as many by priorities, {:?}", orders(), began.elapsed());
    }
}

/// Each is found by a story, in few orders.
#[test]
fn what_is_planted_is_found() {
    let mut missed = Vec::new();
    for (what, story) in [
        ("home-untold", lane::one_permit as Story),
        ("looked-before", lane::one_permit),
        ("born-after-cancel", tree::cancelled_while_it_grows),
        ("withdrawal-lost", desk::two_people),
        ("told-before-stored", journal::three_writers),
        ("done-before-members", members::cancelled),
        ("two-batches", facts::marked_and_cut),
        ("marked-early", facts::marked_and_cut),
        ("restart-uncounted", supervisor::broken_again),
        ("stopped-in-order", supervisor::broken_while_it_shuts_down),
    ] {
        plant(what);
        for (kind, search) in [("at random", at_random as fn(Story, usize)), ("by priorities", by_priorities)] {
            PLAYED.set(0);
            match catch_unwind(AssertUnwindSafe(|| search(story, PLANTED_ORDERS_MAX))) {
                Err(_) => println!("{what}, {kind}: found by order {}", PLAYED.get()),
                Ok(()) => missed.push(format!("{what} {kind}")),
            }
        }
        plant("");
    }
    assert!(missed.is_empty(), "{missed:?}");
}
