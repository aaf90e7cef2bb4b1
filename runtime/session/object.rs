//! Objects of a host's own types, given by the session's model.
//!
//! A helper over the tool `generate_object`: the call takes the governed route like any other. What must stay true: the
//! value is read from the text that the model wrote, so a `u64` or a longer number in the host's own type has every digit.

use std::io::Read as _;

use schemars::{JsonSchema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;
use toolwarden_tools::builtin::generate_object::NAME;
use toolwarden_tools::generation::{ObjectMode, ObjectRequest, ObjectUsage};
use toolwarden_tools::json_tree::Node;

use super::{Session, SessionError};
use crate::call_result::CallResult;
use crate::settlement::artifact::ArtifactReadError;

/// Largest result that is read back, in bytes.
const RESULT_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// An object that a model gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Generated<T> {
    /// It.
    pub object: T,
    /// Its JSON text, with every number as the model wrote it.
    pub json: String,
    /// How the model was held to the schema.
    pub mode_used: ObjectMode,
    /// How often it mended its answer.
    pub repair_rounds: u64,
    /// What all rounds cost.
    pub usage: ObjectUsage,
}

/// Why there is no object.
#[derive(Debug, Error)]
pub enum GenerateError {
    /// The session did not take the call, or the call failed: [`SessionError::Failed`] has its result.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The object fits its schema, and still the type does not take it.
    #[error("the object fits the schema of its type, which still does not take it: {0}; give the type a closer schema")]
    Type(serde_json::Error),
    /// The result was too long to be shown whole, and the whole of it is not there.
    #[error("the whole of the result cannot be read: {0}")]
    Artifact(#[from] ArtifactReadError),
    /// The result is not what the tool gives: a secret was taken out of it, or a hook changed its parts.
    #[error("the result of generate_object cannot be read: {0}")]
    Unreadable(String),
}

impl Session {
    /// Asks the session's model for a value of this type. Dropping the future cancels the call.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub async fn generate_object<T: JsonSchema + DeserializeOwned>(&self, prompt: &str) -> Result<T, GenerateError> {
        let schema = SchemaGenerator::default().into_root_schema_for::<T>();
        let mut request = ObjectRequest::new(schema.to_value(), prompt);
        request.schema_name = tool_part(&T::schema_name());
        Ok(self.generate_object_with(&request).await?.object)
    }

    /// As [`Self::generate_object`], with everything that can be said, and with what came beside the value.
    ///
    /// # Errors
    /// [`GenerateError`].
    pub async fn generate_object_with<T: DeserializeOwned>(
        &self,
        request: &ObjectRequest,
    ) -> Result<Generated<T>, GenerateError> {
        let result = self.tool(NAME, arguments(request)).await?;
        if !result.is_success() {
            return Err(SessionError::Failed(Box::new(CallResult::clone(&result))).into());
        }
        let whole = self.whole_output(&result).await?;
        let unreadable = |what: &str| GenerateError::Unreadable(what.to_owned());
        let node = Node::read(&whole).map_err(|fault| GenerateError::Unreadable(fault.to_string()))?;
        let json = node.get("object").map(Node::write).ok_or_else(|| unreadable("it holds no object"))?;
        let object = serde_json::from_str(&json).map_err(GenerateError::Type)?;
        let fact = |name: &str| result.metadata.get(name).cloned().unwrap_or_default();
        Ok(Generated {
            object,
            json,
            mode_used: serde_json::from_value(fact("mode_used")).map_err(|_| unreadable("it names no mode"))?,
            repair_rounds: fact("repair_rounds").as_u64().unwrap_or(0),
            usage: serde_json::from_value(fact("usage")).unwrap_or_default(),
        })
    }

    /// The output of a result, the whole of it where it was shown in part.
    async fn whole_output(&self, result: &CallResult) -> Result<String, GenerateError> {
        let kept = result.metadata.get("artifact").and_then(|artifact| artifact.get("artifact_uri"));
        let Some(uri) = kept.and_then(Value::as_str) else { return Ok(result.output.clone()) };
        let artifact = self.artifact(uri).await?;
        let mut text = String::new();
        match artifact.into_reader().take(RESULT_BYTES_MAX).read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(error) => Err(GenerateError::Unreadable(error.to_string())),
        }
    }
}

fn arguments(request: &ObjectRequest) -> Value {
    let mut arguments = json!({
        "schema": request.schema,
        "prompt": request.prompt,
        "schema_name": request.schema_name,
        "mode": request.mode,
        "max_repair_attempts": request.repairs_max,
        "timeout_ms": u64::try_from(request.timeout.as_millis()).unwrap_or(u64::MAX),
    });
    for (name, value) in [("schema_description", &request.schema_description), ("system", &request.system)] {
        if let Some(text) = value {
            arguments[name] = json!(text);
        }
    }
    arguments
}

/// A type's name as a part of a tool's.
fn tool_part(name: &str) -> String {
    use toolwarden_tools::generation::NAME_BYTES_MAX;
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' });
    let name: String = plain.take(NAME_BYTES_MAX).collect();
    if name.is_empty() { "result".to_owned() } else { name }
}
