//! What a tool says of itself: its definition for a model, and what a call could do.
//!
//! Plain data below [`crate::context`] and [`crate::tool`], for both need it: the ports of a context answer with
//! it, and a tool answers with it too.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::ToolName;

/// What a model is told of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// Its name.
    pub name: ToolName,
    /// Its description.
    pub description: String,
    /// Its parameters as JSON Schema.
    pub parameters: Value,
}

/// The shape of a tool's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputKind {
    /// Prose or listings.
    Text,
    /// JSON.
    Structured,
    /// A diff.
    Diff,
    /// Text with attachments.
    Mixed,
}

/// What a call could do, by its tool's own declaration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Changes nothing.
    pub read_only: bool,
    /// Twice is as good as once.
    pub idempotent: bool,
    /// Can go on after an interruption.
    pub resumable: bool,
    /// Ends cleanly when cancelled.
    pub cancellation_safe: bool,
    /// Takes `limit` and `cursor`.
    pub supports_pagination: bool,
    /// How many such calls may run beside each other.
    pub max_parallelism: usize,
    /// The shape of its output.
    pub output_kind: OutputKind,
}

impl Capabilities {
    /// Nothing is promised.
    pub fn conservative() -> Self {
        Self {
            read_only: false,
            idempotent: false,
            resumable: false,
            cancellation_safe: false,
            supports_pagination: false,
            max_parallelism: 1,
            output_kind: OutputKind::Text,
        }
    }

    /// A paginated read, this many beside each other.
    pub fn read_only_paginated(max_parallelism: usize) -> Self {
        Self {
            read_only: true,
            idempotent: true,
            resumable: true,
            cancellation_safe: true,
            supports_pagination: true,
            max_parallelism,
            output_kind: OutputKind::Text,
        }
    }

    /// A plain read, this many beside each other.
    pub fn parallel_safe_read(max_parallelism: usize) -> Self {
        Self { resumable: false, supports_pagination: false, ..Self::read_only_paginated(max_parallelism) }
    }

    /// Whether `batch` may run such calls beside each other.
    pub fn allows_parallel_batch(&self) -> bool {
        self.read_only && self.idempotent && self.cancellation_safe && self.max_parallelism > 1
    }
}
