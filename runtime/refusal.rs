//! A refusal: the decision of a stage that a call does not go on. A value, not an error; it settles like a result.

use serde_json::json;
use thiserror::Error;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::ids::ToolName;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome, Trust};

/// Why a call does not go on, and at which stage.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Stage 1: a tool inside itself.
    #[error("{tool} cannot be called inside of {tool}; call the tools directly")]
    Recursive {
        /// The tool.
        tool: ToolName,
    },
    /// Stage 1: calls nested too deep.
    #[error("{tool} is nested {depth} levels deep; at most {depth_max} are allowed")]
    TooDeep {
        /// The tool.
        tool: ToolName,
        /// How deep the call would be.
        depth: usize,
        /// How deep it may be.
        depth_max: usize,
    },
    /// Stage 2: no such tool.
    #[error("unknown tool {tool}{}", hint(.similar))]
    UnknownTool {
        /// The name.
        tool: ToolName,
        /// Names that look like it.
        similar: Vec<ToolName>,
    },
    /// Stage 2: arguments that do not fit.
    #[error("invalid arguments for {tool}: {faults}. Change the arguments before trying again")]
    Arguments {
        /// The tool.
        tool: ToolName,
        /// What is wrong where.
        faults: String,
    },
    /// Stage 3: a hook said no.
    #[error("a hook refused {tool}: {reason}{}", retry(*.retryable, *.retry_after_ms))]
    Hook {
        /// The tool.
        tool: ToolName,
        /// Its reason.
        reason: String,
        /// Whether the unchanged call may be tried again.
        retryable: bool,
        /// After how long.
        retry_after_ms: Option<u64>,
    },
    /// Stage 4: the active skill does not allow it.
    #[error("the active skill does not allow {tool}: {why}")]
    Skill {
        /// The tool.
        tool: ToolName,
        /// Which limit.
        why: String,
    },
    /// Stage 5: the policy says no.
    #[error("{tool} is denied by policy ({rule}): {why}")]
    Policy {
        /// The tool.
        tool: ToolName,
        /// The rule.
        rule: String,
        /// What it matched.
        why: String,
    },
    /// Stage 6: a person said no, or none could be asked.
    #[error("{tool} was not confirmed: {why}")]
    NotConfirmed {
        /// The tool.
        tool: ToolName,
        /// What happened.
        why: String,
    },
    /// Stage 7: the budget does not cover it.
    #[error(
        "the budget does not cover {tool}: {resource} has {consumed} of {limit} used. Ask for a larger budget or stop"
    )]
    Budget {
        /// The tool.
        tool: ToolName,
        /// Which resource.
        resource: String,
        /// What is used.
        consumed: u64,
        /// What there is.
        limit: u64,
    },
    /// Stage 7: nothing can be reserved, whatever is left.
    #[error("{tool} did not run, because its budget cannot be charged: {why}")]
    Unpaid {
        /// The tool.
        tool: ToolName,
        /// What the ledger says, with what to do.
        why: String,
    },
    /// Stage 8: too much is going on, or what the lane reaches is down.
    #[error("{tool} was shed by lane {lane}: {why}")]
    Shed {
        /// The tool.
        tool: ToolName,
        /// The lane.
        lane: String,
        /// Queue full or breaker open.
        why: String,
        /// When to try again.
        retry_after_ms: Option<u64>,
    },
    /// Any stage: the call was cancelled while it waited.
    #[error("{tool} did not run: {reason}")]
    Cancelled {
        /// The tool.
        tool: ToolName,
        /// Why.
        reason: CancelReason,
    },
    /// Any stage: a part of the runtime that the stage asks is not there.
    #[error("{tool} did not run: {part} is not running. Try again")]
    NotRunning {
        /// The tool.
        tool: ToolName,
        /// Which part.
        part: &'static str,
    },
}

impl Refusal {
    /// The stage that refused, as hosts read it.
    pub fn stage(&self) -> &'static str {
        match self {
            Self::Recursive { .. } | Self::TooDeep { .. } => "recursion",
            Self::UnknownTool { .. } | Self::Arguments { .. } => "schema",
            Self::Hook { .. } => "hook",
            Self::Skill { .. } => "skill",
            Self::Policy { .. } => "permission",
            Self::NotConfirmed { .. } => "confirmation",
            Self::Budget { .. } | Self::Unpaid { .. } => "budget",
            Self::Shed { .. } => "admission",
            Self::Cancelled { .. } | Self::NotRunning { .. } => "interrupted",
        }
    }

    /// Whether a decision denied it, as against a call that was malformed or interrupted.
    pub fn is_denial(&self) -> bool {
        matches!(
            self,
            Self::Recursive { .. }
                | Self::TooDeep { .. }
                | Self::Hook { .. }
                | Self::Skill { .. }
                | Self::Policy { .. }
                | Self::NotConfirmed { .. }
        )
    }

    /// The refusal as the outcome of its call.
    pub fn into_outcome(self) -> ToolOutcome {
        let text = self.to_string();
        let stage = self.stage();
        let kind = match self {
            Self::UnknownTool { .. } | Self::Arguments { .. } => {
                Some(ToolErrorKind::InvalidArgument { message: text.clone() })
            }
            Self::Hook { reason, retryable, retry_after_ms, .. } => {
                Some(ToolErrorKind::HookDenied { reason, retryable, retry_after_ms })
            }
            Self::Budget { resource, .. } => Some(ToolErrorKind::BudgetExhausted { resource }),
            Self::Shed { lane, retry_after_ms, .. } => Some(ToolErrorKind::Overloaded { lane, retry_after_ms }),
            Self::Cancelled { tool, reason } => {
                Some(ToolErrorKind::Cancelled { op: tool.to_string(), reason: Some(reason) })
            }
            _ => None,
        };
        let outcome = ToolOutcome { error: kind, ..ToolOutcome::failure(text) };
        outcome.with("refused", json!({ "stage": stage })).trusted(Trust::Trusted)
    }
}

fn hint(similar: &[ToolName]) -> String {
    match similar {
        [] => "; name one of the tools on offer".to_owned(),
        names => {
            let names: Vec<&str> = names.iter().map(ToolName::as_str).collect();
            format!("; did you mean {}?", names.join(" or "))
        }
    }
}

fn retry(retryable: bool, retry_after_ms: Option<u64>) -> String {
    match (retryable, retry_after_ms) {
        (true, Some(span)) => format!(". The same call may be tried again after {span} ms"),
        (true, None) => ". The same call may be tried again".to_owned(),
        (false, _) => ". The same call will be refused again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use toolwarden_actors::accounts::LedgerError;
    use toolwarden_tools::outcome::ToolErrorKind;

    use super::Refusal;

    #[test]
    fn a_refusal_says_what_to_do_and_keeps_its_kind() {
        let refusal = Refusal::UnknownTool { tool: "serach".into(), similar: vec!["search".into()] };
        let outcome = refusal.into_outcome();
        assert!(outcome.output.contains("did you mean search?"), "{}", outcome.output);
        assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })));
        assert_eq!(outcome.metadata["refused"]["stage"], "schema");
        let hook =
            Refusal::Hook { tool: "bash".into(), reason: "busy".into(), retryable: true, retry_after_ms: Some(5) };
        assert!(hook.to_string().contains("after 5 ms"));
        // Found in a review: a ledger that could not be asked read as a budget of which "0 of 0" were used.
        let why = LedgerError::TooManyReservations.to_string();
        let unpaid = Refusal::Unpaid { tool: "bash".into(), why };
        assert_eq!(unpaid.stage(), "budget");
        let text = unpaid.into_outcome().output;
        assert!(text.contains("wait for running calls to end") && !text.contains("0 of 0"), "{text}");
    }
}
