//! The form that a task's answer must have: told to the agent with its prompt, and held against its last words.
//!
//! What must stay true: what is given as structured fits the schema, and an answer that does not is no success.

use serde_json::Value;
use toolwarden_tools::schema::Schema;

/// The prompt with what is said about the form of the answer.
pub(super) fn prompt_with_form(prompt: &str, schema: &Value) -> String {
    format!(
        "{prompt}\n\nEnd with your final answer as one JSON value that fits this schema, and with nothing else in that \
         last message:\n{schema}"
    )
}

/// The value in a text that fits the schema: all of it, or what stands in its last fenced block.
///
/// # Errors
/// What is wrong with the text, in words.
pub(super) fn fitting(text: &str, schema: &Value) -> Result<Value, String> {
    let schema = Schema::compile(schema).map_err(|error| error.to_string())?;
    let whole = text.trim();
    let fenced = whole.rsplit("```").nth(1).map(|block| block.trim_start_matches("json").trim());
    let mut fault = None;
    for candidate in [Some(whole), fenced].into_iter().flatten() {
        let fits = serde_json::from_str::<Value>(candidate).map_err(|error| format!("it is no JSON: {error}"));
        let fits = fits.and_then(|value| schema.check(&value).map(|()| value));
        match fits {
            Ok(value) => return Ok(value),
            Err(why) => fault = Some(why),
        }
    }
    Err(fault.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{fitting, prompt_with_form};

    #[test]
    fn an_answer_is_found_and_held_to_its_form() {
        let schema = json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
        for text in ["{\"n\": 3}", " \n{\"n\": 3}\n", "Here it is:\n```json\n{\"n\": 3}\n```", "```\n{\"n\": 3}\n```\n"]
        {
            assert_eq!(fitting(text, &schema), Ok(json!({"n": 3})), "{text}");
        }
        for (text, why) in [("three", "no JSON"), ("{\"n\": \"3\"}", "n"), ("", "no JSON"), ("```\n{}\n```", "n")] {
            let error = fitting(text, &schema).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(prompt_with_form("Count.", &schema).contains("\"required\":[\"n\"]"));
    }
}
