//! The promises that every run must keep, one a file.
//!
//! A checker sees what the world did, keeps its own small books, and compares. It never asks a machine whether all
//! is well. A checker that was never seen to fail proves little: for each there is a planted fault that it finds.

pub mod budget;
pub mod bulkhead;
pub mod cancelled;
pub mod converged;
pub mod fan_out;
pub mod governed;
pub mod journal;
pub mod leases;
pub mod questions;
pub mod reached;
pub mod settled;
pub mod tasks;
pub mod terminal;
pub mod waiters;

use std::fmt;
use std::time::Duration;

use crate::happening::Happening;
use crate::remains::Remains;
use crate::workload::Workload;

/// One promise.
pub trait Checker {
    /// Its name in reports: one word.
    fn name(&self) -> &'static str;

    /// The promise, in a few words.
    fn promise(&self) -> &'static str;

    /// Takes what happened.
    ///
    /// # Errors
    /// How the promise was broken by it.
    fn see(&mut self, now: Duration, happening: &Happening) -> Result<(), String>;

    /// Takes what is left when nothing is under way any more.
    ///
    /// # Errors
    /// How the promise was broken by then.
    fn finish(&mut self, _remains: &Remains) -> Result<(), String> {
        Ok(())
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The name of its checker.
    pub checker: &'static str,
    /// Which.
    pub promise: &'static str,
    /// At which virtual moment.
    pub at: Duration,
    /// How.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "broken at {:?}: {}: {}", self.at, self.promise, self.text)
    }
}

/// All promises for a world of this size.
pub fn all(workload: &Workload) -> Vec<Box<dyn Checker>> {
    vec![
        Box::<cancelled::Cancelled>::default(),
        Box::<terminal::Terminal>::default(),
        Box::<settled::Settled>::default(),
        Box::<reached::Reached>::default(),
        Box::<waiters::Waiters>::default(),
        Box::new(converged::Converged::new(workload.limits.close_at())),
        Box::<leases::Leases>::default(),
        Box::new(bulkhead::Bulkhead::new(workload.limits.permits as usize)),
        Box::<budget::Budget>::default(),
        Box::<questions::Questions>::default(),
        Box::<journal::Journal>::default(),
        Box::<fan_out::FanOuts>::default(),
        Box::<governed::Governed>::default(),
        Box::<tasks::Tasks>::default(),
    ]
}

/// An error when something is not so.
fn must(so: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(text()) }
}
