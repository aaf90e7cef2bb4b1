//! An object while it arrives: what of it can be shown, and when it is whole.
//!
//! A view is the text so far with what is open closed: strings end where the text does, numbers and words wait until they
//! are whole, and lists hold whole elements only. What must stay true: every view is JSON and says nothing that the text
//! does not; a view comes at most once in [`VIEW_INTERVAL`], and what has more than [`VIEW_BYTES_MAX`] bytes is counted
//! and not shown.

use std::time::Duration;

use super::envelope::Envelope;
use toolwarden_tools::json_text::{JsonFault, PartKind, Parts, whole_prefix_end};
use toolwarden_tools::json_tree::Node;

/// The least time between two views.
pub const VIEW_INTERVAL: Duration = Duration::from_millis(100);
/// Largest text that is still shown, in bytes.
pub const VIEW_BYTES_MAX: usize = 64 * 1024;
/// Most places at which a value may begin.
const BEGINNINGS_MAX: usize = 16;
/// How much must have come since the last look, in bytes.
const LOOK_BYTES: usize = 8;

/// What a look at an arriving object gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The object so far.
    Shown(String),
    /// It has so many bytes by now.
    Omitted(usize),
}

/// The text of an object while it arrives.
#[derive(Debug, Default)]
pub struct Arriving {
    text: String,
    looked_bytes: usize,
    /// When the last view was given.
    viewed_at: Option<Duration>,
    last: Option<View>,
    balance: Balance,
}

impl Arriving {
    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) {
        self.balance.take(piece);
        self.text.push_str(piece);
    }

    /// Everything so far is void.
    pub fn clear(&mut self) {
        *self = Self { viewed_at: self.viewed_at, ..Self::default() };
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text when it is one whole object or array with nothing behind it.
    pub fn whole(&self) -> Option<&str> {
        self.balance.is_closed.then(|| self.text.trim())
    }

    /// A view, when it is time for one and it is another one than the last.
    pub fn view(&mut self, now: Duration, envelope: Envelope) -> Option<View> {
        let is_due = self.viewed_at.is_none_or(|at| now.saturating_sub(at) >= VIEW_INTERVAL);
        if !is_due || self.text.len() < self.looked_bytes + LOOK_BYTES {
            return None;
        }
        self.looked_bytes = self.text.len();
        let view = match self.text.len() > VIEW_BYTES_MAX {
            true => View::Omitted(self.text.len()),
            false => View::Shown(unwrapped(&closed(&self.text)?, envelope)?),
        };
        if self.last.as_ref() == Some(&view) {
            return None;
        }
        self.viewed_at = Some(now);
        self.last = Some(view.clone());
        Some(view)
    }
}

/// Follows brackets and strings, byte by byte, once.
#[derive(Debug, Default)]
struct Balance {
    depth: usize,
    in_string: bool,
    escaped: bool,
    begun: bool,
    is_closed: bool,
    spoilt: bool,
}

impl Balance {
    fn take(&mut self, piece: &str) {
        for byte in piece.bytes() {
            if self.spoilt {
                return;
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' if self.begun => self.in_string = !self.in_string,
                _ if self.in_string => {}
                byte if byte.is_ascii_whitespace() => {}
                // Whatever stands before or behind the value is prose.
                byte if self.is_closed || (!self.begun && !matches!(byte, b'{' | b'[')) => {
                    (self.spoilt, self.is_closed) = (true, false);
                }
                b'{' | b'[' => {
                    self.begun = true;
                    self.depth += 1;
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_closed = self.depth == 0;
                }
                _ => {}
            }
        }
    }
}

/// The beginning of a value as a whole one; none while nothing can be said.
pub fn closed(text: &str) -> Option<String> {
    // Brackets of the prose before it begin nothing.
    text.match_indices(['{', '[']).take(BEGINNINGS_MAX).find_map(|(begin, _)| closed_at(text, begin))
}

fn closed_at(text: &str, begin: usize) -> Option<String> {
    let mut closing = Closing { text, out: String::with_capacity(text.len()), open: Vec::new(), key: None, kept: None };
    let mut parts = Parts::of_open(text, begin);
    loop {
        match parts.next_part() {
            Ok(Some(part)) => closing.take(part.kind, part.at),
            Ok(None) => break,
            Err(JsonFault::Cut { begins }) => {
                closing.cut(begins);
                break;
            }
            // It is no JSON: what came before may still be shown, but it is not known what it means.
            Err(_) => return None,
        }
    }
    Some(closing.finish())
}

struct Closing<'a> {
    text: &'a str,
    out: String,
    /// What is open: the bracket that closes it, and whether it holds anything.
    open: Vec<(char, bool)>,
    /// A name whose value has not begun.
    key: Option<&'a str>,
    /// How much is whole, and how much is open there, while an element of a list is not.
    kept: Option<(usize, usize)>,
}

impl<'a> Closing<'a> {
    fn take(&mut self, kind: PartKind, at: std::ops::Range<usize>) {
        let text = self.text;
        match kind {
            PartKind::Key => self.key = Some(&text[at]),
            PartKind::ObjectStart => self.begin('{', '}'),
            PartKind::ArrayStart => self.begin('[', ']'),
            PartKind::ObjectEnd | PartKind::ArrayEnd => {
                if let Some((bracket, _)) = self.open.pop() {
                    self.out.push(bracket);
                }
                self.ended();
            }
            _ => {
                self.before_value();
                self.out.push_str(&text[at]);
                self.ended();
            }
        }
    }

    fn begin(&mut self, open: char, close: char) {
        self.before_value();
        self.out.push(open);
        self.open.push((close, false));
    }

    fn before_value(&mut self) {
        // An element of a list counts when it is whole.
        if self.kept.is_none() && self.open.last().is_some_and(|(close, _)| *close == ']') {
            self.kept = Some((self.out.len(), self.open.len()));
        }
        if let Some((_, holds)) = self.open.last_mut() {
            if *holds {
                self.out.push(',');
            }
            *holds = true;
        }
        if let Some(key) = self.key.take() {
            self.out.push_str(key);
            self.out.push(':');
        }
    }

    fn ended(&mut self) {
        if self.kept.is_some_and(|(_, depth)| depth == self.open.len()) {
            self.kept = None;
        }
    }

    /// The text ends inside of a part: of a string as a member, what stands whole is shown.
    fn cut(&mut self, begins: usize) {
        let is_member = self.key.is_some() && self.kept.is_none();
        if is_member
            && self.text[begins..].starts_with('"')
            && let Ok(end) = whole_prefix_end(self.text, begins)
        {
            self.before_value();
            self.out.push_str(&self.text[begins..end]);
            self.out.push('"');
        }
    }

    fn finish(mut self) -> String {
        if let Some((bytes, depth)) = self.kept {
            self.out.truncate(bytes);
            self.open.truncate(depth);
        }
        while let Some((close, _)) = self.open.pop() {
            self.out.push(close);
        }
        self.out
    }
}

/// A view without its envelope; none while the envelope is empty.
fn unwrapped(view: &str, envelope: Envelope) -> Option<String> {
    let Some(key) = envelope.key() else { return Some(view.to_owned()) };
    let node = Node::read(view).ok()?;
    match (&node, envelope) {
        (Node::Object(_), _) => node.get(key).map(Node::write),
        // Some models leave the envelope out.
        (Node::Array(_), Envelope::Elements) => Some(view.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::{Arriving, VIEW_BYTES_MAX, View, closed};
    use crate::structured::envelope::Envelope;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn every_prefix_gives_what_is_whole_of_it() {
        // Case C149.
        let text = r#"{"a":"x\ud83d\ude00","n":-1.5e3,"b":tru"#;
        for end in 0..=text.len() {
            let Some(view) = closed(&text[..end]) else {
                assert_eq!(end, 0);
                continue;
            };
            let value: Value = serde_json::from_str(&view).unwrap();
            let words = value["a"].as_str().unwrap_or("");
            assert!("x\u{1f600}".starts_with(words), "{view}");
            assert!(value.get("n").is_none() || value["n"] == -1500.0, "{view}");
            assert!(value.get("b").is_none(), "{view}");
        }
        assert_eq!(closed(text).unwrap(), r#"{"a":"x\ud83d\ude00","n":-1.5e3}"#);
    }

    #[test]
    fn lists_hold_whole_elements_only() {
        for (text, view) in [
            (r#"{"l":[1,2"#, r#"{"l":[1]}"#),
            (r#"{"l":["a","b"#, r#"{"l":["a"]}"#),
            (r#"{"l":[{"a":1},{"a":"x"#, r#"{"l":[{"a":1}]}"#),
            (r#"{"l":[[1,2],[3"#, r#"{"l":[[1,2]]}"#),
            (r#"[{"a":[1]},"#, r#"[{"a":[1]}]"#),
            (r#"{"o":{"s":"ab"#, r#"{"o":{"s":"ab"}}"#),
            (r#"{"o":{"s"#, r#"{"o":{}}"#),
            ("Here: {\"a\":1}", "{\"a\":1}"),
        ] {
            assert_eq!(closed(text).as_deref(), Some(view), "{text}");
        }
        assert_eq!(closed("{\"a\":x"), None);
        assert_eq!(closed("[see {x} {\"a\":1").as_deref(), Some("{}"));
    }

    #[test]
    fn views_keep_their_pace_and_are_counted_when_large() {
        let mut arriving = Arriving::default();
        arriving.push("{\"a\":\"123456");
        let shown = |text: &str| Some(View::Shown(text.to_owned()));
        assert_eq!(arriving.view(at(0), Envelope::Direct), shown("{\"a\":\"123456\"}"));
        arriving.push("7890123");
        assert_eq!(arriving.view(at(99), Envelope::Direct), None);
        assert_eq!(arriving.view(at(100), Envelope::Direct), None, "only seven bytes came");
        arriving.push("4");
        assert_eq!(arriving.view(at(100), Envelope::Direct), shown("{\"a\":\"12345678901234\"}"));
        arriving.push("\"           ");
        assert_eq!(arriving.view(at(300), Envelope::Direct), None, "the same again");
        arriving.push("}");
        assert!(arriving.whole().is_some());
        let mut large = Arriving::default();
        large.push(&format!("{{\"a\":\"{}", "x".repeat(VIEW_BYTES_MAX)));
        assert_eq!(large.view(at(0), Envelope::Direct), Some(View::Omitted(VIEW_BYTES_MAX + 6)));
        large.clear();
        assert_eq!(large.text(), "");
    }

    #[test]
    fn envelopes_are_taken_off() {
        let mut arriving = Arriving::default();
        arriving.push("{\"elements\":[1,2,3");
        assert_eq!(arriving.view(at(0), Envelope::Elements), Some(View::Shown("[1,2]".into())));
        let mut bare = Arriving::default();
        bare.push("[10,20,30");
        assert_eq!(bare.view(at(0), Envelope::Elements), Some(View::Shown("[10,20]".into())));
        let mut empty = Arriving::default();
        empty.push("{\"value\"  ");
        assert_eq!(empty.view(at(0), Envelope::Value), None);
    }

    #[test]
    fn a_value_is_whole_when_it_is_closed_and_nothing_follows() {
        let whole = |text: &str| {
            let mut arriving = Arriving::default();
            text.split_inclusive(|_| true).for_each(|piece| arriving.push(piece));
            arriving.whole().is_some()
        };
        assert!(whole(" {\"a\":\"}\\\"\"} \n") && whole("[]"));
        for text in ["{", "12", "\"x\"", "x {}", "{} x", "{}{}", "{\"a\":\"}"] {
            assert!(!whole(text), "{text}");
        }
    }

    proptest! {
        /// Whatever is cut where, the view is JSON, and a view of more never says less of a list.
        #[test]
        fn any_prefix_of_any_json_is_json(value in json(), cut in any::<prop::sample::Index>()) {
            let text = value.to_string();
            let mut end = cut.index(text.len() + 1);
            while !text.is_char_boundary(end) {
                end -= 1;
            }
            if let Some(view) = closed(&text[..end]) {
                let seen: Result<Value, _> = serde_json::from_str(&view);
                prop_assert!(seen.is_ok(), "{view}");
            }
            prop_assert_eq!(closed(&text), (text.starts_with(['{', '['])).then_some(text.clone()).or_else(|| closed(&text)));
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[a\"\\\\\u{e9}\u{1f600}\n]{0,4}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[ab]{1,2}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }
}
