//! Nodes: a top, two children, a grandchild, cancelled, killed and left alone at any moment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ractor::ActorCell;
use toolwarden_interleavings::node::{NodeHandle, NodeKind, NodeSpec, Tree, spawn_root};
use toolwarden_interleavings::node_machine::{BodyEnd, Ending};
use toolwarden_tools::cancellation::CancelReason;

use crate::{play, root, until};

const GRACE: Duration = Duration::from_secs(1);

fn spec(kind: NodeKind) -> NodeSpec {
    NodeSpec { kind, grace: GRACE }
}

/// The names of nodes in the order in which their endings were told.
type Ends = Arc<Mutex<Vec<&'static str>>>;

fn ended(ends: &Ends, name: &'static str) {
    ends.lock().unwrap().push(name);
}

/// Waits for its cancel, as a tool that heeds it.
async fn heed(node: NodeHandle) {
    node.cancellation().cancelled().await;
}

/// Has a child of its own, and waits for it.
async fn above(node: NodeHandle, ends: Ends) -> Ending {
    let ending = node.spawn(spec(NodeKind::Invocation), heed).await.ending;
    ended(&ends, "grandchild");
    ending
}

async fn top(tree: &Arc<Tree>, above: &ActorCell) -> (NodeHandle, ActorCell) {
    spawn_root(tree, Some(above.clone()), spec(NodeKind::Sessions), heed).await.unwrap()
}

/// Nothing lives, and the top's ending came last.
async fn over(tree: &Arc<Tree>, cell: &ActorCell, root: ActorCell) {
    let _ = cell.wait(None).await;
    root.stop(None);
    let _ = root.wait(None).await;
    until(async || tree.live_nodes() == 0).await;
}

pub fn cancelled_while_it_grows() {
    play(0, async {
        let (tree, root, ends) = (Tree::new(), root().await, Ends::default());
        let (node, cell) = top(&tree, &root).await;
        let (one, told) = (node.clone(), Arc::clone(&ends));
        let growing = tokio::spawn(async move {
            let below = Arc::clone(&told);
            let parent = one.spawn(spec(NodeKind::Run), move |node| above(node, below));
            let leaf = one.spawn(spec(NodeKind::Invocation), heed);
            let parent = parent.await;
            ended(&told, "parent");
            (parent.ending, leaf.await.ending)
        });
        let canceller = node.clone();
        let cancel = tokio::spawn(async move { canceller.cancel(CancelReason::Requested) });
        cancel.await.unwrap();
        let (parent, leaf) = growing.await.unwrap();
        for ending in [&parent, &leaf] {
            assert_eq!(ending.unsettled_children, 0, "{ending:?}");
            assert!(matches!(ending.body, BodyEnd::Returned | BodyEnd::NeverStarted | BodyEnd::Lost), "{ending:?}");
        }
        let order = ends.lock().unwrap().clone();
        assert!(matches!(order.as_slice(), ["parent"] | ["grandchild", "parent"]), "{order:?}");
        over(&tree, &cell, root).await;
    });
}

pub fn killed_while_nobody_waits() {
    // Time may pass too: graces run out although nobody was slow.
    play(3, async {
        let (tree, root, ends) = (Tree::new(), root().await, Ends::default());
        let (node, cell) = top(&tree, &root).await;
        let waiter = node.spawn(spec(NodeKind::Run), {
            let ends = Arc::clone(&ends);
            move |node| above(node, ends)
        });
        let leaver = tokio::spawn(async move { drop(waiter) });
        let limit = node.limit(Duration::from_secs(5));
        let (one, other) = (node.clone(), node.clone());
        let cancel = tokio::spawn(async move { one.cancel(CancelReason::Shutdown) });
        let kill = tokio::spawn(async move { other.kill(CancelReason::Requested) });
        for task in [leaver, cancel, kill] {
            task.await.unwrap();
        }
        node.children_settled().await;
        drop(limit);
        until(async || cell.get_status() == ractor::ActorStatus::Stopped).await;
        over(&tree, &cell, root).await;
    });
}
