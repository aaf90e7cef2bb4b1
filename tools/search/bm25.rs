//! Ranks passages of files by the words of a query, in one pass, with or without an index.
//!
//! A query is known before anything is read, so only the lines that hold one of its words are taken apart, and each
//! file leaves nothing behind but counts. Words of a file that were kept give the same counts without reading it. A word counts more where it names a definition or stands in the path; test
//! files weigh less. Which files are scored is decided by the words in them, never by their place in the alphabet.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::search::definition::{defined_name, is_prose};
use crate::search::requirement::Requirement;
use crate::search::term_finder::TermFinder;
use crate::search::terms::{Form, split, split_run};
use crate::search::text::Extent;
use crate::search::words::{FileWords, PASSAGE_LINES, PASSAGES_PER_FILE_MAX};
use crate::text::lossy;

/// Longest query that is taken, in bytes.
pub const QUERY_BYTES_MAX: usize = 2048;
/// Most terms of a query that are used.
pub const QUERY_TERMS_MAX: usize = 32;
/// How soon repeating a word stops to count.
pub const K1: f64 = 1.2;
/// How much longer passages are held back.
pub const B: f64 = 0.6;
/// How much more a word counts in the name of a definition or a heading.
pub const SYMBOL_WEIGHT: f64 = 5.0;
/// How much more a word counts in the path.
pub const PATH_WEIGHT: f64 = 5.0;
/// What the score of a test file is multiplied with, unless tests are asked for.
pub const TEST_FACTOR: f64 = 0.5;
/// How much of a passage's score comes from its file as a whole.
const FILE_SHARE: f64 = 0.4;

/// Words that say how a question is put, not what it is about.
const STOP_WORDS: [&str; 48] = [
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "has", "have", "how", "i",
    "if", "in", "into", "is", "it", "its", "me", "my", "not", "of", "on", "one", "or", "show", "so", "that", "the",
    "their", "there", "this", "to", "us", "used", "we", "what", "when", "where", "which", "who", "why", "with",
];
/// The letters that fold to plain ones, as a pattern.
const FOLDED_LETTERS: &str = "(?-i:[\u{ff10}-\u{ff19}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{212a}])";

/// A query, taken apart.
#[derive(Debug)]
pub struct Query {
    /// Its terms, sorted.
    terms: Vec<String>,
    /// How many terms were left out.
    pub terms_left_out: usize,
    finder: TermFinder,
    has_dense: bool,
    wants_tests: bool,
}

/// What one file says to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct FileEvidence {
    /// The passages that hold a word of the query.
    pub passages: Vec<PassageEvidence>,
    /// How many passages there are in all.
    pub passage_total: usize,
    /// Bytes of text.
    pub bytes: u64,
    /// Whether the file goes on behind its last passage.
    pub cut: bool,
    path_counts: Vec<f64>,
    is_test: bool,
}

/// What one passage says to a query.
#[derive(Debug, Clone, PartialEq)]
pub struct PassageEvidence {
    /// Which passage of the file it is, from 0.
    pub index: usize,
    bytes: u64,
    counts: Vec<f64>,
}

/// A passage with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Which of the files.
    pub file: usize,
    /// Which passage of it, from 0.
    pub passage: usize,
    /// Higher is better; comparable within one search only.
    pub score: f64,
}

/// Counts over everything that was looked at, which say how rare a word is.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    /// Passages.
    pub passages: u64,
    /// Bytes of text.
    pub bytes: u64,
    /// Passages that hold each term.
    holding: Vec<u64>,
}

impl Totals {
    /// Adds a file.
    pub fn add(&mut self, passages: usize, bytes: u64, evidence: Option<&FileEvidence>) {
        self.passages += passages as u64;
        self.bytes += bytes;
        for passage in evidence.into_iter().flat_map(|evidence| &evidence.passages) {
            self.holding.resize(passage.counts.len(), 0);
            for (held, count) in self.holding.iter_mut().zip(&passage.counts) {
                *held += u64::from(*count > 0.0);
            }
        }
    }

    /// How much each of `terms` terms counts: the rarer, the more.
    pub fn rarity(&self, terms: usize) -> Vec<f64> {
        let all = self.passages as f64;
        let held = |at: usize| self.holding.get(at).copied().unwrap_or(0) as f64;
        (0..terms).map(|at| (1.0 + (all - held(at) + 0.5).max(0.5) / (held(at) + 0.5)).ln()).collect()
    }
}

/// Why a query cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// Longer than [`QUERY_BYTES_MAX`].
    #[error("the query has {bytes} bytes; at most {QUERY_BYTES_MAX} are taken: give the few words that matter")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// It holds no word.
    #[error("the query holds no letter or digit to rank by; to find punctuation, use mode grep")]
    NoTerms,
    /// It could not be compiled.
    #[error("the query cannot be searched for: {0}")]
    Refused(String),
}

impl Query {
    /// Takes a query apart.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn new(text: &str) -> Result<Self, QueryError> {
        if text.len() > QUERY_BYTES_MAX {
            return Err(QueryError::TooLong { bytes: text.len() });
        }
        let mut all: Vec<String> = Vec::new();
        split(text, Form::Query, &mut |term| {
            if !all.iter().any(|known| known == term) {
                all.push(term.to_owned());
            }
        });
        let mut stops: BTreeSet<String> = BTreeSet::new();
        for word in STOP_WORDS {
            split(word, Form::Query, &mut |term| {
                stops.insert(term.to_owned());
            });
        }
        let mut terms: Vec<String> = all.iter().filter(|term| !stops.contains(*term)).cloned().collect();
        if terms.is_empty() {
            terms = all;
        }
        if terms.is_empty() {
            return Err(QueryError::NoTerms);
        }
        let terms_left_out = terms.len().saturating_sub(QUERY_TERMS_MAX);
        terms.truncate(QUERY_TERMS_MAX);
        terms.sort_unstable();
        let has_dense = terms.iter().any(|term| !term.is_ascii());
        let finder = TermFinder::new(&terms).map_err(|error| QueryError::Refused(error.to_string()))?;
        let wants_tests = terms.iter().any(|term| matches!(term.as_str(), "test" | "spec"));
        Ok(Self { terms, terms_left_out, finder, has_dense, wants_tests })
    }

    /// Its terms, sorted.
    pub fn terms(&self) -> &[String] {
        &self.terms
    }

    /// What a text must hold to have one of its terms in it.
    pub fn requirement(&self) -> Requirement {
        if self.has_dense {
            // Letters beyond the plain ones have forms that a text may hold instead.
            return Requirement::Nothing;
        }
        let literals = self.terms.iter().map(|term| regex_syntax::escape(term));
        let all: Vec<String> = literals.chain([FOLDED_LETTERS.to_owned()]).collect();
        Requirement::of(&all.join("|"), false)
    }

    /// Whether a path may hold one of its terms, by a quick look.
    pub fn may_be_in_path(&self, path: &[u8]) -> bool {
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+@".contains(byte);
        // Other names are printed in another form than they are stored.
        !path.iter().all(plain) || self.finder.may_be_in(path)
    }

    fn count_into(&self, text: &str, weight: f64, counts: &mut [f64]) -> bool {
        let mut any = false;
        split(text, Form::Text, &mut |term| any |= self.count_term(term, weight, counts));
        any
    }

    fn count_term(&self, term: &str, weight: f64, counts: &mut [f64]) -> bool {
        let found = self.terms.binary_search_by(|known| known.as_str().cmp(term));
        if let Ok(at) = found {
            counts[at] += weight;
        }
        found.is_ok()
    }

    /// Reads what a file says; none when neither its text nor its path holds a word of the query. Also returns the
    /// number of passages, which counts for what is rare.
    pub fn examine(&self, path: &str, text: &[u8]) -> (usize, Option<FileEvidence>) {
        let mut passages = Passages { query: self, prose: is_prose(path), found: Vec::new() };
        passages.read(text);
        self.evidence(path, Extent::of(0, text), passages.found)
    }

    /// As [`Self::examine`], of a file whose words are kept.
    pub fn examine_words(&self, path: &str, words: &FileWords) -> (usize, Option<FileEvidence>) {
        let mut found: Vec<PassageEvidence> = Vec::new();
        for (at, term) in self.terms.iter().enumerate() {
            for occurrence in words.occurrences(term) {
                let place = found.binary_search_by_key(&occurrence.passage, |passage| passage.index);
                let place = place.unwrap_or_else(|place| {
                    let counts = vec![0.0; self.terms.len()];
                    found.insert(place, PassageEvidence { index: occurrence.passage, bytes: 0, counts });
                    place
                });
                found[place].counts[at] +=
                    f64::from(occurrence.count) + (SYMBOL_WEIGHT - 1.0) * f64::from(occurrence.defining);
            }
        }
        self.evidence(path, words.extent(), found)
    }

    /// As [`Self::examine`], of a file that is known to hold no word of the query in its text.
    pub fn examine_without(&self, path: &str, extent: Extent) -> (usize, Option<FileEvidence>) {
        self.evidence(path, extent, Vec::new())
    }

    fn evidence(
        &self,
        path: &str,
        extent: Extent,
        mut passages: Vec<PassageEvidence>,
    ) -> (usize, Option<FileEvidence>) {
        let lines_total = extent.lines as usize;
        let passage_total = passages_of(extent);
        let mut path_counts = vec![0.0; self.terms.len()];
        let in_path = self.count_into(path, 1.0, &mut path_counts);
        if passages.is_empty() && !in_path {
            return (passage_total, None);
        }
        if passages.is_empty() {
            passages.push(PassageEvidence { index: 0, bytes: 0, counts: vec![0.0; self.terms.len()] });
        }
        // Every passage of a file counts as equally long: exact lengths would cost another pass and tell little.
        let bytes = u64::from(extent.text_bytes);
        let each = bytes / (lines_total.div_ceil(PASSAGE_LINES).max(1) as u64);
        passages.iter_mut().for_each(|passage| passage.bytes = each);
        let cut = lines_total > PASSAGE_LINES * PASSAGES_PER_FILE_MAX;
        let is_test = !self.wants_tests && is_test_path(path);
        (passage_total, Some(FileEvidence { passages, passage_total, bytes, cut, path_counts, is_test }))
    }

    /// Which terms a file holds, as the sum of their rarity: a first guess at what is worth scoring.
    pub fn promise(&self, file: &FileEvidence, rarity: &[f64]) -> f64 {
        let holds =
            |at: usize| file.path_counts[at] > 0.0 || file.passages.iter().any(|passage| passage.counts[at] > 0.0);
        (0..self.terms.len()).filter(|at| holds(*at)).map(|at| rarity[at]).sum()
    }

    /// Scores the passages of `files`; unsorted.
    pub fn score(&self, files: &[&FileEvidence], rarity: &[f64], totals: &Totals) -> Vec<Scored> {
        let usual_bytes = (totals.bytes as f64 / (totals.passages as f64).max(1.0)).max(1.0);
        let mut scored = Vec::new();
        for (file, evidence) in files.iter().enumerate() {
            let factor = if evidence.is_test { TEST_FACTOR } else { 1.0 };
            let whole: Vec<f64> =
                (0..self.terms.len()).map(|at| evidence.passages.iter().map(|p| p.counts[at]).sum()).collect();
            let of_file = self.sum(&whole, &evidence.path_counts, evidence.bytes as f64 / usual_bytes, rarity);
            for passage in &evidence.passages {
                let length = passage.bytes as f64 / usual_bytes;
                let of_passage = self.sum(&passage.counts, &evidence.path_counts, length, rarity);
                let score = factor * ((1.0 - FILE_SHARE) * of_passage + FILE_SHARE * of_file);
                scored.push(Scored { file, passage: passage.index, score });
            }
        }
        scored
    }

    /// The sum over all terms, and a bonus for holding many different ones.
    fn sum(&self, counts: &[f64], path: &[f64], length: f64, rarity: &[f64]) -> f64 {
        // A file is longer than a passage by as much as it likes: its length counts by its root.
        let held_back = K1 * (1.0 - B + B * length.max(0.1).sqrt());
        let (mut sum, mut held, mut most) = (0.0, 0.0, 0.0);
        for at in 0..self.terms.len() {
            let count = counts[at] + PATH_WEIGHT * path[at].min(1.0);
            most += rarity[at];
            if count > 0.0 {
                held += rarity[at];
                sum += rarity[at] * count * (K1 + 1.0) / (count + held_back);
            }
        }
        sum * (0.4 + 0.6 * held / f64::max(most, f64::MIN_POSITIVE))
    }

    /// How much a line says: the rarity of its terms, more where they name a definition.
    pub fn line_weight(&self, line: &str, path: &str, rarity: &[f64]) -> f64 {
        let mut counts = vec![0.0; self.terms.len()];
        if self.count_into(line, 1.0, &mut counts)
            && let Some(name) = defined_name(line, is_prose(path))
        {
            self.count_into(name, SYMBOL_WEIGHT - 1.0, &mut counts);
        }
        counts.iter().zip(rarity).map(|(count, rare)| count.min(SYMBOL_WEIGHT) * rare).sum()
    }
}

/// The passages of one file while it is read.
struct Passages<'a> {
    query: &'a Query,
    prose: bool,
    found: Vec<PassageEvidence>,
}

impl Passages<'_> {
    /// Looks at the words that can hold a term, and at nothing else.
    fn read(&mut self, text: &[u8]) {
        let by_lines = self.query.has_dense && !text.is_ascii();
        let places = self.query.finder.over(text);
        let (mut number, mut counted_to, mut from) = (0, 0, 0);
        // Where the line ends whose definition was looked at.
        let mut defined_to = 0;
        let mut counts = vec![0.0; self.query.terms.len()];
        while from < text.len() {
            let hit = match by_lines {
                true => from,
                false => match places.next(from) {
                    Some(hit) => hit,
                    None => return,
                },
            };
            let (start, end) = run_around(text, hit);
            number += memchr::memchr_iter(b'\n', &text[counted_to..hit]).count();
            counted_to = hit;
            let wide = |at: Option<usize>| at.and_then(|at| text.get(at)).is_some_and(|byte| !byte.is_ascii());
            counts.fill(0.0);
            // Words of other letters are cut by the slower rule, for the rest of the line.
            let any = if by_lines || start == end || wide(start.checked_sub(1)) || wide(Some(end)) {
                let line_start = memchr::memrchr(b'\n', &text[..hit]).map_or(0, |at| at + 1).max(from);
                let line_end = memchr::memchr(b'\n', &text[hit..]).map_or(text.len(), |at| hit + at);
                from = line_end + 1;
                self.query.count_into(&lossy(&text[line_start..line_end]), 1.0, &mut counts)
            } else {
                let mut any = false;
                split_run(&text[start..end], &mut |term| any |= self.query.count_term(term, 1.0, &mut counts));
                from = end;
                any
            };
            if !any {
                continue;
            }
            let mut line = Cow::Borrowed("");
            if hit >= defined_to {
                let line_start = memchr::memrchr(b'\n', &text[..hit]).map_or(0, |at| at + 1);
                let line_end = memchr::memchr(b'\n', &text[hit..]).map_or(text.len(), |at| hit + at);
                line = lossy(&text[line_start..line_end]);
                defined_to = line_end;
            }
            self.take(number, &line, &mut counts);
        }
    }

    /// Adds what a line or a word of it counts, and what its definition counts more.
    fn take(&mut self, number: usize, line: &str, counts: &mut [f64]) {
        let index = number / PASSAGE_LINES;
        if index >= PASSAGES_PER_FILE_MAX {
            return;
        }
        if let Some(name) = defined_name(line, self.prose) {
            self.query.count_into(name, SYMBOL_WEIGHT - 1.0, counts);
        }
        match self.found.last_mut() {
            Some(last) if last.index == index => {
                last.counts.iter_mut().zip(&*counts).for_each(|(sum, count)| *sum += count);
            }
            _ => self.found.push(PassageEvidence { index, bytes: 0, counts: counts.to_vec() }),
        }
    }
}

/// How many passages a text has.
pub fn passages_of(extent: Extent) -> usize {
    (extent.lines as usize).div_ceil(PASSAGE_LINES).min(PASSAGES_PER_FILE_MAX)
}

/// The letters and digits around a place.
fn run_around(text: &[u8], at: usize) -> (usize, usize) {
    let start = text[..at].iter().rposition(|byte| !byte.is_ascii_alphanumeric()).map_or(0, |before| before + 1);
    let end = text[at..].iter().position(|byte| !byte.is_ascii_alphanumeric()).map_or(text.len(), |end| at + end);
    (start, end)
}

/// Whether a path is that of a test by the usual names.
fn is_test_path(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let stem = name.split('.').next().unwrap_or(name);
    path.split('/').any(|part| matches!(part, "test" | "tests" | "__tests__" | "spec" | "specs" | "testdata"))
        || matches!(stem, "test" | "tests" | "testing")
        || stem.starts_with("test_")
        || ["_test", "_tests", "_spec", "Test", "Tests"].iter().any(|end| stem.ends_with(end))
        || name.contains(".test.")
        || name.contains(".spec.")
}

#[cfg(test)]
mod tests {
    use super::{FileEvidence, Query, QueryError, Totals, defined_name, is_test_path};
    use crate::search::text::Extent;
    use crate::search::words::FileWords;

    /// The files of `corpus` in the order of their best passage.
    fn ranked(query: &str, corpus: &[(&str, &str)]) -> Vec<String> {
        let query = Query::new(query).unwrap();
        let mut totals = Totals::default();
        let mut found: Vec<(&str, FileEvidence)> = Vec::new();
        for (path, text) in corpus {
            let (passages, evidence) = query.examine(path, text.as_bytes());
            totals.add(passages, text.len() as u64, evidence.as_ref());
            found.extend(evidence.map(|evidence| (*path, evidence)));
        }
        let rarity = totals.rarity(query.terms().len());
        let files: Vec<&FileEvidence> = found.iter().map(|(_, evidence)| evidence).collect();
        let mut scored = query.score(&files, &rarity, &totals);
        scored.sort_by(|one, other| other.score.total_cmp(&one.score));
        let mut paths: Vec<String> = Vec::new();
        for passage in scored {
            let path = found[passage.file].0.to_owned();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        paths
    }

    #[test]
    fn definitions_paths_and_tests_count_as_said() {
        let corpus = [
            ("src/a.rs", "let x = retry_budget();\nretry_budget();\nretry_budget();\n"),
            ("src/b.rs", "pub(crate) fn retry_budget() -> u32 {\n    7\n}\n"),
            ("tests/b.rs", "fn retry_budget() {}\nfn retry_budget_twice() {}\n"),
            ("src/other.rs", "fn something_else() {}\n"),
        ];
        assert_eq!(ranked("retry budget", &corpus)[0], "src/b.rs");
        assert_eq!(ranked("test of retry budget", &corpus)[0], "tests/b.rs");
        let corpus = [("src/cache.rs", "fn put() {}\n"), ("src/x.rs", "// the cache\n"), ("src/y.rs", "// none\n")];
        assert_eq!(ranked("where is the cache", &corpus)[0], "src/cache.rs");
    }

    // Case C085: index and query use the same rule.
    #[test]
    fn dense_scripts_are_found() {
        let corpus = [("a.md", "缓存服务读取Redis配置\n"), ("b.md", "テストの書き方\n"), ("c.md", "plain\n")];
        assert_eq!(ranked("缓存", &corpus), ["a.md"]);
        assert_eq!(ranked("redis", &corpus), ["a.md"]);
        assert_eq!(ranked("存", &corpus), ["a.md"]);
        assert_eq!(ranked("ﾃｽﾄ", &corpus), ["b.md"]);
        let narrow = [("n.md", "ﾃｽﾄ ＲＥＤＩＳ\n"), ("c.md", "plain\n")];
        assert_eq!(ranked("テスト", &narrow), ["n.md"]);
        assert_eq!(ranked("redis", &narrow), ["n.md"]);
    }

    #[test]
    fn looking_at_words_counts_what_whole_lines_count() {
        use proptest::prelude::*;
        let word = prop_oneof![
            Just("cache"),
            Just("getCache"),
            Just("Cache2"),
            Just("café"),
            Just("ï"),
            Just("fn "),
            Just(" "),
            Just("_"),
            Just("\n"),
            Just("缓存"),
            Just("ＣＡＣＨＥ"),
            Just("caches"),
            Just("x"),
            Just("struct "),
            Just("// "),
            Just("é"),
            Just("cac\u{212a}e"),
            Just("\u{212a}ache"),
        ];
        proptest!(|(words in prop::collection::vec(word, 0..30), dense in any::<bool>())| {
            let text = words.concat();
            let query = Query::new(if dense { "cache 缓存 get kache" } else { "cache get kache" }).unwrap();
            let mut counts = vec![0.0; query.terms().len()];
            for line in text.split('\n') {
                let mut here = vec![0.0; counts.len()];
                if query.count_into(line, 1.0, &mut here) {
                    if let Some(name) = defined_name(line, false) {
                        query.count_into(name, super::SYMBOL_WEIGHT - 1.0, &mut here);
                    }
                    counts.iter_mut().zip(&here).for_each(|(sum, count)| *sum += count);
                }
            }
            let (_, evidence) = query.examine("a.rs", text.as_bytes());
            let found = evidence.map_or(vec![0.0; counts.len()], |evidence| evidence.passages[0].counts.clone());
            prop_assert_eq!(&found, &counts);
            // What is kept of a file counts the same, in passages too.
            for text in [text.clone(), text.replace(' ', &"\n".repeat(50))] {
                let words = FileWords::of("a.rs", text.as_bytes(), Extent::of(0, text.as_bytes()));
                prop_assert_eq!(query.examine_words("a.rs", &words), query.examine("a.rs", text.as_bytes()));
            }
        });
    }

    // Whatever holds a word of the query is let through by what the query requires.
    #[test]
    fn a_text_with_a_word_fulfils_what_the_query_requires() {
        use proptest::prelude::*;

        use crate::search::gram::grams_of;
        proptest!(|(text in "([a-cK ]|Cache|cache|getK|ＣＡ|\u{212a}|é|缓存|_|2|\n){0,12}", asked in "[a-cK]{1,4}( cache| 2| ＣＡＣ| 缓存)?")| {
            let Ok(query) = Query::new(&asked) else { return Ok(()) };
            let grams = grams_of(text.as_bytes());
            let (_, evidence) = query.examine("-", text.as_bytes());
            prop_assert!(evidence.is_none() || query.requirement().is_fulfilled(&grams), "{asked:?} {text:?}");
            prop_assert!(query.examine(&text, b"").1.is_none() || query.may_be_in_path(text.as_bytes()));
        });
    }

    #[test]
    fn queries_without_words_are_refused() {
        assert_eq!(Query::new("?! --").unwrap_err(), QueryError::NoTerms);
        assert!(matches!(Query::new(&"x".repeat(3000)), Err(QueryError::TooLong { bytes: 3000 })));
        let many: String =
            (0..50).map(|n| format!("word{} ", char::from(b'a' + n % 26).to_string().repeat(2))).collect();
        let query = Query::new(&many).unwrap();
        assert!(query.terms().len() <= 32);
        // Words of the question alone still are words.
        assert_eq!(Query::new("where is it").unwrap().terms().len(), 3);
    }

    #[test]
    fn tests_are_told_from_others() {
        for yes in ["tests/a.rs", "a_test.go", "test_a.py", "a.spec.ts", "src/FooTest.java"] {
            assert!(is_test_path(yes), "{yes}");
        }
        for no in ["src/latest.rs", "contest/a.rs", "src/attest.py"] {
            assert!(!is_test_path(no), "{no}");
        }
    }

    #[test]
    fn long_files_are_cut_into_passages_and_say_so() {
        let text = "x\n".repeat(80) + "needle\n" + &"x\n".repeat(80 * 130) + "needle\n";
        let (total, evidence) = Query::new("needle").unwrap().examine("a", text.as_bytes());
        let evidence = evidence.unwrap();
        assert_eq!((total, evidence.cut), (128, true));
        assert_eq!(evidence.passages.iter().map(|passage| passage.index).collect::<Vec<_>>(), [1]);
    }
}
