//! A session: one workspace, one budget, one conversation, and the calls that a host makes itself.
//!
//! The conversation is the fold of the session's facts; one run is carried at a time and others wait their turn.
//! Closing the session, or dropping its last handle, cancels everything in it, waits for it, and gives a session that
//! is kept free for others.

mod life;
pub mod object;
pub mod task;
pub mod verify;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use toolwarden_actors::accounts::{AccountStatus, LedgerError};
use toolwarden_actors::journal::{Entry, JournalError, Reader, Reading};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_actors::open_questions::{PendingQuestion, Reply};
use toolwarden_actors::retention::Page;
use toolwarden_actors::tail::Tail;
use toolwarden_tools::background::{Background, BackgroundError, BackgroundRead, BackgroundStatus, ReadFrom};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::declaration::ToolDefinition;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, ToolName};
use toolwarden_tools::tool::ToolSpec;

use self::life::{Life, live};
use crate::agent::{Agent, Agents};
use crate::call_result::CallResult;
use crate::event::{Event, EventKind};
use crate::fact_book::{FactBook, FactBookError};
use crate::facts::Fact;
use crate::keeper::Keeper;
use crate::kernel::{ActiveTool, Kernel};
use crate::models::Model;
use crate::models::picture::{PICTURES_MAX, Picture, PictureError};
use crate::origin::Origin;
use crate::proposal::Proposal;
use crate::resume::{Recovery, ResumeError};
use crate::run::{RunLimits, RunOutcome, run_id};
use crate::scope::Scope;
use crate::session_span::SESSION_GRACE;
use crate::settlement::artifact::{Artifact, ArtifactReadError};
use crate::settlement::evidence::EVIDENCE_KEY;
use crate::settlement::proof::{Proof, ProofError, ShownResult, original_of, verify};

/// Most runs that wait for their turn in one session.
pub const WAITING_RUNS_MAX: usize = 16;

/// How long [`Session::close`] takes at the most, when tools keep to their graces.
pub const CLOSE_MAX: Duration = SESSION_GRACE;

/// Most pages that a typed helper reads on its own.
const HELPER_PAGES_MAX: usize = 10_000;

/// Paths that a typed helper asks for at a time: the longest there usually are fit into the default projection.
const HELPER_PATHS: usize = 500;

/// A handle to an open session; clones share it.
#[derive(Clone)]
pub struct Session {
    shared: Arc<SessionShared>,
}

struct SessionShared {
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    node: NodeHandle,
    // In boxes: the channel sets a block of 32 places aside, and most sessions never run anything.
    runs: mpsc::Sender<Box<RunRequest>>,
    asked: AskedRuns,
    asks: AtomicU64,
    facts: Arc<FactBook>,
    agents: Agents,
    keeper: Weak<Keeper>,
    recovery: Recovery,
    ended: Shared<BoxFuture<'static, ()>>,
}

/// Why a session did not do what it was asked.
#[derive(Debug, Error)]
pub enum SessionError {
    /// It is closed or closing.
    #[error("the session is closed; open another one")]
    Closed,
    /// The part of the runtime that sessions hang on is not there.
    #[error("the runtime is shutting down or restarting its sessions; try again")]
    NotRunning,
    /// Its budget account could not be opened.
    #[error("the session's budget could not be opened: {0}")]
    Budget(#[from] LedgerError),
    /// Too many runs wait.
    #[error("{WAITING_RUNS_MAX} runs are waiting for this session already; wait for one to end")]
    Busy,
    /// The events cannot be read.
    #[error(transparent)]
    Events(#[from] JournalError),
    /// A background process is not there.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// The session is not kept, so there is nothing to save.
    #[error("the session is not kept; give the runtime a store when it is built")]
    NotKept,
    /// A word cannot be put in where nothing is under way.
    #[error("no run is under way that a word could be put into; ask instead")]
    NoRun,
    /// What happened cannot be stored, or what was stored cannot be used.
    #[error(transparent)]
    Store(#[from] ResumeError),
    /// Pictures cannot be put into a prompt.
    #[error(transparent)]
    Picture(#[from] PictureError),
    /// A typed helper's call failed.
    #[error("{}: {}", .0.name, .0.output)]
    Failed(Box<CallResult>),
    /// A typed helper would have given a part for the whole.
    #[error("{of} is not given whole: {why}")]
    Partial {
        /// What was asked for.
        of: String,
        /// Why, and what to do.
        why: String,
    },
}

/// What a session answers with and as.
#[derive(Clone)]
pub(crate) struct SessionPlan {
    pub(crate) model: Arc<dyn Model>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) agents: Agents,
    pub(crate) limits: RunLimits,
}

/// Where a session's facts go.
pub(crate) struct SessionFacts {
    pub(crate) facts: Arc<FactBook>,
    /// None for a session that ends with its process.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) recovery: Recovery,
}

impl SessionFacts {
    /// Nothing is kept.
    pub(crate) fn in_memory() -> Self {
        Self { facts: FactBook::in_memory(), keeper: None, recovery: Recovery::default() }
    }

    /// What a keeper keeps.
    pub(crate) fn kept(keeper: Keeper, recovery: Recovery) -> Self {
        Self { facts: Arc::clone(keeper.facts()), keeper: Some(keeper), recovery }
    }
}

struct RunRequest {
    run: RunId,
    /// None goes on with the run that is under way.
    prompt: Option<Prompt>,
    reply: oneshot::Sender<RunOutcome>,
    /// Given when the run is to end, also while it waits for its turn.
    cancel: Cancellation,
    listed: ListedRun,
}

/// What a run is asked.
struct Prompt {
    text: String,
    pictures: Vec<Picture>,
}

/// What was asked of a session and has no answer yet, in the order it was asked, also while it waits; one run may be asked
/// to go on more than once.
type AskedRuns = Arc<DashMap<u64, Cancellation>>;

/// Keeps a run listed until it is answered or dropped.
struct ListedRun {
    asked: AskedRuns,
    number: u64,
}

impl Drop for ListedRun {
    fn drop(&mut self) {
        self.asked.remove(&self.number);
    }
}

/// What to cancel in a session.
#[derive(Debug, Clone)]
pub enum CancelTarget {
    /// One call.
    Call(InvocationId),
    /// The runs there are, those that wait for their turn too, with all their calls.
    Run,
    /// Every run, every call of the host's own, and every task in the background. The session stays open, and its
    /// background processes run on.
    Everything,
}

impl Session {
    /// Opens a session under the node of all sessions.
    pub(crate) async fn open(
        kernel: Arc<Kernel>,
        scope: Arc<Scope>,
        plan: SessionPlan,
        kept: SessionFacts,
        sessions: &NodeHandle,
    ) -> Result<Self, SessionError> {
        let SessionFacts { facts, keeper, recovery } = kept;
        let keeper = keeper.map(Arc::new);
        let weak = keeper.as_ref().map(Arc::downgrade).unwrap_or_default();
        let (runs, requests) = mpsc::channel(WAITING_RUNS_MAX);
        let (opened, opens) = oneshot::channel();
        let agents = plan.agents.clone();
        let spec = NodeSpec { kind: NodeKind::Session, grace: SESSION_GRACE };
        let (its_kernel, its_scope) = (Arc::clone(&kernel), Arc::clone(&scope));
        let is_told = Arc::new(AtomicBool::new(false));
        let (lost_kernel, lost_scope, was_told) = (Arc::clone(&kernel), Arc::clone(&scope), Arc::clone(&is_told));
        let its = Life { kernel: its_kernel, scope: its_scope, plan, facts: Arc::clone(&facts), keeper, is_told };
        let waiter = sessions.spawn_with_epilogue(
            spec,
            move |node| live(its, node, requests, opened),
            move |_ending| {
                // Killed: whoever was told that it opened is told that it closed.
                if was_told.load(Ordering::Acquire) {
                    lost_kernel.tell(&lost_scope, EventKind::SessionClosed);
                }
            },
        );
        let ended = waiter.map(|_end| ()).boxed().shared();
        let node = opens.await.map_err(|_| SessionError::NotRunning)??;
        // The least that a map of this kind can be split into: it holds a handful of runs.
        let asked = AskedRuns::new(DashMap::with_shard_amount(2));
        let asks = AtomicU64::new(0);
        let shared =
            SessionShared { kernel, scope, node, runs, asked, asks, facts, agents, keeper: weak, recovery, ended };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The session's id.
    pub fn id(&self) -> &SessionId {
        &self.shared.scope.session
    }

    /// Calls a tool as the trusted host: everything but skill limits, permission and confirmation applies.
    /// Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`SessionError::Closed`]. A call that fails is a result, not an error.
    pub async fn tool(&self, name: &str, arguments: Value) -> Result<Arc<CallResult>, SessionError> {
        self.call("host", Origin::HostDirectTrusted, name, arguments).await
    }

    /// Calls a tool as a governed host: the whole route applies.
    ///
    /// # Errors
    /// [`SessionError::Closed`].
    pub async fn governed_tool(&self, name: &str, arguments: Value) -> Result<Arc<CallResult>, SessionError> {
        self.call("host-governed", Origin::HostDirectGoverned, name, arguments).await
    }

    async fn call(
        &self,
        prefix: &str,
        origin: Origin,
        name: &str,
        arguments: Value,
    ) -> Result<Arc<CallResult>, SessionError> {
        let shared = &self.shared;
        let tool = ToolName::from(name);
        let id = shared.kernel.invocation_id(prefix, &tool);
        let proposal = Proposal::new(id, origin, Vec::new(), ToolCall { tool, arguments });
        if shared.node.cancellation().is_cancelled() {
            return Err(SessionError::Closed);
        }
        Ok(shared.kernel.invoke(&shared.node, &shared.scope, proposal).await)
    }

    /// Carries a prompt to its answer; runs of one session wait for each other. Dropping the future cancels the run.
    ///
    /// # Errors
    /// [`SessionError::Closed`] and [`SessionError::Busy`]. A run that fails is an outcome, not an error.
    pub async fn run(&self, prompt: &str) -> Result<RunOutcome, SessionError> {
        self.run_with_pictures(prompt, Vec::new()).await
    }

    /// As [`Self::run`], with pictures before the words. They stay in the conversation, and are sent with every turn.
    ///
    /// # Errors
    /// As [`Self::run`], and [`SessionError::Picture`] when there are more than [`PICTURES_MAX`].
    pub async fn run_with_pictures(&self, prompt: &str, pictures: Vec<Picture>) -> Result<RunOutcome, SessionError> {
        if pictures.len() > PICTURES_MAX {
            return Err(PictureError::TooMany { count: pictures.len() }.into());
        }
        let prompt = Prompt { text: prompt.to_owned(), pictures };
        let answer = self.start_run(run_id(&self.shared.kernel), Some(prompt))?;
        answer.await.map_err(|_| SessionError::Closed)
    }

    /// Goes on with the run that was under way when the session's process ended; what the last run came to when none
    /// was, and none when there never was a run.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub async fn go_on(&self) -> Result<Option<RunOutcome>, SessionError> {
        let (under_way, last) =
            self.shared.facts.look(|state| (state.run.as_ref().map(|run| run.id.clone()), state.last.clone()));
        let Some(run) = under_way else {
            return Ok(last.map(|ended| RunOutcome::of(*ended, self.id())));
        };
        let answer = self.start_run(run, None)?;
        answer.await.map(Some).map_err(|_| SessionError::Closed)
    }

    /// The run that is under way, also when it waits for [`Self::go_on`].
    pub fn run_under_way(&self) -> Option<RunId> {
        self.shared.facts.look(|state| state.run.as_ref().map(|run| run.id.clone()))
    }

    /// Puts a word into the run that is under way: the model gets it with its next turn.
    ///
    /// # Errors
    /// [`SessionError::NoRun`] and [`SessionError::Store`].
    pub async fn steer(&self, text: &str) -> Result<(), SessionError> {
        if self.run_under_way().is_none() {
            return Err(SessionError::NoRun);
        }
        let facts = &self.shared.facts;
        let text = facts.fit_to_keep(&self.shared.kernel.sanitiser, text.to_owned());
        match facts.record(Fact::Steer { text }).await {
            Ok(()) => Ok(()),
            // It ended just now.
            Err(FactBookError::Misplaced(_)) => Err(SessionError::NoRun),
            Err(error) => Err(ResumeError::from(error).into()),
        }
    }

    /// Saves a snapshot of a session that is kept, now; it is done by itself as well, between runs and at the end.
    ///
    /// # Errors
    /// [`SessionError::NotKept`] and [`SessionError::Store`].
    pub async fn save(&self) -> Result<(), SessionError> {
        if !self.shared.facts.is_kept() {
            return Err(SessionError::NotKept);
        }
        let keeper = self.shared.keeper.upgrade().ok_or(SessionError::Closed)?;
        Ok(keeper.save().await?)
    }

    /// What was found when the session was opened again.
    pub fn recovery(&self) -> &Recovery {
        &self.shared.recovery
    }

    /// As [`Self::run`], with the events on the way.
    ///
    /// # Errors
    /// As [`Self::run`], and [`SessionError::Events`].
    pub async fn stream(&self, prompt: &str) -> Result<RunStream, SessionError> {
        let events = self.events().await?;
        let prompt = Prompt { text: prompt.to_owned(), pictures: Vec::new() };
        let answer = self.start_run(run_id(&self.shared.kernel), Some(prompt))?;
        Ok(RunStream { events, answer: Some(answer), outcome: None })
    }

    fn start_run(&self, run: RunId, prompt: Option<Prompt>) -> Result<oneshot::Receiver<RunOutcome>, SessionError> {
        let (reply, answer) = oneshot::channel();
        let (cancel, number) = (Cancellation::new(), self.shared.asks.fetch_add(1, Ordering::Relaxed));
        self.shared.asked.insert(number, cancel.clone());
        let listed = ListedRun { asked: Arc::clone(&self.shared.asked), number };
        let request = Box::new(RunRequest { run, prompt, reply, cancel, listed });
        self.shared.runs.try_send(request).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SessionError::Busy,
            mpsc::error::TrySendError::Closed(_) => SessionError::Closed,
        })?;
        Ok(answer)
    }

    /// The events of this session and its child sessions, from now on.
    ///
    /// # Errors
    /// [`SessionError::Events`] when the journal is not running.
    pub async fn events(&self) -> Result<Reader<Event>, SessionError> {
        Ok(self.shared.kernel.journal.subscribe(Some(self.shared.scope.root_session.clone())).await?)
    }

    /// A page of the events of this session and its child sessions, after this sequence; none when nothing is known of
    /// them any more, or the runtime retains none.
    ///
    /// # Errors
    /// [`SessionError::Events`] when the journal is not running.
    pub async fn event_page(&self, after: u64, limit: usize) -> Result<Option<Page<Entry<Event>>>, SessionError> {
        let session = self.shared.scope.root_session.clone();
        Ok(self.shared.kernel.journal.page(session, after, limit).await?)
    }

    /// The events of this session and its child sessions after this sequence: those that are retained, then those
    /// that come, without loss or repetition; what is gone is told.
    ///
    /// # Errors
    /// [`SessionError::Events`] when the journal is not running.
    pub async fn tail(&self, after: u64) -> Result<Tail<Event>, SessionError> {
        Ok(Tail::follow(&self.shared.kernel.journal, self.shared.scope.root_session.clone(), after).await?)
    }

    /// The names of all tools, hidden ones too, sorted.
    pub fn tool_names(&self) -> Vec<ToolName> {
        self.shared.scope.registry.names().cloned().collect()
    }

    /// What a model is told of its tools, sorted by name.
    pub fn tool_definitions(&self) -> Vec<ToolDefinition> {
        self.shared.scope.registry.definitions().iter().cloned().collect()
    }

    /// The descriptions of all tools, hidden ones too, sorted by name.
    pub fn tool_specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.shared.scope.registry.iter().map(|entry| entry.tool.spec())
    }

    /// The tools at work now, the oldest first.
    pub fn active_tools(&self) -> Vec<ActiveTool> {
        self.shared.kernel.active_tools(&self.shared.scope.root_session)
    }

    /// Cancels what is named; returns whether there was anything to cancel. The calls still get their endings.
    pub fn cancel(&self, target: &CancelTarget, reason: &CancelReason) -> bool {
        let (kernel, session) = (&self.shared.kernel, &self.shared.scope.root_session);
        let mut any = false;
        // The runs first, or a model would be asked what to do about its cancelled calls.
        if matches!(target, CancelTarget::Run | CancelTarget::Everything) {
            let mut asked: Vec<(u64, Cancellation)> =
                self.shared.asked.iter().map(|run| (*run.key(), run.value().clone())).collect();
            // The order of the map reaches nothing.
            asked.sort_unstable_by_key(|(number, _)| *number);
            for (_, run) in asked {
                any = true;
                run.cancel(reason.clone());
            }
        }
        match target {
            CancelTarget::Call(id) => kernel.cancel_calls(session, Some(id), reason),
            CancelTarget::Run => any,
            CancelTarget::Everything => {
                // Before their calls, or their models would be asked what to do about those.
                any |= self.shared.scope.tasks.cancel_background(reason);
                kernel.cancel_calls(session, None, reason) || any
            }
        }
    }

    /// The questions that wait for a person, in the order they were asked.
    ///
    /// # Errors
    /// [`SessionError::NotRunning`].
    pub async fn pending_confirmations(&self) -> Result<Vec<PendingQuestion>, SessionError> {
        let session = self.shared.scope.root_session.clone();
        self.shared.kernel.confirmations.pending(session).await.map_err(|_| SessionError::NotRunning)
    }

    /// Answers a question of this session or its children; false when none is open about this call, or about
    /// something else than `digest`.
    pub async fn confirm(&self, call: InvocationId, digest: Option<Digest>, reply: Reply) -> bool {
        let pending = self.pending_confirmations().await.unwrap_or_default();
        // Whoever holds a session answers for it alone.
        if !pending.iter().any(|question| question.id == call) {
            return false;
        }
        self.shared.kernel.confirmations.answer(call, digest, reply).await
    }

    /// Opens an artifact that a result names: `a3s://tool-output/…`. Its bytes are checked first, which reads them
    /// once.
    ///
    /// # Errors
    /// [`ArtifactReadError`] when there is none, or a damaged one.
    pub async fn artifact(&self, uri: &str) -> Result<Artifact, ArtifactReadError> {
        Artifact::open(&self.shared.kernel.artifacts, uri).await
    }

    /// Checks the evidence of a result: every figure is computed anew from the stored original.
    ///
    /// # Errors
    /// [`ProofError`] when there is nothing to check, or the original is not there or damaged.
    pub async fn verify_evidence(&self, result: &CallResult) -> Result<Proof, ProofError> {
        let shown = ShownResult {
            name: result.name.to_string(),
            output: result.output.clone(),
            metadata: result.metadata.clone(),
        };
        let mut original = match original_of(&shown)? {
            Some(uri) => Some(self.shared.kernel.artifacts.open(uri.digest()).await?),
            None => None,
        };
        let policy = &self.shared.scope.projection;
        verify(&shown, original.as_mut().map(|blob| blob as &mut dyn Read), Some(policy))
    }

    /// How the session's budget stands.
    ///
    /// # Errors
    /// [`SessionError::Budget`].
    pub async fn budget(&self) -> Result<AccountStatus, SessionError> {
        Ok(self.shared.kernel.ledger.status(self.shared.scope.account.id().clone()).await?)
    }

    /// The background processes, those that have ended and are not forgotten too, the oldest first.
    pub fn processes(&self) -> Vec<BackgroundStatus> {
        self.background().map(Background::list).unwrap_or_default()
    }

    /// Reads what a background process printed: the bytes as they came, by stream, at most `bytes_max` at a time.
    /// Reads of [`ReadFrom::New`] are shared with the model's; a host that follows one by itself uses a cursor.
    ///
    /// # Errors
    /// [`SessionError::Background`].
    pub fn read_process(&self, id: &str, from: ReadFrom, bytes_max: usize) -> Result<BackgroundRead, SessionError> {
        let unknown = || BackgroundError::Unknown { id: id.to_owned() };
        Ok(self.background().ok_or_else(unknown)?.read(id, from, bytes_max)?)
    }

    /// Ends a background process in order and waits until nothing is left of it.
    ///
    /// # Errors
    /// [`SessionError::Background`].
    pub async fn stop_process(&self, id: &str) -> Result<BackgroundStatus, SessionError> {
        let unknown = || BackgroundError::Unknown { id: id.to_owned() };
        Ok(self.background().ok_or_else(unknown)?.stop(id).await?)
    }

    fn background(&self) -> Option<&dyn Background> {
        self.shared.scope.background.as_ref().map(|background| background as _)
    }

    /// Cancels everything in the session and waits until all of it has ended.
    pub async fn close(&self) {
        self.close_because(CancelReason::SessionClosed).await;
    }

    /// As [`Self::close`], with the reason that what still runs is told.
    pub async fn close_because(&self, reason: CancelReason) {
        self.shared.node.cancel(reason);
        self.shared.ended.clone().await;
    }

    /// The lines of a text file, all of them, each with a line feed behind it and without the numbers of `read`.
    ///
    /// # Errors
    /// [`SessionError::Failed`] when it cannot be read, and [`SessionError::Partial`] when it is no text, has lines that
    /// are longer than `read` shows, changes meanwhile, or is more than the session's projection lets through.
    pub async fn read_file(&self, path: &str) -> Result<String, SessionError> {
        let partial = |why: &str| SessionError::Partial { of: path.to_owned(), why: why.to_owned() };
        let (mut text, mut digest) = (String::new(), None);
        let mut offset = 0_u64;
        for _ in 0..HELPER_PAGES_MAX {
            let page = self.done("read", json!({ "file_path": path, "offset": offset })).await?;
            refuse_shortened(&page, path)?;
            let facts = |name: &str| page.metadata.get(name);
            let Some(range) = facts("range") else {
                return Err(partial("it is no text file; look at what read gives"));
            };
            let lines = range.get("returned_lines").and_then(Value::as_u64).unwrap_or(0);
            if let Some(line) = facts("cut_lines").and_then(|lines| lines.get(0)) {
                return Err(partial(&format!(
                    "line {line} is too long to be shown; take what you need of it with bash"
                )));
            }
            let now = facts("content_digest").cloned();
            let is_other = digest.is_some() && digest != now;
            if is_other || facts("changed_meanwhile").and_then(Value::as_bool).unwrap_or(false) {
                return Err(partial("it changed while it was read; read it again"));
            }
            digest = now;
            for line in page.output.split('\n').take(usize::try_from(lines).unwrap_or(usize::MAX)) {
                text.push_str(line.split_once('\t').map_or(line, |(_number, line)| line));
                text.push('\n');
            }
            match range.get("next_offset").and_then(Value::as_u64) {
                Some(next) if next > offset => offset = next,
                _ => return Ok(text),
            }
        }
        Err(partial("it has more lines than are read at a time; read it in parts"))
    }

    /// The lines that match a regular expression, as `path:line:text`.
    ///
    /// # Errors
    /// [`SessionError::Failed`], for an invalid pattern too.
    pub async fn grep(&self, pattern: &str) -> Result<String, SessionError> {
        Ok(self.done("search", json!({ "mode": "grep", "query": pattern })).await?.output.clone())
    }

    /// The paths that match a glob pattern.
    ///
    /// # Errors
    /// [`SessionError::Failed`], and [`SessionError::Partial`] when they are more than the session's projection lets
    /// through.
    pub async fn glob(&self, pattern: &str) -> Result<Vec<String>, SessionError> {
        let mut paths = Vec::new();
        let mut cursor = Value::String(String::new());
        for _ in 0..HELPER_PAGES_MAX {
            let arguments = json!({ "mode": "glob", "query": pattern, "limit": HELPER_PATHS, "cursor": cursor });
            let page = self.done("search", arguments).await?;
            refuse_shortened(&page, pattern)?;
            let facts = page.metadata.get("page");
            let count = facts.and_then(|page| page.get("returned_items")).and_then(Value::as_u64).unwrap_or(0);
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            paths.extend(page.output.lines().take(count).map(str::to_owned));
            match facts.and_then(|page| page.get("next_cursor")) {
                Some(next @ Value::String(_)) => cursor = next.clone(),
                _ => return Ok(paths),
            }
        }
        let why = "there are more than are listed at a time; narrow the pattern".to_owned();
        Err(SessionError::Partial { of: pattern.to_owned(), why })
    }

    /// What a command printed.
    ///
    /// # Errors
    /// [`SessionError::Failed`] for every exit code but 0, with what it printed.
    pub async fn bash(&self, command: &str) -> Result<String, SessionError> {
        Ok(self.done("bash", json!({ "command": command })).await?.output.clone())
    }

    /// What the `git` tool answers to these arguments, such as `{"command": "status"}`.
    ///
    /// # Errors
    /// [`SessionError::Failed`].
    pub async fn git(&self, arguments: Value) -> Result<Arc<CallResult>, SessionError> {
        self.done("git", arguments).await
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// [`SessionError::Failed`].
    pub async fn write_file(&self, path: &str, content: &str) -> Result<Arc<CallResult>, SessionError> {
        self.done("write", json!({ "file_path": path, "content": content })).await
    }

    /// Replaces the one occurrence of a text in a file.
    ///
    /// # Errors
    /// [`SessionError::Failed`] when it is not there exactly once.
    pub async fn edit_file(&self, path: &str, old: &str, new: &str) -> Result<Arc<CallResult>, SessionError> {
        self.done("edit", json!({ "file_path": path, "old_string": old, "new_string": new })).await
    }

    /// A folder's entries as a listing.
    ///
    /// # Errors
    /// [`SessionError::Failed`].
    pub async fn ls(&self, path: &str) -> Result<Arc<CallResult>, SessionError> {
        self.done("ls", json!({ "path": path })).await
    }

    async fn done(&self, tool: &str, arguments: Value) -> Result<Arc<CallResult>, SessionError> {
        let result = self.tool(tool, arguments).await?;
        if result.is_success() { Ok(result) } else { Err(SessionError::Failed(Box::new(CallResult::clone(&result)))) }
    }
}

/// Refuses an output that is not all that its tool said.
fn refuse_shortened(page: &CallResult, of: &str) -> Result<(), SessionError> {
    let loss = page.metadata.get(EVIDENCE_KEY).and_then(|evidence| evidence.get("loss_mode")).and_then(Value::as_str);
    match loss {
        None | Some("none") => Ok(()),
        Some(loss) => {
            let why = format!("the session's projection shortens it ({loss}); open a session with a larger one");
            Err(SessionError::Partial { of: of.to_owned(), why })
        }
    }
}

/// A run under way, with its events.
pub struct RunStream {
    events: Reader<Event>,
    answer: Option<oneshot::Receiver<RunOutcome>>,
    outcome: Option<RunOutcome>,
}

impl RunStream {
    /// The next event; none once the run has ended and all its events were read. Events of other calls of the
    /// same session come too.
    pub async fn next(&mut self) -> Option<Reading<Event>> {
        if let Some(answer) = &mut self.answer {
            tokio::select! {
                biased;
                event = self.events.next() => return event,
                outcome = answer => {
                    self.outcome = outcome.ok();
                    self.answer = None;
                }
            }
        }
        self.events.try_next()
    }

    /// What the run came to; none when its session closed before it began. Waits for the end.
    pub async fn outcome(mut self) -> Option<RunOutcome> {
        match self.answer.take() {
            Some(answer) => answer.await.ok(),
            None => self.outcome,
        }
    }
}
