//! Reads JSON byte by byte, without building anything: is it well formed, and which bytes mean something.
//!
//! Memory is one bit of state for each open bracket, of which there are at most [`DEPTH_MAX`]. The text is known to
//! be UTF-8. Accepted is what `serde_json` accepts, but for the size of numbers, which is not looked at.

/// How deep arrays and objects may be inside of each other.
const DEPTH_MAX: usize = 128;

/// What a byte is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It belongs to a value; or it opens, closes or parts something.
    Content,
    /// It is blank between values.
    Blank,
}

/// Where in the text we are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A value must come; for the first of an array, its end may too.
    Value {
        or_end: bool,
    },
    /// A key must come; for the first of an object, its end may too.
    Key {
        or_end: bool,
    },
    Colon,
    /// A value is complete.
    After,
    Text {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
    /// Hex digits of `\u`: how many are missing, the number so far, and whether it must be a low surrogate.
    Hex {
        is_key: bool,
        missing: u8,
        unit: u16,
        low: bool,
    },
    /// A high surrogate was read: `\` and `u` must follow.
    LowEscape {
        is_key: bool,
        slash: bool,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// What of a number was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

/// A reader of one JSON text.
#[derive(Debug)]
pub(super) struct JsonScan {
    state: State,
    /// For each open bracket, whether it is an object's.
    open: Vec<bool>,
}

/// The text is not JSON, or nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

impl JsonScan {
    pub(super) fn new() -> Self {
        Self { state: State::Value { or_end: false }, open: Vec::new() }
    }

    /// How many brackets are open.
    pub(super) fn depth(&self) -> usize {
        self.open.len()
    }

    /// Whether the text may end here.
    pub(super) fn is_complete(&self) -> bool {
        self.open.is_empty() && (self.state == State::After || matches!(self.state, State::Number(n) if n.may_end()))
    }

    /// How many of these bytes are plain characters inside of a text, and so change nothing.
    pub(super) fn plain_bytes(&self, bytes: &[u8]) -> usize {
        match self.state {
            State::Text { .. } => {
                bytes.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=31)).unwrap_or(bytes.len())
            }
            _ => 0,
        }
    }

    /// Takes the next byte.
    pub(super) fn step(&mut self, byte: u8) -> Result<Meaning, Malformed> {
        if let State::Number(number) = self.state {
            if let Some(next) = number.next(byte) {
                self.state = State::Number(next);
                return Ok(Meaning::Content);
            }
            if !number.may_end() {
                return Err(Malformed);
            }
            self.state = State::After;
        }
        if matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
            && matches!(self.state, State::Value { .. } | State::Key { .. } | State::Colon | State::After)
        {
            return Ok(Meaning::Blank);
        }
        self.state = match (self.state, byte) {
            (State::Value { or_end: true }, b']') | (State::Key { or_end: true }, b'}') => {
                self.open.pop();
                State::After
            }
            (State::Value { .. }, _) => self.begin_value(byte)?,
            (State::Key { .. }, b'"') => State::Text { is_key: true },
            (State::Colon, b':') => State::Value { or_end: false },
            (State::After, _) => self.after_value(byte)?,
            (State::Text { is_key }, b'"') => {
                if is_key {
                    State::Colon
                } else {
                    State::After
                }
            }
            (State::Text { is_key }, b'\\') => State::Escape { is_key },
            (State::Text { is_key }, 32..) => State::Text { is_key },
            (State::Escape { is_key }, b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => {
                State::Text { is_key }
            }
            (State::Escape { is_key }, b'u') => State::Hex { is_key, missing: 4, unit: 0, low: false },
            (State::Hex { is_key, missing, unit, low }, _) => after_hex_digit(is_key, missing, unit, low, byte)?,
            (State::LowEscape { is_key, slash: true }, b'\\') => State::LowEscape { is_key, slash: false },
            (State::LowEscape { is_key, slash: false }, b'u') => State::Hex { is_key, missing: 4, unit: 0, low: true },
            (State::Word([expected]), _) if *expected == byte => State::After,
            (State::Word([expected, rest @ ..]), _) if *expected == byte => State::Word(rest),
            _ => return Err(Malformed),
        };
        Ok(Meaning::Content)
    }

    fn begin_value(&mut self, byte: u8) -> Result<State, Malformed> {
        Ok(match byte {
            b'[' | b'{' if self.open.len() == DEPTH_MAX => return Err(Malformed),
            b'[' => {
                self.open.push(false);
                State::Value { or_end: true }
            }
            b'{' => {
                self.open.push(true);
                State::Key { or_end: true }
            }
            b'"' => State::Text { is_key: false },
            b'-' => State::Number(Number::Minus),
            b'0' => State::Number(Number::Zero),
            b'1'..=b'9' => State::Number(Number::Digits),
            b't' => State::Word(b"rue"),
            b'f' => State::Word(b"alse"),
            b'n' => State::Word(b"ull"),
            _ => return Err(Malformed),
        })
    }

    fn after_value(&mut self, byte: u8) -> Result<State, Malformed> {
        let in_object = *self.open.last().ok_or(Malformed)?;
        match (byte, in_object) {
            (b',', true) => Ok(State::Key { or_end: false }),
            (b',', false) => Ok(State::Value { or_end: false }),
            (b'}', true) | (b']', false) => {
                self.open.pop();
                Ok(State::After)
            }
            _ => Err(Malformed),
        }
    }
}

fn after_hex_digit(is_key: bool, missing: u8, unit: u16, low: bool, byte: u8) -> Result<State, Malformed> {
    let digit = char::from(byte).to_digit(16).and_then(|digit| u16::try_from(digit).ok()).ok_or(Malformed)?;
    let unit = (unit << 4) | digit;
    match (missing - 1, low, unit) {
        (missing @ 1.., ..) => Ok(State::Hex { is_key, missing, unit, low }),
        (0, true, 0xdc00..=0xdfff) => Ok(State::Text { is_key }),
        (0, false, 0xd800..=0xdbff) => Ok(State::LowEscape { is_key, slash: true }),
        (0, true, _) | (0, false, 0xdc00..=0xdfff) => Err(Malformed),
        (0, false, _) => Ok(State::Text { is_key }),
    }
}

impl Number {
    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits)
    }

    /// What was read last when this byte belongs to the number too.
    fn next(self, byte: u8) -> Option<Self> {
        Some(match (self, byte) {
            (Self::Minus, b'0') => Self::Zero,
            (Self::Minus, b'1'..=b'9') | (Self::Digits, b'0'..=b'9') => Self::Digits,
            (Self::Zero | Self::Digits, b'.') => Self::Point,
            (Self::Point | Self::Fraction, b'0'..=b'9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, b'e' | b'E') => Self::Exponent,
            (Self::Exponent, b'+' | b'-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, b'0'..=b'9') => Self::ExponentDigits,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert_eq, proptest};
    use proptest::sample::select;
    use serde_json::Value;

    use super::{JsonScan, Meaning};

    fn accepts(text: &str) -> bool {
        let mut scan = JsonScan::new();
        text.bytes().all(|byte| scan.step(byte).is_ok()) && scan.is_complete()
    }

    #[test]
    fn it_accepts_what_is_json_and_nothing_else() {
        for text in [
            "[]",
            "{}",
            " [ 1 , 2.5e-3, -0, 0.1, 1E+9, -12 ] ",
            r#"{"a":{"b":[null,true,false]},"c":"\u00e9\ud83d\ude00\n\/"}"#,
            "12",
            "\"\"",
            "[[[]]]",
            "[\"é界\"]",
        ] {
            assert!(accepts(text), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_ok(), "{text}");
        }
        for text in [
            "",
            "[",
            "]",
            "[1,]",
            "[,1]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "{\"a\":1,}",
            "01",
            "1.",
            ".5",
            "-",
            "1e",
            "+1",
            "tru",
            "truee",
            "nul",
            "[1 2]",
            "\"",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\\ud800\"",
            "\"\\udc00\"",
            "\"\\ud800\\n\"",
            "\"\\ud800\\u0041\"",
            "\"a\nb\"",
            "[1]x",
            "[1][2]",
            "{]",
            "[}",
        ] {
            assert!(!accepts(text), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
        }
        assert!(accepts(&format!("{}{}", "[".repeat(128), "]".repeat(128))));
        assert!(!accepts(&format!("{}{}", "[".repeat(129), "]".repeat(129))));
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_parser(parts in vec(select(vec![
            "[", "]", "{", "}", ",", ":", "\"a\"", "\"", "1", "-", "0", ".", "e", "true", "null", " ", "\\", "\\u0041", "\\ud800", "\n",
        ]), 0..9)) {
            let text = parts.concat();
            prop_assert_eq!(accepts(&text), serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
        }
    }

    #[test]
    fn blanks_between_values_mean_nothing_and_inside_of_texts_much() {
        let mut scan = JsonScan::new();
        let kept: Vec<u8> =
            b" [ \"a b\" , 1\n]\t".iter().copied().filter(|byte| scan.step(*byte) == Ok(Meaning::Content)).collect();
        assert_eq!(kept, b"[\"a b\",1]");
    }
}
