//! `sim shrink`: a run that breaks a promise, made as small as possible and written as a scenario file of its own.

use std::path::PathBuf;

use clap::Args;
use toolwarden_sim::driver;
use toolwarden_sim::minimise::minimise;
use toolwarden_sim::narrative::summary;

use super::super::{CommandError, End};
use crate::assembly::Surroundings;
use crate::input::write_new_file;
use crate::terminal::print;

#[derive(Debug, Args)]
#[command(
    after_help = "The file holds the small world and the choices of its one run; toolwarden sim replay --scenario \
                        FILE tells it.\nExit codes: 0 the small case is written, 1 this run breaks no promise, 2 the \
                        command line has to be mended."
)]
pub(crate) struct ShrinkArgs {
    /// The seed
    seed: u64,

    /// The scenario, by name or file [default: wide]
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Option<String>,

    /// Where the small case is written; must not be there yet [default: SCENARIO-seed-SEED.toml]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// Makes it small.
///
/// # Errors
/// [`CommandError`].
pub(super) fn shrink(args: &ShrinkArgs, with: &Surroundings) -> Result<End, CommandError> {
    let mut scenario = super::scenario(args.scenario.as_deref().unwrap_or(super::USUAL))?;
    let Some(small) = minimise(&scenario, scenario.choices(args.seed)) else {
        with.screen.complain(&format!(
            "seed {} of {} breaks no promise; `toolwarden sim run` finds those that do",
            args.seed, scenario.name
        ));
        return Ok(End::Failed);
    };
    let output = match &args.output {
        Some(output) => output.clone(),
        None => PathBuf::from(format!("{}-seed-{}.toml", scenario.name, args.seed)),
    };
    scenario = small.scenario;
    let text = scenario.to_text().map_err(|error| CommandError::Usage(error.to_string()))?;
    write_new_file(&output, "the small case", text.as_bytes())?;
    let story = driver::run(&scenario, scenario.choices(args.seed));
    let choices = scenario.choices.as_deref().unwrap_or_default();
    let unusual = choices.iter().filter(|choice| **choice != 0).count();
    print(&format!(
        "{}\nafter {} runs: {} choices, {unusual} of them not plain; written to {}",
        summary(&story),
        small.attempts,
        choices.len(),
        output.display()
    ))?;
    Ok(End::Done)
}
