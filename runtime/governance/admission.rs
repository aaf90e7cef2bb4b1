//! Stage 8: a slot in the tool's lane. Waiting ends with the call's cancel; a full queue sheds at once.
//!
//! A tool whose work is other calls takes no slot: it would wait for children that need the same lane.

use std::sync::Arc;

use toolwarden_actors::budget_ledger::Reservation;
use toolwarden_actors::bulkhead::Permit;
use toolwarden_actors::permit_pool::Shed;
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::registry::Registered;

use crate::governance::budget::Budgeted;
use crate::lanes::Lanes;
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// A call that may start now.
pub(crate) struct Admitted {
    passage: Box<Passage>,
    entry: Arc<Registered>,
    reservation: Reservation,
    permit: Option<Permit>,
}

impl Admitted {
    /// Waits for a slot; `before_long` is called first when that may take long.
    pub(crate) async fn wait(
        budgeted: Budgeted,
        scope: &Scope,
        lanes: &Lanes,
        cancel: &Cancellation,
        before_long: impl FnOnce(),
    ) -> Passed<Self> {
        let spec = budgeted.entry().tool.spec();
        if spec.needs.nests() {
            let (passage, entry, reservation) = budgeted.into_parts();
            return Ok(Self { passage, entry, reservation, permit: None });
        }
        let (tool, lane) = (spec.name.clone(), spec.lane.clone());
        let Some(bulkhead) = lanes.get(&lane) else {
            return budgeted.stop(Refusal::NotRunning { tool, part: "the lane of this tool" });
        };
        if bulkhead.has_to_be_asked() {
            before_long();
        }
        let holder = Holder { session: scope.root_session.clone(), invocation: budgeted.passage().id.clone() };
        match bulkhead.acquire(holder, cancel).await {
            Ok(permit) => {
                let (passage, entry, reservation) = budgeted.into_parts();
                Ok(Self { passage, entry, reservation, permit: Some(permit) })
            }
            Err(Shed::Cancelled(reason)) => budgeted.stop(Refusal::Cancelled { tool, reason }),
            Err(Shed::NotRunning) => budgeted.stop(Refusal::NotRunning { tool, part: "the lane of this tool" }),
            Err(shed) => {
                let retry_after_ms = match &shed {
                    Shed::QueueFull { retry_after_ms, .. } | Shed::BreakerOpen { retry_after_ms } => {
                        Some(*retry_after_ms)
                    }
                    Shed::Cancelled(_) | Shed::NotRunning => None,
                };
                let why = shed.to_string();
                budgeted.stop(Refusal::Shed { tool, lane: lane.to_string(), why, retry_after_ms })
            }
        }
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>, Reservation, Option<Permit>) {
        (self.passage, self.entry, self.reservation, self.permit)
    }
}
