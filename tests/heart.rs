//! The heart: real sessions over real folders, through the public API.

use serde_json::json;
use toolwarden::prelude::*;

#[tokio::test]
async fn a_host_reads_writes_searches_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    session.write_file("src/main.rs", "fn main() {}\n").await.unwrap();
    assert_eq!(session.read_file("src/main.rs").await.unwrap(), "fn main() {}\n");
    assert_eq!(session.glob("**/*.rs").await.unwrap(), ["src/main.rs"]);
    assert!(session.grep("fn main").await.unwrap().starts_with("src/main.rs:1:fn main"));
    assert_eq!(session.bash("echo hi").await.unwrap().trim(), "hi");
    let batch = json!({"invocations": [
        {"tool": "read", "args": {"file_path": "src/main.rs"}},
        {"tool": "ls", "args": {}},
    ]});
    let result = session.tool("batch", batch).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    session.close().await;
    runtime.shut_down().await;
    assert_eq!(runtime.live_nodes(), 0);
}

#[tokio::test]
async fn the_researcher_answers_with_sources() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let policy = PermissionPolicy::from_toml("allow = [\"read\", \"search\", \"ls\", \"task\"]", "test").unwrap();
    let session = runtime.session(folder.path()).policy(policy).open().await.unwrap();
    session
        .write_file("src/window.rs", "/// The restart intensity is decided here.\npub fn restart_intensity() {}\n")
        .await
        .unwrap();
    let outcome = session.run("where is the restart intensity decided?").await.unwrap();
    assert!(outcome.status.is_success(), "{:?}", outcome.status);
    assert!(outcome.text.contains("src/window.rs:1"), "{}", outcome.text);
    runtime.shut_down().await;
}

// A search names none of the files it reads: what `read` is denied must not be found by it either.
#[tokio::test]
async fn a_denied_file_is_not_found_by_searching() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let policy =
        PermissionPolicy::from_toml("deny = [\"read(**/secret*)\"]\nallow = [\"search\", \"read\"]", "test").unwrap();
    let session = runtime.session(folder.path()).policy(policy).open().await.unwrap();
    session.write_file("secret.txt", "needle\n").await.unwrap();
    session.write_file("open.txt", "needle\n").await.unwrap();
    for query in [
        json!({"mode": "grep", "query": "needle"}),
        json!({"mode": "grep", "query": "needle", "path": "secret.txt"}),
        json!({"mode": "bm25", "query": "needle"}),
    ] {
        let result = session.governed_tool("search", query).await.unwrap();
        assert!(!result.output.contains("secret.txt:1"), "{}", result.output);
    }
    let trusted = session.tool("search", json!({"mode": "grep", "query": "needle"})).await.unwrap();
    assert!(trusted.output.contains("secret.txt:1:needle"), "{}", trusted.output);
    runtime.shut_down().await;
}

// A diff names none of the files it shows either.
#[tokio::test]
async fn git_is_governed_and_shows_no_denied_file() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let policy = PermissionPolicy::from_toml(
        "deny = [\"read(**/secret*)\", \"git(checkout --force *)\"]\nallow = [\"git(diff)\", \"git(status)\"]",
        "test",
    )
    .unwrap();
    let session = runtime.session(folder.path()).policy(policy).open().await.unwrap();
    session
        .bash("git init -q -b main . && echo needle > secret.txt && echo hay > open.txt && git add .")
        .await
        .unwrap();
    let status = session.git(json!({"command": "status"})).await.unwrap();
    assert_eq!((&status.metadata["branch"], &status.metadata["dirty_count"]), (&json!("main"), &json!(2)));
    let diff = session.governed_tool("git", json!({"command": "diff"})).await.unwrap();
    assert!(diff.output.contains("+hay") && !diff.output.contains("needle"), "{}", diff.output);
    assert_eq!(diff.metadata["withheld"], json!(["secret.txt"]));
    let trusted = session.git(json!({"command": "diff"})).await.unwrap();
    assert!(trusted.output.contains("+needle"), "{}", trusted.output);
    let forced = json!({"command": "checkout", "ref": "main", "force": true});
    let refused = session.governed_tool("git", forced).await.unwrap();
    assert!(refused.output.contains("deny[1] git(checkout --force *)"), "{}", refused.output);
    runtime.shut_down().await;
    assert_eq!(runtime.live_nodes(), 0);
}
