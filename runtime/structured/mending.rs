//! Mends what models write that is almost JSON: for objects that are checked afterwards, never for calls that run.
//!
//! Mended are line ends inside of strings, unknown escapes, single quotes, names without quotes, trailing commas, comments,
//! and Python's words. What must stay true: nothing that is missing is added, so a text that was cut stays cut, and no
//! digit changes.

use toolwarden_tools::json_depth::JSON_DEPTH_MAX;

/// The value that begins at a place, as JSON, and where it ends; none when it cannot be read even so.
pub fn mended(text: &str, at: usize) -> Option<(String, usize)> {
    let mut mending = Mending { text, at, out: String::new() };
    mending.value(0)?;
    Some((mending.out, mending.at))
}

struct Mending<'a> {
    text: &'a str,
    at: usize,
    out: String,
}

impl Mending<'_> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    /// Passes over blanks and comments.
    fn skip(&mut self) -> Option<()> {
        loop {
            let rest = self.rest();
            let passed = match rest.as_bytes() {
                [byte, ..] if byte.is_ascii_whitespace() => 1,
                [b'/', b'/', ..] | [b'#', ..] => rest.find('\n').unwrap_or(rest.len()),
                [b'/', b'*', ..] => rest.find("*/")? + 2,
                _ => return Some(()),
            };
            self.at += passed;
        }
    }

    /// Recursion is bounded.
    fn value(&mut self, depth: usize) -> Option<()> {
        if depth > JSON_DEPTH_MAX {
            return None;
        }
        self.skip()?;
        match self.byte()? {
            b'{' => self.several(b'{', b'}', depth),
            b'[' => self.several(b'[', b']', depth),
            quote @ (b'"' | b'\'') => self.string(quote),
            _ => self.bare(),
        }
    }

    /// An object or an array: `{` or `[`, and what closes it.
    fn several(&mut self, open: u8, close: u8, depth: usize) -> Option<()> {
        self.at += 1;
        self.out.push(char::from(open));
        let mut is_first = true;
        loop {
            self.skip()?;
            if self.byte()? == close {
                self.at += 1;
                self.out.push(char::from(close));
                return Some(());
            }
            if !is_first {
                self.out.push(',');
            }
            is_first = false;
            if open == b'{' {
                self.key()?;
                self.skip()?;
                if self.byte()? != b':' {
                    return None;
                }
                self.at += 1;
                self.out.push(':');
            }
            self.value(depth + 1)?;
            self.skip()?;
            match self.byte()? {
                b',' => self.at += 1,
                byte if byte == close => {}
                _ => return None,
            }
        }
    }

    fn key(&mut self) -> Option<()> {
        match self.byte()? {
            quote @ (b'"' | b'\'') => self.string(quote),
            _ => {
                let word = self.word();
                if word.is_empty() || word.starts_with(|c: char| c.is_ascii_digit()) {
                    return None;
                }
                self.out.push('"');
                self.out.push_str(&word);
                self.out.push('"');
                Some(())
            }
        }
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '$')).unwrap_or(rest.len());
        let word = rest[..end].to_owned();
        self.at += end;
        word
    }

    /// A number or a word.
    fn bare(&mut self) -> Option<()> {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c))).unwrap_or(rest.len());
        let word = match &rest[..end] {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            "" => return None,
            other => other,
        };
        // What is neither is refused by whoever reads the result.
        let word = word.to_owned();
        self.out.push_str(&word);
        self.at += end;
        Some(())
    }

    fn string(&mut self, quote: u8) -> Option<()> {
        self.at += 1;
        self.out.push('"');
        loop {
            let c = self.rest().chars().next()?;
            self.at += c.len_utf8();
            match c {
                c if c == char::from(quote) => {
                    self.out.push('"');
                    return Some(());
                }
                '"' => self.out.push_str("\\\""),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                c if c < ' ' => self.out.push_str(&format!("\\u{:04x}", u32::from(c))),
                '\\' => self.escape()?,
                c => self.out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let c = self.rest().chars().next()?;
        match c {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                self.out.push('\\');
                self.out.push(c);
            }
            'u' if self.rest().get(1..5).is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit())) => {
                self.out.push_str("\\u");
            }
            '\'' => self.out.push('\''),
            // A backslash that was meant as one.
            _ => {
                self.out.push_str("\\\\");
                return Some(());
            }
        }
        self.at += c.len_utf8();
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::mended;

    #[test]
    fn almost_json_becomes_json() {
        // Case C150.
        for (text, json) in [
            (r#"{"ns":"Lib\Map"}"#, r#"{"ns":"Lib\\Map"}"#),
            ("{\"a\":\"x\ny\"}", r#"{"a":"x\ny"}"#),
            (r#"{"a":[1,2,],}"#, r#"{"a":[1,2]}"#),
            (r#"{'a':'it\'s \"so\"'}"#, r#"{"a":"it's \"so\""}"#),
            ("{a: True, b: False, c: None}", r#"{"a":true,"b":false,"c":null}"#),
            ("{ // one\n \"a\": 1 /* two */, # three\n \"b\": -1.50e400 }", r#"{"a":1,"b":-1.50e400}"#),
            ("[\"\u{1}\\u00e9\\ud83d\"]", r#"["\u0001\u00e9\ud83d"]"#),
        ] {
            assert_eq!(mended(text, 0), Some((json.to_owned(), text.len())), "{text}");
        }
    }

    #[test]
    fn what_is_cut_stays_cut() {
        for text in ["{\"a\":1", "[1,", "\"abc", "{\"a\"", "{", "'x\\", "/* x"] {
            assert_eq!(mended(text, 0), None, "{text}");
        }
        assert_eq!(mended(&"[".repeat(10_000), 0), None);
        assert_eq!(mended("x y", 0), Some(("x".to_owned(), 1)));
    }
}
