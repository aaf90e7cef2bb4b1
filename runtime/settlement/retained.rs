//! Retaining: the originals of a settled result go to the host's content adapter, and the result says where they are.
//!
//! It comes after the artifact stage: everything that lost something is in the store by then, and is read from there.
//! With an adapter nothing is released that it does not hold: every result is retained, those that lost nothing too, and
//! one that cannot be is withheld. What must stay true: evidence describes the output as it is released; a cancel
//! wins over an adapter that takes its time.

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::time::timeout;
use toolwarden_actors::artifact_store::{ArtifactError, ArtifactStore};
use toolwarden_tools::cancellation::{CancelReason, Cancellation};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::SessionId;

use super::artifact::{ARTIFACT_KEY, ArtifactUri};
use super::evidence::{EVIDENCE_KEY, INLINE_PREFIX, shown_anew};
use super::projection_policy::ProjectionPolicy;
use crate::content_adapter::{
    ContentAdapter, ContentBinding, ContentBindingError, ContentDescriptor, ContentFault, ContentKind,
    ContentReference, ContentUriError,
};

/// The key, in the facts of an artifact, of where the adapter keeps it.
pub const CONTENT_REFERENCE_KEY: &str = "content_reference";
/// How long an adapter may take for one content.
const PUT_TIMEOUT: Duration = Duration::from_secs(60);
/// The texts of a change, with what they are.
const SIDES: [(&str, ContentKind); 2] =
    [("/change/before", ContentKind::ToolChangeBefore), ("/change/after", ContentKind::ToolChangeAfter)];

/// The adapter of a session.
#[derive(Clone)]
pub struct ContentKeeping {
    adapter: Arc<dyn ContentAdapter>,
    binding: ContentBinding,
}

/// A settled result, of which nothing else is touched.
pub(crate) struct Shown<'r> {
    /// The tool.
    pub(crate) tool: &'r str,
    /// What the model is to get.
    pub(crate) output: &'r mut String,
    /// The facts, the evidence among them.
    pub(crate) metadata: &'r mut Map<String, Value>,
}

/// Why a result is not released.
#[derive(Debug, Error)]
pub(crate) enum RetainError {
    /// Somebody ended the call meanwhile.
    #[error("{0}")]
    Cancelled(CancelReason),
    /// The original is not in the store, so that there is nothing to give.
    #[error("the original is not kept")]
    Lost,
    /// It cannot be read.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The adapter does not take so much.
    #[error("{bytes} bytes are more than the {bytes_max} that the adapter takes")]
    TooLarge { bytes: u64, bytes_max: u64 },
    /// The adapter's own word.
    #[error(transparent)]
    Adapter(#[from] ContentFault),
    /// The adapter did not come to an end.
    #[error("the adapter did not answer within {} s", PUT_TIMEOUT.as_secs())]
    Late,
    /// It gave an address that is not taken.
    #[error(transparent)]
    Uri(#[from] ContentUriError),
}

impl ContentKeeping {
    /// Keeping with this adapter.
    ///
    /// # Errors
    /// [`ContentBindingError`].
    pub fn new(adapter: Arc<dyn ContentAdapter>) -> Result<Self, ContentBindingError> {
        Ok(Self { binding: ContentBinding::of(&*adapter)?, adapter })
    }

    /// Which adapter it is.
    pub fn binding(&self) -> &ContentBinding {
        &self.binding
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        self.adapter.name()
    }

    /// Retains everything that a result was made of, and says in the result where it is.
    ///
    /// # Errors
    /// [`RetainError`]; the result is not to be released then.
    pub(crate) async fn retain(
        &self,
        store: &ArtifactStore,
        session: &SessionId,
        policy: &ProjectionPolicy,
        cancel: &Cancellation,
        shown: Shown<'_>,
    ) -> Result<(), RetainError> {
        let Shown { tool, output, metadata } = shown;
        for (at, kind) in SIDES {
            let Some(facts) = side_of(metadata, at) else { continue };
            let (digest, bytes) = place_of(facts).ok_or(RetainError::Lost)?;
            let reference = self.put(store, cancel, kind, &digest, bytes, None).await?;
            facts.insert(CONTENT_REFERENCE_KEY.to_owned(), json!(reference));
        }
        if !metadata.contains_key(ARTIFACT_KEY) {
            inline(store, session, tool, output, metadata).await?;
        }
        let facts = metadata.get_mut(ARTIFACT_KEY).and_then(Value::as_object_mut).ok_or(RetainError::Lost)?;
        let (digest, bytes) = place_of(facts).ok_or(RetainError::Lost)?;
        // What lost nothing is at hand.
        let text = (Digest::of(output.as_bytes()) == digest).then(|| output.clone());
        let reference = self.put(store, cancel, ContentKind::ToolResultOriginal, &digest, bytes, text).await?;
        let own = facts.get("artifact_uri").and_then(Value::as_str).unwrap_or_default().to_owned();
        facts.insert(CONTENT_REFERENCE_KEY.to_owned(), json!(reference));
        if let Some(renamed) = renamed(output, &own, &reference.uri, policy) {
            *output = renamed;
        }
        shown_anew(metadata, output);
        Ok(())
    }

    async fn put(
        &self,
        store: &ArtifactStore,
        cancel: &Cancellation,
        kind: ContentKind,
        digest: &Digest,
        bytes: u64,
        text: Option<String>,
    ) -> Result<ContentReference, RetainError> {
        let bytes_max = self.binding.maximum_bytes;
        if bytes > bytes_max {
            return Err(RetainError::TooLarge { bytes, bytes_max });
        }
        let content: Box<dyn Read + Send> = match text {
            Some(text) => Box::new(Cursor::new(text)),
            None => Box::new(store.open(digest).await?),
        };
        let descriptor = ContentDescriptor::new(kind, bytes, digest.clone());
        let uri = tokio::select! {
            biased;
            reason = cancel.cancelled() => return Err(RetainError::Cancelled(reason)),
            put = timeout(PUT_TIMEOUT, self.adapter.put(&descriptor, content)) => put.map_err(|_| RetainError::Late)??,
        };
        Ok(ContentReference::new(&self.binding, &descriptor, uri)?)
    }
}

/// Keeps the original of a result that lost nothing, and gives it the facts of an artifact.
async fn inline(
    store: &ArtifactStore,
    session: &SessionId,
    tool: &str,
    output: &str,
    metadata: &mut Map<String, Value>,
) -> Result<(), RetainError> {
    let evidence = metadata.get(EVIDENCE_KEY);
    let reference = evidence.and_then(|evidence| evidence.get("content_ref")).and_then(Value::as_str);
    let digest = reference.and_then(|reference| reference.strip_prefix(INLINE_PREFIX)).map(str::to_owned);
    let digest = digest.and_then(|digest| Digest::parse(&digest)).ok_or(RetainError::Lost)?;
    store.keep(session, &digest, output.to_owned()).await?;
    let uri = ArtifactUri::new(tool, digest);
    metadata.insert(ARTIFACT_KEY.to_owned(), uri.facts(output.len(), output.len()));
    if let Some(evidence) = metadata.get_mut(EVIDENCE_KEY).and_then(Value::as_object_mut) {
        evidence.insert("content_ref".to_owned(), uri.to_string().into());
    }
    Ok(())
}

/// The facts of the artifact of a changed text; none where the text stands in the result itself.
fn side_of<'m>(metadata: &'m mut Map<String, Value>, at: &str) -> Option<&'m mut Map<String, Value>> {
    let (first, rest) = at.strip_prefix('/')?.split_once('/')?;
    metadata.get_mut(first)?.get_mut(rest)?.get_mut(ARTIFACT_KEY)?.as_object_mut()
}

/// What an artifact holds, by its facts.
fn place_of(facts: &Map<String, Value>) -> Option<(Digest, u64)> {
    let uri: ArtifactUri = facts.get("artifact_uri")?.as_str()?.parse().ok()?;
    Some((uri.digest().clone(), facts.get("original_bytes")?.as_u64()?))
}

/// The output with the adapter's address in place of the last mention of the artifact's own; none where it has none, or
/// where a longer address would take more room than the policy gives.
fn renamed(output: &str, own: &str, uri: &str, policy: &ProjectionPolicy) -> Option<String> {
    let (before, after) = output.rsplit_once(own).filter(|_| !own.is_empty())?;
    let renamed = [before, uri, after].concat();
    // The conservative profile keeps its bytes and puts its lines on top of them.
    (policy.tail_bytes() == 0 || renamed.len() <= policy.max_output_bytes()).then_some(renamed)
}
