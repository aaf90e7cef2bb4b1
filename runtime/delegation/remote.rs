//! A child run that is carried somewhere else: its contract, its deadline, and what it used.
//!
//! What must stay true: the contract holds no more than the child may do here; what cannot be written into it (hooks of
//! the host, an active question) is refused and never left out; and what it may use is set aside in the parent's budget
//! before it is sent, and counts as used unless the other side says what was, or it is known that nothing was.

use serde_json::Value;
use toolwarden_actors::accounts::LedgerError;
use toolwarden_actors::budget::{Amount, BudgetLimits};
use toolwarden_actors::budget_ledger::Reservation;
use toolwarden_actors::node::NodeHandle;
use toolwarden_tools::effects::dispatch::{
    CONTRACT_VERSION, ChildContract, ContractAgent, ContractBudget, Dispatch, DispatchError,
};

use super::child::{Child, Work, why};
use crate::agent::Agent;

/// What was set aside for a contract that is sent. What it used is unknown for as long as nobody says it, so all of it
/// counts, also when whoever waits for the answer is dropped.
struct SetAside<'a> {
    child: &'a Child,
    reservation: Option<Reservation>,
    aside: Amount,
}

impl SetAside<'_> {
    /// The other side said what was used.
    fn settle(mut self, used: Amount) {
        self.count(used);
    }

    /// Nothing was begun.
    fn release(mut self) {
        drop(self.reservation.take());
    }

    fn count(&mut self, used: Amount) {
        if let Some(reservation) = self.reservation.take() {
            // It is counted once.
            let _ = self.child.used.set(used);
            reservation.settle(used);
        }
    }
}

impl Drop for SetAside<'_> {
    fn drop(&mut self) {
        self.count(self.aside);
    }
}

impl Child {
    /// Has it carried out by whoever takes contracts.
    pub(super) async fn carry_elsewhere(&self, node: &NodeHandle, agent: &Agent, dispatch: &dyn Dispatch) -> Work {
        if !self.parent.hooks.is_empty() {
            let why =
                "this session has hooks, which cannot be asked somewhere else; run child runs here, or leave them out";
            return Work::failed(why.to_owned());
        }
        if let Some(reason) = node.cancellation().reason() {
            // Not even sent: then nothing of it was used.
            return Work::failed(why(Some(reason)));
        }
        let budget = match self.budget_left(agent).await {
            Ok(budget) => budget,
            Err(error) => return Work::failed(error.to_string()),
        };
        let contract = match self.contract(agent, budget) {
            Ok(contract) => contract,
            Err(error) => return Work::failed(format!("its contract cannot be written: {error}")),
        };
        let aside = Amount {
            calls: budget.calls.unwrap_or(0),
            input_tokens: budget.input_tokens.unwrap_or(0),
            output_tokens: budget.output_tokens.unwrap_or(0),
            cost_microusd: budget.cost_microusd.unwrap_or(0),
            output_bytes: budget.output_bytes.unwrap_or(0),
        };
        let reservation = match self.delegation.kernel.ledger.reserve(&self.parent.account, aside).await {
            Ok(reservation) => reservation,
            Err(error) => return Work::failed(error.to_string()),
        };
        let aside = SetAside { child: self, reservation: Some(reservation), aside };
        let _limit = agent.timeout.map(|timeout| node.limit(timeout));
        match dispatch.carry_out(contract, node.cancellation().clone()).await {
            Ok(answer) => {
                let used = answer.used;
                aside.settle(Amount {
                    calls: used.calls,
                    input_tokens: used.input_tokens,
                    output_tokens: used.output_tokens,
                    cost_microusd: used.cost_microusd,
                    output_bytes: used.output_bytes,
                });
                let success = answer.success;
                Work { success, output: answer.output, anchors: answer.source_anchors, structured: None }
            }
            Err(error) => {
                match &error {
                    // It was not begun.
                    DispatchError::Unreachable { .. }
                    | DispatchError::Refused { .. }
                    | DispatchError::TooLarge { .. } => aside.release(),
                    DispatchError::PeerGone { .. }
                    | DispatchError::Malformed { .. }
                    | DispatchError::Cancelled { .. } => drop(aside),
                }
                match error {
                    DispatchError::Cancelled { reason } => Work::failed(why(Some(&reason))),
                    error => Work::failed(error.to_string()),
                }
            }
        }
    }

    /// What it may use: what is set for it, and no more than its parent has left; where nothing is set and its parent has a
    /// limit, its share of that beside its siblings.
    async fn budget_left(&self, agent: &Agent) -> Result<BudgetLimits, LedgerError> {
        let wanted = self.budget(agent);
        let parent = self.delegation.kernel.ledger.status(self.parent.account.id().clone()).await?;
        let gone = parent.spent.saturating_add(parent.reserved);
        let siblings = u64::try_from(self.parent.tasks.width()).unwrap_or(1).max(1);
        let left =
            |limit: Option<u64>, gone: u64, wanted: Option<u64>| match limit.map(|limit| limit.saturating_sub(gone)) {
                Some(left) => Some(wanted.map_or(left.div_ceil(siblings), |wanted| wanted.min(left))),
                None => wanted,
            };
        Ok(BudgetLimits {
            calls: left(parent.limits.calls, gone.calls, wanted.calls),
            input_tokens: left(parent.limits.input_tokens, gone.input_tokens, wanted.input_tokens),
            output_tokens: left(parent.limits.output_tokens, gone.output_tokens, wanted.output_tokens),
            cost_microusd: left(parent.limits.cost_microusd, gone.cost_microusd, wanted.cost_microusd),
            output_bytes: left(parent.limits.output_bytes, gone.output_bytes, wanted.output_bytes),
            soft_percent: wanted.soft_percent,
        })
    }

    fn contract(&self, agent: &Agent, budget: BudgetLimits) -> Result<ChildContract, serde_json::Error> {
        let registry = agent.tools_of(&self.parent.registry);
        let skill = self.parent.skill.iter().map(|skill| serde_json::to_value(skill.policy()));
        let policies = self.parent.policies.iter().chain(agent.policy.iter());
        let policies = policies.map(|policy| serde_json::to_value(policy.source())).chain(skill);
        Ok(ChildContract {
            version: CONTRACT_VERSION,
            idempotency_key: self.task_id.clone(),
            session: self.session.clone(),
            parent_session: self.parent.session.clone(),
            agent: ContractAgent {
                name: agent.name.clone(),
                purpose: agent.purpose.clone(),
                instructions: agent.instructions.clone(),
                // Nothing that starts more work of its own: there it would be nobody's child.
                tools: registry.names().filter(|name| name.as_str() != "task").cloned().collect(),
                rounds_max: self.rounds(agent),
            },
            prompt: self.prompt(),
            policies: policies.collect::<Result<Vec<Value>, _>>()?,
            budget: ContractBudget {
                calls: budget.calls,
                input_tokens: budget.input_tokens,
                output_tokens: budget.output_tokens,
                cost_microusd: budget.cost_microusd,
                output_bytes: budget.output_bytes,
            },
            timeout_ms: agent.timeout.and_then(|timeout| u64::try_from(timeout.as_millis()).ok()),
        })
    }
}
