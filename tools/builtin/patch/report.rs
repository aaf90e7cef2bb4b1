//! What a call of `patch` tells: one line a file for the model, facts for the host.

use std::borrow::Cow;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::diff::Fate;
use super::plan::Planned;
use crate::builtin::change::{Change, Side};
use crate::digest::Digest;
use crate::outcome::ToolOutcome;

/// Most hunks of one file that are described.
const HUNKS_DESCRIBED_MAX: usize = 64;
/// Most bytes of metadata with which the contents of several files are described; of the others sizes and digests.
const DESCRIBED_BYTES_MAX: usize = 256 * 1024;
/// Most bytes of contents of several files that are kept by reference.
const SIDES_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most notes on hunks in the text.
const NOTES_MAX: usize = 32;
/// Most files named as sources.
const ANCHORS_MAX: usize = 64;

/// The result of a diff that was carried out, or would be.
pub(super) fn outcome(planned: &[Planned], dry_run: bool) -> ToolOutcome {
    let outcome = ToolOutcome::success(text(planned, dry_run))
        .with("dry_run", dry_run)
        .with("file_count", planned.len())
        .with("source_anchors", anchors(planned));
    match planned {
        [only] => {
            let outcome = facts(only).into_iter().fold(outcome, |outcome, (key, value)| outcome.with(&key, value));
            described(only, |before, after| Change::of(before, after).describe(outcome, false))
        }
        several => of_several(several, outcome),
    }
}

fn anchors(planned: &[Planned]) -> Value {
    planned.iter().take(ANCHORS_MAX).map(|file| file.path().to_string()).collect()
}

fn of_several(planned: &[Planned], mut outcome: ToolOutcome) -> ToolOutcome {
    let mut files = Vec::new();
    let (mut described_bytes, mut sides_bytes) = (0, 0);
    for (file, number) in planned.iter().zip(0_usize..) {
        let mut known = facts(file);
        let (texts, sides) = described(file, |before, after| {
            Change::of(before, after).describe_one_of_several(&format!("/files/{number}"))
        });
        let mut texts: Map<String, Value> = texts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let bytes = Value::from(texts.clone()).to_string().len();
        if described_bytes + bytes > DESCRIBED_BYTES_MAX {
            texts.retain(|key, _| key == "change");
            if let Some(Value::Object(change)) = texts.get_mut("change") {
                change.insert("compacted".to_owned(), true.into());
                change.insert("unified_diff".to_owned(), Value::Null);
                change.insert("diff_omitted".to_owned(), true.into());
            }
        } else {
            described_bytes += bytes;
        }
        for side in sides {
            // What is not kept has no reference in its facts; sizes and digests stand there all the same.
            if sides_bytes + side.text.len() <= SIDES_BYTES_MAX {
                sides_bytes += side.text.len();
                outcome.sides.push(side);
            }
        }
        known.append(&mut texts);
        files.push(Value::from(known));
    }
    outcome.with("files", files)
}

/// What both sides of a file are, given to something that describes them.
fn described<T>(file: &Planned, describe: impl FnOnce(Option<Side<'_>>, Option<Side<'_>>) -> T) -> T {
    let old_bytes = file.old.as_ref().and_then(|old| old.bytes.as_deref());
    let (old_text, new_text) =
        (old_bytes.map(|bytes| text_of(file, bytes)), file.new.as_deref().map(|new| text_of(file, new)));
    let old_digest = file.old.as_ref().map(|old| &old.digest);
    let new_digest = file.new.as_deref().map(Digest::of);
    let before = old_bytes.zip(old_text.as_deref());
    let before = before.map(|(bytes, text)| Side { bytes, text, digest: old_digest });
    let after = file.new.as_deref().zip(new_text.as_deref());
    let after = after.map(|(bytes, text)| Side { bytes, text, digest: new_digest.as_ref() });
    // A file that moves as it is has one content.
    let after = if file.fate == Fate::Renamed && after.is_none() { before } else { after };
    // A copy changes nothing of the file that it is made like.
    describe(before.filter(|_| file.fate != Fate::Copied), after)
}

/// What bytes say, as far as they are text.
fn text_of<'b>(file: &Planned, bytes: &'b [u8]) -> Cow<'b, str> {
    let Some(encoding) = file.encoding else { return String::from_utf8_lossy(bytes) };
    let body = &bytes[encoding.mark().len().min(bytes.len())..];
    match encoding.decoder() {
        None => String::from_utf8_lossy(body),
        Some(decoder) => decoder.encoding().decode_without_bom_handling(body).0,
    }
}

fn facts(file: &Planned) -> Map<String, Value> {
    let (added, removed) = counts(file);
    let hunks: Vec<Value> = file
        .hunks
        .iter()
        .take(HUNKS_DESCRIBED_MAX)
        .map(|hunk| {
            let tolerated: Vec<_> = hunk.tolerated.iter().map(|tolerated| tolerated.as_str()).collect();
            json!({"line": hunk.line, "added": hunk.added, "removed": hunk.removed, "tolerated": tolerated})
        })
        .collect();
    let mut facts = Map::new();
    facts.insert("file_path".to_owned(), file.path().to_string().into());
    facts.insert("action".to_owned(), word(file).into());
    if file.to.is_some() {
        facts.insert("from".to_owned(), file.target.path().to_string().into());
    }
    facts.insert("added_lines".to_owned(), added.into());
    facts.insert("removed_lines".to_owned(), removed.into());
    facts.insert("hunk_count".to_owned(), file.hunks.len().into());
    facts.insert("hunks".to_owned(), hunks.into());
    if let Some(encoding) = file.encoding {
        facts.insert("encoding".to_owned(), encoding.to_string().into());
    }
    facts
}

fn counts(file: &Planned) -> (u64, u64) {
    file.hunks.iter().fold((0, 0), |(added, removed), hunk| (added + hunk.added, removed + hunk.removed))
}

fn word(file: &Planned) -> &'static str {
    match file.fate {
        Fate::Stays if file.is_unchanged() => "unchanged",
        Fate::Stays => "changed",
        Fate::New => "created",
        Fate::Goes => "deleted",
        Fate::Renamed => "renamed",
        Fate::Copied => "copied",
    }
}

fn text(planned: &[Planned], dry_run: bool) -> String {
    let mut text = match (planned.len(), dry_run) {
        (1, false) => "Patched 1 file:\n".to_owned(),
        (1, true) => "Dry run, nothing was written. It would patch 1 file:\n".to_owned(),
        (files, false) => format!("Patched {files} files:\n"),
        (files, true) => format!("Dry run, nothing was written. It would patch {files} files:\n"),
    };
    let mut notes = 0;
    for file in planned {
        let (added, removed) = counts(file);
        let from = file.to.as_ref().map_or_else(String::new, |_| format!(" (from {})", file.target.path()));
        let _ = write!(text, "{} {}{from}", word(file), file.path());
        if let (Some(first), count) = (file.hunks.first(), file.hunks.len()) {
            let hunks = if count == 1 { "hunk" } else { "hunks" };
            let _ = write!(text, ": +{added} -{removed} in {count} {hunks}, from line {}", first.line);
        }
        text.push('\n');
        for (hunk, number) in file.hunks.iter().zip(1..) {
            for tolerated in &hunk.tolerated {
                notes += 1;
                if notes <= NOTES_MAX {
                    let _ = writeln!(text, "  hunk {number}: {tolerated}");
                }
            }
        }
    }
    if notes > NOTES_MAX {
        let _ = writeln!(text, "[{} more notes of this kind]", notes - NOTES_MAX);
    }
    text
}
