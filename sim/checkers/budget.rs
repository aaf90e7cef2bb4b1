//! When a reservation is made, what is spent and reserved stays within the limit, in its account and above it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Checker, must};
use crate::dense::Dense;
use crate::happening::{Happening, Subject};

/// The accounts, kept a second time.
#[derive(Debug, Default)]
pub struct Budget {
    accounts: BTreeMap<u64, Account>,
    reservations: Dense<(u64, u64)>,
}

#[derive(Debug)]
struct Account {
    parent: Option<u64>,
    calls_max: u64,
    spent: u64,
    reserved: u64,
}

impl Budget {
    /// Changes an account and those above it.
    fn on_path(
        &mut self,
        account: u64,
        mut change: impl FnMut(u64, &mut Account) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut next = Some(account);
        while let Some(id) = next {
            let Some(held) = self.accounts.get_mut(&id) else {
                return Err(format!("account {id} was never opened"));
            };
            change(id, held)?;
            next = held.parent;
        }
        Ok(())
    }
}

impl Checker for Budget {
    fn name(&self) -> &'static str {
        "budget"
    }

    fn promise(&self) -> &'static str {
        "nothing is reserved beyond a budget"
    }

    fn subjects(&self) -> &'static [Subject] {
        &[Subject::Budget]
    }

    fn see(&mut self, _now: Duration, happening: &Happening) -> Result<(), String> {
        match happening {
            Happening::AccountOpened { account, parent, calls_max } => {
                let account_new = Account { parent: *parent, calls_max: *calls_max, spent: 0, reserved: 0 };
                must(self.accounts.insert(*account, account_new).is_none(), || {
                    format!("account {account} was opened twice")
                })
            }
            Happening::Reserved { reservation, account, calls } => {
                self.reservations.insert(*reservation, (*account, *calls));
                self.on_path(*account, |id, held| {
                    held.reserved += calls;
                    let Account { spent, reserved, calls_max, .. } = held;
                    must(*spent + *reserved <= *calls_max, || {
                        format!("account {id} allows {calls_max}: {spent} spent and {reserved} reserved")
                    })
                })
            }
            Happening::Settled { reservation, calls } => {
                let Some((account, reserved)) = self.reservations.remove(*reservation) else {
                    return Err(format!("reservation {reservation} is not out"));
                };
                self.on_path(account, |_, held| {
                    held.reserved -= reserved;
                    held.spent += calls;
                    Ok(())
                })
            }
            _ => Ok(()),
        }
    }
}
