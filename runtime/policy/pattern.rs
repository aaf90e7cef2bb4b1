//! The pattern of a rule, `Tool(pattern)`, in the three ways it can be read: as a path, as a text, as words of a
//! command line.
//!
//! One allow that matches too much opens what it should not, one deny that matches too little does the same, so
//! the same pattern is read narrowly for an allow and widely for a deny or an ask.

use std::sync::{Arc, OnceLock};

use regex::Regex;
use thiserror::Error;

/// Longest glob, in bytes, of which only the form is looked at when it is read: its regular expression is made when it is
/// first matched. Rules are read with every log and snapshot, and most of them never meet a call there. What is no longer
/// than this cannot become too large: a character class takes about 2 KiB, and regex allows 10 MiB.
const LAZY_GLOB_BYTES_MAX: usize = 512;

/// The pattern of a rule.
#[derive(Debug, Clone)]
pub struct Pattern {
    text: String,
    prefix: Option<String>,
    words: ShellPattern,
}

/// Why a pattern cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// Nothing between the parentheses.
    #[error("the pattern is empty; write the tool's name alone to cover every call of it")]
    Empty,
    /// A `[` or `{` without its end.
    #[error("`{open}` is not closed in {pattern:?}; write `\\{open}` for the plain character")]
    Unclosed {
        /// Which bracket.
        open: char,
        /// The pattern.
        pattern: String,
    },
    /// A backslash at the end.
    #[error("{pattern:?} ends with a backslash that escapes nothing")]
    Escape {
        /// The pattern.
        pattern: String,
    },
    /// The glob compiles to nothing usable.
    #[error("{pattern:?} is not a usable glob: {reason}")]
    Glob {
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
}

/// How well words fit a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// Not at all.
    No,
    /// Only if words that are not known yet come out so.
    Maybe,
    /// Whatever the unknown words come out as.
    Yes,
}

/// A pattern over the words of a simple command.
///
/// Both `git:*` and `git *` mean the word `git` and anything after it, also nothing: never `gitleaks`. Words are
/// compared with their case and without their quoting. `*` in a word crosses `/`; as a word of its own it covers
/// any number of words. At the end of a name (`npm run test*`) it ends an allow at the word, and stays a
/// wildcard (`test-and-deploy`) for deny and ask.
#[derive(Debug, Clone)]
pub struct ShellPattern {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone)]
enum Token {
    Exact(String),
    Glob {
        glob: Glob,
        /// What stands before a final `*` that follows a name.
        stem: Option<String>,
    },
    Any,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// [`PatternError`] when it is empty or no well-formed glob.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        let prefix = text.strip_suffix(":*").map(str::to_owned);
        if prefix.is_none() {
            Glob::parse(text, false)?;
        }
        Ok(Self { text: text.to_owned(), prefix, words: ShellPattern::parse(text)? })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it covers every call: `*`. `**` is a glob over paths and stays in the workspace.
    pub fn is_everything(&self) -> bool {
        matches!(self.text.as_str(), "*" | ":*")
    }

    /// Whether it speaks of paths outside the workspace: an allow without this covers none of them.
    pub(crate) fn leads_outside(&self) -> bool {
        is_outside(&self.text)
    }

    /// For `prefix:*`, what a text must begin with.
    pub fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    /// The anchored regular expression of the glob over paths; a `./` in front means nothing.
    ///
    /// # Errors
    /// None for a pattern that was parsed; the type says otherwise because the glob is translated again.
    pub(crate) fn path_regex(&self) -> Result<String, PatternError> {
        let text = self.text.trim_start_matches("./");
        translated(if text.is_empty() { "." } else { text }, false)
    }

    /// The anchored regular expression of the glob over texts.
    ///
    /// # Errors
    /// As for [`Self::path_regex`].
    pub(crate) fn text_regex(&self, crosses: bool) -> Result<String, PatternError> {
        translated(&self.text, crosses)
    }

    /// The pattern as words.
    pub fn words(&self) -> &ShellPattern {
        &self.words
    }
}

impl ShellPattern {
    fn parse(text: &str) -> Result<Self, PatternError> {
        let (text, prefix) = match text.strip_suffix(":*") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let mut tokens = Vec::new();
        let mut open_ended = prefix;
        for word in text.split_whitespace() {
            open_ended = prefix;
            if matches!(word, "*" | "**") {
                tokens.push(Token::Any);
            } else if word.contains(['*', '?', '[', ']', '{', '}', '\\']) {
                let stem = word.strip_suffix('*').filter(|stem| is_name(stem)).map(str::to_owned);
                open_ended |= word.ends_with('*') && !word.ends_with("\\*");
                tokens.push(Token::Glob { glob: Glob::parse(word, true)?, stem });
            } else {
                tokens.push(Token::Exact(word.to_owned()));
            }
        }
        if open_ended {
            tokens.push(Token::Any);
        }
        Ok(Self { tokens })
    }

    /// The command name that the pattern spells out; none when it begins with a wildcard.
    pub fn name(&self) -> Option<&str> {
        match self.tokens.first() {
            Some(Token::Exact(name)) => Some(name),
            _ => None,
        }
    }

    /// How well the words of a command fit; a word that is none is not known. `narrow` is for an allow.
    pub fn fit(&self, words: &[Option<&str>], narrow: bool) -> Fit {
        let end = self.tokens.len();
        let mut sure = vec![false; end + 1];
        sure[0] = true;
        self.skip_any(&mut sure);
        let mut maybe = sure.clone();
        for word in words {
            sure = self.step(&sure, *word, narrow);
            maybe = match word {
                Some(_) => self.step(&maybe, *word, narrow),
                // An unknown word can become any number of words, or none.
                None => {
                    let first = maybe.iter().position(|reached| *reached).unwrap_or(end + 1);
                    (0..=end).map(|at| at >= first).collect()
                }
            };
        }
        if sure[end] {
            Fit::Yes
        } else if maybe[end] {
            Fit::Maybe
        } else {
            Fit::No
        }
    }

    fn step(&self, reached: &[bool], word: Option<&str>, narrow: bool) -> Vec<bool> {
        let mut next = vec![false; reached.len()];
        for (at, token) in self.tokens.iter().enumerate().filter(|(at, _)| reached[*at]) {
            match (token, word) {
                (Token::Any, _) => next[at] = true,
                (_, None) => {}
                (Token::Exact(exact), Some(word)) => next[at + 1] |= exact == word,
                (Token::Glob { stem: Some(stem), .. }, Some(word)) if narrow => next[at + 1] |= stem == word,
                (Token::Glob { glob, .. }, Some(word)) => next[at + 1] |= glob.is_match(word, narrow),
            }
        }
        self.skip_any(&mut next);
        next
    }

    /// `*` as a word also covers no word.
    fn skip_any(&self, reached: &mut [bool]) {
        for (at, token) in self.tokens.iter().enumerate() {
            if reached[at] && matches!(token, Token::Any) {
                reached[at + 1] = true;
            }
        }
    }
}

/// A well-formed glob that matches whole texts.
#[derive(Debug, Clone)]
struct Glob {
    expression: String,
    /// Made at the first match, once for all copies.
    regex: Arc<OnceLock<Option<Regex>>>,
}

impl Glob {
    fn parse(glob: &str, crosses: bool) -> Result<Self, PatternError> {
        let regex: Arc<OnceLock<_>> = Arc::default();
        if glob.len() > LAZY_GLOB_BYTES_MAX {
            let compiled = compiled(glob, crosses)?;
            regex.get_or_init(|| Some(compiled));
        }
        let expression = translated(glob, crosses)?;
        regex_syntax::parse(&expression).map_err(|error| unusable(glob, &error))?;
        Ok(Self { expression, regex })
    }

    /// Should there be no regular expression of it after all, then an allow is not for this text, and a deny is.
    fn is_match(&self, text: &str, narrow: bool) -> bool {
        let regex = self.regex.get_or_init(|| Regex::new(&self.expression).ok());
        regex.as_ref().map_or(!narrow, |regex| regex.is_match(text))
    }
}

/// Whether a path is absolute or begins at a home folder.
pub(crate) fn is_outside(path: &str) -> bool {
    path.starts_with(['/', '~'])
}

fn is_name(text: &str) -> bool {
    let ends_like_a_name = text.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '-' | '_'));
    ends_like_a_name && !text.contains(['*', '?', '[', ']', '{', '}', '\\'])
}

/// A glob, ready to match whole texts.
pub(super) fn compiled(glob: &str, crosses: bool) -> Result<Regex, PatternError> {
    Regex::new(&translated(glob, crosses)?).map_err(|error| unusable(glob, &error))
}

fn unusable(glob: &str, error: &impl ToString) -> PatternError {
    PatternError::Glob { pattern: glob.to_owned(), reason: error.to_string() }
}

/// The anchored regular expression of a glob. `**` always crosses `/`; `*`, `?` and classes do when `crosses`.
fn translated(glob: &str, crosses: bool) -> Result<String, PatternError> {
    let any = if crosses { "." } else { "[^/]" };
    let mut regex = String::from(r"\A(?s:");
    // Whether each open brace is a list of alternatives.
    let mut groups: Vec<bool> = Vec::new();
    let mut rest = glob;
    while let Some(c) = rest.chars().next() {
        let at_name_start = rest.len() == glob.len() || glob[..glob.len() - rest.len()].ends_with('/');
        rest = &rest[c.len_utf8()..];
        match c {
            '*' if rest.starts_with("*/") && at_name_start => {
                regex.push_str("(?:.*/)?");
                rest = &rest[2..];
            }
            '*' if rest.starts_with('*') => {
                regex.push_str(".*");
                rest = rest.trim_start_matches('*');
            }
            '*' => regex.extend([any, "*"]),
            '?' => regex.push_str(any),
            '[' => rest = class(glob, rest, crosses, &mut regex)?,
            '{' => match group_end(rest) {
                None => return Err(PatternError::Unclosed { open: '{', pattern: glob.to_owned() }),
                Some(is_list) => {
                    groups.push(is_list);
                    regex.push_str(if is_list { "(?:" } else { r"\{" });
                }
            },
            '}' => regex.push_str(if groups.pop() == Some(true) { ")" } else { r"\}" }),
            ',' if groups.last() == Some(&true) => regex.push('|'),
            '\\' => {
                let escaped = rest.chars().next().ok_or_else(|| PatternError::Escape { pattern: glob.to_owned() })?;
                regex.push_str(&regex::escape(escaped.encode_utf8(&mut [0; 4])));
                rest = &rest[escaped.len_utf8()..];
            }
            c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
        }
    }
    regex.push_str(r")\z");
    Ok(regex)
}

/// Translates a class up to its `]` and returns what follows it.
fn class<'a>(glob: &str, rest: &'a str, crosses: bool, regex: &mut String) -> Result<&'a str, PatternError> {
    let unclosed = || PatternError::Unclosed { open: '[', pattern: glob.to_owned() };
    let negated = rest.starts_with(['!', '^']);
    let body = if negated { &rest[1..] } else { rest };
    // A `]` right at the beginning is a member.
    let length = body.char_indices().skip(1).find(|(_, c)| *c == ']').map(|(at, _)| at).ok_or_else(unclosed)?;
    regex.push_str(if negated { "[^" } else { "[" });
    if negated && !crosses {
        regex.push('/');
    }
    for c in body[..length].chars() {
        if matches!(c, '[' | ']' | '&' | '~' | '^' | '\\') {
            regex.push('\\');
        }
        regex.push(c);
    }
    regex.push(']');
    Ok(&body[length + 1..])
}

/// Whether the group that just began is a list of alternatives; none when it does not end.
fn group_end(rest: &str) -> Option<bool> {
    let mut depth = 1usize;
    let mut list = false;
    let mut escaped = false;
    for c in rest.chars() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 1 => list = true,
            _ => {}
        }
        if depth == 0 {
            return Some(list);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Fit, LAZY_GLOB_BYTES_MAX, Pattern, PatternError, compiled};

    fn fit(pattern: &str, command: &str, narrow: bool) -> Fit {
        let words: Vec<_> = command.split(' ').map(|word| (!word.starts_with('$')).then_some(word)).collect();
        Pattern::parse(pattern).unwrap().words().fit(&words, narrow)
    }

    // Case C192: where a wildcard in a shell rule ends.
    #[test]
    fn words_end_where_they_end() {
        for pattern in ["git:*", "git *"] {
            assert_eq!(fit(pattern, "git", true), Fit::Yes);
            assert_eq!(fit(pattern, "git push a/b", true), Fit::Yes);
            assert_eq!(fit(pattern, "gitleaks x", true), Fit::No);
            assert_eq!(fit(pattern, "GIT push", true), Fit::No);
            assert_eq!(fit(pattern, "git $x", true), Fit::Yes);
            assert_eq!(fit(pattern, "$x push", true), Fit::Maybe);
        }
        assert_eq!(fit("npm run test*", "npm run test-and-deploy", true), Fit::No);
        assert_eq!(fit("npm run test*", "npm run test-and-deploy", false), Fit::Yes);
        assert_eq!(fit("npm run test*", "npm run test", true), Fit::Yes);
        assert_eq!(fit("npm run test*", "npm run test --watch", true), Fit::Yes);
        assert_eq!(fit("npm run test", "npm run test --watch", true), Fit::No);
        assert_eq!(fit("./bin/*", "./bin/a/b.sh -x", true), Fit::Yes);
        assert_eq!(fit("rm -rf *", "rm -r -f x", false), Fit::No);
        assert_eq!(fit("git * main", "git push origin main", true), Fit::Yes);
        assert_eq!(fit("git push *", "git $x", false), Fit::Maybe);
        assert_eq!(fit("*", "anything at all", true), Fit::Yes);
    }

    #[test]
    fn globs_keep_to_a_folder_unless_told() {
        let matches = |glob: &str, text: &str, crosses: bool| compiled(glob, crosses).unwrap().is_match(text);
        assert!(matches("src/*.rs", "src/a.rs", false) && !matches("src/*.rs", "src/a/b.rs", false));
        assert!(matches("**/.env", ".env", false) && matches("**/.env", "a/b/.env", false));
        assert!(!matches("**/.env", "x.env", false) && matches("src/**", "src/a/b", false));
        assert!(matches("a/**/b", "a/b", false) && matches("a/**/b", "a/x/y/b", false));
        assert!(matches("{a,b}.[!x]", "b.y", false) && !matches("{a,b}.[!x]", "b.x", false));
        assert!(matches("grep **", "grep a b/c", false) && matches("{}", "{}", false));
        assert!(matches("{a{b}c,d}", "a{b}c", false) && matches("{a{b}c,d}", "d", false));
        assert!(matches("*x*", "a/x/b", true) && !matches("*x*", "a/x/b", false));
        assert!(matches("a\\*", "a*", false) && !matches("a\\*", "ab", false));
        assert!(!matches("[!a]", "/", false) && matches("a.b", "a.b", false) && !matches("a.b", "axb", false));
    }

    #[test]
    fn malformed_patterns_are_errors() {
        assert_eq!(Pattern::parse(" ").unwrap_err(), PatternError::Empty);
        assert!(matches!(Pattern::parse("a[b").unwrap_err(), PatternError::Unclosed { open: '[', .. }));
        assert!(matches!(Pattern::parse("a{b").unwrap_err(), PatternError::Unclosed { open: '{', .. }));
        assert!(matches!(Pattern::parse("a\\").unwrap_err(), PatternError::Escape { .. }));
        assert!(matches!(Pattern::parse("[z-a]").unwrap_err(), PatternError::Glob { .. }));
        // Too large for one regular expression, and said so at once.
        let huge = "?".repeat(100_000);
        assert!(matches!(Pattern::parse(&huge).unwrap_err(), PatternError::Glob { .. }));
    }

    #[test]
    fn the_largest_glob_that_is_made_late_can_be_made() {
        for piece in ["?", "[!a]", "{a,?}", "*x"] {
            let glob = piece.repeat(LAZY_GLOB_BYTES_MAX / piece.len());
            for crosses in [false, true] {
                compiled(&glob, crosses).unwrap();
            }
            assert!(Pattern::parse(&glob).is_ok());
        }
    }
}
