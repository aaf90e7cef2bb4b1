//! Finds where a text may hold one of the terms of a query, in either case: the first look of a ranking at a file.
//!
//! The beginnings of all terms in all their cases are looked for at once with vectors, which takes a fraction of the time
//! that an automaton needs for the same text; where that cannot be done, the automaton is there. What must stay true: no
//! place at which a term begins is passed over. What is found may still be no word of the query.

use aho_corasick::packed::{Config, MatchKind, Searcher};
use aho_corasick::{AhoCorasick, BuildError, Span};

/// Bytes of a term that are looked for with vectors.
const BEGINNING_BYTES: usize = 3;
/// Most beginnings, counted in all their cases, that vectors are worth it for.
const BEGINNINGS_MAX: usize = 64;

/// Bytes that letters begin with which fold to plain ones: wide forms, and the sign of Kelvin.
const FOLDED: [&[u8]; 3] = [b"\xef\xbc", b"\xef\xbd", "\u{212a}".as_bytes()];

/// Finds terms.
#[derive(Debug)]
pub struct TermFinder {
    terms: Vec<Box<[u8]>>,
    /// None where there are too many beginnings, or a term is shorter than one.
    beginnings: Option<Searcher>,
    automaton: AhoCorasick,
}

impl TermFinder {
    /// For these terms, of which those beyond ASCII are left to the caller.
    ///
    /// # Errors
    /// [`BuildError`] when they are too large together.
    pub fn new(terms: &[String]) -> Result<Self, BuildError> {
        let terms: Vec<Box<[u8]>> =
            terms.iter().filter(|term| term.is_ascii()).map(|term| term.as_bytes().into()).collect();
        let all = terms.iter().map(|term| &**term).chain(FOLDED);
        let automaton = AhoCorasick::builder().ascii_case_insensitive(true).build(all)?;
        let beginnings = cases_of_beginnings(&terms).and_then(|all| {
            Config::new().match_kind(MatchKind::LeftmostFirst).only_teddy(true).builder().extend(all).build()
        });
        Ok(Self { terms, beginnings, automaton })
    }

    /// Whether a short text may hold one.
    pub fn may_be_in(&self, text: &[u8]) -> bool {
        self.automaton.is_match(text)
    }

    /// Looks through a text.
    pub fn over<'a>(&'a self, text: &'a [u8]) -> Places<'a> {
        let is_plain = || text.is_ascii() || !FOLDED.iter().any(|bytes| memchr::memmem::find(text, bytes).is_some());
        let beginnings = self.beginnings.as_ref().filter(|_| is_plain());
        Places { finder: self, beginnings, text }
    }

    fn is_at(&self, text: &[u8], at: usize) -> bool {
        let here = &text[at..];
        self.terms.iter().any(|term| here.get(..term.len()).is_some_and(|here| here.eq_ignore_ascii_case(term)))
    }
}

/// The places of one text where a term, or a letter that folds to a plain one, may be.
pub struct Places<'a> {
    finder: &'a TermFinder,
    beginnings: Option<&'a Searcher>,
    text: &'a [u8],
}

impl Places<'_> {
    /// A place in the first run of letters and digits behind `from` that holds one.
    pub fn next(&self, mut from: usize) -> Option<usize> {
        let Some(beginnings) = self.beginnings else {
            return self.finder.automaton.find(&self.text[from..]).map(|hit| from + hit.start());
        };
        loop {
            let hit = beginnings.find_in(self.text, Span { start: from, end: self.text.len() })?.start();
            if self.finder.is_at(self.text, hit) {
                return Some(hit);
            }
            from = hit + 1;
        }
    }
}

/// The beginnings of terms, with capitals and without; none where they are too many or too short.
fn cases_of_beginnings(terms: &[Box<[u8]>]) -> Option<Vec<[u8; BEGINNING_BYTES]>> {
    let mut all: Vec<[u8; BEGINNING_BYTES]> = Vec::new();
    for term in terms {
        let plain = *term.first_chunk::<BEGINNING_BYTES>()?;
        for capitals in 0..1 << BEGINNING_BYTES {
            let mut cased = plain;
            for (at, byte) in cased.iter_mut().enumerate() {
                if capitals >> at & 1 == 1 {
                    byte.make_ascii_uppercase();
                }
            }
            if !all.contains(&cased) {
                all.push(cased);
            }
        }
        if all.len() > BEGINNINGS_MAX {
            return None;
        }
    }
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::TermFinder;

    /// All runs of letters and digits that a finder names, by where they begin.
    fn runs(finder: &TermFinder, text: &[u8], quick: bool) -> Vec<usize> {
        let mut places = finder.over(text);
        assert!(!quick || places.beginnings.is_some());
        if !quick {
            places.beginnings = None;
        }
        let (mut found, mut from) = (Vec::new(), 0);
        while let Some(at) = places.next(from) {
            let begin =
                text[..at].iter().rposition(|byte| !byte.is_ascii_alphanumeric()).map_or(0, |before| before + 1);
            from = text[at..].iter().position(|byte| !byte.is_ascii_alphanumeric()).map_or(text.len(), |end| at + end);
            from = from.max(at + 1).min(text.len());
            found.push(begin);
        }
        found
    }

    fn finder(terms: &[&str]) -> TermFinder {
        TermFinder::new(&terms.iter().map(|term| (*term).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn vectors_are_used_where_they_can_be() {
        let quick = |terms: &[&str], text: &str| finder(terms).over(text.as_bytes()).beginnings.is_some();
        assert!(quick(&["alpha", "beta", "12x"], "é"));
        assert!(!quick(&["alpha", "8"], "a"), "too short");
        assert!(!quick(&["alpha"], "ａ") && !quick(&["alpha"], "\u{212a}"), "letters that fold");
        let many: Vec<String> =
            (b'a'..=b'z').map(|letter| format!("{}{}{}", letter as char, letter as char, "q")).collect();
        assert!(!quick(&many.iter().map(String::as_str).collect::<Vec<_>>(), "a"), "too many");
        assert!(finder(&["alpha"]).may_be_in(b"x/ALPHA") && !finder(&["alpha"]).may_be_in(b"x/alph"));
    }

    proptest! {
        #[test]
        fn both_ways_name_the_same_runs(
            terms in prop::collection::vec("[abk1]{3,5}", 1..4),
            text in "([abkABK1]{1,6}[ _é\n]){0,12}[abkABK1]{0,6}",
        ) {
            let finder = TermFinder::new(&terms).unwrap();
            let text = text.as_bytes();
            prop_assert_eq!(runs(&finder, text, true), runs(&finder, text, false));
        }
    }
}
