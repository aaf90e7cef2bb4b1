//! Finds where an expansion that has begun ends, without recursion.
//!
//! Knows quotes, nested expansions, comments and here-documents. `case` inside a substitution is refused: its
//! patterns close parentheses that nothing opened.

/// What was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// `$(`, `<(`, `>(`, or a parenthesis inside one.
    Commands,
    /// `$((`, or a parenthesis inside it: twice on the stack.
    Arithmetic,
    /// `${`; in double quotes a single quote is a plain character there.
    Parameter {
        /// Whether it stands in double quotes.
        quoted: bool,
    },
    /// `$[`
    Bracket,
    /// `"`
    Quotes,
}

/// A here-document whose body has not come yet.
struct HereDocument {
    delimiter: String,
    strip_tabs: bool,
}

struct Scanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Opened>,
    documents: Vec<HereDocument>,
}

/// The index of the byte that closes what was opened just before `from`; none when nothing does, or when that
/// cannot be told.
pub(super) fn closing(text: &str, from: usize, opened: Opened) -> Option<usize> {
    let stack = if opened == Opened::Arithmetic { vec![opened, opened] } else { vec![opened] };
    let mut scanner = Scanner { text, bytes: text.as_bytes(), at: from, stack, documents: Vec::new() };
    scanner.run()
}

/// The index of the backtick that closes one opened just before `from`.
pub(super) fn closing_backtick(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'`' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// The index of the quote that closes `$'`, opened just before `from`.
pub(super) fn closing_ansi_quote(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\'' => return Some(at),
            _ => at += 1,
        }
    }
    None
}

impl Scanner<'_> {
    fn run(&mut self) -> Option<usize> {
        while self.at < self.bytes.len() {
            let top = *self.stack.last()?;
            let byte = self.bytes[self.at];
            if closes(top, byte) {
                self.stack.pop();
                if self.stack.is_empty() {
                    return Some(self.at);
                }
                self.at += 1;
                continue;
            }
            match byte {
                b'\\' => self.at += 2,
                b'`' => self.at = closing_backtick(self.text, self.at + 1)? + 1,
                b'$' => self.dollar(top)?,
                b'"' => self.open(Opened::Quotes, 1),
                b'\'' if takes_single_quotes(top) => {
                    self.at += 2 + self.text.get(self.at + 1..)?.find('\'')?;
                }
                b'(' if top == Opened::Commands || top == Opened::Arithmetic => self.open(top, 1),
                b'[' if top == Opened::Bracket => self.open(top, 1),
                _ if top == Opened::Commands => self.command_byte(byte)?,
                _ => self.at += 1,
            }
        }
        None
    }

    fn open(&mut self, opened: Opened, bytes: usize) {
        self.stack.push(opened);
        self.at += bytes;
    }

    fn dollar(&mut self, top: Opened) -> Option<()> {
        let quoted = self.stack.contains(&Opened::Quotes);
        match (self.bytes.get(self.at + 1), self.bytes.get(self.at + 2)) {
            (Some(b'('), Some(b'(')) => {
                self.open(Opened::Arithmetic, 3);
                self.stack.push(Opened::Arithmetic);
            }
            (Some(b'('), _) => self.open(Opened::Commands, 2),
            (Some(b'{'), _) => self.open(Opened::Parameter { quoted }, 2),
            (Some(b'['), _) => self.open(Opened::Bracket, 2),
            (Some(b'\''), _) if takes_single_quotes(top) => {
                self.at = closing_ansi_quote(self.text, self.at + 2)? + 1;
            }
            _ => self.at += 1,
        }
        Some(())
    }

    /// A byte of a command that is neither quoting nor nesting: comments, here-documents and `case`.
    fn command_byte(&mut self, byte: u8) -> Option<()> {
        if !matches!(byte, b'#' | b'\n' | b'<' | b'c') {
            self.at += 1;
            return Some(());
        }
        let rest = self.text.get(self.at..)?;
        let before = self.at.checked_sub(1).map(|index| self.bytes[index]);
        let word_starts = before.is_none_or(|byte| byte.is_ascii_whitespace() || b";&|()".contains(&byte));
        if byte == b'#' && word_starts {
            self.at += rest.find('\n').unwrap_or(rest.len());
        } else if byte == b'\n' && !self.documents.is_empty() {
            self.at += 1;
            self.skip_documents()?;
        } else if rest.starts_with("<<<") {
            self.at += 3;
        } else if rest.starts_with("<<") {
            self.here_document()?;
        } else if word_starts && rest.strip_prefix("case").is_some_and(|rest| rest.starts_with([' ', '\t', '\n'])) {
            return None;
        } else {
            self.at += 1;
        }
        Some(())
    }

    fn here_document(&mut self) -> Option<()> {
        self.at += 2;
        let strip_tabs = self.bytes.get(self.at) == Some(&b'-');
        if strip_tabs {
            self.at += 1;
        }
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t')) {
            self.at += 1;
        }
        let rest = self.text.get(self.at..)?;
        let end = rest
            .find(|c: char| c.is_ascii_whitespace() || matches!(c, ';' | '&' | '|' | '(' | ')' | '<' | '>'))
            .unwrap_or(rest.len());
        let delimiter = rest[..end].replace(['\'', '"', '\\'], "");
        if delimiter.is_empty() {
            return None;
        }
        self.at += end;
        self.documents.push(HereDocument { delimiter, strip_tabs });
        Some(())
    }

    /// Skips the bodies that begin at the current line.
    fn skip_documents(&mut self) -> Option<()> {
        for document in std::mem::take(&mut self.documents) {
            loop {
                let rest = self.text.get(self.at..)?;
                if rest.is_empty() {
                    return None;
                }
                let end = rest.find('\n').unwrap_or(rest.len());
                let line = &rest[..end];
                let line = if document.strip_tabs { line.trim_start_matches('\t') } else { line };
                self.at += (end + 1).min(rest.len());
                if line == document.delimiter {
                    break;
                }
            }
        }
        Some(())
    }
}

fn closes(opened: Opened, byte: u8) -> bool {
    match opened {
        Opened::Commands | Opened::Arithmetic => byte == b')',
        Opened::Parameter { .. } => byte == b'}',
        Opened::Bracket => byte == b']',
        Opened::Quotes => byte == b'"',
    }
}

fn takes_single_quotes(opened: Opened) -> bool {
    !matches!(opened, Opened::Quotes | Opened::Parameter { quoted: true })
}

#[cfg(test)]
mod tests {
    use super::{Opened, closing};

    fn rest(text: &str) -> Option<&str> {
        closing(text, 0, Opened::Commands).map(|end| &text[end + 1..])
    }

    #[test]
    fn finds_the_end_through_quotes_comments_and_documents() {
        assert_eq!(rest("a) b"), Some(" b"));
        assert_eq!(rest("a \")\" ')' \\) $(b) `)` ) c"), Some(" c"));
        assert_eq!(rest("a # )\n) c"), Some(" c"));
        assert_eq!(rest("cat <<'E'\n) \" '\nE\n) c"), Some(" c"));
        assert_eq!(rest("cat <<-E\n\t)\n\tE\n) c"), Some(" c"));
        assert_eq!(rest("echo $((1<<2)) \"${x:-')'}\") c"), Some(" c"));
        assert_eq!(rest("case x in x) a;; esac)"), None);
        assert_eq!(rest("a \"b"), None);
        assert_eq!(rest("(a"), None);
    }
}
