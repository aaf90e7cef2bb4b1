//! Runs the fuzz target of ignore files over random input: mostly of the characters that mean something there.

use proptest::prelude::*;

use super::ignore_rules;

#[path = "../../fuzz/targets/ignore_rules.rs"]
mod target;

fn input() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(&b"ab/.*?[]!\\#{}-^, \n\r\0\xff:\xc3\xa4"[..]);
    prop_oneof![
        4 => prop::collection::vec(telling, 0..40),
        1 => prop::collection::vec(any::<u8>(), 0..60),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]
    #[test]
    fn any_ignore_file_is_taken(input in input()) {
        target::check(&input);
    }
}
