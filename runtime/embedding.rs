//! What an embedder holds: a runtime, assembled once, that opens sessions and shuts everything down in order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use thiserror::Error;
use toolwarden_actors::accounts::AccountId;
use toolwarden_actors::artifact_store::{ArtifactError, ArtifactLimits, ArtifactStatus, ArtifactStore};
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::budget_ledger::Account;
use toolwarden_actors::budget_ledger::BudgetLedger;
use toolwarden_actors::child_spec::StartError;
use toolwarden_actors::confirmations::Confirmations;
use toolwarden_actors::fact_log::{FactLog, LOG_KEPT_BYTES};
use toolwarden_actors::journal::{Journal, JournalError, JournalSink, JournalStatus, Reader};
use toolwarden_actors::retention::RetentionLimits;
use toolwarden_tools::catalog::{CatalogOptions, builtin_tools};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;
use toolwarden_tools::effects::blobs::memory::MemoryBlobs;
use toolwarden_tools::effects::blobs::{BlobError, Blobs};
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::dispatch::Dispatch;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::effects::files::FileError;
use toolwarden_tools::effects::http::proxy::HttpProxy;
use toolwarden_tools::effects::processes::confinement::Confinement;
use toolwarden_tools::effects::processes::containment::{CommandLimits, Unavailable};
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{Leftover, Processes};
use toolwarden_tools::effects::store::{OnDamage, Store};
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::registry::{Registry, RegistryError};
use toolwarden_tools::schema::SchemaCache;
use toolwarden_tools::search::resident_index::ResidentIndexes;
use toolwarden_tools::tool::{Lane, Tool};
use toolwarden_tools::web::ssrf::Origin;
use toolwarden_tools::workspace::seen::SeenFiles;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, WriteAllowance, local};

use crate::agent::Agents;
use crate::agent::file::{AgentFile, AgentFilesError, ModelNames, NoModelNames};
use crate::command_output::CommandOutput;
use crate::content_adapter::{ContentAdapter, ContentBinding, ContentBindingError};
use crate::delegation::{Delegating, Delegation};
use crate::event::Event;
use crate::facts::Settings;
use crate::grant_book::GrantBook;
use crate::hook::Hook;
use crate::keeper::{self, Keeper, Reopened};
use crate::kernel::Kernel;
use crate::lanes::{LaneLimits, Lanes};
use crate::models::Model;
use crate::models::gate::{ModelGate, RetryPolicy};
use crate::models::research::{RESEARCH_NAME, ResearchModel};
use crate::policy::PermissionPolicy;
use crate::policy::compiled::{CompileError, CompiledPolicy};
use crate::resume::{Asked, Found, Recovery, ResumeError, check};
use crate::run::RunLimits;
use crate::scope::Confirming;
use crate::scope::{CallLimits, Scope};
use crate::session::{Session, SessionError, SessionFacts, SessionPlan};
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::settlement::retained::ContentKeeping;
use crate::settlement::sanitise::{Sanitiser, SanitiserError, SecurityProvider};
use crate::skill_limits::SkillLimits;
use crate::supervision_tree::{MakeSink, SupervisionTree};
use crate::task_book::TaskBook;
use crate::task_limits::TaskLimits;

/// How many events a process may number before it would come to the next one's. A number times this stays exact in
/// JSON for nine million processes.
const EVENTS_OF_AN_EPOCH: u64 = 1_000_000_000;

/// A running runtime; clones share it. Shut it down with [`Runtime::shut_down`]: dropped without, its actors are
/// killed with the tokio runtime.
#[derive(Clone)]
pub struct Runtime {
    parts: Arc<Parts>,
}

struct Parts {
    kernel: Arc<Kernel>,
    tree: SupervisionTree,
    /// Where sessions are kept, if they are.
    log: Option<FactLog>,
    processes: Arc<dyn Processes>,
    environment: BTreeMap<String, String>,
    schemas: Arc<SchemaCache>,
    /// By capabilities and whether files can come in pieces, for sessions without tools or agents of the host's own.
    registries: DashMap<(WorkspaceCapabilities, bool), Arc<Registry>>,
    /// What searches know of their roots, shared by all sessions.
    indexes: Arc<ResidentIndexes>,
}

/// Why a runtime or a session cannot be made.
#[derive(Debug, Error)]
pub enum BuildError {
    /// A part of the tree did not start.
    #[error("the supervision tree did not start: {0}")]
    Start(#[from] StartError),
    /// A secret or pattern cannot be used.
    #[error(transparent)]
    Sanitiser(#[from] SanitiserError),
    /// The folder of artifacts cannot be used.
    #[error("the folder for artifacts cannot be used: {0}")]
    Artifacts(#[from] BlobError),
    /// The workspace cannot be used.
    #[error("the workspace cannot be opened: {0}")]
    Workspace(#[from] FileError),
    /// A tool cannot be registered.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// There is no agent of this name.
    #[error("there is no agent named {name}; there are: {known}")]
    Agent {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// Agent files are wrong.
    #[error("the agents cannot be used:\n{0}")]
    AgentFiles(#[from] AgentFilesError),
    /// The folder of the workspace's agents was not read to its end.
    #[error("the workspace's agent files could not be read to their end; try again")]
    AgentFolder,
    /// The policy cannot be compiled.
    #[error("the permission policy cannot be used: {0}")]
    Policy(#[from] CompileError),
    /// The session cannot be kept, or cannot go on.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The content adapter cannot be one.
    #[error(transparent)]
    Content(#[from] ContentBindingError),
    /// Commands cannot be limited as was asked for.
    #[error("commands cannot be limited as was asked for: {0}")]
    Limits(Unavailable),
    /// The session did not open.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Collects what a runtime is made of.
pub struct RuntimeBuilder {
    effects: Effects,
    processes: Arc<dyn Processes>,
    environment: BTreeMap<String, String>,
    lanes: LaneLimits,
    model_retries: RetryPolicy,
    secrets: Vec<String>,
    secret_patterns: Vec<String>,
    security_provider: Option<Arc<dyn SecurityProvider>>,
    artifacts: ArtifactPlace,
    artifact_limits: ArtifactLimits,
    make_sink: MakeSink,
    store: Option<Arc<dyn Store>>,
    kept_log_bytes: u64,
    retention: Option<RetentionLimits>,
    allowed_origins: Vec<Origin>,
    proxy: Option<HttpProxy>,
    search_cache: Option<PathBuf>,
    schemas: Arc<SchemaCache>,
}

/// Most bytes of artifacts that are kept in memory, where no folder is given.
pub const MEMORY_ARTIFACT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where artifacts are kept.
enum ArtifactPlace {
    Memory,
    Folder(PathBuf),
    Blobs(Arc<dyn Blobs>),
}

impl RuntimeBuilder {
    /// Takes other ports than the real ones.
    #[must_use]
    pub fn effects(mut self, effects: Effects) -> Self {
        self.effects = effects;
        self
    }

    /// Takes another command runner than the real one.
    #[must_use]
    pub fn processes(mut self, processes: Arc<dyn Processes>) -> Self {
        self.processes = processes;
        self
    }

    /// The whole environment that commands get; what a host's own environment allows is told by
    /// [`toolwarden_tools::builtin::bash::allowed_environment`]. Without this, commands get a `PATH` and nothing
    /// else.
    #[must_use]
    pub fn environment(mut self, environment: BTreeMap<String, String>) -> Self {
        self.environment = environment;
        self
    }

    /// Sets how often, and after which waits, a model is asked again.
    #[must_use]
    pub fn model_retries(mut self, policy: RetryPolicy) -> Self {
        self.model_retries = policy;
        self
    }

    /// Sets the limits of the lanes.
    #[must_use]
    pub fn lanes(mut self, lanes: LaneLimits) -> Self {
        self.lanes = lanes;
        self
    }

    /// Values that must never be seen in outputs or events.
    #[must_use]
    pub fn secrets(mut self, secrets: Vec<String>) -> Self {
        self.secrets = secrets;
        self
    }

    /// Shapes of text that must never be seen in outputs or events, as regular expressions.
    #[must_use]
    pub fn secret_patterns(mut self, patterns: Vec<String>) -> Self {
        self.secret_patterns = patterns;
        self
    }

    /// A say of the host's own in what nobody may see, behind the built-in rules.
    #[must_use]
    pub fn security_provider(mut self, provider: Arc<dyn SecurityProvider>) -> Self {
        self.security_provider = Some(provider);
        self
    }

    /// The folder in which the whole of what was shown in part is kept; made when it is not there. Without this it
    /// is kept in memory, up to [`MEMORY_ARTIFACT_BYTES_MAX`], and gone with the process.
    #[must_use]
    pub fn artifact_folder(mut self, folder: impl Into<PathBuf>) -> Self {
        self.artifacts = ArtifactPlace::Folder(folder.into());
        self
    }

    /// Keeps artifacts in a store of the host's own.
    #[must_use]
    pub fn artifact_blobs(mut self, blobs: Arc<dyn Blobs>) -> Self {
        self.artifacts = ArtifactPlace::Blobs(blobs);
        self
    }

    /// How much is kept, and for how long.
    #[must_use]
    pub fn artifact_limits(mut self, limits: ArtifactLimits) -> Self {
        self.artifact_limits = limits;
        self
    }

    /// Where events are kept; called for each start of the journal.
    #[must_use]
    pub fn event_sink(
        mut self,
        make: impl Fn() -> Option<Box<dyn JournalSink<Event>>> + Send + Sync + 'static,
    ) -> Self {
        self.make_sink = Arc::new(make);
        self
    }

    /// Keeps every session in this store: what happens in it outlives the process, and [`Runtime::resume`] goes on
    /// with it. Without this, sessions end with their process.
    #[must_use]
    pub fn store(mut self, store: Arc<dyn Store>) -> Self {
        self.store = Some(store);
        self
    }

    /// How long a session's log may become, in bytes, before the facts that its snapshot holds are cut off its front:
    /// [`LOG_KEPT_BYTES`], when not said; `u64::MAX` keeps all of them. A cut is made where a snapshot is saved.
    #[must_use]
    pub fn keep_log_bytes(mut self, bytes: u64) -> Self {
        self.kept_log_bytes = bytes;
        self
    }

    /// Keeps events in memory so that [`Session::event_page`] can read them back and [`Session::tail`] can catch up;
    /// without this, a reader gets what comes while it reads, and no more.
    #[must_use]
    pub fn retain_events(mut self, limits: RetentionLimits) -> Self {
        self.retention = Some(limits);
        self
    }

    /// Lets tools ask this origin although it is not on the public internet; may be called again for more. Without it
    /// everything private is refused, this machine included.
    #[must_use]
    pub fn allow_origin(mut self, origin: Origin) -> Self {
        self.allowed_origins.push(origin);
        self
    }

    /// Lets tools ask the public web through this proxy. Names are then resolved by the proxy, which must refuse what is
    /// private behind them; addresses that are written out are judged here as ever, and allowed private origins are
    /// asked directly.
    #[must_use]
    pub fn proxy(mut self, proxy: HttpProxy) -> Self {
        self.proxy = Some(proxy);
        self
    }

    /// The folder in which indexes of searched workspaces are kept, so that the next process finds them; made when
    /// the first search has ended. Without this they are kept in memory as far as they fit there.
    #[must_use]
    pub fn search_cache(mut self, folder: impl Into<PathBuf>) -> Self {
        self.search_cache = Some(folder.into());
        self
    }

    /// Shares compiled argument schemas with other runtimes: compiling those of all tools takes longer than all the
    /// rest of a start.
    #[must_use]
    pub fn schemas(mut self, schemas: Arc<SchemaCache>) -> Self {
        self.schemas = schemas;
        self
    }

    /// Starts the supervision tree.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn build(self) -> Result<Runtime, BuildError> {
        let sanitiser = Sanitiser::new(self.secrets, &self.secret_patterns)?;
        let blobs: Arc<dyn Blobs> = match self.artifacts {
            ArtifactPlace::Folder(path) => Arc::new(FolderBlobs::open(&path)?),
            ArtifactPlace::Blobs(blobs) => blobs,
            ArtifactPlace::Memory => {
                Arc::new(MemoryBlobs::new(Arc::clone(&self.effects.clock), MEMORY_ARTIFACT_BYTES_MAX))
            }
        };
        let mut journal = Journal::new();
        if let Some(limits) = self.retention {
            journal = journal.retaining(limits);
        }
        let log = self.store.map(|store| FactLog::new(store).keeping(self.kept_log_bytes));
        if let Some(log) = &log {
            // Every process numbers its events behind those of all before it.
            journal = journal.after(keeper::epoch(log).await?.saturating_mul(EVENTS_OF_AN_EPOCH));
        }
        let lanes = Lanes::new(&self.lanes);
        let models = ModelGate::new(lanes.get(&Lane::Model).cloned(), self.effects.clone(), self.model_retries);
        let kernel = Arc::new(Kernel {
            effects: self.effects,
            journal,
            ledger: BudgetLedger::new(),
            confirmations: Confirmations::new(),
            lanes,
            models,
            sanitiser: Arc::new(sanitiser.with_provider(self.security_provider)),
            artifacts: Arc::new(ArtifactStore::new(blobs, self.artifact_limits)),
            live: DashMap::new(),
            allowed_origins: Arc::new(self.allowed_origins.into_iter().collect()),
            proxy: self.proxy,
        });
        let tree = SupervisionTree::start(&kernel, self.make_sink, log.as_ref()).await?;
        let parts = Parts {
            kernel,
            tree,
            log,
            processes: self.processes,
            environment: self.environment,
            schemas: self.schemas,
            registries: DashMap::new(),
            indexes: Arc::new(ResidentIndexes::new(self.search_cache)),
        };
        Ok(Runtime { parts: Arc::new(parts) })
    }
}

impl Runtime {
    /// Begins to assemble a runtime over the real world.
    pub fn builder() -> RuntimeBuilder {
        let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        RuntimeBuilder {
            effects: Effects::real(),
            processes: Arc::new(SystemProcesses),
            environment: BTreeMap::from([path]),
            lanes: LaneLimits::default(),
            model_retries: RetryPolicy::default(),
            secrets: Vec::new(),
            secret_patterns: Vec::new(),
            security_provider: None,
            artifacts: ArtifactPlace::Memory,
            artifact_limits: ArtifactLimits::default(),
            make_sink: Arc::new(|| None),
            store: None,
            kept_log_bytes: LOG_KEPT_BYTES,
            retention: None,
            allowed_origins: Vec::new(),
            proxy: None,
            search_cache: None,
            schemas: Arc::default(),
        }
    }

    /// Begins to assemble a session over a folder.
    pub fn session(&self, folder: impl AsRef<Path>) -> SessionBuilder {
        self.session_in(Some(Place::Folder(folder.as_ref().to_owned())))
    }

    /// Begins to assemble a session over a workspace that is open already; many sessions may share one.
    pub fn session_over(&self, workspace: Workspace) -> SessionBuilder {
        self.session_in(Some(Place::Workspace(workspace)))
    }

    /// Begins to open a session again that is kept in the store. What is not said is inherited from it; of what is
    /// pinned, anything else is refused.
    pub fn resume(&self, session: impl Into<SessionId>) -> SessionBuilder {
        SessionBuilder { id: Some(session.into()), resumes: Some(OnDamage::Refuse), ..self.session_in(None) }
    }

    /// The sessions in the store, sorted by name.
    ///
    /// # Errors
    /// [`ResumeError::NoStore`] and whatever the store says.
    pub async fn kept_sessions(&self) -> Result<Vec<SessionId>, ResumeError> {
        keeper::list(self.parts.log.as_ref().ok_or(ResumeError::NoStore)?).await
    }

    /// Where a session in the store stands, whether it is open somewhere or not.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub async fn look_at(&self, session: &SessionId) -> Result<Found, ResumeError> {
        keeper::look(self.parts.log.as_ref().ok_or(ResumeError::NoStore)?, session).await
    }

    /// Makes a new session in the store that goes on from where another one stands; what is under way there is
    /// interrupted here. Gives how many facts the new one stands on.
    ///
    /// # Errors
    /// [`ResumeError`].
    pub async fn fork(&self, from: &SessionId, to: &SessionId) -> Result<u64, ResumeError> {
        keeper::fork(self.parts.log.as_ref().ok_or(ResumeError::NoStore)?, from, to).await
    }

    fn session_in(&self, place: Option<Place>) -> SessionBuilder {
        SessionBuilder {
            runtime: self.clone(),
            place,
            processes: None,
            capabilities: None,
            id: None,
            resumes: None,
            model: None,
            agents: Agents::builtin(),
            agent_files: Vec::new(),
            agent_folder: None,
            agent_models: Arc::new(NoModelNames),
            agent: None,
            tools: Vec::new(),
            policy: None,
            policies: Vec::new(),
            skill: None,
            hooks: Vec::new(),
            confirming: Confirming::default(),
            budget: None,
            child_budget: BudgetLimits::default(),
            task_limits: None,
            dispatch: None,
            calls: CallLimits::default(),
            runs: RunLimits::default(),
            projection: None,
            command_output: None,
            leftover: Leftover::default(),
            sandbox: Confinement::default(),
            allowance: WriteAllowance::default(),
            command_limits: CommandLimits::default(),
            content_adapter: None,
        }
    }

    /// The events of all sessions, from now on.
    ///
    /// # Errors
    /// [`JournalError`] when the journal is not running.
    pub async fn events(&self) -> Result<Reader<Event>, JournalError> {
        self.parts.kernel.journal.subscribe(None).await
    }

    /// How the journal stands.
    ///
    /// # Errors
    /// [`JournalError`] when the journal is not running.
    pub async fn journal_status(&self) -> Result<JournalStatus, JournalError> {
        self.parts.kernel.journal.status().await
    }

    /// How the store of artifacts stands.
    ///
    /// # Errors
    /// [`ArtifactError`] when it is not running.
    pub async fn artifact_status(&self) -> Result<ArtifactStatus, ArtifactError> {
        self.parts.kernel.artifacts.status().await
    }

    /// The lanes, to look at.
    pub fn lanes(&self) -> &Lanes {
        &self.parts.kernel.lanes
    }

    /// What searches keep in memory of the workspaces, to look at, to begin early, and to wait for.
    pub fn search_indexes(&self) -> &ResidentIndexes {
        &self.parts.indexes
    }

    /// How many nodes of the supervision tree are alive; 1 when nothing is open, 0 after the shut-down.
    pub fn live_nodes(&self) -> usize {
        self.parts.tree.live_nodes()
    }

    /// Ends every session and then the tree, in order, and waits for it.
    pub async fn shut_down(&self) {
        self.parts.tree.shut_down().await;
        self.close_indexes().await;
    }

    /// Ends the threads of the search indexes; waits for them off the workers.
    async fn close_indexes(&self) {
        let indexes = Arc::clone(&self.parts.indexes);
        // A runtime that never searched starts no thread to find that out.
        if !indexes.close_when_idle() && off_thread(move || indexes.close()).await.is_err() {
            tracing::warn!("the search indexes did not close");
        }
    }

    /// As [`Self::shut_down`] without grace: tools are dropped where they stand and commands are killed with their
    /// groups. For a second Ctrl-C. What was told before is still in the journal's sink.
    pub async fn kill(&self) {
        self.parts.tree.kill_sessions();
        self.parts.tree.shut_down().await;
        self.close_indexes().await;
    }
}

enum Place {
    Folder(PathBuf),
    Workspace(Workspace),
}

/// Collects what a session is made of.
pub struct SessionBuilder {
    runtime: Runtime,
    /// None takes the place that a session is kept for.
    place: Option<Place>,
    processes: Option<Arc<dyn Processes>>,
    capabilities: Option<WorkspaceCapabilities>,
    id: Option<SessionId>,
    /// Set when the session is there already.
    resumes: Option<OnDamage>,
    model: Option<Arc<dyn Model>>,
    agents: Agents,
    agent_files: Vec<AgentFile>,
    /// The folder of the workspace whose agents may be named.
    agent_folder: Option<String>,
    agent_models: Arc<dyn ModelNames>,
    agent: Option<String>,
    tools: Vec<Arc<dyn Tool>>,
    policy: Option<PermissionPolicy>,
    /// Policies beside that one; a call needs the leave of all.
    policies: Vec<PermissionPolicy>,
    skill: Option<SkillLimits>,
    hooks: Vec<Arc<dyn Hook>>,
    confirming: Confirming,
    budget: Option<BudgetLimits>,
    child_budget: BudgetLimits,
    task_limits: Option<TaskLimits>,
    dispatch: Option<Arc<dyn Dispatch>>,
    calls: CallLimits,
    runs: RunLimits,
    projection: Option<ProjectionPolicy>,
    command_output: Option<Arc<dyn CommandOutput>>,
    leftover: Leftover,
    sandbox: Confinement,
    allowance: WriteAllowance,
    command_limits: CommandLimits,
    content_adapter: Option<Arc<dyn ContentAdapter>>,
}

impl SessionBuilder {
    /// The folder to work in, for a session that is opened again: refused when it is another one than it was.
    #[must_use]
    pub fn folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.place = Some(Place::Folder(folder.as_ref().to_owned()));
        self
    }

    /// The workspace to work in, open already, for a session that is opened again: refused when it is another one
    /// than it was.
    #[must_use]
    pub fn over(mut self, workspace: Workspace) -> Self {
        self.place = Some(Place::Workspace(workspace));
        self
    }

    /// What may be done in the workspace; everything, when not said.
    #[must_use]
    pub fn capabilities(mut self, capabilities: WorkspaceCapabilities) -> Self {
        self.capabilities = Some(capabilities);
        self
    }

    /// Takes another command runner than the runtime's (or than the workspace's, where that was opened before): one
    /// session may be contained more strictly than the others.
    #[must_use]
    pub fn processes(mut self, processes: Arc<dyn Processes>) -> Self {
        self.processes = Some(processes);
        self
    }

    /// The session's id; a random one, when not said.
    #[must_use]
    pub fn id(mut self, id: impl Into<SessionId>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Who answers; the extractive `builtin:research`, when not said.
    #[must_use]
    pub fn model(mut self, model: Arc<dyn Model>) -> Self {
        self.model = Some(model);
        self
    }

    /// Adds agents that files describe ([`AgentFile::of_host`] reads a folder of them); all are checked when the
    /// session opens.
    #[must_use]
    pub fn agent_files(mut self, files: Vec<AgentFile>) -> Self {
        self.agent_files.extend(files);
        self
    }

    /// Adds the agents that the Markdown files of this folder of the workspace describe, where there is one. They come
    /// from whoever wrote the workspace; like all agents they have no more than their caller has.
    #[must_use]
    pub fn workspace_agents(mut self, folder: impl Into<String>) -> Self {
        self.agent_folder = Some(folder.into());
        self
    }

    /// Which models agent files may name; none, when not said.
    #[must_use]
    pub fn agent_models(mut self, models: Arc<dyn ModelNames>) -> Self {
        self.agent_models = models;
        self
    }

    /// Takes these agents in the place of the built-in ones.
    #[must_use]
    pub fn agents(mut self, agents: Agents) -> Self {
        self.agents = agents;
        self
    }

    /// Who the session works as; `general`, when not said.
    #[must_use]
    pub fn agent(mut self, name: impl Into<String>) -> Self {
        self.agent = Some(name.into());
        self
    }

    /// Adds a tool of the host's own.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// What models are allowed; everything asks, when not said.
    #[must_use]
    pub fn policy(mut self, policy: PermissionPolicy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Adds a policy beside [`Self::policy`]: a call needs the leave of all of them. Not kept with the session.
    #[must_use]
    pub fn also_policy(mut self, policy: PermissionPolicy) -> Self {
        self.policies.push(policy);
        self
    }

    /// All of these hold, beside one that was set before.
    pub(crate) fn all_policies(mut self, policies: Vec<PermissionPolicy>) -> Self {
        let mut policies = policies.into_iter();
        if self.policy.is_none() {
            self.policy = policies.next();
        }
        self.policies.extend(policies);
        self
    }

    /// Narrows the session to a skill's tools.
    #[must_use]
    pub fn skill(mut self, limits: SkillLimits) -> Self {
        self.skill = Some(limits);
        self
    }

    /// Adds a hook; hooks are asked in the order they were added.
    #[must_use]
    pub fn hook(mut self, hook: Arc<dyn Hook>) -> Self {
        self.hooks.push(hook);
        self
    }

    /// Whether and how a person is asked; rejected after 30 seconds, when not said.
    #[must_use]
    pub fn confirming(mut self, confirming: Confirming) -> Self {
        self.confirming = confirming;
        self
    }

    /// What the session and all its children may use; no limit, when not said.
    #[must_use]
    pub fn budget(mut self, budget: BudgetLimits) -> Self {
        self.budget = Some(budget);
        self
    }

    /// What each child run may use out of the session's budget.
    #[must_use]
    pub fn child_budget(mut self, budget: BudgetLimits) -> Self {
        self.child_budget = budget;
        self
    }

    /// How many child runs the session may have; as many as before when it is opened again, and the usual numbers for a
    /// new one, when not said.
    #[must_use]
    pub fn task_limits(mut self, limits: TaskLimits) -> Self {
        self.task_limits = Some(limits);
        self
    }

    /// Has child runs carried out somewhere else; in the session's own tree, when not said.
    #[must_use]
    pub fn dispatch(mut self, dispatch: Arc<dyn Dispatch>) -> Self {
        self.dispatch = Some(dispatch);
        self
    }

    /// Bounds of each call.
    #[must_use]
    pub fn call_limits(mut self, limits: CallLimits) -> Self {
        self.calls = limits;
        self
    }

    /// The most time a tool may take.
    #[must_use]
    pub fn tool_timeout(mut self, timeout: Duration) -> Self {
        self.calls.timeout = Some(timeout);
        self
    }

    /// Bounds of each run.
    #[must_use]
    pub fn run_limits(mut self, limits: RunLimits) -> Self {
        self.runs = limits;
        self
    }

    /// How much of an output a model gets, for the whole life of the session and its children; the conservative
    /// profile, when not said.
    #[must_use]
    pub fn projection(mut self, policy: ProjectionPolicy) -> Self {
        self.projection = Some(policy);
        self
    }

    /// Shows the host what commands write, byte by byte and by stream. Background processes are read by
    /// [`Session::read_process`] instead.
    #[must_use]
    pub fn command_output(mut self, observer: Arc<dyn CommandOutput>) -> Self {
        self.command_output = Some(observer);
        self
    }

    /// What becomes of processes that a command of `bash` leaves running when its shell has ended: they are stopped,
    /// when not said, or go on as a background process of the session. Kept ones need a level that loses none of
    /// them ([`SystemProcesses::with_shim`]); without it they are stopped.
    #[must_use]
    pub fn leftover(mut self, leftover: Leftover) -> Self {
        self.leftover = leftover;
        self
    }

    /// What tools may write in a folder of this machine that they are refused otherwise: files with hard links, the `.git`
    /// folder. A workspace that is given whole brings its own ([`local::open_allowing`]).
    #[must_use]
    pub fn write_allowance(mut self, allowance: WriteAllowance) -> Self {
        self.allowance = allowance;
        self
    }

    /// Opens a session although its log is damaged: everything from the damage on is put aside, and the session goes
    /// on with what stands before it.
    #[must_use]
    pub fn accept_damage(mut self) -> Self {
        self.resumes = self.resumes.map(|_| OnDamage::Quarantine);
        self
    }

    /// What the kernel keeps commands from, `git` and child runs included; nothing, when not said. It takes a runner
    /// with a shim ([`SystemProcesses::with_shim`]); where it cannot be put in force, commands are refused. The tools
    /// that run no command keep to it as well: a read-only one lets them write nothing, and without a network they ask
    /// nothing.
    #[must_use]
    pub fn sandbox(mut self, confinement: Confinement) -> Self {
        self.sandbox = confinement;
        self
    }

    /// Who keeps the original of every result and of every changed text, outside of this runtime and for good; nobody,
    /// when not said. A result that it does not keep is not shown. It is pinned: a session goes on with the same adapter
    /// and with no other.
    #[must_use]
    pub fn content_adapter(mut self, adapter: Arc<dyn ContentAdapter>) -> Self {
        self.content_adapter = Some(adapter);
        self
    }

    /// What each command may use at the most, those of child runs and background processes included; no bounds, when
    /// not said. It takes a runner with a shim ([`SystemProcesses::with_shim`]), which then holds every command in a
    /// cgroup. It is tried out when the session opens; a session whose limits cannot be held does not open.
    #[must_use]
    pub fn command_limits(mut self, limits: CommandLimits) -> Self {
        self.command_limits = limits;
        self
    }

    /// The runner that holds commands to the limits, if there are any.
    async fn limited(&self, parts: &Parts) -> Result<Option<Arc<dyn Processes>>, BuildError> {
        if self.command_limits.is_none() {
            return Ok(self.processes.clone());
        }
        let opened = match &self.place {
            Some(Place::Workspace(workspace)) => workspace.commands().or(workspace.git_commands()),
            _ => None,
        };
        let given = self.processes.as_ref().or(opened.map(|commands| &commands.processes)).unwrap_or(&parts.processes);
        given.limited(self.command_limits).await.map(Some).map_err(BuildError::Limits)
    }

    /// Opens the session.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn open(self) -> Result<Session, BuildError> {
        // Some ten kilobytes while it is under way, which its caller need not hold.
        Box::pin(self.opened()).await
    }

    async fn opened(mut self) -> Result<Session, BuildError> {
        let parts = Arc::clone(&self.runtime.parts);
        self.processes = self.limited(&parts).await?;
        let kernel = Arc::clone(&parts.kernel);
        let random = || SessionId::from(format!("session-{}", hex_id(&*kernel.effects.entropy)));
        let session = self.id.clone().unwrap_or_else(random);
        let reopened = match (self.resumes, &parts.log) {
            (None, _) => None,
            (Some(damage), Some(log)) => Some(Reopened::open(log, &session, damage).await?),
            (Some(_), None) => return Err(ResumeError::NoStore.into()),
        };
        let content = self.content_adapter.clone().map(ContentKeeping::new).transpose()?;
        let binding = content.as_ref().map(|content| content.binding().clone());
        let (workspace, settings) = self.settle(&parts, &session, reopened.as_ref(), binding)?;
        let agents = self.all_agents(&workspace).await?;
        let Some(agent) = agents.get(&settings.agent).cloned() else {
            let known: Vec<&str> = agents.iter().map(|agent| agent.name.as_str()).collect();
            return Err(BuildError::Agent { name: settings.agent, known: known.join(", ") });
        };
        let model: Arc<dyn Model> = match (self.model, &agent.model) {
            (Some(model), _) => model,
            (None, Some(model)) => Arc::clone(model),
            (None, None) if settings.model == RESEARCH_NAME => Arc::new(ResearchModel),
            (None, None) => return Err(ResumeError::Missing { session, field: "model", kept: settings.model }.into()),
        };
        let runs = RunLimits { fan_out: settings.fan_out, ..self.runs };
        let registry = parts.registry(&workspace, &agents, self.tools)?;
        let registry = if agent.tools.is_some() { Arc::new(agent.tools_of(&registry)) } else { registry };
        let children = Arc::new(Delegation {
            kernel: Arc::clone(&kernel),
            model: Arc::clone(&model),
            agents: agents.clone(),
            limits: runs.clone(),
            budget: self.child_budget,
            dispatch: self.dispatch,
        });
        let also = self.policies.iter().map(CompiledPolicy::new);
        let policies = std::iter::once(CompiledPolicy::new(&settings.permission_policy)).chain(also);
        let policies = policies.map(|policy| policy.map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
        let skill = settings.skill.clone().map(SkillLimits::new).transpose()?;
        let sessions = parts.tree.sessions().ok_or(SessionError::NotRunning)?;
        let (budget, projection) = (settings.budget, settings.tool_result_transform_policy.clone());
        let task_limits = settings.task_limits.unwrap_or_default();
        let clock = Arc::clone(&kernel.effects.clock);
        let kept = match (reopened, &parts.log) {
            (Some(reopened), _) => {
                let (keeper, recovery) = reopened.go_on(settings, clock).await?;
                SessionFacts::kept(keeper, recovery)
            }
            (None, Some(log)) => {
                SessionFacts::kept(Keeper::make(log, &session, settings, clock).await?, Recovery::default())
            }
            (None, None) => SessionFacts::in_memory(),
        };
        let mut scope = Scope {
            root_session: session.clone(),
            account: Account::new(AccountId::from(session.as_str()), budget),
            session: session.clone(),
            run: None,
            registry,
            workspace,
            home: parts.environment.get("HOME").map(|home| Arc::from(home.as_str())),
            seen: Arc::new(SeenFiles::default()),
            policies: policies.into_iter().chain(agent.policy.clone()).collect(),
            grants: Arc::new(GrantBook::default()),
            skill: skill.map(Arc::new),
            hooks: self.hooks,
            confirming: self.confirming,
            limits: self.calls,
            projection,
            content,
            ancestry: Vec::new(),
            facts: None,
            model: Some(Arc::clone(&model)),
            children: Some(Arc::new(Delegating(children))),
            tasks: TaskBook::new(task_limits, Arc::clone(&kept.facts)),
            background: None,
            command_output: self.command_output,
            leftover: self.leftover,
        };
        scope.background = scope.no_background(&kernel.effects.clock);
        let plan = SessionPlan { model, agent, agents, limits: runs };
        Ok(Session::open(kernel, Arc::new(scope), plan, kept, &sessions).await?)
    }

    /// The agents that there are: the built-in ones, and what files say, all of it checked.
    async fn all_agents(&self, workspace: &Workspace) -> Result<Agents, BuildError> {
        let mut files = self.agent_files.clone();
        if let Some(folder) = self.agent_folder.clone() {
            let its = workspace.clone();
            let read = off_thread(move || AgentFile::of_workspace(&its, &folder)).await;
            files.extend(read.map_err(|_lost| BuildError::AgentFolder)??);
        }
        if files.is_empty() {
            return Ok(self.agents.clone());
        }
        // What is not to be had in this workspace is a name all the same.
        let options = CatalogOptions { takes_pieces: true, ..CatalogOptions::default() };
        let known: Vec<Arc<dyn Tool>> = builtin_tools(WorkspaceCapabilities::local_default(), options)
            .into_iter()
            .chain(self.tools.iter().cloned())
            .collect();
        let names: BTreeSet<&str> = known.iter().map(|tool| tool.spec().name.as_str()).collect();
        Ok(self.agents.with_files(&files, &names, &*self.agent_models)?)
    }

    /// Decides where the session works and with which settings: what is asked, else what is kept, else the usual.
    fn settle(
        &self,
        parts: &Parts,
        session: &SessionId,
        reopened: Option<&Reopened>,
        immutable_content_adapter: Option<ContentBinding>,
    ) -> Result<(Workspace, Settings), BuildError> {
        let kept = reopened.map(Reopened::settings).transpose()?.cloned();
        let capabilities = self.capabilities.or(kept.as_ref().map(|kept| kept.capabilities));
        let capabilities = capabilities.unwrap_or_else(WorkspaceCapabilities::local_default);
        let processes = || Arc::clone(self.processes.as_ref().unwrap_or(&parts.processes));
        let here = |folder: &Path| local::open_allowing(folder, capabilities, Some(processes()), self.allowance);
        let workspace = match (&self.place, &kept) {
            (Some(Place::Workspace(workspace)), _) => {
                let narrowed = workspace.narrowed(capabilities);
                match &self.processes {
                    Some(processes) => narrowed.with_processes(Arc::clone(processes)),
                    None => narrowed,
                }
            }
            (Some(Place::Folder(folder)), _) => here(folder)?,
            (None, Some(kept)) => here(Path::new(&kept.workspace))?,
            (None, None) => return Err(ResumeError::NoStore.into()),
        };
        let workspace = workspace.confined(self.sandbox.clone());
        let sandbox = match self.sandbox.is_off() {
            true => "off".to_owned(),
            false => format!("{:?}", self.sandbox),
        };
        let skill = self.skill.as_ref().map(|skill| skill.rules().to_vec());
        let mut settings = kept.clone().unwrap_or_else(|| Settings {
            workspace: workspace.display_root().to_owned(),
            capabilities,
            agent: "general".to_owned(),
            tool_result_transform_policy: self.projection.clone().unwrap_or_default(),
            skill: skill.clone(),
            sandbox: sandbox.clone(),
            immutable_content_adapter: immutable_content_adapter.clone(),
            model: RESEARCH_NAME.to_owned(),
            permission_policy: PermissionPolicy::default(),
            budget: BudgetLimits::default(),
            fan_out: None,
            task_limits: None,
            parent: None,
        });
        if let Some(kept) = &kept {
            let asked = Asked {
                workspace: self.place.as_ref().map(|_| workspace.display_root().to_owned()),
                capabilities: self.capabilities,
                agent: self.agent.clone(),
                tool_result_transform_policy: self.projection.clone(),
                skill,
                sandbox,
                immutable_content_adapter,
            };
            check(session, kept, &asked)?;
        }
        if let Some(agent) = &self.agent {
            settings.agent.clone_from(agent);
        }
        if let Some(model) = &self.model {
            model.name().clone_into(&mut settings.model);
        }
        if let Some(policy) = &self.policy {
            settings.permission_policy.clone_from(policy);
        }
        if let Some(budget) = self.budget {
            settings.budget = budget;
        }
        settings.fan_out = self.runs.fan_out.or(settings.fan_out);
        settings.task_limits = self.task_limits.or(settings.task_limits);
        Ok((workspace, settings))
    }
}

impl Parts {
    /// The built-in tools that a workspace gets, with a host's own; without own tools the set is shared.
    fn registry(
        &self,
        workspace: &Workspace,
        agents: &Agents,
        custom: Vec<Arc<dyn Tool>>,
    ) -> Result<Arc<Registry>, RegistryError> {
        let takes_pieces = workspace.files().takes_pieces();
        let key = (workspace.capabilities(), takes_pieces);
        let shared = custom.is_empty() && agents.are_built_in();
        if shared && let Some(known) = self.registries.get(&key) {
            return Ok(Arc::clone(&known));
        }
        let options = CatalogOptions {
            environment: self.environment.clone(),
            agents: agents.iter().map(|agent| (agent.name.clone(), agent.purpose.clone())).collect(),
            takes_pieces,
            indexes: Some(Arc::clone(&self.indexes)),
        };
        let builtin = builtin_tools(workspace.capabilities(), options);
        let registry = Arc::new(Registry::build(builtin, custom, &self.schemas)?);
        if shared {
            self.registries.insert(key, Arc::clone(&registry));
        }
        Ok(registry)
    }
}

#[cfg(test)]
mod tests;
