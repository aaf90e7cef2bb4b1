//! Accounts: each rule by itself, then all of them over random orders of deliveries.

use std::collections::BTreeMap;

use super::{ACCOUNT_DEPTH_MAX, AccountId, Accounts, BudgetRefusal, LedgerError, ReservationId, Threshold};
use crate::budget::{Amount, BudgetLimits, Resource};
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
