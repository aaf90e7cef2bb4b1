//! Where a download lands: names that servers choose, files that are there, limits that hold.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use toolwarden::prelude::PermissionPolicy;

use crate::server::{Reply, Server, bytes, download, fetched, parts};

fn kind(result: &toolwarden::call_result::CallResult) -> String {
    let kind = serde_json::to_value(&result.error_kind).unwrap();
    kind["type"].as_str().unwrap_or("none").to_owned()
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

// Case C103: a server names a file, in the workspace's own folder, and never over another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_the_server_chooses_is_one_name() {
    let server = Server::start(move |asked| {
        let proposal = match asked.target.as_str() {
            "/up" => "attachment; filename=\"../../.profile\"",
            "/root" => "attachment; filename=/etc/x",
            "/back" => "attachment; filename=\"..\\\\..\\\\y\"",
            "/nul" => "attachment; filename*=UTF-8''a%00b",
            "/dot" => "attachment; filename=.",
            "/long" => {
                return Reply::new(
                    "200 OK",
                    &[("Content-Disposition", &format!("attachment; filename={}.bin", "n".repeat(300)))],
                    b"x",
                );
            }
            "/git" => "attachment; filename=.git",
            "/link" => "attachment; filename=link",
            "/taken" => "attachment; filename=taken",
            _ => "inline",
        };
        Reply::new("200 OK", &[("Content-Disposition", proposal)], b"x")
    })
    .await;
    let world = server.world().await;
    let session = world.open().await;
    let outside = tempfile::tempdir().unwrap();
    symlink(outside.path().join("made"), world.path().join("link")).unwrap();
    std::fs::write(world.path().join("taken"), "mine").unwrap();
    for (target, name) in [
        ("/up", ".profile"),
        ("/root", "x"),
        ("/back", "y"),
        ("/nul", "ab"),
        ("/dot", "dot"),
        ("/git", "git"),
        ("/a%20b.txt?x=1", "a b.txt"),
    ] {
        let result = download(&session, json!({"url": server.url(target)})).await;
        assert_eq!(result.metadata.get("file_path"), Some(&json!(name)), "{target}: {}", result.output);
        assert_eq!(std::fs::read(world.path().join(name)).unwrap(), b"x");
    }
    let long = download(&session, json!({"url": server.url("/long")})).await;
    let name = long.metadata["file_path"].as_str().unwrap().to_owned();
    assert!(name.len() == 255 && name.ends_with("n.bin"), "{name}");
    for (target, overwrite) in [("/link", false), ("/link", true), ("/taken", false), ("/up", false)] {
        let result = download(&session, json!({"url": server.url(target), "overwrite": overwrite})).await;
        assert!(!result.is_success(), "{target}: {}", result.output);
    }
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    assert_eq!(std::fs::read(world.path().join("taken")).unwrap(), b"mine");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_existing_file_is_replaced_only_when_that_is_asked() {
    let server = Server::start(|asked| parts(asked, b"new", "\"a\"")).await;
    let world = server.world().await;
    let session = world.open().await;
    let path = world.path().join("f");
    std::fs::write(&path, "old").unwrap();
    let arguments = |overwrite: bool| json!({"url": server.url("/"), "file_path": "f", "overwrite": overwrite});
    let refused = download(&session, arguments(false)).await;
    assert_eq!(kind(&refused), "version_conflict");
    assert!(server.asked().is_empty(), "nothing is asked for a file that cannot be written");
    // What changed since the session read it is not replaced either.
    session.tool("read", json!({"file_path": "f"})).await.unwrap();
    std::fs::write(&path, "theirs").unwrap();
    let changed = download(&session, arguments(true)).await;
    assert_eq!(kind(&changed), "version_conflict");
    session.tool("read", json!({"file_path": "f"})).await.unwrap();
    let done = download(&session, arguments(true)).await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["overwritten"], json!(true));
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    // The session knows what it wrote.
    let edited =
        session.tool("edit", json!({"file_path": "f", "old_string": "new", "new_string": "own"})).await.unwrap();
    assert!(edited.is_success(), "{}", edited.output);
    for (place, words) in [("d", "is a folder"), (".git/x", ".git"), ("../x", "leaves"), ("f/x", "f is not a folder")] {
        std::fs::create_dir_all(world.path().join("d")).unwrap();
        let result = download(&session, json!({"url": server.url("/"), "file_path": place})).await;
        assert!(!result.is_success() && result.output.contains(words), "{place}: {}", result.output);
    }
    let deep = download(&session, json!({"url": server.url("/"), "file_path": "new/deep/file"})).await;
    assert!(deep.is_success() && world.path().join("new/deep/file").exists(), "{}", deep.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_digest_that_does_not_fit_leaves_everything_as_it_was() {
    let body = bytes(5 * 1024 * 1024);
    let source = body.clone();
    let server = Server::start(move |asked| parts(asked, &source, "\"a\"")).await;
    let world = server.world().await;
    let session = world.open().await;
    std::fs::write(world.path().join("f"), "old").unwrap();
    let arguments = |sha256: String| json!({"url": server.url("/"), "file_path": "f", "overwrite": true, "expected_sha256": sha256});
    let refused = download(&session, arguments("0".repeat(64))).await;
    assert!(!refused.is_success() && refused.output.contains(&hex(&body)), "{}", refused.output);
    assert_eq!(std::fs::read(world.path().join("f")).unwrap(), b"old");
    let done = download(&session, arguments(hex(&body).to_ascii_uppercase())).await;
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["sha256"], json!(hex(&body)));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_large_is_refused_before_anything_is_written_and_while_it_comes() {
    let body = bytes(100_000);
    let source = body.clone();
    let server = Server::start(move |asked| match asked.target.as_str() {
        "/parts" => parts(asked, &source, "\"a\""),
        "/whole" => Reply::new("200 OK", &[], &source),
        _ => Reply::raw("200 OK", &[], &source),
    })
    .await;
    for target in ["/parts", "/whole", "/unknown"] {
        let (result, content) = fetched(&server, target, json!({"max_bytes": 99_999})).await;
        assert_eq!(kind(&result), "invalid_argument", "{target}: {}", result.output);
        assert!(result.output.contains("max_bytes") && content.is_none(), "{target}: {}", result.output);
        let (result, _) = fetched(&server, target, json!({"max_bytes": 100_000})).await;
        assert!(result.is_success(), "{target}: {}", result.output);
    }
}

// Case C106: of two downloads to one name one has it, and the other says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_downloads_to_one_name_do_not_mix() {
    let server = Server::start(|asked| {
        let body = if asked.target == "/a" { vec![b'a'; 400_000] } else { vec![b'b'; 400_000] };
        Reply::new("200 OK", &[], &body).dripping(4096)
    })
    .await;
    let world = server.world().await;
    let session = world.open().await;
    let one = |target: &str| download(&session, json!({"url": server.url(target), "file_path": "f"}));
    let (a, b) = tokio::join!(one("/a"), one("/b"));
    let won: Vec<bool> = vec![a.is_success(), b.is_success()];
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{} {}", a.output, b.output);
    let lost = if a.is_success() { &b } else { &a };
    assert_eq!(kind(lost), "version_conflict");
    let content = std::fs::read(world.path().join("f")).unwrap();
    let winner = if won[0] { b'a' } else { b'b' };
    assert!(content.len() == 400_000 && content.iter().all(|byte| *byte == winner));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_is_asked_about_a_name_that_the_server_chose() {
    let server =
        Server::start(|_| Reply::new("200 OK", &[("Content-Disposition", "attachment; filename=.env")], b"x")).await;
    let world = server.world().await;
    let policy = PermissionPolicy::from_toml("allow = ['download']\ndeny = ['write(.env)']", "p").unwrap();
    let session = world.session().policy(policy).open().await.unwrap();
    let call = |arguments: Value| session.governed_tool("download", arguments);
    let refused = call(json!({"url": server.url("/")})).await.unwrap();
    assert!(!refused.is_success() && refused.output.contains("denied by policy"), "{}", refused.output);
    assert!(!world.path().join(".env").exists());
    let elsewhere = call(json!({"url": server.url("/"), "file_path": "ok"})).await.unwrap();
    assert!(elsewhere.is_success(), "{}", elsewhere.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}
