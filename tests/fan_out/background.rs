//! Tasks in the background: registered at once, begun when their turn stands, told later, ended with their session.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::models::{Message, ModelRequest, ModelTurn};
use toolwarden::prelude::CancelTarget;
use toolwarden::run_status::RunStatus;
use toolwarden::session::Session;
use toolwarden::task_book::SubagentStatus;
use toolwarden::task_limits::TaskLimits;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::ids::TaskId;
use toolwarden_tools::outcome::ToolErrorKind;

use crate::support::model::{Answering, script};
use crate::support::tool::Gate;
use crate::support::until;
use crate::support::world::{World, allowing};

fn task(prompt: &str) -> Value {
    json!({"agent": "general", "description": "a task", "prompt": prompt, "background": true})
}

/// A child that waits in the gate once and then answers.
fn child() -> Vec<Value> {
    vec![
        json!({"when": "the work", "calls": [{"tool": "wait", "arguments": {}}]}),
        json!({"when": "the work", "text": "the work is done"}),
    ]
}

fn words(request: &ModelRequest) -> Vec<&str> {
    let texts = request.messages.iter().filter_map(|message| match message {
        Message::User { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

async fn started(session: &Session) -> TaskId {
    let result = session.tool("task", task("the work")).await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    result.metadata["task_id"].as_str().unwrap().into()
}

/// Registered before its call returns, listed, waited for, read, and told to nobody twice.
#[tokio::test]
async fn a_task_goes_on_after_its_call_and_can_be_waited_for() {
    let world = World::new().await;
    let gate = Gate::new();
    let builder = world.session().policy(allowing(&["wait"])).tool(gate.tool("wait").shared());
    let session = builder.model(script(&child())).open().await.unwrap();
    let id = started(&session).await;
    let listed = session.subagent_task(&id).unwrap();
    assert!(listed.background && listed.status == SubagentStatus::Running, "{listed:?}");
    assert_eq!(world.record.of_type("subagent_start")[0]["background"], true);
    gate.entered(1).await;
    assert_eq!(session.pending_subagent_tasks(), [listed]);
    // The session's own work goes on beside it.
    assert!(session.tool("ls", json!({})).await.unwrap().is_success());
    gate.let_go(1);
    let result = session.subagent_result(&id).await.unwrap();
    assert!(result.success && result.output == "the work is done");
    assert_eq!(session.subagent_task(&id).unwrap().status, SubagentStatus::Completed);
    assert_eq!(session.pending_subagent_tasks(), []);
    let said = session.subagent_transcript(&id).unwrap();
    assert!(matches!(&said[0], Message::User { text } if text == "the work"), "{said:?}");
    assert!(matches!(said.last(), Some(Message::Assistant { .. })), "{said:?}");
    assert!(!session.cancel_subagent_task(&id));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A run's own task begins only when its turn stands, and its answer comes as a word in the same run.
#[tokio::test]
async fn an_answer_comes_as_a_word_while_the_run_goes_on() {
    let world = World::new().await;
    let gate = Gate::new();
    let model = Answering(|request: &ModelRequest| {
        let words = words(request);
        let turns = request.messages.iter().filter(|message| matches!(message, Message::Assistant { .. })).count();
        Ok(match (words[0], turns) {
            ("the work", _) => ModelTurn::answer("the work is done"),
            (_, 0) => {
                let call = |id: &str, tool: &str, arguments| toolwarden::models::ModelCall {
                    id: id.into(),
                    tool: tool.into(),
                    arguments: toolwarden::models::CallArguments::from_value(arguments),
                };
                // The second call holds the turn open.
                ModelTurn::calling("on it", vec![call("a", "task", task("the work")), call("b", "wait", json!({}))])
            }
            (_, _) if words.len() > 1 => ModelTurn::answer(words[1]),
            _ => ModelTurn::calling(
                "waiting",
                vec![toolwarden::models::ModelCall {
                    id: format!("t{turns}"),
                    tool: "wait".into(),
                    arguments: toolwarden::models::CallArguments::from_value(json!({"turn": turns})),
                }],
            ),
        })
    });
    let builder = world.session().policy(allowing(&["wait", "task"])).tool(gate.tool("wait").shared());
    let session = builder.model(Arc::new(model)).open().await.unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    // The task is there, and the turn that asked for it is not over.
    gate.entered(1).await;
    let id = session.subagent_tasks()[0].task_id.clone();
    assert_eq!(session.pending_subagent_tasks().len(), 1);
    assert!(session.subagent_transcript(&id).is_none(), "it has not begun");
    assert!(world.record.of_type("agent_start").len() == 1);
    gate.let_go(1);
    session.subagent_result(&id).await.unwrap();
    // One more call of the run at the most, and then it reads the answer.
    gate.let_go(10);
    let outcome = run.await.unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    assert!(
        outcome.text.starts_with(&format!("[The background task {id} (general: a task) has ended well.")),
        "{outcome:?}"
    );
    assert!(outcome.text.ends_with("\nthe work is done"), "{outcome:?}");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// An answer that comes while nobody works waits for the next run.
#[tokio::test]
async fn an_answer_waits_for_the_next_run() {
    let world = World::new().await;
    let model = Answering(|request: &ModelRequest| {
        let words = words(request);
        Ok(ModelTurn::answer(if words[0] == "the work" { "the work is done".to_owned() } else { words.join(" | ") }))
    });
    let session = world.session().model(Arc::new(model)).open().await.unwrap();
    let id = started(&session).await;
    session.subagent_result(&id).await.unwrap();
    let text = session.run("and now?").await.unwrap().text;
    assert!(text.starts_with("[The background task ") && text.ends_with("the work is done | and now?"), "{text}");
    assert!(session.run("again").await.unwrap().text.matches("[The background task").nth(1).is_none());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A turn that comes to nothing starts nothing: its task ends without ever having begun.
#[tokio::test]
async fn a_turn_that_is_cut_short_starts_no_task() {
    let world = World::new().await;
    let gate = Gate::new();
    let calls = json!([{"tool": "task", "arguments": task("the work")}, {"tool": "wait", "arguments": {}}]);
    let turns: Vec<Value> = child().into_iter().chain([json!({"when": "go", "calls": calls})]).collect();
    let builder = world.session().policy(allowing(&["wait", "task"])).tool(gate.tool("wait").shared());
    let session = builder.model(script(&turns)).open().await.unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await.unwrap() }
    });
    gate.entered(1).await;
    let id = session.subagent_tasks()[0].task_id.clone();
    assert!(session.cancel(&CancelTarget::Run, &CancelReason::Requested));
    assert_eq!(run.await.unwrap().status, RunStatus::Cancelled { reason: CancelReason::Requested });
    let result = session.subagent_result(&id).await.unwrap();
    assert!(!result.success, "{result:?}");
    assert_eq!(session.subagent_task(&id).unwrap().status, SubagentStatus::Cancelled);
    // The run's own, and none of the task.
    assert_eq!(world.record.of_type("agent_start").len(), 1, "{}", world.record.shown());
    assert_eq!(world.record.of_type("subagent_end").len(), 1);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// One task is ended by its id; a cancel of everything ends them all; what they come to afterwards changes nothing.
#[tokio::test]
async fn a_task_is_cancelled_by_its_id() {
    let world = World::new().await;
    let gate = Gate::new();
    let builder = world.session().policy(allowing(&["wait"])).tool(gate.tool("wait").shared());
    let session = builder.model(script(&child())).open().await.unwrap();
    let (one, other, third) = (started(&session).await, started(&session).await, started(&session).await);
    gate.entered(3).await;
    assert!(session.cancel_subagent_task(&one) && !session.cancel_subagent_task(&one));
    assert!(!session.cancel_subagent_task(&"task-of-nobody".into()));
    assert!(!session.subagent_result(&one).await.unwrap().success);
    assert_eq!(session.subagent_task(&one).unwrap().status, SubagentStatus::Cancelled);
    assert_eq!(session.pending_subagent_tasks().len(), 2);
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    for id in [&other, &third] {
        session.subagent_result(id).await.unwrap();
        assert_eq!(session.subagent_task(id).unwrap().status, SubagentStatus::Cancelled);
    }
    assert_eq!(world.record.of_type("subagent_end").len(), 3);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A session that closes ends its tasks first, and their commands.
#[tokio::test]
async fn a_task_ends_with_its_session() {
    let world = World::new().await;
    let bash = json!({"when": "the work", "calls": [{"tool": "bash", "arguments": {"command": "sleep 600"}}]});
    let session = world.session().policy(allowing(&["bash"])).model(script(&[bash])).open().await.unwrap();
    started(&session).await;
    crate::support::process::appear(&world.mark, "sleep 600", 1).await;
    session.close().await;
    let end = &world.record.of_type("subagent_end")[0];
    assert_eq!(end["success"], false);
    assert!(end["output"].as_str().unwrap().contains("session closed"), "{end}");
    assert_eq!(world.runtime.live_nodes(), 1);
    world.end().await;
}

/// So many and no more; a child run has none of its own; and both are told why.
#[tokio::test]
async fn there_are_so_many_tasks_and_no_more() {
    let world = World::new().await;
    let gate = Gate::new();
    let builder = world.session().policy(allowing(&["wait", "task"])).tool(gate.tool("wait").shared());
    let nested = json!({"when": "nested", "calls": [{"tool": "task", "arguments": task("the work")}]});
    let turns: Vec<Value> = child().into_iter().chain([nested, json!({"when": "nested", "text": "went on"})]).collect();
    let session = builder
        .model(script(&turns))
        .task_limits(TaskLimits { background_max: 1, total_max: 2, width: 1 })
        .open()
        .await
        .unwrap();
    let id = started(&session).await;
    let full = session.tool("task", task("the work")).await.unwrap();
    assert!(!full.is_success() && full.output.contains("1 background tasks are open"), "{}", full.output);
    let inside = json!({"agent": "general", "description": "d", "prompt": "nested"});
    assert!(session.tool("task", inside).await.unwrap().is_success());
    let refused: Vec<Value> =
        world.record.of_type("tool_end").into_iter().filter(|end| end["exit_code"] != 0).collect();
    assert!(refused.iter().any(|end| end["output"].as_str().unwrap().contains("no background tasks")), "{refused:?}");
    gate.let_go(1);
    session.subagent_result(&id).await.unwrap();
    // Two were started: the one in the background, and the one with the nested call.
    let spent = session.tool("task", task("the work")).await.unwrap();
    assert_eq!(spent.error_kind, Some(ToolErrorKind::BudgetExhausted { resource: "child_runs".into() }));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A session that is kept goes on with its tasks after its process ended without a word: nothing is asked again, and the
/// answer is told once.
#[tokio::test]
async fn a_kept_session_goes_on_with_its_tasks() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(MemoryStore::default());
    let gate = Gate::new();
    let runtime = |store: Arc<MemoryStore>| async move { Runtime::builder().store(store).build().await.unwrap() };
    let first = runtime(Arc::clone(&store)).await;
    let builder = first.session(folder.path()).id("kept").policy(allowing(&["wait"])).tool(gate.tool("wait").shared());
    let session = builder.model(script(&child())).open().await.unwrap();
    let id = started(&session).await;
    gate.entered(1).await;
    // As it stands on the disk of a process that was killed now.
    let left = Arc::new(store.left_behind());
    first.kill().await;

    let second = runtime(Arc::clone(&left)).await;
    let model = Answering(|request: &ModelRequest| {
        let words = words(request);
        let interrupted = request.messages.iter().any(|message| matches!(message, Message::ToolResults { .. }));
        Ok(match words[0] {
            "the work" => ModelTurn::answer(format!("done, interrupted: {interrupted}")),
            _ => ModelTurn::answer(words.join(" | ")),
        })
    });
    let builder = second.resume("kept").model(Arc::new(model)).policy(allowing(&["wait"]));
    let session = builder.tool(gate.tool("wait").shared()).open().await.unwrap();
    assert_eq!(session.recovery().interrupted_children, 0);
    let result = session.subagent_result(&id).await.unwrap();
    assert_eq!(result.output, "done, interrupted: true");
    let text = session.run("and now?").await.unwrap().text;
    assert!(text.starts_with(&format!("[The background task {id}")) && text.ends_with("| and now?"), "{text}");
    session.close().await;
    until("nothing is left", async || (second.live_nodes() == 1).then_some(())).await;
    // Its own conversation is kept under its own name.
    assert!(second.kept_sessions().await.unwrap().iter().any(|name| name.as_str() == format!("task-run-{id}")));
    second.shut_down().await;
}
