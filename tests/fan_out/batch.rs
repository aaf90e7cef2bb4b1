//! Calls beside each other in a batch and in a turn.

use std::panic::resume_unwind;

use serde_json::{Value, json};
use toolwarden_actors::permit_pool::BulkheadLimits;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::Lane;

use crate::support::model::script;
use crate::support::tool::{Gate, custom, nesting};
use crate::support::world::{World, allowing, narrow_lanes};

fn of(tool: &str, count: usize) -> Vec<Value> {
    (0..count).map(|say| json!({"tool": tool, "args": {"say": format!("call {say}")}})).collect()
}

/// Case C175: every lane lets one call through, and batches of reads, of writes and of nesting tools still end,
/// two of each beside each other.
#[tokio::test]
async fn nothing_waits_for_ever_where_every_lane_lets_one_through() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let calls = [
        json!({"tool": "read", "args": {"file_path": "file"}}),
        json!({"tool": "ls", "args": {}}),
        json!({"tool": "search", "args": {"mode": "grep", "query": "text"}}),
        json!({"tool": "nest", "args": {"calls": [["read", {"file_path": "file"}], ["nest", {"calls": [["ls", {}]]}]]}}),
        json!({"tool": "bash", "args": {"command": "cat file"}}),
    ];
    let open = async || {
        let builder = world.session().policy(allowing(&["read", "ls", "nest"])).tool(nesting("nest").shared());
        builder.open().await.unwrap()
    };
    let (one, other) = (open().await, open().await);
    let batch = json!({"invocations": calls.iter().cycle().take(15).collect::<Vec<_>>()});
    let (first, second, third) = tokio::join!(
        one.tool("batch", batch.clone()),
        one.tool("batch", batch.clone()),
        other.tool("batch", batch.clone()),
    );
    for result in [first, second, third] {
        let result = result.unwrap();
        assert_eq!(result.metadata["success_count"], 15, "{}", result.output);
    }
    world.at_rest(&[&one, &other]).await;
    world.end().await;
}

/// Case C041: calls of one batch that change one file take turns in the order of the calls, whatever they call it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_one_file_take_turns_in_the_order_of_the_calls() {
    let world = World::new().await;
    std::fs::write(world.path().join("f"), "a\nb\nc\n").unwrap();
    std::os::unix::fs::symlink("f", world.path().join("link")).unwrap();
    let session = world.open().await;
    let edit = |path: &str, old: &str, new: &str| json!({"tool": "edit", "args": {"file_path": path, "old_string": old, "new_string": new}});
    let append = json!({"tool": "write", "args": {"file_path": "./f", "content": "e\n", "mode": "append", "expected_offset": 8}});
    let calls = [
        edit("f", "a", "A"),
        edit("./f", "b", "B"),
        edit("link", "c\n", "C\nd\n"),
        append,
        json!({"tool": "patch", "args": {"file_path": "f", "diff": "@@ -4,2 +4,2 @@\n d\n-e\n+E\n"}}),
    ];
    let batch = session.tool("batch", json!({"invocations": calls, "max_concurrency": 16})).await.unwrap();
    assert_eq!(batch.metadata["success_count"], 5, "{}", batch.output);
    assert_eq!(std::fs::read_to_string(world.path().join("f")).unwrap(), "A\nB\nC\nd\nE\n");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Case C178: never more than the lane lets through, and exactly that many when there is enough work.
#[tokio::test]
async fn a_lane_and_a_width_are_kept_and_used() {
    // Permits of the lane, the batch's width, the tool's own parallelism, and what comes of them.
    for (permits, width, parallelism, expected) in [(3, 16, 16, 3), (16, 4, 16, 4), (16, 16, 2, 2), (16, 8, 1, 1)] {
        let limits = BulkheadLimits { permits, queue_max: 64, breaker: None };
        let world =
            World::with(|builder| builder.lanes(toolwarden::lanes::LaneLimits::default().with(Lane::Execute, limits)))
                .await;
        let gate = Gate::new();
        let session = world.session().tool(gate.tool("wait").reads(parallelism).shared()).open().await.unwrap();
        let call = tokio::spawn({
            let session = session.clone();
            async move {
                let batch = json!({"invocations": of("wait", 10), "max_concurrency": width});
                session.tool("batch", batch).await.unwrap()
            }
        });
        gate.holds(expected).await;
        for passed in 1..=10 {
            gate.entered((expected + passed - 1).min(10)).await;
            gate.let_go(1);
        }
        let result = call.await.unwrap();
        assert!(result.is_success(), "{}", result.output);
        assert_eq!((gate.most(), gate.count()), (expected, 10), "{permits} {width} {parallelism}");
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// Case C179: results in the order asked, although they finish in the reverse one; a failure and a panic are results
/// of their own calls.
#[tokio::test]
async fn results_stand_in_the_order_asked_whatever_happens_to_each() {
    let world = World::new().await;
    let gate = Gate::new();
    let last_first = custom("mixed", {
        let gate = gate.clone();
        move |ctx, arguments| {
            let gate = gate.clone();
            async move {
                match arguments["say"].as_str().unwrap() {
                    "call 1" => ToolOutcome::failure("it went wrong"),
                    "call 2" => resume_unwind(Box::new("a tool broke on purpose")),
                    // The first one asked is the last to end.
                    "call 0" => {
                        gate.pass(&ctx).await.unwrap();
                        ToolOutcome::success("call 0")
                    }
                    _ => {
                        gate.let_go(1);
                        ToolOutcome::success(arguments["say"].as_str().unwrap())
                    }
                }
            }
        }
    });
    let session = world.session().tool(last_first.reads(8).shared()).open().await.unwrap();
    let result = session.tool("batch", json!({"invocations": of("mixed", 4)})).await.unwrap();
    let results = result.metadata["results"].as_array().unwrap();
    let ok: Vec<bool> = results.iter().map(|result| result["success"].as_bool().unwrap()).collect();
    assert_eq!(ok, [true, false, false, true], "{}", result.output);
    assert_eq!(result.metadata["failed_indices"], json!([1, 2]));
    assert_eq!(results[2]["error_kind"], json!({"type": "crashed"}));
    let places = ["call 0", "it went wrong", "broke down", "call 3"].map(|text| result.output.find(text).unwrap());
    assert!(places.is_sorted(), "{}", result.output);
    let ends = world.record.of_type("tool_end");
    assert_eq!(ends[ends.len() - 2]["output"], "call 0", "the first asked ended last");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Calls that change something run one after another, in a batch and in a turn.
#[tokio::test]
async fn calls_that_change_something_run_alone() {
    let world = World::new().await;
    let gate = Gate::new();
    gate.let_go(12);
    let calls: Vec<Value> =
        (0..6).map(|say| json!({"tool": "wait", "arguments": {"say": format!("turn {say}")}})).collect();
    let session = world
        .session()
        .policy(allowing(&["wait"]))
        .tool(gate.tool("wait").shared())
        .model(script(&[json!({ "calls": calls }), json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    assert!(session.tool("batch", json!({"invocations": of("wait", 6)})).await.unwrap().is_success());
    assert_eq!(session.run("go").await.unwrap().text, "done");
    assert_eq!((gate.most(), gate.count()), (1, 12));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The largest batch, and one more.
#[tokio::test]
async fn thirty_two_calls_are_a_batch_and_thirty_three_are_not() {
    let world = World::new().await;
    let gate = Gate::new();
    gate.let_go(32);
    let session = world.session().tool(gate.tool("wait").reads(16).shared()).open().await.unwrap();
    let whole = session.tool("batch", json!({"invocations": of("wait", 32)})).await.unwrap();
    assert_eq!(whole.metadata["success_count"], 32);
    let too_many = session.tool("batch", json!({"invocations": of("wait", 33)})).await.unwrap();
    assert!(!too_many.is_success());
    assert_eq!(gate.count(), 32);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Each call of a batch is judged as if it stood alone.
#[tokio::test]
async fn a_batch_is_no_way_round_the_rules() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(crate::support::world::policy("allow = [\"batch\", \"read\"]\ndeny = [\"bash\"]"))
        .open()
        .await
        .unwrap();
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let batch = json!({"invocations": [
        {"tool": "read", "args": {"file_path": "file"}},
        {"tool": "bash", "args": {"command": "touch made"}},
        {"tool": "nothing", "args": {}},
    ]});
    let result = session.governed_tool("batch", batch).await.unwrap();
    assert_eq!(result.metadata["failed_indices"], json!([1, 2]), "{}", result.output);
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}
