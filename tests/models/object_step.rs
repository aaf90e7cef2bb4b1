//! Objects as steps of workflows and in programs: what was given is kept in the log to the digit and never asked for again,
//! a cancel half-way leaves nothing, and a step that gives none says so.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::watch;
use toolwarden::models::{Message, Model, ModelError, ModelRequest, ModelTurn, TokenUsage, TurnSink};
use toolwarden::prelude::CancelTarget;
use toolwarden::session::Session;
use toolwarden_tools::cancellation::CancelReason;

use super::support::WAIT_MAX;
use super::support::model::script;
use super::support::world::World;

/// A number that no value holds.
const LONG: &str = "123456789012345678901234567890";

/// Two objects, the second made of the first.
const TWO: &str = "async function run(ctx, inputs) {
  const {steps} = inputs;
  const schema = {type: 'object', required: ['n'], properties: {n: {type: 'integer'}}};
  const ask = (step_id, prompt) => ({type: 'schedule_step', step_id, step_name: 'generate_object', input: {schema, prompt}});
  if (!steps.one) return ask('one', 'the first number');
  if (!steps.two) return ask('two', 'the number behind ' + JSON.parse(steps.one.output.output).object.n);
  return {type: 'complete', output: JSON.parse(steps.two.output.output).object.n};
}";

/// Counts how often it is asked for what, and says nothing where it is told to.
struct Counted {
    script: Arc<dyn Model>,
    /// Prompts with this in them are not answered.
    silent_on: Mutex<Option<&'static str>>,
    asked: Mutex<BTreeMap<String, usize>>,
    /// Requests under way.
    open: watch::Sender<usize>,
}

/// A request under way.
struct Open<'a>(&'a watch::Sender<usize>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Counted {
    fn over(turns: &[Value], silent_on: Option<&'static str>) -> Arc<Self> {
        let silent_on = Mutex::new(silent_on);
        Arc::new(Self { script: script(turns), silent_on, asked: Mutex::default(), open: watch::Sender::new(0) })
    }

    /// How often it was asked for something with these words in it.
    fn asked(&self, words: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(prompt, _)| prompt.contains(words)).map(|(_, count)| count).sum()
    }

    /// Waits until so many requests are under way.
    async fn under_way(&self, count: usize) {
        let mut open = self.open.subscribe();
        tokio::time::timeout(WAIT_MAX, open.wait_for(|open| *open == count)).await.unwrap().unwrap();
    }
}

impl Model for Counted {
    fn name(&self) -> &str {
        "counted"
    }

    fn turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        sink: &'a dyn TurnSink,
    ) -> BoxFuture<'a, Result<ModelTurn, ModelError>> {
        async move {
            let Some(Message::User { text }) = request.messages.first() else { panic!("it is asked nothing") };
            *self.asked.lock().unwrap().entry(text.clone()).or_default() += 1;
            let is_silent = self.silent_on.lock().unwrap().is_some_and(|words| text.contains(words));
            if !is_silent {
                return self.script.turn(request, sink).await;
            }
            self.open.send_modify(|open| *open += 1);
            let _open = Open(&self.open);
            std::future::pending().await
        }
        .boxed()
    }
}

fn numbers() -> [Value; 2] {
    let usage = json!({"input_tokens": 7, "output_tokens": 2});
    [
        json!({"agent": "generate_object", "when": "the first number", "text": format!("Sure: {{\"n\": {LONG}}}"), "usage": usage}),
        json!({"agent": "generate_object", "when": "the number behind", "text": "{\"n\": 8}", "usage": usage}),
    ]
}

fn asked(source: &str) -> Value {
    json!({"source": source, "run_id": "run"})
}

/// Calls the workflow and cancels it once its request to the model is under way.
async fn cancelled(world: &World, session: &Session, model: &Counted, tool: &str, arguments: Value) -> String {
    let its_session = session.clone();
    let (its_tool, tool) = (tool.to_owned(), tool);
    let call = tokio::spawn(async move { its_session.tool(&its_tool, arguments).await.unwrap() });
    model.under_way(1).await;
    let calls = world.record.calls_of(tool);
    session.cancel(&CancelTarget::Call(calls.last().unwrap().as_str().into()), &CancelReason::Requested);
    let cut = call.await.unwrap();
    assert!(!cut.is_success(), "{}", cut.output);
    // The request went with the call.
    model.under_way(0).await;
    cut.output.clone()
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(".a3s/workflow/run.jsonl")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_gave_its_object_is_not_asked_again_after_a_cancel_or_in_another_process() {
    let (world, model) = (World::new().await, Counted::over(&numbers(), Some("the number behind")));
    let session = world.session().model(model.clone()).open().await.unwrap();
    let said = cancelled(&world, &session, &model, "dynamic_workflow", asked(TWO)).await;
    assert!(said.contains("the same run_id goes on"), "{said}");
    assert_eq!((model.asked("the first"), model.asked("the number behind")), (1, 1));
    assert!(log(world.path()).contains(LONG), "the log has every digit: {}", log(world.path()));
    world.at_rest(&[&session]).await;
    session.close().await;
    // Another process over the same folder, with the log alone to go on from.
    let other = World { folder: world.folder, ..World::new().await };
    *model.silent_on.lock().unwrap() = None;
    let session = other.session().model(model.clone()).open().await.unwrap();
    let done = session.tool("dynamic_workflow", asked(TWO)).await.unwrap();
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["dynamic_workflow"]["snapshot"]["end"]["output"], 8);
    assert_eq!((model.asked("the first"), model.asked("the number behind")), (1, 2));
    // Once more: all of it is in the log.
    let again = session.tool("dynamic_workflow", asked(TWO)).await.unwrap();
    assert!(again.is_success(), "{}", again.output);
    assert_eq!((model.asked("the first"), model.asked("the number behind")), (1, 2));
    let steps = |what: &str| log(other.path()).lines().filter(|line| line.contains(what)).count();
    // The attempt that was cut off is the one that is gone on with.
    assert_eq!((steps("StepStarted"), steps("StepCompleted"), steps("RunCompleted")), (2, 2, 1));
    assert_eq!(other.record.calls_of("generate_object").len(), 1, "the first step was no call here");
    other.at_rest(&[&session]).await;
    other.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_without_an_object_fails_after_its_repairs_and_is_tried_as_often_as_it_says() {
    let source = "async function run(ctx, inputs) {
        const schema = {type: 'object', required: ['n']};
        const input = {schema, prompt: 'a number', max_repair_attempts: 1};
        const retry = {max_attempts: 2, delay_ms: 1};
        if (!inputs.steps.one) return {type: 'schedule_step', step_id: 'one', step_name: 'generate_object', input, retry};
        return {type: 'complete', output: inputs.steps.one};
    }";
    let turns = [json!({"agent": "generate_object", "text": "{\"m\": 1}", "repeat": true})];
    let (world, model) = (World::new().await, Counted::over(&turns, None));
    let session = world.session().model(model.clone()).open().await.unwrap();
    let failed = session.tool("dynamic_workflow", asked(source)).await.unwrap();
    assert!(!failed.is_success() && failed.output.contains("no object that fits"), "{}", failed.output);
    assert_eq!(model.asked("a number"), 4, "two tries of two rounds");
    let ends: Vec<Value> = world.record.of_type("tool_end");
    let ends: Vec<&Value> = ends.iter().filter(|end| end["name"] == "generate_object").collect();
    assert!(ends.len() == 2 && ends.iter().all(|end| end["exit_code"] == 1), "{ends:?}");
    assert!(!log(world.path()).contains("\"object\\\""), "no object is kept: {}", log(world.path()));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// What one object cost is in its step, and steps beside each other keep to their limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_beside_each_other_are_admitted_and_counted() {
    let source = "async function run(ctx, inputs) {
        const schema = {type: 'object', required: ['n']};
        const step = step_id => ({step_id, step_name: 'generate_object', input: {schema, prompt: 'the first number'}});
        if (!inputs.steps.a) return {type: 'schedule_steps', steps: ['a', 'b', 'c'].map(step)};
        return {type: 'complete', output: ['a', 'b', 'c'].map(id => JSON.parse(inputs.steps[id].output.output).usage.total_tokens)};
    }";
    let (world, model) = (World::new().await, Counted::over(&numbers(), None));
    let session = world.session().model(model.clone()).open().await.unwrap();
    let arguments = json!({"source": source, "run_id": "run", "limits": {"maxConcurrentGenerations": 1}});
    let done = session.tool("dynamic_workflow", arguments).await.unwrap();
    assert!(done.is_success(), "{}", done.output);
    assert_eq!(done.metadata["dynamic_workflow"]["snapshot"]["end"]["output"], json!([9, 9, 9]));
    // One by one: no generation begins before the one before it has ended.
    let lines = world.record.lines();
    let of_objects = lines.iter().filter(|line| line["name"] == "generate_object");
    let kinds: Vec<&str> = of_objects
        .filter_map(|line| line["type"].as_str())
        .filter(|kind| matches!(*kind, "tool_execution_start" | "tool_end"))
        .collect();
    assert_eq!(kinds, ["tool_execution_start", "tool_end"].repeat(3));
    let used = session.budget().await.unwrap().spent;
    let expected = TokenUsage { input_tokens: 21, output_tokens: 6, ..TokenUsage::default() };
    assert_eq!((used.input_tokens, used.output_tokens), (expected.input_tokens, expected.output_tokens));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_waits_for_an_object_is_cancelled_with_its_request() {
    let source = "async function run(ctx, inputs) {
        const schema = {type: 'object', required: ['n']};
        const one = await ctx.tool('generate_object', {schema, prompt: 'the first number'});
        const two = await ctx.tool('generate_object', {schema, prompt: 'the number behind it'});
        return [one.success, two.success];
    }";
    let (world, model) = (World::new().await, Counted::over(&numbers(), Some("the number behind")));
    let session = world.session().model(model.clone()).open().await.unwrap();
    let arguments = json!({"type": "script", "source": source, "allowed_tools": ["generate_object"]});
    cancelled(&world, &session, &model, "program", arguments.clone()).await;
    let ends: Vec<Value> = world.record.of_type("tool_end");
    let codes: Vec<(&Value, bool)> = ends.iter().map(|end| (&end["name"], end["exit_code"] == 0)).collect();
    let (object, program) = (json!("generate_object"), json!("program"));
    assert_eq!(codes, [(&object, true), (&object, false), (&program, false)]);
    assert!(!ends[1]["output"].as_str().unwrap().contains("\"object\""), "{}", ends[1]);
    *model.silent_on.lock().unwrap() = None;
    let done = session.tool("program", arguments).await.unwrap();
    assert!(done.is_success() && done.output.contains("true"), "{}", done.output);
    world.at_rest(&[&session]).await;
    world.end().await;
}
