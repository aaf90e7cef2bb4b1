//! Hunks carried out on whole contents.

use std::fmt::Write as _;

use proptest::prelude::{Just, ProptestConfig, Strategy, prop};
use proptest::{prop_oneof, proptest};
use similar::{Algorithm, DiffTag, capture_diff_slices, group_diff_ops};

use super::{SpliceError, Tolerated, splice};
use crate::builtin::patch::diff::Diff;

const MOST: usize = 1 << 20;

/// The content with a diff of one file carried out, and what was tolerated.
fn patched(text: &str, diff: &str) -> Result<(String, Vec<Tolerated>), SpliceError> {
    let diff = Diff::parse(diff.as_bytes()).unwrap();
    let spliced = splice(text.as_bytes(), &diff.sections[0].hunks, false, MOST)?;
    let tolerated = spliced.hunks.iter().flat_map(|hunk| hunk.tolerated.clone()).collect();
    Ok((String::from_utf8(spliced.bytes).unwrap(), tolerated))
}

fn strictly(text: &str, diff: &str) -> Result<Vec<u8>, SpliceError> {
    let diff = Diff::parse(diff.as_bytes()).unwrap();
    splice(text.as_bytes(), &diff.sections[0].hunks, true, MOST).map(|spliced| spliced.bytes)
}

// Case C042: it lands once, and the counts are told.
#[test]
fn wrong_counts_are_told() {
    let diff = "@@ -1,9 +1,9 @@\n one\n-two\n+TWO\n three\n";
    let file = "one\ntwo\nthree\n";
    assert_eq!(patched(file, diff).unwrap(), ("one\nTWO\nthree\n".into(), vec![Tolerated::Miscounted]));
    assert!(matches!(strictly(file, diff), Err(SpliceError::NotStrict { tolerated: Tolerated::Miscounted, .. })));
}

// Case C044.
#[test]
fn a_count_that_is_left_out_is_one() {
    assert_eq!(patched("one\n", "@@ -1 +1 @@\n-one\n+ONE\n").unwrap(), ("ONE\n".into(), vec![]));
    assert_eq!(patched("", "@@ -0,0 +1 @@\n+one\n").unwrap(), ("one\n".into(), vec![]));
    assert_eq!(patched("1\n2\n3\n", "@@ -3 +2,0 @@ 9,9\n-3\n").unwrap(), ("1\n2\n".into(), vec![]));
    assert_eq!(strictly("1\n2\n3\n", "@@ -3 +2,0 @@\n-3\n").unwrap(), b"1\n2\n");
}

// Case C045: A keeps the lack of a newline, B too and tells it, C takes the newline away; none is invented.
#[test]
fn the_last_newline_is_what_it_was_or_what_the_diff_says() {
    let marker = "\\ No newline at end of file\n";
    let both = format!("@@ -1,2 +1,2 @@\n one\n-two\n{marker}+TWO\n{marker}");
    let none = "@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n";
    let only_new = format!("@@ -1,2 +1,2 @@\n one\n-two\n+TWO\n{marker}");
    let only_old = format!("@@ -1,2 +1,2 @@\n one\n-two\n{marker}+TWO\n");
    let told = vec![Tolerated::LastNewline];
    assert_eq!(patched("one\ntwo", &both).unwrap(), ("one\nTWO".into(), vec![]));
    assert_eq!(patched("one\ntwo", none).unwrap(), ("one\nTWO".into(), told.clone()));
    assert_eq!(patched("one\ntwo\n", &only_new).unwrap(), ("one\nTWO".into(), vec![]));
    assert_eq!(patched("one\ntwo", &only_old).unwrap(), ("one\nTWO\n".into(), vec![]));
    assert_eq!(patched("one\ntwo\n", &both).unwrap(), ("one\nTWO\n".into(), told.clone()));
    assert_eq!(patched("one\ntwo", "@@ -1,2 +1,3 @@\n one\n two\n+three\n").unwrap(), ("one\ntwo\nthree".into(), told));
    assert_eq!(patched("one\r\ntwo", "@@ -2,0 +3 @@\n+three\n").unwrap().0, "one\r\ntwo\r\nthree");
    assert!(strictly("one\ntwo", none).is_err());
    assert!(patched("one\ntwo\nthree\n", &both).is_err(), "a marker in the middle of a file fits nowhere");
}

// Case C048: the form of the file wins, both ways.
#[test]
fn line_ends_are_those_of_the_file() {
    let lf = "@@ -1,2 +1,3 @@\n one\n-two\n+TWO\n+three\n";
    let crlf = lf.replace('\n', "\r\n");
    let told = vec![Tolerated::LineEndings];
    assert_eq!(patched("one\r\ntwo\r\n", lf).unwrap(), ("one\r\nTWO\r\nthree\r\n".into(), told.clone()));
    assert_eq!(patched("one\ntwo\n", &crlf).unwrap(), ("one\nTWO\nthree\n".into(), told.clone()));
    assert_eq!(patched("one\r\ntwo\r\n", &crlf).unwrap(), ("one\r\nTWO\r\nthree\r\n".into(), vec![]));
    assert_eq!(patched("a\r\nb\r\n", "@@ -1,0 +2 @@\n+x\n").unwrap(), ("a\r\nx\r\nb\r\n".into(), told.clone()));
    // Case R14: mixed ends stay mixed, and a diff can change ends on purpose.
    let mixed = "one\r\ntwo\nthree\r\n";
    assert_eq!(patched(mixed, "@@ -2 +2 @@\n-two\n+TWO\n").unwrap(), ("one\r\nTWO\nthree\r\n".into(), vec![]));
    assert_eq!(patched(mixed, "@@ -3 +3 @@\n-three\n+3\n").unwrap(), ("one\r\ntwo\n3\r\n".into(), told));
    assert_eq!(patched("a\r\n", "@@ -1 +1 @@\n-a\r\n+a\n").unwrap(), ("a\n".into(), vec![]));
}

// Case R14: shifted and the only place, told.
#[test]
fn what_is_shifted_is_told_and_refused_when_strict() {
    let file = "0\n1\n2\n3\nx\n";
    let diff = "@@ -1,2 +1,2 @@\n 3\n-x\n+y\n";
    assert_eq!(patched(file, diff).unwrap(), ("0\n1\n2\n3\ny\n".into(), vec![Tolerated::Shifted(3)]));
    assert!(strictly(file, diff).unwrap_err().to_string().contains("3 lines down"));
    let new_start = "@@ -5 +4 @@\n-x\n+y\n";
    assert!(patched(file, new_start).unwrap().1.is_empty());
    assert!(matches!(strictly(file, new_start), Err(SpliceError::NotStrict { tolerated: Tolerated::NewStart, .. })));
}

#[test]
fn hunks_come_in_the_order_of_the_file() {
    let file = "a\nb\nc\nd\n";
    let both = patched(file, "@@ -1 +1 @@\n-a\n+A\n@@ -4 +4 @@\n-d\n+D\n").unwrap();
    assert_eq!(both, ("A\nb\nc\nD\n".into(), vec![]));
    for wrong in ["@@ -4 +4 @@\n-d\n+D\n@@ -1 +1 @@\n-a\n+A\n", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n@@ -2 +2 @@\n-b\n+B\n"] {
        let error = patched(file, wrong).unwrap_err().to_string();
        assert!(error.starts_with("hunk 2 ") && error.contains("order of the file"), "{error}");
    }
    // Places before the end of the hunk before do not count.
    let again = patched("x\ny\nx\n", "@@ -1,2 +1,2 @@\n-x\n+X\n y\n@@ -9 +9 @@\n-x\n+Z\n").unwrap();
    assert_eq!(again.0, "X\ny\nZ\n");
}

#[test]
fn the_result_is_bounded() {
    let diff = format!("@@ -0,0 +1 @@\n+{}\n", "x".repeat(100));
    let parsed = Diff::parse(diff.as_bytes()).unwrap();
    assert_eq!(splice(b"", &parsed.sections[0].hunks, false, 50), Err(SpliceError::TooLong { most: 50 }));
}

/// The unified diff of two contents of any bytes, as `diff -u` writes it.
pub(super) fn diff_of(old: &[u8], new: &[u8], context: usize) -> Vec<u8> {
    let lines = |bytes: &'static [u8]| -> Vec<&'static [u8]> { bytes.split_inclusive(|byte| *byte == b'\n').collect() };
    // Leaked: the slices must outlive the call that compares them, and a test is short.
    let leak = |bytes: &[u8]| -> &'static [u8] { Box::leak(bytes.to_vec().into_boxed_slice()) };
    let (old, new) = (lines(leak(old)), lines(leak(new)));
    let mut diff = b"--- a/f\n+++ b/f\n".to_vec();
    for group in group_diff_ops(capture_diff_slices(Algorithm::Myers, &old, &new), context) {
        let (first, last) = (group[0], group[group.len() - 1]);
        let (old_range, new_range) =
            (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
        let mut header = String::new();
        let start = |range: &std::ops::Range<usize>| range.start + usize::from(!range.is_empty());
        let _ = writeln!(
            header,
            "@@ -{},{} +{},{} @@",
            start(&old_range),
            old_range.len(),
            start(&new_range),
            new_range.len()
        );
        diff.extend_from_slice(header.as_bytes());
        let mut put = |sign: u8, line: &[u8]| {
            diff.push(sign);
            diff.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                diff.extend_from_slice(b"\n\\ No newline at end of file\n");
            }
        };
        for op in group {
            let (tag, old_range, new_range) = op.as_tag_tuple();
            if tag == DiffTag::Equal {
                old[old_range].iter().for_each(|line| put(b' ', line));
            } else {
                old[old_range].iter().for_each(|line| put(b'-', line));
                new[new_range].iter().for_each(|line| put(b'+', line));
            }
        }
    }
    diff
}

/// Contents that share lines: odd bytes, line ends of both forms, ends of files of both kinds.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        4 => prop::sample::select(vec![&b"a"[..], b"b", b"", b"- c", b"-- d", b"++ e", b"@@ -1 +1 @@", b"\\ f", b"\r", b"\xff\xfe\0"]).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(prop::num::u8::ANY.prop_filter("no line end", |byte| *byte != b'\n'), 0..6),
    ];
    let ending = prop_oneof![4 => Just(&b"\n"[..]), 1 => Just(&b"\r\n"[..])];
    let lines = prop::collection::vec((line, ending), 0..24);
    (lines, prop::bool::ANY).prop_map(|(lines, ended)| {
        let mut bytes: Vec<u8> = lines.into_iter().flat_map(|(line, ending)| [&line[..], ending].concat()).collect();
        if !ended && bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn patching_with_a_diff_gives_what_was_compared(old in content(), new in content(), context in 1_usize..4) {
        let written = diff_of(&old, &new, context);
        match Diff::parse(&written) {
            Err(_) => assert_eq!(old, new),
            Ok(diff) => {
                let spliced = splice(&old, &diff.sections[0].hunks, true, MOST).unwrap();
                assert_eq!(spliced.bytes, new);
                assert!(spliced.hunks.iter().all(|hunk| hunk.tolerated.is_empty()));
            }
        }
    }

    #[test]
    fn bytes_outside_of_hunks_stay(old in content(), new in content(), above in content(), below in content()) {
        // The same hunks with other lines around the file: they stay as they are, to the byte.
        let fence = b"a line that stands nowhere else\n";
        let around = |middle: &[u8]| [&above[..], b"\n", fence, middle, b"\n", fence, &below].concat();
        let written = diff_of(&around(&old), &around(&new), 3);
        if let Ok(diff) = Diff::parse(&written) {
            let spliced = splice(&around(&old), &diff.sections[0].hunks, false, MOST).unwrap();
            assert_eq!(spliced.bytes, around(&new));
        }
    }
}
