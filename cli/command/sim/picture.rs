//! `sim timeline`: one run as a page for people, or as a trace for Perfetto.

use std::path::PathBuf;

use clap::Args;
use toolwarden_sim::driver;
use toolwarden_sim::timeline::{Timeline, html, perfetto};

use super::super::{CommandError, End};
use crate::assembly::Surroundings;
use crate::input::write_file;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every promise was kept, 1 one was broken (it is drawn as well), 2 the command line \
                        has to be mended."
)]
pub(crate) struct TimelineArgs {
    /// The seed
    #[arg(required_unless_present = "case")]
    seed: Option<u64>,

    /// The scenario, by name or file; a file may hold the choices of its one run [default: wide]
    #[arg(long, id = "case", value_name = "NAME|FILE")]
    scenario: Option<String>,

    /// Write a page that needs nothing else
    #[arg(long, value_name = "FILE", required_unless_present = "perfetto")]
    html: Option<PathBuf>,

    /// Write a trace that ui.perfetto.dev reads
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// Draws it.
///
/// # Errors
/// [`CommandError`].
pub(super) fn timeline(args: &TimelineArgs, with: &Surroundings) -> Result<End, CommandError> {
    let named = args.scenario.as_deref().unwrap_or(super::USUAL);
    let scenario = super::scenario(named)?;
    let what = match (args.seed, &scenario.choices) {
        (_, Some(choices)) => format!("{} choices", choices.len()),
        (Some(seed), None) => format!("seed {seed}"),
        (None, None) => {
            return Err(CommandError::Usage(format!("{named} holds no choices of its own, so name a seed")));
        }
    };
    let story = driver::tell(&scenario, scenario.choices(args.seed.unwrap_or(0)));
    let timeline = Timeline::new(&story);
    if let Some(path) = &args.html {
        let page = html::page(&scenario.name, &what, &scenario.about, &timeline);
        write_file(path, "the page", page.as_bytes())?;
    }
    if let Some(path) = &args.perfetto {
        write_file(path, "the trace", perfetto::trace(&scenario.name, &timeline).as_bytes())?;
    }
    let (nodes, moments) = (timeline.rows.len(), timeline.steps.len());
    with.screen.say(&format!("{nodes} nodes and {moments} moments are drawn"));
    if let Some(violation) = &story.violation {
        with.screen.complain(&violation.to_string());
        return Ok(End::Failed);
    }
    Ok(End::Done)
}
