//! A test of a tool of your own in a pretended world: `cargo test -p toolwarden-promises --example world`.

use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::prelude::*;
use toolwarden_sim::World;

struct CountDown(ToolSpec);

impl CountDown {
    fn new() -> Self {
        let parameters = json!({"type": "object", "properties": {"from": {"type": "integer", "minimum": 0}}});
        let (name, description) = ("count_down".into(), "Count down to zero.".into());
        let (model_parameters, lane, needs) = (None, Lane::Execute, Needs::default());
        Self(ToolSpec { name, description, parameters, model_parameters, model_visible: true, lane, needs })
    }
}

impl Tool for CountDown {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            for _ in 0..arguments["from"].as_u64().unwrap_or(0) {
                tokio::select! {
                    biased;
                    reason = ctx.cancel.cancelled() => return ToolOutcome::ended_early("count_down", &reason),
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                }
            }
            ToolOutcome::success("lift-off")
        })
    }
}

fn world() -> World {
    World::new()
        .tool(CountDown::new)
        .calls([("count_down", json!({"from": 10}))])
        .answer("It flies.")
        .check(|ended| assert!(ended.was_disturbed() || ended.answer() == "It flies."))
}

#[test]
fn counting_down_can_be_cancelled_at_every_step() {
    world().cancel_at_every_step();
}

#[test]
fn counting_down_survives_crashes_and_bad_disks() {
    world().kept().seeds(0..50);
}

fn main() {
    println!("{:?}", world().run().outcome());
}
