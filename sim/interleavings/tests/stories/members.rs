//! A fan-out of three members, two at a time, that is cancelled at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use toolwarden_interleavings::fan_out::{FanOutEnd, FanOutPlan, MemberEnd};
use toolwarden_interleavings::members::{Member, MemberStart, run_members};
use toolwarden_interleavings::node::{NodeHandle, NodeKind, NodeSpec, Tree, spawn_root};
use toolwarden_tools::cancellation::CancelReason;

use crate::{play, root, until};

const WIDTH: usize = 2;
const MEMBERS: usize = 3;

fn spec(kind: NodeKind) -> NodeSpec {
    NodeSpec { kind, grace: Duration::from_secs(1) }
}

/// Counts a member for as long as its body is there.
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        assert!(count.fetch_add(1, Ordering::SeqCst) < WIDTH, "more members run than may");
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A member: the last one waits for its cancel, the others work for a moment.
fn member(number: usize, running: Arc<AtomicUsize>) -> MemberStart<usize> {
    Box::new(move |node: &NodeHandle| {
        let waiter = node.spawn(spec(NodeKind::Invocation), move |node: NodeHandle| async move {
            let _running = Running::new(&running);
            tokio::task::yield_now().await;
            if number + 1 == MEMBERS {
                node.cancellation().cancelled().await;
            }
            number
        });
        let canceller = waiter.canceller();
        let ends = Box::pin(async move {
            let end = waiter.await;
            (end.output.is_some(), number)
        });
        Member { ends, canceller }
    })
}

type Ended = Option<FanOutEnd<usize>>;

/// The fan-out's body; how it ended, and how many of its members were there then.
async fn fan_out(node: NodeHandle) -> (Ended, usize) {
    let running = Arc::new(AtomicUsize::new(0));
    let members = (0..MEMBERS).map(|number| member(number, Arc::clone(&running))).collect();
    let end = run_members(&node, FanOutPlan::all(WIDTH), members).await.ok();
    (end, running.load(Ordering::SeqCst))
}

pub fn cancelled() {
    play(0, async {
        let (tree, root) = (Tree::new(), root().await);
        let heed = |node: NodeHandle| async move {
            node.cancellation().cancelled().await;
        };
        let (top, cell) = spawn_root(&tree, Some(root.clone()), spec(NodeKind::Sessions), heed).await.unwrap();
        let waiter = top.spawn(spec(NodeKind::FanOut), fan_out);
        let canceller = waiter.canceller();
        let cancel = tokio::spawn(async move { canceller.cancel(CancelReason::Requested) });
        let end = waiter.await;
        cancel.await.unwrap();
        // Cancelled before it began, it has nothing to say.
        if let Some((fan, running)) = end.output {
            let fan = fan.unwrap();
            assert_eq!(fan.members.len(), MEMBERS, "{fan:?}");
            assert_eq!(running, 0, "members run on after the fan-out");
            assert_eq!(fan.ended_early, Some(CancelReason::Requested));
            let never = |end: &MemberEnd<usize>| matches!(end, MemberEnd::NeverStarted { .. });
            let started = fan.members.iter().position(never).unwrap_or(MEMBERS);
            assert!(fan.members[started..].iter().all(never), "{fan:?}");
        }
        top.cancel(CancelReason::Shutdown);
        let _ = cell.wait(None).await;
        root.stop(None);
        let _ = root.wait(None).await;
        until(async || tree.live_nodes() == 0).await;
    });
}
