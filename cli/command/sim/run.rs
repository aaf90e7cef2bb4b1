//! `sim run`: scenarios times seeds, on all cores, until the seeds or the time are used up or somebody stops it.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use toolwarden_sim::campaign::{JOBS_MAX, Tally, Verdict, campaign};
use toolwarden_sim::driver;
use toolwarden_sim::scenario::{Scenario, shipped};
use toolwarden_sim::systematic::{Covered, RUNS_MAX, systematic};
use toolwarden_tools::effects::clock::{Clock as _, SystemClock};

use super::super::{CommandError, End};
use super::table;
use crate::assembly::Surroundings;
use crate::stop_signal::{StopSignal, StopSignals};
use crate::terminal::{Screen, print};

/// Longest search by time, in seconds: a week.
const FOR_S_MAX: u64 = 7 * 24 * 3_600;
/// Seeds of a search where none are named.
const SEEDS: Range<u64> = 0..500;

#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 every promise was kept, 1 one was broken, 2 the command line has to be mended, \
                        130 stopped by Ctrl-C (what was run until then is told).")]
pub(crate) struct RunArgs {
    /// A scenario by name or file; all that come with the program when it is left out
    #[arg(long, value_name = "NAME|FILE")]
    scenario: Vec<String>,

    /// The seeds, from the first to before the last [default: 0..500]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds, conflicts_with_all = ["time", "systematic"])]
    seeds: Option<Range<u64>>,

    /// Search for so long instead, as 60s, 15m or 8h
    #[arg(long = "for", id = "time", value_name = "TIME", value_parser = parse_span)]
    time: Option<Duration>,

    /// Runs beside each other [default: one a core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=JOBS_MAX as i64))]
    jobs: Option<u16>,

    /// Instead of seeds: go through the runs of one scenario by their departures from the plain order, so many at most
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u32).range(1..=RUNS_MAX as i64),
          conflicts_with = "time")]
    systematic: Option<u32>,

    /// Tell which fault met which state how often
    #[arg(long)]
    sometimes: bool,

    /// Print one JSON object a run, each on its line
    #[arg(long)]
    json: bool,
}

/// A run, as `--json` tells it.
#[derive(Serialize)]
struct Line<'a> {
    scenario: &'a str,
    seed: u64,
    digest: String,
    ok: bool,
    failed_checker: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    violation: Option<String>,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("write them as A..B, as in 0..500")?;
    let number = |text: &str| text.trim().parse::<u64>().map_err(|error| format!("{text:?}: {error}"));
    let (from, to) = (number(from)?, number(to)?);
    match from < to {
        true => Ok(from..to),
        false => Err(format!("{from}..{to} holds no seed: the second number has to be larger")),
    }
}

fn parse_span(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" | "" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err("write it as 60s, 15m or 8h".to_owned()),
    };
    let span = number.parse::<u64>().ok().and_then(|number| number.checked_mul(seconds));
    match span {
        Some(span) if (1..=FOR_S_MAX).contains(&span) => Ok(Duration::from_secs(span)),
        _ => Err(format!("{text:?} is not between 1s and {}h", FOR_S_MAX / 3_600)),
    }
}

/// Runs them.
///
/// # Errors
/// [`CommandError`].
pub(super) async fn run(args: RunArgs, with: &Surroundings) -> Result<End, CommandError> {
    let scenarios = match args.scenario.as_slice() {
        [] => shipped::all().map_err(|error| CommandError::Usage(error.to_string()))?,
        named => named.iter().map(|name| super::scenario(name)).collect::<Result<_, _>>()?,
    };
    if let Some(runs_max) = args.systematic {
        let [scenario] = scenarios.as_slice() else {
            return Err(CommandError::Usage(
                "--systematic goes through one scenario; name it with --scenario".to_owned(),
            ));
        };
        return in_order(scenario, runs_max as usize, args.json);
    }
    let stop = Arc::new(Stop::new(args.time));
    let watching = tokio::spawn(watch(Arc::clone(&stop)));
    let search = Search { scenarios, seeds: args.seeds.clone(), jobs: jobs(args.jobs), json: args.json };
    let (screen, stops) = (with.screen.clone(), Arc::clone(&stop));
    let found = tokio::task::spawn_blocking(move || search.go(&stops, &screen)).await;
    watching.abort();
    let found = found.map_err(|error| CommandError::Usage(format!("the search broke: {error}")))??;
    if !args.json {
        print(&table::table(&found.scenarios, &found.tallies))?;
        if args.sometimes {
            print(&table::sometimes(&found.tallies))?;
        }
    }
    let broken = found.tallies.iter().any(|tally| !tally.broken.is_empty());
    Ok(match stop.by() {
        Some(signal) if !broken => End::Stopped(signal),
        _ if broken => End::Failed,
        _ => End::Done,
    })
}

fn jobs(asked: Option<u16>) -> NonZeroUsize {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    asked.and_then(|jobs| NonZeroUsize::new(usize::from(jobs))).unwrap_or(cores)
}

/// When a search ends: its time is over, or somebody asks for it.
struct Stop {
    clock: SystemClock,
    ends: Option<Duration>,
    asked: AtomicBool,
    signal: std::sync::OnceLock<StopSignal>,
}

impl Stop {
    fn new(time: Option<Duration>) -> Self {
        let clock = SystemClock::new();
        let ends = time.map(|time| clock.monotonic() + time);
        Self { clock, ends, asked: AtomicBool::new(false), signal: std::sync::OnceLock::new() }
    }

    fn goes_on(&self) -> bool {
        !self.asked.load(Ordering::Relaxed) && self.ends.is_none_or(|ends| self.clock.monotonic() < ends)
    }

    fn by(&self) -> Option<StopSignal> {
        self.signal.get().copied()
    }
}

/// The first signal ends the search after the runs under way.
async fn watch(stop: Arc<Stop>) {
    let Ok(mut signals) = StopSignals::listen() else { return };
    let signal = signals.next().await;
    let _ = stop.signal.set(signal);
    stop.asked.store(true, Ordering::Relaxed);
}

struct Search {
    scenarios: Vec<Scenario>,
    seeds: Option<Range<u64>>,
    jobs: NonZeroUsize,
    json: bool,
}

struct Found {
    scenarios: Vec<Scenario>,
    tallies: Vec<Tally>,
}

impl Search {
    fn go(self, stop: &Stop, screen: &Screen) -> Result<Found, CommandError> {
        let endless = stop.ends.is_some();
        let mut seeds = self.seeds.clone().unwrap_or(if endless { 0..u64::MAX } else { SEEDS });
        // A case that holds its choices is one run, whatever the seed.
        if self.scenarios.iter().all(|scenario| scenario.choices.is_some()) {
            seeds.end = seeds.start + 1;
        }
        let total = (seeds.end - seeds.start).saturating_mul(self.scenarios.len() as u64);
        let bar = screen.counter(if endless { None } else { Some(total) }, counter_style(endless));
        let broken = AtomicU64::new(0);
        let mut failure = None;
        let tallies = campaign(&self.scenarios, seeds, self.jobs, &|| stop.goes_on(), |verdict| {
            let told = self.tell(verdict, &bar, &broken);
            // A reader that went away, or a full disk, ends the search.
            if let Err(error) = told {
                stop.asked.store(true, Ordering::Relaxed);
                failure.get_or_insert(error);
            }
        });
        bar.finish_and_clear();
        match failure {
            Some(error) => Err(error),
            None => Ok(Found { scenarios: self.scenarios, tallies }),
        }
    }

    fn tell(&self, verdict: &Verdict, bar: &ProgressBar, broken: &AtomicU64) -> Result<(), CommandError> {
        bar.inc(1);
        let name = self.scenarios.get(verdict.scenario).map_or("", |scenario| scenario.name.as_str());
        if let Some(violation) = &verdict.violation {
            let count = broken.fetch_add(1, Ordering::Relaxed) + 1;
            bar.set_message(format!("{count} broken, last {name} seed {}: {}", verdict.seed, violation.checker));
        }
        if self.json {
            let line = Line {
                scenario: name,
                seed: verdict.seed,
                digest: format!("{:016x}", verdict.digest),
                ok: verdict.violation.is_none(),
                failed_checker: verdict.violation.as_ref().map(|violation| violation.checker),
                violation: verdict.violation.as_ref().map(ToString::to_string),
            };
            print(&serde_json::to_string(&line)?)?;
        }
        Ok(())
    }
}

fn counter_style(endless: bool) -> ProgressStyle {
    let template = if endless {
        "{spinner} {human_pos} runs, {per_sec}, {elapsed}  {msg}"
    } else {
        "{bar:30} {human_pos}/{human_len} runs, {per_sec}  {msg}"
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Goes through one scenario by departures from the plain order.
fn in_order(scenario: &Scenario, runs_max: usize, json: bool) -> Result<End, CommandError> {
    let covered = systematic(runs_max, |choices| {
        let story = driver::run(scenario, choices);
        (story.violation, story.choices, story.bounds)
    });
    print(&if json { covered_json(scenario, &covered)? } else { covered_words(scenario, &covered) })?;
    Ok(if covered.violation.is_some() { End::Failed } else { End::Done })
}

fn covered_json(scenario: &Scenario, covered: &Covered) -> Result<String, CommandError> {
    let levels: Vec<_> = covered.levels.iter().map(|level| serde_json::json!([level.done, level.all])).collect();
    let found = covered.violation.as_ref();
    Ok(serde_json::to_string(&serde_json::json!({
        "scenario": scenario.name,
        "runs": covered.runs,
        "departures": covered.departures(),
        "everything": covered.is_everything(),
        "levels": levels,
        "ok": found.is_none(),
        "failed_checker": found.map(|(violation, _)| violation.checker),
        "choices": found.map(|(_, choices)| choices),
    }))?)
}

fn covered_words(scenario: &Scenario, covered: &Covered) -> String {
    let mut lines = vec![format!("{}: {} runs", scenario.name, covered.runs)];
    for (departures, level) in covered.levels.iter().enumerate() {
        let all = if level.done == level.all { "all of them" } else { "the others were not run" };
        lines.push(format!("  {departures} departures: {} of {} runs, {all}", level.done, level.all));
    }
    match &covered.violation {
        Some((violation, choices)) => {
            lines.push(format!("BROKEN ({}): {violation}\nchoices: {choices:?}", violation.checker))
        }
        None if covered.is_everything() => lines.push("every run there is keeps every promise".to_owned()),
        None => lines.push("every run that was made keeps every promise".to_owned()),
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{parse_seeds, parse_span};

    #[test]
    fn seeds_and_spans_are_read_or_refused_with_what_to_write() {
        assert_eq!(parse_seeds("3..9").unwrap(), 3..9);
        assert!(parse_seeds("9..3").unwrap_err().contains("has to be larger"));
        assert!(parse_seeds("5..5").unwrap_err().contains("holds no seed"));
        assert!(parse_seeds("5").unwrap_err().contains("A..B"));
        assert!(parse_seeds("a..5").unwrap_err().contains("invalid digit"));
        assert_eq!(parse_span("90s").unwrap(), Duration::from_secs(90));
        assert_eq!(parse_span("2m").unwrap(), Duration::from_secs(120));
        for bad in ["", "0s", "5d", "-1s", "999999999999h", "1.5s"] {
            assert!(parse_span(bad).is_err(), "{bad:?}");
        }
    }
}
