//! A tree of child runs, three levels deep, whose leaves do what a seed says, and the books that it has to add up to.
//!
//! The host asks for a `task` of many children, each of these for one of many more, and each of those for some leaves.
//! A leaf is a child run that calls the tool `leaf` once. What becomes of each follows from the seed alone, so that
//! every count is known before anything runs; a group that is to run out of time holds leaves that wait for ever, so
//! that no machine is too slow or too quick for it.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::models::{
    CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, StopReason, TokenUsage, TurnSink,
};
use toolwarden::policy::PermissionPolicy;
use toolwarden::session::{CancelTarget, Session};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::ids::InvocationId;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};
use toolwarden_tools::tool::{Lane, Needs, Tool, ToolFuture, ToolSpec};

/// Leaves that wait to be cancelled, at most, before the next one waits for somebody to take notice.
const CANCELS_WAITING_MAX: usize = 64;

/// What becomes of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// Its call succeeds.
    Answers,
    /// Its call fails.
    Fails,
    /// Its tool breaks down.
    Panics,
    /// Its call waits until somebody cancels this one call.
    IsCancelled,
    /// Its call waits until the time of its group is over.
    RunsLate,
    /// Its model gives an error, so that it makes no call.
    ModelFails,
    /// Its model breaks down, so that it makes no call.
    ModelPanics,
}

impl Fate {
    /// Whether the child run of such a leaf does what it was asked: what one call came to is for its model to judge.
    fn succeeds(self) -> bool {
        matches!(self, Self::Answers | Self::Fails | Self::Panics | Self::IsCancelled)
    }

    fn calls(self) -> bool {
        !matches!(self, Self::ModelFails | Self::ModelPanics)
    }
}

/// The tree, and what its seed says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChildTree {
    pub(crate) seed: u64,
    /// Children of the host's task, of each child's, and of each of theirs.
    pub(crate) widths: [usize; 3],
    /// How long a group has that is to run out of time, in milliseconds.
    pub(crate) late_ms: u64,
    /// One group in so many runs out of time.
    pub(crate) late_one_in: u64,
    /// Whether every leaf waits to be cancelled, whatever the seed says.
    pub(crate) holds: bool,
}

/// How many of everything there are.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Books {
    /// Calls of `leaf` by what they came to.
    pub(crate) leaves: BTreeMap<&'static str, usize>,
    /// Calls of `task`.
    pub(crate) tasks: usize,
    /// Child runs that did what they were asked, and others.
    pub(crate) children: [usize; 2],
}

impl Books {
    /// Takes an ending down.
    pub(crate) fn ended(&mut self, tool: &str, success: bool, kind: Option<&ToolErrorKind>) {
        if tool == "task" {
            self.tasks += 1;
            return;
        }
        let what = match kind {
            None if success => "succeeded",
            None => "failed",
            Some(ToolErrorKind::Crashed) => "broke down",
            // Also in the line: the time of its group was over.
            Some(
                ToolErrorKind::Timeout { .. }
                | ToolErrorKind::Cancelled { reason: Some(CancelReason::Deadline { .. }), .. },
            ) => "ran late",
            Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::Requested), .. }) => "cancelled",
            Some(_) => "something else",
        };
        *self.leaves.entry(what).or_default() += 1;
    }

    /// Takes the end of a child run down.
    pub(crate) fn child_ended(&mut self, success: bool) {
        self.children[usize::from(!success)] += 1;
    }

    /// All calls.
    pub(crate) fn calls(&self) -> usize {
        self.tasks + self.leaves.values().sum::<usize>()
    }
}

impl ChildTree {
    pub(crate) fn leaf_count(&self) -> usize {
        self.widths.iter().product()
    }

    fn drawn(&self, salt: u64, number: usize) -> u64 {
        let mut x = self.seed ^ salt ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn is_late(&self, group: usize) -> bool {
        !self.holds && self.drawn(0x1a7e, group).is_multiple_of(self.late_one_in)
    }

    /// What becomes of this leaf.
    pub(crate) fn fate(&self, leaf: usize) -> Fate {
        if self.holds || self.is_late(leaf / self.widths[2]) {
            return Fate::RunsLate;
        }
        match self.drawn(0xfa7e, leaf) % 16 {
            0 => Fate::Fails,
            1 => Fate::Panics,
            2 => Fate::IsCancelled,
            3 => Fate::ModelFails,
            4 => Fate::ModelPanics,
            _ => Fate::Answers,
        }
    }

    /// What it has to come to.
    pub(crate) fn expected(&self) -> Books {
        let [first, second, _] = self.widths;
        let inner = first + first * second;
        let mut books = Books { tasks: 1 + inner, children: [inner, 0], ..Books::default() };
        for leaf in 0..self.leaf_count() {
            let fate = self.fate(leaf);
            books.child_ended(fate.succeeds());
            let what = match fate {
                Fate::Answers => "succeeded",
                Fate::Fails => "failed",
                Fate::Panics => "broke down",
                Fate::IsCancelled => "cancelled",
                Fate::RunsLate => "ran late",
                Fate::ModelFails | Fate::ModelPanics => continue,
            };
            *books.leaves.entry(what).or_default() += 1;
        }
        books
    }

    /// How many leaves of this group have to succeed.
    pub(crate) fn expected_of_group(&self, group: usize) -> usize {
        let width = self.widths[2];
        (group * width..(group + 1) * width).filter(|leaf| self.fate(*leaf).succeeds()).count()
    }

    /// The arguments of the host's task.
    pub(crate) fn top(&self) -> Value {
        json!({ "tasks": items(self.widths[0], |child| format!("branch {child}")), "allow_partial_failure": true })
    }

    /// A session in which it can grow, and the calls that are to be cancelled.
    pub(crate) fn plant(self, builder: SessionBuilder) -> (SessionBuilder, mpsc::Receiver<InvocationId>) {
        let (waits, waiting) = mpsc::channel(CANCELS_WAITING_MAX);
        let rules = PermissionPolicy::from_toml("allow = [\"task\", \"leaf\"]", "in place").unwrap();
        let builder = builder.policy(rules).model(Arc::new(Branching(self))).tool(Arc::new(Leaf::of(self, waits)));
        (builder, waiting)
    }

    fn turn(&self, prompt: &str) -> Result<ModelTurn, ModelError> {
        let numbers = |text: &str| -> Vec<usize> { text.split('.').filter_map(|part| part.parse().ok()).collect() };
        let [_, second, third] = self.widths;
        let (kind, rest) = prompt.split_once(' ').unwrap_or_default();
        match (kind, numbers(rest).as_slice()) {
            ("branch", [child]) => {
                let tasks = items(second, |inner| format!("branch {child}.{inner}"));
                Ok(asking("task", json!({ "tasks": tasks, "allow_partial_failure": true })))
            }
            ("branch", [child, inner]) => {
                let group = child * second + inner;
                let tasks = items(third, |leaf| format!("leaf {}", group * third + leaf));
                let mut asked = json!({ "tasks": tasks, "allow_partial_failure": true });
                if self.is_late(group) {
                    asked["timeout_ms"] = json!(self.late_ms);
                }
                Ok(asking("task", asked))
            }
            ("leaf", [leaf]) => match self.fate(*leaf) {
                Fate::ModelFails => Err(ModelError::Invalid { message: "refused on purpose".to_owned() }),
                Fate::ModelPanics => resume_unwind(Box::new("a model broke on purpose")),
                fate => {
                    debug_assert!(fate.calls());
                    Ok(asking("leaf", json!({ "leaf": leaf })))
                }
            },
            _ => Err(ModelError::Invalid { message: format!("no part of the tree: {prompt}") }),
        }
    }
}

fn items(count: usize, prompt: impl Fn(usize) -> String) -> Vec<Value> {
    let one = |number| json!({"agent": "general", "description": "a part", "prompt": prompt(number)});
    (0..count).map(one).collect()
}

fn asking(tool: &str, arguments: Value) -> ModelTurn {
    let call = ModelCall { id: "1".to_owned(), tool: tool.into(), arguments: CallArguments::from_value(arguments) };
    ModelTurn { calls: vec![call], stop: StopReason::ToolUse, usage: used(), ..ModelTurn::answer("") }
}

fn used() -> TokenUsage {
    TokenUsage { input_tokens: 10, output_tokens: 5, ..TokenUsage::default() }
}

/// Cancels the calls that want it, so many of them.
pub(crate) async fn cancel_each(session: &Session, mut waiting: mpsc::Receiver<InvocationId>, count: usize) {
    for _ in 0..count {
        let Some(call) = waiting.recv().await else { return };
        // One that has ended meanwhile, because all of it was cancelled, is there no more.
        session.cancel(&CancelTarget::Call(call), &CancelReason::Requested);
    }
}

/// The model of every child: a function of its prompt.
struct Branching(ChildTree);

impl Model for Branching {
    fn name(&self) -> &'static str {
        "branching"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        _sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        Box::pin(async move {
            match request.messages.as_slice() {
                [Message::User { text }] => self.0.turn(text),
                _ => Ok(ModelTurn { usage: used(), ..ModelTurn::answer("done") }),
            }
        })
    }
}

/// The tool that each leaf calls once.
struct Leaf {
    spec: ToolSpec,
    tree: ChildTree,
    waits: mpsc::Sender<InvocationId>,
}

impl Leaf {
    fn of(tree: ChildTree, waits: mpsc::Sender<InvocationId>) -> Self {
        let spec = ToolSpec {
            name: "leaf".into(),
            description: "does what the seed says".to_owned(),
            parameters: json!({"type": "object", "required": ["leaf"], "properties": {"leaf": {"type": "integer"}}}),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Query,
            needs: Needs::default(),
        };
        Self { spec, tree, waits }
    }
}

impl Tool for Leaf {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::parallel_safe_read(16)
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let leaf = arguments["leaf"].as_u64().and_then(|leaf| usize::try_from(leaf).ok()).unwrap();
            match self.tree.fate(leaf) {
                Fate::Fails => return ToolOutcome::failure("it went wrong on purpose"),
                Fate::Panics => resume_unwind(Box::new("a tool broke on purpose")),
                Fate::IsCancelled => drop(self.waits.send(ctx.invocation.clone()).await),
                Fate::RunsLate => {}
                Fate::Answers | Fate::ModelFails | Fate::ModelPanics => return ToolOutcome::success("done"),
            }
            ToolOutcome::ended_early("leaf", &ctx.cancel.cancelled().await)
        })
    }
}
