//! The agent loop: a model proposes, the route decides, until the model has said its last word or a bound is met.
//!
//! A model's word proves nothing: it gets results, and its calls go through the same route as anybody's. Every
//! bound has an ending of its own. Cut or malformed calls never run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use toolwarden_actors::accounts::LedgerError;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::node::{Ending, NodeHandle};
use toolwarden_actors::permit_pool::Shed;
use toolwarden_actors::waiting_line::Holder;
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::declaration::ToolDefinition;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::ids::{RunId, SessionId};
use toolwarden_tools::tool::Lane;

use crate::agent::Agent;
use crate::call_result::CallResult;
use crate::event::{EventKind, TurnUsage};
use crate::kernel::Kernel;
use crate::models::transcript::make_call_ids_unique;
use crate::models::{
    CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, StopReason, ToolResult, TurnSink,
};
use crate::origin::Origin;
use crate::proposal::Proposal;
use crate::run_status::RunStatus;
use crate::scope::Scope;
use crate::settlement::evidence::estimated_tokens;

/// Most sources that a run reports.
pub const SOURCE_ANCHORS_MAX: usize = 64;

/// Most calls of one turn that run beside each other.
pub const PARALLEL_CALLS_MAX: usize = 8;

/// Bounds of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunLimits {
    /// Model rounds with tools; one more, without tools, lets the model conclude. None takes the agent's own.
    pub rounds_max: Option<u32>,
    /// Rounds in a row whose calls all had malformed arguments.
    pub malformed_rounds_max: u32,
    /// How often in a row the same call may be made.
    pub same_call_max: u32,
    /// Time for the whole run.
    pub timeout: Option<Duration>,
    /// The most child runs that one `task` call should start.
    pub fan_out: usize,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { rounds_max: None, malformed_rounds_max: 2, same_call_max: 3, timeout: None, fan_out: 4 }
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunOutcome {
    /// The run.
    pub run: RunId,
    /// Its session.
    pub session: SessionId,
    /// How it ended.
    #[serde(flatten)]
    pub status: RunStatus,
    /// The model's last words; may be empty.
    pub text: String,
    /// What it used.
    pub usage: TurnUsage,
    /// Model turns taken.
    pub turns: u32,
    /// Files and addresses that its calls named, in order of appearance, at most [`SOURCE_ANCHORS_MAX`].
    pub source_anchors: Vec<String>,
}

/// What a run works with.
#[derive(Clone)]
pub struct RunPlan {
    /// Its id.
    pub run: RunId,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// Who it works as.
    pub agent: Agent,
    /// Its bounds.
    pub limits: RunLimits,
}

/// A new run id.
pub fn run_id(kernel: &Kernel) -> RunId {
    format!("run-{}", hex_id(&*kernel.effects.entropy)).into()
}

/// Carries a conversation, whose last message is the prompt, to its end under `node`. The messages of the run are
/// appended to it, calls and results always in pairs.
pub async fn carry(
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    plan: RunPlan,
    node: NodeHandle,
    messages: &mut Vec<Message>,
) -> RunOutcome {
    if let Some(timeout) = plan.limits.timeout {
        node.limit(timeout);
    }
    let prompt = match messages.last() {
        Some(Message::User { text }) => text.clone(),
        _ => String::new(),
    };
    kernel.tell(&scope, EventKind::AgentStart { prompt, model: plan.model.name().to_owned() });
    let rounds_max = plan.limits.rounds_max.unwrap_or(plan.agent.rounds_max);
    let mut driver = Loop {
        tools: scope.offered(),
        kernel: &kernel,
        scope: &scope,
        plan: &plan,
        node: &node,
        rounds_max,
        usage: TurnUsage::default(),
        turns: 0,
        malformed_rounds: 0,
        last_call: None,
        guarded: false,
        anchors: Vec::new(),
    };
    let (status, text) = driver.drive(messages).await;
    let outcome = RunOutcome {
        run: plan.run.clone(),
        session: scope.session.clone(),
        text,
        usage: driver.usage,
        turns: driver.turns,
        source_anchors: driver.anchors,
        status,
    };
    tell_end(&kernel, &scope, &outcome).await;
    outcome
}

/// Tells the ending of a run whose body gave nothing back: what the node of every run calls as its epilogue.
pub fn tell_lost(kernel: &Kernel, scope: &Scope, ending: &Ending) {
    let status = RunStatus::lost(ending);
    kernel.tell(scope, EventKind::Error { message: status.to_string(), kind: status.as_str().to_owned() });
}

async fn tell_end(kernel: &Kernel, scope: &Scope, outcome: &RunOutcome) {
    let kind = match &outcome.status {
        RunStatus::Completed | RunStatus::ToolRoundLimit { .. } => EventKind::AgentEnd {
            text: outcome.text.clone(),
            usage: outcome.usage,
            status: outcome.status.as_str().to_owned(),
        },
        failed => EventKind::Error { message: failed.to_string(), kind: failed.as_str().to_owned() },
    };
    if let Err(error) = kernel.write(scope, kind).await {
        tracing::warn!(%error, "the end of a run is not in the journal");
    }
}

/// One run under way.
struct Loop<'a> {
    kernel: &'a Arc<Kernel>,
    scope: &'a Arc<Scope>,
    plan: &'a RunPlan,
    node: &'a NodeHandle,
    tools: Vec<ToolDefinition>,
    rounds_max: u32,
    usage: TurnUsage,
    turns: u32,
    malformed_rounds: u32,
    /// The last call and how often in a row it was made.
    last_call: Option<(Digest, u32)>,
    /// Whether the last call was already held back for being repeated.
    guarded: bool,
    anchors: Vec<String>,
}

impl Loop<'_> {
    async fn drive(&mut self, messages: &mut Vec<Message>) -> (RunStatus, String) {
        loop {
            let may_call = self.turns < self.rounds_max;
            let mut turn = match self.turn(messages, may_call).await {
                Ok(turn) => turn,
                Err(status) => return (status, String::new()),
            };
            make_call_ids_unique(messages, &mut turn);
            let (stop, text, calls) = (turn.stop, turn.text.clone(), turn.calls.clone());
            match stop {
                StopReason::Refusal | StopReason::ContentFilter => return (RunStatus::Refused, text),
                // Whatever calls it has may be cut as well.
                StopReason::MaxTokens => return (RunStatus::Cut, text),
                StopReason::EndTurn | StopReason::ToolUse | StopReason::Paused => {}
            }
            if !may_call {
                return (RunStatus::ToolRoundLimit { rounds: self.rounds_max }, text);
            }
            messages.push(turn.into_message());
            if calls.is_empty() {
                if stop == StopReason::Paused {
                    continue;
                }
                return (RunStatus::Completed, text);
            }
            let all_malformed = calls.iter().all(|call| matches!(call.arguments, CallArguments::Malformed { .. }));
            let (results, repeated) = self.run_calls(calls).await;
            messages.push(Message::ToolResults { results });
            if let Some(reason) = self.node.cancellation().reason() {
                return (RunStatus::Cancelled { reason: reason.clone() }, text);
            }
            if repeated {
                return (RunStatus::RepeatedCalls, text);
            }
            self.malformed_rounds = if all_malformed { self.malformed_rounds + 1 } else { 0 };
            if self.malformed_rounds > self.plan.limits.malformed_rounds_max {
                return (RunStatus::MalformedCalls, text);
            }
        }
    }

    /// Asks the model for a turn: a budget, a slot, and only for as long as the request lasts.
    async fn turn(&mut self, messages: &[Message], may_call: bool) -> Result<ModelTurn, RunStatus> {
        let request = ModelRequest {
            system: self.plan.agent.instructions.clone(),
            messages: messages.to_vec(),
            tools: self.tools.clone(),
            tool_calls_allowed: may_call,
            agent: self.plan.agent.name.clone(),
            fan_out: self.plan.limits.fan_out,
        };
        let input_tokens = u64::try_from(estimate(&request)).unwrap_or(u64::MAX);
        let amount = Amount { input_tokens, ..Amount::default() };
        let reservation = match self.kernel.ledger.reserve(self.scope.account.clone(), amount).await {
            Ok(reservation) => reservation,
            Err(LedgerError::Refused(refused)) => {
                return Err(RunStatus::BudgetExhausted { resource: refused.resource.to_string() });
            }
            Err(other) => return Err(RunStatus::ModelFailed { message: other.to_string() }),
        };
        let cancel = self.node.cancellation();
        let holder = Holder { session: self.scope.root_session.clone(), invocation: self.plan.run.as_str().into() };
        let permit = match self.kernel.lanes.get(&Lane::Model) {
            Some(lane) => match lane.acquire(holder, cancel).await {
                Ok(permit) => Some(permit),
                Err(Shed::Cancelled(reason)) => return Err(RunStatus::Cancelled { reason }),
                Err(shed) => return Err(RunStatus::ModelFailed { message: shed.to_string() }),
            },
            None => None,
        };
        self.turns += 1;
        self.kernel.tell(self.scope, EventKind::TurnStart { turn: self.turns });
        let sink = Deltas { kernel: self.kernel, scope: self.scope };
        let answer = tokio::select! {
            biased;
            reason = cancel.cancelled() => return Err(RunStatus::Cancelled { reason }),
            answer = self.plan.model.turn(&request, &sink) => answer,
        };
        if let Some(permit) = permit {
            permit.settle(model_health(&answer));
        }
        let turn = answer.map_err(|error| RunStatus::ModelFailed { message: error.to_string() })?;
        let used = TurnUsage { input_tokens: turn.usage.input_tokens, output_tokens: turn.usage.output_tokens };
        reservation.settle(Amount {
            input_tokens: used.input_tokens,
            output_tokens: used.output_tokens,
            ..Amount::default()
        });
        self.usage.input_tokens = self.usage.input_tokens.saturating_add(used.input_tokens);
        self.usage.output_tokens = self.usage.output_tokens.saturating_add(used.output_tokens);
        let stop = serde_json::to_value(turn.stop).ok().and_then(|stop| stop.as_str().map(str::to_owned));
        let stop = stop.unwrap_or_default();
        self.kernel.tell(self.scope, EventKind::TurnEnd { turn: self.turns, usage: used, stop });
        Ok(turn)
    }

    /// Runs the calls of a turn: reads that bear company beside each other, everything else in order. Every call
    /// gets its result; the flag says that the same call came too often.
    async fn run_calls(&mut self, calls: Vec<ModelCall>) -> (Vec<ToolResult>, bool) {
        let mut results = Vec::with_capacity(calls.len());
        let mut repeated = false;
        let mut together: Vec<ModelCall> = Vec::new();
        for call in calls {
            if let Some(held) = self.held_back(&call, &mut repeated) {
                self.run_together(std::mem::take(&mut together), &mut results).await;
                results.push(held);
            } else if self.bears_company(&call) {
                together.push(call);
                if together.len() == PARALLEL_CALLS_MAX {
                    self.run_together(std::mem::take(&mut together), &mut results).await;
                }
            } else {
                self.run_together(std::mem::take(&mut together), &mut results).await;
                self.run_together(vec![call], &mut results).await;
            }
        }
        self.run_together(together, &mut results).await;
        (results, repeated)
    }

    /// A call that is not run: its arguments are malformed, or it was made too often in a row.
    fn held_back(&mut self, call: &ModelCall, repeated: &mut bool) -> Option<ToolResult> {
        let arguments = match &call.arguments {
            CallArguments::Malformed { error, .. } => {
                self.last_call = None;
                return Some(failed(call, format!("the arguments were not run: {error}. Send one JSON object")));
            }
            CallArguments::Parsed(arguments) => arguments,
        };
        let digest = Digest::of_json(&serde_json::json!([call.tool.as_str(), arguments]));
        let count = match &self.last_call {
            Some((last, count)) if *last == digest => count + 1,
            _ => 1,
        };
        self.last_call = Some((digest, count));
        if count <= self.plan.limits.same_call_max {
            self.guarded = false;
            return None;
        }
        // Held back once with a warning; the next time in a row ends the run.
        *repeated |= std::mem::replace(&mut self.guarded, true);
        let text =
            format!("this call was made {count} times in a row and was not run again; its result will not change");
        Some(failed(call, text))
    }

    fn bears_company(&self, call: &ModelCall) -> bool {
        let CallArguments::Parsed(arguments) = &call.arguments else { return false };
        let entry = self.scope.registry.get(call.tool.as_str());
        entry.and_then(|entry| entry.capabilities(arguments)).is_some_and(|could| could.allows_parallel_batch())
    }

    async fn run_together(&mut self, calls: Vec<ModelCall>, results: &mut Vec<ToolResult>) {
        let invocations = calls.iter().map(|call| {
            let arguments = call.arguments.for_request();
            let id = self.kernel.invocation_id("call", &call.tool);
            let call = ToolCall { tool: call.tool.clone(), arguments };
            let proposal = Proposal::new(id, Origin::Agent, self.scope.ancestry.clone(), call);
            self.kernel.invoke(self.node, self.scope, proposal)
        });
        for (call, result) in calls.iter().zip(join_all(invocations).await) {
            self.collect_anchors(&result);
            results.push(ToolResult {
                call_id: call.id.clone(),
                tool: call.tool.clone(),
                output: result.output.clone(),
                success: result.is_success(),
            });
        }
    }

    fn collect_anchors(&mut self, result: &CallResult) {
        let anchors = result.metadata.get("source_anchors").and_then(Value::as_array);
        for anchor in anchors.into_iter().flatten().filter_map(Value::as_str) {
            if self.anchors.len() < SOURCE_ANCHORS_MAX && !self.anchors.iter().any(|known| known == anchor) {
                self.anchors.push(anchor.to_owned());
            }
        }
    }
}

fn failed(call: &ModelCall, output: String) -> ToolResult {
    ToolResult { call_id: call.id.clone(), tool: call.tool.clone(), output, success: false }
}

/// Tokens that a request is estimated to have: a quarter of its text's bytes.
fn estimate(request: &ModelRequest) -> usize {
    let messages = request.messages.iter().map(|message| match message {
        Message::User { text } => text.len(),
        Message::Assistant { text, calls, .. } => {
            text.len() + calls.iter().map(|call| call.arguments.for_request().to_string().len()).sum::<usize>()
        }
        Message::ToolResults { results } => results.iter().map(|result| result.output.len()).sum(),
    });
    estimated_tokens(request.system.len() + messages.sum::<usize>())
}

fn model_health(answer: &Result<ModelTurn, ModelError>) -> toolwarden_actors::circuit_breaker::CallHealth {
    use toolwarden_actors::circuit_breaker::CallHealth;
    match answer {
        Ok(_) => CallHealth::Succeeded,
        Err(error) if error.is_retryable() => CallHealth::Failed,
        Err(_) => CallHealth::Neutral,
    }
}

/// The model's text as events.
struct Deltas<'a> {
    kernel: &'a Kernel,
    scope: &'a Scope,
}

impl TurnSink for Deltas<'_> {
    fn text_delta(&self, text: &str) {
        self.kernel.tell(self.scope, EventKind::TextDelta { delta: text.to_owned() });
    }
}
