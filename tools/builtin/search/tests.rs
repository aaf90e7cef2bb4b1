//! The cases that searches in other runtimes got wrong, through the tool as a caller sees it.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::lines::CONTENT_BYTES_MAX;
use super::tool;
use crate::builtin::testing::{call, context, context_over, faults};
use crate::cancellation::CancelReason;
use crate::context::ToolContext;
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::search::twin::TreeTwin;
use crate::tool::Subject;
use crate::workspace::{Workspace, WorkspaceCapabilities};

fn over(twin: &TreeTwin) -> ToolContext {
    context_over(Workspace::new("/ws", WorkspaceCapabilities::local_default(), Arc::new(twin.clone()), None))
}

async fn search(twin: &TreeTwin, arguments: Value) -> ToolOutcome {
    call(tool(None).as_ref(), &over(twin), arguments).await
}

/// The lines of an output before the first blank one.
fn results(outcome: &ToolOutcome) -> Vec<&str> {
    assert!(outcome.is_success(), "{}", outcome.output);
    if outcome.output.starts_with("No ") {
        return Vec::new();
    }
    outcome.output.lines().take_while(|line| !line.is_empty()).collect()
}

async fn grep(twin: &TreeTwin, query: &str) -> ToolOutcome {
    search(twin, json!({"mode": "grep", "query": query})).await
}

async fn glob(twin: &TreeTwin, query: &str) -> ToolOutcome {
    search(twin, json!({"mode": "glob", "query": query})).await
}

#[tokio::test]
async fn lines_come_with_path_number_and_context() {
    let twin = TreeTwin::of(&[("b.rs", "one\nhit\nthree\nfour\nfive\nhit\n"), ("a.rs", "hit\n"), ("c.txt", "hit\n")]);
    let outcome = search(&twin, json!({"mode": "grep", "query": "hit", "include": "*.rs", "context": 1})).await;
    let expected = ["a.rs:1:hit", "--", "b.rs-1-one", "b.rs:2:hit", "b.rs-3-three", "--", "b.rs-5-five", "b.rs:6:hit"];
    assert_eq!(results(&outcome), expected);
    assert!(outcome.output.ends_with("\n\n3 matching lines in 2 files\n"), "{}", outcome.output);
    assert_eq!(outcome.metadata["search"]["matching_lines"], 3);
    assert_eq!(outcome.metadata["source_anchors"], json!(["a.rs", "b.rs"]));
    assert_eq!(outcome.metadata["matches"][2]["line"], 6);
    let outcome = search(&twin, json!({"mode": "grep", "query": "HIT", "case_sensitive": false})).await;
    assert_eq!(outcome.metadata["search"]["matching_files"], 3);
}

#[tokio::test]
async fn files_counts_and_totals() {
    let twin = TreeTwin::of(&[("a", "x\nx\n"), ("b", "y\n"), ("c", "x\n"), ("d", "x\n")]);
    let ask = |mode: &str, cursor: &str| json!({"mode": "grep", "query": "x", "output_mode": mode, "limit": 2, "cursor": cursor});
    let first = search(&twin, ask("count", "")).await;
    assert_eq!(results(&first), ["a:2", "c:1"]);
    assert_eq!(first.metadata["page"]["next_cursor"], "2");
    assert_eq!(first.metadata["search"], json!({"matching_lines": 4, "matching_files": 3, "truncated": false}));
    assert_eq!(results(&search(&twin, ask("count", "2")).await), ["d:1"]);
    assert_eq!(results(&search(&twin, ask("files_with_matches", "")).await), ["a", "c"]);
    let behind = search(&twin, ask("count", "9")).await;
    assert!(matches!(behind.error, Some(ToolErrorKind::InvalidArgument { .. })), "{}", behind.output);
    let totals = search(&twin, json!({"mode": "grep", "query": "x", "output_mode": "summary"})).await;
    assert_eq!(totals.output, "4 matching lines in 3 files\n");
    // A page of lines has no meaning; the default limit is tolerated.
    for (extra, good) in [(json!(200), true), (json!(5), false)] {
        let outcome = search(&twin, json!({"mode": "grep", "query": "x", "limit": extra})).await;
        assert_eq!(outcome.is_success(), good, "{}", outcome.output);
    }
}

// Case C070, through both walkers.
#[tokio::test]
async fn c070_negated_rules() {
    let twin = TreeTwin::of(&[(".gitignore", "*\n!*.md\n"), ("r.md", "x"), ("docs/a.md", "x")]);
    assert_eq!(results(&grep(&twin, "x").await), ["r.md:1:x"]);
    assert_eq!(results(&glob(&twin, "*.md").await), ["r.md"]);
}

// Case C071.
#[tokio::test]
async fn c071_braces_in_an_ignore_file() {
    let twin = TreeTwin::of(&[(".gitignore", "*.c{x}\n"), ("m.cx", ""), ("m.c{x}", "")]);
    assert_eq!(results(&glob(&twin, "m*").await), ["m.cx"]);
}

// Case C072: the same rule everywhere, its effect is counted, an explicit path is searched.
#[tokio::test]
async fn c072_ignored_files_are_counted() {
    let twin = TreeTwin::of(&[(".gitignore", "*.log\n"), ("keep.log", "needle\n"), ("other", "")]);
    for outcome in [
        grep(&twin, "needle").await,
        glob(&twin, "*.log").await,
        search(&twin, json!({"mode": "bm25", "query": "needle"})).await,
    ] {
        assert!(outcome.is_success() && outcome.output.starts_with("No "), "{}", outcome.output);
        assert!(outcome.output.contains("1 by ignore rules"), "{}", outcome.output);
        assert_eq!(outcome.metadata["left_out"]["ignored_entries"], 1);
    }
    let explicit = search(&twin, json!({"mode": "grep", "query": "needle", "path": "keep.log"})).await;
    assert_eq!(results(&explicit), ["keep.log:1:needle"]);
}

// Case C074.
#[tokio::test]
async fn c074_one_level_and_the_case_of_patterns() {
    let twin = TreeTwin::of(&[("a/b.txt", ""), ("c.txt", ""), ("src/x.rs", ""), ("axc", ""), ("a/c", "")]);
    assert_eq!(results(&glob(&twin, "/*.txt").await), ["c.txt"]);
    assert_eq!(results(&glob(&twin, "*.txt").await), ["a/b.txt", "c.txt"]);
    assert_eq!(results(&glob(&twin, "a[!b]c").await), ["axc"]);
    assert_eq!(results(&glob(&twin, "src/**").await), ["src/x.rs"]);
    assert_eq!(results(&glob(&twin, "/ws/src/*.rs").await), ["src/x.rs"]);
    let sensitive = glob(&twin, "*.RS").await;
    assert_eq!((results(&sensitive).len(), &sensitive.metadata["case_sensitive"]), (0, &json!(true)));
    let outcome = search(&twin, json!({"mode": "glob", "query": "SRC/*.RS", "case_sensitive": false})).await;
    assert_eq!((results(&outcome), &outcome.metadata["case_sensitive"]), (vec!["src/x.rs"], &json!(false)));
}

// Case C075.
#[tokio::test]
async fn c075_hidden_names() {
    let twin = TreeTwin::of(&[
        (".dot.txt", "x"),
        (".hid/x.txt", "x"),
        ("a.txt", "x"),
        (".github/workflows/ci.yml", "x"),
        (".git/a.yml", "x"),
    ]);
    let plain = glob(&twin, "*.txt").await;
    assert_eq!(results(&plain), ["a.txt"]);
    assert_eq!(plain.metadata["left_out"]["hidden_entries"], 3);
    assert_eq!(results(&glob(&twin, ".github/workflows/*.yml").await), [".github/workflows/ci.yml"]);
    assert_eq!(results(&glob(&twin, ".*.txt").await), [".dot.txt"]);
    assert_eq!(results(&glob(&twin, "**/.*/*").await), [".hid/x.txt"]);
    assert_eq!(results(&glob(&twin, ".git/*").await), Vec::<&str>::new());
    let inside = search(&twin, json!({"mode": "grep", "query": "x", "path": ".hid"})).await;
    assert_eq!(results(&inside), [".hid/x.txt:1:x"]);
    let included = search(&twin, json!({"mode": "grep", "query": "x", "include": ".github/**"})).await;
    assert_eq!(results(&included), [".github/workflows/ci.yml:1:x"]);
    let git = search(&twin, json!({"mode": "grep", "query": "x", "path": ".git"})).await;
    assert!(!git.is_success() && git.output.contains(".git"), "{}", git.output);
}

// Case C077: nothing found is a success, a bad pattern and a missing path are errors that say so.
#[tokio::test]
async fn c077_no_match_and_errors_are_told_apart() {
    let twin = TreeTwin::of(&[("a", "text\n")]);
    let none = grep(&twin, "absent").await;
    assert!(
        none.is_success() && none.output.starts_with("No line matches absent (1 file searched)"),
        "{}",
        none.output
    );
    assert_eq!(none.metadata["search"]["matching_lines"], 0);
    let bad = grep(&twin, "a(").await;
    assert!(matches!(bad.error, Some(ToolErrorKind::InvalidArgument { .. })));
    assert!(bad.output.contains("invalid pattern") && bad.output.contains("character 2"), "{}", bad.output);
    for mode in ["grep", "glob", "bm25"] {
        let missing = search(&twin, json!({"mode": mode, "query": "a", "path": "nope"})).await;
        assert_eq!(missing.error, Some(ToolErrorKind::NotFound { path: "nope".into() }), "{mode}");
        let outside = search(&twin, json!({"mode": mode, "query": "a", "path": "../x"})).await;
        assert!(matches!(outside.error, Some(ToolErrorKind::InvalidArgument { .. })), "{mode}");
    }
    assert!(!glob(&twin, "a[").await.is_success());
    assert!(!search(&twin, json!({"mode": "bm25", "query": "?!"})).await.is_success());
    assert!(!grep(&twin, "   ").await.is_success());
}

// Case C078.
#[tokio::test]
async fn c078_unsupported_constructs_are_named() {
    let twin = TreeTwin::of(&[("a", "needle\n")]);
    for (query, construct) in [("nee(?=dle)", "(?="), ("(?<!#)foo", "(?<!"), ("(a)\\1", "\\1")] {
        let outcome = grep(&twin, query).await;
        assert!(!outcome.is_success() && outcome.output.contains(construct), "{}", outcome.output);
        assert!(outcome.output.contains("not supported"), "{}", outcome.output);
    }
}

// Case C079: everything that begins with a dash is data.
#[tokio::test]
async fn c079_dashes() {
    let twin = TreeTwin::of(&[("-rf/-x", "-foo --bar\n"), ("a", "-foo\n")]);
    assert_eq!(results(&grep(&twin, "-foo").await).len(), 2);
    assert_eq!(results(&grep(&twin, "--bar").await), ["-rf/-x:1:-foo --bar"]);
    assert_eq!(results(&glob(&twin, "-*").await), ["-rf/-x"]);
    let inside = search(&twin, json!({"mode": "grep", "query": "-", "path": "-rf", "include": "-*"})).await;
    assert_eq!(results(&inside).len(), 1);
}

// Case C080.
#[tokio::test]
async fn c080_binary_files_are_named() {
    let twin = TreeTwin::default();
    twin.put("mixed", b"needle first\n\0\nneedle second\n");
    let outcome = grep(&twin, "needle").await;
    assert_eq!(results(&outcome), ["mixed:1:needle first"]);
    assert!(outcome.output.contains("binary") && outcome.output.contains("mixed"), "{}", outcome.output);
    assert_eq!(outcome.metadata["left_out"]["binary_files"], 1);
    let absent = grep(&twin, "second").await;
    assert!(absent.output.contains("binary"), "{}", absent.output);
    let whole = search(&twin, json!({"mode": "grep", "query": "needle", "path": "mixed"})).await;
    assert_eq!(results(&whole).len(), 2);
}

// Cases C082 and C083.
#[tokio::test]
async fn c082_c083_encodings_and_line_ends() {
    let twin = TreeTwin::default();
    twin.put("wide", b"\xff\xfen\0e\0e\0d\0l\0e\0\n\0");
    twin.put("dos", b"needle\r\nother\r\n");
    let outcome = grep(&twin, "needle$").await;
    assert_eq!(results(&outcome), ["dos:1:needle", "wide:1:needle"]);
    assert!(outcome.output.contains("UTF-16") && !outcome.output.contains('\r'), "{}", outcome.output);
    assert_eq!(outcome.metadata["left_out"]["decoded_files"], 1);
}

// Case C085.
#[tokio::test]
async fn c085_words_of_dense_scripts() {
    let twin = TreeTwin::of(&[("a.md", "缓存服务读取Redis配置\n"), ("b.md", "ﾃｽﾄ\n"), ("c.md", "nothing\n")]);
    for (query, path) in [("缓存", "a.md"), ("redis", "a.md"), ("存", "a.md"), ("テスト", "b.md"), ("ﾃｽﾄ", "b.md")]
    {
        let outcome = search(&twin, json!({"mode": "bm25", "query": query})).await;
        assert_eq!(outcome.metadata["source_anchors"], json!([path]), "{query}");
    }
}

// Case C061: line numbers are those of every other tool.
#[tokio::test]
async fn c061_lines_end_at_lf() {
    let twin = TreeTwin::of(&[("a", "a\x0cb\u{2028}c\nTARGET\n")]);
    assert_eq!(results(&grep(&twin, "TARGET").await), ["a:2:TARGET"]);
    let ranked = search(&twin, json!({"mode": "bm25", "query": "target"})).await;
    assert!(ranked.output.contains("     2\tTARGET\n"), "{}", ranked.output);
}

// Cases C067 and R04, on a real folder: odd names come back in a form that is taken, and every write is seen.
#[tokio::test]
async fn c067_r04_odd_names_and_fresh_writes() {
    let folder = tempfile::tempdir().unwrap();
    let ctx = context(folder.path());
    for name in [b"bad\xff.txt".as_slice(), b"new\nline.txt", b" lead", b"-rf"] {
        std::fs::write(folder.path().join(OsStr::from_bytes(name)), "needle\n").unwrap();
    }
    let listed = call(tool(None).as_ref(), &ctx, json!({"mode": "glob", "query": "*"})).await;
    let paths: Vec<String> = results(&listed).into_iter().map(str::to_owned).collect();
    assert_eq!(paths.len(), 4, "{paths:?}");
    for path in paths {
        let found = call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": "needle", "path": path})).await;
        assert_eq!(results(&found), [format!("{path}:1:needle")]);
    }
    for round in 0..50 {
        let word = format!("fresh{round}word");
        std::fs::write(folder.path().join("fresh"), &word).unwrap();
        let found = call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": word})).await;
        assert_eq!(results(&found).len(), 1, "{round}");
    }
}

#[tokio::test]
async fn links_are_not_followed_but_named_files_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("real")).unwrap();
    std::fs::write(folder.path().join("real/a.md"), "needle\n").unwrap();
    for (to, link) in [("real/a.md", "b.md"), ("real", "again.md"), ("/etc/hostname", "out.md"), ("nowhere", "c.md")] {
        std::os::unix::fs::symlink(to, folder.path().join(link)).unwrap();
    }
    let ctx = context(folder.path());
    let found = call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": "needle"})).await;
    assert_eq!(results(&found), ["real/a.md:1:needle"]);
    assert_eq!(found.metadata["left_out"]["links"], 4);
    let listed = call(tool(None).as_ref(), &ctx, json!({"mode": "glob", "query": "*.md"})).await;
    assert_eq!(results(&listed), ["b.md", "real/a.md"]);
    let through = call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": "needle", "path": "again.md"})).await;
    assert_eq!(results(&through), ["real/a.md:1:needle"]);
}

#[tokio::test]
async fn passages_have_the_agreed_form() {
    let text = (1..=100).map(|n| format!("line {n}\n")).collect::<String>() + "fn wanted_thing() {\n}\n";
    let twin = TreeTwin::of(&[("src/a.rs", &text), ("src/b.rs", "// a thing that is wanted\n"), ("c.md", "other\n")]);
    let outcome = search(&twin, json!({"mode": "bm25", "query": "wanted thing", "context": 1})).await;
    let blocks: Vec<&str> = outcome.output.trim_end().split("\n\n").collect();
    assert_eq!(blocks.len(), 2, "{}", outcome.output);
    let mut lines = blocks[0].lines();
    assert!(lines.next().unwrap().starts_with("src/a.rs:100-102 (score "), "{}", outcome.output);
    assert_eq!(lines.collect::<Vec<_>>(), ["   100\tline 100", "   101\tfn wanted_thing() {", "   102\t}"]);
    assert!(blocks[1].starts_with("src/b.rs:1-1 (score "), "{}", outcome.output);
    assert_eq!(outcome.metadata["candidate_search"]["matching_files"], 2);
    assert_eq!(outcome.metadata["returned_results"], 2);
    let scores: Vec<f64> =
        outcome.metadata["results"].as_array().unwrap().iter().map(|r| r["score"].as_f64().unwrap()).collect();
    assert!(scores[0] > scores[1]);
}

#[tokio::test]
async fn long_content_is_cut_and_said() {
    let twin = TreeTwin::default();
    for n in 0..200 {
        twin.put(&format!("{n:03}"), &b"a matching line of some length\n".repeat(100));
    }
    let outcome = grep(&twin, "matching").await;
    assert!(outcome.output.len() < CONTENT_BYTES_MAX + 2048 && outcome.output.contains("[cut at"));
    assert_eq!(outcome.metadata["search"]["truncated"], true);
    let lines = results(&outcome);
    assert_eq!(outcome.metadata["search"]["matching_lines"], lines.len());
    assert!(lines.is_sorted_by_key(|line| line[..3].to_owned()));
    // The same again is the same, whatever the threads did.
    assert_eq!(grep(&twin, "matching").await.output, outcome.output);
}

#[tokio::test]
async fn unreadable_files_are_told() {
    let twin = TreeTwin::of(&[("a", "x\n")]);
    twin.refuse("closed");
    let outcome = grep(&twin, "x").await;
    assert_eq!(outcome.metadata["failed_reads"], 1);
    assert!(outcome.output.contains("could not be read: closed"), "{}", outcome.output);
}

/// A tree of many files that calls back with the number of each opened one.
fn large(call: impl Fn(usize) + Send + Sync + 'static) -> TreeTwin {
    let twin = TreeTwin::default();
    for n in 0..2000 {
        twin.put(&format!("{n:04}"), b"some text\n");
    }
    let opened = AtomicUsize::new(0);
    twin.on_open(move |_| call(opened.fetch_add(1, Ordering::SeqCst) + 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_search_ends_half_way() {
    for mode in ["grep", "bm25"] {
        let cancel = crate::cancellation::Cancellation::new();
        let signal = cancel.clone();
        let opened = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&opened);
        let twin = large(move |number| {
            seen.store(number, Ordering::SeqCst);
            if number == 300 {
                signal.cancel(CancelReason::Requested);
            }
        });
        let ctx = ToolContext { cancel, ..over(&twin) };
        let outcome = call(tool(None).as_ref(), &ctx, json!({"mode": mode, "query": "text"})).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::Cancelled { .. })), "{}", outcome.output);
        assert!(opened.load(Ordering::SeqCst) < 310, "{mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_search_leaves_nothing_running() {
    let (started, has_started) = tokio::sync::oneshot::channel();
    let started = std::sync::Mutex::new(Some(started));
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let opened = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&opened);
    // Goes away with the last hold on the tree: the sign that the blocking thread has let go of it.
    let (alive, gone) = std::sync::mpsc::channel::<()>();
    let twin = large(move |number| {
        let _hold = &alive;
        seen.store(number, Ordering::SeqCst);
        if number == 100 {
            if let Some(started) = started.lock().unwrap().take() {
                let _ = started.send(());
            }
            let _ = gate.lock().unwrap().recv();
        }
    });
    let ctx = over(&twin);
    drop(twin);
    let running = tokio::spawn(async move {
        call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": "text"})).await;
    });
    has_started.await.unwrap();
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    drop(release);
    tokio::task::spawn_blocking(move || gone.recv()).await.unwrap().unwrap_err();
    assert!(opened.load(Ordering::SeqCst) < 600, "{}", opened.load(Ordering::SeqCst));
}

#[tokio::test]
async fn arguments_and_declarations() {
    let tool = tool(None);
    assert!(faults(tool.as_ref(), &json!({"mode": "semantic", "query": "x"})).contains("/mode"));
    assert!(faults(tool.as_ref(), &json!({"mode": "grep", "query": "x", "nope": 1})).contains("nope"));
    let arguments = json!({"mode": "grep", "query": "a b", "path": "src"});
    assert_eq!(tool.subject(&arguments), Subject::Text("grep a b src".into()));
    assert_eq!(tool.subject(&json!({"mode": "glob", "query": "*"})), Subject::Text("glob * .".into()));
    for (arguments, width, pages) in [
        (json!({"mode": "grep"}), 16, false),
        (json!({"mode": "grep", "output_mode": "count"}), 16, true),
        (json!({"mode": "glob"}), 16, true),
        (json!({"mode": "bm25"}), 2, false),
    ] {
        let declared = tool.capabilities(&arguments);
        assert_eq!((declared.max_parallelism, declared.supports_pagination), (width, pages), "{arguments}");
        assert!(declared.allows_parallel_batch());
    }
    let twin = TreeTwin::of(&[("a", "x")]);
    let blind = WorkspaceCapabilities { search: false, ..WorkspaceCapabilities::local_default() };
    let ctx = context_over(Workspace::new("/ws", blind, Arc::new(twin.clone()), None));
    let outcome = call(tool.as_ref(), &ctx, json!({"mode": "glob", "query": "*"})).await;
    assert!(matches!(outcome.error, Some(ToolErrorKind::Unsupported { .. })));
    for arguments in [
        json!({"mode": "bm25", "query": "x", "cursor": "1"}),
        json!({"mode": "glob", "query": "x", "output_mode": "count"}),
        json!({"mode": "grep", "query": "x", "cursor": "1"}),
    ] {
        let outcome = search(&twin, arguments).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })), "{}", outcome.output);
    }
}
