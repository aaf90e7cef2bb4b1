//! Mode grep: matching lines, the files that hold them, their counts, or the totals.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use serde_json::{Value, json};

use super::entries::{Entries, Entry, Ground};
use super::notes::Notes;
use super::{Anchors, OutputMode, Request, Step, count, wrong};
use crate::outcome::ToolOutcome;
use crate::search::grep::{FileFound, FileSearcher, LinePattern, Wanted};
use crate::search::scan::scan;
use crate::search::stop::Stop;
use crate::search::text::AtNul;
use crate::search::walk::{WalkCounts, WalkOptions};

/// Most text of lines in one result, in bytes; the rest of an output's 100 KiB is for what is said about them.
pub(super) const CONTENT_BYTES_MAX: usize = 96 * 1024;
/// Most matches whose places stand in the metadata.
const PLACES_MAX: usize = 200;

/// Compiles the query.
pub(super) fn pattern(query: &str, case_sensitive: bool) -> Step<LinePattern> {
    LinePattern::new(query, case_sensitive).map_err(|error| wrong(error.to_string()))
}

/// Searches and reports.
pub(super) fn search(request: &Request, query: &str, pattern: &LinePattern, stop: &Stop) -> Step<ToolOutcome> {
    let options = WalkOptions { hidden: request.include_wants_hidden(), ..WalkOptions::default() };
    let mut ground = Ground::of(request, options)?;
    let at_nul = if ground.is_single_file() { AtNul::Keep } else { AtNul::End };
    let wanted = match request.output_mode {
        OutputMode::Content => Wanted::Lines { context: request.context.unwrap_or(0), bytes_max: CONTENT_BYTES_MAX },
        OutputMode::FilesWithMatches => Wanted::Any,
        OutputMode::Count | OutputMode::Summary => Wanted::Count,
    };
    let mut report = Report::new(request);
    let mut entries = Entries::new(request, &mut ground, pattern.requirement());
    let new_worker = || {
        let mut searcher = FileSearcher::new(request.files.as_ref(), pattern.clone(), wanted, at_nul, stop.clone());
        move |entry: &Entry| {
            let path = &entry.entry.path;
            (entry.passed, if entry.binary { FileFound::nothing_in_binary(path) } else { searcher.search(path) })
        }
    };
    scan(&mut entries, stop, &new_worker, |(passed, found)| {
        report.notes.files += passed;
        report.take(&found)
    });
    report.notes.files += entries.passed;
    report.notes.links = entries.links;
    let counts = entries.counts();
    entries.take_back();
    report.finish(query, &counts)
}

/// Gathers what the files say, in path order.
struct Report<'a> {
    request: &'a Request,
    text: String,
    /// Whether lines are missing for the limit on their text.
    cut: bool,
    matching_lines: u64,
    matching_files: u64,
    places: Vec<Value>,
    anchors: Anchors,
    notes: Notes,
}

impl<'a> Report<'a> {
    fn new(request: &'a Request) -> Self {
        Self {
            request,
            text: String::new(),
            cut: false,
            matching_lines: 0,
            matching_files: 0,
            places: Vec::new(),
            anchors: Anchors::default(),
            notes: Notes::default(),
        }
    }

    fn take(&mut self, found: &FileFound) -> ControlFlow<()> {
        self.notes.take(found);
        if found.matching_lines == 0 {
            return ControlFlow::Continue(());
        }
        let at = usize::try_from(self.matching_files).unwrap_or(usize::MAX);
        match self.request.output_mode {
            OutputMode::Content => return self.show(found),
            OutputMode::Summary => self.anchors.add(&found.path),
            OutputMode::FilesWithMatches | OutputMode::Count => {
                let page = self.request.page;
                if (page.offset..page.offset.saturating_add(page.applied_limit)).contains(&at) {
                    self.anchors.add(&found.path);
                    let _ = match self.request.output_mode {
                        OutputMode::Count => writeln!(self.text, "{}:{}", found.path, found.matching_lines),
                        _ => writeln!(self.text, "{}", found.path),
                    };
                }
            }
        }
        self.matching_files += 1;
        self.matching_lines += found.matching_lines;
        ControlFlow::Continue(())
    }

    /// Adds the lines of a file until the text is full.
    fn show(&mut self, found: &FileFound) -> ControlFlow<()> {
        let path = found.path.to_string();
        let mut is_counted = false;
        let with_context = self.request.context.unwrap_or(0) > 0;
        for (at, line) in found.lines.iter().enumerate() {
            let gap = with_context && (line.gap_before || at == 0) && !self.text.is_empty();
            let bytes = path.len() + line.text.len() + 24;
            if self.text.len() + bytes > CONTENT_BYTES_MAX {
                self.cut = true;
                return ControlFlow::Break(());
            }
            if gap {
                self.text.push_str("--\n");
            }
            let mark = if line.column.is_some() { ':' } else { '-' };
            let _ = writeln!(self.text, "{path}{mark}{}{mark}{}", line.number, line.text);
            if let Some(column) = line.column {
                self.matching_lines += 1;
                if !std::mem::replace(&mut is_counted, true) {
                    self.matching_files += 1;
                    self.anchors.add(&found.path);
                }
                if self.places.len() < PLACES_MAX {
                    self.places.push(json!({
                        "path": path, "line": line.number,
                        "column_byte": column.byte, "column_character": column.character,
                    }));
                }
            }
        }
        self.cut |= found.cut;
        if self.cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(mut self, query: &str, walk: &WalkCounts) -> Step<ToolOutcome> {
        let paginated = self.request.output_mode.is_paginated();
        let total = usize::try_from(self.matching_files).unwrap_or(usize::MAX);
        let page = if paginated {
            let range = self.request.page.range(total).map_err(|error| wrong(error.to_string()))?;
            Some(self.request.page.facts(range.len(), total))
        } else {
            None
        };
        if self.matching_files == 0 {
            let files = count(self.notes.files, "file", "files");
            let _ = writeln!(self.text, "No line matches {query} ({files} searched)");
        } else {
            if !self.text.is_empty() {
                self.text.push('\n');
            }
            let files = count(self.matching_files, "file", "files");
            // With only the files asked for, each is left at its first match.
            let _ = match self.request.output_mode {
                OutputMode::FilesWithMatches => writeln!(self.text, "{files} with matching lines"),
                _ => {
                    writeln!(self.text, "{} in {files}", count(self.matching_lines, "matching line", "matching lines"))
                }
            };
        }
        if self.cut {
            let kib = CONTENT_BYTES_MAX / 1024;
            let _ = writeln!(
                self.text,
                "[cut at {kib} KiB: more lines match; narrow with path, include or the pattern, or count them with \
                 output_mode count]"
            );
        }
        if let Some(cursor) = page.as_ref().and_then(|page| page.next_cursor.as_ref()) {
            let shown = page.as_ref().map_or(0, |page| page.returned_items);
            let _ = writeln!(self.text, "[{shown} of {total} files; the next page has cursor \"{cursor}\"]");
        }
        self.text.push_str(&self.notes.lines(walk));
        let exact = !self.cut && self.request.output_mode != OutputMode::FilesWithMatches;
        let truncated = self.cut || walk.truncated;
        let mut outcome = ToolOutcome::success(self.text)
            .with("output_mode", self.request.output_mode.as_str())
            .with("case_sensitive", self.request.case_sensitive)
            .with("sort", "path")
            .with("source_anchors", json!(self.anchors.0))
            .with(
                "search",
                json!({
                    "matching_lines": (exact || self.cut).then_some(self.matching_lines),
                    "matching_files": self.matching_files,
                    "truncated": truncated,
                }),
            )
            .with("failed_reads", self.notes.failed.total)
            .with("left_out", self.notes.facts(walk));
        if let Some(page) = page {
            outcome = outcome.with("page", page.to_value());
        }
        if self.request.output_mode == OutputMode::Content {
            outcome = outcome.with("matches", json!(self.places));
        }
        Ok(outcome)
    }
}
