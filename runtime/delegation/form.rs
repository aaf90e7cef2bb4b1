//! The form that a task's answer must have: told to the agent with its prompt, looked for in its last words, and asked for
//! once more when it is not there.
//!
//! What must stay true: what is given as structured fits the schema, and an answer that does not is no success.

use std::sync::Arc;

use serde_json::Value;
use toolwarden_actors::node::NodeHandle;
use toolwarden_tools::generation::{Generate as _, NoPartials, ObjectRequest, PROMPT_BYTES_MAX};
use toolwarden_tools::ids::InvocationId;

use super::child::{Child, Work};
use crate::agent::Agent;
use crate::kernel::model_port::ModelPort;
use crate::scope::Scope;
use crate::structured::candidate::ObjectSchema;

/// What is kept of an answer that is put into form, in bytes: most of what may be asked.
const ANSWER_BYTES_MAX: usize = PROMPT_BYTES_MAX - 4096;

/// The prompt with what is said about the form of the answer.
pub(super) fn prompt_with_form(prompt: &str, schema: &Value) -> String {
    format!(
        "{prompt}\n\nEnd with your final answer as one JSON value that fits this schema, and with nothing else in that \
         last message:\n{schema}"
    )
}

impl Child {
    /// Holds an answer to the form that was asked for, in `scope`, whose budget is used.
    pub(super) async fn in_form(&self, work: Work, node: &NodeHandle, agent: &Agent, scope: Arc<Scope>) -> Work {
        let Some(schema) = self.task.output_schema.as_ref().filter(|_| work.success) else { return work };
        let found = ObjectSchema::new(schema).map_err(|error| error.to_string());
        let found = found.and_then(|form| form.find(&work.output).map(|fit| fit.json));
        let given = match found {
            Ok(json) => Ok(json),
            Err(_) => self.put_into_form(&work.output, schema, node, agent, scope).await,
        };
        match given.and_then(|json| serde_json::from_str(&json).map_err(|error| error.to_string())) {
            Ok(structured) => Work { structured: Some(structured), ..work },
            Err(why) => {
                let output = format!("the answer does not have the form that was asked for ({why}):\n{}", work.output);
                Work { success: false, output, ..work }
            }
        }
    }

    /// Asks the agent's model for the same answer in its form.
    async fn put_into_form(
        &self,
        answer: &str,
        schema: &Value,
        node: &NodeHandle,
        agent: &Agent,
        scope: Arc<Scope>,
    ) -> Result<String, String> {
        let port = ModelPort {
            kernel: Arc::clone(&self.delegation.kernel),
            scope,
            model: self.model(agent),
            holder: InvocationId::new(self.task_id.as_str()),
            cancel: node.cancellation().clone(),
        };
        let shown = &answer[..answer.floor_char_boundary(ANSWER_BYTES_MAX)];
        let prompt = format!(
            "Give this answer in the form that is asked for. Take all of it from here and add nothing:\n{shown}"
        );
        // A forced tool, or what the model has instead.
        let request = ObjectRequest::new(schema.clone(), prompt);
        let given = port.generate(&request, &NoPartials).await;
        given.map(|object| object.json).map_err(|failure| failure.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::prompt_with_form;

    #[test]
    fn a_prompt_tells_the_form_of_its_answer() {
        let prompt = prompt_with_form("Count.", &json!({"type": "object", "required": ["n"]}));
        assert!(
            prompt.starts_with("Count.\n\n") && prompt.ends_with("{\"type\":\"object\",\"required\":[\"n\"]}"),
            "{prompt}"
        );
    }
}
