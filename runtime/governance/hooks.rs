//! Stage 3: hooks of the host, before a call; and stage 11, after it.
//!
//! A hook that panics before a call refuses it; one that panics or is late after a call adds nothing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::{Map, Value};
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::json_depth::{FACT_DEPTH_MAX, cut};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::registry::Registered;

use crate::governance::schema::WellFormed;
use crate::hook::{HookVerdict, HookedCall};
use crate::proposal::{Passage, Passed};
use crate::refusal::Refusal;
use crate::scope::Scope;

/// The metadata key under which hooks' annotations stand, by hook.
pub const ANNOTATIONS_KEY: &str = "hooks";

/// A proposal that no hook refused; its arguments are final.
pub(crate) struct Hooked {
    passage: Box<Passage>,
    entry: Arc<Registered>,
}

impl Hooked {
    /// Asks the hooks in their order.
    pub(crate) async fn consult(well_formed: WellFormed, scope: &Scope, cancel: &Cancellation) -> Passed<Self> {
        let mut current = well_formed;
        for hook in &scope.hooks {
            // A hook may break at once as well as while it is awaited.
            let asked = async { hook.before(hooked(scope, current.passage())).await };
            let asked = AssertUnwindSafe(asked).catch_unwind();
            let verdict = tokio::select! {
                biased;
                reason = cancel.cancelled() => Err(reason),
                verdict = asked => Ok(verdict),
            };
            let tool = current.passage().tool.clone();
            let refusal = match verdict {
                Ok(Ok(HookVerdict::Continue)) => continue,
                Ok(Ok(HookVerdict::Rewrite(arguments))) => {
                    current = current.rewritten(arguments)?;
                    continue;
                }
                Ok(Ok(HookVerdict::Deny { reason })) => {
                    Refusal::Hook { tool, reason, retryable: false, retry_after_ms: None }
                }
                Ok(Ok(HookVerdict::RetryLater { reason, after_ms })) => {
                    Refusal::Hook { tool, reason, retryable: true, retry_after_ms: after_ms }
                }
                Ok(Err(_panic)) => {
                    let reason = format!("the hook {} broke", hook.name());
                    Refusal::Hook { tool, reason, retryable: false, retry_after_ms: None }
                }
                Err(reason) => Refusal::Cancelled { tool, reason },
            };
            return current.into_parts().0.stop(refusal);
        }
        let (passage, entry) = current.into_parts();
        Ok(Self { passage, entry })
    }

    pub(crate) fn passage(&self) -> &Passage {
        &self.passage
    }

    pub(crate) fn into_parts(self) -> (Box<Passage>, Arc<Registered>) {
        (self.passage, self.entry)
    }
}

/// Stage 11: what the hooks add to an outcome, waited for at most as long as the scope says; a hook that is late
/// or broke adds nothing.
pub(crate) async fn annotate(scope: &Scope, passage: &Passage, outcome: &mut ToolOutcome) {
    if scope.hooks.is_empty() {
        return;
    }
    let mut annotations = Map::new();
    let asked = async {
        for hook in &scope.hooks {
            let after = async { hook.after(hooked(scope, passage), outcome).await };
            let mut facts = AssertUnwindSafe(after).catch_unwind().await;
            facts.iter_mut().flat_map(Map::values_mut).for_each(|fact| {
                cut(fact, FACT_DEPTH_MAX);
            });
            match facts {
                Ok(facts) if !facts.is_empty() => {
                    annotations.insert(hook.name().to_owned(), Value::Object(facts));
                }
                Ok(_) => {}
                Err(_) => tracing::warn!(hook = hook.name(), "a hook broke after a call"),
            }
        }
    };
    if tokio::time::timeout(scope.limits.post_hook, asked).await.is_err() {
        tracing::warn!(tool = %passage.tool, "hooks after a call took too long and were left");
    }
    // What was said in time counts.
    if !annotations.is_empty() {
        outcome.metadata.insert(ANNOTATIONS_KEY.to_owned(), Value::Object(annotations));
    }
}

fn hooked<'a>(scope: &'a Scope, passage: &'a Passage) -> HookedCall<'a> {
    HookedCall {
        session: &scope.session,
        invocation: &passage.id,
        origin: passage.origin,
        tool: &passage.tool,
        arguments: &passage.arguments,
    }
}
