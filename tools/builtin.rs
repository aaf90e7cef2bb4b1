//! The built-in tools, one a file.

mod change;
mod ending;
mod nested;
mod reach;
mod target;

pub mod bash;
pub mod batch;
pub mod download;
pub mod dynamic_workflow;
pub mod edit;
pub mod generate_object;
pub mod git;
pub mod ls;
pub mod patch;
pub mod process;
pub mod program;
pub mod read;
pub mod search;
pub mod task;
pub mod write;

#[cfg(test)]
pub(crate) mod testing;
