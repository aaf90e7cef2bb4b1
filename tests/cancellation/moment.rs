//! Each built-in tool, cancelled at every moment of its life.

use std::os::unix::fs::FileExt as _;

use serde_json::{Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::prelude::CancelTarget;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::model::script;
use crate::support::world::{World, allowing};

const OLD: &str = "the old content of the file\n";

/// A call of each built-in tool over a folder with `file`.
fn calls() -> Vec<(&'static str, Value)> {
    let task = json!({"agent": "explore", "description": "a child", "prompt": "child"});
    vec![
        ("read", json!({"file_path": "file"})),
        ("ls", json!({})),
        ("search", json!({"mode": "grep", "query": "content"})),
        ("search", json!({"mode": "glob", "query": "**/*"})),
        ("search", json!({"mode": "bm25", "query": "content"})),
        ("write", json!({"file_path": "file", "content": "new\n"})),
        ("edit", json!({"file_path": "file", "old_string": "old", "new_string": "new"})),
        (
            "patch",
            json!({"diff": "--- a/file\n+++ b/file\n@@ -1 +1 @@\n-the old content of the file\n+the patched one\n"}),
        ),
        ("bash", json!({"command": "echo hi"})),
        ("git", json!({"command": "status"})),
        (
            "batch",
            json!({"invocations": [{"tool": "read", "args": {"file_path": "file"}}, {"tool": "ls", "args": {}}]}),
        ),
        ("program", json!({"type": "script", "source": "async function run(ctx) { return ctx.readFile('file') }"})),
        ("task", task),
    ]
}

/// Makes the folder a repository, without running anything in it.
fn make_repository(world: &World) {
    let git = world.path().join(".git");
    for folder in ["objects", "refs/heads"] {
        std::fs::create_dir_all(git.join(folder)).unwrap();
    }
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    std::fs::write(git.join("config"), "[core]\n\trepositoryformatversion = 0\n").unwrap();
}

async fn ready(world: &World) -> Session {
    std::fs::write(world.path().join("file"), OLD).unwrap();
    make_repository(world);
    let session = world
        .session()
        .policy(allowing(&["ls", "task"]))
        .model(script(&[
            json!({"when": "child", "calls": [{"tool": "ls"}]}),
            json!({"when": "child", "text": "the child's answer"}),
        ]))
        .open()
        .await
        .unwrap();
    assert!(session.tool("read", json!({"file_path": "file"})).await.unwrap().is_success());
    session
}

/// Whole or not at all, and the result says which.
fn check_file(world: &World, tool: &str, result: Option<&CallResult>) {
    let now = std::fs::read_to_string(world.path().join("file")).unwrap();
    let new = match tool {
        "write" => "new\n".to_owned(),
        "edit" => OLD.replace("old", "new"),
        "patch" => "the patched one\n".to_owned(),
        _ => OLD.to_owned(),
    };
    match result {
        Some(result) if result.is_success() => assert_eq!(now, new, "{tool}"),
        _ => assert!(now == OLD || now == new, "{tool}: {now:?}"),
    }
}

/// The cancel comes from inside of the journal, at exactly this event of the call.
#[tokio::test]
async fn each_tool_can_be_cancelled_at_each_event_of_its_life() {
    for at in ["tool_proposed", "tool_request_bound", "tool_execution_start"] {
        let world = World::new().await;
        for (tool, arguments) in calls() {
            let session = ready(&world).await;
            let canceller = session.clone();
            world.record.trap(move |line| {
                let hit = line["type"] == at && (line["name"] == tool || line["tool_name"] == tool);
                if hit {
                    let id = line["id"].as_str().or(line["tool_id"].as_str()).unwrap();
                    canceller.cancel(&CancelTarget::Call(id.into()), &CancelReason::Requested);
                }
                hit
            });
            let result = session.tool(tool, arguments.clone()).await.unwrap();
            // One that was quicker than its cancel has succeeded; everything else says that it was cancelled.
            if !result.is_success() {
                let Some(ToolErrorKind::Cancelled { reason, .. }) = &result.error_kind else {
                    panic!("{tool} {arguments} at {at}: {result:?}");
                };
                assert_eq!(*reason, Some(CancelReason::Requested));
                assert!(result.output.contains("cancelled on request"), "{tool} at {at}: {}", result.output);
            }
            check_file(&world, tool, Some(&result));
            world.settled(&[&session]).await;
            session.close().await;
        }
        world.end().await;
    }
}

/// The caller is dropped after so many polls of its call, whatever happens in it by then.
#[tokio::test]
async fn each_tool_can_lose_its_caller_after_any_number_of_polls() {
    for (tool, arguments) in calls() {
        let world = World::new().await;
        let session = ready(&world).await;
        for polls in 0..16 {
            std::fs::write(world.path().join("file"), OLD).unwrap();
            assert!(session.tool("read", json!({"file_path": "file"})).await.unwrap().is_success());
            let mut call = Box::pin(session.tool(tool, arguments.clone()));
            let mut result = None;
            for _ in 0..polls {
                result = futures_util::FutureExt::now_or_never(&mut call);
                if result.is_some() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            drop(call);
            world.settled(&[&session]).await;
            check_file(&world, tool, result.map(Result::unwrap).as_deref());
        }
        world.end().await;
    }
}

/// Long work of the tools that usually have none: a file of 64 GiB without a line end, and a tree of many files.
#[tokio::test]
async fn long_reads_and_searches_stop_when_they_are_told() {
    let world = World::new().await;
    let huge = std::fs::File::create(world.path().join("huge")).unwrap();
    huge.write_all_at(b"text at the start\n", 0).unwrap();
    huge.set_len(64 << 30).unwrap();
    for folder in 0..20 {
        let folder = world.path().join(format!("d{folder}"));
        std::fs::create_dir(&folder).unwrap();
        for file in 0..50 {
            std::fs::write(folder.join(format!("f{file}.txt")), "one needle in a line\n".repeat(40)).unwrap();
        }
    }
    let session = world.open().await;
    let long = [
        ("read", json!({"file_path": "huge", "offset": 5})),
        ("search", json!({"mode": "grep", "query": "needle$|absent"})),
        ("search", json!({"mode": "bm25", "query": "needle line"})),
        ("search", json!({"mode": "glob", "query": "**/*.txt"})),
        ("edit", json!({"file_path": "huge", "old_string": "text", "new_string": "new"})),
        ("write", json!({"file_path": "huge", "content": "new"})),
    ];
    for (tool, arguments) in long {
        let canceller = session.clone();
        world.record.trap(move |line| {
            let hit = line["type"] == "tool_execution_start" && line["name"] == tool;
            if hit {
                let id = line["id"].as_str().unwrap();
                canceller.cancel(&CancelTarget::Call(id.into()), &CancelReason::Requested);
            }
            hit
        });
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        if result.error_kind.as_ref().is_none_or(|kind| !matches!(kind, ToolErrorKind::Cancelled { .. })) {
            // Refused, or done, before the cancel was looked at; the file is as it was.
            assert!(result.is_success() || result.error_kind.is_some(), "{tool} {arguments}: {result:?}");
        }
        world.at_rest(&[&session]).await;
    }
    assert_eq!(huge.metadata().unwrap().len(), 64 << 30);
    world.end().await;
}
