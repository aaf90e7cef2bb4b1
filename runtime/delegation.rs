//! Child runs: what the `task` tool starts. Each child is a session of its own: its own account carved out of its
//! parent's, its own memory of files, its parent's rules and never wider ones, and its own ending.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_actors::accounts::AccountId;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::fan_out::{FanOutPlan, MemberEnd};
use toolwarden_actors::members::{Member, MemberStart, run_members};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_tools::context::{ChildResult, ChildResults, ChildTask, FanOutPolicy};
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::ids::{InvocationId, SessionId, TaskId};
use toolwarden_tools::workspace::seen::SeenFiles;

use crate::agent::{Agent, Agents};
use crate::event::EventKind;
use crate::fact_book::FactBook;
use crate::facts::Fact;
use crate::kernel::Kernel;
use crate::models::Model;
use crate::run::{EndTold, RunLimits, RunOutcome, RunPlan, carry, run_id, tell_lost};
use crate::run_status::RunStatus;
use crate::scope::{ChildRuns, Scope};
use crate::session_span::SESSION_GRACE;

/// Most bytes of a child's answer that its ending event carries.
pub const SUBAGENT_OUTPUT_BYTES_MAX: usize = 4000;

/// Starts child runs with one model and one set of agents.
pub struct Delegation {
    kernel: Arc<Kernel>,
    model: Arc<dyn Model>,
    agents: Agents,
    limits: RunLimits,
    budget: BudgetLimits,
}

impl Delegation {
    /// Child runs of sessions that use this model; `budget` bounds each child beside its parent's own budget.
    pub fn new(
        kernel: Arc<Kernel>,
        model: Arc<dyn Model>,
        agents: Agents,
        limits: RunLimits,
        budget: BudgetLimits,
    ) -> Arc<Self> {
        Arc::new(Self { kernel, model, agents, limits, budget })
    }

    fn child(&self, parent: &Arc<Scope>, task: &ChildTask) -> Child {
        let task_id = TaskId::from(format!("task-{}", hex_id(&*self.kernel.effects.entropy)));
        let session = SessionId::from(format!("task-run-{task_id}"));
        let agent = self.agents.get(&task.agent).cloned();
        Child {
            kernel: Arc::clone(&self.kernel),
            model: Arc::clone(&self.model),
            limits: RunLimits {
                rounds_max: task.max_steps.or(self.limits.rounds_max),
                timeout: None,
                ..self.limits.clone()
            },
            budget: self.budget,
            parent: Arc::clone(parent),
            task: task.clone(),
            task_id,
            session,
            agent,
        }
    }
}

impl ChildRuns for Delegation {
    fn agents(&self) -> Vec<(String, String)> {
        self.agents.iter().map(|agent| (agent.name.clone(), agent.purpose.clone())).collect()
    }

    fn delegate(
        &self,
        scope: &Arc<Scope>,
        node: &NodeHandle,
        invocation: &InvocationId,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'static, ChildResults> {
        let children: Vec<Child> = tasks.iter().map(|task| self.child(scope, task)).collect();
        // What stands for a child that gave nothing back.
        let blanks: Vec<ChildResult> = children.iter().map(|child| child.result(false, String::new(), &[])).collect();
        let invocation = invocation.clone();
        let spec = NodeSpec { kind: NodeKind::FanOut, grace: SESSION_GRACE * 2 };
        let waiter = node.spawn(spec, move |node| async move {
            let starts = children.into_iter().map(|child| child.start(invocation.clone())).collect();
            run_members(&node, FanOutPlan::from(policy), starts).await.ok()
        });
        Box::pin(async move {
            let end = waiter.await.output.flatten();
            let (timed_out, returned_early) =
                end.as_ref().map_or((false, false), |end| (end.timed_out(), end.returned_early()));
            let mut members = end.map(|end| end.members).unwrap_or_default().into_iter();
            let results = blanks.into_iter().map(|blank| match members.next() {
                Some(MemberEnd::Finished { result, .. }) => result,
                Some(MemberEnd::Crashed { message }) => ChildResult { output: message, ..blank },
                Some(MemberEnd::NeverStarted { reason }) => {
                    ChildResult { output: format!("not started: {reason}"), ..blank }
                }
                None => ChildResult { output: "interrupted before it ended".to_owned(), ..blank },
            });
            ChildResults { results: results.collect(), timed_out, returned_early }
        })
    }
}

/// One child, not started yet.
struct Child {
    kernel: Arc<Kernel>,
    model: Arc<dyn Model>,
    limits: RunLimits,
    budget: BudgetLimits,
    parent: Arc<Scope>,
    task: ChildTask,
    task_id: TaskId,
    session: SessionId,
    /// None when the task names an agent that does not exist.
    agent: Option<Arc<Agent>>,
}

impl Child {
    fn result(&self, success: bool, output: String, anchors: &[String]) -> ChildResult {
        ChildResult {
            task: self.task_id.clone(),
            session: self.session.clone(),
            agent: self.task.agent.clone(),
            success,
            output,
            source_anchors: anchors.to_vec(),
        }
    }

    fn start(self, invocation: InvocationId) -> MemberStart<ChildResult> {
        Box::new(move |node| {
            let child = Arc::new(self);
            child.note(Fact::ChildStarted {
                task: child.task_id.clone(),
                session: child.session.clone(),
                agent: child.task.agent.clone(),
            });
            child.kernel.tell(
                &child.parent,
                EventKind::SubagentStart {
                    task_id: child.task_id.clone(),
                    session_id: child.session.clone(),
                    parent_session_id: child.parent.session.clone(),
                    parent_invocation: invocation,
                    agent: child.task.agent.clone(),
                    description: child.task.description.clone(),
                },
            );
            let (body, lost, blank) = (Arc::clone(&child), Arc::clone(&child), Arc::clone(&child));
            let spec = NodeSpec { kind: NodeKind::Session, grace: SESSION_GRACE };
            let waiter = node.spawn_with_epilogue(
                spec,
                move |node| async move { body.live(node).await },
                move |_ending| lost.tell_end(&lost.result(false, String::new(), &[])),
            );
            let canceller = waiter.canceller();
            let ends = waiter.map(move |end| {
                let result = end.output.unwrap_or_else(|| {
                    let why = end.ending.cancel.map_or_else(|| "lost".to_owned(), |reason| reason.to_string());
                    blank.result(false, why, &[])
                });
                (result.success, result)
            });
            Member { ends: ends.boxed(), canceller }
        })
    }

    /// The child session's life: an account, one run, an ending.
    async fn live(&self, node: NodeHandle) -> ChildResult {
        let result = match self.run(&node).await {
            Ok(outcome) => {
                let success = outcome.status.is_success();
                let text = if success || !outcome.text.is_empty() { outcome.text } else { outcome.status.to_string() };
                self.result(success, text, &outcome.source_anchors)
            }
            Err(why) => self.result(false, why, &[]),
        };
        self.tell_end(&result);
        result
    }

    async fn run(&self, node: &NodeHandle) -> Result<RunOutcome, String> {
        let agent = self.agent.clone().ok_or_else(|| format!("there is no agent named {}", self.task.agent))?;
        let account = self.parent.account.child(AccountId::from(self.session.as_str()), self.budget);
        let opened = self.kernel.ledger.open_account(&account).await;
        opened.map_err(|error| error.to_string())?;
        let run = run_id(&self.kernel);
        let mut scope = Scope::clone(&self.parent);
        scope.session = self.session.clone();
        scope.run = Some(run.clone());
        scope.registry = Arc::new(agent.tools_of(&self.parent.registry));
        scope.seen = Arc::new(SeenFiles::default());
        scope.policies.extend(agent.policy.clone());
        scope.account = account.clone();
        // Its own: they end with it.
        scope.background = scope.no_background(&self.kernel.effects.clock);
        if let Some(background) = &scope.background {
            background.hang_on(node, self.kernel.background_listener(&scope));
        }
        // Its calls are covered by the call that started it.
        scope.facts = None;
        let scope = Arc::new(scope);
        let end_told = EndTold::default();
        let limits = self.limits.clone();
        let plan = RunPlan { run, model: Arc::clone(&self.model), agent, limits, end_told: end_told.clone() };
        let facts = FactBook::in_memory();
        let asked = Fact::UserMessage { run: plan.run.clone(), text: self.task.prompt.clone(), bounds: plan.bounds() };
        facts.record(asked).await.map_err(|error| error.to_string())?;
        let kernel = Arc::clone(&self.kernel);
        let spec = NodeSpec { kind: NodeKind::Run, grace: SESSION_GRACE };
        let (lost_kernel, lost_scope) = (Arc::clone(&self.kernel), Arc::clone(&scope));
        let waiter = node.spawn_with_epilogue(
            spec,
            move |run| carry(kernel, scope, plan, run, facts),
            move |ending| tell_lost(&lost_kernel, &lost_scope, &end_told, ending),
        );
        let end = waiter.await;
        // An account that is not there any more needs no closing.
        drop(self.kernel.ledger.close_account(account.id().clone()).await);
        end.output.ok_or_else(|| RunStatus::lost(&end.ending).to_string())
    }

    /// Puts down in the parent's facts what becomes of its child.
    fn note(&self, fact: Fact) {
        if let Some(facts) = &self.parent.facts
            && let Err(error) = facts.append(fact)
        {
            tracing::warn!(%error, "a fact about a child run was not taken");
        }
    }

    fn tell_end(&self, result: &ChildResult) {
        self.note(Fact::ChildEnded { task: self.task_id.clone(), success: result.success });
        let end = result.output.floor_char_boundary(SUBAGENT_OUTPUT_BYTES_MAX);
        self.kernel.tell(
            &self.parent,
            EventKind::SubagentEnd {
                task_id: self.task_id.clone(),
                session_id: self.session.clone(),
                agent: self.task.agent.clone(),
                output: result.output[..end].to_owned(),
                success: result.success,
            },
        );
    }
}
