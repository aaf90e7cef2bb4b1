//! What a session was opened with stays, is inherited, or is refused by name; and what is stored holds no secret.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::embedding::{BuildError, Runtime};
use toolwarden::policy::{PermissionPolicy, Rule};
use toolwarden::resume::ResumeError;
use toolwarden::run_status::RunStatus;
use toolwarden::session::{CancelTarget, SessionError};
use toolwarden::skill_limits::SkillLimits;
use toolwarden_actors::budget::BudgetLimits;
use toolwarden_actors::retention::RetentionLimits;
use toolwarden_actors::tail::TailReading;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::processes::confinement::{Confinement, FileAccess};
use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::{OnDamage, Store, StoreError};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::workspace::WorkspaceCapabilities;

use super::support::model::{Silent, script};
use super::support::tool::{Gate, custom};
use super::support::world::policy;

async fn runtime(store: &Arc<MemoryStore>) -> Runtime {
    Runtime::builder().store(Arc::clone(store) as _).build().await.unwrap()
}

fn answers(count: usize) -> Vec<Value> {
    (1..=count).map(|number| json!({ "text": format!("answer {number}") })).collect()
}

/// Opens the session "s", asks once, and ends the runtime.
async fn asked_once(store: &Arc<MemoryStore>, folder: &Path, adjust: impl FnOnce(SessionBuilder) -> SessionBuilder) {
    let runtime = runtime(store).await;
    let session = adjust(runtime.session(folder).id("s").model(script(&answers(1)))).open().await.unwrap();
    assert_eq!(session.run("first").await.unwrap().text, "answer 1");
    session.close().await;
    runtime.shut_down().await;
}

fn refusal(result: Result<toolwarden::session::Session, BuildError>) -> ResumeError {
    match result.err().unwrap() {
        BuildError::Resume(error) => error,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn what_is_left_out_is_inherited_and_what_is_pinned_is_refused_by_name() {
    let (store, folder, other) =
        (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let skill = || SkillLimits::new(vec![Rule::parse("read").unwrap()]).unwrap();
    let allowed = policy("allow = ['read']");
    asked_once(&store, folder.path(), |builder| {
        builder.agent("explore").policy(allowed.clone()).skill(skill()).capabilities(WorkspaceCapabilities::read_only())
    })
    .await;
    let runtime = runtime(&store).await;
    let resume = || runtime.resume("s").model(script(&answers(2)));
    let cases: [(&str, SessionBuilder); 4] = [
        ("workspace", resume().folder(other.path())),
        ("capabilities", resume().capabilities(WorkspaceCapabilities::local_default())),
        ("agent", resume().agent("general")),
        ("skill", resume().skill(SkillLimits::new(Vec::new()).unwrap())),
    ];
    for (wanted, builder) in cases {
        let error = refusal(builder.open().await);
        assert!(matches!(&error, ResumeError::Setting { field, .. } if *field == wanted), "{error}");
        assert!(error.to_string().contains(&format!("with {wanted} = ")), "{error}");
    }
    // A model is not made out of its name.
    let error = refusal(runtime.resume("s").open().await);
    assert!(matches!(&error, ResumeError::Missing { field: "model", .. }), "{error}");
    // The same, said again, is no other setting; every refusal has given the session free.
    let same = resume().folder(folder.path()).agent("explore").skill(skill());
    let session = same.capabilities(WorkspaceCapabilities::read_only()).open().await.unwrap();
    assert_eq!(session.run("second").await.unwrap().text, "answer 2");
    session.close().await;
    let settings = runtime.look_at(&"s".into()).await.unwrap().state.settings.unwrap();
    assert_eq!(settings.permission_policy, allowed);
    assert_eq!((settings.agent.as_str(), settings.skill.map(|rules| rules.len())), ("explore", Some(1)));
    runtime.shut_down().await;
}

#[tokio::test]
async fn a_sandbox_is_never_lost_on_the_way() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let read_only = || Confinement::new(FileAccess::ReadOnly);
    asked_once(&store, folder.path(), |builder| builder.sandbox(read_only())).await;
    let runtime = runtime(&store).await;
    let resume = || runtime.resume("s").model(script(&answers(1)));
    let error = refusal(resume().open().await);
    assert!(matches!(&error, ResumeError::Missing { field: "sandbox", .. }), "{error}");
    let error = refusal(resume().sandbox(Confinement::new(FileAccess::WorkspaceWrite)).open().await);
    assert!(matches!(&error, ResumeError::Setting { field: "sandbox", .. }), "{error}");
    resume().sandbox(read_only()).open().await.unwrap().close().await;
    runtime.shut_down().await;
}

#[tokio::test]
async fn a_policy_that_a_host_gives_anew_is_the_one_that_is_inherited() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    asked_once(&store, folder.path(), |builder| builder.policy(policy("deny = ['bash']"))).await;
    let runtime = runtime(&store).await;
    let changed: PermissionPolicy = policy("deny = ['write']");
    for given in [Some(changed.clone()), None] {
        let builder = runtime.resume("s").model(script(&answers(1)));
        let builder = if let Some(policy) = given { builder.policy(policy) } else { builder };
        builder.open().await.unwrap().close().await;
        let found = runtime.look_at(&"s".into()).await.unwrap();
        assert_eq!(found.state.settings.unwrap().permission_policy, changed);
    }
    runtime.shut_down().await;
}

#[tokio::test]
async fn one_session_has_one_writer_and_unknown_ones_have_none() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let (one, two) = (runtime(&store).await, runtime(&store).await);
    let session = one.session(folder.path()).id("s").open().await.unwrap();
    let error = refusal(two.resume("s").open().await);
    assert!(matches!(error, ResumeError::Store(StoreError::Held { .. })), "{error}");
    let error = refusal(two.session(folder.path()).id("s").open().await);
    assert!(matches!(error, ResumeError::Store(StoreError::Exists { .. })), "{error}");
    let error = refusal(two.resume("t").open().await);
    assert!(matches!(error, ResumeError::Store(StoreError::Unknown { .. })), "{error}");
    session.close().await;
    two.resume("s").open().await.unwrap().close().await;
    let bare = Runtime::builder().build().await.unwrap();
    assert!(matches!(refusal(bare.resume("s").open().await), ResumeError::NoStore));
    let in_memory = bare.session(folder.path()).open().await.unwrap();
    assert!(matches!(in_memory.save().await, Err(SessionError::NotKept)));
    for runtime in [one, two, bare] {
        runtime.shut_down().await;
    }
}

#[tokio::test]
async fn a_budget_that_was_used_is_used() {
    // Found in a review: a session that had used more than its budget could not be opened any more.
    for used in [99_990, 100_010] {
        let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
        let first = runtime(&store).await;
        let usage = json!({ "input_tokens": used, "output_tokens": 1 });
        let turns = [json!({ "text": "one", "usage": usage }), json!({ "text": "two" })];
        // A request is estimated with the descriptions of its tools, some thousand tokens.
        let budget = BudgetLimits { input_tokens: Some(100_000), ..BudgetLimits::default() };
        let session = first.session(folder.path()).id("s").model(script(&turns)).budget(budget).open().await.unwrap();
        assert!(session.run("first").await.unwrap().status.is_success());
        session.close().await;
        first.shut_down().await;
        let second = runtime(&store).await;
        let session = second.resume("s").model(script(&turns)).open().await.unwrap();
        assert_eq!(session.budget().await.unwrap().spent.input_tokens, used);
        let again = "and again, with so many words that ten tokens do not cover them";
        let status = session.run(again).await.unwrap().status;
        assert!(matches!(status, RunStatus::BudgetExhausted { .. }), "{status}");
        session.close().await;
        second.shut_down().await;
    }
}

#[tokio::test]
async fn nothing_that_is_stored_holds_a_secret_and_calls_run_with_what_the_model_wrote() {
    const SECRET: &str = "correct-horse-battery";
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let runtime =
        Runtime::builder().store(Arc::clone(&store) as _).secrets(vec![SECRET.to_owned()]).build().await.unwrap();
    let taken = custom("take", |_ctx, arguments| async move {
        ToolOutcome::success(arguments["key"].as_str().unwrap().len().to_string())
    });
    let turns = [
        json!({ "text": SECRET, "calls": [{ "tool": "take", "arguments": { "key": SECRET } }] }),
        json!({ "text": format!("it is {SECRET}") }),
    ];
    let builder = runtime.session(folder.path()).id("s").model(script(&turns)).tool(taken.shared());
    let session = builder.policy(policy("default = 'allow'")).open().await.unwrap();
    session.run(&format!("use {SECRET}")).await.unwrap();
    session.close().await;
    runtime.shut_down().await;
    let found = store.open(&"s".into(), OnDamage::Refuse).unwrap();
    let all = [found.log.iter().flat_map(|(_, bytes)| bytes.to_vec()).collect(), found.snapshot.unwrap()].concat();
    let text = String::from_utf8_lossy(&all);
    assert!(!text.contains(SECRET), "{text}");
    assert!(text.contains(&format!(r#""output":"{}""#, SECRET.len())), "{text}");
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_used_is_told_and_a_newer_one_is_refused() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    asked_once(&store, folder.path(), |builder| builder).await;
    let whole = store.look(&"s".into()).unwrap().snapshot.unwrap();
    let put = |bytes: &[u8]| {
        store.open(&"s".into(), OnDamage::Refuse).unwrap();
        store.save_snapshot(&"s".into(), bytes).unwrap();
        store.release(&"s".into());
    };
    let runtime = runtime(&store).await;
    put(&whole[..whole.len() - 1]);
    let session = runtime.resume("s").model(script(&answers(2))).open().await.unwrap();
    let recovery = session.recovery();
    assert!(recovery.snapshot_fault.as_ref().unwrap().contains("damaged"), "{recovery:?}");
    assert_eq!((recovery.from_snapshot, session.go_on().await.unwrap().unwrap().text.as_str()), (0, "answer 1"));
    session.close().await;
    let mut newer = whole.clone();
    newer[8] = 200;
    put(&newer);
    let error = refusal(runtime.resume("s").model(script(&answers(2))).open().await);
    assert!(matches!(error, ResumeError::Snapshot { .. }) && error.to_string().contains("version 200"), "{error}");
    // Given back as it was, it is used.
    put(&whole);
    let session = runtime.resume("s").model(script(&answers(2))).open().await.unwrap();
    assert!(session.recovery().from_snapshot > 0);
    session.close().await;
    runtime.shut_down().await;
}

#[tokio::test]
async fn a_run_that_nobody_goes_on_with_was_interrupted() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let first = runtime(&store).await;
    let silent = Silent::new();
    let session = first.session(folder.path()).id("s").model(Arc::clone(&silent) as _).open().await.unwrap();
    assert!(matches!(session.steer("too early").await, Err(SessionError::NoRun)));
    let asking = tokio::spawn({
        let session = session.clone();
        async move { session.run("first").await }
    });
    silent.asked(1).await;
    session.steer("and this").await.unwrap();
    // What a killed process leaves is what is in the store now.
    let kept = store.look(&"s".into()).unwrap();
    let left = Arc::new(MemoryStore::default());
    left.create(&"s".into(), None, None).unwrap();
    for (sequence, payload) in kept.log.iter() {
        left.append(&[toolwarden_tools::effects::store::Append {
            session: "s".into(),
            sequence,
            payload: payload.into(),
        }]);
    }
    left.release(&"s".into());
    let second = runtime(&left).await;
    let resumed = second.resume("s").model(script(&answers(1))).open().await.unwrap();
    assert!(resumed.run_under_way().is_some());
    assert_eq!(resumed.run("something else").await.unwrap().text, "answer 1");
    let state = second.look_at(&"s".into()).await.unwrap().state;
    assert_eq!(state.runs, 2);
    let said: Vec<String> = state.messages.iter().map(|message| serde_json::to_string(message).unwrap()).collect();
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[1].contains("and this") && said[2].contains("something else"), "{said:?}");
    resumed.close().await;
    session.close().await;
    assert!(asking.await.unwrap().is_ok());
    first.shut_down().await;
    second.shut_down().await;
}

#[tokio::test]
async fn event_numbers_are_never_given_twice_and_a_tail_joins_what_was_and_what_comes() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let mut last = 0;
    for _ in 0..2 {
        let builder = Runtime::builder().store(Arc::clone(&store) as _).retain_events(RetentionLimits::default());
        let runtime = builder.build().await.unwrap();
        let gate = Gate::new();
        let builder = runtime.session(folder.path()).tool(gate.tool("wait").shared());
        let session = builder.open().await.unwrap();
        session.tool("ls", json!({})).await.unwrap();
        let page = session.event_page(0, 2).await.unwrap().unwrap();
        assert!(page.has_more && !page.retention_gap);
        assert!(page.entries[0].sequence > last, "{} after {last}", page.entries[0].sequence);
        let mut tail = session.tail(page.next_after.unwrap()).await.unwrap();
        let waiting = tokio::spawn({
            let session = session.clone();
            async move { session.tool("wait", json!({})).await }
        });
        gate.entered(1).await;
        gate.let_go(1);
        waiting.await.unwrap().unwrap();
        let mut next = page.next_after.unwrap();
        let until = runtime.journal_status().await.unwrap().last_sequence;
        while next < until {
            let Some(TailReading::Entry(entry)) = tail.next().await else { panic!("no entry") };
            assert_eq!(entry.sequence, next + 1);
            next = entry.sequence;
        }
        last = until;
        session.close().await;
        runtime.shut_down().await;
    }
}

// Found in a review: a second word to go on carried a run on that had ended, and nothing cancelled the first any more.
#[tokio::test]
async fn going_on_with_a_run_twice_is_one_run() {
    let folder = tempfile::tempdir().unwrap();
    for cancels in [false, true] {
        let (runtime, gate) = (Runtime::builder().build().await.unwrap(), Gate::new());
        let turns = [json!({ "calls": [{ "tool": "wait", "arguments": {} }] }), json!({ "text": "done" })];
        let builder = runtime.session(folder.path()).model(script(&turns)).tool(gate.tool("wait").shared());
        let session = builder.policy(policy("default = 'allow'")).open().await.unwrap();
        let running = tokio::spawn({
            let session = session.clone();
            async move { session.run("wait, then say it").await }
        });
        gate.entered(1).await;
        let mut going_on = Box::pin(session.go_on());
        assert!(futures_util::poll!(&mut going_on).is_pending());
        match cancels {
            true => assert!(session.cancel(&CancelTarget::Run, &CancelReason::Requested)),
            false => gate.let_go(1),
        }
        let (first, second) = (running.await.unwrap().unwrap(), going_on.await.unwrap().unwrap());
        let wanted = match cancels {
            true => RunStatus::Cancelled { reason: CancelReason::Requested },
            false => RunStatus::Completed,
        };
        assert_eq!((&first.status, &second.status), (&wanted, &wanted));
        assert!(cancels || first == second, "{second:?}");
        session.close().await;
        runtime.shut_down().await;
    }
}
