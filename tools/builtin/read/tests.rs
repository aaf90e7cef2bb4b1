//! Calls of `read` on real files.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::super::testing::{call, context, faults};
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
    assert_eq!((&range(&middle)["total_lines"], digest_seen(&ctx, "large")), (&Value::Null, None));
    let tail = call(tool().as_ref(), &ctx, json!({"file_path": "large", "offset": 1_048_576})).await;
    assert_eq!(tail.output, "1048577\tlast\n");
    assert_eq!(digest_seen(&ctx, "large"), Some(Digest::of(&fs::read(root.path().join("large")).unwrap())));
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
