//! A lane's actor and its handle: [`Bulkhead::acquire`] waits for a permit, the [`Permit`] goes home by itself.
//!
//! The decisions are [`PermitPool`]'s. Here a permit is a lease that travels inside the grant: when the caller is
//! gone, the grant has no reader and the permit comes home as if it had been used. A caller that stops waiting,
//! by cancel or by being dropped, leaves the line at once. While nobody waits, a caller takes a free permit in passing
//! ([`Turnstile`]) and the actor hears nothing of it; it shuts the turnstile before it decides anything.
//!
//! - Holds: the permits that it lent itself, the line, the breaker, and the way back to each waiting caller.
//! - Supervised by: `lanes`. Restart: permanent.
//! - After a restart the line is empty (its callers were told [`Shed::NotRunning`]), the breaker closed, and the
//!   permits still out from before count until they come home: never more than `permits` live, restart or not.
//! - Mailbox bound: a caller has at most one question, one withdrawal and one return under way, so three messages
//!   for each live call; the calls themselves are bounded by their sessions.
//! - Reports: nothing of its own; its end goes to its supervisor.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::oneshot;
use tokio::time::Instant;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::tool::Lane;

use crate::child_spec::ChildSpec;
use crate::circuit_breaker::CallHealth;
use crate::lease::{Afterwards, Home, Lease};
use crate::permit_pool::{BulkheadLimits, BulkheadStatus, Effect, Message, PermitPool, Shed};
use crate::slot::{NotRunning, Slot};
use crate::turnstile::{Homecoming, Turnstile};
use crate::waiting_line::{Holder, Ticket};

/// The handle of one lane; clones share it, and it follows the actor through restarts.
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<Shared>,
}

/// Leave to make one call; goes home when settled or dropped.
#[derive(Debug)]
#[must_use = "a permit goes home as soon as it is dropped"]
pub struct Permit {
    lease: Lease<PermitHome>,
}

impl Permit {
    /// Gives it back and tells the breaker how the call went. Dropping it says [`CallHealth::Neutral`].
    pub fn settle(self, health: CallHealth) {
        self.lease.settle(health);
    }

    /// As [`Self::settle`]; what is to be done afterwards is done once the lane has counted it back.
    pub fn settle_then(self, health: CallHealth, then: Afterwards) {
        self.lease.settle_then(health, then);
    }
}

impl Bulkhead {
    /// The handle of a lane that is not started yet.
    pub fn new(lane: Lane, limits: BulkheadLimits) -> Self {
        let (slot, tickets, turnstile) = (Slot::new(), AtomicU64::new(0), Turnstile::new(limits.permits));
        Self { shared: Arc::new(Shared { lane, limits, slot, tickets, turnstile }) }
    }

    /// Starts the lane's actor under `supervisor`; the same call starts it anew after it ended.
    ///
    /// # Errors
    /// When the supervisor is shutting down.
    pub async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, LaneActor, Arc::clone(&self.shared), supervisor).await?;
        self.shared.slot.put(actor.clone());
        // A permit that came home before the new actor was in its slot told nobody; and somebody has to open.
        let _ = actor.cast(LaneMessage::Recount(Afterwards::default()));
        Ok(actor.get_cell())
    }

    /// How a supervisor starts the lane, and starts it anew: a permanent worker.
    pub fn child_spec(&self) -> ChildSpec {
        let handle = self.clone();
        ChildSpec::new(format!("lane:{}", self.shared.lane), move |supervisor| {
            let handle = handle.clone();
            async move { Ok(handle.start(supervisor).await?) }
        })
    }

    /// Which lane it is.
    pub fn lane(&self) -> &Lane {
        &self.shared.lane
    }

    /// What bounds it.
    pub fn limits(&self) -> &BulkheadLimits {
        &self.shared.limits
    }

    /// Whether the next caller will have to ask at this moment, and perhaps to wait.
    pub fn has_to_be_asked(&self) -> bool {
        self.shared.turnstile.turns_away()
    }

    /// Waits for a permit. Dropping the future gives up the place in the line.
    ///
    /// # Errors
    /// [`Shed`] when the line is full, the breaker open, `stop` given, or the lane not running.
    pub async fn acquire(&self, holder: Holder, stop: &Cancellation) -> Result<Permit, Shed> {
        if let Some(reason) = stop.reason() {
            return Err(Shed::Cancelled(reason.clone()));
        }
        let lane = self.shared.slot.get().map_err(|NotRunning| Shed::NotRunning)?;
        if self.shared.turnstile.pass() {
            return Ok(PermitHome::passed(&self.shared));
        }
        let ticket = Ticket(self.shared.tickets.fetch_add(1, Ordering::Relaxed));
        let (waiter, answer) = oneshot::channel();
        let asked = lane.cast(LaneMessage::Pool(Message::Acquire { ticket, holder, waiter }));
        asked.map_err(|_| Shed::NotRunning)?;
        let mut place = Place { lane, ticket, waiting: true };
        tokio::select! {
            biased;
            // First, so that nothing starts once its cancel was seen; a permit that is there already goes home.
            reason = stop.cancelled() => Err(Shed::Cancelled(reason)),
            answer = answer => {
                place.waiting = false;
                answer.unwrap_or(Err(Shed::NotRunning))
            }
        }
    }

    /// How the lane stands.
    ///
    /// # Errors
    /// [`NotRunning`] when the lane's actor is not there.
    pub async fn status(&self) -> Result<BulkheadStatus, NotRunning> {
        let lane = self.shared.slot.get()?;
        let (reply, answer) = oneshot::channel();
        lane.cast(LaneMessage::Status(reply)).map_err(|_| NotRunning)?;
        answer.await.map_err(|_| NotRunning)
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Bulkhead({})", self.shared.lane)
    }
}

/// What the handle, the permits and all lives of the actor share.
struct Shared {
    lane: Lane,
    limits: BulkheadLimits,
    slot: Slot<LaneMessage>,
    tickets: AtomicU64,
    // Counts the permits out of all lives of the actor, so a new life knows how many are left.
    turnstile: Turnstile,
}

/// A place in the line; leaves it when dropped before the answer.
struct Place {
    lane: ActorRef<LaneMessage>,
    ticket: Ticket,
    waiting: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.waiting {
            // A lane that is gone has no line to leave.
            let _ = self.lane.cast(LaneMessage::Pool(Message::Withdraw { ticket: self.ticket }));
        }
    }
}

struct PermitHome {
    shared: Arc<Shared>,
    // None for one that was taken in passing.
    lent: Option<Lent>,
}

/// How the actor knows a permit that it lent.
struct Lent {
    // Permits out of the life that lent this one.
    own_live: Arc<AtomicUsize>,
    ticket: Ticket,
}

impl PermitHome {
    fn lend(shared: &Arc<Shared>, own_live: &Arc<AtomicUsize>, ticket: Ticket) -> Permit {
        shared.turnstile.lend();
        own_live.fetch_add(1, Ordering::AcqRel);
        let lent = Lent { own_live: Arc::clone(own_live), ticket };
        Permit { lease: Lease::new(Self { shared: Arc::clone(shared), lent: Some(lent) }) }
    }

    fn passed(shared: &Arc<Shared>) -> Permit {
        Permit { lease: Lease::new(Self { shared: Arc::clone(shared), lent: None }) }
    }
}

impl Home for PermitHome {
    type Word = CallHealth;

    fn take_back(self, word: Option<CallHealth>, then: Afterwards) {
        // Counted first and told then, so that whoever hears of it sees the count.
        if let Some(lent) = &self.lent {
            lent.own_live.fetch_sub(1, Ordering::AcqRel);
        }
        let message = match (self.shared.turnstile.come_home(), self.lent) {
            (_, Some(Lent { ticket, .. })) => {
                LaneMessage::Return(Message::Return { ticket, health: word.unwrap_or_default() }, then)
            }
            (Homecoming::ToBeTold, None) => LaneMessage::Recount(then),
            (Homecoming::Unnoticed, None) => return,
        };
        if let Ok(lane) = self.shared.slot.get() {
            // A lane that is gone has no permits to count; its next life reads the turnstile.
            let _ = lane.cast(message);
        }
    }
}

type Waiter = oneshot::Sender<Result<Permit, Shed>>;

enum LaneMessage {
    Pool(Message<Waiter>),
    Return(Message<Waiter>, Afterwards),
    /// Permits came home that this life did not lend.
    Recount(Afterwards),
    Status(oneshot::Sender<BulkheadStatus>),
}

struct LaneActor;

struct LaneState {
    shared: Arc<Shared>,
    own_live: Arc<AtomicUsize>,
    elsewhere: usize,
    pool: PermitPool<Waiter>,
    effects: Vec<Effect<Waiter>>,
    started_at: Instant,
}

impl LaneState {
    fn new(shared: Arc<Shared>) -> Self {
        let pool = PermitPool::new(shared.limits);
        let own_live = Arc::new(AtomicUsize::new(0));
        Self { shared, own_live, elsewhere: 0, pool, effects: Vec::new(), started_at: Instant::now() }
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Shuts the turnstile and tells the pool how many permits are out that it did not lend. Every permit of this life
    /// that is live is among those the pool counts itself, so a permit that comes home between the two reads is never
    /// missed, only counted once more until its message arrives.
    fn recount(&mut self) {
        let out = self.shared.turnstile.shut();
        let permits = out.saturating_sub(self.own_live.load(Ordering::Acquire));
        if permits != self.elsewhere {
            self.elsewhere = permits;
            self.pool.step(self.now(), Message::Elsewhere { permits }, &mut self.effects);
        }
    }

    /// Recounts, takes a message when there is one, and opens again when nobody is left who waits.
    fn step(&mut self, message: Option<Message<Waiter>>) {
        self.recount();
        if let Some(message) = message {
            self.pool.step(self.now(), message, &mut self.effects);
        }
        self.carry_out();
        if self.pool.lets_pass() {
            self.shared.turnstile.open();
        }
    }

    fn carry_out(&mut self) {
        for effect in self.effects.drain(..) {
            // A caller that is gone drops the answer, and a permit in it goes home.
            match effect {
                Effect::Grant { ticket, waiter } => {
                    let _ = waiter.send(Ok(PermitHome::lend(&self.shared, &self.own_live, ticket)));
                }
                Effect::Shed { waiter, shed } => {
                    let _ = waiter.send(Err(shed));
                }
            }
        }
    }
}

impl Actor for LaneActor {
    type Msg = LaneMessage;
    type State = LaneState;
    type Arguments = Arc<Shared>;

    async fn pre_start(&self, _: ActorRef<LaneMessage>, shared: Arc<Shared>) -> Result<LaneState, ActorProcessingErr> {
        Ok(LaneState::new(shared))
    }

    async fn handle(
        &self,
        _: ActorRef<LaneMessage>,
        message: LaneMessage,
        state: &mut LaneState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            LaneMessage::Pool(message) => state.step(Some(message)),
            LaneMessage::Return(message, then) => {
                state.step(Some(message));
                drop(then);
            }
            LaneMessage::Recount(then) => {
                state.step(None);
                drop(then);
            }
            LaneMessage::Status(reply) => {
                state.step(None);
                let _ = reply.send(state.pool.status(state.now()));
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<LaneMessage>, state: &mut LaneState) -> Result<(), ActorProcessingErr> {
        // The state outlives the actor until its supervisor looks at it, so those who wait are told here.
        state.pool.close(&mut state.effects);
        state.carry_out();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ractor::ActorCell;
    use tokio::sync::Barrier;
    use tokio::task::JoinSet;
    use toolwarden_tools::cancellation::{CancelReason, Cancellation};
    use toolwarden_tools::tool::Lane;

    use super::{Bulkhead, Permit};
    use crate::circuit_breaker::{BreakerLimits, CallHealth};
    use crate::onlooker::root;
    use crate::permit_pool::{BulkheadLimits, Shed};
    use crate::slot::NotRunning;
    use crate::supervisor::SupervisorSpec;
    use crate::waiting_line::Holder;

    async fn lane(permits: usize, queue_max: usize) -> (Bulkhead, ActorCell, ActorCell) {
        let bulkhead = Bulkhead::new(Lane::Execute, BulkheadLimits { permits, queue_max, breaker: None });
        let root = root().await;
        let actor = bulkhead.start(root.clone()).await.unwrap();
        (bulkhead, root, actor)
    }

    fn holder(call: usize) -> Holder {
        Holder { session: format!("session-{}", call % 3).into(), invocation: format!("call-{call}").into() }
    }

    async fn acquire(bulkhead: &Bulkhead, call: usize) -> Result<Permit, Shed> {
        bulkhead.acquire(holder(call), &Cancellation::new()).await
    }

    /// Lets the other tasks go on until the lane stands like this.
    async fn until(bulkhead: &Bulkhead, in_use: usize, waiting: usize) {
        for _ in 0..10_000 {
            let status = bulkhead.status().await.unwrap();
            if (status.in_use, status.waiting) == (in_use, waiting) {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("never {in_use} in use and {waiting} waiting: {:?}", bulkhead.status().await);
    }

    // Case C177: a slot is not lost to panics, errors or cancels.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fifty_tasks_of_which_many_break_leave_all_permits_at_home() {
        let (bulkhead, _root, _actor) = lane(4, 64).await;
        let mut tasks = JoinSet::new();
        for call in 0..50 {
            let bulkhead = bulkhead.clone();
            tasks.spawn(async move {
                let stop = Cancellation::new();
                if call % 3 == 1 {
                    let signal = stop.clone();
                    tokio::spawn(async move { signal.cancel(CancelReason::Requested) });
                }
                match bulkhead.acquire(holder(call), &stop).await {
                    Ok(_permit) if call % 3 == 0 => panic!("call {call} breaks"),
                    Ok(permit) => {
                        tokio::task::yield_now().await;
                        permit.settle(CallHealth::Succeeded);
                        "ran"
                    }
                    Err(Shed::Cancelled(CancelReason::Requested)) if call % 3 == 1 => "cancelled",
                    Err(shed) => panic!("call {call} was shed: {shed}"),
                }
            });
        }
        let mut panics = 0;
        while let Some(end) = tasks.join_next().await {
            panics += usize::from(end.is_err_and(|error| error.is_panic()));
        }
        assert_eq!(panics, 17);
        until(&bulkhead, 0, 0).await;
        // Four run at once: each waits for the other three while it holds its permit.
        let together = Arc::new(Barrier::new(4));
        for call in 0..4 {
            let (bulkhead, together) = (bulkhead.clone(), Arc::clone(&together));
            tasks.spawn(async move {
                let permit = acquire(&bulkhead, call).await.unwrap();
                together.wait().await;
                permit.settle(CallHealth::Succeeded);
                "ran"
            });
        }
        assert_eq!(tasks.join_all().await, ["ran"; 4]);
        until(&bulkhead, 0, 0).await;
    }

    // Case C177 again, with the waiting ones cancelled for certain while they wait.
    #[tokio::test]
    async fn a_cancelled_or_dropped_waiter_leaves_the_line_at_once() {
        let (bulkhead, _root, _actor) = lane(1, 8).await;
        let held = acquire(&bulkhead, 0).await.unwrap();
        let stop = Cancellation::new();
        let (one, signal) = (bulkhead.clone(), stop.clone());
        let cancelled = tokio::spawn(async move { one.acquire(holder(1), &signal).await });
        let other = bulkhead.clone();
        let dropped = tokio::spawn(async move { acquire(&other, 2).await });
        until(&bulkhead, 1, 2).await;
        stop.cancel(CancelReason::SessionClosed);
        assert_eq!(cancelled.await.unwrap().unwrap_err(), Shed::Cancelled(CancelReason::SessionClosed));
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        until(&bulkhead, 1, 0).await;
        drop(held);
        until(&bulkhead, 0, 0).await;
        let given = Cancellation::new();
        given.cancel(CancelReason::Shutdown);
        assert_eq!(bulkhead.acquire(holder(3), &given).await.unwrap_err(), Shed::Cancelled(CancelReason::Shutdown));
    }

    // Case C178: the limit holds, and is reached.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn three_permits_let_exactly_three_of_ten_run_at_a_time() {
        let (bulkhead, _root, _actor) = lane(3, 16).await;
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let three = Arc::new(Barrier::new(3));
        let mut tasks = JoinSet::new();
        for call in 0..10 {
            let (bulkhead, three) = (bulkhead.clone(), Arc::clone(&three));
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            tasks.spawn(async move {
                let _permit = acquire(&bulkhead, call).await.unwrap();
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Three that hold a permit wait for each other, so fewer than three at a time would hang.
                if call < 9 {
                    three.wait().await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
            });
        }
        while let Some(end) = tasks.join_next().await {
            end.unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 3);
        until(&bulkhead, 0, 0).await;
    }

    #[tokio::test]
    async fn a_grant_that_nobody_reads_brings_its_permit_home() {
        let (bulkhead, _root, _actor) = lane(1, 8).await;
        let stop = Cancellation::new();
        let first = acquire(&bulkhead, 0).await.unwrap();
        // Ask once and never look again: the grant lies in a mailbox that is alive but unread.
        let mut asking = Box::pin(bulkhead.acquire(holder(1), &stop));
        assert!(futures_util::poll!(&mut asking).is_pending());
        until(&bulkhead, 1, 1).await;
        drop(first);
        until(&bulkhead, 1, 0).await;
        drop(asking);
        until(&bulkhead, 0, 0).await;
        drop(acquire(&bulkhead, 2).await.unwrap());
    }

    #[tokio::test]
    async fn cancel_wins_over_a_grant_that_is_there_already_and_its_permit_goes_home() {
        let (bulkhead, _root, _actor) = lane(1, 8).await;
        let stop = Cancellation::new();
        let first = acquire(&bulkhead, 0).await.unwrap();
        let mut asking = Box::pin(bulkhead.acquire(holder(1), &stop));
        assert!(futures_util::poll!(&mut asking).is_pending());
        until(&bulkhead, 1, 1).await;
        drop(first);
        until(&bulkhead, 1, 0).await;
        stop.cancel(CancelReason::Requested);
        assert_eq!(asking.await.unwrap_err(), Shed::Cancelled(CancelReason::Requested));
        until(&bulkhead, 0, 0).await;
    }

    #[tokio::test]
    async fn nobody_overtakes_the_line_and_who_comes_to_an_empty_one_passes() {
        let (bulkhead, _root, _actor) = lane(1, 8).await;
        let held = acquire(&bulkhead, 0).await.unwrap();
        assert!(bulkhead.has_to_be_asked(), "the only permit is out");
        let first = bulkhead.clone();
        let first = tokio::spawn(async move { acquire(&first, 1).await });
        until(&bulkhead, 1, 1).await;
        // The permit comes home and goes to the one who waits, not to the one who comes now.
        drop(held);
        let stop = Cancellation::new();
        let mut later = Box::pin(bulkhead.acquire(holder(2), &stop));
        assert!(futures_util::poll!(&mut later).is_pending());
        let first = first.await.unwrap().unwrap();
        until(&bulkhead, 1, 1).await;
        drop(first);
        drop(later.await.unwrap());
        until(&bulkhead, 0, 0).await;
        assert!(!bulkhead.has_to_be_asked(), "the line is empty");
    }

    #[tokio::test(start_paused = true)]
    async fn the_breaker_of_a_lane_opens_and_lets_a_probe_through_later() {
        let breaker = Some(BreakerLimits { failures_max: 2, ..BreakerLimits::default() });
        let bulkhead = Bulkhead::new(Lane::Model, BulkheadLimits { permits: 2, queue_max: 2, breaker });
        bulkhead.start(root().await).await.unwrap();
        for call in 0..2 {
            acquire(&bulkhead, call).await.unwrap().settle(CallHealth::Failed);
        }
        assert_eq!(acquire(&bulkhead, 2).await.unwrap_err(), Shed::BreakerOpen { retry_after_ms: 1000 });
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        let probe = acquire(&bulkhead, 3).await.unwrap();
        assert!(matches!(acquire(&bulkhead, 4).await.unwrap_err(), Shed::BreakerOpen { .. }));
        probe.settle(CallHealth::Succeeded);
        acquire(&bulkhead, 5).await.unwrap().settle(CallHealth::Succeeded);
    }

    #[tokio::test]
    async fn without_its_actor_a_lane_refuses_and_those_who_wait_are_told() {
        let bulkhead = Bulkhead::new(Lane::Query, BulkheadLimits { permits: 1, queue_max: 4, breaker: None });
        assert_eq!(acquire(&bulkhead, 0).await.unwrap_err(), Shed::NotRunning);
        let actor = bulkhead.start(root().await).await.unwrap();
        let _held = acquire(&bulkhead, 0).await.unwrap();
        let other = bulkhead.clone();
        let waiting = tokio::spawn(async move { acquire(&other, 1).await });
        until(&bulkhead, 1, 1).await;
        actor.stop_and_wait(None, None).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap_err(), Shed::NotRunning);
        assert_eq!(acquire(&bulkhead, 2).await.unwrap_err(), Shed::NotRunning);
        assert_eq!(bulkhead.status().await, Err(NotRunning));
    }

    #[tokio::test]
    async fn permits_of_a_former_life_count_in_the_next_one() {
        let (bulkhead, root, actor) = lane(2, 8).await;
        let old = [acquire(&bulkhead, 0).await.unwrap(), acquire(&bulkhead, 1).await.unwrap()];
        actor.kill_and_wait(None).await.unwrap();
        bulkhead.start(root).await.unwrap();
        until(&bulkhead, 2, 0).await;
        let other = bulkhead.clone();
        let waiting = tokio::spawn(async move { acquire(&other, 2).await });
        until(&bulkhead, 2, 1).await;
        let [first, second] = old;
        first.settle(CallHealth::Failed);
        let new = waiting.await.unwrap().unwrap();
        until(&bulkhead, 2, 0).await;
        drop((second, new));
        until(&bulkhead, 0, 0).await;
    }

    #[tokio::test]
    async fn a_permit_that_comes_home_while_no_actor_is_there_is_not_lost() {
        let (bulkhead, root, actor) = lane(1, 8).await;
        let old = acquire(&bulkhead, 0).await.unwrap();
        actor.kill_and_wait(None).await.unwrap();
        drop(old);
        bulkhead.start(root).await.unwrap();
        drop(acquire(&bulkhead, 1).await.unwrap());
        until(&bulkhead, 0, 0).await;
    }

    #[tokio::test]
    async fn under_a_supervisor_the_handle_follows_the_lane_into_its_next_life() {
        let bulkhead = Bulkhead::new(Lane::Execute, BulkheadLimits { permits: 1, queue_max: 4, breaker: None });
        let spec = SupervisorSpec { children: vec![bulkhead.child_spec()], ..SupervisorSpec::default() };
        let supervisor = crate::supervisor::start(spec).await.unwrap();
        let old = acquire(&bulkhead, 0).await.unwrap();
        let first = bulkhead.shared.slot.get().unwrap();
        first.kill_and_wait(None).await.unwrap();
        while bulkhead.status().await.is_err() {
            tokio::task::yield_now().await;
        }
        assert_ne!(bulkhead.shared.slot.get().unwrap(), first);
        assert_eq!(supervisor.which_children().await.unwrap()[0].terms.id.as_str(), "lane:execute");
        until(&bulkhead, 1, 0).await;
        drop(old);
        drop(acquire(&bulkhead, 1).await.unwrap());
        until(&bulkhead, 0, 0).await;
        supervisor.shutdown(std::time::Duration::from_secs(5)).await.unwrap();
        assert_eq!(acquire(&bulkhead, 2).await.unwrap_err(), Shed::NotRunning);
    }
}
