//! What an evaluation found: figures of each task and of all together, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use super::task_set::EqualBudget;

/// What a set of tasks came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvaluationReport {
    /// The set.
    pub set: String,
    /// The model.
    pub model: String,
    /// What each run had.
    pub budget: EqualBudget,
    /// All together.
    pub totals: Figures,
    /// Each task, in the order of the set.
    pub tasks: Vec<TaskReport>,
}

/// What a task came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskReport {
    /// The task.
    pub id: String,
    /// Its figures, over all of its runs.
    #[serde(flatten)]
    pub figures: Figures,
    /// How its last run ended.
    pub status: String,
    /// What its last run lacked; empty when it succeeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<String>,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Figures {
    /// Runs.
    pub runs: u64,
    /// Runs that came to what was expected.
    pub succeeded: u64,
    /// Turns that the model took.
    pub rounds: u64,
    /// Calls that it asked for.
    pub calls: u64,
    /// Calls of tools that the task does not name, and of tools that do not exist.
    pub mis_selected: u64,
    /// Calls whose arguments were no JSON or did not fit.
    pub argument_errors: u64,
    /// Requests that were sent again.
    pub retries: u64,
    /// Tokens that the model read.
    pub input_tokens: u64,
    /// Tokens that it wrote.
    pub output_tokens: u64,
    /// Time, in milliseconds.
    pub elapsed_ms: u64,
    /// Events that were lost before they were counted: the figures above may be too small by as many.
    #[serde(skip_serializing_if = "crate::models::is_zero")]
    pub missed_events: u64,
}

impl Figures {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs.saturating_add(other.runs),
            succeeded: self.succeeded.saturating_add(other.succeeded),
            rounds: self.rounds.saturating_add(other.rounds),
            calls: self.calls.saturating_add(other.calls),
            mis_selected: self.mis_selected.saturating_add(other.mis_selected),
            argument_errors: self.argument_errors.saturating_add(other.argument_errors),
            retries: self.retries.saturating_add(other.retries),
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            elapsed_ms: self.elapsed_ms.saturating_add(other.elapsed_ms),
            missed_events: self.missed_events.saturating_add(other.missed_events),
        }
    }

    /// Whether every run came to what was expected.
    pub fn is_perfect(&self) -> bool {
        self.succeeded == self.runs
    }
}

impl EvaluationReport {
    /// As a table for people, with what is lacking beneath it.
    pub fn table(&self) -> String {
        let width = self.tasks.iter().map(|task| task.id.chars().count()).chain([5]).max().unwrap_or(5);
        let head = ["ok", "rounds", "calls", "wrong tool", "bad args", "retries", "read", "written", "seconds"];
        let widths = [7, 6, 6, 10, 8, 7, 9, 8, 8];
        let mut out = format!("{} on {}\n{:<width$}", self.set, self.model, "task");
        let cells = |out: &mut String, cells: [String; 9]| {
            for (cell, width) in cells.iter().zip(widths) {
                // Writing to a string cannot fail.
                let _ = write!(out, "  {cell:>width$}");
            }
        };
        cells(&mut out, head.map(str::to_owned));
        let rows = self.tasks.iter().map(|task| (task.id.as_str(), &task.figures));
        for (id, figures) in rows.chain([("all", &self.totals)]) {
            let _ = write!(out, "\n{id:<width$}");
            let row = [
                format!("{}/{}", figures.succeeded, figures.runs),
                figures.rounds.to_string(),
                figures.calls.to_string(),
                figures.mis_selected.to_string(),
                figures.argument_errors.to_string(),
                figures.retries.to_string(),
                figures.input_tokens.to_string(),
                figures.output_tokens.to_string(),
                format!("{}.{}", figures.elapsed_ms / 1000, figures.elapsed_ms % 1000 / 100),
            ];
            cells(&mut out, row);
        }
        for task in self.tasks.iter().filter(|task| !task.lacks.is_empty()) {
            let _ = write!(out, "\n{} ({}): {}", task.id, task.status, task.lacks.join("; "));
        }
        out
    }
}
