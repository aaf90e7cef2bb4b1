//! What a question asks: its parts, each to be looked for alone.
//!
//! Quoted texts, names from code and groups of ordinary words each become a [`Focus`]; words that only ask or join
//! fall away, and verbs of asking (`decided`, `handled`) stay aside as help for ranking. The question is data of
//! any size and kind: only its first [`QUESTION_BYTES_MAX`] bytes are looked at, and it never fails, it may only
//! hold nothing to look for.

use super::cjk::run_words;
use super::focus::{FOCUS_BYTES_MAX, Focus, FocusKind};
use super::term::{Script, stem};
use super::vocabulary::{ASPECTS, GENERIC, HARD_STOPS, SOFT_STOPS, holds};

/// How much of a question is looked at, in bytes.
pub(super) const QUESTION_BYTES_MAX: usize = 16 * 1024;
/// Most parts of a question.
pub(super) const FOCUSES_MAX: usize = 12;
/// Most words of a group.
const GROUP_WORDS_MAX: usize = 4;
/// Most words of a question that are looked at.
const WORDS_MAX: usize = 600;
/// Longest ordinary word, in bytes; longer ones are no words.
const WORD_BYTES_MAX: usize = 48;
/// Most verbs of asking that are kept.
const ASPECTS_MAX: usize = 6;

/// What kind of answer a question wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// A place: definitions first.
    Place,
    /// A reason or a description: comments and documents first.
    Explanation,
    /// Not said.
    Anything,
}

/// A question, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// What to look for, in the question's order; at most [`FOCUSES_MAX`].
    pub(super) focuses: Vec<Focus>,
    /// Terms that help ranking.
    pub(super) aspects: Vec<String>,
    /// What kind of answer is wanted.
    pub(super) wants: Wants,
    /// Whether it asks about tests.
    pub(super) about_tests: bool,
}

/// A piece of the question's text.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Quoted { text: String, code: bool },
    Word(String),
    Cjk(String),
    Break,
}

impl Question {
    /// Takes a question apart.
    pub(super) fn split(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(QUESTION_BYTES_MAX)];
        let mut sorter = Sorter::default();
        for piece in pieces(text) {
            sorter.take(piece);
        }
        let mut question = sorter.finish();
        let lower = text.to_lowercase();
        question.wants = wants(&lower);
        question.about_tests = lower.contains("test") || lower.contains("测试") || lower.contains("テスト");
        question
    }
}

/// Sorts pieces into parts.
#[derive(Debug, Default)]
struct Sorter {
    focuses: Vec<Focus>,
    group: Vec<String>,
    aspects: Vec<String>,
    aspect_words: Vec<String>,
}

impl Sorter {
    fn take(&mut self, piece: Piece) {
        match piece {
            Piece::Break => self.end_group(),
            Piece::Quoted { text, code } => {
                self.end_group();
                let kind = if code || is_identifier(&text) { FocusKind::Identifier } else { FocusKind::Phrase };
                self.push(Focus::new(kind, &text));
            }
            Piece::Cjk(run) => {
                self.end_group();
                let words = run_words(&run);
                for word in words.contents {
                    self.push(Focus::new(FocusKind::Cjk, &word));
                }
                self.aspects.extend(words.aspects);
            }
            Piece::Word(word) if is_identifier(&word) => {
                self.end_group();
                self.push(Focus::new(FocusKind::Identifier, word.trim_end_matches("()").trim_start_matches('-')));
            }
            Piece::Word(word) => self.take_word(&word),
        }
    }

    fn take_word(&mut self, word: &str) {
        let lower = word.to_lowercase();
        let stemmed = stem(&lower);
        if holds(SOFT_STOPS, &lower) {
            return;
        }
        if holds(HARD_STOPS, &lower) || lower.len() > WORD_BYTES_MAX || lower.contains('\'') {
            self.end_group();
        } else if is_aspect(&stemmed) {
            self.end_group();
            self.aspects.push(stemmed);
            self.aspect_words.push(lower);
        } else {
            self.group.push(word.to_owned());
            if self.group.len() == GROUP_WORDS_MAX {
                self.end_group();
            }
        }
    }

    fn end_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        let says_something = group.iter().any(|word| !holds(GENERIC, &word.to_lowercase()));
        if says_something {
            self.push(Focus::new(FocusKind::Words, &group.join(" ")));
        }
    }

    /// Adds a part unless an earlier one says the same or more.
    fn push(&mut self, focus: Focus) {
        let terms = focus.terms();
        if terms.is_empty() || self.focuses.len() >= FOCUSES_MAX {
            return;
        }
        let covers = |wide: &[String], narrow: &[String]| narrow.iter().all(|term| wide.contains(term));
        if self.focuses.iter().any(|held| covers(&held.terms(), &terms)) {
            return;
        }
        // Only plain words give way: what was quoted or named exactly is looked for exactly.
        self.focuses.retain(|held| held.kind != FocusKind::Words || !covers(&terms, &held.terms()));
        self.focuses.push(focus);
    }

    fn finish(mut self) -> Question {
        self.end_group();
        if self.focuses.is_empty() && !self.aspect_words.is_empty() {
            let words = std::mem::take(&mut self.aspect_words);
            self.push(Focus::new(FocusKind::Words, &words[..words.len().min(GROUP_WORDS_MAX)].join(" ")));
        }
        let mut aspects = self.aspects;
        aspects.sort();
        aspects.dedup();
        aspects.truncate(ASPECTS_MAX);
        Question { focuses: self.focuses, aspects, wants: Wants::Anything, about_tests: false }
    }
}

fn is_aspect(stemmed: &str) -> bool {
    ASPECTS.split_ascii_whitespace().any(|aspect| stem(aspect) == stemmed)
}

fn wants(lower: &str) -> Wants {
    let asks =
        |words: &[&str]| words.iter().any(|word| lower.split(|c: char| !c.is_alphanumeric()).any(|w| w == *word));
    let names = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    if asks(&["why", "how", "explain", "describe", "what"])
        || names(&[
            "什么",
            "什麼",
            "怎么",
            "怎麼",
            "怎样",
            "如何",
            "为何",
            "なぜ",
            "どう",
            "何",
            "왜",
            "어떻게",
            "무엇",
        ])
    {
        Wants::Explanation
    } else if asks(&["where", "which"]) || names(&["哪里", "哪裡", "哪儿", "哪个", "どこ", "어디"]) {
        Wants::Place
    } else {
        Wants::Anything
    }
}

/// Cuts a text into quoted parts, words, runs without blanks, and the punctuation that ends a group.
fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut word = String::new();
    let mut rest = text;
    let mut previous = ' ';
    while let Some(character) = rest.chars().next() {
        if pieces.len() >= WORDS_MAX {
            break;
        }
        let mut taken = character.len_utf8();
        if let Some((inner, length)) = quoted(rest, previous) {
            flush(&mut word, &mut pieces);
            pieces.push(Piece::Quoted { text: inner.to_owned(), code: character == '`' && !inner.contains(' ') });
            taken = length;
        } else if Script::of(character).is_cjk() {
            flush(&mut word, &mut pieces);
            let run: String = rest.chars().take_while(|next| Script::of(*next).is_cjk()).collect();
            taken = run.len();
            pieces.push(Piece::Cjk(run));
        } else if character.is_whitespace() || character.is_control() {
            flush(&mut word, &mut pieces);
            if character == '\n' {
                pieces.push(Piece::Break);
            }
        } else {
            word.push(character);
        }
        previous = rest[..taken].chars().next_back().unwrap_or(' ');
        rest = &rest[taken..];
    }
    flush(&mut word, &mut pieces);
    pieces
}

/// The text between quotes at the start of `rest`, and the length with the quotes.
fn quoted(rest: &str, previous: char) -> Option<(&str, usize)> {
    let open = rest.chars().next()?;
    let close = match open {
        '"' | '`' | '\'' => open,
        '“' | '„' => '”',
        '‘' => '’',
        '«' => '»',
        '「' => '」',
        '『' => '』',
        _ => return None,
    };
    // An apostrophe inside a word opens nothing.
    if matches!(open, '\'' | '‘') && previous.is_alphanumeric() {
        return None;
    }
    let body = &rest[open.len_utf8()..];
    let window = &body[..body.floor_char_boundary(FOCUS_BYTES_MAX + close.len_utf8())];
    let end = window.find(close)?;
    let inner = &window[..end];
    let after = body[end + close.len_utf8()..].chars().next();
    if open == '\'' && after.is_some_and(char::is_alphanumeric) {
        return None;
    }
    if inner.trim().is_empty() || inner.contains('\n') {
        return None;
    }
    Some((inner, open.len_utf8() + end + close.len_utf8()))
}

fn flush(word: &mut String, pieces: &mut Vec<Piece>) {
    let taken = std::mem::take(word);
    if taken.is_empty() {
        return;
    }
    let edge = |character: char| !character.is_alphanumeric() && !matches!(character, '_' | '/' | '-');
    let start = taken.trim_start_matches(|character| edge(character) && character != '.');
    let calls = start.contains("()");
    let body = start.trim_end_matches(|character| edge(character) || character == '-');
    let body = body.strip_suffix("'s").or_else(|| body.strip_suffix("’s")).unwrap_or(body);
    let ended = start.len() > body.len() && !start.ends_with("'s") && !start.ends_with("’s");
    let opened = taken.len() > start.len();
    if opened {
        pieces.push(Piece::Break);
    }
    let named = if calls && !body.ends_with(')') { format!("{body}()") } else { body.to_owned() };
    if body.chars().any(char::is_alphanumeric) {
        pieces.push(Piece::Word(named));
    }
    if ended {
        pieces.push(Piece::Break);
    }
}

/// Whether a word is a name from code or a path rather than an ordinary word.
fn is_identifier(word: &str) -> bool {
    if word.len() > FOCUS_BYTES_MAX
        || word.contains(char::is_whitespace)
        || word.chars().any(|c| Script::of(c).is_cjk())
    {
        return false;
    }
    if word.contains("::") || word.ends_with("()") || word.contains('_') || word.starts_with("--") {
        return word.chars().any(char::is_alphanumeric);
    }
    is_path(word) || has_hump(word) || mixes_digits(word)
}

/// `src/main.rs`, `./x`, `main.rs`; not `and/or`, `e.g.` or `3.5`.
fn is_path(word: &str) -> bool {
    let extension = word.rsplit_once('.').is_some_and(|(stem, extension)| {
        stem.chars().filter(|character| character.is_alphanumeric()).count() > 1
            && (1..=8).contains(&extension.len())
            && extension.chars().all(|character| character.is_ascii_alphanumeric())
            && extension.chars().any(|character| character.is_ascii_alphabetic())
    });
    extension || word.starts_with('/') || word.starts_with("./") || word.matches('/').count() > 1
}

/// `toolName`, `ToolName`; not `Tool`, `TOOL` or `TOOLs`.
fn has_hump(word: &str) -> bool {
    let mut seen_lower = false;
    for character in word.chars() {
        if character.is_uppercase() && seen_lower {
            return true;
        }
        seen_lower = character.is_lowercase();
    }
    false
}

/// `bm25`, `C064`, `utf8`; not `3rd`, `10` or `2025-01-01`.
fn mixes_digits(word: &str) -> bool {
    word.chars().all(|character| character.is_ascii_alphanumeric())
        && word.chars().next().is_some_and(|first| first.is_ascii_alphabetic())
        && word.chars().any(|character| character.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::{FOCUSES_MAX, Question, Wants};
    use crate::models::research::focus::FocusKind;

    fn parts(text: &str) -> Vec<(FocusKind, String)> {
        Question::split(text).focuses.into_iter().map(|focus| (focus.kind, focus.text)).collect()
    }

    fn words(text: &str) -> Vec<String> {
        parts(text).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn english_falls_into_groups_of_words() {
        let question = Question::split("where is the restart intensity decided?");
        assert_eq!(words("where is the restart intensity decided?"), ["restart intensity"]);
        assert_eq!((question.wants, question.aspects), (Wants::Place, vec!["decid".to_owned()]));
        assert_eq!(words("How does the bulkhead behave when the queue is full?"), ["bulkhead", "queue full"]);
        assert_eq!(
            words("Explain the circuit breaker, the budget ledger and leases"),
            ["circuit breaker", "budget ledger", "leases"]
        );
        assert_eq!(words("what is the session's deadline"), ["session deadline"]);
        assert_eq!(words("which file contains the code"), ["contains"]);
    }

    #[test]
    fn names_from_code_are_kept_exactly() {
        use FocusKind::Identifier;
        let text = "does restart_intensity in ChildSpec use a::b or src/main.rs, bm25, spawn() and --fan-out?";
        let names: Vec<String> =
            parts(text).into_iter().filter(|(kind, _)| *kind == Identifier).map(|(_, text)| text).collect();
        assert_eq!(names, ["restart_intensity", "ChildSpec", "a::b", "src/main.rs", "bm25", "spawn", "fan-out"]);
        for plain in ["and/or", "e.g.", "i.e.", "3.5", "2025-01-01", "10", "HTTP", "Redis"] {
            assert!(parts(plain).iter().all(|(kind, _)| *kind != Identifier), "{plain}: {:?}", parts(plain));
        }
    }

    #[test]
    fn quoted_texts_are_looked_for_as_they_stand() {
        use FocusKind::{Identifier, Phrase};
        assert_eq!(
            parts("who says \"no such path\" or ‘not here’?"),
            [(Phrase, "no such path".to_owned()), (Phrase, "not here".to_owned())]
        );
        assert_eq!(
            parts("`lease` and 「缓存 服务」"),
            [(Identifier, "lease".to_owned()), (Phrase, "缓存 服务".to_owned())]
        );
        assert_eq!(
            words("don't the sessions' owners' 'last word' count"),
            ["sessions", "owners", "last word", "count"]
        );
        assert_eq!(words("an unclosed \"quote here"), ["unclosed", "quote"]);
    }

    #[test]
    fn chinese_japanese_and_korean_fall_into_runs() {
        use FocusKind::{Cjk, Words};
        assert_eq!(
            parts("缓存服务在哪里读取Redis配置？"),
            [
                (Cjk, "缓存服务".to_owned()),
                (Cjk, "读取".to_owned()),
                (Words, "Redis".to_owned()),
                (Cjk, "配置".to_owned())
            ]
        );
        assert_eq!(words("再起動の強度はどこで決定されますか？"), ["再起動", "強度"]);
        assert_eq!(words("캐시 설정은 어디에서 읽나요?"), ["캐시", "설정", "읽나요"]);
        assert_eq!(Question::split("为什么超时？").wants, Wants::Explanation);
        assert_eq!(Question::split("设置在哪里").wants, Wants::Place);
    }

    #[test]
    fn parts_that_say_the_same_are_one() {
        assert_eq!(words("intensity, restart intensity, RestartIntensity and restarts"), ["restart intensity"]);
        assert_eq!(words("lanes and `lane`"), ["lanes"]);
    }

    #[test]
    fn nothing_to_look_for_gives_no_parts() {
        for text in ["", " \n\t", "?!", "🎉🎉 %%%", "what is it?", "\u{0}\u{202e}", "where is the code", "\"\" ''"]
        {
            assert!(parts(text).is_empty(), "{text:?}: {:?}", parts(text));
        }
        assert_eq!(words("how does it work?"), ["work"]);
    }

    #[test]
    fn a_huge_question_stays_bounded() {
        let mut huge = String::from("where is the lane, ");
        while huge.len() < 1 << 20 {
            huge.push_str("alpha, beta_gamma ");
            huge.push_str(&"z".repeat(100));
            huge.push_str(" 缓存「");
        }
        let question = Question::split(&huge);
        assert!(question.focuses.len() <= FOCUSES_MAX);
        assert_eq!(question.focuses[0].text, "lane");
        assert!(Question::split(&"界".repeat(400_000)).focuses[0].text.len() <= 128);
        assert!(parts(&"x".repeat(1 << 20)).is_empty());
        assert!(Question::split(&"\"".repeat(1 << 20)).focuses.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_split_within_bounds(text in ".{0,300}") {
            let question = Question::split(&text);
            proptest::prop_assert!(question.focuses.len() <= FOCUSES_MAX);
            for focus in &question.focuses {
                proptest::prop_assert!(!focus.terms().is_empty() && focus.text.len() <= 128);
            }
        }
    }
}
