//! Budgets as accounts in a tree: what is asked for is reserved in an account and in all above it, or in none.
//!
//! A call reserves before it does anything and settles with what it really used; so calls that run beside each
//! other cannot together spend what only one may. What must stay true: a reservation is granted only if, in every
//! account on its path, spent + reserved stays within each limit; a reservation ends once; what was really used is
//! recorded even where it is more than was reserved, and then nothing more is granted. Sums are checked: a sum
//! that does not fit is a refusal when asking, and stays at the largest number when recording.

use std::collections::BTreeMap;
use std::sync::Arc;

use thiserror::Error;
use toolwarden_tools::ids::Id;

use crate::budget::{Amount, BudgetLimits, Resource, Tally};
use crate::slot::NotRunning;

/// Accounts that may exist at a time.
pub const ACCOUNTS_MAX: usize = 65_536;
/// Reservations that may be out at a time.
pub const RESERVATIONS_MAX: usize = 65_536;
/// Accounts from the root down to the deepest, both counted.
pub const ACCOUNT_DEPTH_MAX: usize = 16;

/// Marker of [`AccountId`].
pub enum AccountKind {}
/// An account: of the runtime, a session, a run or a child run.
pub type AccountId = Id<AccountKind>;

/// A budget does not cover what was asked for. A decision, not a failure: nothing was reserved anywhere.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the budget of {account} allows {limit} {resource}: {consumed} are used and {reserved} reserved, so {asked} more \
     are refused; raise the limit or start a session with a new budget"
)]
pub struct BudgetRefusal {
    /// Whose budget: the account asked, or one above it.
    pub account: AccountId,
    /// Which resource.
    pub resource: Resource,
    /// Used so far.
    pub consumed: u64,
    /// Reserved by calls under way.
    pub reserved: u64,
    /// The limit.
    pub limit: u64,
    /// Asked for.
    pub asked: u64,
}

/// A budget is nearly used up; said once each time the mark is passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Threshold {
    /// Whose budget.
    pub account: AccountId,
    /// Which resource.
    pub resource: Resource,
    /// Used and reserved.
    pub consumed: u64,
    /// The limit.
    pub limit: u64,
}

/// Why the ledger did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LedgerError {
    /// A budget is used up.
    #[error(transparent)]
    Refused(#[from] BudgetRefusal),
    /// There is no such account.
    #[error("there is no budget account {account}; open it first")]
    UnknownAccount {
        /// Its id.
        account: AccountId,
    },
    /// The account was closed, or one above it.
    #[error("budget account {account} is closed; nothing more can be reserved in it")]
    ClosedAccount {
        /// The closed one.
        account: AccountId,
    },
    /// The id is in use.
    #[error("a budget account {account} exists already; choose another id")]
    AccountTaken {
        /// The id.
        account: AccountId,
    },
    /// The tree of accounts would be too deep.
    #[error("budget account {account} would lie deeper than {ACCOUNT_DEPTH_MAX} accounts; nest fewer runs")]
    TooDeep {
        /// The id.
        account: AccountId,
    },
    /// Too many accounts.
    #[error("{ACCOUNTS_MAX} budget accounts exist already; close sessions first")]
    TooManyAccounts,
    /// Too many reservations.
    #[error("{RESERVATIONS_MAX} reservations are out already; wait for running calls to end")]
    TooManyReservations,
    /// The ledger's actor is not there.
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
}

/// How an account stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccountStatus {
    /// What it allows.
    pub limits: BudgetLimits,
    /// Used, by it and all below it.
    pub spent: Amount,
    /// Reserved, by it and all below it.
    pub reserved: Amount,
    /// Whether it can still be reserved in.
    pub open: bool,
}

/// The number of a reservation; each is given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReservationId(pub u64);

/// The whole tree.
#[derive(Debug, Default)]
pub struct Accounts {
    accounts: BTreeMap<AccountId, Account>,
    reservations: BTreeMap<ReservationId, (AccountId, Amount)>,
    reservations_made: u64,
}

#[derive(Debug)]
struct Account {
    parent: Option<AccountId>,
    status: AccountStatus,
    // What is used of it besides, where it has no limit.
    tally: Option<Arc<Tally>>,
    children: usize,
    reservations: usize,
    // Of `Resource::ALL`, those above their mark.
    above_mark: [bool; 5],
}

impl Accounts {
    /// Opens an account under `parent`, or a root.
    ///
    /// # Errors
    /// [`LedgerError`] when the id is taken, the parent unknown or closed, or the tree too deep or too large.
    pub fn open(&mut self, id: AccountId, parent: Option<AccountId>, limits: BudgetLimits) -> Result<(), LedgerError> {
        if self.accounts.contains_key(&id) {
            return Err(LedgerError::AccountTaken { account: id });
        }
        if self.accounts.len() >= ACCOUNTS_MAX {
            return Err(LedgerError::TooManyAccounts);
        }
        if let Some(parent) = &parent {
            if self.open_path(parent)?.len() >= ACCOUNT_DEPTH_MAX {
                return Err(LedgerError::TooDeep { account: id });
            }
            if let Some(above) = self.accounts.get_mut(parent) {
                above.children += 1;
            }
        }
        let status = AccountStatus { limits, spent: Amount::default(), reserved: Amount::default(), open: true };
        let (tally, children, reservations) = (None, 0, 0);
        self.accounts.insert(id, Account { parent, status, tally, children, reservations, above_mark: [false; 5] });
        Ok(())
    }

    /// Takes a tally as a part of what is used of an account without limits, and without any above it: it is of no
    /// consequence but for those who ask how the account stands.
    pub fn count_with(&mut self, account: &AccountId, tally: Arc<Tally>) {
        if let Some(held) = self.accounts.get_mut(account) {
            held.tally = Some(tally);
        }
    }

    /// Reserves in an account and all above it, or nowhere; says which marks were passed by it.
    ///
    /// # Errors
    /// [`LedgerError`]: a budget does not cover it, or the account is unknown or closed.
    pub fn reserve(
        &mut self,
        account: &AccountId,
        amount: Amount,
    ) -> Result<(ReservationId, Vec<Threshold>), LedgerError> {
        let path = self.open_path(account)?;
        if self.reservations.len() >= RESERVATIONS_MAX {
            return Err(LedgerError::TooManyReservations);
        }
        for id in &path {
            self.covers(id, amount)?;
        }
        let mut passed = Vec::new();
        for id in &path {
            if let Some(held) = self.accounts.get_mut(id) {
                held.status.reserved = held.status.reserved.saturating_add(amount);
                held.mark(id, &mut passed);
            }
        }
        if let Some(own) = self.accounts.get_mut(account) {
            own.reservations += 1;
        }
        let reservation = ReservationId(self.reservations_made);
        self.reservations_made += 1;
        self.reservations.insert(reservation, (account.clone(), amount));
        Ok((reservation, passed))
    }

    /// Ends a reservation: what was really used is recorded, which may be more; nothing when it was released.
    /// One that has ended, or was made in a former life, changes nothing.
    pub fn settle(&mut self, reservation: ReservationId, used: Option<Amount>) {
        let Some((account, reserved)) = self.reservations.remove(&reservation) else { return };
        if let Some(own) = self.accounts.get_mut(&account) {
            own.reservations = own.reservations.saturating_sub(1);
        }
        self.record(&account, reserved, used.unwrap_or_default());
        self.forget_if_done(account);
    }

    /// Records use without a reservation: what the journal says was used before a restart.
    ///
    /// # Errors
    /// [`LedgerError::UnknownAccount`].
    pub fn charge(&mut self, account: &AccountId, used: Amount) -> Result<(), LedgerError> {
        self.known(account)?;
        self.record(account, Amount::default(), used);
        Ok(())
    }

    /// Closes an account: nothing more can be reserved in it or below it. What is out is still settled truthfully
    /// later; then the account is forgotten, and its use stays in the accounts above.
    ///
    /// # Errors
    /// [`LedgerError::UnknownAccount`].
    pub fn close(&mut self, account: &AccountId) -> Result<(), LedgerError> {
        let Some(held) = self.accounts.get_mut(account) else {
            return Err(LedgerError::UnknownAccount { account: account.clone() });
        };
        held.status.open = false;
        self.forget_if_done(account.clone());
        Ok(())
    }

    /// How an account stands.
    ///
    /// # Errors
    /// [`LedgerError::UnknownAccount`].
    pub fn status(&self, account: &AccountId) -> Result<AccountStatus, LedgerError> {
        let Account { status, tally, .. } = self.known(account)?;
        let counted = tally.as_ref().map(|tally| tally.sum()).unwrap_or_default();
        Ok(AccountStatus { spent: status.spent.saturating_add(counted), ..*status })
    }

    /// Reservations out.
    pub fn outstanding(&self) -> usize {
        self.reservations.len()
    }

    fn known(&self, account: &AccountId) -> Result<&Account, LedgerError> {
        self.accounts.get(account).ok_or_else(|| LedgerError::UnknownAccount { account: account.clone() })
    }

    /// From an account up to its root, all of them open.
    fn open_path(&self, account: &AccountId) -> Result<Vec<AccountId>, LedgerError> {
        let mut path = Vec::new();
        let mut next = Some(account);
        while let Some(id) = next {
            let held = self.known(id)?;
            if !held.status.open {
                return Err(LedgerError::ClosedAccount { account: id.clone() });
            }
            path.push(id.clone());
            next = held.parent.as_ref();
        }
        Ok(path)
    }

    fn covers(&self, account: &AccountId, amount: Amount) -> Result<(), LedgerError> {
        let AccountStatus { limits, spent, reserved, .. } = self.status(account)?;
        for resource in Resource::ALL {
            let Some(limit) = limits.get(resource) else { continue };
            let (consumed, reserved, asked) = (spent.get(resource), reserved.get(resource), amount.get(resource));
            let after = consumed.checked_add(reserved).and_then(|sum| sum.checked_add(asked));
            if after.is_none_or(|after| after > limit) {
                let account = account.clone();
                return Err(BudgetRefusal { account, resource, consumed, reserved, limit, asked }.into());
            }
        }
        Ok(())
    }

    /// Moves from reserved to spent, in an account and all above it, open or not.
    fn record(&mut self, account: &AccountId, reserved: Amount, used: Amount) {
        let mut next = Some(account.clone());
        while let Some(held) = next.as_ref().and_then(|id| self.accounts.get_mut(id)) {
            held.status.reserved = held.status.reserved.saturating_sub(reserved);
            held.status.spent = held.status.spent.saturating_add(used);
            held.unmark();
            next = held.parent.clone();
        }
    }

    /// Drops closed accounts with nothing out and nothing below, from this one upwards.
    fn forget_if_done(&mut self, account: AccountId) {
        let mut next = Some(account);
        while let Some(id) = next {
            let done =
                self.accounts.get(&id).is_some_and(|held| !held.status.open && held.children + held.reservations == 0);
            if !done {
                return;
            }
            next = self.accounts.remove(&id).and_then(|held| held.parent);
            if let Some(above) = next.as_ref().and_then(|parent| self.accounts.get_mut(parent)) {
                above.children = above.children.saturating_sub(1);
            }
        }
    }
}

impl Account {
    fn is_above_mark(&self, resource: Resource) -> Option<(u64, u64)> {
        let limit = self.status.limits.get(resource).filter(|limit| *limit > 0)?;
        let consumed = self.status.spent.get(resource).saturating_add(self.status.reserved.get(resource));
        let above = u128::from(consumed) * 100 >= u128::from(limit) * u128::from(self.status.limits.soft_percent);
        above.then_some((consumed, limit))
    }

    /// Notes the marks that are passed now and were not before.
    fn mark(&mut self, account: &AccountId, passed: &mut Vec<Threshold>) {
        for (at, resource) in Resource::ALL.into_iter().enumerate() {
            let Some((consumed, limit)) = self.is_above_mark(resource) else { continue };
            if !std::mem::replace(&mut self.above_mark[at], true) {
                passed.push(Threshold { account: account.clone(), resource, consumed, limit });
            }
        }
    }

    /// Forgets the marks that are no longer passed, so that passing them again is said again.
    fn unmark(&mut self) {
        for (at, resource) in Resource::ALL.into_iter().enumerate() {
            self.above_mark[at] = self.above_mark[at] && self.is_above_mark(resource).is_some();
        }
    }
}

#[cfg(test)]
mod tests;
