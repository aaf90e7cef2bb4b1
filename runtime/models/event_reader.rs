//! Reads the JSON of an event where it stands: each field into its place, texts as parts of the event's own bytes.
//!
//! A stream is thousands of small events of which little is looked at, so what is costly about reading them is not the
//! bytes but what is made of them on the way: here nothing is made but the texts in which something is escaped. Objects,
//! lists, texts and plain numbers are read here; all that is rare (values of any kind, fractions, escapes of four digits)
//! is left to `serde_json`, at its place. What must stay true: nothing is taken that `serde_json` would refuse, and
//! recursion is bounded by the types that are read.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use thiserror::Error;
use toolwarden_tools::json_tree::{Node, Rounded};

/// An object whose fields are read into their places. Null counts as absent, and so does the place of a field that the
/// object does not have.
pub trait Fields<'a>: Default {
    /// Reads the value of the field with this key into its place, or passes it by with [`EventReader::skip`].
    ///
    /// # Errors
    /// [`Unread`].
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread>;
}

/// Reads one event.
#[derive(Debug)]
pub struct EventReader<'a> {
    text: &'a str,
    at: usize,
}

/// Why an event cannot be read: it is no JSON, or has something else at a place where this stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0} is wanted")]
pub struct Unread(pub &'static str);

/// A text, or whatever else stands in its place, as it was written.
#[derive(Debug, PartialEq, Eq)]
pub enum Loose<'a> {
    /// A text.
    Text(Cow<'a, str>),
    /// Something else.
    Other(&'a str),
}

/// A list that seldom has more than one item: that one needs no memory of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Few<T> {
    first: Option<T>,
    rest: Vec<T>,
}

impl<T> Few<T> {
    /// Its items, in order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.first.iter().chain(&self.rest)
    }
}

/// Reads a text that is one object and nothing else into its place.
///
/// # Errors
/// [`Unread`]; what was read until then stands in its place.
pub fn read_object<'a, T: Fields<'a>>(text: &'a str, place: &mut T) -> Result<(), Unread> {
    let mut reader = EventReader { text, at: 0 };
    reader.skip_blanks();
    reader.object(place)?;
    reader.skip_blanks();
    if reader.at < text.len() { Err(Unread("the end")) } else { Ok(()) }
}

/// The value of a text, in which a number that no value holds is rounded; none where it is no JSON.
pub fn value_of(text: &str) -> Option<Value> {
    let rounded = || Node::read(text).ok().map(|node| node.to_value(&mut Rounded::default()));
    serde_json::from_str(text).ok().or_else(rounded)
}

impl<'a> EventReader<'a> {
    /// Reads a text.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn text(&mut self, place: &mut Option<Cow<'a, str>>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        *place = Some(self.string()?);
        Ok(())
    }

    /// Reads a text or whatever else.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn loose(&mut self, place: &mut Option<Loose<'a>>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        *place = Some(match self.byte() {
            Some(b'"') => Loose::Text(self.string()?),
            _ => Loose::Other(self.raw()?),
        });
        Ok(())
    }

    /// Reads a whole number that is not negative.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn number(&mut self, place: &mut Option<u64>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        let (number, end) = self.digits().ok_or(Unread("a whole number"))?;
        (*place, self.at) = (Some(number), end);
        Ok(())
    }

    /// Reads a whole number that is not negative, and passes whatever else by.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn maybe_number(&mut self, place: &mut Option<u64>) -> Result<(), Unread> {
        if place.is_some() {
            return Err(TWICE);
        }
        match self.digits() {
            Some((number, end)) => (*place, self.at) = (Some(number), end),
            None => self.skip()?,
        }
        Ok(())
    }

    /// Reads a value of any kind. A number that no value holds is rounded.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn value(&mut self, place: &mut Option<Box<Value>>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        *place = Some(Box::new(value_of(self.raw()?).ok_or(Unread("a value"))?));
        Ok(())
    }

    /// Reads an object within an object.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn part<T: Fields<'a>>(&mut self, place: &mut Option<T>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        self.object(place.insert(T::default()))
    }

    /// Reads a list of objects.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn list<T: Fields<'a>>(&mut self, place: &mut Option<Few<T>>) -> Result<(), Unread> {
        if self.is_absent(place)? {
            return Ok(());
        }
        let few = place.insert(Few { first: None, rest: Vec::new() });
        self.pass(b'[', "a list")?;
        if self.is_next(b']') {
            return Ok(());
        }
        self.object(few.first.insert(T::default()))?;
        while !self.is_next(b']') {
            self.pass(b',', "a comma or ]")?;
            self.skip_blanks();
            let mut item = T::default();
            self.object(&mut item)?;
            few.rest.push(item);
        }
        Ok(())
    }

    /// Passes a value by.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn skip(&mut self) -> Result<(), Unread> {
        let bytes = self.text.as_bytes();
        let end = match self.byte() {
            Some(b'"') => {
                let end = plain_end(bytes, self.at + 1);
                (bytes.get(end) == Some(&b'"')).then_some(end + 1)
            }
            Some(b'0'..=b'9') => self.digits().map(|(_, end)| end),
            Some(b'[') => (bytes.get(self.at + 1) == Some(&b']')).then_some(self.at + 2),
            _ => self.word_end(),
        };
        match end {
            Some(end) => self.at = end,
            None => drop(self.delegate::<IgnoredAny>()?),
        }
        Ok(())
    }

    /// Some servers write an object without fields as an empty list.
    fn object<T: Fields<'a>>(&mut self, place: &mut T) -> Result<(), Unread> {
        if self.byte() == Some(b'[') {
            self.at += 1;
            return if self.is_next(b']') { Ok(()) } else { Err(Unread("an object")) };
        }
        self.pass(b'{', "an object")?;
        if self.is_next(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            self.skip_blanks();
            self.pass(b':', "a colon")?;
            self.skip_blanks();
            place.read(&key, self)?;
            if self.is_next(b'}') {
                return Ok(());
            }
            self.pass(b',', "a comma or }")?;
            self.skip_blanks();
        }
    }

    /// Whether null stands there, which is passed then.
    fn is_absent<T>(&mut self, place: &Option<T>) -> Result<bool, Unread> {
        if place.is_some() {
            return Err(TWICE);
        }
        let is_null = self.text.as_bytes()[self.at..].starts_with(b"null");
        if is_null {
            self.at += 4;
        }
        Ok(is_null)
    }

    fn string(&mut self) -> Result<Cow<'a, str>, Unread> {
        if self.byte() != Some(b'"') {
            return Err(Unread("a text"));
        }
        let begin = self.at + 1;
        let end = plain_end(self.text.as_bytes(), begin);
        if self.text.as_bytes().get(end) == Some(&b'"') {
            self.at = end + 1;
            return Ok(Cow::Borrowed(&self.text[begin..end]));
        }
        self.escaped(begin, end).map(Cow::Owned)
    }

    /// A text that begins there and is plain up to there.
    fn escaped(&mut self, mut begin: usize, mut end: usize) -> Result<String, Unread> {
        let bytes = self.text.as_bytes();
        let mut text = String::with_capacity(end - begin + ESCAPED_BYTES);
        loop {
            text.push_str(&self.text[begin..end]);
            let escape = match bytes.get(end) {
                Some(b'"') => {
                    self.at = end + 1;
                    return Ok(text);
                }
                Some(b'\\') => bytes.get(end + 1),
                _ => return Err(Unread("a text")),
            };
            text.push(match escape {
                Some(b'"') => '"',
                Some(b'\\') => '\\',
                Some(b'/') => '/',
                Some(b'b') => '\u{8}',
                Some(b'f') => '\u{c}',
                Some(b'n') => '\n',
                Some(b'r') => '\r',
                Some(b't') => '\t',
                _ => return self.delegate(),
            });
            begin = end + 2;
            end = plain_end(bytes, begin);
        }
    }

    /// The text of a value of any kind.
    fn raw(&mut self) -> Result<&'a str, Unread> {
        let begin = self.at;
        self.skip()?;
        Ok(&self.text[begin..self.at])
    }

    /// The whole number that stands there, and where it ends; none where it is written in another way.
    fn digits(&self) -> Option<(u64, usize)> {
        let bytes = self.text.as_bytes();
        let (mut number, mut end) = (0_u64, self.at);
        while let Some(digit) = bytes.get(end).filter(|byte| byte.is_ascii_digit()) {
            number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
            end += 1;
        }
        let is_plain = end == self.at + 1 || bytes.get(self.at).is_some_and(|first| *first != b'0');
        let ends = matches!(bytes.get(end), Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r'));
        (end > self.at && is_plain && ends).then_some((number, end))
    }

    fn word_end(&self) -> Option<usize> {
        let rest = &self.text.as_bytes()[self.at..];
        [&b"null"[..], b"true", b"false"].iter().find(|word| rest.starts_with(word)).map(|word| self.at + word.len())
    }

    /// Leaves the value that stands there to the other reader.
    fn delegate<T: Deserialize<'a>>(&mut self) -> Result<T, Unread> {
        let mut values = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter();
        let Some(Ok(value)) = values.next() else { return Err(Unread("a value")) };
        self.at += values.byte_offset();
        Ok(value)
    }

    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\n' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Whether this is the next part, which is passed then.
    fn is_next(&mut self, part: u8) -> bool {
        self.skip_blanks();
        let is_next = self.byte() == Some(part);
        self.at += usize::from(is_next);
        is_next
    }

    fn pass(&mut self, part: u8, wanted: &'static str) -> Result<(), Unread> {
        if self.byte() != Some(part) {
            return Err(Unread(wanted));
        }
        self.at += 1;
        Ok(())
    }
}

/// A field stands twice: readers differ on what that means.
const TWICE: Unread = Unread("each field once");
/// Room for what follows the first escape of a text, in bytes.
const ESCAPED_BYTES: usize = 32;

/// Where the first byte stands that ends a run of plain ones: a quote, an escape or a control character, or the end.
fn plain_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(eight) = bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        let found = special(u64::from_le_bytes(*eight));
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..=0x1f);
    at + bytes.get(at..).map_or(0, |rest| rest.iter().position(is_special).unwrap_or(rest.len()))
}

/// The top bit of each of eight bytes that is a quote, a backslash or below a blank. Above the lowest of them there may be
/// bits that are wrong: to subtract borrows.
fn special(eight: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let below = |bytes: u64, limit: u8| bytes.wrapping_sub(ONES * u64::from(limit)) & !bytes;
    let is = |byte: u8| below(eight ^ (ONES * u64::from(byte)), 1);
    (below(eight, b' ') | is(b'"') | is(b'\\')) & (ONES << 7)
}

#[cfg(test)]
mod tests;
