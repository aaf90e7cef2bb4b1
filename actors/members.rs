//! Runs the members of a fan-out: carries out what [`FanOut`] decides.
//!
//! A member is a piece of work that some node beneath stands behind (an invocation, a child session). It is made
//! when it is its turn, under the fan-out's own node, so a cancel of the fan-out reaches it through the tree as
//! well. What must stay true: this returns only when every member that was started has ended.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::Instant;
use toolwarden_tools::cancellation::CancelReason;

use crate::fan_out::{Effect, Event, FanOut, FanOutEnd, FanOutError, FanOutPlan};
use crate::node::{Canceller, NodeHandle};

/// A member that was started.
pub struct Member<R> {
    /// Ends with whether it did what it was asked, and what it gave back.
    pub ends: BoxFuture<'static, (bool, R)>,
    /// Tells it to end.
    pub canceller: Canceller,
}

/// Starts a member under the fan-out's node.
pub type MemberStart<R> = Box<dyn FnOnce(&NodeHandle) -> Member<R> + Send>;

/// Runs all members by this plan; `node` is the fan-out's own.
///
/// # Errors
/// [`FanOutError`] for more members than a fan-out may have.
pub async fn run_members<R: Send + 'static>(
    node: &NodeHandle,
    plan: FanOutPlan,
    members: Vec<MemberStart<R>>,
) -> Result<FanOutEnd<R>, FanOutError> {
    let began_at = Instant::now();
    let mut machine = FanOut::new(members.len(), plan)?;
    let mut waiting: Vec<Option<MemberStart<R>>> = members.into_iter().map(Some).collect();
    let mut cancellers: Vec<Option<Canceller>> = waiting.iter().map(|_| None).collect();
    let mut running = FuturesUnordered::new();
    let mut wake_at: Option<Instant> = None;
    let mut cancelled = false;
    let mut effects = machine.begin(began_at.elapsed());
    loop {
        for effect in effects.drain(..) {
            match effect {
                Effect::Start { member } => {
                    if let Some(start) = waiting.get_mut(member).and_then(Option::take) {
                        let started = start(node);
                        cancellers[member] = Some(started.canceller);
                        running.push(AssertUnwindSafe(started.ends).catch_unwind().map(move |end| (member, end)));
                    }
                }
                Effect::Cancel { member, reason } => {
                    if let Some(Some(canceller)) = cancellers.get(member) {
                        canceller.cancel(reason);
                    }
                }
                Effect::Wake { at } => wake_at = Some(began_at + at),
                Effect::Done => wake_at = None,
            }
        }
        if machine.is_done() {
            break;
        }
        let event = tokio::select! {
            biased;
            reason = node.cancellation().cancelled(), if !cancelled => {
                cancelled = true;
                Event::Cancel { reason }
            }
            Some((member, end)) = running.next() => ended(member, end),
            () = tokio::time::sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                wake_at = None;
                Event::Tick
            }
        };
        effects = machine.step(began_at.elapsed(), event);
    }
    Ok(machine.finish().unwrap_or(FanOutEnd { members: Vec::new(), ended_early: Some(CancelReason::ParentEnded) }))
}

fn ended<R>(member: usize, end: Result<(bool, R), Box<dyn Any + Send>>) -> Event<R> {
    match end {
        Ok((success, result)) => Event::Finished { member, result, success },
        Err(_) => Event::Crashed { member, message: "this member broke down".to_owned() },
    }
}
