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

use crate::happening::{Happening, Subject};
use crate::remains::Remains;
use crate::workload::Workload;

/// One promise.
pub trait Checker {
    /// Its name in reports: one word.
    fn name(&self) -> &'static str;

    /// The promise, in a few words.
    fn promise(&self) -> &'static str;

    /// What it hears of.
    fn subjects(&self) -> &'static [Subject];

    /// Takes that time has passed, before what happens then: what had to be by now?
    ///
    /// # Errors
    /// How the promise was broken by then.
    fn tick(&mut self, _now: Duration) -> Result<(), String> {
        Ok(())
    }

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

/// Checkers at work: each hears of what it asks for, and all of them of the time.
pub struct Watch {
    checkers: Vec<Box<dyn Checker>>,
    /// Who hears of each subject, by their places.
    listeners: [Vec<usize>; Subject::COUNT],
    now: Option<Duration>,
}

impl Watch {
    /// With these checkers.
    pub fn new(checkers: Vec<Box<dyn Checker>>) -> Self {
        let mut listeners: [Vec<usize>; Subject::COUNT] = Default::default();
        for (at, checker) in checkers.iter().enumerate() {
            for subject in checker.subjects() {
                listeners[*subject as usize].push(at);
            }
        }
        Self { checkers, listeners, now: None }
    }

    /// Takes what happened; returns the first promise that is broken by it.
    pub fn see(&mut self, now: Duration, happening: &Happening) -> Option<Violation> {
        if self.now != Some(now) {
            self.now = Some(now);
            let late = self.checkers.iter_mut().find_map(|checker| broken(checker.tick(now), &**checker, now));
            if late.is_some() {
                return late;
            }
        }
        for at in &self.listeners[happening.subject() as usize] {
            let Some(checker) = self.checkers.get_mut(*at) else { continue };
            if let Err(text) = checker.see(now, happening) {
                return broken(Err(text), &**checker, now);
            }
        }
        None
    }

    /// Takes what is left; returns the first promise that is broken by then.
    pub fn finish(&mut self, now: Duration, remains: &Remains) -> Option<Violation> {
        self.checkers.iter_mut().find_map(|checker| broken(checker.finish(remains), &**checker, now))
    }

    /// The names of all checkers, in order.
    pub fn names(&self) -> Vec<&'static str> {
        self.checkers.iter().map(|checker| checker.name()).collect()
    }
}

fn broken(answer: Result<(), String>, checker: &dyn Checker, at: Duration) -> Option<Violation> {
    let text = answer.err()?;
    Some(Violation { checker: checker.name(), promise: checker.promise(), at, text })
}

/// An error when something is not so.
fn must(so: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(text()) }
}
