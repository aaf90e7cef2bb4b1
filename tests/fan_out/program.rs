//! Scripts in a real session: their calls on the route, their rules, and every way to end half-way.

use serde_json::{Value, json};
use toolwarden::call_result::CallResult;
use toolwarden::prelude::CancelTarget;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::tool::{Gate, nesting};
use crate::support::world::{World, allowing, narrow_lanes, policy};

fn script(body: &str) -> Value {
    json!({"type": "script", "source": format!("async function run(ctx, inputs) {{ {body} }}")})
}

async fn run(session: &Session, body: &str) -> std::sync::Arc<CallResult> {
    session.tool("program", script(body)).await.unwrap()
}

#[tokio::test]
async fn each_call_of_a_script_is_an_invocation_of_its_own() {
    let world = World::with(|builder| builder.lanes(narrow_lanes())).await;
    std::fs::write(world.path().join("file"), "one\ntwo\nthree\n").unwrap();
    std::fs::create_dir(world.path().join("sub")).unwrap();
    std::fs::write(world.path().join("sub/other.txt"), "four\n").unwrap();
    let session = world.open().await;
    let body = "const files = await ctx.glob('**/*');
        const texts = await Promise.all(files.map(file => ctx.readFile(file)));
        const page = await ctx.readFile('file', {offset: 1, limit: 1});
        const found = (await ctx.grep('four')).includes('sub/other.txt');
        const missing = await ctx.read('nothing');
        const shell = await ctx.bash('echo $((40 + 2))');
        return {files, texts, page, found, missing: [missing.success, missing.error.type], shell}";
    let result = run(&session, body).await;
    assert!(result.is_success(), "{}", result.output);
    let expected = json!({
        "files": ["file", "sub/other.txt"],
        "texts": ["one\ntwo\nthree\n", "four\n"],
        "page": "two\n",
        "found": true,
        "missing": [false, "not_found"],
        "shell": "42\n",
    });
    assert_eq!(result.metadata["script_result"], expected);
    let program = world.record.calls_of("program");
    for line in world.record.of_type("tool_proposed").into_iter().skip(1) {
        assert_eq!((&line["origin"], &line["parent"]), (&json!("host_direct_nested_trusted"), &json!(program[0])));
    }
    assert_eq!(world.record.of_type("tool_end").len(), 8);
    let facts = result.metadata["program"].as_object().unwrap();
    assert_eq!(facts["tool_calls"].as_array().unwrap().len(), 7);
    assert_eq!((&facts["runtime"], &facts["success"]), (&json!("embedded-quickjs"), &json!(true)));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A script can do nothing that its calls could not do one by one.
#[tokio::test]
async fn a_script_is_no_way_round_the_rules() {
    let world = World::new().await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    std::fs::write(world.path().join("secret.js"), "function run() { return 'out' }").unwrap();
    let rules = "allow = [\"program\", \"read\"]\ndeny = [\"bash\", \"read(secret.js)\"]";
    let session = world.session().policy(policy(rules)).open().await.unwrap();
    let body = "const shell = await ctx.tool('bash', {command: 'touch made'}).catch(e => e.message);
        return [await ctx.readFile('file'), shell, (await ctx.read('secret.js')).success]";
    let result = session.governed_tool("program", script(body)).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    let given = &result.metadata["script_result"];
    assert_eq!((&given[0], &given[2]), (&json!("text\n"), &json!(false)), "{given}");
    assert!(given[1].as_str().unwrap().contains("\"bash\" is not allowed"), "a denied tool is not there: {given}");
    assert!(!world.path().join("made").exists());
    // A script is not read past a rule either.
    let result = session.governed_tool("program", json!({"type": "script", "path": "secret.js"})).await.unwrap();
    assert!(!result.is_success(), "{}", result.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A rule can let one script through, by its path or by its digest.
#[tokio::test]
async fn a_rule_names_a_script() {
    let world = World::new().await;
    std::fs::write(world.path().join("good.js"), "function run() { return 'good' }").unwrap();
    std::fs::write(world.path().join("other.js"), "function run() { return 'other' }").unwrap();
    let source = "function run() { return 'inline' }";
    let digest = toolwarden_tools::digest::Digest::of(source.as_bytes());
    let rules = format!("default = \"deny\"\nallow = [\"program(good.js)\", \"program({digest})\"]");
    let session = world.session().policy(policy(&rules)).open().await.unwrap();
    for (arguments, runs) in [
        (json!({"type": "script", "path": "good.js"}), true),
        (json!({"type": "script", "path": "./sub/../good.js"}), true),
        (json!({"type": "script", "path": "other.js"}), false),
        (json!({"type": "script", "source": source}), true),
        (json!({"type": "script", "source": format!("{source} ")}), false),
        (json!({"type": "script", "source": "function run() {}", "path": "good.js"}), false),
    ] {
        let result = session.governed_tool("program", arguments.clone()).await.unwrap();
        assert_eq!(result.is_success(), runs, "{arguments}: {}", result.output);
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn no_program_is_inside_of_a_program_by_any_way_round() {
    let world = World::new().await;
    // What a tool of the host's own calls is judged like a model's.
    let rules = allowing(&["program", "batch", "nest"]);
    let session = world.session().policy(rules).tool(nesting("nest").shared()).open().await.unwrap();
    let inner = script("return 'inner'");
    let nested = |tool: &str, args: &Value| json!({"calls": [[tool, args]]});
    let batch = json!({"invocations": [{"tool": "program", "args": inner}]});
    let ways = [
        json!(["program", inner]),
        json!(["batch", batch]),
        json!(["nest", nested("program", &inner)]),
        json!(["nest", nested("batch", &batch)]),
        json!(["batch", {"invocations": [{"tool": "nest", "args": nested("program", &inner)}]}]),
    ];
    for way in ways {
        let mut arguments = script(
            "const r = await ctx.tool(...inputs.way).catch(e => ({output: e.message, success: false})); return r.success",
        );
        arguments["inputs"] = json!({ "way": way });
        let result = session.tool("program", arguments).await.unwrap();
        assert!(result.is_success(), "{}", result.output);
        assert_eq!(result.metadata["script_result"], false, "{way}: {}", result.output);
    }
    assert!(!world.record.of_type("tool_end").iter().any(|line| line["output"].to_string().contains("'inner'")));
    // A batch may hold programs, beside or after each other.
    let outer = session.tool("batch", json!({"invocations": [{"tool": "program", "args": inner}]})).await.unwrap();
    assert!(outer.is_success(), "{}", outer.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The cancel comes while each of the script's calls is under way, one after another.
#[tokio::test]
async fn a_script_can_be_cancelled_at_each_of_its_calls() {
    for calls_before in 0..4_usize {
        let world = World::new().await;
        let gate = Gate::new();
        let session = world
            .session()
            .policy(allowing(&["program", "wait"]))
            .tool(gate.tool("wait").shared())
            .open()
            .await
            .unwrap();
        let its_session = session.clone();
        let body = "const said = []; for (const say of ['a', 'b', 'c', 'd']) said.push((await ctx.tool('wait', {say})).output); return said";
        let call = tokio::spawn(async move { its_session.governed_tool("program", script(body)).await.unwrap() });
        gate.let_go(calls_before);
        gate.entered(calls_before + 1).await;
        gate.holds(1).await;
        let program = world.record.calls_of("program");
        session.cancel(&CancelTarget::Call(program[0].as_str().into()), &CancelReason::Requested);
        let result = call.await.unwrap();
        assert!(matches!(result.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{result:?}");
        let calls = result.metadata["program"]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.len(), calls_before + 1);
        assert!(calls[..calls_before].iter().all(|call| call["success"] == true), "{calls:?}");
        assert_eq!(calls[calls_before]["error_kind"]["type"], "cancelled", "{calls:?}");
        gate.holds(0).await;
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// What a script leaves running ends before its call does: case C173 with a real command.
#[tokio::test]
async fn what_is_not_awaited_ends_before_the_call_does() {
    let world = World::new().await;
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let body = "ctx.tool('wait'); ctx.bash('sleep 600'); await ctx.tools.ls; return 'done'";
    let result = run(&session, body).await;
    assert_eq!(result.metadata["script_result"], "done", "{}", result.output);
    assert_eq!(result.metadata["program"]["unawaited"], 2);
    let ends = world.record.of_type("tool_end");
    assert_eq!(ends.last().unwrap()["name"], "program", "children first");
    world.at_rest(&[&session]).await;
    world.end().await;
}
