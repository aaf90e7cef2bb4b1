//! What a call came to, as everybody sees it: hosts, models, events and, later, proof.

use serde::Serialize;
use serde_json::{Map, Value};
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::outcome::{Attachment, ToolErrorKind, ToolOutcome, Trust};

/// The settled result of one invocation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CallResult {
    /// The invocation.
    pub id: InvocationId,
    /// Its tool.
    pub name: ToolName,
    /// The projected output: sanitised, and cut when it was too long (the evidence says how).
    pub output: String,
    /// 0 means success.
    pub exit_code: i32,
    /// Facts for the host, the evidence among them.
    pub metadata: Map<String, Value>,
    /// The typed kind of a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<ToolErrorKind>,
    /// Where the output comes from.
    pub trust: Trust,
    /// Images and the like.
    #[serde(skip)]
    pub attachments: Vec<Attachment>,
}

impl CallResult {
    /// Whether the call did what it was asked.
    pub fn is_success(&self) -> bool {
        self.exit_code == 0
    }

    /// The same as a tool sees a call that it made.
    pub fn into_outcome(self) -> ToolOutcome {
        ToolOutcome {
            output: self.output,
            exit_code: self.exit_code,
            metadata: self.metadata,
            attachments: self.attachments,
            error: self.error_kind,
            trust: self.trust,
            ..ToolOutcome::default()
        }
    }
}
