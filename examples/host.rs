//! What a host decides: rules, hooks, secrets, budgets, bounds, and a person's answers. Run it with
//! `cargo run -p toolwarden-promises --example host`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::json;
use toolwarden::hook::{Hook, HookVerdict, HookedCall};
use toolwarden::models::scripted::ScriptedModel;
use toolwarden::prelude::*;

struct NoGenerated;

impl Hook for NoGenerated {
    fn name(&self) -> &str {
        "no-generated-files"
    }

    fn before<'a>(&'a self, call: HookedCall<'a>) -> BoxFuture<'a, HookVerdict> {
        let path = call.arguments["file_path"].as_str().unwrap_or_default();
        let verdict = match path.starts_with("generated/") {
            true => HookVerdict::Deny { reason: "files in generated/ are made by the build".into() },
            false => HookVerdict::Continue,
        };
        Box::pin(std::future::ready(verdict))
    }
}

const SCRIPT: &str = r#"
{"calls": [{"tool": "write", "arguments": {"file_path": "generated/a.txt", "content": "x"}}]}
{"calls": [{"tool": "write", "arguments": {"file_path": "notes.txt", "content": "the key is hush-hush-42\n"}}]}
{"calls": [{"tool": "read", "arguments": {"file_path": "notes.txt"}}]}
{"text": "One file was refused, one was written."}
"#;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let policy = PermissionPolicy::from_toml("allow = ['read', 'ls', 'search']\nask = ['write', 'edit']", "policy")?;

    let runtime = Runtime::builder().secrets(vec!["hush-hush-42".into()]).build().await?;
    let session = runtime
        .session(folder.path())
        .model(Arc::new(ScriptedModel::load(SCRIPT, "host.rs")?))
        .policy(policy)
        .hook(Arc::new(NoGenerated))
        .confirming(Confirming::RejectAfter(Duration::from_secs(10)))
        .budget(BudgetLimits { calls: Some(100), ..BudgetLimits::default() })
        .tool_timeout(Duration::from_secs(60))
        .run_limits(RunLimits { rounds_max: Some(8), ..RunLimits::default() })
        .open()
        .await?;

    let mut stream = session.stream("Write the notes.").await?;
    while let Some(reading) = stream.next().await {
        let Reading::Entry(entry) = reading else { continue };
        match &entry.event.kind {
            EventKind::ConfirmationRequired { tool_id, tool_name, args, digest, reason, .. } => {
                println!("asked about {tool_name} {args}: {reason}");
                session.confirm(tool_id.clone(), Some(digest.clone()), Reply::Approve).await;
            }
            EventKind::ToolEnd(result) => println!("{}: {}", result.name, result.output.trim_end()),
            _ => {}
        }
    }
    let outcome = stream.outcome().await.ok_or("the session closed before the run began")?;
    println!("{}: {}", outcome.status, outcome.text);

    // The same call from the host: through the whole route, as if a model had proposed it.
    let refused = session.governed_tool("write", json!({"file_path": "generated/b.txt", "content": ""})).await?;
    println!("{} {:?}", refused.output, refused.error_kind);
    println!("{:?}", session.budget().await?);
    runtime.shut_down().await;
    Ok(())
}
