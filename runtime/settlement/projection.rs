//! Projection: the part of an output that goes to the model, by one pinned policy for every origin.
//!
//! Pure and deterministic. A cut is between characters and says in one line what was kept of what.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Most bytes of an output that the conservative policy keeps.
pub const CONSERVATIVE_BYTES_MAX: usize = 100 * 1024;

/// How an output is projected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectionPolicy {
    /// Most bytes kept of the beginning; the marker stands on top of them.
    pub head_bytes: usize,
}

impl Default for ProjectionPolicy {
    fn default() -> Self {
        Self { head_bytes: CONSERVATIVE_BYTES_MAX }
    }
}

/// What an output lost on its way to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LossMode {
    /// Nothing.
    None,
    /// The end.
    BoundedPreview,
}

/// A projected output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// What the model gets.
    pub text: String,
    /// What was lost.
    pub loss: LossMode,
    /// How many bytes of the original are in `text`.
    pub shown_bytes: usize,
}

/// Projects an output.
pub fn project(policy: &ProjectionPolicy, original: String) -> Projection {
    let whole_bytes = original.len();
    if whole_bytes <= policy.head_bytes {
        return Projection { text: original, loss: LossMode::None, shown_bytes: whole_bytes };
    }
    let shown_bytes = original.floor_char_boundary(policy.head_bytes);
    let mut text = original;
    text.truncate(shown_bytes);
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "\n[cut: the first {shown_bytes} of {whole_bytes} bytes are shown; ask for a smaller part to see the rest]\n"
    );
    Projection { text, loss: LossMode::BoundedPreview, shown_bytes }
}

#[cfg(test)]
mod tests {
    use super::{LossMode, ProjectionPolicy, project};

    #[test]
    fn what_fits_is_untouched_and_one_byte_more_is_cut() {
        let policy = ProjectionPolicy::default();
        let fits = "x".repeat(102_400);
        assert_eq!(project(&policy, fits.clone()).text, fits);
        let cut = project(&policy, "x".repeat(102_401));
        assert_eq!((cut.loss, cut.shown_bytes), (LossMode::BoundedPreview, 102_400));
        assert!(
            cut.text.ends_with("the first 102400 of 102401 bytes are shown; ask for a smaller part to see the rest]\n")
        );
    }

    // Case C013: a limit inside of a character backs off to its beginning.
    #[test]
    fn a_cut_is_between_characters() {
        let cut = project(&ProjectionPolicy::default(), "界".repeat(40_000));
        assert_eq!(cut.shown_bytes, 102_399);
        let tiny = project(&ProjectionPolicy { head_bytes: 10 }, "aaaaaaaa中".into());
        assert_eq!(tiny.shown_bytes, 8);
    }
}
