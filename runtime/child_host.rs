//! The other side of the dispatch port: carries out child runs that another process asks for, each as a session of its own
//! in this runtime.
//!
//! What must stay true: a contract's policies hold beside those of this host, and neither widens the other; the same key is
//! the same work, however often it is asked for; whoever asked for it first ends it by going away, whoever joined it ends its
//! own wait alone; and when the host stops, every session that it opened has ended.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::effects::dispatch::socket::{DispatchListener, Incoming};
use toolwarden_tools::effects::dispatch::{CONTRACT_VERSION, ChildAnswer, ChildContract, ContractUse};
use toolwarden_tools::ids::TaskId;

use crate::agent::{Agent, AgentOrigin, AgentSteps, Agents};
use crate::embedding::SessionBuilder;
use crate::policy::PermissionPolicy;
use crate::run::RunLimits;
use crate::scope::Confirming;
use crate::session::{CancelTarget, Session};

/// Most contracts that are carried out at a time; a further one is refused.
pub const CONTRACTS_MAX: usize = 256;
/// Most answers that are kept for whoever asks for the same work again.
pub const KEPT_ANSWERS_MAX: usize = 1024;

/// Carries out child runs for other processes; clones share it.
#[derive(Clone)]
pub struct ChildHost {
    shared: Arc<Shared>,
}

struct Shared {
    begin: Box<dyn Fn() -> SessionBuilder + Send + Sync>,
    works: Mutex<Works>,
}

#[derive(Default)]
struct Works {
    answers: BTreeMap<TaskId, watch::Receiver<Option<ChildAnswer>>>,
    /// In the order they were taken.
    order: VecDeque<TaskId>,
    under_way: usize,
}

/// Counts a work out when it goes, however that is.
struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.works().under_way -= 1;
    }
}

impl Shared {
    fn works(&self) -> MutexGuard<'_, Works> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChildHost {
    /// Child runs are sessions that begin like this: where they work, who answers, and what this host allows them. A
    /// policy that is set there holds beside those of the contract.
    pub fn new(begin: impl Fn() -> SessionBuilder + Send + Sync + 'static) -> Self {
        Self { shared: Arc::new(Shared { begin: Box::new(begin), works: Mutex::default() }) }
    }

    /// Carries out what comes to a listener until `stop` is given, and returns when all of it has ended.
    ///
    /// # Errors
    /// What the system says about the listener.
    pub async fn serve(&self, listener: DispatchListener, stop: &Cancellation) -> io::Result<()> {
        let mut carried = JoinSet::new();
        let served = loop {
            tokio::select! {
                biased;
                _ = stop.cancelled() => break Ok(()),
                Some(_) = carried.join_next(), if !carried.is_empty() => {}
                incoming = listener.next() => match incoming {
                    Ok(incoming) => {
                        carried.spawn(self.clone().serve_one(incoming, stop.clone()));
                    }
                    Err(error) => break Err(error),
                },
            }
        };
        drop(listener);
        if served.is_err() {
            stop.cancel(CancelReason::Shutdown);
        }
        while carried.join_next().await.is_some() {}
        served
    }

    async fn serve_one(self, incoming: Incoming, stop: Cancellation) {
        let (contract, taken) = match incoming.contract().await {
            Ok(read) => read,
            Err(error) => return tracing::debug!(%error, "no contract came"),
        };
        if let Err(why) = check(&contract) {
            return taken.refuse(&why).await;
        }
        let key = contract.idempotency_key.clone();
        let Some(work) = self.begin(contract, &stop) else {
            return taken.refuse(&format!("{CONTRACTS_MAX} child runs are carried out here already")).await;
        };
        let (cancel, own, mut ended) = (work.cancel.clone(), work.own, work.answer.clone());
        if let Err(error) = taken.answer(&key, &cancel, work.answer()).await {
            tracing::debug!(%error, task = %key, "the answer to a contract did not come through");
            if own {
                // Nobody waits for it any more, but the host does. Work that is lost has ended as well.
                cancel.cancel(CancelReason::CallerGone);
                drop(ended.wait_for(Option::is_some).await);
            }
        }
    }

    /// Begins the work of a contract, or joins that which is under way or done; none when too much is.
    fn begin(&self, contract: ChildContract, stop: &Cancellation) -> Option<Joined> {
        let mut works = self.shared.works();
        if let Some(answer) = works.answers.get(&contract.idempotency_key) {
            // Whoever asks again ends nothing but its own wait.
            return Some(Joined { answer: answer.clone(), cancel: Cancellation::new(), own: false });
        }
        if works.under_way >= CONTRACTS_MAX {
            return None;
        }
        works.under_way += 1;
        let under_way = UnderWay(Arc::clone(&self.shared));
        let (tell, answer) = watch::channel(None);
        works.answers.insert(contract.idempotency_key.clone(), answer.clone());
        works.order.push_back(contract.idempotency_key.clone());
        if works.order.len() > KEPT_ANSWERS_MAX + CONTRACTS_MAX {
            let oldest = works.order.pop_front();
            oldest.and_then(|oldest| works.answers.remove(&oldest));
        }
        drop(works);
        let cancel = Cancellation::new();
        let work = carry_out(Arc::clone(&self.shared), contract, cancel.clone(), stop.clone());
        tokio::spawn(async move {
            let answer = work.await;
            tell.send_replace(Some(answer));
            drop(under_way);
        });
        Some(Joined { answer, cancel, own: true })
    }
}

/// Work that somebody waits for.
struct Joined {
    answer: watch::Receiver<Option<ChildAnswer>>,
    cancel: Cancellation,
    /// Whether this is who asked for it first.
    own: bool,
}

impl Joined {
    async fn answer(mut self) -> ChildAnswer {
        let lost = || failed("the child run was lost to a fault of its host".to_owned());
        let answered = async { self.answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone()) };
        if self.own {
            return answered.await.unwrap_or_else(lost);
        }
        tokio::select! {
            biased;
            answer = answered => answer.unwrap_or_else(lost),
            reason = self.cancel.cancelled() => failed(reason.to_string()),
        }
    }
}

fn check(contract: &ChildContract) -> Result<(), String> {
    if contract.version != CONTRACT_VERSION {
        return Err(format!(
            "the contract has version {}, and version {CONTRACT_VERSION} is known here; use the same toolwarden on both sides",
            contract.version
        ));
    }
    if contract.policies.is_empty() {
        return Err("the contract names no policy, so nothing is allowed".to_owned());
    }
    Ok(())
}

/// One child run, as a session of its own.
async fn carry_out(
    shared: Arc<Shared>,
    contract: ChildContract,
    cancel: Cancellation,
    stop: Cancellation,
) -> ChildAnswer {
    let session = match open(&shared, &contract).await {
        Ok(session) => session,
        Err(why) => return failed(why),
    };
    let run = session.run(&contract.prompt);
    let mut run = std::pin::pin!(run);
    let outcome = tokio::select! {
        biased;
        outcome = &mut run => outcome,
        reason = async {
            tokio::select! {
                biased;
                reason = cancel.cancelled() => reason,
                reason = stop.cancelled() => reason,
            }
        } => {
            session.cancel(&CancelTarget::Everything, &reason);
            run.await
        }
    };
    let spent = session.budget().await.map(|budget| budget.spent).unwrap_or_default();
    session.close().await;
    let used = ContractUse {
        calls: spent.calls,
        input_tokens: spent.input_tokens,
        output_tokens: spent.output_tokens,
        cost_microusd: spent.cost_microusd,
        output_bytes: spent.output_bytes,
    };
    match outcome {
        Ok(outcome) => {
            let success = outcome.status.is_success();
            let output = match success || !outcome.text.is_empty() {
                true => outcome.text,
                false => outcome.status.to_string(),
            };
            ChildAnswer { success, output, source_anchors: outcome.source_anchors, used }
        }
        Err(error) => ChildAnswer { used, ..failed(error.to_string()) },
    }
}

async fn open(shared: &Shared, contract: &ChildContract) -> Result<Session, String> {
    let policies = contract.policies.iter().map(|policy| serde_json::from_value(policy.clone()));
    let policies: Result<Vec<PermissionPolicy>, _> = policies.collect();
    let policies = policies.map_err(|error| format!("a policy of the contract cannot be read: {error}"))?;
    let agent = Agent {
        name: contract.agent.name.clone(),
        purpose: contract.agent.purpose.clone(),
        instructions: contract.agent.instructions.clone(),
        tools: Some(contract.agent.tools.clone()),
        policy: None,
        steps: AgentSteps::AtMost(contract.agent.rounds_max),
        timeout: None,
        budget: BudgetLimits::default(),
        model: None,
        origin: AgentOrigin::BuiltIn,
    };
    let budget = contract.budget;
    let begun = (shared.begin)()
        .id(contract.session.clone())
        .agent(&agent.name)
        .agents(Agents::only(agent))
        .all_policies(policies)
        .confirming(Confirming::Unavailable)
        .run_limits(RunLimits { timeout: contract.timeout_ms.map(Duration::from_millis), ..RunLimits::default() })
        .budget(BudgetLimits {
            calls: budget.calls,
            input_tokens: budget.input_tokens,
            output_tokens: budget.output_tokens,
            cost_microusd: budget.cost_microusd,
            output_bytes: budget.output_bytes,
            ..BudgetLimits::default()
        });
    begun.open().await.map_err(|error| error.to_string())
}

fn failed(output: String) -> ChildAnswer {
    ChildAnswer { success: false, output, source_anchors: Vec::new(), used: ContractUse::default() }
}
