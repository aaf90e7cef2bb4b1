//! The projection policy: how much of an output a model gets, pinned for a whole session.
//!
//! A policy is checked once, when it is made, and cannot be changed afterwards; so the same output gives the same
//! projection for as long as a session lives. Its digest and its binding are stored beside what was projected, so
//! that it can be told later by which rules.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use thiserror::Error;
use toolwarden_tools::digest::Digest;

/// The form of a policy.
pub const POLICY_SCHEMA: &str = "a3s.code.tool-result-transform-policy.v1";
/// The form of a binding.
pub const BINDING_SCHEMA: &str = "a3s.code.tool-result-transform-binding.v1";
/// The metadata key under which the binding of a lossy projection stands.
pub const BINDING_KEY: &str = "a3s_tool_result_transform_binding";
/// The rules by which outputs are projected.
pub const TRANSFORM_ALGORITHM: &str = "toolwarden.tool-result-transform.v1";
/// What keeps the digest of a policy apart from other digests.
const POLICY_DOMAIN: &str = "a3s.code.tool-result-transform-policy-digest.v1";

/// The least that `max_output_bytes` may be.
pub const OUTPUT_BYTES_MIN: usize = 1024;
/// The most that `max_output_bytes` may be.
pub const OUTPUT_BYTES_MAX: usize = 100 * 1024;
/// What must be left of `max_output_bytes` for the marker and the line that names the artifact.
pub const MARKER_RESERVE_BYTES: usize = 512;
/// The least `repeated_line_threshold`.
pub const REPEATED_LINES_MIN: u64 = 2;
/// The most `repeated_line_threshold`.
pub const REPEATED_LINES_MAX: u64 = 10_000;
/// The most `structured_sample_items`.
pub const SAMPLE_ITEMS_MAX: usize = 1024;

/// How outputs are projected; checked, and never changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct ProjectionPolicy {
    fields: Fields,
}

/// The fields in their declared order, which the digest covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    schema: String,
    max_output_bytes: usize,
    head_bytes: usize,
    tail_bytes: usize,
    fold_repeated_lines: bool,
    repeated_line_threshold: u64,
    structured_sample_items: usize,
}

impl ProjectionPolicy {
    /// The first 100 KiB, nothing folded or sampled; the marker stands on top of them. The default.
    pub fn conservative() -> Self {
        let fields = Fields {
            schema: POLICY_SCHEMA.to_owned(),
            max_output_bytes: OUTPUT_BYTES_MAX,
            head_bytes: OUTPUT_BYTES_MAX,
            tail_bytes: 0,
            fold_repeated_lines: false,
            repeated_line_threshold: 3,
            structured_sample_items: 0,
        };
        Self { fields }
    }

    /// 64 KiB of the head and 32 KiB of the tail, repeated lines folded, large arrays sampled to 32 items.
    pub fn context_efficient() -> Self {
        let fields = Fields {
            head_bytes: 64 * 1024,
            tail_bytes: 32 * 1024,
            fold_repeated_lines: true,
            structured_sample_items: 32,
            ..Self::conservative().fields
        };
        Self { fields }
    }

    /// A built-in profile by its name: `conservative` or `context_efficient`.
    pub fn profile(name: &str) -> Option<Self> {
        match name {
            "conservative" => Some(Self::conservative()),
            "context_efficient" => Some(Self::context_efficient()),
            _ => None,
        }
    }

    /// Reads a policy.
    ///
    /// # Errors
    /// [`PolicyError`], the first one in the order of its variants.
    pub fn from_json(text: &str) -> Result<Self, PolicyError> {
        let fields: Fields =
            serde_json::from_str(text).map_err(|error| PolicyError::Form { message: error.to_string() })?;
        Self::try_from(fields)
    }

    /// The most bytes of a projection; the marker lies inside, but not for a [`Self::is_preview_only`] policy.
    pub fn max_output_bytes(&self) -> usize {
        self.fields.max_output_bytes
    }

    /// Bytes kept of the beginning of what is too long.
    pub fn head_bytes(&self) -> usize {
        self.fields.head_bytes
    }

    /// Bytes kept of its end.
    pub fn tail_bytes(&self) -> usize {
        self.fields.tail_bytes
    }

    /// From how many alike lines on a run is folded; none when nothing is folded.
    pub fn fold_threshold(&self) -> Option<u64> {
        self.fields.fold_repeated_lines.then_some(self.fields.repeated_line_threshold)
    }

    /// How many items are left of an array that is too long; 0 when none is sampled.
    pub fn sample_items(&self) -> usize {
        self.fields.structured_sample_items
    }

    /// Whether all of `max_output_bytes` goes to the head, so that marker and artifact line stand on top of it.
    pub fn is_preview_only(&self) -> bool {
        self.fields.tail_bytes == 0 && self.fields.head_bytes == self.fields.max_output_bytes
    }

    /// The digest of the policy.
    pub fn digest(&self) -> Digest {
        // Fields of plain types can always be written.
        let json = serde_json::to_string(&self.fields).unwrap_or_default();
        Digest::of_domain(POLICY_DOMAIN, json.as_bytes())
    }

    /// What ties this policy to the rules of this runtime.
    pub fn binding(&self) -> Binding {
        Binding::of(TRANSFORM_ALGORITHM, &self.digest())
    }
}

impl Default for ProjectionPolicy {
    fn default() -> Self {
        Self::conservative()
    }
}

impl From<ProjectionPolicy> for Fields {
    fn from(policy: ProjectionPolicy) -> Self {
        policy.fields
    }
}

impl TryFrom<Fields> for ProjectionPolicy {
    type Error = PolicyError;

    /// Checks the bounds in their documented order.
    fn try_from(fields: Fields) -> Result<Self, PolicyError> {
        let Fields { max_output_bytes, head_bytes, tail_bytes, .. } = fields;
        if fields.schema != POLICY_SCHEMA {
            return Err(PolicyError::Schema { found: fields.schema });
        }
        if !(OUTPUT_BYTES_MIN..=OUTPUT_BYTES_MAX).contains(&max_output_bytes) {
            return Err(PolicyError::MaxOutputBytes { found: max_output_bytes });
        }
        if head_bytes == 0 {
            return Err(PolicyError::HeadBytes);
        }
        let shown = head_bytes.saturating_add(tail_bytes);
        let preview_only = tail_bytes == 0 && shown == max_output_bytes;
        if !preview_only && shown.saturating_add(MARKER_RESERVE_BYTES) > max_output_bytes {
            return Err(PolicyError::HeadAndTail { head_bytes, tail_bytes, max_output_bytes });
        }
        if !(REPEATED_LINES_MIN..=REPEATED_LINES_MAX).contains(&fields.repeated_line_threshold) {
            return Err(PolicyError::Threshold { found: fields.repeated_line_threshold });
        }
        if fields.structured_sample_items > SAMPLE_ITEMS_MAX {
            return Err(PolicyError::SampleItems { found: fields.structured_sample_items });
        }
        Ok(Self { fields })
    }
}

/// What ties a policy to the rules that carried it out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// [`BINDING_SCHEMA`].
    pub schema: String,
    /// The rules.
    pub transform_algorithm: String,
    /// The policy's digest.
    pub policy_digest: Digest,
    /// The digest of the fields above.
    pub binding_digest: Digest,
}

impl Binding {
    /// The binding of a policy to these rules.
    pub fn of(algorithm: &str, policy_digest: &Digest) -> Self {
        let bound = json!({"schema": BINDING_SCHEMA, "transform_algorithm": algorithm, "policy_digest": policy_digest});
        let binding_digest = Digest::of_domain(BINDING_SCHEMA, bound.to_string().as_bytes());
        Self {
            schema: BINDING_SCHEMA.to_owned(),
            transform_algorithm: algorithm.to_owned(),
            policy_digest: policy_digest.clone(),
            binding_digest,
        }
    }

    /// Whether its own digest is that of its other fields.
    pub fn is_intact(&self) -> bool {
        *self == Self::of(&self.transform_algorithm, &self.policy_digest)
    }

    /// The binding as it stands in metadata.
    pub fn to_value(&self) -> Value {
        json!(self)
    }
}

/// Why a policy is none.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PolicyError {
    /// It is no JSON, lacks a field or has one too many.
    #[error(
        "not a projection policy: {message}; give exactly schema, max_output_bytes, head_bytes, tail_bytes, \
         fold_repeated_lines, repeated_line_threshold and structured_sample_items"
    )]
    Form {
        /// What is wrong.
        message: String,
    },
    /// It is of another form.
    #[error("schema is {found:?}; this program takes {POLICY_SCHEMA:?}")]
    Schema {
        /// What stands there.
        found: String,
    },
    /// `max_output_bytes` is out of its bounds.
    #[error("max_output_bytes is {found}; give {OUTPUT_BYTES_MIN} to {OUTPUT_BYTES_MAX}")]
    MaxOutputBytes {
        /// What stands there.
        found: usize,
    },
    /// `head_bytes` is 0.
    #[error("head_bytes is 0; give at least 1")]
    HeadBytes,
    /// Head and tail leave no room for the marker.
    #[error(
        "head_bytes {head_bytes} and tail_bytes {tail_bytes} with {MARKER_RESERVE_BYTES} for the marker are more \
         than max_output_bytes {max_output_bytes}; lower one of them, or give tail_bytes 0 and head_bytes \
         {max_output_bytes}"
    )]
    HeadAndTail {
        /// The head.
        head_bytes: usize,
        /// The tail.
        tail_bytes: usize,
        /// The bound.
        max_output_bytes: usize,
    },
    /// `repeated_line_threshold` is out of its bounds.
    #[error("repeated_line_threshold is {found}; give {REPEATED_LINES_MIN} to {REPEATED_LINES_MAX}")]
    Threshold {
        /// What stands there.
        found: u64,
    },
    /// `structured_sample_items` is too large.
    #[error("structured_sample_items is {found}; give at most {SAMPLE_ITEMS_MAX}")]
    SampleItems {
        /// What stands there.
        found: usize,
    },
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Binding, PolicyError, ProjectionPolicy};

    fn with(changes: &[(&str, Value)]) -> Result<ProjectionPolicy, PolicyError> {
        let mut fields = serde_json::to_value(ProjectionPolicy::context_efficient()).unwrap();
        for (key, value) in changes {
            fields[*key] = value.clone();
        }
        ProjectionPolicy::from_json(&fields.to_string())
    }

    #[test]
    fn digests_have_their_known_answers() {
        let efficient = ProjectionPolicy::context_efficient().digest();
        assert_eq!(efficient.as_str(), "sha256:645f65e5d39e3f7aa77fade21ae2daa1e8ccbbc7a0775c94a7f2c38ec5f5b32d");
        assert_eq!(
            ProjectionPolicy::conservative().digest().as_str(),
            "sha256:97c77cb8bad0bdc7e52ec3a127f5c0b32484a5cc6fb58a59d78b681bec4972dc"
        );
        let binding = Binding::of("a3s.code.tool-result-transform.v1", &efficient);
        assert_eq!(
            binding.binding_digest.as_str(),
            "sha256:906e9931692fa7860b7acb5fc0bb5c329f19aeb04976c913750893ad99cd5a27"
        );
        assert!(binding.is_intact());
    }

    #[test]
    fn a_binding_that_drifted_is_seen() {
        let mut binding = ProjectionPolicy::conservative().binding();
        assert!(binding.is_intact());
        assert_ne!(binding, ProjectionPolicy::context_efficient().binding());
        binding.policy_digest = ProjectionPolicy::context_efficient().digest();
        assert!(!binding.is_intact());
    }

    #[test]
    fn profiles_hold_their_own_bounds() {
        for name in ["conservative", "context_efficient"] {
            let policy = ProjectionPolicy::profile(name).unwrap();
            let json = serde_json::to_string(&policy).unwrap();
            assert_eq!(ProjectionPolicy::from_json(&json), Ok(policy));
        }
        assert_eq!(ProjectionPolicy::profile("generous"), None);
        assert!(ProjectionPolicy::conservative().is_preview_only());
        assert!(!ProjectionPolicy::context_efficient().is_preview_only());
    }

    #[test]
    fn every_bound_is_named_and_the_first_one_wins() {
        let all_wrong = [
            ("schema", json!("x")),
            ("max_output_bytes", json!(1023)),
            ("head_bytes", json!(0)),
            ("repeated_line_threshold", json!(1)),
            ("structured_sample_items", json!(1025)),
        ];
        assert_eq!(with(&all_wrong), Err(PolicyError::Schema { found: "x".into() }));
        assert_eq!(with(&all_wrong[1..]), Err(PolicyError::MaxOutputBytes { found: 1023 }));
        assert_eq!(with(&all_wrong[2..]), Err(PolicyError::HeadBytes));
        assert_eq!(with(&all_wrong[3..]), Err(PolicyError::Threshold { found: 1 }));
        assert_eq!(with(&all_wrong[4..]), Err(PolicyError::SampleItems { found: 1025 }));
        assert_eq!(with(&[("max_output_bytes", json!(102_401))]), Err(PolicyError::MaxOutputBytes { found: 102_401 }));
        assert_eq!(with(&[("repeated_line_threshold", json!(10_001))]), Err(PolicyError::Threshold { found: 10_001 }));
        assert!(matches!(
            with(&[("head_bytes", json!(usize::MAX))]),
            Err(PolicyError::HeadAndTail { tail_bytes: 32_768, .. })
        ));
    }

    #[test]
    fn the_reserve_is_asked_of_everything_but_a_plain_preview() {
        let shape = |max: usize, head: usize, tail: usize| {
            with(&[("max_output_bytes", json!(max)), ("head_bytes", json!(head)), ("tail_bytes", json!(tail))])
        };
        assert!(shape(1024, 512, 0).is_ok() && shape(1024, 256, 256).is_ok());
        assert!(shape(1024, 513, 0).is_err() && shape(1024, 256, 257).is_err() && shape(1024, 1023, 1).is_err());
        assert!(shape(1024, 1024, 0).is_ok_and(|policy| policy.is_preview_only()));
        assert!(with(&[("repeated_line_threshold", json!(2))]).is_ok());
        assert!(with(&[("structured_sample_items", json!(1024))]).is_ok());
    }

    #[test]
    fn unknown_and_missing_fields_are_refused() {
        let error = with(&[("more", json!(1))]).unwrap_err();
        assert!(matches!(&error, PolicyError::Form { message } if message.contains("more")), "{error}");
        assert!(matches!(ProjectionPolicy::from_json("{}"), Err(PolicyError::Form { .. })));
        assert!(matches!(ProjectionPolicy::from_json("nonsense"), Err(PolicyError::Form { .. })));
    }
}
