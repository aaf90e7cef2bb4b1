//! Runs the fuzz target of diffs over random input: mostly of pieces that mean something there.

use proptest::prelude::{ProptestConfig, Strategy, prop};
use proptest::{prop_oneof, proptest};

use super::{diff, splice};

#[path = "../../../fuzz/targets/diff.rs"]
mod target;

/// Bytes that look like diffs often enough to get somewhere.
fn nearly_a_diff() -> impl Strategy<Value = Vec<u8>> {
    let known: &[&[u8]] = &[
        b"--- a/f\n+++ b/f\n",
        b"--- /dev/null\n+++ b/f\n",
        b"diff --git a/f b/f\n",
        b"rename from f\nrename to g\n",
        b"new file mode 100644\n",
        b"\\ No newline at end of file\n",
        b"@@\n",
        b"@@ a\n",
        b" a\n",
        b"-a\n",
        b"+a\n",
        b" b\r\n",
        b"-b\n",
        b"+b\r\n",
        b"\n",
        b"-- \n",
        b"\0",
        b"a\n",
        b"b\r\n",
        b"a",
    ];
    let piece = prop_oneof![
        8 => prop::sample::select(known).prop_map(<[u8]>::to_vec),
        3 => (0_u8..5, 0_u8..4, 0_u8..5, 0_u8..4)
            .prop_map(|(a, b, c, d)| format!("@@ -{a},{b} +{c},{d} @@\n").into_bytes()),
        1 => prop::collection::vec(prop::num::u8::ANY, 0..8),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 5000, ..ProptestConfig::default() })]
    #[test]
    fn any_diff_is_read_or_refused(bytes in nearly_a_diff()) {
        target::check(&bytes);
    }
}
