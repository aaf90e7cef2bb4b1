//! What an embedder holds: a runtime, assembled once, that opens sessions and shuts everything down in order.

use std::collections::BTreeMap;
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
use toolwarden_actors::journal::{Journal, JournalError, JournalSink, JournalStatus, Reader};
use toolwarden_tools::catalog::{CatalogOptions, builtin_tools};
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::blobs::folder::FolderBlobs;
use toolwarden_tools::effects::blobs::memory::MemoryBlobs;
use toolwarden_tools::effects::blobs::{BlobError, Blobs};
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::effects::files::FileError;
use toolwarden_tools::effects::processes::confinement::Confinement;
use toolwarden_tools::effects::processes::confinement::confined::ConfinedProcesses;
use toolwarden_tools::effects::processes::system::SystemProcesses;
use toolwarden_tools::effects::processes::{Leftover, Processes};
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::registry::{Registry, RegistryError};
use toolwarden_tools::schema::SchemaCache;
use toolwarden_tools::tool::Tool;
use toolwarden_tools::workspace::seen::SeenFiles;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, local};

use crate::agent::Agents;
use crate::command_output::CommandOutput;
use crate::delegation::Delegation;
use crate::event::Event;
use crate::grant_book::GrantBook;
use crate::hook::Hook;
use crate::kernel::Kernel;
use crate::lanes::{LaneLimits, Lanes};
use crate::models::Model;
use crate::models::research::ResearchModel;
use crate::policy::PermissionPolicy;
use crate::policy::compiled::{CompileError, CompiledPolicy};
use crate::run::RunLimits;
use crate::scope::Confirming;
use crate::scope::{CallLimits, Scope};
use crate::session::{Session, SessionError, SessionPlan};
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::settlement::sanitise::{Sanitiser, SanitiserError, SecurityProvider};
use crate::skill_limits::SkillLimits;
use crate::supervision_tree::{MakeSink, SupervisionTree};

/// A running runtime; clones share it. Shut it down with [`Runtime::shut_down`]: dropped without, its actors are
/// killed with the tokio runtime.
#[derive(Clone)]
pub struct Runtime {
    parts: Arc<Parts>,
}

struct Parts {
    kernel: Arc<Kernel>,
    tree: SupervisionTree,
    processes: Arc<dyn Processes>,
    environment: BTreeMap<String, String>,
    schemas: SchemaCache,
    registries: DashMap<(WorkspaceCapabilities, bool), Arc<Registry>>,
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
    /// The policy cannot be compiled.
    #[error("the permission policy cannot be used: {0}")]
    Policy(#[from] CompileError),
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
    secrets: Vec<String>,
    secret_patterns: Vec<String>,
    security_provider: Option<Arc<dyn SecurityProvider>>,
    artifacts: ArtifactPlace,
    artifact_limits: ArtifactLimits,
    make_sink: MakeSink,
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
        let kernel = Arc::new(Kernel {
            effects: self.effects,
            journal: Journal::new(),
            ledger: BudgetLedger::new(),
            confirmations: Confirmations::new(),
            lanes: Lanes::new(&self.lanes),
            sanitiser: Arc::new(sanitiser.with_provider(self.security_provider)),
            artifacts: Arc::new(ArtifactStore::new(blobs, self.artifact_limits)),
            live: DashMap::new(),
        });
        let tree = SupervisionTree::start(&kernel, self.make_sink).await?;
        let parts = Parts {
            kernel,
            tree,
            processes: self.processes,
            environment: self.environment,
            schemas: SchemaCache::default(),
            registries: DashMap::new(),
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
            secrets: Vec::new(),
            secret_patterns: Vec::new(),
            security_provider: None,
            artifacts: ArtifactPlace::Memory,
            artifact_limits: ArtifactLimits::default(),
            make_sink: Arc::new(|| None),
        }
    }

    /// Begins to assemble a session over a folder.
    pub fn session(&self, folder: impl AsRef<Path>) -> SessionBuilder {
        self.session_in(Place::Folder(folder.as_ref().to_owned()))
    }

    /// Begins to assemble a session over a workspace that is open already; many sessions may share one.
    pub fn session_over(&self, workspace: Workspace) -> SessionBuilder {
        self.session_in(Place::Workspace(workspace))
    }

    fn session_in(&self, place: Place) -> SessionBuilder {
        SessionBuilder {
            runtime: self.clone(),
            place,
            processes: None,
            capabilities: WorkspaceCapabilities::local_default(),
            id: None,
            model: Arc::new(ResearchModel),
            agents: Agents::builtin(),
            agent: "general".to_owned(),
            tools: Vec::new(),
            policy: None,
            skill: None,
            hooks: Vec::new(),
            confirming: Confirming::default(),
            budget: BudgetLimits::default(),
            child_budget: BudgetLimits::default(),
            calls: CallLimits::default(),
            runs: RunLimits::default(),
            projection: ProjectionPolicy::default(),
            command_output: None,
            leftover: Leftover::default(),
            sandbox: Confinement::default(),
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

    /// How many nodes of the supervision tree are alive; 1 when nothing is open, 0 after the shut-down.
    pub fn live_nodes(&self) -> usize {
        self.parts.tree.live_nodes()
    }

    /// Ends every session and then the tree, in order, and waits for it.
    pub async fn shut_down(&self) {
        self.parts.tree.shut_down().await;
    }

    /// As [`Self::shut_down`] without grace: tools are dropped where they stand and commands are killed with their
    /// groups. For a second Ctrl-C. What was told before is still in the journal's sink.
    pub async fn kill(&self) {
        self.parts.tree.kill_sessions();
        self.parts.tree.shut_down().await;
    }
}

enum Place {
    Folder(PathBuf),
    Workspace(Workspace),
}

/// Collects what a session is made of.
pub struct SessionBuilder {
    runtime: Runtime,
    place: Place,
    processes: Option<Arc<dyn Processes>>,
    capabilities: WorkspaceCapabilities,
    id: Option<SessionId>,
    model: Arc<dyn Model>,
    agents: Agents,
    agent: String,
    tools: Vec<Arc<dyn Tool>>,
    policy: Option<PermissionPolicy>,
    skill: Option<SkillLimits>,
    hooks: Vec<Arc<dyn Hook>>,
    confirming: Confirming,
    budget: BudgetLimits,
    child_budget: BudgetLimits,
    calls: CallLimits,
    runs: RunLimits,
    projection: ProjectionPolicy,
    command_output: Option<Arc<dyn CommandOutput>>,
    leftover: Leftover,
    sandbox: Confinement,
}

impl SessionBuilder {
    /// What may be done in the workspace; everything, when not said.
    #[must_use]
    pub fn capabilities(mut self, capabilities: WorkspaceCapabilities) -> Self {
        self.capabilities = capabilities;
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
        self.model = model;
        self
    }

    /// Who the session works as; `general`, when not said.
    #[must_use]
    pub fn agent(mut self, name: impl Into<String>) -> Self {
        self.agent = name.into();
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
        self.budget = budget;
        self
    }

    /// What each child run may use out of the session's budget.
    #[must_use]
    pub fn child_budget(mut self, budget: BudgetLimits) -> Self {
        self.child_budget = budget;
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
        self.projection = policy;
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

    /// What the kernel keeps commands from, `git` and child runs included; nothing, when not said. It takes a runner
    /// with a shim ([`SystemProcesses::with_shim`]); where it cannot be put in force, commands are refused.
    #[must_use]
    pub fn sandbox(mut self, confinement: Confinement) -> Self {
        self.sandbox = confinement;
        self
    }

    /// Opens the session.
    ///
    /// # Errors
    /// [`BuildError`].
    pub async fn open(self) -> Result<Session, BuildError> {
        let parts = &self.runtime.parts;
        let kernel = Arc::clone(&parts.kernel);
        let workspace = match self.place {
            Place::Workspace(workspace) => {
                let narrowed = workspace.narrowed(self.capabilities);
                self.processes.map_or_else(|| narrowed.clone(), |processes| narrowed.with_processes(processes))
            }
            Place::Folder(folder) => {
                let processes = self.processes.unwrap_or_else(|| Arc::clone(&parts.processes));
                local::open(&folder, self.capabilities, Some(processes))?
            }
        };
        let workspace = sandboxed(workspace, self.sandbox);
        let Some(agent) = self.agents.get(&self.agent).cloned() else {
            let known: Vec<&str> = self.agents.iter().map(|agent| agent.name.as_str()).collect();
            return Err(BuildError::Agent { name: self.agent, known: known.join(", ") });
        };
        let registry = parts.registry(&workspace, &self.agents, self.tools)?;
        let registry = if agent.tools.is_some() { Arc::new(agent.tools_of(&registry)) } else { registry };
        let session =
            self.id.unwrap_or_else(|| SessionId::from(format!("session-{}", hex_id(&*kernel.effects.entropy))));
        let children = Delegation::new(
            Arc::clone(&kernel),
            Arc::clone(&self.model),
            self.agents,
            self.runs.clone(),
            self.child_budget,
        );
        let policy = CompiledPolicy::new(&self.policy.unwrap_or_default())?;
        let mut scope = Scope {
            root_session: session.clone(),
            account: Account::new(AccountId::from(session.as_str()), self.budget),
            session,
            run: None,
            registry,
            workspace,
            seen: Arc::new(SeenFiles::default()),
            policies: std::iter::once(Arc::new(policy)).chain(agent.policy.clone()).collect(),
            grants: Arc::new(GrantBook::default()),
            skill: self.skill.map(Arc::new),
            hooks: self.hooks,
            confirming: self.confirming,
            limits: self.calls,
            projection: self.projection,
            ancestry: Vec::new(),
            children: Some(children),
            background: None,
            command_output: self.command_output,
            leftover: self.leftover,
        };
        scope.background = scope.no_background(&kernel.effects.clock);
        let plan = SessionPlan { model: self.model, agent, limits: self.runs };
        let sessions = parts.tree.sessions().ok_or(SessionError::NotRunning)?;
        Ok(Session::open(kernel, Arc::new(scope), plan, &sessions).await?)
    }
}

/// The same workspace with its commands confined, if they are to be.
fn sandboxed(workspace: Workspace, confinement: Confinement) -> Workspace {
    let Some(commands) = workspace.commands().or(workspace.git_commands()).filter(|_| !confinement.is_off()) else {
        return workspace;
    };
    let (port, folder) = (Arc::clone(&commands.processes), commands.folder.clone());
    workspace.with_processes(Arc::new(ConfinedProcesses::new(port, confinement, folder)))
}

impl Parts {
    /// The built-in tools that a workspace gets, with a host's own; without own tools the set is shared.
    fn registry(
        &self,
        workspace: &Workspace,
        agents: &Agents,
        custom: Vec<Arc<dyn Tool>>,
    ) -> Result<Arc<Registry>, RegistryError> {
        let key = (workspace.capabilities(), custom.is_empty());
        if let Some(known) = self.registries.get(&key)
            && custom.is_empty()
        {
            return Ok(Arc::clone(&known));
        }
        let options = CatalogOptions {
            environment: self.environment.clone(),
            agents: agents.iter().map(|agent| (agent.name.clone(), agent.purpose.clone())).collect(),
        };
        let shared = custom.is_empty();
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
