//! The plays that are shipped: each looks for one kind of trouble, and stands in a file that can be read.

use serde::Deserialize;
use thiserror::Error;

use crate::play::Play;

/// A play with its name.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedPlay {
    /// Its name.
    pub name: String,
    /// What it looks for, in a line.
    pub about: String,
    /// Who performs it: always `world`.
    pub driver: String,
    /// The play.
    pub world: Play,
}

/// A play cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{name}: {message}")]
pub struct PlayFileError {
    /// Which.
    pub name: &'static str,
    /// What is wrong, and where.
    pub message: String,
}

/// The shipped files, by name.
pub const SHIPPED: [(&str, &str); 36] = [
    ("world-bad-disk", include_str!("scenarios/world-bad-disk.toml")),
    ("world-budget-midway", include_str!("scenarios/world-budget-midway.toml")),
    ("world-cancel-storm", include_str!("scenarios/world-cancel-storm.toml")),
    ("world-children", include_str!("scenarios/world-children.toml")),
    ("world-compaction", include_str!("scenarios/world-compaction.toml")),
    ("world-confirmation-races", include_str!("scenarios/world-confirmation-races.toml")),
    ("world-crash-and-resume", include_str!("scenarios/world-crash-and-resume.toml")),
    ("world-download-in-parts", include_str!("scenarios/world-download-in-parts.toml")),
    ("world-downloads", include_str!("scenarios/world-downloads.toml")),
    ("world-edits", include_str!("scenarios/world-edits.toml")),
    ("world-elsewhere", include_str!("scenarios/world-elsewhere.toml")),
    ("world-everything", include_str!("scenarios/world-everything.toml")),
    ("world-fan-out-storm", include_str!("scenarios/world-fan-out-storm.toml")),
    ("world-forks", include_str!("scenarios/world-forks.toml")),
    ("world-hostile-model", include_str!("scenarios/world-hostile-model.toml")),
    ("world-long-answers", include_str!("scenarios/world-long-answers.toml")),
    ("world-models", include_str!("scenarios/world-models.toml")),
    ("world-models-claude", include_str!("scenarios/world-models-claude.toml")),
    ("world-models-responses", include_str!("scenarios/world-models-responses.toml")),
    ("world-nested-limits", include_str!("scenarios/world-nested-limits.toml")),
    ("world-objects", include_str!("scenarios/world-objects.toml")),
    ("world-objects-chat", include_str!("scenarios/world-objects-chat.toml")),
    ("world-objects-claude", include_str!("scenarios/world-objects-claude.toml")),
    ("world-old-snapshots", include_str!("scenarios/world-old-snapshots.toml")),
    ("world-patches", include_str!("scenarios/world-patches.toml")),
    ("world-permission-changes", include_str!("scenarios/world-permission-changes.toml")),
    ("world-plain-patches", include_str!("scenarios/world-plain-patches.toml")),
    ("world-programs", include_str!("scenarios/world-programs.toml")),
    ("world-restart-storm", include_str!("scenarios/world-restart-storm.toml")),
    ("world-rude-commands", include_str!("scenarios/world-rude-commands.toml")),
    ("world-shutdown-during-start", include_str!("scenarios/world-shutdown-during-start.toml")),
    ("world-slow-store", include_str!("scenarios/world-slow-store.toml")),
    ("world-tiny", include_str!("scenarios/world-tiny.toml")),
    ("world-waiting", include_str!("scenarios/world-waiting.toml")),
    ("world-workflow", include_str!("scenarios/world-workflow.toml")),
    ("world-workflow-cancel", include_str!("scenarios/world-workflow-cancel.toml")),
];

/// All shipped plays, in the order of their names.
///
/// # Errors
/// [`PlayFileError`], which would be a bug.
pub fn shipped() -> Result<Vec<NamedPlay>, PlayFileError> {
    let read = |(name, text): &(&'static str, &str)| {
        toml::from_str(text).map_err(|error: toml::de::Error| PlayFileError { name, message: error.to_string() })
    };
    SHIPPED.iter().map(read).collect()
}
