//! Any `Content-Range` and `Retry-After`. The modules are taken in by their files, so that nothing else need be built for it.

#![no_main]
#![expect(dead_code, unreachable_pub, reason = "the target uses less of the modules than the crate does")]

use libfuzzer_sys::fuzz_target;

#[path = "../../tools/download/content_range.rs"]
mod content_range;
#[path = "../../tools/download/retry.rs"]
mod retry;
#[path = "../targets/content_range.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
