//! The toolwarden command line.
fn main() {}
