//! Child runs: what the `task` tool starts. Each child is a session of its own: its own account carved out of its
//! parent's, its own memory of files, its parent's rules and never wider ones, and its own ending.
//!
//! A child that its call waits for is a member of that call's fan-out; one in the background hangs on the session and
//! begins once its turn stands ([`TaskBook`](crate::task_book::TaskBook)). Where the session is kept, each child is kept in
//! a session of its own, and a call that is made again after its process ended comes back to the children that it had
//! begun. What must stay true: whatever happens to a child it is told to have begun and ended once each, and the first
//! word about its end is the one that counts.

mod child;
mod form;
mod remote;

use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::fan_out::{FanOutPlan, MemberEnd};
use toolwarden_actors::members::{Member, MemberStart, run_members};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_tools::builtin::task::report::later;
use toolwarden_tools::context::{ChildResult, ChildResults, ChildTask, DelegateError, FanOutPolicy, StartedTask};
use toolwarden_tools::effects::dispatch::Dispatch;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::ids::{InvocationId, SessionId, TaskId};

use self::child::Child;
use crate::agent::{AgentOrigin, Agents};
use crate::facts::state::ChildEnd;
use crate::facts::{BackgroundStart, ChildPlace};
use crate::kernel::Kernel;
use crate::models::Model;
use crate::run::RunLimits;
use crate::scope::{ChildRuns, Scope};
use crate::session_span::SESSION_GRACE;

/// Most bytes of a child's answer that its ending event carries.
pub const SUBAGENT_OUTPUT_BYTES_MAX: usize = 4000;

/// What child runs work with.
pub struct Delegation {
    pub(crate) kernel: Arc<Kernel>,
    /// Who answers where the agent says nothing.
    pub(crate) model: Arc<dyn Model>,
    pub(crate) agents: Agents,
    pub(crate) limits: RunLimits,
    /// Bounds each child beside its parent's own budget.
    pub(crate) budget: BudgetLimits,
    /// Carries child runs somewhere else; none for the parent's own tree.
    pub(crate) dispatch: Option<Arc<dyn Dispatch>>,
}

impl Delegation {
    fn child(self: &Arc<Self>, parent: &Arc<Scope>, invocation: &InvocationId, task: ChildTask) -> Child {
        let task_id = TaskId::from(format!("task-{}", hex_id(&*self.kernel.effects.entropy)));
        self.known_child(parent, invocation, task, task_id)
    }

    fn known_child(
        self: &Arc<Self>,
        parent: &Arc<Scope>,
        invocation: &InvocationId,
        task: ChildTask,
        task_id: TaskId,
    ) -> Child {
        Child {
            delegation: Arc::clone(self),
            parent: Arc::clone(parent),
            session: SessionId::from(format!("task-run-{task_id}")),
            agent: self.agents.get(&task.agent).cloned(),
            invocation: invocation.clone(),
            background: false,
            place: None,
            known: None,
            used: OnceLock::new(),
            runs: OnceLock::new(),
            task,
            task_id,
        }
    }

    /// The children of a call: those that it had begun before its process ended, and new ones in the other places.
    fn children(self: &Arc<Self>, parent: &Arc<Scope>, invocation: &InvocationId, tasks: Vec<ChildTask>) -> Vec<Child> {
        let call = parent.facts.as_ref().and_then(|facts| facts.call_of(invocation));
        let at = |(index, task)| {
            let place = call.clone().map(|call| ChildPlace { call, index });
            let known = parent.facts.as_ref().zip(place.as_ref()).and_then(|(facts, place)| {
                facts.look(|state| state.child_at(place).map(|(task, child)| (task.clone(), child.end)))
            });
            match known {
                Some((task_id, end)) => {
                    Child { place, known: Some(end), ..self.known_child(parent, invocation, task, task_id) }
                }
                None => Child { place, ..self.child(parent, invocation, task) },
            }
        };
        tasks.into_iter().enumerate().map(at).collect()
    }

    /// Lets a background task live under the session's node, from when its gate opens.
    fn let_live(child: Arc<Child>, opens: tokio::sync::oneshot::Receiver<()>) {
        let book = Arc::clone(&child.parent.tasks);
        let Some(node) = book.node() else {
            child.settle(child.failed("its session has not begun".to_owned()));
            return;
        };
        let (body, lost) = (Arc::clone(&child), Arc::clone(&child));
        let spec = NodeSpec { kind: NodeKind::Session, grace: SESSION_GRACE };
        let waiter = node.spawn_with_epilogue(
            spec,
            move |node| async move {
                let begins = tokio::select! {
                    biased;
                    _ = node.cancellation().cancelled() => false,
                    opened = opens => opened.is_ok(),
                };
                match begins {
                    true => body.live(node).await,
                    false => body.settle(body.failed(child::why(node.cancellation().reason()))),
                };
            },
            move |ending| {
                lost.settle(lost.failed(child::why(ending.cancel.as_ref())));
            },
        );
        book.reach(&child.task_id, waiter.canceller());
        waiter.detach();
    }

    async fn start_later(
        self: Arc<Self>,
        scope: Arc<Scope>,
        invocation: InvocationId,
        task: ChildTask,
    ) -> Result<StartedTask, DelegateError> {
        if scope.session != scope.root_session {
            return Err(DelegateError::Nested);
        }
        let book = &scope.tasks;
        book.count_in(1)?;
        let child = Child { background: true, ..self.child(&scope, &invocation, task) };
        let opens = book.register(child.listed(), scope.run.clone()).inspect_err(|_| book.count_out(1))?;
        let child = Arc::new(child);
        let (kept, whole) = child.task_to_keep(book.facts());
        let start = BackgroundStart { invocation, run: scope.run.clone(), task: kept, whole };
        let unheard = Unheard(Some(Arc::clone(&child)));
        // Before anybody hears of it.
        let recorded = book.facts().record(child.started_fact(Some(Box::new(start)))).await;
        recorded.map_err(|error| DelegateError::NotKept(error.to_string()))?;
        unheard.heard_of();
        child.tell_start();
        let of_workspace = child.agent.as_ref().is_some_and(|agent| matches!(agent.origin, AgentOrigin::Workspace(_)));
        let started = StartedTask { task: child.task_id.clone(), session: child.session.clone(), of_workspace };
        Self::let_live(child, opens);
        Ok(started)
    }
}

/// A background task that nobody has heard of yet: taken off again when its call goes away.
struct Unheard(Option<Arc<Child>>);

impl Unheard {
    fn heard_of(mut self) {
        self.0 = None;
    }
}

impl Drop for Unheard {
    fn drop(&mut self) {
        if let Some(child) = self.0.take() {
            child.withdraw();
        }
    }
}

/// The child runs of one session; what its scope holds.
pub(crate) struct Delegating(pub(crate) Arc<Delegation>);

impl ChildRuns for Delegating {
    fn agents(&self) -> Vec<(String, String)> {
        self.0.agents.iter().map(|agent| (agent.name.clone(), agent.purpose.clone())).collect()
    }

    fn delegate(
        &self,
        scope: &Arc<Scope>,
        node: &NodeHandle,
        invocation: &InvocationId,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'static, Result<ChildResults, DelegateError>> {
        let children = self.0.children(scope, invocation, tasks);
        if let Err(error) = scope.tasks.count_in(children.iter().filter(|child| child.known.is_none()).count()) {
            return std::future::ready(Err(error)).boxed();
        }
        let children: Vec<Arc<Child>> = children.into_iter().map(Arc::new).collect();
        // What stands for a child that gave nothing back.
        let blanks: Vec<ChildResult> = children.iter().map(|child| child.failed(String::new())).collect();
        let plan = FanOutPlan { width: policy.width.min(scope.tasks.width()), ..FanOutPlan::from(policy) };
        let spec = NodeSpec { kind: NodeKind::FanOut, grace: SESSION_GRACE * 2 };
        let waiter = node.spawn(spec, move |node| async move {
            let starts = children.into_iter().map(member).collect();
            run_members(&node, plan, starts).await.ok()
        });
        Box::pin(async move {
            let end = waiter.await.output.flatten();
            let (timed_out, returned_early) =
                end.as_ref().map_or((false, false), |end| (end.timed_out(), end.returned_early()));
            let mut members = end.map(|end| end.members).unwrap_or_default().into_iter();
            let results = blanks.into_iter().map(|blank| match members.next() {
                Some(MemberEnd::Finished { result, .. }) => Arc::unwrap_or_clone(result),
                Some(MemberEnd::Crashed { message }) => ChildResult { output: message, ..blank },
                Some(MemberEnd::NeverStarted { reason }) => {
                    ChildResult { output: format!("not started: {reason}"), ..blank }
                }
                None => ChildResult { output: "interrupted before it ended".to_owned(), ..blank },
            });
            Ok(ChildResults { results: results.collect(), timed_out, returned_early })
        })
    }

    fn background(
        &self,
        scope: &Arc<Scope>,
        invocation: &InvocationId,
        task: ChildTask,
    ) -> BoxFuture<'static, Result<StartedTask, DelegateError>> {
        Box::pin(Arc::clone(&self.0).start_later(Arc::clone(scope), invocation.clone(), task))
    }

    fn come_back(&self) -> bool {
        // Somebody else's children are not found again in this store.
        self.0.dispatch.is_none()
    }

    fn go_on(&self, scope: &Arc<Scope>) {
        let book = &scope.tasks;
        let open: Vec<(TaskId, BackgroundStart)> = book.facts().look(|state| {
            let going_on = state.tasks_to_go_on();
            going_on.filter_map(|(task, child)| Some((task.clone(), *child.background.clone()?))).collect()
        });
        for (task_id, start) in open {
            let child = self.0.known_child(scope, &start.invocation, start.task, task_id);
            // It was counted when it was asked for.
            let child = Arc::new(Child { background: true, known: Some(ChildEnd::Open), ..child });
            match book.register(child.listed(), None) {
                Ok(opens) => {
                    child.tell_start();
                    Delegation::let_live(child, opens);
                }
                Err(error) => {
                    let report = Some(later(&child.failed(error.to_string()), &child.task.description, false));
                    child.note(book.facts(), child.ended_fact(false, report));
                }
            }
        }
    }
}

/// A child as a member of its call's fan-out.
fn member(child: Arc<Child>) -> MemberStart<Arc<ChildResult>> {
    Box::new(move |node| {
        child.parent.tasks.list(child.listed());
        // Nothing of it is done before it is known that it began.
        let begun = match &child.parent.facts {
            Some(facts) if child.known.is_none() => Some(facts.append(child.started_fact(None))),
            _ => None,
        };
        child.tell_start();
        let (body, lost, blank) = (Arc::clone(&child), Arc::clone(&child), Arc::clone(&child));
        let spec = NodeSpec { kind: NodeKind::Session, grace: SESSION_GRACE };
        let waiter = node.spawn_with_epilogue(
            spec,
            move |node| async move {
                let kept = match begun {
                    Some(Ok(recorded)) => recorded.durable().await,
                    Some(Err(error)) => Err(error),
                    None => Ok(()),
                };
                match kept {
                    Ok(()) => body.live(node).await,
                    Err(error) => {
                        body.settle(body.failed(format!("it was not begun, because it cannot be kept: {error}")))
                    }
                }
            },
            move |ending| {
                lost.settle(lost.failed(child::why(ending.cancel.as_ref())));
            },
        );
        let canceller = waiter.canceller();
        child.parent.tasks.reach(&child.task_id, canceller.clone());
        let ends = waiter.map(move |end| {
            let lost = || Arc::new(blank.failed(child::why(end.ending.cancel.as_ref())));
            let result = end.output.unwrap_or_else(lost);
            (result.success, result)
        });
        Member { ends: ends.boxed(), canceller }
    })
}
