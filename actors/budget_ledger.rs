//! The ledger's actor and its handle: [`BudgetLedger::reserve`] gives a [`Reservation`] that settles or releases
//! itself.
//!
//! The decisions are [`Accounts`]'. One ledger holds all accounts, because a reservation must be made in an account
//! and in all above it at once, and only one who sees them all can do that. Where no account on the path has a limit,
//! nothing can be refused: there the ledger is neither asked nor told, and what was used is counted on the spot.
//!
//! - Holds: the accounts and the reservations out.
//! - Supervised by: the root. Restart: permanent.
//! - After a restart there are no accounts: the runtime opens them again and charges them what the journal says was
//!   used. Reservations of a former life go home to nobody, for the journal has what they used.
//! - Mailbox bound: a caller has one question under way at a time and one return for each reservation, of which
//!   there are at most [`crate::accounts::RESERVATIONS_MAX`].
//! - Reports: marks that are passed, in the answer to whoever passed them.

use std::sync::Arc;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::oneshot;

use crate::accounts::{AccountId, AccountStatus, Accounts, LedgerError, ReservationId, Threshold};
use crate::budget::{Amount, BudgetLimits, Tally};
use crate::child_spec::ChildSpec;
use crate::lease::{Afterwards, Home, Lease};
use crate::slot::{NotRunning, Slot};

/// The handle of the ledger; clones share it, and it follows the actor through restarts.
#[derive(Debug, Clone, Default)]
pub struct BudgetLedger {
    slot: Slot<LedgerMessage>,
}

/// An account, as whoever reserves in it knows it.
#[derive(Debug, Clone)]
pub struct Account {
    id: AccountId,
    parent: Option<AccountId>,
    limits: BudgetLimits,
    /// None where it or one above it has a limit. Limits never change, and where there is none nothing can be refused:
    /// there it is only counted what was used.
    tally: Option<Arc<Tally>>,
}

impl Account {
    /// An account with none above it.
    pub fn new(id: AccountId, limits: BudgetLimits) -> Self {
        let tally = (limits == BudgetLimits::default()).then(Arc::default);
        Self { id, parent: None, limits, tally }
    }

    /// An account below this one.
    pub fn child(&self, id: AccountId, limits: BudgetLimits) -> Self {
        let above = self.tally.as_ref().filter(|_| limits == BudgetLimits::default());
        let tally = above.map(|above| Arc::new(Tally::below(Some(Arc::clone(above)))));
        Self { id, parent: Some(self.id.clone()), limits, tally }
    }

    /// Its id.
    pub fn id(&self) -> &AccountId {
        &self.id
    }
}

/// A part of a budget set aside for one call; released when dropped.
#[derive(Debug)]
#[must_use = "a reservation is released as soon as it is dropped"]
pub struct Reservation {
    lease: Lease<ReservationHome>,
    thresholds: Vec<Threshold>,
}

impl Reservation {
    /// The marks that this reservation passed.
    pub fn thresholds(&self) -> &[Threshold] {
        &self.thresholds
    }

    /// Records what was really used, which may be more than was reserved.
    pub fn settle(self, used: Amount) {
        self.lease.settle(used);
    }

    /// As [`Self::settle`]; what is to be done afterwards is done once it is in the books.
    pub fn settle_then(self, used: Amount, then: Afterwards) {
        self.lease.settle_then(used, then);
    }
}

impl BudgetLedger {
    /// The handle of a ledger that is not started yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the ledger's actor under `supervisor`; the same call starts it anew, empty, after it ended.
    ///
    /// # Errors
    /// When the supervisor is shutting down.
    pub async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, LedgerActor, (), supervisor).await?;
        self.slot.put(actor.clone());
        Ok(actor.get_cell())
    }

    /// How a supervisor starts the ledger, and starts it anew: a permanent worker.
    pub fn child_spec(&self) -> ChildSpec {
        let handle = self.clone();
        ChildSpec::new("budget_ledger", move |supervisor| {
            let handle = handle.clone();
            async move { Ok(handle.start(supervisor).await?) }
        })
    }

    /// Opens an account.
    ///
    /// # Errors
    /// [`LedgerError`] when the id is taken, the parent unknown or closed, or the tree too deep or too large.
    pub async fn open_account(&self, account: &Account) -> Result<(), LedgerError> {
        let account = account.clone();
        self.ask(|reply| LedgerMessage::Open { account, reply }).await
    }

    /// Sets aside `amount` in an account and all above it, or nowhere.
    ///
    /// # Errors
    /// [`LedgerError::Refused`] when a budget does not cover it; others when the account is unknown or closed.
    pub async fn reserve(&self, account: &Account, amount: Amount) -> Result<Reservation, LedgerError> {
        if let Some(tally) = &account.tally {
            self.slot.get()?;
            let lease = Lease::new(ReservationHome::Unlimited(Arc::clone(tally)));
            return Ok(Reservation { lease, thresholds: Vec::new() });
        }
        let account = account.id.clone();
        self.ask(|reply| LedgerMessage::Reserve { account, amount, reply }).await
    }

    /// Records use without a reservation: what the journal says was used before a restart.
    ///
    /// # Errors
    /// [`LedgerError`] when the account is unknown.
    pub async fn charge(&self, account: AccountId, used: Amount) -> Result<(), LedgerError> {
        self.ask(|reply| LedgerMessage::Charge { account, used, reply }).await
    }

    /// Closes an account; reservations that are out still settle.
    ///
    /// # Errors
    /// [`LedgerError`] when the account is unknown.
    pub async fn close_account(&self, account: AccountId) -> Result<(), LedgerError> {
        self.ask(|reply| LedgerMessage::Close { account, reply }).await
    }

    /// How an account stands.
    ///
    /// # Errors
    /// [`LedgerError`] when the account is unknown.
    pub async fn status(&self, account: AccountId) -> Result<AccountStatus, LedgerError> {
        self.ask(|reply| LedgerMessage::Status { account, reply }).await
    }

    async fn ask<T>(&self, message: impl FnOnce(Reply<T>) -> LedgerMessage) -> Result<T, LedgerError> {
        let ledger = self.slot.get()?;
        let (reply, answer) = oneshot::channel();
        ledger.cast(message(reply)).map_err(|_| NotRunning)?;
        answer.await.map_err(|_| NotRunning)?
    }
}

enum ReservationHome {
    Reserved {
        ledger: ActorRef<LedgerMessage>,
        id: ReservationId,
    },
    /// In an account without limits: there is nothing set aside, so only use is counted.
    Unlimited(Arc<Tally>),
}

impl Home for ReservationHome {
    type Word = Amount;

    fn take_back(self, used: Option<Amount>, then: Afterwards) {
        match self {
            // A ledger that is gone holds no reservation to end.
            Self::Reserved { ledger, id } => drop(ledger.cast(LedgerMessage::Settle { id, used, then })),
            Self::Unlimited(tally) => tally.add(used.unwrap_or_default()),
        }
    }
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

enum LedgerMessage {
    Open { account: Account, reply: Reply<()> },
    Reserve { account: AccountId, amount: Amount, reply: Reply<Reservation> },
    Settle { id: ReservationId, used: Option<Amount>, then: Afterwards },
    Charge { account: AccountId, used: Amount, reply: Reply<()> },
    Close { account: AccountId, reply: Reply<()> },
    Status { account: AccountId, reply: Reply<AccountStatus> },
}

struct LedgerActor;

impl Actor for LedgerActor {
    type Msg = LedgerMessage;
    type State = Accounts;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<LedgerMessage>, (): ()) -> Result<Accounts, ActorProcessingErr> {
        Ok(Accounts::default())
    }

    async fn handle(
        &self,
        myself: ActorRef<LedgerMessage>,
        message: LedgerMessage,
        accounts: &mut Accounts,
    ) -> Result<(), ActorProcessingErr> {
        // An asker that is gone drops the answer, and a reservation in it is released.
        match message {
            LedgerMessage::Open { account: Account { id, parent, limits, tally }, reply } => {
                let opened = accounts.open(id.clone(), parent, limits);
                if let (Ok(()), Some(tally)) = (&opened, tally) {
                    accounts.count_with(&id, tally);
                }
                let _ = reply.send(opened);
            }
            LedgerMessage::Reserve { account, amount, reply } => {
                let reserved = accounts.reserve(&account, amount).map(|(id, thresholds)| {
                    let lease = Lease::new(ReservationHome::Reserved { ledger: myself, id });
                    Reservation { lease, thresholds }
                });
                let _ = reply.send(reserved);
            }
            LedgerMessage::Settle { id, used, then } => {
                accounts.settle(id, used);
                drop(then);
            }
            LedgerMessage::Charge { account, used, reply } => {
                let _ = reply.send(accounts.charge(&account, used));
            }
            LedgerMessage::Close { account, reply } => {
                let _ = reply.send(accounts.close(&account));
            }
            LedgerMessage::Status { account, reply } => {
                let _ = reply.send(accounts.status(&account));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Account, BudgetLedger};
    use crate::accounts::LedgerError;
    use crate::budget::{Amount, BudgetLimits};
    use crate::onlooker::root;
    use crate::slot::NotRunning;

    fn calls(calls: u64) -> Amount {
        Amount { calls, ..Amount::default() }
    }

    async fn ledger() -> BudgetLedger {
        let ledger = BudgetLedger::new();
        ledger.start(root().await).await.unwrap();
        let session = Account::new("session".into(), BudgetLimits { calls: Some(4), ..BudgetLimits::default() });
        ledger.open_account(&session).await.unwrap();
        ledger.open_account(&run()).await.unwrap();
        ledger
    }

    /// The account of a run in a session of four calls.
    fn run() -> Account {
        let session = Account::new("session".into(), BudgetLimits { calls: Some(4), ..BudgetLimits::default() });
        session.child("run".into(), BudgetLimits::default())
    }

    async fn stand(ledger: &BudgetLedger) -> (u64, u64) {
        let status = ledger.status("session".into()).await.unwrap();
        (status.spent.calls, status.reserved.calls)
    }

    #[tokio::test]
    async fn settled_is_used_and_dropped_is_released() {
        let ledger = ledger().await;
        let used = ledger.reserve(&run(), calls(2)).await.unwrap();
        let released = ledger.reserve(&run(), calls(2)).await.unwrap();
        assert_eq!((used.thresholds().len(), released.thresholds().len()), (0, 1));
        assert!(matches!(ledger.reserve(&run(), calls(1)).await, Err(LedgerError::Refused(_))));
        used.settle(calls(3));
        drop(released);
        assert_eq!(stand(&ledger).await, (3, 0));
        ledger.close_account("run".into()).await.unwrap();
        let gone = ledger.reserve(&run(), calls(1)).await.unwrap_err();
        assert_eq!(gone, LedgerError::UnknownAccount { account: "run".into() });
    }

    // Nothing is asked where nothing can be refused, but what was used is in the books of all above.
    #[tokio::test]
    async fn an_account_without_limits_counts_what_was_used() {
        let ledger = BudgetLedger::new();
        let top = Account::new("top".into(), BudgetLimits::default());
        let below = top.child("below".into(), BudgetLimits::default());
        assert_eq!(ledger.reserve(&below, calls(1)).await.err(), Some(LedgerError::NotRunning(NotRunning)));
        ledger.start(root().await).await.unwrap();
        ledger.open_account(&top).await.unwrap();
        ledger.open_account(&below).await.unwrap();
        ledger.reserve(&below, calls(1)).await.unwrap().settle(calls(5));
        drop(ledger.reserve(&below, calls(1)).await.unwrap());
        for account in ["top", "below"] {
            let status = ledger.status(account.into()).await.unwrap();
            assert_eq!((status.spent.calls, status.reserved.calls), (5, 0));
        }
        // What was charged, and what accounts with limits below it use, is counted as well.
        ledger.charge("below".into(), calls(1)).await.unwrap();
        let limited = below.child("limited".into(), BudgetLimits { calls: Some(9), ..BudgetLimits::default() });
        ledger.open_account(&limited).await.unwrap();
        ledger.reserve(&limited, calls(1)).await.unwrap().settle(calls(3));
        assert_eq!(ledger.status("top".into()).await.unwrap().spent, calls(9));
    }

    #[tokio::test]
    async fn a_holder_that_panics_or_never_reads_the_answer_releases() {
        let ledger = ledger().await;
        let held = ledger.reserve(&run(), calls(1)).await.unwrap();
        let broken = tokio::spawn(async move {
            let _held = held;
            panic!("the call breaks");
        });
        assert!(broken.await.unwrap_err().is_panic());
        let account = run();
        let mut asking = Box::pin(ledger.reserve(&account, calls(1)));
        assert!(futures_util::poll!(&mut asking).is_pending());
        assert_eq!(stand(&ledger).await, (0, 1));
        drop(asking);
        assert_eq!(stand(&ledger).await, (0, 0));
    }

    #[tokio::test]
    async fn a_new_life_starts_empty_and_old_reservations_do_not_disturb_it() {
        let ledger = BudgetLedger::new();
        assert_eq!(ledger.status("a".into()).await, Err(LedgerError::NotRunning(NotRunning)));
        let root = root().await;
        let actor = ledger.start(root.clone()).await.unwrap();
        let account = Account::new("a".into(), BudgetLimits { calls: Some(100), ..BudgetLimits::default() });
        ledger.open_account(&account).await.unwrap();
        let old = ledger.reserve(&account, calls(1)).await.unwrap();
        actor.stop_and_wait(None, None).await.unwrap();
        assert_eq!(ledger.status("a".into()).await, Err(LedgerError::NotRunning(NotRunning)));
        ledger.start(root).await.unwrap();
        assert!(matches!(ledger.status("a".into()).await, Err(LedgerError::UnknownAccount { .. })));
        ledger.open_account(&account).await.unwrap();
        ledger.charge("a".into(), calls(7)).await.unwrap();
        let new = ledger.reserve(&account, calls(1)).await.unwrap();
        old.settle(calls(5));
        let status = ledger.status("a".into()).await.unwrap();
        assert_eq!((status.spent, status.reserved), (calls(7), calls(1)));
        drop(new);
    }
}
