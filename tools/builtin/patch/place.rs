//! Where in a file a hunk belongs.
//!
//! Where its header says, when its lines stand there; else the one place after the hunk before it where they do. A
//! place is never chosen among several, unless the text behind the header's second @@ leaves one of them. The same
//! lines with other line ends count as the same lines, and that is told. Searching is linear in the file, whatever
//! the lines are.

use std::cell::OnceCell;

use memchr::memmem;
use thiserror::Error;

use super::diff::{Hunk, HunkLine, Side};

/// Most places named in an error.
const NAMED_PLACES_MAX: usize = 20;
/// Most lines of a hunk or a file shown in an error.
const SHOWN_LINES_MAX: usize = 6;
/// Longest line shown in an error, in bytes.
const SHOWN_BYTES_MAX: usize = 160;

/// The lines of a file: each ends with its LF, the last one perhaps without.
pub(super) struct Lines<'t> {
    text: &'t [u8],
    /// Where each line begins, and where the last one ends.
    starts: Vec<usize>,
    /// The same with LF alone behind every line, made when it is needed.
    plain: OnceCell<(Vec<u8>, Vec<usize>)>,
}

/// How the lines of a hunk stand in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// Byte for byte.
    Exact,
    /// With other line ends, or another last newline.
    LineEndings,
}

/// Where a hunk belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// Lines before it.
    pub(super) at: usize,
    pub(super) how: How,
    /// By how many lines that is off from what the header states.
    pub(super) shift: i64,
}

/// Why a hunk belongs nowhere.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlaceError {
    /// Its lines stand nowhere.
    #[error("{}", absent(*.stated, .expected, .found))]
    Absent {
        /// The line that the header states, from 1.
        stated: Option<u64>,
        /// The lines that it expects.
        expected: Vec<String>,
        /// What stands at the stated line, or where its first line stands.
        found: Vec<String>,
    },
    /// Its lines stand in several places.
    #[error(
        "its lines stand in several places{}, at lines {}; give the right line number or more lines around the change",
        if *.scoped { " within what its header names" } else { "" },
        join(.lines)
    )]
    Ambiguous {
        /// Where, from 1, as many as are named.
        lines: Vec<u64>,
        /// Whether the header's text was used and left several.
        scoped: bool,
    },
    /// The text of its header stands nowhere before the lines.
    #[error("its lines do not stand behind a line that begins with {scope:?}; mend the text after @@")]
    OutOfScope {
        /// The text.
        scope: String,
    },
    /// It has no line to go by.
    #[error("it only adds lines and has no line number; keep a line of the file before or behind them")]
    NoAnchor,
    /// Its line number lies behind the end.
    #[error("it adds lines behind line {stated}, and the file has {lines}")]
    BehindTheEnd {
        /// The line.
        stated: u64,
        /// How many there are.
        lines: u64,
    },
    /// It lies before the end of the hunk before it.
    #[error("it begins in line {line}, where the hunk before it has not ended; put the hunks in the order of the file")]
    Order {
        /// Where it begins, from 1.
        line: u64,
    },
}

impl<'t> Lines<'t> {
    pub(super) fn of(text: &'t [u8]) -> Self {
        let mut starts = vec![0];
        starts.extend(memchr::memchr_iter(b'\n', text).map(|at| at + 1));
        if starts.last() != Some(&text.len()) {
            starts.push(text.len());
        }
        Self { text, starts, plain: OnceCell::new() }
    }

    /// How many lines there are.
    pub(super) fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// A line with what ends it; empty behind the end.
    pub(super) fn line(&self, at: usize) -> &'t [u8] {
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(start), Some(end)) => &self.text[*start..*end],
            _ => b"",
        }
    }

    /// The bytes of these lines.
    pub(super) fn bytes(&self, from: usize, to: usize) -> &'t [u8] {
        &self.text[self.starts[from]..self.starts[to]]
    }

    fn plain(&self) -> &(Vec<u8>, Vec<usize>) {
        self.plain.get_or_init(|| {
            let mut text = Vec::with_capacity(self.text.len() + 1);
            let mut starts = Vec::with_capacity(self.starts.len());
            for at in 0..self.count() {
                starts.push(text.len());
                text.extend_from_slice(without_ending(self.line(at)));
                text.push(b'\n');
            }
            starts.push(text.len());
            (text, starts)
        })
    }

    /// Finds the place of a hunk at or behind line `from`.
    pub(super) fn place(&self, hunk: &Hunk<'_>, from: usize) -> Result<Place, PlaceError> {
        let old: Vec<&HunkLine<'_>> = hunk.lines.iter().filter(|line| line.side != Side::New).collect();
        if old.is_empty() {
            return self.insertion(hunk, from);
        }
        let wanted = Wanted::of(hunk, &old);
        let stated = hunk.stated.map(|stated| to_index(stated.old_start.saturating_sub(1)));
        if let Some(at) = stated {
            for how in [How::Exact, How::LineEndings] {
                if self.stands(&wanted, at, how) {
                    return if at < from { Err(order(at)) } else { Ok(Place { at, how, shift: 0 }) };
                }
            }
        }
        for how in [How::Exact, How::LineEndings] {
            let only = match self.search(&wanted, from, how).as_slice() {
                [] => continue,
                [only] if hunk.scope.is_empty() || stated.is_some() => *only,
                places => self.within_scope(hunk, places)?,
            };
            let shift = stated.map_or(0, |at| to_signed(only) - to_signed(at));
            return Ok(Place { at: only, how, shift });
        }
        Err(self.absent(&wanted, stated, from))
    }

    /// The place of lines that are only added.
    fn insertion(&self, hunk: &Hunk<'_>, from: usize) -> Result<Place, PlaceError> {
        let Some(stated) = hunk.stated else {
            return if self.count() == 0 {
                Ok(Place { at: 0, how: How::Exact, shift: 0 })
            } else {
                Err(PlaceError::NoAnchor)
            };
        };
        // With no old lines the header names the line before; one that miscounts names the line itself.
        let before = if stated.old_count == 0 { stated.old_start } else { stated.old_start.saturating_sub(1) };
        let at = to_index(before);
        if at > self.count() {
            return Err(PlaceError::BehindTheEnd { stated: before, lines: self.count() as u64 });
        }
        if at < from { Err(order(at)) } else { Ok(Place { at, how: How::Exact, shift: 0 }) }
    }

    fn stands(&self, wanted: &Wanted, at: usize, how: How) -> bool {
        let (text, starts, needle) = self.view(wanted, how);
        let Some(rest) = starts.get(at).map(|start| &text[*start..]) else { return false };
        // A needle without its last newline stands only where the file has none.
        let to_the_end = needle.ends_with(b"\n") || rest.len() == needle.len();
        at + wanted.lines <= self.count() && rest.starts_with(needle) && to_the_end && self.fits_end(wanted, at)
    }

    fn view<'v>(&'v self, wanted: &'v Wanted, how: How) -> (&'v [u8], &'v [usize], &'v [u8]) {
        match how {
            How::Exact => (self.text, &self.starts, &wanted.exact),
            How::LineEndings => {
                let (text, starts) = self.plain();
                (text, starts, &wanted.plain)
            }
        }
    }

    /// A side without a last newline ends the file.
    fn fits_end(&self, wanted: &Wanted, at: usize) -> bool {
        !wanted.ends_the_file || at + wanted.lines == self.count()
    }

    /// All places at or behind `from`, up to one more than are named.
    fn search(&self, wanted: &Wanted, from: usize, how: How) -> Vec<usize> {
        if wanted.ends_the_file {
            let last = self.count().checked_sub(wanted.lines);
            return last.filter(|at| *at >= from && self.stands(wanted, *at, how)).into_iter().collect();
        }
        let (text, starts, needle) = self.view(wanted, how);
        let mut places = Vec::new();
        let finder = memmem::Finder::new(needle);
        let mut offset = starts.get(from).copied().unwrap_or(text.len());
        while let Some(at) = text.get(offset..).and_then(|rest| finder.find(rest)) {
            // Only whole lines count; the next line is the next chance.
            let line = starts.binary_search(&(offset + at));
            if let Ok(line) = line {
                places.push(line);
                if places.len() > NAMED_PLACES_MAX {
                    break;
                }
            }
            let next = line.map_or_else(|next| next, |line| line + 1);
            offset = starts.get(next).copied().unwrap_or(text.len());
        }
        places
    }

    /// The one of several places that the text of the header leaves.
    fn within_scope(&self, hunk: &Hunk<'_>, places: &[usize]) -> Result<usize, PlaceError> {
        let several = |places: &[usize], scoped| PlaceError::Ambiguous {
            lines: places.iter().map(|line| *line as u64 + 1).collect(),
            scoped,
        };
        if hunk.scope.is_empty() {
            return Err(several(places, false));
        }
        let ranges = self.scopes(hunk.scope);
        let is_inside = |at: &usize| ranges.iter().any(|(start, end)| start <= at && at < end);
        let inside: Vec<usize> = places.iter().copied().filter(is_inside).collect();
        match inside.as_slice() {
            [only] => Ok(*only),
            // What stands behind the numbers of a header is often cut or old: it helps, and never forbids.
            [] if hunk.stated.is_some() => Err(several(places, false)),
            [] => Err(PlaceError::OutOfScope { scope: shown(hunk.scope) }),
            several_inside => Err(several(several_inside, true)),
        }
    }

    /// The lines that a header's text can mean, each with where what it heads ends: at the next line of its kind.
    fn scopes(&self, scope: &[u8]) -> Vec<(usize, usize)> {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for at in 0..self.count() {
            let line = without_ending(self.line(at));
            let body = line.trim_ascii_start();
            if let Some((start, end)) = ranges.last_mut()
                && *end == usize::MAX
                && is_of_kind(line, without_ending(self.line(*start)))
            {
                *end = at;
            }
            if body.starts_with(scope) {
                ranges.push((at, usize::MAX));
            }
        }
        ranges
    }

    fn absent(&self, wanted: &Wanted, stated: Option<usize>, from: usize) -> PlaceError {
        let expected: Vec<&[u8]> = wanted.plain.split_inclusive(|byte| *byte == b'\n').collect();
        // From the first line on that is another one.
        let at = stated.filter(|at| *at < self.count());
        let same = at.map_or(0, |at| {
            let here = (at..self.count()).zip(&expected);
            here.take_while(|(line, wanted)| without_ending(self.line(*line)) == without_ending(wanted)).count()
        });
        let first = at.map(|at| at + same).or_else(|| {
            let wanted = expected.iter().map(|line| without_ending(line)).find(|line| !line.trim_ascii().is_empty())?;
            (from..self.count()).find(|line| without_ending(self.line(*line)).trim_ascii() == wanted.trim_ascii())
        });
        let found = first.into_iter().flat_map(|first| first..self.count().min(first + SHOWN_LINES_MAX));
        PlaceError::Absent {
            stated: stated.map(|at| (at + same) as u64 + 1),
            expected: expected.iter().skip(same).take(SHOWN_LINES_MAX).map(|line| shown(line)).collect(),
            found: found.map(|line| format!("{:>6}\t{}", line + 1, shown(self.line(line)))).collect(),
        }
    }
}

/// The old lines of a hunk, ready to be looked for.
struct Wanted {
    lines: usize,
    exact: Vec<u8>,
    plain: Vec<u8>,
    ends_the_file: bool,
}

impl Wanted {
    fn of(hunk: &Hunk<'_>, old: &[&HunkLine<'_>]) -> Self {
        let mut wanted = Self {
            lines: old.len(),
            exact: Vec::new(),
            plain: Vec::new(),
            ends_the_file: hunk.lines.iter().any(|line| !line.ended),
        };
        for line in old {
            wanted.exact.extend_from_slice(line.text);
            if line.ended {
                wanted.exact.push(b'\n');
            }
            wanted.plain.extend_from_slice(line.text.strip_suffix(b"\r").unwrap_or(line.text));
            wanted.plain.push(b'\n');
        }
        wanted
    }
}

/// A line without LF or CR LF.
pub(super) fn without_ending(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// Whether a line heads something as another one does: as far in, and beginning alike.
fn is_of_kind(line: &[u8], head: &[u8]) -> bool {
    let (line_body, head_body) = (line.trim_ascii_start(), head.trim_ascii_start());
    let (Some(first), Some(head_first)) = (line_body.first(), head_body.first()) else { return false };
    let word = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$') || *byte >= 0x80;
    let alike = first == head_first || word(first) && word(head_first);
    line.len() - line_body.len() == head.len() - head_body.len() && alike
}

fn order(at: usize) -> PlaceError {
    PlaceError::Order { line: at as u64 + 1 }
}

fn to_index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn to_signed(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn shown(line: &[u8]) -> String {
    let line = without_ending(line);
    let cut = &line[..line.len().min(SHOWN_BYTES_MAX)];
    let text = String::from_utf8_lossy(cut);
    if cut.len() < line.len() { format!("{}…", text.trim_end_matches('\u{fffd}')) } else { text.into_owned() }
}

fn join(lines: &[u64]) -> String {
    let numbers: Vec<String> = lines.iter().take(NAMED_PLACES_MAX).map(ToString::to_string).collect();
    let more = if lines.len() > NAMED_PLACES_MAX { ", …" } else { "" };
    numbers.join(", ") + more
}

fn absent(stated: Option<u64>, expected: &[String], found: &[String]) -> String {
    let place = match stated {
        Some(line) => format!("its lines do not stand there or anywhere behind; from line {line} on it expects"),
        None => "its lines stand nowhere; it expects".to_owned(),
    };
    let expected: Vec<String> = expected.iter().map(|line| format!("      \t{line}")).collect();
    let found = match found {
        [] => "and nothing like it is there".to_owned(),
        found => format!("and there stands\n{}", found.join("\n")),
    };
    format!("{place}\n{}\n{found}\nread the file again and copy the lines from it", expected.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::{How, Lines, Place, PlaceError};
    use crate::builtin::patch::diff::Diff;

    fn place(text: &str, diff: &str) -> Result<Place, PlaceError> {
        let diff = Diff::parse(diff.as_bytes()).unwrap();
        Lines::of(text.as_bytes()).place(&diff.sections[0].hunks[0], 0)
    }

    #[test]
    fn the_stated_line_wins_over_others_that_look_the_same() {
        let text = "x\nsame\ny\nsame\n";
        assert_eq!(place(text, "@@ -4 +4 @@\n-same\n+new\n"), Ok(Place { at: 3, how: How::Exact, shift: 0 }));
        assert_eq!(place(text, "@@ -2 +2 @@\n-same\n+new\n"), Ok(Place { at: 1, how: How::Exact, shift: 0 }));
        let wrong = place(text, "@@ -3 +3 @@\n-same\n+new\n").unwrap_err();
        assert_eq!(wrong, PlaceError::Ambiguous { lines: vec![2, 4], scoped: false });
    }

    // Case R14: another line number is taken when the lines stand in one place alone.
    #[test]
    fn shifted_lines_are_found_when_they_are_the_only_ones() {
        let text = "1\n2\n3\nonly\n5\n";
        assert_eq!(place(text, "@@ -1 +1 @@\n-only\n+new\n"), Ok(Place { at: 3, how: How::Exact, shift: 3 }));
        assert_eq!(place(text, "@@ -90 +90 @@\n-only\n+new\n"), Ok(Place { at: 3, how: How::Exact, shift: -86 }));
        assert_eq!(place("on\nxonly\n", "@@ -1 +1 @@\n-only\n+n\n").unwrap_err().to_string().lines().count(), 6);
        assert_eq!(place("only\r\n", "@@ -1 +1 @@\n-only\n+n\n").unwrap().how, How::LineEndings);
    }

    // Case C049.
    #[test]
    fn the_text_of_the_header_chooses_between_equal_bodies() {
        let text = "[dev]\nport=1\n[prod]\nport=1\n";
        for (scope, at) in [("[prod]", 3), ("[dev]", 1)] {
            let diff = format!("@@ {scope}\n-port=1\n+port=2\n");
            assert_eq!(place(text, &diff).unwrap().at, at, "{scope}");
        }
        let none = place(text, "@@\n-port=1\n+port=2\n").unwrap_err();
        assert_eq!(none, PlaceError::Ambiguous { lines: vec![2, 4], scoped: false });
        let twice = "fn a() {\n    x();\n    x();\n}\nfn b() {\n    x();\n}\n";
        let inside = place(twice, "@@ fn a\n-    x();\n+    y();\n").unwrap_err();
        assert_eq!(inside, PlaceError::Ambiguous { lines: vec![2, 3], scoped: true });
        assert_eq!(place(twice, "@@ fn b\n-    x();\n+    y();\n").unwrap().at, 5);
        assert!(matches!(place(twice, "@@ fn c\n-    x();\n+    y();\n"), Err(PlaceError::OutOfScope { .. })));
        assert!(matches!(place("a\nb\n", "@@ zzz\n-b\n+c\n"), Err(PlaceError::OutOfScope { .. })));
    }

    // Case C051: what is expected and what is there.
    #[test]
    fn nothing_like_it_is_told_with_both_texts() {
        let error = place("a\nb\nc\n", "@@ -2,1 +2,1 @@\n-zzz\n+Z\n").unwrap_err().to_string();
        assert!(error.contains("zzz") && error.contains("     2\tb\n"), "{error}");
        let second = place("a\nb\nc\n", "@@ -1,2 +1,2 @@\n a\n-zzz\n+Z\n").unwrap_err().to_string();
        assert!(second.contains("from line 2") && second.contains("\tzzz\n"), "{second}");
    }

    #[test]
    fn lines_that_are_only_added_need_a_number() {
        assert_eq!(place("a\nb\n", "@@ -1,0 +2 @@\n+x\n").unwrap().at, 1);
        assert_eq!(place("a\nb\n", "@@ -2,0 +3 @@\n+x\n").unwrap().at, 2);
        assert_eq!(place("", "@@\n+x\n").unwrap().at, 0);
        assert_eq!(place("a\n", "@@\n+x\n"), Err(PlaceError::NoAnchor));
        assert_eq!(place("a\n", "@@ -9,0 +10 @@\n+x\n"), Err(PlaceError::BehindTheEnd { stated: 9, lines: 1 }));
    }

    #[test]
    fn repetition_costs_linear_time() {
        let text = "a\n".repeat(300_000);
        let body: String = std::iter::repeat_n(" a\n", 20_000).chain(["-b\n"]).collect();
        assert!(matches!(place(&text, &format!("@@\n{body}")), Err(PlaceError::Absent { .. })));
        let all: String = std::iter::repeat_n("-a\n", 20_000).collect();
        assert!(matches!(place(&text, &format!("@@\n{all}")), Err(PlaceError::Ambiguous { .. })));
    }
}
