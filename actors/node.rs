//! A node of the supervision tree: one piece of work, its children, one cancel path down, one ending up.
//!
//! A session, a run, an invocation, a fan-out and a process group are nodes of this one kind; what a node
//! does is its *body*, a future given by whoever spawns it. The node itself only keeps the promises:
//! - a cancel reaches every level at once (each node passes it on before it waits for anything);
//! - a node ends after all of its children have ended, and says so when one could not be waited for;
//! - there is exactly one ending, whether the body returned, panicked, was aborted or could not be stopped;
//! - whoever waits for a node and goes away cancels it.
//!
//! Holds: its children, its body's task, its ending. Supervised by: its parent node (the root by a supervisor).
//! Restart: temporary, always; trying again is a decision of the route. Mailbox bound: one message for each spawn
//! (bounded by [`crate::node_machine::CHILDREN_MAX`]), cancel and body's end. Reports: its ending, in the state that the supervision
//! event carries: that event is the one authority for the end of a child.

mod alarm;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt as _;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};

use self::alarm::{Alarm, Alarms};
use crate::lease::Afterwards;
use crate::node_machine::{BodyEnd, Ending, NodeEffect, NodeEvent, NodeId, NodeMachine, NodeTimer};

/// What a node stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeKind {
    /// The node that all sessions hang on.
    Sessions,
    /// One session.
    Session,
    /// One run of the agent loop.
    Run,
    /// One call on its way through the route, and its tool at work.
    Invocation,
    /// The members of a batch or of a task.
    FanOut,
    /// One command and its descendants.
    ProcessGroup,
}

/// Numbers, counts and timers that all nodes of one tree share.
#[derive(Debug, Default)]
pub struct Tree {
    next_id: AtomicU64,
    live: AtomicUsize,
    alarms: Alarms,
}

impl Tree {
    /// A tree without nodes.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// How many nodes are alive: started, and their state not yet taken by their parent.
    pub fn live_nodes(&self) -> usize {
        self.live.load(Ordering::Acquire)
    }

    fn next_id(&self) -> NodeId {
        NodeId(self.next_id.fetch_add(1, Ordering::Relaxed))
    }
}

/// What a node is to be.
#[derive(Debug, Clone, Copy)]
pub struct NodeSpec {
    /// What it stands for.
    pub kind: NodeKind,
    /// The span from its cancel to the abort of its body.
    pub grace: Duration,
}

/// A way to reach a node: spawn children under it, cancel it. Cheap to clone; does not keep the node alive.
#[derive(Clone)]
pub struct NodeHandle {
    id: NodeId,
    kind: NodeKind,
    actor: ActorRef<NodeMessage>,
    tree: Arc<Tree>,
    signal: Cancellation,
}

impl NodeHandle {
    /// The node's number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// What the node stands for.
    pub fn kind(&self) -> NodeKind {
        self.kind
    }

    /// The signal that the node's body sees.
    pub fn cancellation(&self) -> &Cancellation {
        &self.signal
    }

    /// Asks the node to end in order; returns at once.
    pub fn cancel(&self, reason: CancelReason) {
        // A node that is gone has ended already.
        drop(self.actor.cast(NodeMessage::Event(NodeEvent::Cancel(reason))));
    }

    /// Asks the node to end without grace; returns at once.
    pub fn kill(&self, reason: CancelReason) {
        drop(self.actor.cast(NodeMessage::Event(NodeEvent::Kill(reason))));
    }

    /// Waits until the node has no child left. Children are not asked to end by this.
    pub async fn children_settled(&self) {
        let (reply, answer) = oneshot::channel();
        drop(self.actor.cast(NodeMessage::WhenChildless(reply)));
        // A node that is gone has no children.
        drop(answer.await);
    }

    /// Limits the node's life, from now on and for as long as the limit is held: when the span is over the node is
    /// cancelled with [`CancelReason::Deadline`]. The tree keeps the time, so a body that never yields cannot escape.
    pub fn limit(&self, span: Duration) -> Limit {
        let timeout_ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let node = self.actor.clone();
        let ring = move || drop(node.cast(NodeMessage::Event(NodeEvent::Timer(NodeTimer::Deadline { timeout_ms }))));
        Limit { _alarm: self.tree.alarms.set(span, ring) }
    }

    /// Spawns a child whose work is `body`. The child starts when this node has read the wish; a node that is
    /// ending refuses it. Dropping the waiter cancels the child.
    pub fn spawn<T, F, R>(&self, spec: NodeSpec, body: F) -> Waiter<T>
    where
        T: Send + 'static,
        F: FnOnce(NodeHandle) -> R + Send + 'static,
        R: Future<Output = T> + Send + 'static,
    {
        self.spawn_child(spec, start_with(body, told_at_once), Epilogue(None))
    }

    /// As [`Self::spawn`], with an epilogue: it is called exactly once, after the child's own children have
    /// ended, when the body did not return by itself: it panicked, was aborted or abandoned, never started, or
    /// was lost with its parent. So what a body owes the world at its end is paid whatever happens to it.
    pub fn spawn_with_epilogue<T, F, R, E>(&self, spec: NodeSpec, body: F, epilogue: E) -> Waiter<T>
    where
        T: Send + 'static,
        F: FnOnce(NodeHandle) -> R + Send + 'static,
        R: Future<Output = T> + Send + 'static,
        E: FnOnce(&Ending) + Send + 'static,
    {
        self.spawn_child(spec, start_with(body, told_at_once), Epilogue(Some(Box::new(epilogue))))
    }

    /// As [`Self::spawn_with_epilogue`], for a body that pays what it owes when it parts: the node hears of its end
    /// only when that is done, and nobody is woken in between for it.
    pub fn spawn_parting<T, F, R, E>(&self, spec: NodeSpec, body: F, epilogue: E) -> Waiter<T>
    where
        T: Send + 'static,
        F: FnOnce(NodeHandle) -> R + Send + 'static,
        R: Future<Output = Parting<T>> + Send + 'static,
        E: FnOnce(&Ending) + Send + 'static,
    {
        self.spawn_child(spec, start_with(body, told_when_parted), Epilogue(Some(Box::new(epilogue))))
    }

    fn spawn_child<T>(&self, spec: NodeSpec, body: Body, epilogue: Epilogue) -> Waiter<T> {
        let id = self.tree.next_id();
        let (ended, waits) = oneshot::channel();
        let birth = Birth { id, spec, body, epilogue, ended };
        // When the node is gone the birth is dropped with the message, and the waiter learns it.
        drop(self.actor.cast(NodeMessage::Spawn(Box::new(birth))));
        Waiter { id, parent: self.actor.clone(), waits, done: false, output: std::marker::PhantomData }
    }
}

impl fmt::Debug for NodeHandle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?} {}", self.kind, self.id.0)
    }
}

/// What a body gives back, and what it owes: the debts are handed the word to its node, and pass it on (by dropping it)
/// once they are paid.
pub struct Parting<T> {
    output: T,
    debts: Box<dyn FnOnce(Afterwards) + Send>,
}

impl<T> Parting<T> {
    /// Gives this back once that is paid. Debts that drop what they are handed, for whatever reason, are paid.
    pub fn owing(output: T, debts: impl FnOnce(Afterwards) + Send + 'static) -> Self {
        Self { output, debts: Box::new(debts) }
    }
}

/// Starts a body as a task of its own. The body's future is made in a box in the task: a task is moved several times
/// before it runs, and large futures are costly to move.
fn start_with<T, F, R>(body: F, tell: fn(T, BodyGuard)) -> Body
where
    T: Send + 'static,
    F: FnOnce(NodeHandle) -> R + Send + 'static,
    R: Future<Output = T> + Send + 'static,
{
    Box::new(move |handle, guard| {
        let task = tokio::spawn(async move {
            // The factory runs inside of the guard too: it may panic as well.
            match AssertUnwindSafe(async move { Box::pin(body(handle)).await }).catch_unwind().await {
                Ok(output) => tell(output, guard),
                Err(panic) => guard.tell(BodyEnd::Panicked(panic_text(&*panic)), None),
            }
        });
        task.abort_handle()
    })
}

fn told_at_once<T: Send + 'static>(output: T, guard: BodyGuard) {
    guard.tell(BodyEnd::Returned, Some(Box::new(output)));
}

fn told_when_parted<T: Send + 'static>(Parting { output, debts }: Parting<T>, guard: BodyGuard) {
    debts(Afterwards::call(move || told_at_once(output, guard)));
}

/// How a node ended, with what its body returned.
#[derive(Debug)]
pub struct NodeEnd<T> {
    /// Its ending.
    pub ending: Ending,
    /// What its body returned, when it did.
    pub output: Option<T>,
}

/// Waits for the ending of a child; dropped before that, it cancels the child with
/// [`CancelReason::CallerGone`].
pub struct Waiter<T> {
    id: NodeId,
    parent: ActorRef<NodeMessage>,
    waits: oneshot::Receiver<(Ending, Option<Output>)>,
    done: bool,
    output: std::marker::PhantomData<fn() -> T>,
}

impl<T> Waiter<T> {
    /// Asks the child to end in order; the waiter still waits for its ending.
    pub fn cancel(&self, reason: CancelReason) {
        drop(self.parent.cast(NodeMessage::Event(NodeEvent::CancelChild(self.id, reason))));
    }

    /// A way to cancel the child that is not tied to waiting for it.
    pub fn canceller(&self) -> Canceller {
        Canceller { id: self.id, parent: self.parent.clone() }
    }

    /// Lets the child live without anybody waiting for it.
    pub fn detach(mut self) {
        self.done = true;
    }
}

/// A limit of a node's life; dropped, it is lifted.
#[must_use = "a limit that is dropped is lifted"]
pub struct Limit {
    _alarm: Alarm,
}

/// A way to cancel one child. Cheap to clone.
#[derive(Clone)]
pub struct Canceller {
    id: NodeId,
    parent: ActorRef<NodeMessage>,
}

impl Canceller {
    /// Asks the child to end in order; one that has ended does not mind.
    pub fn cancel(&self, reason: CancelReason) {
        drop(self.parent.cast(NodeMessage::Event(NodeEvent::CancelChild(self.id, reason))));
    }
}

impl<T: 'static> Future for Waiter<T> {
    type Output = NodeEnd<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let received = std::task::ready!(Pin::new(&mut self.waits).poll(cx));
        self.done = true;
        Poll::Ready(match received {
            Ok((ending, output)) => {
                let output = output.and_then(|output| output.downcast::<T>().ok()).map(|output| *output);
                NodeEnd { ending, output }
            }
            Err(_) => NodeEnd { ending: Ending::lost(), output: None },
        })
    }
}

impl<T> Drop for Waiter<T> {
    fn drop(&mut self) {
        if !self.done {
            self.cancel(CancelReason::CallerGone);
        }
    }
}

/// Spawns the top node of a tree under a supervisor's actor (or under none, in tests).
///
/// # Errors
/// [`SpawnErr`] when the supervisor is stopping.
pub async fn spawn_root<F, R>(
    tree: &Arc<Tree>,
    supervisor: Option<ActorCell>,
    spec: NodeSpec,
    body: F,
) -> Result<(NodeHandle, ActorCell), SpawnErr>
where
    F: FnOnce(NodeHandle) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let body = start_with(body, told_at_once);
    let (id, signal) = (tree.next_id(), Cancellation::new());
    let birth = Newborn { id, spec, body, epilogue: Epilogue(None), tree: Arc::clone(tree), signal: signal.clone() };
    let (actor, _) = match supervisor {
        Some(supervisor) => Actor::spawn_linked(None, NodeActor, birth, supervisor).await?,
        None => Actor::spawn(None, NodeActor, birth).await?,
    };
    let cell = actor.get_cell();
    Ok((NodeHandle { id, kind: spec.kind, actor, tree: Arc::clone(tree), signal }, cell))
}

/// Asks the node behind an actor cell to end in order: how a supervisor shuts a top node down.
pub fn shut_down(cell: &ActorCell) {
    drop(cell.send_message(NodeMessage::Event(NodeEvent::Cancel(CancelReason::Shutdown))));
}

type Output = Box<dyn Any + Send>;
type Body = Box<dyn FnOnce(NodeHandle, BodyGuard) -> AbortHandle + Send>;

/// What is called when a body did not return; a node that is dropped without an ending was lost.
struct Epilogue(Option<EpilogueCall>);

type EpilogueCall = Box<dyn FnOnce(&Ending) + Send>;

impl Epilogue {
    fn settle(&mut self, ending: &Ending) {
        match self.0.take() {
            Some(call) if ending.body != BodyEnd::Returned => call(ending),
            _ => {}
        }
    }
}

impl Drop for Epilogue {
    fn drop(&mut self) {
        self.settle(&Ending::lost());
    }
}

/// A child that is wanted.
struct Birth {
    id: NodeId,
    spec: NodeSpec,
    body: Body,
    epilogue: Epilogue,
    ended: oneshot::Sender<(Ending, Option<Output>)>,
}

/// What a node's actor starts from.
struct Newborn {
    id: NodeId,
    spec: NodeSpec,
    body: Body,
    epilogue: Epilogue,
    tree: Arc<Tree>,
    signal: Cancellation,
}

enum NodeMessage {
    Event(NodeEvent),
    Spawn(Box<Birth>),
    BodyOver(BodyEnd, Option<Output>),
    WhenChildless(oneshot::Sender<()>),
}

struct NodeActor;

/// The mount's state: the machine, and what its effects work on.
struct NodeState {
    machine: NodeMachine,
    effects: Vec<NodeEffect>,
    handle: NodeHandle,
    body: Option<Body>,
    epilogue: Epilogue,
    task: Option<AbortOnDrop>,
    timers: Vec<Alarm>,
    /// The child that is wished for in this step.
    wish: Option<Box<Birth>>,
    children: BTreeMap<NodeId, Child>,
    when_childless: Vec<oneshot::Sender<()>>,
    output: Option<Output>,
    ending: Option<Ending>,
    _alive: Alive,
}

struct Child {
    actor: ActorRef<NodeMessage>,
    ended: oneshot::Sender<(Ending, Option<Output>)>,
}

/// Aborts a task when it goes: a node that is killed takes its body with it.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Counts a node as alive for as long as its state is.
struct Alive(Arc<Tree>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Tells the node that its body's task is over, also when the task is dropped half-way.
struct BodyGuard {
    node: ActorRef<NodeMessage>,
    told: bool,
}

impl BodyGuard {
    fn tell(mut self, end: BodyEnd, output: Option<Output>) {
        self.told = true;
        drop(self.node.cast(NodeMessage::BodyOver(end, output)));
    }
}

impl Drop for BodyGuard {
    fn drop(&mut self) {
        if !self.told {
            drop(self.node.cast(NodeMessage::BodyOver(BodyEnd::Aborted, None)));
        }
    }
}

impl NodeState {
    /// Takes one event and carries out what it means, all but the start of a child, which is given back: only that
    /// has to wait for something.
    fn step(&mut self, myself: &ActorRef<NodeMessage>, event: NodeEvent) -> Option<Box<Birth>> {
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.step(event, &mut effects);
        let mut child = None;
        for effect in effects.drain(..) {
            match effect {
                NodeEffect::StartChild(_) => child = self.wish.take(),
                effect => self.carry_out(myself, effect),
            }
        }
        self.effects = effects;
        child
    }

    fn carry_out(&mut self, myself: &ActorRef<NodeMessage>, effect: NodeEffect) {
        match effect {
            NodeEffect::StartBody => {
                if let Some(body) = self.body.take() {
                    let guard = BodyGuard { node: myself.clone(), told: false };
                    self.task = Some(AbortOnDrop(body(self.handle.clone(), guard)));
                }
            }
            NodeEffect::SignalBody(reason) => {
                self.handle.signal.cancel(reason);
            }
            NodeEffect::AbortBody => self.task = None,
            // Given back by the step.
            NodeEffect::StartChild(_) => {}
            NodeEffect::RefuseChild(_, reason) => {
                if let Some(mut birth) = self.wish.take() {
                    let ending = Ending { body: BodyEnd::NeverStarted, cancel: Some(reason), unsettled_children: 0 };
                    birth.epilogue.settle(&ending);
                    drop(birth.ended.send((ending, None)));
                }
            }
            NodeEffect::CancelChild(id, reason) => self.tell_child(id, NodeEvent::Cancel(reason)),
            NodeEffect::KillChild(id, reason) => self.tell_child(id, NodeEvent::Kill(reason)),
            NodeEffect::KillActor(id) => {
                if let Some(child) = self.children.get(&id) {
                    child.actor.kill();
                }
            }
            NodeEffect::Arm(timer, span) => {
                let node = myself.clone();
                let ring = move || drop(node.cast(NodeMessage::Event(NodeEvent::Timer(timer))));
                self.timers.push(self.handle.tree.alarms.set(span, ring));
            }
            NodeEffect::End(ending) => {
                self.epilogue.settle(&ending);
                self.ending = Some(ending);
                self.timers.clear();
                myself.stop(None);
            }
        }
    }

    /// Starts a child, if it is to have one.
    async fn bear(&mut self, myself: &ActorRef<NodeMessage>, birth: Box<Birth>) {
        let Birth { id, spec, body, epilogue, ended } = *birth;
        let tree = Arc::clone(&self.handle.tree);
        let newborn = Newborn { id, spec, body, epilogue, tree, signal: Cancellation::new() };
        match Actor::spawn_linked(None, NodeActor, newborn, myself.get_cell()).await {
            Ok((actor, _)) => {
                self.children.insert(id, Child { actor, ended });
            }
            Err(_) => {
                drop(ended.send((Ending::lost(), None)));
                self.step(myself, NodeEvent::SpawnFailed(id));
            }
        }
    }

    fn tell_childless(&mut self) {
        if self.machine.child_count() == 0 {
            for reply in self.when_childless.drain(..) {
                // Whoever asked may be gone.
                let _ = reply.send(());
            }
        }
    }

    fn tell_child(&self, id: NodeId, event: NodeEvent) {
        if let Some(child) = self.children.get(&id) {
            drop(child.actor.cast(NodeMessage::Event(event)));
        }
    }

    /// The supervision event of a child: takes the child's ending out of its state and hands it on.
    fn child_over(&mut self, actor: ActorId, state: Option<NodeState>) -> Option<NodeEvent> {
        // A child that failed or was killed left no state to tell its number; that is rare, so it is looked for.
        let of_actor = || self.children.iter().find(|(_, child)| child.actor.get_id() == actor).map(|(id, _)| *id);
        let id = state.as_ref().map(|state| state.handle.id).or_else(of_actor)?;
        let child = self.children.remove(&id)?;
        let (ending, output) = match state {
            Some(mut state) => (state.ending.take(), state.output.take()),
            None => (None, None),
        };
        let event = if ending.is_some() { NodeEvent::ChildEnded(id) } else { NodeEvent::ChildLost(id) };
        // Nobody may be waiting any more.
        drop(child.ended.send((ending.unwrap_or_else(Ending::lost), output)));
        Some(event)
    }
}

impl Actor for NodeActor {
    type Msg = NodeMessage;
    type State = NodeState;
    type Arguments = Newborn;

    async fn pre_start(
        &self,
        myself: ActorRef<NodeMessage>,
        newborn: Newborn,
    ) -> Result<NodeState, ActorProcessingErr> {
        let Newborn { id, spec, body, epilogue, tree, signal } = newborn;
        tree.live.fetch_add(1, Ordering::AcqRel);
        let alive = Alive(Arc::clone(&tree));
        Ok(NodeState {
            machine: NodeMachine::new(spec.grace),
            effects: Vec::new(),
            handle: NodeHandle { id, kind: spec.kind, actor: myself, tree, signal },
            body: Some(body),
            epilogue,
            task: None,
            timers: Vec::new(),
            wish: None,
            children: BTreeMap::new(),
            when_childless: Vec::new(),
            output: None,
            ending: None,
            _alive: alive,
        })
    }

    async fn post_start(&self, myself: ActorRef<NodeMessage>, state: &mut NodeState) -> Result<(), ActorProcessingErr> {
        state.step(&myself, NodeEvent::Start);
        Ok(())
    }

    async fn handle(
        &self,
        myself: ActorRef<NodeMessage>,
        message: NodeMessage,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            NodeMessage::Event(event) => {
                state.step(&myself, event);
            }
            NodeMessage::Spawn(birth) => {
                let id = birth.id;
                state.wish = Some(birth);
                if let Some(birth) = state.step(&myself, NodeEvent::Spawn(id)) {
                    // In a box, so that no other message pays for the size of a start.
                    Box::pin(state.bear(&myself, birth)).await;
                }
            }
            NodeMessage::BodyOver(end, output) => {
                state.output = output;
                state.step(&myself, NodeEvent::BodyEnded(end));
            }
            NodeMessage::WhenChildless(reply) => {
                state.when_childless.push(reply);
                state.tell_childless();
            }
        }
        Ok(())
    }

    // The default would stop the node on any child's end, even a normal one.
    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<NodeMessage>,
        event: SupervisionEvent,
        state: &mut NodeState,
    ) -> Result<(), ActorProcessingErr> {
        let over = match event {
            SupervisionEvent::ActorTerminated(cell, boxed, _) => {
                let child = boxed.and_then(|mut boxed| boxed.take::<NodeState>().ok());
                state.child_over(cell.get_id(), child)
            }
            SupervisionEvent::ActorFailed(cell, _) => state.child_over(cell.get_id(), None),
            _ => None,
        };
        if let Some(event) = over {
            state.step(&myself, event);
            state.tell_childless();
        }
        Ok(())
    }
}

/// The words of a panic.
fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}

#[cfg(test)]
mod tests;
