//! The third driver: the index that searches use, beside edits, over files whose changes are told by a pretended watch.
//!
//! The shipped index and the shipped `search` work on one thread. Whatever they do with a file (list it, open it, read a
//! piece of it) is a moment at which somebody may change the workspace, and what is told of it may be doubled or lost with
//! the queue. Whenever nothing is half done, each search is made twice: with the index and without, by lines, by names and
//! by rank. What must stay true: both say the same, to the letter.

mod ground;
pub mod planted;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwarden_tools::builtin::search;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::context::{NoProgress, NoSpool, ToolContext};
use toolwarden_tools::effects::blocking::{BlockingTwin, Work, pretend};
use toolwarden_tools::effects::files::Files;
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::search::resident_index::{ResidentIndex, ResidentIndexes};
use toolwarden_tools::search::told_files::BeginTelling;
use toolwarden_tools::tool::Tool;
use toolwarden_tools::workspace::seen::SeenFiles;
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities};

use crate::fate::Fate;
use crate::seed::Choices;
use crate::sight::Aftermath;
use crate::story::{Moment, Story, Telling, What};
use crate::twins::clock::PretendedClock;

use self::ground::{Ground, IDENTITY};
use self::planted::Planted;

/// Most steps of a run.
pub const STEPS_MAX: u32 = 2_000;
/// Where the workspace stands, as the index knows it.
const ROOT: &str = "/pretended";
/// The promise of an index.
const PROMISE: &str = "a search with an index says what a search without one says";
/// What the promise is called in tables.
pub const CHECKER: &str = "agreement";

/// What happens in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Staleness {
    /// Edits, searches and turns of the index, all together; at most [`STEPS_MAX`].
    pub steps: u32,
    /// Whether files are changed in the middle of what the index does.
    pub races: bool,
    /// Whether the watch fails, doubles and loses, and reading fails.
    pub faults: bool,
    /// A planted fault, by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutant: Option<String>,
}

impl Default for Staleness {
    fn default() -> Self {
        Self { steps: 60, races: true, faults: true, mutant: None }
    }
}

/// Does blocking work at once.
struct AtOnce;

impl BlockingTwin for AtOnce {
    fn take(&self, work: Work) {
        work();
    }
}

/// One run under way.
struct Run {
    fate: Fate,
    ground: Arc<Ground>,
    indexes: Arc<ResidentIndexes>,
    index: Arc<ResidentIndex>,
    with: ToolContext,
    without: ToolContext,
    indexed: Arc<dyn Tool>,
    plain: Arc<dyn Tool>,
}

/// Runs the index by these choices.
pub fn run(plan: &Staleness, choices: Choices, telling: Telling) -> Story {
    let fate = Fate::new(choices, Vec::new(), plan.faults || plan.races, false);
    let _pretending = pretend(Rc::new(AtOnce));
    let ground = Arc::new(Ground::new(fate.clone(), plan.races, plan.faults));
    let planted = plan.mutant.as_deref().and_then(planted::named);
    let mut moments = Vec::new();
    let mut steps = 0;
    match Run::new(&fate, &ground, planted) {
        Err(error) => fate.blame("an index is opened", error),
        Ok(run) => {
            while steps < plan.steps.min(STEPS_MAX) && !fate.is_decided() {
                steps += 1;
                let words = run.step();
                if telling == Telling::Whole {
                    moments.push(Moment {
                        at: Duration::from_millis(u64::from(steps)),
                        what: What::Seen { words, signs: Vec::new() },
                    });
                }
            }
            // Whatever was going on is over: now both must say the same, whatever is asked.
            for _ in 0..4 {
                if !fate.is_decided() {
                    run.compare();
                }
            }
            run.indexes.close();
        }
    }
    let verdict = fate.finish(&Aftermath::default());
    let violation = verdict.violation.map(|violation| crate::checkers::Violation { checker: CHECKER, ..violation });
    Story {
        digest: verdict.digest ^ ground.digest(),
        choices: verdict.choices,
        steps: steps as usize,
        lasted: Duration::from_millis(u64::from(steps)),
        violation,
        checkers: vec![CHECKER],
        coverage: verdict.coverage,
        moments,
        ..Story::default()
    }
}

impl Run {
    fn new(fate: &Fate, ground: &Arc<Ground>, planted: Option<Planted>) -> Result<Self, String> {
        ground.make();
        let (told, ground_of_words) = (Arc::clone(ground), Arc::clone(ground));
        let begin: BeginTelling = Box::new(move || {
            let told = told.begin()?;
            Ok(match planted {
                Some(planted) => planted.before(told, Arc::clone(&ground_of_words)),
                None => told,
            })
        });
        let index = ResidentIndex::by_hand(PathBuf::from(ROOT), IDENTITY, begin).map_err(|error| error.to_string())?;
        let indexes = Arc::new(ResidentIndexes::new(None).with(index));
        let index = indexes.of(&**ground).ok_or("the index is not the one of its root")?;
        let seen: Arc<dyn Files> = match planted {
            Some(planted) => planted.before_files(Arc::clone(ground)),
            None => Arc::clone(ground) as _,
        };
        Ok(Self {
            fate: fate.clone(),
            ground: Arc::clone(ground),
            index,
            with: context(fate, seen),
            without: context(fate, Arc::clone(ground) as _),
            indexed: search::tool(Some(Arc::clone(&indexes))),
            plain: search::tool(None),
            indexes,
        })
    }

    /// One thing of those that may happen next, in words.
    fn step(&self) -> String {
        match self.fate.below(5) {
            0 | 1 => self.ground.change(),
            2 | 3 => self.compare(),
            _ => {
                let is_known = self.index.step();
                if is_known {
                    self.fate.met("an index in use");
                }
                if self.index.status().words_files > 0 {
                    self.fate.met("an index that keeps words");
                }
                format!("the index has its turn and is {}in use", if is_known { "" } else { "not " })
            }
        }
    }

    /// Searches with the index and without.
    fn compare(&self) -> String {
        self.ground.settle();
        let arguments = self.arguments();
        let (with, without) = self.ground.in_peace(|| {
            let ask = |tool: &Arc<dyn Tool>, ctx| tool.call(ctx, arguments.clone()).now_or_never();
            (ask(&self.indexed, &self.with), ask(&self.plain, &self.without))
        });
        let told = |outcome: Option<ToolOutcome>| {
            let told = |outcome: ToolOutcome| (outcome.is_success(), outcome.output, json!(outcome.metadata));
            outcome.map(told)
        };
        let (with, without) = (told(with), told(without));
        if with != without || with.is_none() {
            let text = format!("{arguments} gives {with:?} with the index, and {without:?} without");
            self.fate.blame(PROMISE, text);
        }
        let status = self.index.status();
        if status.ready {
            self.fate.met("a search that used the index");
        }
        if status.words_files > 0 && arguments["mode"] == "bm25" {
            self.fate.met("a ranking with words that were kept");
        }
        format!("{arguments} gives the same with the index and without")
    }

    /// What is searched for.
    fn arguments(&self) -> Value {
        const PATTERNS: [&str; 8] =
            ["alpha", "bet[a-z]", "(?i)gamma", "delta_one|alpha", "^alpha", "one$", "x", "nowhere at all"];
        const GLOBS: [&str; 4] = ["*.rs", "a/**", "**/b/*", "*.txt"];
        const WORDS: [&str; 6] = ["alpha", "betas", "one delta", "where is gamma", "lib", "nothing else"];
        let one_of = |words: &[&'static str]| words[self.fate.below(words.len() as u32) as usize];
        match self.fate.below(5) {
            3 => json!({ "mode": "glob", "query": one_of(&GLOBS) }),
            4 => json!({ "mode": "bm25", "query": one_of(&WORDS) }),
            _ => {
                let output = one_of(&["content", "files_with_matches", "count", "summary"]);
                json!({ "mode": "grep", "query": one_of(&PATTERNS), "output_mode": output })
            }
        }
    }
}

fn context(fate: &Fate, files: Arc<dyn Files>) -> ToolContext {
    ToolContext {
        invocation: "search".into(),
        session: "s".into(),
        workspace: Workspace::new(ROOT, WorkspaceCapabilities::local_default(), files, None),
        seen: Arc::new(SeenFiles::default()),
        cancel: Cancellation::new(),
        clock: Arc::new(PretendedClock::new(fate.clone())),
        progress: Arc::new(NoProgress),
        spool: Arc::new(NoSpool),
        web: None,
        invoke: None,
        generate: None,
        delegate: None,
        background: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Staleness, planted, run};
    use crate::seed::Choices;
    use crate::story::{Story, Telling};

    /// Seeds of every test run.
    const SEEDS: u64 = 80;

    fn seeded(plan: &Staleness, seed: u64) -> Story {
        run(plan, Choices::from_seed(seed), Telling::Short)
    }

    #[test]
    fn no_seed_makes_an_index_differ() {
        let (plan, mut met) = (Staleness::default(), BTreeSet::new());
        for seed in 0..SEEDS {
            let story = seeded(&plan, seed);
            assert_eq!(
                story.violation,
                None,
                "seed {seed}: {:#?}",
                run(&plan, Choices::from_seed(seed), Telling::Whole)
            );
            met.extend(story.coverage);
        }
        println!("{met:?}");
        for wanted in [
            "a search that used the index",
            "a change while the index reads",
            "a change that is told late",
            "a queue that ran over",
            "a change that is told twice",
            "a folder that cannot be watched",
            "a file that the index cannot read",
            "a ranking with words that were kept",
            "words or rules that the index cannot read",
        ] {
            assert!(met.contains(wanted), "no seed had {wanted}");
        }
    }

    #[test]
    fn the_same_choices_are_the_same_run() {
        for seed in 0..20 {
            let first = seeded(&Staleness::default(), seed);
            assert_eq!(seeded(&Staleness::default(), seed).digest, first.digest);
            let again = run(&Staleness::default(), Choices::from_list(first.choices.clone()), Telling::Short);
            assert_eq!((again.digest, again.choices), (first.digest, first.choices));
        }
    }

    #[test]
    fn every_planted_fault_is_caught() {
        let mut missed = Vec::new();
        for planted in planted::ALL {
            let plan = Staleness { mutant: Some(planted.name.to_owned()), ..Staleness::default() };
            match (0..planted.seeds_max).find(|seed| seeded(&plan, *seed).violation.is_some()) {
                Some(seed) => println!("{}: seed {seed}", planted.name),
                None => missed.push(planted.name),
            }
        }
        assert!(missed.is_empty(), "{missed:?}");
    }
}
