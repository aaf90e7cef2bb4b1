//! Workflows: runs whose every step is a record in a log, so that a run that was interrupted goes on where it stood.
//!
//! Everything here decides and touches nothing but the log: the state of a run is the fold of its events
//! ([`state`]), what comes next follows from the state ([`decision`]), and a command of a script becomes events or is
//! refused ([`command`]). A step that is completed is never run again; a script that, asked again, says something else
//! than its log does is refused by the name of the step.

pub mod retry;

pub mod event;

pub mod command;
pub mod log;
pub mod state;

pub mod decision;
pub mod node;

/// Longest id of a run, in characters.
pub const RUN_ID_CHARS_MAX: usize = 128;
/// Longest id of a step, in bytes.
pub const STEP_ID_BYTES_MAX: usize = 256;
/// Largest input of a step, in bytes of its JSON text.
pub const STEP_INPUT_BYTES_MAX: usize = 64 * 1024;
/// Most steps of one command.
pub const STEPS_AT_ONCE_MAX: usize = 64;
/// Most steps of one run.
pub const STEPS_MAX: usize = 10_000;
/// Most commands in a row that begin no step: words of progress, and waits that are over.
pub const IDLE_COMMANDS_MAX: u32 = 256;
/// Longest log, in bytes.
pub const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The name of steps that are runs of their own.
pub const CHILD_STEP: &str = "workflow";
/// How deep runs may be inside of runs.
pub const CHILD_DEPTH_MAX: u32 = 4;
/// Most runs inside of the runs of one call.
pub const CHILD_RUNS_MAX: usize = 1_000;
/// How often one call goes on as a new run.
pub const CONTINUATIONS_MAX: usize = 100;
/// Longest time of a run: 30 days, in milliseconds.
pub const RUN_TIMEOUT_MS_MAX: u64 = 30 * 24 * 60 * 60 * 1000;
