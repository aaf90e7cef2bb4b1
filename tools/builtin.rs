//! The built-in tools, one a file.

mod nested;
mod reach;

pub mod batch;
pub mod ls;
pub mod read;
pub mod task;

#[cfg(test)]
pub(crate) mod testing;
