//! Any diff and any file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::builtin::patch::{diff, splice};

#[path = "../targets/diff.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
