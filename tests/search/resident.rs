//! The index behind the searches of a runtime.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::policy::PermissionPolicy;
use toolwarden_tools::search::resident_index::ResidentIndex;
use toolwarden_tools::workspace::local::LocalFiles;

/// How long indexing may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn index_of(runtime: &Runtime, folder: &Path) -> Arc<ResidentIndex> {
    let (files, _) = LocalFiles::open(folder).unwrap();
    runtime.search_indexes().of(&files).unwrap()
}

async fn indexed(runtime: &Runtime, folder: &Path) {
    let index = index_of(runtime, folder);
    assert!(tokio::task::spawn_blocking(move || index.wait_until_indexed(PATIENCE)).await.unwrap());
}

/// Threads of this process that keep an index.
fn index_threads() -> usize {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.trim() == "search-index").count()
}

fn needle(path: Option<&str>) -> Value {
    let mut arguments = json!({"mode": "grep", "query": "needle"});
    if let Some(path) = path {
        arguments["path"] = json!(path);
    }
    arguments
}

// One test, for all of it is about what this one process holds.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_shared_true_discreet_and_ends_with_its_runtime() {
    let _turn = crate::TURN.lock().await;
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for number in 0..200 {
        std::fs::write(folder.path().join(format!("f{number:03}")), "some text\n").unwrap();
    }
    std::fs::write(folder.path().join("secret.txt"), "needle\n").unwrap();
    std::fs::write(folder.path().join("secret_too.txt"), "nothing\n").unwrap();
    let runtime = Runtime::builder().search_cache(cache.path()).build().await.unwrap();
    let policy =
        PermissionPolicy::from_toml("deny = [\"read(**/secret*)\"]\nallow = [\"search\", \"read\"]", "test").unwrap();
    let one = runtime.session(folder.path()).policy(policy).open().await.unwrap();
    let two = runtime.session(folder.path()).open().await.unwrap();
    // Opening sessions reads nothing and writes nothing.
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
    assert_eq!(index_threads(), 0);
    let found = two.tool("search", needle(None)).await.unwrap();
    assert!(found.output.contains("secret.txt:1:needle"), "{}", found.output);
    indexed(&runtime, folder.path()).await;
    assert_eq!(index_threads(), 1);
    assert!(std::fs::read_dir(cache.path()).unwrap().count() > 0);
    assert_eq!(index_of(&runtime, folder.path()).status().entries, 202);
    // A write of one session is seen by the other at once, and one from outside as well.
    for round in 0..30 {
        let word = format!("fresh{round}word");
        one.write_file("fresh.txt", &word).await.unwrap();
        let found = two.tool("search", json!({"mode": "grep", "query": word})).await.unwrap();
        assert!(found.output.contains(&format!("fresh.txt:1:{word}")), "{}", found.output);
        let word = format!("outer{round}word");
        std::fs::write(folder.path().join("outer.txt"), &word).unwrap();
        let found = one.tool("search", json!({"mode": "grep", "query": word})).await.unwrap();
        assert!(found.output.contains(&format!("outer.txt:1:{word}")), "{}", found.output);
    }
    // What is denied looks the same whether it holds the word or not.
    indexed(&runtime, folder.path()).await;
    let governed = one.governed_tool("search", needle(None)).await.unwrap();
    assert!(!governed.output.contains("secret.txt:1"), "{}", governed.output);
    assert!(governed.output.contains("could not be read: secret.txt, secret_too.txt"), "{}", governed.output);
    runtime.shut_down().await;
    assert_eq!(index_threads(), 0);
    // A runtime that is dropped without being shut down leaves no thread either.
    let dropped = Runtime::builder().build().await.unwrap();
    index_of(&dropped, folder.path()).begin();
    drop(dropped);
    let gone = async {
        while index_threads() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.unwrap();
}
