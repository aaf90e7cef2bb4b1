//! `edit`: one text in a file for another.
//!
//! Never a guess: the old text must stand there once (or everywhere, when that is asked), what is not quite the same
//! is taken only when it is the only candidate, and the result says so. Everything outside of it stays as it is:
//! encoding, byte-order mark, line ends, last newline, mode, links. A refused edit touches nothing.

mod matching;

use std::fmt::Write as _;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use self::matching::{How, find, line_numbers, replace};
use super::change::{Change, Side};
use super::reach::{self, Step, Stop, wrong};
use super::target::{CHANGED_BYTES_MAX, Content, Target};
use crate::context::ToolContext;
use crate::declaration::{Capabilities, OutputKind};
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::text::{DecodedText, Encoding, seems_broken_utf8};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};
use crate::workspace_path::{PATH_BYTES_MAX, WorkspacePath};

/// How many dry runs may run beside each other.
const PARALLELISM: usize = 16;

/// The tool.
pub struct EditTool;

/// The tool, ready to register.
pub fn tool() -> Arc<dyn Tool> {
    Arc::new(EditTool)
}

#[derive(Deserialize)]
struct Arguments {
    file_path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
    #[serde(default)]
    dry_run: bool,
    max_replacements: Option<u64>,
    expected_replacements: Option<u64>,
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new("edit"),
        description: format!(
            "Replace a text in a file by another. Use it for a change in one place or the same change everywhere in \
             a file; patch for several places, write for a new file. old_string must stand in the file exactly once, \
             with enough lines around it to be the only one, unless replace_all is set; it is copied from read \
             without the line numbers. Line ends, byte-order mark, encoding and mode stay as they are. new_string is \
             taken literally. A file that changed since this session last read it is not edited: read it again \
             first. dry_run shows the difference and writes nothing. Files up to {} MiB. The result names the lines \
             and shows the difference.",
            CHANGED_BYTES_MAX / (1024 * 1024)
        ),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["file_path", "old_string", "new_string"],
            "properties": {
                "file_path": {
                    "type": "string", "minLength": 1, "maxLength": PATH_BYTES_MAX,
                    "description": "The file, relative to the workspace.",
                },
                "old_string": {"type": "string", "minLength": 1, "description": "The text to replace."},
                "new_string": {"type": "string", "description": "The text to put in its place; may be empty."},
                "replace_all": {
                    "type": "boolean", "default": false, "description": "Replace every occurrence.",
                },
                "dry_run": {"type": "boolean", "default": false, "description": "Show it, write nothing."},
                "max_replacements": {
                    "type": "integer", "minimum": 1, "description": "Refuse when there would be more.",
                },
                "expected_replacements": {
                    "type": "integer", "minimum": 1, "description": "Refuse unless there would be exactly so many.",
                },
            },
        }),
        model_parameters: None,
        model_visible: true,
        lane: Lane::Execute,
        needs: Needs { write: true, ..Needs::default() },
    }
}

fn is_dry_run(arguments: &Value) -> bool {
    arguments.get("dry_run").and_then(Value::as_bool).unwrap_or(false)
}

impl Tool for EditTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, arguments: &Value) -> Capabilities {
        let now = if is_dry_run(arguments) {
            Capabilities::parallel_safe_read(PARALLELISM)
        } else {
            Capabilities::conservative()
        };
        Capabilities { output_kind: OutputKind::Diff, ..now }
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let path = arguments.get("file_path").and_then(Value::as_str);
        Subject::Paths { paths: path.into_iter().map(str::to_owned).collect(), write: !is_dry_run(arguments) }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move { edit(ctx, arguments).await.unwrap_or_else(|ended| *ended) })
    }
}

async fn edit(ctx: &ToolContext, arguments: Value) -> Step<ToolOutcome> {
    let mut wanted = Arguments::deserialize(arguments).map_err(|error| wrong(error.to_string()))?;
    // A mark is never shown by read, so it is no part of a text that stands in the file.
    for text in [&mut wanted.old_string, &mut wanted.new_string] {
        if let Some(rest) = text.strip_prefix('\u{feff}') {
            *text = rest.to_owned();
        }
    }
    if wanted.old_string.is_empty() {
        return Err(wrong("old_string is empty; name the text to replace, or use write for a new file"));
    }
    if wanted.old_string == wanted.new_string {
        return Err(wrong("old_string and new_string are the same, so nothing would change"));
    }
    let target = Target::take(ctx, "edit", &wanted.file_path).await?;
    let short = target.size_hint_bytes() <= reach::INLINE_BYTES_MAX;
    reach::blocking(ctx, "edit", short, move |stop| carry_out(&target, &wanted, stop)).await?
}

fn carry_out(target: &Target, wanted: &Arguments, stop: &Stop) -> Step<ToolOutcome> {
    let path = target.path();
    target.refuse_large()?;
    let Some(now) = target.content(stop)? else {
        let kind = ToolErrorKind::NotFound { path: path.to_string() };
        let text = format!("no such file: {path}; list its folder with ls, or use write to make it");
        return Err(Box::new(ToolOutcome::error(kind, text)));
    };
    let Content { bytes: Some(bytes), .. } = &now else {
        return Err(unsupported(format!("{path} has {} bytes; edit takes up to {CHANGED_BYTES_MAX}", now.size_bytes)));
    };
    target.check_seen(&now)?;
    let old = DecodedText::from_bytes(bytes).map_err(|error| unsupported(format!("{path}: {error}")))?;
    check_encoding(path, &old, bytes, wanted)?;

    let places = find(&old.text, &wanted.old_string, wanted.replace_all)
        .map_err(|error| wrong(format!("{path}: {error}; nothing was written")))?;
    let count = places.ranges.len();
    check_count(path, wanted, count)?;
    let room = usize::try_from(CHANGED_BYTES_MAX).unwrap_or(usize::MAX);
    let text = replace(&old.text, &wanted.old_string, &wanted.new_string, &places, room)
        .ok_or_else(|| wrong(format!("{path} would have more than {CHANGED_BYTES_MAX} bytes; nothing was written")))?;
    let new = DecodedText { text, encoding: old.encoding };
    let new_bytes = new.to_bytes().map_err(|error| unsupported(format!("{path}: {error}; nothing was written")))?;
    if new_bytes == *bytes {
        return Err(wrong(format!("{path}: with this new_string nothing would change; nothing was written")));
    }
    let new_digest = if wanted.dry_run { None } else { Some(target.put(Some(&now), &new_bytes, stop)?) };

    let lines = line_numbers(&old.text, &places.ranges);
    let outcome = facts(ToolOutcome::success(summary(path, wanted, count, &lines, places.how)), path, wanted, count)
        .with("match", places.how.as_str())
        .with("lines", json!(lines))
        .with("encoding", old.encoding.to_string());
    let before = Side { bytes, text: &old.text, digest: Some(&now.digest) };
    let after = Side { bytes: &new_bytes, text: &new.text, digest: new_digest.as_ref() };
    Ok(Change::of(Some(before), after).describe(outcome, true))
}

fn summary(path: &WorkspacePath, wanted: &Arguments, count: usize, lines: &[u64], how: How) -> String {
    let numbers: Vec<String> = lines.iter().map(ToString::to_string).collect();
    let more = if count > lines.len() && lines.len() > 1 { ", …" } else { "" };
    let times = if count == 1 { "occurrence" } else { "occurrences" };
    let mut text = if wanted.dry_run {
        format!("Dry run: {count} {times} in {path} would be replaced")
    } else {
        format!("Replaced {count} {times} in {path}")
    };
    let _ = write!(text, ", from line {}{more}", numbers.join(", "));
    text.push_str(match how {
        How::Exact => ".",
        How::LineEndings => "; the line ends of the file were kept.",
        How::Blanks => "; the file has other blanks between the words than old_string.",
    });
    if wanted.dry_run {
        text.push_str(" Nothing was written.");
    }
    text.push('\n');
    text
}

/// Refuses to bring characters into a file whose encoding is only a guess that seems wrong.
fn check_encoding(path: &WorkspacePath, old: &DecodedText, bytes: &[u8], wanted: &Arguments) -> Step<()> {
    let ascii = wanted.old_string.is_ascii() && wanted.new_string.is_ascii();
    if matches!(old.encoding, Encoding::Legacy(_)) && !ascii && seems_broken_utf8(bytes) {
        return Err(unsupported(format!(
            "{path} is UTF-8 with some broken bytes; only ASCII can be edited in it until they are mended"
        )));
    }
    Ok(())
}

fn check_count(path: &WorkspacePath, wanted: &Arguments, count: usize) -> Step<()> {
    let count_u64 = count as u64;
    let message = match (wanted.expected_replacements, wanted.max_replacements) {
        (Some(expected), _) if expected != count_u64 => {
            format!("{path}: {count} replacements instead of the expected {expected}; nothing was written")
        }
        (_, Some(max)) if count_u64 > max => {
            format!("{path}: {count} replacements are more than max_replacements {max}; nothing was written")
        }
        _ => return Ok(()),
    };
    Err(Box::new(facts(ToolOutcome::invalid_argument(message), path, wanted, count)))
}

fn facts(outcome: ToolOutcome, path: &WorkspacePath, wanted: &Arguments, count: usize) -> ToolOutcome {
    outcome
        .with("file_path", path.to_string())
        .with("dry_run", wanted.dry_run)
        .with("replacement_count", count)
        .with("expected_replacements", json!(wanted.expected_replacements))
        .with("max_replacements", json!(wanted.max_replacements))
}

fn unsupported(message: String) -> Box<ToolOutcome> {
    Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::testing::{call, context, faults};
    use super::super::{edit, read};
    use crate::context::ToolContext;
    use crate::outcome::{ToolErrorKind, ToolOutcome};

    async fn change(ctx: &ToolContext, path: &str, old: &str, new: &str) -> ToolOutcome {
        let arguments = json!({"file_path": path, "old_string": old, "new_string": new});
        call(edit::tool().as_ref(), ctx, arguments).await
    }

    async fn change_with(ctx: &ToolContext, old: &str, new: &str, more: Value) -> ToolOutcome {
        let mut arguments = json!({"file_path": "f", "old_string": old, "new_string": new});
        for (key, value) in more.as_object().unwrap() {
            arguments[key] = value.clone();
        }
        call(edit::tool().as_ref(), ctx, arguments).await
    }

    fn state(path: &Path) -> (Vec<u8>, u64, i64, i64, u32) {
        let stat = fs::metadata(path).unwrap();
        (fs::read(path).unwrap(), stat.ino(), stat.mtime(), stat.mtime_nsec(), stat.mode())
    }

    // Cases C021, C023, C025, C026, C038: everything outside of the change stays.
    #[tokio::test]
    async fn the_rest_of_the_file_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let ctx = context(root.path());
        let files: [(&[u8], &str, &str, &[u8]); 7] = [
            (b"a\r\nb\r\nc\r\n", "a\nb", "a\nB", b"a\r\nB\r\nc\r\n"),
            (b"\xef\xbb\xbfimport x\n", "import x", "import y", b"\xef\xbb\xbfimport y\n"),
            (b"\xef\xbb\xbfimport x\n", "\u{feff}import x", "import y", b"\xef\xbb\xbfimport y\n"),
            (b"\xff\xfeh\0i\0\n\0", "hi", "ho", b"\xff\xfeh\0o\0\n\0"),
            (b"a\nb", "a", "A", b"A\nb"),
            (b"a\nb", "b", "B", b"a\nB"),
            (b"d\xe9j\xe0 vu, na\xefve caf\xe9\n", "caf\u{e9}", "th\u{e9}", b"d\xe9j\xe0 vu, na\xefve th\xe9\n"),
        ];
        for (index, (before, old, new, after)) in files.into_iter().enumerate() {
            let name = format!("f{index}");
            let mode = if index % 2 == 0 { 0o755 } else { 0o600 };
            fs::write(root.path().join(&name), before).unwrap();
            fs::set_permissions(root.path().join(&name), Permissions::from_mode(mode)).unwrap();
            let outcome = change(&ctx, &name, old, new).await;
            assert!(outcome.is_success(), "{}", outcome.output);
            assert_eq!(fs::read(root.path().join(&name)).unwrap(), after);
            assert_eq!(fs::metadata(root.path().join(&name)).unwrap().mode() & 0o7777, mode);
        }
    }

    // Cases C031, C032, C033 and C034: a refusal says why and touches nothing.
    #[tokio::test]
    async fn a_refusal_touches_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("f");
        fs::write(&path, "v=1\nx\nv=1\n").unwrap();
        let ctx = context(root.path());
        let before = state(&path);
        for (old, new, more, words) in [
            ("v=1", "v=2", json!({}), "lines 1, 3"),
            ("absent", "x", json!({}), "does not stand in it"),
            ("x", "x", json!({}), "nothing would change"),
            ("v=1\r\nx", "v=1\nx", json!({}), "nothing would change"),
            ("v=1", "w", json!({"replace_all": true, "expected_replacements": 3}), "expected 3"),
            ("v=1", "w", json!({"replace_all": true, "max_replacements": 1}), "max_replacements 1"),
        ] {
            let outcome = change_with(&ctx, old, new, more).await;
            assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })), "{}", outcome.output);
            assert!(outcome.output.contains(words), "{}", outcome.output);
            assert_eq!(state(&path), before);
        }
        let counted = change_with(&ctx, "v=1", "w", json!({"replace_all": true, "expected_replacements": 3})).await;
        assert_eq!(counted.metadata["replacement_count"], json!(2));
        let empty = json!({"file_path": "f", "old_string": "", "new_string": "x", "replace_all": true});
        assert!(faults(edit::tool().as_ref(), &empty).contains("/old_string"));
        assert!(!edit::tool().call(&ctx, empty).await.is_success());
        assert_eq!(state(&path), before);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[tokio::test]
    async fn success_says_what_and_where() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "a\nb\na\n").unwrap();
        let ctx = context(root.path());
        let dry = change_with(&ctx, "a", "A", json!({"replace_all": true, "dry_run": true})).await;
        assert!(dry.output.starts_with("Dry run: 2 occurrences") && dry.output.contains("+A\n"), "{}", dry.output);
        assert_eq!(fs::read(root.path().join("f")).unwrap(), b"a\nb\na\n");
        let done = change_with(&ctx, "a", "A", json!({"replace_all": true, "expected_replacements": 2})).await;
        assert!(done.output.starts_with("Replaced 2 occurrences in f, from line 1, 3.\n"), "{}", done.output);
        assert_eq!((&done.metadata["before"], &done.metadata["after"]), (&json!("a\nb\na\n"), &json!("A\nb\nA\n")));
        let tolerant = change(&ctx, "f", "b\nA", "B A").await;
        assert_eq!(tolerant.metadata["match"], json!("exact"));
        fs::write(root.path().join("g"), "let   a b").unwrap();
        let tolerant = change(&ctx, "g", "let a", "Q").await;
        assert!(tolerant.output.contains("other blanks"), "{}", tolerant.output);
        assert_eq!(fs::read(root.path().join("g")).unwrap(), b"Q b");
    }

    // Case C036 for edits, and binary and missing files.
    #[tokio::test]
    async fn stale_binary_and_missing_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "a\n").unwrap();
        fs::write(root.path().join("b"), b"a\0b").unwrap();
        let ctx = context(root.path());
        call(read::tool().as_ref(), &ctx, json!({"file_path": "f"})).await;
        fs::write(root.path().join("f"), "b\n").unwrap();
        let stale = change(&ctx, "f", "b", "c").await;
        assert!(matches!(stale.error, Some(ToolErrorKind::VersionConflict { .. })), "{}", stale.output);
        assert!(matches!(change(&ctx, "b", "a", "c").await.error, Some(ToolErrorKind::Unsupported { .. })));
        assert!(matches!(change(&ctx, "no", "a", "c").await.error, Some(ToolErrorKind::NotFound { .. })));
        let mixed = ["é è ü ".as_bytes(), b"\xff"].concat();
        fs::write(root.path().join("mixed"), &mixed).unwrap();
        assert!(matches!(change(&ctx, "mixed", "é", "ö").await.error, Some(ToolErrorKind::Unsupported { .. })));
        assert_eq!(fs::read(root.path().join("mixed")).unwrap(), mixed);
        let large = fs::File::create(root.path().join("large")).unwrap();
        large.set_len((64 << 20) + 1).unwrap();
        assert!(change(&ctx, "large", "a", "b").await.output.contains("takes up to"));
    }

    // Case C041: edits of one file, also through a link, see what the one before did.
    #[tokio::test(flavor = "multi_thread")]
    async fn edits_of_one_file_take_turns() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), "a\nb\nc\n").unwrap();
        symlink("f", root.path().join("link")).unwrap();
        let ctx = context(root.path());
        call(read::tool().as_ref(), &ctx, json!({"file_path": "f"})).await;
        let (one, two, three) =
            tokio::join!(change(&ctx, "f", "a", "A"), change(&ctx, "./f", "b", "B"), change(&ctx, "link", "c", "C"));
        assert!(one.is_success() && two.is_success() && three.is_success());
        assert_eq!(fs::read(root.path().join("f")).unwrap(), b"A\nB\nC\n");
        assert!(fs::symlink_metadata(root.path().join("link")).unwrap().is_symlink());
    }
}
