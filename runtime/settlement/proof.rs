//! Proof: evidence checked against the stored original, every figure computed anew.
//!
//! Nothing that stands in the evidence is believed: sizes, estimates and digests are taken from the original and
//! from the output, and where the policy is known and the tool did not shorten its output itself, the output is
//! projected again. The original is read once, in constant memory.

use std::io::Read;

use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;
use toolwarden_actors::artifact_store::ArtifactError;
use toolwarden_tools::digest::{Digest, RunningDigest};

use super::artifact::{ARTIFACT_KEY, ArtifactUri, kept_line, line_bytes};
use super::evidence::{
    EVIDENCE_KEY, EVIDENCE_SCHEMA, EXCERPT_KEY, INLINE_PREFIX, LOST_PREFIX, TOKEN_ESTIMATOR, difference,
    estimated_tokens,
};
use super::projection::{LossMode, Projection, Projector};
use super::projection_policy::{BINDING_KEY, Binding, ProjectionPolicy, TRANSFORM_ALGORITHM};
use super::retained::CONTENT_REFERENCE_KEY;

/// How much of an original is read at a time, in bytes.
const BUFFER_BYTES: usize = 256 * 1024;

/// A result as it was shown, of which nothing else is looked at.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ShownResult {
    /// The tool.
    pub name: String,
    /// What the model got.
    pub output: String,
    /// The facts, the evidence among them.
    pub metadata: Map<String, Value>,
}

/// What stands in an evidence.
#[derive(Debug, Clone, Deserialize)]
struct Stated {
    schema: String,
    original_bytes: u64,
    projected_bytes: u64,
    original_estimated_tokens: u64,
    projected_estimated_tokens: u64,
    token_estimator: String,
    /// Absent in evidence of older runtimes.
    transform_algorithm: Option<String>,
    content_digest: String,
    projected_digest: String,
    repeat_key: String,
    content_ref: String,
    loss_mode: LossMode,
    byte_delta: i64,
    estimated_token_delta: i64,
}

/// One figure, as it was stated and as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// What the evidence says.
    pub stated: String,
    /// What is so.
    pub found: String,
}

impl Figure {
    /// Whether they agree.
    pub fn holds(&self) -> bool {
        self.stated == self.found
    }
}

/// What projecting the original again came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// The output, to the byte.
    Same,
    /// Something else.
    Different,
    /// The tool gave less itself, which cannot be done again here; the figures still hold or not.
    ByTool,
    /// The policy is not a built-in one and was not given.
    UnknownPolicy,
}

/// Every figure of an evidence, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The figures, in the order of the evidence.
    pub figures: Vec<Figure>,
    /// What projecting the original again came to.
    pub again: Again,
}

impl Proof {
    /// Whether nothing speaks against the evidence.
    pub fn holds(&self) -> bool {
        self.again != Again::Different && self.figures.iter().all(Figure::holds)
    }
}

/// Where the original of a result is, by its evidence.
///
/// # Errors
/// [`ProofError`] when the result has no evidence, or an original that is not kept.
pub fn original_of(result: &ShownResult) -> Result<Option<ArtifactUri>, ProofError> {
    let stated = stated(result)?;
    if stated.content_ref.starts_with(INLINE_PREFIX) {
        return Ok(None);
    }
    if stated.content_ref.starts_with(LOST_PREFIX) {
        return Err(ProofError::Lost);
    }
    let uri = stated.content_ref.parse();
    uri.map(Some).map_err(|_| ProofError::Reference { content_ref: stated.content_ref })
}

/// Checks the evidence of a result. `original` reads what [`original_of`] names, and is none when that is none;
/// `policy` is the one that projected it, where it is not a built-in one.
///
/// # Errors
/// [`ProofError`] when there is nothing to check, or the original cannot be read.
pub fn verify(
    result: &ShownResult,
    original: Option<&mut dyn Read>,
    policy: Option<&ProjectionPolicy>,
) -> Result<Proof, ProofError> {
    let stated = stated(result)?;
    let uri = original_of(result)?;
    let binding = binding(result)?;
    let policy = policy.cloned().or_else(|| builtin_policy(binding.as_ref()));
    let mut inline = result.output.as_bytes();
    let read = match (&uri, original) {
        (Some(_), Some(original)) => Original::read(original, policy.as_ref())?,
        (Some(uri), None) => return Err(ProofError::NoOriginal { uri: uri.to_string() }),
        (None, _) => Original::read(&mut inline, policy.as_ref())?,
    };
    let again = again(result, &stated, uri.as_ref(), read.projector);
    let mut figures = figures(result, &stated, uri.as_ref(), read.bytes, &read.digest);
    if let Some(binding) = &binding {
        let own = Binding::of(&binding.transform_algorithm, &binding.policy_digest);
        figures.push(figure("binding_digest", &binding.binding_digest, &own.binding_digest));
        if let Some(policy) = &policy {
            figures.push(figure("policy_digest", &binding.policy_digest, &policy.digest()));
        }
    }
    Ok(Proof { figures, again })
}

fn stated(result: &ShownResult) -> Result<Stated, ProofError> {
    let evidence = result.metadata.get(EVIDENCE_KEY).ok_or(ProofError::NoEvidence)?;
    Stated::deserialize(evidence).map_err(|error| ProofError::Malformed { message: error.to_string() })
}

fn binding(result: &ShownResult) -> Result<Option<Binding>, ProofError> {
    let binding = result.metadata.get(BINDING_KEY).map(Binding::deserialize).transpose();
    binding.map_err(|error| ProofError::Malformed { message: error.to_string() })
}

fn builtin_policy(binding: Option<&Binding>) -> Option<ProjectionPolicy> {
    let known = [ProjectionPolicy::conservative(), ProjectionPolicy::context_efficient()];
    known.into_iter().find(|policy| binding.is_some_and(|binding| binding.policy_digest == policy.digest()))
}

/// An original that was read.
struct Original {
    bytes: usize,
    digest: Digest,
    projector: Option<Projector>,
}

impl Original {
    fn read(source: &mut dyn Read, policy: Option<&ProjectionPolicy>) -> Result<Self, ProofError> {
        let (mut digest, mut bytes) = (RunningDigest::default(), 0);
        let mut projector = policy.map(Projector::new);
        let mut buffer = vec![0; BUFFER_BYTES];
        // The start of a character whose end is in the next piece.
        let mut begun = 0;
        loop {
            let count = source.read(&mut buffer[begun..])?;
            digest.update(&buffer[begun..begun + count]);
            bytes += count;
            let filled = begun + count;
            let valid = match std::str::from_utf8(&buffer[..filled]) {
                Ok(text) => text.len(),
                Err(error) if error.error_len().is_none() && count > 0 => error.valid_up_to(),
                Err(_) => return Err(ProofError::NotText),
            };
            if let (Some(projector), Ok(text)) = (&mut projector, std::str::from_utf8(&buffer[..valid])) {
                projector.push(text);
            }
            if count == 0 {
                return Ok(Self { bytes, digest: digest.finish(), projector });
            }
            buffer.copy_within(valid..filled, 0);
            begun = filled - valid;
        }
    }
}

fn again(result: &ShownResult, stated: &Stated, uri: Option<&ArtifactUri>, projector: Option<Projector>) -> Again {
    let Some(uri) = uri else {
        // The output is the original: the digests say whether that is so.
        return Again::Same;
    };
    if result.metadata.get(EXCERPT_KEY).and_then(Value::as_bool) == Some(true) {
        return Again::ByTool;
    }
    let Some(projector) = projector else { return Again::UnknownPolicy };
    let projection = projector.finish(line_bytes(&result.name));
    let (loss, shown_bytes) = (projection.loss, projection.shown_bytes);
    let Projection { text, .. } = match (loss, named_elsewhere(result)) {
        // Stored for a host that keeps everything.
        (LossMode::None, _) => projection,
        (_, Some(elsewhere)) => projection.with_last_line(&kept_line(&elsewhere)),
        (_, None) => projection.with_last_line(&kept_line(uri)),
    };
    let shown = result.metadata.get(ARTIFACT_KEY).and_then(|artifact| artifact.get("shown_bytes"));
    let same = text == result.output
        && loss == stated.loss_mode
        && shown.and_then(Value::as_u64) == u64::try_from(shown_bytes).ok();
    if same { Again::Same } else { Again::Different }
}

/// The host's own address of the original, where the output names that.
fn named_elsewhere(result: &ShownResult) -> Option<String> {
    let reference = result.metadata.get(ARTIFACT_KEY)?.get(CONTENT_REFERENCE_KEY)?;
    let uri = reference.get("uri").and_then(Value::as_str)?;
    result.output.contains(uri).then(|| uri.to_owned())
}

fn figures(
    result: &ShownResult,
    stated: &Stated,
    uri: Option<&ArtifactUri>,
    original_bytes: usize,
    digest: &Digest,
) -> Vec<Figure> {
    let projected_bytes = result.output.len();
    let projected_digest = Digest::of(result.output.as_bytes());
    let (original_tokens, projected_tokens) = (estimated_tokens(original_bytes), estimated_tokens(projected_bytes));
    let reference = match uri {
        Some(_) => ArtifactUri::new(&result.name, digest.clone()).to_string(),
        None => [INLINE_PREFIX, digest.as_str()].concat(),
    };
    // A loss is one exactly when the output differs from the original.
    let loss = match (stated.loss_mode, projected_digest == *digest) {
        (_, true) => LossMode::None.as_str(),
        (LossMode::None, false) => "some",
        (loss, false) => loss.as_str(),
    };
    let algorithm = stated.transform_algorithm.as_deref();
    let mut figures = vec![
        figure("schema", &stated.schema, &EVIDENCE_SCHEMA),
        figure("original_bytes", &stated.original_bytes, &original_bytes),
        figure("projected_bytes", &stated.projected_bytes, &projected_bytes),
        figure("original_estimated_tokens", &stated.original_estimated_tokens, &original_tokens),
        figure("projected_estimated_tokens", &stated.projected_estimated_tokens, &projected_tokens),
        figure("token_estimator", &stated.token_estimator, &TOKEN_ESTIMATOR),
        figure("transform_algorithm", &algorithm.unwrap_or(TRANSFORM_ALGORITHM), &TRANSFORM_ALGORITHM),
        figure("content_digest", &stated.content_digest, digest),
        figure("projected_digest", &stated.projected_digest, &projected_digest),
        figure("repeat_key", &stated.repeat_key, digest),
        figure("content_ref", &stated.content_ref, &reference),
        figure("loss_mode", &stated.loss_mode.as_str(), &loss),
        figure("byte_delta", &stated.byte_delta, &difference(projected_bytes, original_bytes)),
        figure("estimated_token_delta", &stated.estimated_token_delta, &difference(projected_tokens, original_tokens)),
    ];
    if let (Some(uri), Some(artifact)) = (uri, result.metadata.get(ARTIFACT_KEY)) {
        let text = |key: &str| artifact.get(key).and_then(Value::as_str).unwrap_or_default();
        let bytes = artifact.get("original_bytes").map(Value::to_string).unwrap_or_default();
        figures.push(figure("artifact.artifact_id", &text("artifact_id"), &uri.id()));
        figures.push(figure("artifact.artifact_uri", &text("artifact_uri"), uri));
        figures.push(figure("artifact.original_bytes", &bytes, &original_bytes));
    }
    figures
}

fn figure(name: &'static str, stated: &impl ToString, found: &impl ToString) -> Figure {
    Figure { name, stated: stated.to_string(), found: found.to_string() }
}

/// Why evidence cannot be checked.
#[derive(Debug, Error)]
pub enum ProofError {
    /// There is none.
    #[error("the result has no metadata.{EVIDENCE_KEY}; give a whole result, as `toolwarden call --json` prints it")]
    NoEvidence,
    /// It is none.
    #[error("the evidence is incomplete or of another form: {message}")]
    Malformed {
        /// What is wrong.
        message: String,
    },
    /// It refers to something else than an artifact.
    #[error("content_ref is {content_ref:?}, which is neither inline nor the name of an artifact")]
    Reference {
        /// What stands there.
        content_ref: String,
    },
    /// The original could not be stored when the result was made.
    #[error(
        "the original was not kept when the result was made (see metadata.artifact_error), so nothing can be proven"
    )]
    Lost,
    /// The original was not handed over.
    #[error("the original is {uri}; hand it over to check the evidence")]
    NoOriginal {
        /// Its name.
        uri: String,
    },
    /// The original is no text.
    #[error("the original is not UTF-8, so it is not what a tool gave")]
    NotText,
    /// The original is not there, or damaged.
    #[error("the original cannot be opened: {0}")]
    Artifact(#[from] ArtifactError),
    /// The original cannot be read.
    #[error("the original cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};
    use serde_json::{Map, Value, json};
    use toolwarden_tools::digest::Digest;

    use super::{Again, ProofError, ShownResult, original_of, verify};
    use crate::settlement::artifact::{ARTIFACT_KEY, ArtifactUri, kept_line, line_bytes};
    use crate::settlement::evidence::{ContentRef, Original, attach, evidence};
    use crate::settlement::projection::{LossMode, project};
    use crate::settlement::projection_policy::{BINDING_KEY, ProjectionPolicy};

    /// A result as the route makes it, with its original stored elsewhere.
    fn shown(policy: &ProjectionPolicy, text: &str) -> ShownResult {
        let original = Original::of(text);
        let mut projection = project(policy, text.to_owned(), line_bytes("bash"));
        let mut metadata = Map::new();
        let mut reference = ContentRef::Inline;
        if projection.loss != LossMode::None {
            let uri = ArtifactUri::new("bash", Digest::of(text.as_bytes()));
            metadata.insert(BINDING_KEY.into(), policy.binding().to_value());
            let facts = json!({
                "artifact_id": uri.id(), "artifact_uri": uri.to_string(), "original_bytes": text.len(),
                "shown_bytes": projection.shown_bytes,
            });
            metadata.insert(ARTIFACT_KEY.into(), facts);
            projection = projection.with_last_line(&kept_line(&uri));
            reference = ContentRef::Artifact(uri.to_string());
        }
        attach(&mut metadata, evidence(&original, &projection, reference));
        ShownResult { name: "bash".into(), output: projection.text, metadata }
    }

    fn texts() -> [String; 5] {
        let alike = "a line that comes again and again, many times over\n".repeat(50);
        let array = json!((0..20_000).collect::<Vec<_>>()).to_string();
        [String::new(), "ok\n".into(), "界".repeat(120_000), alike, array]
    }

    #[test]
    fn evidence_of_every_kind_of_loss_holds() {
        for policy in [ProjectionPolicy::conservative(), ProjectionPolicy::context_efficient()] {
            for text in texts() {
                let result = shown(&policy, &text);
                let proof = verify(&result, Some(&mut text.as_bytes()), None).unwrap();
                assert!(proof.holds(), "{proof:?}");
                assert_eq!(proof.again, Again::Same);
                assert!(proof.figures.len() >= 14);
            }
        }
    }

    #[test]
    fn every_figure_that_is_changed_is_found() {
        let text = "界".repeat(120_000);
        let result = shown(&ProjectionPolicy::context_efficient(), &text);
        let evidence = result.metadata["a3s_tool_result_evidence"].as_object().unwrap().clone();
        for (key, value) in &evidence {
            let changed: Value = match value {
                Value::Number(number) => json!(number.as_i64().unwrap() + 1),
                _ if key == "loss_mode" => json!("none"),
                _ if key == "content_ref" => json!(format!("a3s://tool-output/bash/{}", "0".repeat(64))),
                Value::String(text) => json!(text.replace(['a', '1'], "b")),
                _ => unreachable!("a figure is a number or a text"),
            };
            let mut forged = result.clone();
            forged.metadata["a3s_tool_result_evidence"][key.as_str()] = changed;
            let proof = verify(&forged, Some(&mut text.as_bytes()), None).unwrap();
            assert!(!proof.holds(), "{key}");
            assert!(proof.figures.iter().any(|figure| figure.name == key && !figure.holds()), "{key}: {proof:?}");
        }
    }

    #[test]
    fn another_output_or_another_original_is_found() {
        let text = "x\n".repeat(120_000);
        let policy = ProjectionPolicy::conservative();
        let mut result = shown(&policy, &text);
        assert!(!verify(&result, Some(&mut text.replacen('x', "y", 1).as_bytes()), None).unwrap().holds());
        // With its figures made to fit, the output is still not what the policy gives.
        result.output = result.output.replacen('x', "y", 1);
        result.metadata["a3s_tool_result_evidence"]["projected_digest"] = json!(Digest::of(result.output.as_bytes()));
        let proof = verify(&result, Some(&mut text.as_bytes()), None).unwrap();
        assert!(proof.figures.iter().all(super::Figure::holds));
        assert_eq!((proof.again, proof.holds()), (Again::Different, false));
    }

    #[test]
    fn a_policy_of_ones_own_has_to_be_given() {
        let fields = json!({
            "schema": "a3s.code.tool-result-transform-policy.v1", "max_output_bytes": 2048, "head_bytes": 1000,
            "tail_bytes": 500, "fold_repeated_lines": false, "repeated_line_threshold": 3, "structured_sample_items": 0,
        });
        let policy = ProjectionPolicy::from_json(&fields.to_string()).unwrap();
        let text = "words ".repeat(1000);
        let result = shown(&policy, &text);
        let proof = verify(&result, Some(&mut text.as_bytes()), None).unwrap();
        assert_eq!((proof.again, proof.holds()), (Again::UnknownPolicy, true));
        assert_eq!(verify(&result, Some(&mut text.as_bytes()), Some(&policy)).unwrap().again, Again::Same);
        let other = ProjectionPolicy::conservative();
        assert!(!verify(&result, Some(&mut text.as_bytes()), Some(&other)).unwrap().holds());
    }

    #[test]
    fn what_cannot_be_checked_says_why() {
        let mut result = shown(&ProjectionPolicy::conservative(), &"x".repeat(200_000));
        assert!(matches!(verify(&result, None, None), Err(ProofError::NoOriginal { .. })));
        assert!(matches!(verify(&result, Some(&mut &b"\xff"[..]), None), Err(ProofError::NotText)));
        let evidence = &mut result.metadata["a3s_tool_result_evidence"];
        evidence["content_ref"] = json!("lost:sha256:0");
        assert!(matches!(original_of(&result), Err(ProofError::Lost)));
        result.metadata["a3s_tool_result_evidence"]["content_ref"] = json!("file:///etc/passwd");
        assert!(matches!(original_of(&result), Err(ProofError::Reference { .. })));
        result.metadata["a3s_tool_result_evidence"]["original_bytes"] = json!("many");
        assert!(matches!(original_of(&result), Err(ProofError::Malformed { .. })));
        result.metadata.clear();
        assert!(matches!(original_of(&result), Err(ProofError::NoEvidence)));
    }

    proptest! {
        #[test]
        fn evidence_of_any_text_holds(text in any::<String>(), times in 1_usize..3000, efficient in any::<bool>()) {
            let text = text.repeat(times);
            let policy =
                if efficient { ProjectionPolicy::context_efficient() } else { ProjectionPolicy::conservative() };
            let proof = verify(&shown(&policy, &text), Some(&mut text.as_bytes()), None).unwrap();
            prop_assert!(proof.holds(), "{:?}", proof);
            prop_assert_eq!(proof.again, Again::Same);
        }
    }
}
