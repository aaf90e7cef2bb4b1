//! Hooks: asked before, told after; they refuse and rewrite, and what they rewrite is checked again.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use toolwarden::hook::{Hook, HookVerdict, HookedCall};
use toolwarden::prelude::CancelTarget;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::outcome::{ToolErrorKind, ToolOutcome};

use crate::support::tool::echo;
use crate::support::world::World;

type Before = dyn Fn(Value) -> BoxFuture<'static, HookVerdict> + Send + Sync;
type After = dyn Fn(ToolOutcome) -> BoxFuture<'static, Map<String, Value>> + Send + Sync;

struct Custom {
    name: &'static str,
    before: Box<Before>,
    after: Box<After>,
}

fn hook(name: &'static str) -> Custom {
    Custom {
        name,
        before: Box::new(|_arguments| Box::pin(async { HookVerdict::Continue })),
        after: Box::new(|_outcome| Box::pin(async { Map::new() })),
    }
}

impl Custom {
    fn before(mut self, verdict: impl Fn(Value) -> HookVerdict + Send + Sync + 'static) -> Arc<dyn Hook> {
        self.before = Box::new(move |arguments| Box::pin(std::future::ready(verdict(arguments))));
        Arc::new(self)
    }

    fn waiting_before(mut self) -> Arc<dyn Hook> {
        self.before = Box::new(|_arguments| Box::pin(std::future::pending()));
        Arc::new(self)
    }

    fn after<R>(mut self, facts: impl Fn(ToolOutcome) -> R + Send + Sync + 'static) -> Arc<dyn Hook>
    where
        R: Future<Output = Map<String, Value>> + Send + 'static,
    {
        self.after = Box::new(move |outcome| Box::pin(facts(outcome)));
        Arc::new(self)
    }
}

impl Hook for Custom {
    fn name(&self) -> &str {
        self.name
    }

    fn before<'a>(&'a self, call: HookedCall<'a>) -> BoxFuture<'a, HookVerdict> {
        (self.before)(call.arguments.clone())
    }

    fn after<'a>(&'a self, _call: HookedCall<'a>, outcome: &'a ToolOutcome) -> BoxFuture<'a, Map<String, Value>> {
        (self.after)(outcome.clone())
    }
}

fn facts(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

/// Panics without the noise of a test's own failure.
fn broken() -> ! {
    resume_unwind(Box::new("a hook broke on purpose"))
}

fn number() -> Value {
    json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": false})
}

#[tokio::test]
async fn what_hooks_rewrite_is_checked_again_bound_and_run() {
    let world = World::new().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let second_sees = Arc::clone(&seen);
    let session = world
        .session()
        .tool(echo("echo").parameters(number()).shared())
        .hook(
            hook("first").before(|arguments| HookVerdict::Rewrite(json!({"n": arguments["n"].as_i64().unwrap() + 1}))),
        )
        .hook(hook("second").before(move |arguments| {
            second_sees.lock().unwrap().push(arguments.clone());
            HookVerdict::Continue
        }))
        .open()
        .await
        .unwrap();
    let result = session.tool("echo", json!({"n": 1})).await.unwrap();
    assert_eq!(result.output, r#"{"n":2}"#);
    // Asked once for a call, and the second hook sees what the first one wrote.
    assert_eq!(*seen.lock().unwrap(), [json!({"n": 2})]);
    let bound = world.record.the("tool_request_bound", result.id.as_str());
    assert_eq!(bound["snapshot"]["argumentsDigest"], Digest::of_json(&json!({"n": 2})).as_str());
    assert_eq!(world.record.the("tool_execution_start", result.id.as_str())["args"], json!({"n": 2}));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_rewrite_that_does_not_fit_is_refused_as_any_arguments_are() {
    let world = World::new().await;
    let session = world
        .session()
        .tool(echo("echo").parameters(number()).shared())
        .hook(hook("careless").before(|_| HookVerdict::Rewrite(json!({"n": "two"}))))
        .open()
        .await
        .unwrap();
    let result = session.tool("echo", json!({"n": 1})).await.unwrap();
    assert_eq!(result.metadata["refused"]["stage"], "schema");
    assert!(result.output.contains("/n"), "{}", result.output);
    assert!(!world.record.life_of(result.id.as_str()).contains(&"tool_execution_start".to_owned()));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_hook_refuses_even_the_trusted_host() {
    let world = World::new().await;
    let session = world
        .session()
        .tool(echo("echo").shared())
        .hook(hook("guard").before(|arguments| match arguments["ask"].as_str() {
            Some("deny") => HookVerdict::Deny { reason: "not on a Friday".to_owned() },
            Some("later") => HookVerdict::RetryLater { reason: "busy".to_owned(), after_ms: Some(250) },
            Some("break") => broken(),
            _ => HookVerdict::Continue,
        }))
        .open()
        .await
        .unwrap();
    let denied = session.tool("echo", json!({"ask": "deny"})).await.unwrap();
    let kind = ToolErrorKind::HookDenied { reason: "not on a Friday".into(), retryable: false, retry_after_ms: None };
    assert_eq!(denied.error_kind, Some(kind));
    let later = session.tool("echo", json!({"ask": "later"})).await.unwrap();
    let kind = ToolErrorKind::HookDenied { reason: "busy".into(), retryable: true, retry_after_ms: Some(250) };
    assert_eq!(later.error_kind, Some(kind));
    assert!(later.output.contains("250 ms"), "{}", later.output);
    let broke = session.tool("echo", json!({"ask": "break"})).await.unwrap();
    assert!(
        matches!(&broke.error_kind, Some(ToolErrorKind::HookDenied { reason, .. }) if reason.contains("guard")),
        "{broke:?}"
    );
    for refused in [denied, later, broke] {
        // The request is bound before the decision about it is told, as for every denied call.
        let life = world.record.life_of(refused.id.as_str());
        assert_eq!(life, ["tool_proposed", "tool_request_bound", "permission_denied", "tool_end"]);
        assert_eq!(refused.metadata["refused"]["stage"], "hook");
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test]
async fn a_call_that_waits_for_a_hook_can_be_cancelled() {
    let world = World::new().await;
    let session = world.session().tool(echo("echo").shared()).hook(hook("slow").waiting_before()).open().await.unwrap();
    let call = tokio::spawn({
        let session = session.clone();
        async move { session.tool("echo", json!({})).await.unwrap() }
    });
    world.record.wait("tool_proposed", |_| true).await;
    assert!(session.cancel(&CancelTarget::Everything, &CancelReason::Requested));
    assert!(matches!(call.await.unwrap().error_kind, Some(ToolErrorKind::Cancelled { .. })));
    world.at_rest(&[&session]).await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn hooks_after_a_call_annotate_and_are_waited_for_a_second_at_most() {
    let world = World::new().await;
    let session = world
        .session()
        .tool(echo("echo").shared())
        .hook(hook("quick").after(|outcome| async move { facts(json!({"saw": outcome.output})) }))
        .open()
        .await
        .unwrap();
    let result = session.tool("echo", json!({})).await.unwrap();
    assert_eq!(result.metadata["hooks"], json!({"quick": {"saw": "{}"}}));

    let slow = world
        .session()
        .tool(echo("echo").shared())
        .hook(hook("quick").after(|_| async { facts(json!({"ok": true})) }))
        .hook(hook("stuck").after(|_| std::future::pending()))
        .open()
        .await
        .unwrap();
    let began_at = tokio::time::Instant::now();
    let result = slow.tool("echo", json!({})).await.unwrap();
    let waited = began_at.elapsed();
    assert!(result.is_success() && result.output == "{}");
    // What another hook had said in time is not lost with it.
    assert_eq!(result.metadata["hooks"], json!({"quick": {"ok": true}}));
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_millis(1100), "{waited:?}");
    world.end().await;
}

/// A hook that breaks after a call takes nothing from its result, whether it breaks at once or when awaited.
#[tokio::test]
async fn a_hook_that_breaks_after_a_call_takes_nothing_from_it() {
    let world = World::new().await;
    let session = world
        .session()
        .tool(echo("echo").shared())
        .hook(hook("at once").after(|_| -> std::future::Ready<_> { broken() }))
        .hook(hook("awaited").after(|_| async { broken() }))
        .hook(hook("sound").after(|_| async { facts(json!({"ok": true})) }))
        .open()
        .await
        .unwrap();
    let result = session.tool("echo", json!({})).await.unwrap();
    assert_eq!(result.output, "{}");
    assert_eq!(result.metadata["hooks"], json!({"sound": {"ok": true}}));
    world.at_rest(&[&session]).await;
    world.end().await;
}
