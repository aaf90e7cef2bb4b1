//! The agent loop: a model proposes, the route decides, until the model has said its last word or a bound is met.
//!
//! A model's word proves nothing: it gets results, and its calls go through the same route as anybody's. Every
//! bound has an ending of its own. Cut or malformed calls never run. The loop itself remembers nothing: each step
//! follows from the facts before it, so a run goes on after `kill -9` as if it had only paused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
use toolwarden_tools::declaration::{Capabilities, ToolDefinition};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId};
use toolwarden_tools::json_depth::{JSON_DEPTH_MAX, cut};
use toolwarden_tools::tool::Lane;

use crate::agent::Agent;
use crate::call_result::CallResult;
use crate::event::{EventKind, TurnUsage};
use crate::fact_book::{Expected, FactBook, FactBookError, clean_turn};
use crate::facts::state::{EndedRun, OpenCall, State, Step};
use crate::facts::{Fact, RunBounds};
use crate::kernel::{Invocation, Kernel};
use crate::models::transcript::make_call_ids_unique;
use crate::models::{
    CallArguments, Message, Model, ModelCall, ModelError, ModelRequest, ModelTurn, ToolResult, TurnSink,
};
use crate::origin::Origin;
use crate::proposal::Proposal;
use crate::run_status::RunStatus;
use crate::scope::Scope;
use crate::settlement::evidence::estimated_tokens;
use crate::settlement::sanitise::stream::Held;
use crate::verification::VerificationSummary;

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
    /// Files and addresses that its calls named, in order of appearance, at most
    /// [`SOURCE_ANCHORS_MAX`](crate::facts::state::SOURCE_ANCHORS_MAX).
    pub source_anchors: Vec<String>,
}

impl RunOutcome {
    /// What the run under way has come to by now.
    fn so_far(run: &RunId, session: &SessionId, state: &State) -> Self {
        let (usage, turns, source_anchors) = match &state.run {
            Some(run) => (run.usage, run.turns, run.source_anchors.clone()),
            None => Default::default(),
        };
        Self {
            run: run.clone(),
            session: session.clone(),
            status: RunStatus::Crashed,
            text: String::new(),
            usage: TurnUsage { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens },
            turns,
            source_anchors,
        }
    }

    /// What a run came to that has ended.
    pub fn of(ended: EndedRun, session: &SessionId) -> Self {
        let EndedRun { id, status, text, usage, turns, source_anchors } = ended;
        let usage = TurnUsage { input_tokens: usage.input_tokens, output_tokens: usage.output_tokens };
        Self { run: id, session: session.clone(), status, text, usage, turns, source_anchors }
    }
}

/// What a run works with.
#[derive(Clone)]
pub struct RunPlan {
    /// Its id.
    pub run: RunId,
    /// Who answers.
    pub model: Arc<dyn Model>,
    /// Who it works as.
    pub agent: Arc<Agent>,
    /// Its bounds.
    pub limits: RunLimits,
    /// Who has told its end.
    pub end_told: EndTold,
}

/// Whether the end of a run was told: by the run itself, or by what is called when it was lost. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct EndTold(Arc<AtomicBool>);

impl EndTold {
    /// Whether it is the caller's to tell; true once.
    fn take(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

impl RunPlan {
    /// The bounds that the run's own facts keep.
    pub fn bounds(&self) -> RunBounds {
        RunBounds {
            rounds_max: self.limits.rounds_max.unwrap_or(self.agent.rounds_max),
            malformed_rounds_max: self.limits.malformed_rounds_max,
            same_call_max: self.limits.same_call_max,
        }
    }
}

/// A new run id.
pub fn run_id(kernel: &Kernel) -> RunId {
    format!("run-{}", hex_id(&*kernel.effects.entropy)).into()
}

/// Carries the run that is under way in `facts` to its end, under `node`: takes the next step that follows from the
/// facts, and puts down what came of it.
pub async fn carry(
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    plan: RunPlan,
    node: NodeHandle,
    facts: Arc<FactBook>,
) -> RunOutcome {
    let _limit = plan.limits.timeout.map(|timeout| node.limit(timeout));
    let prompt = facts.look(|state| state.run.as_ref().map(|run| run.prompt.clone())).unwrap_or_default();
    kernel.tell(&scope, EventKind::AgentStart { prompt, model: plan.model.name().to_owned() });
    let mut driver = Loop {
        tools: scope.offered(),
        kernel: &kernel,
        scope: &scope,
        plan: &plan,
        node: &node,
        facts: &facts,
        withheld: BTreeMap::new(),
    };
    let (mut status, text) = match driver.drive().await {
        Ok(ended) => ended,
        Err(error) => (RunStatus::StoreFailed { message: error.to_string() }, String::new()),
    };
    let mut outcome = facts.look(|state| RunOutcome::so_far(&plan.run, &scope.session, state));
    let ending = Fact::Ending { status: status.clone(), text: facts.fit_to_keep(&kernel.sanitiser, text.clone()) };
    if let Err(error) = facts.record(ending).await {
        status = RunStatus::StoreFailed { message: error.to_string() };
    }
    (outcome.status, outcome.text) = (status, text);
    // A run that is dropped while it waits for this to be stored has told it.
    if plan.end_told.take() {
        tell_end(&kernel, &scope, &outcome, &facts).await;
    }
    outcome
}

/// Tells the ending of a run whose body gave nothing back: what the node of every run calls as its epilogue.
pub fn tell_lost(kernel: &Kernel, scope: &Scope, end_told: &EndTold, ending: &Ending) {
    if !end_told.take() {
        return;
    }
    let status = RunStatus::lost(ending);
    kernel.tell(scope, EventKind::Error { message: status.to_string(), kind: status.as_str().to_owned() });
}

async fn tell_end(kernel: &Kernel, scope: &Scope, outcome: &RunOutcome, facts: &FactBook) {
    let verified = facts.look(|state| {
        let reports = &state.verification_reports;
        (!reports.is_empty()).then(|| Box::new(VerificationSummary::of(reports)))
    });
    let kind = match &outcome.status {
        RunStatus::Completed | RunStatus::ToolRoundLimit { .. } => EventKind::AgentEnd {
            text: outcome.text.clone(),
            usage: outcome.usage,
            status: outcome.status.as_str().to_owned(),
            verification_summary: verified,
        },
        failed => EventKind::Error { message: failed.to_string(), kind: failed.as_str().to_owned() },
    };
    if let Err(error) = kernel.write(scope, kind).await {
        tracing::warn!(%error, "the end of a run is not in the journal");
    }
}

/// One run under way: drives it by the step that follows from its facts.
struct Loop<'a> {
    kernel: &'a Arc<Kernel>,
    scope: &'a Arc<Scope>,
    plan: &'a RunPlan,
    node: &'a NodeHandle,
    facts: &'a FactBook,
    tools: Vec<ToolDefinition>,
    /// Calls of the last turn as the model wrote them, where they are stored without their secrets.
    withheld: BTreeMap<String, ModelCall>,
}

impl Loop<'_> {
    async fn drive(&mut self) -> Result<(RunStatus, String), FactBookError> {
        loop {
            match self.facts.look(State::next_step) {
                Step::End { status, text } => return Ok((status, text)),
                // Nobody else ends a run.
                Step::Wait => return Ok((RunStatus::Crashed, String::new())),
                Step::Ask { may_call } => match self.turn(may_call).await? {
                    Ok(()) => {}
                    Err(status) => return Ok((status, String::new())),
                },
                Step::Call(calls) => {
                    let text = self.facts.look(|state| state.run.as_ref().map(|run| run.open_text().to_owned()));
                    self.run_calls(calls).await?;
                    if let Some(reason) = self.node.cancellation().reason() {
                        let status = RunStatus::Cancelled { reason: reason.clone() };
                        return Ok((status, text.unwrap_or_default()));
                    }
                }
            }
        }
    }

    /// Asks the model for a turn: a budget, a slot, and only for as long as the request lasts.
    async fn turn(&mut self, may_call: bool) -> Result<Result<(), RunStatus>, FactBookError> {
        let (messages, number) =
            self.facts.look(|state| (state.messages.clone(), state.run.as_ref().map_or(0, |run| run.turns) + 1));
        let request = ModelRequest {
            system: self.plan.agent.instructions.clone(),
            messages,
            tools: self.tools.clone(),
            tool_calls_allowed: may_call,
            agent: self.plan.agent.name.clone(),
            fan_out: self.plan.limits.fan_out,
        };
        let mut turn = match self.ask(&request, number).await {
            Ok(turn) => turn,
            Err(status) => return Ok(Err(status)),
        };
        cut_deep(&mut turn);
        make_call_ids_unique(&request.messages, &mut turn);
        let used = TurnUsage { input_tokens: turn.usage.input_tokens, output_tokens: turn.usage.output_tokens };
        let stop = serde_json::to_value(turn.stop).ok().and_then(|stop| stop.as_str().map(str::to_owned));
        self.put_down(turn).await?;
        let stop = stop.unwrap_or_default();
        self.kernel.tell(self.scope, EventKind::TurnEnd { turn: number, usage: used, stop });
        Ok(Ok(()))
    }

    /// Stores a turn, so that it is never asked for again.
    async fn put_down(&mut self, mut turn: ModelTurn) -> Result<(), FactBookError> {
        self.withheld.clear();
        let mut withheld = Vec::new();
        if self.facts.is_kept() {
            let calls = turn.calls.clone();
            withheld = clean_turn(&self.kernel.sanitiser, &mut turn);
            let lost = calls.into_iter().filter(|call| withheld.contains(&call.id));
            self.withheld = lost.map(|call| (call.id.clone(), call)).collect();
        }
        self.facts.record(Fact::ModelTurn { turn: Box::new(turn), withheld }).await
    }

    async fn ask(&self, request: &ModelRequest, number: u32) -> Result<ModelTurn, RunStatus> {
        let input_tokens = u64::try_from(estimate(request)).unwrap_or(u64::MAX);
        let amount = Amount { input_tokens, ..Amount::default() };
        let reservation = match self.kernel.ledger.reserve(&self.scope.account, amount).await {
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
        self.kernel.tell(self.scope, EventKind::TurnStart { turn: number });
        let sink = Deltas { kernel: self.kernel, scope: self.scope, held: Mutex::default() };
        let answer = tokio::select! {
            biased;
            reason = cancel.cancelled() => return Err(RunStatus::Cancelled { reason }),
            answer = self.plan.model.turn(request, &sink) => answer,
        };
        sink.finish();
        if let Some(permit) = permit {
            permit.settle(model_health(&answer));
        }
        let turn = answer.map_err(|error| RunStatus::ModelFailed { message: error.to_string() })?;
        reservation.settle(Amount {
            input_tokens: turn.usage.input_tokens,
            output_tokens: turn.usage.output_tokens,
            ..Amount::default()
        });
        Ok(turn)
    }

    /// Runs the calls of a turn that have no result yet: reads that bear company beside each other, everything else
    /// in order.
    async fn run_calls(&self, calls: Vec<OpenCall>) -> Result<(), FactBookError> {
        let mut together: Vec<ModelCall> = Vec::new();
        for OpenCall { call, .. } in calls {
            let call = self.withheld.get(&call.id).cloned().unwrap_or(call);
            if self.bears_company(&call) {
                together.push(call);
                if together.len() == PARALLEL_CALLS_MAX {
                    self.run_together(std::mem::take(&mut together)).await?;
                }
            } else {
                self.run_together(std::mem::take(&mut together)).await?;
                self.run_together(vec![call]).await?;
            }
        }
        self.run_together(together).await
    }

    fn bears_company(&self, call: &ModelCall) -> bool {
        self.capabilities(call).is_some_and(|could| could.allows_parallel_batch())
    }

    fn capabilities(&self, call: &ModelCall) -> Option<Capabilities> {
        let CallArguments::Parsed(arguments) = &call.arguments else { return None };
        self.scope.registry.get(call.tool.as_str())?.capabilities(arguments)
    }

    async fn run_together(&self, calls: Vec<ModelCall>) -> Result<(), FactBookError> {
        let mut ids = Vec::with_capacity(calls.len());
        let invocations: Vec<Invocation> = calls.iter().map(|call| self.invoke(call, &mut ids)).collect();
        let mut recorded = Vec::with_capacity(calls.len());
        for (call, result) in calls.iter().zip(join_all(invocations).await) {
            recorded.push(self.facts.append(ended(call, &result)));
        }
        ids.iter().for_each(|id| self.facts.forget(id));
        for fact in recorded {
            fact?.durable().await?;
        }
        Ok(())
    }

    fn invoke(&self, call: &ModelCall, ids: &mut Vec<InvocationId>) -> Invocation {
        let arguments = call.arguments.for_request();
        let id = self.kernel.invocation_id("call", &call.tool);
        if self.facts.is_kept() {
            let expected = Expected {
                call: call.id.clone(),
                arguments: Digest::of_json(&arguments),
                idempotent: self.capabilities(call).is_some_and(|could| could.idempotent),
            };
            self.facts.announce(&id, expected);
            ids.push(id.clone());
        }
        let call = ToolCall { tool: call.tool.clone(), arguments };
        let proposal = Proposal::new(id, Origin::Agent, self.scope.ancestry.clone(), call);
        self.kernel.invoke(self.node, self.scope, proposal)
    }
}

fn ended(call: &ModelCall, result: &CallResult) -> Fact {
    let texts = |value: Option<&Value>| {
        let texts = value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        texts.map(str::to_owned).collect()
    };
    let artifact = result.metadata.get("artifact").and_then(|artifact| artifact.get("artifact_uri"));
    Fact::CallEnded {
        result: ToolResult {
            call_id: call.id.clone(),
            tool: call.tool.clone(),
            output: result.output.clone(),
            success: result.is_success(),
        },
        source_anchors: texts(result.metadata.get("source_anchors")),
        artifacts: artifact.and_then(Value::as_str).map(str::to_owned).into_iter().collect(),
    }
}

/// A turn from the wire cannot be nested deeper than its reader takes, but one of a host's own model can; everything
/// that walks it later recurses.
fn cut_deep(turn: &mut ModelTurn) {
    for call in &mut turn.calls {
        if let CallArguments::Parsed(arguments) = &mut call.arguments {
            cut(arguments, JSON_DEPTH_MAX);
        }
    }
    for item in turn.replay.iter_mut().flat_map(|replay| &mut replay.items) {
        cut(item, JSON_DEPTH_MAX);
    }
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

/// The model's text as events. What may be the beginning of a secret waits for its end.
struct Deltas<'a> {
    kernel: &'a Kernel,
    scope: &'a Scope,
    held: Mutex<Held>,
}

impl Deltas<'_> {
    /// Tells what was held.
    fn finish(&self) {
        if let Some(delta) = self.held.lock().unwrap_or_else(PoisonError::into_inner).finish() {
            self.kernel.tell(self.scope, EventKind::TextDelta { delta });
        }
    }
}

impl TurnSink for Deltas<'_> {
    fn text_delta(&self, text: &str) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(delta) = held.push(&self.kernel.sanitiser, text) {
            self.kernel.tell(self.scope, EventKind::TextDelta { delta });
        }
    }
}
