//! Promise: a call that needs a person's word runs only with that word, on exactly what the person was shown.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests prepare and look at real files")]

#[path = "confirmation/answer.rs"]
mod answer;
#[path = "confirmation/binding.rs"]
mod binding;
#[expect(dead_code, reason = "each promise uses its own part of the shared pieces")]
mod support;

use serde_json::Value;
use tokio::task::JoinHandle;
use toolwarden::call_result::CallResult;
use toolwarden::session::Session;
use toolwarden_tools::digest::Digest;

/// A governed call, under way beside the test.
fn governed(session: &Session, tool: &'static str, arguments: Value) -> JoinHandle<std::sync::Arc<CallResult>> {
    let session = session.clone();
    tokio::spawn(async move { session.governed_tool(tool, arguments).await.unwrap() })
}

/// The digest that a question shows.
fn digest_of(question: &Value) -> Digest {
    serde_json::from_value(question["digest"].clone()).unwrap()
}

fn id_of(question: &Value) -> &str {
    question["tool_id"].as_str().unwrap()
}
