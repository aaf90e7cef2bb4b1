//! The built-in tools, one a file.

mod reach;

pub mod ls;
pub mod read;

#[cfg(test)]
pub(crate) mod testing;
