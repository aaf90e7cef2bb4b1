//! Planted faults of workflows and scripts: a wait that is not waited, an end without a clean-up, calls that nobody ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden_tools::builtin::dynamic_workflow::DynamicWorkflowTool;
use toolwarden_tools::builtin::program::ProgramTool;
use toolwarden_tools::context::{Invoke, ToolCall, ToolContext};
use toolwarden_tools::declaration::{Capabilities, ToolDefinition};
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{Tool, ToolFuture};

use super::broken::{Fault, broken};
use super::{Planted, Wrap};

/// All of them.
pub(super) const SCRIPT: [Planted; 3] = [
    tool(
        "no-backoff",
        "another attempt comes at once",
        "dynamic_workflow",
        || broken(Arc::new(DynamicWorkflowTool::new()), Bend::Hasty),
        "world-workflow",
        "workflow",
        20,
    ),
    tool(
        "no-clean-up",
        "a cancelled workflow is not asked to clean up",
        "dynamic_workflow",
        || broken(Arc::new(DynamicWorkflowTool::new()), Bend::AtOnce),
        "world-workflow-cancel",
        "workflow",
        20,
    ),
    tool(
        "calls-let-go",
        "what a script does not wait for goes on",
        "program",
        || broken(Arc::new(ProgramTool::new()), Bend::LetsGo),
        "world-programs",
        "scripts",
        20,
    ),
];

const fn tool(
    name: &'static str,
    about: &'static str,
    of: &'static str,
    make: fn() -> Arc<dyn Tool>,
    scenario: &'static str,
    watcher: &'static str,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario, watcher, seeds_max, wrap: Wrap::Tool { of, make } }
}

/// How a tool is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bend {
    Hasty,
    AtOnce,
    LetsGo,
}

impl Fault for Bend {
    fn call<'a>(&'a self, tool: &'a dyn Tool, ctx: &'a ToolContext, mut arguments: Value) -> ToolFuture<'a> {
        let mut given = ctx.clone();
        match self {
            Bend::Hasty => given.clock = Arc::new(Hasty { clock: Arc::clone(&ctx.clock), looks: AtomicU64::new(0) }),
            Bend::AtOnce if arguments.get("cancel").is_some() => arguments["cancel_at_once"] = json!(true),
            Bend::AtOnce => {}
            Bend::LetsGo => {
                given.invoke = ctx.invoke.clone().map(|invoke| Arc::new(LettingGo { invoke }) as Arc<dyn Invoke>);
            }
        }
        Box::pin(async move { tool.call(&given, arguments).await })
    }
}

/// A clock that is an hour later at each look.
struct Hasty {
    clock: Arc<dyn Clock>,
    looks: AtomicU64,
}

impl Clock for Hasty {
    fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    fn unix_ms(&self) -> u64 {
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        self.clock.unix_ms().saturating_add(looks.saturating_mul(3_600_000))
    }
}

/// A way to other tools whose calls go on when nobody waits for them.
struct LettingGo {
    invoke: Arc<dyn Invoke>,
}

impl Invoke for LettingGo {
    fn invoke_all(&self, calls: Vec<ToolCall>, width: usize) -> BoxFuture<'_, Vec<ToolOutcome>> {
        self.invoke.invoke_all(calls, width)
    }

    fn invoke(&self, call: ToolCall) -> BoxFuture<'_, ToolOutcome> {
        let invoke = Arc::clone(&self.invoke);
        let goes_on = tokio::spawn(async move { invoke.invoke(call).await });
        goes_on.map(|ended| ended.unwrap_or_else(|lost| ToolOutcome::failure(lost.to_string()))).boxed()
    }

    fn capabilities(&self, call: &ToolCall) -> Option<Capabilities> {
        self.invoke.capabilities(call)
    }

    fn available(&self) -> Vec<ToolDefinition> {
        self.invoke.available()
    }

    fn has(&self, tool: &str) -> bool {
        self.invoke.has(tool)
    }
}
