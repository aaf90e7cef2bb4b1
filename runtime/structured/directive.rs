//! How a model is held to a schema: which means is taken, and what the request looks like then.
//!
//! What is asked for falls to the next best where a model lacks it: strict to a forced tool, that to JSON mode, that to
//! words. What must stay true: what comes back is judged by the schema itself, whichever means was taken.

use serde_json::Value;
use toolwarden_tools::declaration::ToolDefinition;
use toolwarden_tools::generation::{ObjectMode, ObjectRequest};
use toolwarden_tools::ids::ToolName;

use super::candidate::ObjectSchema;
use super::envelope::Envelope;
use super::strict_schema::strict;
use crate::models::object_support::{ObjectSupport, StrictDialect};
use crate::models::turn_options::{OutputShape, ToolChoice, TurnOptions};
use crate::models::{Message, ModelRequest};

/// Who asks, as models and scripts are told.
pub const AGENT: &str = "generate_object";

/// Most bytes of an answer that are repeated to the model with what is wrong.
pub const ECHO_BYTES_MAX: usize = 2000;

/// How a model is held to a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Directive {
    /// The means that is taken.
    pub mode: ObjectMode,
    /// Why it is not the one that was asked for, where that is not only the model's lack.
    pub note: Option<String>,
    /// How the value travels.
    pub envelope: Envelope,
    /// The schema as the provider gets it.
    pub wire: Value,
}

impl Directive {
    /// The means for this mode with a model that has these.
    pub fn of(mode: ObjectMode, schema: &ObjectSchema, support: ObjectSupport) -> Self {
        let envelope = schema.envelope();
        let mut note = None;
        if let (ObjectMode::Strict, Some(dialect)) = (mode, support.json_schema) {
            match strictly(schema, dialect) {
                Ok((envelope, wire)) => return Self { mode, note, envelope, wire },
                Err(reason) => note = Some(reason),
            }
        }
        let mode = match mode {
            ObjectMode::Prompt => ObjectMode::Prompt,
            ObjectMode::Json if support.json_object => ObjectMode::Json,
            _ if support.forced_tool => ObjectMode::Tool,
            _ if support.json_object => ObjectMode::Json,
            _ => ObjectMode::Prompt,
        };
        Self { mode, note, envelope, wire: envelope.around(schema.schema()) }
    }

    /// The name of the tool whose arguments are the object.
    pub fn tool_name(request: &ObjectRequest) -> String {
        format!("emit_{}", request.schema_name)
    }

    /// What the model is asked first.
    pub fn first_request(&self, request: &ObjectRequest, cache_key: &str) -> ModelRequest {
        let mut options = TurnOptions { cache_key: Some(cache_key.to_owned()), ..TurnOptions::default() };
        let mut tools = Vec::new();
        let mut prompt = request.prompt.clone();
        match self.mode {
            ObjectMode::Strict => {
                let (name, schema) = (request.schema_name.clone(), self.wire.clone());
                options.output = Some(OutputShape::JsonSchema { name, schema, strict: true });
            }
            ObjectMode::Json => {
                options.output = Some(OutputShape::JsonObject);
                prompt.push_str(&self.in_words(request));
            }
            ObjectMode::Prompt => prompt.push_str(&self.in_words(request)),
            ObjectMode::Auto | ObjectMode::Tool => {
                let name = Self::tool_name(request);
                options.tool_choice = ToolChoice::Named(name.clone());
                options.single_call = true;
                let usual = || "Gives the answer: its arguments are the answer.".to_owned();
                tools.push(ToolDefinition {
                    name: ToolName::from(name.as_str()),
                    description: request.schema_description.clone().unwrap_or_else(usual),
                    parameters: self.wire.clone(),
                });
            }
        }
        ModelRequest {
            system: self.instructions(request),
            messages: vec![Message::User { text: prompt }],
            tools: tools.into(),
            tool_calls_allowed: true,
            agent: AGENT.to_owned(),
            fan_out: 1,
            options,
        }
    }

    fn instructions(&self, request: &ObjectRequest) -> String {
        let own = request.system.as_deref().unwrap_or("").trim();
        let how = match self.mode {
            ObjectMode::Tool | ObjectMode::Auto => {
                format!("Answer by calling {} once; its arguments are the answer.", Self::tool_name(request))
            }
            ObjectMode::Strict => match &request.schema_description {
                Some(description) => {
                    format!("Answer with JSON that fits the schema {}: {description}", request.schema_name)
                }
                None => format!("Answer with JSON that fits the schema {}.", request.schema_name),
            },
            ObjectMode::Json | ObjectMode::Prompt => {
                "Answer with one JSON value alone: no words around it, no fences, no comments.".to_owned()
            }
        };
        if own.is_empty() { how } else { format!("{own}\n\n{how}") }
    }

    fn in_words(&self, request: &ObjectRequest) -> String {
        let described = request.schema_description.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
        format!(
            "\n\nAnswer with one JSON value, named {}{described}, that fits this JSON Schema:\n{}",
            request.schema_name, self.wire
        )
    }

    /// What the model is told of an answer that does not fit.
    pub fn repair_words(&self, request: &ObjectRequest, faults: &str, said: &str) -> String {
        let again = match self.mode {
            ObjectMode::Tool | ObjectMode::Auto => format!("Call {} again", Self::tool_name(request)),
            _ => "Answer again with the whole JSON value alone".to_owned(),
        };
        let said = &said[..said.floor_char_boundary(ECHO_BYTES_MAX)];
        let echo = if said.is_empty() { String::new() } else { format!("\nWhat came:\n{said}\n") };
        format!("That does not fit the schema. {faults}\n{echo}{again}, and mend only what is wrong.")
    }
}

/// The strict form of a schema, in the envelope that it needs there.
fn strictly(schema: &ObjectSchema, dialect: StrictDialect) -> Result<(Envelope, Value), String> {
    let envelope = schema.envelope();
    match strict(&envelope.around(schema.schema()), dialect) {
        Ok(wire) => Ok((envelope, wire)),
        // Alternatives at the root are not taken, inside of an envelope they are.
        Err(reason) if envelope == Envelope::Direct => {
            let wire = strict(&Envelope::Value.around(schema.schema()), dialect).map_err(|_| reason.to_string())?;
            Ok((Envelope::Value, wire))
        }
        Err(reason) => Err(reason.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolwarden_tools::generation::{ObjectMode, ObjectRequest};

    use super::Directive;
    use crate::models::object_support::{ObjectSupport, StrictDialect};
    use crate::models::turn_options::{OutputShape, ToolChoice};
    use crate::structured::candidate::ObjectSchema;
    use crate::structured::envelope::Envelope;

    fn plain() -> Value {
        json!({"type": "object", "properties": {"a": {"type": "string"}}})
    }

    fn used(mode: ObjectMode, support: ObjectSupport) -> ObjectMode {
        Directive::of(mode, &ObjectSchema::new(&plain()).unwrap(), support).mode
    }

    #[test]
    fn the_table_of_modes_is_kept() {
        use ObjectMode::{Auto, Json, Prompt, Strict, Tool};
        let none = ObjectSupport::default();
        let columns = [
            ObjectSupport::all(StrictDialect::OpenAi),
            ObjectSupport { forced_tool: true, ..none },
            ObjectSupport { json_object: true, ..none },
            none,
            ObjectSupport { json_object: false, ..ObjectSupport::all(StrictDialect::Claude) },
        ];
        for (asked, expected) in [
            (Auto, [Tool, Tool, Json, Prompt, Tool]),
            (Tool, [Tool, Tool, Json, Prompt, Tool]),
            (Strict, [Strict, Tool, Json, Prompt, Strict]),
            (Json, [Json, Tool, Json, Prompt, Tool]),
            (Prompt, [Prompt; 5]),
        ] {
            assert_eq!(columns.map(|support| used(asked, support)), expected, "{asked:?}");
        }
    }

    #[test]
    fn a_schema_without_a_strict_form_falls_to_a_tool_and_says_why() {
        // Case C145.
        let map = json!({"type": "object", "additionalProperties": {"type": "integer"}});
        let all = ObjectSupport::all(StrictDialect::OpenAi);
        let directive = Directive::of(ObjectMode::Strict, &ObjectSchema::new(&map).unwrap(), all);
        assert_eq!(directive.mode, ObjectMode::Tool);
        assert!(directive.note.unwrap().contains("members of any name"));
        let either = json!({"anyOf": [plain(), {"type": "object", "properties": {"b": {"type": "null"}}}]});
        let directive = Directive::of(ObjectMode::Strict, &ObjectSchema::new(&either).unwrap(), all);
        assert_eq!((directive.mode, directive.envelope), (ObjectMode::Strict, Envelope::Value));
    }

    #[test]
    fn each_mode_asks_in_its_own_way() {
        let mut request = ObjectRequest::new(plain(), "the prompt");
        request.system = Some("be brief".into());
        let schema = ObjectSchema::new(&request.schema).unwrap();
        let first = |mode| {
            let directive = Directive::of(mode, &schema, ObjectSupport::all(StrictDialect::OpenAi));
            let asked = directive.first_request(&request, "key");
            let crate::models::Message::User { text } = asked.messages[0].clone() else { panic!("no words") };
            (asked, text)
        };
        let (tool, text) = first(ObjectMode::Auto);
        assert_eq!(text, "the prompt");
        assert_eq!(tool.options.tool_choice, ToolChoice::Named("emit_result".into()));
        assert!(tool.options.single_call && tool.tools[0].parameters == plain());
        assert!(tool.system.starts_with("be brief\n\n"));
        let (strict, text) = first(ObjectMode::Strict);
        assert!(matches!(strict.options.output, Some(OutputShape::JsonSchema { strict: true, .. })));
        assert_eq!(text, "the prompt");
        let (json, text) = first(ObjectMode::Json);
        assert_eq!(json.options.output, Some(OutputShape::JsonObject));
        assert!(text.contains("JSON Schema") && text.contains("\"properties\""));
        let (prompt, text) = first(ObjectMode::Prompt);
        assert_eq!((prompt.options.output, prompt.tools.len()), (None, 0));
        assert!(text.contains("JSON Schema"));
    }
}
