//! Inputs that are too much: millions of matches, links in circles, files that change while they are read.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::lines::CONTENT_BYTES_MAX;
use super::tool;
use crate::builtin::testing::{call, context};
use crate::outcome::ToolErrorKind;
use crate::search::resident_index::ResidentIndexes;

/// Lines that all match.
const MATCHES: usize = 10_000_000;

#[tokio::test]
async fn ten_million_matches_are_cut_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = fs::File::create(folder.path().join("all")).unwrap();
    let block = b"a\n".repeat(10_000);
    for _ in 0..MATCHES / 10_000 {
        file.write_all(&block).unwrap();
    }
    drop(file);
    let ctx = context(folder.path());
    let found = call(tool(None).as_ref(), &ctx, json!({"mode": "grep", "query": "a"})).await;
    assert!(found.output.len() < CONTENT_BYTES_MAX + 4096, "{}", found.output.len());
    assert_eq!(found.metadata["search"]["truncated"], true);
    assert!(found.output.contains("[cut at 96 KiB"), "{}", &found.output[found.output.len() - 300..]);
    assert_eq!(found.metadata["matches"].as_array().unwrap().len(), 200);
    let any = json!({"mode": "grep", "query": "a", "output_mode": "files_with_matches"});
    let found = call(tool(None).as_ref(), &ctx, any).await;
    assert_eq!(found.metadata["search"]["matching_files"], 1);
}

#[tokio::test]
async fn links_in_circles_end() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("a/b")).unwrap();
    fs::write(folder.path().join("a/b/f"), "needle\n").unwrap();
    symlink("..", folder.path().join("a/b/up")).unwrap();
    symlink("round", folder.path().join("round")).unwrap();
    symlink("two", folder.path().join("one")).unwrap();
    symlink("one", folder.path().join("two")).unwrap();
    let ctx = context(folder.path());
    let indexes = Arc::new(ResidentIndexes::new(None));
    let index = indexes.of(ctx.workspace.files().as_ref()).unwrap();
    index.begin();
    assert!(index.wait_until_indexed(std::time::Duration::from_secs(60)));
    for indexes in [None, Some(indexes)] {
        let tool = tool(indexes);
        let found = call(tool.as_ref(), &ctx, json!({"mode": "grep", "query": "needle"})).await;
        assert_eq!(found.metadata["search"]["matching_files"], 1);
        assert_eq!(found.metadata["left_out"]["links"], 4);
        let listed = call(tool.as_ref(), &ctx, json!({"mode": "glob", "query": "*"})).await;
        assert_eq!(listed.metadata["search"]["matching_files"], 1);
        for path in ["round", "one"] {
            let lost = call(tool.as_ref(), &ctx, json!({"mode": "grep", "query": "x", "path": path})).await;
            assert!(lost.error.is_some() && !matches!(lost.error, Some(ToolErrorKind::NotFound { .. })), "{lost:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_change_while_they_are_read_do_no_harm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    let long = "needle in a line\n".repeat(20_000);
    fs::write(&path, &long).unwrap();
    let ctx = context(folder.path());
    let indexes = Arc::new(ResidentIndexes::new(None));
    indexes.of(ctx.workspace.files().as_ref()).unwrap().begin();
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (done, path, long) = (Arc::clone(&done), path.clone(), long.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                fs::write(&path, "needle\n").unwrap();
                fs::write(&path, &long).unwrap();
            }
        })
    };
    for _ in 0..40 {
        let count = json!({"mode": "grep", "query": "needle", "output_mode": "count"});
        let found = call(tool(Some(Arc::clone(&indexes))).as_ref(), &ctx, count).await;
        assert!(found.is_success(), "{}", found.output);
        assert!(found.metadata["search"]["matching_lines"].as_u64().unwrap() <= 20_000);
    }
    done.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let found = call(
        tool(Some(indexes)).as_ref(),
        &ctx,
        json!({"mode": "grep", "query": "^needle in", "output_mode": "count"}),
    )
    .await;
    assert_eq!(found.metadata["search"]["matching_lines"], 20_000);
}
