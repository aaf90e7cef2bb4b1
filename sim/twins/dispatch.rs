//! The twin of the dispatch port: a host somewhere else that carries out child runs by their contracts.
//!
//! It does no work of its own; what it says that it used is drawn. The same contract is the same work: asked again it gives
//! the answer that it gave before.
//!
//! Faults: nobody takes the contract; it is refused; the answer comes very late; the other side dies after it has taken it;
//! it says what is no answer; it does not hear a cancel and never answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::sleep;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::dispatch::{
    ChildAnswer, ChildContract, ContractBudget, ContractUse, Dispatch, DispatchError,
};
use toolwarden_tools::ids::TaskId;

use crate::fate::Fate;
use crate::sight::Sight;

/// Spans that a contract usually takes, in milliseconds.
const WORK_MS: [u64; 4] = [2, 30, 400, 5_000];
/// How long one takes that is very late.
const LATE: Duration = Duration::from_secs(900);
/// How long it is until it shows that the other side is dead.
const DIES: Duration = Duration::from_secs(10);
/// How long somebody is silent who never answers.
const FOR_EVER: Duration = Duration::from_secs(3_600);
/// What a contract uses at the most, of each resource.
const USED_MAX: u32 = 500;

/// Carries out contracts; clones share what was answered.
#[derive(Clone)]
pub struct PretendedDispatch {
    fate: Fate,
    faulty: bool,
    answers: Arc<Mutex<BTreeMap<TaskId, ChildAnswer>>>,
}

/// What goes wrong with one contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Unreachable,
    Refused,
    Late,
    Dies,
    Nonsense,
    Deaf,
}

/// All of them, in the order of their numbers.
const FAULTS: [Fault; 6] = [Fault::Unreachable, Fault::Refused, Fault::Late, Fault::Dies, Fault::Nonsense, Fault::Deaf];

/// A contract that was taken, until it is known what it used.
struct Taken<'a> {
    fate: &'a Fate,
    key: &'a TaskId,
    is_told: bool,
}

impl Taken<'_> {
    /// The other side says what it used; nothing, when nobody will ever know.
    fn tell(&mut self, used: Option<ContractUse>) {
        self.is_told = true;
        self.fate.see(&Sight::Delivered { key: self.key, used });
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            // Whoever waited was dropped.
            self.tell(None);
        }
    }
}

impl PretendedDispatch {
    /// The other side of this world; a `faulty` one has all of its faults.
    pub fn new(fate: Fate, faulty: bool) -> Self {
        Self { fate, faulty, answers: Arc::default() }
    }

    fn fault(&self) -> Option<Fault> {
        let kinds = u32::try_from(FAULTS.len()).unwrap_or(u32::MAX);
        let fault = if self.faulty { FAULTS.get(self.fate.rare(kinds)? as usize).copied() } else { None };
        if let Some(fault) = fault {
            self.fate.met(match fault {
                Fault::Unreachable => "a host elsewhere that is not there",
                Fault::Refused => "a contract that is refused",
                Fault::Late => "an answer from elsewhere that is very late",
                Fault::Dies => "a host elsewhere that dies",
                Fault::Nonsense => "a host elsewhere that talks nonsense",
                Fault::Deaf => "a host elsewhere that does not hear",
            });
        }
        fault
    }

    /// What a contract uses, never more than it may.
    fn used(&self, budget: ContractBudget) -> ContractUse {
        let drawn = |limit: Option<u64>| {
            let drawn = u64::from(self.fate.below(USED_MAX));
            limit.map_or(drawn, |limit| drawn.min(limit))
        };
        ContractUse {
            calls: budget.calls.unwrap_or(0).min(1),
            input_tokens: drawn(budget.input_tokens),
            output_tokens: drawn(budget.output_tokens),
            ..ContractUse::default()
        }
    }

    async fn carry(&self, contract: ChildContract, cancel: Cancellation) -> Result<ChildAnswer, DispatchError> {
        let fault = self.fault();
        match fault {
            Some(Fault::Unreachable) => {
                return Err(DispatchError::Unreachable { place: "elsewhere".into(), message: "pretended".into() });
            }
            Some(Fault::Refused) => return Err(DispatchError::Refused { message: "pretended".into() }),
            _ => {}
        }
        let key = &contract.idempotency_key;
        self.fate.see(&Sight::Contracted { contract: &contract });
        let mut taken = Taken { fate: &self.fate, key, is_told: false };
        let known = self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
        if let Some(answer) = known {
            taken.tell(Some(answer.used));
            return Ok(answer);
        }
        match fault {
            Some(Fault::Dies) => {
                sleep(DIES).await;
                taken.tell(None);
                return Err(DispatchError::PeerGone { message: "pretended".into() });
            }
            Some(Fault::Nonsense) => {
                taken.tell(None);
                return Err(DispatchError::Malformed { message: "pretended".into() });
            }
            Some(Fault::Deaf) => {
                sleep(FOR_EVER).await;
                taken.tell(None);
                return Err(DispatchError::PeerGone { message: "pretended".into() });
            }
            _ => {}
        }
        let span = if fault == Some(Fault::Late) {
            LATE
        } else {
            Duration::from_millis(WORK_MS[self.fate.usual(WORK_MS.len())])
        };
        let used = self.used(contract.budget);
        let answer = |success: bool, output: String| ChildAnswer { success, output, source_anchors: Vec::new(), used };
        let answer = tokio::select! {
            biased;
            reason = cancel.cancelled() => answer(false, reason.to_string()),
            () = sleep(span) => answer(true, "done elsewhere".to_owned()),
        };
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), answer.clone());
        taken.tell(Some(used));
        Ok(answer)
    }
}

impl Dispatch for PretendedDispatch {
    fn carry_out(
        &self,
        contract: ChildContract,
        cancel: Cancellation,
    ) -> BoxFuture<'_, Result<ChildAnswer, DispatchError>> {
        Box::pin(self.carry(contract, cancel))
    }
}
