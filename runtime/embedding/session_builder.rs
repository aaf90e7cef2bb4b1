//! What a session is made of, collected before it is opened: anew, or again from what is kept of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toolwarden_actors::accounts::AccountId;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::budget_ledger::Account;
use toolwarden_tools::catalog::{CatalogOptions, builtin_tools};
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::dispatch::Dispatch;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::effects::processes::confinement::Confinement;
use toolwarden_tools::effects::processes::containment::CommandLimits;
use toolwarden_tools::effects::processes::{Leftover, Processes};
use toolwarden_tools::effects::store::OnDamage;
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::tool::Tool;
use toolwarden_tools::workspace::seen::SeenFiles;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, WriteAllowance, local};

use super::{BuildError, Parts, Runtime};
use crate::agent::Agents;
use crate::agent::file::{AgentFile, ModelNames, NoModelNames};
use crate::command_output::CommandOutput;
use crate::content_adapter::{ContentAdapter, ContentBinding};
use crate::delegation::{Delegating, Delegation};
use crate::facts::Settings;
use crate::grant_book::GrantBook;
use crate::hook::Hook;
use crate::keeper::{Keeper, Reopened};
use crate::models::Model;
use crate::models::research::{RESEARCH_NAME, ResearchModel};
use crate::policy::PermissionPolicy;
use crate::policy::compiled::CompiledPolicy;
use crate::resume::{Asked, Recovery, ResumeError, check};
use crate::run::RunLimits;
use crate::scope::{CallLimits, Confirming, Scope};
use crate::session::{Session, SessionError, SessionFacts, SessionPlan};
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::settlement::retained::ContentKeeping;
use crate::skill_limits::SkillLimits;
use crate::task_book::TaskBook;
use crate::task_limits::TaskLimits;

/// Where a session works.
pub(super) enum Place {
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
    /// Begins a session that is new.
    pub(super) fn begin(runtime: &Runtime, place: Place) -> Self {
        Self::in_place(runtime, Some(place))
    }

    /// Begins with a session that is kept, in its own place.
    pub(super) fn begin_again(runtime: &Runtime, session: SessionId) -> Self {
        Self { id: Some(session), resumes: Some(OnDamage::Refuse), ..Self::in_place(runtime, None) }
    }

    fn in_place(runtime: &Runtime, place: Option<Place>) -> Self {
        Self {
            runtime: runtime.clone(),
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
    ///
    /// [`SystemProcesses::with_shim`]: toolwarden_tools::effects::processes::system::SystemProcesses::with_shim
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
    ///
    /// [`SystemProcesses::with_shim`]: toolwarden_tools::effects::processes::system::SystemProcesses::with_shim
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
    ///
    /// [`SystemProcesses::with_shim`]: toolwarden_tools::effects::processes::system::SystemProcesses::with_shim
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
