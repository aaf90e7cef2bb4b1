//! What must hold of any diff and any file, whatever their bytes.
//!
//! Included by the fuzz target and by the tests of the crate; both have `diff` and `splice` beside it.

use super::diff::Diff;
use super::splice::splice;

/// Longest result of a patch here, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// A diff and a file, parted by the first NUL: reading and applying never panics, a result adds up, and what is
/// applied strictly is applied the same without.
pub(crate) fn check(input: &[u8]) {
    let (text, file) = match input.iter().position(|byte| *byte == 0) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &b"a\nb\nc\n"[..]),
    };
    let Ok(diff) = Diff::parse(text) else { return };
    for section in &diff.sections {
        let Ok(tolerant) = splice(file, &section.hunks, false, RESULT_BYTES_MAX) else { continue };
        assert_eq!(tolerant.hunks.len(), section.hunks.len());
        assert!(tolerant.bytes.len() <= RESULT_BYTES_MAX);
        let lines = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').count() as u64;
        let added: u64 = tolerant.hunks.iter().map(|hunk| hunk.added).sum();
        let removed: u64 = tolerant.hunks.iter().map(|hunk| hunk.removed).sum();
        // An empty last line that has no newline is none.
        let (now, expected) = (lines(&tolerant.bytes) + removed, lines(file) + added);
        assert!(now == expected || now + 1 == expected, "{now} and not {expected}");
        if let Ok(strict) = splice(file, &section.hunks, true, RESULT_BYTES_MAX) {
            assert_eq!(strict.bytes, tolerant.bytes);
        }
    }
}
