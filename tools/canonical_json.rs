//! Canonical JSON (RFC 8785): one spelling for one meaning, and the length of a value's spelling.
//!
//! The arguments of every call are hashed in this form. Usual values (keys of ASCII, whole numbers that a double
//! holds exactly) are written straight away; what needs more thought goes through `serde_jcs`. Both give the same
//! bytes, which is tested.

use std::io;

use serde::Serialize;
use serde_json::{Map, Value};

/// Largest whole number, either way, up to which all of them are exact as doubles.
const EXACT_MAX: u64 = 1 << 53;
/// Deepest nesting that is written straight away.
const DEPTH_MAX: usize = 128;

/// The canonical form of a value. A number outside of a double's range has no canonical form: then it is the
/// value's own spelling.
pub fn canonical(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(128);
    if write(value, DEPTH_MAX, &mut bytes).is_some() {
        return bytes;
    }
    serde_jcs::to_vec(value).unwrap_or_else(|_| value.to_string().into_bytes())
}

/// How long a value's own spelling is, without spaces, in bytes.
pub fn json_bytes<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut length = Length(0);
    // Counting cannot fail, and a value that cannot be spelled has no length.
    serde_json::to_writer(&mut length, value).map_or(usize::MAX, |()| length.0)
}

/// As [`json_bytes`] of the value, counted without spelling it out: results are measured by what they say of
/// themselves, and those of a batch all at once.
pub fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(true) => 4,
        Value::Bool(false) => 5,
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(whole), _) => digits(whole),
            (None, Some(whole)) => 1 + digits(whole.unsigned_abs()),
            (None, None) => json_bytes(number),
        },
        Value::String(text) => text_bytes(text),
        // Brackets, and a comma before each but the first.
        Value::Array(items) => 2 + items.len().saturating_sub(1) + items.iter().map(value_bytes).sum::<usize>(),
        Value::Object(fields) => fields_bytes(fields),
    }
}

/// As [`value_bytes`] of an object with these fields.
pub fn fields_bytes(fields: &Map<String, Value>) -> usize {
    // As above, with a colon in each.
    let field = |(key, value): (&String, &Value)| text_bytes(key) + 1 + value_bytes(value);
    2 + fields.len().saturating_sub(1) + fields.iter().map(field).sum::<usize>()
}

/// As [`json_bytes`] of a text.
pub fn text_bytes(text: &str) -> usize {
    // Without a branch, so that many bytes are looked at at a time. Bytes beyond ASCII stand as they are.
    let plain = |byte: &u8| !matches!(byte, 0..=31 | b'"' | b'\\');
    match text.as_bytes().iter().fold(true, |all, byte| all & plain(byte)) {
        true => text.len() + 2,
        false => json_bytes(text),
    }
}

/// How many digits a number has.
fn digits(number: u64) -> usize {
    number.checked_ilog10().map_or(1, |digits| digits as usize + 1)
}

/// Writes the usual; nothing, or a part, when it is not.
fn write(value: &Value, depth_max: usize, bytes: &mut Vec<u8>) -> Option<()> {
    match value {
        Value::Null => bytes.extend_from_slice(b"null"),
        Value::Bool(true) => bytes.extend_from_slice(b"true"),
        Value::Bool(false) => bytes.extend_from_slice(b"false"),
        Value::Number(number) => {
            let exact = number.as_i64().filter(|whole| whole.unsigned_abs() <= EXACT_MAX)?;
            serde_json::to_writer(bytes, &exact).ok()?;
        }
        Value::String(text) => write_text(text, bytes)?,
        Value::Array(items) => {
            let depth_max = depth_max.checked_sub(1)?;
            bytes.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    bytes.push(b',');
                }
                write(item, depth_max, bytes)?;
            }
            bytes.push(b']');
        }
        Value::Object(fields) => write_fields(fields, depth_max.checked_sub(1)?, bytes)?,
    }
    Some(())
}

fn write_fields(fields: &Map<String, Value>, depth_max: usize, bytes: &mut Vec<u8>) -> Option<()> {
    // The order is that of UTF-16 units, which for ASCII is that of the bytes.
    if !fields.keys().all(|key| key.is_ascii()) {
        return None;
    }
    let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
    fields.sort_unstable_by_key(|(key, _)| *key);
    bytes.push(b'{');
    for (at, (key, value)) in fields.into_iter().enumerate() {
        if at > 0 {
            bytes.push(b',');
        }
        write_text(key, bytes)?;
        bytes.push(b':');
        write(value, depth_max, bytes)?;
    }
    bytes.push(b'}');
    Some(())
}

/// The escapes of `serde_json` are the canonical ones.
fn write_text(text: &str, bytes: &mut Vec<u8>) -> Option<()> {
    serde_json::to_writer(bytes, text).ok()
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::{DEPTH_MAX, canonical, json_bytes, value_bytes};

    fn value() -> impl Strategy<Value = Value> {
        let whole = prop_oneof![
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-9i64..9).prop_map(|off| Value::from((1i64 << 53) + off)),
            (-9i64..9).prop_map(|off| Value::from(off - (1i64 << 53))),
        ];
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            whole,
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
            "[\\x00-\\x1f\"\\\\/\u{7f}\u{2028}]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let key = prop_oneof!["[a-c\\x01\"\\\\]{0,3}", any::<String>()];
            prop_oneof![
                vec(inner.clone(), 0..6).prop_map(Value::from),
                btree_map(key, inner, 0..6).prop_map(|map| Value::Object(map.into_iter().rev().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn both_ways_give_the_same_bytes(value in value()) {
            let careful = serde_jcs::to_vec(&value).unwrap_or_else(|_| value.to_string().into_bytes());
            prop_assert_eq!(String::from_utf8(canonical(&value)).unwrap(), String::from_utf8(careful).unwrap());
            prop_assert_eq!(json_bytes(&value), value.to_string().len());
            prop_assert_eq!(value_bytes(&value), value.to_string().len());
        }
    }

    #[test]
    fn keys_are_in_order_on_every_level() {
        let value = json!({"b": [1, {"d": null, "c": true}], "a": "\u{1}\n\"é"});
        assert_eq!(canonical(&value), "{\"a\":\"\\u0001\\n\\\"é\",\"b\":[1,{\"c\":true,\"d\":null}]}".as_bytes());
    }

    #[test]
    fn what_is_nested_deep_has_its_form_too() {
        let mut deep = json!(1);
        for _ in 0..=DEPTH_MAX {
            deep = Value::Object(Map::from_iter([("a".to_owned(), deep)]));
        }
        let text = format!("{}1{}", "{\"a\":".repeat(DEPTH_MAX + 1), "}".repeat(DEPTH_MAX + 1));
        assert_eq!(canonical(&deep), text.as_bytes());
    }
}
