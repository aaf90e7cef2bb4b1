//! Everything that holds mutable state: the supervision tree and its actors. The only crate that names ractor.
//!
//! Each actor's decisions are a pure machine in the actor's own file; the ractor part below it only receives,
//! steps the machine, and carries its effects out. Callers hold handles and never see a message.

pub mod slot;

pub mod journal;
pub mod node;

pub mod process_group;
