//! The port to a model that gives one JSON object: what is asked, what comes back, and why nothing does.
//!
//! The tool `generate_object` and whoever else needs an object of a known form stand below it; asking the model, judging
//! what it says and asking again are the business of the port. What must stay true: an object is given as the text that
//! the model wrote, so that no digit of a number is lost, and only when it fits its schema.

use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::cancellation::CancelReason;
use crate::json_depth::deeper_than;
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};
use crate::schema::{Schema, SchemaError};

/// Largest schema, in bytes of its JSON text.
pub const SCHEMA_BYTES_MAX: usize = 64 * 1024;
/// Deepest nesting of a schema, in levels.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// Longest prompt, in bytes.
pub const PROMPT_BYTES_MAX: usize = 128 * 1024;
/// Longest name of a schema, in bytes: with `emit_` before it, it is the name of a tool.
pub const NAME_BYTES_MAX: usize = 59;
/// Longest description of a schema, in bytes.
pub const DESCRIPTION_BYTES_MAX: usize = 4096;
/// Longest instructions, in bytes.
pub const SYSTEM_BYTES_MAX: usize = 32 * 1024;
/// Most rounds in which a model may mend its answer.
pub const REPAIRS_MAX: u32 = 5;
/// Those that it has when nothing is said.
pub const REPAIRS_DEFAULT: u32 = 2;
/// The least and the most time for all rounds together, in milliseconds.
pub const TIMEOUT_MS: std::ops::RangeInclusive<u64> = 1000..=600_000;
/// What there is when nothing is said, in milliseconds.
pub const TIMEOUT_MS_DEFAULT: u64 = 120_000;
/// Longest name or place of a keyword in a message, in bytes.
const SHOWN_BYTES_MAX: usize = 200;

/// An object that is asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectRequest {
    /// What it must fit: JSON Schema 2020-12.
    pub schema: Value,
    /// What it is to say.
    pub prompt: String,
    /// What the model is told that it is called.
    pub schema_name: String,
    /// What the model is told of it.
    pub schema_description: Option<String>,
    /// Instructions of the caller's own.
    pub system: Option<String>,
    /// How the model is to be held to the schema.
    pub mode: ObjectMode,
    /// How often the model may mend its answer.
    pub repairs_max: u32,
    /// The most time for all rounds together, counted from when the first has its slot.
    pub timeout: Duration,
}

/// How a model is held to a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ObjectMode {
    /// A forced tool, else whatever the model has.
    #[default]
    Auto,
    /// The provider's own strict schema.
    Strict,
    /// The provider's JSON mode, with the schema in the prompt.
    Json,
    /// A forced tool whose arguments are the object.
    Tool,
    /// The schema in the prompt alone.
    Prompt,
}

impl ObjectMode {
    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Strict => "strict",
            Self::Json => "json",
            Self::Tool => "tool",
            Self::Prompt => "prompt",
        }
    }
}

impl ObjectRequest {
    /// Asks for an object that fits this schema, with nothing else said.
    pub fn new(schema: Value, prompt: impl Into<String>) -> Self {
        Self {
            schema,
            prompt: prompt.into(),
            schema_name: "result".to_owned(),
            schema_description: None,
            system: None,
            mode: ObjectMode::Auto,
            repairs_max: REPAIRS_DEFAULT,
            timeout: Duration::from_millis(TIMEOUT_MS_DEFAULT),
        }
    }

    /// Checks it against its bounds, and gives its schema compiled.
    ///
    /// # Errors
    /// [`ObjectRequestError`], before any model is asked.
    pub fn check(&self) -> Result<Schema, ObjectRequestError> {
        let longer = |field, text: &str, bytes_max| match text.len() > bytes_max {
            true => Err(ObjectRequestError::TooLong { field, bytes: text.len(), bytes_max }),
            false => Ok(()),
        };
        if self.prompt.trim().is_empty() {
            return Err(ObjectRequestError::NoPrompt);
        }
        longer("prompt", &self.prompt, PROMPT_BYTES_MAX)?;
        longer("schema_description", self.schema_description.as_deref().unwrap_or(""), DESCRIPTION_BYTES_MAX)?;
        longer("system", self.system.as_deref().unwrap_or(""), SYSTEM_BYTES_MAX)?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        if !(1..=NAME_BYTES_MAX).contains(&self.schema_name.len()) || !self.schema_name.bytes().all(plain) {
            return Err(ObjectRequestError::Name);
        }
        if self.repairs_max > REPAIRS_MAX {
            return Err(ObjectRequestError::Repairs(self.repairs_max));
        }
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        if !TIMEOUT_MS.contains(&timeout_ms) {
            return Err(ObjectRequestError::Timeout(timeout_ms));
        }
        compile(&self.schema)
    }
}

/// Compiles a schema that a model is to fill; it may come from anybody.
///
/// # Errors
/// [`ObjectRequestError`] when it is no object, too large, too deep, refers to what is not in it, or is no schema.
pub fn compile(schema: &Value) -> Result<Schema, ObjectRequestError> {
    if !schema.is_object() {
        return Err(ObjectRequestError::NoSchema);
    }
    if deeper_than(schema, SCHEMA_DEPTH_MAX) {
        return Err(ObjectRequestError::TooDeep);
    }
    let bytes = schema.to_string().len();
    if bytes > SCHEMA_BYTES_MAX {
        return Err(ObjectRequestError::TooLong { field: "schema", bytes, bytes_max: SCHEMA_BYTES_MAX });
    }
    if let Some(reference) = foreign_reference(schema) {
        return Err(ObjectRequestError::Foreign { reference });
    }
    Ok(Schema::compile(schema)?)
}

/// A reference to something outside of the schema, wherever it stands: also where it is no reference but data, for
/// nobody has to tell those apart.
fn foreign_reference(schema: &Value) -> Option<String> {
    let mut open = vec![schema];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                for key in ["$ref", "$dynamicRef", "$recursiveRef"] {
                    if let Some(Value::String(reference)) = fields.get(key)
                        && !reference.starts_with('#')
                    {
                        return Some(shown(reference));
                    }
                }
                open.extend(fields.values());
            }
            Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    None
}

fn shown(text: &str) -> String {
    text[..text.floor_char_boundary(SHOWN_BYTES_MAX)].to_owned()
}

/// Why an object cannot be asked for.
#[derive(Debug, Error)]
pub enum ObjectRequestError {
    /// There is nothing to say.
    #[error("prompt is empty; say what the object is to hold")]
    NoPrompt,
    /// The schema is a boolean or something else.
    #[error("schema must be a JSON object that holds a JSON Schema")]
    NoSchema,
    /// Longer than its bound.
    #[error("{field} has {bytes} bytes; at most {bytes_max} are taken")]
    TooLong {
        /// Which field.
        field: &'static str,
        /// Its size.
        bytes: usize,
        /// Its bound.
        bytes_max: usize,
    },
    /// Nested deeper than [`SCHEMA_DEPTH_MAX`].
    #[error("schema is nested deeper than {SCHEMA_DEPTH_MAX} levels; name parts of it in $defs")]
    TooDeep,
    /// Refers to a file, to an address, or to another schema.
    #[error(
        "schema refers to {reference:?}; only references inside of it (\"#/…\") are followed: put that part into $defs"
    )]
    Foreign {
        /// To what.
        reference: String,
    },
    /// Refers to itself in place, or doubles its alternatives too often.
    #[error(
        "schema refers to itself without going into a member or an item, or has too many alternatives in one place"
    )]
    Endless,
    /// No usable schema.
    #[error("schema: {0}")]
    Schema(#[from] SchemaError),
    /// A name that no tool may have.
    #[error("schema_name must be 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ -")]
    Name,
    /// Too many.
    #[error("max_repair_attempts is {0}; it is 0 to {REPAIRS_MAX}")]
    Repairs(u32),
    /// Too little or too much.
    #[error("timeout_ms is {0}; it is {least} to {most}", least = TIMEOUT_MS.start(), most = TIMEOUT_MS.end())]
    Timeout(u64),
}

/// An object that fits its schema.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedObject {
    /// Its JSON text without blanks between the parts, with every number as it was written.
    pub json: String,
    /// How the model was held to the schema.
    pub mode_used: ObjectMode,
    /// Why that is not what was asked for, where there is more to say than that the model lacks it.
    pub mode_note: Option<String>,
    /// How often the model mended its answer.
    pub repair_rounds: u32,
    /// Whether the text had faults that were mended here (a trailing comma, Python's words, …).
    pub is_mended: bool,
    /// What all rounds cost.
    pub usage: ObjectUsage,
    /// What the model said in its last round.
    pub raw_text: String,
    /// How it came to be asked.
    pub admission: GenerationAdmission,
}

/// What an object cost, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObjectUsage {
    /// Read.
    pub prompt_tokens: u64,
    /// Written.
    pub completion_tokens: u64,
    /// Both.
    pub total_tokens: u64,
    /// Of those read in the last round, those that the provider had kept.
    pub cache_read_tokens: u64,
    /// Of those read in the last round, those that the provider keeps from now on.
    pub cache_write_tokens: u64,
}

/// How a generation came to its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct GenerationAdmission {
    /// Always `bounded`.
    pub mode: &'static str,
    /// How many requests to models there may be beside each other.
    pub max_concurrency: usize,
    /// How long the first round waited for its slot.
    pub queue_wait_ms: u64,
    /// The most time that all rounds had from there.
    pub active_timeout_ms: u64,
}

/// Takes views of an object while it arrives; must not block.
pub trait Partials: Send + Sync {
    /// The object so far as JSON text: a view to be shown, which later ones replace.
    fn partial(&self, json: &str);

    /// The object so far has so many bytes, which is too much for a view.
    fn omitted(&self, bytes: usize);
}

/// Drops everything: for objects that nobody watches.
#[derive(Debug, Clone, Copy)]
pub struct NoPartials;

impl Partials for NoPartials {
    fn partial(&self, _json: &str) {}

    fn omitted(&self, _bytes: usize) {}
}

/// Asks a model for objects.
pub trait Generate: Send + Sync {
    /// Asks for one object, until it fits or the rounds or the time are over. Dropping the future ends the request.
    fn generate<'a>(
        &'a self,
        request: &'a ObjectRequest,
        partials: &'a dyn Partials,
    ) -> BoxFuture<'a, Result<GeneratedObject, ObjectFailure>>;
}

/// Why there is no object.
#[derive(Debug, Error)]
pub enum ObjectFailure {
    /// It cannot be asked for.
    #[error(transparent)]
    Request(#[from] ObjectRequestError),
    /// Nothing that the model said fits.
    #[error("no object that fits the schema after {repair_rounds} repairs: {faults}")]
    NoFit {
        /// How often it mended its answer.
        repair_rounds: u32,
        /// What is wrong with the last one.
        faults: String,
    },
    /// The model declines, or its provider's filter stopped it.
    #[error("the model declined to answer")]
    Refused,
    /// All rounds together took too long.
    #[error("no object within {timeout_ms} ms; allow more with timeout_ms, or ask for less")]
    Timeout {
        /// What was allowed, in milliseconds.
        timeout_ms: u64,
    },
    /// Somebody ended it.
    #[error("{0}")]
    Cancelled(CancelReason),
    /// The budget does not cover it.
    #[error("the budget of {resource} does not cover another request to the model")]
    Budget {
        /// Which resource.
        resource: String,
    },
    /// The model could not be asked.
    #[error("{message}")]
    Model {
        /// Why.
        message: String,
        /// The kind, where one is known.
        kind: Option<ToolErrorKind>,
    },
}

impl From<ObjectFailure> for ToolOutcome {
    fn from(failure: ObjectFailure) -> Self {
        let text = failure.to_string();
        let op = || "generate_object".to_owned();
        let kind = match failure {
            ObjectFailure::Request(_) => Some(ToolErrorKind::InvalidArgument { message: text.clone() }),
            ObjectFailure::Timeout { timeout_ms } => Some(ToolErrorKind::Timeout { op: op(), duration_ms: timeout_ms }),
            ObjectFailure::Cancelled(reason) => Some(ToolErrorKind::Cancelled { op: op(), reason: Some(reason) }),
            ObjectFailure::Budget { resource } => Some(ToolErrorKind::BudgetExhausted { resource }),
            ObjectFailure::Model { kind, .. } => kind,
            ObjectFailure::NoFit { .. } | ObjectFailure::Refused => None,
        };
        let failed = Self { error: kind, ..Self::failure(text) };
        failed.trusted(Trust::External)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::{ObjectRequest, ObjectRequestError};

    fn refused(change: impl FnOnce(&mut ObjectRequest)) -> String {
        let mut request = ObjectRequest::new(json!({"type": "object"}), "p");
        assert!(request.check().is_ok());
        change(&mut request);
        request.check().unwrap_err().to_string()
    }

    #[test]
    fn every_bound_is_checked_and_named() {
        assert!(refused(|request| request.prompt = " \n".into()).contains("prompt is empty"));
        assert!(refused(|request| request.prompt = "x".repeat(131_073)).contains("131073 bytes; at most 131072"));
        assert!(refused(|request| request.schema_name = "a b".into()).contains("schema_name"));
        assert!(refused(|request| request.schema_name = "x".repeat(60)).contains("59"));
        assert!(refused(|request| request.system = Some("x".repeat(32_769))).contains("system has 32769"));
        assert!(refused(|request| request.schema_description = Some("x".repeat(4097))).contains("4096"));
        assert!(refused(|request| request.repairs_max = 6).contains("0 to 5"));
        assert!(refused(|request| request.timeout = Duration::from_millis(999)).contains("1000 to 600000"));
        assert!(refused(|request| request.schema = json!(true)).contains("JSON object"));
        assert!(refused(|request| request.schema = json!({"type": "nonsense"})).contains("not a usable schema"));
        let wide: Value = (0..9000).map(|at| (format!("p{at}"), json!({}))).collect::<serde_json::Map<_, _>>().into();
        assert!(refused(|request| request.schema = json!({"properties": wide})).contains("schema has"));
        let deep = (0..40).fold(json!({}), |inner, _| json!({"items": inner}));
        assert!(refused(|request| request.schema = deep).contains("deeper than 32"));
    }

    #[test]
    fn a_reference_that_leaves_the_schema_is_named() {
        // Case C147.
        for foreign in ["file:///etc/passwd", "http://127.0.0.1:9/x", "other.json#/a", ""] {
            let schema = json!({"properties": {"a": {"items": {"$ref": foreign}}}});
            let error = ObjectRequest::new(schema, "p").check().unwrap_err();
            assert!(matches!(&error, ObjectRequestError::Foreign { reference } if reference == foreign), "{error}");
        }
        let local = json!({"$defs": {"a": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/a"}}});
        assert!(ObjectRequest::new(local, "p").check().is_ok());
    }
}
