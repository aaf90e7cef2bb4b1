//! `write`: a whole new content for a file, or bytes behind its end.
//!
//! Both are atomic: a reader sees the old content or the new one. Writing says what it expects: an overwrite that the
//! file is what the session last saw, an append how many bytes there are. An append that was applied already is a
//! success, so that it can be sent again after an interruption.

use std::borrow::Cow;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use super::change::{Change, Side};
use super::reach::{self, Step, Stop, wrong};
use super::target::{CHANGED_BYTES_MAX, Content, Target};
use crate::context::ToolContext;
use crate::declaration::{Capabilities, OutputKind};
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::text::{DecodedText, Encoding, TextError};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::PATH_BYTES_MAX;

/// The byte-order mark, as a character.
const MARK: char = '\u{feff}';

/// The tool.
pub struct WriteTool;

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(WriteTool)
}

#[derive(Deserialize)]
struct Arguments {
    file_path: String,
    content: String,
    #[serde(default)]
    mode: Mode,
    expected_offset: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Overwrite,
    Append,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("write"),
        description: format!(
            "Write a whole file (folders above it are made), or append to one. Use edit to change a part of an \
             existing file: it is shorter and safer. The file is replaced in one step and keeps its mode and its \
             byte-order mark; content is written as given, at most {} MiB. A file that changed since this session \
             last read it is not overwritten: read it again first. mode append needs expected_offset, the size of \
             the file in bytes before the append; sending the same append again is safe. The result says how many \
             bytes and lines were written.",
            CHANGED_BYTES_MAX / (1024 * 1024)
        ),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["file_path", "content"],
            "properties": {
                "file_path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                    "description": "The file, relative to the workspace.",
                },
                "content": {"type": "string", "description": "The whole new content, or what to append."},
                "mode": {"type": "string", "enum": ["overwrite", "append"], "default": "overwrite"},
                "expected_offset": {
                    "type": "integer", "minimum": 0,
                    "description": "With append: the size of the file now, in bytes (0 for a new file).",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Execute,
        needs: Needs { write: true, ..Needs::default() },
    }
}

impl Tool for WriteTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        Capabilities {
            idempotent: true,
            resumable: arguments.get("mode").and_then(Value::as_str) == Some("append"),
            cancellation_safe: true,
            output_kind: OutputKind::Diff,
            ..Capabilities::conservative()
        }
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let path = arguments.get("file_path").and_then(Value::as_str);
        Subject::Paths { paths: path.into_iter().map(str::to_owned).collect(), write: true }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { write(ctx, arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn write(ctx: &ToolContext, arguments: Value) -> Step<ToolOutcome> {
    let Arguments { file_path, content, mode, expected_offset } =
        Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    if content.len() as u64 > CHANGED_BYTES_MAX {
        return Err(wrong(format!("content has {} bytes; at most {CHANGED_BYTES_MAX} are written", content.len())));
    }
    match (mode, expected_offset) {
        (Mode::Append, None) => {
            return Err(wrong("append needs expected_offset: the size of the file in bytes before the append"));
        }
        (Mode::Overwrite, Some(offset)) if offset > 0 => {
            return Err(wrong("expected_offset belongs to mode append; leave it out to overwrite"));
        }
        _ => {}
    }
    let target = Target::take(ctx, "write", &file_path).await?;
    let short = target.size_hint_bytes().max(content.len() as u64) <= reach::INLINE_BYTES_MAX;
    let work = move |stop: &Stop| match mode {
        Mode::Overwrite => overwrite(&target, &content, stop),
        Mode::Append => append(&target, &content, expected_offset.unwrap_or(0), stop),
    };
    reach::blocking(ctx, "write", short, work).await?
}

fn overwrite(target: &Target, content: &str, stop: &Stop) -> Step<ToolOutcome> {
    let now = target.content(stop)?;
    let path = target.path();
    let mut notes = String::new();
    let body = content.strip_prefix(MARK).unwrap_or(content);
    let mut encoding = Encoding::Utf8;
    let mut bytes = Cow::Borrowed(content.as_bytes());
    if let Some(now) = &now {
        // A mark that is there stays, and none comes; what has no mark is UTF-8 from now on.
        encoding = encoding_of(now);
        if !encoding.is_certain() {
            notes = format!(" It was {encoding} (by guess) and is UTF-8 now.");
            encoding = Encoding::Utf8;
        }
        let kept = DecodedText { text: body.to_owned(), encoding };
        bytes = Cow::Owned(kept.to_bytes().map_err(|error| unwritable(target, &error))?);
    }
    let before_bytes = now.as_ref().and_then(|now| now.bytes.as_deref()).unwrap_or_default();
    if line_endings(&String::from_utf8_lossy(before_bytes)) == "crlf" && line_endings(content) == "lf" {
        notes.push_str(" Its lines ended with CR LF and end with LF now.");
    }
    let lines = content.split_inclusive('\n').count();
    let size = format!("{lines} lines, {} bytes", bytes.len());
    let unchanged = now.as_ref().is_some_and(|now| now.bytes.as_deref() == Some(bytes.as_ref()));
    let summary = match &now {
        None => format!("Created {path}: {size}.\n"),
        Some(_) if unchanged => format!("{path} holds exactly this already ({size}); nothing was written.\n"),
        Some(now) => format!("Wrote {path}: {size}; it had {} bytes before.{notes}\n", now.size_bytes),
    };
    let digest = match &now {
        Some(now) if unchanged => {
            target.record(now.digest.clone());
            now.digest.clone()
        }
        _ => {
            if let Some(now) = &now {
                target.check_seen(now)?;
            }
            target.put(now.as_ref(), &bytes, stop)?
        }
    };
    let outcome = ToolOutcome::success(summary)
        .with("file_path", path.to_string())
        .with("created", now.is_none())
        .with("unchanged", unchanged)
        .with("encoding", encoding.to_string());
    let before_text = now.as_ref().and_then(|now| now.bytes.as_deref()).map(shown_text);
    let before = now.as_ref().and_then(|now| Some((now.bytes.as_deref()?, &now.digest))).zip(before_text.as_deref());
    let before = before.map(|((bytes, digest), text)| Side { bytes, text, digest: Some(digest) });
    let after = Side { bytes: &bytes, text: body, digest: Some(&digest) };
    Ok(Change::of(before, after).describe(outcome, false))
}

fn append(target: &Target, content: &str, offset: u64, stop: &Stop) -> Step<ToolOutcome> {
    let path = target.path();
    target.refuse_large()?;
    let now = target.content(stop)?;
    let size_bytes = now.as_ref().map_or(0, |now| now.size_bytes);
    let old = match &now {
        None => &[][..],
        Some(Content { bytes: Some(bytes), .. }) => bytes,
        Some(_) => {
            let message =
                format!("{path} has {size_bytes} bytes; append takes files up to {CHANGED_BYTES_MAX}, use bash");
            return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)));
        }
    };
    let encoding = Encoding::detect(old, true);
    if !encoding.is_certain() && !content.is_ascii() {
        return Err(unwritable(target, &TextError::Malformed { encoding: encoding.to_string() }));
    }
    // A mark stands at the start of a file and nowhere else.
    let content = if old.is_empty() { content } else { content.strip_prefix(MARK).unwrap_or(content) };
    let added = encoding.encode(content).map_err(|error| unwritable(target, &error))?;
    let already_applied =
        offset.checked_add(added.len() as u64) == Some(size_bytes) && !added.is_empty() && old.ends_with(&added);
    if !already_applied && offset != size_bytes {
        let message = format!(
            "{path} has {size_bytes} bytes, not {offset}; nothing was appended. Read its end, then use expected_offset \
             {size_bytes} if the text is still missing"
        );
        let (expected, actual) = (format!("{offset} bytes"), Some(format!("{size_bytes} bytes")));
        let kind = ToolErrorKind::VersionConflict { path: path.to_string(), expected, actual };
        return Err(Box::new(ToolOutcome::error(kind, message)));
    }
    let resulting_size = if already_applied { size_bytes } else { size_bytes + added.len() as u64 };
    if resulting_size > CHANGED_BYTES_MAX {
        return Err(wrong(format!(
            "{path} would have {resulting_size} bytes; at most {CHANGED_BYTES_MAX} are written"
        )));
    }
    match &now {
        Some(now) if already_applied => target.record(now.digest.clone()),
        _ => {
            if let Some(now) = &now {
                target.check_seen(now)?;
            }
            if now.is_none() || !added.is_empty() {
                target.put(now.as_ref(), &[old, &added].concat(), stop)?;
            }
        }
    }
    let summary = if already_applied {
        format!("{path} ends with exactly this already; nothing was written, it has {resulting_size} bytes.\n")
    } else {
        format!("Appended {} bytes to {path}; it has {resulting_size} bytes now.\n", added.len())
    };
    Ok(ToolOutcome::success(summary)
        .with("file_path", path.to_string())
        .with("mode", "append")
        .with("offset", offset)
        .with("appended_bytes", added.len())
        .with("resulting_size", resulting_size)
        .with("already_applied", already_applied))
}

/// The encoding of a file that is there; one that is too large to be held is told by its mark alone.
fn encoding_of(now: &Content) -> Encoding {
    let whole = || now.bytes.as_deref().map(|old| Encoding::detect(old, true));
    now.marked.or_else(whole).unwrap_or(Encoding::Utf8)
}

/// What a host is shown of bytes that may be no text.
fn shown_text(bytes: &[u8]) -> String {
    DecodedText::from_bytes(bytes).map_or_else(|_| String::from_utf8_lossy(bytes).into_owned(), |decoded| decoded.text)
}

/// The one form of all line ends, or `mixed`, or `none`.
fn line_endings(text: &str) -> &'static str {
    let all = memchr::memchr_iter(b'\n', text.as_bytes()).count();
    let crlf = memchr::memmem::find_iter(text.as_bytes(), b"\r\n").count();
    match (all, crlf) {
        (0, _) => "none",
        (_, 0) => "lf",
        (all, crlf) if all == crlf => "crlf",
        _ => "mixed",
    }
}

fn unwritable(target: &Target, error: &TextError) -> Box<ToolOutcome> {
    let message = format!("{}: {error}; nothing was written", target.path());
    Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::fs;
    use std::io::Write as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    use serde_json::json;

    use super::super::reach::Stop;
    use super::super::target::{Content, Target};
    use super::super::testing::{call, context};
    use super::super::{read, write};
    use super::encoding_of;
    use crate::cancellation::CancelReason;
    use crate::context::ToolContext;
    use crate::outcome::{ToolErrorKind, ToolOutcome};
    use crate::text::Encoding;
    use crate::workspace::{WorkspaceCapabilities, WriteAllowance, local};

    async fn put(ctx: &ToolContext, path: &str, content: &str) -> ToolOutcome {
        call(write::tool().as_ref(), ctx, json!({"file_path": path, "content": content})).await
    }

    async fn append(ctx: &ToolContext, content: &str, offset: u64) -> ToolOutcome {
        let arguments = json!({"file_path": "f", "content": content, "mode": "append", "expected_offset": offset});
        call(write::tool().as_ref(), ctx, arguments).await
    }

    fn text(root: &Path, name: &str) -> String {
        fs::read_to_string(root.join(name)).unwrap()
    }

    #[tokio::test]
    async fn a_file_is_created_then_replaced_then_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let ctx = context(root.path());
        let created = put(&ctx, "new/f", "one\n").await;
        assert_eq!((&created.metadata["created"], created.metadata.get("before")), (&json!(true), None));
        let replaced = put(&ctx, "new/f", "two\n").await;
        assert_eq!(replaced.metadata["before"], json!("one\n"));
        assert!(replaced.metadata["change"]["unified_diff"].as_str().unwrap().contains("-one\n+two\n"));
        let before = fs::metadata(root.path().join("new/f")).unwrap();
        let again = put(&ctx, "new/f", "two\n").await;
        assert!(again.is_success() && again.metadata["unchanged"] == json!(true));
        let after = fs::metadata(root.path().join("new/f")).unwrap();
        assert_eq!((before.ino(), before.mtime_nsec()), (after.ino(), after.mtime_nsec()));
    }

    // Case C036.
    #[tokio::test]
    async fn a_change_since_the_read_is_not_overwritten() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "mine\n").unwrap();
        let ctx = context(root.path());
        assert!(call(read::tool().as_ref(), &ctx, json!({"file_path": "f"})).await.is_success());
        fs::OpenOptions::new().append(true).open(root.path().join("f")).unwrap().write_all(b"theirs\n").unwrap();
        let refused = put(&ctx, "./f", "new\n").await;
        assert!(matches!(refused.error, Some(ToolErrorKind::VersionConflict { .. })), "{}", refused.output);
        assert!(refused.output.contains("mine\ntheirs\n"), "the fresh state is shown");
        assert_eq!(text(root.path(), "f"), "mine\ntheirs\n");
        assert!(!put(&ctx, "f", "new\n").await.is_success(), "a refusal is not a read");
        call(read::tool().as_ref(), &ctx, json!({"file_path": "f"})).await;
        assert!(put(&ctx, "f", "new\n").await.is_success());
        assert!(put(&ctx, "f", "newer\n").await.is_success(), "own writes are known");
        fs::remove_file(root.path().join("f")).unwrap();
        assert!(put(&ctx, "f", "again\n").await.is_success(), "nothing can be lost of a file that is gone");
    }

    #[tokio::test]
    async fn appends_compare_first_and_can_be_sent_again() {
        let root = tempfile::tempdir().unwrap();
        let ctx = context(root.path());
        let first = append(&ctx, "one\n", 0).await;
        assert_eq!(first.metadata["resulting_size"], json!(4));
        let second = append(&ctx, "two\n", 4).await;
        assert_eq!(second.metadata["already_applied"], json!(false));
        let again = append(&ctx, "two\n", 4).await;
        assert!(again.is_success() && again.metadata["already_applied"] == json!(true));
        assert_eq!(text(root.path(), "f"), "one\ntwo\n");
        for (content, offset) in [("three\n", 4), ("x", 100), ("one\n", 0)] {
            let refused = append(&ctx, content, offset).await;
            assert!(matches!(refused.error, Some(ToolErrorKind::VersionConflict { .. })), "{content}");
        }
        assert_eq!(text(root.path(), "f"), "one\ntwo\n");
        let missing = json!({"file_path": "f", "content": "x", "mode": "append"});
        assert!(call(write::tool().as_ref(), &ctx, missing).await.output.contains("expected_offset"));
        let useless = json!({"file_path": "f", "content": "x", "expected_offset": 3});
        assert!(!call(write::tool().as_ref(), &ctx, useless).await.is_success());
    }

    // Cases C023 and C025 for whole files.
    #[tokio::test]
    async fn marks_stay_and_none_comes() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("mark"), b"\xef\xbb\xbfold\n").unwrap();
        fs::write(root.path().join("wide"), b"\xff\xfeh\0i\0").unwrap();
        fs::write(root.path().join("plain"), "old").unwrap();
        fs::write(root.path().join("latin"), b"caf\xe9 d\xe9j\xe0 vu na\xefve").unwrap();
        fs::write(root.path().join("crlf"), "a\r\nb\r\n").unwrap();
        let ctx = context(root.path());
        put(&ctx, "mark", "new\n").await;
        put(&ctx, "wide", "ho").await;
        put(&ctx, "plain", "\u{feff}new").await;
        let latin = put(&ctx, "latin", "é").await;
        assert!(latin.output.contains("windows-1252"), "{}", latin.output);
        assert!(put(&ctx, "crlf", "a\nc\n").await.output.contains("CR LF"));
        let bytes = |name: &str| fs::read(root.path().join(name)).unwrap();
        assert_eq!(bytes("mark"), b"\xef\xbb\xbfnew\n");
        assert_eq!(bytes("wide"), b"\xff\xfeh\0o\0");
        assert_eq!(bytes("plain"), b"new");
        assert_eq!(bytes("latin"), "é".as_bytes());
        let more = json!({"file_path": "wide", "content": "!", "mode": "append", "expected_offset": 6});
        assert!(call(write::tool().as_ref(), &ctx, more).await.is_success());
        assert_eq!(bytes("wide"), b"\xff\xfeh\0o\0!\0");
        // A caller that brings the mark along changes nothing by it.
        let again = put(&ctx, "mark", "\u{feff}newer\n").await;
        assert_eq!(bytes("mark"), b"\xef\xbb\xbfnewer\n");
        assert_eq!(again.metadata["after"], json!("newer\n"), "no mark is shown as a change");
        assert_eq!(put(&ctx, "mark", "newer\n").await.metadata["unchanged"], json!(true));
        let more = json!({"file_path": "mark", "content": "\u{feff}!", "mode": "append", "expected_offset": 9});
        assert!(call(write::tool().as_ref(), &ctx, more).await.is_success());
        assert_eq!(bytes("mark"), b"\xef\xbb\xbfnewer\n!");
        fs::write(root.path().join("latin"), b"caf\xe9 d\xe9j\xe0 vu na\xefve").unwrap();
        call(read::tool().as_ref(), &ctx, json!({"file_path": "latin"})).await;
        put(&ctx, "latin", "\u{feff}e").await;
        assert_eq!(bytes("latin"), b"e");
        // A new file begins with what was asked for.
        put(&ctx, "fresh", "\u{feff}text").await;
        assert_eq!(bytes("fresh"), b"\xef\xbb\xbftext");
    }

    // Case C023 for a file that is too large to be held: its mark is known all the same.
    #[tokio::test]
    async fn a_large_file_keeps_its_mark_too() {
        let root = tempfile::tempdir().unwrap();
        let ctx = context(root.path());
        for (start, expected) in [
            (&b"\xef\xbb\xbfa"[..], Encoding::Utf8Bom),
            (b"\xff\xfea\0", Encoding::Utf16Le),
            (b"a", Encoding::Utf8),
            (b"", Encoding::Utf8),
        ] {
            fs::write(root.path().join("f"), start).unwrap();
            let target = Target::take(&ctx, "write", "f").await.map_err(|outcome| outcome.output).unwrap();
            let held = target.content(&Stop::of(&ctx)).map_err(|outcome| outcome.output).unwrap().unwrap();
            let large = Content { bytes: None, ..held };
            assert_eq!(encoding_of(&large), expected);
        }
    }

    // Case R15.
    #[tokio::test]
    async fn git_folders_and_hard_links_are_left_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(".git")).unwrap();
        std::os::unix::fs::symlink(".git", root.path().join("alias")).unwrap();
        fs::write(root.path().join("one"), "x").unwrap();
        fs::hard_link(root.path().join("one"), root.path().join("two")).unwrap();
        let ctx = context(root.path());
        for path in [".git/config", "alias/config", "sub/.git/hooks/x", "two"] {
            let refused = put(&ctx, path, "x!").await;
            assert!(matches!(refused.error, Some(ToolErrorKind::Unsupported { .. })), "{path}: {}", refused.output);
        }
        assert!(put(&ctx, ".gitignore", "target\n").await.is_success());
        assert!(fs::read_dir(root.path().join(".git")).unwrap().next().is_none());
        assert!(matches!(put(&ctx, ".", "x").await.error, Some(ToolErrorKind::InvalidArgument { .. })));
    }

    // Case R15: what a host allows is written, and the other name of a file keeps what it had.
    #[tokio::test]
    async fn git_folders_and_hard_links_are_written_where_the_host_allows_it() {
        let (root, outer) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(root.path().join(".git")).unwrap();
        fs::write(outer.path().join("one"), "x").unwrap();
        fs::hard_link(outer.path().join("one"), root.path().join("two")).unwrap();
        let mut ctx = context(root.path());
        let allowance = WriteAllowance { hard_links: true, git_folder: true };
        ctx.workspace =
            local::open_allowing(root.path(), WorkspaceCapabilities::read_write(), None, allowance).unwrap();
        for path in [".git/config", "two"] {
            let done = put(&ctx, path, "x!").await;
            assert!(done.is_success(), "{path}: {}", done.output);
            assert_eq!(fs::read_to_string(root.path().join(path)).unwrap(), "x!", "{path}");
        }
        assert_eq!(fs::read_to_string(outer.path().join("one")).unwrap(), "x");
        // Each has its own permission.
        let only_links = WriteAllowance { hard_links: true, git_folder: false };
        ctx.workspace =
            local::open_allowing(root.path(), WorkspaceCapabilities::read_write(), None, only_links).unwrap();
        assert!(!put(&ctx, ".git/config", "y").await.is_success());
    }

    #[tokio::test]
    async fn a_cancelled_or_dropped_write_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "old").unwrap();
        let ctx = context(root.path());
        // Dropped before and while it works on the blocking pool: old or new, and no temp file.
        let large = "n".repeat(4 << 20);
        let tool = write::tool();
        for _ in 0..3 {
            let mut writing = tool.call(&ctx, json!({"file_path": "f", "content": large}));
            let polled = futures_util::poll!(&mut writing);
            assert!(polled.is_pending());
            drop(writing);
        }
        // The turn comes back when the dropped work has ended.
        let last = put(&ctx, "f", "last").await;
        assert!(last.is_success() || matches!(last.error, Some(ToolErrorKind::VersionConflict { .. })));
        let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["f"]);
        ctx.cancel.cancel(CancelReason::Requested);
        let before = fs::read(root.path().join("f")).unwrap();
        let cancelled = put(&ctx, "f", "never").await;
        assert!(matches!(cancelled.error, Some(ToolErrorKind::Cancelled { .. })));
        assert_eq!(fs::read(root.path().join("f")).unwrap(), before);
    }
}
