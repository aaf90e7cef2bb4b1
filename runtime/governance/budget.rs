//! Stage 7: the session's budget covers the call. The reservation is settled with what was really used.

use std::sync::Arc;

use toolwarden_actors::accounts::LedgerError;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::budget_ledger::{BudgetLedger, Reservation};
use toolwarden_tools::registry::Registered;

use crate::event::EventKind;
use crate::governance::confirmation::{Confirmed, Tell};
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// A call that is paid for.
pub(crate) struct Budgeted {
    passage: Box<Passage>,
    entry: Arc<Registered>,
    reservation: Reservation,
}

impl Budgeted {
    /// Reserves one call and what the tool declares that it will cost.
    pub(crate) async fn reserve(
        confirmed: Confirmed,
        scope: &Scope,
        ledger: &BudgetLedger,
        tell: Tell<'_>,
    ) -> Passed<Self> {
        let cost = confirmed.entry().tool.cost(&confirmed.passage().arguments);
        let amount =
            Amount { calls: 1, cost_microusd: cost.microusd, output_bytes: cost.output_bytes, ..Amount::default() };
        let (passage, entry) = confirmed.into_parts();
        let tool = passage.tool.clone();
        match ledger.reserve(&scope.account, amount).await {
            Ok(reservation) => {
                for mark in reservation.thresholds() {
                    tell(EventKind::BudgetThresholdHit {
                        resource: mark.resource.to_string(),
                        kind: "soft",
                        consumed: mark.consumed,
                        limit: mark.limit,
                        message: format!("{} of {} {} are used", mark.consumed, mark.limit, mark.resource),
                    });
                }
                Ok(Self { passage, entry, reservation })
            }
            Err(LedgerError::Refused(refused)) => {
                tell(EventKind::BudgetThresholdHit {
                    resource: refused.resource.to_string(),
                    kind: "hard",
                    consumed: refused.consumed,
                    limit: refused.limit,
                    message: refused.to_string(),
                });
                passage.stop(Refusal::Budget {
                    tool,
                    resource: refused.resource.to_string(),
                    consumed: refused.consumed,
                    limit: refused.limit,
                })
            }
            Err(LedgerError::NotRunning(_)) => passage.stop(Refusal::NotRunning { tool, part: "the budget ledger" }),
            Err(other) => {
                tracing::warn!(%tool, account = %scope.account.id(), error = %other, "a budget could not be charged");
                passage.stop(Refusal::Unpaid { tool, why: other.to_string() })
            }
        }
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.passage
    }

    pub(crate) fn entry(&self) -> &Arc<Registered> {
        &self.entry
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>, Reservation) {
        (self.passage, self.entry, self.reservation)
    }

    /// Ends the way here; the reservation goes home unused.
    pub(crate) fn stop<T>(self, refusal: Refusal) -> Passed<T> {
        self.passage.stop(refusal)
    }
}
