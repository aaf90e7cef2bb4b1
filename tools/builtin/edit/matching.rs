//! Where a text stands in a file, and what the file is with another text in its place.
//!
//! Three tiers, each asked only when the one before found nothing: the same text; the same text whatever ends its
//! lines; the same words and indentation with other blanks between the words or before a line's end. Each must find
//! one place. Bytes outside of the place never change, and the new text is taken literally, in the line-ending form
//! of the place where it goes.

use std::borrow::Cow;
use std::ops::Range;

use memchr::memmem;
use regex::RegexBuilder;
use thiserror::Error;

/// Most places changed by one call.
pub(super) const PLACES_MAX: usize = 1_000_000;
/// Most line numbers named in an error.
const NAMED_LINES_MAX: usize = 20;
/// Longest text that is looked for with other blanks, in bytes.
const TOLERANT_BYTES_MAX: usize = 8 * 1024;

/// How the places were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Byte for byte.
    Exact,
    /// With other line ends.
    LineEndings,
    /// With other blanks.
    Blanks,
}

impl How {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::LineEndings => "line_endings",
            Self::Blanks => "blanks",
        }
    }
}

/// The places of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// Bytes of the file, in order, not overlapping.
    pub(super) ranges: Vec<Range<usize>>,
    pub(super) how: How,
}

/// Why there is no place to change.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum MatchError {
    #[error("old_string does not stand in it{}", hint(.first_line_at, *.numbered))]
    Absent {
        /// Lines that hold the first line of the text.
        first_line_at: Vec<u64>,
        /// Whether the text seems to carry line numbers from `read`.
        numbered: bool,
    },
    #[error(
        "old_string stands in it {count} times{}, in lines {}; add lines around it until it is the only one, or set \
         replace_all",
        if *.how == How::Blanks { " when blanks are not counted" } else { "" },
        join(.lines)
    )]
    Ambiguous { count: usize, lines: Vec<u64>, how: How },
    #[error("old_string stands in it more than {PLACES_MAX} times")]
    TooMany,
}

fn hint(first_line_at: &[u64], numbered: bool) -> String {
    if numbered {
        return "; leave out the line numbers and tabs that read puts before each line".into();
    }
    match first_line_at {
        [] => "; read the file again and copy the text from it".into(),
        lines => format!("; its first line stands in line {}, what follows differs: read there", join(lines)),
    }
}

fn join(lines: &[u64]) -> String {
    let numbers: Vec<String> = lines.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}

/// A text with LF line ends, and the way back to the original.
struct LfView<'t> {
    text: Cow<'t, str>,
    /// Where in `text` an LF stands that had a CR before it, in order.
    shortened: Vec<usize>,
}

impl<'t> LfView<'t> {
    fn of(text: &'t str) -> Self {
        let mut shortened = Vec::new();
        for at in memmem::find_iter(text.as_bytes(), b"\r\n") {
            shortened.push(at - shortened.len());
        }
        let text = if shortened.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(text.replace("\r\n", "\n")) };
        Self { text, shortened }
    }

    /// Where a place of the view begins and ends in the original; a CR goes with its LF.
    fn original(&self, place: &Range<usize>) -> Range<usize> {
        let back = |at: usize| at + self.shortened.partition_point(|shortened| *shortened < at);
        back(place.start)..back(place.end)
    }
}

/// Finds the one place of a text, or `all` of them.
pub(super) fn find(text: &str, old: &str, all: bool) -> Result<Places, MatchError> {
    let view = LfView::of(text);
    let wanted = old.replace("\r\n", "\n");
    let exact = |range: &Range<usize>| &text[range.clone()] == old;
    let mut ranges = Vec::new();
    for at in memmem::find_iter(view.text.as_bytes(), &wanted) {
        if ranges.len() == PLACES_MAX {
            return Err(MatchError::TooMany);
        }
        ranges.push(view.original(&(at..at + wanted.len())));
    }
    let how = if ranges.iter().all(exact) { How::Exact } else { How::LineEndings };
    match ranges.len() {
        0 => find_tolerant(text, &view, &wanted),
        1 => match overlapping(&view, &wanted).filter(|_| !all) {
            Some(second) => {
                ranges.push(second);
                Err(MatchError::Ambiguous { count: 2, lines: line_numbers(text, &ranges), how })
            }
            None => Ok(Places { ranges, how }),
        },
        _ if all => Ok(Places { ranges, how }),
        count => {
            let mut same = ranges.iter().filter(|range| exact(range));
            match (same.next(), same.next()) {
                (Some(only), None) => Ok(Places { ranges: vec![only.clone()], how: How::Exact }),
                _ => Err(MatchError::Ambiguous { count, lines: line_numbers(text, &ranges), how }),
            }
        }
    }
}

/// A second place that begins within the first: to change one of the two is to choose.
fn overlapping(view: &LfView<'_>, wanted: &str) -> Option<Range<usize>> {
    let behind = memmem::find(view.text.as_bytes(), wanted.as_bytes())? + 1;
    let at = behind + memmem::find(view.text.as_bytes().get(behind..)?, wanted.as_bytes())?;
    Some(view.original(&(at..at + wanted.len())))
}

/// The one place that has the same words with other blanks.
fn find_tolerant(text: &str, view: &LfView<'_>, wanted: &str) -> Result<Places, MatchError> {
    let absent = || Err(absent(&view.text, wanted));
    let Some(pattern) = tolerant_pattern(wanted) else { return absent() };
    let Ok(pattern) = RegexBuilder::new(&pattern).build() else { return absent() };
    let mut ranges = Vec::new();
    for found in pattern.find_iter(&view.text) {
        if ranges.len() == PLACES_MAX {
            return Err(MatchError::TooMany);
        }
        ranges.push(view.original(&found.range()));
    }
    match ranges.len() {
        0 => absent(),
        1 => Ok(Places { ranges, how: How::Blanks }),
        count => Err(MatchError::Ambiguous { count, lines: line_numbers(text, &ranges), how: How::Blanks }),
    }
}

/// Indentation and words as they are, any blanks between them and before a line's end. The pattern ends with the
/// last word, so that it never takes the blank behind it.
fn tolerant_pattern(wanted: &str) -> Option<String> {
    const BLANKS: [char; 2] = [' ', '\t'];
    let words = || wanted.split([' ', '\t', '\n']).filter(|word| !word.is_empty());
    if wanted.len() > TOLERANT_BYTES_MAX || words().next().is_none() {
        return None;
    }
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let mut pattern = String::new();
    if is_word(wanted.chars().next()) {
        pattern.push_str(r"\b");
    }
    for (index, line) in wanted.split('\n').enumerate() {
        if index > 0 {
            pattern.push_str("[ \\t]*\n");
        }
        let body = line.trim_start_matches(BLANKS);
        pattern.push_str(&line[..line.len() - body.len()]);
        let mut between = "";
        for word in body.split(BLANKS).filter(|word| !word.is_empty()) {
            pattern.push_str(between);
            pattern.push_str(&regex::escape(word));
            between = r"[ \t]+";
        }
    }
    if wanted.ends_with(BLANKS) {
        pattern.push_str(r"[ \t]+");
    } else if is_word(wanted.chars().next_back()) {
        pattern.push_str(r"\b");
    }
    Some(pattern)
}

fn absent(text: &str, wanted: &str) -> MatchError {
    let numbered = wanted
        .split('\n')
        .filter(|line| !line.is_empty())
        .all(|line| line.trim_start().split_once('\t').is_some_and(|(number, _)| number.parse::<u64>().is_ok()));
    let first = wanted.split('\n').map(str::trim).find(|line| !line.is_empty()).unwrap_or("");
    let mut first_line_at = Vec::new();
    if !numbered && wanted.trim().contains('\n') {
        let lines = text.split('\n').zip(1_u64..).filter(|(line, _)| line.contains(first));
        first_line_at.extend(lines.map(|(_, number)| number).take(3));
    }
    MatchError::Absent { first_line_at, numbered }
}

/// The numbers of the lines where these places begin, from 1, as many as are named.
pub(super) fn line_numbers(text: &str, ranges: &[Range<usize>]) -> Vec<u64> {
    let mut numbers = Vec::new();
    let (mut at, mut line) = (0, 1);
    for range in ranges.iter().take(NAMED_LINES_MAX) {
        line += memchr::memchr_iter(b'\n', &text.as_bytes()[at..range.start]).count() as u64;
        at = range.start;
        numbers.push(line);
    }
    numbers.dedup();
    numbers
}

/// The text with `new` in every place; none when it would have more than `bytes_max` bytes.
pub(super) fn replace(text: &str, old: &str, new: &str, places: &Places, bytes_max: usize) -> Option<String> {
    // A caller who wrote CR LF saw the form of the line ends, and means the new ones as they are.
    let literal = old.contains("\r\n") && places.how == How::Exact;
    let lf = new.replace("\r\n", "\n");
    let crlf = lf.replace('\n', "\r\n");
    let mut result = String::with_capacity(text.len());
    let mut at = 0;
    for range in &places.ranges {
        result.push_str(&text[at..range.start]);
        result.push_str(match ending_at(text, range) {
            _ if literal => new,
            Some(Ending::CrLf) => &crlf,
            Some(Ending::Lf) => &lf,
            None => new,
        });
        at = range.end;
        if result.len() > bytes_max {
            return None;
        }
    }
    result.push_str(&text[at..]);
    (result.len() <= bytes_max).then_some(result)
}

enum Ending {
    Lf,
    CrLf,
}

/// How lines end at a place: in it, else at the end of its last line, else at the end of the line before it.
fn ending_at(text: &str, range: &Range<usize>) -> Option<Ending> {
    let bytes = text.as_bytes();
    let at = memchr::memchr(b'\n', &bytes[range.start..])
        .map(|at| range.start + at)
        .or_else(|| memchr::memrchr(b'\n', &bytes[..range.start]))?;
    let after_cr = at > 0 && bytes[at - 1] == b'\r';
    Some(if after_cr { Ending::CrLf } else { Ending::Lf })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any};
    use proptest::proptest;

    use super::{How, MatchError, find, replace};

    fn edited(text: &str, old: &str, new: &str, all: bool) -> Result<String, MatchError> {
        find(text, old, all).map(|places| replace(text, old, new, &places, 1 << 20).unwrap())
    }

    // Case C021: the form of the file wins; C026: no newline comes or goes.
    #[test]
    fn line_ends_keep_their_form() {
        assert_eq!(edited("a\r\nb\r\nc\r\n", "a\nb", "a\nB", false).unwrap(), "a\r\nB\r\nc\r\n");
        assert_eq!(edited("a\r\nb\r\nc\r\n", "a\r\nb", "a\r\nB", false).unwrap(), "a\r\nB\r\nc\r\n");
        assert_eq!(edited("a\r\nb\r\n", "b", "x\ny", false).unwrap(), "a\r\nx\r\ny\r\n");
        assert_eq!(edited("a\r\nb", "\nb", "", false).unwrap(), "a");
        assert_eq!(edited("a\nb\r\nc\n", "c", "c\nd", false).unwrap(), "a\nb\r\nc\nd\n");
        assert_eq!(edited("a\nb", "a", "A", false).unwrap(), "A\nb");
        assert_eq!(edited("a\nb", "b", "B", false).unwrap(), "a\nB");
        assert_eq!(edited("a\nb\r\n", "a\nb", "x\ny", false).unwrap(), "x\ny\r\n");
    }

    // Case C027.
    #[test]
    fn the_new_text_is_literal() {
        let odd = "p(\"$& $1 ${x} $$ \\1\")";
        assert_eq!(edited("log(1);", "log(1);", odd, false).unwrap(), odd);
        assert_eq!(edited("z z", "z", odd, true).unwrap(), format!("{odd} {odd}"));
        assert_eq!(edited("let   a", "let a", odd, false).unwrap(), odd);
    }

    // Case C029.
    #[test]
    fn the_blank_behind_stays() {
        assert_eq!(edited("let   a b", "let a", "Q", false).unwrap(), "Q b");
        assert_eq!(find("let   a b", "let a", false).unwrap().how, How::Blanks);
        assert_eq!(edited("f( x )  \n  g\n", "f( x )\n  g", "h", false).unwrap(), "h\n");
        assert!(edited("  a b\n    c\n", "a b\n  c", "x", false).is_err(), "indentation is not guessed");
        assert!(edited("outlet  ab", "let a", "x", false).is_err(), "words are whole");
    }

    // Case C031: one candidate at each tier.
    #[test]
    fn one_place_or_none() {
        let twice = edited("v=1\nx\nv=1\n", "v=1", "v=2", false).unwrap_err();
        assert_eq!(twice, MatchError::Ambiguous { count: 2, lines: vec![1, 3], how: How::Exact });
        assert!(twice.to_string().contains("lines 1, 3"));
        assert_eq!(edited("v=1\nv = 1\nv  =1\n", "v=1", "w", false).unwrap(), "w\nv = 1\nv  =1\n");
        assert_eq!(edited("a\r\nb\na\nb\n", "a\nb", "w", false).unwrap(), "a\r\nb\nw\n");
        let blanks = edited("v  = 1\nv =  1\n", "v = 1", "w", false).unwrap_err();
        assert!(matches!(blanks, MatchError::Ambiguous { count: 2, how: How::Blanks, .. }));
        assert!(edited("v  = 1\nv =  1\n", "v = 1", "w", true).is_err());
    }

    // Found in a review: of two places that overlap the first was taken.
    #[test]
    fn places_that_overlap_are_several() {
        let ends = "    }\n}\n}\n}\n";
        let twice = edited(ends, "}\n}\n", "x", false).unwrap_err();
        assert!(matches!(twice, MatchError::Ambiguous { count: 2, .. }), "{twice}");
        let twice = edited("a\r\na\r\na\r\n", "a\na\n", "x", false).unwrap_err();
        assert_eq!(twice, MatchError::Ambiguous { count: 2, lines: vec![1, 2], how: How::LineEndings });
        assert_eq!(edited("aaa", "aa", "x", true).unwrap(), "xa");
        assert_eq!(edited("aba", "ab", "x", false).unwrap(), "xa");
    }

    // Case C032.
    #[test]
    fn one_pass_over_the_old_text() {
        assert_eq!(edited("a", "a", "aa", true).unwrap(), "aa");
        assert_eq!(edited("aaaa", "aa", "a", true).unwrap(), "aa");
        let places = find("a", "a", false).unwrap();
        assert_eq!(replace("a", "a", &"x".repeat(100), &places, 50), None);
    }

    // Case C061: a form feed or a line separator ends no line.
    #[test]
    fn lines_are_counted_by_lf() {
        let text = "a\u{c}b\u{2028}c\nTARGET\nTARGET\n";
        let error = find(text, "TARGET", false).unwrap_err();
        assert!(matches!(error, MatchError::Ambiguous { lines, .. } if lines == [2, 3]));
    }

    #[test]
    fn what_is_absent_is_hinted_at() {
        let text = "fn a() {\n    one();\n}\n";
        assert!(find(text, "fn a() {\n    two();", false).unwrap_err().to_string().contains("in line 1,"));
        assert!(find(text, "     1\tfn a() {\n     2\t    one();", false).unwrap_err().to_string().contains("numbers"));
        assert!(find(text, "nothing", false).unwrap_err().to_string().contains("read the file again"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn bytes_outside_of_the_place_stay(text in "[ab \r\n\t]{0,40}", old in "[ab \n]{1,4}", all in any::<bool>()) {
            if let Ok(places) = find(&text, &old, all) {
                let new = replace(&text, &old, "", &places, 1 << 20).unwrap();
                let mut kept = String::new();
                let mut at = 0;
                for range in &places.ranges {
                    kept.push_str(&text[at..range.start]);
                    at = range.end;
                }
                kept.push_str(&text[at..]);
                assert_eq!(new, kept);
            }
        }
    }
}
