//! The simulated budget ledger: the accounts, and the way of their reservations.

use toolwarden_actors::accounts::Accounts;
use toolwarden_actors::budget::{Amount, BudgetLimits};
use toolwarden_actors::lease::Lease;
use toolwarden_actors::node_machine::NodeId;

use crate::happening::Happening;
use crate::message::{BodyMessage, LedgerMessage, ReservationHome};

use super::World;
use super::name::{WHOLE, account};

/// The ledger.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    accounts: Accounts,
    has_whole: bool,
}

impl Ledger {
    pub(super) fn outstanding(&self) -> usize {
        self.accounts.outstanding()
    }
}

fn limits(calls: u64) -> BudgetLimits {
    BudgetLimits { calls: Some(calls), ..BudgetLimits::default() }
}

fn amount(calls: u64) -> Amount {
    Amount { calls, ..Amount::default() }
}

impl World<'_> {
    pub(super) fn ledger_hears(&mut self, message: LedgerMessage) {
        match message {
            LedgerMessage::Open(session) => self.open_account(session),
            LedgerMessage::Close(session) => {
                // It may never have been opened: the session ended before that.
                drop(self.ledger.accounts.close(&account(session.0)));
            }
            LedgerMessage::Reserve { session, calls, body } => {
                let reserved = self.tamper.reserve(&mut self.ledger.accounts, &account(session.0), amount(calls));
                let answer = match reserved {
                    Ok(reservation) => {
                        let number = reservation.0;
                        self.happens(Happening::Reserved { reservation: number, account: session.0, calls });
                        Some(Lease::new(ReservationHome { homecoming: self.homecoming.clone(), reservation }))
                    }
                    Err(_) => {
                        self.covers("a budget that refuses");
                        None
                    }
                };
                self.tell_body(body, BodyMessage::Budget(answer));
            }
            LedgerMessage::Settle(reservation, used) => {
                self.happens(Happening::Settled { reservation: reservation.0, calls: used.unwrap_or(0) });
                self.tamper.settle(&mut self.ledger.accounts, reservation, used.map(amount));
            }
        }
    }

    /// One account above all, that allows a little less than all sessions together, and one for each session.
    fn open_account(&mut self, session: NodeId) {
        let calls_max = self.workload.limits.calls_max;
        if !std::mem::replace(&mut self.ledger.has_whole, true) {
            let whole = (calls_max * u64::from(self.workload.tree.sessions)).saturating_sub(2);
            if self.ledger.accounts.open(account(WHOLE), None, limits(whole)).is_ok() {
                self.happens(Happening::AccountOpened { account: WHOLE, parent: None, calls_max: whole });
            }
        }
        let opened = self.ledger.accounts.open(account(session.0), Some(account(WHOLE)), limits(calls_max));
        if opened.is_ok() {
            self.happens(Happening::AccountOpened { account: session.0, parent: Some(WHOLE), calls_max });
        }
        self.tell_body(session, BodyMessage::AccountReady);
    }
}
