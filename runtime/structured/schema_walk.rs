//! Walks over JSON Schemas: which keywords hold schemas, and where local references lead.
//!
//! A property may be called `$ref` and a default may look like a schema, so only what stands where a schema may stand is
//! taken for one. What must stay true: nothing outside of the schema is ever looked at, and circles end.

use serde_json::{Map, Value};

/// Keywords that hold one schema.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords that hold a list of schemas.
const LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords that hold schemas by name.
const NAMED: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];
/// How many references are followed in a row.
const REFERENCES_MAX: usize = 64;

/// Calls `visit` with every schema in a schema, itself included, and with its keywords.
pub fn each_schema<'a>(root: &'a Value, visit: &mut dyn FnMut(&'a Value, &'a Map<String, Value>)) {
    let mut open = vec![root];
    while let Some(schema) = open.pop() {
        let Value::Object(fields) = schema else { continue };
        visit(schema, fields);
        for (key, value) in fields {
            match value {
                Value::Object(named) if NAMED.contains(&key.as_str()) => open.extend(named.values()),
                Value::Object(_) if ONE.contains(&key.as_str()) => open.push(value),
                Value::Array(list) if LIST.contains(&key.as_str()) => open.extend(list),
                _ => {}
            }
        }
    }
}

/// As [`each_schema`], with leave to change.
pub fn each_schema_mut(root: &mut Value, visit: &mut dyn FnMut(&mut Map<String, Value>)) {
    let mut open = vec![root];
    while let Some(schema) = open.pop() {
        let Value::Object(fields) = schema else { continue };
        visit(fields);
        for (key, value) in fields {
            let (is_named, is_one, is_list) =
                (NAMED.contains(&key.as_str()), ONE.contains(&key.as_str()), LIST.contains(&key.as_str()));
            if is_one && !is_named && value.is_object() {
                open.push(value);
                continue;
            }
            match value {
                Value::Object(named) if is_named => open.extend(named.values_mut()),
                Value::Array(list) if is_list => open.extend(list),
                _ => {}
            }
        }
    }
}

/// What a local reference leads to: `#`, `#/$defs/x`, or any other pointer into the schema.
pub fn referred<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    let pointer = reference.strip_prefix('#')?;
    root.pointer(&decoded(pointer)?)
}

/// The schema that a schema stands for: what its references lead to, as far as they stand alone.
pub fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> Option<&'a Value> {
    for _ in 0..REFERENCES_MAX {
        match schema.get("$ref") {
            Some(Value::String(reference)) => schema = referred(root, reference)?,
            _ => return Some(schema),
        }
    }
    None
}

/// A pointer without the escapes of an address.
fn decoded(pointer: &str) -> Option<String> {
    if !pointer.contains('%') {
        return Some(pointer.to_owned());
    }
    let mut bytes = Vec::with_capacity(pointer.len());
    let mut rest = pointer.as_bytes();
    while let [first, after @ ..] = rest {
        match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{each_schema, referred, resolved};

    #[test]
    fn only_what_stands_where_a_schema_stands_is_one() {
        let schema = json!({
            "properties": {"$ref": {"type": "string"}, "a": {"items": [{"const": {"type": 1}}, {"anyOf": [{}, true]}]}},
            "default": {"properties": {"no": {}}}, "$defs": {"x": {"if": {"not": {}}}},
        });
        let mut count = 0;
        each_schema(&schema, &mut |_, _| count += 1);
        assert_eq!(count, 1 + 2 + 2 + 1 + 3);
    }

    #[test]
    fn references_lead_anywhere_inside_and_circles_end() {
        let schema =
            json!({"$defs": {"a/b": {"$ref": "#/$defs/c%20d"}, "c d": {"type": "null"}, "o": {"$ref": "#/$defs/o"}}});
        assert_eq!(referred(&schema, "#/$defs/a~1b"), Some(&schema["$defs"]["a/b"]));
        assert_eq!(resolved(&schema, &schema["$defs"]["a/b"]), Some(&json!({"type": "null"})));
        assert_eq!(resolved(&schema, &schema["$defs"]["o"]), None);
        assert_eq!(referred(&schema, "#"), Some(&schema));
        assert_eq!(referred(&schema, "#/nowhere"), None);
    }
}
