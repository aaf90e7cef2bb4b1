//! The agent loop: a model proposes, the route decides, until the model has said its last word or a bound is met.
//!
//! A model's word proves nothing: it gets results, and its calls go through the same route as anybody's. Every
//! bound has an ending of its own. Cut or malformed calls never run. The loop itself remembers nothing: each step
//! follows from the facts before it, so a run goes on after `kill -9` as if it had only paused.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;
use serde_json::Value;
use toolwarden_actors::node::NodeHandle;
use toolwarden_actors::node_machine::Ending;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ToolCall;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::entropy::hex_id;
use toolwarden_tools::ids::{InvocationId, RunId, SessionId};
use toolwarden_tools::json_depth::{JSON_DEPTH_MAX, cut};
use toolwarden_tools::offer::Offer;
use toolwarden_tools::tool::Needs;

use crate::agent::Agent;
use crate::call_result::CallResult;
use crate::event::{EventKind, TurnUsage};
use crate::fact_book::{Expected, FactBook, FactBookError, clean_turn};
use crate::facts::state::{EndedRun, OpenCall, State, Step};
use crate::facts::{Fact, RunBounds};
use crate::kernel::model_port::{ModelPort, NoTurn, request_tokens};
use crate::kernel::{Invocation, Kernel};
use crate::models::compaction::Compaction;
use crate::models::gate::TurnFailure;
use crate::models::transcript::make_call_ids_unique;
use crate::models::turn_options::TurnOptions;
use crate::models::wire::wire_name;
use crate::models::{
    CallArguments, CallDelta, Model, ModelCall, ModelError, ModelRequest, ModelTurn, NoSink, StopReason, ToolResult,
    TurnSink,
};
use crate::origin::Origin;
use crate::proposal::Proposal;
use crate::run_status::RunStatus;
use crate::scope::Scope;
use crate::settlement::sanitise::stream::Held;
use crate::verification::VerificationSummary;

/// Most calls of one turn that run beside each other.
pub const PARALLEL_CALLS_MAX: usize = 8;
/// Child runs that one `task` call should start at the most, when nobody says.
pub const FAN_OUT_DEFAULT: usize = 4;

/// How full the model's window may be before the conversation is shortened, in percent; the rest is for the answer.
const COMPACT_PERCENT: u64 = 75;
/// How many tokens a request must be estimated to have that is refused without a code, to be taken for one that fills a window
/// of unknown size.
const SUSPECT_TOKENS: u64 = 8000;
/// How much of the window the newest messages may keep then, in percent.
const KEPT_PERCENT: u64 = 30;

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
    /// The most child runs that one `task` call should start; what the session had before, when none, and
    /// [`FAN_OUT_DEFAULT`] for a new one.
    pub fan_out: Option<usize>,
}

impl Default for RunLimits {
    fn default() -> Self {
        Self { rounds_max: None, malformed_rounds_max: 2, same_call_max: 3, timeout: None, fan_out: None }
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
            usage: usage.into(),
            turns,
            source_anchors,
        }
    }

    /// What a run came to that has ended.
    pub fn of(ended: EndedRun, session: &SessionId) -> Self {
        let EndedRun { id, status, text, usage, turns, source_anchors } = ended;
        let usage = usage.into();
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
            rounds_max: self.agent.steps.rounds(self.limits.rounds_max),
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
    // A turn that was cut short started nothing.
    scope.tasks.turn_fell(&plan.run);
    // A run that is dropped while it waits for this to be stored has told it.
    if plan.end_told.take() {
        tell_end(&kernel, &scope, &outcome, &facts).await;
    }
    outcome
}

/// Tells the ending of a run whose body gave nothing back: what the node of every run calls as its epilogue.
pub fn tell_lost(kernel: &Kernel, scope: &Scope, end_told: &EndTold, ending: &Ending) {
    if let Some(run) = &scope.run {
        scope.tasks.turn_fell(run);
    }
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
    tools: Offer,
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
                    // The turn stands: its results are kept, so what it started in the background may begin.
                    self.scope.tasks.turn_stands(&self.plan.run);
                }
            }
        }
    }

    /// Asks the model for a turn, in a conversation that fits into its window.
    async fn turn(&mut self, may_call: bool) -> Result<Result<(), RunStatus>, FactBookError> {
        let number = self.facts.look(|state| state.run.as_ref().map_or(0, |run| run.turns) + 1);
        if let Some(window) = self.plan.model.context_tokens()
            && let Err(status) = self.make_room(window, false).await?
        {
            return Ok(Err(status));
        }
        let mut request = self.request(may_call);
        let mut answer = self.ask(&request, number).await;
        if matches!(&answer, Err(stopped) if self.may_be_full(stopped, &request)) {
            // The provider counts otherwise than we do: what is shortened now, fits then.
            let window = self.plan.model.context_tokens().unwrap_or(u64::MAX).min(request_tokens(&request));
            if let Err(status) = self.make_room(window, true).await? {
                // What was only suspected is told as it was said.
                return Ok(Err(match answer {
                    Err(refused @ Stopped::Refused(_)) if status == RunStatus::ContextFull => refused.into_status(),
                    _ => status,
                }));
            }
            request = self.request(may_call);
            answer = self.ask(&request, number).await;
        }
        let mut turn = match answer {
            Ok(turn) => turn,
            Err(stopped) => return Ok(Err(stopped.into_status())),
        };
        cut_deep(&mut turn);
        make_call_ids_unique(&request.messages, &mut turn);
        let used = TurnUsage::from(turn.usage);
        let stop = serde_json::to_value(turn.stop).ok().and_then(|stop| stop.as_str().map(str::to_owned));
        self.put_down(turn).await?;
        let stop = stop.unwrap_or_default();
        self.kernel.tell(self.scope, EventKind::TurnEnd { turn: number, usage: used, stop });
        Ok(Ok(()))
    }

    /// Whether a turn was not given because the window is full: its provider says so by a code, or refuses without one a
    /// request that is long enough for it. Some say it in prose alone, and prose is never read.
    fn may_be_full(&self, stopped: &Stopped, request: &ModelRequest) -> bool {
        match stopped {
            Stopped::ContextFull => true,
            Stopped::Refused(_) => {
                let suspect = self.plan.model.context_tokens().map_or(SUSPECT_TOKENS, |window| window / 2);
                request_tokens(request) >= suspect
            }
            _ => false,
        }
    }

    fn request(&self, may_call: bool) -> ModelRequest {
        ModelRequest {
            system: self.plan.agent.instructions.clone(),
            messages: self.facts.look(|state| state.messages.clone()),
            tools: self.tools.clone(),
            tool_calls_allowed: may_call,
            agent: self.plan.agent.name.clone(),
            fan_out: self.plan.limits.fan_out.unwrap_or(FAN_OUT_DEFAULT),
            options: TurnOptions { cache_key: Some(self.scope.session.to_string()), ..TurnOptions::default() },
        }
    }

    /// Lets a summary stand for the oldest messages when they fill the window, or when `must` says so. Nothing of the
    /// conversation is touched before the summary is whole.
    async fn make_room(&mut self, window: u64, must: bool) -> Result<Result<(), RunStatus>, FactBookError> {
        let request = self.request(false);
        let tokens = request_tokens(&request);
        if !must && tokens <= percent(window, COMPACT_PERCENT) {
            return Ok(Ok(()));
        }
        let kept_bytes = usize::try_from(percent(window, KEPT_PERCENT)).unwrap_or(usize::MAX).saturating_mul(4);
        let Some(compaction) = Compaction::of(&request, window, kept_bytes) else {
            let full = must || tokens > window;
            return Ok(if full { Err(RunStatus::ContextFull) } else { Ok(()) });
        };
        let turn = match self.ask_quietly(&compaction.request).await {
            Ok(turn) if !turn.text.trim().is_empty() && turn.stop == StopReason::EndTurn => turn,
            Err(stopped @ (Stopped::Cancelled(_) | Stopped::Budget(_))) => return Ok(Err(stopped.into_status())),
            _ if must || tokens > window => return Ok(Err(RunStatus::ContextFull)),
            // It still fits; the next turn tries again.
            _ => return Ok(Ok(())),
        };
        let prompt = self.facts.look(|state| state.run.as_ref().map(|run| run.prompt.clone())).unwrap_or_default();
        let summary = self.facts.fit_to_keep(&self.kernel.sanitiser, compaction.summary(&turn.text, &prompt));
        let messages = compaction.messages;
        self.facts.record(Fact::Compacted { messages, summary, usage: turn.usage }).await?;
        let tokens_after = request_tokens(&self.request(false));
        let messages = u64::try_from(messages).unwrap_or(u64::MAX);
        self.kernel.tell(self.scope, EventKind::ContextCompacted { messages, tokens_before: tokens, tokens_after });
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

    async fn ask(&self, request: &ModelRequest, number: u32) -> Result<ModelTurn, Stopped> {
        let sink = Deltas { kernel: self.kernel, scope: self.scope, turn: number, held: Mutex::default() };
        let answer = self.ask_for(request, &sink).await;
        sink.finish();
        answer
    }

    /// A turn that nobody watches.
    async fn ask_quietly(&self, request: &ModelRequest) -> Result<ModelTurn, Stopped> {
        self.ask_for(request, &NoSink).await
    }

    /// Asks within the budget, through the gate.
    async fn ask_for(&self, request: &ModelRequest, sink: &dyn TurnSink) -> Result<ModelTurn, Stopped> {
        let port = ModelPort {
            kernel: Arc::clone(self.kernel),
            scope: Arc::clone(self.scope),
            model: Arc::clone(&self.plan.model),
            holder: self.plan.run.as_str().into(),
            cancel: self.node.cancellation().clone(),
        };
        port.turn(request, sink).await.map_err(|no_turn| match no_turn {
            NoTurn::Budget { resource } => Stopped::Budget(resource),
            NoTurn::Ledger(error) => Stopped::Failed(error.to_string()),
            NoTurn::Gate(TurnFailure::Cancelled(reason)) => Stopped::Cancelled(reason),
            NoTurn::Gate(TurnFailure::Model(ModelError::ContextOverflow { .. })) => Stopped::ContextFull,
            NoTurn::Gate(TurnFailure::Model(error @ ModelError::Invalid { .. })) => Stopped::Refused(error.to_string()),
            NoTurn::Gate(failure) => Stopped::Failed(failure.to_string()),
        })
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

    /// Whether a call that is made again does nothing but wait for the child runs that it has begun already.
    fn comes_back(&self, call: &ModelCall) -> bool {
        let delegates = self.scope.registry.get(call.tool.as_str()).map(|entry| entry.tool.spec().needs);
        let is_all = delegates == Some(Needs { delegate: true, ..Needs::default() });
        is_all && self.scope.children.as_ref().is_some_and(|children| children.come_back())
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
                idempotent: self.capabilities(call).is_some_and(|could| could.idempotent) || self.comes_back(call),
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

fn percent(window: u64, percent: u64) -> u64 {
    window / 100 * percent
}

/// Why there is no turn.
enum Stopped {
    Cancelled(CancelReason),
    Budget(String),
    ContextFull,
    /// The request is refused as it is, for a reason that no code names.
    Refused(String),
    Failed(String),
}

impl Stopped {
    fn into_status(self) -> RunStatus {
        match self {
            Self::Cancelled(reason) => RunStatus::Cancelled { reason },
            Self::Budget(resource) => RunStatus::BudgetExhausted { resource },
            Self::ContextFull => RunStatus::ContextFull,
            Self::Refused(message) | Self::Failed(message) => RunStatus::ModelFailed { message },
        }
    }
}

/// The model's text as events. What may be the beginning of a secret waits for its end.
struct Deltas<'a> {
    kernel: &'a Kernel,
    scope: &'a Scope,
    turn: u32,
    held: Mutex<HeldTurn>,
}

#[derive(Default)]
struct HeldTurn {
    text: Held,
    reasoning: Held,
    /// Calls that the model has begun to write, by their place in the turn.
    calls: BTreeMap<usize, HeldCall>,
}

#[derive(Default)]
struct HeldCall {
    id: String,
    is_told: bool,
    arguments: Held,
}

impl Deltas<'_> {
    /// Tells what was held.
    fn finish(&self) {
        let mut held = self.held();
        if let Some(delta) = held.reasoning.finish() {
            self.kernel.tell(self.scope, EventKind::ReasoningDelta { delta });
        }
        if let Some(delta) = held.text.finish() {
            self.kernel.tell(self.scope, EventKind::TextDelta { delta });
        }
        for call in held.calls.values_mut() {
            if let Some(delta) = call.arguments.finish() {
                self.kernel.tell(self.scope, EventKind::ToolInputDelta { id: call.id.clone(), delta });
            }
        }
    }

    fn held(&self) -> MutexGuard<'_, HeldTurn> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TurnSink for Deltas<'_> {
    fn begun(&self) {
        self.kernel.tell(self.scope, EventKind::TurnStart { turn: self.turn });
    }

    fn text_delta(&self, text: &str) {
        if let Some(delta) = self.held().text.push(&self.kernel.sanitiser, text) {
            self.kernel.tell(self.scope, EventKind::TextDelta { delta });
        }
    }

    fn reasoning_delta(&self, text: &str) {
        if let Some(delta) = self.held().reasoning.push(&self.kernel.sanitiser, text) {
            self.kernel.tell(self.scope, EventKind::ReasoningDelta { delta });
        }
    }

    fn call_delta(&self, delta: CallDelta<'_>) {
        let mut held = self.held();
        let call = held.calls.entry(delta.place).or_default();
        // A call is told once its tool is known: some servers give that later.
        if !call.is_told && !delta.tool.is_empty() {
            call.is_told = true;
            delta.id.clone_into(&mut call.id);
            let start = EventKind::ToolStart { id: call.id.clone(), name: wire_name(delta.tool).as_str().into() };
            self.kernel.tell(self.scope, start);
        }
        if !delta.arguments.is_empty()
            && let Some(text) = call.arguments.push(&self.kernel.sanitiser, delta.arguments)
        {
            self.kernel.tell(self.scope, EventKind::ToolInputDelta { id: call.id.clone(), delta: text });
        }
    }

    /// The same number again: whoever reads takes back what came since the first.
    fn restarted(&self) {
        *self.held() = HeldTurn::default();
        self.begun();
    }
}
