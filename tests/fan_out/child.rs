//! What a child gets from its parent: rules that it cannot widen, and a part of a budget.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden::hook::{Hook, HookVerdict, HookedCall};
use toolwarden::policy::Rule;
use toolwarden::prelude::BudgetLimits;
use toolwarden::scope::Confirming;
use toolwarden::skill_limits::SkillLimits;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::model::script;
use crate::support::tool::echo;
use crate::support::world::{World, allowing, policy};

fn child(agent: &str) -> Value {
    json!({"agent": agent, "description": "a child", "prompt": "child"})
}

/// One child that makes these calls and then answers.
fn making(calls: &Value) -> Vec<Value> {
    vec![json!({"when": "child", "calls": calls}), json!({"when": "child", "text": "the child's answer"})]
}

/// What the parent's policy denies is denied in the child, although a trusted host asked for the child.
#[tokio::test]
async fn a_policy_of_the_parent_holds_in_the_child() {
    let world = World::new().await;
    let calls = json!([{"tool": "bash", "arguments": {"command": "touch made"}}, {"tool": "ls"}]);
    let session = world
        .session()
        .policy(policy("deny = [\"bash\"]\nallow = [\"ls\"]"))
        .model(script(&making(&calls)))
        .open()
        .await
        .unwrap();
    assert!(session.tool("task", child("general")).await.unwrap().is_success());
    let bash = world.record.end_of("bash");
    assert_eq!(bash["metadata"]["refused"]["stage"], "permission");
    assert_eq!(world.record.the("tool_proposed", bash["id"].as_str().unwrap())["origin"], "agent");
    assert_eq!(world.record.end_of("ls")["exit_code"], 0);
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

struct Guard;

impl Hook for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn before<'a>(&'a self, call: HookedCall<'a>) -> BoxFuture<'a, HookVerdict> {
        let denied = call.tool.as_str() == "echo";
        let verdict = if denied { HookVerdict::Deny { reason: "no echo".to_owned() } } else { HookVerdict::Continue };
        Box::pin(std::future::ready(verdict))
    }
}

/// The same for hooks, for the limits of a skill, and for whether anybody can be asked.
#[tokio::test]
async fn hooks_skills_and_questions_of_the_parent_hold_in_the_child() {
    for stage in ["hook", "skill", "confirmation"] {
        let world = World::new().await;
        let builder = world
            .session()
            .tool(echo("echo").shared())
            .model(script(&making(&json!([{"tool": "echo"}]))))
            .confirming(Confirming::Unavailable);
        let builder = match stage {
            "hook" => builder.policy(allowing(&["echo"])).hook(Arc::new(Guard)),
            "skill" => {
                builder.policy(allowing(&["echo"])).skill(SkillLimits::new(vec![Rule::parse("ls").unwrap()]).unwrap())
            }
            _ => builder,
        };
        let session = builder.open().await.unwrap();
        assert!(session.tool("task", child("general")).await.unwrap().is_success());
        assert_eq!(world.record.end_of("echo")["metadata"]["refused"]["stage"], stage);
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// An agent has its own tools and no others, whatever its session allows.
#[tokio::test]
async fn an_agent_has_its_own_tools_alone() {
    let world = World::new().await;
    let calls = json!([{"tool": "bash", "arguments": {"command": "touch made"}}, {"tool": "ls"}]);
    let session =
        world.session().policy(allowing(&["bash", "ls"])).model(script(&making(&calls))).open().await.unwrap();
    assert!(session.tool("task", child("explore")).await.unwrap().is_success());
    assert_eq!(world.record.end_of("bash")["metadata"]["refused"]["stage"], "schema");
    assert_eq!(world.record.end_of("ls")["exit_code"], 0);
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A child's budget is a part of its parent's: the child is held to its own, its use counts in the parent's, and
/// the parent's holds for all children together.
#[tokio::test]
async fn a_childs_budget_is_carved_out_of_its_parents() {
    let world = World::new().await;
    let calls: Vec<Value> = (0..4).map(|n| json!({"tool": "echo", "arguments": { "n": n }})).collect();
    let limit = |calls| BudgetLimits { calls: Some(calls), ..BudgetLimits::default() };
    let session = world
        .session()
        .policy(allowing(&["echo"]))
        .budget(limit(6))
        .child_budget(limit(3))
        .tool(echo("echo").shared())
        .model(script(&making(&json!(calls))))
        .open()
        .await
        .unwrap();
    let ran = || {
        let ends = world.record.calls_of("echo").into_iter().map(|id| world.record.the("tool_end", &id));
        let (ran, refused): (Vec<Value>, Vec<Value>) = ends.partition(|end| end["exit_code"] == 0);
        let exhausted = serde_json::to_value(ToolErrorKind::BudgetExhausted { resource: "calls".into() }).unwrap();
        assert!(refused.iter().all(|end| end["error_kind"] == exhausted), "{refused:?}");
        ran.len()
    };
    // One call for the task itself, three of the child's four.
    assert!(session.tool("task", child("general")).await.unwrap().is_success());
    assert_eq!((ran(), session.budget().await.unwrap().spent.calls), (3, 4));
    // A new child has a new budget, but the parent has two calls left: the task and one more.
    assert!(session.tool("task", child("general")).await.unwrap().is_success());
    assert_eq!((ran(), session.budget().await.unwrap().spent.calls), (4, 6));
    // And now none.
    let refused = session.tool("task", child("general")).await.unwrap();
    assert_eq!(refused.error_kind, Some(ToolErrorKind::BudgetExhausted { resource: "calls".into() }));
    assert_eq!(world.record.of_type("subagent_start").len(), 2);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Tokens count in the same way, and a child whose tokens are used up says so.
#[tokio::test]
async fn tokens_of_children_count_in_the_parents_budget() {
    let world = World::new().await;
    let budget = BudgetLimits { output_tokens: Some(25), ..BudgetLimits::default() };
    let answer = json!({"when": "child", "text": "an answer", "usage": {"input_tokens": 7, "output_tokens": 10}});
    let session = world.session().budget(budget).model(script(&[answer])).open().await.unwrap();
    let tasks = json!({"tasks": vec![child("general"); 2]});
    assert!(session.tool("task", tasks.clone()).await.unwrap().is_success());
    let spent = session.budget().await.unwrap().spent;
    assert_eq!((spent.input_tokens, spent.output_tokens), (14, 20));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A child has no more rounds than its task gives it.
#[tokio::test]
async fn a_child_ends_at_the_steps_of_its_task() {
    let world = World::new().await;
    let calls = json!({"when": "child", "calls": [{"tool": "a"}, {"tool": "b"}], "repeat": true});
    let session = world.session().model(script(&[calls])).open().await.unwrap();
    let mut task = child("general");
    task["max_steps"] = json!(2);
    let result = session.tool("task", task).await.unwrap();
    assert!(!result.is_success() && result.output.contains("limit of 2 rounds"), "{}", result.output);
    assert_eq!(world.record.calls_of("a").len(), 2);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A child has its own memory of files: what its parent read and was changed since is refused to the parent alone.
#[tokio::test]
async fn a_child_has_its_own_memory_of_files() {
    let world = World::new().await;
    std::fs::write(world.path().join("file"), "old\n").unwrap();
    let write = json!({"file_path": "file", "content": "new\n"});
    let calls = json!([{"tool": "write", "arguments": write}]);
    let session = world.session().policy(allowing(&["write"])).model(script(&making(&calls))).open().await.unwrap();
    assert!(session.tool("read", json!({"file_path": "file"})).await.unwrap().is_success());
    std::fs::write(world.path().join("file"), "changed\n").unwrap();
    let refused = session.tool("write", write).await.unwrap();
    assert!(matches!(refused.error_kind, Some(ToolErrorKind::VersionConflict { .. })), "{refused:?}");
    assert!(session.tool("task", child("general")).await.unwrap().is_success());
    let calls = world.record.calls_of("write");
    assert_eq!(world.record.the("tool_end", &calls[1])["exit_code"], 0, "{}", world.record.shown());
    assert_eq!(std::fs::read_to_string(world.path().join("file")).unwrap(), "new\n");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// An answer in the form that was asked for comes back as it is, and one in another form is no success.
#[tokio::test]
async fn an_answer_has_the_form_that_was_asked_for() {
    let world = World::new().await;
    let turns = [
        json!({"when": "count them", "text": "```json\n{\"count\": 3}\n```"}),
        json!({"when": "say it", "text": "there are three"}),
        // Its model is asked once more, for the form alone.
        json!({"when": "add nothing:\nthere are three", "text": "{\"count\": 3}"}),
        json!({"when": "guess", "text": "some"}),
        json!({"when": "add nothing:\nsome", "text": "still some", "repeat": true}),
    ];
    let session = world.session().model(script(&turns)).open().await.unwrap();
    let schema = json!({"type": "object", "required": ["count"], "properties": {"count": {"type": "integer"}}});
    let asking =
        |prompt: &str| json!({"agent": "general", "description": "d", "prompt": prompt, "output_schema": schema});
    let counted = session.tool("task", asking("count them")).await.unwrap();
    assert!(counted.is_success(), "{}", counted.output);
    assert_eq!(counted.metadata["structured"], json!({"count": 3}));
    let prompt = &world.record.of_type("agent_start")[0]["prompt"];
    assert!(prompt.as_str().unwrap().contains("\"required\":[\"count\"]"), "{prompt}");
    let guessed = session.tool("task", json!({"tasks": [asking("say it"), asking("guess")]})).await.unwrap();
    let results = &guessed.metadata["results"];
    assert_eq!((&results[0]["success"], &results[0]["structured"]), (&json!(true), &json!({"count": 3})));
    assert_eq!(results[1]["success"], false);
    assert!(
        results[1].get("structured").is_none() && guessed.output.contains("form that was asked for"),
        "{guessed:?}"
    );
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// An answer that is shown in part is kept as a whole, and the result says where.
#[tokio::test]
async fn the_whole_of_a_long_answer_is_kept() {
    let world = World::new().await;
    let long = "a long answer. ".repeat(1000);
    let session = world.session().model(script(&[json!({"when": "child", "text": long})])).open().await.unwrap();
    let result = session.tool("task", child("general")).await.unwrap();
    assert!(result.is_success() && result.output.len() < 5_000, "{}", result.output);
    assert_eq!(result.metadata["truncated_for_context"], true);
    let id = result.metadata["task_id"].as_str().unwrap();
    assert_eq!(result.metadata["artifact_id"], format!("task-output:{id}"));
    let uri = result.metadata["artifact_uri"].as_str().unwrap();
    let mut artifact = session.artifact(uri).await.unwrap();
    let whole = artifact.read(0..artifact.size_bytes()).unwrap();
    assert_eq!(String::from_utf8(whole).unwrap(), long);
    world.at_rest(&[&session]).await;
    world.end().await;
}
