//! The life of a session, in its node: it opens its account, answers one run after the other, and gives back at its
//! end what it referred to, however that comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{mpsc, oneshot};
use toolwarden_actors::accounts::LedgerError;
use toolwarden_actors::budget::Amount;
use toolwarden_actors::node::{NodeHandle, NodeKind, NodeSpec};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::ids::RunId;

use super::{Prompt, RunRequest, SessionPlan};
use crate::event::{EventKind, TurnUsage};
use crate::fact_book::{FactBook, FactBookError};
use crate::facts::Fact;
use crate::facts::state::State;
use crate::keeper::Keeper;
use crate::kernel::Kernel;
use crate::run::{EndTold, RunOutcome, RunPlan, carry, tell_lost};
use crate::run_status::RunStatus;
use crate::scope::Scope;
use crate::session_span::SESSION_GRACE;
use crate::settlement::artifact::ArtifactUri;

/// What a session refers to, released however it ends.
struct References<'a> {
    kernel: &'a Kernel,
    scope: &'a Scope,
}

impl Drop for References<'_> {
    fn drop(&mut self) {
        self.kernel.artifacts.release(&self.scope.root_session);
    }
}

/// What a session lives with.
pub(super) struct Life {
    pub(super) kernel: Arc<Kernel>,
    pub(super) scope: Arc<Scope>,
    pub(super) plan: SessionPlan,
    pub(super) facts: Arc<FactBook>,
    /// The one strong reference that lasts: the session is given free when this goes.
    pub(super) keeper: Option<Arc<Keeper>>,
    /// Whether it was told that the session opened, and not yet that it closed.
    pub(super) is_told: Arc<AtomicBool>,
}

/// The session's life, in its node.
pub(super) async fn live(
    life: Life,
    node: NodeHandle,
    mut requests: mpsc::Receiver<Box<RunRequest>>,
    opened: oneshot::Sender<Result<NodeHandle, LedgerError>>,
) {
    let (kernel, scope) = (&life.kernel, &life.scope);
    if let Err(error) = open_account(&life).await {
        drop(opened.send(Err(error)));
        return;
    }
    let _references = References { kernel, scope };
    refer(&life).await;
    life.is_told.store(true, Ordering::Release);
    kernel.tell(scope, EventKind::SessionOpened { workspace: scope.workspace.display_root().to_owned() });
    if let Some(background) = &scope.background {
        background.hang_on(&node, kernel.background_listener(scope));
    }
    scope.tasks.hang_on(&node);
    if let Some(children) = &scope.children {
        children.go_on(scope);
    }
    if opened.send(Ok(node.clone())).is_ok() {
        loop {
            tokio::select! {
                biased;
                _ = node.cancellation().cancelled() => break,
                request = requests.recv() => match request {
                    // Boxed, so that an idle session keeps no room for a run.
                    Some(request) => Box::pin(answer(&life, &node, request)).await,
                    // The last handle is gone.
                    None => break,
                },
            }
        }
    }
    // No more runs; what still runs is told to end, and waited for.
    requests.close();
    scope.tasks.close(node.cancellation().reason().cloned().unwrap_or(CancelReason::SessionClosed));
    node.cancel(CancelReason::SessionClosed);
    node.children_settled().await;
    // Parts that are gone have nothing left to close.
    let _ = kernel.confirmations.close_session(scope.root_session.clone()).await;
    drop(kernel.ledger.close_account(scope.account.id().clone()).await);
    life.is_told.store(false, Ordering::Release);
    drop(kernel.write(scope, EventKind::SessionClosed).await);
    // Somebody may be saving: then the lock goes when that is done.
    if let Some(keeper) = life.keeper.and_then(Arc::into_inner) {
        keeper.close().await;
    }
}

/// Keeps the artifacts that were referred to before, in another process; one that is gone is found missing when it is
/// read.
async fn refer(life: &Life) {
    for uri in life.facts.look(|state| state.artifacts.clone()) {
        if let Ok(uri) = uri.parse::<ArtifactUri>()
            && let Err(error) = life.kernel.artifacts.refer(&life.scope.root_session, uri.digest()).await
        {
            tracing::warn!(%error, artifact = %uri, "an artifact of a kept session is not held");
        }
    }
}

/// Opens the session's account; what it used before, in another process, is used.
async fn open_account(life: &Life) -> Result<(), LedgerError> {
    let (ledger, account) = (&life.kernel.ledger, &life.scope.account);
    ledger.open_account(account).await?;
    let used = life.facts.look(State::used);
    if used != Amount::default() {
        // Not reserved: a session that used more than it may is still opened, to be looked at.
        ledger.charge(account.id().clone(), used).await?;
    }
    Ok(())
}

/// One run as a child of the session.
async fn answer(life: &Life, node: &NodeHandle, request: Box<RunRequest>) {
    let (kernel, scope, plan) = (&life.kernel, &life.scope, &life.plan);
    let RunRequest { run, prompt, mut reply, cancel, listed } = *request;
    if reply.is_closed() {
        return;
    }
    if let Some(reason) = cancel.reason() {
        drop(listed);
        // Whoever asked may be gone.
        drop(reply.send(unanswered(run, scope, RunStatus::Cancelled { reason: reason.clone() })));
        return;
    }
    if prompt.is_none()
        && let Some(ended) = over(life, &run)
    {
        drop(listed);
        drop(reply.send(ended));
        return;
    }
    let run_plan = RunPlan {
        run: run.clone(),
        model: Arc::clone(&plan.model),
        agent: Arc::clone(&plan.agent),
        limits: plan.limits.clone(),
        end_told: EndTold::default(),
    };
    if let Err(error) = begin(life, &run_plan, prompt).await {
        drop(listed);
        drop(reply.send(unanswered(run, scope, RunStatus::StoreFailed { message: error.to_string() })));
        return;
    }
    let run_facts = life.facts.is_kept().then(|| Arc::clone(&life.facts));
    let run_scope = Arc::new(Scope { run: Some(run.clone()), facts: run_facts, ..Scope::clone(scope) });
    let spec = NodeSpec { kind: NodeKind::Run, grace: SESSION_GRACE };
    let (its_kernel, its_scope, its_facts) = (Arc::clone(kernel), Arc::clone(&run_scope), Arc::clone(&life.facts));
    let (lost_kernel, lost_scope, end_told) = (Arc::clone(kernel), Arc::clone(&run_scope), run_plan.end_told.clone());
    let mut waiter = node.spawn_with_epilogue(
        spec,
        move |node| carry(its_kernel, its_scope, run_plan, node, its_facts),
        move |ending| tell_lost(&lost_kernel, &lost_scope, &end_told, ending),
    );
    let end = tokio::select! {
        biased;
        end = &mut waiter => end,
        reason = cancel.cancelled() => {
            waiter.cancel(reason);
            waiter.await
        }
        () = reply.closed() => {
            waiter.cancel(CancelReason::CallerGone);
            waiter.await
        }
    };
    let outcome = match end.output {
        Some(outcome) => outcome,
        None => {
            let status = RunStatus::lost(&end.ending);
            // Whatever of it still moves finds that the run has ended.
            let ending = Fact::Ending { status: status.clone(), text: String::new() };
            if let Err(error) = life.facts.record(ending).await {
                tracing::warn!(%error, %run, "the end of a run is not among the facts");
            }
            unanswered(run, scope, status)
        }
    };
    if let Some(keeper) = life.keeper.as_ref().filter(|keeper| keeper.is_due())
        && let Err(error) = keeper.save().await
    {
        tracing::warn!(session = %scope.session, %error, "no snapshot was saved");
    }
    // Before the answer: whoever has that finds nothing more to cancel.
    drop(listed);
    // Whoever asked may be gone.
    drop(reply.send(outcome));
}

/// What a run came to that was to go on, when it is not under way any more; of one before the last run it is known only
/// that it was not gone on with.
fn over(life: &Life, run: &RunId) -> Option<RunOutcome> {
    let (under_way, last) = life.facts.look(|state| (state.run.as_ref().map(|run| run.id.clone()), state.last.clone()));
    if under_way.as_ref() == Some(run) {
        return None;
    }
    Some(match last.filter(|last| last.id == *run) {
        Some(last) => RunOutcome::of(*last, &life.scope.session),
        None => unanswered(run.clone(), &life.scope, RunStatus::Interrupted),
    })
}

/// Puts down that a run begins; one that was under way when the process ended, and is not gone on with, has ended.
async fn begin(life: &Life, plan: &RunPlan, prompt: Option<Prompt>) -> Result<(), FactBookError> {
    let Some(Prompt { text, pictures }) = prompt else { return Ok(()) };
    if life.facts.look(|state| state.run.is_some()) {
        life.facts.record(Fact::Ending { status: RunStatus::Interrupted, text: String::new() }).await?;
    }
    let text = life.facts.fit_to_keep(&life.kernel.sanitiser, text);
    life.facts.record(Fact::UserMessage { run: plan.run.clone(), text, pictures, bounds: plan.bounds() }).await
}

/// The outcome of a run that gave nothing back.
fn unanswered(run: RunId, scope: &Scope, status: RunStatus) -> RunOutcome {
    RunOutcome {
        run,
        session: scope.session.clone(),
        status,
        text: String::new(),
        usage: TurnUsage::default(),
        turns: 0,
        source_anchors: Vec::new(),
    }
}
