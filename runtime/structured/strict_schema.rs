//! A schema as the strict mode of a provider takes it, at every level.
//!
//! Strict modes know a part of JSON Schema. What only narrows (lengths, patterns, `not`) is left out, told in the
//! description, and still checked on what comes back; optional members become ones that may be null, and such nulls are
//! taken out again. What must stay true: every value of the schema made of declared members fits the strict one too, and
//! where that cannot be had (maps, tuples, anything goes) there is no strict schema but the reason.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::schema_walk::{referred, resolved};
use crate::models::object_support::StrictDialect;

/// Most levels of objects and arrays inside of each other.
pub const LEVELS_MAX: usize = 10;
/// Most members of all objects together.
pub const MEMBERS_MAX: usize = 5000;
/// Most values of all enumerations together.
pub const ENUM_VALUES_MAX: usize = 1000;
/// Most schemas that are looked at, one that is referred to as often as it is.
const SCHEMAS_MAX: usize = 10_000;
/// How deep schemas may be inside of each other, alternatives included.
const NESTED_MAX: usize = 64;
/// Longest description that is made of what was left out, in bytes.
const HINT_BYTES_MAX: usize = 300;

/// Most optional members of all objects together, where they may be left out.
pub const OPTIONAL_MAX: usize = 24;
/// Most values with alternatives, where that is bounded.
pub const UNIONS_MAX: usize = 16;

fn optional_max(dialect: StrictDialect) -> usize {
    if dialect == StrictDialect::Claude { OPTIONAL_MAX } else { usize::MAX }
}

fn unions_max(dialect: StrictDialect) -> usize {
    if dialect == StrictDialect::Claude { UNIONS_MAX } else { usize::MAX }
}

/// Why a schema has no strict form.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the schema has no strict form: {place} {reason}")]
pub struct NotStrict {
    /// Where, as a pointer into the schema.
    pub place: String,
    /// Why.
    pub reason: &'static str,
}

/// The strict form of a schema whose values are objects.
///
/// # Errors
/// [`NotStrict`].
pub fn strict(schema: &Value, dialect: StrictDialect) -> Result<Value, NotStrict> {
    let mut work = Adapting {
        root: schema,
        dialect,
        definitions: Vec::new(),
        names: BTreeMap::new(),
        counts: [0; 4],
        seen: 0,
        nested: 0,
    };
    let root = resolved(schema, schema).ok_or_else(|| no("", "refers to nothing, or to itself"))?;
    let mut adapted = work.adapt(root, "", 0)?;
    if adapted.get("type") != Some(&json!("object")) {
        return Err(no("", "is no plain object"));
    }
    // Each definition may name further ones.
    let mut defined = Map::new();
    let mut next = 0;
    while let Some((name, reference)) = work.definitions.get(next).cloned() {
        let target = referred(schema, &reference).ok_or_else(|| no(&reference, "is not there"))?;
        defined.insert(name, work.adapt(target, &reference, 0)?);
        next += 1;
    }
    if dialect == StrictDialect::Claude && has_circle(&defined) {
        return Err(no("$defs", "refers to itself"));
    }
    if let Some(fields) = adapted.as_object_mut().filter(|_| !defined.is_empty()) {
        fields.insert("$defs".to_owned(), Value::Object(defined));
    }
    Ok(adapted)
}

fn no(place: &str, reason: &'static str) -> NotStrict {
    let place = if place.is_empty() { "the root" } else { place };
    NotStrict { place: place.to_owned(), reason }
}

struct Adapting<'a> {
    root: &'a Value,
    dialect: StrictDialect,
    /// Names of definitions and what they stand for, in the order they were met.
    definitions: Vec<(String, String)>,
    names: BTreeMap<String, String>,
    /// Members, enumerated values, optional members, unions.
    counts: [usize; 4],
    /// Schemas looked at, and how many of them are open.
    seen: usize,
    nested: usize,
}

/// What stays as it is.
const KEPT: [&str; 3] = ["title", "const", "enum"];
/// What only narrows, and is checked on our side.
const NARROWING: [&str; 25] = [
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minItems",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "not",
    "if",
    "then",
    "else",
    "default",
];
/// What says nothing about values.
const SILENT: [&str; 15] = [
    "$schema",
    "$id",
    "$comment",
    "$defs",
    "definitions",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "$anchor",
    "$dynamicAnchor",
    "additionalItems",
];

impl Adapting<'_> {
    fn adapt(&mut self, schema: &Value, place: &str, depth: usize) -> Result<Value, NotStrict> {
        self.seen += 1;
        if depth > LEVELS_MAX || self.nested >= NESTED_MAX || self.seen > SCHEMAS_MAX {
            return Err(no(place, "is nested too deep for it"));
        }
        self.nested += 1;
        let adapted = self.adapt_one(schema, place, depth);
        self.nested -= 1;
        adapted
    }

    fn adapt_one(&mut self, schema: &Value, place: &str, depth: usize) -> Result<Value, NotStrict> {
        let Some(fields) = schema.as_object().filter(|fields| !fields.is_empty()) else {
            return Err(no(place, "takes anything"));
        };
        if let Some(Value::String(reference)) = fields.get("$ref") {
            let alone = fields.keys().all(|key| matches!(key.as_str(), "$ref" | "description" | "title" | "default"));
            return match alone {
                true => Ok(json!({"$ref": format!("#/$defs/{}", self.name_of(reference))})),
                false => self.inlined(fields, reference, place, depth),
            };
        }
        if let Some(Value::Array(all)) = fields.get("allOf") {
            return self.merged(fields, all, place, depth);
        }
        let mut out = Map::new();
        let mut hints = Vec::new();
        for (key, value) in fields {
            match key.as_str() {
                "description" | "type" | "required" | "properties" | "items" | "anyOf" | "oneOf" => {}
                "additionalProperties" | "unevaluatedProperties" if *value == Value::Bool(false) => {}
                "additionalProperties" | "unevaluatedProperties" | "patternProperties" => {
                    return Err(no(place, "takes members of any name"));
                }
                "prefixItems" | "unevaluatedItems" => return Err(no(place, "has items by their place")),
                "$dynamicRef" | "$recursiveRef" | "dependencies" => {
                    return Err(no(place, "uses what it does not know"));
                }
                key if KEPT.contains(&key) => {
                    out.insert(key.to_owned(), value.clone());
                }
                key if NARROWING.contains(&key) => hints.push(format!("{key}: {value}")),
                key if SILENT.contains(&key) => {}
                // An unknown keyword says nothing to validators.
                _ => {}
            }
        }
        if let Some(description) = described(fields, &hints) {
            out.insert("description".to_owned(), Value::String(description));
        }
        if let Some(Value::Array(values)) = fields.get("enum") {
            self.count(1, values.len(), ENUM_VALUES_MAX, place, "has too many values")?;
            if values.iter().any(|value| value.is_object() || value.is_array()) {
                return Err(no(place, "enumerates objects or lists"));
            }
        }
        if fields.get("const").is_some_and(|value| value.is_object() || value.is_array()) {
            return Err(no(place, "is one object or list"));
        }
        self.shape(fields, &mut out, place, depth)?;
        Ok(Value::Object(out))
    }

    /// Type, members, items and alternatives.
    fn shape(
        &mut self,
        fields: &Map<String, Value>,
        out: &mut Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<(), NotStrict> {
        let alternatives = [("anyOf", fields.get("anyOf")), ("oneOf", fields.get("oneOf"))];
        let mut alternatives = alternatives.into_iter().filter_map(|(key, list)| Some((key, list?.as_array()?)));
        if let Some((key, list)) = alternatives.next() {
            if alternatives.next().is_some() || ["properties", "items"].iter().any(|own| fields.contains_key(*own)) {
                return Err(no(place, "mixes alternatives with a shape of its own"));
            }
            if fields.contains_key("required") {
                return Err(no(place, "mixes alternatives with members of its own"));
            }
            self.count(3, 1, unions_max(self.dialect), place, "has too many alternatives")?;
            let each = list.iter().enumerate();
            let adapted = each.map(|(at, one)| self.adapt(one, &format!("{place}/{key}/{at}"), depth));
            out.insert("anyOf".to_owned(), Value::Array(adapted.collect::<Result<_, _>>()?));
            return Ok(());
        }
        let types: Vec<&str> = match fields.get("type") {
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
            _ if fields.contains_key("properties") => vec!["object"],
            _ if fields.contains_key("items") => vec!["array"],
            _ if fields.contains_key("enum") || fields.contains_key("const") => return Ok(()),
            _ => return Err(no(place, "takes values of any type")),
        };
        // Members say nothing about what is no object: without its type, anything else would fit.
        if !fields.contains_key("type") {
            return Err(no(place, "names no type"));
        }
        if let [one] = types[..] {
            out.insert("type".to_owned(), json!(one));
            return self.members_and_items(one, fields, out, place, depth);
        }
        if types.iter().any(|one| matches!(*one, "object" | "array")) || self.dialect == StrictDialect::Claude {
            self.count(3, 1, unions_max(self.dialect), place, "has too many alternatives")?;
            let mut each = Vec::with_capacity(types.len());
            for one in types {
                let mut alternative = Map::from_iter([("type".to_owned(), json!(one))]);
                self.members_and_items(one, fields, &mut alternative, place, depth)?;
                each.push(Value::Object(alternative));
            }
            // Values that are named are named for all alternatives.
            if let Some(values) = out.shift_remove("enum").filter(|_| fields.contains_key("enum")) {
                *out = Map::from_iter([("enum".to_owned(), values)]);
                return Ok(());
            }
            out.insert("anyOf".to_owned(), Value::Array(each));
        } else {
            out.insert("type".to_owned(), json!(types));
        }
        Ok(())
    }

    fn members_and_items(
        &mut self,
        kind: &str,
        fields: &Map<String, Value>,
        out: &mut Map<String, Value>,
        place: &str,
        depth: usize,
    ) -> Result<(), NotStrict> {
        match kind {
            "object" => {
                let Some(Value::Object(members)) = fields.get("properties") else {
                    // A closed object without members is an empty one; an open one is a map.
                    if fields.get("additionalProperties") != Some(&Value::Bool(false)) {
                        return Err(no(place, "takes members of any name"));
                    }
                    out.insert("properties".to_owned(), json!({}));
                    out.insert("required".to_owned(), json!([]));
                    out.insert("additionalProperties".to_owned(), json!(false));
                    return Ok(());
                };
                let required = required_of(fields);
                if required.iter().any(|name| !members.contains_key(*name)) {
                    return Err(no(place, "requires a member that it does not describe"));
                }
                self.count(0, members.len(), MEMBERS_MAX, place, "has too many members")?;
                let mut adapted = Map::new();
                for (name, member) in members {
                    let one = self.adapt(member, &format!("{place}/properties/{name}"), depth + 1)?;
                    let is_required = required.contains(&name.as_str());
                    if !is_required {
                        self.count(2, 1, optional_max(self.dialect), place, "has too many optional members")?;
                    }
                    let nullable = self.dialect == StrictDialect::OpenAi && !is_required;
                    adapted.insert(name.clone(), if nullable { or_null(one) } else { one });
                }
                let wanted: Vec<&String> = match self.dialect {
                    StrictDialect::OpenAi => adapted.keys().collect(),
                    StrictDialect::Claude => adapted.keys().filter(|name| required.contains(&name.as_str())).collect(),
                };
                out.insert("required".to_owned(), json!(wanted));
                out.insert("properties".to_owned(), Value::Object(adapted));
                out.insert("additionalProperties".to_owned(), json!(false));
            }
            "array" => match fields.get("items") {
                Some(Value::Array(_)) => return Err(no(place, "has items by their place")),
                Some(items) => {
                    out.insert("items".to_owned(), self.adapt(items, &format!("{place}/items"), depth + 1)?);
                }
                None => return Err(no(place, "takes items of any kind")),
            },
            _ => {}
        }
        Ok(())
    }

    /// A reference that has more beside it: what it stands for, put in its place.
    fn inlined(
        &mut self,
        fields: &Map<String, Value>,
        reference: &str,
        place: &str,
        depth: usize,
    ) -> Result<Value, NotStrict> {
        let target = referred(self.root, reference).and_then(|target| resolved(self.root, target));
        let target = target.ok_or_else(|| no(place, "refers to nothing, or to itself"))?;
        let mut rest = fields.clone();
        rest.shift_remove("$ref");
        self.merged(&rest, std::slice::from_ref(target), place, depth)
    }

    /// What all of these say together, where no two say something about the same.
    fn merged(
        &mut self,
        fields: &Map<String, Value>,
        all: &[Value],
        place: &str,
        depth: usize,
    ) -> Result<Value, NotStrict> {
        let mut one = fields.clone();
        one.shift_remove("allOf");
        for part in all {
            let part = resolved(self.root, part).ok_or_else(|| no(place, "refers to nothing, or to itself"))?;
            let Some(part) = part.as_object() else { return Err(no(place, "takes anything")) };
            for (key, value) in part {
                if SILENT.contains(&key.as_str()) {
                    continue;
                }
                match (one.get_mut(key), key.as_str()) {
                    (None, _) => {
                        one.insert(key.clone(), value.clone());
                    }
                    (Some(_), "description" | "title" | "default") => {}
                    (Some(had), _) if had == value => {}
                    (Some(Value::Object(had)), "properties") => {
                        for (name, member) in value.as_object().into_iter().flatten() {
                            if had.get(name).is_some_and(|other| other != member) {
                                return Err(no(place, "says two things of one member"));
                            }
                            had.insert(name.clone(), member.clone());
                        }
                    }
                    (Some(Value::Array(had)), "required") => {
                        for name in value.as_array().into_iter().flatten() {
                            if !had.contains(name) {
                                had.push(name.clone());
                            }
                        }
                    }
                    _ => return Err(no(place, "says two things of one value")),
                }
            }
        }
        // Closed parts of an open whole refuse each other's members.
        let closes = |part: &Value| part.get("additionalProperties").is_some();
        if all.len() + usize::from(fields.contains_key("properties")) > 1 && all.iter().any(closes) {
            return Err(no(place, "puts closed objects together"));
        }
        if one.contains_key("allOf") || one.contains_key("$ref") {
            // What was put together has parts of its own: once more, within the levels.
            return self.adapt(&Value::Object(one), place, depth + 1);
        }
        self.adapt(&Value::Object(one), place, depth)
    }

    /// The name of the definition that a reference leads to.
    fn name_of(&mut self, reference: &str) -> String {
        if let Some(name) = self.names.get(reference) {
            return name.clone();
        }
        let last = reference.rsplit('/').next().unwrap_or("");
        let plain: String =
            last.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).take(40).collect();
        let plain = if plain.is_empty() || plain == "_" { "root".to_owned() } else { plain };
        let is_taken = |name: &String| self.names.values().any(|taken| taken == name);
        let mut name = plain.clone();
        let mut number = 2;
        // Ends: only finitely many are taken.
        while is_taken(&name) {
            name = format!("{plain}_{number}");
            number += 1;
        }
        self.names.insert(reference.to_owned(), name.clone());
        self.definitions.push((name.clone(), reference.to_owned()));
        name
    }

    fn count(
        &mut self,
        which: usize,
        more: usize,
        most: usize,
        place: &str,
        reason: &'static str,
    ) -> Result<(), NotStrict> {
        self.counts[which] = self.counts[which].saturating_add(more);
        if self.counts[which] > most { Err(no(place, reason)) } else { Ok(()) }
    }
}

fn required_of(fields: &Map<String, Value>) -> Vec<&str> {
    fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn described(fields: &Map<String, Value>, hints: &[String]) -> Option<String> {
    let own = fields.get("description").and_then(Value::as_str).unwrap_or("");
    if hints.is_empty() {
        return (!own.is_empty()).then(|| own.to_owned());
    }
    let mut hint = hints.join(", ");
    hint.truncate(hint.floor_char_boundary(HINT_BYTES_MAX));
    Some(if own.is_empty() { format!("({hint})") } else { format!("{own} ({hint})") })
}

/// The same, or null.
fn or_null(schema: Value) -> Value {
    let Value::Object(mut fields) = schema else { return schema };
    if let Some(Value::Array(alternatives)) = fields.get_mut("anyOf") {
        if !alternatives.iter().any(|one| one.get("type") == Some(&json!("null"))) {
            alternatives.push(json!({"type": "null"}));
        }
        return Value::Object(fields);
    }
    let is_plain = !fields.contains_key("enum") && !fields.contains_key("const");
    match fields.get("type").cloned() {
        Some(Value::String(kind)) if is_plain && !matches!(kind.as_str(), "object" | "array") => {
            if kind != "null" {
                fields.insert("type".to_owned(), json!([kind, "null"]));
            }
            Value::Object(fields)
        }
        Some(Value::Array(mut kinds)) if is_plain => {
            if !kinds.contains(&json!("null")) {
                kinds.push(json!("null"));
            }
            fields.insert("type".to_owned(), Value::Array(kinds));
            Value::Object(fields)
        }
        _ => json!({"anyOf": [Value::Object(fields), {"type": "null"}]}),
    }
}

/// Whether any definition leads back to itself.
fn has_circle(definitions: &Map<String, Value>) -> bool {
    let names_in = |schema: &Value| -> Vec<String> {
        let (mut names, mut open) = (Vec::new(), vec![schema]);
        while let Some(value) = open.pop() {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(reference)) = fields.get("$ref") {
                        names.extend(reference.strip_prefix("#/$defs/").map(str::to_owned));
                    }
                    open.extend(fields.values());
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
        }
        names
    };
    let mut left: BTreeMap<&str, Vec<String>> =
        definitions.iter().map(|(name, schema)| (name.as_str(), names_in(schema))).collect();
    // Take away what leads nowhere, until nothing is taken away any more: what stays are circles.
    loop {
        let ends: Vec<&str> = left
            .iter()
            .filter(|(_, names)| !names.iter().any(|name| left.contains_key(name.as_str())))
            .map(|(name, _)| *name)
            .collect();
        if ends.is_empty() {
            return !left.is_empty();
        }
        ends.iter().for_each(|name| {
            left.remove(name);
        });
    }
}

#[cfg(test)]
mod tests;
