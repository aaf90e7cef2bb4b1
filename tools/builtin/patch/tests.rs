//! Calls of `patch` on real files.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use serde_json::{Value, json};

use super::super::reach::Stop;
use super::super::target::Target;
use super::super::testing::{WatchedFiles, call, context, faults};
use super::super::{edit, patch, read, write};
use super::diff::Diff;
use super::intent::intents;
use super::plan::{HELD_BYTES_MAX, Planning};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::tool::Subject;

async fn apply(ctx: &ToolContext, diff: &str) -> ToolOutcome {
    call(patch::tool().as_ref(), ctx, json!({ "diff": diff })).await
}

async fn apply_to(ctx: &ToolContext, path: &str, diff: &str) -> ToolOutcome {
    call(patch::tool().as_ref(), ctx, json!({"file_path": path, "diff": diff})).await
}

/// Everything in a folder: content, and what a write would change.
fn state(root: &Path) -> BTreeMap<String, (Vec<u8>, u64, i64, u32)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let stat = fs::symlink_metadata(&path).unwrap();
        let bytes = if stat.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let name = path.strip_prefix(root).unwrap().display().to_string();
        all.insert(name, (bytes, stat.ino(), stat.mtime_nsec(), stat.mode()));
    }
    all
}

fn put(root: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(root.join(name), bytes).unwrap();
}

fn text(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).unwrap()
}

/// One file, changed from one line to another.
fn one_line(name: &str, old: &str, new: &str) -> String {
    format!("--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-{old}\n+{new}\n")
}

#[tokio::test]
async fn many_files_are_changed_made_deleted_renamed_and_copied_as_one() {
    let root = tempfile::tempdir().unwrap();
    for (name, content) in [("f", "1\n2\n3\n"), ("gone", "x\n"), ("from", "a\nb\n"), ("whole", "w\n"), ("like", "l\n")]
    {
        put(root.path(), name, content);
    }
    fs::set_permissions(root.path().join("from"), Permissions::from_mode(0o750)).unwrap();
    let ctx = context(root.path());
    let done = apply(
        &ctx,
        "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n 1\n-2\n+two\n 3\n\
         diff --git a/sub/new b/sub/new\nnew file mode 100755\n--- /dev/null\n+++ b/sub/new\n@@ -0,0 +1,2 @@\n+n\n+m\n\
         --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n\
         diff --git a/from b/sub/to\nrename from from\nrename to sub/to\n--- a/from\n+++ b/sub/to\n@@ -1,2 +1,2 @@\n a\n-b\n+B\n\
         diff --git a/whole b/moved\nsimilarity index 100%\nrename from whole\nrename to moved\n\
         diff --git a/like b/copy\ncopy from like\ncopy to copy\n--- a/like\n+++ b/copy\n@@ -1 +1 @@\n-l\n+L\n",
    )
    .await;
    assert!(done.is_success(), "{}", done.output);
    let names: Vec<_> = state(root.path()).into_keys().collect();
    assert_eq!(names, ["copy", "f", "like", "moved", "sub"]);
    assert_eq!((text(root.path(), "f"), text(root.path(), "copy")), ("1\ntwo\n3\n".into(), "L\n".into()));
    assert_eq!((text(root.path(), "sub/to"), text(root.path(), "moved")), ("a\nB\n".into(), "w\n".into()));
    let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("sub/new"), mode("sub/to")), (0o755, 0o750));
    let files = done.metadata["files"].as_array().unwrap();
    let told: Vec<_> = files.iter().map(|file| file["action"].as_str().unwrap()).collect();
    assert_eq!(told, ["changed", "created", "deleted", "renamed", "renamed", "copied"]);
    assert_eq!((&files[3]["from"], &files[3]["file_path"]), (&json!("from"), &json!("sub/to")));
    assert_eq!((&files[0]["before"], &files[0]["after"]), (&json!("1\n2\n3\n"), &json!("1\ntwo\n3\n")));
    assert!(files[2].get("after").is_none() && files[1].get("before").is_none());
    assert!(done.output.contains("changed f: +1 -1 in 1 hunk, from line 1\n"), "{}", done.output);
    assert!(done.output.contains("renamed sub/to (from from)"), "{}", done.output);
    // What the session wrote, it knows: another change needs no read in between.
    assert!(apply(&ctx, &one_line("copy", "L", "M")).await.is_success());
}

#[tokio::test]
async fn one_file_has_the_facts_of_an_edit() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "f", "a\nb\n");
    let ctx = context(root.path());
    let arguments = json!({"file_path": "f", "diff": "@@ -2 +2 @@\n-b\n+B\n", "dry_run": true});
    let dry = call(patch::tool().as_ref(), &ctx, arguments).await;
    assert!(dry.output.starts_with("Dry run") && text(root.path(), "f") == "a\nb\n", "{}", dry.output);
    let done = apply_to(&ctx, "f", "@@ -2 +2 @@\n-b\n+B\n").await;
    assert_eq!((&done.metadata["before"], &done.metadata["after"]), (&json!("a\nb\n"), &json!("a\nB\n")));
    assert_eq!(done.metadata["file_path"], json!("f"));
    assert!(done.metadata["change"]["unified_diff"].as_str().unwrap().contains("-b\n+B\n"));
    assert_eq!(done.metadata["hunks"], json!([{"line": 2, "added": 1, "removed": 1, "tolerated": []}]));
}

// Cases C042, C044 to C049 and R14 through the tool: harmless shapes land, and the result tells what they were.
#[tokio::test]
async fn harmless_shapes_are_applied_and_told() {
    let marker = "\\ No newline at end of file\n";
    let cases: Vec<(&[u8], String, &[u8], &str)> = vec![
        (b"one\ntwo\nthree\n", "@@ -1,9 +1,9 @@\n one\n-two\n+TWO\n three\n".into(), b"one\nTWO\nthree\n", "counts"),
        (b"one\ntwo", format!("@@ -1,2 +1,2 @@\n one\n-two\n{marker}+TWO\n{marker}"), b"one\nTWO", ""),
        (b"one\ntwo", "@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n".into(), b"one\nTWO", "newline"),
        (b"one\ntwo\n", format!("@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n{marker}"), b"one\nTWO", ""),
        (b"a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+B\n\n\n".into(), b"a\n\nB\n", ""),
        (b"one\r\ntwo\r\n", "@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n".into(), b"one\r\nTWO\r\n", "line ends"),
        (b"one\ntwo\n", "@@ -1,2 +1,2 @@\r\n one\r\n-two\r\n+TWO\r\n".into(), b"one\nTWO\n", "line ends"),
        (b"a\r\nb\nc\r\n", "@@ -2 +2 @@\n-b\n+B\n".into(), b"a\r\nB\nc\r\n", ""),
        (b"0\n1\n2\nx\n", "@@ -1 +1 @@\n-x\n+y\n".into(), b"0\n1\n2\ny\n", "3 lines down"),
        (b"\xef\xbb\xbfimport x\n", "@@ -1 +1 @@\n-import x\n+import y\n".into(), b"\xef\xbb\xbfimport y\n", ""),
        (b"\xef\xbb\xbfx\n", "@@ -1 +1 @@\n-\u{feff}x\n+\u{feff}y\n".into(), b"\xef\xbb\xbfy\n", ""),
        (b"[dev]\np=1\n[prod]\np=1\n", "@@ [prod]\n-p=1\n+p=2\n".into(), b"[dev]\np=1\n[prod]\np=2\n", ""),
        (b"\xff\xfeh\0i\0\n\0", "@@ -1 +1 @@\n-hi\n+h\u{e9}\n".into(), b"\xff\xfeh\0\xe9\0\n\0", ""),
        (
            b"d\xe9j\xe0 vu, na\xefve\nx\n",
            "@@ -2 +2 @@\n-x\n+caf\u{e9}\n".into(),
            b"d\xe9j\xe0 vu, na\xefve\ncaf\xe9\n",
            "",
        ),
        (
            "é ü ö\n\u{4e16}\nx\n".as_bytes(),
            "@@ -2 +2 @@\n-\u{4e16}\n+\u{754c}\n".into(),
            "é ü ö\n\u{754c}\nx\n".as_bytes(),
            "",
        ),
        (
            b"\xc3\xa9\xc3\xbc\xc3\xb6\n\xff\nx\n",
            "@@ -3 +3 @@\n-x\n+\u{e9}\n".into(),
            b"\xc3\xa9\xc3\xbc\xc3\xb6\n\xff\n\xc3\xa9\n",
            "",
        ),
    ];
    for (index, (before, diff, after, words)) in cases.into_iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "f", before);
        fs::set_permissions(root.path().join("f"), Permissions::from_mode(0o755)).unwrap();
        let ctx = context(root.path());
        let done = apply_to(&ctx, "f", &diff).await;
        assert!(done.is_success(), "{index}: {}", done.output);
        assert_eq!(fs::read(root.path().join("f")).unwrap(), after, "{index}");
        assert_eq!(fs::metadata(root.path().join("f")).unwrap().mode() & 0o777, 0o755);
        assert!(done.output.contains(words), "{index}: {}", done.output);
        if !words.is_empty() {
            put(root.path(), "f", before);
            let ctx = context(root.path());
            let strict = json!({"file_path": "f", "diff": diff, "strict": true});
            let refused = call(patch::tool().as_ref(), &ctx, strict).await;
            assert!(!refused.is_success() && refused.output.contains("strict"), "{index}: {}", refused.output);
            assert_eq!(fs::read(root.path().join("f")).unwrap(), before);
        }
    }
}

/// Cases C049, C051, C053, C055, C056, C058 and R14: each refusal says what to do and touches nothing.
#[tokio::test]
async fn refusals_touch_nothing() {
    let outside = tempfile::tempdir().unwrap();
    put(outside.path(), "secret", "s\n");
    let root = tempfile::tempdir().unwrap();
    for (name, content) in [("f", "a\nb\nc\n"), ("g", "p\nx\np\n"), ("src", "s\n"), ("dst", "d\n"), ("bin", "a\0b")] {
        put(root.path(), name, content);
    }
    symlink("f", root.path().join("link")).unwrap();
    symlink("nowhere", root.path().join("dangling")).unwrap();
    symlink(outside.path().join("secret"), root.path().join(".env")).unwrap();
    fs::create_dir(root.path().join("folder")).unwrap();
    let ctx = context(root.path());
    let before = state(root.path());
    let new = |name: &str| format!("--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+x\n");
    let renamed = |from: &str, to: &str| format!("diff --git a/{from} b/{to}\nrename from {from}\nrename to {to}\n");
    let deleted = |name: &str, line: &str| format!("--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n-{line}\n");
    let absolute = root.path().canonicalize().unwrap().join("f").display().to_string();
    for (diff, words) in [
        ("--- f\n+++ f\n@@ -2,1 +2,1 @@\n-zzz\n+Z\n".to_owned(), "     2\tb"),
        ("--- g\n+++ g\n@@\n-p\n+q\n".to_owned(), "lines 1, 3"),
        (format!("{}{}", new("n.txt"), one_line("f", "absent", "x")), "nothing was written"),
        (new("f"), "exists already"),
        (new("folder"), "exists already"),
        (new("dangling"), "exists already"),
        (new(".env"), "leaves the workspace"),
        (new(".git/hooks/x"), ".git"),
        (new("../x"), "leaves the workspace"),
        (new("f/x"), "not a folder"),
        (renamed("src", "dst"), "exists already"),
        (renamed("src", "folder"), "exists already"),
        (renamed("none", "x"), "no such file"),
        (renamed("link", "x"), "is a link"),
        (deleted("f", "a"), "2 of its lines would stay"),
        (deleted("src", "other"), "it expects"),
        (deleted("link", "a"), "is a link"),
        (deleted("none", "a"), "no such file"),
        (format!("{}{}", one_line("f", "a", "A"), deleted("./f", "a")), "named twice"),
        (format!("{}{}", one_line("f", "a", "A"), one_line("link", "a", "B")), "are one file"),
        (format!("{}--- {absolute}\n+++ {absolute}\n@@ -3 +3 @@\n-c\n+C\n", one_line("f", "a", "A")), "named twice"),
        (one_line("none", "a", "b"), "no such file"),
        (one_line("folder", "a", "b"), "folder"),
        (one_line("bin", "a", "b"), "binary"),
        (one_line("f", "a", "a"), "changes nothing"),
        ("@@ -1 +1 @@\n-a\n+A\n".to_owned(), "name no file"),
        (format!("{}rubbish\n", one_line("f", "a", "A")), "line 6 of the diff"),
    ] {
        let refused = apply(&ctx, &diff).await;
        assert!(!refused.is_success() && refused.error.is_some(), "{diff}");
        assert!(refused.output.contains(words), "{diff}\n{}", refused.output);
        assert_eq!(state(root.path()), before, "{diff}");
    }
    for (path, diff, words) in [
        ("f", one_line("src", "a", "A"), "the diff names src"),
        ("f", format!("{}{}", one_line("f", "a", "A"), one_line("src", "s", "S")), "names 2 files"),
        ("f", renamed("f", "x"), "renames"),
        (".env", "@@ -1 +1 @@\n-s\n+t\n".to_owned(), "leaves the workspace"),
    ] {
        let refused = apply_to(&ctx, path, &diff).await;
        assert!(refused.output.contains(words), "{diff}\n{}", refused.output);
        assert_eq!(state(root.path()), before, "{diff}");
    }
    assert_eq!(text(outside.path(), "secret"), "s\n");
    assert!(faults(patch::tool().as_ref(), &json!({"diff": ""})).contains("/diff"));
    // A link inside the workspace, and the same name in both places, are no refusals.
    assert!(apply_to(&ctx, "link", &one_line("f", "a", "A")).await.is_success());
    assert!(fs::symlink_metadata(root.path().join("link")).unwrap().is_symlink());
}

// Case C056.
#[tokio::test]
async fn deletion_removes_the_file_and_creation_needs_no_null_device() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    put(root.path(), "d/f", "one");
    let ctx = context(root.path());
    let deleted = apply(&ctx, "--- a/d/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n").await;
    assert!(deleted.is_success(), "{}", deleted.output);
    assert!(!root.path().join("d/f").exists() && root.path().join("d").exists());
    let created = apply(&ctx, "--- a/new\n+++ b/new\n@@ -0,0 +1 @@\n+n\n").await;
    assert!(created.is_success() && text(root.path(), "new") == "n\n", "{}", created.output);
    let empty = "diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n";
    assert!(apply(&ctx, empty).await.is_success() && text(root.path(), "e").is_empty());
    let gone = "diff --git a/e b/e\ndeleted file mode 100644\nindex e69de29..0000000\n";
    assert!(apply(&ctx, gone).await.is_success() && !root.path().join("e").exists());
    let mode = "diff --git a/new b/new\nold mode 100644\nnew mode 100755\n";
    assert!(apply(&ctx, mode).await.is_success());
    assert_eq!(fs::metadata(root.path().join("new")).unwrap().mode() & 0o111, 0o111);
}

// Case C036 for diffs, and R15.
#[tokio::test]
async fn what_the_session_did_not_see_and_what_has_other_names_is_refused() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "f", "a\n");
    put(root.path(), "g", "a\n");
    put(root.path(), "one", "a\n");
    fs::hard_link(root.path().join("one"), root.path().join("two")).unwrap();
    let ctx = context(root.path());
    call(read::tool().as_ref(), &ctx, json!({"file_path": "f"})).await;
    put(root.path(), "f", "a\nb\n");
    let stale = apply(&ctx, &format!("{}{}", one_line("g", "a", "A"), one_line("f", "a", "A"))).await;
    assert!(matches!(stale.error, Some(ToolErrorKind::VersionConflict { .. })), "{}", stale.output);
    let linked = apply(&ctx, &format!("{}{}", one_line("g", "a", "A"), one_line("two", "a", "A"))).await;
    assert!(matches!(linked.error, Some(ToolErrorKind::Unsupported { .. })), "{}", linked.output);
    assert_eq!((text(root.path(), "g"), text(root.path(), "one")), ("a\n".into(), "a\n".into()));
}

#[test]
fn rules_see_every_name() {
    let subject = |arguments: Value| patch::tool().subject(&arguments);
    let diff = format!("{}diff --git a/x b/y\nrename from x\nrename to y\n", one_line("f", "a", "b"));
    let paths =
        |names: &[&str], write| Subject::Paths { paths: names.iter().map(|name| (*name).to_owned()).collect(), write };
    assert_eq!(subject(json!({ "diff": diff })), paths(&["f", "x", "y"], true));
    let dry = json!({"diff": one_line("f", "a", "b"), "file_path": "./f", "dry_run": true});
    assert_eq!(subject(dry), paths(&["./f", "f"], false));
    assert_eq!(subject(json!({"diff": "no diff"})), paths(&[], true));
}

#[tokio::test]
async fn a_cancelled_or_dropped_patch_leaves_all_or_nothing() {
    let root = tempfile::tempdir().unwrap();
    let ctx = context(root.path());
    let diff: String = (0..20).map(|file| one_line(&format!("f{file}"), "old", "new")).collect();
    let tool = patch::tool();
    for polls in 0..6 {
        for file in 0..20 {
            put(root.path(), &format!("f{file}"), "old\n");
        }
        let fresh = context(root.path());
        let mut patching = tool.call(&fresh, json!({ "diff": diff }));
        for _ in 0..polls {
            if futures_util::poll!(&mut patching).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(patching);
        // The turn comes back when the dropped work has ended.
        let arguments = json!({"diff": diff, "dry_run": true});
        let after = call(tool.as_ref(), &fresh, arguments).await;
        let state = state(root.path());
        assert_eq!(state.len(), 20, "{:?}", state.keys());
        let new = state.values().filter(|(bytes, ..)| bytes == b"new\n").count();
        assert!(new == 0 || new == 20, "{new} of 20, {}", after.output);
    }
    ctx.cancel.cancel(CancelReason::Requested);
    let before = state(root.path());
    let cancelled = apply(&ctx, &diff).await;
    assert!(matches!(cancelled.error, Some(ToolErrorKind::Cancelled { .. })), "{}", cancelled.output);
    assert_eq!(state(root.path()), before);
}

#[tokio::test]
async fn large_contents_are_told_by_previews_and_kept_beside() {
    let root = tempfile::tempdir().unwrap();
    for file in ["f", "g"] {
        put(root.path(), file, "line\n".repeat(20_000));
    }
    let ctx = context(root.path());
    let diff: String = ["f", "g"].map(|file| one_line(file, "line", "LINE")).concat();
    let done = apply(&ctx, &diff).await;
    assert!(done.is_success(), "{}", done.output);
    let facts = &done.metadata["files"][1];
    assert_eq!((&facts["change"]["compacted"], &facts["change"]["before"]["bytes"]), (&json!(true), &json!(100_000)));
    assert!(facts["change"]["unified_diff"].as_str().unwrap().contains("+LINE\n"));
    assert!(facts["before"].as_str().unwrap().len() <= 8 * 1024);
    let kept: Vec<_> = done.sides.iter().map(|side| (side.side, side.at.as_str(), side.text.len())).collect();
    assert_eq!(kept[3], ("after", "/files/1/change/after", 100_000));
}

// Found in a review: what only gets another name was held in memory, however much of it there was.
#[tokio::test]
async fn what_only_moves_is_held_where_there_is_room_alone() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a", "x\n");
    let ctx = context(root.path());
    let moved = "diff --git a/a b/b\nsimilarity index 100%\nrename from a\nrename to b\n";
    let changed = one_line("a", "x", "y");
    for (text, held_bytes, holds) in
        [(moved, 0, Some(true)), (moved, HELD_BYTES_MAX, Some(false)), (changed.as_str(), HELD_BYTES_MAX, None)]
    {
        let diff = Diff::parse(text.as_bytes()).unwrap();
        let (intents, _) = intents(&diff, None).unwrap();
        let mut targets = Target::take_all(&ctx, "patch", &["a".into(), "b".into()]).await.unwrap().into_iter();
        let (from, to) = (targets.next().unwrap(), targets.next().filter(|_| text == moved));
        let stop = Stop::of(&ctx);
        let mut planning = Planning { strict: false, stop: &stop, held_bytes };
        let planned = planning.file(&diff.sections[0], &intents[0], from, to);
        assert_eq!(planned.ok().map(|planned| planned.old.unwrap().bytes.is_some()), holds, "{text}");
    }
}

// Bad input: a disk that is full or read-only, a folder that may not be written: typed for each tool, nothing touched.
#[tokio::test]
async fn a_disk_that_refuses_is_told_by_every_tool_that_writes() {
    use std::io::ErrorKind;
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "f", "a\n");
    put(root.path(), "g", "a\n");
    let before = state(root.path());
    for refusal in [ErrorKind::StorageFull, ErrorKind::ReadOnlyFilesystem, ErrorKind::PermissionDenied] {
        let mut watched = WatchedFiles::of(root.path());
        watched.refusal = Some(refusal);
        let ctx = watched.context();
        let calls = [
            (write::tool(), json!({"file_path": "f", "content": "b\n"})),
            (write::tool(), json!({"file_path": "f", "content": "b\n", "mode": "append", "expected_offset": 2})),
            (edit::tool(), json!({"file_path": "f", "old_string": "a", "new_string": "b"})),
            (patch::tool(), json!({"diff": one_line("f", "a", "b")})),
            (patch::tool(), json!({"diff": format!("{}{}", one_line("f", "a", "b"), one_line("g", "a", "b"))})),
            (patch::tool(), json!({"diff": "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"})),
        ];
        for (tool, arguments) in calls {
            let refused = call(tool.as_ref(), &ctx, arguments.clone()).await;
            let kind = serde_json::to_value(refused.error.as_ref().unwrap()).unwrap()["type"].clone();
            let expected = if refusal == ErrorKind::StorageFull { "transport" } else { "unsupported" };
            assert_eq!(kind, expected, "{refusal:?} {arguments}: {}", refused.output);
            assert_eq!(state(root.path()), before, "{refusal:?} {arguments}");
        }
    }
}
