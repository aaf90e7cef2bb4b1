//! A fixed set of tasks for models, from a file: checked when it is loaded, each fault with its line.
//!
//! All tasks have the same budget, so that figures can be compared. What must stay true: a task says how its end is judged
//! without another model, and a set that cannot be judged is refused before anything is asked.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use toolwarden_tools::workspace_path::WorkspacePath;

/// Largest file of tasks, in bytes.
pub const SET_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Most tasks of a set.
pub const TASKS_MAX: usize = 1000;
/// Most runs of each task.
pub const RUNS_MAX: u32 = 20;
/// Longest name of a task, in bytes.
const ID_BYTES_MAX: usize = 64;
/// Longest time for a run, in seconds.
const TIMEOUT_S_MAX: u64 = 3600;

/// A set of tasks.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskSet {
    /// What it is called.
    pub name: String,
    /// What each run of each task may use.
    pub budget: EqualBudget,
    /// The tasks, in the order of the file.
    pub tasks: Vec<EvaluationTask>,
}

/// What each run of each task may use: the same for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EqualBudget {
    /// Model rounds with tools.
    pub rounds: u32,
    /// Tokens that the model reads, over all rounds.
    pub input_tokens: u64,
    /// Tokens that it writes, over all rounds.
    pub output_tokens: u64,
    /// Time, in seconds.
    pub timeout_s: u64,
    /// How often each task is run.
    pub runs: u32,
}

impl Default for EqualBudget {
    fn default() -> Self {
        Self { rounds: 10, input_tokens: 200_000, output_tokens: 20_000, timeout_s: 300, runs: 1 }
    }
}

/// A task.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluationTask {
    /// What it is called; each name stands once.
    pub id: String,
    /// What the model is asked.
    pub prompt: String,
    /// The tools that are right for it; a call of any other is counted as mis-selected. None means that any is.
    #[serde(default)]
    pub tools: Vec<String>,
    /// The files of its workspace, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// What must be true in the end.
    pub expect: Expectation,
}

/// What must be true in the end.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expectation {
    /// Words that the answer holds, whichever their case.
    pub answer_has: Vec<String>,
    /// Words that it does not hold.
    pub answer_lacks: Vec<String>,
    /// A regular expression that it matches.
    pub answer_matches: Option<String>,
    /// Files and their whole content, but for blanks at the end.
    pub files: BTreeMap<String, String>,
    /// Files that are not there.
    pub no_files: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default)]
    budget: EqualBudget,
    #[serde(default)]
    task: Vec<toml::Spanned<EvaluationTask>>,
}

/// Why a file is no set of tasks.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}:{line}: {message}")]
pub struct TaskSetError {
    /// The file.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

impl TaskSet {
    /// Reads a set.
    ///
    /// # Errors
    /// [`TaskSetError`] with the first fault.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, TaskSetError> {
        let fault = |at: usize, message: String| {
            let line = 1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
            TaskSetError { file: file.to_owned(), line, message }
        };
        if text.len() > SET_BYTES_MAX {
            return Err(fault(0, format!("it has {} bytes; at most {SET_BYTES_MAX} are taken", text.len())));
        }
        let read: File = toml::from_str(text)
            .map_err(|error| fault(error.span().map_or(0, |span| span.start), error.message().to_owned()))?;
        if read.task.is_empty() {
            return Err(fault(0, "it holds no [[task]]".to_owned()));
        }
        if read.task.len() > TASKS_MAX {
            return Err(fault(0, format!("it holds {} tasks; at most {TASKS_MAX} are taken", read.task.len())));
        }
        read.budget.check().map_err(|message| fault(0, message))?;
        let mut ids = BTreeSet::new();
        for task in &read.task {
            let at = task.span().start;
            let task = task.get_ref();
            task.check().map_err(|message| fault(at, format!("task {:?}: {message}", task.id)))?;
            if !ids.insert(task.id.clone()) {
                return Err(fault(at, format!("there are two tasks {:?}; give each its own id", task.id)));
            }
        }
        let tasks = read.task.into_iter().map(toml::Spanned::into_inner).collect();
        Ok(Self { name: read.name, budget: read.budget, tasks })
    }
}

impl EqualBudget {
    fn check(self) -> Result<(), String> {
        let Self { rounds, input_tokens, output_tokens, timeout_s, runs } = self;
        if rounds == 0 || input_tokens == 0 || output_tokens == 0 {
            return Err("rounds, input_tokens and output_tokens of the budget are 1 or more".to_owned());
        }
        if !(1..=TIMEOUT_S_MAX).contains(&timeout_s) {
            return Err(format!("timeout_s is 1 to {TIMEOUT_S_MAX}"));
        }
        if !(1..=RUNS_MAX).contains(&runs) {
            return Err(format!("runs is 1 to {RUNS_MAX}"));
        }
        Ok(())
    }
}

impl EvaluationTask {
    fn check(&self) -> Result<(), String> {
        if self.id.is_empty() || self.id.len() > ID_BYTES_MAX || self.id.chars().any(char::is_control) {
            return Err(format!("an id has 1 to {ID_BYTES_MAX} bytes and no control characters"));
        }
        if self.prompt.trim().is_empty() {
            return Err("prompt is empty".to_owned());
        }
        if self.expect == Expectation::default() {
            return Err(
                "expect says nothing: give answer_has, answer_lacks, answer_matches, files or no_files".to_owned()
            );
        }
        let named = self.files.keys().chain(self.expect.files.keys()).chain(&self.expect.no_files);
        for path in named {
            WorkspacePath::parse(path, "/").map_err(|error| error.to_string())?;
        }
        if let Some(pattern) = &self.expect.answer_matches {
            Regex::new(pattern).map_err(|error| format!("answer_matches is no regular expression: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::TaskSet;

    const HEAD: &str = "name = \"n\"\n[[task]]\nid = \"a\"\nprompt = \"p\"\n";

    fn fault(text: &str) -> String {
        TaskSet::from_toml(text, "set.toml").unwrap_err().to_string()
    }

    #[test]
    fn every_fault_has_its_line() {
        for (text, start, part) in [
            ("name = ", "set.toml:1: ", "value"),
            ("name = \"n\"\n", "set.toml:1: ", "no [[task]]"),
            ("name = \"n\"\nnope = 1\n", "set.toml:2: ", "nope"),
            (HEAD, "set.toml:2: ", "expect"),
            (&format!("{HEAD}[task.expect]\n"), "set.toml:2: ", "says nothing"),
            (&format!("{HEAD}expect = {{ answer_matches = \"(\" }}\n"), "set.toml:2: ", "regular expression"),
            (&format!("{HEAD}expect = {{ no_files = [\"../x\"] }}\n"), "set.toml:2: ", "../x"),
            (
                &format!(
                    "{HEAD}expect = {{ answer_has = [\"x\"] }}\n{}expect = {{ answer_has = [\"x\"] }}",
                    &HEAD[11..]
                ),
                "set.toml:6: ",
                "two tasks",
            ),
            (
                &format!("name = \"n\"\n[budget]\nruns = 99\n{}expect = {{ answer_has = [\"x\"] }}", &HEAD[11..]),
                "set.toml:1: ",
                "runs is 1 to 20",
            ),
        ] {
            let said = fault(text);
            assert!(said.starts_with(start) && said.contains(part), "{text}\n{said}");
        }
    }

    #[test]
    fn a_set_is_read() {
        let set = TaskSet::from_toml(
            &format!("{HEAD}expect = {{ answer_has = [\"x\"] }}\nfiles = {{ \"b/c\" = \"d\" }}"),
            "f",
        )
        .unwrap();
        assert_eq!((set.tasks[0].files["b/c"].as_str(), set.budget.rounds), ("d", 10));
    }
}
