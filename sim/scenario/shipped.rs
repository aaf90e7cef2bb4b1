//! The scenarios that come with the program, by name.
//!
//! They are files in `scenarios/`, read at build time, so that the program needs none of them beside it.

use super::{Scenario, ScenarioError};
use crate::plays;

/// Name and text of each for the machines, by name.
const MACHINES: [(&str, &str); 22] = [
    ("absent-person", include_str!("../scenarios/absent-person.toml")),
    ("background-tasks", include_str!("../scenarios/background-tasks.toml")),
    ("budget-midway", include_str!("../scenarios/budget-midway.toml")),
    ("cancel-storm", include_str!("../scenarios/cancel-storm.toml")),
    ("crash-storm", include_str!("../scenarios/crash-storm.toml")),
    ("deadlines", include_str!("../scenarios/deadlines.toml")),
    ("deep", include_str!("../scenarios/deep.toml")),
    ("escaped-processes", include_str!("../scenarios/escaped-processes.toml")),
    ("fan-out-storm", include_str!("../scenarios/fan-out-storm.toml")),
    ("late-lease", include_str!("../scenarios/late-lease.toml")),
    ("nested-limits", include_str!("../scenarios/nested-limits.toml")),
    ("open-breaker", include_str!("../scenarios/open-breaker.toml")),
    ("plain", include_str!("../scenarios/plain.toml")),
    ("races", include_str!("../scenarios/races.toml")),
    ("restart-storm", include_str!("../scenarios/restart-storm.toml")),
    ("rude-tools", include_str!("../scenarios/rude-tools.toml")),
    ("scarce", include_str!("../scenarios/scarce.toml")),
    ("shutdown-during-start", include_str!("../scenarios/shutdown-during-start.toml")),
    ("sixteen-wide", include_str!("../scenarios/sixteen-wide.toml")),
    ("slow-journal", include_str!("../scenarios/slow-journal.toml")),
    ("tiny", include_str!("../scenarios/tiny.toml")),
    ("wide", include_str!("../scenarios/wide.toml")),
];

/// Name and text of the one for the index.
const INDEX: [(&str, &str); 1] = [("index-staleness", include_str!("../scenarios/index-staleness.toml"))];

/// Name and text of each, those for the machines first.
pub(super) fn files() -> impl Iterator<Item = (&'static str, &'static str)> {
    MACHINES.into_iter().chain(plays::SHIPPED).chain(INDEX)
}

/// All of them: those for the machines, then those for the world, by name, then the one for the index.
///
/// # Errors
/// [`ScenarioError`], which would be a bug.
pub fn all() -> Result<Vec<Scenario>, ScenarioError> {
    files().map(|(name, text)| Scenario::parse(&format!("{name}.toml"), text)).collect()
}

/// The one of this name, when there is one.
///
/// # Errors
/// [`ScenarioError`], which would be a bug.
pub fn named(name: &str) -> Result<Option<Scenario>, ScenarioError> {
    let found = files().find(|(known, _)| *known == name);
    found.map(|(name, text)| Scenario::parse(&format!("{name}.toml"), text)).transpose()
}
