//! `sim list`: the scenarios that come with the program, and the mutants that a scenario file may name.

use clap::Args;
use serde::Serialize;
use toolwarden_sim::scenario::{Driver, shipped};
use toolwarden_sim::{mutants, planted, staleness};

use super::super::{CommandError, End};
use crate::terminal::print;

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Show a scenario's file, to begin from
    #[arg(long, value_name = "SCENARIO")]
    text: Option<String>,

    /// List the deliberate faults that a scenario file may name as `mutant`
    #[arg(long, conflicts_with = "text")]
    mutants: bool,

    /// Print one JSON array instead of a table
    #[arg(long, conflicts_with = "text")]
    json: bool,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    about: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<&'static str>,
}

/// Lists them.
///
/// # Errors
/// [`CommandError`].
pub(super) fn list(args: &ListArgs) -> Result<End, CommandError> {
    if let Some(name) = &args.text {
        let scenario = super::scenario(name)?;
        let text = scenario.to_text().map_err(|error| CommandError::Usage(error.to_string()))?;
        print(&text)?;
        return Ok(End::Done);
    }
    let listed: Vec<Listed> = if args.mutants {
        let machines = mutants::all().map(|mutant| (mutant.name, mutant.about, Driver::Machines));
        let worlds = planted::all().map(|planted| (planted.name, planted.about, Driver::World));
        let index = staleness::planted::ALL.map(|planted| (planted.name, planted.about, Driver::Index));
        let listed = |(name, about, driver): (&str, &str, Driver)| Listed {
            name: name.to_owned(),
            about: about.to_owned(),
            driver: Some(driver.as_str()),
        };
        machines.chain(worlds).chain(index).map(listed).collect()
    } else {
        let all = shipped::all().map_err(|error| CommandError::Usage(error.to_string()))?;
        let listed = all.into_iter().map(|scenario| {
            let driver = Some(scenario.driver().as_str());
            Listed { name: scenario.name, about: scenario.about, driver }
        });
        listed.collect()
    };
    if args.json {
        print(&serde_json::to_string(&listed)?)?;
        return Ok(End::Done);
    }
    let widest = listed.iter().map(|one| one.name.len()).max().unwrap_or(0);
    let lines = listed.iter().map(|one| {
        let driver = one.driver.map(|driver| format!("{driver:<9} ")).unwrap_or_default();
        format!("{:<widest$}  {driver}{}", one.name, one.about)
    });
    print(&lines.collect::<Vec<_>>().join("\n"))?;
    Ok(End::Done)
}
