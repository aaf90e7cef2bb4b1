//! What must hold of any ignore file and any path, whatever their bytes.
//!
//! Included by the fuzz target and by the tests of the crate; both have `ignore_rules` beside it.

use super::ignore_rules::{IgnoreRules, Verdict};

/// Takes the bytes before the first NUL as rules and what follows as a path.
pub(crate) fn check(input: &[u8]) {
    let (rules, path) = match input.iter().position(|byte| *byte == 0) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, b"a/b".as_slice()),
    };
    // Paths of a workspace have names without slashes, dots alone or NULs.
    let names: Vec<&[u8]> = path
        .split(|byte| *byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"." | b"..") && !name.contains(&0))
        .collect();
    if names.is_empty() {
        return;
    }
    let path = names.join(&b'/');
    let (parsed, faults) = IgnoreRules::parse(rules);
    // No line makes more than two rules.
    assert!(faults <= 2 * (rules.iter().filter(|byte| **byte == b'\n').count() + 1) + 1);
    for is_folder in [false, true] {
        let verdict = parsed.as_ref().map_or(Verdict::Silent, |rules| rules.verdict(&path, is_folder));
        let again = IgnoreRules::parse(rules).0;
        assert_eq!(verdict, again.as_ref().map_or(Verdict::Silent, |rules| rules.verdict(&path, is_folder)));
        // The last rule has the last word. (Files of ten thousand lines are cut, so it may not be heard there.)
        if rules.len() < 10_000 {
            for (last, expected) in [("\n*\n", Verdict::Hide), ("\n!*\n", Verdict::Show)] {
                let ended = IgnoreRules::parse(&[rules, last.as_bytes()].concat()).0;
                assert_eq!(ended.map(|rules| rules.verdict(&path, is_folder)), Some(expected), "{last:?}");
            }
        }
    }
}
