//! Evidence: what a model saw of what there was, in figures that anybody can recompute.
//!
//! Every result carries it, refusals and crashes included. Digests are of the sanitised text.

use std::sync::LazyLock;

use serde_json::{Map, Value};
use toolwarden_tools::digest::{Digest, RunningDigest};

use crate::settlement::projection::{LossMode, Projection};
use crate::settlement::projection_policy::TRANSFORM_ALGORITHM;

/// The metadata key under which evidence stands.
pub const EVIDENCE_KEY: &str = "a3s_tool_result_evidence";
/// The metadata key that says that a tool gave less than the whole itself.
pub const EXCERPT_KEY: &str = "excerpted_by_tool";
/// The form of the evidence.
pub const EVIDENCE_SCHEMA: &str = "a3s.code.tool-result-evidence.v1";
/// How tokens are estimated: a quarter of the bytes, rounded up.
pub const TOKEN_ESTIMATOR: &str = "utf8-bytes-ceil-div-4/v1";

/// What is compared at a time to find how far two texts are alike, in bytes.
const ALIKE_BLOCK_BYTES: usize = 4096;

/// The facts of an evidence, in their order.
const EVIDENCE_FACTS: [&str; 14] = [
    "schema",
    "original_bytes",
    "projected_bytes",
    "original_estimated_tokens",
    "projected_estimated_tokens",
    "token_estimator",
    "transform_algorithm",
    "content_digest",
    "projected_digest",
    "repeat_key",
    "content_ref",
    "loss_mode",
    "byte_delta",
    "estimated_token_delta",
];

/// An evidence that says nothing yet. Every call of every session makes one: to copy a map is less work than to make it.
static BLANK: LazyLock<Map<String, Value>> =
    LazyLock::new(|| EVIDENCE_FACTS.iter().map(|key| ((*key).to_owned(), Value::Null)).collect());

/// The facts about an original, taken before it is projected.
#[derive(Debug, Clone)]
pub struct Original {
    bytes: usize,
    digest: Digest,
    /// Of its beginning, as far as its projection has the same: that part is hashed once.
    begun: Option<Begun>,
}

/// A digest that has taken so many bytes.
#[derive(Debug, Clone)]
struct Begun {
    bytes: usize,
    digest: RunningDigest,
}

impl Original {
    /// Measures the original.
    pub fn of(text: &str) -> Self {
        Self::known(text.len(), Digest::of(text.as_bytes()))
    }

    /// An original that was measured already.
    pub fn known(bytes: usize, digest: Digest) -> Self {
        Self { bytes, digest, begun: None }
    }

    /// Measures an original whose projection is known but for what is added at its end: what both begin with is hashed
    /// once for both. Most of a long projection is such a beginning.
    pub(crate) fn of_projected(text: &str, projection: &Projection) -> Self {
        let blocks =
            text.as_bytes().chunks(ALIKE_BLOCK_BYTES).zip(projection.text.as_bytes().chunks(ALIKE_BLOCK_BYTES));
        let alike_bytes: usize = blocks.take_while(|(one, other)| one == other).map(|(block, _)| block.len()).sum();
        let mut digest = RunningDigest::default();
        digest.update(&text.as_bytes()[..alike_bytes]);
        let begun = Some(Begun { bytes: alike_bytes, digest: digest.clone() });
        digest.update(&text.as_bytes()[alike_bytes..]);
        Self { bytes: text.len(), digest: digest.finish(), begun }
    }

    fn digest_of_projection(&self, text: &str) -> Digest {
        match &self.begun {
            Some(Begun { bytes, digest }) if *bytes <= text.len() => {
                let mut digest = digest.clone();
                digest.update(&text.as_bytes()[*bytes..]);
                digest.finish()
            }
            _ => Digest::of(text.as_bytes()),
        }
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Its digest.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }
}

/// Where the original can be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContentRef {
    /// The result's output is the original.
    Inline,
    /// In the artifact of this name.
    Artifact(String),
    /// Nowhere: it could not be stored.
    Lost,
}

/// How a reference to an output that is the original begins.
pub(crate) const INLINE_PREFIX: &str = "inline:";
/// How a reference to an original begins that is not kept.
pub(crate) const LOST_PREFIX: &str = "lost:";

/// Tokens that a text of this many bytes is estimated to have.
pub fn estimated_tokens(bytes: usize) -> usize {
    bytes.div_ceil(4)
}

/// The evidence of a projection. Of one that lost nothing the text is not looked at: it is the original's.
pub fn evidence(original: &Original, projection: &Projection, content_ref: ContentRef) -> Value {
    let is_whole = projection.loss == LossMode::None;
    let projected_bytes = if is_whole { original.bytes } else { projection.text.len() };
    let projected_digest =
        if is_whole { original.digest.clone() } else { original.digest_of_projection(&projection.text) };
    let (original_tokens, projected_tokens) = (estimated_tokens(original.bytes), estimated_tokens(projected_bytes));
    let original_digest = original.digest.as_str();
    let content_ref = match content_ref {
        ContentRef::Inline => [INLINE_PREFIX, original_digest].concat(),
        ContentRef::Artifact(uri) => uri,
        ContentRef::Lost => [LOST_PREFIX, original_digest].concat(),
    };
    let values: [Value; EVIDENCE_FACTS.len()] = [
        EVIDENCE_SCHEMA.into(),
        original.bytes.into(),
        projected_bytes.into(),
        original_tokens.into(),
        projected_tokens.into(),
        TOKEN_ESTIMATOR.into(),
        TRANSFORM_ALGORITHM.into(),
        original_digest.into(),
        String::from(projected_digest).into(),
        original_digest.into(),
        content_ref.into(),
        projection.loss.as_str().into(),
        difference(projected_bytes, original.bytes).into(),
        difference(projected_tokens, original_tokens).into(),
    ];
    let mut facts = BLANK.clone();
    facts.values_mut().zip(values).for_each(|(fact, value)| *fact = value);
    Value::Object(facts)
}

/// Brings evidence up to an output that was altered since: what is said of the original stays.
pub(crate) fn shown_anew(metadata: &mut Map<String, Value>, output: &str) {
    let Some(facts) = metadata.get_mut(EVIDENCE_KEY).and_then(Value::as_object_mut) else { return };
    let number = |facts: &Map<String, Value>, key: &str| facts.get(key).and_then(Value::as_u64).unwrap_or_default();
    let original_bytes = usize::try_from(number(facts, "original_bytes")).unwrap_or(usize::MAX);
    let (original_tokens, tokens) = (estimated_tokens(original_bytes), estimated_tokens(output.len()));
    let mut put = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    put("projected_bytes", output.len().into());
    put("projected_estimated_tokens", tokens.into());
    put("projected_digest", Digest::of(output.as_bytes()).as_str().into());
    put("byte_delta", difference(output.len(), original_bytes).into());
    put("estimated_token_delta", difference(tokens, original_tokens).into());
}

/// Puts evidence into a result's metadata; evidence that a tool claims for itself is thrown away.
pub fn attach(metadata: &mut Map<String, Value>, evidence: Value) {
    metadata.insert(EVIDENCE_KEY.to_owned(), evidence);
}

/// One minus the other.
pub(crate) fn difference(one: usize, other: usize) -> i64 {
    let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    signed(one).saturating_sub(signed(other))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{ContentRef, Original, evidence};
    use crate::settlement::projection::project;
    use crate::settlement::projection_policy::ProjectionPolicy;

    fn of(text: &str) -> Value {
        let original = Original::of(text);
        evidence(&original, &project(&ProjectionPolicy::default(), text.to_owned(), 0), ContentRef::Inline)
    }

    // The boundary cases with known answers.
    #[test]
    fn known_answers() {
        for (text, bytes, tokens, loss, digest) in [
            (String::new(), 0, 0, "none", "e3b0c44298fc1c14"),
            ("ok\n".into(), 3, 1, "none", "dc51b8c96c2d745d"),
            ("x".repeat(102_400), 102_400, 25_600, "none", "8b77ec70310a4f69"),
            ("x".repeat(102_401), 102_401, 25_601, "bounded_preview", "e936fe0829352b0a"),
            ("\u{754c}".repeat(40_000), 120_000, 30_000, "bounded_preview", "40599b3598efd070"),
        ] {
            let evidence = of(&text);
            assert_eq!(evidence["original_bytes"], bytes);
            assert_eq!(evidence["original_estimated_tokens"], tokens);
            assert_eq!(evidence["loss_mode"], loss);
            let content = evidence["content_digest"].as_str().unwrap();
            assert!(content.starts_with(&format!("sha256:{digest}")), "{content}");
        }
    }

    #[test]
    fn what_both_begin_with_is_hashed_once_and_the_digests_are_the_same() {
        for bytes in [0, 1, 4095, 4096, 9_000, 102_400, 102_401, 150_000] {
            let text = "a line of text, 界\n".repeat(bytes / 20 + 1);
            let text = &text[..text.floor_char_boundary(bytes)];
            let projection = project(&ProjectionPolicy::default(), text.to_owned(), 0);
            let original = Original::of_projected(text, &projection);
            let projection = projection.with_last_line("[more]");
            let evidence = |original| evidence(original, &projection, ContentRef::Inline);
            assert_eq!(evidence(&original), evidence(&Original::of(text)), "{bytes}");
        }
    }

    #[test]
    fn deltas_are_signed_and_add_up() {
        let evidence = of(&"x".repeat(200_000));
        let delta = evidence["byte_delta"].as_i64().unwrap();
        assert_eq!(evidence["projected_bytes"].as_i64().unwrap(), 200_000 + delta);
        assert!(delta < 0);
    }
}
