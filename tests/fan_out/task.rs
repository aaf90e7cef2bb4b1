//! Child runs beside each other: order, width, early ends.

use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::run_status::RunStatus;
use toolwarden::scope::CallLimits;

use crate::support::model::script;
use crate::support::tool::{Gate, nesting};
use crate::support::world::{World, allowing, narrow_lanes};

/// So many tasks for a general agent; the prompt of each is its number in words that none other contains.
fn tasks(count: usize) -> Vec<Value> {
    let task = |n: usize| json!({"agent": "general", "description": format!("task {n}"), "prompt": prompt(n)});
    (0..count).map(task).collect()
}

fn prompt(n: usize) -> String {
    format!("work number {n:02}.")
}

/// Each child waits in the gate once and answers with its number.
fn waiting(count: usize) -> Vec<Value> {
    let turns = |n| {
        let calls = json!([{"tool": "wait", "arguments": {"say": format!("gate {n:02}")}}]);
        [json!({"when": prompt(n), "calls": calls}), json!({"when": prompt(n), "text": format!("answer {n:02}")})]
    };
    (0..count).flat_map(turns).collect()
}

fn successes(facts: &Value) -> Vec<bool> {
    facts.as_array().unwrap().iter().map(|result| result["success"].as_bool().unwrap()).collect()
}

/// Case C175: every lane lets one call through, models included, and children that batch, nest and delegate still
/// end, two parents beside each other.
#[tokio::test]
async fn children_that_batch_end_where_every_lane_lets_one_through() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let read = json!({"tool": "read", "args": {"file_path": "file"}});
    let nested = json!({"tool": "nest", "args": {"calls": [["read", {"file_path": "file"}], ["ls", {}]]}});
    let batch = json!({"invocations": [read, nested, read, nested]});
    let deeper = json!({"agent": "general", "description": "deeper", "prompt": "deeper"});
    let calls = json!([{"tool": "batch", "arguments": batch}, {"tool": "task", "arguments": deeper}]);
    let mut turns = vec![
        json!({"when": "go", "calls": [{"tool": "task", "arguments": {"tasks": tasks(3)}}]}),
        json!({"when": "go", "text": "done"}),
        json!({"when": "deeper", "calls": [{"tool": "batch", "arguments": batch}]}),
        json!({"when": "deeper", "text": "deep answer"}),
    ];
    turns.extend((0..3).flat_map(|n| {
        [json!({"when": prompt(n), "calls": calls}), json!({"when": prompt(n), "text": format!("answer {n:02}")})]
    }));
    let model = script(&turns);
    let open = async || {
        let rules = allowing(&["task", "batch", "read", "ls", "nest"]);
        world.session().policy(rules).tool(nesting("nest").shared()).model(model.clone()).open().await.unwrap()
    };
    let (one, other) = (open().await, open().await);
    let (first, second) = tokio::join!(one.run("go"), other.run("go"));
    for outcome in [first.unwrap(), second.unwrap()] {
        assert_eq!((outcome.status, outcome.text.as_str()), (RunStatus::Completed, "done"));
    }
    assert_eq!(world.record.of_type("subagent_end").len(), 12);
    assert!(world.record.of_type("tool_end").iter().all(|end| end["exit_code"] == 0), "{}", world.record.shown());
    world.at_rest(&[&one, &other]).await;
    world.end().await;
}

/// The largest task: in the order asked, each in a session of its own, never more at a time than the width.
#[tokio::test]
async fn thirty_two_children_answer_in_the_order_asked() {
    const CHILDREN: usize = 32;
    const WIDTH: usize = 8;
    let world = World::new().await;
    let gate = Gate::new();
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").shared())
        .model(script(&waiting(CHILDREN)))
        .open()
        .await
        .unwrap();
    let call = tokio::spawn({
        let session = session.clone();
        async move { session.tool("task", json!({"tasks": tasks(CHILDREN)})).await.unwrap() }
    });
    gate.holds(WIDTH).await;
    gate.let_go(CHILDREN);
    let result = call.await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    assert_eq!((gate.most(), gate.count()), (WIDTH, CHILDREN));
    let answers: Vec<usize> = (0..CHILDREN).map(|n| result.output.find(&format!("answer {n:02}")).unwrap()).collect();
    assert!(answers.is_sorted(), "{}", result.output);
    let results = result.metadata["results"].as_array().unwrap();
    let mut sessions: Vec<&str> = results.iter().map(|result| result["session_id"].as_str().unwrap()).collect();
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!(sessions.len(), CHILDREN);
    assert_eq!(world.record.of_type("subagent_start").len(), CHILDREN);
    assert_eq!(world.record.of_type("subagent_end").len(), CHILDREN);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Case C179 for children: one that fails and one whose model breaks down are results, and lose nobody else.
#[tokio::test]
async fn a_child_that_fails_or_breaks_is_a_result() {
    let world = World::new().await;
    let broken = crate::support::model::Answering(|request: &toolwarden::models::ModelRequest| {
        let prompt = match &request.messages[0] {
            toolwarden::models::Message::User { text } => text.as_str(),
            _ => "",
        };
        match prompt {
            "work number 01." => Err(toolwarden::models::ModelError::Invalid { message: "not that".to_owned() }),
            "work number 02." => std::panic::resume_unwind(Box::new("a model broke on purpose")),
            prompt => Ok(toolwarden::models::ModelTurn::answer(format!("answer to {prompt}"))),
        }
    });
    let session = world.session().model(std::sync::Arc::new(broken)).open().await.unwrap();
    let asked = json!({"tasks": tasks(4), "allow_partial_failure": true});
    let result = session.tool("task", asked).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    assert_eq!(successes(&result.metadata["results"]), [true, false, false, true]);
    for failed in [1, 2] {
        let words = result.metadata["results"][failed]["error_message"].as_str().unwrap();
        assert!(!words.trim().is_empty() && !words.contains("on purpose"), "{words}");
    }
    // Without the leave to fail in part, the same is a failure that says how many.
    let strict = session.tool("task", json!({"tasks": tasks(4)})).await.unwrap();
    assert_eq!(
        serde_json::to_value(&strict.error_kind).unwrap(),
        json!({"type": "partial_failure", "failed": 2, "total": 4})
    );
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Enough successes end the rest: what had not ended is cancelled, and what had not started never starts.
#[tokio::test]
async fn enough_successes_end_the_rest() {
    let world = World::new().await;
    let gate = Gate::new();
    let mut turns = waiting(12);
    // The third answers at once.
    turns.retain(|turn| turn["when"] != prompt(2));
    turns.push(json!({"when": prompt(2), "text": "quick"}));
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").shared())
        .model(script(&turns))
        .open()
        .await
        .unwrap();
    let asked = json!({"tasks": tasks(12), "allow_partial_failure": true, "min_success_count": 1});
    let result = session.tool("task", asked).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    assert_eq!(result.metadata["returned_early"], true);
    let ok = successes(&result.metadata["results"]);
    assert_eq!(ok.iter().position(|ok| *ok), Some(2));
    assert_eq!(ok.iter().filter(|ok| **ok).count(), 1);
    let words = |n: usize| result.metadata["results"][n]["error_message"].as_str().unwrap().to_owned();
    assert!(words(0).contains("enough siblings succeeded"), "{}", words(0));
    assert!(words(11).contains("not started") && words(11).contains("enough siblings"), "{}", words(11));
    gate.holds(0).await;
    assert!(world.record.of_type("subagent_start").len() < 12);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The time of a task is over: what there is by then counts.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_task_ends_it_with_what_there_is() {
    let world = World::new().await;
    let gate = Gate::new();
    let mut turns = waiting(3);
    turns.retain(|turn| turn["when"] != prompt(1));
    turns.push(json!({"when": prompt(1), "text": "in time"}));
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").shared())
        .model(script(&turns))
        .open()
        .await
        .unwrap();
    let began_at = tokio::time::Instant::now();
    let asked = json!({"tasks": tasks(3), "allow_partial_failure": true, "timeout_ms": 60_000});
    let result = session.tool("task", asked).await.unwrap();
    let took = began_at.elapsed();
    assert!(took >= Duration::from_secs(60) && took < Duration::from_secs(62), "{took:?}");
    assert!(result.is_success(), "{}", result.output);
    assert_eq!((&result.metadata["timed_out"], &result.metadata["returned_early"]), (&json!(true), &json!(false)));
    assert_eq!(successes(&result.metadata["results"]), [false, true, false]);
    let words = result.metadata["results"][0]["error_message"].as_str().unwrap();
    assert!(words.contains("60000 ms"), "{words}");
    world.settled(&[&session]).await;
    world.end().await;
}

/// Delegation ends at its depth, also when every child delegates again.
#[tokio::test]
async fn delegation_ends_at_its_depth() {
    let world = World::new().await;
    let task = json!({"agent": "general", "description": "again", "prompt": "again"});
    let session = world
        .session()
        .policy(allowing(&["task"]))
        .call_limits(CallLimits { depth_max: 3, ..CallLimits::default() })
        .model(script(&[json!({"calls": [{"tool": "task", "arguments": task}]}), json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    assert_eq!(session.run("go").await.unwrap().text, "done");
    // The run's own task, and three levels inside of it; the next one is refused.
    assert_eq!(world.record.of_type("subagent_start").len(), 4);
    let refused: Vec<Value> = world
        .record
        .of_type("tool_end")
        .into_iter()
        .filter(|end| end["metadata"]["refused"]["stage"] == "recursion")
        .collect();
    assert_eq!(refused.len(), 1);
    world.at_rest(&[&session]).await;
    world.end().await;
}
