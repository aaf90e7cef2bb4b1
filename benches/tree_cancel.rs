//! The cancel of a busy tree of 1 + 32 + 32 x 32 nodes, until every one has settled and its state is gone.
//!
//! Held against ractor's own graceful stop of a bare tree of that shape, where each actor stops its children and
//! waits for them before it ends. Then the same with 5 ms of clean-up in every node: a cancel reaches all levels at
//! once, so that it must cost about 5 ms and not 5 ms a level. Driven from a spawned task on two workers, see
//! `pairing.rs`.

#![expect(clippy::expect_used, reason = "a bench that cannot set up its work has nothing to measure")]

mod pairing;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use criterion::Criterion;
use futures_util::future::BoxFuture;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::runtime::Runtime as Tokio;
use tokio::sync::Notify;
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec, Tree, spawn_root};
use toolwarden_actors::node_machine::BodyEnd;
use toolwarden_tools::cancellation::CancelReason;

use crate::pairing::{Pairing, drive, timed, verdict};

/// The program's own.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Children of each node that has any.
const WIDTH: usize = 32;
/// Levels of the tree.
const LEVELS: usize = 3;
/// Nodes of the whole tree.
const NODES: usize = 1 + WIDTH + WIDTH * WIDTH;
/// Clean-up of each node in the second measurement.
const CLEAN_UP: Duration = Duration::from_millis(5);
/// Turns of each comparison.
const TURNS: usize = 60;
/// Most that the cancel may cost, in graceful stops of the bare tree.
const RATIO_MAX: f64 = 2.0;

const NODE_TREE: &str = "cancel of the tree of nodes";
const BARE_TREE: &str = "graceful stop of the tree of bare actors";

const SPEC: NodeSpec = NodeSpec { kind: NodeKind::Invocation, grace: Duration::from_secs(30) };

/// Counts what is alive, and tells when all of it is.
#[derive(Default)]
struct Census {
    alive: AtomicUsize,
    all: Notify,
}

impl Census {
    fn arrive(&self) {
        if self.alive.fetch_add(1, Ordering::AcqRel) + 1 == NODES {
            self.all.notify_one();
        }
    }
}

/// A node that works until it is cancelled, with its children.
fn busy(node: NodeHandle, level: usize, clean_up: Duration, census: Arc<Census>) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if level < LEVELS {
            for _ in 0..WIDTH {
                let census = Arc::clone(&census);
                node.spawn(SPEC, move |child| busy(child, level + 1, clean_up, census)).detach();
            }
        }
        census.arrive();
        node.cancellation().cancelled().await;
        if !clean_up.is_zero() {
            tokio::time::sleep(clean_up).await;
        }
    })
}

/// Grows a tree of nodes, cancels its top and waits; the span is the cancel's alone.
async fn cancel_nodes(clean_up: Duration) -> Duration {
    let tree = Tree::new();
    let census = Arc::new(Census::default());
    let top = |node: NodeHandle| async move {
        node.cancellation().cancelled().await;
    };
    let (root, cell) = spawn_root(&tree, None, SPEC, top).await.expect("a root node");
    let its_census = Arc::clone(&census);
    let waiter = root.spawn(SPEC, move |node| busy(node, 1, clean_up, its_census));
    census.all.notified().await;
    assert_eq!(tree.live_nodes(), NODES + 1);
    let (took, end) = timed(async {
        waiter.cancel(CancelReason::Requested);
        waiter.await
    })
    .await;
    assert_eq!((end.ending.body, end.ending.unsettled_children), (BodyEnd::Returned, 0));
    assert_eq!(tree.live_nodes(), 1, "every state is gone but the root's");
    root.cancel(CancelReason::Shutdown);
    cell.wait(None).await.expect("the root ends");
    took
}

/// A bare actor: stops its children and waits for them before it ends.
struct Bare;

struct BareStart {
    level: usize,
    clean_up: Duration,
}

impl Actor for Bare {
    type Msg = ();
    type State = Duration;
    type Arguments = BareStart;

    async fn pre_start(&self, myself: ActorRef<()>, start: BareStart) -> Result<Duration, ActorProcessingErr> {
        grow(myself, &start).await?;
        Ok(start.clean_up)
    }

    async fn post_stop(&self, myself: ActorRef<()>, clean_up: &mut Duration) -> Result<(), ActorProcessingErr> {
        myself.get_cell().stop_children_and_wait(None, None).await;
        if !clean_up.is_zero() {
            tokio::time::sleep(*clean_up).await;
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        _: SupervisionEvent,
        _state: &mut Duration,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

fn grow(myself: ActorRef<()>, start: &BareStart) -> BoxFuture<'static, Result<(), ActorProcessingErr>> {
    let (level, clean_up) = (start.level, start.clean_up);
    Box::pin(async move {
        if level < LEVELS {
            for _ in 0..WIDTH {
                let start = BareStart { level: level + 1, clean_up };
                Actor::spawn_linked(None, Bare, start, myself.get_cell()).await?;
            }
        }
        Ok(())
    })
}

/// Grows a tree of bare actors and stops its top; the span is the stop's alone.
async fn stop_actors(clean_up: Duration) -> Duration {
    let (root, _) = Actor::spawn(None, Bare, BareStart { level: 1, clean_up }).await.expect("a bare tree");
    let (took, stopped) = timed(root.stop_and_wait(None, None)).await;
    stopped.expect("the bare tree stops");
    took
}

fn total<F: Future<Output = Duration> + Send>(
    runtime: &Tokio,
    count: u64,
    turn: impl Fn() -> F + Send + 'static,
) -> Duration {
    drive(runtime, async move {
        let mut total = Duration::ZERO;
        for _ in 0..count {
            total += turn().await;
        }
        total
    })
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    let runtime = pairing::runtime();
    let mut group = criterion.benchmark_group("tree_cancel");
    for (name, clean_up) in [("empty", Duration::ZERO), ("5_ms_clean_up", CLEAN_UP)] {
        group.bench_function(format!("nodes_{name}"), |bench| {
            bench.iter_custom(|count| total(&runtime, count, move || cancel_nodes(clean_up)));
        });
        group.bench_function(format!("bare_actors_{name}"), |bench| {
            bench.iter_custom(|count| total(&runtime, count, move || stop_actors(clean_up)));
        });
    }
    group.finish();

    let compared = |clean_up: Duration| {
        let reference = || vec![drive(&runtime, stop_actors(clean_up))];
        Pairing::measure(TURNS, reference, || vec![drive(&runtime, cancel_nodes(clean_up))])
    };
    println!("\ntree_cancel, {NODES} busy nodes until every one has settled");
    let without = compared(Duration::ZERO).print(NODE_TREE, BARE_TREE, Some(RATIO_MAX));
    println!("\ntree_cancel, {CLEAN_UP:?} of clean-up in every node");
    let with = compared(CLEAN_UP).print(NODE_TREE, BARE_TREE, None);
    let added = with.saturating_sub(without);
    println!("  the clean-up added {added:.1?}; target: less than two levels of it: {}", verdict(added < CLEAN_UP * 2));
    criterion.final_summary();
}
