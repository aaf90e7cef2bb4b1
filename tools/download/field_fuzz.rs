//! The fuzz targets of header fields, over random input that is bounded.

use proptest::prelude::*;

use super::{content_range, file_name, retry};

#[path = "../../fuzz/targets/content_disposition.rs"]
mod content_disposition_target;
#[path = "../../fuzz/targets/content_range.rs"]
mod content_range_target;

proptest! {
    #[test]
    fn any_content_disposition(
        field in proptest::collection::vec(any::<u8>(), 0..200),
        likely in "(attachment|filename\\*?|[;=\"'\\\\/.%]|UTF-8''|\\PC|[0-9a-f]){0,40}",
    ) {
        content_disposition_target::check(&field);
        content_disposition_target::check(likely.as_bytes());
    }

    #[test]
    fn any_content_range(
        field in proptest::collection::vec(any::<u8>(), 0..80),
        likely in "(bytes| |[0-9]{1,20}|[-/*]){0,10}",
    ) {
        content_range_target::check(&field);
        content_range_target::check(likely.as_bytes());
    }
}
