//! What an embedder holds: a runtime, assembled once, that opens sessions and shuts everything down in order.

pub mod session_builder;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dashmap::DashMap;
use thiserror::Error;
use toolwarden_actors::artifact_store::{ArtifactError, ArtifactLimits, ArtifactStatus, ArtifactStore};
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
use toolwarden_tools::effects::files::FileError;
use toolwarden_tools::effects::http::proxy::HttpProxy;
use toolwarden_tools::effects::processes::Processes;
use toolwarden_tools::effects::processes::containment::Unavailable;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::store::Store;
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::registry::{Registry, RegistryError};
use toolwarden_tools::schema::SchemaCache;
use toolwarden_tools::search::resident_index::ResidentIndexes;
use toolwarden_tools::tool::{Lane, Tool};
use toolwarden_tools::web::ssrf::Origin;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities};

use self::session_builder::{Place, SessionBuilder};
use crate::agent::Agents;
use crate::agent::file::AgentFilesError;
use crate::content_adapter::ContentBindingError;
use crate::event::Event;
use crate::keeper;
use crate::kernel::Kernel;
use crate::lanes::{LaneLimits, Lanes};
use crate::models::gate::{ModelGate, RetryPolicy};
use crate::policy::compiled::CompileError;
use crate::resume::{Found, ResumeError};
use crate::session::SessionError;
use crate::settlement::sanitise::{Sanitiser, SanitiserError, SecurityProvider};
use crate::supervision_tree::{MakeSink, SupervisionTree};

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
    ///
    /// [`Session::event_page`]: crate::session::Session::event_page
    /// [`Session::tail`]: crate::session::Session::tail
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
        SessionBuilder::begin(self, Place::Folder(folder.as_ref().to_owned()))
    }

    /// Begins to assemble a session over a workspace that is open already; many sessions may share one.
    pub fn session_over(&self, workspace: Workspace) -> SessionBuilder {
        SessionBuilder::begin(self, Place::Workspace(workspace))
    }

    /// Begins to open a session again that is kept in the store. What is not said is inherited from it; of what is
    /// pinned, anything else is refused.
    pub fn resume(&self, session: impl Into<SessionId>) -> SessionBuilder {
        SessionBuilder::begin_again(self, session.into())
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
