//! What a tool call gives back: text for the model, facts for the host, and a typed error where it failed.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cancellation::CancelReason;

/// Where the text of an outcome comes from, and so how far it may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Written by the runtime itself (refusals, gateway errors).
    Trusted,
    /// Read from the workspace.
    #[default]
    WorkspaceData,
    /// Came from outside: the web, MCP servers, downloads.
    External,
}

impl Trust {
    /// The lesser of two: a mixed text is to be believed no more than its least believable part.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        let distance = |trust: Self| match trust {
            Self::Trusted => 0,
            Self::WorkspaceData => 1,
            Self::External => 2,
        };
        if distance(other) > distance(self) { other } else { self }
    }
}

/// Bytes that travel beside the text: an image for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// Media type, such as `image/png`.
    pub media_type: String,
    /// The bytes, unencoded.
    pub bytes: Vec<u8>,
}

/// The typed kind of a failure; its JSON form is tagged by `type`. A failure without a kind gives no retry advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolErrorKind {
    /// The file changed since this session read it.
    VersionConflict {
        /// Workspace path.
        path: String,
        /// Digest that the write was based on.
        expected: String,
        /// Digest found, when known.
        #[serde(skip_serializing_if = "Option::is_none")]
        actual: Option<String>,
    },
    /// A remote git server refused.
    RemoteGitConflict {
        /// Its code.
        code: String,
        /// Its words.
        message: String,
    },
    /// Nothing at this path.
    NotFound {
        /// Workspace path.
        path: String,
    },
    /// The arguments cannot be carried out as they are; changing them can help.
    InvalidArgument {
        /// What is wrong with which argument.
        message: String,
    },
    /// A hook said no.
    HookDenied {
        /// Its reason.
        reason: String,
        /// Whether the unchanged call may be tried again.
        retryable: bool,
        /// After how many milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// This workspace or host cannot do it.
    Unsupported {
        /// What is missing.
        message: String,
    },
    /// A deadline passed.
    Timeout {
        /// What ran.
        op: String,
        /// The span that was allowed.
        duration_ms: u64,
    },
    /// Reading or writing failed underway.
    Transport {
        /// What ran.
        op: String,
    },
    /// Somebody ended it.
    Cancelled {
        /// What ran.
        op: String,
        /// Why it ended.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<CancelReason>,
    },
    /// Some members of a fan-out failed.
    PartialFailure {
        /// How many failed.
        failed: usize,
        /// Of how many.
        total: usize,
    },
    /// Too many calls.
    RateLimited {
        /// When to try again, in milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// A queue or a circuit breaker shed the call before it did anything.
    Overloaded {
        /// The lane.
        lane: String,
        /// When to try again, in milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The session's budget does not cover the call.
    BudgetExhausted {
        /// Which resource.
        resource: String,
    },
    /// The tool itself broke (a panic); nothing is known of what it did.
    Crashed,
}

/// How an output differs from its whole, when a tool gives less and has written the whole to its spool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Excerpt {
    /// Not at all: the output is the whole.
    #[default]
    Whole,
    /// A part is left out of its middle or its end.
    Cut {
        /// How many bytes of the whole are shown.
        shown_bytes: u64,
    },
    /// Lines are shown as they were drawn last, or without their middle.
    Rewritten,
    /// Both.
    RewrittenAndCut,
}

/// A text behind an outcome that is too long for its metadata, to be kept beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideText {
    /// Which one: `before` or `after`.
    pub side: &'static str,
    /// Which fact gets the reference: a JSON pointer into the metadata, to an object.
    pub at: String,
    /// The text.
    pub text: String,
}

/// What a tool call gives back.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolOutcome {
    /// Text for the model; empty is allowed.
    pub output: String,
    /// 0 means success; anything else failure.
    pub exit_code: i32,
    /// Facts for the host, by key.
    pub metadata: Map<String, Value>,
    /// Images and the like.
    pub attachments: Vec<Attachment>,
    /// The typed kind of the failure.
    pub error: Option<ToolErrorKind>,
    /// Where the text comes from.
    pub trust: Trust,
    /// Whether `output` is less than the whole that was written to the call's spool.
    pub excerpt: Excerpt,
    /// Texts to be kept by reference.
    pub sides: Vec<SideText>,
}

impl ToolOutcome {
    /// A success with this text.
    pub fn success(output: impl Into<String>) -> Self {
        Self { output: output.into(), ..Self::default() }
    }

    /// A failure with this text and no typed kind.
    pub fn failure(output: impl Into<String>) -> Self {
        Self { output: output.into(), exit_code: 1, ..Self::default() }
    }

    /// A failure of this kind.
    pub fn error(kind: ToolErrorKind, output: impl Into<String>) -> Self {
        Self { error: Some(kind), ..Self::failure(output) }
    }

    /// The arguments are wrong; the text says which and how to mend them.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        let message = message.into();
        Self::error(ToolErrorKind::InvalidArgument { message: message.clone() }, message)
    }

    /// The call ended early for this reason: a deadline is a time-out, everything else a cancel.
    pub fn ended_early(op: &str, reason: &CancelReason) -> Self {
        let kind = match reason {
            CancelReason::Deadline { timeout_ms } => {
                ToolErrorKind::Timeout { op: op.to_owned(), duration_ms: *timeout_ms }
            }
            other => ToolErrorKind::Cancelled { op: op.to_owned(), reason: Some(other.clone()) },
        };
        Self { trust: Trust::Trusted, ..Self::error(kind, format!("{op}: {reason}")) }
    }

    /// No result came back: what the call did is not known.
    pub fn lost() -> Self {
        Self::error(ToolErrorKind::Crashed, "no result came back; what the call did is not known")
    }

    /// The same outcome with one more fact.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(key.to_owned(), value.into());
        self
    }

    /// The same outcome with this trust.
    #[must_use]
    pub fn trusted(mut self, trust: Trust) -> Self {
        self.trust = trust;
        self
    }

    /// Whether the call did what it was asked.
    pub fn is_success(&self) -> bool {
        self.exit_code == 0
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{CancelReason, ToolErrorKind, ToolOutcome};

    #[test]
    fn kinds_are_tagged_by_type() {
        let kind = ToolErrorKind::Timeout { op: "bash".into(), duration_ms: 1000 };
        assert_eq!(serde_json::to_value(kind).unwrap(), json!({"type": "timeout", "op": "bash", "duration_ms": 1000}));
    }

    #[test]
    fn a_passed_deadline_is_a_timeout_and_a_request_is_a_cancel() {
        let timeout = ToolOutcome::ended_early("bash", &CancelReason::Deadline { timeout_ms: 7 });
        assert_eq!(timeout.error, Some(ToolErrorKind::Timeout { op: "bash".into(), duration_ms: 7 }));
        let cancel = ToolOutcome::ended_early("bash", &CancelReason::Requested);
        assert!(matches!(cancel.error, Some(ToolErrorKind::Cancelled { .. })));
    }
}
