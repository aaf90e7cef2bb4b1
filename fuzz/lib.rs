//! What the fuzz targets do with their bytes; the tests of the repository do the same with random ones.
//!
//! A target is a function of bytes that panics when a promise is broken. Fuzzing itself needs a nightly compiler.

use toolwarden_tools::builtin::patch::diff::Diff;
use toolwarden_tools::builtin::patch::splice::splice;

/// Longest result of a patch here, in bytes.
const RESULT_BYTES_MAX: usize = 1 << 20;

/// A diff and a file, parted by the first NUL: reading and applying never panics, a result adds up, and what is
/// applied strictly is applied the same without.
pub fn diff(bytes: &[u8]) {
    let (text, file) = match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &b"a\nb\nc\n"[..]),
    };
    let Ok(diff) = Diff::parse(text) else { return };
    for section in &diff.sections {
        let Ok(tolerant) = splice(file, &section.hunks, false, RESULT_BYTES_MAX) else { continue };
        assert_eq!(tolerant.hunks.len(), section.hunks.len());
        assert!(tolerant.bytes.len() <= RESULT_BYTES_MAX);
        let lines = |bytes: &[u8]| bytes.split_inclusive(|byte| *byte == b'\n').count() as u64;
        let added: u64 = tolerant.hunks.iter().map(|hunk| hunk.added).sum();
        let removed: u64 = tolerant.hunks.iter().map(|hunk| hunk.removed).sum();
        assert_eq!(lines(&tolerant.bytes) + removed, lines(file) + added);
        if let Ok(strict) = splice(file, &section.hunks, true, RESULT_BYTES_MAX) {
            assert_eq!(strict.bytes, tolerant.bytes);
        }
    }
}
