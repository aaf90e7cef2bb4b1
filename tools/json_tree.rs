//! A JSON value whose numbers stay as they were written.
//!
//! What is judged is a value, and a value of the usual kind loses digits: so the text is kept beside it. What must stay
//! true: written out again, nothing but blanks is different; an object that names a key twice is refused, for readers
//! differ on what it means; nothing is deeper than [`JSON_DEPTH_MAX`](crate::json_depth::JSON_DEPTH_MAX).

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use thiserror::Error;

use crate::exact_number::{Written, is_held, written};
use crate::json_text::{JsonFault, Part, PartKind, Parts};

/// A value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node<'a> {
    /// An object: its members in their order, with keys as they stand in the text and as they read.
    Object(Vec<Member<'a>>),
    /// An array.
    Array(Vec<Node<'a>>),
    /// A string, a number or a word, as it stands in the text.
    Scalar(PartKind, &'a str),
}

/// A member of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name as it stands in the text, with quotes.
    pub raw_key: &'a str,
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: Node<'a>,
}

/// Why a text is no value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TreeFault {
    /// No JSON.
    #[error("not JSON: {0}")]
    Json(#[from] JsonFault),
    /// Something stands behind it.
    #[error("not JSON: something stands behind the value, at byte {0}")]
    Trailing(usize),
    /// A key stands twice.
    #[error("the key {0} stands twice in one object; give it once")]
    Twice(String),
}

impl<'a> Node<'a> {
    /// Reads a text that holds one value and nothing else but blanks.
    ///
    /// # Errors
    /// [`TreeFault`].
    pub fn read(text: &'a str) -> Result<Self, TreeFault> {
        let (node, end) = Self::read_at(text, 0)?;
        match text[end..].find(|c: char| !c.is_ascii_whitespace()) {
            Some(at) => Err(TreeFault::Trailing(end + at)),
            None => Ok(node),
        }
    }

    /// Reads the value that begins at a place; also gives where it ends.
    ///
    /// # Errors
    /// [`TreeFault`].
    pub fn read_at(text: &'a str, at: usize) -> Result<(Self, usize), TreeFault> {
        let mut parts = Parts::of(text, at);
        let first = parts.next_part()?;
        let node = match first {
            Some(part) => build(text, &part, &mut parts)?,
            None => return Err(JsonFault::Cut { begins: at }.into()),
        };
        Ok((node, parts.at()))
    }

    /// The value of a member.
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|member| member.key == key).map(|member| &member.value),
            _ => None,
        }
    }

    /// Its text without blanks between the parts.
    pub fn write(&self) -> String {
        let mut out = String::new();
        self.write_to(&mut out);
        out
    }

    fn write_to(&self, out: &mut String) {
        match self {
            Self::Scalar(_, text) => out.push_str(text),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    item.write_to(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, member) in members.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    out.push_str(member.raw_key);
                    out.push(':');
                    member.value.write_to(out);
                }
                out.push('}');
            }
        }
    }

    /// As a value of the usual kind, in which each number that no machine number can stand for is a string of its digits.
    pub fn to_held_value(&self) -> Value {
        match self {
            Self::Object(members) => {
                let fields = members.iter().map(|member| (member.key.clone(), member.value.to_held_value()));
                Value::Object(fields.collect::<Map<_, _>>())
            }
            Self::Array(items) => Value::Array(items.iter().map(Self::to_held_value).collect()),
            Self::Scalar(PartKind::Number, text) if !is_held(text) => Value::String((*text).to_owned()),
            scalar => scalar.to_value(&mut Rounded::default()),
        }
    }

    /// As a value of the usual kind; `rounded` gets the first number of each kind that lost digits.
    pub fn to_value(&self, rounded: &mut Rounded) -> Value {
        match self {
            Self::Object(members) => {
                let fields = members.iter().map(|member| (member.key.clone(), member.value.to_value(rounded)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
            Self::Array(items) => Value::Array(items.iter().map(|item| item.to_value(rounded)).collect()),
            Self::Scalar(PartKind::Number, text) => rounded.number(text),
            // The walk has taken them already, and so does this reader.
            Self::Scalar(_, text) => serde_json::from_str(text).unwrap_or_default(),
        }
    }
}

/// The first number of a JSON text that no machine number can stand for; none where there is no such number, or no JSON.
pub fn unheld_number(text: &str) -> Option<&str> {
    if !may_be_unheld(text) {
        return None;
    }
    let mut parts = Parts::of(text, text.len() - text.trim_start().len());
    while let Ok(Some(part)) = parts.next_part() {
        let number = &text[part.at];
        if part.kind == PartKind::Number && !is_held(number) {
            return Some(number);
        }
    }
    None
}

/// A look without a walk: such a number has many digits in a row, or an exponent.
fn may_be_unheld(text: &str) -> bool {
    let mut run = 0_usize;
    text.bytes().any(|byte| {
        let had = run;
        run = if byte.is_ascii_digit() { run + 1 } else { 0 };
        run >= DIGITS_HELD || (had > 0 && matches!(byte, b'e' | b'E'))
    })
}

/// Whole numbers with fewer digits are all held.
const DIGITS_HELD: usize = 16;

/// Numbers that lost digits on their way into a value.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rounded {
    /// A whole number.
    pub whole: Option<String>,
    /// A fraction.
    pub fraction: Option<String>,
}

impl Rounded {
    fn number(&mut self, text: &str) -> Value {
        let (number, kind) = written(text);
        let place = match kind {
            Written::Exact => None,
            Written::RoundedWhole => Some(&mut self.whole),
            Written::RoundedFraction => Some(&mut self.fraction),
        };
        if let Some(place) = place {
            place.get_or_insert_with(|| text.to_owned());
        }
        Value::Number(number)
    }
}

/// Recursion is bounded: the walk refuses what is too deep.
fn build<'a>(text: &'a str, part: &Part, parts: &mut Parts<'a>) -> Result<Node<'a>, TreeFault> {
    match part.kind {
        PartKind::ObjectStart => {
            let (mut members, mut keys) = (Vec::new(), BTreeSet::new());
            while let Some(key) = parts.next_part()? {
                if key.kind != PartKind::Key {
                    break;
                }
                let raw_key = &text[key.at];
                let name: String = serde_json::from_str(raw_key).unwrap_or_default();
                if !keys.insert(name.clone()) {
                    return Err(TreeFault::Twice(raw_key[..raw_key.floor_char_boundary(100)].to_owned()));
                }
                let Some(next) = parts.next_part()? else { break };
                let value = build(text, &next, parts)?;
                members.push(Member { raw_key, key: name, value });
            }
            Ok(Node::Object(members))
        }
        PartKind::ArrayStart => {
            let mut items = Vec::new();
            while let Some(next) = parts.next_part()?.filter(|part| part.kind != PartKind::ArrayEnd) {
                items.push(build(text, &next, parts)?);
            }
            Ok(Node::Array(items))
        }
        kind => Ok(Node::Scalar(kind, &text[part.at.clone()])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Node, Rounded, TreeFault, unheld_number};

    #[test]
    fn nothing_but_blanks_is_different() {
        // Case C148.
        let text = " { \"a\" : [ 9007199254740993 , 1e400 , 0.1 , 1.0 ] , \"b\\u0062\" : \"x y\" , \"c\" : { } } ";
        let node = Node::read(text).unwrap();
        assert_eq!(node.write(), "{\"a\":[9007199254740993,1e400,0.1,1.0],\"b\\u0062\":\"x y\",\"c\":{}}");
        assert!(node.get("bb").is_some());
        let mut rounded = Rounded::default();
        let value = node.to_value(&mut rounded);
        assert_eq!(value["a"][0], json!(9_007_199_254_740_993_u64));
        assert_eq!(value["a"][1], json!(f64::MAX));
        assert_eq!(rounded, Rounded { whole: Some("1e400".into()), fraction: None });
    }

    #[test]
    fn numbers_that_no_value_holds_are_found_and_kept_as_their_digits() {
        // Case C148.
        for (text, number) in [
            (" {\"a\": [1, {\"b\": 123456789012345678901234567890}]}", "123456789012345678901234567890"),
            ("[1e400]", "1e400"),
            ("-9223372036854775809", "-9223372036854775809"),
        ] {
            assert_eq!(unheld_number(text), Some(number), "{text}");
            let held = Node::read(text).unwrap().to_held_value().to_string();
            assert!(held.contains(&format!("\"{number}\"")), "{held}");
        }
        for text in
            ["{\"a\":18446744073709551615}", "{\"s\":\"123456789012345678901234567890\"}", "[1e3, 0.1e-5]", "no"]
        {
            assert_eq!(unheld_number(text), None, "{text}");
        }
        let text = "{\"a\":[true,null,\"x\",1.5]}";
        assert_eq!(Node::read(text).unwrap().to_held_value().to_string(), text);
    }

    #[test]
    fn a_key_that_stands_twice_is_refused() {
        // Case C148: the rule for keys that stand twice.
        assert_eq!(Node::read("{\"a\":1,\"\\u0061\":2}"), Err(TreeFault::Twice("\"\\u0061\"".into())));
        assert_eq!(Node::read("{} x"), Err(TreeFault::Trailing(3)));
    }
}
