//! Everything that holds mutable state: the supervision tree and its actors. The only crate that names ractor.
//!
//! Each actor is a pure machine (time and messages in, effects out), below it a thin mount that receives, steps and
//! carries the effects out, and above it a handle that hides the messages. The machines decide everything, so the
//! simulation can drive them alone.

#[cfg(test)]
mod interleaving;
pub mod lease;
mod millisecond;
#[cfg(test)]
mod onlooker;
pub mod slot;

pub mod accounts;
pub mod circuit_breaker;
pub mod fan_out;
pub mod open_questions;
pub mod waiting_line;

pub mod permit_pool;

pub mod budget_ledger;
pub mod bulkhead;
pub mod confirmations;
pub mod journal;
pub mod node;

pub mod members;
pub mod process_group;
