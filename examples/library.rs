//! The library in twenty lines, as the README shows it: `cargo run -p toolwarden-promises --example library`.

use serde_json::json;
use toolwarden::prelude::*;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::builder().build().await?;
    let policy = PermissionPolicy::from_toml(r#"allow = ["read", "ls", "search", "task"]"#, "policy")?;
    let session = runtime.session(".").policy(policy).open().await?;

    // The host calls a tool itself. A call that fails is a result with an exit code, not an error.
    let result = session.tool("search", json!({"mode": "grep", "query": "fn main", "output_mode": "count"})).await?;
    println!("exit code {}:\n{}", result.exit_code, result.output);

    // A run: a model proposes calls, the route decides about each.
    let outcome = session.run("where is the restart intensity decided?").await?;
    println!("{}:\n{}", outcome.status, outcome.text);

    session.close().await;
    runtime.shut_down().await;
    Ok(())
}
