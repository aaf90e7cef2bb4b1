//! Any ignore file and any path. The modules are taken in by their files, so that nothing else need be built for it.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tools/search/ignore_rules.rs"]
mod ignore_rules;
#[path = "../targets/ignore_rules.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
