//! `sim replay`: one run, or a recorded session, told moment by moment in plain words.

use std::path::{Path, PathBuf};

use clap::Args;
use toolwarden_sim::driver;
use toolwarden_sim::narrative::{Narrator, summary};
use toolwarden_sim::recording::{self, Recording, Wish};
use toolwarden_sim::story::What;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{LOG_BYTES_MAX, SNAPSHOT_BYTES_MAX};

use super::super::{CommandError, End};
use crate::assembly::Surroundings;
use crate::input::read_bytes;
use crate::terminal::print;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes: 0 every promise was kept, 1 one was broken, or what was recorded was changed, 2 the \
                        command line has to be mended."
)]
pub(crate) struct ReplayArgs {
    /// The seed
    #[arg(required_unless_present_any = ["snapshot", "case"], conflicts_with = "snapshot")]
    seed: Option<u64>,

    /// The scenario, by name or file; a file may hold the choices of its one run [default: wide]
    #[arg(long, id = "case", value_name = "NAME|FILE", conflicts_with = "snapshot")]
    scenario: Option<String>,

    /// A recorded session instead: its folder in a store (or a copy of it), or a snapshot alone
    #[arg(long, value_name = "DIR|FILE")]
    snapshot: Option<PathBuf>,

    /// Of a recorded session: what if it had been cancelled, or its process had died, at every point?
    #[arg(long, requires = "snapshot")]
    branch: bool,

    /// Leave messages out, or the facts of a recorded session
    #[arg(long)]
    brief: bool,
}

/// Tells it.
///
/// # Errors
/// [`CommandError`].
pub(super) fn replay(args: &ReplayArgs, with: &Surroundings) -> Result<End, CommandError> {
    if let Some(path) = &args.snapshot {
        return recorded(path, args, with);
    }
    let named = args.scenario.as_deref().unwrap_or(super::USUAL);
    let scenario = super::scenario(named)?;
    let Some(seed) = args.seed.or(scenario.choices.is_some().then_some(0)) else {
        return Err(CommandError::Usage(format!("{named} holds no choices of its own, so name a seed")));
    };
    let story = driver::tell(&scenario, scenario.choices(seed));
    let mut narrator = Narrator::default();
    let mut lines = vec![format!("{}: {}", scenario.name, scenario.about)];
    for moment in &story.moments {
        let line = narrator.line(moment);
        if !(args.brief && matches!(moment.what, What::Delivery { .. })) {
            lines.push(line);
        }
    }
    if story.moments_lost > 0 {
        lines.push(format!("{} more moments are not told", story.moments_lost));
    }
    lines.push(summary(&story));
    print(&lines.join("\n"))?;
    Ok(if story.violation.is_some() { End::Failed } else { End::Done })
}

/// A session out of production.
fn recorded(path: &Path, args: &ReplayArgs, with: &Surroundings) -> Result<End, CommandError> {
    let (name, found) = read(path)?;
    let wish = Wish { lines: !args.brief, branch: args.branch };
    match recording::replay(&name, found, wish) {
        Ok(recording) => {
            print(&words(&recording))?;
            Ok(End::Done)
        }
        Err(error) => {
            with.screen.complain(&format!("{}: {error}", path.display()));
            Ok(End::Failed)
        }
    }
}

/// The files of a recorded session, and what its folder is called.
fn read(path: &Path) -> Result<(String, Recovered), CommandError> {
    let is_log = path.file_name().is_some_and(|name| name == "facts.log");
    let folder = if path.is_dir() { Some(path) } else { path.parent().filter(|_| is_log || beside_a_log(path)) };
    let Some(folder) = folder else {
        let snapshot = read_bytes(path, "a snapshot", SNAPSHOT_BYTES_MAX)?;
        return Ok(("recorded".to_owned(), Recovered { snapshot: Some(snapshot), ..Recovered::default() }));
    };
    let (log, snapshot) = (folder.join("facts.log"), folder.join("snapshot"));
    if !log.is_file() && !snapshot.is_file() {
        return Err(CommandError::Usage(format!(
            "{} holds neither facts.log nor snapshot; name a session's folder: sessions/ID in the store",
            folder.display()
        )));
    }
    let log = if log.is_file() { read_bytes(&log, "a log", LOG_BYTES_MAX)? } else { Vec::new() };
    let snapshot = match snapshot.is_file() {
        true => Some(read_bytes(&snapshot, "a snapshot", SNAPSHOT_BYTES_MAX)?),
        false => None,
    };
    let name = folder.file_name().map_or_else(|| "recorded".into(), |name| name.to_string_lossy().into_owned());
    Ok((name, Recovered::from_bytes(log, snapshot)))
}

fn beside_a_log(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "snapshot") && path.with_file_name("facts.log").is_file()
}

fn words(recording: &Recording) -> String {
    let mut lines = recording.lines.clone();
    let kinds: Vec<String> = recording.kinds.iter().map(|(kind, times)| format!("{times} x {kind}")).collect();
    lines.push(format!(
        "session {}: {} facts replayed ({}), {} runs, {} calls",
        recording.session,
        recording.facts,
        kinds.join(", "),
        recording.state.runs,
        recording.state.calls,
    ));
    match recording.snapshot {
        Some(position) => lines.push(format!("the fold of its facts is what its snapshot holds at fact {position}")),
        None => lines.push("it has no snapshot".to_owned()),
    }
    if recording.torn_bytes > 0 {
        let bytes = recording.torn_bytes;
        lines.push(format!(
            "a last fact of {bytes} bytes was cut while it was written; nobody was told that it was stored"
        ));
    }
    lines.push("every call of the conversation has its one result wherever the model may be asked".to_owned());
    if let Some(branches) = recording.branches {
        lines.push(format!(
            "cancelled at each of {} points: its run ends there, and every call has one result",
            branches.cancelled
        ));
        lines.push(format!(
            "its process lost at each of {} points: it goes on with a turn of the model at {}, with calls at {}; in all \
             the model is told of {} calls that were interrupted, and none runs twice",
            branches.died, branches.asks, branches.calls, branches.interrupted_calls
        ));
    }
    lines.join("\n")
}
