//! What must hold of any `Content-Range` and `Retry-After`: refused, or true to itself.
//!
//! Included by the fuzz target and by the tests of the crate; both have `content_range` and `retry` beside it.

use super::content_range::ContentRange;
use super::retry::retry_after;

/// Takes the bytes as a field, as far as they are text.
pub(crate) fn check(input: &[u8]) {
    let field = String::from_utf8_lossy(input);
    let _ = retry_after(&field, 0);
    if let Some(ContentRange::Part { first, last, total }) = ContentRange::parse(&field) {
        assert!(first <= last && total.is_none_or(|total| last < total), "{field:?}");
        let shown = total.map_or("*".to_owned(), |total| total.to_string());
        let again = ContentRange::parse(&format!("bytes {first}-{last}/{shown}"));
        assert_eq!(again, Some(ContentRange::Part { first, last, total }), "{field:?}");
    }
}
