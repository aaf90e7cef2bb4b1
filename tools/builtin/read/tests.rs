//! Calls of `read` on real files.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::super::testing::{WatchedFiles, call, context, faults};
use super::tool;
use crate::cancellation::CancelReason;
use crate::digest::Digest;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::workspace_path::WorkspacePath;

fn range(outcome: &ToolOutcome) -> &Value {
    &outcome.metadata["range"]
}

fn digest_seen(ctx: &crate::context::ToolContext, path: &str) -> Option<Digest> {
    ctx.seen.digest(&WorkspacePath::parse(path, "").unwrap())
}

// Case R10.
#[test]
fn wrong_arguments_are_explained_and_the_model_sees_no_alternatives() {
    let tool = tool();
    assert_eq!(faults(tool.as_ref(), &json!({})), "$: file_path or files is required");
    assert!(faults(tool.as_ref(), &Value::Null).contains("object"));
    assert!(faults(tool.as_ref(), &json!([])).contains("object"));
    assert!(faults(tool.as_ref(), &json!({"file_path": "a", "limit": 0})).contains("/limit"));
    assert!(faults(tool.as_ref(), &json!({"files": [{"path": "a", "x": 1}]})).contains("/files/0"));
    assert!(tool.spec().definition().parameters.get("oneOf").is_none());
}

#[tokio::test]
async fn a_window_its_facts_and_where_to_go_on() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("f"), "a\nb\nc\nd\ne\n").unwrap();
    let ctx = context(root.path());
    let outcome = call(tool().as_ref(), &ctx, json!({"file_path": "f", "offset": 1, "limit": 2})).await;
    assert!(outcome.output.starts_with("     2\tb\n     3\tc\n["), "{}", outcome.output);
    assert!(outcome.output.contains("offset 3"));
    assert_eq!(
        range(&outcome),
        &json!({"offset": 1, "requested_limit": 2, "applied_limit": 2, "returned_lines": 2, "next_offset": 3,
            "eof": false, "total_lines": 5, "limit_clamped": false, "output_bytes": outcome.output.len()})
    );
    assert_eq!(outcome.metadata["source_anchors"], json!(["f"]));
    assert_eq!(digest_seen(&ctx, "f"), Some(Digest::of(b"a\nb\nc\nd\ne\n")), "small files are seen as a whole");
}

// Case C068: behind the end, at the end, and nothing at all.
#[tokio::test]
async fn ends_are_clear() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("five"), "1\n2\n3\n4\n5\n").unwrap();
    fs::write(root.path().join("empty"), "").unwrap();
    let ctx = context(root.path());
    let behind = call(tool().as_ref(), &ctx, json!({"file_path": "five", "offset": 100})).await;
    assert!(behind.output.contains("five has 5 lines"), "{}", behind.output);
    assert!(matches!(behind.error, Some(ToolErrorKind::InvalidArgument { .. })));
    let at = call(tool().as_ref(), &ctx, json!({"file_path": "five", "offset": 5})).await;
    assert!(at.is_success() && at.output.contains("5 lines"));
    let empty = call(tool().as_ref(), &ctx, json!({"file_path": "empty"})).await;
    assert!(empty.is_success() && empty.output.contains("empty file"));
    assert_eq!(range(&empty)["total_lines"], json!(0));
}

// Case C068: the first lines of a file of 3 GiB, and lines far down in a large one.
#[tokio::test]
async fn size_does_not_matter() {
    let root = tempfile::tempdir().unwrap();
    let mut sparse = File::create(root.path().join("sparse")).unwrap();
    for line in 1..=20 {
        writeln!(sparse, "line {line}").unwrap();
    }
    sparse.set_len(3 << 30).unwrap();
    let ctx = context(root.path());
    let outcome = call(tool().as_ref(), &ctx, json!({"file_path": "sparse", "limit": 20})).await;
    assert!(outcome.output.contains("    20\tline 20\n"), "{}", outcome.output);
    assert_eq!(range(&outcome)["next_offset"], json!(20));
    assert_eq!(digest_seen(&ctx, "sparse"), None);
    let zeros = call(tool().as_ref(), &ctx, json!({"file_path": "sparse", "offset": 20})).await;
    assert!(zeros.output.contains("binary") && zeros.output.contains("line 21"), "{}", zeros.output);

    let mut large = File::create(root.path().join("large")).unwrap();
    large.write_all(&b"0123456789abcde\n".repeat(1 << 20)).unwrap();
    large.seek(SeekFrom::End(0)).unwrap();
    large.write_all(b"last").unwrap();
    let middle = call(tool().as_ref(), &ctx, json!({"file_path": "large", "offset": 900_000, "limit": 1})).await;
    assert!(middle.output.starts_with("900001\t0123456789abcde\n"), "{}", middle.output);
    // So fresh that its stamp says too little: it is known by its digest.
    let digest = Digest::of(&fs::read(root.path().join("large")).unwrap());
    assert_eq!((&range(&middle)["total_lines"], digest_seen(&ctx, "large")), (&Value::Null, Some(digest)));
    let tail = call(tool().as_ref(), &ctx, json!({"file_path": "large", "offset": 1_048_576})).await;
    assert_eq!(tail.output, "1048577\tlast\n");
}

#[tokio::test]
async fn a_long_read_ends_when_it_is_cancelled() {
    let root = tempfile::tempdir().unwrap();
    let large = File::create(root.path().join("large")).unwrap();
    large.set_len(64 << 30).unwrap();
    let ctx = context(root.path());
    let arguments = json!({"file_path": "large", "offset": 1_000_000});
    let tool = tool();
    let reading = tool.call(&ctx, arguments);
    // The zeros are skipped by name of a NUL in the start; ask for what needs the whole file instead.
    assert!(reading.await.output.contains("binary"));
    let mut large = File::create(root.path().join("large")).unwrap();
    large.write_all(&[b'x'; 16 << 10]).unwrap();
    large.set_len(64 << 30).unwrap();
    let reading = tool.call(&ctx, json!({"file_path": "large", "offset": 1_000_000}));
    let cancel = ctx.cancel.clone();
    let (outcome, ()) = tokio::join!(reading, async move {
        tokio::task::yield_now().await;
        cancel.cancel(CancelReason::Requested);
    });
    assert!(matches!(outcome.error, Some(ToolErrorKind::Cancelled { .. })), "{}", outcome.output);
}

#[tokio::test]
async fn output_is_bounded_and_goes_on_where_it_stopped() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("wide"), format!("{}\n", "w".repeat(500)).repeat(1000)).unwrap();
    fs::write(root.path().join("long"), format!("{}\nshort\n", "l".repeat(5000))).unwrap();
    let ctx = context(root.path());
    let (mut offset, mut lines) = (json!(0), 0);
    while !offset.is_null() {
        let outcome = call(tool().as_ref(), &ctx, json!({"file_path": "wide", "offset": offset})).await;
        assert!(outcome.output.len() <= super::OUTPUT_BYTES_MAX);
        lines += range(&outcome)["returned_lines"].as_u64().unwrap();
        offset = range(&outcome)["next_offset"].clone();
    }
    assert_eq!(lines, 1000);
    let long = call(tool().as_ref(), &ctx, json!({"file_path": "long"})).await;
    assert_eq!(long.metadata["cut_lines"], json!([1]));
    assert!(long.output.contains("line 1]"), "{}", long.output);
}

#[tokio::test]
async fn marks_encodings_and_binaries() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("mark"), b"\xef\xbb\xbfimport x\n").unwrap();
    fs::write(root.path().join("wide"), b"\xff\xfeh\0i\0\n\0").unwrap();
    fs::write(
        root.path().join("old"),
        "d\u{e9}j\u{e0} vu, na\u{ef}ve caf\u{e9}\n".chars().map(|c| c as u8).collect::<Vec<_>>(),
    )
    .unwrap();
    fs::write(root.path().join("prog"), b"\x7fELF\x02\x01\x01\0\0\0").unwrap();
    symlink("/etc", root.path().join("etc")).unwrap();
    let ctx = context(root.path());
    let text = |path: &str| json!({"file_path": path});
    let mark = call(tool().as_ref(), &ctx, text("mark")).await;
    assert_eq!(mark.output, "     1\timport x\n");
    let wide = call(tool().as_ref(), &ctx, text("wide")).await;
    assert_eq!((wide.output.as_str(), &wide.metadata["encoding"]), ("     1\thi\n", &json!("utf-16le")));
    let old = call(tool().as_ref(), &ctx, text("old")).await;
    assert!(old.output.starts_with("     1\tdéjà vu, naïve café\n[decoded as windows-1252"), "{}", old.output);
    let program = call(tool().as_ref(), &ctx, text("prog")).await;
    assert!(program.output.contains("ELF") && program.output.contains("10 bytes"), "{}", program.output);
    assert!(matches!(program.error, Some(ToolErrorKind::Unsupported { .. })));
    let missing = call(tool().as_ref(), &ctx, text("no/file")).await;
    assert_eq!(missing.error, Some(ToolErrorKind::NotFound { path: "no/file".into() }));
    // Case C062.
    let out = call(tool().as_ref(), &ctx, text("etc/hostname")).await;
    assert!(matches!(out.error, Some(ToolErrorKind::InvalidArgument { .. })), "{}", out.output);
    let folder = call(tool().as_ref(), &ctx, text(".")).await;
    assert!(folder.output.contains("folder"), "{}", folder.output);
}

#[tokio::test]
async fn images_are_attached_and_texts_named_so_are_read() {
    let root = tempfile::tempdir().unwrap();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
    fs::write(root.path().join("a.PNG"), png).unwrap();
    fs::write(root.path().join("pointer.png"), "version 1\n").unwrap();
    let ctx = context(root.path());
    let image = call(tool().as_ref(), &ctx, json!({"file_path": "a.PNG"})).await;
    assert_eq!(image.attachments[0].media_type, "image/png");
    assert_eq!(image.attachments[0].bytes, png);
    let ranged = call(tool().as_ref(), &ctx, json!({"file_path": "a.PNG", "limit": 3})).await;
    assert!(!ranged.is_success());
    let pointer = call(tool().as_ref(), &ctx, json!({"file_path": "pointer.png"})).await;
    assert_eq!(pointer.output, "     1\tversion 1\n");
}

#[tokio::test]
async fn a_batch_shows_all_and_names_what_failed() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("a"), "1\n2\n3\n").unwrap();
    fs::write(root.path().join("b"), "x\n").unwrap();
    let ctx = context(root.path());
    let files = json!({"files": [{"path": "a", "offset": 1, "limit": 1}, {"path": "no"}, {"path": "b"}]});
    let outcome = call(tool().as_ref(), &ctx, files).await;
    assert!(outcome.is_success());
    assert!(outcome.output.starts_with("=== a ===\n     2\t2\n\n=== no ===\n[not read: "), "{}", outcome.output);
    assert!(outcome.output.contains("\n=== b ===\n     1\tx\n"));
    let facts = &outcome.metadata["batch"];
    assert_eq!((&facts["status"], &facts["completed_files"]), (&json!("partial_failure"), &json!(2)));
    assert_eq!(outcome.metadata["source_anchors"], json!(["a", "b"]));
    let none = call(tool().as_ref(), &ctx, json!({"files": [{"path": "no"}, {"path": "../x"}]})).await;
    assert_eq!(none.error, Some(ToolErrorKind::PartialFailure { failed: 2, total: 2 }));
    for wrong in [
        json!({"files": [{"path": "a"}, {"path": "./a"}]}),
        json!({"files": [{"path": "a"}], "offset": 1}),
        json!({"file_path": "a", "max_output_bytes": 2000}),
    ] {
        let outcome = call(tool().as_ref(), &ctx, wrong.clone()).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })), "{wrong}");
    }
}

#[tokio::test]
async fn following_a_batch_gives_every_line_once_within_the_budget() {
    let root = tempfile::tempdir().unwrap();
    let mut expected = Vec::new();
    for (file, lines) in [("a", 30), ("b", 0), ("c", 200), ("d", 90)] {
        let text: String = (0..lines).map(|line| format!("{file}{line} {}\n", "#".repeat(line % 40))).collect();
        expected.extend(text.lines().map(str::to_owned));
        fs::write(root.path().join(file), text).unwrap();
    }
    let ctx = context(root.path());
    for budget in [1024, 1500, 4096, 98_304] {
        let mut got = Vec::new();
        let mut files = json!([{"path": "a"}, {"path": "b"}, {"path": "c", "limit": 200}, {"path": "d"}]);
        while files.as_array().is_some_and(|files| !files.is_empty()) {
            let outcome = call(tool().as_ref(), &ctx, json!({"files": files, "max_output_bytes": budget})).await;
            assert!(outcome.is_success(), "{}", outcome.output);
            assert!(outcome.output.len() <= budget, "{} > {budget}", outcome.output.len());
            let lines = outcome.output.lines().filter(|line| line.starts_with(' '));
            got.extend(lines.filter_map(|line| Some(line.split_once('\t')?.1.to_owned())));
            files = outcome.metadata["batch"]["continuation"].clone();
        }
        assert_eq!(got, expected, "{budget}");
    }
    let tiny: Vec<Value> = (0..20).map(|n| json!({"path": format!("{n}{}", "x".repeat(90))})).collect();
    let outcome = call(tool().as_ref(), &ctx, json!({"files": tiny, "max_output_bytes": 1024})).await;
    assert!(outcome.output.contains("raise it"), "{}", outcome.output);
}

#[tokio::test]
async fn a_batch_reads_nothing_behind_the_first_incomplete_file() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("long"), "x\n".repeat(5000)).unwrap();
    fs::write(root.path().join("next"), "n\n").unwrap();
    let ctx = context(root.path());
    let outcome = call(tool().as_ref(), &ctx, json!({"files": [{"path": "long"}, {"path": "next"}]})).await;
    assert_eq!(outcome.metadata["batch"]["continuation"], json!([{"path": "long", "offset": 2000}, {"path": "next"}]));
    assert_eq!(digest_seen(&ctx, "next"), None);
}

/// Makes a file one whose last change lies a while back.
fn settle(path: &std::path::Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000)).unwrap();
}

/// A text of a few million bytes whose lines say their numbers, of uneven length.
fn numbered(lines: u64) -> String {
    let mut text = String::new();
    for line in 1..=lines {
        let _ = writeln!(text, "{line} {}", "·".repeat(usize::try_from(line % 97).unwrap()));
    }
    text
}

#[tokio::test]
async fn a_second_read_begins_near_its_window_and_finds_the_same() {
    let root = tempfile::tempdir().unwrap();
    let text = numbered(120_000);
    let mut legacy: Vec<u8> = b"d\xe9j\xe0 vu, na\xefve caf\xe9 r\xe9sum\xe9\n".to_vec();
    legacy.extend(text.replace('·', "x").bytes());
    let marked = [b"\xef\xbb\xbf", text.as_bytes()].concat();
    for (name, bytes) in [("plain", text.as_bytes()), ("legacy", &legacy), ("mark", &marked)] {
        fs::write(root.path().join(name), bytes).unwrap();
        settle(&root.path().join(name));
        let watched = WatchedFiles::of(root.path());
        let read_bytes = Arc::clone(&watched.read_bytes);
        let ctx = watched.context();
        let (warm, mut all) = (tool(), Vec::new());
        for offset in [119_990, 3, 60_000, 1023, 1024, 1025, 119_999, 120_000, 70_000, 0] {
            let arguments = json!({"file_path": name, "offset": offset, "limit": 3});
            let cold = call(tool().as_ref(), &ctx, arguments.clone()).await;
            let before = read_bytes.load(Ordering::Relaxed);
            let again = call(warm.as_ref(), &ctx, arguments).await;
            let cost = read_bytes.load(Ordering::Relaxed) - before;
            // Only how many lines there are may be known by then.
            let lines = |outcome: &ToolOutcome| outcome.output.split("\n[").next().unwrap().to_owned();
            assert_eq!(lines(&again), lines(&cold), "{name} at {offset}");
            assert_eq!(range(&again)["next_offset"], range(&cold)["next_offset"]);
            all.push(cost);
        }
        // The first one passes nearly all of the file; every later one no more than a stride and its buffers.
        let few = 3 * super::BUFFER_BYTES as u64;
        assert!(all[0] + few >= bytes.len() as u64, "{all:?}");
        assert!(all[1..].iter().all(|cost| *cost <= few), "{name}: {all:?}");
    }
}

/// Whatever a file becomes, what was remembered of it never shows.
#[tokio::test]
async fn what_is_remembered_of_a_file_never_outlives_a_change() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    let ctx = context(root.path());
    let warm = tool();
    let arguments = json!({"file_path": "f", "offset": 50_000, "limit": 2});
    let text = numbered(60_000);
    fs::write(&path, &text).unwrap();
    settle(&path);
    let first = call(warm.as_ref(), &ctx, arguments.clone()).await;
    assert!(first.output.starts_with(" 50001\t50001 "));
    // The same size and the same inode, other line ends; then a shorter one; then another inode.
    let other = text.replacen("1 ·\n2 ··\n", "1 ·\n2 ·x\n\n", 1).replacen('·', "y\n", 400);
    for now in [other.as_str(), &text[1000..], &text] {
        fs::write(&path, now).unwrap();
        for _ in 0..2 {
            let warmed = call(warm.as_ref(), &ctx, arguments.clone()).await;
            let cold = call(tool().as_ref(), &ctx, arguments.clone()).await;
            assert_eq!(warmed.output, cold.output);
        }
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, &other).unwrap();
    settle(&path);
    let warmed = call(warm.as_ref(), &ctx, arguments.clone()).await;
    assert_eq!(warmed.output, call(tool().as_ref(), &ctx, arguments).await.output);
}

// Case C036 for a part of a large file: its stamp tells that it changed.
#[tokio::test]
async fn a_large_file_that_changed_since_a_part_was_read_is_not_edited() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("large");
    fs::write(&path, numbered(400_000)).unwrap();
    assert!(fs::metadata(&path).unwrap().len() > super::WHOLE_BYTES_MAX);
    settle(&path);
    let ctx = context(root.path());
    call(tool().as_ref(), &ctx, json!({"file_path": "large", "offset": 300_000, "limit": 1})).await;
    assert_eq!(digest_seen(&ctx, "large"), None);
    let edit = json!({"file_path": "large", "old_string": "399999 ", "new_string": "x "});
    let mut appending = File::options().append(true).open(&path).unwrap();
    appending.write_all(b"theirs\n").unwrap();
    let stale = call(super::super::edit::tool().as_ref(), &ctx, edit.clone()).await;
    assert!(matches!(stale.error, Some(ToolErrorKind::VersionConflict { .. })), "{}", stale.output);
    call(tool().as_ref(), &ctx, json!({"file_path": "large", "offset": 300_000, "limit": 1})).await;
    let edited = call(super::super::edit::tool().as_ref(), &ctx, edit).await;
    assert!(edited.is_success(), "{}", edited.output);
}

// Bad input: a file that grows, shrinks or is rewritten while it is read.
#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_told() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("f");
    let lines = "line\n".repeat(400_000);
    for change in ["grows", "shrinks", "goes"] {
        fs::write(&path, &lines).unwrap();
        settle(&path);
        let mut watched = WatchedFiles::of(root.path());
        let at = path.clone();
        watched.before_read = Arc::new(move |reads| {
            let open = || File::options().append(true).open(&at).unwrap();
            match (reads, change) {
                (1, "grows") => open().write_all(b"more\n").unwrap(),
                (1, "shrinks") => open().set_len(300_000).unwrap(),
                (1, "goes") => fs::remove_file(&at).unwrap(),
                _ => {}
            }
        });
        let ctx = watched.context();
        let read = call(tool().as_ref(), &ctx, json!({"file_path": "f", "offset": 10})).await;
        assert!(read.is_success(), "{}", read.output);
        // A file without a name is what it was.
        let told = change != "goes";
        assert_eq!(read.metadata["changed_meanwhile"], json!(told), "{change}");
        assert_eq!(read.output.contains("changed while it was read"), told, "{change}");
        if told {
            // What was shown is of no one state, so nothing is written on the strength of it.
            let edit = json!({"file_path": "f", "old_string": "line\nline\n", "new_string": "x", "replace_all": true});
            let refused = call(super::super::edit::tool().as_ref(), &ctx, edit).await;
            assert!(
                matches!(refused.error, Some(ToolErrorKind::VersionConflict { .. })),
                "{change}: {}",
                refused.output
            );
        }
    }
}

// Bad input: one line of 1 GiB.
#[tokio::test]
async fn a_line_of_a_gigabyte_is_cut_in_constant_memory() {
    let root = tempfile::tempdir().unwrap();
    let mut file = File::create(root.path().join("f")).unwrap();
    file.write_all(&[b'x'; 16 << 10]).unwrap();
    // A hole reads as NULs: text for as far as the start tells, binary where the line is shown.
    file.set_len(1 << 30).unwrap();
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(b"\nlast\n").unwrap();
    let ctx = context(root.path());
    let behind = call(tool().as_ref(), &ctx, json!({"file_path": "f", "offset": 1})).await;
    assert_eq!(behind.output, "     2\tlast\n");
    let shown = call(tool().as_ref(), &ctx, json!({"file_path": "f", "limit": 1})).await;
    assert!(shown.output.contains("binary") && shown.output.contains("line 1"), "{}", shown.output);
    let edit = json!({"file_path": "f", "old_string": "last", "new_string": "x"});
    let refused = call(super::super::edit::tool().as_ref(), &ctx, edit).await;
    assert!(matches!(refused.error, Some(ToolErrorKind::Unsupported { .. })), "{}", refused.output);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, cases: 12, ..Default::default() })]
    /// Following where a read says to go on gives the whole file, line by line, once.
    #[test]
    fn following_reads_give_the_file(
        lines in proptest::collection::vec("[a-zé ]{0,90}\r?", 0..160),
        ended in proptest::bool::ANY,
        limit in 1_u64..60,
        budget in 1024_u64..4000,
    ) {
        let mut text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        if !ended {
            text.pop();
        }
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("f"), &text).unwrap();
        let ctx = context(root.path());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let shown = |outcome: &ToolOutcome| -> Vec<String> {
            let lines = outcome.output.split('\n').filter(|line| line.starts_with(' ') && line.contains('\t'));
            lines.map(|line| line.split_once('\t').unwrap().1.to_owned()).collect()
        };
        let (mut single, mut many) = (Vec::new(), Vec::new());
        runtime.block_on(async {
            let mut offset = json!(0);
            while !offset.is_null() {
                let outcome = call(tool().as_ref(), &ctx, json!({"file_path": "f", "offset": offset, "limit": limit})).await;
                single.extend(shown(&outcome));
                offset = range(&outcome)["next_offset"].clone();
            }
            let mut files = json!([{"path": "f"}]);
            while files != json!([]) {
                let outcome = call(tool().as_ref(), &ctx, json!({"files": files, "max_output_bytes": budget})).await;
                many.extend(shown(&outcome));
                files = outcome.metadata["batch"]["continuation"].clone();
            }
        });
        let whole: Vec<&str> = text.split_inclusive('\n').map(|line| {
            let line = line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
            line.unwrap_or(text.rsplit('\n').next().unwrap())
        }).collect();
        assert_eq!(single, whole);
        assert_eq!(many, whole);
    }
}
