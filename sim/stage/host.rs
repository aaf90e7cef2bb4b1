//! The host of a world: builds the runtime over the twins, opens sessions, asks, and looks at what is left.
//!
//! It keeps what a host keeps outside of the process (which prompts were asked, and what it was told), so that a
//! process that crashed can be followed by another one that goes on.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::embedding::{BuildError, Runtime};
use toolwarden::lanes::LaneLimits;
use toolwarden::run::RunLimits;
use toolwarden::scope::{CallLimits, Confirming};
use toolwarden::session::{Session, SessionError};
use toolwarden_actors::budget::{Amount, BudgetLimits, Resource};
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::effects::processes::Leftover;
use toolwarden_tools::workspace::{Commands, Workspace, WorkspaceCapabilities};

use super::hands::{Hands, Order};
use super::sink::Sink;
use super::{SCHEMAS, Twins};
use crate::fate::Fate;
use crate::play::{Act, Play};
use crate::sight::{Aftermath, LaneRest, Sight, Told};
use crate::twins::person;

/// How often a session is opened again before the host gives it up.
const OPENINGS_MAX: usize = 8;
/// How long the host waits before it opens a session again.
const OPENS_AGAIN: Duration = Duration::from_millis(200);
/// How often the host looks whether everything is at rest, and how long it waits between two looks.
const LOOKS_MAX: usize = 1_200;
const LOOKS_AGAIN: Duration = Duration::from_millis(100);
/// How often it looks for tasks after the shut-down: for longer than a person thinks.
const LAST_LOOKS_MAX: usize = 1_000;
/// Where the workspace stands, as people are shown it.
const ROOT: &str = "/pretended";

/// Opens sessions and asks.
pub(crate) struct Host {
    play: Play,
    twins: Arc<Twins>,
    hands: Arc<Hands>,
    told: Mutex<Vec<Told>>,
    /// Rings when whoever waits for a run of this session goes away.
    leaves: Vec<Notify>,
    /// Whether the host has shut the runtime down.
    is_down: AtomicBool,
    /// How many forks were ordered.
    forks: AtomicU64,
}

impl Host {
    pub(super) fn new(play: Play, twins: Arc<Twins>) -> Self {
        let (fate, clock, sessions) = (twins.fate.clone(), Arc::clone(&twins.clock), play.sessions.len());
        let hands = Arc::new(Hands::new(fate, clock, play.acts.clone(), play.acts_max, play.moves.clone(), sessions));
        let leaves = (0..sessions).map(|_| Notify::new()).collect();
        let (is_down, forks) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { play, twins, hands, told: Mutex::default(), leaves, is_down, forks }
    }

    pub(super) fn fate(&self) -> &Fate {
        &self.twins.fate
    }

    pub(super) fn hands(&self) -> &Arc<Hands> {
        &self.hands
    }

    /// What the host was told, in the order of sessions and prompts.
    pub(super) fn told(&self) -> Vec<Told> {
        let mut told = self.told_so_far().clone();
        told.sort_by_key(|told| (told.session, told.prompt));
        told
    }

    /// Lets go of what it holds of a process that is over.
    pub(super) fn let_go(&self) {
        self.hands.let_go();
    }

    fn told_so_far(&self) -> MutexGuard<'_, Vec<Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One process from its start to its shut-down.
    pub(super) async fn live(
        self: &Arc<Self>,
        crashes: u32,
        aftermath: &Arc<Mutex<Aftermath>>,
    ) -> Result<(), BuildError> {
        let runtime = self.build().await?;
        let orders = self.hands.take_orders();
        let mut people = JoinSet::new();
        people.spawn(Arc::clone(self).obey(runtime.clone(), orders));
        let mut sessions = JoinSet::new();
        for index in 0..self.play.sessions.len() {
            sessions.spawn(Arc::clone(self).attend(runtime.clone(), index, crashes));
        }
        while sessions.join_next().await.is_some() {}
        self.fate().set_wild(false);
        let rest = self.rest(&runtime).await;
        for session in self.hands.open_sessions() {
            session.close().await;
        }
        let nodes = runtime.live_nodes().saturating_sub(1);
        let journal = runtime.journal_status().await.ok();
        self.fate().see(&Sight::ShutDown);
        runtime.shut_down().await;
        let nodes_after = runtime.live_nodes();
        people.shutdown().await;
        let tasks = self.leftover_tasks().await;
        let (open_invocations, refused_endings) =
            journal.map_or((0, 0), |journal| (journal.open_invocations, journal.refused_endings));
        *aftermath.lock().unwrap_or_else(PoisonError::into_inner) =
            Aftermath { nodes, nodes_after, tasks, open_invocations, refused_endings, ..rest };
        Ok(())
    }

    /// Tasks that outlive the runtime, once everything that can end at once has ended.
    async fn leftover_tasks(&self) -> usize {
        self.hands.let_go();
        let metrics = tokio::runtime::Handle::current().metrics();
        for _ in 0..LAST_LOOKS_MAX {
            if metrics.num_alive_tasks() == 0 {
                break;
            }
            sleep(LOOKS_AGAIN).await;
        }
        metrics.num_alive_tasks()
    }

    async fn build(self: &Arc<Self>) -> Result<Runtime, BuildError> {
        let twins = &self.twins;
        let (fate, hands) = (twins.fate.clone(), Arc::clone(&self.hands));
        let mut lanes = LaneLimits::default();
        for (lane, limits) in LaneLimits::default().iter() {
            let permits = self.play.permits.unwrap_or(limits.permits);
            let queue_max = self.play.queue_max.unwrap_or(limits.queue_max);
            lanes = lanes.with(lane.clone(), BulkheadLimits { permits, queue_max, ..*limits });
        }
        let mut builder = Runtime::builder()
            .effects(twins.effects.clone())
            .processes(Arc::new(twins.processes.clone()))
            .lanes(lanes)
            .secrets(vec![self.play.secret.clone()])
            .artifact_blobs(Arc::clone(&twins.blobs) as _)
            .schemas(Arc::clone(&SCHEMAS))
            .event_sink(move || Some(Box::new(Sink { fate: fate.clone(), hands: Arc::clone(&hands) })));
        if let Some(store) = &twins.given_store {
            builder = builder.store(Arc::clone(store));
        }
        builder.build().await
    }

    fn workspace(&self) -> Workspace {
        let commands = Commands { processes: Arc::new(self.twins.processes.clone()), folder: ROOT.into() };
        let all = WorkspaceCapabilities::local_default();
        Workspace::new(ROOT, all, Arc::clone(&self.twins.given_files), Some(commands))
    }

    /// A session to be opened, for the first time or again.
    fn builder(&self, runtime: &Runtime, index: usize, opening: usize, again: bool) -> SessionBuilder {
        let (play, twins) = (&self.play, &self.twins);
        let builder = match again && twins.store.is_some() {
            true => runtime.resume(format!("s{index}").as_str()).over(self.workspace()),
            // Without a store a session that is gone is gone.
            false if again => runtime.session_over(self.workspace()).id(format!("s{index}-{opening}").as_str()),
            false => runtime.session_over(self.workspace()).id(format!("s{index}").as_str()),
        };
        let confirming = match play.confirm_ms {
            0 => Confirming::Park,
            span => Confirming::RejectAfter(Duration::from_millis(span)),
        };
        let policy = if again { &twins.policy_later } else { &twins.policy };
        let builder = builder
            .model(Arc::clone(&twins.model))
            .policy(policy.clone())
            .confirming(confirming)
            .budget(BudgetLimits {
                calls: play.calls_max,
                input_tokens: play.tokens_max,
                output_tokens: play.tokens_max,
                ..BudgetLimits::default()
            })
            .call_limits(CallLimits { timeout: play.call_ms.map(Duration::from_millis), ..CallLimits::default() })
            .run_limits(RunLimits {
                rounds_max: Some(play.rounds_max),
                timeout: play.run_ms.map(Duration::from_millis),
                ..RunLimits::default()
            })
            .leftover(if play.keeps_leftovers { Leftover::Keep } else { Leftover::Stop });
        let builder = match &twins.dispatch {
            Some(dispatch) => builder.dispatch(Arc::clone(dispatch)),
            None => builder,
        };
        twins.tools.iter().fold(builder, |builder, tool| builder.tool(Arc::clone(tool)))
    }

    /// Opens a session, again and again where that is refused for now.
    async fn open(&self, runtime: &Runtime, index: usize, again: bool) -> Option<Session> {
        for opening in 0..OPENINGS_MAX {
            if self.is_down.load(Ordering::Relaxed) {
                return None;
            }
            // A session that a crash left half made may be there, or not.
            let kept = match self.twins.store.is_some() {
                true => runtime.kept_sessions().await.unwrap_or_default(),
                false => Vec::new(),
            };
            let again = match self.twins.store.is_some() {
                true => kept.iter().any(|kept| kept.as_str() == format!("s{index}")),
                false => again,
            };
            match self.builder(runtime, index, opening, again).open().await {
                Ok(session) => {
                    self.hands.reach(index, session.clone());
                    return Some(session);
                }
                Err(_) => {
                    self.fate().met("a session that did not open");
                    sleep(OPENS_AGAIN).await;
                }
            }
        }
        None
    }

    /// Asks all prompts of a session, one after the other.
    async fn attend(self: Arc<Self>, runtime: Runtime, index: usize, crashes: u32) {
        let prompts = self.play.sessions.get(index).cloned().unwrap_or_default();
        let mut again = crashes > 0;
        for _ in 0..OPENINGS_MAX {
            let Some(session) = self.open(&runtime, index, again).await else { return };
            again = true;
            if self.has_person()
                && let Ok(events) = session.events().await
            {
                let faulty = self.play.faults.person;
                tokio::spawn(person::attend(self.fate().clone(), session.clone(), events, faulty));
            }
            // Where sessions are kept, what was asked is among the facts.
            let mut asked = self.told_so_far().iter().filter(|told| told.session == index).count();
            let mut closed = false;
            // A run may have ended just before the process did, so that nobody was told.
            let id = session.id().clone();
            let ended = match self.twins.store.is_some() {
                true => runtime.look_at(&id).await.map_or(0, |found| found.state.runs),
                false => 0,
            };
            let is_untold = usize::try_from(ended).is_ok_and(|ended| ended > asked);
            if is_untold || session.run_under_way().is_some() {
                let outcome = self.wait(index, session.go_on()).await;
                match outcome {
                    Some(Ok(Some(outcome))) => self.tell(index, asked, Some(outcome)),
                    Some(Ok(None)) | None => self.tell(index, asked, None),
                    Some(Err(_)) => closed = true,
                }
                asked += 1;
            }
            while asked < prompts.len() && !closed {
                match self.wait(index, session.run(&prompts[asked])).await {
                    Some(Ok(outcome)) => self.tell(index, asked, Some(outcome)),
                    Some(Err(SessionError::Busy)) => sleep(OPENS_AGAIN).await,
                    Some(Err(_)) => closed = true,
                    None => self.tell(index, asked, None),
                }
                asked = self.told_so_far().iter().filter(|told| told.session == index).count();
            }
            if asked >= prompts.len() {
                for task in session.pending_subagent_tasks() {
                    session.subagent_result(&task.task_id).await;
                }
                return;
            }
        }
    }

    /// Whether somebody reads along: only where there may be something to answer, for it costs as much as the run.
    fn has_person(&self) -> bool {
        !self.play.policy.trim().is_empty() || self.play.keeps
    }

    /// Waits for a run, unless whoever waits goes away.
    async fn wait<T>(&self, index: usize, run: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = run => Some(done),
            () = self.leaves[index].notified() => {
                self.fate().met("a caller that went away");
                None
            }
        }
    }

    fn tell(&self, session: usize, prompt: usize, outcome: Option<toolwarden::run::RunOutcome>) {
        if !self.fate().is_dead() {
            self.told_so_far().push(Told { session, prompt, outcome });
        }
    }

    /// Does what is ordered.
    async fn obey(self: Arc<Self>, runtime: Runtime, mut orders: mpsc::Receiver<Order>) {
        let mut tasks = JoinSet::new();
        while let Some(order) = orders.recv().await {
            tasks.spawn(Arc::clone(&self).carry_out(runtime.clone(), order));
        }
    }

    async fn carry_out(self: Arc<Self>, runtime: Runtime, order: Order) {
        let Order { act, session: index } = order;
        let session = self.hands.session(index);
        let fate = self.fate();
        match (act, session) {
            (Act::ShutDown, _) => {
                fate.met("a shut-down in the middle");
                self.is_down.store(true, Ordering::Relaxed);
                fate.see(&Sight::ShutDown);
                runtime.shut_down().await;
            }
            (Act::Kill, _) => {
                fate.met("a shut-down without grace");
                self.is_down.store(true, Ordering::Relaxed);
                fate.see(&Sight::Killed);
                runtime.kill().await;
            }
            (Act::DropRun, _) => {
                if let Some(leaves) = self.leaves.get(index) {
                    leaves.notify_waiters();
                }
            }
            (Act::Close, Some(session)) => {
                fate.met("a session closed in the middle");
                session.close().await;
            }
            // What was not saved or not heard is told to whoever asked; here nobody needs to know.
            (Act::Save, Some(session)) => drop(session.save().await),
            (Act::AgeSnapshots, _) => {
                if let Some(store) = &self.twins.store {
                    store.age_snapshots();
                }
            }
            (Act::Fork, Some(session)) if self.twins.store.is_some() => {
                fate.met("a fork");
                let number = self.forks.fetch_add(1, Ordering::Relaxed);
                let (from, to) = (session.id().clone(), format!("{}-fork-{number}", session.id()).as_str().into());
                fate.see(&Sight::Forking { from: &from, to: &to });
                drop(runtime.fork(&from, &to).await);
            }
            (Act::Steer, Some(session)) => {
                fate.met("a word put in");
                drop(session.steer("and hurry").await);
            }
            _ => {}
        }
    }

    /// Waits until nothing is under way, and says how everything stands then.
    async fn rest(&self, runtime: &Runtime) -> Aftermath {
        let mut found = Aftermath::default();
        for _ in 0..LOOKS_MAX {
            found = self.look(runtime).await;
            let lanes = found.lanes.iter().all(|lane| (lane.in_use, lane.waiting) == (0, 0));
            if lanes && found.reserved.is_empty() && found.active == 0 && found.questions == 0 {
                break;
            }
            sleep(LOOKS_AGAIN).await;
        }
        found
    }

    async fn look(&self, runtime: &Runtime) -> Aftermath {
        let mut found = Aftermath::default();
        for lane in runtime.lanes().iter() {
            if let Ok(status) = lane.status().await {
                let name = lane.lane().to_string();
                found.lanes.push(LaneRest { lane: name, in_use: status.in_use, waiting: status.waiting });
            }
        }
        for session in self.hands.open_sessions() {
            found.active += session.active_tools().len();
            found.questions += session.pending_confirmations().await.map_or(0, |pending| pending.len());
            let Ok(budget) = session.budget().await else { continue };
            found.spent.push((session.id().clone(), budget.spent));
            if budget.reserved != Amount::default() {
                found.reserved.push(format!("{}: {:?}", session.id(), budget.reserved));
            }
            if budget.limits.get(Resource::Calls).is_some_and(|max| budget.spent.get(Resource::Calls) > max) {
                found.overspent.push(format!("{}: {:?} of {:?}", session.id(), budget.spent, budget.limits));
            }
        }
        found
    }
}
