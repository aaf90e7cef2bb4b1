//! Case C195: the world changes while the approval is pending.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use toolwarden::prelude::Reply;
use toolwarden::scope::Confirming;
use toolwarden::session::Session;

use crate::support::world::World;
use crate::{digest_of, governed, id_of};

/// How often a person is asked again before the call is given up.
const ASKED_MAX: usize = 4;

async fn opened(world: &World) -> Session {
    let session = world.session().confirming(Confirming::Park).open().await.unwrap();
    std::fs::write(world.path().join("f"), "as shown\n").unwrap();
    assert!(session.tool("read", json!({"file_path": "f"})).await.unwrap().is_success());
    session
}

fn write() -> Value {
    json!({"file_path": "f", "content": "by the model\n"})
}

async fn question(world: &World, nth: usize) -> Value {
    world.record.wait_nth("confirmation_required", nth, |_| true).await
}

async fn approve(session: &Session, question: &Value) {
    assert!(session.confirm(id_of(question).into(), Some(digest_of(question)), Reply::Approve).await);
}

#[tokio::test]
async fn a_file_that_did_not_change_is_asked_about_once() {
    let world = World::new().await;
    let session = opened(&world).await;
    let call = governed(&session, "write", write());
    approve(&session, &question(&world, 1).await).await;
    let result = call.await.unwrap();
    assert!(result.is_success(), "{}", result.output);
    assert_eq!(world.record.of_type("confirmation_required").len(), 1);
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// What was shown is not what would be changed: the person is asked again, about what is there now.
#[tokio::test]
async fn a_file_that_changed_is_asked_about_again() {
    for tool in ["write", "edit", "patch"] {
        let world = World::new().await;
        let session = opened(&world).await;
        let arguments = match tool {
            "write" => write(),
            "patch" => json!({"diff": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-as shown\n+patched\n"}),
            _ => json!({"file_path": "f", "old_string": "shown", "new_string": "edited"}),
        };
        let call = governed(&session, tool, arguments);
        let first = question(&world, 1).await;
        std::fs::write(world.path().join("f"), "changed as shown meanwhile\n").unwrap();
        approve(&session, &first).await;
        let second = question(&world, 2).await;
        assert_eq!(id_of(&first), id_of(&second));
        assert_ne!(first["digest"], second["digest"]);
        assert!(second["reason"].as_str().unwrap().contains("changed"), "{second}");
        // Nothing has happened yet, and the old word is no word on the new question.
        assert_eq!(std::fs::read_to_string(world.path().join("f")).unwrap(), "changed as shown meanwhile\n");
        assert!(!session.confirm(id_of(&second).into(), Some(digest_of(&first)), Reply::Approve).await);
        assert!(session.confirm(id_of(&second).into(), Some(digest_of(&second)), Reply::Reject(None)).await);
        let result = call.await.unwrap();
        assert_eq!(result.metadata["refused"]["stage"], "confirmation");
        assert_eq!(std::fs::read_to_string(world.path().join("f")).unwrap(), "changed as shown meanwhile\n");
        world.at_rest(&[&session]).await;
        world.end().await;
    }
}

/// Of a file that is too large to be hashed for a question, size and time of change are bound.
#[tokio::test]
async fn a_large_file_that_changed_is_asked_about_again() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).open().await.unwrap();
    let large = std::fs::File::create(world.path().join("f")).unwrap();
    // A hole: no byte of it is on the disk.
    large.set_len((64 << 20) + 1).unwrap();
    let call = governed(&session, "write", write());
    let first = question(&world, 1).await;
    large.set_len(65 << 20).unwrap();
    approve(&session, &first).await;
    let second = question(&world, 2).await;
    assert_ne!(first["digest"], second["digest"]);
    approve(&session, &second).await;
    assert!(call.await.unwrap().is_success());
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A link that is swapped leads to another file, although that has the same content.
#[tokio::test]
async fn a_link_that_is_swapped_is_asked_about_again() {
    let world = World::new().await;
    for name in ["a", "b"] {
        std::fs::write(world.path().join(name), "same\n").unwrap();
    }
    symlink("a", world.path().join("link")).unwrap();
    let session = world.session().confirming(Confirming::Park).open().await.unwrap();
    assert!(session.tool("read", json!({"file_path": "link"})).await.unwrap().is_success());
    let call = governed(&session, "edit", json!({"file_path": "link", "old_string": "same", "new_string": "other"}));
    let first = question(&world, 1).await;
    std::fs::remove_file(world.path().join("link")).unwrap();
    symlink("b", world.path().join("link")).unwrap();
    approve(&session, &first).await;
    let second = question(&world, 2).await;
    assert_ne!(first["digest"], second["digest"]);
    assert!(session.confirm(id_of(&second).into(), None, Reply::Reject(Some("not that one".into()))).await);
    let result = call.await.unwrap();
    assert!(result.output.contains("not that one"), "{}", result.output);
    for name in ["a", "b"] {
        assert_eq!(std::fs::read_to_string(world.path().join(name)).unwrap(), "same\n");
    }
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A file that appears or goes is a change as well.
#[tokio::test]
async fn a_file_that_appears_is_asked_about_again() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).open().await.unwrap();
    let call = governed(&session, "write", json!({"file_path": "new", "content": "by the model\n"}));
    let first = question(&world, 1).await;
    std::fs::write(world.path().join("new"), "by somebody else\n").unwrap();
    approve(&session, &first).await;
    let second = question(&world, 2).await;
    std::fs::remove_file(world.path().join("new")).unwrap();
    approve(&session, &second).await;
    approve(&session, &question(&world, 3).await).await;
    assert!(call.await.unwrap().is_success());
    assert_eq!(std::fs::read_to_string(world.path().join("new")).unwrap(), "by the model\n");
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// A file that goes on changing is given up.
#[tokio::test]
async fn a_file_that_never_rests_is_given_up() {
    let world = World::new().await;
    let session = opened(&world).await;
    let call = governed(&session, "write", write());
    for asked in 1..=ASKED_MAX {
        let question = question(&world, asked).await;
        std::fs::write(world.path().join("f"), format!("change {asked}\n")).unwrap();
        approve(&session, &question).await;
    }
    let result = call.await.unwrap();
    assert!(result.output.contains("went on changing"), "{}", result.output);
    assert_eq!(world.record.of_type("confirmation_required").len(), ASKED_MAX);
    assert_eq!(std::fs::read_to_string(world.path().join("f")).unwrap(), format!("change {ASKED_MAX}\n"));
    world.at_rest(&[&session]).await;
    world.end().await;
}

/// The question shows the arguments that will run: those after the hooks.
#[tokio::test]
async fn an_answer_binds_the_arguments_and_their_digest() {
    let world = World::new().await;
    let session = world.session().confirming(Confirming::Park).open().await.unwrap();
    let call = governed(&session, "bash", json!({"command": "echo shown"}));
    let asked = question(&world, 1).await;
    assert_eq!(asked["args"], json!({"command": "echo shown"}));
    let pending = session.pending_confirmations().await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!((pending[0].digest.clone(), pending[0].remaining_ms), (digest_of(&asked), None));
    let other = toolwarden_tools::digest::Digest::of(b"something else");
    assert!(!session.confirm(id_of(&asked).into(), Some(other), Reply::Approve).await);
    assert!(!session.confirm("call-that-nobody-made".into(), None, Reply::Approve).await);
    assert_eq!(session.pending_confirmations().await.unwrap().len(), 1);
    approve(&session, &asked).await;
    assert_eq!(call.await.unwrap().output.trim(), "shown");
    world.at_rest(&[&session]).await;
    world.end().await;
}
