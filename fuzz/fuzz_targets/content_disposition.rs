//! Any `Content-Disposition` gives one plain name or none, and never a place.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwarden_tools::download::file_name::{NAME_BYTES_MAX, infer, proposed};
use url::Url;

fuzz_target!(|field: &str| {
    let _ = proposed(field);
    let Ok(url) = Url::parse("http://a.example/x") else { return };
    let name = infer(Some(field), &url);
    assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX);
    assert!(!name.contains(['/', '\\', '\0']) && name != "." && name != ".." && !name.chars().any(char::is_control));
});
