//! Tools of a host's own, made of a name and a function; and a gate that holds calls where a test wants them.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::Mutex;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};
use toolwarden_tools::context::{ToolCall, ToolContext};
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{DeclaredCost, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};

use super::WAIT_MAX;

type Work = dyn Fn(ToolContext, Value) -> BoxFuture<'static, ToolOutcome> + Send + Sync;

/// A tool of the host's own.
pub(crate) struct Custom {
    spec: ToolSpec,
    capabilities: Capabilities,
    cost: DeclaredCost,
    confirm: Option<String>,
    subject: Option<fn(&Value) -> Subject>,
    work: Box<Work>,
}

/// A tool that takes any object and does this.
pub(crate) fn custom<F, R>(name: &str, work: F) -> Custom
where
    F: Fn(ToolContext, Value) -> R + Send + Sync + 'static,
    R: Future<Output = ToolOutcome> + Send + 'static,
{
    Custom {
        spec: ToolSpec {
            name: name.into(),
            description: "does what a test wants".to_owned(),
            parameters: json!({ "type": "object" }),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Execute,
            needs: Needs::default(),
        },
        capabilities: Capabilities::conservative(),
        cost: DeclaredCost::default(),
        confirm: None,
        subject: None,
        work: Box::new(move |ctx, arguments| Box::pin(work(ctx, arguments))),
    }
}

/// A tool that gives back its arguments as text.
pub(crate) fn echo(name: &str) -> Custom {
    custom(name, |_ctx, arguments| async move { ToolOutcome::success(arguments.to_string()) })
}

/// A tool that makes the calls of its `calls` argument (`[[tool, args], …]`) beside each other and gives back their
/// outputs, a line each.
pub(crate) fn nesting(name: &str) -> Custom {
    let needs = Needs { invoke: true, ..Needs::default() };
    custom(name, |ctx, arguments| async move {
        let calls = arguments["calls"].as_array().cloned().unwrap_or_default();
        let calls = calls
            .into_iter()
            .map(|call| ToolCall { tool: call[0].as_str().unwrap().into(), arguments: call[1].clone() });
        let outcomes = ctx.invoke.as_ref().unwrap().invoke_all(calls.collect(), 8).await;
        let failed = outcomes.iter().filter(|outcome| !outcome.is_success()).count();
        let text: Vec<String> = outcomes.into_iter().map(|outcome| outcome.output).collect();
        let outcome = ToolOutcome::success(text.join("\n")).with("failed", failed);
        ToolOutcome { exit_code: i32::from(failed > 0), ..outcome }
    })
    .needs(needs)
}

impl Custom {
    pub(crate) fn needs(mut self, needs: Needs) -> Self {
        self.spec.needs = needs;
        self
    }

    pub(crate) fn lane(mut self, lane: Lane) -> Self {
        self.spec.lane = lane;
        self
    }

    /// Changes nothing, so many at a time.
    pub(crate) fn reads(mut self, max_parallelism: usize) -> Self {
        self.capabilities = Capabilities::parallel_safe_read(max_parallelism);
        self
    }

    /// No model sees it.
    pub(crate) fn hidden(mut self) -> Self {
        self.spec.model_visible = false;
        self
    }

    pub(crate) fn parameters(mut self, parameters: Value) -> Self {
        self.spec.parameters = parameters;
        self
    }

    pub(crate) fn cost(mut self, microusd: u64) -> Self {
        self.cost.microusd = microusd;
        self
    }

    pub(crate) fn wants_confirmation(mut self, why: &str) -> Self {
        self.confirm = Some(why.to_owned());
        self
    }

    pub(crate) fn subject_of(mut self, subject: fn(&Value) -> Subject) -> Self {
        self.subject = Some(subject);
        self
    }

    pub(crate) fn shared(self) -> Arc<dyn Tool> {
        Arc::new(self)
    }
}

impl Tool for Custom {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        self.capabilities
    }

    fn requires_confirmation(&self, _arguments: &Value) -> Option<String> {
        self.confirm.clone()
    }

    fn cost(&self, _arguments: &Value) -> DeclaredCost {
        self.cost
    }

    fn subject(&self, arguments: &Value) -> Subject {
        self.subject.map_or_else(|| Subject::Text(arguments.to_string()), |subject| subject(arguments))
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        (self.work)(ctx.clone(), arguments)
    }
}

/// Holds calls: each counts while it is inside, and leaves when it is let go or cancelled.
#[derive(Clone)]
pub(crate) struct Gate {
    shared: Arc<GateShared>,
}

struct GateShared {
    open: Semaphore,
    inside: watch::Sender<usize>,
    most: Mutex<usize>,
    entered: watch::Sender<usize>,
}

/// Counts out when it goes, however that is.
struct Inside(Arc<GateShared>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.send_modify(|inside| *inside -= 1);
    }
}

impl Gate {
    pub(crate) fn new() -> Self {
        let (inside, entered) = (watch::Sender::new(0), watch::Sender::new(0));
        Self { shared: Arc::new(GateShared { open: Semaphore::new(0), inside, most: Mutex::default(), entered }) }
    }

    /// A tool whose calls wait in the gate; it gives back its arguments' `say`.
    pub(crate) fn tool(&self, name: &str) -> Custom {
        let gate = self.clone();
        custom(name, move |ctx, arguments| {
            let gate = gate.clone();
            async move {
                match gate.pass(&ctx).await {
                    Ok(()) => ToolOutcome::success(arguments["say"].as_str().unwrap_or_default()),
                    Err(outcome) => *outcome,
                }
            }
        })
    }

    /// Waits inside until it is let go.
    pub(crate) async fn pass(&self, ctx: &ToolContext) -> Result<(), Box<ToolOutcome>> {
        let shared = Arc::clone(&self.shared);
        // Whoever waits for so many inside may then ask how many came in.
        shared.entered.send_modify(|entered| *entered += 1);
        shared.inside.send_modify(|inside| {
            *inside += 1;
            let mut most = shared.most.lock().unwrap();
            *most = (*most).max(*inside);
        });
        let _inside = Inside(Arc::clone(&shared));
        tokio::select! {
            biased;
            reason = ctx.cancel.cancelled() => Err(Box::new(ToolOutcome::ended_early("gate", &reason))),
            permit = shared.open.acquire() => {
                permit.unwrap().forget();
                Ok(())
            }
        }
    }

    /// Waits until so many calls have come in, over all time.
    pub(crate) async fn entered(&self, count: usize) {
        reached(&self.shared.entered, "calls in the gate", |entered| entered >= count).await;
    }

    /// Waits until exactly so many calls are inside.
    pub(crate) async fn holds(&self, count: usize) {
        reached(&self.shared.inside, "calls inside of the gate", |inside| inside == count).await;
    }

    /// Lets so many go, now or when they come.
    pub(crate) fn let_go(&self, count: usize) {
        self.shared.open.add_permits(count);
    }

    /// How many calls came in, over all time.
    pub(crate) fn count(&self) -> usize {
        *self.shared.entered.borrow()
    }

    /// The most that were inside at a time.
    pub(crate) fn most(&self) -> usize {
        *self.shared.most.lock().unwrap()
    }
}

async fn reached(counter: &watch::Sender<usize>, what: &str, enough: impl Fn(usize) -> bool) {
    let mut counted = counter.subscribe();
    let waited = tokio::time::timeout(WAIT_MAX, AssertUnwindSafe(counted.wait_for(|count| enough(*count)))).await;
    assert!(matches!(waited, Ok(Ok(_))), "never came: {what}, now {}", *counter.borrow());
}
