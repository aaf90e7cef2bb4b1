//! The library is worth something when it finds what is wrong with a tool, and says so in words that help.

use std::panic::catch_unwind;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{Lane, Needs, Tool, ToolFuture, ToolSpec};

use super::World;

/// What a tool does about a cancel.
#[derive(Clone, Copy)]
enum Manner {
    Heeds,
    Deaf,
    LeavesATask,
    TellsTheSecret,
}

struct Slow {
    spec: ToolSpec,
    manner: Manner,
}

impl Slow {
    fn new(manner: Manner) -> Self {
        let spec = ToolSpec {
            name: "slow".into(),
            description: "Works for a while.".into(),
            parameters: json!({ "type": "object" }),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Execute,
            needs: Needs::default(),
        };
        Self { spec, manner }
    }
}

impl Tool for Slow {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, _arguments: Value) -> ToolFuture<'a> {
        let work = sleep(Duration::from_secs(20));
        Box::pin(async move {
            match self.manner {
                Manner::Deaf => work.await,
                Manner::LeavesATask => drop(tokio::spawn(sleep(Duration::from_secs(100_000)))),
                Manner::TellsTheSecret => return ToolOutcome::success("the key is swordfish"),
                Manner::Heeds => {
                    tokio::select! {
                        biased;
                        reason = ctx.cancel.cancelled() => return ToolOutcome::ended_early("slow", &reason),
                        () = work => {}
                    }
                }
            }
            ToolOutcome::success("slowly done")
        })
    }
}

fn world(manner: Manner) -> World {
    World::new().tool(move || Slow::new(manner)).calls([("slow", json!({}))]).answer("done")
}

fn words(test: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = catch_unwind(test).unwrap_err();
    panic.downcast_ref::<String>().unwrap().clone()
}

#[test]
fn a_tool_that_heeds_is_fine_at_every_step_and_with_every_seed() {
    let world = world(Manner::Heeds)
        .kept()
        .check(|ended| assert!(ended.was_disturbed() || ended.answer() == "done"))
        .check(|ended| assert!(ended.calls("slow").count() <= 2));
    let explored = world.cancel_at_every_step();
    assert_eq!(explored.worlds, 1 + 7 * explored.steps, "{explored:?}");
    for met in ["a cancelled run", "a caller that went away", "a session closed in the middle", "a crash at a step"] {
        assert!(explored.met.contains(met), "{met}: {explored:?}");
    }
    assert!(world.seeds(0..40).met.len() > 5);
    assert!(world.run().lasted() >= Duration::from_secs(20));
}

#[test]
fn a_deaf_tool_is_found_with_the_word_that_shows_it_again() {
    let deaf = || world(Manner::Deaf);
    let found = words(|| drop(deaf().cancel_at_every_step()));
    assert!(found.contains("slow did not end when it was cancelled") && found.contains("ctx.cancel"), "{found}");
    assert!(found.starts_with("cancel_run@") && found.contains(" of slow"), "{found}");
    let case = found.split("replay(\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let again = words(move || drop(deaf().replay(&case)));
    assert_eq!(again, found);
    assert!(deaf().may_be_deaf().cancel_at_every_step().worlds > 50);
}

#[test]
fn a_task_that_is_left_behind_and_a_secret_that_gets_out_are_found() {
    let found = words(|| drop(world(Manner::LeavesATask).run()));
    assert!(found.contains("1 tasks live after the shut-down"), "{found}");
    let told = world(Manner::TellsTheSecret).secret("swordfish").run();
    assert!(!told.calls("slow").next().unwrap().output.contains("swordfish"), "{told:?}");
}

#[test]
fn a_failing_check_names_its_case_and_a_bad_script_is_told() {
    let picky = || world(Manner::Heeds).check(|ended| assert_eq!(ended.status(), "completed"));
    let found = words(move || drop(picky().cancel_at_every_step()));
    assert!(found.starts_with("cancel_run@") && found.contains("your check failed"), "{found}");
    let bad = words(|| drop(World::new().with(|play| play.turns = "{".to_owned()).run()));
    assert!(bad.contains("cannot be played") && bad.contains("play:1"), "{bad}");
    let unknown = words(|| drop(World::new().replay("cancel_walk@3")));
    assert!(unknown.contains("there is no case"), "{unknown}");
}
