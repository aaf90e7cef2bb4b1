//! What a change to a file looks like to hosts: before, after, digests, and a unified diff, all bounded.
//!
//! Large sides become previews of head and tail, and go with the outcome to be kept by reference; a diff that would be
//! large or slow to find is left out and that is said. Nothing here depends on time, so the same change is always described the same way.

use std::fmt::Write as _;

use serde_json::{Value, json};
use similar::{Algorithm, TextDiff};

use crate::digest::Digest;
use crate::outcome::{SideText, ToolOutcome};

/// Both sides stand in the metadata whole up to this many bytes together.
const WHOLE_BYTES_MAX: usize = 64 * 1024;
/// Longest preview of one side, in bytes.
pub(crate) const PREVIEW_BYTES_MAX: usize = 8 * 1024;
/// Longest diff in the metadata, in bytes.
const DIFF_BYTES_MAX: usize = 32 * 1024;
/// Longest diff in the text for the model, in bytes.
const SHOWN_DIFF_BYTES_MAX: usize = 8 * 1024;
/// No diff is made when both sides together are larger, in bytes.
const COMPARED_BYTES_MAX: usize = 1024 * 1024;
/// No diff is made when the differing lines of both sides, multiplied, are more: finding it would take seconds.
const COMPARED_LINES_PRODUCT_MAX: usize = 4_000_000;
/// Lines shown around a change.
const CONTEXT_LINES: usize = 3;
/// Room for the note in the middle of a cut text, in bytes.
const NOTE_BYTES: usize = 64;

/// One side of a change.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    /// The bytes on the disk.
    pub(crate) bytes: &'a [u8],
    /// What they say, as far as they are text.
    pub(crate) text: &'a str,
    /// The digest of the bytes, where it is known already.
    pub(crate) digest: Option<&'a Digest>,
}

/// A described change.
pub(crate) struct Change {
    before: Option<Value>,
    after: Option<Value>,
    facts: Value,
    diff: Option<String>,
    sides: Vec<SideText>,
}

impl Change {
    /// Describes a change; no `before` for a new file, no `after` for one that went.
    pub(crate) fn of<'a>(before: Option<Side<'a>>, after: impl Into<Option<Side<'a>>>) -> Self {
        let after = after.into();
        let (old, new) = (before.map_or("", |side| side.text), after.map_or("", |side| side.text));
        let compacted = old.len() + new.len() > WHOLE_BYTES_MAX;
        let shown =
            |text: &str| Value::from(if compacted { middle_cut(text, PREVIEW_BYTES_MAX) } else { text.to_owned() });
        let diff = unified_diff(old, new);
        let known = |side: Side<'_>| {
            let digest = side.digest.cloned().unwrap_or_else(|| Digest::of(side.bytes));
            json!({"bytes": side.bytes.len(), "sha256": digest.hex()})
        };
        let facts = json!({
            "compacted": compacted,
            "before": before.map(known),
            "after": after.map(known),
            "unified_diff": diff.as_deref().map(|diff| middle_cut(diff, DIFF_BYTES_MAX)),
            "diff_omitted": diff.is_none(),
        });
        let mut sides = Vec::new();
        if compacted {
            for (name, side) in [("before", before), ("after", after)] {
                let kept =
                    |side: Side<'_>| SideText { side: name, at: format!("/change/{name}"), text: side.text.to_owned() };
                sides.extend(side.map(kept));
            }
        }
        let shown = |side: Option<Side<'_>>| side.map(|side| shown(side.text));
        Self { before: shown(before), after: shown(after), facts, diff, sides }
    }

    /// The description as facts of one of several files, and the texts to be kept, for facts that stand there.
    pub(crate) fn describe_one_of_several(self, at: &str) -> (Vec<(&'static str, Value)>, Vec<SideText>) {
        let sides = self.sides.into_iter().map(|side| SideText { at: format!("{at}{}", side.at), ..side }).collect();
        let texts = [("before", self.before), ("after", self.after)].into_iter();
        let texts = texts.filter_map(|(name, text)| text.map(|text| (name, text)));
        (texts.chain([("change", self.facts)]).collect(), sides)
    }

    /// Puts the description into a result, the diff behind its text.
    pub(crate) fn describe(self, mut outcome: ToolOutcome, with_diff: bool) -> ToolOutcome {
        if with_diff && let Some(diff) = &self.diff {
            outcome.output.push_str(&middle_cut(diff, SHOWN_DIFF_BYTES_MAX));
        }
        outcome.sides = self.sides;
        if let Some(before) = self.before {
            outcome = outcome.with("before", before);
        }
        if let Some(after) = self.after {
            outcome = outcome.with("after", after);
        }
        outcome.with("change", self.facts)
    }
}

/// The unified diff of two texts by lines; none when it would take too long.
fn unified_diff(old: &str, new: &str) -> Option<String> {
    if old.len() + new.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let lines = |text: &'_ str| -> Vec<String> { text.split_inclusive('\n').map(str::to_owned).collect() };
    let (old, new) = (lines(old), lines(new));
    let same = old.iter().zip(&new).take_while(|(one, other)| one == other).count();
    let same_behind =
        old[same..].iter().rev().zip(new[same..].iter().rev()).take_while(|(one, other)| one == other).count();
    let differing = |lines: &[String]| lines.len() - same - same_behind;
    if differing(&old).saturating_mul(differing(&new)) > COMPARED_LINES_PRODUCT_MAX {
        return None;
    }
    let old: Vec<&str> = old.iter().map(String::as_str).collect();
    let new: Vec<&str> = new.iter().map(String::as_str).collect();
    let mut config = TextDiff::configure();
    config.algorithm(Algorithm::Myers).newline_terminated(true);
    let diff = config.diff_slices(&old, &new);
    Some(diff.unified_diff().context_radius(CONTEXT_LINES).header("before", "after").to_string())
}

/// At most this many bytes of a text: its head, a note of what is left out, its tail.
pub(crate) fn middle_cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let half = bytes_max.saturating_sub(NOTE_BYTES) / 2;
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    let mut cut = String::with_capacity(bytes_max);
    cut.push_str(head);
    let _ = write!(cut, "\n[{} bytes left out]\n", text.len() - head.len() - tail.len());
    cut.push_str(tail);
    cut
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{COMPARED_BYTES_MAX, Change, PREVIEW_BYTES_MAX, Side, middle_cut, unified_diff};
    use crate::outcome::ToolOutcome;

    fn side(text: &str) -> Side<'_> {
        Side { bytes: text.as_bytes(), text, digest: None }
    }

    #[test]
    fn small_sides_stand_whole_and_the_diff_knows_only_lf() {
        let outcome = Change::of(Some(side("a\rb\nc")), side("a\rB\nc")).describe(ToolOutcome::success("done\n"), true);
        assert_eq!(outcome.metadata["before"], json!("a\rb\nc"));
        assert_eq!(outcome.metadata["change"]["compacted"], json!(false));
        let diff = outcome.metadata["change"]["unified_diff"].as_str().unwrap();
        assert!(diff.contains("@@ -1,2 +1,2 @@\n-a\rb\n+a\rB\n c\n\\ No newline"), "{diff}");
        assert!(outcome.output.starts_with("done\n--- before\n+++ after\n"));
        let new = Change::of(None, side("x\n")).describe(ToolOutcome::default(), false);
        assert!(outcome.sides.is_empty() && new.sides.is_empty());
        assert!(!new.metadata.contains_key("before") && new.metadata["change"]["before"].is_null());
    }

    #[test]
    fn large_sides_become_previews_and_digests() {
        let (old, new) = ("世\n".repeat(20_000), "界\n".repeat(20_000));
        let outcome = Change::of(Some(side(&old)), side(&new)).describe(ToolOutcome::default(), true);
        let before = outcome.metadata["before"].as_str().unwrap();
        assert!(before.len() <= PREVIEW_BYTES_MAX && before.contains("bytes left out"));
        let kept: Vec<_> = outcome.sides.iter().map(|kept| (kept.side, kept.text.as_str())).collect();
        assert!(kept == [("before", old.as_str()), ("after", new.as_str())]);
        let facts = &outcome.metadata["change"];
        assert_eq!((&facts["compacted"], &facts["before"]["bytes"]), (&json!(true), &json!(80_000)));
        assert_eq!(facts["diff_omitted"], json!(true), "400 million line pairs");
        assert!(unified_diff(&"x".repeat(COMPARED_BYTES_MAX), "y").is_none());
        // One changed line among many costs little.
        let mut changed = old.clone();
        changed.replace_range(60_000..60_003, "界");
        assert!(unified_diff(&old, &changed).unwrap().contains("+界\n"));
        assert!(middle_cut(&old, 100).len() <= 100);
    }
}
