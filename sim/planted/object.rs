//! Planted faults of objects: one that does not fit let through, rounds and time that are not kept, views out of turn.
//!
//! Each stands in the place of the tool: between it and the port to the model, or between it and whoever watches.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden_tools::builtin::generate_object::GenerateObjectTool;
use toolwarden_tools::builtin::task::TaskTool;
use toolwarden_tools::context::{Progress, ToolContext};
use toolwarden_tools::generation::{Generate, GeneratedObject, ObjectFailure, ObjectRequest, Partials, REPAIRS_MAX};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{Tool, ToolFuture};

use super::broken::{Fault, broken};
use super::{Planted, Wrap};

/// All of them.
pub(super) const OBJECT: [Planted; 9] = [
    object("object-unfit", "an object is given that does not fit", || giving(Slip::Unfit), 20),
    object("object-of-failure", "a failure holds an object", || giving(Slip::Gives), 20),
    object("round-too-many", "the model is asked once more than it may be", || giving(Slip::Round), 20),
    object("deadline-missed", "the time for all rounds is not kept", || giving(Slip::Late), 20),
    object("view-after-end", "a view comes after the last one", || giving(Slip::After), 20),
    object("view-too-soon", "views come without regard to their pace", || giving(Slip::Hasty), 60),
    object("view-taken-back", "a later view says less than an earlier one", || giving(Slip::Shrinks), 60),
    object("view-of-another", "the last view is not the object", || giving(Slip::Other), 20),
    Planted {
        name: "form-unfit",
        about: "a task's answer is given in another form than was asked for",
        scenario: "world-objects",
        watcher: "objects",
        seeds_max: 20,
        wrap: Wrap::Tool { of: "task", make: || broken(Arc::new(TaskTool::new(&[])), Slip::Form) },
    },
];

const fn object(name: &'static str, about: &'static str, make: fn() -> Arc<dyn Tool>, seeds_max: u64) -> Planted {
    let wrap = Wrap::Tool { of: "generate_object", make };
    Planted { name, about, scenario: "world-objects", watcher: "objects", seeds_max, wrap }
}

/// The tool that gives objects, with a slip.
fn giving(slip: Slip) -> Arc<dyn Tool> {
    broken(Arc::new(GenerateObjectTool::new()), slip)
}

/// What is not kept to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Unfit,
    Gives,
    Round,
    Late,
    After,
    Hasty,
    Shrinks,
    Other,
    Form,
}

impl Fault for Slip {
    fn call<'a>(&'a self, tool: &'a dyn Tool, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let slip = *self;
            let mut bent = ctx.clone();
            bent.generate = ctx.generate.clone().map(|generate| Arc::new(Asks { generate, slip }) as _);
            let progress = Arc::clone(&ctx.progress);
            bent.progress = Arc::new(Shows { progress, slip, first: Mutex::default() });
            let outcome = tool.call(&bent, arguments).await;
            match slip {
                Slip::After if outcome.is_success() => {
                    ctx.progress.delta("{\"object_partial\":{},\"final\":false}\n");
                    outcome
                }
                Slip::Gives if !outcome.is_success() => {
                    let output = json!({"object": {}, "why": outcome.output}).to_string();
                    ToolOutcome { output, ..outcome }
                }
                Slip::Form if outcome.is_success() => outcome.with("structured", json!({})),
                _ => outcome,
            }
        })
    }
}

/// Asks for something else than it was asked for.
struct Asks {
    generate: Arc<dyn Generate>,
    slip: Slip,
}

impl Generate for Asks {
    fn generate<'a>(
        &'a self,
        request: &'a ObjectRequest,
        partials: &'a dyn Partials,
    ) -> BoxFuture<'a, Result<GeneratedObject, ObjectFailure>> {
        Box::pin(async move {
            let mut bent = request.clone();
            match self.slip {
                Slip::Unfit => bent.schema = json!({"type": "object"}),
                Slip::Round => bent.repairs_max = (bent.repairs_max + 1).min(REPAIRS_MAX),
                Slip::Late => bent.timeout = Duration::from_secs(600),
                _ => {}
            }
            self.generate.generate(&bent, partials).await
        })
    }
}

/// Shows something else than it was shown.
struct Shows {
    progress: Arc<dyn Progress>,
    slip: Slip,
    /// The first view, for whoever shows it again.
    first: Mutex<Option<String>>,
}

impl Progress for Shows {
    fn delta(&self, text: &str) {
        let is_last = text.contains("\"final\":true");
        match self.slip {
            Slip::Hasty if !is_last => self.progress.delta(text),
            Slip::Shrinks if !is_last => {
                let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
                let shown = first.get_or_insert_with(|| text.to_owned());
                if shown != text {
                    return self.progress.delta("{\"object_partial\":{},\"final\":false}\n");
                }
            }
            Slip::Other if is_last => return self.progress.delta("{\"object_partial\":{},\"final\":true}\n"),
            _ => {}
        }
        self.progress.delta(text);
    }
}
