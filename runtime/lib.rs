//! Decides: which calls of an agent's tools may run, and how.
//!
//! Nothing in here does what a tool does; a decision is a value that the kernel carries out. Policy text is read
//! once and compiled; judging is pure, so the same call under the same policy always gets the same verdict.

pub mod policy;

pub mod governance;
