//! What can be asked of a turn beyond the conversation: forced tools, a shape for the answer, bounds, labels.
//!
//! Each protocol says these its own way, or cannot say them; an adapter leaves out what its protocol does not have, so
//! whoever depends on one checks the answer. The default asks for nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is asked of one turn.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnOptions {
    /// Which tools the turn must call.
    pub tool_choice: ToolChoice,
    /// Whether one call a turn is all that is wanted.
    pub single_call: bool,
    /// The shape of the text; none for prose.
    pub output: Option<OutputShape>,
    /// The most tokens that the turn may write; none takes the model's own setting.
    pub output_tokens_max: Option<u64>,
    /// Requests with the same key share most of their beginning, and a provider may keep that for the next.
    pub cache_key: Option<String>,
    /// Labels for the provider's books.
    pub metadata: BTreeMap<String, String>,
}

/// Which tools a turn must call.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// Whatever the model thinks best.
    #[default]
    Auto,
    /// Any, but at least one.
    Required,
    /// This one.
    Named(String),
}

/// The shape of a turn's text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputShape {
    /// Any JSON object; the word JSON has to stand in the conversation.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema {
        /// A name for it: letters, digits, `_` and `-`, at most 64.
        name: String,
        /// The schema, in the subset that the provider takes.
        schema: Value,
        /// Whether the provider must hold the model to it.
        strict: bool,
    },
}
