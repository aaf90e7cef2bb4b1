//! The envelope that a value travels in: providers want an object at the root, and schemas may describe anything.
//!
//! An object goes as it is, an array as `{"elements": […]}`, everything else as `{"value": …}`. What must stay true: the
//! envelope's references lead where those of the schema led, and a value is the same with and without it.

use serde_json::{Map, Value, json};

use super::schema_walk::{each_schema_mut, resolved};

/// How a value travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Envelope {
    /// As it is.
    Direct,
    /// As the one member `elements`.
    Elements,
    /// As the one member `value`.
    Value,
}

/// How deep alternatives are looked into for what kind of value they describe.
const KIND_DEPTH_MAX: usize = 64;
/// How many schemas are looked at for that, one that is referred to as often as it is.
const KIND_SCHEMAS_MAX: usize = 10_000;
/// Keywords that only describe objects.
const OBJECT_KEYWORDS: [&str; 9] = [
    "additionalProperties",
    "dependentRequired",
    "dependentSchemas",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "properties",
    "propertyNames",
    "required",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Object,
    Array,
    Scalar,
}

impl Envelope {
    /// The one that values of a schema need.
    pub fn of(schema: &Value) -> Self {
        match kind_of(schema, schema, 0, &mut 0) {
            Some(Kind::Object) => Self::Direct,
            Some(Kind::Array) => Self::Elements,
            Some(Kind::Scalar) | None => Self::Value,
        }
    }

    /// The name of the one member; none where there is no envelope.
    pub fn key(self) -> Option<&'static str> {
        match self {
            Self::Direct => None,
            Self::Elements => Some("elements"),
            Self::Value => Some("value"),
        }
    }

    /// The schema of the envelope with its value.
    pub fn around(self, schema: &Value) -> Value {
        let Some(key) = self.key() else {
            let mut direct = schema.clone();
            // Some providers look for the word.
            if let Some(fields) = direct.as_object_mut() {
                fields.entry("type").or_insert_with(|| json!("object"));
                fields.shift_remove("$schema");
            }
            return direct;
        };
        let mut inner = schema.clone();
        let mut hoisted = Map::new();
        if let Some(fields) = inner.as_object_mut() {
            fields.shift_remove("$schema");
            for name in ["$defs", "definitions"] {
                if let Some(definitions) = fields.shift_remove(name) {
                    hoisted.insert(name.to_owned(), definitions);
                }
            }
        }
        let place = format!("#/properties/{key}");
        let mut moved = |schema: &mut Value| {
            each_schema_mut(schema, &mut |fields| {
                if let Some(Value::String(reference)) = fields.get_mut("$ref") {
                    *reference = moved_reference(reference, &place);
                }
            });
        };
        moved(&mut inner);
        for definitions in hoisted.values_mut() {
            definitions.as_object_mut().into_iter().flat_map(Map::values_mut).for_each(&mut moved);
        }
        let mut envelope = json!({
            "type": "object",
            "properties": {key: inner},
            "required": [key],
            "additionalProperties": false,
        });
        if let Some(fields) = envelope.as_object_mut() {
            fields.extend(hoisted);
        }
        envelope
    }
}

/// Definitions are moved up with the envelope, everything else down into it.
fn moved_reference(reference: &str, place: &str) -> String {
    match reference.strip_prefix('#') {
        Some(pointer) if pointer.starts_with("/$defs/") || pointer.starts_with("/definitions/") => reference.to_owned(),
        Some(pointer) if pointer.is_empty() || pointer.starts_with('/') => format!("{place}{pointer}"),
        // An anchor goes where its schema goes.
        _ => reference.to_owned(),
    }
}

fn kind_of(schema: &Value, root: &Value, depth: usize, seen: &mut usize) -> Option<Kind> {
    *seen += 1;
    if depth > KIND_DEPTH_MAX || *seen > KIND_SCHEMAS_MAX {
        return None;
    }
    let fields = resolved(root, schema)?.as_object()?;
    match fields.get("type") {
        Some(Value::String(name)) => return Some(kind_named(name)),
        Some(Value::Array(names)) => {
            let kinds = names.iter().map(|name| name.as_str().map(kind_named));
            return unanimous(kinds).or(Some(Kind::Scalar));
        }
        _ => {}
    }
    if let Some(value) = fields.get("const") {
        return Some(kind_of_value(value));
    }
    if let Some(Value::Array(values)) = fields.get("enum") {
        return unanimous(values.iter().map(|value| Some(kind_of_value(value)))).or(Some(Kind::Scalar));
    }
    if let Some(Value::Array(all)) = fields.get("allOf")
        && let Some(kind) = all.iter().find_map(|one| kind_of(one, root, depth + 1, seen))
    {
        return Some(kind);
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(Value::Array(alternatives)) = fields.get(key) {
            let kinds = alternatives.iter().map(|one| kind_of(one, root, depth + 1, seen));
            return unanimous(kinds).or(Some(Kind::Scalar));
        }
    }
    OBJECT_KEYWORDS.iter().any(|key| fields.contains_key(*key)).then_some(Kind::Object)
}

fn kind_named(name: &str) -> Kind {
    match name {
        "object" => Kind::Object,
        "array" => Kind::Array,
        _ => Kind::Scalar,
    }
}

fn kind_of_value(value: &Value) -> Kind {
    match value {
        Value::Object(_) => Kind::Object,
        Value::Array(_) => Kind::Array,
        _ => Kind::Scalar,
    }
}

fn unanimous(kinds: impl Iterator<Item = Option<Kind>>) -> Option<Kind> {
    let mut found = None;
    for kind in kinds {
        let kind = kind?;
        if *found.get_or_insert(kind) != kind {
            return None;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwarden_tools::schema::Schema;

    use super::Envelope;

    #[test]
    fn the_root_is_told_by_whatever_says_it() {
        for schema in [
            json!({"type": "object"}),
            json!({"properties": {}}),
            json!({"required": ["a"]}),
            json!({"const": {"a": 1}}),
            json!({"enum": [{}, {"a": 1}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "object"}}}),
            json!({"allOf": [{"description": "x"}, {"type": "object"}]}),
            json!({"anyOf": [{"type": "object"}, {"properties": {}}]}),
            json!({"oneOf": [{"const": {}}]}),
            json!({"type": ["object"]}),
        ] {
            assert_eq!(Envelope::of(&schema), Envelope::Direct, "{schema}");
        }
        for schema in
            [json!({"type": "array"}), json!({"const": []}), json!({"anyOf": [{"type": "array"}, {"enum": [[]]}]})]
        {
            assert_eq!(Envelope::of(&schema), Envelope::Elements, "{schema}");
        }
        for schema in [
            json!({}),
            json!({"type": "integer"}),
            json!({"enum": ["a", "b"]}),
            json!({"enum": ["a", {}]}),
            json!({"type": ["object", "null"]}),
            json!({"anyOf": [{"type": "object"}, {"type": "string"}]}),
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"oneOf": [{"type": "object"}, {}]}),
        ] {
            assert_eq!(Envelope::of(&schema), Envelope::Value, "{schema}");
        }
    }

    #[test]
    fn references_lead_where_they_led() {
        let tree = json!({
            "type": "array", "items": {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/leaf"}, {"$ref": "#/definitions/none"}]},
            "$defs": {"leaf": {"type": "integer"}, "again": {"$ref": "#/items"}}, "definitions": {"none": {"type": "null"}},
        });
        let envelope = Envelope::of(&tree).around(&tree);
        let schema = Schema::compile(&envelope).unwrap();
        assert!(schema.check(&json!({"elements": [1, [2, [null]]]})).is_ok());
        assert!(schema.check(&json!({"elements": [1, ["x"]]})).is_err());
        assert!(schema.check(&json!({"elements": [], "more": 1})).is_err());
        assert_eq!(envelope["$defs"]["again"]["$ref"], "#/properties/elements/items");
        let direct = json!({"required": ["a"], "$schema": "https://json-schema.org/draft/2020-12/schema"});
        assert_eq!(Envelope::of(&direct).around(&direct), json!({"required": ["a"], "type": "object"}));
    }
}
