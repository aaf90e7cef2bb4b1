//! Paths that leave the workspace: by text, by link, by a race.

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::world::World;

const SECRET: &str = "what stands outside of the workspace";

/// Each tool that takes a path, with this one.
fn calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("read", json!({ "file_path": path })),
        ("read", json!({ "files": [{ "path": path }] })),
        ("write", json!({"file_path": path, "content": "written"})),
        ("write", json!({"file_path": path, "content": "written", "mode": "append", "expected_offset": SECRET.len()})),
        ("edit", json!({"file_path": path, "old_string": "outside", "new_string": "inside"})),
        ("patch", json!({"file_path": path, "diff": "@@ -1 +1 @@\n-what\n+new\n"})),
        ("patch", json!({"diff": format!("--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+new\n")})),
        ("patch", json!({"diff": format!("diff --git a/x b/x\nrename from safe\nrename to {path}\n")})),
        ("ls", json!({ "path": path })),
        ("search", json!({"mode": "grep", "query": "outside", "path": path})),
        ("search", json!({"mode": "glob", "query": "**/*", "path": path})),
        ("search", json!({"mode": "bm25", "query": "outside", "path": path})),
        ("bash", json!({"command": "cat secret.txt", "cwd": path})),
    ]
}

/// Cases C062 and C064: neither the text of a path nor a link leads out.
#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.txt");
    std::fs::write(&secret, SECRET).unwrap();
    let world = World::new().await;
    let up = format!("../{}", outside.path().file_name().unwrap().to_str().unwrap());
    symlink(outside.path(), world.path().join("out")).unwrap();
    symlink(&secret, world.path().join("secret")).unwrap();
    symlink(&up, world.path().join("up")).unwrap();
    symlink("up", world.path().join("chain")).unwrap();
    symlink("/proc/self/cwd", world.path().join("proc")).unwrap();
    std::fs::create_dir(world.path().join("sub")).unwrap();
    let session = world.open().await;
    let absolute = outside.path().to_str().unwrap();
    let paths = [
        format!("{absolute}/secret.txt"),
        absolute.to_owned(),
        format!("{up}/secret.txt"),
        up.clone(),
        format!("sub/../../{up}"),
        format!("./sub/../{up}/./secret.txt"),
        "..".to_owned(),
        "/".to_owned(),
        "/etc/passwd".to_owned(),
        format!("file://{absolute}/secret.txt"),
        "out/secret.txt".to_owned(),
        "out".to_owned(),
        "secret".to_owned(),
        "up/secret.txt".to_owned(),
        "up/../up".to_owned(),
        "chain/secret.txt".to_owned(),
        "chain".to_owned(),
        "out/new/file".to_owned(),
        "proc/secret.txt".to_owned(),
        "a\u{0}b".to_owned(),
    ];
    for path in &paths {
        for (tool, arguments) in calls(path) {
            let result = session.tool(tool, arguments.clone()).await.unwrap();
            // `glob` and the other searches of a link may find nothing, which is no way out either.
            assert!(!result.output.contains("what stands"), "{tool} {arguments}: {}", result.output);
            assert!(!result.is_success(), "{tool} {arguments}: {}", result.output);
        }
    }
    // Nor from a walk that passes by.
    for (tool, arguments) in calls(".") {
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        assert!(!result.output.contains("what stands"), "{tool} {arguments}: {}", result.output);
    }
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), SECRET);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "something was made outside");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Nor does git, which shows a link as a link: neither what lies behind one, nor a repository outside.
#[tokio::test]
async fn git_shows_nothing_outside_of_the_workspace() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret.txt"), SECRET).unwrap();
    let world = World::new().await;
    let session = world.open().await;
    let prepare = format!(
        "git init -q -b main . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && \
         ln -s '{0}' out && ln -s '{0}/secret.txt' secret && git add . && git -C '{0}' init -q",
        outside.path().display()
    );
    session.bash(&prepare).await.unwrap();
    let up = format!("../{}", outside.path().file_name().unwrap().to_str().unwrap());
    let absolute = outside.path().to_str().unwrap().to_owned();
    for path in [up.clone(), format!("{up}/secret.txt"), absolute, "/etc".into(), "..".into(), "out/../..".into()] {
        for command in ["status", "log", "diff"] {
            let result = session.tool("git", json!({"command": command, "path": path})).await.unwrap();
            assert!(!result.is_success(), "{command} {path}: {}", result.output);
        }
        let tree =
            json!({"command": "worktree", "subcommand": "create", "name": "tree", "path": format!("{path}/tree")});
        assert!(!session.tool("git", tree).await.unwrap().is_success(), "{path}");
    }
    for path in ["out", "out/secret.txt", "secret", "."] {
        for command in ["status", "log", "diff"] {
            let result = session.tool("git", json!({"command": command, "path": path})).await.unwrap();
            assert!(!result.output.contains("what stands"), "{command} {path}: {}", result.output);
        }
    }
    let tree = json!({"command": "worktree", "subcommand": "create", "name": "tree", "path": "out/tree"});
    assert!(!session.tool("git", tree).await.unwrap().is_success());
    assert!(!outside.path().join("tree").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A link inside the workspace that leads inside keeps working.
#[tokio::test]
async fn a_link_that_stays_inside_works() {
    let world = World::new().await;
    std::fs::write(world.path().join("real"), "real\n").unwrap();
    symlink("real", world.path().join("link")).unwrap();
    let session = world.open().await;
    assert_eq!(session.read_file("link").await.unwrap(), "real\n");
    world.end().await;
}

/// Bad input: a folder where a file is expected, and a file where a folder is.
#[tokio::test]
async fn a_folder_is_no_file_and_a_file_is_no_folder() {
    let world = World::new().await;
    std::fs::create_dir_all(world.path().join("box/inner")).unwrap();
    for name in ["file", "safe", "box/inner/f"] {
        std::fs::write(world.path().join(name), "what\n").unwrap();
    }
    let session = world.open().await;
    let more = |path: &str| {
        let delete = format!("--- a/{path}\n+++ /dev/null\n@@ -1 +0,0 @@\n-what\n");
        let from = format!("diff --git a/x b/y\nrename from {path}\nrename to moved\n");
        [("patch", json!({ "diff": delete })), ("patch", json!({ "diff": from }))]
    };
    let refused = async |tool: &str, arguments: Value| {
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        let kind = serde_json::to_value(&result.error_kind).unwrap();
        let kind = kind["type"].as_str().unwrap_or("none").to_owned();
        assert!(
            ["invalid_argument", "unsupported", "version_conflict", "partial_failure"].contains(&kind.as_str()),
            "{tool} {arguments}: {kind}"
        );
        let is_told = ["folder", "exists already"].iter().any(|words| result.output.contains(words));
        assert!(is_told, "{tool} {arguments}: {}", result.output);
    };
    for (tool, arguments) in calls("box").into_iter().chain(more("box")) {
        // These are meant for folders.
        if !["ls", "search", "bash"].contains(&tool) {
            refused(tool, arguments).await;
        }
    }
    for (tool, arguments) in calls("file/x").into_iter().chain(more("file/x")) {
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        assert!(!result.is_success() && result.error_kind.is_some(), "{tool} {arguments}: {}", result.output);
    }
    refused("ls", json!({"path": "file"})).await;
    refused("bash", json!({"command": "true", "cwd": "file"})).await;
    for name in ["file", "safe", "box/inner/f"] {
        assert_eq!(std::fs::read_to_string(world.path().join(name)).unwrap(), "what\n", "{name}");
    }
    assert_eq!(std::fs::read_dir(world.path()).unwrap().count(), 3, "something was made");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Case C064: a folder becomes a link and a folder again while calls are on their way through it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_is_swapped_for_a_link_lets_nothing_out() {
    const ROUNDS: usize = 150;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("x");
    std::fs::write(&secret, SECRET).unwrap();
    let world = World::new().await;
    let (folder, link) = (world.path().join("real"), world.path().join("link"));
    let place = world.path().join("d");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("x"), "inside").unwrap();
    symlink(outside.path(), &link).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = Arc::clone(&stop);
    let swapper = std::thread::spawn(move || {
        let mut swaps = 0_u64;
        while !swapping.load(Ordering::Relaxed) {
            for other in [&folder, &link] {
                // A write that came while there was no `d` made one.
                while std::fs::rename(other, &place).is_err() {
                    let _ = std::fs::remove_dir_all(&place);
                }
                swaps += 1;
                std::thread::yield_now();
                std::fs::rename(&place, other).unwrap();
            }
        }
        swaps
    });
    let session = world.open().await;
    for round in 0..ROUNDS {
        for (tool, arguments) in [
            ("read", json!({"file_path": "d/x"})),
            ("write", json!({"file_path": "d/x", "content": format!("round {round}")})),
            ("write", json!({"file_path": format!("d/new-{round}"), "content": "new"})),
            ("edit", json!({"file_path": "d/x", "old_string": "stands", "new_string": "fell"})),
            (
                "patch",
                json!({"diff": format!("--- /dev/null\n+++ b/d/n{round}\n@@ -0,0 +1 @@\n+n\n--- /dev/null\n+++ b/o{round}\n@@ -0,0 +1 @@\n+o\n")}),
            ),
            ("search", json!({"mode": "grep", "query": "stands", "path": "d"})),
        ] {
            let result = session.tool(tool, arguments).await.unwrap();
            assert!(!result.output.contains("what stands"), "{tool} in round {round}: {}", result.output);
        }
    }
    stop.store(true, Ordering::Relaxed);
    assert!(swapper.join().unwrap() > 0);
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), SECRET);
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1, "something was made outside");
    world.at_rest(&[&session]).await;
    world.end().await;
}
