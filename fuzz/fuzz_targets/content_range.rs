//! Any `Content-Range` is refused or holds together.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::download::content_range::ContentRange;
use toolwarden_tools::download::retry::retry_after;

fuzz_target!(|field: &str| {
    let _ = retry_after(field, 0);
    if let Some(ContentRange::Part { first, last, total }) = ContentRange::parse(field) {
        assert!(first <= last && total.is_none_or(|total| last < total));
    }
});
