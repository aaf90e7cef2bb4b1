//! Any diff and any file. The modules are taken in by their files, so that nothing else need be built for it.

#![no_main]
#![expect(dead_code, unreachable_pub, reason = "the target uses less of the modules than the crate does")]

use libfuzzer_sys::fuzz_target;

#[path = "../../tools/builtin/patch/diff.rs"]
mod diff;
#[path = "../../tools/builtin/patch/header.rs"]
mod header;
#[path = "../../tools/builtin/patch/place.rs"]
mod place;
#[path = "../../tools/builtin/patch/splice.rs"]
mod splice;
#[path = "../targets/diff.rs"]
mod target;

fuzz_target!(|input: &[u8]| target::check(input));
