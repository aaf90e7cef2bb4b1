//! Strict forms take what their schemas take, at every level, or there is none.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use toolwarden_tools::schema::Schema;

use super::strict;
use crate::models::object_support::StrictDialect;
use crate::structured::optional_null::without_nulls;
use crate::structured::schema_walk::resolved;
use toolwarden_tools::json_tree::Node;

fn open_ai(schema: &Value) -> Value {
    strict(schema, StrictDialect::OpenAi).unwrap()
}

fn reason(schema: Value) -> String {
    strict(&schema, StrictDialect::OpenAi).unwrap_err().to_string()
}

#[test]
fn every_level_is_closed_and_complete() {
    // Case C145.
    let schema = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 2, "description": "a name"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "either": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
        },
        "$defs": {"leaf": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}},
    });
    assert_eq!(
        open_ai(&schema),
        json!({
            "type": "object", "required": ["name", "list", "either"], "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "description": "a name (minLength: 2)"},
                "list": {"anyOf": [{"type": "array", "items": {
                    "type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"],
                    "additionalProperties": false,
                }}, {"type": "null"}]},
                "either": {"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]},
            },
            "$defs": {"leaf": {
                "type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                "additionalProperties": false,
            }},
        })
    );
    let claude = strict(&schema, StrictDialect::Claude).unwrap();
    assert_eq!(claude["required"], json!(["name"]));
    assert_eq!(claude["properties"]["list"]["items"]["additionalProperties"], json!(false));
}

#[test]
fn what_has_no_strict_form_says_why() {
    for (schema, why) in [
        (json!({"type": "object", "additionalProperties": {"type": "string"}}), "members of any name"),
        (json!({"type": "object", "properties": {"a": {"patternProperties": {"x": {}}}}}), "/properties/a"),
        (json!({"type": "object", "properties": {"a": {}}}), "takes anything"),
        (json!({"type": "object", "properties": {"a": {"type": "array"}}}), "items of any kind"),
        (json!({"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{}]}}}), "by their place"),
        (json!({"type": "object", "properties": {}, "required": ["a"]}), "does not describe"),
        (json!({"type": "array", "items": {"type": "string"}}), "no plain object"),
        (json!({"$ref": "#"}), "to itself"),
        (json!({"type": "object", "properties": {"a": {"$ref": "#/properties/a", "minLength": 1}}}), "/properties/a"),
    ] {
        let said = reason(schema.clone());
        assert!(said.contains(why), "{schema}: {said}");
    }
    let bomb = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/a", "description": "x", "minLength": 1}},
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a", "minLength": 1}, {"$ref": "#/$defs/a", "minLength": 2}]}}});
    assert!(reason(bomb).contains("too deep"));
    let circle = json!({"type": "object", "properties": {"next": {"$ref": "#"}}});
    assert!(strict(&circle, StrictDialect::OpenAi).is_ok());
    assert!(strict(&circle, StrictDialect::Claude).unwrap_err().to_string().contains("itself"));
}

#[test]
fn parts_that_say_different_things_are_put_together() {
    let schema = json!({
        "type": "object",
        "allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"$ref": "#/$defs/b"}],
        "$defs": {"b": {"type": "object", "properties": {"b": {"type": "integer"}}}},
    });
    let adapted = open_ai(&schema);
    assert_eq!(adapted["required"], json!(["a", "b"]));
    assert_eq!(adapted["properties"]["b"], json!({"type": ["integer", "null"]}));
    let mixed = json!({"type": "object", "properties": {"a": {"allOf": [{"type": "string"}, {"type": "integer"}]}}});
    assert!(reason(mixed).contains("two things"));
}

/// A schema, and whether it holds keywords that a strict form leaves out.
fn schemas() -> impl Strategy<Value = (Value, bool)> {
    let leaf = prop_oneof![
        Just((json!({"type": "string"}), false)),
        (0..3_u64).prop_map(|least| (json!({"type": "string", "minLength": least}), true)),
        Just((json!({"type": "integer", "minimum": 0, "maximum": 5}), true)),
        Just((json!({"type": ["integer", "null"]}), false)),
        Just((json!({"type": "boolean"}), false)),
        Just((json!({"type": "string", "enum": ["a", "b"]}), false)),
        Just((json!({"const": 3}), false)),
        Just((json!({"type": "object", "additionalProperties": {"type": "integer"}}), false)),
        Just((json!({"$ref": "#/$defs/node"}), false)),
        Just((json!({"$ref": "#/$defs/short"}), true)),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|(items, narrows)| (json!({"type": "array", "items": items}), narrows)),
            (inner.clone(), inner.clone())
                .prop_map(|(one, other)| (json!({"anyOf": [one.0, other.0]}), one.1 || other.1)),
            (inner.clone(), inner.clone()).prop_map(|(one, other)| (json!({"oneOf": [one.0, other.0]}), true)),
            object(inner),
        ]
    })
}

fn object(inner: impl Strategy<Value = (Value, bool)>) -> impl Strategy<Value = (Value, bool)> {
    proptest::collection::vec((inner, any::<bool>()), 0..4).prop_map(|members| {
        let narrows = members.iter().any(|((_, narrows), _)| *narrows);
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (at, ((schema, _), is_required)) in members.into_iter().enumerate() {
            properties.insert(format!("m{at}"), schema);
            if is_required {
                required.push(format!("m{at}"));
            }
        }
        (json!({"type": "object", "properties": properties, "required": required}), narrows)
    })
}

fn with_definitions(mut schema: Value) -> Value {
    schema["$defs"] = json!({
        "node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}},
        "short": {"type": "string", "maxLength": 3},
    });
    schema
}

/// Picks from a list of numbers, again from the start when it is used up.
struct Picks<'a>(&'a [u8], usize);

impl Picks<'_> {
    fn next(&mut self, below: usize) -> usize {
        let at = self.1;
        self.1 += 1;
        usize::from(self.0[at % self.0.len()]).wrapping_add(at / self.0.len()) % below
    }
}

/// A value that should fit, mostly; strict ones name every member.
fn value_of(schema: &Value, root: &Value, picks: &mut Picks<'_>, depth: usize, is_strict: bool) -> Value {
    let schema = resolved(root, schema).unwrap();
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = schema.get(key).and_then(Value::as_array) {
            // The last alternative is the way out of circles.
            let at = if depth > 6 { list.len() - 1 } else { picks.next(list.len()) };
            return value_of(&list[at], root, picks, depth + 1, is_strict);
        }
    }
    if let Some(value) = schema.get("const") {
        return value.clone();
    }
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values[picks.next(values.len())].clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds[picks.next(kinds.len())].clone(),
        one => one.clone(),
    };
    match kind.as_str().unwrap() {
        "string" => json!(["", "x", "yy", "long"][picks.next(4)]),
        "integer" => json!(picks.next(8)),
        "boolean" => json!(picks.next(2) == 0),
        "null" => Value::Null,
        "array" => (0..picks.next(3)).map(|_| value_of(&schema["items"], root, picks, depth + 1, is_strict)).collect(),
        _ => {
            let mut fields = Map::new();
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                if is_strict || required.contains(&json!(name)) || (depth < 6 && picks.next(2) == 0) {
                    fields.insert(name.clone(), value_of(member, root, picks, depth + 1, is_strict));
                }
            }
            Value::Object(fields)
        }
    }
}

/// The same value with every member that was left out as null.
fn lifted(value: &Value, schema: &Value, root: &Value) -> Vec<Value> {
    let schema = resolved(root, schema).unwrap();
    for key in ["anyOf", "oneOf"] {
        if let Some(list) = schema.get(key).and_then(Value::as_array) {
            return list.iter().flat_map(|one| lifted(value, one, root)).take(64).collect();
        }
    }
    match value {
        Value::Object(fields) if schema.get("properties").is_some() => {
            let mut forms = vec![Map::new()];
            for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                let inner = fields.get(name).map_or(vec![Value::Null], |value| lifted(value, member, root));
                let grown = forms.iter().flat_map(|form| {
                    inner.iter().map(|one| {
                        let mut form = form.clone();
                        form.insert(name.clone(), one.clone());
                        form
                    })
                });
                forms = grown.take(64).collect();
            }
            forms.into_iter().map(Value::Object).collect()
        }
        Value::Array(items) if schema.get("items").is_some() => {
            let mut forms = vec![Vec::new()];
            for item in items {
                let inner = lifted(item, &schema["items"], root);
                let grown = forms.iter().flat_map(|form: &Vec<Value>| {
                    inner.iter().map(|one| form.iter().cloned().chain([one.clone()]).collect())
                });
                forms = grown.take(64).collect();
            }
            forms.into_iter().map(Value::Array).collect()
        }
        other => vec![other.clone()],
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// What fits a schema fits its strict form with nulls for what is left out; and what fits the strict form fits the
    /// schema without them, unless a keyword narrows that the strict form does not know.
    #[test]
    fn a_strict_form_takes_the_same_values(
        (schema, narrows) in object(schemas()),
        picks in proptest::collection::vec(any::<u8>(), 1..40),
        dialect in prop_oneof![Just(StrictDialect::OpenAi), Just(StrictDialect::Claude)],
    ) {
        let schema = with_definitions(schema);
        let Ok(adapted) = strict(&schema, dialect) else { return Ok(()) };
        let (own, strict_form) = (Schema::compile(&schema).unwrap(), Schema::compile(&adapted).unwrap());
        let value = value_of(&schema, &schema, &mut Picks(&picks, 0), 0, false);
        if own.check(&value).is_ok() {
            let forms = match dialect {
                StrictDialect::OpenAi => lifted(&value, &schema, &schema),
                StrictDialect::Claude => vec![value.clone()],
            };
            prop_assert!(forms.iter().any(|form| strict_form.check(form).is_ok()), "{schema}\n{adapted}\n{value}");
        }
        let said = value_of(&adapted, &adapted, &mut Picks(&picks, 3), 0, dialect == StrictDialect::OpenAi);
        prop_assume!(strict_form.check(&said).is_ok());
        let text = said.to_string();
        let mut node = Node::read(&text).unwrap();
        without_nulls(&mut node, &schema);
        let back: Value = serde_json::from_str(&node.write()).unwrap();
        prop_assert!(narrows || own.check(&back).is_ok(), "{schema}\n{adapted}\n{said}\n{back}");
    }
}
