//! Any ignore file and any path.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::search::ignore_rules;

#[path = "../targets/ignore_rules.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
