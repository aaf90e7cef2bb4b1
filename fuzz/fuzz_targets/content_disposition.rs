//! Any `Content-Disposition`. The modules are taken in by their files, so that nothing else need be built for it.

#![no_main]
#![expect(dead_code, unreachable_pub, reason = "the target uses less of the modules than the crate does")]

use libfuzzer_sys::fuzz_target;

#[path = "../../tools/download/file_name.rs"]
mod file_name;
#[path = "../targets/content_disposition.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
