//! `generate_object`: one JSON object that fits a schema, written by the session's model.
//!
//! The tool reads what is asked and tells what came; the rounds with the model are the business of the port. Models do not
//! see it: hosts, scripts and workflows call it. What must stay true: the object stands in the output only when it fits,
//! and as the text that the model wrote.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::context::{Progress, ToolContext};
use crate::declaration::{Capabilities, OutputKind};
use crate::generation::{
    DESCRIPTION_BYTES_MAX, GeneratedObject, NAME_BYTES_MAX, ObjectMode, ObjectRequest, PROMPT_BYTES_MAX, Partials,
    REPAIRS_DEFAULT, REPAIRS_MAX, SYSTEM_BYTES_MAX, TIMEOUT_MS, TIMEOUT_MS_DEFAULT,
};
use crate::ids::ToolName;
use crate::outcome::{ToolErrorKind, ToolOutcome, Trust};
use crate::tool::{FixedSpec, Lane, Needs, Subject, Tool, ToolFuture, ToolSpec};

/// Its name.
pub const NAME: &str = "generate_object";

/// The tool.
pub struct GenerateObjectTool;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    schema: Value,
    prompt: String,
    #[serde(default)]
    schema_name: Option<String>,
    #[serde(default)]
    schema_description: Option<String>,
    #[serde(default)]
    system: Option<String>,
    #[serde(default)]
    mode: ObjectMode,
    #[serde(default = "usual_repairs")]
    max_repair_attempts: u32,
    #[serde(default)]
    include_raw_text: bool,
    #[serde(default = "usual_timeout_ms")]
    timeout_ms: u64,
}

fn usual_repairs() -> u32 {
    REPAIRS_DEFAULT
}

fn usual_timeout_ms() -> u64 {
    TIMEOUT_MS_DEFAULT
}

impl GenerateObjectTool {
    /// The tool, ready to register.
    pub fn new() -> Self {
        Self
    }
}

impl Default for GenerateObjectTool {
    fn default() -> Self {
        Self::new()
    }
}

impl Tool for GenerateObjectTool {
    fn spec(&self) -> &ToolSpec {
        SPEC.get()
    }

    fn fixed(&self) -> Option<&'static FixedSpec> {
        Some(&SPEC)
    }

    fn capabilities(&self, _arguments: &Value) -> Capabilities {
        Capabilities {
            read_only: true,
            cancellation_safe: true,
            output_kind: OutputKind::Structured,
            ..Capabilities::conservative()
        }
    }

    fn subject(&self, arguments: &Value) -> Subject {
        Subject::Text(arguments.get("prompt").and_then(Value::as_str).unwrap_or("").to_owned())
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            let arguments = match Arguments::deserialize(arguments) {
                Ok(arguments) => arguments,
                Err(error) => return ToolOutcome::invalid_argument(format!("the arguments cannot be read: {error}")),
            };
            let include_raw_text = arguments.include_raw_text;
            let request = ObjectRequest::from(arguments);
            // Before anything else, also where no model is.
            if let Err(error) = request.check() {
                return ToolOutcome::invalid_argument(error.to_string());
            }
            let Some(generate) = &ctx.generate else {
                let message = "this session has no model that could be asked for an object".to_owned();
                return ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message);
            };
            let shown = Shown { progress: &*ctx.progress };
            match generate.generate(&request, &shown).await {
                Ok(object) => {
                    shown.last(&object);
                    success(&request, &object, include_raw_text)
                }
                Err(failure) => failure.into(),
            }
        })
    }
}

impl From<Arguments> for ObjectRequest {
    fn from(asked: Arguments) -> Self {
        Self {
            schema: asked.schema,
            prompt: asked.prompt,
            schema_name: asked.schema_name.unwrap_or_else(|| "result".to_owned()),
            schema_description: asked.schema_description,
            system: asked.system,
            mode: asked.mode,
            repairs_max: asked.max_repair_attempts,
            timeout: Duration::from_millis(asked.timeout_ms),
        }
    }
}

/// Partial objects as deltas of the call, each a line of JSON.
struct Shown<'a> {
    progress: &'a dyn Progress,
}

impl Shown<'_> {
    fn last(&self, object: &GeneratedObject) {
        let rest = format!("\"mode_used\":{},\"repair_rounds\":{}", json!(object.mode_used), object.repair_rounds);
        self.progress.delta(&format!("{{\"object_partial\":{},\"final\":true,{rest}}}\n", object.json));
    }
}

impl Partials for Shown<'_> {
    fn partial(&self, json: &str) {
        self.progress.delta(&format!("{{\"object_partial\":{json},\"final\":false}}\n"));
    }

    fn omitted(&self, bytes: usize) {
        let view = json!({"object_partial_omitted": true, "partial_bytes": bytes, "final": false});
        self.progress.delta(&format!("{view}\n"));
    }
}

/// The output is put together as text: as a value, long numbers would lose digits.
fn success(request: &ObjectRequest, object: &GeneratedObject, include_raw_text: bool) -> ToolOutcome {
    let (mode, usage) = (json!(object.mode_used), json!(object.usage));
    let raw = match include_raw_text {
        true => format!(",\"raw_text\":{}", json!(object.raw_text)),
        false => String::new(),
    };
    let output = format!(
        "{{\"object\":{},\"repair_rounds\":{},\"mode_used\":{mode},\"usage\":{usage}{raw}}}",
        object.json, object.repair_rounds
    );
    let mut outcome = ToolOutcome::success(output)
        .trusted(Trust::External)
        .with("schema_name", request.schema_name.as_str())
        .with("requested_mode", json!(request.mode))
        .with("mode_used", mode)
        .with("repair_rounds", object.repair_rounds)
        .with("usage", usage)
        .with("raw_text_included", include_raw_text)
        .with("generation_admission", json!(object.admission));
    if let Some(note) = &object.mode_note {
        outcome = outcome.with("mode_note", note.as_str());
    }
    if object.is_mended {
        outcome = outcome.with("mended", true);
    }
    outcome
}

static SPEC: FixedSpec = FixedSpec::new(spec);

fn spec() -> ToolSpec {
    ToolSpec {
        name: ToolName::new(NAME),
        description:
            "Ask the session's model for one JSON object that fits a schema. The answer is checked against the \
                      schema; what does not fit is sent back to the model with what is wrong, a few times. The object \
                      is in the output only when it fits."
                .to_owned(),
        parameters: json!({
            "type": "object",
            "additionalProperties": false,
            "required": ["schema", "prompt"],
            "properties": {
                "schema": {"type": "object", "description": "JSON Schema (2020-12) of the object; 64 KiB at most."},
                "prompt": {
                    "type": "string", "minLength": 1, "maxLength": PROMPT_BYTES_MAX,
                    "description": "What the object is to hold, with all that is needed for it.",
                },
                "schema_name": {
                    "type": "string", "pattern": format!("^[A-Za-z0-9_-]{{1,{NAME_BYTES_MAX}}}$"), "default": "result",
                    "description": "What the model is told that the object is called.",
                },
                "schema_description": {
                    "type": "string", "maxLength": DESCRIPTION_BYTES_MAX,
                    "description": "What the model is told of the object.",
                },
                "system": {
                    "type": "string", "maxLength": SYSTEM_BYTES_MAX,
                    "description": "Instructions for the model.",
                },
                "mode": {
                    "type": "string", "enum": ["auto", "strict", "json", "tool", "prompt"], "default": "auto",
                    "description": "How the model is held to the schema; what its provider lacks falls to the next best.",
                },
                "max_repair_attempts": {
                    "type": "integer", "minimum": 0, "maximum": REPAIRS_MAX, "default": REPAIRS_DEFAULT,
                    "description": "How often the model may mend its answer.",
                },
                "include_raw_text": {
                    "type": "boolean", "default": false,
                    "description": "Whether the output also holds what the model said.",
                },
                "timeout_ms": {
                    "type": "integer", "minimum": TIMEOUT_MS.start(), "maximum": TIMEOUT_MS.end(),
                    "default": TIMEOUT_MS_DEFAULT,
                    "description": "The most time for all rounds together.",
                },
            },
        }),
        model_parameters: None,
        model_visible: false,
        lane: Lane::Control,
        needs: Needs { generate: true, ..Needs::default() },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::future::{BoxFuture, FutureExt as _};
    use serde_json::{Value, json};

    use super::GenerateObjectTool;
    use crate::builtin::testing::{call, context, faults};
    use crate::context::{Progress, ToolContext};
    use crate::generation::{
        Generate, GeneratedObject, GenerationAdmission, ObjectFailure, ObjectMode, ObjectRequest, ObjectUsage, Partials,
    };
    use crate::outcome::{ToolErrorKind, ToolOutcome};
    use crate::tool::Tool as _;

    /// Gives what it was told, and keeps what it was asked.
    #[derive(Default)]
    struct Told {
        asked: Mutex<Vec<ObjectRequest>>,
        fails: bool,
    }

    impl Generate for Told {
        fn generate<'a>(
            &'a self,
            request: &'a ObjectRequest,
            partials: &'a dyn Partials,
        ) -> BoxFuture<'a, Result<GeneratedObject, ObjectFailure>> {
            self.asked.lock().unwrap().push(request.clone());
            partials.partial("{\"n\":12");
            partials.omitted(70_000);
            let failed = ObjectFailure::NoFit { repair_rounds: 2, faults: "/n: 1 is not a string".to_owned() };
            let object = GeneratedObject {
                json: "{\"n\":123456789012345678901234567890}".to_owned(),
                mode_used: ObjectMode::Tool,
                mode_note: None,
                repair_rounds: 1,
                is_mended: true,
                usage: ObjectUsage {
                    prompt_tokens: 1,
                    completion_tokens: 2,
                    total_tokens: 3,
                    ..ObjectUsage::default()
                },
                raw_text: "said".to_owned(),
                admission: GenerationAdmission { mode: "bounded", ..GenerationAdmission::default() },
            };
            async move { if self.fails { Err(failed) } else { Ok(object) } }.boxed()
        }
    }

    #[derive(Default)]
    struct Kept(Mutex<String>);

    impl Progress for Kept {
        fn delta(&self, text: &str) {
            self.0.lock().unwrap().push_str(text);
        }
    }

    async fn asked(told: Arc<Told>, arguments: Value) -> (ToolOutcome, Arc<Kept>) {
        let folder = tempfile::tempdir().unwrap();
        let shown = Arc::new(Kept::default());
        let progress = Arc::clone(&shown);
        let ctx = ToolContext { generate: Some(told), progress, ..context(folder.path()) };
        (call(&GenerateObjectTool::new(), &ctx, arguments).await, shown)
    }

    #[tokio::test]
    async fn the_object_is_in_the_output_as_it_was_written() {
        let told = Arc::new(Told::default());
        let arguments =
            json!({"schema": {"type": "object"}, "prompt": "p", "include_raw_text": true, "timeout_ms": 5000});
        let (outcome, shown) = asked(Arc::clone(&told), arguments).await;
        assert!(outcome.is_success());
        assert_eq!(
            outcome.output,
            "{\"object\":{\"n\":123456789012345678901234567890},\"repair_rounds\":1,\"mode_used\":\"tool\",\"usage\":\
             {\"prompt_tokens\":1,\"completion_tokens\":2,\"total_tokens\":3,\"cache_read_tokens\":0,\
             \"cache_write_tokens\":0},\"raw_text\":\"said\"}"
        );
        for (key, value) in [
            ("schema_name", json!("result")),
            ("requested_mode", json!("auto")),
            ("mode_used", json!("tool")),
            ("repair_rounds", json!(1)),
            ("raw_text_included", json!(true)),
            ("mended", json!(true)),
        ] {
            assert_eq!(outcome.metadata[key], value, "{key}");
        }
        assert_eq!(outcome.metadata["generation_admission"]["mode"], "bounded");
        let request = told.asked.lock().unwrap()[0].clone();
        assert_eq!((request.timeout.as_millis(), request.repairs_max), (5000, 2));
        let shown = shown.0.lock().unwrap().clone();
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "{\"object_partial_omitted\":true,\"partial_bytes\":70000,\"final\":false}");
        assert_eq!(
            lines[2],
            "{\"object_partial\":{\"n\":123456789012345678901234567890},\"final\":true,\"mode_used\":\"tool\",\
             \"repair_rounds\":1}"
        );
    }

    #[tokio::test]
    async fn a_failure_has_no_object_and_bad_arguments_ask_nobody() {
        let told = Arc::new(Told { fails: true, ..Told::default() });
        let (outcome, _) = asked(Arc::clone(&told), json!({"schema": {"type": "object"}, "prompt": "p"})).await;
        assert_eq!(outcome.exit_code, 1);
        assert_eq!(outcome.output, "no object that fits the schema after 2 repairs: /n: 1 is not a string");
        let (outcome, _) = asked(Arc::clone(&told), json!({"schema": {"type": "nonsense"}, "prompt": "p"})).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::InvalidArgument { .. })), "{outcome:?}");
        assert_eq!(told.asked.lock().unwrap().len(), 1);
        let folder = tempfile::tempdir().unwrap();
        let alone = GenerateObjectTool::new();
        let arguments = json!({"schema": {"type": "object"}, "prompt": "p"});
        let outcome = alone.call(&context(folder.path()), arguments).await;
        assert!(matches!(outcome.error, Some(ToolErrorKind::Unsupported { .. })), "{outcome:?}");
    }

    #[test]
    fn unknown_fields_are_refused_and_no_model_sees_it() {
        let tool = GenerateObjectTool::new();
        let wrong = json!({"schema": {}, "prompt": "p", "sytem": "x"});
        assert!(faults(&tool, &wrong).contains("sytem"));
        assert!(faults(&tool, &json!({"schema": true, "prompt": "p"})).contains("/schema"));
        assert!(!tool.spec().model_visible && tool.spec().needs.nests());
    }
}
