//! Finds the object in what a model said, and judges it by the schema.
//!
//! The whole text is tried first, then fenced code, then every value in the prose. What must stay true: of two different
//! values that fit, none is taken by chance; a value is judged exactly, or not taken; and how much is tried is bounded.

use serde_json::Value;
use toolwarden_tools::generation::{ObjectRequestError, compile};
use toolwarden_tools::schema::Schema;

use super::envelope::Envelope;
use super::mending::mended;
use super::optional_null::without_nulls;
use super::schema_cost::{ends, is_bounded};
use super::schema_walk::each_schema;
use toolwarden_tools::json_text::{JsonFault, value_end};
use toolwarden_tools::json_tree::{Node, Rounded};

/// Most places of a text at which a value is looked for.
const PLACES_MAX: usize = 64;

/// A schema that values are judged by.
#[derive(Debug)]
pub struct ObjectSchema {
    schema: Value,
    compiled: Schema,
    envelope: Envelope,
    compares: Compares,
}

/// Whether a schema compares numbers exactly.
#[derive(Debug, Clone, Copy, Default)]
struct Compares {
    /// `const`, `enum`, `multipleOf` or `uniqueItems`.
    numbers: bool,
    /// `integer`.
    wholeness: bool,
}

/// A value that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Its JSON text, without its envelope.
    pub json: String,
    /// Whether its text had to be mended.
    pub is_mended: bool,
}

impl ObjectSchema {
    /// Takes a schema.
    ///
    /// # Errors
    /// [`ObjectRequestError`] when it cannot be used.
    pub fn new(schema: &Value) -> Result<Self, ObjectRequestError> {
        let compiled = compile(schema)?;
        if !ends(schema) {
            return Err(ObjectRequestError::Endless);
        }
        let mut compares = Compares::default();
        each_schema(schema, &mut |_, fields| {
            let numbers = ["const", "enum", "multipleOf", "uniqueItems"];
            compares.numbers |= numbers.iter().any(|key| fields.contains_key(*key));
            compares.wholeness |= match fields.get("type") {
                Some(Value::String(kind)) => kind == "integer",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "integer"),
                _ => false,
            };
        });
        Ok(Self { schema: schema.clone(), compiled, envelope: Envelope::of(schema), compares })
    }

    /// The schema itself.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// How its values travel.
    pub fn envelope(&self) -> Envelope {
        self.envelope
    }

    /// Looks for the one value in a text that fits.
    ///
    /// # Errors
    /// What is wrong, in words for the model.
    pub fn find(&self, text: &str) -> Result<Fit, String> {
        match self.judge_text(text.trim(), false) {
            Ok(fit) => return Ok(fit),
            // The whole text is one value: nothing else is meant by it.
            Err(fault) if value_end(text.trim(), 0).is_ok_and(|end| end == text.trim().len()) => return Err(fault),
            Err(_) => {}
        }
        let mut fits: Vec<Fit> = Vec::new();
        let mut first_fault = None;
        let fenced = fenced(text);
        // What stands in fences is meant; the prose around them is looked at only when there are none that fit.
        for piece in fenced.iter().map(String::as_str).chain([text]) {
            for found in values_in(piece) {
                match found {
                    Found::Json(json) => self.collect(self.judge_text(&json, false), &mut fits, &mut first_fault),
                    Found::Mended(json) => self.collect(self.judge_text(&json, true), &mut fits, &mut first_fault),
                }
            }
            if !fits.is_empty() {
                break;
            }
        }
        match fits.len() {
            0 => {
                Err(first_fault
                    .unwrap_or_else(|| "there is no JSON value in the answer; answer with one alone".to_owned()))
            }
            1 => Ok(fits.remove(0)),
            more => Err(format!("the answer holds {more} different values that fit; give only one")),
        }
    }

    fn collect(&self, judged: Result<Fit, String>, fits: &mut Vec<Fit>, first_fault: &mut Option<String>) {
        match judged {
            Ok(fit) if fits.iter().any(|other| other.json == fit.json) => {}
            Ok(fit) => fits.push(fit),
            Err(fault) => {
                first_fault.get_or_insert(fault);
            }
        }
    }

    /// Judges a text that is one value.
    ///
    /// # Errors
    /// What is wrong with it, one fault after another.
    pub fn judge_text(&self, text: &str, is_mended: bool) -> Result<Fit, String> {
        let node = Node::read(text).map_err(|fault| fault.to_string())?;
        let mut outer_fault = None;
        for (node, is_enveloped) in self.readings(&node) {
            match self.judge(node) {
                Ok(json) => return Ok(Fit { json, is_mended }),
                // What is said of the value in its envelope is what the model can use.
                Err(fault) if is_enveloped => outer_fault = Some(fault),
                Err(fault) => outer_fault = Some(outer_fault.unwrap_or(fault)),
            }
        }
        Err(outer_fault.unwrap_or_else(|| "it is no value that may stand alone".to_owned()))
    }

    /// The value without its envelope, where it has one, and as it is.
    fn readings<'n, 'a>(&self, node: &'n Node<'a>) -> Vec<(&'n Node<'a>, bool)> {
        let mut readings = Vec::new();
        for key in [Envelope::Elements, Envelope::Value].into_iter().filter_map(Envelope::key) {
            if let Node::Object(members) = node
                && let [member] = &members[..]
                && member.key == key
            {
                readings.push((&member.value, true));
            }
        }
        // A number or a word alone in a text is rarely meant as the answer.
        let is_bare = matches!(node, Node::Scalar(..)) && self.envelope != Envelope::Value;
        if !is_bare {
            readings.push((node, false));
        }
        readings
    }

    /// Judges a value; as it is, then without the nulls that stand for what is left out.
    fn judge(&self, node: &Node<'_>) -> Result<String, String> {
        let fault = match self.check(node) {
            Ok(()) => return Ok(node.write()),
            Err(fault) => fault,
        };
        let mut stripped = node.clone();
        without_nulls(&mut stripped, &self.schema);
        match stripped != *node && self.check(&stripped).is_ok() {
            true => Ok(stripped.write()),
            false => Err(fault),
        }
    }

    fn check(&self, node: &Node<'_>) -> Result<(), String> {
        let mut rounded = Rounded::default();
        let value = node.to_value(&mut rounded);
        // Before the validator recurses.
        if !is_bounded(&self.schema, &value) {
            return Err("it is too large and too deep to be checked by this schema; give less".to_owned());
        }
        self.compiled.check(&value)?;
        let doubtful = match (&rounded.whole, &rounded.fraction) {
            (Some(number), _) | (None, Some(number)) if self.compares.numbers => Some(number),
            (_, Some(number)) if self.compares.wholeness => Some(number),
            _ => None,
        };
        match doubtful {
            Some(number) => Err(format!(
                "the number {} has more digits than can be compared exactly as this schema asks; write a shorter one",
                &number[..number.floor_char_boundary(60)]
            )),
            None => Ok(()),
        }
    }
}

/// A value in a text.
enum Found {
    Json(String),
    Mended(String),
}

/// Objects and arrays in a text, outermost ones only; what is no JSON is tried mended.
fn values_in(text: &str) -> Vec<Found> {
    let (mut found, mut at) = (Vec::new(), 0);
    for _ in 0..PLACES_MAX {
        let Some(place) = text[at..].find(['{', '[']).map(|place| at + place) else { break };
        let end = value_end(text, place);
        if let Ok(end) = end {
            found.push(Found::Json(text[place..end].to_owned()));
            at = end;
        } else if matches!(end, Err(JsonFault::Cut { .. })) {
            // All that follows is inside of a value that is cut: no part of it was meant alone.
            break;
        } else if let Some((json, end)) = mended(text, place).filter(|(json, _)| value_end(json, 0).is_ok()) {
            found.push(Found::Mended(json));
            at = end;
        } else {
            at = place + 1;
        }
    }
    found
}

/// What stands between fences, each alone.
fn fenced(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut open: Option<String> = None;
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        match &mut open {
            Some(_) if is_fence => pieces.extend(open.take()),
            Some(piece) => {
                piece.push_str(line);
                piece.push('\n');
            }
            None if is_fence && pieces.len() < PLACES_MAX => open = Some(String::new()),
            None => {}
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::ObjectSchema;

    fn found(schema: &Value, text: &str) -> Result<String, String> {
        ObjectSchema::new(schema).unwrap().find(text).map(|fit| fit.json)
    }

    fn a_number() -> Value {
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false})
    }

    #[test]
    fn fences_and_prose_are_looked_into() {
        // Case C143.
        let schema = a_number();
        for text in [
            "{\"a\":1}",
            "```json\n{\"a\": 1}\n```",
            "Here: {\"a\":1} ok?",
            "I thought of [1, 2] and {\"b\": 2}.\n```\n{\"a\":1}\n```\nnot of {\"a\": 7}",
            "{\"a\":1} and again {\"a\": 1}",
            "It is {a: 1,}.",
        ] {
            assert_eq!(found(&schema, text).as_deref(), Ok("{\"a\":1}"), "{text}");
        }
        assert!(found(&schema, "{\"a\":1} or {\"a\":2}").unwrap_err().contains("2 different values"));
        assert!(found(&schema, "no").unwrap_err().contains("no JSON value"));
        assert!(found(&schema, "{\"a\":\"x\"}").unwrap_err().contains("/a: "));
        assert!(found(&schema, "{\"a\":1").is_err(), "what is cut is never closed");
        let text = json!({"type": "object", "properties": {"code": {"type": "string"}}});
        let inner = r#"{"code":"```json\n{}\n```"}"#;
        assert_eq!(found(&text, inner).as_deref(), Ok(inner));
    }

    #[test]
    fn values_are_taken_with_and_without_their_envelope() {
        let list = json!({"type": "array", "items": {"type": "integer"}});
        for text in ["[1, 2]", "{\"elements\":[1,2]}", "so: {\"elements\": [1, 2]}"] {
            assert_eq!(found(&list, text).as_deref(), Ok("[1,2]"), "{text}");
        }
        let word = json!({"enum": ["yes", "no"]});
        for text in ["\"yes\"", "{\"value\":\"yes\"}", "It is {\"value\": \"yes\"}."] {
            assert_eq!(found(&word, text).as_deref(), Ok("\"yes\""), "{text}");
        }
        assert!(found(&word, "yes").is_err());
        assert!(found(&list, "12").is_err());
        let own = json!({"type": "object", "properties": {"value": {"type": "integer"}}, "required": ["value"]});
        assert_eq!(found(&own, "{\"value\": 3}").as_deref(), Ok("{\"value\":3}"));
        let anything = json!({});
        assert_eq!(found(&anything, "{\"value\": {\"value\": 3}}").as_deref(), Ok("{\"value\":3}"));
    }

    #[test]
    fn numbers_keep_their_digits_and_are_compared_exactly_or_not_at_all() {
        // Case C148.
        let any = json!({"type": "object", "properties": {"n": {"type": "number", "maximum": 1e308}}});
        for number in ["9007199254740993", "18446744073709551615", "0.1", "1070468.14", "-1e400", "1.0"] {
            let text = format!("{{\"n\":{number}}}");
            assert_eq!(found(&any, &text), Ok(text.clone()));
        }
        assert!(found(&any, "{\"n\":1e400}").is_err(), "the bound holds");
        let whole = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        for number in ["123456789012345678901234567890", "1e400", "1.0"] {
            let text = format!("{{\"n\":{number}}}");
            assert_eq!(found(&whole, &text), Ok(text.clone()));
        }
        assert!(found(&whole, "{\"n\":12345678901234567890.5}").unwrap_err().contains("compared exactly"));
        let even = json!({"type": "object", "properties": {"n": {"multipleOf": 2}}});
        assert!(found(&even, "{\"n\":10000000000000001}").is_err());
        assert!(found(&even, "{\"n\":10000000000000000}").is_ok());
        assert!(found(&even, "{\"n\":100000000000000000000000000000001}").unwrap_err().contains("compared exactly"));
        let cents = json!({"type": "object", "properties": {"n": {"multipleOf": 0.01}}});
        assert!(found(&cents, "{\"n\":1070468.14}").is_ok());
        let one = json!({"type": "object", "properties": {"n": {"const": 1}}});
        assert!(found(&one, "{\"n\":1.0}").is_ok());
    }

    #[test]
    fn nulls_for_what_is_left_out_go() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}});
        assert_eq!(found(&schema, "{\"a\":1,\"b\":null}").as_deref(), Ok("{\"a\":1}"));
    }

    #[test]
    fn formats_and_characters_count() {
        // Case C152.
        let schema = json!({"type": "object", "properties": {"m": {"format": "email"}, "s": {"type": "string", "maxLength": 1}}});
        assert!(found(&schema, "{\"m\":\"nope\"}").unwrap_err().contains("/m"));
        assert!(found(&schema, "{\"s\":\"\u{1f600}\"}").is_ok());
    }
}
