//! How many child runs a session may have.
//!
//! They are kept with the session, so that one that is opened again has no more than it was given.

use serde::{Deserialize, Serialize};
use toolwarden_actors::task_board::OPEN_TASKS_MAX;
use toolwarden_tools::builtin::task::WIDTH_DEFAULT;

/// How many child runs a session may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskLimits {
    /// Child runs that the session and its child runs start over the session's whole life.
    pub total_max: u64,
    /// Tasks in the background at a time.
    pub background_max: usize,
    /// Child runs of one `task` call beside each other.
    pub width: usize,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self { total_max: 65_536, background_max: OPEN_TASKS_MAX, width: WIDTH_DEFAULT }
    }
}
