//! A Rust file cut into tokens, so that no rule is fooled by a comment or a string.
//!
//! Far from a parser: words, signs and literals with their lines, and which of them belong to tests.

use std::collections::BTreeSet;

/// A file with its tokens.
pub(crate) struct Source {
    /// Path from the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

/// A word, a sign or a literal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) kind: Kind,
    /// Whether it stands in an item under `#[cfg(test)]`.
    pub(crate) test: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Word,
    Sign,
    Literal,
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let mut tokens = Scanner { rest: text, line: 1, tokens: Vec::new() }.scan();
        mark_tests(&mut tokens);
        Self { path: path.to_owned(), text: text.to_owned(), tokens }
    }

    /// Whether the whole file serves tests: it stands in a folder of tests.
    pub(crate) fn is_outside_of_crates(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
    }

    /// The files that are test modules of this one: `#[cfg(test)] mod x;`.
    pub(crate) fn test_files(&self) -> Vec<String> {
        let spots = (0..self.tokens.len()).filter(|at| self.tokens[*at].test && self.at(*at, &["mod"]));
        let names = spots.filter(|at| self.at(at + 2, &[";"])).map(|at| self.tokens[at + 1].text.clone());
        names.map(|name| format!("{}/{name}.rs", self.child_folder())).collect()
    }

    /// Where the children of this module stand.
    fn child_folder(&self) -> &str {
        match self.path.rsplit_once('/') {
            Some((folder, "lib.rs" | "main.rs")) => folder,
            _ => self.path.trim_end_matches(".rs"),
        }
    }

    /// Whether these texts stand here, one token each.
    pub(crate) fn at(&self, index: usize, texts: &[&str]) -> bool {
        let here = self.tokens.get(index..index + texts.len());
        here.is_some_and(|here| {
            here.iter().zip(texts).all(|(token, text)| token.kind != Kind::Literal && token.text == **text)
        })
    }

    /// The lines where these texts stand one after the other; in production code alone when `shipped`.
    pub(crate) fn lines_of(&self, texts: &[&str], shipped: bool) -> Vec<usize> {
        let spots = (0..self.tokens.len()).filter(|at| self.at(*at, texts));
        spots.filter(|at| !(shipped && self.tokens[*at].test)).map(|at| self.tokens[at].line).collect()
    }

    /// The index behind the bracket that closes the one at `open`; the end of the file when none does.
    pub(crate) fn behind(&self, open: usize) -> usize {
        behind(&self.tokens, open)
    }

    /// The lines of the file's header: the `//!` lines that it opens with, without the sign.
    pub(crate) fn header(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix("//!"));
        lines.collect::<Vec<_>>().join("\n")
    }
}

/// Marks all tokens of files that only tests use.
pub(crate) fn mark_test_files(sources: &mut [Source]) {
    let files: BTreeSet<String> = sources.iter().flat_map(Source::test_files).collect();
    for source in sources {
        let folders = files.iter().map(|file| format!("{}/", file.trim_end_matches(".rs")));
        let of_tests = source.is_outside_of_crates()
            || files.contains(&source.path)
            || folders.into_iter().any(|folder| source.path.starts_with(&folder));
        if of_tests {
            source.tokens.iter_mut().for_each(|token| token.test = true);
        }
    }
}

fn behind(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if token.kind != Kind::Sign {
            continue;
        }
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Marks every item that stands under `#[cfg(test)]` or `#[test]`.
fn mark_tests(tokens: &mut [Token]) {
    let is = |tokens: &[Token], at: usize, text: &str| tokens.get(at).is_some_and(|token| token.text == text);
    let mut at = 0;
    while at < tokens.len() {
        if !(is(tokens, at, "#") && is(tokens, at + 1, "[")) {
            at += 1;
            continue;
        }
        let end = behind(tokens, at + 1);
        let inside = tokens.get(at + 2..end - 1).unwrap_or_default();
        let inside: Vec<&str> = inside.iter().map(|token| token.text.as_str()).collect();
        let of_test = match inside.first() {
            Some(&"cfg") => inside.contains(&"test") && !inside.contains(&"not"),
            _ => inside.split(|text| *text == "(").next().is_some_and(|path| path.last() == Some(&"test")),
        };
        if !of_test {
            at = end;
            continue;
        }
        let mut last = end;
        while is(tokens, last, "#") {
            last = behind(tokens, last + 1);
        }
        let is_use = is(tokens, last, "use");
        while last < tokens.len() && !is(tokens, last, ";") {
            match tokens[last].text.as_str() {
                "{" if !is_use => {
                    last = behind(tokens, last) - 1;
                    break;
                }
                "(" | "[" | "{" => last = behind(tokens, last),
                _ => last += 1,
            }
        }
        let last = (last + 1).min(tokens.len());
        tokens[at..last].iter_mut().for_each(|token| token.test = true);
        at = last;
    }
}

struct Scanner<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl Scanner<'_> {
    fn scan(mut self) -> Vec<Token> {
        while let Some(first) = self.rest.chars().next() {
            if first.is_whitespace() {
                self.skip(first.len_utf8());
            } else if self.rest.starts_with("//") {
                self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
            } else if self.rest.starts_with("/*") {
                self.skip(block_comment(self.rest));
            } else if let Some(length) = string(self.rest) {
                self.take(length, Kind::Literal);
            } else if is_word(first) {
                let length = self.rest.find(|c: char| !is_word(c)).unwrap_or(self.rest.len());
                self.take(length, if first.is_ascii_digit() { Kind::Literal } else { Kind::Word });
            } else {
                self.take(first.len_utf8(), Kind::Sign);
            }
        }
        self.tokens
    }

    fn take(&mut self, length: usize, kind: Kind) {
        self.tokens.push(Token { text: self.rest[..length].to_owned(), line: self.line, kind, test: false });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (passed, rest) = self.rest.split_at(length);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of the string, character or lifetime that the text begins with.
fn string(text: &str) -> Option<usize> {
    let body = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let prefix = text.len() - body.len();
    if let Some(raw) = body.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if let Some(inner) = raw[hashes..].strip_prefix('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let length = inner.find(&close).map_or(inner.len(), |end| end + close.len());
            return Some(prefix + 1 + hashes + 1 + length);
        }
    }
    if body.starts_with('"') {
        return Some(prefix + quoted(body, '"'));
    }
    if !body.starts_with('\'') {
        return None;
    }
    let mut letters = body.chars().skip(1);
    let (first, second) = (letters.next(), letters.next());
    let is_character = first == Some('\\') || second == Some('\'');
    if is_character {
        return Some(prefix + quoted(body, '\''));
    }
    // A lifetime.
    Some(prefix + 1 + body[1..].find(|c: char| !is_word(c)).unwrap_or(body.len() - 1))
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[test]
fn comments_and_literals_are_no_words() {
    let text = "// a\n/* b /* c */ d */ let e = \"f\\\"g\"; r#\"h\"i\"# 'j' '\\'' b'k' &'l m 7_u8";
    let source = Source::new("x.rs", text);
    let words: Vec<&str> =
        source.tokens.iter().filter(|token| token.kind == Kind::Word).map(|token| token.text.as_str()).collect();
    assert_eq!(words, ["let", "e", "m"]);
    assert!(source.tokens.iter().all(|token| token.line == 2));
}

#[test]
fn test_items_and_test_files_are_known() {
    let text = "fn a() { x(); }\n#[cfg(test)]\n#[other]\nmod tests { fn y() { } }\nfn b() {}\n#[cfg(test)]\nmod twin;\n\
                #[cfg(test)]\nuse q::{r, s};\nfn z() {}\n#[tokio::test]\nasync fn t(a: [u8; 2]) { u() }\nfn v() {}";
    let source = Source::new("tools/a.rs", text);
    let shipped: Vec<&str> = source
        .tokens
        .iter()
        .filter(|token| token.kind == Kind::Word && !token.test)
        .map(|token| token.text.as_str())
        .collect();
    assert_eq!(shipped, ["fn", "a", "x", "fn", "b", "fn", "z", "fn", "v"]);
    let of_root = Source::new("tools/lib.rs", "#[cfg(test)]\nmod twin;");
    assert_eq!(
        (source.test_files(), of_root.test_files()),
        (vec!["tools/a/twin.rs".into()], vec!["tools/twin.rs".into()])
    );
    let mut sources = [source, Source::new("tools/a/twin.rs", "fn w() {}"), Source::new("tools/b.rs", "fn w() {}")];
    mark_test_files(&mut sources);
    assert!(sources[1].tokens[0].test && !sources[2].tokens[0].test);
}
