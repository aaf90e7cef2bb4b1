//! Workflows in a real session: their log in the workspace, their calls on the route, and going on after a cancel.

use serde_json::{Value, json};
use toolwarden::prelude::CancelTarget;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::workspace::WorkspaceCapabilities;

use crate::support::tool::Gate;
use crate::support::world::{World, policy};

const SOURCE: &str = "async function run(ctx, inputs) {
  if (inputs.kind === 'step') {
    if (inputs.step_name === 'wait') return (await ctx.tool('wait', {say: inputs.step_id})).output;
    return await ctx.readFile(inputs.input.path);
  }
  const { steps } = inputs;
  if (!steps.a) return {type: 'schedule_step', step_id: 'a', step_name: 'read', input: {path: 'file'}};
  if (!steps.b) return {type: 'schedule_step', step_id: 'b', step_name: 'wait', input: {}};
  return {type: 'complete', output: [steps.a.output, steps.b.output]};
}";

fn asked() -> Value {
    json!({"source": SOURCE, "run_id": "run"})
}

#[tokio::test]
async fn a_cancelled_call_is_gone_on_with_and_no_completed_step_runs_again() {
    let world = World::new().await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let gate = Gate::new();
    let session = world.session().tool(gate.tool("wait").shared()).open().await.unwrap();
    let its_session = session.clone();
    let call = tokio::spawn(async move { its_session.tool("dynamic_workflow", asked()).await.unwrap() });
    gate.holds(1).await;
    let workflow = world.record.calls_of("dynamic_workflow");
    session.cancel(&CancelTarget::Call(workflow[0].as_str().into()), &CancelReason::Requested);
    let cut = call.await.unwrap();
    assert!(!cut.is_success() && cut.output.contains("the same run_id goes on"), "{}", cut.output);
    assert_eq!(world.record.calls_of("read").len(), 1);
    gate.let_go(1);
    let done = session.tool("dynamic_workflow", asked()).await.unwrap();
    assert!(done.is_success(), "{}", done.output);
    let output = &done.metadata["dynamic_workflow"]["snapshot"]["end"]["output"];
    assert_eq!(*output, json!(["text\n", "b"]));
    assert_eq!(world.record.calls_of("read").len(), 1, "the first step was not run again");
    let log = std::fs::read_to_string(world.path().join(".a3s/workflow/run.jsonl")).unwrap();
    assert_eq!(log.lines().filter(|line| line.contains("StepStarted")).count(), 2);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The steps of a workflow are no way round the rules, and a workspace that may only be read stays as it is.
#[tokio::test]
async fn a_workflow_is_no_way_round_the_rules_and_writes_nothing_where_nothing_may_be_written() {
    let world = World::new().await;
    std::fs::write(world.path().join("file"), "text\n").unwrap();
    let session = world
        .session()
        .capabilities(WorkspaceCapabilities::read_only())
        .policy(policy("allow = [\"dynamic_workflow\"]\ndeny = [\"read(file)\"]"))
        .open()
        .await
        .unwrap();
    let result = session.governed_tool("dynamic_workflow", asked()).await.unwrap();
    assert!(!result.is_success() && result.output.contains("read failed"), "{}", result.output);
    assert!(result.output.contains("keeps no logs"), "{}", result.output);
    assert!(!world.path().join(".a3s").exists());
    world.at_rest(&[&session]).await;
    world.end().await;
}
