//! Text as it stands on a terminal at last: redraws collapsed, control sequences gone.
//!
//! For the model, who pays for every byte and cannot use colours, and for logs, which must not carry commands to the
//! terminal they are read on. A line ends at LF and nowhere else: a lone CR goes back to the start of the line, and
//! what is written then replaces the whole of it. No output holds a control character but TAB and LF; a NUL is
//! shown as `␀`, for it is data as often as not.

use std::borrow::Cow;

const ESCAPE: char = '\u{1b}';

/// The text without its control characters, each line as it was drawn last.
pub fn settled(text: &str) -> Cow<'_, str> {
    if !text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut screen = Screen { text: String::with_capacity(text.len()), line_start: 0, at_start: false };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\n' => screen.end_line(),
            '\r' => screen.at_start = true,
            '\u{8}' => screen.back(),
            '\0' => screen.put('␀'),
            ESCAPE => rest = screen.escape(rest),
            '\u{9b}' => rest = screen.csi(rest),
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => rest = after_string(rest),
            c if c.is_control() && c != '\t' => {}
            c => screen.put(c),
        }
    }
    Cow::Owned(screen.text)
}

/// Whether lines were drawn over: something that was written does not stand in [`settled`].
pub fn has_redraws(text: &str) -> bool {
    let bytes = text.as_bytes();
    let over = |at: usize| !matches!(bytes.get(at + 1), None | Some(b'\n' | b'\r'));
    memchr::memchr2_iter(b'\r', 8, bytes).any(|at| bytes[at] == 8 || over(at))
}

/// The lines drawn so far.
struct Screen {
    text: String,
    /// Where the line in progress starts.
    line_start: usize,
    /// Whether the next character starts the line anew.
    at_start: bool,
}

impl Screen {
    fn put(&mut self, c: char) {
        if self.at_start {
            self.erase();
        }
        self.text.push(c);
    }

    fn end_line(&mut self) {
        self.text.push('\n');
        self.line_start = self.text.len();
        self.at_start = false;
    }

    fn back(&mut self) {
        if !self.at_start && self.text.len() > self.line_start {
            self.text.pop();
        }
    }

    fn erase(&mut self) {
        self.text.truncate(self.line_start);
        self.at_start = false;
    }

    /// Goes past what follows an ESC.
    fn escape<'a>(&mut self, rest: &'a str) -> &'a str {
        match rest.chars().next() {
            Some('[') => self.csi(&rest[1..]),
            Some(']' | 'P' | 'X' | '^' | '_') => after_string(&rest[1..]),
            _ => {
                let after = rest.trim_start_matches(|c| matches!(c, ' '..='/'));
                after.strip_prefix(|c| matches!(c, '0'..='~')).unwrap_or(after)
            }
        }
    }

    /// Goes past parameters and the final letter; only erasing the line means something here.
    fn csi<'a>(&mut self, rest: &'a str) -> &'a str {
        let after = rest.trim_start_matches(|c| matches!(c, ' '..='?'));
        let parameters = &rest[..rest.len() - after.len()];
        match after.chars().next() {
            Some('K') if parameters == "2" || (self.at_start && matches!(parameters, "" | "0")) => self.erase(),
            _ => {}
        }
        after.strip_prefix(|c| matches!(c, '@'..='~')).unwrap_or(after)
    }
}

/// Goes past a string for the terminal (a title, a link); one that is not ended ends with its line.
fn after_string(rest: &str) -> &str {
    let end = rest.find(['\u{7}', '\u{9c}', '\n', ESCAPE]).unwrap_or(rest.len());
    let after = &rest[end..];
    after.strip_prefix("\u{1b}\\").or_else(|| after.strip_prefix(['\u{7}', '\u{9c}'])).unwrap_or(after)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::settled;

    // Case C020: redraws and colours.
    #[test]
    fn a_line_stands_as_it_was_drawn_last() {
        let shown = [
            ("10%\r50%\r100%\n\u{1b}[31mred\u{1b}[0m\u{1b}]0;t\u{7}\n", "100%\nred\n"),
            ("dos\r\nlines\r\n", "dos\nlines\n"),
            ("first\rsecond\r", "second"),
            ("working\r\u{1b}[Kdone", "done"),
            ("working\u{1b}[2K\r", ""),
            ("kept\u{1b}[K\n", "kept\n"),
            ("|\u{8}/\u{8}-\u{8}done\n\u{8}x", "done\nx"),
            ("N\u{8}NA\u{8}AME", "NAME"),
            ("\u{1b}]8;;http://a/\u{1b}\\link\u{1b}]8;;\u{1b}\\!", "link!"),
            ("\u{9b}1mbold\u{9d}title\u{9c}\u{85}", "bold"),
            ("\u{1b}(Bplain\u{1b}7\u{1b}=", "plain"),
            ("\u{1b}]never ended\nnext", "\nnext"),
            ("\u{1b}[38;5;1", ""),
            ("a\u{1b}", "a"),
            ("a\0b\u{7}\u{c}c\td", "a␀bc\td"),
            ("é\r中\u{1b}[1m文\n", "中文\n"),
        ];
        for (raw, expected) in shown {
            assert_eq!(settled(raw), expected, "{raw:?}");
        }
        assert!(matches!(settled("plain\ttext\n"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_drawn_over_is_told_from_line_ends_and_colours() {
        for text in ["10%\r100%\n", "N\u{8}NAME", "a\rb"] {
            assert!(super::has_redraws(text), "{text:?}");
        }
        for text in ["dos\r\nlines\r\r\n", "last\r", "\u{1b}[31mred\u{1b}[0m\n", ""] {
            assert!(!super::has_redraws(text), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_control_character_gets_through(chars in prop::collection::vec(
            prop::sample::select(vec!['a', '中', '\u{1b}', '[', ']', 'K', '\r', '\n', '\u{8}', '\u{7}', '\u{9b}', '2', '\0']), 0..200,
        )) {
            let raw: String = chars.into_iter().collect();
            let shown = settled(&raw);
            prop_assert!(!shown.chars().any(|c| c.is_control() && c != '\n'));
            prop_assert_eq!(shown.matches('\n').count(), raw.matches('\n').count());
            prop_assert_eq!(settled(&shown), shown.as_ref());
        }

        #[test]
        fn any_text_is_taken(raw in any::<String>()) {
            prop_assert!(settled(&raw).len() <= raw.len() * 3);
        }
    }
}
