//! Any `Content-Range` and `Retry-After`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::download::{content_range, retry};

#[path = "../targets/content_range.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
