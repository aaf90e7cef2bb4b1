//! A workspace that is not there: from the beginning, or from the middle on.

use serde_json::json;
use toolwarden::embedding::BuildError;
use toolwarden_tools::effects::files::FileError;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::process::living;
use crate::support::world::World;

#[tokio::test]
async fn a_workspace_that_does_not_exist_or_is_no_folder_opens_no_session() {
    let world = World::new().await;
    let absent = world.runtime.session(world.path().join("absent")).open().await;
    let Err(error @ BuildError::Workspace(FileError::WorkspaceMissing { .. })) = absent else { panic!("opened") };
    assert!(error.to_string().contains("absent"), "{error}");
    let file = world.path().join("file");
    std::fs::write(&file, "").unwrap();
    let no_folder = world.runtime.session(&file).open().await;
    assert!(matches!(no_folder, Err(BuildError::Workspace(FileError::NotAFolder { .. }))));
    assert!(world.runtime.session("").open().await.is_err());
    assert_eq!(world.runtime.live_nodes(), 1);
    world.end().await;
}

/// Every tool says that the workspace is gone; no command runs in a folder above it instead.
#[tokio::test]
async fn a_workspace_that_vanishes_is_told_by_every_tool() {
    let world = World::new().await;
    let workspace = world.path().join("workspace");
    std::fs::create_dir(&workspace).unwrap();
    std::fs::write(workspace.join("file"), "text").unwrap();
    let session = world.runtime.session(&workspace).open().await.unwrap();
    assert!(session.tool("read", json!({"file_path": "file"})).await.unwrap().is_success());
    std::fs::remove_dir_all(&workspace).unwrap();
    let calls = [
        ("read", json!({"file_path": "file"})),
        ("ls", json!({})),
        ("write", json!({"file_path": "file", "content": "a"})),
        ("write", json!({"file_path": "new/file", "content": "a"})),
        ("edit", json!({"file_path": "file", "old_string": "text", "new_string": "a"})),
        ("search", json!({"mode": "grep", "query": "text"})),
        ("search", json!({"mode": "glob", "query": "*"})),
        ("search", json!({"mode": "bm25", "query": "text"})),
        ("bash", json!({"command": "pwd; touch made"})),
        ("bash", json!({"command": "pwd; touch made", "cwd": "sub"})),
        ("bash", json!({"command": "pwd; touch made", "background": true})),
        ("git", json!({"command": "status"})),
        ("git", json!({"command": "checkout", "ref": "main"})),
        ("batch", json!({"invocations": [{"tool": "read", "args": {"file_path": "file"}}]})),
    ];
    for (tool, arguments) in calls {
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        assert!(!result.is_success(), "{tool} {arguments}: {}", result.output);
        assert!(result.error_kind.is_some(), "{tool} {arguments}: {}", result.output);
        assert!(result.output.contains(workspace.to_str().unwrap()), "{tool} {arguments}: {}", result.output);
    }
    assert!(!workspace.exists() && !world.path().join("made").exists());
    assert_eq!(living(&world.mark), Vec::<String>::new());
    // Nor does a new folder of the same name count as the old one; a new session takes it.
    std::fs::create_dir(&workspace).unwrap();
    let again = world.runtime.session(&workspace).open().await.unwrap();
    assert!(again.tool("ls", json!({})).await.unwrap().is_success());
    world.at_rest(&[&session, &again]).await;
    world.end().await;
}

/// A command that names a folder is meant for that folder: it runs nowhere else.
#[tokio::test]
async fn a_working_directory_that_is_not_there_is_an_error() {
    // Case C010. No folder is remembered between calls, so none can vanish under the next call.
    let world = World::new().await;
    let session = world.open().await;
    let result = session.tool("bash", json!({"command": "touch made", "cwd": "gone/deep"})).await.unwrap();
    assert!(matches!(result.error_kind, Some(ToolErrorKind::NotFound { .. })), "{}", result.output);
    assert!(!world.path().join("made").exists());
    let next = session.tool("bash", json!({"command": "pwd"})).await.unwrap();
    assert!(next.is_success(), "{}", next.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}
