//! The built-in tools, one a file.
