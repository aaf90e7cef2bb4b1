//! The tools of a world: `chore`, which may have effects, and `peek`, which has none.
//!
//! Arguments, all optional: `ms` (how long it works), `effect` (a name of something that it does at the end and that
//! cannot be taken back), `says` (its output), `bytes` (of output), `deaf` (does not hear a cancel), `panics`, `fails`.
//!
//! Faults: it is deaf, panics, fails or takes far longer although nobody asked for it; it is dropped half-way.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::declaration::Capabilities;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{Lane, Needs, Tool, ToolFuture, ToolSpec};

use crate::fate::Fate;
use crate::sight::Sight;
use crate::twins::watched::watched;

/// How long one takes that takes far too long.
const FAR_TOO_LONG: Duration = Duration::from_secs(600);
/// How many calls of `peek` may be beside each other.
const WIDTH_MAX: usize = 16;

/// A tool of a world.
pub struct Chore {
    fate: Fate,
    spec: ToolSpec,
    effects: bool,
    faulty: bool,
}

impl Chore {
    /// `chore`: does things.
    pub fn doing(fate: Fate, faulty: bool) -> Self {
        Self::named(fate, "chore", "Does a piece of work.", true, faulty)
    }

    /// `peek`: looks at things; many may be looked at beside each other.
    pub fn looking(fate: Fate, faulty: bool) -> Self {
        Self::named(fate, "peek", "Looks at something.", false, faulty)
    }

    fn named(fate: Fate, name: &str, description: &str, effects: bool, faulty: bool) -> Self {
        let spec = ToolSpec {
            name: name.into(),
            description: description.to_owned(),
            parameters: json!({ "type": "object" }),
            model_parameters: None,
            model_visible: true,
            lane: if effects { Lane::Execute } else { Lane::Query },
            needs: Needs::default(),
        };
        Self { fate, spec, effects, faulty }
    }

    async fn work(&self, ctx: &ToolContext, arguments: Value) -> ToolOutcome {
        let invocation = &ctx.invocation;
        let flag = |name: &str| arguments.get(name).and_then(Value::as_bool).unwrap_or(false);
        let number = |name: &str| arguments.get(name).and_then(Value::as_u64).unwrap_or(0);
        let (mut deaf, mut panics, mut fails) = (flag("deaf"), flag("panics"), flag("fails"));
        let mut span = Duration::from_millis(number("ms"));
        match if self.faulty { self.fate.rare(4) } else { None } {
            Some(0) => deaf = true,
            Some(1) => panics = true,
            Some(2) => fails = true,
            Some(_) => span = FAR_TOO_LONG,
            None => {}
        }
        if deaf {
            self.fate.met("a tool that does not hear");
            self.fate.see(&Sight::Deaf { invocation });
            sleep(span).await;
        } else if !span.is_zero() {
            tokio::select! {
                biased;
                reason = ctx.cancel.cancelled() => return ToolOutcome::ended_early(self.spec.name.as_str(), &reason),
                () = sleep(span) => {}
            }
        }
        if panics {
            self.fate.met("a tool that panics");
            // Without the words that a panic of its own would print.
            std::panic::resume_unwind(Box::new("a pretended panic"));
        }
        if fails {
            self.fate.met("a tool that fails");
            return ToolOutcome::failure("it did not work");
        }
        if let Some(name) = arguments.get("effect").and_then(Value::as_str).filter(|_| !self.fate.is_dead()) {
            self.fate.see(&Sight::Effect { invocation, name });
        }
        let mut output = arguments.get("says").and_then(Value::as_str).unwrap_or("done").to_owned();
        let bytes = usize::try_from(number("bytes")).unwrap_or(0);
        output.extend(std::iter::repeat_n('x', bytes));
        ToolOutcome::success(output)
    }
}

impl Tool for Chore {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        if self.effects { Capabilities::conservative() } else { Capabilities::parallel_safe_read(WIDTH_MAX) }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        watched(&self.fate, &self.spec.name, ctx, self.effects, Box::pin(self.work(ctx, arguments)))
    }
}
