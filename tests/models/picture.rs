//! Pictures that a host puts into a prompt reach each protocol in its own form, with every turn, and stay with the session.

use std::sync::Arc;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::models::picture::{PICTURES_MAX, Picture, PictureError};
use toolwarden::run_status::RunStatus;
use toolwarden::session::SessionError;
use toolwarden_tools::effects::store::memory::MemoryStore;

use super::peer::{PROTOCOLS, model};
use super::provider::{Fault, Provider};
use super::support::tool::echo;
use super::support::world::{World, allowing};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n....";
const DATA: &str = "iVBORw0KGgouLi4u";

/// The pictures in a request, as its protocol writes them, in their order with the words.
fn parts(body: &Value) -> Vec<String> {
    let messages = body.get("messages").or(body.get("input")).and_then(Value::as_array).unwrap();
    let mut parts = Vec::new();
    for message in messages.iter().filter(|message| message["role"] == "user") {
        match &message["content"] {
            Value::String(text) => parts.push(text.clone()),
            Value::Array(blocks) => {
                parts.extend(blocks.iter().filter_map(|block| match block["type"].as_str().unwrap() {
                    "image" => Some(format!("{} {}", block["source"]["media_type"], block["source"]["data"])),
                    "image_url" => Some(block["image_url"]["url"].to_string()),
                    "input_image" => Some(block["image_url"].to_string()),
                    "text" => Some(block["text"].as_str().unwrap().to_owned()),
                    _ => None,
                }))
            }
            other => panic!("{other}"),
        }
    }
    parts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_stand_before_the_words_in_every_turn_also_after_a_resume() {
    for protocol in PROTOCOLS {
        let store = Arc::new(MemoryStore::default());
        // Not a world: events of a store do not begin at 1.
        let (folder, runtime) = (tempfile::tempdir().unwrap(), Runtime::builder().store(store).build().await.unwrap());
        let provider = Provider::new(1, |_| Fault::None);
        let asked = model(protocol, "http://127.0.0.1:9", true, provider.clone());
        let session = runtime.session(folder.path()).policy(allowing(&["echo"])).tool(echo("echo").shared());
        let session = session.model(asked.clone()).open().await.unwrap();
        let pictures = vec![Picture::new(PNG).unwrap(), Picture::new(b"\xff\xd8\xff").unwrap()];
        let outcome = session.run_with_pictures("what is this?", pictures).await.unwrap();
        assert_eq!(outcome.status, RunStatus::Completed);
        let id = session.id().clone();
        session.close().await;
        let again = runtime.resume(id).tool(echo("echo").shared()).model(asked).open().await.unwrap();
        assert_eq!(again.run("and now?").await.unwrap().status, RunStatus::Completed);
        let requests = provider.requests();
        assert_eq!(requests.len(), 3, "{protocol}");
        for request in &requests {
            let parts = parts(request);
            assert!(parts[0].contains("image/png") && parts[0].contains(DATA), "{protocol}: {parts:?}");
            assert!(parts[1].contains("image/jpeg"), "{protocol}: {parts:?}");
            assert_eq!(parts[2], "what is this?", "{protocol}");
        }
        runtime.shut_down().await;
    }
}

#[tokio::test]
async fn too_many_pictures_are_refused_before_anything_is_asked() {
    let world = World::new().await;
    let session = world.open().await;
    let pictures = vec![Picture::new(PNG).unwrap(); PICTURES_MAX + 1];
    let refused = session.run_with_pictures("x", pictures).await;
    assert!(matches!(refused, Err(SessionError::Picture(PictureError::TooMany { count: 9 }))));
    assert!(world.record.of_type("agent_start").is_empty());
    assert_eq!(
        serde_json::to_value(Picture::new(PNG).unwrap()).unwrap(),
        json!({"media_type": "image/png", "data": DATA})
    );
    world.end().await;
}
