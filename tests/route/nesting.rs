//! Calls inside of calls: what they may claim, how deep they go, and what their tools hold.

use std::io::Read as _;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolwarden::scope::CallLimits;
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::effects::files::{Expected, Replacement};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::Needs;
use toolwarden_tools::workspace_path::WorkspacePath;

use crate::support::tool::{Custom, custom, echo, nesting};
use crate::support::world::World;

#[tokio::test]
async fn no_batch_stands_inside_of_a_batch() {
    let world = World::new().await;
    let session = world.session().tool(nesting("nest").shared()).open().await.unwrap();
    let inner = json!({"invocations": [{"tool": "ls", "args": {}}]});
    let direct = session.tool("batch", json!({"invocations": [{"tool": "batch", "args": inner}]})).await.unwrap();
    assert!(!direct.is_success() && direct.output.contains("itself a batch"), "{}", direct.output);
    // Nor behind another tool.
    let hidden = json!({"invocations": [{"tool": "nest", "args": {"calls": [["batch", inner]]}}]});
    let hidden = session.tool("batch", hidden).await.unwrap();
    assert!(!hidden.is_success(), "{}", hidden.output);
    let calls = world.record.calls_of("batch");
    let refused = world.record.the("tool_end", calls.last().unwrap());
    assert_eq!(refused["metadata"]["refused"]["stage"], "recursion");
    assert_eq!(world.record.calls_of("ls"), Vec::<String>::new());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// Calls itself one level deeper, for ever.
fn digger() -> Custom {
    let needs = Needs { invoke: true, ..Needs::default() };
    custom("dig", |ctx, arguments| async move {
        let depth = arguments["depth"].as_u64().unwrap_or_default();
        let call = ToolCall { tool: "dig".into(), arguments: json!({ "depth": depth + 1 }) };
        let mut outcomes = ctx.invoke.as_ref().unwrap().invoke_all(vec![call], 1).await;
        outcomes.remove(0)
    })
    .needs(needs)
}

#[tokio::test]
async fn nesting_ends_at_its_depth() {
    for depth_max in [0, 4] {
        let world = World::new().await;
        let limits = CallLimits { depth_max, ..CallLimits::default() };
        let session = world
            .session()
            .policy(crate::support::world::allowing(&["dig"]))
            .call_limits(limits)
            .tool(digger().shared())
            .open()
            .await
            .unwrap();
        let result = session.tool("dig", json!({})).await.unwrap();
        assert!(!result.is_success() && result.output.contains(&format!("at most {depth_max}")), "{}", result.output);
        // The outermost call and `depth_max` levels inside of it run; the next one is refused.
        assert_eq!(world.record.of_type("tool_execution_start").len(), depth_max + 1);
        assert_eq!(world.record.calls_of("dig").len(), depth_max + 2);
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// A custom tool that the trusted host calls gets none of the host's trust, whatever its arguments claim.
#[tokio::test]
async fn a_custom_tool_cannot_get_the_hosts_trust() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(crate::support::world::policy("deny = [\"write\"]\nallow = [\"batch\"]"))
        .tool(nesting("nest").shared())
        .open()
        .await
        .unwrap();
    let write = json!({"file_path": "x", "content": "y"});
    let batch = json!({"invocations": [{"tool": "write", "args": write}]});
    let claims = json!({
        "origin": "host_direct_trusted",
        "calls": [["write", write], ["batch", batch]],
    });
    let result = session.tool("nest", claims).await.unwrap();
    assert_eq!(result.metadata["failed"], 2, "{}", result.output);
    let origins: Vec<Value> =
        world.record.of_type("tool_proposed").into_iter().map(|line| line["origin"].clone()).collect();
    assert_eq!(origins, ["host_direct_trusted", "nested", "nested", "nested"]);
    assert!(!world.path().join("x").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// What a tool found in its hands.
#[derive(Debug, Default, PartialEq, Eq)]
struct Held {
    invoke: bool,
    generate: bool,
    delegate: bool,
    background: bool,
    web: bool,
    commands: bool,
    wrote: bool,
    read: String,
}

fn looking(needs: Needs, held: &Arc<Mutex<Held>>) -> Custom {
    let held = Arc::clone(held);
    custom("look", move |ctx, _arguments| {
        let held = Arc::clone(&held);
        async move {
            let (old, new) = (path("old"), path("new"));
            let mut text = String::new();
            ctx.workspace.files().open(&old).unwrap().read_to_string(&mut text).unwrap();
            let content = Replacement { bytes: b"new", expected: Expected::Any, create_folders: false };
            *held.lock().unwrap() = Held {
                invoke: ctx.invoke.is_some(),
                generate: ctx.generate.is_some(),
                delegate: ctx.delegate.is_some(),
                background: ctx.background.is_some(),
                web: ctx.web.is_some(),
                commands: ctx.workspace.commands().is_some(),
                wrote: ctx.workspace.files().replace(&new, &content).is_ok(),
                read: text,
            };
            ToolOutcome::success("looked")
        }
    })
    .needs(needs)
}

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text, "/").unwrap()
}

/// Least authority: a tool that does not say that it writes, runs, calls, delegates or leaves running cannot.
#[tokio::test]
async fn a_tool_holds_only_what_its_needs_name() {
    let none = Needs::default();
    let all =
        Needs { write: true, exec: true, invoke: true, generate: true, delegate: true, background: true, web: true };
    for needs in
        [none, Needs { write: true, ..none }, Needs { exec: true, ..none }, Needs { invoke: true, ..none }, all]
    {
        let world = World::new().await;
        std::fs::write(world.path().join("old"), "old").unwrap();
        let held = Arc::new(Mutex::new(Held::default()));
        let session = world.session().tool(looking(needs, &held).shared()).open().await.unwrap();
        assert!(session.tool("look", json!({})).await.unwrap().is_success());
        let expected = Held {
            invoke: needs.invoke,
            generate: needs.generate,
            delegate: needs.delegate,
            background: needs.background,
            web: needs.web,
            commands: needs.exec,
            wrote: needs.write,
            read: "old".to_owned(),
        };
        assert_eq!(*held.lock().unwrap(), expected, "{needs:?}");
        assert_eq!(world.path().join("new").exists(), needs.write, "{needs:?}");
        world.end().await;
    }
}

/// A workspace that may only be read is read-only for a host's own tools too, whatever they need.
#[tokio::test]
async fn no_need_widens_a_workspace() {
    let world = World::new().await;
    std::fs::write(world.path().join("old"), "old").unwrap();
    let held = Arc::new(Mutex::new(Held::default()));
    let all =
        Needs { write: true, exec: true, invoke: false, generate: false, delegate: false, background: true, web: true };
    let session = world
        .session()
        .capabilities(toolwarden_tools::workspace::WorkspaceCapabilities::read_only())
        .tool(looking(all, &held).shared())
        .open()
        .await
        .unwrap();
    assert!(session.tool("look", json!({})).await.unwrap().is_success());
    let held = std::mem::take(&mut *held.lock().unwrap());
    assert!(held.read == "old" && !held.commands && !held.wrote && !held.background, "{held:?}");
    assert!(!world.path().join("new").exists());
    world.end().await;
}

#[tokio::test]
async fn a_built_in_name_cannot_be_taken() {
    let world = World::new().await;
    let taken = world.session().tool(echo("read").shared()).open().await;
    assert!(taken.err().unwrap().to_string().contains("read is registered already"));
    world.end().await;
}
