//! Evaluation: a fixed set of tasks against a model, each under the same budget, judged without another model.
//!
//! Every run has a session and a workspace in memory of its own, so tasks cannot meet, and nothing of the machine is
//! reached; its calls take the governed route like any other. What must stay true: figures come from events and from the
//! model's own turns, and never from what a model says of itself.

pub mod report;
pub mod task_set;

use std::collections::BTreeSet;
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use regex::Regex;
use thiserror::Error;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::journal::Reading;
use toolwarden_tools::effects::files::{Expected, FileError, Links, Replacement};
use toolwarden_tools::ids::{InvocationId, ToolName};
use toolwarden_tools::outcome::ToolErrorKind;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, memory};
use toolwarden_tools::workspace_path::{PathError, WorkspacePath};

use self::report::{EvaluationReport, Figures, TaskReport};
use self::task_set::{EqualBudget, EvaluationTask, Expectation, TaskSet};
use crate::embedding::{BuildError, Runtime};
use crate::event::{Event, EventKind};
use crate::models::object_support::ObjectSupport;
use crate::models::{CallArguments, Model, ModelError, ModelRequest, ModelTurn, TokenUsage, TurnSink};
use crate::origin::Origin;
use crate::policy::{PermissionPolicy, PolicyError};
use crate::run::RunLimits;
use crate::run_status::RunStatus;
use crate::scope::Confirming;
use crate::session::SessionError;

/// Largest file that is compared at the end of a task, in bytes.
const COMPARED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Runs sets of tasks with one model.
pub struct Evaluation {
    runtime: Runtime,
    model: Arc<dyn Model>,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum EvaluationError {
    /// A session did not open.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A session did not take its prompt, or lost it.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// A file of a task cannot be put where it belongs.
    #[error("a file of task {task:?} cannot be written: {source}")]
    File {
        /// The task.
        task: String,
        /// Why.
        source: FileError,
    },
    /// A path of a task is none.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The policy that allows everything cannot be read.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl Evaluation {
    /// Evaluations in this runtime with this model.
    pub fn new(runtime: Runtime, model: Arc<dyn Model>) -> Self {
        Self { runtime, model }
    }

    /// Runs all tasks of a set, one after another; `told` gets each report as it comes. Dropping the future cancels what
    /// runs.
    ///
    /// # Errors
    /// [`EvaluationError`]. A task that fails is a figure, not an error.
    pub async fn run(
        &self,
        set: &TaskSet,
        told: &mut (dyn FnMut(&TaskReport) + Send),
    ) -> Result<EvaluationReport, EvaluationError> {
        let mut tasks = Vec::with_capacity(set.tasks.len());
        let mut totals = Figures::default();
        for task in &set.tasks {
            let (mut figures, mut last) = (Figures::default(), None);
            for _ in 0..set.budget.runs {
                let ended = self.run_once(task, &set.budget).await?;
                figures = figures.plus(ended.figures);
                last = Some(ended);
            }
            let (status, lacks) = last.map(|ended| (ended.status, ended.lacks)).unwrap_or_default();
            let report = TaskReport { id: task.id.clone(), figures, status, lacks };
            told(&report);
            totals = totals.plus(figures);
            tasks.push(report);
        }
        Ok(EvaluationReport {
            set: set.name.clone(),
            model: self.model.name().to_owned(),
            budget: set.budget,
            totals,
            tasks,
        })
    }

    async fn run_once(&self, task: &EvaluationTask, budget: &EqualBudget) -> Result<Ended, EvaluationError> {
        let workspace = memory::open(WorkspaceCapabilities { search: true, ..WorkspaceCapabilities::read_write() });
        for (path, content) in &task.files {
            let path = WorkspacePath::parse(path, "/")?;
            let replacement = Replacement { bytes: content.as_bytes(), expected: Expected::Any, create_folders: true };
            let written = workspace.files().replace(&path, &replacement);
            written.map_err(|source| EvaluationError::File { task: task.id.clone(), source })?;
        }
        let counted = Arc::new(Counted::of(&self.model));
        let session = self
            .runtime
            .session_over(workspace.clone())
            .model(Arc::clone(&counted) as _)
            .policy(PermissionPolicy::from_toml("default = \"allow\"", "an evaluation")?)
            .confirming(Confirming::Unavailable)
            .budget(BudgetLimits {
                input_tokens: Some(budget.input_tokens),
                output_tokens: Some(budget.output_tokens),
                ..BudgetLimits::default()
            })
            .run_limits(RunLimits {
                rounds_max: Some(budget.rounds),
                timeout: Some(Duration::from_secs(budget.timeout_s)),
                ..RunLimits::default()
            })
            .open()
            .await?;
        let began_at = tokio::time::Instant::now();
        let mut stream = session.stream(&task.prompt).await?;
        let mut tally = Tally::new(&task.tools, session.tool_names());
        while let Some(reading) = stream.next().await {
            match reading {
                Reading::Entry(entry) => tally.count(&entry.event),
                Reading::Missed { count } => tally.figures.missed_events += count,
                Reading::SinkFailed(_) => {}
            }
        }
        let outcome = stream.outcome().await.ok_or(SessionError::Closed)?;
        let elapsed = began_at.elapsed();
        session.close().await;
        let mut lacks = lacking(&task.expect, &outcome.text, &workspace);
        if outcome.status != RunStatus::Completed {
            lacks.insert(0, outcome.status.to_string());
        }
        // Those never become invocations.
        let malformed = counted.malformed.load(Ordering::Relaxed);
        let failed = counted.failed.load(Ordering::Relaxed);
        // The failure that ended the run was not followed by another attempt.
        let last_failed = u64::from(matches!(outcome.status, RunStatus::ModelFailed { .. } | RunStatus::ContextFull));
        let figures = Figures {
            runs: 1,
            succeeded: u64::from(lacks.is_empty()),
            rounds: u64::from(outcome.turns),
            calls: tally.figures.calls.saturating_add(malformed),
            argument_errors: tally.figures.argument_errors.saturating_add(malformed),
            retries: failed.saturating_sub(last_failed),
            input_tokens: outcome.usage.input_tokens,
            output_tokens: outcome.usage.output_tokens,
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            ..tally.figures
        };
        Ok(Ended { figures, status: outcome.status.as_str().to_owned(), lacks })
    }
}

/// What one run came to.
struct Ended {
    figures: Figures,
    status: String,
    lacks: Vec<String>,
}

/// Counts what the events of a run say.
struct Tally<'a> {
    right_tools: &'a [String],
    known_tools: Vec<ToolName>,
    figures: Figures,
    /// Calls of known tools that the model itself asked for.
    own: BTreeSet<InvocationId>,
}

impl<'a> Tally<'a> {
    fn new(right_tools: &'a [String], known_tools: Vec<ToolName>) -> Self {
        Self { right_tools, known_tools, figures: Figures::default(), own: BTreeSet::new() }
    }

    fn count(&mut self, event: &Event) {
        match &event.kind {
            EventKind::ToolProposed { id, name, origin: Origin::Agent, .. } => {
                self.figures.calls += 1;
                let is_known = self.known_tools.contains(name);
                let is_named = self.right_tools.is_empty() || self.right_tools.iter().any(|tool| tool == name.as_str());
                self.figures.mis_selected += u64::from(!(is_known && is_named));
                // What does not exist takes no arguments.
                if is_known {
                    self.own.insert(id.clone());
                }
            }
            EventKind::ToolEnd(result) if self.own.remove(&result.id) => {
                let is_wrong = matches!(result.error_kind, Some(ToolErrorKind::InvalidArgument { .. }));
                self.figures.argument_errors += u64::from(is_wrong);
            }
            _ => {}
        }
    }
}

/// A model with a count of what it gave.
struct Counted {
    model: Arc<dyn Model>,
    failed: AtomicU64,
    malformed: AtomicU64,
}

impl Counted {
    fn of(model: &Arc<dyn Model>) -> Self {
        Self { model: Arc::clone(model), failed: AtomicU64::new(0), malformed: AtomicU64::new(0) }
    }
}

impl Model for Counted {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn context_tokens(&self) -> Option<u64> {
        self.model.context_tokens()
    }

    fn concurrency_max(&self) -> Option<usize> {
        self.model.concurrency_max()
    }

    fn object_support(&self) -> ObjectSupport {
        self.model.object_support()
    }

    fn cost_microusd(&self, usage: TokenUsage) -> u64 {
        self.model.cost_microusd(usage)
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            let turn = self.model.turn(request, sink).await;
            match &turn {
                Ok(turn) => {
                    let is_malformed = |arguments: &CallArguments| matches!(arguments, CallArguments::Malformed { .. });
                    let malformed = turn.calls.iter().filter(|call| is_malformed(&call.arguments)).count();
                    self.malformed.fetch_add(u64::try_from(malformed).unwrap_or(u64::MAX), Ordering::Relaxed);
                }
                Err(_) => {
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            turn
        }
        .boxed()
    }
}

/// What is expected and not so.
fn lacking(expect: &Expectation, answer: &str, workspace: &Workspace) -> Vec<String> {
    let mut lacks = Vec::new();
    let lower = answer.to_lowercase();
    for word in &expect.answer_has {
        if !lower.contains(&word.to_lowercase()) {
            lacks.push(format!("the answer lacks {word:?}"));
        }
    }
    for word in &expect.answer_lacks {
        if lower.contains(&word.to_lowercase()) {
            lacks.push(format!("the answer holds {word:?}"));
        }
    }
    if let Some(pattern) = &expect.answer_matches
        && !Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(answer))
    {
        lacks.push(format!("the answer does not match {pattern:?}"));
    }
    for (path, wanted) in &expect.files {
        match content(workspace, path) {
            Some(found) if found.trim_end() == wanted.trim_end() => {}
            Some(_) => lacks.push(format!("{path} holds something else")),
            None => lacks.push(format!("{path} is not there")),
        }
    }
    for path in &expect.no_files {
        if content(workspace, path).is_some() {
            lacks.push(format!("{path} is there"));
        }
    }
    lacks
}

/// The text of a file; none when there is none, or none that can be compared.
fn content(workspace: &Workspace, path: &str) -> Option<String> {
    let path = WorkspacePath::parse(path, "/").ok()?;
    workspace.files().stat(&path, Links::Follow).ok()?;
    let file = workspace.files().open(&path).ok()?;
    let mut text = String::new();
    file.take(COMPARED_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
