//! Any `Content-Disposition`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::download::file_name;

#[path = "../targets/content_disposition.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
