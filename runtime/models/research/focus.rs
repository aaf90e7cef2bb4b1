//! A focus: one thing that a question asks about, and how it is looked for.
//!
//! The patterns that a child run sends to `search` and those that later judge the passages found are built by the
//! same code, so that what counts as found is what was searched for.

use std::borrow::Cow;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::term::{Script, stem, terms};

/// Longest text of a focus, in bytes.
pub(super) const FOCUS_BYTES_MAX: usize = 128;
/// Most terms of one focus.
const FOCUS_TERMS_MAX: usize = 16;
/// Most words that may stand between two words of a group.
const GAP_WORDS_MAX: usize = 3;
/// Largest compiled pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Shortest word that is looked for alone, in bytes.
const LONE_WORD_BYTES_MIN: usize = 3;

/// Words that come before a defined name in common languages.
const DEFINING: &str = "fn|struct|enum|trait|type|const|static|mod|union|macro_rules!|class|def|interface|func\
    |function|module|package|namespace|object|record|message|service";

/// How patterns spell classes of characters.
struct Dialect {
    word: &'static str,
    gap: &'static str,
    blank: &'static str,
    edge: &'static str,
}

/// For the search tool: short, for people see it too.
const SHORT: Dialect = Dialect { word: r"\w", gap: r"\W", blank: r"\s", edge: r"\b" };

/// For judging: the same up to exotic blanks, and compiled many times faster, for the full classes of Unicode are
/// large (and larger still without regard to case).
const LEAN: Dialect = Dialect {
    word: r"(?-i:[0-9A-Za-z_\x{80}-\x{10ffff}])",
    gap: r"(?-i:[\x00-/:-@\[-^`{-\x7f])",
    blank: r"[ \t]",
    edge: r"(?-u:\b)",
};

/// One thing to look for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Focus {
    /// What kind of text it is.
    pub(super) kind: FocusKind,
    /// The text, at most [`FOCUS_BYTES_MAX`].
    pub(super) text: String,
}

/// What kind of text a focus is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FocusKind {
    /// Quoted: these words in this order.
    Phrase,
    /// A name from code, or a path.
    Identifier,
    /// A group of ordinary words.
    Words,
    /// A run of Chinese, Japanese or Korean.
    Cjk,
}

impl Focus {
    /// A focus of this kind; the text is cut to its bound.
    pub(super) fn new(kind: FocusKind, text: &str) -> Self {
        let text = text.trim();
        Self { kind, text: text[..text.floor_char_boundary(FOCUS_BYTES_MAX)].to_owned() }
    }

    /// What texts are compared by.
    pub(super) fn terms(&self) -> Vec<String> {
        let mut terms = terms(&self.text, FOCUS_TERMS_MAX);
        terms.sort();
        terms.dedup();
        terms
    }

    /// The regular expression that finds it, to be used without regard to case.
    pub(super) fn pattern(&self) -> String {
        self.pattern_in(&SHORT)
    }

    /// The regular expression that finds its definition, where names are defined by such texts.
    pub(super) fn definition_pattern(&self) -> Option<String> {
        self.definition_pattern_in(&SHORT)
    }

    fn pattern_in(&self, Dialect { word, gap, blank, .. }: &Dialect) -> String {
        match self.kind {
            FocusKind::Phrase => {
                let between = format!(r"[{}_\-]+", blank.trim_start_matches('[').trim_end_matches(']'));
                self.text.split_whitespace().map(regex::escape).collect::<Vec<_>>().join(&between)
            }
            FocusKind::Identifier => name_pattern(&self.text),
            FocusKind::Words => self.stems().join(&format!("{word}*{gap}*(?:{word}+{gap}+){{0,{GAP_WORDS_MAX}}}?")),
            FocusKind::Cjk => regex::escape(&self.text),
        }
    }

    fn definition_pattern_in(&self, Dialect { word, blank, edge, .. }: &Dialect) -> Option<String> {
        let name = match self.kind {
            FocusKind::Identifier => format!("{}{edge}", name_pattern(last_segment(&self.text))),
            // In the middle of longer names a single word is too common.
            FocusKind::Words if self.stems().len() == 1 => format!("{edge}{}{word}*", self.stems().concat()),
            FocusKind::Words => format!("{word}*{}{word}*", self.stems().join(&format!("{word}*"))),
            FocusKind::Phrase | FocusKind::Cjk => return None,
        };
        Some(format!("{edge}(?:{DEFINING}){blank}+(?:mut{blank}+)?({name})"))
    }

    /// The regular expression of the second try: any word of it, any pair of characters, the last part of a name.
    pub(super) fn loose_pattern(&self) -> Option<String> {
        let pieces: Vec<String> = match self.kind {
            FocusKind::Cjk => terms(&self.text, FOCUS_TERMS_MAX).iter().map(|pair| regex::escape(pair)).collect(),
            _ => self.loose_words().iter().map(|word| regex::escape(word)).collect(),
        };
        (!pieces.is_empty()).then(|| pieces.join("|"))
    }

    /// The words of the second try, for a ranked search.
    pub(super) fn loose_query(&self) -> String {
        if self.kind == FocusKind::Cjk { self.text.clone() } else { self.loose_words().join(" ") }
    }

    fn loose_words(&self) -> Vec<String> {
        let mut words: Vec<String> = self.terms();
        words.retain(|word| word.len() >= LONE_WORD_BYTES_MIN);
        words
    }

    fn stems(&self) -> Vec<String> {
        self.text.split_whitespace().map(|word| regex::escape(&stem(&word.to_lowercase()))).collect()
    }
}

/// A name however it is written: `RestartIntensity`, `restart_intensity` and `restart-intensity` are one.
fn name_pattern(name: &str) -> String {
    let plain = name.chars().all(|character| Script::of(character) == Script::Letter || character == '_');
    if !plain {
        return regex::escape(name);
    }
    let mut pattern = String::new();
    let mut previous = '_';
    for character in name.chars() {
        let hump = character.is_uppercase() && (previous.is_lowercase() || previous.is_numeric());
        if (character == '_' || hump) && !pattern.is_empty() && !pattern.ends_with("[_-]?") {
            pattern.push_str("[_-]?");
        }
        if character != '_' {
            pattern.push(character);
        }
        previous = character;
    }
    if pattern.is_empty() { regex::escape(name) } else { pattern }
}

/// `restart` of `child_spec::restart`; a path's last name.
fn last_segment(name: &str) -> &str {
    name.rsplit(['/', ':', '.']).find(|segment| !segment.is_empty()).unwrap_or(name)
}

/// Judges lines for one focus.
#[derive(Debug)]
pub(super) struct Matcher {
    /// Its terms.
    pub(super) terms: Vec<String>,
    pattern: Option<Regex>,
    definition: Option<Regex>,
    exact: Option<String>,
}

impl Matcher {
    /// Compiles the patterns of a focus; a pattern that cannot be compiled matches nothing.
    pub(super) fn new(focus: &Focus) -> Self {
        Self {
            terms: focus.terms(),
            pattern: compile(&focus.pattern_in(&LEAN)),
            definition: focus.definition_pattern_in(&LEAN).and_then(|pattern| compile(&pattern)),
            exact: (focus.kind == FocusKind::Identifier).then(|| focus.text.clone()),
        }
    }

    /// Whether the line holds the focus as a whole.
    pub(super) fn holds(&self, line: &str) -> bool {
        self.pattern.as_ref().is_some_and(|pattern| pattern.is_match(line))
    }

    /// Whether the line defines it. Code inside of a string (a test's sample, a template) defines nothing.
    pub(super) fn defines(&self, line: &str) -> bool {
        self.definition.as_ref().is_some_and(|pattern| pattern.is_match(&outside_of_strings(line)))
    }

    /// Whether the line defines just it, and no longer name: `Lane`, not `LaneLimits`.
    pub(super) fn defines_just_it(&self, line: &str) -> bool {
        let outside = outside_of_strings(line);
        let name = self.definition.as_ref().and_then(|pattern| pattern.captures(&outside)?.get(1));
        name.is_some_and(|name| {
            let mut own = terms(name.as_str(), FOCUS_TERMS_MAX);
            own.sort();
            own.dedup();
            own == self.terms
        })
    }

    /// Whether the line holds a name exactly as the question wrote it.
    pub(super) fn is_exact(&self, line: &str) -> bool {
        self.exact.as_ref().is_some_and(|name| line.contains(name.as_str()))
    }
}

/// The line without what stands between double quotes; a string that is not closed goes to the end.
pub(super) fn outside_of_strings(line: &str) -> Cow<'_, str> {
    if !line.contains('"') {
        return Cow::Borrowed(line);
    }
    let mut kept = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(open) = rest.find('"') {
        kept.push_str(&rest[..=open]);
        // A raw string holds quotes of its own.
        let is_raw = rest[..open].ends_with("r#");
        rest = &rest[open + 1..];
        let close = if is_raw { rest.find("\"#") } else { closing_quote(rest) };
        let Some(close) = close else { return Cow::Owned(kept) };
        kept.push('"');
        rest = &rest[close + 1..];
    }
    kept.push_str(rest);
    Cow::Owned(kept)
}

/// The first quote that no backslash takes the meaning of.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

fn compile(pattern: &str) -> Option<Regex> {
    RegexBuilder::new(pattern).case_insensitive(true).size_limit(PATTERN_BYTES_MAX).build().ok()
}

#[cfg(test)]
mod tests {
    use super::{FOCUS_BYTES_MAX, Focus, FocusKind, Matcher};

    fn matcher(kind: FocusKind, text: &str) -> Matcher {
        Matcher::new(&Focus::new(kind, text))
    }

    #[test]
    fn a_name_is_found_however_it_is_written() {
        let judge = matcher(FocusKind::Identifier, "RestartIntensity");
        for line in ["pub struct RestartIntensity {", "restart_intensity: 3", "--restart-intensity"] {
            assert!(judge.holds(line), "{line}");
        }
        assert!(!judge.holds("restart the intensity"));
        assert!(judge.defines("pub struct RestartIntensity {") && judge.defines("fn restart_intensity()"));
        assert!(!judge.defines("let x = RestartIntensity::new()") && !judge.defines("struct RestartIntensityX"));
        assert!(judge.is_exact("RestartIntensity::new") && !judge.is_exact("restart_intensity"));
        assert!(matcher(FocusKind::Identifier, "child_spec::restart").defines("fn restart(&self)"));
        assert!(
            matcher(FocusKind::Identifier, "a+b.rs").holds("see A+B.RS")
                && !matcher(FocusKind::Identifier, "a.rs").holds("ams")
        );
    }

    #[test]
    fn a_group_of_words_is_found_close_together_in_any_form() {
        let judge = matcher(FocusKind::Words, "restart intensity");
        for line in ["the restart intensity", "RestartIntensity", "restart_intensity", "restarts of an intensity"] {
            assert!(judge.holds(line), "{line}");
        }
        assert!(!judge.holds("restart is one thing and another is intensity"));
        assert!(judge.defines("pub(crate) struct RestartIntensity;"));
        assert!(matcher(FocusKind::Phrase, "no such path").holds("error: No  such path"));
        assert!(matcher(FocusKind::Cjk, "缓存服务").holds("启动缓存服务。"));
    }

    #[test]
    fn code_in_a_string_defines_nothing() {
        let judge = matcher(FocusKind::Identifier, "RestartIntensity");
        for line in
            [r#"("a.rs", 9, "pub struct RestartIntensity {"),"#, r#"let text = "a \"quoted\" struct RestartIntensity;"#]
        {
            assert!(judge.holds(line) && !judge.defines(line), "{line}");
        }
        assert!(judge.defines(r#"#[doc = "x"] struct RestartIntensity;"#));
    }

    #[test]
    fn a_definition_of_just_the_word_is_told_from_one_of_a_longer_name() {
        let judge = matcher(FocusKind::Words, "lane");
        assert!(judge.defines_just_it("pub enum Lane {") && judge.defines_just_it("fn lanes() {"));
        assert!(judge.defines("struct LaneLimits") && !judge.defines_just_it("struct LaneLimits"));
        assert!(!judge.defines("fn plan() {"), "not in the middle of a word");
    }

    #[test]
    fn the_second_try_takes_single_words() {
        assert_eq!(Focus::new(FocusKind::Words, "restart intensity").loose_pattern().unwrap(), "intensit|restart");
        assert_eq!(Focus::new(FocusKind::Cjk, "缓存服务").loose_pattern().unwrap(), "缓存|存服|服务");
        assert_eq!(Focus::new(FocusKind::Phrase, "a b").loose_pattern(), None);
    }

    #[test]
    fn hostile_texts_give_patterns_that_compile() {
        for text in ["(((", "[a-", "\\", "a{9999}", "*+?", "€€€", &"x".repeat(9999)] {
            for kind in [FocusKind::Phrase, FocusKind::Identifier, FocusKind::Words, FocusKind::Cjk] {
                let focus = Focus::new(kind, text);
                assert!(focus.text.len() <= FOCUS_BYTES_MAX);
                assert!(matcher(kind, text).holds(&focus.text), "{kind:?} {text}");
            }
        }
    }
}
