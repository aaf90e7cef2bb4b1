//! One child run: its life from its beginning to its one ending, in the parent's tree or somewhere else.

use std::sync::{Arc, OnceLock};

use toolwarden_actors::accounts::AccountId;
use toolwarden_actors::budget::{Amount, BudgetLimits};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_tools::builtin::task::report::{ANSWER_BYTES_MAX, later};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::{ChildResult, ChildTask};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::{OnDamage, StoreError};
use toolwarden_tools::ids::{InvocationId, SessionId, TaskId};
use toolwarden_tools::workspace::seen::SeenFiles;

use super::form::prompt_with_form;
use super::{Delegation, SUBAGENT_OUTPUT_BYTES_MAX};
use crate::agent::Agent;
use crate::event::EventKind;
use crate::fact_book::FactBook;
use crate::facts::state::{ChildEnd, State};
use crate::facts::{BackgroundStart, ChildPlace, Fact, Settings};
use crate::keeper::{Keeper, Reopened};
use crate::models::Model;
use crate::resume::ResumeError;
use crate::run::{EndTold, RunLimits, RunOutcome, RunPlan, carry, run_id, tell_lost};
use crate::run_status::RunStatus;
use crate::scope::Scope;
use crate::session_span::SESSION_GRACE;
use crate::settlement::artifact::ArtifactUri;
use crate::task_book::{SubagentStatus, SubagentTask};

/// One child run.
pub(super) struct Child {
    pub(super) delegation: Arc<Delegation>,
    pub(super) parent: Arc<Scope>,
    pub(super) invocation: InvocationId,
    pub(super) task: ChildTask,
    pub(super) task_id: TaskId,
    pub(super) session: SessionId,
    /// None when the task names an agent that does not exist.
    pub(super) agent: Option<Arc<Agent>>,
    /// Whether it goes on after its call.
    pub(super) background: bool,
    /// Where it stands among the children of its call.
    pub(super) place: Option<ChildPlace>,
    /// How it stood when the process ended that it was begun in; none for one that begins now.
    pub(super) known: Option<ChildEnd>,
    /// What it has used by its end.
    pub(super) used: OnceLock<Amount>,
    /// How many child runs it has had by its end, theirs included.
    pub(super) runs: OnceLock<u64>,
}

/// What a child came to, before it is told.
pub(super) struct Work {
    pub(super) success: bool,
    pub(super) output: String,
    pub(super) anchors: Vec<String>,
    pub(super) structured: Option<serde_json::Value>,
}

impl Work {
    pub(super) fn failed(output: String) -> Self {
        Self { success: false, output, anchors: Vec::new(), structured: None }
    }

    /// What a run came to.
    fn of(outcome: RunOutcome) -> Self {
        let success = outcome.status.is_success();
        let output = match success || !outcome.text.is_empty() {
            true => outcome.text,
            false => outcome.status.to_string(),
        };
        Self { success, output, anchors: outcome.source_anchors, structured: None }
    }
}

impl Child {
    /// As its session lists it.
    pub(super) fn listed(&self) -> SubagentTask {
        SubagentTask {
            task_id: self.task_id.clone(),
            session_id: self.session.clone(),
            parent_session_id: self.parent.session.clone(),
            parent_invocation: self.invocation.clone(),
            agent: self.task.agent.clone(),
            description: self.task.description.clone(),
            background: self.background,
            started_at_ms: self.delegation.kernel.effects.clock.unix_ms(),
            status: SubagentStatus::Running,
        }
    }

    /// The result of a child that came to nothing.
    pub(super) fn failed(&self, output: String) -> ChildResult {
        self.result(Work::failed(output))
    }

    fn result(&self, work: Work) -> ChildResult {
        let Work { success, output, anchors, structured } = work;
        ChildResult {
            task: self.task_id.clone(),
            session: self.session.clone(),
            agent: self.task.agent.clone(),
            success,
            output,
            source_anchors: anchors,
            structured,
            artifact: None,
        }
    }

    /// The task as it may be stored, and whether that is all of it.
    pub(super) fn task_to_keep(&self, facts: &FactBook) -> (ChildTask, bool) {
        let sanitiser = &self.delegation.kernel.sanitiser;
        let mut kept = self.task.clone();
        for text in [&mut kept.prompt, &mut kept.description] {
            *text = facts.fit_to_keep(sanitiser, std::mem::take(text));
        }
        let whole = kept == self.task;
        (kept, whole)
    }

    /// The fact that it began.
    pub(super) fn started_fact(&self, background: Option<Box<BackgroundStart>>) -> Fact {
        Fact::ChildStarted {
            task: self.task_id.clone(),
            session: self.session.clone(),
            agent: self.task.agent.clone(),
            place: self.place.clone(),
            background,
        }
    }

    /// The fact that it ended.
    pub(super) fn ended_fact(&self, success: bool, report: Option<String>) -> Fact {
        let used = self.used.get().copied().unwrap_or_default();
        let child_runs = self.runs.get().copied().unwrap_or_default();
        Fact::ChildEnded { task: self.task_id.clone(), success, report, used, child_runs }
    }

    /// Puts down what becomes of it.
    pub(super) fn note(&self, facts: &FactBook, fact: Fact) {
        if let Err(error) = facts.append(fact) {
            tracing::warn!(%error, "a fact about a child run was not taken");
        }
    }

    pub(super) fn tell_start(&self) {
        let kind = EventKind::SubagentStart {
            task_id: self.task_id.clone(),
            session_id: self.session.clone(),
            parent_session_id: self.parent.session.clone(),
            parent_invocation: self.invocation.clone(),
            agent: self.task.agent.clone(),
            description: self.task.description.clone(),
            background: self.background,
        };
        self.delegation.kernel.tell(&self.parent, kind);
    }

    /// Tells how it ended, the first time; gives its result.
    pub(super) fn settle(&self, result: ChildResult) -> Arc<ChildResult> {
        let result = Arc::new(result);
        let Some(told) = self.parent.tasks.ended(&result) else { return result };
        let success = result.success && !told.cancelled;
        let report = told.deliver.then(|| {
            let sanitiser = &self.delegation.kernel.sanitiser;
            sanitiser.clean(later(&result, &self.task.description, told.cancelled)).0
        });
        let fact = self.ended_fact(success, report);
        match &self.parent.facts {
            _ if self.background => self.note(self.parent.tasks.facts(), fact),
            Some(facts) => self.note(facts, fact),
            None => {}
        }
        let end = result.output.floor_char_boundary(SUBAGENT_OUTPUT_BYTES_MAX);
        let kind = EventKind::SubagentEnd {
            task_id: self.task_id.clone(),
            session_id: self.session.clone(),
            agent: self.task.agent.clone(),
            output: result.output[..end].to_owned(),
            success,
        };
        self.delegation.kernel.tell(&self.parent, kind);
        result
    }

    /// Takes a background task off again before anybody heard of it.
    pub(super) fn withdraw(&self) {
        self.parent.tasks.ended(&Arc::new(self.failed("it was not started".to_owned())));
        self.note(self.parent.tasks.facts(), self.ended_fact(false, None));
    }

    /// The child session's life: an account, one run, an ending.
    pub(super) async fn live(&self, node: NodeHandle) -> Arc<ChildResult> {
        let work = match (&self.agent, &self.delegation.dispatch) {
            (None, _) => Work::failed(format!("there is no agent named {}", self.task.agent)),
            // What a call began here goes on here; a task in the background is the same work wherever it is asked for.
            (Some(agent), Some(dispatch)) if self.background || self.known.is_none() => {
                let work = self.carry_elsewhere(&node, agent, &**dispatch).await;
                self.in_form(work, &node, agent, Arc::clone(&self.parent)).await
            }
            (Some(agent), _) => self.work(&node, agent).await,
        };
        let mut result = self.result(work);
        self.keep_whole(&mut result).await;
        self.settle(result)
    }

    /// Its work in the tree of its parent, on an account of its own.
    async fn work(&self, node: &NodeHandle, agent: &Arc<Agent>) -> Work {
        let kernel = &self.delegation.kernel;
        let account = self.parent.account.child(AccountId::from(self.session.as_str()), self.budget(agent));
        if let Err(error) = kernel.ledger.open_account(&account).await {
            return Work::failed(error.to_string());
        }
        let work = match self.carry_here(node, agent, &account).await {
            Ok((outcome, scope)) => self.in_form(Work::of(outcome), node, agent, scope).await,
            Err(why) => Work::failed(why),
        };
        if self.parent.tasks.facts().is_kept()
            && let Ok(status) = kernel.ledger.status(account.id().clone()).await
        {
            // It is settled once.
            let _ = self.used.set(status.spent);
        }
        // An account that is not there any more needs no closing.
        drop(kernel.ledger.close_account(account.id().clone()).await);
        work
    }

    /// What it is asked, with the form of the answer.
    pub(super) fn prompt(&self) -> String {
        match &self.task.output_schema {
            Some(schema) => prompt_with_form(&self.task.prompt, schema),
            None => self.task.prompt.clone(),
        }
    }

    /// Keeps the whole of an answer that is shown in part.
    async fn keep_whole(&self, result: &mut ChildResult) {
        if result.output.len() <= ANSWER_BYTES_MAX {
            return;
        }
        let kernel = &self.delegation.kernel;
        let (text, _) = kernel.sanitiser.clean(result.output.clone());
        let uri = ArtifactUri::new("task", Digest::of(text.as_bytes()));
        match kernel.artifacts.keep(&self.parent.root_session, uri.digest(), text).await {
            Ok(()) => result.artifact = Some(uri.to_string()),
            Err(error) => tracing::warn!(%error, task = %self.task_id, "the whole answer of a child run is not kept"),
        }
    }

    pub(super) fn model(&self, agent: &Agent) -> Arc<dyn Model> {
        Arc::clone(agent.model.as_ref().unwrap_or(&self.delegation.model))
    }

    /// What it may use: what both its caller's host and its agent allow.
    pub(super) fn budget(&self, agent: &Agent) -> BudgetLimits {
        let (own, of_agent) = (self.delegation.budget, agent.budget);
        let least = |one: Option<u64>, other: Option<u64>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        BudgetLimits {
            calls: least(own.calls, of_agent.calls),
            input_tokens: least(own.input_tokens, of_agent.input_tokens),
            output_tokens: least(own.output_tokens, of_agent.output_tokens),
            cost_microusd: least(own.cost_microusd, of_agent.cost_microusd),
            output_bytes: least(own.output_bytes, of_agent.output_bytes),
            soft_percent: own.soft_percent,
        }
    }

    pub(super) fn rounds(&self, agent: &Agent) -> u32 {
        agent.steps.rounds(self.task.max_steps.or(self.delegation.limits.rounds_max))
    }

    async fn carry_here(
        &self,
        node: &NodeHandle,
        agent: &Arc<Agent>,
        account: &toolwarden_actors::budget_ledger::Account,
    ) -> Result<(RunOutcome, Arc<Scope>), String> {
        let kernel = &self.delegation.kernel;
        let keeper = self.keeper(agent).await.map_err(|error| error.to_string())?;
        let facts = keeper.as_ref().map_or_else(FactBook::in_memory, |keeper| Arc::clone(keeper.facts()));
        if self.known == Some(ChildEnd::Open) {
            self.charge(account, &facts).await;
            self.parent.tasks.count_before(facts.look(|state| state.child_runs));
        }
        if let Some(ended) = facts.look(|state| state.run.is_none().then(|| state.last.clone()).flatten()) {
            // It had come to its end when the process ended that was to tell of it.
            self.parent.tasks.transcribe(&self.task_id, &facts);
            self.part_with(keeper, &facts).await;
            return Ok((RunOutcome::of(*ended, &self.session), Arc::clone(&self.parent)));
        }
        let under_way = facts.look(|state| state.run.as_ref().map(|run| run.id.clone()));
        let run = under_way.clone().unwrap_or_else(|| run_id(kernel));
        let plan = RunPlan {
            run,
            model: self.model(agent),
            agent: Arc::clone(agent),
            limits: RunLimits {
                rounds_max: Some(self.rounds(agent)),
                timeout: agent.timeout,
                ..self.delegation.limits.clone()
            },
            end_told: EndTold::default(),
        };
        if under_way.is_none() {
            let text = facts.fit_to_keep(&kernel.sanitiser, self.prompt());
            let pictures = Vec::new();
            let asked = Fact::UserMessage { run: plan.run.clone(), text, pictures, bounds: plan.bounds() };
            facts.record(asked).await.map_err(|error| error.to_string())?;
        }
        self.parent.tasks.transcribe(&self.task_id, &facts);
        let scope = Arc::new(self.scope(node, agent, account, &plan, &facts));
        let its_facts = Arc::clone(&facts);
        let end_told = plan.end_told.clone();
        let (its_kernel, its_scope) = (Arc::clone(kernel), Arc::clone(&scope));
        let (lost_kernel, lost_scope) = (Arc::clone(kernel), Arc::clone(&scope));
        let spec = NodeSpec { kind: NodeKind::Run, grace: SESSION_GRACE };
        let waiter = node.spawn_with_epilogue(
            spec,
            move |run| carry(its_kernel, its_scope, plan, run, facts),
            move |ending| tell_lost(&lost_kernel, &lost_scope, &end_told, ending),
        );
        let end = waiter.await;
        self.part_with(keeper, &its_facts).await;
        let outcome = end.output.ok_or_else(|| RunStatus::lost(&end.ending).to_string())?;
        Ok((outcome, scope))
    }

    /// Counts its own child runs, and gives its session free.
    async fn part_with(&self, keeper: Option<Keeper>, facts: &FactBook) {
        // It parts once.
        let _ = self.runs.set(facts.look(|state| state.child_runs));
        if let Some(keeper) = keeper {
            keeper.close().await;
        }
    }

    /// What governs and serves its calls: what its parent has, narrowed by its agent.
    fn scope(
        &self,
        node: &NodeHandle,
        agent: &Agent,
        account: &toolwarden_actors::budget_ledger::Account,
        plan: &RunPlan,
        facts: &Arc<FactBook>,
    ) -> Scope {
        let mut scope = Scope::clone(&self.parent);
        scope.session = self.session.clone();
        scope.run = Some(plan.run.clone());
        scope.registry = Arc::new(agent.tools_of(&self.parent.registry));
        scope.seen = Arc::new(SeenFiles::default());
        scope.policies.extend(agent.policy.clone());
        scope.account = account.clone();
        scope.model = Some(self.model(agent));
        // Its own: they end with it.
        scope.background = scope.no_background(&self.delegation.kernel.effects.clock);
        if let Some(background) = &scope.background {
            background.hang_on(node, self.delegation.kernel.background_listener(&scope));
        }
        // Where it is kept its calls are facts of its own, so that it can go on.
        scope.facts = facts.is_kept().then(|| Arc::clone(facts));
        scope
    }

    /// Keeps a child of a session that is kept in a session of its own, so that it can go on after its process ended, and
    /// what it said can be read.
    async fn keeper(&self, agent: &Agent) -> Result<Option<Keeper>, ResumeError> {
        let book = self.parent.tasks.facts();
        let Some(log) = book.log() else { return Ok(None) };
        let clock = Arc::clone(&self.delegation.kernel.effects.clock);
        let parents = book.look(|state| state.settings.clone());
        let Some(parents) = parents else { return Ok(None) };
        let settings = Settings {
            agent: agent.name.clone(),
            model: self.model(agent).name().to_owned(),
            budget: self.budget(agent),
            parent: Some(self.parent.session.clone()),
            ..*parents
        };
        match Reopened::open(log, &self.session, OnDamage::Refuse).await {
            Ok(reopened) => Ok(Some(reopened.go_on(settings, clock).await?.0)),
            // Nothing of it ran before it was there.
            Err(ResumeError::Store(StoreError::Unknown { .. })) => {
                Ok(Some(Keeper::make(log, &self.session, settings, clock).await?))
            }
            Err(error) => Err(error),
        }
    }

    /// What it used before, in another process, is used.
    async fn charge(&self, account: &toolwarden_actors::budget_ledger::Account, facts: &FactBook) {
        let used = facts.look(State::used);
        // Not reserved: one that used more than it may is told so by its next call.
        if let Err(error) = self.delegation.kernel.ledger.charge(account.id().clone(), used).await {
            tracing::warn!(%error, task = %self.task_id, "what a child run used in another process is not counted");
        }
    }
}

/// Why a child came to nothing, in words.
pub(super) fn why(reason: Option<&CancelReason>) -> String {
    reason.map_or_else(|| "lost".to_owned(), ToString::to_string)
}
