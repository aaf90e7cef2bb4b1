//! Replay: the same turns over the same files come to the same bytes, and a stored session to the same state each time.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::event::{Event, EventKind};
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden_actors::journal::Reading;
use toolwarden_tools::effects::store::Store;
use toolwarden_tools::effects::store::memory::MemoryStore;

use super::evidence::repeat;
use super::support::model::script;
use super::support::world::policy;

/// What was shown of each call, with its evidence and its artifact, in order.
type Shown = Vec<(String, Value)>;

/// Plays one session into a store; gives what was shown.
async fn play(store: &Arc<MemoryStore>) -> Shown {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text"), "words of a file\n".repeat(20_000)).unwrap();
    let call = |tool: &str, arguments: Value| json!({"calls": [{"tool": tool, "arguments": arguments}]});
    let turns = [
        call("say", json!({"text": "a line\n", "times": 30_000})),
        call("read", json!({"file_path": "text"})),
        call("no_such_tool", json!({})),
        json!({"text": "all is said"}),
    ];
    let runtime = Runtime::builder().store(Arc::clone(store) as _).build().await.unwrap();
    let mut events = runtime.events().await.unwrap();
    let session = runtime
        .session(folder.path())
        .id("s")
        .tool(repeat("say").shared())
        .projection(ProjectionPolicy::context_efficient())
        .policy(policy("default = 'allow'"))
        .model(script(&turns));
    let session = session.open().await.unwrap();
    assert_eq!(session.run("go").await.unwrap().text, "all is said");
    session.close().await;
    runtime.shut_down().await;
    let mut shown = Shown::new();
    while let Some(reading) = events.try_next() {
        if let Reading::Entry(entry) = reading
            && let Event { kind: EventKind::ToolEnd(result), .. } = &entry.event
        {
            let facts = |key: &str| result.metadata.get(key).cloned().unwrap_or_default();
            let facts = json!({"evidence": facts("a3s_tool_result_evidence"), "artifact": facts("artifact")});
            shown.push((result.output.clone(), facts));
        }
    }
    shown
}

#[tokio::test]
async fn the_same_session_comes_to_the_same_bytes_and_its_facts_to_the_same_state() {
    let stores = [Arc::new(MemoryStore::default()), Arc::new(MemoryStore::default())];
    let shown = [play(&stores[0]).await, play(&stores[1]).await];
    assert_eq!(shown[0].len(), 3);
    assert_eq!(shown[0], shown[1], "outputs, projections and evidence");
    assert!(shown[0].iter().all(|(_, facts)| facts["evidence"]["schema"].is_string()));

    // The stored facts, folded again and again, and after the snapshot is taken away.
    let fold = |with_snapshot: bool| {
        let mut found = stores[0].look(&"s".into()).unwrap();
        found.snapshot = found.snapshot.filter(|_| with_snapshot);
        let found = toolwarden::resume::fold(&"s".into(), found, false).unwrap();
        serde_json::to_string(&found.state).unwrap()
    };
    let state = fold(true);
    assert_eq!([fold(true), fold(false), fold(false)], [state.clone(), state.clone(), state]);
}
