//! JSON as it stands in a text: its parts with their places, not a digit changed.
//!
//! Models write numbers that no machine number holds, and cut their text anywhere; a reader that makes values loses the
//! first and refuses the second. What must stay true: exactly what the standard calls JSON is taken, the walk does not
//! recurse, and its depth is bounded by [`JSON_DEPTH_MAX`].

use std::ops::Range;

use crate::json_depth::JSON_DEPTH_MAX;
use thiserror::Error;

/// What a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartKind {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// The name of a member, with its quotes.
    Key,
    /// A string, with its quotes.
    String,
    /// A number.
    Number,
    /// `true`, `false` or `null`.
    Word,
}

/// A part of a JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is.
    pub kind: PartKind,
    /// Where it stands, in bytes.
    pub at: Range<usize>,
}

/// Why a text is no JSON at some place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum JsonFault {
    /// The text ends before the value does; a string that is cut begins at `begins`.
    #[error("it ends before its value does")]
    Cut {
        /// Where the part begins that is cut.
        begins: usize,
    },
    /// Something else should stand there.
    #[error("{wanted} is wanted at byte {at}")]
    Wrong {
        /// Where.
        at: usize,
        /// What should stand there.
        wanted: &'static str,
    },
    /// Nested too deep.
    #[error("it is nested deeper than {JSON_DEPTH_MAX} levels")]
    TooDeep,
}

/// What may come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    CommaOrEnd,
    Nothing,
}

/// Walks over the parts of one value, from where it is told to begin.
#[derive(Debug)]
pub struct Parts<'a> {
    text: &'a str,
    at: usize,
    /// Whether the text may go on: a number at its very end is not whole then.
    may_go_on: bool,
    /// What is open: true for an object.
    open: Vec<bool>,
    wanted: Wanted,
}

impl<'a> Parts<'a> {
    /// Walks over a value that begins at a place of a whole text.
    pub fn of(text: &'a str, at: usize) -> Self {
        Self { text, at, may_go_on: false, open: Vec::new(), wanted: Wanted::Value }
    }

    /// Walks over a value of a text that is still written.
    pub fn of_open(text: &'a str, at: usize) -> Self {
        Self { may_go_on: true, ..Self::of(text, at) }
    }

    /// Where the walk stands: behind the last part.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many objects and arrays are open.
    pub fn depth(&self) -> usize {
        self.open.len()
    }

    /// The next part; none when the value is whole.
    ///
    /// # Errors
    /// [`JsonFault`].
    pub fn next_part(&mut self) -> Result<Option<Part>, JsonFault> {
        if self.wanted == Wanted::Nothing {
            return Ok(None);
        }
        self.skip_blanks();
        if self.wanted == Wanted::CommaOrEnd && self.byte() == Some(b',') {
            self.at += 1;
            self.wanted = if self.open.last() == Some(&true) { Wanted::Key } else { Wanted::Value };
            self.skip_blanks();
        }
        let Some(byte) = self.byte() else { return Err(JsonFault::Cut { begins: self.at }) };
        match (byte, self.wanted) {
            (b'}', Wanted::KeyOrEnd | Wanted::CommaOrEnd) if self.open.last() == Some(&true) => self.close(),
            (b']', Wanted::ValueOrEnd | Wanted::CommaOrEnd) if self.open.last() == Some(&false) => self.close(),
            (b'"', Wanted::Key | Wanted::KeyOrEnd) => self.key(),
            (_, Wanted::Key) => Err(self.wrong("a name in quotes")),
            (_, Wanted::KeyOrEnd) => Err(self.wrong("a name in quotes or }")),
            (_, Wanted::CommaOrEnd) => {
                Err(self.wrong(if self.open.last() == Some(&true) { "a comma or }" } else { "a comma or ]" }))
            }
            (b'{' | b'[', _) => self.begin(byte == b'{'),
            (b'"', _) => {
                let end = string_end(self.text, self.at)?;
                Ok(Some(self.scalar(PartKind::String, end)))
            }
            (b'-' | b'0'..=b'9', _) => {
                let end = self.number_end()?;
                Ok(Some(self.scalar(PartKind::Number, end)))
            }
            _ => {
                let end = self.word_end()?;
                Ok(Some(self.scalar(PartKind::Word, end)))
            }
        }
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn wrong(&self, wanted: &'static str) -> JsonFault {
        JsonFault::Wrong { at: self.at, wanted }
    }

    fn begin(&mut self, is_object: bool) -> Result<Option<Part>, JsonFault> {
        if self.open.len() >= JSON_DEPTH_MAX {
            return Err(JsonFault::TooDeep);
        }
        self.open.push(is_object);
        self.wanted = if is_object { Wanted::KeyOrEnd } else { Wanted::ValueOrEnd };
        let kind = if is_object { PartKind::ObjectStart } else { PartKind::ArrayStart };
        Ok(Some(self.take(kind, self.at + 1)))
    }

    fn close(&mut self) -> Result<Option<Part>, JsonFault> {
        let kind = if self.open.pop() == Some(true) { PartKind::ObjectEnd } else { PartKind::ArrayEnd };
        self.after_value();
        Ok(Some(self.take(kind, self.at + 1)))
    }

    fn key(&mut self) -> Result<Option<Part>, JsonFault> {
        let (begins, end) = (self.at, string_end(self.text, self.at)?);
        let part = self.take(PartKind::Key, end);
        self.skip_blanks();
        match self.byte() {
            Some(b':') => self.at += 1,
            Some(_) => return Err(self.wrong("a colon")),
            None => return Err(JsonFault::Cut { begins }),
        }
        self.wanted = Wanted::Value;
        Ok(Some(part))
    }

    fn scalar(&mut self, kind: PartKind, end: usize) -> Part {
        self.after_value();
        self.take(kind, end)
    }

    fn after_value(&mut self) {
        self.wanted = if self.open.is_empty() { Wanted::Nothing } else { Wanted::CommaOrEnd };
    }

    fn take(&mut self, kind: PartKind, end: usize) -> Part {
        let at = self.at..end;
        self.at = end;
        Part { kind, at }
    }

    fn number_end(&self) -> Result<usize, JsonFault> {
        let bytes = self.text.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let needed = |at: usize| match bytes.get(at) {
            Some(byte) if byte.is_ascii_digit() => Ok(digits(at)),
            Some(_) => Err(JsonFault::Wrong { at, wanted: "a digit" }),
            None => Err(JsonFault::Cut { begins: self.at }),
        };
        let begin = self.at + usize::from(bytes[self.at] == b'-');
        let mut end = if bytes.get(begin) == Some(&b'0') { begin + 1 } else { needed(begin)? };
        if bytes.get(end) == Some(&b'.') {
            end = needed(end + 1)?;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            end = needed(end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-'))))?;
        }
        match bytes.get(end) {
            None if self.may_go_on => Err(JsonFault::Cut { begins: self.at }),
            Some(byte) if byte.is_ascii_alphanumeric() => Err(JsonFault::Wrong { at: end, wanted: "the number's end" }),
            _ => Ok(end),
        }
    }

    fn word_end(&self) -> Result<usize, JsonFault> {
        let rest = &self.text.as_bytes()[self.at..];
        for word in ["true", "false", "null"] {
            if rest.starts_with(word.as_bytes()) {
                return Ok(self.at + word.len());
            }
            if word.as_bytes().starts_with(rest) {
                return Err(JsonFault::Cut { begins: self.at });
            }
        }
        Err(self.wrong("a value"))
    }
}

/// Where the value ends that begins at a place.
///
/// # Errors
/// [`JsonFault`].
pub fn value_end(text: &str, at: usize) -> Result<usize, JsonFault> {
    let mut parts = Parts::of(text, at);
    while parts.next_part()?.is_some() {}
    Ok(parts.at())
}

/// Where the string ends whose opening quote stands at a place.
fn string_end(text: &str, quote: usize) -> Result<usize, JsonFault> {
    let mut at = quote + 1;
    loop {
        match string_step(text, at) {
            Step::On(next) => at = next,
            Step::Quote => return Ok(at + 1),
            Step::Cut => return Err(JsonFault::Cut { begins: quote }),
            Step::Wrong(wanted) => return Err(JsonFault::Wrong { at, wanted }),
        }
    }
}

/// The end of what stands whole of a string that is cut: no half escape, no half pair of surrogates.
///
/// # Errors
/// [`JsonFault::Wrong`] when it is no string at all.
pub fn whole_prefix_end(text: &str, quote: usize) -> Result<usize, JsonFault> {
    let mut at = quote + 1;
    loop {
        match string_step(text, at) {
            Step::On(next) => at = next,
            Step::Quote | Step::Cut => return Ok(at),
            Step::Wrong(wanted) => return Err(JsonFault::Wrong { at, wanted }),
        }
    }
}

/// What stands at a place inside of a string.
enum Step {
    /// A character, or an escape; the next begins there.
    On(usize),
    /// The closing quote.
    Quote,
    /// The text ends.
    Cut,
    Wrong(&'static str),
}

fn string_step(text: &str, at: usize) -> Step {
    let bytes = text.as_bytes();
    match bytes.get(at) {
        None => Step::Cut,
        Some(b'"') => Step::Quote,
        Some(0..=0x1f) => Step::Wrong("no control character in a string"),
        Some(b'\\') => match bytes.get(at + 1) {
            None => Step::Cut,
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => Step::On(at + 2),
            Some(b'u') => match (code_unit(bytes, at), bytes.get(at + 6..)) {
                (Ok(0xd800..=0xdbff), Some(rest)) => match rest {
                    [] | [b'\\'] => Step::Cut,
                    [b'\\', b'u', ..] => match code_unit(bytes, at + 6) {
                        Ok(0xdc00..=0xdfff) => Step::On(at + 12),
                        Ok(_) => Step::Wrong("the other half of a pair of surrogates"),
                        Err(step) => step,
                    },
                    _ => Step::Wrong("the other half of a pair of surrogates"),
                },
                (Ok(0xdc00..=0xdfff), _) => Step::Wrong("the first half of a pair of surrogates"),
                (Ok(_), _) => Step::On(at + 6),
                (Err(step), _) => step,
            },
            Some(_) => Step::Wrong("a known escape"),
        },
        // A run of what needs no look.
        Some(_) => {
            let rest = &bytes[at..];
            let run = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(rest.len());
            Step::On(at + run)
        }
    }
}

/// The number of an escape `\uXXXX` that begins at a place.
fn code_unit(bytes: &[u8], at: usize) -> Result<u32, Step> {
    let mut unit = 0;
    for place in at + 2..at + 6 {
        let Some(byte) = bytes.get(place) else { return Err(Step::Cut) };
        let Some(digit) = char::from(*byte).to_digit(16) else { return Err(Step::Wrong("four hex digits")) };
        unit = unit * 16 + digit;
    }
    Ok(unit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::{JsonFault, Parts, value_end, whole_prefix_end};

    fn takes(text: &str) -> bool {
        value_end(text, 0).is_ok_and(|end| text[end..].trim_ascii().is_empty())
    }

    #[test]
    fn takes_what_the_standard_takes() {
        for text in [
            "{}",
            " [ ] ",
            "0",
            "-0.5e+10",
            "1E400",
            "123456789012345678901234567890",
            "\"\\ud83d\\ude00\"",
            "true",
            "{\"a\":[1,{\"b\":null}],\"c\":\"\u{e9}\\n\"}",
        ] {
            assert!(takes(text), "{text}");
        }
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "\"\n\"",
            "\"\\x\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "nul",
            "True",
            "[1 2]",
            "{\"a\" 1}",
            "{\"a\"}",
            "1x",
            "[}",
            "{]",
        ] {
            assert!(!takes(text), "{text}");
        }
        assert_eq!(value_end(&"[".repeat(500), 0), Err(JsonFault::TooDeep));
    }

    #[test]
    fn a_number_at_the_end_of_an_open_text_is_not_whole() {
        let mut parts = Parts::of_open("[12", 0);
        parts.next_part().unwrap();
        assert_eq!(parts.next_part(), Err(JsonFault::Cut { begins: 1 }));
        assert_eq!(whole_prefix_end("\"a\\ud83d", 0), Ok(2));
        assert_eq!(whole_prefix_end("\"a\\", 0), Ok(2));
        assert_eq!(whole_prefix_end("\"a\\ud83d\\ude00b", 0), Ok(15));
    }

    proptest! {
        /// Another reader, which somebody else wrote, is of the same opinion about any text.
        #[test]
        fn agrees_with_another_reader(text in r#"[\[\]{}",:0-9eE.+\-\\ubn truefalsn]{0,24}"#) {
            let other: Result<Value, _> = serde_json::from_str(&text);
            // It does not take numbers beyond its own.
            let beyond = other.as_ref().is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert!(beyond || takes(&text) == other.is_ok(), "{text}");
        }

        #[test]
        fn any_value_is_one(value in value_of_any_kind()) {
            let text = value.to_string();
            prop_assert_eq!(value_end(&text, 0), Ok(text.len()));
        }
    }

    fn value_of_any_kind() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}
