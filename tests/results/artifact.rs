//! Artifacts: kept once, found again, seen to be damaged, and gone only when nobody refers to them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use toolwarden_actors::artifact_store::ArtifactLimits;
use toolwarden_tools::digest::Digest;

use super::evidence::{evidence_of, repeat};
use crate::support::until;
use crate::support::world::World;

fn blob_path(root: &Path, uri: &str) -> PathBuf {
    let hex = uri.rsplit('/').next().unwrap();
    root.join(&hex[..2]).join(&hex[2..])
}

#[tokio::test]
async fn two_sessions_keep_the_same_bytes_once_and_a_later_runtime_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("artifacts");
    let world = World::with(|builder| builder.artifact_folder(&kept)).await;
    let arguments = json!({"text": "the same words\n", "times": 10_000});
    let mut uris = Vec::new();
    for _ in 0..2 {
        let session = world.session().tool(repeat("say").shared()).open().await.unwrap();
        let result = session.tool("say", arguments.clone()).await.unwrap();
        uris.push(evidence_of(&result)["content_ref"].as_str().unwrap().to_owned());
        session.close().await;
    }
    assert_eq!(uris[0], uris[1]);
    assert_eq!(world.runtime.artifact_status().await.unwrap().artifacts, 1);
    world.end().await;

    let world = World::with(|builder| builder.artifact_folder(&kept)).await;
    let session = world.open().await;
    let mut artifact = session.artifact(&uris[0]).await.unwrap();
    assert_eq!(artifact.read(15..30).unwrap(), b"the same words\n");
    assert_eq!(artifact.read(149_990..200_000).unwrap().len(), 10);
    world.end().await;
}

#[tokio::test]
async fn a_damaged_artifact_is_never_given_out() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::with(|builder| builder.artifact_folder(folder.path())).await;
    let session = world.session().tool(repeat("say").shared()).open().await.unwrap();
    let result = session.tool("say", json!({"text": "some words\n", "times": 20_000})).await.unwrap();
    let uri = evidence_of(&result)["content_ref"].as_str().unwrap();
    let path = blob_path(folder.path(), uri);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100_000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = session.artifact(uri).await.err().unwrap().to_string();
    assert!(error.contains("damaged") && error.contains("remove the file"), "{error}");
    let error = session.verify_evidence(&result).await.unwrap_err().to_string();
    assert!(error.contains("damaged"), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = session.artifact(uri).await.err().unwrap().to_string();
    assert!(error.contains("not kept here"), "{error}");
    assert!(session.artifact("file:///etc/passwd").await.is_err());
    world.end().await;
}

#[tokio::test]
async fn nothing_goes_that_a_live_session_refers_to() {
    let limits = ArtifactLimits { bytes_max: 500_000, artifact_bytes_max: 400_000, age_max: Duration::from_secs(60) };
    let world = World::with(|builder| builder.artifact_limits(limits)).await;
    let open = async || world.session().tool(repeat("say").shared()).open().await.unwrap();
    let (first, second) = (open().await, open().await);
    let say = |text: &str| json!({"text": text, "times": 30_000});
    let kept = first.tool("say", say("first one\n")).await.unwrap();
    let uri = evidence_of(&kept)["content_ref"].as_str().unwrap();
    let refused = second.tool("say", say("second one\n")).await.unwrap();
    assert!(refused.is_success(), "the call did what it was asked");
    assert_eq!(refused.metadata["artifact_error"]["kind"], "full");
    assert_eq!(first.artifact(uri).await.unwrap().size_bytes(), 300_000);
    first.close().await;
    until("the first session's reference is gone", async || {
        (world.runtime.artifact_status().await.unwrap().referenced == 0).then_some(())
    })
    .await;
    let kept = second.tool("say", say("second one\n")).await.unwrap();
    assert!(kept.metadata.contains_key("artifact"), "{:?}", kept.metadata);
    assert!(second.artifact(uri).await.is_err(), "there was room for one alone");
    let large = second.tool("say", json!({"text": "x\n", "times": 200_001})).await.unwrap();
    assert_eq!(large.metadata["artifact_error"]["kind"], "too_large");
    world.end().await;
}

#[tokio::test]
async fn of_a_command_that_writes_too_much_the_first_part_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let limits = ArtifactLimits { artifact_bytes_max: 400_000, ..ArtifactLimits::default() };
    let world = World::with(|builder| builder.artifact_folder(folder.path()).artifact_limits(limits)).await;
    let session = world.open().await;
    let command = json!({"command": "yes 'one line and more of it' | head -c 2000000"});
    let result = session.tool("bash", command).await.unwrap();
    let uri = evidence_of(&result)["content_ref"].as_str().unwrap();
    assert!(result.output.ends_with(&format!("[its first part: {uri}]\n")), "{}", &result.output[100_000..]);
    assert_eq!(result.metadata["output"]["total_bytes"], 2_000_000);
    let mut artifact = session.artifact(uri).await.unwrap();
    let bytes = artifact.size_bytes();
    let kept = String::from_utf8(artifact.read(0..bytes).unwrap()).unwrap();
    let (first, note) = kept.rsplit_once("\n[").unwrap();
    assert_eq!(note, "no more is kept of this output, which had 2000000 bytes]\n");
    assert!(bytes <= 400_000 && first.len() > 399_000, "{bytes}");
    assert!(first.starts_with("one line and more of it\none line"));
    assert_eq!(result.metadata["artifact_over_bytes"], 2_000_000 - first.len());
    assert!(session.verify_evidence(&result).await.unwrap().holds());
    world.end().await;
}

#[tokio::test]
async fn large_changes_of_files_go_by_reference() {
    let world = World::new().await;
    let session = world.open().await;
    let (before, after) = ("one line\n".repeat(5000), "another line\n".repeat(5000));
    session.write_file("f", &before).await.unwrap();
    let result = session.write_file("f", &after).await.unwrap();
    let change = &result.metadata["change"];
    assert_eq!((&change["compacted"], &change["before"]["bytes"]), (&json!(true), &json!(before.len())));
    for (side, text) in [("before", &before), ("after", &after)] {
        let artifact = &change[side]["artifact"];
        let digest = Digest::of(text.as_bytes());
        assert_eq!(artifact["artifact_uri"], format!("a3s://tool-output/write-{side}/{}", digest.hex()));
        assert_eq!((&artifact["shown_bytes"], &change[side]["sha256"]), (&json!(0), &json!(digest.hex())));
        let mut artifact = session.artifact(artifact["artifact_uri"].as_str().unwrap()).await.unwrap();
        assert!(artifact.read(0..u64::MAX).unwrap() == text.as_bytes());
        assert!(result.metadata[side].as_str().unwrap().len() <= 8192);
    }
    assert_eq!(evidence_of(&result)["loss_mode"], "none");
    assert!(session.verify_evidence(&result).await.unwrap().holds());
    let shorter = format!("short\n{}", "another line\n".repeat(1000));
    let edited = session.edit_file("f", &after, &shorter).await.unwrap();
    let uri = edited.metadata["change"]["after"]["artifact"]["artifact_uri"].as_str().unwrap();
    assert_eq!(session.artifact(uri).await.unwrap().size_bytes(), 13_006);
    world.end().await;
}
