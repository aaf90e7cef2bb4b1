//! The order of the stages, and what each origin skips.

use serde_json::{Value, json};
use toolwarden_tools::digest::Digest;

use crate::support::model::script;
use crate::support::tool::{echo, nesting};
use crate::support::world::{World, allowing, policy};

#[tokio::test]
async fn each_call_is_proposed_bound_started_and_ended_in_this_order() {
    let world = World::new().await;
    let session = world.session().policy(allowing(&["ls"])).open().await.unwrap();
    let trusted = session.tool("ls", json!({})).await.unwrap();
    let governed = session.governed_tool("ls", json!({})).await.unwrap();
    for result in [&trusted, &governed] {
        assert!(result.is_success(), "{}", result.output);
        let life = world.record.life_of(result.id.as_str());
        assert_eq!(life, ["tool_proposed", "tool_request_bound", "tool_execution_start", "tool_end"]);
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_question_comes_after_the_binding_and_before_the_start() {
    let world = World::new().await;
    let session = world.open().await;
    let asked = tokio::spawn({
        let session = session.clone();
        async move { session.governed_tool("ls", json!({})).await.unwrap() }
    });
    let question = world.record.wait("confirmation_required", |_| true).await;
    let id = question["tool_id"].as_str().unwrap();
    assert!(session.confirm(id.into(), None, toolwarden::prelude::Reply::Approve).await);
    assert!(asked.await.unwrap().is_success());
    let expected = [
        "tool_proposed",
        "tool_request_bound",
        "confirmation_required",
        "confirmation_received",
        "tool_execution_start",
        "tool_end",
    ];
    assert_eq!(world.record.life_of(id), expected);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// What the policy denies, by origin: a trusted host and the built-in orchestrators that it calls are not asked;
/// everybody else is refused, after the binding and before any start.
#[tokio::test]
async fn only_the_hosts_own_trust_skips_the_policy() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(policy("deny = [\"echo\"]\nallow = [\"batch\", \"nest\"]"))
        .tool(echo("echo").shared())
        .tool(nesting("nest").shared())
        .model(script(&[json!({"calls": [{"tool": "echo", "arguments": {"by": "agent"}}]}), json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    let batch = |by: &str| json!({"invocations": [{"tool": "echo", "args": {"by": by}}]});
    session.tool("echo", json!({"by": "host"})).await.unwrap();
    session.governed_tool("echo", json!({"by": "governed"})).await.unwrap();
    session.tool("batch", batch("host's batch")).await.unwrap();
    session.governed_tool("batch", batch("governed batch")).await.unwrap();
    session.tool("nest", json!({"calls": [["echo", {"by": "custom"}]]})).await.unwrap();
    session.run("go").await.unwrap();

    let expected = [
        ("host_direct_trusted", true),
        ("host_direct_governed", false),
        ("host_direct_nested_trusted", true),
        ("host_direct_nested_governed", false),
        ("nested", false),
        ("agent", false),
    ];
    let calls = world.record.calls_of("echo");
    assert_eq!(calls.len(), expected.len());
    for (id, (origin, runs)) in calls.iter().zip(expected) {
        assert_eq!(world.record.the("tool_proposed", id)["origin"], origin);
        assert_eq!(world.record.the("tool_request_bound", id)["snapshot"]["origin"], origin);
        let third = if runs { "tool_execution_start" } else { "permission_denied" };
        assert_eq!(world.record.life_of(id), ["tool_proposed", "tool_request_bound", third, "tool_end"], "{origin}");
        let end = world.record.the("tool_end", id);
        assert_eq!(end["exit_code"] == 0, runs, "{origin}: {end}");
        if !runs {
            assert_eq!(end["metadata"]["refused"]["stage"], "permission");
            let denied = world.record.the("permission_denied", id);
            assert!(denied["reason"].as_str().unwrap().contains("echo"), "{denied}");
        }
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_skill_narrows_everybody_but_the_trusted_host() {
    let world = World::new().await;
    let rules = vec![toolwarden::policy::Rule::parse("ls").unwrap()];
    let session = world
        .session()
        .policy(allowing(&["echo", "ls"]))
        .skill(toolwarden::skill_limits::SkillLimits::new(rules).unwrap())
        .tool(echo("echo").shared())
        .open()
        .await
        .unwrap();
    assert!(session.tool("echo", json!({})).await.unwrap().is_success());
    assert!(session.governed_tool("ls", json!({})).await.unwrap().is_success());
    let refused = session.governed_tool("echo", json!({})).await.unwrap();
    assert_eq!(refused.metadata["refused"]["stage"], "skill");
    let life = world.record.life_of(refused.id.as_str());
    assert_eq!(life, ["tool_proposed", "tool_request_bound", "permission_denied", "tool_end"]);
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn the_binding_holds_digests_of_the_arguments_and_not_their_text() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).open().await.unwrap();
    let arguments = json!({"b": "a word nobody else writes", "a": 1});
    let result = session.tool("echo", arguments.clone()).await.unwrap();
    let bound = world.record.the("tool_request_bound", result.id.as_str());
    assert!(!bound.to_string().contains("a word nobody else writes"));
    let snapshot = &bound["snapshot"];
    assert_eq!(snapshot["argumentsDigest"], Digest::of_json(&arguments).as_str());
    assert_eq!(snapshot["argumentsBytes"], arguments.to_string().len());
    assert_eq!(snapshot["toolNameDigest"], Digest::of(b"echo").as_str());
    world.end().await;
}

#[tokio::test]
async fn null_arguments_are_an_empty_object() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).open().await.unwrap();
    assert_eq!(session.tool("echo", Value::Null).await.unwrap().output, "{}");
    assert!(session.tool("ls", Value::Null).await.unwrap().is_success());
    world.end().await;
}
