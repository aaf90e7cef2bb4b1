//! Stories: what sessions do from the first prompt to the last answer, in a process that may die on the way.
//!
//! The same code plays a story for the first time and goes on with one that was cut off. Every effect leaves a line
//! in a file, so that an effect that happened twice is seen.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::embedding::session_builder::SessionBuilder;
use toolwarden::models::{Model, ModelError, ModelRequest, ModelTurn, TurnSink};
use toolwarden::session::Session;
use toolwarden_actors::fact_log::LOG_KEPT_BYTES;
use toolwarden_tools::ids::SessionId;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::Tool;
use toolwarden_tools::workspace::WorkspaceCapabilities;

use super::deadly::{Steps, Telling};
use super::support::model::script;
use super::support::tool::{custom, nesting};
use super::support::world::policy;

/// A story: who is asked what, and what the model does about it.
pub(crate) struct Story {
    pub(crate) name: &'static str,
    pub(crate) sessions: &'static [&'static str],
    pub(crate) prompts: &'static [&'static str],
    /// Whether the first session is forked at the end, and its fork asked once more.
    pub(crate) forks: bool,
    /// Whether it always takes as many turns: not so where the answer of a task may come into a run or before the next one.
    pub(crate) counts_turns: bool,
    /// Whether logs are cut as soon as a snapshot holds what is in them.
    pub(crate) cuts_logs: bool,
    turns: fn() -> Vec<Value>,
}

pub(crate) const STORIES: [Story; 8] = [
    Story {
        name: "effects",
        sessions: &["one"],
        prompts: &["do three things"],
        forks: false,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            let mut turns: Vec<Value> = (0..3).map(|_| calls(&[("count", json!({}))])).collect();
            turns.push(json!({ "text": "three things are done" }));
            turns
        },
    },
    Story {
        name: "reads_and_an_effect",
        sessions: &["one"],
        prompts: &["look around"],
        forks: false,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            let peek = |at: usize| ("peek", json!({ "at": at }));
            vec![
                calls(&[peek(1), peek(2), ("count", json!({})), peek(3)]),
                calls(&[("missing", json!({})), peek(4)]),
                json!({ "text": "looked around" }),
            ]
        },
    },
    Story {
        name: "conversation",
        sessions: &["one"],
        prompts: &["first", "second"],
        forks: false,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            let each = |when: &str| {
                [
                    json!({ "when": when, "calls": [{ "tool": "count", "arguments": { "for": when } }] }),
                    json!({ "when": when, "text": format!("the answer to {when}") }),
                ]
            };
            ["first", "second"].into_iter().flat_map(each).collect()
        },
    },
    Story {
        name: "cut",
        sessions: &["one"],
        prompts: &["first", "second", "third"],
        forks: false,
        counts_turns: true,
        cuts_logs: true,
        turns: || {
            let each = |when: &str| {
                [
                    json!({ "when": when, "calls": [{ "tool": "count", "arguments": { "for": when } }] }),
                    json!({ "when": when, "text": format!("the answer to {when}") }),
                ]
            };
            ["first", "second", "third"].into_iter().flat_map(each).collect()
        },
    },
    Story {
        name: "beside_each_other",
        sessions: &["one", "two"],
        prompts: &["go"],
        forks: false,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            vec![
                calls(&[("count", json!({})), ("count", json!({ "again": 1 }))]),
                json!({ "text": "all of us are done" }),
            ]
        },
    },
    Story {
        name: "nested",
        sessions: &["one"],
        prompts: &["nest"],
        forks: false,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            let inner = json!([["count", { "inner": 1 }], ["count", { "inner": 2 }]]);
            let task = json!({ "agent": "general", "description": "a part", "prompt": "the part of a child" });
            vec![
                calls(&[("both", json!({ "calls": inner }))]),
                calls(&[("task", task)]),
                json!({ "text": "nested things are done" }),
                json!({ "when": "the part of a child", "calls": [{ "tool": "count", "arguments": { "child": 1 } }] }),
                json!({ "when": "the part of a child", "text": "the child is done" }),
            ]
        },
    },
    Story {
        name: "in_the_background",
        sessions: &["one"],
        prompts: &["begin", "and now"],
        forks: false,
        counts_turns: false,
        cuts_logs: false,
        turns: || {
            let task = json!({
                "agent": "general", "description": "a part", "prompt": "the part of a child", "background": true,
            });
            vec![
                json!({ "when": "begin", "calls": [{ "tool": "task", "arguments": task }] }),
                json!({ "when": "begin", "text": "a part is under way" }),
                json!({ "when": "and now", "text": "all of it is done" }),
                json!({ "when": "the part of a child", "calls": [{ "tool": "count", "arguments": { "child": 1 } }] }),
                json!({ "when": "the part of a child", "text": "its work is over" }),
            ]
        },
    },
    Story {
        name: "fork",
        sessions: &["one"],
        prompts: &["first"],
        forks: true,
        counts_turns: true,
        cuts_logs: false,
        turns: || {
            vec![
                calls(&[("count", json!({}))]),
                json!({ "text": "the trunk is done" }),
                json!({ "when": "branch", "calls": [{ "tool": "count", "arguments": { "branch": 1 } }] }),
                json!({ "when": "branch", "text": "the branch is done" }),
            ]
        },
    },
];

fn calls(calls: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> =
        calls.iter().map(|(tool, arguments)| json!({ "tool": tool, "arguments": arguments })).collect();
    json!({ "calls": calls })
}

/// Where a story is played.
#[derive(Clone)]
pub(crate) struct Stage {
    folder: PathBuf,
}

impl Stage {
    pub(crate) fn at(folder: &Path) -> Self {
        std::fs::create_dir_all(folder.join("work")).unwrap();
        Self { folder: folder.to_owned() }
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.folder.join("store")
    }

    fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn note(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new().create(true).append(true).open(self.folder.join(file)).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// The lines of one of the stage's files: `effects`, `asked` or `acknowledged`.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// A tool whose effect is a line, with instants to die before and after it.
    fn count(&self, steps: &Arc<Steps>) -> Arc<dyn Tool> {
        let (stage, steps) = (self.clone(), Arc::clone(steps));
        let tool = custom("count", move |ctx, arguments| {
            let (stage, steps) = (stage.clone(), Arc::clone(&steps));
            async move {
                steps.step();
                let session =
                    if ctx.session.as_str().starts_with("task-run-") { "a child" } else { ctx.session.as_str() };
                stage.note("effects", &format!("{session} {arguments}"));
                steps.step();
                ToolOutcome::success("counted")
            }
        });
        tool.shared()
    }

    /// A read, which may be repeated.
    fn peek(&self) -> Arc<dyn Tool> {
        custom("peek", |_ctx, arguments| async move { ToolOutcome::success(arguments.to_string()) }).reads(4).shared()
    }

    pub(crate) fn dressed(&self, builder: SessionBuilder, story: &Story, steps: &Arc<Steps>) -> SessionBuilder {
        let model = Arc::new(Asked { inside: script(&(story.turns)()), stage: self.clone() });
        builder
            .model(model)
            // Fewer tools to begin with: a story is played a thousand times.
            .capabilities(WorkspaceCapabilities { search: false, ..WorkspaceCapabilities::read_only() })
            .policy(policy("default = 'allow'"))
            .tool(self.count(steps))
            .tool(self.peek())
            .tool(nesting("both").shared())
    }
}

/// A model that writes down when it is asked.
struct Asked {
    inside: Arc<dyn Model>,
    stage: Stage,
}

impl Model for Asked {
    fn name(&self) -> &str {
        "asked"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        self.stage.note("asked", &request.messages.len().to_string());
        self.inside.turn(request, sink)
    }
}

/// Plays a story to its end, from wherever it stands; gives the last answer of each session.
pub(crate) async fn play(story: &Story, stage: &Stage, steps: Arc<Steps>) -> BTreeMap<String, String> {
    let store = Telling::at(&stage.store(), &stage.folder.join("acknowledged"), Arc::clone(&steps)).unwrap();
    let kept_bytes = if story.cuts_logs { 0 } else { LOG_KEPT_BYTES };
    let runtime = Runtime::builder().store(Arc::new(store)).keep_log_bytes(kept_bytes).build().await.unwrap();
    let sessions = story.sessions.iter().map(|name| part(story, stage, &steps, &runtime, name, story.prompts));
    let mut answers: BTreeMap<String, String> = join_all(sessions).await.into_iter().collect();
    if story.forks {
        let known = runtime.kept_sessions().await.unwrap();
        if !known.contains(&SessionId::from("branch")) {
            runtime.fork(&"one".into(), &"branch".into()).await.unwrap();
        }
        let prompts = [story.prompts, &["branch"]].concat();
        answers.extend([part(story, stage, &steps, &runtime, "branch", &prompts).await]);
    }
    runtime.shut_down().await;
    answers
}

/// One session's part of a story.
async fn part(
    story: &Story,
    stage: &Stage,
    steps: &Arc<Steps>,
    runtime: &Runtime,
    name: &str,
    prompts: &[&str],
) -> (String, String) {
    let id = SessionId::from(name);
    let is_known = runtime.kept_sessions().await.unwrap().contains(&id);
    let builder = if is_known { runtime.resume(id.clone()) } else { runtime.session(stage.work()).id(id.clone()) };
    let session = stage.dressed(builder, story, steps).open().await.unwrap();
    session.go_on().await.unwrap();
    let done = runtime.look_at(&id).await.unwrap().state.runs;
    for prompt in &prompts[done as usize..] {
        its_tasks_end(&session).await;
        let outcome = session.run(prompt).await.unwrap();
        assert!(outcome.status.is_success(), "{name}: {outcome:?}");
        session.save().await.unwrap();
    }
    its_tasks_end(&session).await;
    let last = session.go_on().await.unwrap().unwrap();
    session.close().await;
    (name.to_owned(), last.text)
}

/// Waits for what a session does in the background.
async fn its_tasks_end(session: &Session) {
    for task in session.pending_subagent_tasks() {
        session.subagent_result(&task.task_id).await.unwrap();
    }
}
