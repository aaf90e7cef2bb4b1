//! Answers: whose call they are about, what "always" covers, and what happens without one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::policy::Rule;
use toolwarden::prelude::{CancelTarget, Reply};
use toolwarden::scope::Confirming;
use toolwarden::skill_limits::SkillLimits;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::entropy::Entropy;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::model::script;
use crate::support::tool::{Gate, echo};
use crate::support::world::{World, allowing, policy};
use crate::{governed, id_of};

/// What a skill asks about is not settled by somebody's word on another call, however much the session allows.
#[tokio::test]
async fn a_question_of_a_skill_waits_for_its_own_answer() {
    let world = World::new().await;
    let rules = ["bash(git *)", "echo"].map(|rule| Rule::parse(rule).unwrap());
    let session = world
        .session()
        .policy(allowing(&["bash"]))
        .skill(SkillLimits::new(rules.into()).unwrap())
        .confirming(Confirming::Park)
        .tool(echo("echo").shared())
        .open()
        .await
        .unwrap();
    let doubtful = governed(&session, "bash", json!({"command": "PATH=/tmp git status"}));
    world.record.wait_nth("confirmation_required", 1, |_| true).await;
    let other = governed(&session, "echo", json!({}));
    let question = world.record.wait_nth("confirmation_required", 2, |_| true).await;
    assert!(session.confirm(id_of(&question).into(), None, Reply::ApproveAlways).await);
    assert!(other.await.unwrap().is_success());
    let [pending] = &*session.pending_confirmations().await.unwrap() else { panic!("it runs without an answer") };
    assert!(session.confirm(pending.id.clone(), None, Reply::Reject(None)).await);
    assert_eq!(doubtful.await.unwrap().metadata["refused"]["stage"], "confirmation");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Case C196: three asks at once; "always" on the first covers its sibling, a no on the second is a result, and the
/// third is cancelled.
#[tokio::test]
async fn concurrent_questions_are_answered_one_by_one() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).tool(echo("echo").shared()).open().await.unwrap();
    let calls = ["first", "second", "third"].map(|say| governed(&session, "echo", json!({ "say": say })));
    let sibling = governed(&session, "echo", json!({"say": "first"}));
    let mut asked = Vec::new();
    for nth in 1..=4 {
        asked.push(world.record.wait_nth("confirmation_required", nth, |_| true).await);
    }
    let pending = session.pending_confirmations().await.unwrap();
    assert_eq!(pending.len(), 4);
    let about = |say: &str| {
        let of = asked.iter().filter(|question| question["args"]["say"] == say);
        of.map(|question| id_of(question).to_owned()).collect::<Vec<_>>()
    };
    let first = about("first").remove(0);
    assert!(session.confirm(first.as_str().into(), None, Reply::ApproveAlways).await);
    let [first_call, second_call, third_call] = calls;
    // Both calls about "first" run by the one word.
    assert!(first_call.await.unwrap().is_success() && sibling.await.unwrap().is_success());
    // The others still wait.
    assert_eq!(session.pending_confirmations().await.unwrap().len(), 2);
    assert!(!second_call.is_finished() && !third_call.is_finished());

    let second = about("second").remove(0);
    assert!(session.confirm(second.as_str().into(), None, Reply::Reject(Some("too loud".into()))).await);
    let denied = second_call.await.unwrap();
    assert!(denied.output.contains("too loud") && denied.output.contains("Do not repeat"), "{}", denied.output);

    let third = about("third").remove(0);
    assert!(session.cancel(&CancelTarget::Call(third.as_str().into()), &CancelReason::Requested));
    let cancelled = third_call.await.unwrap();
    assert!(matches!(cancelled.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{cancelled:?}");

    // From now on the granted call is not asked about, and others are.
    let before = world.record.of_type("confirmation_required").len();
    assert!(session.governed_tool("echo", json!({"say": "first"})).await.unwrap().is_success());
    assert_eq!(world.record.of_type("confirmation_required").len(), before);
    let other = governed(&session, "echo", json!({"say": "first", "more": true}));
    let question = world.record.wait_nth("confirmation_required", before + 1, |_| true).await;
    assert!(session.confirm(id_of(&question).into(), None, Reply::Reject(None)).await);
    assert!(!other.await.unwrap().is_success());
    for id in [first, second, third] {
        assert_eq!(world.record.life_of(&id).iter().filter(|kind| *kind == "confirmation_received").count(), 1);
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The same from a model: a no is a result of its call, and the run goes on.
#[tokio::test]
async fn a_no_is_a_result_for_the_model() {
    let world = World::new().await;
    let gate = Gate::new();
    let calls = json!([{"tool": "wait", "arguments": {"say": "a"}}, {"tool": "wait", "arguments": {"say": "b"}}]);
    let session = world
        .session()
        .confirming(Confirming::Park)
        .tool(gate.tool("wait").reads(4).shared())
        .model(script(&[json!({ "calls": calls }), json!({"text": "went on"})]))
        .open()
        .await
        .unwrap();
    gate.let_go(1);
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    for nth in 1..=2 {
        let question = world.record.wait_nth("confirmation_required", nth, |_| true).await;
        let reply = if question["args"]["say"] == "a" { Reply::Reject(None) } else { Reply::Approve };
        assert!(session.confirm(id_of(&question).into(), None, reply).await);
    }
    assert_eq!(run.await.unwrap().text, "went on");
    let ends: Vec<Value> = world.record.calls_of("wait").iter().map(|id| world.record.the("tool_end", id)).collect();
    assert!(ends[0]["output"].as_str().unwrap().contains("no reason was given"), "{}", ends[0]);
    assert_eq!((&ends[1]["exit_code"], &ends[1]["output"]), (&json!(0), &json!("b")));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// "Always" is an allow rule: what a policy denies or wants asked stays so.
#[tokio::test]
async fn always_never_beats_a_rule() {
    let world = World::new().await;
    let session = world
        .session()
        .confirming(Confirming::Park)
        .policy(policy("ask = [\"echo\"]"))
        .tool(echo("echo").shared())
        .open()
        .await
        .unwrap();
    for nth in 1..=2 {
        let call = governed(&session, "echo", json!({}));
        let question = world.record.wait_nth("confirmation_required", nth, |_| true).await;
        assert!(session.confirm(id_of(&question).into(), None, Reply::ApproveAlways).await);
        assert!(call.await.unwrap().is_success());
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A tool may want a question about what a rule allows; "always" does not talk it out of that.
#[tokio::test]
async fn a_tool_that_wants_a_question_gets_it_each_time() {
    let world = World::new().await;
    let session = world
        .session()
        .confirming(Confirming::Park)
        .policy(allowing(&["echo"]))
        .tool(echo("echo").wants_confirmation("it cannot be taken back").shared())
        .open()
        .await
        .unwrap();
    for nth in 1..=2 {
        let call = governed(&session, "echo", json!({}));
        let question = world.record.wait_nth("confirmation_required", nth, |_| true).await;
        assert_eq!(question["reason"], "it cannot be taken back");
        assert!(session.confirm(id_of(&question).into(), None, Reply::ApproveAlways).await);
        assert!(call.await.unwrap().is_success());
    }
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn time_rejects_and_never_approves() {
    let world = World::new().await;
    let session = world
        .session()
        .confirming(Confirming::RejectAfter(Duration::from_secs(30)))
        .tool(echo("echo").shared())
        .open()
        .await
        .unwrap();
    let began_at = tokio::time::Instant::now();
    let result = session.governed_tool("echo", json!({})).await.unwrap();
    assert!(began_at.elapsed() >= Duration::from_secs(30), "{:?}", began_at.elapsed());
    assert!(!result.is_success() && result.output.contains("nobody answered in time"), "{}", result.output);
    let expected = [
        "tool_proposed",
        "tool_request_bound",
        "confirmation_required",
        "confirmation_timeout",
        "permission_denied",
        "tool_end",
    ];
    assert_eq!(world.record.life_of(result.id.as_str()), expected);
    assert_eq!(world.record.the("confirmation_required", result.id.as_str())["timeout_ms"], 30_000);
    assert_eq!(world.record.the("confirmation_timeout", result.id.as_str())["action_taken"], "rejected");
    assert!(!session.confirm(result.id.clone(), None, Reply::Approve).await, "too late");
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_parked_question_waits_for_as_long_as_it_takes() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).tool(echo("echo").shared()).open().await.unwrap();
    let call = governed(&session, "echo", json!({}));
    let question = world.record.wait("confirmation_required", |_| true).await;
    assert_eq!(question["timeout_ms"], Value::Null);
    tokio::time::advance(Duration::from_secs(30 * 24 * 3600)).await;
    assert_eq!(session.pending_confirmations().await.unwrap().len(), 1);
    assert!(session.confirm(id_of(&question).into(), None, Reply::Approve).await);
    assert!(call.await.unwrap().is_success());
    world.end().await;
}

#[tokio::test]
async fn where_nobody_can_be_asked_nothing_that_needs_it_runs() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Unavailable).tool(echo("echo").shared()).open().await.unwrap();
    let result = session.governed_tool("echo", json!({})).await.unwrap();
    assert!(!result.is_success() && result.output.contains("nobody can be asked"), "{}", result.output);
    assert!(world.record.of_type("confirmation_required").is_empty());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// An answer belongs to the session that was asked: another one can neither see nor answer the question.
#[tokio::test]
async fn another_session_can_neither_see_nor_answer_a_question() {
    let world = World::new().await;
    let asked = world.session().confirming(Confirming::Park).tool(echo("echo").shared()).open().await.unwrap();
    let other = world.session().confirming(Confirming::Park).open().await.unwrap();
    let call = governed(&asked, "echo", json!({}));
    let question = world.record.wait("confirmation_required", |_| true).await;
    assert!(other.pending_confirmations().await.unwrap().is_empty());
    assert!(!other.confirm(id_of(&question).into(), None, Reply::Approve).await, "answered by a stranger");
    assert!(asked.confirm(id_of(&question).into(), None, Reply::Reject(None)).await);
    assert!(!call.await.unwrap().is_success());
    // What one session was granted for always is not granted in another.
    let call = governed(&asked, "echo", json!({"n": 1}));
    let question = world.record.wait_nth("confirmation_required", 2, |_| true).await;
    assert!(asked.confirm(id_of(&question).into(), None, Reply::ApproveAlways).await);
    assert!(call.await.unwrap().is_success());
    let third = world.session().confirming(Confirming::Unavailable).tool(echo("echo").shared()).open().await.unwrap();
    assert!(!third.governed_tool("echo", json!({"n": 1})).await.unwrap().is_success());
    world.at_rest(&[&asked, &other, &third]).await;
    world.end().await;
}

/// The question of a child run is asked in the session that the host opened.
#[tokio::test]
async fn a_childs_question_is_asked_in_the_session_of_the_host() {
    let world = World::new().await;
    let task = json!({"agent": "general", "description": "a child", "prompt": "child"});
    let session = world
        .session()
        .confirming(Confirming::Park)
        .policy(allowing(&["task"]))
        .tool(echo("echo").shared())
        .model(script(&[
            json!({"when": "go", "calls": [{"tool": "task", "arguments": task}]}),
            json!({"when": "go", "text": "done"}),
            json!({"when": "child", "calls": [{"tool": "echo"}]}),
            json!({"when": "child", "text": "asked and done"}),
        ]))
        .open()
        .await
        .unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |line| line["tool_name"] == "echo").await;
    assert_ne!(question["session_id"], session.id().as_str());
    assert_eq!(session.pending_confirmations().await.unwrap().len(), 1);
    assert!(session.confirm(id_of(&question).into(), None, Reply::Approve).await);
    assert_eq!(run.await.unwrap().text, "done");
    assert_eq!(world.record.end_of("echo")["exit_code"], 0);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The same number for ever: every id of the runtime is the same.
struct Stuck;

impl Entropy for Stuck {
    fn random_u128(&self) -> u128 {
        7
    }
}

/// Two live questions with one id would let one answer approve the wrong call: neither call runs.
#[tokio::test]
async fn two_questions_with_one_id_are_both_rejected() {
    let entropy = Arc::new(Stuck);
    let world = World::with(|builder| builder.effects(Effects { entropy, ..Effects::real() })).await;
    let gate = Gate::new();
    gate.let_go(2);
    let session =
        world.session().id("twins").confirming(Confirming::Park).tool(gate.tool("wait").shared()).open().await.unwrap();
    let (one, other) = tokio::join!(
        session.governed_tool("wait", json!({"say": "one"})),
        session.governed_tool("wait", json!({"say": "other"})),
    );
    for result in [one.unwrap(), other.unwrap()] {
        assert!(!result.is_success() && result.output.contains("same id"), "{}", result.output);
    }
    assert_eq!(gate.count(), 0);
    world.runtime.shut_down().await;
}

/// A session that closes withdraws its questions.
#[tokio::test]
async fn a_session_that_closes_withdraws_its_questions() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).tool(echo("echo").shared()).open().await.unwrap();
    let call = governed(&session, "echo", json!({}));
    world.record.wait("confirmation_required", |_| true).await;
    session.close().await;
    let result = call.await.unwrap();
    assert!(
        matches!(&result.error_kind, Some(ToolErrorKind::Cancelled { reason: Some(CancelReason::SessionClosed), .. })),
        "{result:?}"
    );
    world.at_rest(&[]).await;
    world.end().await;
}
