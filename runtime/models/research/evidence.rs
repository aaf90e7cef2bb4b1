//! Evidence: what a child run hands to its parent, one JSON object a line.
//!
//! ```json
//! {"path": "a.rs", "start": 3, "end": 4, "score": 31, "lines": ["first", "second"]}
//! {"not_found": ["restart intensity"]}
//! {"failed": ["search: the pattern is not valid"]}
//! ```
//!
//! Best first and at most [`EVIDENCE_BYTES_MAX`], so that the parent sees it uncut. The parent still reads it as a
//! text that may have been cut anywhere: each line stands for itself, and one that is not whole is dropped.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::judge::{Hit, Judge};
use super::listing::Listing;

/// Most that one child run hands over, in bytes.
pub(super) const EVIDENCE_BYTES_MAX: usize = 3_500;
/// Kept for what was not found and what failed, in bytes.
const NOTES_BYTES_MAX: usize = 700;
/// Longest passage, in bytes of text.
const PASSAGE_BYTES_MAX: usize = 640;
/// Most lines before and after the one that matters.
const PASSAGE_LINES: (usize, usize) = (4, 7);
/// Longest line of a passage, in bytes.
const LINE_BYTES_MAX: usize = 200;
/// Longest line of evidence that is read, in bytes.
const RECORD_BYTES_MAX: usize = 16 * 1024;
/// Most passages looked at for each part.
const CANDIDATES_MAX: usize = 12;
/// Most child runs that are read.
const CHILDREN_MAX: usize = 64;
/// Most failures that are named, and the longest, in bytes.
pub(super) const FAILURES_MAX: usize = 4;
const FAILURE_BYTES_MAX: usize = 160;

/// One line of evidence.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Record {
    Passage(Passage),
    NotFound { not_found: Vec<String> },
    Failed { failed: Vec<String> },
}

/// Lines that stand together in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Passage {
    path: String,
    start: usize,
    end: usize,
    score: usize,
    lines: Vec<String>,
}

/// Writes the evidence of a child run: passages for `parts` parts, best first, then what is missing.
pub(super) fn write(listing: &Listing, judge: &Judge, parts: &[String], failures: &[String]) -> String {
    let hits: Vec<Vec<Hit>> =
        (0..parts.len()).map(|part| judge.hits(listing, part, CANDIDATES_MAX, &|_, _| 1)).collect();
    let not_found: Vec<String> = parts
        .iter()
        .zip(&hits)
        .filter(|(_, hits)| !hits.iter().any(|hit| hit.whole))
        .map(|(part, _)| part.clone())
        .collect();
    let notes = notes(not_found, failures);
    let mut room = EVIDENCE_BYTES_MAX - notes.len();
    let mut chosen: Vec<(Passage, String)> = Vec::new();
    // In turns, so that no part takes all the room.
    for place in 0..CANDIDATES_MAX {
        for hit in hits.iter().filter_map(|hits| hits.get(place)) {
            let is_known =
                |(held, _): &(Passage, String)| held.path == hit.path && (held.start..=held.end).contains(&hit.line);
            if chosen.iter().any(is_known) {
                continue;
            }
            let Some(passage) = passage(listing, hit, &chosen) else { continue };
            let Ok(text) = serde_json::to_string(&passage) else { continue };
            if text.len() < room {
                room -= text.len() + 1;
                chosen.push((passage, text));
            }
        }
    }
    chosen.sort_by(|(a, _), (b, _)| b.score.cmp(&a.score).then_with(|| (&a.path, a.start).cmp(&(&b.path, b.start))));
    let mut text: String = chosen.into_iter().map(|(_, text)| text + "\n").collect();
    text.push_str(&notes);
    text
}

/// The lines around a hit that are known, not given yet, and fit.
fn passage(listing: &Listing, hit: &Hit, chosen: &[(Passage, String)]) -> Option<Passage> {
    let file = listing.files().get(&hit.path)?;
    let range = file.around(hit.line, PASSAGE_LINES.0, PASSAGE_LINES.1);
    let is_given =
        |line: usize| chosen.iter().any(|(held, _)| held.path == hit.path && (held.start..=held.end).contains(&line));
    let bytes = |line: usize| file.lines.get(&line).map_or(0, |text| text.len().min(LINE_BYTES_MAX));
    let (mut start, mut end, mut room) = (hit.line, hit.line, PASSAGE_BYTES_MAX.saturating_sub(bytes(hit.line)));
    // What follows explains more than what precedes; one line before is worth two after.
    while end < *range.end() && !is_given(end + 1) && bytes(end + 1) <= room {
        end += 1;
        room -= bytes(end);
        let above = start - 1;
        if start > *range.start() && (end - hit.line) % 2 == 1 && !is_given(above) && bytes(above) <= room {
            start = above;
            room -= bytes(above);
        }
    }
    while start > *range.start() && !is_given(start - 1) && bytes(start - 1) <= room {
        start -= 1;
        room -= bytes(start);
    }
    let lines = (start..=end).filter_map(|line| file.lines.get(&line)).map(|text| cut(text, LINE_BYTES_MAX)).collect();
    Some(Passage { path: hit.path.clone(), start, end, score: hit.score, lines })
}

fn notes(not_found: Vec<String>, failures: &[String]) -> String {
    let mut text = String::new();
    let records = [
        (!not_found.is_empty()).then_some(Record::NotFound { not_found }),
        (!failures.is_empty()).then(|| Record::Failed { failed: failures.to_vec() }),
    ];
    for record in records.into_iter().flatten() {
        if let Ok(line) = serde_json::to_string(&record)
            && text.len() + line.len() < NOTES_BYTES_MAX
        {
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// What the child runs of a question gave, laid over each other.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// The lines, each once however many passages hold it.
    pub(super) listing: Listing,
    /// What failed, at most [`FAILURES_MAX`].
    pub(super) failures: Vec<String>,
    /// Whether any child run was told of.
    pub(super) has_children: bool,
    witnesses: BTreeMap<String, BTreeMap<usize, BTreeSet<usize>>>,
}

impl Evidence {
    /// Reads the output of a `task` call: for each child run a header line, then its text.
    pub(super) fn take_task_output(&mut self, output: &str, success: bool) {
        let mut child = 0;
        let mut failed_header: Option<&str> = None;
        let has_headers = output.lines().any(|line| child_header(line).is_some());
        self.has_children |= has_headers || success;
        if !success && !has_headers {
            self.note_failure(&format!("task: {}", first_line(output)));
        }
        for line in output.lines() {
            if let Some(ok) = child_header(line) {
                child += 1;
                failed_header = (!ok).then_some(line);
                if child > CHILDREN_MAX {
                    return;
                }
                continue;
            }
            let is_record = line.starts_with('{') && self.take_record(line, child);
            if !is_record && failed_header.is_some() && !line.trim().is_empty() {
                self.note_failure(&format!("child run {child}: {}", line.trim()));
                failed_header = None;
            }
        }
    }

    /// How many child runs gave this line.
    pub(super) fn agreement(&self, path: &str, line: usize) -> usize {
        self.witnesses.get(path).and_then(|lines| lines.get(&line)).map_or(0, BTreeSet::len)
    }

    /// Notes a failure once.
    pub(super) fn note_failure(&mut self, failure: &str) {
        let failure = cut(failure, FAILURE_BYTES_MAX);
        if self.failures.len() < FAILURES_MAX && !self.failures.contains(&failure) {
            self.failures.push(failure);
        }
    }

    fn take_record(&mut self, line: &str, child: usize) -> bool {
        if line.len() > RECORD_BYTES_MAX {
            return false;
        }
        match serde_json::from_str(line) {
            Ok(Record::Passage(passage)) => self.take_passage(&passage, child),
            Ok(Record::Failed { failed }) => failed.iter().for_each(|failure| self.note_failure(failure)),
            // The parent judges again what is missing, over the evidence of all.
            Ok(Record::NotFound { .. }) => {}
            Err(_) => return false,
        }
        true
    }

    fn take_passage(&mut self, passage: &Passage, child: usize) {
        let spans = passage.end.checked_sub(passage.start).map(|span| span + 1);
        if passage.start == 0 || spans != Some(passage.lines.len()) {
            return;
        }
        for (number, text) in (passage.start..).zip(&passage.lines) {
            if text.contains('\n') {
                return;
            }
            self.listing.put(&passage.path, number, text);
            if self.listing.files().get(&passage.path).is_some_and(|file| file.lines.contains_key(&number)) {
                let lines = self.witnesses.entry(passage.path.clone()).or_default();
                lines.entry(number).or_default().insert(child);
            }
        }
    }
}

/// Whether the child run of this header line succeeded; none for any other line.
fn child_header(line: &str) -> Option<bool> {
    let inner = line.trim_end().strip_prefix("--- Task ")?.strip_suffix(" ---")?;
    let (number, rest) = inner.split_once(' ')?;
    number.parse::<usize>().ok()?;
    match rest.rsplit_once(' ')?.1 {
        "[OK]" => Some(true),
        "[ERR]" => Some(false),
        _ => None,
    }
}

/// The first line that says something, cut.
pub(super) fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no reason was given");
    cut(line, FAILURE_BYTES_MAX)
}

/// A text cut to so many bytes, with a mark where something is missing.
pub(super) fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(bytes_max.saturating_sub('…'.len_utf8()))])
}

#[cfg(test)]
mod tests {
    use super::{EVIDENCE_BYTES_MAX, Evidence, Judge, Listing, child_header, cut, write};
    use crate::models::research::question::Question;

    fn listing(files: usize) -> Listing {
        let mut listing = Listing::default();
        for file in 0..files {
            for number in 1..=30 {
                let text = if number % 10 == 5 { "// the restart intensity of \"it\"" } else { "    let filler = 1;" };
                listing.put(&format!("src/file_{file:02}.rs"), number, text);
            }
        }
        listing
    }

    fn judge(text: &str) -> (Judge, Vec<String>) {
        let question = Question::split(text);
        let parts = question.focuses.iter().map(|focus| focus.text.clone()).collect();
        (Judge::new(&question.focuses.clone(), question), parts)
    }

    #[test]
    fn what_is_written_is_read_back_at_the_same_places() {
        let listing = listing(20);
        let (judge, parts) = judge("restart intensity and `absent_name`");
        let text = write(&listing, &judge, &parts, &["search: broken".to_owned()]);
        assert!(text.len() <= EVIDENCE_BYTES_MAX && text.len() > EVIDENCE_BYTES_MAX / 2, "{}", text.len());
        assert!(text.contains(r#"{"not_found":["absent_name"]}"#) && text.contains(r#"{"failed":["search: broken"]}"#));
        let mut evidence = Evidence::default();
        evidence.take_task_output(&format!("Ran 1 child run:\n\n--- Task 1 (explore) [OK] ---\n{text}"), true);
        assert!(evidence.has_children && evidence.failures == ["search: broken"]);
        let mut lines = 0;
        for (path, file) in evidence.listing.files() {
            for (number, line) in &file.lines {
                assert_eq!(listing.files()[path].lines[number], *line);
                lines += 1;
            }
        }
        assert!(lines > 20, "{lines}");
    }

    #[test]
    fn overlapping_passages_become_one_and_agreement_is_counted() {
        let one = r#"{"path":"a.rs","start":3,"end":4,"score":9,"lines":["three","four"]}"#;
        let two = r#"{"path":"a.rs","start":4,"end":5,"score":8,"lines":["four","five"]}"#;
        let output = format!("--- Task 1 (explore) [OK] ---\n{one}\n{one}\n\n--- Task 2 (explore) [OK] ---\n{two}\n");
        let mut evidence = Evidence::default();
        evidence.take_task_output(&output, true);
        assert_eq!(evidence.listing.files()["a.rs"].lines.len(), 3);
        assert_eq!((3..=6).map(|line| evidence.agreement("a.rs", line)).collect::<Vec<_>>(), [1, 2, 1, 0]);
    }

    #[test]
    fn cut_and_false_records_are_dropped_and_failures_kept() {
        let output = "--- Task 1 (explore) [OK] ---\n{\"path\":\"a.rs\",\"start\":1,\"end\":1,\"sco\n[... 812 bytes left out]\n\
             ne\"]}\n{\"path\":\"a.rs\",\"start\":9,\"end\":7,\"score\":1,\"lines\":[\"x\"]}\n\
             {\"path\":\"a.rs\",\"start\":0,\"end\":0,\"score\":1,\"lines\":[\"x\"]}\n\
             {\"path\":\"\",\"start\":1,\"end\":1,\"score\":1,\"lines\":[\"x\"]}\n\
             {\"path\":\"b.rs\",\"start\":1,\"end\":1,\"score\":1,\"lines\":[\"kept\"]}\n\
             --- Task 2 (explore) [ERR] ---\n\nthe budget is used up\nmore\n";
        let mut evidence = Evidence::default();
        evidence.take_task_output(output, false);
        assert_eq!(evidence.listing.files().keys().collect::<Vec<_>>(), ["b.rs"]);
        assert_eq!(evidence.failures, ["child run 2: the budget is used up"]);

        let mut refused = Evidence::default();
        refused.take_task_output("task: refused by rule deny-all\n", false);
        assert!(!refused.has_children);
        assert_eq!(refused.failures, ["task: task: refused by rule deny-all"]);
    }

    #[test]
    fn headers_are_told_from_text() {
        assert_eq!(child_header("--- Task 12 (explore) [OK] ---"), Some(true));
        assert_eq!(child_header("--- Task 1 (a b) [ERR] ---"), Some(false));
        for other in
            ["--- Task x (explore) [OK] ---", "--- a.rs ---", "--- Task 1 (explore) ---", " --- Task 1 (e) [OK] ---"]
        {
            assert_eq!(child_header(other), None, "{other}");
        }
        assert_eq!((cut("abc", 3), cut("界界界", 7)), ("abc".to_owned(), "界…".to_owned()));
    }
}
