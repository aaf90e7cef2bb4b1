//! `eval`: runs a fixed set of tasks against a model and prints what it came to.

use std::path::PathBuf;

use clap::Args;
use toolwarden::embedding::Runtime;
use toolwarden::evaluation::Evaluation;
use toolwarden::evaluation::task_set::{SET_BYTES_MAX, TaskSet};

use super::{CommandError, End};
use crate::assembly::{AssemblyError, Surroundings};
use crate::input::read_file;
use crate::stop_signal::StopSignals;
use crate::terminal::print;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every run came to what was expected; 1 some did not; 2 FILE has to be mended.\n\nEvery task \
                  has a workspace in memory of its own and the same budget. docs/evaluation.md says what FILE holds."
)]
pub(crate) struct EvalArgs {
    /// The tasks, a TOML file
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Who is evaluated: anthropic:NAME, openai:NAME, openai-chat:NAME@BASE_URL, scripted:FILE or builtin:research
    #[arg(long, value_name = "SPEC")]
    model: String,

    /// Run every task so often, whatever the file says
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=20))]
    runs: Option<u32>,

    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the tasks and prints the report.
///
/// # Errors
/// [`CommandError`]. A task that fails is an end, not an error.
pub(crate) async fn eval(args: EvalArgs, with: &Surroundings) -> Result<End, CommandError> {
    let text = read_file(&args.file, "the tasks", u64::try_from(SET_BYTES_MAX).unwrap_or(u64::MAX))?;
    let mut set = TaskSet::from_toml(&text, &args.file.display().to_string())
        .map_err(|error| CommandError::Usage(error.to_string()))?;
    set.budget.runs = args.runs.unwrap_or(set.budget.runs);
    let model = with.model(&args.model)?;
    let catalog = with.catalog()?;
    let mut signals = StopSignals::listen().map_err(|error| CommandError::Usage(error.to_string()))?;
    let runtime = Runtime::builder()
        .secrets(catalog.secrets())
        .model_retries(catalog.config().retries)
        .build()
        .await
        .map_err(AssemblyError::from)?;
    let evaluation = Evaluation::new(runtime.clone(), model);
    let mut told = |task: &toolwarden::evaluation::report::TaskReport| {
        if with.screen.is_terminal() {
            with.screen.say(&format!("{}: {}/{}", task.id, task.figures.succeeded, task.figures.runs));
        }
    };
    let ended = tokio::select! {
        biased;
        signal = signals.next() => Err(signal),
        report = evaluation.run(&set, &mut told) => Ok(report),
    };
    runtime.shut_down().await;
    let report = match ended {
        Ok(report) => report?,
        Err(signal) => {
            with.screen.say(&format!("cancelled by {}; everything has ended", signal.name()));
            return Ok(End::Stopped(signal));
        }
    };
    print(&if args.json { serde_json::to_string(&report)? } else { report.table() })?;
    Ok(if report.totals.is_perfect() { End::Done } else { End::Failed })
}
