//! Child runs of a session that is kept: each has a session of its own in the store, a call that is made again comes back
//! to them, and what they used stays used.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::facts::state::{ChildEnd, State};
use toolwarden::models::{CallArguments, Message, Model, ModelCall, ModelRequest, ModelTurn, TokenUsage};
use toolwarden::run_status::RunStatus;
use toolwarden::task_book::SubagentStatus;
use toolwarden::task_limits::TaskLimits;
use toolwarden_tools::effects::store::memory::MemoryStore;

use crate::support::model::Answering;
use crate::support::tool::Gate;
use crate::support::until;
use crate::support::world::allowing;

fn task(prompt: &str) -> Value {
    json!({"agent": "general", "description": "a task", "prompt": prompt})
}

fn call(tool: &str, arguments: Value) -> ModelCall {
    ModelCall { id: format!("call of {tool}"), tool: tool.into(), arguments: CallArguments::from_value(arguments) }
}

/// The first words of a conversation, and the results of its last calls.
fn heard(request: &ModelRequest) -> (String, Option<Vec<String>>) {
    let words = match &request.messages[0] {
        Message::User { text } => text.clone(),
        other => panic!("{other:?}"),
    };
    let results = request.messages.iter().rev().find_map(|message| match message {
        Message::ToolResults { results } => Some(results.iter().map(|result| result.output.clone()).collect()),
        _ => None,
    });
    (words, results)
}

/// Tokens that each turn reads.
const READ: u64 = 5;

/// Two child runs, one of which waits, and then an answer made of theirs; writes down who is asked.
fn model(asked: &Arc<Mutex<Vec<String>>>) -> Arc<dyn Model> {
    let asked = Arc::clone(asked);
    Arc::new(Answering(move |request: &ModelRequest| {
        let (words, results) = heard(request);
        asked.lock().unwrap().push(words.clone());
        let turn = match (words.as_str(), results) {
            ("go", None) => {
                let tasks = json!({"tasks": [task("the quick part"), task("the slow part")]});
                ModelTurn::calling("", vec![call("task", tasks)])
            }
            ("the slow part", None) => ModelTurn::calling("", vec![call("wait", json!({}))]),
            ("go", Some(results)) => ModelTurn::answer(results.concat()),
            (part, results) => ModelTurn::answer(format!("{part} heard {results:?}")),
        };
        Ok(ModelTurn { usage: TokenUsage { input_tokens: READ, ..TokenUsage::default() }, ..turn })
    }))
}

async fn runtime(store: &Arc<MemoryStore>) -> Runtime {
    Runtime::builder().store(Arc::clone(store) as _).build().await.unwrap()
}

fn dressed(builder: SessionBuilder, asked: &Arc<Mutex<Vec<String>>>, gate: &Gate) -> SessionBuilder {
    builder.model(model(asked)).policy(allowing(&["task", "wait"])).tool(gate.tool("wait").shared())
}

/// What a process leaves that is killed while one of two child runs has ended and the other one works.
async fn left_in_the_middle(folder: &Path, asked: &Arc<Mutex<Vec<String>>>) -> Arc<MemoryStore> {
    let (store, gate) = (Arc::new(MemoryStore::default()), Gate::new());
    let first = runtime(&store).await;
    let session = dressed(first.session(folder).id("kept"), asked, &gate).open().await.unwrap();
    let run = tokio::spawn({
        let session = session.clone();
        async move { session.run("go").await }
    });
    gate.entered(1).await;
    until("the end of the quick part", async || {
        session.subagent_tasks().iter().any(|task| task.status == SubagentStatus::Completed).then_some(())
    })
    .await;
    let told = || first.look_at(session.id());
    until("the facts of that", async || {
        let children = told().await.unwrap().state.children;
        children.values().any(|child| child.end == ChildEnd::Succeeded).then_some(())
    })
    .await;
    let left = Arc::new(store.left_behind());
    first.kill().await;
    drop(run.await);
    left
}

async fn state_of(runtime: &Runtime, session: &str) -> State {
    runtime.look_at(&session.into()).await.unwrap().state
}

/// A call that is made again waits for the child runs that it had begun: one that had ended is not asked again, one that
/// worked goes on where it stood, and each can be read afterwards.
#[tokio::test]
async fn a_call_that_is_made_again_comes_back_to_its_child_runs() {
    let folder = tempfile::tempdir().unwrap();
    let asked = Arc::default();
    let left = left_in_the_middle(folder.path(), &asked).await;
    assert_eq!(std::mem::take(&mut *asked.lock().unwrap()).len(), 3);

    let (second, gate) = (runtime(&left).await, Gate::new());
    let session = dressed(second.resume("kept"), &asked, &gate).open().await.unwrap();
    let recovery = session.recovery();
    assert_eq!((recovery.interrupted_calls.len(), recovery.interrupted_children), (0, 0));
    let outcome = session.go_on().await.unwrap().unwrap();
    assert_eq!(outcome.status, RunStatus::Completed);
    // Its effect may have happened, so the call inside of the child is not made again, and its model is told.
    for part in ["the quick part heard None", "the slow part heard Some([", "Interrupted"] {
        assert!(outcome.text.contains(part), "{part}: {}", outcome.text);
    }
    assert_eq!(*asked.lock().unwrap(), ["the slow part", "go"]);
    let spent = session.budget().await.unwrap().spent;
    assert_eq!(spent.input_tokens, 5 * READ, "five turns in two processes");
    session.close().await;

    let state = state_of(&second, "kept").await;
    assert_eq!((state.child_runs, state.children_used.input_tokens), (2, 3 * READ));
    assert_eq!(state.children.len(), 2);
    for child in state.children.values() {
        assert_eq!((child.end, &child.place), (ChildEnd::Succeeded, &None));
        let transcript = state_of(&second, child.session.as_str()).await;
        assert!(matches!(transcript.messages.last(), Some(Message::Assistant { .. })), "{transcript:?}");
        assert_eq!(transcript.settings.unwrap().parent, Some("kept".into()));
    }
    second.shut_down().await;

    // What children used is used in a third process too.
    let third = runtime(&left).await;
    let session = dressed(third.resume("kept"), &asked, &gate).open().await.unwrap();
    assert_eq!(session.budget().await.unwrap().spent.input_tokens, 5 * READ);
    session.close().await;
    third.shut_down().await;
}

/// Nobody goes on with the run: then its child runs were interrupted, and a new run has new ones.
#[tokio::test]
async fn child_runs_that_nobody_comes_back_to_were_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let asked = Arc::default();
    let left = left_in_the_middle(folder.path(), &asked).await;
    let second = runtime(&left).await;
    let session = dressed(second.resume("kept"), &asked, &Gate::new()).open().await.unwrap();
    assert!(session.run("something else").await.unwrap().status.is_success());
    session.close().await;
    let state = state_of(&second, "kept").await;
    let ends: Vec<ChildEnd> = state.children.values().map(|child| child.end).collect();
    assert!(ends.contains(&ChildEnd::Succeeded) && ends.contains(&ChildEnd::Interrupted), "{ends:?}");
    assert!(state.interruption().is_none());
    second.shut_down().await;
}

/// A session that is opened again has the limits that it had, and has started what it had started.
#[tokio::test]
async fn limits_of_child_runs_stay_with_the_session() {
    let (folder, store) = (tempfile::tempdir().unwrap(), Arc::new(MemoryStore::default()));
    let fans = Arc::new(Mutex::new(Vec::new()));
    let model: Arc<dyn Model> = Arc::new(Answering({
        let fans = Arc::clone(&fans);
        move |request: &ModelRequest| {
            fans.lock().unwrap().push(request.fan_out);
            let is_child = matches!(&request.messages[0], Message::User { text } if text == "a part");
            let last = request.messages.last();
            Ok(match last {
                Some(Message::ToolResults { results }) => ModelTurn::answer(results[0].output.clone()),
                _ if is_child => ModelTurn::answer("done"),
                _ => ModelTurn::calling("", vec![call("task", json!({"tasks": [task("a part"), task("a part")]}))]),
            })
        }
    }));
    let first = runtime(&store).await;
    let limits = TaskLimits { total_max: 3, ..TaskLimits::default() };
    let runs = toolwarden::run::RunLimits { fan_out: Some(7), ..Default::default() };
    let builder = first.session(folder.path()).id("kept").model(Arc::clone(&model)).policy(allowing(&["task"]));
    let session = builder.task_limits(limits).run_limits(runs).open().await.unwrap();
    assert!(session.run("go").await.unwrap().text.contains("done"));
    session.close().await;
    first.shut_down().await;

    let second = runtime(&store).await;
    let session = second.resume("kept").model(model).open().await.unwrap();
    let text = session.run("go on").await.unwrap().text;
    assert!(text.contains("3 child runs in all") && text.contains("1 of them"), "{text}");
    assert!(fans.lock().unwrap().iter().all(|fan_out| *fan_out == 7), "{fans:?}");
    session.close().await;
    second.shut_down().await;
}
