//! Artifacts: how the whole of a result is named, stored before the name is given out, and read again.
//!
//! Only a result that lost something, or that comes with texts to be kept beside it, gets here; all others never
//! see the store. When storing fails the result says so in a typed fact and in its last line, and refers to nothing.

use std::fmt;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::str::FromStr;

use serde_json::{Map, Value, json};
use thiserror::Error;
use toolwarden_actors::artifact_store::{ArtifactError, ArtifactStore, WrittenArtifact};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::blobs::OpenBlob;
use toolwarden_tools::ids::SessionId;

use super::evidence::EXCERPT_KEY;
use super::evidence::{ContentRef, Original, attach, evidence};
use super::projection::{LINE_ENDS_BYTES, LossMode, Projection};
use super::projection_policy::{BINDING_KEY, ProjectionPolicy};

/// The metadata key under which an artifact stands.
pub const ARTIFACT_KEY: &str = "artifact";
/// The metadata key under which it stands that something could not be stored.
pub const ARTIFACT_ERROR_KEY: &str = "artifact_error";
/// How every name of an artifact begins.
const URI_PREFIX: &str = "a3s://tool-output/";
/// Most bytes that are read of an artifact at once.
pub const READ_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The name of an artifact: `a3s://tool-output/{tool}/{sha256}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactUri {
    tool: String,
    digest: Digest,
}

impl ArtifactUri {
    /// The name of what this tool gave. Characters of the tool's name other than ASCII letters, digits, `_` and `-`
    /// become `_`.
    pub fn new(tool: &str, digest: Digest) -> Self {
        let plain = |c: char| if is_plain(c) { c } else { '_' };
        Self { tool: tool.chars().map(plain).collect(), digest }
    }

    /// The digest of its bytes.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The same name as an id: `tool-output:{tool}:{sha256}`.
    pub fn id(&self) -> String {
        format!("tool-output:{}:{}", self.tool, self.digest.hex())
    }

    pub(crate) fn facts(&self, original_bytes: usize, shown_bytes: usize) -> Value {
        json!({
            "artifact_id": self.id(),
            "artifact_uri": self.to_string(),
            "original_bytes": original_bytes,
            "shown_bytes": shown_bytes,
        })
    }
}

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

impl fmt::Display for ArtifactUri {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{URI_PREFIX}{}/{}", self.tool, self.digest.hex())
    }
}

impl FromStr for ArtifactUri {
    type Err = MalformedUri;

    fn from_str(text: &str) -> Result<Self, MalformedUri> {
        let parts = text.strip_prefix(URI_PREFIX).and_then(|rest| rest.split_once('/'));
        let (tool, hex) =
            parts.filter(|(tool, _)| !tool.is_empty() && tool.chars().all(is_plain)).ok_or(MalformedUri)?;
        Ok(Self { tool: tool.to_owned(), digest: Digest::from_hex(hex).ok_or(MalformedUri)? })
    }
}

/// A text names no artifact.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("an artifact is named {URI_PREFIX}TOOL/ and the 64 hex digits of its sha256; copy it from a result")]
pub struct MalformedUri;

/// Takes away what a tool claims of what is told here alone.
pub(crate) fn forget_claims(metadata: &mut Map<String, Value>) {
    for key in [ARTIFACT_KEY, ARTIFACT_ERROR_KEY, BINDING_KEY, EXCERPT_KEY] {
        metadata.shift_remove(key);
    }
}

/// What the last line of a lossy output is when its whole is kept.
pub fn kept_line(uri: &impl fmt::Display) -> String {
    format!("[the whole output: {uri}]")
}

/// What it is when only the first part of the output is kept; no longer than that.
fn first_part_line(uri: &impl fmt::Display) -> String {
    format!("[its first part: {uri}]")
}

/// What the last line will need, in bytes, whatever it says.
pub fn line_bytes(tool: &str) -> usize {
    // Every digest is as long as this one.
    kept_line(&ArtifactUri::new(tool, Digest::of(b""))).len() + LINE_ENDS_BYTES
}

/// The whole of an output.
pub(crate) enum Whole {
    /// In memory.
    Text(String),
    /// In the spool.
    Spooled(Box<WrittenArtifact>),
}

/// A text to be kept beside an output.
pub(crate) struct Side {
    pub(crate) side: &'static str,
    /// Which fact gets the reference: a JSON pointer into the metadata.
    pub(crate) at: String,
    pub(crate) text: String,
}

/// A result that refers to something, before that is stored.
pub(crate) struct Unkept {
    tool: String,
    original: Original,
    projection: Projection,
    /// None when the output itself lost nothing.
    whole: Option<Whole>,
    /// Whether no more than the first part of the output is kept.
    is_first_part: bool,
    sides: Vec<Side>,
    binding: Value,
}

impl Unkept {
    pub(crate) fn new(
        policy: &ProjectionPolicy,
        tool: &str,
        original: Original,
        projection: Projection,
        whole: Option<Whole>,
    ) -> Self {
        let binding = policy.binding().to_value();
        Self { tool: tool.to_owned(), original, projection, whole, is_first_part: false, sides: Vec::new(), binding }
    }

    pub(crate) fn of_first_part(mut self, is_first_part: bool) -> Self {
        self.is_first_part = is_first_part;
        self
    }

    pub(crate) fn with_sides(mut self, sides: Vec<Side>) -> Self {
        self.sides = sides;
        self
    }

    /// Stores everything; gives the output and completes the metadata, whatever became of it.
    pub(crate) async fn keep(
        mut self,
        store: &ArtifactStore,
        session: &SessionId,
        metadata: &mut Map<String, Value>,
    ) -> String {
        for Side { side, at, text } in std::mem::take(&mut self.sides) {
            let uri = ArtifactUri::new(&format!("{}-{side}", self.tool), Digest::of(text.as_bytes()));
            let bytes = text.len();
            match store.keep(session, uri.digest(), text).await {
                Ok(()) => {
                    if let Some(of) = object_at(metadata, &at) {
                        of.insert(ARTIFACT_KEY.to_owned(), uri.facts(bytes, 0));
                    }
                }
                Err(error) => tell(metadata, &error),
            }
        }
        let kept = match self.whole.take() {
            Some(Whole::Text(text)) => store.keep(session, self.original.digest(), text).await,
            Some(Whole::Spooled(artifact)) => store.publish(session, *artifact).await,
            None => Ok(()),
        };
        self.complete(kept, metadata)
    }

    /// Gives the output and completes the metadata of a result for which nothing can be stored any more.
    pub(crate) fn give_up(self, metadata: &mut Map<String, Value>) -> String {
        self.complete(Err(ArtifactError::NotRunning), metadata)
    }

    fn complete(self, kept: Result<(), ArtifactError>, metadata: &mut Map<String, Value>) -> String {
        let Self { tool, original, mut projection, is_first_part, binding, .. } = self;
        if projection.loss == LossMode::None {
            attach(metadata, evidence(&original, &projection, ContentRef::Inline));
            return projection.text;
        }
        metadata.insert(BINDING_KEY.to_owned(), binding);
        let uri = ArtifactUri::new(&tool, original.digest().clone());
        let reference = match kept {
            Ok(()) => {
                metadata.insert(ARTIFACT_KEY.to_owned(), uri.facts(original.bytes(), projection.shown_bytes));
                let line = if is_first_part { first_part_line(&uri) } else { kept_line(&uri) };
                projection = projection.with_last_line(&line);
                ContentRef::Artifact(uri.to_string())
            }
            Err(error) => {
                tell(metadata, &error);
                projection = projection.with_last_line(&format!("[the whole output is not kept: {}]", error.kind()));
                ContentRef::Lost
            }
        };
        attach(metadata, evidence(&original, &projection, reference));
        projection.text
    }
}

/// The object that a JSON pointer leads to.
fn object_at<'m>(metadata: &'m mut Map<String, Value>, at: &str) -> Option<&'m mut Map<String, Value>> {
    let (first, rest) = at.strip_prefix('/')?.split_once('/')?;
    metadata.get_mut(first)?.pointer_mut(&format!("/{rest}"))?.as_object_mut()
}

fn tell(metadata: &mut Map<String, Value>, error: &ArtifactError) {
    tracing::warn!(%error, "an artifact could not be stored");
    metadata.insert(ARTIFACT_ERROR_KEY.to_owned(), json!({"kind": error.kind(), "message": error.to_string()}));
}

/// An artifact that is read; its bytes were checked against its name when it was opened.
pub struct Artifact {
    blob: Box<dyn OpenBlob>,
}

impl Artifact {
    /// Opens an artifact, which reads it once.
    ///
    /// # Errors
    /// [`ArtifactReadError`] when there is none of this name, or a damaged one.
    pub async fn open(store: &ArtifactStore, uri: &str) -> Result<Self, ArtifactReadError> {
        let uri: ArtifactUri = uri.parse()?;
        Ok(Self { blob: store.open(uri.digest()).await? })
    }

    /// How many bytes it has.
    pub fn size_bytes(&self) -> u64 {
        self.blob.size_bytes()
    }

    /// The bytes in this range; fewer when it reaches beyond the end.
    ///
    /// # Errors
    /// [`ArtifactReadError::TooMuch`] for more than [`READ_BYTES_MAX`], and what the system says.
    pub fn read(&mut self, range: Range<u64>) -> Result<Vec<u8>, ArtifactReadError> {
        let bytes = range.end.min(self.size_bytes()).saturating_sub(range.start);
        if bytes > READ_BYTES_MAX {
            return Err(ArtifactReadError::TooMuch { bytes });
        }
        let mut read = Vec::new();
        self.blob.seek(SeekFrom::Start(range.start))?;
        self.blob.by_ref().take(bytes).read_to_end(&mut read)?;
        Ok(read)
    }

    /// Its bytes as a stream.
    pub fn into_reader(self) -> Box<dyn OpenBlob> {
        self.blob
    }
}

/// Why an artifact cannot be read.
#[derive(Debug, Error)]
pub enum ArtifactReadError {
    /// It is none.
    #[error(transparent)]
    Malformed(#[from] MalformedUri),
    /// It is not there, or damaged.
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    /// The range is too long.
    #[error("{bytes} bytes are more than the {READ_BYTES_MAX} that are read at once; read them in parts")]
    TooMuch {
        /// How many were asked for.
        bytes: u64,
    },
    /// The system said no.
    #[error("cannot read the artifact: {0}")]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use toolwarden_tools::digest::Digest;

    use super::{ArtifactUri, MalformedUri, line_bytes};
    use crate::settlement::projection_policy::MARKER_RESERVE_BYTES;

    #[test]
    fn names_are_of_plain_characters_and_can_be_read_again() {
        let uri = ArtifactUri::new("mcp__a.b__c", Digest::of(b"ok\n"));
        let hex = Digest::of(b"ok\n").hex().to_owned();
        assert_eq!(uri.to_string(), format!("a3s://tool-output/mcp__a_b__c/{hex}"));
        assert_eq!(uri.id(), format!("tool-output:mcp__a_b__c:{hex}"));
        assert_eq!(uri.to_string().parse(), Ok(uri));
        for wrong in [
            String::new(),
            format!("a3s://tool-output/{hex}"),
            format!("a3s://tool-output//{hex}"),
            format!("a3s://tool-output/a.b/{hex}"),
            format!("a3s://tool-output/a/{}", &hex[1..]),
            format!("a3s://tool-output/../{hex}"),
            format!("file://a/{hex}"),
        ] {
            assert_eq!(wrong.parse::<ArtifactUri>(), Err(MalformedUri), "{wrong}");
        }
    }

    #[test]
    fn the_line_and_the_marker_fit_into_the_reserve() {
        let longest = "界".repeat(43);
        // The marker has the algorithm, a number of up to 20 digits and a few words.
        assert!(line_bytes(&longest) + 100 <= MARKER_RESERVE_BYTES);
        assert!(line_bytes(&"x".repeat(131)) + 100 <= MARKER_RESERVE_BYTES);
    }
}
