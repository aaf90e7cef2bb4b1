//! What must hold of any `Content-Disposition`: one plain name or none, and never a place.
//!
//! Included by the fuzz target and by the tests of the crate; both have `file_name` beside it.

use super::file_name::{NAME_BYTES_MAX, clean, proposed};

/// Takes the bytes as a field, as far as they are text.
pub(crate) fn check(input: &[u8]) {
    let field = String::from_utf8_lossy(input);
    let Some(name) = proposed(&field).and_then(|name| clean(&name)) else { return };
    assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX, "{name:?}");
    assert!(!name.contains(['/', '\\', '\0']) && name != "." && name != "..", "{name:?}");
    assert!(!name.chars().any(char::is_control), "{name:?}");
}
