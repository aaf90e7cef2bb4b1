//! The tools over a bucket, through the whole route, and the command line over one.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::session::Session;
use toolwarden_tools::workspace::object_store::bucket::BucketPlace;
use toolwarden_tools::workspace::{WorkspaceCapabilities, memory, object_store};

use crate::server::{SECRET, access, bucket, endpoint, put};
use crate::support::tool::echo;
use crate::support::world::World;

async fn over(world: &World, address: &str) -> Session {
    let place = BucketPlace::parse(address).unwrap();
    let workspace = object_store::open(&place, &access(), WorkspaceCapabilities::local_default()).unwrap();
    world.runtime.session_over(workspace).open().await.unwrap()
}

async fn call(session: &Session, tool: &str, arguments: Value) -> Arc<CallResult> {
    session.tool(tool, arguments).await.unwrap()
}

fn names(session: &Session) -> Vec<String> {
    session.tool_names().iter().map(ToString::to_string).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_a_store_can_give_is_offered() {
    let world = World::new().await;
    let session = over(&world, &bucket()).await;
    let offered = names(&session);
    for there in ["read", "write", "edit", "patch", "ls", "search", "batch", "task"] {
        assert!(offered.iter().any(|name| name == there), "{there} of {offered:?}");
    }
    for missing in ["bash", "process", "git", "download"] {
        assert!(!offered.iter().any(|name| name == missing), "{missing} of {offered:?}");
        let refused = call(&session, missing, json!({})).await;
        assert!(!refused.is_success(), "{missing}: {}", refused.output);
    }
    let memory = world.runtime.session_over(memory::open(WorkspaceCapabilities::read_write())).open().await.unwrap();
    let offered = names(&memory);
    assert!(
        ["read", "write", "edit", "ls"].iter().all(|name| offered.iter().any(|there| there == name)),
        "{offered:?}"
    );
    assert!(
        !["bash", "process", "git", "download", "search"].iter().any(|name| offered.iter().any(|there| there == name))
    );
    let here = world.open().await;
    assert!(names(&here).iter().any(|name| name == "download"));
    world.at_rest(&[&session, &memory, &here]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_no_model_sees_is_the_hosts_to_call() {
    let world = World::new().await;
    let session = world.session().tool(echo("secluded").hidden().shared()).open().await.unwrap();
    assert!(names(&session).iter().any(|name| name == "secluded"));
    let called = call(&session, "secluded", json!({"say": 7})).await;
    assert_eq!(called.output, r#"{"say":7}"#);
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_listed_read_written_and_edited() {
    let world = World::new().await;
    let address = bucket();
    put(&address, "src/a.rs", b"fn one() {}\r\nfn two() {}\r\n");
    let session = over(&world, &address).await;
    let listed = call(&session, "ls", json!({"path": "src"})).await;
    assert!(
        listed.output.contains("file") && listed.output.contains("26") && listed.output.contains("src/a.rs"),
        "{}",
        listed.output
    );
    let read = call(&session, "read", json!({"file_path": format!("{address}/src/a.rs")})).await;
    assert_eq!(read.output, "     1\tfn one() {}\n     2\tfn two() {}\n");
    let edited =
        call(&session, "edit", json!({"file_path": "src/a.rs", "old_string": "two", "new_string": "deux"})).await;
    assert!(edited.is_success(), "{}", edited.output);
    let again = call(&session, "read", json!({"file_path": "src/a.rs", "offset": 1})).await;
    assert_eq!(again.output, "     2\tfn deux() {}\n");
    // Somebody else changes it.
    put(&address, "src/a.rs", b"theirs\n");
    let refused =
        call(&session, "edit", json!({"file_path": "src/a.rs", "old_string": "one", "new_string": "un"})).await;
    assert_eq!(
        serde_json::to_value(&refused.error_kind).unwrap()["type"],
        json!("version_conflict"),
        "{}",
        refused.output
    );
    let written = call(&session, "write", json!({"file_path": "new/deep.txt", "content": "x\n"})).await;
    assert_eq!(written.metadata["created"], json!(true), "{}", written.output);
    let appended = json!({"file_path": "new/deep.txt", "content": "y\n", "mode": "append", "expected_offset": 2});
    assert!(call(&session, "write", appended).await.is_success());
    assert_eq!(call(&session, "read", json!({"file_path": "new/deep.txt"})).await.output, "     1\tx\n     2\ty\n");
    let diff = "--- a/new/deep.txt\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-x\n-y\n--- /dev/null\n+++ b/new/other.txt\n@@ -0,0 +1 @@\n+z\n";
    let patched = call(&session, "patch", json!({"diff": diff})).await;
    assert!(patched.is_success(), "{}", patched.output);
    assert_eq!(call(&session, "read", json!({"file_path": "new/other.txt"})).await.output, "     1\tz\n");
    assert!(!call(&session, "read", json!({"file_path": "new/deep.txt"})).await.is_success());
    let missing = call(&session, "read", json!({"file_path": "none"})).await;
    assert_eq!(serde_json::to_value(&missing.error_kind).unwrap()["type"], json!("not_found"));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mode_of_search_works() {
    let world = World::new().await;
    let address = bucket();
    for number in 0..30 {
        put(
            &address,
            &format!("d{}/f{number}.txt", number % 3),
            format!("line {number}\nneedle {number}\n").as_bytes(),
        );
    }
    put(&address, ".gitignore", b"d2/\n");
    let session = over(&world, &address).await;
    let count =
        call(&session, "search", json!({"mode": "grep", "query": "needle \\d+", "output_mode": "summary"})).await;
    assert!(count.output.contains("20 matching lines in 20 files"), "{}", count.output);
    let found = call(&session, "search", json!({"mode": "grep", "query": "needle 7$"})).await;
    assert!(found.output.contains("d1/f7.txt"), "{}", found.output);
    let named = call(&session, "search", json!({"mode": "glob", "query": "f1*.txt"})).await;
    assert!(
        named.output.contains("d1/f1.txt") && named.output.contains("d0/f12.txt") && !named.output.contains("f11.txt"),
        "{}",
        named.output
    );
    let ranked = call(&session, "search", json!({"mode": "bm25", "query": "needle 13"})).await;
    assert!(ranked.output.contains("d1/f13.txt"), "{}", ranked.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_search_that_did_not_see_everything_says_so() {
    // Ten thousand objects are too many to make for a test: the same port with a lower limit stands in front.
    let world = World::new().await;
    let address = bucket();
    for number in 0..12 {
        put(&address, &format!("f{number:02}"), b"needle\n");
    }
    let place = BucketPlace::parse(&address).unwrap();
    let opened = object_store::open(&place, &access(), WorkspaceCapabilities::local_default()).unwrap();
    let files = object_store::ObjectFiles::open(&place, &access()).unwrap().walking_at_most(10);
    let session = world.runtime.session_over(opened.with_files(Arc::new(files))).open().await.unwrap();
    for mode in ["grep", "glob", "bm25"] {
        let query = if mode == "glob" { "*" } else { "needle" };
        let found = call(&session, "search", json!({"mode": mode, "query": query})).await;
        assert!(found.output.contains("a part was not looked at"), "{mode}: {}", found.output);
        assert_eq!(found.metadata["left_out"]["truncated"], json!(true), "{mode}");
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

fn toolwarden(arguments: &[&str], keys: bool) -> Output {
    let own = std::env::current_exe().unwrap();
    let program: PathBuf = own.parent().and_then(Path::parent).unwrap().join("toolwarden");
    assert!(program.is_file(), "{} is missing: run `cargo build -p toolwarden-cli` first", program.display());
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    if keys {
        command.env("AWS_ACCESS_KEY_ID", "test-key-id").env("AWS_SECRET_ACCESS_KEY", SECRET);
    }
    command.output().unwrap()
}

#[test]
fn the_command_line_works_in_a_bucket_and_shows_no_keys() {
    let address = bucket();
    put(&address, "p/notes.txt", format!("the key is {SECRET}\n").as_bytes());
    let workspace = format!("{address}/p");
    let place = ["--workspace", &workspace, "--s3-endpoint", endpoint()];
    let read = toolwarden(&[&["call", "read", r#"{"file_path":"notes.txt"}"#], &place[..]].concat(), true);
    let text = String::from_utf8(read.stdout).unwrap();
    assert!(read.status.success() && text.contains("the key is") && !text.contains(SECRET), "{text}");
    let tools = toolwarden(&[&["tools"], &place[..]].concat(), true);
    let text = String::from_utf8(tools.stdout).unwrap();
    assert!(text.contains("search") && !text.contains("bash") && !text.contains("download"), "{text}");
    let without = toolwarden(&[&["tools"], &place[..]].concat(), false);
    let told = String::from_utf8(without.stderr).unwrap();
    assert!(without.status.code() == Some(2) && told.contains("AWS_SECRET_ACCESS_KEY"), "{told}");
    let nowhere = toolwarden(&["tools", "--workspace", "s3://no-such-bucket", "--s3-endpoint", endpoint()], true);
    let told = String::from_utf8(nowhere.stderr).unwrap();
    assert!(
        nowhere.status.code() == Some(2) && told.contains("s3://no-such-bucket") && !told.contains(SECRET),
        "{told}"
    );
}
