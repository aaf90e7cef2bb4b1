//! What a running tool holds: its grants, its cancel signal, and the ports that lead up.
//!
//! Least authority: a port is there only when the tool's [`crate::tool::Needs`] name it. The three ways up (call
//! a tool, ask the model for an object, start child runs) are ports that the runtime implements; the runtime sets the
//! origin, so a nested call passes the same route as any other.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::background::Background;
use crate::cancellation::Cancellation;
use crate::declaration::{Capabilities, ToolDefinition};
use crate::effects::clock::Clock;
use crate::effects::processes::Stream;
use crate::generation::Generate;
use crate::ids::{InvocationId, SessionId, TaskId, ToolName};
use crate::outcome::ToolOutcome;
use crate::web::Web;
use crate::workspace::Workspace;
use crate::workspace::seen::SeenFiles;

/// What a tool holds while it runs; cheap to clone.
#[derive(Clone)]
pub struct ToolContext {
    /// The call.
    pub invocation: InvocationId,
    /// The session it belongs to; identity never comes from an argument.
    pub session: SessionId,
    /// Where it works.
    pub workspace: Workspace,
    /// What this session has read, for refusing writes over changes it never saw.
    pub seen: Arc<SeenFiles>,
    /// Given when the call is to end.
    pub cancel: Cancellation,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Takes text while the call runs; it reaches hosts, never the model.
    pub progress: Arc<dyn Progress>,
    /// Takes the whole of an output of which the tool gives a part.
    pub spool: Arc<dyn Spool>,
    /// The way to the web; only for tools that need it.
    pub web: Option<Web>,
    /// Calls other tools; only for tools that need it.
    pub invoke: Option<Arc<dyn Invoke>>,
    /// Asks the session's model for objects; only for tools that need it.
    pub generate: Option<Arc<dyn Generate>>,
    /// Starts child runs; only for tools that need it.
    pub delegate: Option<Arc<dyn Delegate>>,
    /// The session's background processes; only for tools that need them, where commands may be run.
    pub background: Option<Arc<dyn Background>>,
}

/// Takes output while a call runs.
pub trait Progress: Send + Sync {
    /// One piece of text; must not block.
    fn delta(&self, text: &str);

    /// One piece of text of a command, with what is known of its streams; must not block.
    fn streams(&self, text: &str, _streams: Option<DeltaStreams>) {
        self.delta(text);
    }
}

/// Which stream a piece of text came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum DeltaStreams {
    /// All of it from this one.
    One(Stream),
    /// Some of it from each.
    Both {
        /// What came on standard output.
        #[serde(rename = "stdout")]
        out: String,
        /// What came on standard error.
        #[serde(rename = "stderr")]
        err: String,
    },
}

/// Drops everything: for calls that nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn delta(&self, _text: &str) {}
}

/// Takes the whole of an output that is too long to be held, as it comes. It is sanitised on its way, and kept when
/// the outcome says that its own output is less ([`crate::outcome::Excerpt`]).
pub trait Spool: Send + Sync {
    /// The next bytes; what is not UTF-8 among them is replaced. May block for as long as a write to a file takes.
    fn write(&self, bytes: &[u8]);
}

/// Keeps nothing: for calls whose output is looked at and thrown away.
#[derive(Debug, Clone, Copy)]
pub struct NoSpool;

impl Spool for NoSpool {
    fn write(&self, _bytes: &[u8]) {}
}

/// A tool call before anything was decided about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Which tool.
    pub tool: ToolName,
    /// With what.
    pub arguments: Value,
}

/// Calls tools through the governed route.
pub trait Invoke: Send + Sync {
    /// Calls many tools, at most `width` at a time, and returns their outcomes in the order of `calls`.
    /// Dropping the future cancels what runs.
    fn invoke_all(&self, calls: Vec<ToolCall>, width: usize) -> BoxFuture<'_, Vec<ToolOutcome>>;

    /// Calls one tool. Dropping the future cancels it.
    fn invoke(&self, call: ToolCall) -> BoxFuture<'_, ToolOutcome> {
        let all = self.invoke_all(vec![call], 1);
        Box::pin(async move { all.await.pop().unwrap_or_else(ToolOutcome::lost) })
    }

    /// What this call could do, as its tool declares it; none for an unknown tool.
    fn capabilities(&self, call: &ToolCall) -> Option<Capabilities>;

    /// The tools that may be named here, sorted by name.
    fn available(&self) -> Vec<ToolDefinition>;

    /// Whether there is a tool of this name, also one that no model sees.
    fn has(&self, tool: &str) -> bool {
        self.available().iter().any(|there| there.name.as_str() == tool)
    }
}

/// One child run to start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildTask {
    /// Which agent: decides instructions and the tools it may use.
    pub agent: String,
    /// A few words for people.
    pub description: String,
    /// What it is asked.
    pub prompt: String,
    /// The most model rounds it may take; the agent's own limit when none.
    pub max_steps: Option<u32>,
    /// The form that its answer must have; any text when none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

/// A child run that goes on after the call that started it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedTask {
    /// Its id.
    pub task: TaskId,
    /// Its own session.
    pub session: SessionId,
    /// Whether its agent comes from a file of the workspace.
    pub of_workspace: bool,
}

/// Why no child run was started.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DelegateError {
    /// As many background tasks are open as may be.
    #[error(
        "{open_max} background tasks are open in this session already; wait for one of them, or leave background out"
    )]
    Full {
        /// How many that is.
        open_max: usize,
    },
    /// The session has started as many child runs as it may.
    #[error(
        "this session may start {total_max} child runs in all, and {left} of them are left; ask for fewer tasks, or do \
         the work here"
    )]
    Spent {
        /// How many that is, those of its child runs counted.
        total_max: u64,
        /// How many are left.
        left: u64,
    },
    /// Only a session's own run has somebody to report to later.
    #[error(
        "a child run starts no background tasks, for nobody would hear of them once it has ended; leave background out"
    )]
    Nested,
    /// The session ends.
    #[error("the session is closing; no more child runs start in it")]
    Closing,
    /// What was to be kept of it cannot be kept.
    #[error("the task was not started, because it cannot be kept: {0}")]
    NotKept(String),
}

/// When a fan-out ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FanOutPolicy {
    /// At most this many at a time.
    pub width: usize,
    /// End once this many have succeeded.
    pub enough_successes: Option<usize>,
    /// End after this many milliseconds with what there is.
    pub timeout_ms: Option<u64>,
}

/// How one child run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildResult {
    /// Its id.
    pub task: TaskId,
    /// Its own session.
    pub session: SessionId,
    /// Which agent ran.
    pub agent: String,
    /// Whether it came to an answer.
    pub success: bool,
    /// The answer, or why there is none.
    pub output: String,
    /// Files and addresses that its calls named, at most 64.
    pub source_anchors: Vec<String>,
    /// The answer in the form that was asked for.
    pub structured: Option<Value>,
    /// The address of the whole answer, where it is longer than what is shown of it.
    pub artifact: Option<String>,
}

/// How a whole fan-out of child runs ended.
#[derive(Debug, Clone, PartialEq)]
pub struct ChildResults {
    /// One for each task, in the order asked.
    pub results: Vec<ChildResult>,
    /// Whether the time-out ended it.
    pub timed_out: bool,
    /// Whether enough successes ended it.
    pub returned_early: bool,
}

/// Starts child runs.
pub trait Delegate: Send + Sync {
    /// The agents that may be named, with what each is for, sorted by name.
    fn agents(&self) -> Vec<(String, String)>;

    /// Runs the tasks to their ends. Dropping the future cancels what runs. A failure says that none was started.
    fn delegate(
        &self,
        tasks: Vec<ChildTask>,
        policy: FanOutPolicy,
    ) -> BoxFuture<'_, Result<ChildResults, DelegateError>>;

    /// Starts a task that goes on after this call: it begins once the turn that asked for it stands, ends with the
    /// session at the latest, and what it came to is told in a later turn.
    fn background(&self, task: ChildTask) -> BoxFuture<'_, Result<StartedTask, DelegateError>>;
}
