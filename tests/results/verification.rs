//! Verification: exit codes decide, doubts are kept, and a report outlives its process.

use std::slice;
use std::sync::Arc;

use serde_json::json;
use toolwarden::embedding::Runtime;
use toolwarden::event::EventLine;
use toolwarden::session::CancelTarget;
use toolwarden::session::verify::VerifyError;
use toolwarden::verification::{VerificationCommand, VerificationStatus};
use toolwarden_actors::journal::Reading;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::store::memory::MemoryStore;

use crate::support::model::script;
use crate::support::until;
use crate::support::world::World;

fn command(id: &str, line: &str, required: bool) -> VerificationCommand {
    let value = json!({"id": id, "kind": "test", "command": line, "required": required});
    serde_json::from_value(value).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exit_codes_decide_and_long_outputs_are_named() {
    let world = World::new().await;
    let session = world.open().await;
    let commands = [
        command("fails", "echo no; exit 3", false),
        VerificationCommand { expect_exit: 3, ..command("as-expected", "exit 3", true) },
        command("long", "seq 60000", true),
        command("killed", "kill -KILL $$", false),
        VerificationCommand { timeout_ms: Some(1000), ..command("endless", "sleep 60", false) },
    ];
    let report = session.verify_commands("everything", &commands).await.unwrap();
    let found: Vec<_> = report.checks.iter().map(|check| (check.id.as_str(), check.status)).collect();
    let (passed, failed) = (VerificationStatus::Passed, VerificationStatus::Failed);
    let wanted =
        [("fails", failed), ("as-expected", passed), ("long", passed), ("killed", failed), ("endless", failed)];
    assert_eq!(found, wanted);
    assert_eq!(report.status, VerificationStatus::NeedsReview);
    assert_eq!(report.residual_risks.len(), 3);
    assert!(report.residual_risks[0].contains("code 3, expected 0: echo no; exit 3"), "{report:?}");
    assert!(report.residual_risks[2].contains("had not ended after 1000 ms"), "{report:?}");
    let [uri] = &*report.checks[2].evidence_uris else { panic!("{report:?}") };
    assert!(session.artifact(uri).await.unwrap().read(0..2).unwrap() == b"1\n");
    let ids: Vec<_> = world.record.of_type("tool_end").iter().map(|line| line["id"].to_string()).collect();
    assert_eq!(ids.len(), 5);
    assert!(ids.iter().all(|id| id.starts_with("\"verification-bash-")), "{ids:?}");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_verification_skips_the_rest_and_leaves_nothing() {
    let world = World::new().await;
    let session = world.open().await;
    let begun = world.path().join("begun");
    let commands = [command("slow", "touch begun; sleep 60", true), command("next", "touch never", true)];
    let other = session.clone();
    let verifying = tokio::spawn(async move { other.verify_commands("", &commands).await });
    until("the first command", async || begun.exists().then_some(())).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    let report = verifying.await.unwrap().unwrap();
    let found: Vec<_> = report.checks.iter().map(|check| check.status).collect();
    assert_eq!(found, [VerificationStatus::Failed, VerificationStatus::Skipped]);
    assert_eq!(report.status, VerificationStatus::Failed);
    assert!(!world.path().join("never").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn commands_that_make_no_sense_are_refused_before_any_runs() {
    let world = World::new().await;
    let session = world.open().await;
    let commands = [command("one", "touch begun", true), command("one", "true", true)];
    let error = session.verify_commands("", &commands).await.unwrap_err();
    assert!(matches!(error, VerifyError::Plan(_)) && error.to_string().contains("\"one\""), "{error}");
    assert!(!world.path().join("begun").exists() && session.verification_reports().is_empty());
    world.end().await;
}

#[tokio::test]
async fn reports_are_kept_with_the_session_and_told_at_the_end_of_a_run() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let key = format!("sk-ant-{}", "a1B2".repeat(6));
    let runtime = Runtime::builder().store(Arc::clone(&store) as _).build().await.unwrap();
    let session =
        runtime.session(folder.path()).id("s").model(script(&[json!({"text": "done"})])).open().await.unwrap();
    let report = session.verify_commands("first", &[command("a", &format!("false {key}"), true)]).await.unwrap();
    assert!(report.residual_risks[0].ends_with("false [redacted]"), "{report:?}");
    // What is in the log, and then what is in the snapshot.
    assert_eq!(runtime.look_at(&"s".into()).await.unwrap().state.verification_reports, slice::from_ref(&report));
    session.save().await.unwrap();
    session.close().await;
    runtime.shut_down().await;

    let runtime = Runtime::builder().store(Arc::clone(&store) as _).build().await.unwrap();
    let session = runtime.resume("s").model(script(&[json!({"text": "done"})])).open().await.unwrap();
    assert_eq!(session.verification_reports(), [report]);
    let second = session.verify_commands("second", &[command("a", "true", true)]).await.unwrap();
    assert!(second.is_proof());
    let mut events = session.events().await.unwrap();
    session.run("are we done?").await.unwrap();
    session.close().await;
    let summary = loop {
        let Some(Reading::Entry(entry)) = events.next().await else { panic!("no end of a run") };
        let line = serde_json::to_value(EventLine::from(&*entry)).unwrap();
        if line["type"] == "agent_end" {
            break line["verification_summary"].clone();
        }
    };
    assert_eq!((&summary["status"], &summary["report_count"]), (&json!("failed"), &json!(2)));
    assert_eq!((&summary["failed_subjects"], &summary["required_check_count"]), (&json!(["first"]), &json!(2)));
    runtime.shut_down().await;
}
