//! The stages that a proposed call passes before it runs.
//!
//! Each stage is a pure decision over immutable data; none of them does I/O.

pub mod shell;

pub mod permission;

pub mod skill;
