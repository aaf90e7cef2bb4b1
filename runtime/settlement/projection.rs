//! Projection: the part of an output that goes to the model, by one pinned policy for every origin.
//!
//! Sample, fold, head and tail, in this order; pure, deterministic, and the same however the text was cut into
//! pieces on its way here. Memory is bounded by the policy and never by the text. A cut is between characters and
//! says in one line what was left out. No projection is longer than its original, with one exception: a policy
//! that is a plain preview keeps exactly its bound, and the marker and the line that names the whole come on top.

mod excerpt;
mod fold;
mod json_scan;
mod sample;

use serde::{Deserialize, Serialize};

use self::excerpt::Excerpt;
use self::fold::{Fold, has_run};
use self::sample::Sample;
use super::projection_policy::{ProjectionPolicy, TRANSFORM_ALGORITHM};

/// What an output lost on its way to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMode {
    /// Nothing.
    None,
    /// The end.
    BoundedPreview,
    /// The middle.
    HeadTail,
    /// Items, alike lines, or parts of lines, by rules that leave it as it is otherwise.
    DeterministicTransform,
    /// Such things first, and then the end or the middle.
    Composite,
}

/// A projected output, without the line that names the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// What the model gets.
    pub text: String,
    /// What was lost.
    pub loss: LossMode,
    /// How many bytes of the original are in `text`; 0 when it was sampled or folded.
    pub shown_bytes: usize,
    /// How many bytes the original has.
    pub original_bytes: usize,
}

impl Projection {
    /// Of a text of this many bytes nothing was lost.
    pub(crate) fn lossless(text: String, bytes: usize) -> Self {
        Self { text, loss: LossMode::None, shown_bytes: bytes, original_bytes: bytes }
    }

    /// The text with a last line of its own that says where the whole is.
    #[must_use]
    pub fn with_last_line(mut self, line: &str) -> Self {
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(line);
        self.text.push('\n');
        self
    }
}

/// Most bytes that [`Projection::with_last_line`] adds to a line.
pub const LINE_ENDS_BYTES: usize = 2;

/// Projects an output that is there as a whole. `line_bytes` is what the last line of a lossy one will need.
pub fn project(policy: &ProjectionPolicy, original: String, line_bytes: usize) -> Projection {
    if is_lossless(policy, &original) {
        let bytes = original.len();
        return Projection::lossless(original, bytes);
    }
    let mut projector = Projector::new(policy);
    projector.push(&original);
    projector.finish(line_bytes)
}

/// Whether a text certainly loses nothing; costs next to nothing for most.
pub fn is_lossless(policy: &ProjectionPolicy, text: &str) -> bool {
    text.len() <= policy.max_output_bytes()
        && policy.fold_threshold().is_none_or(|threshold| !has_run(text.as_bytes(), threshold))
}

/// Projects an output that comes piece by piece.
pub struct Projector {
    plain: Excerpt,
    fold: Option<Fold>,
    sample: Option<Sample>,
    policy: ProjectionPolicy,
}

impl Projector {
    /// Begins a projection.
    pub fn new(policy: &ProjectionPolicy) -> Self {
        let empty = Excerpt::new(policy.max_output_bytes(), policy.tail_bytes());
        let items = policy.sample_items();
        Self {
            fold: policy.fold_threshold().map(|threshold| Fold::new(threshold, empty.clone())),
            sample: (items > 0).then(|| Sample::new(items, empty.clone())),
            plain: empty,
            policy: policy.clone(),
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: &str) {
        self.plain.push(piece.as_bytes());
        if let Some(fold) = &mut self.fold {
            fold.push(piece.as_bytes());
        }
        if let Some(sample) = &mut self.sample {
            sample.push(piece.as_bytes());
        }
    }

    /// The projection of all pieces. `line_bytes` is what the last line of a lossy one will need.
    pub fn finish(self, line_bytes: usize) -> Projection {
        self.finish_excerpt(line_bytes, false)
    }

    /// As [`Self::finish`], of a text that is less than the whole already, and so has its last line in any case.
    pub(crate) fn finish_excerpt(self, line_bytes: usize, is_excerpt: bool) -> Projection {
        let Self { plain, fold, sample, policy } = self;
        let original_bytes = plain.total_bytes();
        let is_long = original_bytes > policy.max_output_bytes();
        let pays = |changed: &Excerpt| changed.total_bytes() + line_bytes < original_bytes;
        let sampled = sample.filter(|_| is_long).and_then(Sample::finish).filter(pays);
        // A sample is one line, in which there is nothing to fold. What is cut anyway has its last line anyway.
        let folded = fold.filter(|_| sampled.is_none()).map(Fold::finish);
        let folded = folded.filter(|folded| pays(folded) || (is_long && folded.total_bytes() < original_bytes));
        let transformed = sampled.or(folded);
        let is_transformed = transformed.is_some();
        let content = transformed.unwrap_or(plain);
        let has_line = is_transformed || is_excerpt;
        let line_inside = if has_line && !policy.is_preview_only() { line_bytes } else { 0 };
        let content_bytes = content.total_bytes();
        if content_bytes + line_inside <= policy.max_output_bytes() && content.is_whole() {
            let text = content.into_front();
            let (loss, shown_bytes) =
                if is_transformed { (LossMode::DeterministicTransform, 0) } else { (LossMode::None, original_bytes) };
            return Projection { text, loss, shown_bytes, original_bytes };
        }
        let (head, tail) = content.into_head_and_tail(policy.head_bytes(), policy.tail_bytes());
        let kept_bytes = head.len() + tail.len();
        let has_tail = policy.tail_bytes() > 0;
        let marker = if has_tail || is_transformed {
            format!("\n[{TRANSFORM_ALGORITHM}: {} bytes are left out here]\n", content_bytes - kept_bytes)
        } else {
            format!("\n[cut: the first {kept_bytes} of {original_bytes} bytes are shown]\n")
        };
        let loss = match (is_transformed, has_tail) {
            (true, _) => LossMode::Composite,
            (false, true) => LossMode::HeadTail,
            (false, false) => LossMode::BoundedPreview,
        };
        let shown_bytes = if is_transformed { 0 } else { kept_bytes };
        Projection { text: head + &marker + &tail, loss, shown_bytes, original_bytes }
    }
}

impl LossMode {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BoundedPreview => "bounded_preview",
            Self::HeadTail => "head_tail",
            Self::DeterministicTransform => "deterministic_transform",
            Self::Composite => "composite",
        }
    }

    /// What two losses, one after the other, come to.
    #[must_use]
    pub fn then(self, later: Self) -> Self {
        match (self, later) {
            (Self::None, other) | (other, Self::None) => other,
            (one, other) if one == other => one,
            _ => Self::Composite,
        }
    }
}

#[cfg(test)]
mod tests;
