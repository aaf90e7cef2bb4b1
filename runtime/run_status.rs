//! How a run ended: one value for every bound and every fault, the same in answers, events and facts.

use serde::{Deserialize, Serialize};
use toolwarden_actors::node_machine::{BodyEnd, Ending};
use toolwarden_tools::cancellation::CancelReason;

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum RunStatus {
    /// The model has said its last word.
    Completed,
    /// All rounds with tools are used; the text, if any, is what the model concluded without them.
    ToolRoundLimit {
        /// How many there were.
        rounds: u32,
    },
    /// The model made the same call again and again.
    RepeatedCalls,
    /// The model kept sending arguments that are not JSON objects.
    MalformedCalls,
    /// The model declined, or its provider's filter stopped it.
    Refused,
    /// The model's output limit cut its last word.
    Cut,
    /// The conversation does not fit into the model's window, and could not be shortened.
    ContextFull,
    /// The budget does not cover another turn.
    BudgetExhausted {
        /// Which resource.
        resource: String,
    },
    /// Somebody ended it, or its time was over.
    Cancelled {
        /// Why.
        reason: CancelReason,
    },
    /// There was no turn.
    ModelFailed {
        /// Why.
        message: String,
    },
    /// The run was lost to a fault of the runtime.
    Crashed,
    /// The process ended before the run did, and the session went on with something else.
    Interrupted,
    /// What happened could not be stored, so nothing more was done.
    StoreFailed {
        /// Why.
        message: String,
    },
}

impl RunStatus {
    /// How a run ended whose body gave nothing back.
    pub fn lost(ending: &Ending) -> Self {
        match (&ending.body, &ending.cancel) {
            (BodyEnd::Panicked(_), _) => Self::Crashed,
            (_, reason) => Self::Cancelled { reason: reason.clone().unwrap_or(CancelReason::ParentEnded) },
        }
    }

    /// Whether the run came to an answer.
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Completed)
    }

    /// The word for it: the same as in its JSON form.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ToolRoundLimit { .. } => "tool_round_limit",
            Self::RepeatedCalls => "repeated_calls",
            Self::MalformedCalls => "malformed_calls",
            Self::Refused => "refused",
            Self::Cut => "cut",
            Self::ContextFull => "context_full",
            Self::BudgetExhausted { .. } => "budget_exhausted",
            Self::Cancelled { .. } => "cancelled",
            Self::ModelFailed { .. } => "model_failed",
            Self::Crashed => "crashed",
            Self::Interrupted => "interrupted",
            Self::StoreFailed { .. } => "store_failed",
        }
    }
}

impl std::fmt::Display for RunStatus {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Completed => out.write_str("completed"),
            Self::ToolRoundLimit { rounds } => {
                write!(out, "the limit of {rounds} rounds with tools was reached; raise it or ask for less")
            }
            Self::RepeatedCalls => out.write_str("the model made the same call again and again"),
            Self::MalformedCalls => out.write_str("the model kept sending malformed arguments"),
            Self::Refused => out.write_str("the model declined to answer"),
            Self::Cut => out.write_str("the model's output limit cut its answer"),
            Self::ContextFull => out.write_str("the conversation does not fit into the model's window"),
            Self::BudgetExhausted { resource } => write!(out, "the budget of {resource} is used up"),
            Self::Cancelled { reason } => write!(out, "{reason}"),
            Self::ModelFailed { message } => out.write_str(message),
            Self::Crashed => out.write_str("the run was lost to a fault of the runtime"),
            Self::Interrupted => out.write_str("the process ended before the run did"),
            Self::StoreFailed { message } => write!(out, "the run could not be stored: {message}"),
        }
    }
}
