//! Hooks of the host: asked before a call, told after it.
//!
//! Before: a hook may let the call go on, rewrite its arguments (they are checked again, once for each rewrite),
//! refuse it, or ask for a later try. After: it may add facts to the metadata; the output is not its own.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value};
use toolwarden_tools::ids::{InvocationId, SessionId, ToolName};
use toolwarden_tools::outcome::ToolOutcome;

use crate::origin::Origin;

/// A hook of the host.
pub trait Hook: Send + Sync {
    /// Its name, in refusals and annotations.
    fn name(&self) -> &str;

    /// Asked before anything is decided about a call. Taking time delays the call; its cancel ends the wait.
    fn before<'a>(&'a self, _call: HookedCall<'a>) -> BoxFuture<'a, HookVerdict> {
        Box::pin(std::future::ready(HookVerdict::Continue))
    }

    /// Told after a call; what it returns is added to the metadata.
    fn after<'a>(&'a self, _call: HookedCall<'a>, _outcome: &'a ToolOutcome) -> BoxFuture<'a, Map<String, Value>> {
        Box::pin(std::future::ready(Map::new()))
    }
}

/// A call as a hook sees it.
#[derive(Debug, Clone, Copy)]
pub struct HookedCall<'a> {
    /// The session.
    pub session: &'a SessionId,
    /// The invocation.
    pub invocation: &'a InvocationId,
    /// Who proposed it.
    pub origin: Origin,
    /// The tool.
    pub tool: &'a ToolName,
    /// The arguments.
    pub arguments: &'a Value,
}

/// What a hook says before a call.
#[derive(Debug, Clone, PartialEq)]
pub enum HookVerdict {
    /// Go on.
    Continue,
    /// Go on with these arguments.
    Rewrite(Value),
    /// Do not go on.
    Deny {
        /// Why; told to the model.
        reason: String,
    },
    /// Do not go on now.
    RetryLater {
        /// Why; told to the model.
        reason: String,
        /// When the same call may be tried again, in milliseconds.
        after_ms: Option<u64>,
    },
}
