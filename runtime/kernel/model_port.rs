//! The way from a call or a run to its model: within the budget, through the gate, under its cancel.
//!
//! Whoever asks a model asks here, so that no request is without a reservation and none outlives its cancel. What must
//! stay true: what a turn used is settled with its account, and a request that is given up uses nothing.

use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use toolwarden_actors::accounts::LedgerError;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::permit_pool::Shed;
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::generation::{Generate, GeneratedObject, ObjectFailure, ObjectRequest, Partials};
use toolwarden_tools::ids::InvocationId;
use toolwarden_tools::outcome::ToolErrorKind;
use toolwarden_tools::tool::Lane;

use super::Kernel;
use crate::models::gate::{Asking, MODEL_PERMITS, TurnFailure};
use crate::models::object_support::ObjectSupport;
use crate::models::transcript::message_bytes;
use crate::models::{Model, ModelError, ModelRequest, ModelTurn, TurnSink};
use crate::scope::Scope;
use crate::settlement::evidence::estimated_tokens;
use crate::structured::generation::{Ask, Generation};

/// The way to one model for one call or run.
pub struct ModelPort {
    /// The runtime's parts.
    pub kernel: Arc<Kernel>,
    /// Whose budget is used, and for whom the slot is.
    pub scope: Arc<Scope>,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// The call or the run that the slot is for.
    pub holder: InvocationId,
    /// Ends it.
    pub cancel: Cancellation,
}

/// Why there is no turn.
#[derive(Debug)]
pub enum NoTurn {
    /// The budget does not cover it.
    Budget {
        /// Which resource.
        resource: String,
    },
    /// The ledger is not there.
    Ledger(LedgerError),
    /// The gate gave none.
    Gate(TurnFailure),
}

impl ModelPort {
    /// Takes a turn.
    ///
    /// # Errors
    /// [`NoTurn`].
    pub async fn turn(&self, request: &ModelRequest, sink: &dyn TurnSink) -> Result<ModelTurn, NoTurn> {
        let amount = Amount { input_tokens: request_tokens(request), ..Amount::default() };
        let reservation = match self.kernel.ledger.reserve(&self.scope.account, amount).await {
            Ok(reservation) => reservation,
            Err(LedgerError::Refused(refused)) => {
                return Err(NoTurn::Budget { resource: refused.resource.to_string() });
            }
            Err(other) => return Err(NoTurn::Ledger(other)),
        };
        let holder = Holder { session: self.scope.root_session.clone(), invocation: self.holder.clone() };
        let asking = Asking { model: &*self.model, request, sink, holder, cancel: &self.cancel };
        let turn = self.kernel.models.turn(asking).await.map_err(NoTurn::Gate)?;
        reservation.settle(Amount {
            input_tokens: turn.usage.input_tokens,
            output_tokens: turn.usage.output_tokens,
            cost_microusd: self.model.cost_microusd(turn.usage),
            ..Amount::default()
        });
        Ok(turn)
    }
}

impl Generate for ModelPort {
    fn generate<'a>(
        &'a self,
        request: &'a ObjectRequest,
        partials: &'a dyn Partials,
    ) -> BoxFuture<'a, Result<GeneratedObject, ObjectFailure>> {
        let clock = &self.kernel.effects.clock;
        let cache_key = self.scope.session.as_str();
        Generation { ask: self, request, partials, clock, cache_key }.run().boxed()
    }
}

impl Ask for ModelPort {
    fn object_support(&self) -> ObjectSupport {
        self.model.object_support()
    }

    fn concurrency_max(&self) -> usize {
        let own = self.model.concurrency_max().unwrap_or(MODEL_PERMITS);
        self.kernel.lanes.get(&Lane::Model).map_or(own, |lane| lane.limits().permits.min(own))
    }

    fn ask<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ObjectFailure>> {
        async move { self.turn(request, sink).await.map_err(failure) }.boxed()
    }
}

fn failure(no_turn: NoTurn) -> ObjectFailure {
    let told = |kind, message| ObjectFailure::Model { message, kind };
    match no_turn {
        NoTurn::Budget { resource } => ObjectFailure::Budget { resource },
        NoTurn::Ledger(error) => told(None, error.to_string()),
        NoTurn::Gate(TurnFailure::Cancelled(reason)) => ObjectFailure::Cancelled(reason),
        NoTurn::Gate(TurnFailure::Shed(Shed::Cancelled(reason))) => ObjectFailure::Cancelled(reason),
        NoTurn::Gate(TurnFailure::Shed(shed)) => {
            let retry_after_ms = match shed {
                Shed::QueueFull { retry_after_ms, .. } | Shed::BreakerOpen { retry_after_ms } => Some(retry_after_ms),
                Shed::Cancelled(_) | Shed::NotRunning => None,
            };
            let kind = ToolErrorKind::Overloaded { lane: Lane::Model.to_string(), retry_after_ms };
            told(Some(kind), shed.to_string())
        }
        NoTurn::Gate(TurnFailure::Model(error)) => told(kind_of(&error), error.to_string()),
    }
}

/// By status and codes only, as the error itself.
fn kind_of(error: &ModelError) -> Option<ToolErrorKind> {
    let transport = || Some(ToolErrorKind::Transport { op: "generate_object".to_owned() });
    match error {
        ModelError::RateLimited { retry_after_ms } => {
            Some(ToolErrorKind::RateLimited { retry_after_ms: *retry_after_ms })
        }
        ModelError::LeftAlone { retry_after_ms, .. } => {
            Some(ToolErrorKind::Overloaded { lane: Lane::Model.to_string(), retry_after_ms: Some(*retry_after_ms) })
        }
        ModelError::Unreachable { .. } | ModelError::NoConnection { .. } | ModelError::Incomplete { .. } => transport(),
        ModelError::TimedOut { timeout_ms, .. } => {
            Some(ToolErrorKind::Timeout { op: "generate_object".to_owned(), duration_ms: *timeout_ms })
        }
        ModelError::Provider { retryable: true, .. } => transport(),
        ModelError::Invalid { message } | ModelError::ContextOverflow { message } => {
            Some(ToolErrorKind::InvalidArgument { message: message.clone() })
        }
        ModelError::Provider { .. }
        | ModelError::Unauthorized { .. }
        | ModelError::Unreadable { .. }
        | ModelError::TooLarge { .. }
        | ModelError::ScriptExhausted { .. } => None,
    }
}

/// Tokens that a request is estimated to have: a quarter of its bytes.
pub fn request_tokens(request: &ModelRequest) -> u64 {
    let messages = request.messages.iter().map(message_bytes);
    let bytes = request.system.len() + messages.sum::<usize>() + request.tools.bytes();
    u64::try_from(estimated_tokens(bytes)).unwrap_or(u64::MAX)
}
