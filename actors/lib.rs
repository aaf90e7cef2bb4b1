//! Everything that holds mutable state: the supervision tree and its actors.
//!
//! The second floor of toolwarden and the only crate that names ractor. Each actor is a pure machine (time and
//! messages in, effects out), below it a thin mount that receives, steps and carries the effects out, and above it
//! a handle that hides the messages. The machines decide everything, so the simulation can drive them alone.

pub mod circuit_breaker;
pub mod lease;
pub mod slot;

pub mod accounts;
pub mod waiting_line;

pub mod permit_pool;

pub mod budget_ledger;
pub mod bulkhead;

#[cfg(test)]
mod interleaving;
#[cfg(test)]
mod onlooker;
