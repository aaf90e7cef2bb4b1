//! Argument schemas: compiled once, checked in microseconds, explained one error per fault.
//!
//! A schema is JSON Schema 2020-12. Only references inside the schema itself are followed; nothing is fetched.

use std::collections::BTreeSet;
use std::sync::Arc;

use dashmap::DashMap;
use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde_json::Value;
use thiserror::Error;

use crate::digest::Digest;
use crate::json_depth::{JSON_DEPTH_MAX, deeper_than};

/// Largest schema that is compiled, in bytes of its JSON text.
pub const SCHEMA_BYTES_MAX: usize = 256 * 1024;
/// Most faults named for one call.
pub const FAULTS_MAX: usize = 8;
/// Longest explanation, in bytes.
pub const EXPLANATION_BYTES_MAX: usize = 4096;

/// A compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
}

/// Why a schema cannot be used.
#[derive(Debug, Error)]
pub enum SchemaError {
    /// Larger than [`SCHEMA_BYTES_MAX`].
    #[error("the schema has {bytes} bytes; at most {SCHEMA_BYTES_MAX} are taken")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Nested deeper than [`JSON_DEPTH_MAX`].
    #[error("the schema is nested deeper than {JSON_DEPTH_MAX} levels")]
    TooDeep,
    /// Not a schema.
    #[error("not a usable schema: {0}")]
    Malformed(String),
}

impl Schema {
    /// Compiles a schema.
    ///
    /// # Errors
    /// [`SchemaError`] when it is too large, too deep, or not a schema (bad pattern, dangling reference, …).
    pub fn compile(schema: &Value) -> Result<Self, SchemaError> {
        if deeper_than(schema, JSON_DEPTH_MAX) {
            return Err(SchemaError::TooDeep);
        }
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_BYTES_MAX {
            return Err(SchemaError::TooLarge { bytes });
        }
        jsonschema::meta::validate(schema).map_err(|error| SchemaError::Malformed(error.to_string()))?;
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(schema)
            .map_err(|error| SchemaError::Malformed(error.to_string()))?;
        Ok(Self { validator })
    }

    /// Checks arguments; the error explains each fault with its place, at most [`FAULTS_MAX`] of them.
    ///
    /// # Errors
    /// The explanation.
    pub fn check(&self, arguments: &Value) -> Result<(), String> {
        // First, because the validator recurses.
        if deeper_than(arguments, JSON_DEPTH_MAX) {
            return Err(format!("$: nested deeper than {JSON_DEPTH_MAX} levels"));
        }
        if self.validator.is_valid(arguments) {
            return Ok(());
        }
        let mut faults = Vec::new();
        for error in self.validator.iter_errors(arguments) {
            explain(&error, &mut faults);
            if faults.len() > FAULTS_MAX {
                break;
            }
        }
        Err(join(faults))
    }
}

/// One line a fault: its place, and what is wrong there. Alternatives are walked into, for "matches none of the
/// alternatives" helps nobody.
fn explain(error: &jsonschema::ValidationError<'_>, faults: &mut Vec<String>) {
    let place = match error.instance_path().as_str() {
        "" => "$".to_owned(),
        path => path.to_owned(),
    };
    match error.kind() {
        ValidationErrorKind::AnyOf { context } | ValidationErrorKind::OneOfNotValid { context } => {
            // Alternatives that only say which key must be there are one sentence: "a or b is required".
            let mut required = BTreeSet::new();
            let only_required = context.iter().flatten().all(|inner| match inner.kind() {
                ValidationErrorKind::Required { property } => {
                    required.insert(property.as_str().unwrap_or_default().to_owned());
                    true
                }
                _ => false,
            });
            if only_required && !required.is_empty() {
                let names: Vec<String> = required.into_iter().collect();
                faults.push(format!("{place}: {} is required", names.join(" or ")));
                return;
            }
            // Otherwise the alternative that came closest: the one with the fewest faults.
            if let Some(closest) = context.iter().min_by_key(|alternative| alternative.len()) {
                for inner in closest {
                    explain(inner, faults);
                }
            }
        }
        ValidationErrorKind::OneOfMultipleValid { .. } => {
            faults.push(format!("{place}: fits more than one alternative; give only one of them"));
        }
        _ => faults.push(format!("{place}: {}", clip(&error.to_string(), 400))),
    }
}

fn join(mut faults: Vec<String>) -> String {
    faults.dedup();
    let omitted = faults.len() > FAULTS_MAX;
    faults.truncate(FAULTS_MAX);
    let mut text = faults.join("; ");
    if omitted {
        text.push_str("; more faults are not listed");
    }
    clip(&text, EXPLANATION_BYTES_MAX)
}

/// At most `bytes_max` bytes of `text`, cut between characters, with a sign where it was cut.
fn clip(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}

/// Compiled schemas by the digest of their text; order reaches nothing.
#[derive(Debug, Default)]
pub struct SchemaCache {
    compiled: DashMap<Digest, Arc<Schema>>,
}

impl SchemaCache {
    /// The compiled form of a schema, made at most once.
    ///
    /// # Errors
    /// As [`Schema::compile`].
    pub fn compile(&self, schema: &Value) -> Result<Arc<Schema>, SchemaError> {
        let digest = Digest::of(schema.to_string().as_bytes());
        if let Some(found) = self.compiled.get(&digest) {
            return Ok(Arc::clone(&found));
        }
        let compiled = Arc::new(Schema::compile(schema)?);
        self.compiled.insert(digest, Arc::clone(&compiled));
        Ok(compiled)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Schema, SchemaError};

    fn faults(schema: &Value, arguments: &Value) -> String {
        Schema::compile(schema).unwrap().check(arguments).unwrap_err()
    }

    #[test]
    fn each_fault_is_named_with_its_place() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["path"],
            "properties": {"path": {"type": "string"}, "limit": {"type": "integer", "minimum": 1}}
        });
        let text = faults(&schema, &json!({"limit": 0, "nope": 1}));
        assert!(text.contains("/limit: "), "{text}");
        assert!(text.contains("\"path\" is a required property"), "{text}");
        assert!(text.contains("nope"), "{text}");
    }

    // Case R10: alternatives explain themselves.
    #[test]
    fn alternatives_say_what_is_required() {
        let schema = json!({
            "type": "object",
            "properties": {"file_path": {"type": "string"}, "files": {"type": "array"}},
            "oneOf": [{"required": ["file_path"]}, {"required": ["files"]}]
        });
        assert_eq!(faults(&schema, &json!({})), "$: file_path or files is required");
        let both = faults(&schema, &json!({"file_path": "a", "files": []}));
        assert!(both.contains("only one"), "{both}");
        assert!(faults(&schema, &Value::Null).contains("object"));
        assert!(faults(&schema, &json!([])).contains("object"));
    }

    #[test]
    fn deep_arguments_are_refused_without_recursion() {
        let mut deep = json!(1);
        for _ in 0..50_000 {
            deep = Value::Array(vec![deep]);
        }
        let schema = Schema::compile(&json!({"type": "array"})).unwrap();
        assert!(schema.check(&deep).unwrap_err().contains("nested deeper"));
        // Dropping a value this deep would itself recurse: take it apart.
        while let Value::Array(mut items) = deep {
            deep = items.pop().unwrap_or(Value::Null);
        }
    }

    #[test]
    fn broken_schemas_are_refused_when_they_are_compiled() {
        for broken in [
            json!({"type": "nonsense"}),
            json!({"pattern": "("}),
            json!({"$ref": "#/$defs/absent"}),
            json!({"$ref": "http://127.0.0.1:9/schema"}),
            json!({"$ref": "file:///etc/passwd"}),
        ] {
            assert!(matches!(Schema::compile(&broken), Err(SchemaError::Malformed(_))), "{broken}");
        }
    }
}
