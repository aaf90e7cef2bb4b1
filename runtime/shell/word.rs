//! One shell word: what it says without its quoting, or that only a running shell knows.
//!
//! Scans left to right with an explicit state, so that hostile nesting costs no stack. Every substitution that it
//! meets is handed out as text to be read in its turn.

use super::Doubt;
use super::extent::{Opened, closing, closing_ansi_quote, closing_backtick};

/// A word of a command.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// Plain text; quoting is removed.
    Known(String),
    /// Only the running shell knows it.
    Unknown {
        /// As it was written.
        written: String,
        /// A glob that covers what it can become: `**` for an expansion, `*` and `?` as written.
        shape: String,
        /// Whether it holds an expansion, and not only `*`, `?`, `[…]` or `{a,b}`.
        expands: bool,
    },
}

impl Word {
    /// The text, when it is known.
    pub fn known(&self) -> Option<&str> {
        match self {
            Self::Known(text) => Some(text),
            Self::Unknown { .. } => None,
        }
    }

    /// The text without quoting when it is known, else as it was written.
    pub fn written(&self) -> &str {
        match self {
            Self::Known(text) => text,
            Self::Unknown { written, .. } => written,
        }
    }

    /// Something that will be put in at run time.
    pub(super) fn anything(written: &str) -> Self {
        Self::Unknown { written: written.to_owned(), shape: "**".to_owned(), expands: true }
    }
}

/// A scanned word.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) word: Word,
    /// The texts of its substitutions.
    pub(super) inner: Vec<String>,
    pub(super) doubts: Vec<Doubt>,
}

/// How the text is quoted as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    None,
    Double,
    /// The body of a here-document: as in double quotes, but `"` is a plain character.
    Document,
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    quoting: Quoting,
    literal: String,
    shape: String,
    /// From where on the shape is `**`.
    shape_open_from: Option<usize>,
    known: bool,
    expands: bool,
    inner: Vec<String>,
    doubts: Vec<Doubt>,
}

/// Scans a word as it stands in a command line.
pub(super) fn scan(text: &str) -> Scan {
    Scanner::new(text, Quoting::None).run()
}

/// Scans the body of a here-document whose delimiter was not quoted.
pub(super) fn scan_document(text: &str) -> Scan {
    Scanner::new(text, Quoting::Document).run()
}

/// The substitutions in the text of an arithmetic expression or of `${…}`, whatever quotes they stand in: there a
/// shell looks behind quotes, so more is found rather than less.
pub(super) fn embedded(text: &str, inner: &mut Vec<String>, doubts: &mut Vec<Doubt>) {
    for (at, _) in text.match_indices(['(', '`']) {
        let opened_by = at.checked_sub(1).map(|index| text.as_bytes()[index]);
        let in_backticks = text.as_bytes()[at] == b'`';
        let end = match text.as_bytes()[at] {
            b'`' => closing_backtick(text, at + 1),
            _ if matches!(opened_by, Some(b'$' | b'<' | b'>')) => closing(text, at + 1, Opened::Commands),
            _ => continue,
        };
        if let Some(end) = end {
            let found = &text[at + 1..end];
            inner.push(if in_backticks { unescaped(found, false) } else { found.to_owned() });
        } else if opened_by == Some(b'$') {
            doubts.push(Doubt::HiddenSubstitution { text: text.to_owned() });
        }
    }
}

/// What stands between backticks, without the backslashes that they take away.
fn unescaped(text: &str, in_quotes: bool) -> String {
    let mut unescaped = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let taken = |next: &char| matches!(next, '`' | '\\' | '$') || (in_quotes && *next == '"');
        unescaped.push(if c == '\\' { rest.next_if(taken).unwrap_or(c) } else { c });
    }
    unescaped
}

impl<'a> Scanner<'a> {
    fn new(text: &'a str, quoting: Quoting) -> Self {
        Self {
            text,
            at: 0,
            quoting,
            literal: String::new(),
            shape: String::new(),
            shape_open_from: None,
            known: true,
            expands: false,
            inner: Vec::new(),
            doubts: Vec::new(),
        }
    }

    fn run(mut self) -> Scan {
        while let Some(c) = self.peek(0) {
            match (c, self.quoting) {
                ('\\', _) => self.escape(),
                ('$', _) => self.dollar(),
                ('`', _) => self.backtick(),
                ('"', Quoting::None) => self.quote(Quoting::Double),
                ('"', Quoting::Double) => self.quote(Quoting::None),
                ('\'', Quoting::None) => self.single_quotes(),
                (_, Quoting::None) => self.unquoted(c),
                _ => self.plain(c),
            }
        }
        if let Some(open) = self.literal.find('[')
            && (self.literal[open..].contains("$(") || self.literal[open..].contains('`'))
        {
            self.doubts.push(Doubt::Subscript { text: self.text.to_owned() });
        }
        if let Some(from) = self.shape_open_from {
            self.shape.truncate(from);
            self.shape.push_str("**");
        }
        let word = if self.known {
            Word::Known(self.literal)
        } else {
            Word::Unknown { written: self.text.to_owned(), shape: self.shape, expands: self.expands }
        };
        Scan { word, inner: self.inner, doubts: self.doubts }
    }

    fn peek(&self, bytes_on: usize) -> Option<char> {
        self.text.get(self.at + bytes_on..)?.chars().next()
    }

    fn plain(&mut self, c: char) {
        self.literal.push(c);
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            self.shape.push('\\');
        }
        self.shape.push(c);
        self.at += c.len_utf8();
    }

    /// An expansion up to `end` (exclusive), whose value is not known.
    fn expansion(&mut self, end: usize) {
        self.known = false;
        self.expands = true;
        self.shape.push_str("**");
        self.at = end;
    }

    /// An expansion that does not end: a parser will refuse the text; until then it is in doubt.
    fn endless(&mut self) {
        self.doubts.push(Doubt::Unreadable);
        self.expansion(self.text.len());
    }

    fn quote(&mut self, quoting: Quoting) {
        self.quoting = quoting;
        self.at += 1;
    }

    fn escape(&mut self) {
        let Some(next) = self.peek(1) else {
            return self.plain('\\');
        };
        let kept = match self.quoting {
            Quoting::None => false,
            Quoting::Double => !matches!(next, '$' | '`' | '"' | '\\' | '\n'),
            Quoting::Document => !matches!(next, '$' | '`' | '\\' | '\n'),
        };
        if kept {
            self.plain('\\');
        } else {
            self.at += 1;
        }
        if next == '\n' && !kept {
            self.at += 1;
        } else {
            self.plain(next);
        }
    }

    fn single_quotes(&mut self) {
        self.at += 1;
        let Some(length) = self.text[self.at..].find('\'') else {
            return self.endless();
        };
        let end = self.at + length;
        for c in self.text[self.at..end].chars() {
            self.plain(c);
        }
        self.at = end + 1;
    }

    fn unquoted(&mut self, c: char) {
        let rest = &self.text[self.at + c.len_utf8()..];
        match c {
            '*' | '?' => self.glob(c),
            '[' if rest.contains(']') => self.glob(c),
            '{' if is_brace_expansion(rest) => self.glob(c),
            '(' => {
                // An extended glob, or an array's list: two kinds that the parsers read differently.
                self.doubts.push(Doubt::Unreadable);
                self.glob(c);
            }
            '<' | '>' if rest.starts_with('(') => match closing(self.text, self.at + 2, Opened::Commands) {
                Some(end) => {
                    self.inner.push(self.text[self.at + 2..end].to_owned());
                    self.expansion(end + 1);
                }
                None => self.endless(),
            },
            _ => self.plain(c),
        }
    }

    /// A pattern character. From the first that is not `*` or `?` on, the shape covers everything.
    fn glob(&mut self, c: char) {
        self.known = false;
        self.literal.push(c);
        if matches!(c, '*' | '?') {
            self.shape.push(c);
        } else {
            self.shape_open_from.get_or_insert(self.shape.len());
        }
        self.at += 1;
    }

    fn backtick(&mut self) {
        let Some(end) = closing_backtick(self.text, self.at + 1) else {
            return self.endless();
        };
        self.inner.push(unescaped(&self.text[self.at + 1..end], self.quoting == Quoting::Double));
        self.expansion(end + 1);
    }

    fn dollar(&mut self) {
        let start = self.at + 1;
        match self.peek(1) {
            Some('(') => self.substitution(start + 1),
            Some('{') => self.parameter(start + 1),
            Some('[') => match closing(self.text, start + 1, Opened::Bracket) {
                Some(end) => {
                    embedded(&self.text[start + 1..end], &mut self.inner, &mut self.doubts);
                    self.expansion(end + 1);
                }
                None => self.endless(),
            },
            Some('\'') if self.quoting == Quoting::None => match closing_ansi_quote(self.text, start + 1) {
                Some(end) => self.expansion(end + 1),
                None => self.endless(),
            },
            Some('"') if self.quoting == Quoting::None => {
                self.expansion(start + 1);
                self.quoting = Quoting::Double;
            }
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                let name = self.text[start..].bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
                let length = name.count();
                self.expansion(start + length);
            }
            Some(c) if c.is_ascii_digit() || "@*#?-$!".contains(c) => self.expansion(start + 1),
            _ => self.plain('$'),
        }
    }

    /// `$(`, or `$((` when it is arithmetic all the way to its `))`.
    fn substitution(&mut self, from: usize) {
        if self.text[from..].starts_with('(')
            && let Some(end) = closing(self.text, from + 1, Opened::Arithmetic)
            && self.text[..end].ends_with(')')
        {
            embedded(&self.text[from + 1..end], &mut self.inner, &mut self.doubts);
            return self.expansion(end + 1);
        }
        match closing(self.text, from, Opened::Commands) {
            Some(end) => {
                self.inner.push(self.text[from..end].to_owned());
                self.expansion(end + 1);
            }
            None => self.endless(),
        }
    }

    /// `${…}`: the parsers disagree on what quotes mean inside it, and some of its operators assign or evaluate.
    fn parameter(&mut self, from: usize) {
        let quoted = self.quoting != Quoting::None;
        let Some(end) = closing(self.text, from, Opened::Parameter { quoted }) else {
            return self.endless();
        };
        let inside = &self.text[from..end];
        if ["$(", "`", "<(", ">("].iter().any(|opener| inside.contains(opener)) || inside.ends_with("@P") {
            self.doubts.push(Doubt::HiddenSubstitution { text: self.text.to_owned() });
        }
        let named = inside.trim_start_matches('!');
        let length = named.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count();
        if named[length..].starts_with(":=") || named[length..].starts_with('=') {
            self.doubts.push(Doubt::Environment { name: named[..length].to_owned() });
        }
        embedded(inside, &mut self.inner, &mut self.doubts);
        self.expansion(end + 1);
    }
}

/// Whether the text behind a `{` makes it a brace expansion.
fn is_brace_expansion(rest: &str) -> bool {
    rest.find('}').is_some_and(|end| rest[..end].contains(',') || rest[..end].contains(".."))
        || rest.find(',').is_some_and(|comma| rest[comma..].contains('}'))
}

#[cfg(test)]
mod tests {
    use super::{Word, scan, scan_document};

    fn known(text: &str) -> Option<String> {
        scan(text).word.known().map(str::to_owned)
    }

    #[test]
    fn removes_quoting_and_knows_when_it_cannot() {
        for (text, expected) in [
            ("rm", "rm"),
            ("'r'm", "rm"),
            ("\\rm", "rm"),
            ("r\"m\"", "rm"),
            ("'$(nc x)'", "$(nc x)"),
            ("\"a\\$b\\c\"", "a$b\\c"),
            ("{}", "{}"),
            ("[", "["),
            ("a$", "a$"),
            ("", ""),
        ] {
            assert_eq!(known(text).as_deref(), Some(expected), "{text}");
        }
        for text in ["$x", "`a`", "$(a)", "$'r'", "$\"r\"", "r?", "*", "{a,b}", "[ab]", "${x}", "$((1))", "\"$@\""] {
            assert_eq!(known(text), None, "{text}");
        }
    }

    #[test]
    fn hands_out_substitutions() {
        assert_eq!(scan("a$(b c)d`e`").inner, ["b c", "e"]);
        assert_eq!(scan("\"$(b \"$(c)\")\"").inner, ["b \"$(c)\""]);
        assert_eq!(scan("$((1+$(c)))").inner, ["c"]);
        assert_eq!(scan("$((a) )").inner, ["(a) "]);
        assert_eq!(scan("${x:-$(c)}").inner, ["c"]);
        assert_eq!(scan("\"${x:-'$(c)'}\"").inner, ["c"]);
        assert_eq!(scan("`a \\`b\\``").inner, ["a `b`"]);
        assert_eq!(scan("'$(c)'").inner, Vec::<String>::new());
        assert_eq!(scan_document("it's \"$(c)\" \\$(d)").inner, ["c"]);
        assert!(!scan("${x:-`c`}").doubts.is_empty());
        assert!(!scan("'a[$(c)]'").doubts.is_empty());
        assert!(scan("'$(c)'").doubts.is_empty());
    }

    #[test]
    fn shapes_cover_what_a_word_can_become() {
        let shape = |text: &str| match scan(text).word {
            Word::Unknown { shape, .. } => shape,
            Word::Known(text) => text,
        };
        assert_eq!(shape("*.rs"), "*.rs");
        assert_eq!(shape("$HOME/.ssh/id_*"), "**/.ssh/id_*");
        assert_eq!(shape("'*'$x"), "\\***");
        assert_eq!(shape(".e[mn]v"), ".e**");
        assert_eq!(shape("{a,$(b)}c"), "**");
    }
}
