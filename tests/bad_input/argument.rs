//! Arguments that are wrong, huge, or nested without end.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use toolwarden::hook::{Hook, HookVerdict, HookedCall};
use toolwarden_tools::json_depth::JSON_DEPTH_MAX;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};

use crate::support::model::script;
use crate::support::tool::{custom, echo, nesting};
use crate::support::world::{World, allowing};

/// Longest output that a refusal of bad input may have, in bytes: it must not repeat a megabyte.
const REFUSAL_BYTES_MAX: usize = 8 * 1024;

/// Levels that overflow any stack when walked by recursion, dropping included.
const DEEP: usize = 100_000;

fn deep_list() -> Value {
    (0..DEEP).fold(json!(1), |inner, _| Value::Array(vec![inner]))
}

fn deep_object() -> Value {
    (0..DEEP).fold(json!(1), |inner, _| Value::Object(Map::from_iter([("a".to_owned(), inner)])))
}

#[tokio::test]
async fn wrong_arguments_are_explained_fault_by_fault_and_run_nothing() {
    let world = World::new().await;
    let session = world.open().await;
    // What is sent, and what the explanation must name.
    let wrong = [
        ("read", json!({"file_path": 7}), "/file_path"),
        ("read", json!({"file_path": "a", "file": "b"}), "file"),
        ("read", json!({"file_path": "a", "offset": -1}), "/offset"),
        ("read", json!({"file_path": "a", "files": [{"path": "b"}]}), "only one"),
        ("read", json!([]), "object"),
        ("read", json!("a"), "object"),
        ("read", json!(7), "object"),
        ("write", json!({"file_path": "a", "content": null}), "/content"),
        ("write", json!({"file_path": "a"}), "content"),
        ("edit", json!({"file_path": "a", "old_string": "", "new_string": "b"}), "/old_string"),
        ("ls", json!({"path": {"a": 1}}), "/path"),
        ("search", json!({"mode": "regex", "query": "a"}), "/mode"),
        ("search", json!({"mode": "grep", "query": "a("}), "pattern"),
        ("bash", json!({"command": ["ls"]}), "/command"),
        ("bash", json!({"command": "ls\u{0}"}), "NUL"),
        ("bash", json!({"command": "   "}), "empty"),
        ("bash", json!({"command": "ls", "background": 1}), "/background"),
        ("process", json!({"action": "kill"}), "/action"),
        ("process", json!({"action": "read"}), "id"),
        ("process", json!({"action": "read", "id": "bg-1", "cursor": "x"}), "/cursor"),
        ("git", json!({}), "command"),
        ("git", json!({"command": "push"}), "/command"),
        ("git", json!({"command": "status", "ref": "main"}), "ref"),
        ("git", json!({"command": "log", "limit": 0}), "/limit"),
        ("git", json!({"command": "log", "ref": "--output=x"}), "ref"),
        ("git", json!({"command": "log", "ref": "a\u{0}b"}), "ref"),
        ("git", json!({"command": "diff", "max_bytes": 1}), "max_bytes"),
        ("batch", json!({"invocations": []}), "/invocations"),
        ("batch", json!({"invocations": [{"tool": "ls"}]}), "args"),
        ("batch", json!({"invocations": [{"tool": "ls", "args": [], "step": 0}]}), "/invocations/0"),
        ("task", json!({"tasks": [{"agent": "nobody", "description": "a", "prompt": "b"}]}), "nobody"),
        ("task", json!({"tasks": []}), "/tasks"),
        ("task", json!({"agent": "explore"}), "description"),
    ];
    for (tool, arguments, names) in wrong {
        let result = session.tool(tool, arguments.clone()).await.unwrap();
        assert!(!result.is_success(), "{tool} {arguments}");
        assert!(
            matches!(result.error_kind, Some(ToolErrorKind::InvalidArgument { .. })),
            "{tool} {arguments}: {result:?}"
        );
        assert!(result.output.contains(names), "{tool} {arguments}: {}", result.output);
        assert!(result.output.len() <= REFUSAL_BYTES_MAX);
    }
    assert_eq!(std::fs::read_dir(world.path()).unwrap().count(), 0, "something was made");
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_megabyte_of_arguments_is_taken_or_refused_and_never_repeated() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).open().await.unwrap();
    let megabyte = "x".repeat(1024 * 1024);
    let long = [
        ("nothing", json!({ "a": megabyte })),
        (megabyte.as_str(), json!({})),
        ("read", json!({ "file_path": megabyte })),
        ("ls", json!({ "path": megabyte })),
        ("ls", json!({ "wrong": megabyte })),
        ("ls", json!({ megabyte.as_str(): 1 })),
        ("search", json!({"mode": megabyte, "query": "a"})),
        ("search", json!({"mode": "grep", "query": megabyte})),
        ("bash", json!({ "command": megabyte })),
        ("bash", json!({"command": megabyte, "background": true})),
        ("git", json!({"command": "log", "ref": megabyte})),
        ("bash", json!({"command": "true", "env": {"A": megabyte}})),
        ("edit", json!({"file_path": "absent", "old_string": megabyte, "new_string": ""})),
        ("batch", json!({ "invocations": vec![json!({"tool": "ls", "args": {}}); 10_000] })),
        ("task", json!({"agent": "explore", "description": "a", "prompt": megabyte})),
    ];
    for (tool, arguments) in long {
        let shown: String = format!("{tool} {arguments}").chars().take(60).collect();
        let result = session.tool(tool, arguments).await.unwrap();
        assert!(!result.is_success(), "{shown}");
        assert!(result.error_kind.is_some(), "{shown}: {:?}", result.output);
        assert!(result.output.len() <= REFUSAL_BYTES_MAX, "{shown}: {} bytes", result.output.len());
    }
    let written = session.tool("write", json!({"file_path": "big", "content": megabyte})).await.unwrap();
    assert!(written.is_success(), "{}", written.output);
    assert_eq!(std::fs::metadata(world.path().join("big")).unwrap().len(), megabyte.len() as u64);
    // A tool's own megabyte is projected, and the evidence says so.
    let echoed = session.tool("echo", json!({ "a": megabyte })).await.unwrap();
    assert!(echoed.is_success() && echoed.output.len() < megabyte.len());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Values that are nested so deep can only be built in code, or by a hook, or by a tool; dropping one by recursion
/// would already end the process.
#[tokio::test]
async fn endless_nesting_is_refused_wherever_it_comes_from() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(allowing(&["echo", "nest"]))
        .tool(echo("echo").shared())
        .tool(nesting("nest").shared())
        .open()
        .await
        .unwrap();
    for arguments in [deep_list(), deep_object()] {
        let result = session.tool("echo", arguments).await.unwrap();
        assert!(result.output.contains("nested deeper"), "{}", result.output);
        assert!(matches!(result.error_kind, Some(ToolErrorKind::InvalidArgument { .. })));
    }
    let unknown = session.tool("nothing", deep_object()).await.unwrap();
    assert!(!unknown.is_success());
    let governed = session.governed_tool("echo", deep_object()).await.unwrap();
    assert!(governed.output.contains("nested deeper"), "{}", governed.output);
    let batch = json!({"invocations": [{"tool": "echo", "args": {}}]});
    let mut deep = batch.clone();
    deep["invocations"][0]["args"] = deep_object();
    assert!(!session.tool("batch", deep).await.unwrap().is_success());
    assert!(session.tool("batch", batch).await.unwrap().is_success());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// As text: 100,000 opening brackets are no JSON for anybody, and the model is told.
#[tokio::test]
async fn endless_nesting_as_text_is_malformed() {
    let world = World::new().await;
    let brackets = "[".repeat(DEEP);
    let session = world
        .session()
        .model(script(&[
            json!({"calls": [{"tool": "ls", "arguments_text": brackets}]}),
            json!({"calls": [{"tool": "ls", "arguments_text": format!("{{\"path\":{brackets}")}]}),
            json!({"text": "I give up"}),
        ]))
        .open()
        .await
        .unwrap();
    let outcome = session.run("go").await.unwrap();
    assert_eq!((outcome.status.as_str(), outcome.text.as_str()), ("completed", "I give up"));
    assert_eq!(world.record.calls_of("ls"), Vec::<String>::new());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A tool and a hook of the host's that answer with endless nesting.
#[tokio::test]
async fn endless_nesting_from_inside_ends_no_call_and_no_process() {
    struct Deepening;
    impl Hook for Deepening {
        fn name(&self) -> &'static str {
            "deepening"
        }

        fn before<'a>(&'a self, call: HookedCall<'a>) -> BoxFuture<'a, HookVerdict> {
            let rewrites = call.arguments["rewrite"] == true;
            let verdict = if rewrites { HookVerdict::Rewrite(deep_object()) } else { HookVerdict::Continue };
            Box::pin(std::future::ready(verdict))
        }

        fn after<'a>(&'a self, _: HookedCall<'a>, _: &'a ToolOutcome) -> BoxFuture<'a, Map<String, Value>> {
            Box::pin(async { Map::from_iter([("deep".to_owned(), deep_list())]) })
        }
    }

    let world = World::new().await;
    let deep_facts = custom("facts", |_ctx, _arguments| async {
        ToolOutcome::success("facts").with("deep", deep_list()).with("plain", 7)
    });
    let deep_calls = custom("calls", |ctx, _arguments| async move {
        let call = toolwarden_tools::context::ToolCall { tool: "facts".into(), arguments: deep_object() };
        let outcomes = ctx.invoke.as_ref().unwrap().invoke_all(vec![call], 1).await;
        ToolOutcome::success(outcomes[0].output.clone())
    })
    .needs(toolwarden_tools::tool::Needs { invoke: true, ..Default::default() });
    let session = world
        .session()
        .policy(allowing(&["facts"]))
        .tool(deep_facts.shared())
        .tool(deep_calls.shared())
        .hook(Arc::new(Deepening))
        .open()
        .await
        .unwrap();
    let rewritten = session.tool("facts", json!({"rewrite": true})).await.unwrap();
    assert!(rewritten.output.contains("nested deeper"), "{}", rewritten.output);
    let answered = session.tool("facts", json!({})).await.unwrap();
    assert!(answered.is_success() && answered.metadata["plain"] == 7, "{:?}", answered.output);
    let called = session.tool("calls", json!({})).await.unwrap();
    assert!(called.output.contains("nested deeper"), "{}", called.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// What passes can be read again by anybody, inside of the event that repeats it.
#[tokio::test]
async fn events_with_the_deepest_arguments_can_be_read() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).open().await.unwrap();
    let nested = |levels: usize| format!("{}1{}", "{\"a\":".repeat(levels - 1), "}".repeat(levels - 1));
    let deepest = nested(JSON_DEPTH_MAX);
    let result = session.tool("echo", serde_json::from_str(&deepest).unwrap()).await.unwrap();
    assert_eq!(result.output, deepest);
    let deeper = session.tool("echo", serde_json::from_str(&nested(JSON_DEPTH_MAX + 1)).unwrap()).await.unwrap();
    assert!(deeper.output.contains("nested deeper"), "{}", deeper.output);
    for line in world.record.lines() {
        assert_eq!(serde_json::from_str::<Value>(&line.to_string()).unwrap(), line);
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}
