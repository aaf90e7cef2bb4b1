//! Planted faults of child runs elsewhere: what they used is forgotten, they are asked for twice, a death is taken for a no.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::effects::dispatch::{ChildAnswer, ChildContract, ContractUse, Dispatch, DispatchError};

use super::{Planted, Wrap};

/// All of them.
pub(super) const REMOTE: [Planted; 3] = [
    remote("use-forgotten", "an answer says nothing of what it used", |other| Slipping::over(other, Slip::Forgets), 20),
    remote("contract-sent-twice", "a contract is sent again", |other| Slipping::over(other, Slip::Repeats), 5),
    remote("death-for-a-no", "who died is taken for who said no", |other| Slipping::over(other, Slip::Misreads), 200),
];

const fn remote(
    name: &'static str,
    about: &'static str,
    wrap: fn(Arc<dyn Dispatch>) -> Arc<dyn Dispatch>,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario: "world-elsewhere", watcher: "contracts", seeds_max, wrap: Wrap::Dispatch(wrap) }
}

/// How the way to another host is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Forgets,
    Repeats,
    Misreads,
}

/// A way to another host that is broken in one way.
struct Slipping {
    other: Arc<dyn Dispatch>,
    slip: Slip,
}

impl Slipping {
    fn over(other: Arc<dyn Dispatch>, slip: Slip) -> Arc<dyn Dispatch> {
        Arc::new(Self { other, slip })
    }
}

impl Dispatch for Slipping {
    fn carry_out(
        &self,
        contract: ChildContract,
        cancel: Cancellation,
    ) -> BoxFuture<'_, Result<ChildAnswer, DispatchError>> {
        Box::pin(async move {
            let answer = self.other.carry_out(contract.clone(), cancel.clone()).await;
            match (self.slip, answer) {
                (Slip::Forgets, Ok(answer)) => Ok(ChildAnswer { used: ContractUse::default(), ..answer }),
                (Slip::Repeats, Ok(_)) => self.other.carry_out(contract, cancel).await,
                (Slip::Misreads, Err(DispatchError::PeerGone { message })) => Err(DispatchError::Refused { message }),
                (_, answer) => answer,
            }
        })
    }
}
