//! A lane, its callers, a cancel, and a new life of the lane.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ractor::ActorCell;
use toolwarden_interleavings::bulkhead::Bulkhead;
use toolwarden_interleavings::circuit_breaker::CallHealth;
use toolwarden_interleavings::permit_pool::{BulkheadLimits, Shed};
use toolwarden_interleavings::waiting_line::Holder;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::tool::Lane;

use crate::{end, play, root, until};

/// How many calls run at this moment. A plain number: to look at it lets nobody go first.
type Running = Arc<AtomicUsize>;

async fn lane(permits: usize) -> (Bulkhead, ActorCell, ActorCell) {
    let bulkhead = Bulkhead::new(Lane::Execute, BulkheadLimits { permits, queue_max: 8, breaker: None });
    let root = root().await;
    let actor = bulkhead.start(root.clone()).await.unwrap();
    (bulkhead, root, actor)
}

/// A call: waits for a permit, works, gives it back.
async fn call(lane: Bulkhead, number: usize, permits: usize, stop: Cancellation, running: Running) -> Result<(), Shed> {
    let holder = Holder { session: format!("s{}", number % 2).into(), invocation: format!("c{number}").into() };
    let permit = lane.acquire(holder, &stop).await?;
    assert!(running.fetch_add(1, Ordering::SeqCst) < permits, "more calls run than there are permits");
    tokio::task::yield_now().await;
    running.fetch_sub(1, Ordering::SeqCst);
    permit.settle(CallHealth::Succeeded);
    Ok(())
}

/// Everything is at home, and whoever comes next passes.
async fn at_rest(lane: &Bulkhead) {
    until(async || {
        let status = lane.status().await.unwrap();
        (status.in_use, status.waiting) == (0, 0)
    })
    .await;
    assert!(!lane.has_to_be_asked(), "nobody waits, and nobody passes");
}

pub fn one_permit() {
    play(0, async {
        let (lane, root, actor) = lane(1).await;
        let (running, stop) = (Running::default(), Cancellation::new());
        let start = |number, stop: &Cancellation| {
            tokio::spawn(call(lane.clone(), number, 1, stop.clone(), Arc::clone(&running)))
        };
        let calls = [start(0, &Cancellation::new()), start(1, &stop), start(2, &Cancellation::new())];
        let canceller = tokio::spawn(async move { stop.cancel(CancelReason::Requested) });
        let ends: Vec<_> = {
            let mut ends = Vec::new();
            for call in calls {
                ends.push(call.await.unwrap());
            }
            ends
        };
        canceller.await.unwrap();
        assert_eq!((&ends[0], &ends[2]), (&Ok(()), &Ok(())));
        assert!(matches!(&ends[1], Ok(()) | Err(Shed::Cancelled(CancelReason::Requested))), "{ends:?}");
        at_rest(&lane).await;
        end(root, [actor]).await;
    });
}

pub fn a_new_life() {
    play(0, async {
        let (lane, root, actor) = lane(2).await;
        let running = Running::default();
        let calls: Vec<_> = (0..3)
            .map(|number| tokio::spawn(call(lane.clone(), number, 2, Cancellation::new(), Arc::clone(&running))))
            .collect();
        let (again, above) = (lane.clone(), root.clone());
        let restart = tokio::spawn(async move {
            actor.stop(None);
            let _ = actor.wait(None).await;
            again.start(above).await.unwrap()
        });
        for call in calls {
            let ended = call.await.unwrap();
            assert!(matches!(ended, Ok(()) | Err(Shed::NotRunning)), "{ended:?}");
        }
        let actor = restart.await.unwrap();
        assert_eq!(call(lane.clone(), 9, 2, Cancellation::new(), running).await, Ok(()));
        at_rest(&lane).await;
        end(root, [actor]).await;
    });
}
