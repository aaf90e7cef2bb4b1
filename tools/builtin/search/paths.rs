//! Mode glob: files by the pattern of their path.

use std::fmt::Write as _;

use serde_json::json;

use super::notes::Notes;
use super::{Anchors, Request, Step, count, wrong};
use crate::effects::files::{FileKind, Links};
use crate::outcome::ToolOutcome;
use crate::search::glob::PathPattern;
use crate::search::stop::Stop;
use crate::search::walk::WalkOptions;

/// Searches and reports. A link counts as the file it leads to; folders are not listed.
pub(super) fn search(request: &Request, query: &str, pattern: &PathPattern, stop: &Stop) -> Step<ToolOutcome> {
    let start = request.files.canonical(&request.start).map_err(|error| super::fault(&error))?;
    let options = WalkOptions {
        hidden: pattern.wants_hidden() || request.include_wants_hidden(),
        below: Some(pattern.base(&start)),
        ..WalkOptions::default()
    };
    let mut walk = request.walk(options)?;
    let page = request.page;
    let wanted = page.offset..page.offset.saturating_add(page.applied_limit);
    let (mut text, mut total) = (String::new(), 0_usize);
    let (mut anchors, mut notes) = (Anchors::default(), Notes::default());
    for entry in walk.by_ref() {
        if stop.is_given() {
            break;
        }
        notes.files += 1;
        if !pattern.matches(&entry.path, &start) || !request.wants(&entry.path, &start) {
            continue;
        }
        let is_file = entry.kind == FileKind::File
            || request.files.stat(&entry.path, Links::Follow).is_ok_and(|stat| stat.kind == FileKind::File);
        if !is_file {
            notes.links += 1;
            continue;
        }
        if wanted.contains(&total) {
            anchors.add(&entry.path);
            let _ = writeln!(text, "{}", entry.path);
        }
        total += 1;
    }
    let counts = walk.counts();
    let range = page.range(total).map_err(|error| wrong(error.to_string()))?;
    let facts = page.facts(range.len(), total);
    if total == 0 {
        let files = count(notes.files, "file", "files");
        let _ = writeln!(text, "No file matches {query} ({files} looked at)");
    } else {
        let _ = writeln!(text, "\n{}", count(total as u64, "matching file", "matching files"));
    }
    if let Some(cursor) = &facts.next_cursor {
        let shown = facts.returned_items;
        let _ = writeln!(text, "[{shown} of {total} files; the next page has cursor \"{cursor}\"]");
    }
    text.push_str(&notes.lines(&counts));
    Ok(ToolOutcome::success(text)
        .with("case_sensitive", request.case_sensitive)
        .with("sort", "path")
        .with("source_anchors", json!(anchors.0))
        .with("page", facts.to_value())
        .with("search", json!({"matching_files": total, "truncated": counts.truncated}))
        .with("left_out", notes.facts(&counts)))
}
