//! Finds the lines of a file that a regular expression matches.
//!
//! The engine is ripgrep's: linear time, no look-around and no back-references, line by line. A file of any size is
//! streamed; only a single line has a limit. What a file was (binary, decoded, cut) is said with its result, never
//! passed over.

use grep_matcher::Matcher as _;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{Searcher, SearcherBuilder, Sink, SinkContext, SinkFinish, SinkMatch};
use regex_syntax::ast;

use crate::effects::files::{FileError, Files, OpenFile};
use crate::search::requirement::Requirement;
use crate::search::stop::Stop;
use crate::search::text::{AtNul, TextFacts, TextReader, read_whole, settle_whole};
use crate::text::lossy;
use crate::workspace_path::WorkspacePath;

/// Longest pattern that is taken, in bytes.
pub const PATTERN_BYTES_MAX: usize = 16 * 1024;
/// Longest line that is searched, in bytes; a file is not read on behind a longer one.
pub const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest text of a line that is kept, in bytes.
pub const SHOWN_LINE_BYTES_MAX: usize = 2000;
/// Largest compiled pattern, in bytes.
const COMPILED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How much of a clamped line stands before its match, in bytes.
const BEFORE_MATCH_BYTES: usize = 200;
/// Stands where a line was cut.
const CUT: &str = "…";

/// A compiled pattern.
#[derive(Debug, Clone)]
pub struct LinePattern {
    matcher: RegexMatcher,
    requirement: Requirement,
}

/// What is wanted of each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The lines, with this many around each, until their text has this many bytes.
    Lines {
        /// Lines shown before and after a match.
        context: usize,
        /// Most bytes of text kept of one file.
        bytes_max: usize,
    },
    /// How many lines match.
    Count,
    /// Whether any line matches.
    Any,
}

/// A line as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundLine {
    /// Its number, from 1.
    pub number: u64,
    /// Its text without the line end, at most [`SHOWN_LINE_BYTES_MAX`] bytes.
    pub text: String,
    /// Where the first match begins; none for a line of context.
    pub column: Option<Column>,
    /// Whether lines were left out between the line before and this one.
    pub gap_before: bool,
}

/// Where a match begins in its line, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// In bytes of the text that was searched.
    pub byte: u64,
    /// In characters.
    pub character: u64,
}

/// What was found in one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFound {
    /// The file.
    pub path: WorkspacePath,
    /// How many lines match, as far as the file was looked at.
    pub matching_lines: u64,
    /// The lines, when they were wanted.
    pub lines: Vec<FoundLine>,
    /// Whether lines are missing because of the limit on their text.
    pub cut: bool,
    /// Whether a shown line is not UTF-8.
    pub not_utf8: bool,
    /// What was learnt from reading.
    pub facts: TextFacts,
    /// Why the file was not read, or not to its end.
    pub failure: Option<Failure>,
}

impl FileFound {
    /// Nothing was found so far.
    fn nothing_in(path: &WorkspacePath) -> Self {
        Self {
            path: path.clone(),
            matching_lines: 0,
            lines: Vec::new(),
            cut: false,
            not_utf8: false,
            facts: TextFacts::default(),
            failure: None,
        }
    }

    /// Nothing is in this binary file up to its first NUL, as is known without looking.
    pub fn nothing_in_binary(path: &WorkspacePath) -> Self {
        let facts = TextFacts { binary_at_byte: Some(0), ..TextFacts::default() };
        Self { facts, ..Self::nothing_in(path) }
    }
}

/// Why a file was not searched to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It went away after it was listed.
    Gone,
    /// It cannot be read, in the system's words.
    Unreadable(String),
    /// A line is longer than [`LINE_BYTES_MAX`].
    LongLine,
}

impl LinePattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`PatternError`], with the place of the fault and what to write instead.
    pub fn new(pattern: &str, case_sensitive: bool) -> Result<Self, PatternError> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(PatternError::TooLong { bytes: pattern.len() });
        }
        explain_syntax(pattern)?;
        let matcher = RegexMatcherBuilder::new()
            .multi_line(true)
            .case_insensitive(!case_sensitive)
            .line_terminator(Some(b'\n'))
            .size_limit(COMPILED_BYTES_MAX)
            .build(pattern)
            .map_err(|error| match error.kind() {
                grep_regex::ErrorKind::NotAllowed(_) => PatternError::LineEnd,
                _ => PatternError::Refused { reason: error.to_string() },
            })?;
        Ok(Self { matcher, requirement: Requirement::of(pattern, case_sensitive) })
    }

    /// What a file must hold for the pattern to match in it.
    pub fn requirement(&self) -> &Requirement {
        &self.requirement
    }
}

/// Searches files one after the other; keeps its buffers between them.
pub struct FileSearcher<'a> {
    files: &'a dyn Files,
    pattern: LinePattern,
    wanted: Wanted,
    at_nul: AtNul,
    stop: Stop,
    searcher: Searcher,
    whole: Vec<u8>,
}

impl<'a> FileSearcher<'a> {
    /// Gets ready; `at_nul` says whether binary files are searched as a whole.
    pub fn new(files: &'a dyn Files, pattern: LinePattern, wanted: Wanted, at_nul: AtNul, stop: Stop) -> Self {
        let context = match wanted {
            Wanted::Lines { context, .. } => context,
            Wanted::Count | Wanted::Any => 0,
        };
        // Byte-order marks, line ends and NULs are the text reader's business.
        let searcher = SearcherBuilder::new()
            .line_number(matches!(wanted, Wanted::Lines { .. }))
            .before_context(context)
            .after_context(context)
            .bom_sniffing(false)
            .heap_limit(Some(LINE_BYTES_MAX))
            .build();
        Self { files, pattern, wanted, at_nul, stop, searcher, whole: Vec::new() }
    }

    /// Searches one file.
    pub fn search(&mut self, path: &WorkspacePath) -> FileFound {
        let mut found = FileFound::nothing_in(path);
        let opened = match self.files.open_listed(path) {
            Ok(file) => Ok(file),
            Err(FileError::NotFound { .. }) => {
                found.failure = Some(Failure::Gone);
                return found;
            }
            Err(error) => Err(error.to_string()),
        };
        let Self { pattern, searcher, whole, at_nul, stop, wanted, .. } = self;
        let mut sink = Collector { matcher: &pattern.matcher, wanted: *wanted, bytes: 0, gap: false, found };
        let ended = opened.and_then(|file| {
            search_file(file, searcher, whole, *at_nul, stop, &mut sink).map_err(|error| error.to_string())
        });
        let mut found = sink.found;
        if let Err(error) = ended {
            // The searcher tells a line that does not fit its buffer by the text of its error alone.
            let long = error.contains("allocation limit");
            found.failure = Some(if long { Failure::LongLine } else { Failure::Unreadable(error) });
        }
        found
    }
}

/// Searches a small file as a whole, any other piece by piece.
fn search_file(
    mut file: Box<dyn OpenFile>,
    searcher: &mut Searcher,
    whole: &mut Vec<u8>,
    at_nul: AtNul,
    stop: &Stop,
    sink: &mut Collector<'_>,
) -> std::io::Result<()> {
    let matcher = sink.matcher;
    if let Some(filled) = read_whole(file.as_mut(), whole)? {
        let mut facts = TextFacts::default();
        if let Some(text) = settle_whole(&mut whole[..filled], at_nul, &mut facts) {
            sink.found.facts = facts;
            return searcher.search_slice(matcher, &whole[text], sink);
        }
        file.rewind()?;
    }
    let mut reader = TextReader::open(file, at_nul, stop.clone())?;
    let ended = searcher.search_reader(matcher, &mut reader, &mut *sink);
    sink.found.facts = reader.facts();
    ended
}

/// Takes what the searcher finds.
struct Collector<'a> {
    matcher: &'a RegexMatcher,
    wanted: Wanted,
    bytes: usize,
    gap: bool,
    found: FileFound,
}

impl Collector<'_> {
    /// Keeps a line, unless the file has had its share; returns whether to go on.
    fn keep(&mut self, number: Option<u64>, bytes: &[u8], matched: bool) -> bool {
        let Wanted::Lines { bytes_max, .. } = self.wanted else { return true };
        if self.bytes >= bytes_max {
            self.found.cut = true;
            return false;
        }
        let line = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let start = if matched { self.matcher.find(line).ok().flatten().map(|found| found.start()) } else { None };
        let column = start.map(|start| Column {
            byte: start as u64 + 1,
            character: lossy(&line[..start]).chars().count() as u64 + 1,
        });
        self.found.not_utf8 |= std::str::from_utf8(line).is_err();
        let text = clamp_to(line, start.unwrap_or(0), SHOWN_LINE_BYTES_MAX);
        self.bytes += text.len() + 1;
        let gap_before = std::mem::take(&mut self.gap);
        self.found.lines.push(FoundLine { number: number.unwrap_or(0), text, column, gap_before });
        true
    }
}

impl Sink for Collector<'_> {
    type Error = std::io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> Result<bool, Self::Error> {
        if !self.keep(found.line_number(), found.bytes(), true) {
            return Ok(false);
        }
        self.found.matching_lines += 1;
        Ok(self.wanted != Wanted::Any)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> Result<bool, Self::Error> {
        Ok(self.keep(context.line_number(), context.bytes(), false))
    }

    fn context_break(&mut self, _: &Searcher) -> Result<bool, Self::Error> {
        self.gap = true;
        Ok(true)
    }

    fn finish(&mut self, _: &Searcher, _: &SinkFinish) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A line as text of at most `bytes_max` bytes (at least 16), with what stands at `start` in it.
pub fn clamp_to(line: &[u8], start: usize, bytes_max: usize) -> String {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // Bytes that are not UTF-8 grow to three.
    if line.len() <= bytes_max
        && let text = lossy(line)
        && text.len() <= bytes_max
    {
        return text.into_owned();
    }
    let room = bytes_max - 2 * CUT.len();
    let before = BEFORE_MATCH_BYTES.min(room / 2);
    let from = if start < room - before { 0 } else { start - before };
    // Begin between characters, if there are any.
    let from = (from..line.len()).take(4).find(|at| line[*at] & 0xc0 != 0x80).unwrap_or(from);
    let part = lossy(&line[from..line.len().min(from + room)]);
    let end = part.floor_char_boundary(room.min(part.len()));
    // A character cut in two at the end is left out.
    let shown = part[..end].trim_end_matches('\u{fffd}');
    format!("{}{shown}{CUT}", if from > 0 { CUT } else { "" })
}

/// Looks for faults in the syntax, so that they can be told with their place.
fn explain_syntax(pattern: &str) -> Result<(), PatternError> {
    let error = match ast::parse::Parser::new().parse(pattern) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let start = error.span().start.offset;
    let column = pattern.get(..start).map_or(0, |before| before.chars().count()) + 1;
    let construct = pattern.get(start..error.span().end.offset).unwrap_or_default().to_owned();
    Err(match error.kind() {
        ast::ErrorKind::UnsupportedLookAround => PatternError::LookAround { construct, column },
        ast::ErrorKind::UnsupportedBackreference => PatternError::BackReference { construct, column },
        kind => PatternError::Syntax {
            column,
            reason: kind.to_string(),
            plain: regex_syntax::escape(pattern).chars().take(80).collect(),
        },
    })
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Longer than [`PATTERN_BYTES_MAX`].
    #[error("invalid pattern: it has {bytes} bytes, and at most {PATTERN_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Malformed.
    #[error("invalid pattern: {reason}, at character {column}; to find the text as it stands, write {plain}")]
    Syntax {
        /// Where, in characters from 1.
        column: usize,
        /// What is wrong.
        reason: String,
        /// The pattern with everything escaped.
        plain: String,
    },
    /// Look-ahead or look-behind.
    #[error(
        "invalid pattern: look-around ({construct} at character {column}) is not supported; search for the text \
         without it, and choose among the lines found (`context` shows the ones around)"
    )]
    LookAround {
        /// As written.
        construct: String,
        /// Where.
        column: usize,
    },
    /// A back-reference.
    #[error(
        "invalid pattern: back-references ({construct} at character {column}) are not supported; write the repeated \
         text out, or as alternatives such as `aa|bb`"
    )]
    BackReference {
        /// As written.
        construct: String,
        /// Where.
        column: usize,
    },
    /// It needs a line end.
    #[error(
        "invalid pattern: lines are searched one by one, so `\\n` cannot match; search for one of the lines and use `context`"
    )]
    LineEnd,
    /// Too large when compiled, or refused otherwise.
    #[error("invalid pattern: {reason}")]
    Refused {
        /// The engine's words.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::{AtNul, Failure, FileFound, FileSearcher, LinePattern, PatternError, SHOWN_LINE_BYTES_MAX, Wanted};
    use crate::search::stop::Stop;
    use crate::search::twin::{TreeTwin, at};

    const LINES: Wanted = Wanted::Lines { context: 0, bytes_max: 1 << 20 };

    fn search(pattern: &str, bytes: &[u8], wanted: Wanted) -> FileFound {
        let twin = TreeTwin::default();
        twin.put("f", bytes);
        let pattern = LinePattern::new(pattern, true).unwrap();
        FileSearcher::new(&twin, pattern, wanted, AtNul::End, Stop::default()).search(&at("f"))
    }

    fn numbers(found: &FileFound) -> Vec<u64> {
        found.lines.iter().map(|line| line.number).collect()
    }

    // Case C061: LF alone ends a line.
    #[test]
    fn odd_separators_are_inside_a_line() {
        let found = search("TARGET", "a\x0cb\u{2028}c\u{85}\x0b\rd\nTARGET\n".as_bytes(), LINES);
        assert_eq!(numbers(&found), [2]);
        assert_eq!(numbers(&search("x$", b"x\rb\nx\n", LINES)), [2]);
    }

    // Case C083: the end of a line is the same on both kinds.
    #[test]
    fn the_end_anchor_matches_on_both_kinds_of_line_end() {
        let found = search("needle$", b"needle\r\nneedle\nneedles\r\n", LINES);
        assert_eq!(numbers(&found), [1, 2]);
        assert!(found.lines.iter().all(|line| line.text == "needle"));
        assert_eq!(numbers(&search("^$", b"a\r\n\r\nb\r\n", LINES)), [2]);
    }

    // Case C080: matches before the NUL are there, and the file is known as binary.
    #[test]
    fn a_nul_hides_nothing_before_it() {
        let found = search("needle", b"needle first\n\0\nneedle second\n", LINES);
        assert_eq!(numbers(&found), [1]);
        assert_eq!(found.facts.binary_at_byte, Some(13));
        let twin = TreeTwin::default();
        twin.put("f", b"needle first\n\0\nneedle second\n");
        let pattern = LinePattern::new("needle", true).unwrap();
        let whole = FileSearcher::new(&twin, pattern, LINES, AtNul::Keep, Stop::default()).search(&at("f"));
        assert_eq!(numbers(&whole), [1, 3]);
    }

    // Case C082: UTF-16 is decoded, and that is said.
    #[test]
    fn utf16_is_found() {
        let found = search("^needle$", b"\xff\xfen\0e\0e\0d\0l\0e\0\r\0\n\0", LINES);
        assert_eq!((numbers(&found), found.facts.decoded), (vec![1], Some("UTF-16LE")));
    }

    #[test]
    fn columns_are_told_in_bytes_and_characters() {
        let found = search("x", "äöx\n".as_bytes(), LINES);
        let column = found.lines[0].column.unwrap();
        assert_eq!((column.byte, column.character), (5, 3));
        assert!(search("b", b"\xffb\n", LINES).not_utf8);
    }

    #[test]
    fn context_comes_with_its_gaps() {
        let text = b"1\nhit\n3\n4\n5\n6\nhit\n8\n";
        let found = search("hit", text, Wanted::Lines { context: 1, bytes_max: 1000 });
        assert_eq!(numbers(&found), [1, 2, 3, 6, 7, 8]);
        assert_eq!(found.lines.iter().filter(|line| line.gap_before).map(|line| line.number).collect::<Vec<_>>(), [6]);
        assert_eq!(found.matching_lines, 2);
        let short = search("hit", text, Wanted::Lines { context: 0, bytes_max: 2 });
        assert_eq!((numbers(&short), short.cut, short.matching_lines), (vec![2], true, 1));
        assert_eq!(search("hit", text, Wanted::Count).matching_lines, 2);
        assert_eq!(search("hit", text, Wanted::Any).matching_lines, 1);
    }

    #[test]
    fn long_lines_are_cut_around_the_match() {
        for (before, after) in [(0, 9000), (9000, 0), (1900, 500), (5000, 5000)] {
            let line = format!("{}needle{}\n", "ä".repeat(before / 2), "b".repeat(after));
            let found = search("needle", line.as_bytes(), LINES);
            let text = &found.lines[0].text;
            assert!(text.len() <= SHOWN_LINE_BYTES_MAX && text.contains("needle") && text.contains('…'), "{text}");
            assert!(!text.contains('\u{fffd}'), "{text}");
        }
        let found = search("needle", &[b"needle".as_slice(), &[0xff; 1900]].concat(), LINES);
        assert!(found.lines[0].text.len() <= SHOWN_LINE_BYTES_MAX);
    }

    // Cases C077 and C078: what is wrong, where, and what to do.
    #[test]
    fn faulty_patterns_are_explained() {
        let error = |pattern| LinePattern::new(pattern, true).unwrap_err();
        assert!(matches!(error("a("), PatternError::Syntax { column: 2, .. }), "{:?}", error("a("));
        assert!(error("a(").to_string().contains("a\\("));
        for (pattern, construct) in [("nee(?=dle)", "(?="), ("(?<!#)foo", "(?<!"), ("(a)\\1", "\\1")] {
            let text = error(pattern).to_string();
            assert!(text.contains(construct) && text.contains("not supported"), "{text}");
        }
        assert_eq!(error("a\\nb"), PatternError::LineEnd);
        assert!(matches!(error("(a{1000}){1000}"), PatternError::Refused { .. }));
        assert!(matches!(error(&"(".repeat(9000)), PatternError::Syntax { .. }));
    }

    // Case C079: a dash at the start is a character.
    #[test]
    fn a_dash_is_data() {
        assert_eq!(numbers(&search("-foo", b"x -foo\n", LINES)), [1]);
        assert_eq!(numbers(&search("--", b"x\n--\n", LINES)), [2]);
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let twin = TreeTwin::default();
        twin.refuse("f");
        let pattern = LinePattern::new("x", true).unwrap();
        let mut searcher = FileSearcher::new(&twin, pattern, LINES, AtNul::End, Stop::default());
        assert!(matches!(searcher.search(&at("f")).failure, Some(Failure::Unreadable(_))));
        assert_eq!(searcher.search(&at("gone")).failure, Some(Failure::Gone));
    }

    // Case R13: no limit on a file's size, only on one line.
    #[test]
    fn large_files_are_searched_and_a_huge_line_is_told() {
        let mut bytes = b"some words that fill a line of text\n".repeat(500_000);
        bytes.extend_from_slice(b"needle\n");
        assert_eq!(numbers(&search("needle", &bytes, LINES)), [500_001]);
        let mut bytes = b"needle\n".to_vec();
        bytes.resize(super::LINE_BYTES_MAX + (1 << 20), b'x');
        let found = search("needle", &bytes, LINES);
        assert_eq!((found.matching_lines, found.failure), (1, Some(Failure::LongLine)));
    }
}
