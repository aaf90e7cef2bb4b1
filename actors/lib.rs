//! Everything that holds mutable state: the supervision tree and its actors. The only crate that names ractor.
//!
//! Each actor is a pure machine (time and messages in, effects out), below it a thin mount that receives, steps and
//! carries the effects out, and above it a handle that hides the messages. The machines decide everything, so the
//! simulation can drive them alone. Supervision is OTP's, built on ractor's links and supervision events; what
//! ractor really does, and what must therefore never be relied on, is pinned by tests in `ractor_facts`.

pub mod budget;
pub mod event_queue;
#[cfg(test)]
mod interleaving;
pub mod lease;
mod millisecond;
#[cfg(test)]
mod onlooker;
pub mod restart_intensity;
pub mod retention;
pub mod slot;
pub mod turnstile;

pub mod accounts;
pub mod child_spec;
pub mod circuit_breaker;
pub mod fan_out;
pub mod open_questions;
pub mod task_board;
pub mod waiting_line;

pub mod child;
pub mod node_machine;
pub mod permit_pool;

pub mod supervision_report;

pub mod dynamic_supervision;
mod nursery;
pub mod supervision;

pub mod artifact_store;
pub mod budget_ledger;
pub mod bulkhead;
pub mod confirmations;
pub mod dynamic_supervisor;
pub mod fact_log;
pub mod journal;
pub mod node;
pub mod supervisor;

pub mod background;
pub mod members;

pub mod process_group;
pub mod tail;

#[cfg(test)]
mod probe;
#[cfg(test)]
mod ractor_facts;
