//! The kernel: one function, `route`, takes every call from its proposal to its ending, top to bottom, with one
//! exit.
//!
//! Whatever happens to a call (it is refused, cancelled, runs late, panics, is dropped by its caller, never
//! starts because its session closes) it has exactly one ending in the journal, and its leases are home by then.

mod context;
mod debts;
pub mod model_port;
mod nested;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use toolwarden_actors::artifact_store::ArtifactStore;
use toolwarden_actors::background::EndListener;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::budget_ledger::BudgetLedger;
use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::confirmations::Confirmations;
use toolwarden_actors::journal::{Journal, JournalError};
use toolwarden_actors::lease::Afterwards;
use toolwarden_actors::node::{Canceller, NodeHandle, NodeKind, NodeSpec, Parting, Waiter};
use toolwarden_actors::node_machine::{BodyEnd, Ending};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::canonical_json::value_bytes;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::Effects;
use toolwarden_tools::effects::entropy::{HEX_ID_BYTES, push_hex_id};
use toolwarden_tools::effects::http::proxy::HttpProxy;
use toolwarden_tools::ids::{InvocationId, SessionId, ToolName};
use toolwarden_tools::json_depth::{FACT_DEPTH_MAX, cut};
use toolwarden_tools::outcome::{Excerpt, ToolErrorKind, ToolOutcome, Trust};
use toolwarden_tools::registry::Registered;
use toolwarden_tools::tool::Tool;
use toolwarden_tools::web::ssrf::AllowedOrigins;

use self::context::{Deltas, context};
use self::debts::{Debts, Leases};
use crate::call_result::CallResult;
use crate::event::{Event, EventKind, REQUEST_SNAPSHOT_SCHEMA, RequestSnapshot};
use crate::governance::admission::Admitted;
use crate::governance::budget::Budgeted;
use crate::governance::confirmation::Confirmed;
use crate::governance::hooks::{Hooked, annotate};
use crate::governance::permission::Permitted;
use crate::governance::recursion::Guarded;
use crate::governance::schema::WellFormed;
use crate::governance::skill::Narrowed;
use crate::lanes::Lanes;
use crate::models::gate::ModelGate;
use crate::proposal::{Passage, Passed, Proposal, Stopped, short_name};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::settlement::artifact::{Side, Unkept, forget_claims};
use crate::settlement::evidence::{EXCERPT_KEY, attach};
use crate::settlement::retained::{ContentKeeping, RetainError, Shown};
use crate::settlement::sanitise::Sanitiser;
use crate::settlement::spool::OutputSpool;
use crate::settlement::{self, Settled};

/// What the route may still need after a tool had its whole grace: post-hooks, settling, the ending.
pub const SETTLE_ALLOWANCE: Duration = Duration::from_secs(5);

/// The parts that every call needs; one for each runtime.
pub struct Kernel {
    /// Clock and entropy.
    pub effects: Effects,
    /// Where events go.
    pub journal: Journal<Event>,
    /// Where budgets are kept.
    pub ledger: BudgetLedger,
    /// Where people are asked.
    pub confirmations: Confirmations,
    /// Where slots are lent.
    pub lanes: Lanes,
    /// The way to models.
    pub models: ModelGate,
    /// What takes secrets out.
    pub sanitiser: Arc<Sanitiser>,
    /// Where the whole of what was shown in part is kept.
    pub artifacts: Arc<ArtifactStore>,
    /// Calls on their way now; order reaches nothing.
    pub live: DashMap<InvocationId, LiveCall>,
    /// Private origins that tools may ask.
    pub allowed_origins: Arc<AllowedOrigins>,
    /// The proxy that tools ask the web through.
    pub proxy: Option<HttpProxy>,
}

/// A call on its way.
pub struct LiveCall {
    tool: ToolName,
    root_session: SessionId,
    reach: Reach,
    /// Set while its tool works.
    started_at_ms: Option<u64>,
}

/// How a call is cancelled. It exists from its proposal on, and its node a moment later.
enum Reach {
    /// Not yet; a cancel that came meanwhile is kept for it.
    Proposed { cancel: Option<CancelReason> },
    /// Through its node.
    Node(NodeHandle),
}

/// A tool at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTool {
    /// The invocation.
    pub id: InvocationId,
    /// The tool.
    pub name: ToolName,
    /// When it started, in milliseconds since 1970.
    pub started_at_ms: u64,
}

impl Kernel {
    /// A new invocation id, `{prefix}-{tool}-{32 hex digits}`.
    pub fn invocation_id(&self, prefix: &str, tool: &ToolName) -> InvocationId {
        let tool = short_name(tool.clone());
        let mut text = String::with_capacity(prefix.len() + tool.as_str().len() + HEX_ID_BYTES + 2);
        [prefix, "-", tool.as_str(), "-"].iter().for_each(|part| text.push_str(part));
        push_hex_id(&mut text, &*self.effects.entropy);
        text.into()
    }

    /// Starts a call under a node. Dropping what is returned cancels the call; it still gets its ending.
    pub fn invoke(self: &Arc<Self>, under: &NodeHandle, scope: &Arc<Scope>, proposal: Proposal) -> Invocation {
        let (id, tool) = (proposal.id.clone(), proposal.call.tool.clone());
        let live = LiveCall {
            tool: tool.clone(),
            root_session: scope.root_session.clone(),
            reach: Reach::Proposed { cancel: None },
            started_at_ms: None,
        };
        self.live.insert(id.clone(), live);
        let proposed = EventKind::ToolProposed {
            id: id.clone(),
            name: tool.clone(),
            origin: proposal.origin,
            parent: proposal.parent.clone(),
        };
        let spec = NodeSpec { kind: NodeKind::Invocation, grace: scope.grace_of(tool.as_str()) + SETTLE_ALLOWANCE };
        let (kernel, its_scope) = (Arc::clone(self), Arc::clone(scope));
        let debts = Arc::new(Debts::of(self.event(scope, proposed)));
        let lost_debts = Arc::clone(&debts);
        let told = Arc::clone(&debts);
        let body = move |node| route(kernel, its_scope, proposal, node, debts);
        let (kernel, its_scope, lost_id, lost_tool) = (Arc::clone(self), Arc::clone(scope), id.clone(), tool.clone());
        let epilogue = move |ending: &Ending| {
            kernel.live.remove(&lost_id);
            let used = Amount { calls: 1, ..Amount::default() };
            lost_debts.leases().go_home(used, CallHealth::Neutral, Afterwards::default());
            let result = Arc::new(unreturned(&kernel, &its_scope, lost_id, lost_tool, ending));
            if lost_debts.takes_ending(&result) {
                lost_debts.note(kernel.event(&its_scope, EventKind::ToolEnd(result)));
                lost_debts.send_notes(&kernel.journal);
            }
        };
        let waiter = under.spawn_parting(spec, body, epilogue);
        Invocation { waiter, debts: told, kernel: Arc::clone(self), scope: Arc::clone(scope), id, tool }
    }

    /// The tools at work now for one top session, the oldest first.
    pub fn active_tools(&self, root_session: &SessionId) -> Vec<ActiveTool> {
        let mut active: Vec<ActiveTool> = self
            .live
            .iter()
            .filter(|call| call.root_session == *root_session)
            .filter_map(|call| {
                let started_at_ms = call.started_at_ms?;
                Some(ActiveTool { id: call.key().clone(), name: call.tool.clone(), started_at_ms })
            })
            .collect();
        active.sort_by(|one, other| one.started_at_ms.cmp(&other.started_at_ms).then_with(|| one.id.cmp(&other.id)));
        active
    }

    /// Cancels one call of a top session, or all of them; returns whether there was any.
    pub fn cancel_calls(&self, root_session: &SessionId, call: Option<&InvocationId>, reason: &CancelReason) -> bool {
        let ids = match call {
            Some(id) => vec![id.clone()],
            None => {
                let of_session = self.live.iter().filter(|live| live.root_session == *root_session);
                let mut ids: Vec<InvocationId> = of_session.map(|live| live.key().clone()).collect();
                // Who is told first is seen in the order of the endings: the map's order must not decide it.
                ids.sort_unstable();
                ids
            }
        };
        let mut any = false;
        for id in ids {
            let Some(mut live) = self.live.get_mut(&id).filter(|live| live.root_session == *root_session) else {
                continue;
            };
            any = true;
            match &mut live.reach {
                Reach::Proposed { cancel } => {
                    cancel.get_or_insert_with(|| reason.clone());
                }
                Reach::Node(node) => node.cancel(reason.clone()),
            }
        }
        any
    }

    /// Writes an event without waiting.
    pub fn tell(&self, scope: &Scope, kind: EventKind) {
        self.journal.note(self.event(scope, kind));
    }

    /// Who tells of the ends of a session's background processes. It holds no scope, for that holds the processes.
    pub fn background_listener(self: &Arc<Self>, scope: &Scope) -> EndListener {
        let kernel = Arc::clone(self);
        let (root_session, session, run) = (scope.root_session.clone(), scope.session.clone(), scope.run.clone());
        Arc::new(move |status| {
            if let Some(mut kind) = EventKind::background_end(status) {
                kind.clean(&kernel.sanitiser);
                let (root_session, session, run) = (root_session.clone(), session.clone(), run.clone());
                kernel.journal.note(Event { root_session, session, run, kind });
            }
        })
    }

    /// Writes an event, at once, and gives what waits until it is stored.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn write(
        &self,
        scope: &Scope,
        kind: EventKind,
    ) -> impl Future<Output = Result<u64, JournalError>> + Send + use<> {
        self.journal.append(self.event(scope, kind))
    }

    /// An event with its place; texts and arguments of models and people are sanitised, results already are.
    fn event(&self, scope: &Scope, mut kind: EventKind) -> Event {
        kind.clean(&self.sanitiser);
        Event { root_session: scope.root_session.clone(), session: scope.session.clone(), run: scope.run.clone(), kind }
    }
}

/// A call under way: await it for its result. Dropped before that, the call is cancelled.
pub struct Invocation {
    waiter: Waiter<Arc<CallResult>>,
    debts: Arc<Debts>,
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    id: InvocationId,
    tool: ToolName,
}

impl Invocation {
    /// The invocation's id.
    pub fn id(&self) -> &InvocationId {
        &self.id
    }

    /// A way to cancel the call that is not tied to waiting for it.
    pub fn canceller(&self) -> Canceller {
        self.waiter.canceller()
    }

    /// Asks the call to end in order; its result still comes.
    pub fn cancel(&self, reason: CancelReason) {
        self.waiter.cancel(reason);
    }
}

impl Future for Invocation {
    type Output = Arc<CallResult>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let end = std::task::ready!(Pin::new(&mut self.waiter).poll(cx));
        // A route that was dropped after it had told its ending is believed: there is one ending, and this is it.
        Poll::Ready(end.output.or_else(|| self.debts.ending.get().cloned()).unwrap_or_else(|| {
            let (id, tool) = (self.id.clone(), self.tool.clone());
            Arc::new(unreturned(&self.kernel, &self.scope, id, tool, &end.ending))
        }))
    }
}

/// The route of one call.
async fn route(
    kernel: Arc<Kernel>,
    scope: Arc<Scope>,
    proposal: Proposal,
    node: NodeHandle,
    debts: Arc<Debts>,
) -> Parting<Arc<CallResult>> {
    let cancel = node.cancellation().clone();
    let live = Live::begin(&kernel, &proposal.id, &node);
    let spool = Arc::new(OutputSpool::new(Arc::clone(&kernel.sanitiser), Arc::clone(&kernel.artifacts)));
    // Bound first: what stands in the head of a `match` keeps its room in the future until the end of it.
    let governed = govern(&kernel, &scope, proposal, &cancel, &debts).await;
    let (passage, outcome) = match governed {
        Ok(admitted) => execute(&kernel, &scope, admitted, &node, &debts, &spool).await,
        Err(stopped) => {
            let Stopped { refusal, passage } = *stopped;
            if refusal.is_denial() {
                let denied = EventKind::PermissionDenied {
                    tool_id: passage.id.clone(),
                    tool_name: passage.tool.clone(),
                    args: passage.arguments.clone(),
                    reason: refusal.to_string(),
                };
                debts.note(kernel.event(&scope, denied));
            }
            (passage, refusal.into_outcome())
        }
    };
    let output_bytes = u64::try_from(outcome.output.len()).unwrap_or(u64::MAX);
    let health = health(&outcome);
    let settled = settle(&kernel, &scope, passage.id.clone(), passage.tool.clone(), outcome, Some(&spool));
    let result = match settled {
        (result, None) => result,
        // Boxed, so that a call that loses nothing keeps no room for it.
        (result, Some(unkept)) => Box::pin(keep(&kernel, &scope, result, unkept)).await,
    };
    let result = Arc::new(match &scope.content {
        None => result,
        Some(content) => Box::pin(retain(&kernel, &scope, content, &cancel, result)).await,
    });
    let used = Amount { calls: 1, output_bytes, ..Amount::default() };
    drop(live);
    // Nothing is awaited from here on: the leases go home, then the ending is written, then the node hears of it.
    let events = debts.takes_ending(&result).then(|| {
        debts.note(kernel.event(&scope, EventKind::ToolEnd(Arc::clone(&result))));
        std::mem::take(&mut *debts.notes())
    });
    if events.is_none() {
        tracing::warn!(invocation = %passage.id, "a call that was given up on has come to its end after all");
    }
    let (leases, journal) = (debts.leases(), kernel.journal.clone());
    Parting::owing(result, move |told| {
        let then = match events {
            Some(events) => Afterwards::call(move || journal.note_all_then(events, told)),
            None => told,
        };
        leases.go_home(used, health, then);
    })
}

/// Stages 1 to 8: may it run, and when.
async fn govern(
    kernel: &Kernel,
    scope: &Scope,
    proposal: Proposal,
    cancel: &Cancellation,
    debts: &Debts,
) -> Passed<Admitted> {
    let note = |kind| {
        if let Some(facts) = &scope.facts {
            facts.hear(&kind);
        }
        debts.note(kernel.event(scope, kind));
    };
    let guarded = Guarded::judge(proposal, scope)?;
    let well_formed = WellFormed::check(guarded, scope)?;
    if !scope.hooks.is_empty() {
        debts.send_notes(&kernel.journal);
    }
    let hooked = match Hooked::consult(well_formed, scope, cancel).await {
        Ok(hooked) => hooked,
        Err(stopped) => {
            // What a hook denies is bound before it is told, as for every other denial.
            if stopped.refusal.is_denial() {
                note(bound(&stopped.passage));
            }
            return Err(stopped);
        }
    };
    note(bound(hooked.passage()));
    let confirmed = match Confirmed::by_trusted_host(hooked) {
        Ok(confirmed) => confirmed,
        Err(hooked) => {
            let narrowed = Narrowed::judge(hooked, scope)?;
            let permitted = Permitted::judge(narrowed, scope)?;
            let tell = |kind| {
                note(kind);
                debts.send_notes(&kernel.journal);
            };
            Confirmed::ask(permitted, scope, &kernel.confirmations, cancel, &tell).await?
        }
    };
    let budgeted = Budgeted::reserve(confirmed, scope, &kernel.ledger, &note).await?;
    Admitted::wait(budgeted, scope, &kernel.lanes, cancel, || debts.send_notes(&kernel.journal)).await
}

fn bound(passage: &Passage) -> EventKind {
    EventKind::ToolRequestBound {
        tool_id: passage.id.clone(),
        tool_name: passage.tool.clone(),
        snapshot: RequestSnapshot {
            schema: REQUEST_SNAPSHOT_SCHEMA,
            origin: passage.origin,
            tool_name_digest: match &passage.entry {
                Some(entry) => entry.name_digest.clone(),
                None => Digest::of(passage.tool.as_str().as_bytes()),
            },
            arguments_bytes: value_bytes(&passage.arguments),
            arguments_digest: Digest::of_json(&passage.arguments),
        },
    }
}

/// Stages 9 to 11: the tool at work, under its cancel, until its children have settled too.
async fn execute(
    kernel: &Arc<Kernel>,
    scope: &Arc<Scope>,
    admitted: Admitted,
    node: &NodeHandle,
    debts: &Arc<Debts>,
    spool: &Arc<OutputSpool>,
) -> (Box<Passage>, ToolOutcome) {
    let (mut passage, entry, reservation, permit) = admitted.into_parts();
    if !debts.owe(Leases { reservation: Some(reservation), permit }) {
        let reason = node.cancellation().reason().cloned().unwrap_or(CancelReason::ParentEnded);
        let refusal = Refusal::Cancelled { tool: passage.tool.clone(), reason };
        return (passage, refusal.into_outcome());
    }
    let start = EventKind::ToolExecutionStart {
        id: passage.id.clone(),
        name: passage.tool.clone(),
        args: passage.arguments.clone(),
    };
    let _limit = scope.limits.timeout.map(|timeout| node.limit(timeout));
    // No side effect comes before this is stored, here and below; a call that has none need not wait.
    let has_effects = !entry.declared(&passage.arguments).read_only;
    if let Some(facts) = &scope.facts
        && let Err(error) = facts.started(&passage.id, has_effects).await
    {
        tracing::warn!(%error, invocation = %passage.id, "a call does not start");
        let refusal = Refusal::NotRunning { tool: passage.tool.clone(), part: "the fact log" };
        return (passage, refusal.into_outcome());
    }
    if !has_effects {
        debts.note(kernel.event(scope, start));
    } else if debts.write(&kernel.journal, kernel.event(scope, start)).await.is_err() {
        let refusal = Refusal::NotRunning { tool: passage.tool.clone(), part: "the journal" };
        return (passage, refusal.into_outcome());
    }
    if let Some(mut live) = kernel.live.get_mut(&passage.id) {
        live.started_at_ms = Some(kernel.effects.clock.unix_ms());
    }
    let deltas = Arc::new(Deltas::new(kernel, scope, &passage, debts));
    let context = context(kernel, scope, &passage, &entry, node, (Arc::clone(&deltas) as _, Arc::clone(spool) as _));
    // Only hooks look at the arguments once the tool has them.
    let arguments = match scope.hooks.is_empty() {
        true => std::mem::take(&mut passage.arguments),
        false => passage.arguments.clone(),
    };
    let mut outcome = {
        let mut run = std::pin::pin!(run_tool(&*entry.tool, &context, arguments, scope, &passage.tool));
        // What is done at once is told together with its ending.
        match futures_util::poll!(&mut run) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => {
                debts.send_notes(&kernel.journal);
                run.await
            }
        }
    };
    if may_have_children(&entry) {
        node.children_settled().await;
    }
    deltas.finish();
    annotate(scope, &passage, &mut outcome).await;
    (passage, outcome)
}

/// Lists a call as live for as long as its route takes; a route that does not begin is taken off by its epilogue.
struct Live<'a> {
    kernel: &'a Kernel,
    id: InvocationId,
}

impl<'a> Live<'a> {
    fn begin(kernel: &'a Kernel, id: &InvocationId, node: &NodeHandle) -> Self {
        if let Some(mut live) = kernel.live.get_mut(id) {
            let before = std::mem::replace(&mut live.reach, Reach::Node(node.clone()));
            if let Reach::Proposed { cancel: Some(reason) } = before {
                node.cancel(reason);
            }
        }
        Self { kernel, id: id.clone() }
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        self.kernel.live.remove(&self.id);
    }
}

/// Runs the tool to its outcome: its own, or what a cancel, a panic or the end of its grace makes of it.
async fn run_tool(
    tool: &dyn Tool,
    context: &ToolContext,
    arguments: Value,
    scope: &Scope,
    name: &ToolName,
) -> ToolOutcome {
    let call = AssertUnwindSafe(async { tool.call(context, arguments).await }).catch_unwind();
    tokio::pin!(call);
    let overdue = async {
        let reason = context.cancel.cancelled().await;
        tokio::time::sleep(scope.grace_of(name.as_str())).await;
        reason
    };
    tokio::select! {
        biased;
        returned = &mut call => match returned {
            Ok(mut outcome) => {
                outcome.metadata.values_mut().for_each(|fact| { cut(fact, FACT_DEPTH_MAX); });
                outcome
            }
            Err(_panic) => {
                // Its words may hold anything; they go to the log of the host, not to the model.
                tracing::error!(tool = %name, invocation = %context.invocation, "a tool panicked");
                let text = format!("{name} broke down while it worked; what it had done by then is unknown");
                ToolOutcome::error(ToolErrorKind::Crashed, text).trusted(Trust::Trusted)
            }
        },
        reason = overdue => ToolOutcome::ended_early(name.as_str(), &reason),
    }
}

fn may_have_children(entry: &Registered) -> bool {
    let needs = entry.tool.spec().needs;
    needs.exec || needs.nests()
}

/// What the outcome says about whatever the lane reaches.
fn health(outcome: &ToolOutcome) -> CallHealth {
    match &outcome.error {
        Some(ToolErrorKind::Transport { .. } | ToolErrorKind::Timeout { .. }) => CallHealth::Failed,
        Some(ToolErrorKind::Cancelled { .. } | ToolErrorKind::Crashed) => CallHealth::Neutral,
        _ => CallHealth::Succeeded,
    }
}

/// Stages 12, 14 and 15: sanitised, projected, proven; and what is to be stored before that is complete.
fn settle(
    kernel: &Kernel,
    scope: &Scope,
    id: InvocationId,
    name: ToolName,
    outcome: ToolOutcome,
    spool: Option<&OutputSpool>,
) -> (CallResult, Option<Box<Unkept>>) {
    let (output, mut removed) = kernel.sanitiser.clean(outcome.output);
    let mut metadata = outcome.metadata;
    forget_claims(&mut metadata);
    for value in metadata.values_mut() {
        removed += kernel.sanitiser.clean_value(value);
    }
    let spooled = match outcome.excerpt {
        Excerpt::Whole => None,
        _ => spool.and_then(OutputSpool::finish),
    };
    if let Some(spooled) = &spooled {
        removed += spooled.removed;
        metadata.insert(EXCERPT_KEY.to_owned(), true.into());
        if spooled.over_bytes > 0 {
            metadata.insert("artifact_over_bytes".to_owned(), spooled.over_bytes.into());
        }
    }
    let sides = outcome.sides.into_iter().map(|kept| {
        let (text, count) = kernel.sanitiser.clean(kept.text);
        removed += count;
        Side { side: kept.side, at: kept.at, text }
    });
    let sides: Vec<Side> = sides.collect();
    let error_kind = outcome.error.map(|kind| kernel.sanitiser.clean_kind(kind));
    if removed > 0 {
        metadata.insert("sanitised".to_owned(), json!({ "removed": removed }));
    }
    let settled = settlement::project(&scope.projection, name.as_str(), output, outcome.excerpt, spooled, sides);
    let (output, unkept) = match settled {
        Settled::Whole(output, evidence) => {
            attach(&mut metadata, evidence);
            (output, None)
        }
        Settled::Unkept(unkept) => (String::new(), Some(unkept)),
    };
    let result = CallResult {
        id,
        name,
        output,
        exit_code: outcome.exit_code,
        metadata,
        error_kind,
        trust: outcome.trust,
        attachments: outcome.attachments,
    };
    (result, unkept)
}

/// Stage 13: stores what a result refers to, and completes it.
async fn keep(kernel: &Kernel, scope: &Scope, mut result: CallResult, unkept: Box<Unkept>) -> CallResult {
    result.output = unkept.keep(&kernel.artifacts, &scope.root_session, &mut result.metadata).await;
    result
}

/// Stage 13 of a session whose host keeps everything: what it does not keep is not released.
async fn retain(
    kernel: &Kernel,
    scope: &Scope,
    content: &ContentKeeping,
    cancel: &Cancellation,
    mut result: CallResult,
) -> CallResult {
    let CallResult { name, output, metadata, .. } = &mut result;
    let shown = Shown { tool: name.as_str(), output, metadata };
    let retained = content.retain(&kernel.artifacts, &scope.root_session, &scope.projection, cancel, shown).await;
    let outcome = match retained {
        Ok(()) => return result,
        Err(RetainError::Cancelled(reason)) => ToolOutcome::ended_early(result.name.as_str(), &reason),
        Err(error) => {
            // Its words may hold anything; they go to the log of the host, not to the model.
            tracing::error!(%error, adapter = content.name(), invocation = %result.id, "a result is withheld");
            let text = format!(
                "what {} gave could not be kept as this host demands, so it is not shown; what the call did is done",
                result.name
            );
            ToolOutcome::error(ToolErrorKind::Transport { op: "retain".to_owned() }, text)
        }
    };
    let (result, unkept) = settle(kernel, scope, result.id, result.name, outcome.trusted(Trust::Trusted), None);
    match unkept {
        Some(unkept) => keep(kernel, scope, result, unkept).await,
        None => result,
    }
}

/// The result of a call whose route did not come to its own end.
fn unreturned(kernel: &Kernel, scope: &Scope, id: InvocationId, name: ToolName, ending: &Ending) -> CallResult {
    let outcome = match (&ending.body, &ending.cancel) {
        (BodyEnd::Panicked(_), _) => {
            let text = format!("{name} was lost to a fault of the runtime; what it had done by then is unknown");
            ToolOutcome::error(ToolErrorKind::Crashed, text)
        }
        (BodyEnd::Abandoned, reason) => {
            let reason = reason.clone().unwrap_or(CancelReason::Requested);
            let mut outcome = ToolOutcome::ended_early(name.as_str(), &reason);
            outcome.output.push_str("; it did not stop when it was told to and may still be running");
            outcome.with("abandoned", true)
        }
        (_, reason) => {
            let reason = reason.clone().unwrap_or(CancelReason::ParentEnded);
            ToolOutcome::ended_early(name.as_str(), &reason)
        }
    };
    let (mut result, unkept) = settle(kernel, scope, id, name, outcome.trusted(Trust::Trusted), None);
    if let Some(unkept) = unkept {
        result.output = unkept.give_up(&mut result.metadata);
    }
    result
}
