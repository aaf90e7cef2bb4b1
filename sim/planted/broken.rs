//! A built-in tool with a fault, in the place of the tool.

use std::sync::Arc;

use serde_json::Value;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::tool::{Subject, Tool, ToolFuture, ToolSpec};

/// What is wrong with a tool.
pub(super) trait Fault: Send + Sync + 'static {
    /// A call as it goes then; `tool` is the one that is whole.
    fn call<'a>(&'a self, tool: &'a dyn Tool, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a>;
}

/// The tool with a fault, under a name of its own.
pub(super) fn broken(tool: Arc<dyn Tool>, fault: impl Fault) -> Arc<dyn Tool> {
    let spec = ToolSpec { name: format!("broken_{}", tool.spec().name).as_str().into(), ..tool.spec().clone() };
    Arc::new(BrokenTool { tool, spec, fault })
}

struct BrokenTool<F> {
    tool: Arc<dyn Tool>,
    spec: ToolSpec,
    fault: F,
}

impl<F: Fault> Tool for BrokenTool<F> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        self.tool.capabilities(arguments)
    }

    fn subject(&self, arguments: &Value) -> Subject {
        self.tool.subject(arguments)
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        self.fault.call(&*self.tool, ctx, arguments)
    }
}
