//! `search`: lines by pattern, files by name, or passages by words, over the whole workspace or a part of it.
//!
//! A call sees every write that had returned before it. Where an index of the workspace is known to be true, it says
//! which files need not be looked into; what matches is decided by reading the files as they are, on the blocking pool.
//! What was left out is said in the result of every mode.

mod entries;
mod lines;
mod notes;
mod paths;
mod ranking;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use self::entries::Index;
use super::reach::{self, Step, ended, fault, wrong};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::declaration::Capabilities;
use crate::effects::blocking::{Lost, off_thread};
use crate::effects::files::Files;
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::pagination::{PAGE_LIMIT_DEFAULT, PageRequest, cursor_schema, limit_schema};
use crate::search::glob::{PATTERN_BYTES_MAX, PathPattern};
use crate::search::resident_index::ResidentIndexes;
use crate::search::stop::Stop;
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// Most lines of context around a matching line.
pub const CONTEXT_LINES_MAX: usize = 50;
/// How many searches of lines or names may run beside each other.
const PARALLELISM: usize = 16;
/// How many rankings may run beside each other: each reads the whole tree.
const RANKING_PARALLELISM: usize = 2;
/// Most paths named in the metadata.
const ANCHORS_MAX: usize = 64;

/// The tool.
pub struct SearchTool {
    indexes: Option<Arc<ResidentIndexes>>,
}

/// The tool, ready to register; with indexes, they are begun by the first search of a root and used by later ones.
pub fn tool(indexes: Option<Arc<ResidentIndexes>>) -> Arc<dyn Tool> {
    Arc::new(SearchTool { indexes })
}

/// What is searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Grep,
    Glob,
    Bm25,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Grep => "grep",
            Self::Glob => "glob",
            Self::Bm25 => "bm25",
        }
    }
}

/// What is told of the lines found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutputMode {
    #[default]
    Content,
    FilesWithMatches,
    Count,
    Summary,
}

impl OutputMode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Content => "content",
            Self::FilesWithMatches => "files_with_matches",
            Self::Count => "count",
            Self::Summary => "summary",
        }
    }

    fn is_paginated(self) -> bool {
        matches!(self, Self::FilesWithMatches | Self::Count)
    }
}

#[derive(Debug, Deserialize)]
struct Arguments {
    mode: Mode,
    query: String,
    path: Option<String>,
    include: Option<String>,
    context: Option<usize>,
    case_sensitive: Option<bool>,
    #[serde(default)]
    output_mode: OutputMode,
    limit: Option<u64>,
    cursor: Option<String>,
}

/// A search that is ready to run.
struct Request {
    files: Arc<dyn Files>,
    index: Option<Index>,
    /// Where the walk starts, as it was asked for.
    start: WorkspacePath,
    include: Option<PathPattern>,
    case_sensitive: bool,
    output_mode: OutputMode,
    page: PageRequest,
    context: Option<usize>,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("search"),
        description: "Search the workspace. mode grep finds lines by a regular expression (linear time: no look-around, \
            no back-references; one line at a time). mode glob finds files by name: * and ? stay inside one folder, ** \
            crosses folders, a pattern without / matches at any depth. mode bm25 ranks passages by the words of a \
            question; use it when you do not know the exact text. Files hidden by .gitignore or .ignore, and names \
            that begin with a dot, are left out unless the pattern or the path names them; the result says how many. \
            A path given explicitly is always searched; a single binary file is searched whole only when it is the path."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["mode", "query"],
            "properties": {
                "mode": {"type": "string", "enum": ["grep", "glob", "bm25"]},
                "query": {
                    "type": "string", "minLength": 1,
                    "description": "grep: the regular expression; glob: the path pattern; bm25: the words.",
                },
                "path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "default": ".",
                    "description": "The folder or file to search, relative to the workspace.",
                },
                "include": {
                    "type": "string", "minLength": 1, "maxLength": PATTERN_BYTES_MAX,
                    "description": "Only files whose path matches this pattern, such as *.rs or src/**.",
                },
                "context": {
                    "type": "integer", "minimum": 0, "maximum": CONTEXT_LINES_MAX,
                    "description": format!(
                        "Lines shown around each match: grep 0 when left out; bm25 {} when left out, {} at most.",
                        ranking::CONTEXT_LINES_DEFAULT, ranking::CONTEXT_LINES_MAX
                    ),
                },
                "case_sensitive": {"type": "boolean", "default": true, "description": "grep and glob only."},
                "output_mode": {
                    "type": "string", "enum": ["content", "files_with_matches", "count", "summary"],
                    "default": "content",
                    "description": "grep only: the lines, the files, matching lines for each file, or the totals.",
                },
                "limit": limit_schema(),
                "cursor": cursor_schema(),
                "sort": {
                    "type": "string", "enum": ["path", "backend"], "default": "path",
                    "description": "Results come in path order with both; bm25 is ordered by score.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Query,
        needs: Needs::default(),
    }
}

impl Tool for SearchTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        let text = |key: &str| arguments.get(key).and_then(Value::as_str);
        match (text("mode"), text("output_mode")) {
            (Some("glob"), _) | (Some("grep"), Some("files_with_matches" | "count")) => {
                Capabilities::read_only_paginated(PARALLELISM)
            }
            (Some("bm25"), _) => Capabilities::parallel_safe_read(RANKING_PARALLELISM),
            _ => Capabilities::parallel_safe_read(PARALLELISM),
        }
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let text = |key: &str, default| arguments.get(key).and_then(Value::as_str).unwrap_or(default);
        Subject::Text(format!("{} {} {}", text("mode", ""), text("query", ""), text("path", ".")))
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let indexes = self.indexes.as_deref();
            search(ctx, indexes, &arguments).await.unwrap_or_else(|ended| *ended)
        })
    }
}

async fn search(ctx: &ToolContext, indexes: Option<&ResidentIndexes>, arguments: &Value) -> Step<ToolOutcome> {
    let page = PageRequest::from_arguments(arguments).map_err(|error| wrong(error.to_string()))?;
    let arguments = Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    check_capabilities(ctx, &arguments)?;
    check_combination(&arguments)?;
    let index = indexes.and_then(|indexes| indexes.of(ctx.workspace.files().as_ref()));
    let request = Request {
        files: Arc::clone(ctx.workspace.files()),
        index: index.clone(),
        start: reach::path(ctx, arguments.path.as_deref().unwrap_or("."))?,
        include: arguments.include.as_deref().map(|text| pattern(ctx, text, true)).transpose()?,
        case_sensitive: arguments.case_sensitive.unwrap_or(true),
        output_mode: arguments.output_mode,
        page,
        context: arguments.context,
    };
    let query = arguments.query;
    let outcome = match arguments.mode {
        Mode::Grep => {
            let wanted = lines::pattern(&query, request.case_sensitive)?;
            run(ctx, move |stop| lines::search(&request, &query, &wanted, stop)).await
        }
        Mode::Glob => {
            let wanted = pattern(ctx, &query, request.case_sensitive)?;
            run(ctx, move |stop| paths::search(&request, &query, &wanted, stop)).await
        }
        Mode::Bm25 => {
            let wanted = ranking::query(&query)?;
            let limit = arguments.limit;
            run(ctx, move |stop| ranking::search(&request, &wanted, limit, stop)).await
        }
    };
    // Only now: beside the first search it would take the time that it is to save.
    if let Some(index) = index {
        index.begin();
    }
    outcome.map(|outcome| outcome.with("mode", arguments.mode.as_str()))
}

/// Runs a search on the blocking pool. When the call is cancelled or its future dropped, the search ends within one
/// read of a file.
async fn run(ctx: &ToolContext, work: impl FnOnce(&Stop) -> Step<ToolOutcome> + Send + 'static) -> Step<ToolOutcome> {
    let (stop, _guard) = Stop::new(ctx.cancel.clone());
    let done = match off_thread(move || work(&stop)).await {
        Ok(done) => done,
        // A bug stays a bug, whichever thread it shows on.
        Err(Lost::Panicked(panic)) => std::panic::resume_unwind(panic),
        Err(Lost::Ended) => return Err(ended("search", &CancelReason::Shutdown)),
    };
    match ctx.cancel.reason() {
        // What was found until then is a part that nobody could tell from the whole.
        Some(reason) => Err(ended("search", reason)),
        None => done,
    }
}

fn check_capabilities(ctx: &ToolContext, arguments: &Arguments) -> Step<()> {
    let can = ctx.workspace.capabilities();
    let mode = arguments.mode.as_str();
    let missing = match (arguments.mode, arguments.output_mode) {
        _ if !can.search => "searching",
        (Mode::Bm25, _) | (Mode::Grep, OutputMode::Content | OutputMode::Count) if !can.read => "reading",
        _ => return Ok(()),
    };
    let message = format!("mode {mode} is not available here: this workspace does not allow {missing}");
    Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)))
}

/// Refuses arguments that would silently mean nothing.
fn check_combination(arguments: &Arguments) -> Step<()> {
    if arguments.query.trim().is_empty() {
        return Err(wrong("query is blank; give what to search for"));
    }
    let (mode, output_mode) = (arguments.mode, arguments.output_mode);
    if mode != Mode::Grep && matches!(output_mode, OutputMode::Count | OutputMode::Summary) {
        return Err(wrong(format!("output_mode {} belongs to mode grep; leave it out", output_mode.as_str())));
    }
    let has_cursor = arguments.cursor.as_deref().is_some_and(|cursor| !cursor.is_empty());
    if mode == Mode::Bm25 && has_cursor {
        return Err(wrong("mode bm25 has no pages; leave cursor out and raise limit, or ask for other words"));
    }
    let has_limit = arguments.limit.is_some_and(|limit| limit != PAGE_LIMIT_DEFAULT as u64);
    if mode == Mode::Grep && !output_mode.is_paginated() && (has_cursor || has_limit) {
        return Err(wrong(format!(
            "limit and cursor page through output_mode files_with_matches and count, not {}; narrow it with path, \
             include or a longer pattern instead",
            output_mode.as_str()
        )));
    }
    Ok(())
}

/// A path pattern; one that begins with the workspace's own path is read from there.
fn pattern(ctx: &ToolContext, text: &str, case_sensitive: bool) -> Step<PathPattern> {
    let root = ctx.workspace.display_root().trim_end_matches('/');
    let below = text.strip_prefix(root).filter(|rest| !root.is_empty() && rest.starts_with('/'));
    PathPattern::new(below.unwrap_or(text), case_sensitive).map_err(|error| wrong(error.to_string()))
}

impl Request {
    fn wants(&self, path: &[u8], start: &WorkspacePath) -> bool {
        self.include.as_ref().is_none_or(|pattern| pattern.matches_bytes(path, start))
    }

    fn include_wants_hidden(&self) -> bool {
        self.include.as_ref().is_some_and(PathPattern::wants_hidden)
    }
}

/// The first paths, as they stand in the metadata.
#[derive(Default)]
struct Anchors(Vec<String>);

impl Anchors {
    fn add(&mut self, path: &WorkspacePath) {
        if self.0.len() < ANCHORS_MAX {
            let path = path.to_string();
            if self.0.last() != Some(&path) {
                self.0.push(path);
            }
        }
    }
}

/// `1 file`, `2 files`.
fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod agreement;
#[cfg(test)]
mod hard_input;
#[cfg(test)]
mod tests;
