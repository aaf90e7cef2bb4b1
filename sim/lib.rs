//! The real tree in a pretended world: the machines of `toolwarden-actors` under a scheduler of our own.
//!
//! Everything that decides in toolwarden is a machine without I/O. Here the machines are mounted a second time, on a
//! schedule that keeps order between two actors and nothing else, in virtual time, with bodies that are as rude as
//! real tools and with faults at any moment. Every decision of a run is a number drawn from its seed: the list of
//! these numbers replays the run and shrinks to the few that matter. Checkers watch what happens, one promise each.
//!
//! Found bugs stand in `FOUND.md`, with the tests that keep them fixed.

pub mod dense;
pub mod seed;
pub mod shrink;
pub mod sign;

pub mod workload;

pub mod happening;
pub mod remains;
pub mod schedule;
pub mod script;

pub mod imprint;
pub mod message;

pub mod checkers;

pub mod recording;
pub mod story;
pub mod systematic;
pub mod tamper;

pub mod mutants;
pub mod narrative;
pub mod tree;

pub mod sight;

pub mod outline;
pub mod standing;

pub mod fate;

pub mod play;

pub mod twins;

pub mod plays;

pub mod watchers;

pub mod planted;

pub mod stage;
pub mod staleness;

pub mod resumption;

pub mod scenario;
pub mod world;

pub mod driver;

pub mod campaign;
pub mod minimise;
pub mod timeline;

pub use world::World;

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod sweep;
#[cfg(test)]
mod worlds;
