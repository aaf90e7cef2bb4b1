//! The promises of a node: first of the machine alone, then of the machine mounted on ractor.

use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use tokio::sync::Notify;

use super::*;
use crate::node_machine::{ABORT_WAIT, BACKSTOP};

const GRACE: Duration = Duration::from_secs(2);
const SPEC: NodeSpec = NodeSpec { kind: NodeKind::Invocation, grace: GRACE };

fn step(machine: &mut NodeMachine, event: NodeEvent) -> Vec<NodeEffect> {
    let mut effects = Vec::new();
    machine.step(event, &mut effects);
    effects
}

fn started() -> NodeMachine {
    let mut machine = NodeMachine::new(GRACE);
    assert_eq!(step(&mut machine, NodeEvent::Start), [NodeEffect::StartBody]);
    machine
}

fn ending(body: BodyEnd, cancel: Option<CancelReason>) -> NodeEffect {
    NodeEffect::End(Ending { body, cancel, unsettled_children: 0 })
}

#[test]
fn a_body_that_returns_ends_the_node_once() {
    let mut machine = started();
    assert_eq!(step(&mut machine, NodeEvent::BodyEnded(BodyEnd::Returned)), [ending(BodyEnd::Returned, None)]);
    for late in [
        NodeEvent::BodyEnded(BodyEnd::Returned),
        NodeEvent::Cancel(CancelReason::Requested),
        NodeEvent::Timer(NodeTimer::Grace),
        NodeEvent::ChildEnded(NodeId(1)),
    ] {
        assert_eq!(step(&mut machine, late), []);
    }
}

// The cancel may arrive before the start: mailboxes keep no order across senders.
#[test]
fn a_cancel_before_the_start_means_the_body_never_runs() {
    let mut machine = NodeMachine::new(GRACE);
    step(&mut machine, NodeEvent::Cancel(CancelReason::Requested));
    let effects = step(&mut machine, NodeEvent::Start);
    assert_eq!(effects, [ending(BodyEnd::NeverStarted, Some(CancelReason::Requested))]);
}

#[test]
fn a_cancel_goes_to_body_and_children_at_once_and_only_the_first_counts() {
    let mut machine = started();
    step(&mut machine, NodeEvent::Spawn(NodeId(7)));
    let effects = step(&mut machine, NodeEvent::Cancel(CancelReason::Shutdown));
    assert_eq!(
        effects,
        [
            NodeEffect::SignalBody(CancelReason::Shutdown),
            NodeEffect::CancelChild(NodeId(7), CancelReason::Shutdown),
            NodeEffect::Arm(NodeTimer::Grace, GRACE),
        ]
    );
    assert_eq!(step(&mut machine, NodeEvent::Cancel(CancelReason::Requested)), []);
    assert_eq!(
        step(&mut machine, NodeEvent::Spawn(NodeId(8))),
        [NodeEffect::RefuseChild(NodeId(8), CancelReason::Shutdown)]
    );
}

#[test]
fn the_ending_waits_for_the_last_child() {
    let mut machine = started();
    step(&mut machine, NodeEvent::Spawn(NodeId(1)));
    step(&mut machine, NodeEvent::Spawn(NodeId(2)));
    let effects = step(&mut machine, NodeEvent::BodyEnded(BodyEnd::Returned));
    assert_eq!(effects[0], NodeEffect::CancelChild(NodeId(1), CancelReason::ParentEnded));
    assert_eq!(effects[1], NodeEffect::CancelChild(NodeId(2), CancelReason::ParentEnded));
    assert_eq!(step(&mut machine, NodeEvent::ChildEnded(NodeId(2))), []);
    assert_eq!(step(&mut machine, NodeEvent::ChildEnded(NodeId(1))), [ending(BodyEnd::Returned, None)]);
}

#[test]
fn a_body_that_ignores_the_cancel_is_aborted_and_at_last_abandoned() {
    let mut machine = started();
    let cancel = Some(CancelReason::Requested);
    step(&mut machine, NodeEvent::Cancel(CancelReason::Requested));
    assert_eq!(
        step(&mut machine, NodeEvent::Timer(NodeTimer::Grace)),
        [NodeEffect::AbortBody, NodeEffect::Arm(NodeTimer::AbortWait, ABORT_WAIT)]
    );
    assert_eq!(step(&mut machine, NodeEvent::Timer(NodeTimer::AbortWait)), [ending(BodyEnd::Abandoned, cancel)]);
}

#[test]
fn a_child_that_never_answers_is_killed_at_the_backstop() {
    let mut machine = started();
    step(&mut machine, NodeEvent::Spawn(NodeId(1)));
    step(&mut machine, NodeEvent::Cancel(CancelReason::Requested));
    step(&mut machine, NodeEvent::BodyEnded(BodyEnd::Returned));
    step(&mut machine, NodeEvent::Timer(NodeTimer::Grace));
    assert_eq!(
        step(&mut machine, NodeEvent::Timer(NodeTimer::AbortWait)),
        [NodeEffect::Arm(NodeTimer::Backstop, BACKSTOP)]
    );
    assert_eq!(step(&mut machine, NodeEvent::Timer(NodeTimer::Backstop)), [NodeEffect::KillActor(NodeId(1))]);
    let effects = step(&mut machine, NodeEvent::ChildEnded(NodeId(1)));
    assert_eq!(effects, [ending(BodyEnd::Returned, Some(CancelReason::Requested))]);
}

// Found by the simulation: the ending said that all was settled, while what was below a dead child still lived.
#[test]
fn a_child_that_died_without_an_ending_is_counted_as_unsettled() {
    let mut machine = started();
    for child in 1..=3 {
        step(&mut machine, NodeEvent::Spawn(NodeId(child)));
    }
    assert_eq!(step(&mut machine, NodeEvent::ChildLost(NodeId(1))), []);
    // Told twice, or of a child that is not there: counted once.
    assert_eq!(step(&mut machine, NodeEvent::ChildLost(NodeId(1))), []);
    assert_eq!(step(&mut machine, NodeEvent::ChildEnded(NodeId(2))), []);
    step(&mut machine, NodeEvent::BodyEnded(BodyEnd::Returned));
    let ending = Ending { body: BodyEnd::Returned, cancel: None, unsettled_children: 2 };
    assert_eq!(step(&mut machine, NodeEvent::ChildLost(NodeId(3))), [NodeEffect::End(ending)]);
}

#[test]
fn a_kill_leaves_no_grace() {
    let mut machine = started();
    step(&mut machine, NodeEvent::Spawn(NodeId(1)));
    step(&mut machine, NodeEvent::Cancel(CancelReason::Requested));
    let effects = step(&mut machine, NodeEvent::Kill(CancelReason::Shutdown));
    assert!(effects.contains(&NodeEffect::AbortBody));
    // The first reason stays.
    assert!(effects.contains(&NodeEffect::KillChild(NodeId(1), CancelReason::Requested)));
}

/// A tree whose top node lives until it is cancelled.
async fn root() -> (Arc<Tree>, NodeHandle, ActorCell) {
    let tree = Tree::new();
    let body = |handle: NodeHandle| async move {
        handle.cancellation().cancelled().await;
    };
    let (handle, cell) = spawn_root(&tree, None, SPEC, body).await.unwrap();
    (tree, handle, cell)
}

/// Ends the tree and shows that nothing of it is left.
async fn close(tree: &Tree, handle: &NodeHandle, cell: &ActorCell) {
    handle.cancel(CancelReason::Shutdown);
    cell.wait(None).await.unwrap();
    // The top node's own state is dropped by its task just after its status changed.
    while tree.live_nodes() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn outputs_come_back_and_a_panic_is_that_child_s_own() {
    let (tree, root, cell) = root().await;
    let good = root.spawn(SPEC, |_| async { 41 + 1 });
    let bad = root.spawn(SPEC, |_| async { panic!("no {}", "way") });
    let bad: NodeEnd<()> = bad.await;
    assert_eq!(bad.ending.body, BodyEnd::Panicked("no way".into()));
    assert_eq!(good.await.output, Some(42));
    let next = root.spawn(SPEC, |_| async { "still here" });
    assert_eq!(next.await.output, Some("still here"));
    close(&tree, &root, &cell).await;
}

// Case C180: a cancel at the top reaches every level, each with the reason.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_the_leaves_and_endings_come_bottom_up() {
    let (tree, root, cell) = root().await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let (top, middle) = (Arc::clone(&order), Arc::clone(&order));
    let leaf = Arc::clone(&order);
    let ready = Arc::new(Notify::new());
    let at_leaf = Arc::clone(&ready);
    let run = root.spawn(SPEC, move |run| async move {
        let invocation = run.spawn(SPEC, move |invocation| async move {
            let command = invocation.spawn(SPEC, move |command| async move {
                at_leaf.notify_one();
                let reason = command.cancellation().cancelled().await;
                leaf.lock().unwrap().push(("leaf", reason));
            });
            command.await;
            let reason = invocation.cancellation().cancelled().await;
            middle.lock().unwrap().push(("middle", reason));
        });
        invocation.await;
        let reason = run.cancellation().cancelled().await;
        top.lock().unwrap().push(("top", reason));
    });
    ready.notified().await;
    run.cancel(CancelReason::Requested);
    let end = run.await;
    assert_eq!(end.ending.body, BodyEnd::Returned);
    assert_eq!(end.ending.cancel, Some(CancelReason::Requested));
    let seen = order.lock().unwrap().clone();
    let expected = ["leaf", "middle", "top"].map(|level| (level, CancelReason::Requested));
    assert_eq!(seen, expected);
    close(&tree, &root, &cell).await;
}

#[tokio::test]
async fn a_caller_that_goes_away_cancels_what_it_waited_for() {
    let (tree, root, cell) = root().await;
    let (told, hears) = oneshot::channel();
    let ready = Arc::new(Notify::new());
    let started = Arc::clone(&ready);
    let waiter = root.spawn(SPEC, move |child| async move {
        started.notify_one();
        told.send(child.cancellation().cancelled().await).ok();
    });
    ready.notified().await;
    drop(waiter);
    assert_eq!(hears.await.unwrap(), CancelReason::CallerGone);
    close(&tree, &root, &cell).await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_returns_is_dropped_after_its_grace() {
    let (tree, root, cell) = root().await;
    let waiter = root.spawn(SPEC, |child| async move {
        let _limit = child.limit(Duration::from_millis(10));
        std::future::pending::<()>().await;
    });
    let began_at = tokio::time::Instant::now();
    let end = waiter.await;
    assert_eq!(end.ending.body, BodyEnd::Aborted);
    assert_eq!(end.ending.cancel, Some(CancelReason::Deadline { timeout_ms: 10 }));
    assert!(began_at.elapsed() < GRACE + Duration::from_millis(50));
    close(&tree, &root, &cell).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_spins_is_named_as_abandoned() {
    let (tree, root, cell) = root().await;
    let release = Arc::new(AtomicBool::new(false));
    let spinning = Arc::clone(&release);
    let quick = NodeSpec { grace: Duration::from_millis(10), ..SPEC };
    let waiter = root.spawn(quick, move |_| async move {
        while !spinning.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    });
    waiter.cancel(CancelReason::Requested);
    let body = waiter.await.ending.body;
    // The cancel may have overtaken the start of the body.
    assert!(matches!(body, BodyEnd::Abandoned | BodyEnd::NeverStarted), "{body:?}");
    release.store(true, Ordering::Release);
    close(&tree, &root, &cell).await;
}

#[tokio::test]
async fn the_epilogue_is_called_once_unless_the_body_returned() {
    let (tree, root, cell) = root().await;
    let endings = Arc::new(Mutex::new(Vec::new()));
    let note = |name: &'static str| {
        let endings = Arc::clone(&endings);
        move |ending: &Ending| endings.lock().unwrap().push((name, ending.body.clone()))
    };
    root.spawn_with_epilogue(SPEC, |_| async {}, note("returned")).await;
    root.spawn_with_epilogue(SPEC, |_| async { panic!("x") }, note("panicked")).await;
    close(&tree, &root, &cell).await;
    // The tree is gone: the wish dies with its message.
    root.spawn_with_epilogue(SPEC, |_| async {}, note("lost")).await;
    let seen = endings.lock().unwrap().clone();
    assert_eq!(seen, [("panicked", BodyEnd::Panicked("x".into())), ("lost", BodyEnd::Lost)]);
}

/// The node ends when what its body owes is paid, not when its body is over; and debts that are lost are paid.
#[tokio::test]
async fn a_body_that_parts_ends_its_node_once_its_debts_are_paid() {
    let (tree, root, cell) = root().await;
    let (owed, owes) = oneshot::channel();
    let parts = move |_| async move { Parting::owing(7, move |told| drop(owed.send(told))) };
    let mut waiter = root.spawn_parting(SPEC, parts, |_: &Ending| panic!("it returned"));
    let told: Afterwards = owes.await.unwrap();
    for _ in 0..100 {
        assert!(futures_util::poll!(&mut waiter).is_pending(), "nothing is paid yet");
        tokio::task::yield_now().await;
    }
    drop(told);
    let end = waiter.await;
    assert_eq!((end.ending.body, end.output), (BodyEnd::Returned, Some(7)));
    let lost = root.spawn_parting(SPEC, |_| async { Parting::owing(8, drop) }, |_: &Ending| panic!("it returned"));
    assert_eq!(lost.await.output, Some(8));
    close(&tree, &root, &cell).await;
}

/// Debts that nobody ever pays keep no cancelled node.
#[tokio::test(start_paused = true)]
async fn a_body_whose_debts_are_never_paid_is_given_up() {
    let (tree, root, cell) = root().await;
    let (owed, owes) = oneshot::channel();
    let parts = move |_| async move { Parting::owing(7, move |told| drop(owed.send(told))) };
    let waiter = root.spawn_parting(SPEC, parts, |_: &Ending| {});
    let _told: Afterwards = owes.await.unwrap();
    waiter.cancel(CancelReason::Requested);
    assert_eq!(waiter.await.ending.body, BodyEnd::Abandoned);
    close(&tree, &root, &cell).await;
}

#[tokio::test]
async fn a_node_that_ends_takes_no_new_children() {
    let (tree, root, cell) = root().await;
    root.cancel(CancelReason::SessionClosed);
    let refused = root.spawn(SPEC, |_| async {}).await;
    assert!(matches!(refused.ending.body, BodyEnd::NeverStarted | BodyEnd::Lost));
    close(&tree, &root, &cell).await;
}

#[tokio::test(start_paused = true)]
async fn cleaning_up_takes_one_span_not_one_a_level() {
    let (tree, root, cell) = root().await;
    let clean_up = Duration::from_millis(5);
    let ready = Arc::new(Notify::new());
    let at_leaf = Arc::clone(&ready);
    let top = root.spawn(SPEC, move |top| async move {
        let middle = top.spawn(SPEC, move |middle| async move {
            let leaf = middle.spawn(SPEC, move |leaf| async move {
                at_leaf.notify_one();
                leaf.cancellation().cancelled().await;
                tokio::time::sleep(clean_up).await;
            });
            middle.cancellation().cancelled().await;
            tokio::time::sleep(clean_up).await;
            leaf.await;
        });
        top.cancellation().cancelled().await;
        tokio::time::sleep(clean_up).await;
        middle.await;
    });
    ready.notified().await;
    let began_at = tokio::time::Instant::now();
    top.cancel(CancelReason::Requested);
    top.await;
    assert!(began_at.elapsed() < clean_up * 2, "{:?}", began_at.elapsed());
    close(&tree, &root, &cell).await;
}

#[tokio::test]
async fn an_ending_says_that_a_child_s_actor_died_without_one() {
    let (tree, root, cell) = root().await;
    let waiter = root.spawn(SPEC, |node| async move {
        let child = node.spawn(SPEC, |child| async move {
            // What a bug in the node would do to it.
            child.actor.kill();
            std::future::pending::<()>().await;
        });
        child.await.ending.body
    });
    let end = waiter.await;
    assert_eq!(end.output, Some(BodyEnd::Lost));
    assert_eq!(end.ending, Ending { body: BodyEnd::Returned, cancel: None, unsettled_children: 1 });
    close(&tree, &root, &cell).await;
}

#[tokio::test]
async fn a_killed_node_takes_its_body_and_its_children_with_it() {
    let (tree, root, cell) = root().await;
    let (told, hears) = oneshot::channel::<()>();
    let ready = Arc::new(Notify::new());
    let started = Arc::clone(&ready);
    let waiter = root.spawn(SPEC, move |child| async move {
        let grandchild = child.spawn(SPEC, move |_| async move {
            let _held_until_dropped = told;
            started.notify_one();
            std::future::pending::<()>().await;
        });
        grandchild.await;
    });
    ready.notified().await;
    root.kill(CancelReason::Shutdown);
    assert!(hears.await.is_err(), "the grandchild's body was dropped");
    drop(waiter);
    close(&tree, &root, &cell).await;
}
