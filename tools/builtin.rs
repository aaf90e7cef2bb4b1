//! The built-in tools, one a file.

mod change;
mod reach;
mod target;

pub mod edit;
pub mod ls;
pub mod read;
pub mod search;
pub mod write;

#[cfg(test)]
pub(crate) mod testing;
