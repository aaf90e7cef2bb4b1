//! The built-in tools, one a file.

#[cfg(test)]
pub(crate) mod testing;
