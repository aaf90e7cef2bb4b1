//! The other side of the dispatch port: carries out child runs that another process asks for, each as a session of its own
//! in this runtime.
//!
//! What must stay true: a contract's policies hold beside those of this host, and neither widens the other; the same key is
//! the same work, however often it is asked for; whoever goes away ends its own wait alone, and the last who waits ends the
//! work; what was ended so is nobody's answer later, so that whoever asks again has it done; and when the host stops, every
//! session that it opened has ended.

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
use crate::embedding::session_builder::SessionBuilder;
use crate::policy::PermissionPolicy;
use crate::run::RunLimits;
use crate::scope::Confirming;
use crate::session::{CancelTarget, Session};

/// Most contracts that are carried out at a time; a further one is refused.
pub const CONTRACTS_MAX: usize = 256;
/// Most answers that are kept for whoever asks for the same work again.
pub const KEPT_ANSWERS_MAX: usize = 1024;
/// Most connections at a time; a further one waits in the socket.
pub const CONNECTIONS_MAX: usize = 1024;

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
    by_key: BTreeMap<TaskId, Work>,
    /// Those whose answer is kept, the oldest in front.
    answered: VecDeque<(TaskId, u64)>,
    under_way: usize,
    last: u64,
}

/// The work of one contract, under way or done.
struct Work {
    /// Tells it from another one of the same key.
    number: u64,
    answer: watch::Receiver<Option<ChildAnswer>>,
    cancel: Cancellation,
    waiters: usize,
    /// Whether it was told to end: what it comes to is not its answer.
    is_ending: bool,
}

/// What becomes of somebody who asks for work.
enum Asked {
    /// It is begun, or under way or done already.
    Joined(Joined),
    /// The same work was told to end, and has not ended yet.
    Ending(watch::Receiver<Option<ChildAnswer>>),
    /// Too much is under way.
    Full,
}

impl Works {
    /// Counts one out who waits; true when nobody is left and the work was told to end.
    fn leave(&mut self, key: &TaskId, number: u64, reason: CancelReason) -> bool {
        let Some(work) = self.by_key.get_mut(key).filter(|work| work.number == number) else { return false };
        work.waiters = work.waiters.saturating_sub(1);
        if work.waiters > 0 || work.answer.borrow().is_some() {
            return false;
        }
        work.is_ending = true;
        work.cancel.cancel(reason);
        true
    }

    /// A work has ended: its answer is kept for a while, unless it was told to end.
    fn ended(&mut self, key: &TaskId, number: u64) {
        self.under_way -= 1;
        match self.by_key.get(key).filter(|work| work.number == number) {
            Some(work) if work.is_ending => drop(self.by_key.remove(key)),
            Some(_) => self.answered.push_back((key.clone(), number)),
            None => {}
        }
        while self.answered.len() > KEPT_ANSWERS_MAX {
            let Some((oldest, number)) = self.answered.pop_front() else { return };
            if self.by_key.get(&oldest).is_some_and(|work| work.number == number) {
                self.by_key.remove(&oldest);
            }
        }
    }
}

/// Tells the end of a work however it ends; a work that is lost has no answer.
struct UnderWay {
    shared: Arc<Shared>,
    key: TaskId,
    number: u64,
    tell: watch::Sender<Option<ChildAnswer>>,
    answer: Option<ChildAnswer>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let answer =
            self.answer.take().unwrap_or_else(|| failed("the child run was lost to a fault of its host".to_owned()));
        let mut works = self.shared.works();
        self.tell.send_replace(Some(answer));
        works.ended(&self.key, self.number);
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
                incoming = listener.next(), if carried.len() < CONNECTIONS_MAX => match incoming {
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
        let Some(work) = self.begin(contract, &stop).await else {
            return taken.refuse(&format!("{CONTRACTS_MAX} child runs are carried out here already")).await;
        };
        let (key, number, cancel) = (work.key.clone(), work.number, work.cancel.clone());
        if let Err(error) = taken.answer(&key, &cancel, work.answer()).await {
            tracing::debug!(%error, task = %key, "the answer to a contract did not come through");
        }
        // Where nobody waits for the work any more, the host does.
        let ending = self
            .shared
            .works()
            .by_key
            .get(&key)
            .filter(|work| work.number == number && work.is_ending)
            .map(|work| work.answer.clone());
        if let Some(mut ending) = ending {
            // Work that is lost has ended as well.
            drop(ending.wait_for(Option::is_some).await);
        }
    }

    /// Begins the work of a contract, or joins that which is under way or done; none when too much is.
    async fn begin(&self, contract: ChildContract, stop: &Cancellation) -> Option<Joined> {
        loop {
            match self.ask(&contract, stop) {
                Asked::Joined(joined) => return Some(joined),
                Asked::Full => return None,
                Asked::Ending(mut ended) => {
                    // Two at a time would be more of the same work.
                    drop(ended.wait_for(Option::is_some).await);
                }
            }
        }
    }

    fn ask(&self, contract: &ChildContract, stop: &Cancellation) -> Asked {
        let mut works = self.shared.works();
        let key = contract.idempotency_key.clone();
        if let Some(work) = works.by_key.get_mut(&key) {
            if work.is_ending {
                return Asked::Ending(work.answer.clone());
            }
            work.waiters += 1;
            return Asked::Joined(Joined::new(&self.shared, key, work));
        }
        if works.under_way >= CONTRACTS_MAX {
            return Asked::Full;
        }
        works.under_way += 1;
        works.last += 1;
        let number = works.last;
        let (tell, answer) = watch::channel(None);
        let cancel = Cancellation::new();
        let work = Work { number, answer, cancel: cancel.clone(), waiters: 1, is_ending: false };
        let joined = Joined::new(&self.shared, key.clone(), &work);
        works.by_key.insert(key.clone(), work);
        drop(works);
        let shared = Arc::clone(&self.shared);
        let under_way = UnderWay { shared: Arc::clone(&shared), key, number, tell, answer: None };
        let work = carry_out(shared, contract.clone(), cancel, stop.clone());
        tokio::spawn(async move {
            let mut under_way = under_way;
            under_way.answer = Some(work.await);
        });
        Asked::Joined(joined)
    }
}

/// Somebody who waits for work; counted out when it goes, however that is.
struct Joined {
    shared: Arc<Shared>,
    key: TaskId,
    number: u64,
    answer: watch::Receiver<Option<ChildAnswer>>,
    /// Given when this one is to wait no longer.
    cancel: Cancellation,
    is_counted: bool,
}

impl Joined {
    fn new(shared: &Arc<Shared>, key: TaskId, work: &Work) -> Self {
        let (number, answer) = (work.number, work.answer.clone());
        Self { shared: Arc::clone(shared), key, number, answer, cancel: Cancellation::new(), is_counted: true }
    }

    async fn answer(mut self) -> ChildAnswer {
        let cancel = self.cancel.clone();
        tokio::select! {
            biased;
            answer = self.ended() => answer,
            reason = cancel.cancelled() => match self.leave(reason.clone()) {
                // Nobody else waits: it ends, and says what it used.
                true => self.ended().await,
                false => failed(reason.to_string()),
            },
        }
    }

    async fn ended(&mut self) -> ChildAnswer {
        let ended = self.answer.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone());
        ended.unwrap_or_else(|| failed("the child run was lost to a fault of its host".to_owned()))
    }

    /// Waits no longer; true when nobody else does.
    fn leave(&mut self, reason: CancelReason) -> bool {
        std::mem::take(&mut self.is_counted) && self.shared.works().leave(&self.key, self.number, reason)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.leave(CancelReason::CallerGone);
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
