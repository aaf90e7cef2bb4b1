//! The stages before a tool runs, one a file, in the order of the route.
//!
//! Each stage's value can be made only by its stage (a private field), and takes the value of the stage before: a
//! route that left one out or swapped two would not compile.

pub mod recursion;

pub mod schema;

pub mod hooks;

mod subject;

pub mod skill;

pub mod permission;

pub mod confirmation;

pub mod budget;

pub mod admission;
