//! The two ways up that a tool may hold: calls to other tools, and child runs.
//!
//! The origin of what comes through here is set here: a tool cannot claim a better one than its own.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_actors::fan_out::{FanOutPlan, MemberEnd};
use toolwarden_actors::members::{Member, MemberStart, run_members};
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_tools::context::{
    ChildResults, ChildTask, Delegate, DelegateError, FanOutPolicy, Invoke, StartedTask, ToolCall,
};
use toolwarden_tools::declaration::{Capabilities, ToolDefinition};
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};

use crate::kernel::Kernel;
use crate::origin::Origin;
use crate::proposal::{Passage, Proposal};
use crate::scope::{ChildRuns, Scope};

/// Calls to other tools, each an invocation of its own under the caller's node.
pub(crate) struct NestedCalls {
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    node: NodeHandle,
    parent: InvocationId,
    origin: Origin,
    ancestry: Vec<ToolName>,
}

impl NestedCalls {
    pub(crate) fn new(
        kernel: &Arc<Kernel>,
        scope: &Arc<Scope>,
        caller: &Passage,
        builtin: bool,
        node: &NodeHandle,
    ) -> Self {
        let mut ancestry = caller.ancestry.clone();
        ancestry.push(caller.tool.clone());
        Self {
            kernel: Arc::clone(kernel),
            scope: Arc::clone(scope),
            node: node.clone(),
            parent: caller.id.clone(),
            origin: caller.origin.nested(builtin),
            ancestry,
        }
    }

    fn proposal(&self, call: ToolCall) -> Proposal {
        let id = self.kernel.invocation_id("nested", &call.tool);
        Proposal { parent: Some(self.parent.clone()), ..Proposal::new(id, self.origin, self.ancestry.clone(), call) }
    }
}

impl Invoke for NestedCalls {
    fn invoke_all(&self, calls: Vec<ToolCall>, width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
        let (kernel, scope) = (Arc::clone(&self.kernel), Arc::clone(&self.scope));
        let tools: Vec<ToolName> = calls.iter().map(|call| call.tool.clone()).collect();
        let proposals: Vec<Proposal> = calls.into_iter().map(|call| self.proposal(call)).collect();
        let spec = NodeSpec { kind: NodeKind::FanOut, grace: scope.limits.nesting_grace };
        let waiter = self.node.spawn(spec, move |node| async move {
            let members = proposals.into_iter().map(|proposal| member(&kernel, &scope, proposal)).collect();
            run_members(&node, FanOutPlan::all(width), members).await.ok()
        });
        Box::pin(async move {
            let end = waiter.await;
            let members = end.output.flatten().map(|end| end.members).unwrap_or_default();
            let mut outcomes: Vec<ToolOutcome> =
                members.into_iter().zip(&tools).map(|(member, tool)| member_outcome(member, tool)).collect();
            // A fan-out that was lost as a whole still owes every call its outcome.
            for tool in tools.iter().skip(outcomes.len()) {
                outcomes.push(interrupted(tool));
            }
            outcomes
        })
    }

    fn invoke(&self, call: ToolCall) -> BoxFuture<'_, ToolOutcome> {
        // No fan-out of one: the caller's own node is above the call.
        let invocation = self.kernel.invoke(&self.node, &self.scope, self.proposal(call));
        Box::pin(async move { Arc::unwrap_or_clone(invocation.await).into_outcome() })
    }

    fn capabilities(&self, call: &ToolCall) -> Option<Capabilities> {
        self.scope.registry.get(call.tool.as_str())?.capabilities(&call.arguments)
    }

    fn available(&self) -> Vec<ToolDefinition> {
        self.scope.offered().iter().cloned().collect()
    }

    fn has(&self, tool: &str) -> bool {
        self.scope.registry.get(tool).is_some()
    }
}

fn member(kernel: &Arc<Kernel>, scope: &Arc<Scope>, proposal: Proposal) -> MemberStart<ToolOutcome> {
    let (kernel, scope) = (Arc::clone(kernel), Arc::clone(scope));
    Box::new(move |node| {
        let invocation = kernel.invoke(node, &scope, proposal);
        let canceller = invocation.canceller();
        // Copied only when somebody else still has it: a reader of the events, or a hook.
        let ends = invocation.map(|result| (result.is_success(), Arc::unwrap_or_clone(result).into_outcome()));
        Member { ends: ends.boxed(), canceller }
    })
}

fn member_outcome(member: MemberEnd<ToolOutcome>, tool: &ToolName) -> ToolOutcome {
    match member {
        MemberEnd::Finished { result, .. } => result,
        MemberEnd::Crashed { message } => ToolOutcome::error(ToolErrorKind::Crashed, message),
        MemberEnd::NeverStarted { reason } => ToolOutcome::ended_early(tool.as_str(), &reason),
    }
}

fn interrupted(tool: &ToolName) -> ToolOutcome {
    ToolOutcome::error(ToolErrorKind::Cancelled { op: tool.to_string(), reason: None }, format!("{tool}: interrupted"))
}

/// Child runs, each a session of its own under the caller's node.
pub(crate) struct NestedRuns {
    children: Arc<dyn ChildRuns>,
    scope: Arc<Scope>,
    node: NodeHandle,
    invocation: InvocationId,
}

impl NestedRuns {
    pub(crate) fn new(children: &Arc<dyn ChildRuns>, scope: &Arc<Scope>, caller: &Passage, node: &NodeHandle) -> Self {
        let mut scope = Scope::clone(scope);
        scope.ancestry.clone_from(&caller.ancestry);
        scope.ancestry.push(caller.tool.clone());
        Self {
            children: Arc::clone(children),
            scope: Arc::new(scope),
            node: node.clone(),
            invocation: caller.id.clone(),
        }
    }
}

impl Delegate for NestedRuns {
    fn agents(&self) -> Vec<(String, String)> {
        self.children.agents()
    }

    fn delegate(
        &self,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'_, Result<ChildResults, DelegateError>> {
        self.children.delegate(&self.scope, &self.node, &self.invocation, tasks, policy)
    }

    fn background(&self, task: ChildTask) -> BoxFuture<'_, Result<StartedTask, DelegateError>> {
        self.children.background(&self.scope, &self.invocation, task)
    }
}
