//! What the tests of the built-in tools share: a context over a folder, and checked calls.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::cancellation::Cancellation;
use crate::context::{NoProgress, NoSpool, ToolContext};
use crate::effects::clock::SystemClock;
use crate::ids::{InvocationId, SessionId};
use crate::outcome::ToolOutcome;
use crate::schema::Schema;
use crate::tool::Tool;
use crate::workspace::seen::SeenFiles;
use crate::workspace::{Workspace, WorkspaceCapabilities, local};

/// A context over a real folder, without the ways up.
pub(crate) fn context(root: &Path) -> ToolContext {
    context_over(local::open(root, WorkspaceCapabilities::local_default(), None).unwrap())
}

/// A context over any workspace, without the ways up.
pub(crate) fn context_over(workspace: Workspace) -> ToolContext {
    ToolContext {
        invocation: InvocationId::new("invocation-1"),
        session: SessionId::new("session-1"),
        workspace,
        seen: Arc::new(SeenFiles::default()),
        cancel: Cancellation::new(),
        clock: Arc::new(SystemClock::new()),
        progress: Arc::new(NoProgress),
        spool: Arc::new(NoSpool),
        web: None,
        invoke: None,
        delegate: None,
        background: None,
    }
}

/// Calls a tool the way the route does: the arguments must fit its schema first.
pub(crate) async fn call(tool: &dyn Tool, ctx: &ToolContext, arguments: Value) -> ToolOutcome {
    Schema::compile(&tool.spec().parameters).unwrap().check(&arguments).unwrap();
    tool.call(ctx, arguments).await
}

/// What the schema of a tool says against these arguments.
pub(crate) fn faults(tool: &dyn Tool, arguments: &Value) -> String {
    Schema::compile(&tool.spec().parameters).unwrap().check(arguments).unwrap_err()
}
