//! A scope: everything that governs and serves the calls of one run, frozen when the run starts.
//!
//! A change of policy, tools or hooks while a run is under way makes a new scope for the next one; calls in flight
//! keep theirs, so no answer mixes two sets of rules.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use toolwarden_actors::background::BackgroundProcesses;
use toolwarden_actors::budget_ledger::Account;
use toolwarden_actors::node::NodeHandle;
use toolwarden_tools::context::{ChildResults, ChildTask, DelegateError, FanOutPolicy, StartedTask};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::processes::Leftover;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId, ToolName};
use toolwarden_tools::offer::Offer;
use toolwarden_tools::registry::Registry;
use toolwarden_tools::tool::ToolSpec;
use toolwarden_tools::workspace::Workspace;
use toolwarden_tools::workspace::seen::SeenFiles;

use crate::command_output::CommandOutput;
use crate::fact_book::FactBook;
use crate::grant_book::GrantBook;
use crate::hook::Hook;
use crate::models::Model;
use crate::permission::Places;
use crate::policy::compiled::CompiledPolicy;
use crate::settlement::projection_policy::ProjectionPolicy;
use crate::settlement::retained::ContentKeeping;
use crate::skill_limits::SkillLimits;
use crate::task_book::TaskBook;

/// What governs and serves the calls of one run, or of the host's direct calls in a session.
#[derive(Clone)]
pub struct Scope {
    /// The session.
    pub session: SessionId,
    /// The session that the host opened, when this one is a child of it.
    pub root_session: SessionId,
    /// The run, when the calls are a run's.
    pub run: Option<RunId>,
    /// The tools.
    pub registry: Arc<Registry>,
    /// Where they work.
    pub workspace: Workspace,
    /// The home folder of commands, where they have one: rules may speak of paths in it.
    pub home: Option<Arc<str>>,
    /// What the session has read.
    pub seen: Arc<SeenFiles>,
    /// Permission policies; all must agree, so that a child never gets more than its parent.
    pub policies: Vec<Arc<CompiledPolicy>>,
    /// What a person has allowed for good in this session.
    pub grants: Arc<GrantBook>,
    /// The limits of the active skill.
    pub skill: Option<Arc<SkillLimits>>,
    /// Hooks, asked in this order.
    pub hooks: Vec<Arc<dyn Hook>>,
    /// Whether and how a person is asked.
    pub confirming: Confirming,
    /// Whose budget is used.
    pub account: Account,
    /// Bounds of a call.
    pub limits: CallLimits,
    /// How outputs are projected.
    pub projection: ProjectionPolicy,
    /// The host's own keeping of what results are made of.
    pub content: Option<ContentKeeping>,
    /// The nesting tools that this scope's calls are inside of, outermost first.
    pub ancestry: Vec<ToolName>,
    /// The facts of the session, where they are kept and the calls are its own.
    pub facts: Option<Arc<FactBook>>,
    /// Who answers tools that ask for objects.
    pub model: Option<Arc<dyn Model>>,
    /// Starts child runs, where there is a model for them.
    pub children: Option<Arc<dyn ChildRuns>>,
    /// The child runs of the session that the host opened, those of its children too.
    pub tasks: Arc<TaskBook>,
    /// The session's background processes, where commands may be run.
    pub background: Option<BackgroundProcesses>,
    /// Who sees the raw output of commands, by stream.
    pub command_output: Option<Arc<dyn CommandOutput>>,
    /// What becomes of processes that a command leaves running when it has ended.
    pub leftover: Leftover,
}

/// Whether and how a person is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirming {
    /// Nobody can be asked: what needs a confirmation is refused.
    Unavailable,
    /// A question without an answer is rejected after this span.
    RejectAfter(Duration),
    /// A question waits for as long as it takes.
    Park,
}

impl Default for Confirming {
    fn default() -> Self {
        Self::RejectAfter(Duration::from_secs(30))
    }
}

/// Bounds of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLimits {
    /// The most time a tool may take, waiting for a person not counted; none when only the tool's own limits hold.
    pub timeout: Option<Duration>,
    /// What a tool has from its cancel to being dropped. Longer than the grace of a command, so that the command's
    /// own end comes first.
    pub grace: Duration,
    /// The same for a tool whose work is other calls: it first waits for theirs.
    pub nesting_grace: Duration,
    /// How many nesting tools may be inside of each other.
    pub depth_max: usize,
    /// How long hooks after a call are waited for, all together.
    pub post_hook: Duration,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            timeout: None,
            grace: Duration::from_secs(4),
            nesting_grace: Duration::from_secs(15),
            depth_max: 4,
            post_hook: Duration::from_secs(1),
        }
    }
}

impl Scope {
    /// No background processes yet, for a session with this scope's workspace; none at all where no command may run.
    pub(crate) fn no_background(&self, clock: &Arc<dyn Clock>) -> Option<BackgroundProcesses> {
        let commands = self.workspace.commands()?;
        Some(BackgroundProcesses::new(Arc::clone(&commands.processes), Arc::clone(clock), self.leftover))
    }

    /// Where the spellings of a path begin, for rules.
    pub(crate) fn places(&self) -> Places<'_> {
        Places { root: Some(self.workspace.display_root()), home: self.home.as_deref() }
    }

    /// What a tool of this name has from its cancel to being dropped.
    pub fn grace_of(&self, tool: &str) -> Duration {
        match self.registry.get(tool) {
            Some(entry) if entry.tool.spec().needs.nests() => self.limits.nesting_grace,
            _ => self.limits.grace,
        }
    }

    /// What a model is told of its tools: those that are visible and that no policy or skill hides.
    pub fn offered(&self) -> Offer {
        let is_offered = |spec: &ToolSpec| {
            let name = spec.name.as_str();
            spec.model_visible
                && self.policies.iter().all(|policy| policy.exposes(name, &spec.lane))
                && self.skill.as_ref().is_none_or(|skill| skill.exposes(name, &spec.lane))
        };
        self.registry.iter().filter(|entry| is_offered(entry.tool.spec())).map(|entry| entry.offered()).collect()
    }
}

/// Starts child runs for the `task` tool; implemented where sessions are known.
pub trait ChildRuns: Send + Sync {
    /// The agents that may be named, with what each is for, sorted by name.
    fn agents(&self) -> Vec<(String, String)>;

    /// Runs the tasks under `node`, the node of the invocation that asked for them.
    fn delegate(
        &self,
        scope: &Arc<Scope>,
        node: &NodeHandle,
        invocation: &InvocationId,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'static, Result<ChildResults, DelegateError>>;

    /// Starts a task that goes on after the invocation that asked for it.
    fn background(
        &self,
        scope: &Arc<Scope>,
        invocation: &InvocationId,
        task: ChildTask,
    ) -> BoxFuture<'static, Result<StartedTask, DelegateError>>;

    /// Whether a call of `task` that is made again, because the process ended before it had its result, comes back to the
    /// child runs that it began.
    fn come_back(&self) -> bool;

    /// Goes on with the tasks in the background that were under way when the session's process ended.
    fn go_on(&self, scope: &Arc<Scope>);
}
