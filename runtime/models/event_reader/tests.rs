//! What is read is what `serde_json` would read, and what it refuses is refused.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{EventReader, Few, Fields, Loose, Unread, plain_end, read_object, value_of};

#[derive(Debug, Default)]
struct Piece<'a> {
    text: Option<Cow<'a, str>>,
    loose: Option<Loose<'a>>,
    number: Option<u64>,
    maybe: Option<u64>,
    value: Option<Box<Value>>,
    part: Option<Leaf<'a>>,
    list: Option<Few<Leaf<'a>>>,
}

#[derive(Debug, Default)]
struct Leaf<'a> {
    text: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for Piece<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "text" => value.text(&mut self.text),
            "loose" => value.loose(&mut self.loose),
            "number" => value.number(&mut self.number),
            "maybe" => value.maybe_number(&mut self.maybe),
            "value" => value.value(&mut self.value),
            "part" => value.part(&mut self.part),
            "list" => value.list(&mut self.list),
            _ => value.skip(),
        }
    }
}

impl<'a> Fields<'a> for Leaf<'a> {
    fn read(&mut self, key: &str, value: &mut EventReader<'a>) -> Result<(), Unread> {
        match key {
            "text" => value.text(&mut self.text),
            _ => value.skip(),
        }
    }
}

fn read(text: &str) -> Result<Piece<'_>, Unread> {
    let mut piece = Piece::default();
    read_object(text, &mut piece).map(|()| piece)
}

/// The same as a value, without what is absent.
fn value_again(piece: &Piece<'_>) -> Value {
    let leaf = |leaf: &Leaf<'_>| leaf.text.as_ref().map_or_else(|| json!({}), |text| json!({"text": text}));
    let mut fields = serde_json::Map::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(key.to_owned(), value);
        }
    };
    put("text", piece.text.as_ref().map(|text| json!(text)));
    put(
        "loose",
        piece.loose.as_ref().map(|loose| match loose {
            Loose::Text(text) => json!(text),
            Loose::Other(other) => value_of(other).unwrap(),
        }),
    );
    put("number", piece.number.map(|number| json!(number)));
    put("maybe", piece.maybe.map(|number| json!(number)));
    put("value", piece.value.as_deref().cloned());
    put("part", piece.part.as_ref().map(leaf));
    put("list", piece.list.as_ref().map(|list| list.iter().map(leaf).collect()));
    Value::Object(fields)
}

#[test]
fn each_field_comes_to_its_place() {
    let written = json!({"text": "a\"\\/\u{8}\u{c}\n\r\té🌍\u{1}", "loose": ["a", {"b": 1}], "number": u64::MAX, "maybe": 7,
        "value": {"a": [null, true, -1.5]}, "part": {"text": ""}, "list": [{"text": "1"}, {}, {"text": "3"}]});
    for text in [written.to_string(), serde_json::to_string_pretty(&written).unwrap()] {
        assert_eq!(value_again(&read(&text).unwrap()), written, "{text}");
    }
    let text =
        r#" {"loose":"t","unknown":{"deep":[[{}]]},"part":null,"list":[],"maybe":"7","number":0,"te\u0078t":"x"} "#;
    let expected = json!({"text": "x", "loose": "t", "number": 0, "list": []});
    assert_eq!(value_again(&read(text).unwrap()), expected);
    // An object without fields may be written as an empty list.
    assert_eq!(value_again(&read(r#"{"part":[ ],"list":[[]]}"#).unwrap()), json!({"part": {}, "list": [{}]}));
}

#[test]
fn what_has_nothing_escaped_is_borrowed() {
    let piece = read(r#"{"text":"some words","loose":"a\nb"}"#).unwrap();
    assert!(matches!(piece.text, Some(Cow::Borrowed("some words"))));
    assert!(matches!(&piece.loose, Some(Loose::Text(Cow::Owned(text))) if text == "a\nb"));
}

#[test]
fn a_value_of_another_kind_is_refused_and_so_is_a_field_that_stands_twice() {
    for fields in [
        r#""text":1"#,
        r#""text":{}"#,
        r#""text":true"#,
        r#""number":"1""#,
        r#""number":-1"#,
        r#""number":1.0"#,
        r#""number":1e2"#,
        r#""number":18446744073709551616"#,
        r#""part":"x""#,
        r#""part":[1]"#,
        r#""list":{}"#,
        r#""list":[null]"#,
        r#""list":"x""#,
        r#""text":"a","text":"b""#,
        r#""part":{},"part":{}"#,
        r#""maybe":7,"maybe":-7"#,
    ] {
        let text = format!("{{{fields}}}");
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
        assert!(read(&text).is_err(), "{text}");
    }
}

#[test]
fn numbers_that_no_value_holds_are_no_reason_to_refuse() {
    // Case C148.
    const NUMBER: &str = "123456789012345678901234567890";
    let text = format!(r#"{{"unknown":1e400,"maybe":{NUMBER},"value":[1e400],"loose":{{"n":{NUMBER}}}}}"#);
    let piece = read(&text).unwrap();
    let written = format!("{{\"n\":{NUMBER}}}");
    assert_eq!(piece.loose, Some(Loose::Other(&written)));
    assert_eq!((piece.maybe, piece.value.as_deref()), (None, Some(&json!([f64::MAX]))));
    assert_eq!(value_again(&read(r#"{"loose":1e400}"#).unwrap()), json!({"loose": f64::MAX}));
    assert_eq!(value_of("[1e400, 2]"), Some(json!([f64::MAX, 2])));
}

#[test]
fn what_nests_without_end_is_passed_by_or_refused() {
    let deep = |open: &str, close: &str| format!("{}1{}", open.repeat(200_000), close.repeat(200_000));
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        for key in ["unknown", "value", "loose", "part", "list", "text"] {
            let text = format!("{{\"{key}\":{}}}", deep(open, close));
            // The part's own field is one that nobody asks for.
            let is_passed = matches!(key, "unknown" | "loose") || (key == "part" && open.starts_with('{'));
            assert_eq!(read(&text).is_ok(), is_passed, "{key} {open}");
        }
    }
}

#[test]
fn a_run_ends_at_its_first_special_byte_wherever_it_stands() {
    for special in [b'"', b'\\', 0, 0x1f, b'\n'] {
        for at in 0..40 {
            for after in [b'"', b'x', 0x80, 0xff, 0x20, 0x1f, 0x21, 0x7f, 0x5d] {
                let mut bytes = vec![after; 48];
                let plain = [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xff, b'a'];
                for (place, byte) in bytes[..at].iter_mut().enumerate() {
                    *byte = plain[(place + usize::from(special)) % plain.len()];
                }
                bytes[at] = special;
                assert_eq!(plain_end(&bytes, 0), at, "{special} {at} {after}");
            }
        }
    }
    assert_eq!((plain_end(b"abc", 0), plain_end(b"abc", 3), plain_end(b"", 0)), (3, 3, 0));
}

/// Texts that are JSON, nearly JSON, or not at all.
fn nearly_json() -> impl Strategy<Value = String> {
    let atom = prop_oneof![
        Just("null"),
        Just("true"),
        Just("false"),
        Just("nul"),
        Just("0"),
        Just("00"),
        Just("7"),
        Just("-7"),
        Just("1.5"),
        Just("1."),
        Just("1e4"),
        Just("1e400"),
        Just("18446744073709551616"),
        Just("\"\""),
        Just("\"a\""),
        Just("\"long enough for two runs\""),
        Just("\"\\n\\\"\\u00e9\""),
        Just("\"\\ud83c\\udf0d\""),
        Just("\"\\ud800\""),
        Just("\"\\x\""),
        Just("\"\u{1}\""),
        Just("\"open"),
        Just("[]"),
        Just("{}"),
        Just("[ ]"),
        Just("[1,]"),
        Just("{,}"),
        Just("[{\"text\":\"b\"},{\"text\":null}]"),
        Just("{\"text\":\"c\",\"deep\":[[],{}]}"),
        Just(""),
        Just("é"),
        Just("1x"),
    ];
    let key = prop_oneof![
        Just("text"),
        Just("loose"),
        Just("number"),
        Just("maybe"),
        Just("value"),
        Just("part"),
        Just("list"),
        Just("other"),
        Just("other\\n"),
        Just("t\\u0065xt"),
    ];
    let blank = prop_oneof![4 => Just(""), 1 => Just(" "), 1 => Just("\n\t\r"), 1 => Just("\u{a0}")];
    let field =
        (key, atom, blank).prop_map(|(key, atom, blank)| format!("{blank}\"{key}\"{blank}:{blank}{atom}{blank}"));
    let comma = prop_oneof![8 => Just(","), 1 => Just(",,"), 1 => Just("")];
    (
        proptest::collection::vec(field, 0..5),
        comma,
        prop_oneof![8 => Just("}"), 1 => Just(""), 1 => Just("}}"), 1 => Just("} ")],
    )
        .prop_map(|(fields, comma, end)| format!("{{{}{end}", fields.join(comma)))
}

proptest! {
    #[test]
    fn nothing_is_taken_that_is_no_json_and_what_is_taken_says_the_same(text in nearly_json()) {
        let value = value_of(&text);
        if let Ok(piece) = read(&text) {
            // Texts of which the other reader wants to know all may be passed by here, as it would do itself.
            let ignored: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&text);
            prop_assert!(ignored.is_ok(), "{}", text);
            if let Some(Value::Object(fields)) = value {
                for (key, found) in value_again(&piece).as_object().unwrap() {
                    let wanted = match (key.as_str(), &fields[key]) {
                        ("part", Value::Array(_)) => json!({}),
                        ("part", part) => known(part),
                        ("list", Value::Array(items)) => items.iter().map(known).collect(),
                        (_, other) => other.clone(),
                    };
                    prop_assert_eq!(found, &wanted, "{} {}", key, text);
                }
            }
        }
    }
}

/// What a leaf keeps of an object.
fn known(object: &Value) -> Value {
    object.get("text").filter(|text| !text.is_null()).map_or_else(|| json!({}), |text| json!({"text": text}))
}
