//! How well a line answers a part of a question, in points.
//!
//! Points are whole numbers and ties fall to path and line, so that the same listing always gives the same order.
//! A line is judged with its two neighbours, for sentences in comments run over several lines.

use std::collections::BTreeSet;

use super::focus::{Focus, FocusKind, Matcher, outside_of_strings};
use super::listing::{KnownFile, Listing};
use super::question::{Question, Wants};
use super::term::terms;

/// Most terms of a path that are looked at.
const PATH_TERMS_MAX: usize = 64;

/// All terms of the focus in the line itself.
const COVERAGE_POINTS: usize = 12;
/// All further terms in the lines beside it.
const NEIGHBOUR_POINTS: usize = 6;
/// The focus as a whole, close together and in order.
const WHOLE_POINTS: usize = 12;
/// The line defines it, where a description is wanted, and where not.
const DEFINITION_POINTS: (usize, usize) = (8, 14);
/// The defined name has no further words in it.
const JUST_IT_POINTS: usize = 8;
/// A name exactly as the question wrote it.
const EXACT_POINTS: usize = 4;
/// Each verb of the question, and the most for all.
const ASPECT_POINTS: (usize, usize) = (3, 6);
/// Each term of the question's other parts, and the most for all.
const CONTEXT_POINTS: (usize, usize) = (4, 8);
/// The file is named after the focus.
const PATH_POINTS: usize = 5;
/// A comment or document, where a description is wanted, and where not.
const PROSE_POINTS: (usize, usize) = (8, 2);
/// The comment stands above what defines the focus, or begins with the focus.
const SUBJECT_POINTS: usize = 6;
/// A comment of fewer terms says next to nothing.
const PROSE_TERMS_MIN: usize = 4;
/// How far below a comment its definition may stand, in lines: attributes come between.
const DEFINITION_LINES_MAX: usize = 3;
/// Near the top of a ranked search.
const RANK_POINTS: usize = 4;
/// Given by one more child run, and the most for all.
const AGREEMENT_POINTS: (usize, usize) = (3, 6);
/// Taken off: an import says nothing.
const IMPORT_LOSS: usize = 12;
/// Taken off: a test, when nobody asked for tests.
const TEST_LOSS: usize = 8;
/// Taken off: only a string holds the focus, which is a sample or a message more often than the thing itself.
const STRING_LOSS: usize = 8;
/// Taken off: lock files and generated text.
const GENERATED_LOSS: usize = 20;

/// Judges lines for the parts of one question.
#[derive(Debug)]
pub(super) struct Judge {
    matchers: Vec<(FocusKind, Matcher)>,
    question: Question,
    context: BTreeSet<String>,
}

/// One line that bears on a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hit {
    /// Its file.
    pub(super) path: String,
    /// Its number, from 1.
    pub(super) line: usize,
    /// Its points, at least 1.
    pub(super) score: usize,
    /// Whether the part is found there, and not only some of its words.
    pub(super) whole: bool,
}

impl Judge {
    /// Judges for these parts of this question.
    pub(super) fn new(focuses: &[Focus], question: Question) -> Self {
        let own: BTreeSet<String> = focuses.iter().flat_map(Focus::terms).collect();
        let all = question.focuses.iter().flat_map(Focus::terms);
        let context = all.filter(|term| focuses.len() > 1 || !own.contains(term)).collect();
        let matchers = focuses.iter().map(|focus| (focus.kind, Matcher::new(focus))).collect();
        Self { matchers, question, context }
    }

    /// The lines that bear on a part, best first, at most `count`; lines where it is found whole come before others.
    /// `agreement` says how many child runs gave a line.
    pub(super) fn hits(
        &self,
        listing: &Listing,
        part: usize,
        count: usize,
        agreement: &dyn Fn(&str, usize) -> usize,
    ) -> Vec<Hit> {
        let Some((kind, matcher)) = self.matchers.get(part) else { return Vec::new() };
        let mut hits = Vec::new();
        for (path, file) in listing.files() {
            for number in file.lines.keys() {
                if let Some(mut hit) = self.judge(*kind, matcher, path, file, *number) {
                    hit.score += bonus(agreement(path, *number).saturating_sub(1), AGREEMENT_POINTS);
                    hits.push(hit);
                }
            }
        }
        hits.sort_by(|a, b| {
            (b.whole, b.score).cmp(&(a.whole, a.score)).then_with(|| (&a.path, a.line).cmp(&(&b.path, b.line)))
        });
        hits.truncate(count);
        hits
    }

    /// The line that defines the part: this one, or one near below a comment on it.
    pub(super) fn definition(&self, part: usize, path: &str, file: &KnownFile, number: usize) -> Option<usize> {
        let (_, matcher) = self.matchers.get(part)?;
        let text = file.lines.get(&number)?;
        match is_comment(text) {
            false => is_definition(matcher, path, text).then_some(number),
            true => definition_below(matcher, path, file, number),
        }
    }

    /// The first number where a description is wanted, else the second.
    fn either(&self, (explanation, other): (usize, usize)) -> usize {
        if self.question.wants == Wants::Explanation { explanation } else { other }
    }

    fn judge(&self, kind: FocusKind, matcher: &Matcher, path: &str, file: &KnownFile, number: usize) -> Option<Hit> {
        let text = file.lines.get(&number)?;
        let own = file.terms.get(&number)?;
        let matched = matcher.terms.iter().filter(|term| own.contains(*term)).count();
        if matched == 0 {
            return None;
        }
        let beside = [number.saturating_sub(1), number + 1].map(|line| file.terms.get(&line));
        let is_beside = |term: &String| beside.iter().flatten().any(|terms| terms.contains(term));
        let further = matcher.terms.iter().filter(|term| !own.contains(*term) && is_beside(term)).count();
        let of = matcher.terms.len();
        let holds = matcher.holds(text);
        let whole = holds || is_covered(kind, matched + further, of);

        let mut gain = matched * COVERAGE_POINTS / of + further * NEIGHBOUR_POINTS / of;
        gain += if holds { WHOLE_POINTS } else { 0 };
        let tests = !self.question.about_tests && (is_test(path) || is_assertion(text));
        let defines = is_definition(matcher, path, text);
        gain += if defines { self.either(DEFINITION_POINTS) } else { 0 };
        gain += if defines && !tests && matcher.defines_just_it(text) { JUST_IT_POINTS } else { 0 };
        gain += if matcher.is_exact(text) { EXACT_POINTS } else { 0 };
        gain += bonus(self.question.aspects.iter().filter(|term| own.contains(*term)).count(), ASPECT_POINTS);
        let context = self.context.iter().filter(|term| own.contains(*term) && !matcher.terms.contains(term));
        gain += bonus(context.count(), CONTEXT_POINTS);
        let path_terms = terms(path, PATH_TERMS_MAX);
        gain += if matcher.terms.iter().all(|term| path_terms.contains(term)) { PATH_POINTS } else { 0 };
        gain += RANK_POINTS.saturating_sub(file.rank.unwrap_or(RANK_POINTS));
        let prose = is_comment(text) || is_document(path);
        if prose && own.len() >= PROSE_TERMS_MIN {
            gain += self.either(PROSE_POINTS);
            gain += if is_about(matcher, text, path, file, number) { SUBJECT_POINTS } else { 0 };
        }
        let mut loss = if is_import(text) { IMPORT_LOSS } else { 0 };
        loss += if tests { TEST_LOSS } else { 0 };
        let in_string = holds && !prose && kind != FocusKind::Phrase && !matcher.holds(&outside_of_strings(text));
        loss += if in_string { STRING_LOSS } else { 0 };
        loss += if is_generated(path) { GENERATED_LOSS } else { 0 };
        Some(Hit { path: path.to_owned(), line: number, score: gain.saturating_sub(loss).max(1), whole })
    }
}

/// Whether a comment begins with the focus, or stands right above its definition.
fn is_about(matcher: &Matcher, text: &str, path: &str, file: &KnownFile, number: usize) -> bool {
    let words = text.split_whitespace().map(|word| terms(word, PATH_TERMS_MAX)).filter(|word| !word.is_empty());
    let mut first = words.skip_while(|word| matches!(word[0].as_str(), "a" | "an" | "the"));
    first.next().is_some_and(|word| word.iter().all(|term| matcher.terms.contains(term)))
        || definition_below(matcher, path, file, number).is_some()
}

/// The line near below that defines the focus.
fn definition_below(matcher: &Matcher, path: &str, file: &KnownFile, number: usize) -> Option<usize> {
    let defines = |text: &String| is_definition(matcher, path, text);
    (number + 1..=number + DEFINITION_LINES_MAX).find(|line| file.lines.get(line).is_some_and(defines))
}

/// Whether a line of code defines the focus; `mod x;` only says that it stands elsewhere, and a document quotes.
fn is_definition(matcher: &Matcher, path: &str, text: &str) -> bool {
    !is_document(path) && matcher.defines(text) && !is_comment(text) && !is_import(text)
}

fn bonus(count: usize, (each, most): (usize, usize)) -> usize {
    (count * each).min(most)
}

/// Whether so many of the terms together say that the part is there.
fn is_covered(kind: FocusKind, matched: usize, of: usize) -> bool {
    match kind {
        // Exactly these words: only the pattern can tell.
        FocusKind::Phrase | FocusKind::Identifier => false,
        FocusKind::Words => matched * 3 >= of * 2 && (of > 2 || matched == of),
        // Pairs of characters overlap; half of them is a text with another particle or ending.
        FocusKind::Cjk => matched * 2 >= of,
    }
}

/// Whether a line is a comment in one of the common languages.
pub(super) fn is_comment(text: &str) -> bool {
    let text = text.trim_start();
    let hash = text.starts_with('#')
        && !["#[", "#!", "#inc", "#def", "#if", "#end", "#else", "#pra"].iter().any(|start| text.starts_with(start));
    hash || ["//", "/*", "* ", "*/", "--", "\"\"\"", "<!--", ";;"].iter().any(|start| text.starts_with(start))
}

/// Whether a file is written for people.
pub(super) fn is_document(path: &str) -> bool {
    let lower = path.to_lowercase();
    [".md", ".rst", ".txt", ".adoc", ".org"].iter().any(|ending| lower.ends_with(ending))
}

fn is_import(text: &str) -> bool {
    let text = text.trim_start();
    let text = text.strip_prefix("pub ").unwrap_or(text);
    ["use ", "import ", "from ", "#include", "require(", "extern crate"].iter().any(|start| text.starts_with(start))
        || (text.starts_with("mod ") && text.trim_end().ends_with(';'))
}

fn is_test(path: &str) -> bool {
    path.split(['/', '_', '-', '.']).any(|name| matches!(name, "test" | "tests" | "spec" | "testing" | "fixtures"))
}

/// Whether a line checks something in a test, wherever the test stands.
fn is_assertion(text: &str) -> bool {
    let text = text.trim_start();
    ["assert", "debug_assert", "expect(", "self.assert", "t.Error", "t.Fatal", "prop_assert"]
        .iter()
        .any(|start| text.starts_with(start))
}

fn is_generated(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.ends_with(".lock")
        || name.ends_with(".min.js")
        || name.ends_with(".map")
        || name.ends_with("-lock.json")
        || name.ends_with(".svg")
        || name.ends_with(".jsonl")
}

#[cfg(test)]
mod tests {
    use super::{Judge, is_comment, is_import, is_test};
    use crate::models::research::listing::Listing;
    use crate::models::research::question::Question;

    fn best(question: &str, lines: &[(&str, usize, &str)]) -> Vec<(String, usize, bool)> {
        let mut listing = Listing::default();
        lines.iter().for_each(|(path, number, text)| listing.put(path, *number, text));
        let question = Question::split(question);
        let judge = Judge::new(&question.focuses.clone(), question);
        let hits = judge.hits(&listing, 0, 9, &|_, _| 1);
        hits.into_iter().map(|hit| (hit.path, hit.line, hit.whole)).collect()
    }

    #[test]
    fn a_name_s_definition_comes_before_its_uses() {
        let lines = [
            ("a.rs", 1, "use crate::x::RestartIntensity;"),
            ("a.rs", 9, "let limit = RestartIntensity::new(3);"),
            ("z.rs", 5, "pub struct RestartIntensity {"),
            ("tests/a.rs", 5, "pub struct RestartIntensity {"),
            ("README.md", 5, "pub struct RestartIntensity {"),
        ];
        let order: Vec<_> = best("where is `RestartIntensity`?", &lines).into_iter().map(|hit| hit.0).collect();
        assert_eq!(order[0], "z.rs");
        assert_eq!(order[1], "tests/a.rs", "a document only quotes");
    }

    #[test]
    fn a_use_comes_before_samples_and_checks() {
        let lines = [
            ("a.rs", 5, "    assert!(judge.defines(RestartIntensity::new()));"),
            ("a.rs", 7, "    (\"a.rs\", 9, \"pub struct RestartIntensity {\"),"),
            ("z.rs", 5, "    let limit = RestartIntensity::new(3);"),
        ];
        assert_eq!(best("where is `RestartIntensity`?", &lines)[0].0, "z.rs");
    }

    #[test]
    fn a_description_comes_first_where_one_is_wanted() {
        let lines = [
            ("a.rs", 9, "let bulkhead = bulkhead.clone();"),
            ("a.rs", 1, "//! A bulkhead keeps one kind of work from starving another."),
        ];
        assert_eq!(best("what is a bulkhead?", &lines)[0].1, 1);
    }

    #[test]
    fn a_part_is_whole_only_where_its_words_meet() {
        let apart = [("a.rs", 1, "restart it"), ("a.rs", 9, "the intensity")];
        assert!(best("restart intensity", &apart).iter().all(|hit| !hit.2));
        let wrapped = [("a.rs", 1, "// how often a restart"), ("a.rs", 2, "// of this intensity may happen")];
        assert!(best("restart intensity", &wrapped).iter().all(|hit| hit.2));
        assert!(best("缓存服务配置", &[("a.md", 3, "配置由缓存服务读取")])[0].2);
        assert!(best("nothing here", &apart).is_empty());
    }

    #[test]
    fn kinds_of_lines_are_told_apart() {
        assert!(is_comment("  /// x") && is_comment("# x") && !is_comment("#[test]") && !is_comment("a // b"));
        assert!(is_import("pub use a::b;") && is_import("mod x;") && !is_import("mod x {") && !is_import("user = 1"));
        assert!(is_test("src/tests/a.rs") && is_test("a_test.go") && !is_test("src/latest.rs"));
    }
}
