//! Mode glob: files by the pattern of their path.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::json;

use super::entries::{Ground, walk_of};
use super::notes::Notes;
use super::{Anchors, Request, Step, count, wrong};
use crate::effects::files::{FileKind, Links};
use crate::outcome::ToolOutcome;
use crate::search::glob::PathPattern;
use crate::search::stop::Stop;
use crate::search::tree::Leaf;
use crate::search::walk::WalkOptions;
use crate::workspace_path::WorkspacePath;

/// Searches and reports. A link counts as the file it leads to; folders are not listed.
pub(super) fn search(request: &Request, query: &str, pattern: &PathPattern, stop: &Stop) -> Step<ToolOutcome> {
    let start = request.files.canonical(&request.start).map_err(|error| super::fault(&error))?;
    let options = WalkOptions {
        hidden: pattern.wants_hidden() || request.include_wants_hidden(),
        below: Some(pattern.base(&start)),
        ..WalkOptions::default()
    };
    let mut ground = Ground::of(request, options)?;
    let page = request.page;
    let wanted = page.offset..page.offset.saturating_add(page.applied_limit);
    let (mut text, mut total) = (String::new(), 0_usize);
    let (mut anchors, mut notes) = (Anchors::default(), Notes::default());
    let mut consider = |path: &[u8], is_link: bool| {
        notes.files += 1;
        if !pattern.matches_bytes(path, &start) || !request.wants(path, &start) {
            return;
        }
        let whole = || WorkspacePath::from_relative(Path::new(OsStr::from_bytes(path)));
        let leads_to_file =
            || request.files.stat(&whole(), Links::Follow).is_ok_and(|stat| stat.kind == FileKind::File);
        if is_link && !leads_to_file() {
            notes.links += 1;
            return;
        }
        if wanted.contains(&total) {
            let path = whole();
            anchors.add(&path);
            let _ = writeln!(text, "{path}");
        }
        total += 1;
    };
    let counts = match &mut ground {
        Ground::Walk { walk, .. } => {
            for entry in walk.by_ref().take_while(|_| !stop.is_given()) {
                consider(entry.path.as_bytes(), entry.kind != FileKind::File);
            }
            walk.counts()
        }
        Ground::View { view, start, below } => {
            let mut walk = walk_of(view.tree(), start, below.clone());
            while let Some(leaf) = walk.next_leaf().filter(|_| !stop.is_given()) {
                consider(walk.path(), leaf == Leaf::Link);
            }
            walk.counts()
        }
    };
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
