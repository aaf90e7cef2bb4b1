//! The built-in tools, one a file.

mod reach;

pub mod ls;
pub mod read;
pub mod search;

#[cfg(test)]
pub(crate) mod testing;
