//! The heart: real sessions over real folders, through the public API.

use std::sync::Arc;

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
    println!("{}", outcome.text);
    assert!(outcome.status.is_success(), "{:?}", outcome.status);
    assert!(outcome.text.contains("src/window.rs:1"), "{}", outcome.text);
    runtime.shut_down().await;
    let _ = Arc::new(());
}
