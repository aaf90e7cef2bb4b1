//! Several files in one `read`, within one budget of bytes.
//!
//! Files come in the order asked. One that fails says so in its place and stops nothing; the first one that does not
//! fit is shown as far as it does, no later one is opened, and the text ends with exactly what to ask next.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::line_index::LineIndexes;
use super::window::{Wanted, Window};
use super::{READ_LINES_MAX, Shown, image_type, io_fault, lines, open};
use crate::builtin::reach::{self, Step, wrong};
use crate::context::ToolContext;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workspace_path::WorkspacePath;

/// Most files of one call.
pub(super) const FILES_MAX: usize = 32;
/// Budget for the text when none is asked for, in bytes.
pub(super) const BUDGET_BYTES_DEFAULT: usize = 64 * 1024;
/// Smallest budget, in bytes.
pub(super) const BUDGET_BYTES_MIN: usize = 1024;
/// Largest budget, in bytes.
pub(super) const BUDGET_BYTES_MAX: usize = 96 * 1024;

/// One file to read; also one entry of the continuation.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    path: String,
    #[serde(default, skip_serializing_if = "is_zero")]
    offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(offset: &u64) -> bool {
    *offset == 0
}

impl Entry {
    fn limit(&self) -> u64 {
        self.limit.unwrap_or(READ_LINES_MAX).min(READ_LINES_MAX)
    }

    /// What is left of it after this many lines.
    fn after(&self, shown: u64) -> Self {
        let limit = self.limit.map(|limit| limit.saturating_sub(shown));
        Self { path: self.path.clone(), offset: self.offset + shown, limit }
    }
}

/// Reads the files.
pub(super) async fn read(
    ctx: &ToolContext,
    indexes: &Arc<LineIndexes>,
    entries: Vec<Entry>,
    budget_bytes: Option<usize>,
) -> Step<ToolOutcome> {
    let budget_bytes = budget_bytes.unwrap_or(BUDGET_BYTES_DEFAULT);
    if entries.is_empty() || entries.len() > FILES_MAX {
        return Err(wrong(format!("files takes 1 to {FILES_MAX} entries")));
    }
    if !(BUDGET_BYTES_MIN..=BUDGET_BYTES_MAX).contains(&budget_bytes) {
        return Err(wrong(format!("max_output_bytes must be from {BUDGET_BYTES_MIN} to {BUDGET_BYTES_MAX}")));
    }
    let mut batch = Batch { budget_bytes, requested: entries.len(), ..Batch::default() };
    let mut named = BTreeSet::new();
    for (index, entry) in entries.iter().enumerate() {
        // A path that is none fails in its place.
        if let Ok(path) = reach::path(ctx, &entry.path)
            && !named.insert(path)
        {
            return Err(wrong(format!(
                "/files/{index}: {} is named twice; ask for one range of it a call",
                entry.path
            )));
        }
    }
    for (index, entry) in entries.iter().enumerate() {
        let rest = &entries[index + 1..];
        let room_bytes = budget_bytes.saturating_sub(batch.text.len());
        match show(ctx, indexes, entry, room_bytes).await {
            Ok((path, shown)) => {
                if shown.changed_meanwhile {
                    batch.changed.push(path.to_string());
                }
                batch.add_lines(&path, entry, &shown.window, rest);
            }
            Err(failed)
                if matches!(failed.error, Some(ToolErrorKind::Cancelled { .. } | ToolErrorKind::Timeout { .. })) =>
            {
                return Err(failed);
            }
            Err(failed) => batch.add_failure(entry, &failed.output, rest),
        }
        if !batch.continuation.is_empty() {
            break;
        }
    }
    batch.finish()
}

/// The lines of one file.
async fn show(
    ctx: &ToolContext,
    indexes: &Arc<LineIndexes>,
    entry: &Entry,
    text_bytes_max: usize,
) -> Step<(WorkspacePath, Shown)> {
    let path = reach::path(ctx, &entry.path)?;
    let mut file = open(ctx, &path)?;
    if image_type(&path, file.as_mut()).map_err(|error| io_fault(&path, error))?.is_some() {
        return Err(wrong(format!("{path} is an image; read it alone, with file_path")));
    }
    let wanted = Wanted { offset: entry.offset, limit: entry.limit(), text_bytes_max, whole: false };
    let shown = lines(ctx, indexes, path.clone(), file, wanted).await?;
    if let Some(total) = shown.window.total_lines.filter(|total| entry.offset > *total) {
        return Err(wrong(format!("{path} has {}; offset {} lies behind its end", super::count(total), entry.offset)));
    }
    Ok((path, shown))
}

/// What is collected.
#[derive(Default)]
struct Batch {
    text: String,
    budget_bytes: usize,
    requested: usize,
    anchors: Vec<String>,
    /// Files that changed while they were read.
    changed: Vec<String>,
    failed: usize,
    completed: usize,
    returned_lines: u64,
    continuation: Vec<Entry>,
}

impl Batch {
    /// Adds as many lines as fit together with the footer that they make necessary.
    fn add_lines(&mut self, path: &WorkspacePath, entry: &Entry, window: &Window, rest: &[Entry]) {
        let header = format!("=== {path} ===\n");
        // A range that was asked for is complete with its last line, a file with the end of the file.
        let complete = !window.more || entry.limit.is_some_and(|_| window.returned_lines() >= entry.limit());
        let segment = |lines: usize| match (lines, window.ends.len()) {
            (0, 0) if window.total_lines == Some(0) => "(empty file)\n",
            (0, 0) => "(nothing follows this offset)\n",
            (0, _) => "",
            (lines, _) => &window.text[..window.ends[lines - 1]],
        };
        let after = |lines: usize| -> Vec<Entry> {
            let whole = complete && lines == window.ends.len();
            let left = (!whole).then(|| entry.after(lines as u64));
            left.into_iter().chain(rest.iter().cloned()).collect()
        };
        let fits = |lines: usize| {
            let segment_bytes = self.gap() + header.len() + segment(lines).len();
            self.text.len() + segment_bytes + self.footer(&after(lines), lines as u64, 0).len() <= self.budget_bytes
        };
        // Text and continuation grow with the lines: the largest number that fits is found by halving. Only with
        // all of them can the continuation be shorter, so that is tried first.
        let mut lines = window.ends.len();
        if !fits(lines) {
            let (mut low, mut high) = (0, lines);
            while low < high {
                let middle = (low + high).div_ceil(2);
                if fits(middle) { low = middle } else { high = middle - 1 }
            }
            lines = low;
        }
        let nothing = lines == 0 && (!window.ends.is_empty() || window.more);
        if nothing || !fits(lines) {
            self.continuation = std::iter::once(entry.clone()).chain(rest.iter().cloned()).collect();
            return;
        }
        let left = after(lines);
        let segment = segment(lines).to_owned();
        self.push(&header, &segment);
        self.anchors.push(path.to_string());
        self.returned_lines += lines as u64;
        if left.len() == rest.len() {
            self.completed += 1;
        } else {
            self.continuation = left;
        }
    }

    fn add_failure(&mut self, entry: &Entry, message: &str, rest: &[Entry]) {
        let header = format!("=== {} ===\n", entry.path.escape_debug());
        let segment = format!("[not read: {message}]\n");
        let bytes = self.gap() + header.len() + segment.len();
        if self.text.len() + bytes + self.footer(rest, 0, 1).len() > self.budget_bytes {
            self.continuation = std::iter::once(entry.clone()).chain(rest.iter().cloned()).collect();
            return;
        }
        self.push(&header, &segment);
        self.failed += 1;
    }

    fn gap(&self) -> usize {
        usize::from(!self.text.is_empty())
    }

    fn push(&mut self, header: &str, segment: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(header);
        self.text.push_str(segment);
    }

    /// The last line, when this is left and this much was added.
    fn footer(&self, left: &[Entry], more_lines: u64, more_failed: usize) -> String {
        let (shown, failed) = (self.returned_lines + more_lines, self.failed + more_failed);
        let failed = if failed == 0 { String::new() } else { format!(", {failed} not readable") };
        if left.is_empty() {
            return format!("\n[complete: {} files asked{failed}, {shown} lines]\n", self.requested);
        }
        let next = serde_json::to_string(left).unwrap_or_default();
        format!("\n[partial: {shown} lines so far{failed}; go on with files={next}]\n")
    }

    fn finish(mut self) -> Step<ToolOutcome> {
        if self.text.is_empty() && !self.continuation.is_empty() {
            return Err(wrong(format!(
                "max_output_bytes {} holds not even one line and the list of what is left; raise it (up to \
                 {BUDGET_BYTES_MAX}) or ask for fewer files",
                self.budget_bytes
            )));
        }
        let footer = self.footer(&self.continuation, 0, 0);
        self.text.push_str(&footer);
        let truncated = !self.continuation.is_empty();
        let status = match (truncated, self.failed) {
            (true, _) => "partial",
            (false, 0) => "complete",
            (false, _) => "partial_failure",
        };
        let facts = json!({
            "status": status,
            "requested_files": self.requested,
            "successful_files": self.anchors.len(),
            "failed_files": self.failed,
            "completed_files": self.completed,
            "returned_lines": self.returned_lines,
            "max_output_bytes": self.budget_bytes,
            "output_bytes": self.text.len(),
            "truncated": truncated,
            "continuation": self.continuation,
            "changed_meanwhile": self.changed,
        });
        let outcome = if self.anchors.is_empty() && !truncated {
            let kind = ToolErrorKind::PartialFailure { failed: self.failed, total: self.requested };
            ToolOutcome::error(kind, self.text)
        } else {
            ToolOutcome::success(self.text)
        };
        Ok(outcome.with("source_anchors", Value::from(self.anchors)).with("batch", facts))
    }
}
