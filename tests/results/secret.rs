//! Secrets: neither in results, nor in artifacts, nor in events, however they are cut.

use std::sync::Arc;

use serde_json::json;
use toolwarden::settlement::sanitise::SecurityProvider;
use toolwarden_tools::outcome::ToolOutcome;

use super::evidence::evidence_of;
use crate::support::tool::custom;
use crate::support::world::World;

/// Put together here, so that no tool that looks for keys takes this for one.
fn key() -> String {
    format!("sk-ant-{}", "a1B2".repeat(6))
}

#[tokio::test]
async fn a_secret_in_parts_is_in_no_delta() {
    let world = World::with(|builder| builder.secrets(vec!["zz9 plural z".to_owned()])).await;
    let parts = custom("parts", |ctx, _arguments| async move {
        let text = format!("the key is {} and zz9 plural z alpha\n", key());
        for at in 0..text.len() {
            ctx.progress.delta(&text[at..=at]);
        }
        ctx.progress.delta("open: sk-ant-a1B2a1B2");
        ctx.progress.delta("a1B2a1B2a1B2");
        ToolOutcome::success("done")
    });
    let session = world.session().tool(parts.shared()).open().await.unwrap();
    session.tool("parts", json!({})).await.unwrap();
    let deltas = world.record.of_type("tool_output_delta");
    let shown: String = deltas.iter().map(|delta| delta["delta"].as_str().unwrap()).collect();
    assert_eq!(shown, "the key is [redacted] and [redacted] alpha\nopen: [redacted]");
    assert!(deltas.len() > 5, "what can be no secret does not wait");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_output_is_clean_in_its_artifact_too() {
    let world = World::with(|builder| builder.secrets(vec!["zz9-plural-z".to_owned()])).await;
    let session = world.open().await;
    std::fs::write(world.path().join("noise"), "0123456789 ".repeat(5957) + &key() + "\n").unwrap();
    let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7abcd\n-----END RSA PRIVATE KEY-----\n";
    std::fs::write(world.path().join("pem"), pem).unwrap();
    let command = "for i in 1 2 3; do cat noise pem; echo https://me:pass@host/x zz9-plural-z; done";
    let result = session.tool("bash", json!({"command": command})).await.unwrap();
    let mut artifact = session.artifact(evidence_of(&result)["content_ref"].as_str().unwrap()).await.unwrap();
    let whole = String::from_utf8(artifact.read(0..u64::MAX).unwrap()).unwrap();
    for secret in [key().as_str(), "MIIEpAIBAAKCAQEA7abcd", "me:pass", "zz9-plural-z"] {
        assert!(!whole.contains(secret) && !result.output.contains(secret), "{secret}");
    }
    assert_eq!(whole.matches("https://[redacted]@host/x [redacted]\n").count(), 3);
    assert!(result.metadata["sanitised"]["removed"].as_u64().unwrap() >= 12);
    assert!(session.verify_evidence(&result).await.unwrap().holds());
    let events = world.record.shown();
    assert!(!events.contains(&key()) && !events.contains("zz9-plural-z alpha"));
    world.end().await;
}

#[tokio::test]
async fn sides_of_a_change_are_clean_where_they_are_kept() {
    let world = World::new().await;
    let session = world.open().await;
    let text = format!("token {}\n{}", key(), "line\n".repeat(20_000));
    let result = session.write_file("f", &text).await.unwrap();
    let uri = result.metadata["change"]["after"]["artifact"]["artifact_uri"].as_str().unwrap();
    let mut artifact = session.artifact(uri).await.unwrap();
    assert_eq!(artifact.read(0..17).unwrap(), b"token [redacted]\n");
    assert_eq!(std::fs::read_to_string(world.path().join("f")).unwrap(), text, "the file itself is as it was asked");
    world.end().await;
}

#[derive(Debug)]
struct NoNames;

impl SecurityProvider for NoNames {
    fn cleaned(&self, text: &str) -> Option<String> {
        text.contains("Ada Lovelace").then(|| text.replace("Ada Lovelace", "A. L."))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_security_provider_has_its_say_everywhere() {
    let world = World::with(|builder| builder.security_provider(Arc::new(NoNames))).await;
    let session = world.open().await;
    let command = "for i in $(seq 10000); do echo \"$i Ada Lovelace\"; done";
    let result = session.tool("bash", json!({"command": command})).await.unwrap();
    let mut artifact = session.artifact(evidence_of(&result)["content_ref"].as_str().unwrap()).await.unwrap();
    let whole = String::from_utf8(artifact.read(0..u64::MAX).unwrap()).unwrap();
    assert_eq!((whole.matches("A. L.").count(), whole.matches("Lovelace").count()), (10_000, 0));
    assert!(!result.output.contains("Lovelace") && result.output.contains("1 A. L.\n"));
    assert!(!world.record.shown().contains("Lovelace"), "arguments in events too");
    world.end().await;
}
