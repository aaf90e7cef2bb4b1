//! The promises that every world must keep, one a file.
//!
//! A watcher sees what reached the pretended world and keeps its own small books. It never asks the runtime whether
//! all is well, but for the counts that are read once at the very end. Each was seen to fail: `watchers/tests.rs`
//! shows every one of them a world that breaks its promise.

pub mod budget;
pub mod bulkhead;
pub mod commands;
pub mod contracts;
pub mod downloads;
pub mod durable;
pub mod effects;
pub mod files;
pub mod forks;
pub mod governed;
pub mod heed;
pub mod journal;
pub mod leases;
pub mod marks;
pub mod numbering;
pub mod objects;
pub mod origins;
pub mod pairing;
pub mod questions;
pub mod scripts;
pub mod secrets;
pub mod snapshot;
pub mod supervision;
pub mod terminal;
pub mod turns;
pub mod workflow;

#[cfg(test)]
mod tests;

use crate::play::Play;
use crate::sight::Watcher;

/// All promises about the worlds of this play.
pub fn all(play: &Play) -> Vec<Box<dyn Watcher>> {
    vec![
        Box::<journal::Journal>::default(),
        Box::<governed::Governed>::default(),
        Box::<terminal::Terminal>::default(),
        Box::<questions::AskedOnce>::default(),
        Box::new(bulkhead::Bulkhead::new(play)),
        Box::new(budget::Budget::new(play.calls_max)),
        Box::<leases::Leases>::default(),
        Box::<effects::Effects>::default(),
        Box::new(durable::Durable::new(play.keeps)),
        Box::<commands::Commands>::default(),
        Box::<contracts::Contracts>::default(),
        Box::<files::Files>::default(),
        Box::new(secrets::Secrets::new(&play.secret, play.plants_its_secret())),
        Box::<supervision::Supervision>::default(),
        Box::<snapshot::Snapshots>::default(),
        Box::<forks::Forks>::default(),
        Box::new(marks::Marks::new(play.plain_files)),
        Box::new(downloads::Downloads::new(play)),
        Box::<origins::Origins>::default(),
        Box::<pairing::Pairing>::default(),
        Box::new(turns::Turns::new(play.wire.is_some())),
        Box::<workflow::Workflow>::default(),
        Box::<scripts::Scripts>::default(),
        Box::<objects::Objects>::default(),
    ]
}

/// An error when something is not so.
fn must(so: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if so { Ok(()) } else { Err(text()) }
}
