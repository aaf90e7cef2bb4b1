//! A proposal: a call that somebody wants, before anything was decided about it.

use std::sync::Arc;

use serde_json::{Map, Value};
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::json_depth::{JSON_DEPTH_MAX, cut};
use toolwarden_tools::registry::{Registered, TOOL_NAME_BYTES_MAX};

use crate::origin::Origin;
use crate::refusal::Refusal;

/// A call that somebody wants.
#[derive(Debug, Clone)]
pub struct Proposal {
    /// Its id.
    pub id: InvocationId,
    /// The invocation that it is nested in.
    pub parent: Option<InvocationId>,
    /// Who wants it.
    pub origin: Origin,
    /// The nesting tools that it is inside of, outermost first.
    pub ancestry: Vec<ToolName>,
    /// Which tool, with what. Arguments that are `null` count as an empty object.
    pub call: ToolCall,
}

impl Proposal {
    /// A call that nothing is known of yet. Arguments that are nested too deep are cut one level below what the
    /// schema stage takes, so that it refuses them and nothing before it overflows; a name that no tool can have is
    /// cut too, so that ids and messages stay short.
    pub fn new(id: InvocationId, origin: Origin, ancestry: Vec<ToolName>, mut call: ToolCall) -> Self {
        cut(&mut call.arguments, JSON_DEPTH_MAX);
        call.tool = short_name(call.tool);
        Self { id, parent: None, origin, ancestry, call }
    }
}

/// The name, or its beginning and a sign when it is longer than any tool's.
pub fn short_name(tool: ToolName) -> ToolName {
    if tool.as_str().len() <= TOOL_NAME_BYTES_MAX {
        return tool;
    }
    let end = tool.as_str().floor_char_boundary(TOOL_NAME_BYTES_MAX);
    format!("{}…", &tool.as_str()[..end]).into()
}

/// A proposal on its way through the route; the stages hand it on, each in a value of its own kind.
pub(crate) struct Passage {
    pub(crate) id: InvocationId,
    pub(crate) origin: Origin,
    pub(crate) ancestry: Vec<ToolName>,
    pub(crate) tool: ToolName,
    pub(crate) arguments: Value,
    pub(crate) entry: Option<Arc<Registered>>,
}

impl From<Proposal> for Passage {
    fn from(proposal: Proposal) -> Self {
        let Proposal { id, parent: _, origin, ancestry, call } = proposal;
        let arguments = match call.arguments {
            Value::Null => Value::Object(Map::new()),
            arguments => arguments,
        };
        Self { id, origin, ancestry, tool: call.tool, arguments, entry: None }
    }
}

/// A call that a stage did not let through.
pub(crate) struct Stopped {
    pub(crate) refusal: Refusal,
    pub(crate) passage: Box<Passage>,
}

/// What a stage gives on: the next stage's value, or the end of the way.
pub(crate) type Passed<T> = Result<T, Box<Stopped>>;

impl Passage {
    /// Ends the way here.
    pub(crate) fn stop<T>(self: Box<Self>, refusal: Refusal) -> Passed<T> {
        Err(Box::new(Stopped { refusal, passage: self }))
    }
}
