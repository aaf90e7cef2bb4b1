//! The heart: real sessions over real folders, through the public API.

#![expect(clippy::disallowed_methods, reason = "tests prepare real files")]

use serde_json::json;
use toolwarden::prelude::*;
use toolwarden::settlement::projection_policy::ProjectionPolicy;

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

// Found in a review: a part was given for the whole, and nothing said so.
#[tokio::test]
async fn a_part_is_never_given_for_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    let whole: String = (0..5000).map(|line| format!("{line} {}\n", "x".repeat(60))).collect();
    for (name, content) in [("whole", whole.as_str()), ("long", "y".repeat(5000).as_str()), ("crlf", "a\r\nb")] {
        std::fs::write(folder.path().join(name), content).unwrap();
    }
    std::fs::write(folder.path().join("image.png"), b"\x89PNG\r\n\x1a\n\0\0\0\0").unwrap();
    assert_eq!(session.read_file("whole").await.unwrap(), whole);
    assert_eq!(session.read_file("crlf").await.unwrap(), "a\nb\n");
    let mut small = serde_json::to_value(ProjectionPolicy::conservative()).unwrap();
    (small["max_output_bytes"], small["head_bytes"]) = (json!(4096), json!(4096));
    let small = ProjectionPolicy::from_json(&small.to_string()).unwrap();
    let shortening = runtime.session(folder.path()).projection(small).open().await.unwrap();
    assert!(matches!(session.read_file("image.png").await, Err(SessionError::Failed(_))));
    for (session, name, words) in [(&session, "long", "line 1"), (&shortening, "whole", "projection")] {
        match session.read_file(name).await {
            Err(error @ SessionError::Partial { .. }) => assert!(error.to_string().contains(words), "{error}"),
            other => panic!("{name}: {:?}", other.map(|text| text.len())),
        }
    }
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

// Cases C016 and C018: the two streams of a long output, cut once: neither the end of it nor what became of the
// command is lost to a later stage, and every byte of each stream is kept or counted.
#[tokio::test]
async fn a_long_output_is_cut_once() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    let command = "for i in {1..40000}; do echo \"out 中 $i\"; echo \"err $i\" >&2; done; echo last; exit 3";
    let Err(SessionError::Failed(result)) = session.bash(command).await else { panic!("it does not fail") };
    assert!(result.output.len() <= 100 * 1024, "{} bytes", result.output.len());
    assert!(result.output.starts_with("out 中 1\n") && result.output.contains("\nerr 1\n"));
    assert!(result.output.contains("\nlast\n") && result.output.contains("\nerr 40000\n"));
    assert!(result.output.contains("\n[exit code 3]\n"));
    assert_eq!(result.output.matches("left out").count(), 1);
    assert!(!result.output.contains('\u{fffd}'));
    assert_eq!(result.metadata["a3s_tool_result_evidence"]["loss_mode"], "head_tail");
    let uri = result.metadata["artifact"]["artifact_uri"].as_str().unwrap();
    assert!(result.output.trim_end().ends_with(&format!("{uri}]")), "the last line names the whole");
    let output = &result.metadata["output"];
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let digits: u64 = (1..=40_000_u64).map(|i| i.to_string().len() as u64).sum();
    assert_eq!(number(&output["stdout"]["total_bytes"]), digits + 40_000 * 9 + 5);
    assert_eq!(number(&output["stderr"]["total_bytes"]), digits + 40_000 * 5);
    let kept = number(&output["stdout"]["captured_bytes"]) + number(&output["stderr"]["captured_bytes"]);
    assert_eq!(kept, number(&output["captured_bytes"]));
    assert_eq!(kept + number(&output["omitted_bytes"]), number(&output["total_bytes"]));
    assert!(kept > 97 * 1024, "{kept}");
    runtime.shut_down().await;
}

#[tokio::test]
async fn the_helpers_for_commands_tell_failures_apart() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = Runtime::builder().build().await.unwrap();
    let session = runtime.session(folder.path()).open().await.unwrap();
    assert_eq!(session.bash("echo out; echo err >&2").await.unwrap(), "out\nerr\n");
    let Err(SessionError::Failed(failed)) = session.bash("echo half; exit 4").await else { panic!("no failure") };
    assert_eq!((failed.exit_code, failed.output.as_str()), (4, "half\n[exit code 4]\n"));
    let Err(SessionError::Failed(absent)) = session.git(json!({"command": "status"})).await else {
        panic!("a repository")
    };
    assert!(matches!(absent.error_kind, Some(ToolErrorKind::Unsupported { .. })), "{}", absent.output);
    session.bash("git init -q -b trunk .").await.unwrap();
    let status = session.git(json!({"command": "status"})).await.unwrap();
    assert_eq!(status.metadata["branch"], "trunk");
    let Err(SessionError::Failed(wrong)) = session.git(json!({"command": "push"})).await else { panic!("it pushed") };
    assert!(matches!(wrong.error_kind, Some(ToolErrorKind::InvalidArgument { .. })), "{}", wrong.output);
    session.close().await;
    assert!(matches!(session.bash("true").await, Err(SessionError::Closed)));
    runtime.shut_down().await;
}
