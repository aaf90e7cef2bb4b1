//! Budgets as accounts in a tree: what is asked for is reserved in an account and in all above it, or in none.
//!
//! A call reserves before it does anything and settles with what it really used; so calls that run beside each
//! other cannot together spend what only one may. What must stay true: a reservation is granted only if, in every
//! account on its path, spent + reserved stays within each limit; a reservation ends once; what was really used is
//! recorded even where it is more than was reserved, and then nothing more is granted. Sums are checked: a sum
//! that does not fit is a refusal when asking, and stays at the largest number when recording.

use std::collections::BTreeMap;
use std::fmt;

use thiserror::Error;
use toolwarden_tools::ids::Id;

use crate::slot::NotRunning;

/// Accounts that may exist at a time.
pub const ACCOUNTS_MAX: usize = 65_536;
/// Reservations that may be out at a time.
pub const RESERVATIONS_MAX: usize = 65_536;
/// Accounts from the root down to the deepest, both counted.
pub const ACCOUNT_DEPTH_MAX: usize = 16;
/// When to speak up: this many percent of a limit are used or reserved.
pub const SOFT_PERCENT: u8 = 80;

/// Marker of [`AccountId`].
pub enum AccountKind {}
/// An account: of the runtime, a session, a run or a child run.
pub type AccountId = Id<AccountKind>;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// Calls of tools and models.
    Calls,
    /// Tokens sent to models.
    InputTokens,
    /// Tokens that models wrote.
    OutputTokens,
    /// Money, in millionths of a US dollar.
    CostMicrousd,
    /// Bytes of tool output.
    OutputBytes,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Calls, Self::InputTokens, Self::OutputTokens, Self::CostMicrousd, Self::OutputBytes];

    /// Its name in results and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Calls => "calls",
            Self::InputTokens => "input_tokens",
            Self::OutputTokens => "output_tokens",
            Self::CostMicrousd => "cost_microusd",
            Self::OutputBytes => "output_bytes",
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.as_str())
    }
}

/// So much of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Calls.
    pub calls: u64,
    /// Tokens in.
    pub input_tokens: u64,
    /// Tokens out.
    pub output_tokens: u64,
    /// Millionths of a US dollar.
    pub cost_microusd: u64,
    /// Bytes.
    pub output_bytes: u64,
}

impl Amount {
    /// So much of one resource.
    pub fn get(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Calls => self.calls,
            Resource::InputTokens => self.input_tokens,
            Resource::OutputTokens => self.output_tokens,
            Resource::CostMicrousd => self.cost_microusd,
            Resource::OutputBytes => self.output_bytes,
        }
    }

    /// The sum; each part stays at the largest number instead of overflowing.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    fn saturating_sub(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            calls: of(self.calls, other.calls),
            input_tokens: of(self.input_tokens, other.input_tokens),
            output_tokens: of(self.output_tokens, other.output_tokens),
            cost_microusd: of(self.cost_microusd, other.cost_microusd),
            output_bytes: of(self.output_bytes, other.output_bytes),
        }
    }
}

/// How much an account may use; no limit where none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetLimits {
    /// Most calls.
    pub calls: Option<u64>,
    /// Most tokens in.
    pub input_tokens: Option<u64>,
    /// Most tokens out.
    pub output_tokens: Option<u64>,
    /// Most millionths of a US dollar.
    pub cost_microusd: Option<u64>,
    /// Most bytes.
    pub output_bytes: Option<u64>,
    /// At how many percent of a limit to speak up.
    pub soft_percent: u8,
}

impl Default for BudgetLimits {
    fn default() -> Self {
        Self {
            calls: None,
            input_tokens: None,
            output_tokens: None,
            cost_microusd: None,
            output_bytes: None,
            soft_percent: SOFT_PERCENT,
        }
    }
}

impl BudgetLimits {
    /// The limit of one resource.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        match resource {
            Resource::Calls => self.calls,
            Resource::InputTokens => self.input_tokens,
            Resource::OutputTokens => self.output_tokens,
            Resource::CostMicrousd => self.cost_microusd,
            Resource::OutputBytes => self.output_bytes,
        }
    }
}

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
        self.accounts.insert(id, Account { parent, status, children: 0, reservations: 0, above_mark: [false; 5] });
        Ok(())
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
        self.known(account).map(|held| held.status)
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
mod tests {
    use std::collections::BTreeMap;

    use super::{
        ACCOUNT_DEPTH_MAX, AccountId, Accounts, Amount, BudgetLimits, BudgetRefusal, LedgerError, ReservationId,
        Resource, Threshold,
    };
    use crate::interleaving::{Dice, Interleaving};

    fn calls(calls: u64) -> Amount {
        Amount { calls, ..Amount::default() }
    }

    fn at_most(calls: u64) -> BudgetLimits {
        BudgetLimits { calls: Some(calls), ..BudgetLimits::default() }
    }

    fn tree() -> Accounts {
        let mut accounts = Accounts::default();
        accounts.open("root".into(), None, at_most(10)).unwrap();
        accounts.open("left".into(), Some("root".into()), at_most(6)).unwrap();
        accounts.open("right".into(), Some("root".into()), BudgetLimits::default()).unwrap();
        accounts
    }

    fn stand(accounts: &Accounts, account: &str) -> (u64, u64) {
        let status = accounts.status(&account.into()).unwrap();
        (status.spent.calls, status.reserved.calls)
    }

    #[test]
    fn a_reservation_counts_on_the_whole_path_or_nowhere() {
        let mut accounts = tree();
        let (first, _) = accounts.reserve(&"left".into(), calls(5)).unwrap();
        accounts.reserve(&"right".into(), calls(4)).unwrap();
        assert_eq!(stand(&accounts, "root"), (0, 9));
        // The account itself has no limit, the one above has.
        let refusal = BudgetRefusal {
            account: "root".into(),
            resource: Resource::Calls,
            consumed: 0,
            reserved: 9,
            limit: 10,
            asked: 2,
        };
        assert_eq!(accounts.reserve(&"right".into(), calls(2)), Err(refusal.into()));
        assert_eq!((stand(&accounts, "right"), stand(&accounts, "root")), ((0, 4), (0, 9)));
        accounts.settle(first, Some(calls(1)));
        assert_eq!((stand(&accounts, "left"), stand(&accounts, "root")), ((1, 0), (1, 4)));
        accounts.settle(first, Some(calls(1)));
        assert_eq!(stand(&accounts, "root"), (1, 4));
    }

    #[test]
    fn more_than_reserved_is_recorded_and_then_nothing_more_is_granted() {
        let mut accounts = tree();
        let (call, _) = accounts.reserve(&"left".into(), calls(1)).unwrap();
        accounts.settle(call, Some(calls(25)));
        assert_eq!((stand(&accounts, "left"), stand(&accounts, "root")), ((25, 0), (25, 0)));
        assert!(matches!(accounts.reserve(&"right".into(), calls(0)), Err(LedgerError::Refused(_))));
    }

    #[test]
    fn a_release_uses_nothing() {
        let mut accounts = tree();
        let (call, _) = accounts.reserve(&"left".into(), calls(6)).unwrap();
        assert!(accounts.reserve(&"left".into(), calls(1)).is_err());
        accounts.settle(call, None);
        assert_eq!(stand(&accounts, "left"), (0, 0));
        assert!(accounts.reserve(&"left".into(), calls(6)).is_ok());
    }

    #[test]
    fn sums_that_do_not_fit_are_refused_and_recorded_at_the_largest_number() {
        let mut accounts = tree();
        accounts.charge(&"right".into(), calls(1)).unwrap();
        assert!(matches!(accounts.reserve(&"right".into(), calls(u64::MAX)), Err(LedgerError::Refused(_))));
        accounts.charge(&"right".into(), calls(u64::MAX)).unwrap();
        assert_eq!(stand(&accounts, "root"), (u64::MAX, 0));
    }

    #[test]
    fn the_mark_is_said_once_each_time_it_is_passed() {
        let mut accounts = tree();
        let (_, quiet) = accounts.reserve(&"left".into(), calls(4)).unwrap();
        assert_eq!(quiet, []);
        let (fifth, said) = accounts.reserve(&"left".into(), calls(1)).unwrap();
        let threshold = |account: &str, consumed, limit| Threshold {
            account: account.into(),
            resource: Resource::Calls,
            consumed,
            limit,
        };
        assert_eq!(said, [threshold("left", 5, 6)]);
        let (_, quiet) = accounts.reserve(&"left".into(), calls(1)).unwrap();
        assert_eq!(quiet, []);
        accounts.settle(fifth, Some(calls(0)));
        let (_, still) = accounts.reserve(&"right".into(), calls(3)).unwrap();
        assert_eq!(still, [threshold("root", 8, 10)]);
        let mut accounts = tree();
        let (five, _) = accounts.reserve(&"left".into(), calls(5)).unwrap();
        accounts.settle(five, None);
        assert_eq!(accounts.reserve(&"left".into(), calls(5)).unwrap().1, [threshold("left", 5, 6)]);
    }

    #[test]
    fn each_wrong_account_has_its_error() {
        let mut accounts = tree();
        let unknown = || LedgerError::UnknownAccount { account: "nobody".into() };
        assert_eq!(accounts.reserve(&"nobody".into(), calls(1)), Err(unknown()));
        assert_eq!(accounts.status(&"nobody".into()), Err(unknown()));
        assert_eq!(accounts.close(&"nobody".into()), Err(unknown()));
        assert_eq!(accounts.charge(&"nobody".into(), calls(1)), Err(unknown()));
        assert_eq!(accounts.open("new".into(), Some("nobody".into()), at_most(1)), Err(unknown()));
        let taken = LedgerError::AccountTaken { account: "left".into() };
        assert_eq!(accounts.open("left".into(), None, at_most(1)), Err(taken));
    }

    #[test]
    fn the_tree_has_a_depth() {
        let mut accounts = Accounts::default();
        let mut parent: Option<AccountId> = None;
        for depth in 0..ACCOUNT_DEPTH_MAX {
            let id: AccountId = format!("d{depth}").into();
            accounts.open(id.clone(), parent, BudgetLimits::default()).unwrap();
            parent = Some(id);
        }
        let deeper = accounts.open("deeper".into(), parent, BudgetLimits::default());
        assert_eq!(deeper, Err(LedgerError::TooDeep { account: "deeper".into() }));
    }

    #[test]
    fn a_closed_account_settles_what_is_out_and_is_then_forgotten() {
        let mut accounts = tree();
        accounts.open("leaf".into(), Some("left".into()), BudgetLimits::default()).unwrap();
        let (call, _) = accounts.reserve(&"leaf".into(), calls(3)).unwrap();
        accounts.close(&"left".into()).unwrap();
        let closed = LedgerError::ClosedAccount { account: "left".into() };
        assert_eq!(accounts.reserve(&"leaf".into(), calls(1)), Err(closed));
        accounts.close(&"leaf".into()).unwrap();
        assert_eq!(stand(&accounts, "leaf"), (0, 3));
        accounts.settle(call, Some(calls(2)));
        assert!(accounts.status(&"leaf".into()).is_err() && accounts.status(&"left".into()).is_err());
        assert_eq!((stand(&accounts, "root"), accounts.outstanding()), ((2, 0), 0));
        // The id is free again.
        accounts.open("left".into(), Some("root".into()), at_most(1)).unwrap();
    }

    #[derive(Clone, Copy)]
    enum Ask {
        Reserve { caller: usize, account: usize, amount: u64 },
        Settle { reservation: ReservationId, used: Option<u64> },
        Close { account: usize },
    }

    /// Callers reserve, settle (also with more than reserved), release and close in any order.
    #[test]
    fn the_invariants_hold_in_any_order_of_deliveries() {
        const NAMES: [&str; 5] = ["root", "left", "right", "leaf", "other"];
        let (mut refused, mut overdrawn) = (0, 0);
        for seed in 0..300 {
            let mut dice = Dice::new(seed);
            let mut accounts = tree();
            accounts.open("leaf".into(), Some("left".into()), at_most(4)).unwrap();
            accounts.open("other".into(), Some("right".into()), at_most(20)).unwrap();
            let mut under_way = Interleaving::new();
            let mut out: BTreeMap<ReservationId, usize> = BTreeMap::new();
            let mut used_in_all = 0;
            for step in 0..200 {
                let caller = dice.roll(6);
                match dice.roll(12) {
                    0..=4 => {
                        let (account, amount) = (dice.roll(NAMES.len()), dice.roll(3) as u64);
                        under_way.send(caller, Ask::Reserve { caller, account, amount });
                    }
                    5 if step > 150 && dice.roll(4) == 0 => {
                        under_way.send(100, Ask::Close { account: 1 + dice.roll(4) });
                    }
                    5..=7 => {
                        if let Some((&reservation, &owner)) = out.iter().nth(dice.roll(out.len().max(1))) {
                            out.remove(&reservation);
                            let used = [None, Some(0), Some(1), Some(dice.roll(4) as u64)][dice.roll(4)];
                            // A lease may go home through another task than the one that asked.
                            under_way.send(owner + 10 * dice.roll(2), Ask::Settle { reservation, used });
                        }
                    }
                    _ => match under_way.deliver(&mut dice) {
                        Some(Ask::Reserve { caller, account, amount }) => {
                            match accounts.reserve(&NAMES[account].into(), calls(amount)) {
                                Ok((reservation, _)) => {
                                    assert!(out.insert(reservation, caller).is_none());
                                    for id in accounts.open_path(&NAMES[account].into()).unwrap() {
                                        let status = accounts.status(&id).unwrap();
                                        let sum = status.spent.calls + status.reserved.calls;
                                        let limit = status.limits.calls.unwrap_or(u64::MAX);
                                        assert!(sum <= limit, "seed {seed}: {id} over its limit");
                                    }
                                }
                                Err(_) => refused += 1,
                            }
                        }
                        Some(Ask::Settle { reservation, used }) => {
                            accounts.settle(reservation, used.map(calls));
                            used_in_all += used.unwrap_or(0);
                        }
                        Some(Ask::Close { account }) => drop(accounts.close(&NAMES[account].into())),
                        None => {}
                    },
                }
            }
            while let Some(ask) = under_way.deliver(&mut dice) {
                if let Ask::Settle { reservation, used } = ask {
                    accounts.settle(reservation, used.map(calls));
                    used_in_all += used.unwrap_or(0);
                }
            }
            out.keys().for_each(|reservation| accounts.settle(*reservation, None));
            assert_eq!(accounts.outstanding(), 0, "seed {seed}: all settled");
            NAMES[1..].iter().for_each(|name| drop(accounts.close(&(*name).into())));
            let forgotten = NAMES[1..].iter().all(|name| accounts.status(&(*name).into()).is_err());
            assert!(forgotten, "seed {seed}: closed accounts with nothing out are forgotten");
            let root = accounts.status(&"root".into()).unwrap();
            assert_eq!(root.reserved, Amount::default(), "seed {seed}: nothing stays reserved");
            assert_eq!(root.spent.calls, used_in_all, "seed {seed}: the root has what all used");
            overdrawn += u64::from(root.spent.calls > 10);
        }
        assert!(refused > 100 && overdrawn > 10, "the runs reach what they are to reach: {refused} {overdrawn}");
    }
}
