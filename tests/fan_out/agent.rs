//! Agents in Markdown files: found, checked, and never more than their caller.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::agent::AgentOrigin;
use toolwarden::agent::file::{AgentFile, ModelNames};
use toolwarden::models::{Model, ModelRequest, ModelTurn};

use crate::support::model::{Answering, script};
use crate::support::world::{World, allowing, policy};

const REVIEWER: &str = "---\nname: reviewer\ndescription: reads a change\ntools: [ls, \"bash(echo *)\"]\nlimits:\n  \
                        max_steps: 2\n---\nRead and judge.\n";

fn file(text: &str) -> AgentFile {
    AgentFile { origin: AgentOrigin::Host("reviewer.md".to_owned()), text: text.to_owned() }
}

fn task(agent: &str) -> Value {
    json!({"agent": agent, "description": "a child", "prompt": "child"})
}

/// An agent has the tools of its file that its session has as well, and the calls that both allow.
#[tokio::test]
async fn an_agent_file_narrows_and_never_widens() {
    let world = World::new().await;
    let calls = json!([
        {"tool": "bash", "arguments": {"command": "echo fine"}},
        {"tool": "bash", "arguments": {"command": "touch made"}},
        {"tool": "ls", "arguments": {}},
        {"tool": "write", "arguments": {"file_path": "made", "content": "x"}},
    ]);
    let turns = [json!({"when": "child", "calls": calls}), json!({"when": "child", "text": "judged"})];
    let session = world
        .session()
        .policy(policy("allow = [\"bash\", \"write\"]\ndeny = [\"ls\"]"))
        .agent_files(vec![file(REVIEWER)])
        .model(script(&turns))
        .open()
        .await
        .unwrap();
    let result = session.tool("task", task("reviewer")).await.unwrap();
    assert!(result.is_success() && result.output.contains("judged"), "{}", result.output);
    let stage = |id: &String| world.record.the("tool_end", id)["metadata"]["refused"]["stage"].clone();
    let bash: Vec<Value> = world.record.calls_of("bash").iter().map(stage).collect();
    // The file allows one command, the session denies a tool that the file names, and what neither names is not there.
    assert_eq!(bash, [Value::Null, json!("permission")]);
    let ls: Vec<Value> = world.record.calls_of("ls").iter().map(stage).collect();
    let write: Vec<Value> = world.record.calls_of("write").iter().map(stage).collect();
    assert_eq!((ls, write), (vec![json!("permission")], vec![json!("schema")]));
    assert!(!world.path().join("made").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The limits of a file hold, whatever a task asks for.
#[tokio::test]
async fn the_limits_of_a_file_hold() {
    let world = World::new().await;
    let calls = json!({"when": "child", "calls": [{"tool": "a"}, {"tool": "b"}], "repeat": true});
    let session = world.session().agent_files(vec![file(REVIEWER)]).model(script(&[calls])).open().await.unwrap();
    let mut asked = task("reviewer");
    asked["max_steps"] = json!(50);
    let result = session.tool("task", asked).await.unwrap();
    assert!(result.output.contains("limit of 2 rounds"), "{}", result.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}

struct Named;

impl ModelNames for Named {
    fn model(&self, name: &str, _of: &AgentOrigin) -> Result<Arc<dyn Model>, String> {
        match name {
            "second" => Ok(Arc::new(Answering(|_: &ModelRequest| Ok(ModelTurn::answer("the second model's answer"))))),
            _ => Err("it is not set up".to_owned()),
        }
    }
}

/// Files of the workspace count where the host names their folder; an agent has the model that it names.
#[tokio::test]
async fn a_folder_of_the_workspace_has_agents_and_an_agent_its_own_model() {
    let world = World::new().await;
    let folder = world.path().join(".agents");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("second.md"), "---\nname: second\ndescription: d\nmodel: second\n---\nDo it.\n")
        .unwrap();
    std::fs::write(folder.join("README.txt"), "no agent").unwrap();
    let builder = || world.session().agent_models(Arc::new(Named)).model(script(&[json!({"text": "the first's"})]));
    let session = builder().workspace_agents(".agents").open().await.unwrap();
    let names: Vec<&str> = session.agents().map(|agent| agent.name.as_str()).collect();
    assert_eq!(names, ["explore", "general", "second", "verification"]);
    assert!(session.tool_definitions().iter().any(|tool| tool.description.contains("second (d)")));
    let result = session.tool("task", task("second")).await.unwrap();
    assert!(result.output.contains("the second model's answer"), "{}", result.output);
    // Another session does not have them.
    let other = builder().open().await.unwrap();
    let unknown = other.tool("task", task("second")).await.unwrap();
    assert!(
        unknown.output.contains("there is no agent \"second\"") && unknown.output.contains("explore"),
        "{unknown:?}"
    );
    assert!(!other.tool_definitions().iter().any(|tool| tool.description.contains("second (d)")));
    world.at_rest(&[&session, &other]).await;
    world.end().await;
}

/// Every fault of every file is told with file and line, and no session opens.
#[tokio::test]
async fn a_faulty_file_opens_no_session() {
    let world = World::new().await;
    let folder = world.path().join("agents");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.md"), "---\nname: a\ndescription: d\ntools: [raed]\nspeed: 3\n---\nDo.\n").unwrap();
    std::fs::write(folder.join("b.md"), "---\nname: explore\ndescription: d\nmodel: none\n---\nDo.\n").unwrap();
    let opened = world.session().workspace_agents("agents").agent_models(Arc::new(Named)).open().await;
    let error = opened.err().unwrap().to_string();
    for wanted in [
        "agents/a.md:4: there is no tool \"raed\"",
        "agents/a.md:5: there is no setting \"speed\"",
        "agents/b.md:4: model \"none\" cannot be used: it is not set up",
    ] {
        assert!(error.contains(wanted), "{wanted} is not in\n{error}");
    }
    std::fs::write(folder.join("a.md"), "---\nname: a\ndescription: d\n---\nDo.\n").unwrap();
    std::fs::write(folder.join("b.md"), "---\nname: explore\ndescription: d\n---\nDo.\n").unwrap();
    let error = world.session().workspace_agents("agents").open().await.err().unwrap().to_string();
    assert!(error.contains("agents/b.md:2: an agent named explore is there already"), "{error}");
    world.end().await;
}

/// A session may work as an agent of a file.
#[tokio::test]
async fn a_session_works_as_an_agent_of_a_file() {
    let world = World::new().await;
    let session = world
        .session()
        .policy(allowing(&["ls"]))
        .agent_files(vec![file(REVIEWER)])
        .agent("reviewer")
        .model(script(&[json!({"text": "done"})]))
        .open()
        .await
        .unwrap();
    assert_eq!(session.tool_names().iter().map(|name| name.as_str()).collect::<Vec<_>>(), ["bash", "ls"]);
    assert_eq!(session.run("go").await.unwrap().text, "done");
    world.at_rest(&[&session]).await;
    world.end().await;
}
