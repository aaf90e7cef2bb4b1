//! References between the calls of a batch: `{"$ref": "id.field.path"}` stands for a piece of an earlier result.
//!
//! Only results of earlier steps that succeeded can be referred to, and only in small pieces: what is bound is
//! copied into the arguments of another call. A reference that cannot be followed spoils its own call alone.

use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::canonical_json::json_bytes;
use crate::json_depth::JSON_DEPTH_MAX;
use crate::json_tree::unheld_number;
use crate::outcome::ToolOutcome;

/// Largest field of a result that can be referred to, and largest value that a reference may stand for, in bytes.
pub const BOUND_BYTES_MAX: usize = 16 * 1024;
/// Most references in the arguments of one call; with [`BOUND_BYTES_MAX`] it bounds what binding can copy.
pub const REFERENCES_MAX: usize = 64;
/// Longest reference, in bytes.
pub const REFERENCE_BYTES_MAX: usize = 1024;
/// The key that makes an object a reference.
pub(crate) const REFERENCE_KEY: &str = "$ref";

/// A call that others may refer to, as it stands when a step begins.
#[derive(Debug, Clone, Copy)]
pub struct Referable<'a> {
    /// Its id.
    pub id: &'a str,
    /// Which tool it calls.
    pub tool: &'a str,
    /// Its step.
    pub step: u32,
    /// How it ended; none while its step has not run.
    pub outcome: Option<&'a ToolOutcome>,
}

/// Why a reference cannot be followed; the text tells how to mend the call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BindingError {
    /// Other keys stand beside the reference.
    #[error("an object with a reference has the reference and nothing else; take {0:?} out of it")]
    ExtraKey(String),
    /// The reference is no text.
    #[error("a reference is a string such as \"id.output\", not {0}")]
    NotText(&'static str),
    /// Longer than [`REFERENCE_BYTES_MAX`].
    #[error("a reference has {0} bytes; at most {REFERENCE_BYTES_MAX} are read")]
    TooLong(usize),
    /// No call has this id.
    #[error("{reference:?} names no call of this batch; ids there are: {known}")]
    UnknownId {
        /// The reference.
        reference: String,
        /// The ids, joined.
        known: String,
    },
    /// The call has not run before this one.
    #[error("{reference:?} needs the result of {id:?}, which is in step {its}; put this call in a step after it")]
    NotEarlier {
        /// The reference.
        reference: String,
        /// The id.
        id: String,
        /// The step of that call.
        its: u32,
    },
    /// The call failed.
    #[error("{reference:?} needs the result of {id:?}, and that call failed")]
    Failed {
        /// The reference.
        reference: String,
        /// The id.
        id: String,
    },
    /// There is no such field.
    #[error("{reference:?}: a result has output, output_lines, metadata, exit_code and tool, not {field:?}")]
    UnknownField {
        /// The reference.
        reference: String,
        /// The field.
        field: String,
    },
    /// The path leads nowhere.
    #[error("{reference:?}: nothing stands at {segment:?}{there}")]
    Nothing {
        /// The reference.
        reference: String,
        /// The segment that does not exist.
        segment: String,
        /// What stands beside it.
        there: String,
    },
    /// The piece is larger than [`BOUND_BYTES_MAX`].
    #[error(
        "{reference:?} stands for {bytes} bytes; at most {BOUND_BYTES_MAX} can be passed on, so name a smaller piece"
    )]
    TooLarge {
        /// The reference.
        reference: String,
        /// Its size.
        bytes: usize,
    },
    /// More than [`REFERENCES_MAX`].
    #[error("one call has at most {REFERENCES_MAX} references; refer to a whole object or list instead of its parts")]
    TooMany,
    /// The arguments are nested deeper than any tool takes.
    #[error("the arguments are nested deeper than {JSON_DEPTH_MAX} levels")]
    TooDeep,
}

/// The arguments with every reference replaced by what it stands for.
///
/// # Errors
/// [`BindingError`] for the first reference that cannot be followed.
pub fn bind(arguments: &Value, step: u32, calls: &[Referable<'_>]) -> Result<Value, BindingError> {
    Binder { step, calls, references: 0 }.bind(arguments, 0)
}

struct Binder<'a> {
    step: u32,
    calls: &'a [Referable<'a>],
    references: usize,
}

impl Binder<'_> {
    fn bind(&mut self, value: &Value, depth: usize) -> Result<Value, BindingError> {
        if depth > JSON_DEPTH_MAX {
            return Err(BindingError::TooDeep);
        }
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get(REFERENCE_KEY) {
                    self.references += 1;
                    if self.references > REFERENCES_MAX {
                        return Err(BindingError::TooMany);
                    }
                    return self.resolve(text_of(reference, fields)?);
                }
                let bound = fields.iter().map(|(key, inner)| Ok((key.clone(), self.bind(inner, depth + 1)?)));
                Ok(Value::Object(bound.collect::<Result<Map<_, _>, _>>()?))
            }
            Value::Array(items) => {
                let bound = items.iter().map(|inner| self.bind(inner, depth + 1));
                Ok(Value::Array(bound.collect::<Result<Vec<_>, _>>()?))
            }
            plain => Ok(plain.clone()),
        }
    }

    fn resolve(&self, reference: &str) -> Result<Value, BindingError> {
        let owned = || reference.to_owned();
        let call = self.referred(reference)?;
        let outcome = match call.outcome {
            Some(outcome) if call.step < self.step => outcome,
            _ => return Err(BindingError::NotEarlier { reference: owned(), id: call.id.into(), its: call.step }),
        };
        if !outcome.is_success() {
            return Err(BindingError::Failed { reference: owned(), id: call.id.into() });
        }
        let mut segments = reference[call.id.len()..].split('.').skip(1);
        let mut found = field_of(reference, segments.next().unwrap_or_default(), call.tool, outcome)?;
        for segment in segments {
            found = take(found, segment).map_err(|there| BindingError::Nothing {
                reference: owned(),
                segment: segment.into(),
                there,
            })?;
        }
        small(reference, found.to_string().len())?;
        Ok(found)
    }

    /// The call that a reference begins with. An id may hold dots, so the longest id that fits is meant.
    fn referred(&self, reference: &str) -> Result<&Referable<'_>, BindingError> {
        let fits = |call: &&Referable<'_>| {
            reference.strip_prefix(call.id).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.calls.iter().filter(fits).max_by_key(|call| call.id.len()).ok_or_else(|| {
            let known: Vec<&str> = self.calls.iter().map(|call| call.id).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            BindingError::UnknownId { reference: reference.to_owned(), known }
        })
    }
}

fn text_of<'a>(reference: &'a Value, fields: &Map<String, Value>) -> Result<&'a str, BindingError> {
    if let Some(extra) = fields.keys().find(|key| *key != REFERENCE_KEY) {
        return Err(BindingError::ExtraKey(extra.clone()));
    }
    let text = reference.as_str().ok_or(BindingError::NotText(kind_of(reference)))?;
    if text.len() > REFERENCE_BYTES_MAX {
        return Err(BindingError::TooLong(text.len()));
    }
    Ok(text)
}

fn field_of(reference: &str, field: &str, tool: &str, outcome: &ToolOutcome) -> Result<Value, BindingError> {
    let text = &outcome.output;
    match field {
        "output" | "output_lines" => small(reference, text.len())?,
        "metadata" => small(reference, json_bytes(&outcome.metadata))?,
        _ => {}
    }
    match field {
        // What a tool prints as JSON can be walked into; anything else is a text.
        // So is JSON with a number that no value holds: as a text it keeps its digits.
        "output" => Ok(match unheld_number(text) {
            Some(_) => json!(text),
            None => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        }),
        "output_lines" => Ok(text.lines().collect()),
        "metadata" => Ok(Value::Object(outcome.metadata.clone())),
        "exit_code" => Ok(json!(outcome.exit_code)),
        "tool" => Ok(json!(tool)),
        _ => Err(BindingError::UnknownField { reference: reference.to_owned(), field: field.to_owned() }),
    }
}

fn small(reference: &str, bytes: usize) -> Result<(), BindingError> {
    match bytes > BOUND_BYTES_MAX {
        true => Err(BindingError::TooLarge { reference: reference.to_owned(), bytes }),
        false => Ok(()),
    }
}

/// What of a result is too large to be referred to, in words; empty when all of it can be.
pub fn unbindable(outcome: &ToolOutcome) -> Vec<String> {
    let sizes = [("output", outcome.output.len()), ("metadata", json_bytes(&outcome.metadata))];
    let large = sizes.into_iter().filter(|(_, bytes)| *bytes > BOUND_BYTES_MAX);
    large
        .map(|(field, bytes)| format!("{field} has {bytes} bytes; up to {BOUND_BYTES_MAX} can be referred to"))
        .collect()
}

/// The part of a value that a segment names; the error is what stands there instead.
fn take(value: Value, segment: &str) -> Result<Value, String> {
    match value {
        Value::Object(mut fields) => fields.swap_remove(segment).ok_or_else(|| {
            let names: Vec<String> = fields.keys().take(10).map(|name| format!("{name:?}")).collect();
            format!("; there are {}", if names.is_empty() { "no keys".to_owned() } else { names.join(", ") })
        }),
        Value::Array(mut items) => match segment.parse::<usize>() {
            Ok(index) if index < items.len() => Ok(items.swap_remove(index)),
            _ => Err(format!("; the list has {} items, counted from 0", items.len())),
        },
        other => Err(format!(": a {} has no parts", kind_of(&other))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BOUND_BYTES_MAX, BindingError, REFERENCES_MAX, Referable, bind, unbindable};
    use crate::outcome::ToolOutcome;

    /// Binds in step 2, where `a` printed `output` in step 1.
    fn bound(output: &str, arguments: &Value) -> Result<Value, BindingError> {
        let outcome = ToolOutcome::success(output).with("range", json!({"next_offset": 7}));
        let a = Referable { id: "a", tool: "read", step: 1, outcome: Some(&outcome) };
        bind(arguments, 2, &[a])
    }

    #[test]
    fn each_field_can_be_referred_to_at_any_depth() {
        let arguments = json!({
            "whole": {"$ref": "a.output"},
            "list": [{"$ref": "a.output.names.1"}, 5],
            "line": {"in": {"$ref": "a.output_lines.0"}},
            "range": {"$ref": "a.metadata.range"},
            "code": {"$ref": "a.exit_code"},
            "tool": {"$ref": "a.tool"},
        });
        let text = r#"{"names": ["x", "y"]}"#;
        let expected = json!({
            "whole": {"names": ["x", "y"]},
            "list": ["y", 5],
            "line": {"in": text},
            "range": {"next_offset": 7},
            "code": 0,
            "tool": "read",
        });
        assert_eq!(bound(text, &arguments).unwrap(), expected);
    }

    #[test]
    fn what_is_no_json_is_a_text() {
        assert_eq!(bound("plain\ntext", &json!({"$ref": "a.output"})).unwrap(), json!("plain\ntext"));
        assert_eq!(bound("plain\ntext", &json!({"$ref": "a.output_lines.1"})).unwrap(), json!("text"));
        // Case C148: as a value it would lose digits.
        let long = "{\"n\": 123456789012345678901234567890}";
        assert_eq!(bound(long, &json!({"$ref": "a.output"})).unwrap(), json!(long));
    }

    #[test]
    fn each_fault_says_what_to_do() {
        let cases = [
            (json!({"$ref": "a.output", "x": 1}), "\"x\""),
            (json!({"$ref": 5}), "not number"),
            (json!({"$ref": "b.output"}), "ids there are: a"),
            (json!({"$ref": "ab.output"}), "ids there are: a"),
            (json!({"$ref": "a"}), "not \"\""),
            (json!({"$ref": "a.stdout"}), "not \"stdout\""),
            (json!({"$ref": "a.metadata.rage"}), "there are \"range\""),
            (json!({"$ref": "a.output_lines.9"}), "1 items"),
            (json!({"$ref": "a.output_lines.-1"}), "1 items"),
            (json!({"$ref": "a.exit_code.x"}), "a number has no parts"),
            (json!({"$ref": "x".repeat(2000)}), "2000 bytes"),
        ];
        for (arguments, expected) in cases {
            let text = bound("one", &arguments).unwrap_err().to_string();
            assert!(text.contains(expected), "{text} lacks {expected}");
        }
    }

    #[test]
    fn only_earlier_steps_that_succeeded_are_referred_to() {
        let (good, bad) = (ToolOutcome::success("1"), ToolOutcome::failure("no"));
        let calls = [
            Referable { id: "a", tool: "read", step: 1, outcome: Some(&good) },
            Referable { id: "a.b", tool: "read", step: 1, outcome: Some(&bad) },
            Referable { id: "same", tool: "read", step: 2, outcome: None },
            Referable { id: "later", tool: "read", step: 3, outcome: None },
        ];
        let of = |reference: &str| bind(&json!({"$ref": reference}), 2, &calls);
        assert_eq!(of("a.output").unwrap(), json!(1));
        // The longest id wins: this is not field "b" of "a".
        assert!(matches!(of("a.b.output"), Err(BindingError::Failed { id, .. }) if id == "a.b"));
        assert!(matches!(of("same.output"), Err(BindingError::NotEarlier { its: 2, .. })));
        assert!(matches!(of("later.output"), Err(BindingError::NotEarlier { its: 3, .. })));
    }

    #[test]
    fn what_is_passed_on_is_bounded() {
        let large = "x".repeat(BOUND_BYTES_MAX + 1);
        for field in ["output", "output_lines.0"] {
            let fault = bound(&large, &json!({"$ref": format!("a.{field}")})).unwrap_err();
            assert!(matches!(fault, BindingError::TooLarge { bytes, .. } if bytes == BOUND_BYTES_MAX + 1));
        }
        // Small enough as a field, too large as the JSON that it turns into.
        let quotes = "\"".repeat(BOUND_BYTES_MAX);
        assert!(matches!(bound(&quotes, &json!({"$ref": "a.output"})), Err(BindingError::TooLarge { .. })));
        assert_eq!(bound(&large, &json!({"$ref": "a.exit_code"})).unwrap(), json!(0));
        assert_eq!(unbindable(&ToolOutcome::success(large)).len(), 1);
        assert!(unbindable(&ToolOutcome::success("small")).is_empty());

        let many = |count: usize| Value::Array(vec![json!({"$ref": "a.output"}); count]);
        assert!(bound("x", &many(REFERENCES_MAX)).is_ok());
        assert_eq!(bound("x", &many(REFERENCES_MAX + 1)), Err(BindingError::TooMany));

        let mut deep = json!({"$ref": "a.output"});
        for _ in 0..200 {
            deep = json!([deep]);
        }
        assert_eq!(bound("x", &deep), Err(BindingError::TooDeep));
    }
}
