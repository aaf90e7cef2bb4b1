//! The content adapter: everything that was shown is in the host's own place, or it is not shown.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use toolwarden::content_adapter::{ContentAdapter, ContentDescriptor, ContentFault, ContentKind};
use toolwarden::embedding::{BuildError, Runtime};
use toolwarden::prelude::*;
use toolwarden::resume::ResumeError;
use toolwarden::settlement::projection_policy::ProjectionPolicy;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::store::memory::MemoryStore;

use super::evidence::{evidence_of, repeat};
use super::support::world::World;

/// Keeps contents in memory, as long as it is told to.
struct Archive {
    authority: &'static str,
    bytes_max: u64,
    kept: Mutex<BTreeMap<String, (ContentKind, Vec<u8>)>>,
    mood: Mutex<Mood>,
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Keeps,
    Fails,
    GivesOddAddress,
    NeverAnswers,
}

impl Archive {
    fn of(authority: &'static str) -> Arc<Self> {
        Arc::new(Self { authority, bytes_max: 4 << 20, kept: Mutex::default(), mood: Mutex::new(Mood::Keeps) })
    }

    fn behave(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// What is kept at an address, and as what.
    fn at(&self, uri: &str) -> (ContentKind, String) {
        let (kind, bytes) = self.kept.lock().unwrap()[uri].clone();
        (kind, String::from_utf8(bytes).unwrap())
    }
}

impl ContentAdapter for Archive {
    fn name(&self) -> &str {
        "archive"
    }

    fn authority_digest(&self) -> Digest {
        Digest::of(self.authority.as_bytes())
    }

    fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn put<'a>(
        &'a self,
        descriptor: &'a ContentDescriptor,
        mut content: Box<dyn Read + Send>,
    ) -> BoxFuture<'a, Result<String, ContentFault>> {
        Box::pin(async move {
            let mood = *self.mood.lock().unwrap();
            let uri = format!("https://archive.example/kept/{}", descriptor.content_digest.hex());
            match mood {
                Mood::Keeps => {}
                Mood::Fails => return Err(ContentFault("disk 7 of account secret-account is full".to_owned())),
                Mood::GivesOddAddress => return Ok(format!("{uri}?version=1")),
                Mood::NeverAnswers => std::future::pending().await,
            }
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes).map_err(|error| ContentFault(error.to_string()))?;
            assert_eq!(
                (bytes.len() as u64, Digest::of(&bytes)),
                (descriptor.size_bytes, descriptor.content_digest.clone())
            );
            self.kept.lock().unwrap().insert(uri.clone(), (descriptor.kind, bytes));
            Ok(uri)
        })
    }
}

fn reference(facts: &Value) -> &str {
    facts["content_reference"]["uri"].as_str().unwrap_or_else(|| panic!("no reference: {facts}"))
}

#[tokio::test]
async fn every_result_is_retained_and_can_be_proven() {
    let world = World::new().await;
    for policy in [ProjectionPolicy::conservative(), ProjectionPolicy::context_efficient()] {
        let archive = Archive::of("one");
        let session = world.session().tool(repeat("say").shared()).projection(policy.clone());
        let session = session.content_adapter(archive.clone()).open().await.unwrap();

        // What lost nothing, and a refusal.
        let short = session.tool("say", json!({"text": "ok\n", "times": 1})).await.unwrap();
        let refused = session.tool("no_such_tool", json!({})).await.unwrap();
        for result in [&short, &refused] {
            let uri = reference(&result.metadata["artifact"]);
            assert_eq!(archive.at(uri), (ContentKind::ToolResultOriginal, result.output.clone()));
            assert!(!result.output.contains("archive.example"), "{}", result.output);
        }
        assert_eq!(evidence_of(&short)["content_ref"], short.metadata["artifact"]["artifact_uri"]);

        // What is shown in part says where the whole is, in the host's own place.
        let line = "a line that is not like the ones beside it, number ";
        let long = session.tool("say", json!({"text": line, "times": 5000})).await.unwrap();
        let uri = reference(&long.metadata["artifact"]);
        assert_eq!(archive.at(uri), (ContentKind::ToolResultOriginal, line.repeat(5000)));
        assert!(
            long.output.ends_with(&format!("[the whole output: {uri}]\n")),
            "{}",
            &long.output[long.output.len() - 200..]
        );
        if policy == ProjectionPolicy::context_efficient() {
            assert!(long.output.len() <= policy.max_output_bytes());
        }
        // The runtime's own name still leads to it.
        let own = long.metadata["artifact"]["artifact_uri"].as_str().unwrap();
        assert_eq!(session.artifact(own).await.unwrap().size_bytes(), (line.len() * 5000) as u64);
        for result in [&short, &refused, &long] {
            let proof = session.verify_evidence(result).await.unwrap();
            assert!(proof.holds(), "{}: {proof:?}", result.name);
        }

        // Both sides of a large change.
        let (before, after) = ("old\n".repeat(10_000), "new\n".repeat(10_000));
        session.write_file("large.txt", &before).await.unwrap();
        let changed = session.write_file("large.txt", &after).await.unwrap();
        let change = &changed.metadata["change"];
        assert_eq!(archive.at(reference(&change["before"]["artifact"])), (ContentKind::ToolChangeBefore, before));
        assert_eq!(archive.at(reference(&change["after"]["artifact"])), (ContentKind::ToolChangeAfter, after));
        session.close().await;
    }
    world.end().await;
}

#[tokio::test]
async fn what_the_adapter_does_not_keep_is_withheld() {
    let world = World::new().await;
    let archive = Archive::of("one");
    let session = world.session().tool(repeat("say").shared()).content_adapter(archive.clone());
    let session = session.open().await.unwrap();
    let say = |times: usize| session.tool("say", json!({"text": "a word that was said\n", "times": times}));
    for mood in [Mood::Fails, Mood::GivesOddAddress] {
        archive.behave(mood);
        let withheld = say(1).await.unwrap();
        assert!(matches!(&withheld.error_kind, Some(ToolErrorKind::Transport { op }) if op == "retain"));
        let told = serde_json::to_string(&*withheld).unwrap();
        assert!(withheld.output.contains("could not be kept as this host demands"), "{}", withheld.output);
        assert!(!told.contains("a word that was said") && !told.contains("secret-account"), "{told}");
        assert!(session.verify_evidence(&withheld).await.unwrap().holds());
    }
    archive.behave(Mood::Keeps);
    assert!(say(1).await.unwrap().is_success());
    // 4 MiB at the most.
    let large = say(300_000).await.unwrap();
    assert!(large.output.contains("could not be kept"), "{}", large.output);

    // A cancel does not wait for it.
    archive.behave(Mood::NeverAnswers);
    let calling = tokio::spawn({
        let session = session.clone();
        async move { session.tool("say", json!({"text": "a word that was said\n", "times": 1})).await.unwrap() }
    });
    while !calling.is_finished() {
        session.cancel(&CancelTarget::Everything, &CancelReason::Requested);
        tokio::task::yield_now().await;
    }
    let cancelled = calling.await.unwrap();
    assert!(matches!(cancelled.error_kind, Some(ToolErrorKind::Cancelled { .. })), "{cancelled:?}");
    session.close().await;
    world.end().await;
}

#[tokio::test]
async fn the_adapter_is_pinned() {
    let (store, folder) = (Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let runtime = Runtime::builder().store(store).build().await.unwrap();
    let first = Archive::of("one");
    runtime.session(folder.path()).id("bound").content_adapter(first.clone()).open().await.unwrap().close().await;
    runtime.session(folder.path()).id("free").open().await.unwrap().close().await;
    let refusal = |result: Result<Session, BuildError>| match result.err().unwrap() {
        BuildError::Resume(error) => error,
        other => panic!("{other}"),
    };
    let field = "immutable_content_adapter";
    // Another one, none, and one that was not there before.
    let other = refusal(runtime.resume("bound").content_adapter(Archive::of("two")).open().await);
    assert!(matches!(&other, ResumeError::Setting { field: found, .. } if *found == field), "{other}");
    let none = refusal(runtime.resume("bound").open().await);
    assert!(matches!(&none, ResumeError::Missing { field: found, .. } if *found == field), "{none}");
    let new = refusal(runtime.resume("free").content_adapter(first).open().await);
    assert!(
        matches!(&new, ResumeError::Setting { field: found, kept, .. } if *found == field && kept == "none"),
        "{new}"
    );
    // Another host with the same authority is the same one.
    runtime.resume("bound").content_adapter(Archive::of("one")).open().await.unwrap().close().await;
    runtime.shut_down().await;
}
