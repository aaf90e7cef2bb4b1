//! `sim`: searches the simulated worlds for broken promises, tells and draws single runs, makes bad ones small, and
//! replays recorded sessions.

mod list;
mod picture;
mod replay;
mod run;
mod shrink;
mod table;

use std::path::Path;

use clap::{Args, Subcommand};
use toolwarden_sim::scenario::{FILE_BYTES_MAX, Scenario, shipped};

use super::{CommandError, End};
use crate::assembly::Surroundings;
use crate::input::read_file;

/// The scenario that is taken where none is named.
const USUAL: &str = "wide";

#[derive(Debug, Args)]
#[command(after_help = "A seed decides everything: the same seed gives the same run, everywhere. SIMULATION.md tells \
                        how it works.\nExit codes: 0 every promise was kept, 1 one was broken, 2 the command line has \
                        to be mended.")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// List the scenarios and what each looks for
    List(list::ListArgs),
    /// Run scenarios with many seeds and look for broken promises
    Run(run::RunArgs),
    /// Tell one run, or a recorded session, in plain words
    Replay(replay::ReplayArgs),
    /// Make a run that breaks a promise as small as possible
    Shrink(shrink::ShrinkArgs),
    /// Draw one run over virtual time, as a page or a trace
    Timeline(picture::TimelineArgs),
}

/// Carries it out.
///
/// # Errors
/// [`CommandError`].
pub(crate) async fn sim(args: SimArgs, with: &Surroundings) -> Result<End, CommandError> {
    match args.what {
        SimCommand::List(args) => list::list(&args),
        SimCommand::Run(args) => run::run(args, with).await,
        SimCommand::Replay(args) => aside(|| replay::replay(&args, with)),
        SimCommand::Shrink(args) => aside(|| shrink::shrink(&args, with)),
        SimCommand::Timeline(args) => aside(|| picture::timeline(&args, with)),
    }
}

/// Does it on a thread of its own: a world has a runtime of its own, which cannot run inside of this one.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let done = std::thread::scope(|threads| threads.spawn(work).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// A scenario by its name, or by its file.
fn scenario(named: &str) -> Result<Scenario, CommandError> {
    let mend = |error: toolwarden_sim::scenario::ScenarioError| CommandError::Usage(error.to_string());
    if let Some(found) = shipped::named(named).map_err(mend)? {
        return Ok(found);
    }
    if !named.contains(['/', '.']) && !Path::new(named).exists() {
        let known = shipped::all().map_err(mend)?;
        let known: Vec<&str> = known.iter().map(|scenario| scenario.name.as_str()).collect();
        return Err(CommandError::Usage(format!(
            "there is no scenario {named:?}, nor a file of that name; there are {}",
            known.join(", ")
        )));
    }
    let text = read_file(Path::new(named), "a scenario", FILE_BYTES_MAX as u64)?;
    Scenario::parse(named, &text).map_err(mend)
}
