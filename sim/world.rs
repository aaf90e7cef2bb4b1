//! `World`: the simulation for tools and agents of your own, under `cargo test`.
//!
//! A world is the shipped runtime in a pretended workspace, with your tools and a model that says what you write. It is
//! played once as it is meant to go; then again and again, with a cancel, a close, a shut-down or a crash at every
//! single step, or with whatever else goes wrong in the world drawn from a seed. Each time all promises are watched,
//! and your own checks are made. What fails is told with the one word that plays it again.
//!
//! ```
//! use toolwarden_sim::World;
//! use serde_json::json;
//!
//! let explored = World::new()
//!     .file("notes.txt", "milk")
//!     .calls([("read", json!({ "file_path": "notes.txt" }))])
//!     .answer("You need milk.")
//!     .check(|ended| assert!(ended.was_disturbed() || ended.answer() == "You need milk."))
//!     .cancel_at_every_step();
//! assert!(explored.worlds > explored.steps);
//! ```

mod case;
pub mod ended;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden_tools::tool::Tool;

use crate::fate::Fate;
use crate::narrative::Narrator;
use crate::play::{Act, Faults, Move, Play};
use crate::seed::Choices;
use crate::sight::Watcher;
use crate::stage::{Cast, MakeTools, Performance, perform};
use crate::story::Moment;
use crate::twins::watched::Watched;
use crate::watchers;
use crate::watchers::heed::Heed;

use self::case::Case;
use self::ended::{Ended, Results};

/// Most steps at which a world is disturbed; one with more is disturbed at so many of them, evenly spread.
pub const STEPS_MAX: u64 = 2_000;

/// Makes a tool anew for each world, so that none remembers another one.
type MakeTool = Arc<dyn Fn() -> Arc<dyn Tool> + Send + Sync>;

/// What is looked at when a world has ended.
type Check = Arc<dyn Fn(&Ended) + Send + Sync>;

/// Collects what a world is made of. Cheap to clone.
#[derive(Clone, Default)]
pub struct World {
    play: Play,
    turns: Vec<Value>,
    prompts: Vec<String>,
    tools: Vec<MakeTool>,
    checks: Vec<Check>,
    may_be_deaf: bool,
}

/// What was tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explored {
    /// How many worlds were played.
    pub worlds: u64,
    /// How many steps the undisturbed world has.
    pub steps: u64,
    /// Which unusual things happened in them.
    pub met: BTreeSet<&'static str>,
}

impl World {
    /// An empty workspace, one session, one prompt, a model that answers "done"; everything is allowed.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file of the workspace.
    #[must_use]
    pub fn file(mut self, path: &str, text: &str) -> Self {
        self.play.files.push((path.to_owned(), text.to_owned()));
        self
    }

    /// A tool of your own; it is made anew for each world.
    #[must_use]
    pub fn tool<T: Tool>(mut self, make: impl Fn() -> T + Send + Sync + 'static) -> Self {
        self.tools.push(Arc::new(move || Arc::new(make())));
        self
    }

    /// Something that is asked; `go` when nothing is. Several are asked one after the other.
    #[must_use]
    pub fn prompt(mut self, text: &str) -> Self {
        self.prompts.push(text.to_owned());
        self
    }

    /// The model's next turn: these calls, with their arguments. Those that only read run beside each other.
    #[must_use]
    pub fn calls<'a>(mut self, calls: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let calls = calls.into_iter().map(|(tool, arguments)| json!({ "tool": tool, "arguments": arguments }));
        self.turns.push(json!({ "calls": calls.collect::<Vec<Value>>() }));
        self
    }

    /// The model's next turn: its answer.
    #[must_use]
    pub fn answer(mut self, text: &str) -> Self {
        self.turns.push(json!({ "text": text }));
        self
    }

    /// The permission policy, in TOML; what it asks about is asked of a person, who says yes unless the seed says no.
    #[must_use]
    pub fn policy(mut self, toml: &str) -> Self {
        toml.clone_into(&mut self.play.policy);
        self
    }

    /// Keeps the session in a store, so that a crash is one of the things that are done to it.
    #[must_use]
    pub fn kept(mut self) -> Self {
        self.play.keeps = true;
        self
    }

    /// A word that must not be seen anywhere but in the workspace.
    #[must_use]
    pub fn secret(mut self, word: &str) -> Self {
        word.clone_into(&mut self.play.secret);
        self
    }

    /// The tools may leave it to the runtime to drop them when they are cancelled.
    #[must_use]
    pub fn may_be_deaf(mut self) -> Self {
        self.may_be_deaf = true;
        self
    }

    /// Anything else that a [`Play`] holds: limits, time-outs, several sessions.
    #[must_use]
    pub fn with(mut self, adjust: impl FnOnce(&mut Play)) -> Self {
        adjust(&mut self.play);
        self
    }

    /// Looks at each world when it has ended, and panics when something is wrong with it.
    #[must_use]
    pub fn check(mut self, look: impl Fn(&Ended) + Send + Sync + 'static) -> Self {
        self.checks.push(Arc::new(look));
        self
    }

    /// Plays the world as it is meant to go.
    ///
    /// # Panics
    /// When a promise or a check is broken, or the script or policy cannot be read.
    pub fn run(&self) -> Ended {
        self.go(Case::Plain, false)
    }

    /// Plays the world once as it is meant to go, and then once for each of its steps (an entry of the journal, a poll
    /// of a tool) and each thing that can be done there: the run cancelled, the call cancelled, whoever waits gone, the
    /// session closed, the runtime shut down with and without grace, and, where sessions are kept, the process crashed.
    ///
    /// # Panics
    /// When a promise or a check is broken, with the word for [`World::replay`].
    pub fn cancel_at_every_step(&self) -> Explored {
        let plain = self.go(Case::Plain, false);
        let steps = plain.steps();
        let mut explored = Explored { worlds: 1, steps, met: BTreeSet::new() };
        let stride = usize::try_from(steps.div_ceil(STEPS_MAX).max(1)).unwrap_or(usize::MAX);
        for act in self.ways() {
            for step in (1..=steps).step_by(stride) {
                explored.count(&self.go(Case::At { act, step }, false));
            }
        }
        explored
    }

    /// Plays a world for each seed, in which files, commands, store, model and person have faults and the host does
    /// things at any step.
    ///
    /// # Panics
    /// When a promise or a check is broken, with the word for [`World::replay`].
    pub fn seeds(&self, seeds: Range<u64>) -> Explored {
        let mut explored = Explored::default();
        for seed in seeds {
            explored.count(&self.go(Case::Seed(seed), false));
        }
        explored
    }

    /// Plays the one world again that a panic named (`plain`, `cancel_run@17`, `seed:42`), and prints its story.
    ///
    /// # Panics
    /// As the world did; and when there is no such case.
    pub fn replay(&self, case: &str) -> Ended {
        match case.parse() {
            Ok(case) => self.go(case, true),
            Err(error) => panic!("{error}"),
        }
    }

    fn ways(&self) -> Vec<Act> {
        let mut ways = vec![Act::CancelRun, Act::CancelCall, Act::DropRun, Act::Close, Act::ShutDown, Act::Kill];
        if self.play.keeps {
            ways.push(Act::Crash);
        }
        ways
    }

    fn go(&self, case: Case, tells: bool) -> Ended {
        let mut play = self.play.clone();
        if !self.turns.is_empty() {
            play.turns = self.turns.iter().map(Value::to_string).collect::<Vec<String>>().join("\n");
        }
        if !self.prompts.is_empty() {
            play.sessions = vec![self.prompts.clone()];
        }
        let choices = match case {
            Case::Seed(seed) => {
                play.faults = Faults { tools: false, ..Faults::ALL };
                play.acts = self.ways();
                Choices::from_seed(seed)
            }
            Case::At { act, step } => {
                play.moves.push(Move { step, act, session: 0 });
                Choices::from_list(Vec::new())
            }
            Case::Plain => Choices::from_list(Vec::new()),
        };
        let results = Results::default();
        let mut watchers = watchers::all(&play);
        watchers.push(Box::new(results.clone()) as Box<dyn Watcher>);
        if !self.may_be_deaf {
            watchers.push(Box::<Heed>::default());
        }
        let cast = Cast { choices, watchers, tools: self.make_tools(), tells };
        let performed = match perform(&play, cast) {
            Ok(performed) => performed,
            Err(error) => panic!("this world cannot be played: {error}"),
        };
        if tells {
            print_story(&performed.story);
        }
        self.judge(case, performed, &results)
    }

    /// Panics when something is wrong with a world.
    fn judge(&self, case: Case, performed: Performance, results: &Results) -> Ended {
        let again = match case {
            Case::Plain => String::new(),
            _ => format!("\n  to see all of it, put .replay(\"{case}\") in the place of what found it"),
        };
        let place = performed.acted.as_ref().map_or_else(String::new, |place| format!(", {place}"));
        let of = format!("{case}{place}");
        if let Some(violation) = &performed.violation {
            panic!(
                "{of}: {}: {}\n  at {:?} of the world's time{again}",
                violation.promise, violation.text, violation.at
            );
        }
        let ended = Ended::new(case, performed, results);
        for check in &self.checks {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&ended))) {
                let words = panic
                    .downcast_ref::<&str>()
                    .map(|words| (*words).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                panic!("{of}: your check failed: {words}\n  it ended with {}{again}", ended.status());
            }
        }
        ended
    }

    fn make_tools(&self) -> MakeTools {
        let makes = self.tools.clone();
        Arc::new(move |fate: &Fate| {
            let watched = |make: &MakeTool| Arc::new(Watched::new(fate.clone(), make())) as Arc<dyn Tool>;
            makes.iter().map(watched).collect()
        })
    }
}

impl Explored {
    fn count(&mut self, ended: &Ended) {
        self.worlds += 1;
        self.met.extend(ended.met());
    }
}

fn print_story(story: &[Moment]) {
    let mut narrator = Narrator::default();
    for moment in story {
        println!("{}", narrator.line(moment));
    }
}
