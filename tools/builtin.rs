//! The built-in tools, one a file.

mod reach;

pub mod bash;
pub mod ls;

#[cfg(test)]
pub(crate) mod testing;
