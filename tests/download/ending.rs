//! Ways to end a download half-way: no temp file, no half file, and what was there is there.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use toolwarden::prelude::CancelTarget;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities, local};

use crate::server::{End, Reply, Server, bytes, download, parts};
use crate::support::until;

/// Where the built program stands: beside the folder of the test's own executable.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("toolwarden");
    assert!(path.is_file(), "{} is missing: run `cargo build -p toolwarden-cli` first", path.display());
    path
}

/// Gives the head and half of the body, and holds the connection.
async fn half(body: Vec<u8>, several: bool) -> Server {
    Server::start(move |asked| match asked.range() {
        Some((0, Some(0))) if several => parts(asked, &body, "\"a\""),
        _ => {
            let whole = if several { parts(asked, &body, "\"a\"") } else { Reply::new("200 OK", &[], &body) };
            let half = whole.bytes.len() / 2;
            Reply { bytes: whole.bytes[..half].to_vec(), ..whole }.ending(End::Hold)
        }
    })
    .await
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Cancel,
    Drop,
    Close,
    Deadline,
    ShutDown,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_half_way_nothing_is_left_and_the_target_is_as_it_was() {
    for several in [false, true] {
        for way in [Way::Cancel, Way::Drop, Way::Close, Way::Deadline, Way::ShutDown] {
            let server = half(bytes(5 * 1024 * 1024), several).await;
            let world = server.world().await;
            std::fs::write(world.path().join("f"), "old").unwrap();
            let session = world.open().await;
            let mut arguments = json!({"url": server.url("/"), "file_path": "f", "overwrite": true});
            if way == Way::Deadline {
                arguments["timeout"] = json!(1);
            }
            let its_session = session.clone();
            let call = tokio::spawn(async move { download(&its_session, arguments).await });
            let answers = if several { 3 } else { 1 };
            for _ in 0..answers {
                server.answered.notified().await;
            }
            match way {
                Way::Cancel => assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested)),
                Way::Drop => call.abort(),
                Way::Close => session.close().await,
                Way::Deadline => {}
                Way::ShutDown => world.runtime.shut_down().await,
            }
            if let Ok(result) = call.await {
                let expected = if way == Way::Deadline { "timeout" } else { "cancelled" };
                let kind = serde_json::to_value(&result.error_kind).unwrap();
                assert_eq!(kind["type"], json!(expected), "{way:?}: {}", result.output);
            }
            let names: Vec<_> =
                std::fs::read_dir(world.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["f"], "{way:?}");
            assert_eq!(std::fs::read(world.path().join("f")).unwrap(), b"old", "{way:?}");
            if way != Way::ShutDown {
                let open = if way == Way::Close { vec![] } else { vec![&session] };
                world.at_rest(&open).await;
            }
            world.end().await;
        }
    }
}

// Case C106: killed half-way, the process leaves neither a file nor a part of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_leaves_nothing() {
    let server = half(bytes(5 * 1024 * 1024), false).await;
    let folder = tempfile::tempdir().unwrap();
    let arguments = json!({"url": server.url("/big.bin")}).to_string();
    let program = program();
    let mut command = Command::new(program);
    command.args(["call", "download", &arguments, "--allow-origin", &server.origin, "--workspace"]).arg(folder.path());
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    server.answered.notified().await;
    let state = || std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(state(), 0, "nothing has a name before it is whole");
    child.kill().unwrap();
    child.wait().unwrap();
    until("an empty folder", async || (state() == 0).then_some(())).await;
}

// Case C106: a disk without room is told as such, and leaves neither a file nor a part of one. The disk is one of this test
// alone, which needs root, as the tests of the levels of containment do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_told_and_leaves_nothing() {
    let body = bytes(3 * 1024 * 1024);
    let source = body.clone();
    let server = Server::start(move |asked| match asked.target.as_str() {
        "/parts" => parts(asked, &source, "\"a\""),
        "/small" => Reply::new("200 OK", &[], b"fits"),
        _ => Reply::raw("200 OK", &[], &source),
    })
    .await;
    let world = server.world().await;
    let session = world.runtime.session_over(on_small_disk(1 << 20)).open().await.unwrap();
    let get =
        |target: &str| download(&session, json!({"url": server.url(target), "file_path": "f", "overwrite": true}));
    assert!(get("/small").await.is_success());
    for target in ["/parts", "/whole"] {
        let result = get(target).await;
        let kind = serde_json::to_value(&result.error_kind).unwrap();
        assert_eq!(kind["type"], json!("transport"), "{target}: {}", result.output);
        assert!(result.output.contains("No space left"), "{target}: {}", result.output);
        let left = session.tool("search", json!({"mode": "glob", "query": "*"})).await.unwrap();
        assert_eq!(left.output.lines().next(), Some("f"), "{target}: {}", left.output);
        assert_eq!(left.metadata["search"]["matching_files"], json!(1), "{target}: {}", left.output);
        let kept = session.tool("read", json!({"file_path": "f"})).await.unwrap();
        assert!(kept.output.contains("fits"), "{target}: {}", kept.output);
    }
    assert!(get("/small").await.is_success(), "the room of what failed has come back");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A workspace on a file system of this size in bytes, which is there for whoever holds the workspace and for nobody else.
fn on_small_disk(bytes: usize) -> Workspace {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    let place = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            // This thread alone sees the mount; what it opens stays open after it.
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            let options = std::ffi::CString::new(format!("size={bytes}")).unwrap();
            mount("none", place.path(), "tmpfs", MountFlags::empty(), options.as_c_str()).unwrap();
            local::open(place.path(), WorkspaceCapabilities::local_default(), None).unwrap()
        });
        there.join().unwrap()
    })
}
