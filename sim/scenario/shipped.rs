//! The scenarios that come with the program, by name.
//!
//! They are files in `scenarios/`, read at build time, so that the program needs none of them beside it.

use super::{Scenario, ScenarioError};

/// Name and text of each, by name.
pub(super) const FILES: [(&str, &str); 34] = [
    ("absent-person", include_str!("../scenarios/absent-person.toml")),
    ("budget-midway", include_str!("../scenarios/budget-midway.toml")),
    ("cancel-storm", include_str!("../scenarios/cancel-storm.toml")),
    ("crash-storm", include_str!("../scenarios/crash-storm.toml")),
    ("deadlines", include_str!("../scenarios/deadlines.toml")),
    ("deep", include_str!("../scenarios/deep.toml")),
    ("escaped-processes", include_str!("../scenarios/escaped-processes.toml")),
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
    ("world-bad-disk", include_str!("../scenarios/world-bad-disk.toml")),
    ("world-budget-midway", include_str!("../scenarios/world-budget-midway.toml")),
    ("world-cancel-storm", include_str!("../scenarios/world-cancel-storm.toml")),
    ("world-confirmation-races", include_str!("../scenarios/world-confirmation-races.toml")),
    ("world-crash-and-resume", include_str!("../scenarios/world-crash-and-resume.toml")),
    ("world-everything", include_str!("../scenarios/world-everything.toml")),
    ("world-hostile-model", include_str!("../scenarios/world-hostile-model.toml")),
    ("world-nested-limits", include_str!("../scenarios/world-nested-limits.toml")),
    ("world-permission-changes", include_str!("../scenarios/world-permission-changes.toml")),
    ("world-restart-storm", include_str!("../scenarios/world-restart-storm.toml")),
    ("world-rude-commands", include_str!("../scenarios/world-rude-commands.toml")),
    ("world-shutdown-during-start", include_str!("../scenarios/world-shutdown-during-start.toml")),
    ("world-slow-store", include_str!("../scenarios/world-slow-store.toml")),
    ("world-waiting", include_str!("../scenarios/world-waiting.toml")),
];

/// All of them, by name.
///
/// # Errors
/// [`ScenarioError`], which would be a bug.
pub fn all() -> Result<Vec<Scenario>, ScenarioError> {
    FILES.iter().map(|(name, text)| Scenario::parse(&format!("{name}.toml"), text)).collect()
}

/// The one of this name, when there is one.
///
/// # Errors
/// [`ScenarioError`], which would be a bug.
pub fn named(name: &str) -> Result<Option<Scenario>, ScenarioError> {
    let found = FILES.iter().find(|(known, _)| *known == name);
    found.map(|(name, text)| Scenario::parse(&format!("{name}.toml"), text)).transpose()
}
