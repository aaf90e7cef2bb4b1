//! A tool that is watched: when its work begins, each time that it is polled, and how it is over.
//!
//! Each poll is a step of the world, at which something may be done to it: between two of them a tool cannot be
//! reached by anybody, so every moment at which a cancel can come to it is among the steps.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use serde_json::Value;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{DeclaredCost, Subject, Tool, ToolFuture, ToolSpec};

use crate::fate::Fate;
use crate::sight::Sight;

/// A tool of somebody's own, under watch.
pub struct Watched {
    fate: Fate,
    tool: Arc<dyn Tool>,
}

impl Watched {
    /// Watches this tool.
    pub fn new(fate: Fate, tool: Arc<dyn Tool>) -> Self {
        Self { fate, tool }
    }
}

impl Tool for Watched {
    fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        self.tool.capabilities(arguments)
    }

    fn requires_confirmation(&self, arguments: &Value) -> Option<String> {
        self.tool.requires_confirmation(arguments)
    }

    fn cost(&self, arguments: &Value) -> DeclaredCost {
        self.tool.cost(arguments)
    }

    fn subject(&self, arguments: &Value) -> Subject {
        self.tool.subject(arguments)
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        let effects = !self.tool.capabilities(&arguments).read_only;
        watched(&self.fate, &self.spec().name, ctx, effects, self.tool.call(ctx, arguments))
    }
}

/// Watches the work of one call.
pub(super) fn watched<'a>(
    fate: &'a Fate,
    tool: &'a ToolName,
    ctx: &'a ToolContext,
    effects: bool,
    work: ToolFuture<'a>,
) -> ToolFuture<'a> {
    Box::pin(Work { fate, tool, invocation: &ctx.invocation, effects, polls: 0, returned: false, work: Some(work) })
}

struct Work<'a> {
    fate: &'a Fate,
    tool: &'a ToolName,
    invocation: &'a InvocationId,
    effects: bool,
    polls: u64,
    returned: bool,
    work: Option<ToolFuture<'a>>,
}

impl Future for Work<'_> {
    type Output = ToolOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<ToolOutcome> {
        let this = &mut *self;
        if this.polls == 0 {
            let began = Sight::Began { invocation: this.invocation, tool: this.tool, effects: this.effects };
            this.fate.see(&began);
        }
        this.polls += 1;
        let polls = this.polls;
        this.fate.step(|| format!("before poll {polls} of {}", this.tool));
        let Some(work) = &mut this.work else { return Poll::Pending };
        // A panic leaves it like that: it has ended by itself.
        this.returned = true;
        let polled = work.as_mut().poll(cx);
        this.returned = polled.is_ready();
        polled
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        // What the work holds goes first.
        self.work = None;
        if self.polls > 0 {
            let (invocation, tool, returned) = (self.invocation, self.tool, self.returned);
            self.fate.see(&Sight::Over { invocation, tool, returned });
        }
    }
}
