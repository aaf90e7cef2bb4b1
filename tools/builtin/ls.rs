//! `ls`: the names in one folder, a page at a time.
//!
//! Sorted by bytes, so that a page boundary never moves by locale. Every entry is printed as the whole path that
//! the other tools take, odd names in their quoted form, one entry a line whatever the name holds.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::reach::{self, Step, wrong};
use crate::context::ToolContext;
use crate::declaration::Capabilities;
use crate::effects::files::{FileError, FileKind, Files, FolderEntry, Links, SizedEntry};
use crate::ids::ToolName;
use crate::outcome::ToolOutcome;
use crate::pagination::{PageRequest, cursor_schema, limit_schema};
use crate::search::walk::{StartError, Walk, WalkOptions};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// Most text of one page, in bytes; a page ends early at it.
pub const OUTPUT_BYTES_MAX: usize = 96 * 1024;
/// How many listings may run beside each other.
const PARALLELISM: usize = 16;

/// The tool.
pub struct LsTool;

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(LsTool)
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    path: Option<String>,
    #[serde(default)]
    hide_ignored: bool,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("ls"),
        description: "List the names directly in one folder, sorted, with kind (dir, file, link, special) and size in \
            bytes. Use it to see what a folder holds; use search in glob mode to find files by name in a whole tree. \
            Hidden names are listed too, and what .gitignore and .ignore hide unless hide_ignored is set. Each line ends with a path that every other tool takes as it stands \
            (odd names are quoted). When the last line names a cursor, there are more entries: call again with it."
            .into(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX, "default": ".",
                    "description": "The folder, relative to the workspace; the workspace itself when left out.",
                },
                "hide_ignored": {
                    "type": "boolean", "default": false,
                    "description": "Leave out what .gitignore and .ignore hide.",
                },
                "limit": limit_schema(),
                "cursor": cursor_schema(),
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Query,
        needs: Needs::default(),
    }
}

impl Tool for LsTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities::read_only_paginated(PARALLELISM)
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let path = arguments.get("path").and_then(Value::as_str).unwrap_or(".");
        Subject::Paths { paths: vec![path.to_owned()], write: false }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { list(ctx, &arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn list(ctx: &ToolContext, arguments: &Value) -> Step<ToolOutcome> {
    let page = PageRequest::from_arguments(arguments).map_err(|error| wrong(error.to_string()))?;
    let Arguments { path, hide_ignored } =
        Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    let path = reach::path(ctx, path.as_deref().unwrap_or("."))?;
    let files = Arc::clone(ctx.workspace.files());
    // The size of a folder grows with its entries on most file systems.
    let short = files.stat(&path, Links::Follow).map_err(|error| fault(&error))?.size_bytes < reach::INLINE_BYTES_MAX;
    let listed = reach::blocking(ctx, "ls", short, move |stop| {
        let mut entries = files.list_sized(&path).map_err(|error| fault(&error))?;
        let all = entries.len();
        if hide_ignored {
            let walk =
                Walk::start(files.as_ref(), &path, WalkOptions::default()).map_err(|error| unlistable(&error))?;
            // Rules hold for where a file is, not for the link that led there.
            let is_ignored = |entry: &FolderEntry| match entry.path.name() {
                Some(name) => walk.is_ignored(&FolderEntry { path: walk.start_path().child(name), kind: entry.kind }),
                None => false,
            };
            entries.retain(|sized| !is_ignored(&sized.entry));
        }
        let ignored = all - entries.len();
        let range = page.range(entries.len()).map_err(|error| wrong(error.to_string()))?;
        let mut text = String::new();
        let mut returned = 0;
        for entry in &entries[range] {
            if let Some(reason) = stop.reason() {
                return Err(reach::ended("ls", &reason));
            }
            let line = line_of(files.as_ref(), entry);
            if returned > 0 && text.len() + line.len() > OUTPUT_BYTES_MAX {
                break;
            }
            text.push_str(&line);
            returned += 1;
        }
        Ok((path, text, ignored, page.facts(returned, entries.len())))
    });
    let (path, mut text, ignored, facts) = listed.await??;
    if facts.total_items == Some(0) && ignored > 0 {
        text = format!("({path} has nothing that is not ignored)\n");
    } else if facts.total_items == Some(0) {
        text = format!("({path} is an empty folder)\n");
    } else if let Some(cursor) = &facts.next_cursor {
        let (shown, total) = (facts.returned_items, facts.total_items.unwrap_or(0));
        let _ = writeln!(text, "[{shown} of {total} entries; the next page has cursor \"{cursor}\"]");
    }
    if ignored > 0 {
        let _ = writeln!(text, "[{ignored} entries are left out: ignore rules hide them]");
    }
    Ok(ToolOutcome::success(text)
        .with("path", path.to_string())
        .with("ignored_entries", ignored)
        .with("source_anchors", json!([path.to_string()]))
        .with("page", facts.to_value()))
}

/// One entry: kind, size, path; where a link leads.
fn line_of(files: &dyn Files, SizedEntry { entry, size_bytes }: &SizedEntry) -> String {
    let size = match (entry.kind, size_bytes) {
        (FileKind::File, Some(size_bytes)) => size_bytes.to_string(),
        // A file that went meanwhile has no size any more.
        (FileKind::File, None) => {
            files.stat(&entry.path, Links::Stay).map_or_else(|_| "-".into(), |stat| stat.size_bytes.to_string())
        }
        (FileKind::Folder | FileKind::Link | FileKind::Special, _) => "-".to_owned(),
    };
    let mut line = format!("{:<7} {size:>12}  {}", entry.kind.as_str(), entry.path);
    if entry.kind == FileKind::Link {
        line.push_str(" -> ");
        line.push_str(&leads_to(files, &entry.path));
    }
    line.push('\n');
    line
}

fn leads_to(files: &dyn Files, link: &WorkspacePath) -> String {
    match files.canonical(link) {
        Ok(target) if files.stat(&target, Links::Stay).is_ok() => target.to_string(),
        Ok(target) => format!("{target} (missing)"),
        Err(FileError::Outside { .. }) => "(outside of the workspace)".into(),
        Err(_) => "(nowhere)".into(),
    }
}

fn unlistable(error: &StartError) -> Box<ToolOutcome> {
    match error {
        StartError::File(error) => fault(error),
        error => wrong(format!("{error}; leave hide_ignored out to list it")),
    }
}

fn fault(error: &FileError) -> Box<ToolOutcome> {
    match error {
        FileError::NotAFolder { path } => wrong(format!("{path} is not a folder; use read for a file")),
        error => reach::fault(error),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::super::testing::{call, context};
    use crate::cancellation::CancelReason;
    use crate::effects::files::Files as _;
    use crate::outcome::ToolErrorKind;
    use crate::workspace::local::LocalFiles;
    use crate::workspace_path::WorkspacePath;

    #[tokio::test]
    async fn kinds_sizes_and_links_are_shown() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        fs::write(root.path().join("d/f"), "12345").unwrap();
        symlink("d/f", root.path().join("in")).unwrap();
        symlink("/etc", root.path().join("out")).unwrap();
        symlink("no", root.path().join("dangling")).unwrap();
        let ctx = context(root.path());
        let listed = super::tool();
        let outcome = call(listed.as_ref(), &ctx, json!({})).await;
        let lines: Vec<_> = outcome.output.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines[0], ["dir", "-", "d"]);
        assert_eq!(lines[1], ["link", "-", "dangling", "->", "no", "(missing)"]);
        assert_eq!(lines[2], ["link", "-", "in", "->", "d/f"]);
        assert_eq!(lines[3][..4], ["link", "-", "out", "->"]);
        let inner = call(listed.as_ref(), &ctx, json!({"path": "d/"})).await;
        assert_eq!(inner.output.split_whitespace().collect::<Vec<_>>(), ["file", "5", "d/f"]);
        assert_eq!(inner.metadata["source_anchors"], json!(["d"]));
        // Case C062: a listing through a link that leads out is refused with the link.
        let out = call(listed.as_ref(), &ctx, json!({"path": "out"})).await;
        assert!(out.output.contains("through the link out"), "{}", out.output);
    }

    // Case C067: every printed form is a line of its own and is taken back.
    #[tokio::test]
    async fn odd_names_come_back() {
        let root = tempfile::tempdir().unwrap();
        for name in [b"bad\xff.txt".as_slice(), b"new\nline.txt", b" lead", b"-rf"] {
            fs::write(root.path().join(OsStr::from_bytes(name)), "x").unwrap();
        }
        let ctx = context(root.path());
        let outcome = call(super::tool().as_ref(), &ctx, json!({})).await;
        assert_eq!(outcome.output.lines().count(), 4);
        let (files, _) = LocalFiles::open(root.path()).unwrap();
        for line in outcome.output.lines() {
            let printed = &line[22..];
            let path = WorkspacePath::parse(printed, "").unwrap();
            assert!(files.open(&path).is_ok(), "{printed}");
        }
    }

    #[tokio::test]
    async fn pages_follow_each_other_and_errors_say_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..7 {
            fs::write(root.path().join(format!("f{number}")), "").unwrap();
        }
        let ctx = context(root.path());
        let listed = super::tool();
        let first = call(listed.as_ref(), &ctx, json!({"limit": 5})).await;
        assert!(first.output.ends_with("[5 of 7 entries; the next page has cursor \"5\"]\n"));
        let cursor = first.metadata["page"]["next_cursor"].clone();
        let second = call(listed.as_ref(), &ctx, json!({"limit": 5, "cursor": cursor})).await;
        assert_eq!(second.output.lines().count(), 2);
        assert_eq!(second.metadata["page"]["truncated"], json!(false));
        for wrong in [json!({"cursor": "x"}), json!({"cursor": "8"}), json!({"path": "f0"}), json!({"path": "../x"})] {
            let outcome = call(listed.as_ref(), &ctx, wrong.clone()).await;
            assert!(
                matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })),
                "{wrong}: {}",
                outcome.output
            );
        }
        let missing = call(listed.as_ref(), &ctx, json!({"path": "no"})).await;
        assert!(matches!(missing.error, Some(ToolErrorKind::NotFound { .. })));
        ctx.cancel.cancel(CancelReason::Requested);
        let cancelled = call(listed.as_ref(), &ctx, json!({})).await;
        assert!(matches!(cancelled.error, Some(ToolErrorKind::Cancelled { .. })));
    }

    #[tokio::test]
    async fn ignored_entries_are_left_out_when_that_is_asked_for() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("d/build")).unwrap();
        fs::create_dir(root.path().join(".git")).unwrap();
        fs::write(root.path().join(".gitignore"), "*.log\nbuild/\n!keep.log\n").unwrap();
        for name in ["a.log", "keep.log", "a.rs", "d/b.log", "d/b.rs"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        symlink("d", root.path().join("l")).unwrap();
        let ctx = context(root.path());
        let listed = super::tool();
        let names = |outcome: &crate::outcome::ToolOutcome| -> Vec<String> {
            let lines = outcome.output.lines().filter(|line| !line.starts_with('['));
            lines.map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect()
        };
        let all = call(listed.as_ref(), &ctx, json!({"path": "d"})).await;
        assert_eq!(
            (names(&all), &all.metadata["ignored_entries"]),
            (vec!["d/b.log".into(), "d/b.rs".into(), "d/build".into()], &json!(0))
        );
        let root_names = names(&call(listed.as_ref(), &ctx, json!({"hide_ignored": true})).await);
        assert_eq!(root_names, [".git", ".gitignore", "a.rs", "d", "keep.log", "l"]);
        for folder in ["d", "l"] {
            let shown = call(listed.as_ref(), &ctx, json!({"path": folder, "hide_ignored": true, "limit": 1})).await;
            assert_eq!(names(&shown), [format!("{folder}/b.rs")]);
            assert_eq!(
                (&shown.metadata["ignored_entries"], &shown.metadata["page"]["total_items"]),
                (&json!(2), &json!(1))
            );
            assert!(shown.output.contains("2 entries are left out"), "{}", shown.output);
        }
        let git = call(listed.as_ref(), &ctx, json!({"path": ".git", "hide_ignored": true})).await;
        assert!(git.output.contains("leave hide_ignored out"), "{}", git.output);
    }

    #[tokio::test]
    async fn an_empty_folder_is_said_to_be_one() {
        let root = tempfile::tempdir().unwrap();
        let outcome = call(super::tool().as_ref(), &context(root.path()), json!({})).await;
        assert!(outcome.is_success() && outcome.output.contains("empty folder"));
    }
}
