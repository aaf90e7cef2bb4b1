//! A tool of your own, called by the host and by a model: `cargo run -p toolwarden-promises --example embed`.
//!
//! The tool counts the words of a file in the workspace. It says what it is, what a permission rule is matched
//! against, and what it does; the schema check, the rules, the limits and the evidence come from the route.

use std::io::Read as _;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::prelude::*;
use toolwarden_tools::workspace_path::WorkspacePath;

/// Most of a file that is read, in bytes.
const READ_BYTES_MAX: u64 = 1024 * 1024;

struct WordCount {
    spec: ToolSpec,
}

impl WordCount {
    fn tool() -> Arc<dyn Tool> {
        let spec = ToolSpec {
            name: "word_count".into(),
            description: "Count the words in the first MiB of a text file.".into(),
            parameters: json!({
                "type": "object", "additionalProperties": false, "required": ["file_path"],
                "properties": {"file_path": {"type": "string", "minLength": 1}},
            }),
            model_parameters: None,
            model_visible: true,
            lane: Lane::Query,
            needs: Needs::default(),
        };
        Arc::new(Self { spec })
    }
}

impl Tool for WordCount {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn subject(&self, arguments: &Value) -> Subject {
        let path = arguments["file_path"].as_str().unwrap_or_default();
        Subject::Paths { paths: vec![path.to_owned()], write: false }
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            match words(ctx, arguments["file_path"].as_str().unwrap_or_default()) {
                Ok(words) => ToolOutcome::success(format!("{words} words")).with("words", words),
                Err(message) => ToolOutcome::invalid_argument(message),
            }
        })
    }
}

fn words(ctx: &ToolContext, path: &str) -> Result<usize, String> {
    let path = WorkspacePath::parse(path, ctx.workspace.display_root()).map_err(|error| error.to_string())?;
    let file = ctx.workspace.files().open(&path).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    file.take(READ_BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).split_whitespace().count())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let script = r#"{"text": "Counting.", "calls": [{"tool": "word_count", "arguments": {"file_path": "README.md"}}]}
                    {"text": "Now you know."}"#;
    let policy = PermissionPolicy::from_toml(r#"allow = ["word_count(*.md)"]"#, "embed.rs")?;
    let runtime = Runtime::builder().build().await?;
    let session = runtime.session(env!("CARGO_MANIFEST_DIR")).tool(WordCount::tool()).policy(policy);
    let session = session.model(Arc::new(ScriptedModel::load(script, "embed.rs")?)).open().await?;

    let result = session.tool("word_count", json!({"file_path": "README.md"})).await?;
    println!("the host called {}: {} (exit code {})", result.name, result.output, result.exit_code);

    let mut stream = session.stream("How long is the README?").await?;
    while let Some(reading) = stream.next().await {
        if let Reading::Entry(entry) = reading
            && let EventKind::ToolEnd(result) = &entry.event.kind
        {
            println!("the model called {}: {} (exit code {})", result.name, result.output, result.exit_code);
        }
    }
    let outcome = stream.outcome().await.ok_or("the session closed before the run began")?;
    println!("the run ended ({}): {}", outcome.status, outcome.text);
    runtime.shut_down().await;
    Ok(())
}
