//! Finds the passages of a tree that answer a query best: walks, reads, scores, and cuts out what to show.
//!
//! Every file is looked at once, however many there are: read, unless something is known of it that says the same. The
//! limits of the corpus decide how many of those that hold a word of the query are scored, the most promising first; what
//! the limits cost is told.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use crate::effects::files::{FileKind, Files, FolderEntry};
use crate::search::bm25::{FileEvidence, Query, Totals, passages_of};
use crate::search::grep::clamp_to;
use crate::search::ranked_text::{ReadError, read_text};
use crate::search::scan::scan;
use crate::search::stop::Stop;
use crate::search::text::Extent;
use crate::search::words::{FileWords, PASSAGE_LINES};
use crate::text::lossy;
use crate::workspace_path::WorkspacePath;

/// Most files that are scored.
pub const CORPUS_FILES_MAX: usize = 256;
/// Most text that is scored, in bytes.
pub const CORPUS_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Most passages of one file among the results.
pub const RESULTS_PER_FILE_MAX: usize = 2;
/// Longest line that is shown, in bytes.
pub const SHOWN_LINE_BYTES_MAX: usize = 500;
/// Most lines shown of a passage.
pub const WINDOW_LINES_MAX: usize = 20;
/// Files with evidence that are kept while the walk goes on; beyond it the less promising half is dropped.
const KEPT_FILES_MAX: usize = 8192;

/// How much to give back.
#[derive(Debug, Clone, Copy)]
pub struct PassageOptions {
    /// Most passages given back.
    pub limit: usize,
    /// Lines shown around the best ones.
    pub context: usize,
}

/// A file to be ranked.
#[derive(Debug)]
pub struct Candidate {
    /// It, or a link.
    pub entry: FolderEntry,
    /// What is known of it.
    pub known: Known,
    /// Files before it of which nothing but their size counts.
    pub passed: Passed,
}

impl From<FolderEntry> for Candidate {
    fn from(entry: FolderEntry) -> Self {
        Self { entry, known: Known::Nothing, passed: Passed::default() }
    }
}

/// What is known of a file as it is now.
#[derive(Debug)]
pub enum Known {
    /// Nothing: it must be read.
    Nothing,
    /// Its words.
    Words(Arc<FileWords>),
    /// That its text holds no word of the query.
    Without(Extent),
    /// That it is binary.
    Binary,
    /// That it is too large.
    Oversized,
}

/// Files that hold no word of the query, neither in their text nor in their path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Passed {
    /// How many.
    pub files: u64,
    /// Their passages.
    pub passages: usize,
    /// Bytes of their text.
    pub bytes: u64,
}

impl Passed {
    /// Counts one more.
    pub fn add(&mut self, extent: Extent) {
        self.files += 1;
        self.passages += passages_of(extent);
        self.bytes += u64::from(extent.text_bytes);
    }
}

/// A passage that answers the query.
#[derive(Debug, Clone, PartialEq)]
pub struct Passage {
    /// The file.
    pub path: WorkspacePath,
    /// The passage's first and last line, from 1.
    pub lines: (usize, usize),
    /// Higher is better.
    pub score: f64,
    /// The number of the first line shown, from 1.
    pub shown_from: usize,
    /// The lines shown, each at most [`SHOWN_LINE_BYTES_MAX`] bytes.
    pub shown: Vec<String>,
}

/// What a ranking looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankingFacts {
    /// Files that hold a word of the query in their text or path.
    pub matching_files: usize,
    /// Files that were scored.
    pub selected_files: usize,
    /// Whether files that match were not scored.
    pub candidate_truncated: bool,
    /// Files that were read.
    pub read_files: u64,
    /// Files that could not be read.
    pub failed_reads: u64,
    /// Files left out for their size.
    pub oversized_files: u64,
    /// Files left out for a NUL in them.
    pub binary_files: u64,
    /// Links, which are not followed.
    pub links: u64,
    /// Files of which only the first passages were scored.
    pub cut_files: u64,
    /// Bytes of text read.
    pub scanned_bytes: u64,
    /// Passages scored.
    pub scored_passages: usize,
}

/// Ranks these files, in path order; `passed_last` tells of those behind the last one when they have come to their end.
/// All that went by is counted in the same order whatever is known, so knowing more changes no score.
pub fn rank(
    files: &dyn Files,
    candidates: &mut dyn Iterator<Item = Candidate>,
    passed_last: &Cell<Passed>,
    query: &Query,
    options: PassageOptions,
    stop: &Stop,
) -> (Vec<Passage>, RankingFacts) {
    let mut corpus = Corpus::default();
    let new_worker = || {
        let mut buffer = Vec::new();
        move |candidate: &Candidate| (candidate.passed, examine(files, candidate, query, &mut buffer, stop))
    };
    scan(candidates, stop, &new_worker, |(passed, examined)| {
        corpus.pass(passed);
        corpus.take(query, examined);
        ControlFlow::Continue(())
    });
    corpus.pass(passed_last.get());
    corpus.best(files, query, options, stop)
}

/// What became of one file.
enum Examined {
    Read { path: WorkspacePath, passages: usize, bytes: u64, evidence: Option<Box<FileEvidence>> },
    Oversized,
    Binary,
    Failed,
    Gone,
    Link,
}

fn examine(files: &dyn Files, candidate: &Candidate, query: &Query, buffer: &mut Vec<u8>, stop: &Stop) -> Examined {
    let entry = &candidate.entry;
    if entry.kind == FileKind::Link {
        return Examined::Link;
    }
    let read = |extent: Extent, (passages, evidence): (usize, Option<FileEvidence>)| {
        let bytes = u64::from(extent.text_bytes);
        Examined::Read { path: entry.path.clone(), passages, bytes, evidence: evidence.map(Box::new) }
    };
    match &candidate.known {
        Known::Nothing => {}
        Known::Words(words) => return read(words.extent(), query.examine_words(&entry.path.to_string(), words)),
        Known::Without(extent) => return read(*extent, query.examine_without(&entry.path.to_string(), *extent)),
        Known::Binary => return Examined::Binary,
        Known::Oversized => return Examined::Oversized,
    }
    let text = match read_text(files, &entry.path, buffer, stop) {
        Ok(Some(text)) => text,
        Ok(None) => return Examined::Binary,
        Err(ReadError::Oversized) => return Examined::Oversized,
        Err(ReadError::Gone) => return Examined::Gone,
        Err(ReadError::Failed) => return Examined::Failed,
    };
    let (passages, evidence) = query.examine(&entry.path.to_string(), text);
    let evidence = evidence.map(Box::new);
    Examined::Read { path: entry.path.clone(), passages, bytes: text.len() as u64, evidence }
}

/// The files that hold a word of the query.
#[derive(Default)]
struct Corpus {
    kept: Vec<(WorkspacePath, Box<FileEvidence>)>,
    totals: Totals,
    facts: RankingFacts,
}

impl Corpus {
    fn pass(&mut self, passed: Passed) {
        self.facts.read_files += passed.files;
        self.facts.scanned_bytes += passed.bytes;
        self.totals.add(passed.passages, passed.bytes, None);
    }

    fn take(&mut self, query: &Query, examined: Examined) {
        match examined {
            Examined::Oversized => self.facts.oversized_files += 1,
            Examined::Binary => self.facts.binary_files += 1,
            Examined::Failed => self.facts.failed_reads += 1,
            Examined::Link => self.facts.links += 1,
            Examined::Gone => {}
            Examined::Read { path, passages, bytes, evidence } => {
                self.facts.read_files += 1;
                self.facts.scanned_bytes += bytes;
                self.totals.add(passages, bytes, evidence.as_deref());
                let Some(evidence) = evidence else { return };
                self.facts.matching_files += 1;
                self.kept.push((path, evidence));
                if self.kept.len() >= KEPT_FILES_MAX {
                    self.keep_the_promising(query, KEPT_FILES_MAX / 2, u64::MAX);
                }
            }
        }
    }

    /// Drops all but the most promising files; what is left is again in path order.
    fn keep_the_promising(&mut self, query: &Query, files_max: usize, bytes_max: u64) {
        let rarity = self.totals.rarity(query.terms().len());
        let mut promises: Vec<(f64, usize)> =
            self.kept.iter().enumerate().map(|(at, (_, evidence))| (query.promise(evidence, &rarity), at)).collect();
        promises.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        let mut bytes = 0;
        let mut stays = vec![false; self.kept.len()];
        for (_, at) in promises.into_iter().take(files_max) {
            bytes += self.kept[at].1.bytes;
            if bytes > bytes_max {
                break;
            }
            stays[at] = true;
        }
        let mut at = 0;
        self.kept.retain(|_| {
            at += 1;
            stays[at - 1]
        });
    }

    fn best(
        mut self,
        files: &dyn Files,
        query: &Query,
        options: PassageOptions,
        stop: &Stop,
    ) -> (Vec<Passage>, RankingFacts) {
        self.keep_the_promising(query, CORPUS_FILES_MAX, CORPUS_BYTES_MAX);
        let rarity = self.totals.rarity(query.terms().len());
        let evidence: Vec<&FileEvidence> = self.kept.iter().map(|(_, evidence)| evidence.as_ref()).collect();
        let mut scored = query.score(&evidence, &rarity, &self.totals);
        scored.sort_by(|one, other| {
            let place = (one.file, one.passage).cmp(&(other.file, other.passage));
            other.score.total_cmp(&one.score).then(place)
        });
        self.facts.selected_files = self.kept.len();
        self.facts.candidate_truncated = self.facts.matching_files > self.kept.len();
        self.facts.cut_files = evidence.iter().filter(|evidence| evidence.cut).count() as u64;
        self.facts.scored_passages = scored.len();
        let mut per_file = vec![0_usize; self.kept.len()];
        let mut passages = Vec::new();
        let mut buffer = Vec::new();
        for result in scored {
            if passages.len() == options.limit || stop.is_given() {
                break;
            }
            if per_file[result.file] == RESULTS_PER_FILE_MAX {
                continue;
            }
            per_file[result.file] += 1;
            let path = &self.kept[result.file].0;
            // It was readable a moment ago; when it is not now, the next best takes its place.
            if let Ok(Some(text)) = read_text(files, path, &mut buffer, stop) {
                passages.extend(cut_out(path, text, result.passage, query, &rarity, options.context, result.score));
            }
        }
        (passages, self.facts)
    }
}

/// The part of a passage to show; none when the file has become shorter than that.
fn cut_out(
    path: &WorkspacePath,
    text: &[u8],
    passage: usize,
    query: &Query,
    rarity: &[f64],
    context: usize,
    score: f64,
) -> Option<Passage> {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let first = passage * PASSAGE_LINES;
    let lines: Vec<&[u8]> = body.split(|byte| *byte == b'\n').skip(first).take(PASSAGE_LINES).collect();
    if lines.is_empty() {
        return None;
    }
    let printed = path.to_string();
    let weights: Vec<f64> = lines.iter().map(|line| query.line_weight(&lossy(line), &printed, rarity)).collect();
    let (from, to) = window(&weights, context);
    Some(Passage {
        path: path.clone(),
        lines: (first + 1, first + lines.len()),
        score,
        shown_from: first + from + 1,
        shown: lines[from..to].iter().map(|line| clamp_to(line, 0, SHOWN_LINE_BYTES_MAX)).collect(),
    })
}

/// The range of lines to show: the densest group of telling lines, with lines around it.
fn window(weights: &[f64], context: usize) -> (usize, usize) {
    let group_max = WINDOW_LINES_MAX.saturating_sub(2 * context).max(1);
    // Weight counts, and so does being close together.
    let density = |from: usize, to: usize| {
        let sum: f64 = weights[from..to].iter().sum();
        sum / ((to - from) as f64 + 4.0)
    };
    let mut best = (0, 1.min(weights.len()));
    for from in 0..weights.len() {
        if weights[from] == 0.0 {
            continue;
        }
        for to in from + 1..=weights.len().min(from + group_max) {
            if weights[to - 1] > 0.0 && density(from, to) > density(best.0, best.1) {
                best = (from, to);
            }
        }
    }
    let from = best.0.saturating_sub(context);
    let least = from + (2 * context + 1).min(WINDOW_LINES_MAX);
    (from, (best.1 + context).max(least).min(from + WINDOW_LINES_MAX).min(weights.len()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{CORPUS_FILES_MAX, Candidate, Passage, PassageOptions, RankingFacts, WINDOW_LINES_MAX, rank, window};
    use crate::search::bm25::Query;
    use crate::search::stop::Stop;
    use crate::search::twin::{TreeTwin, at};
    use crate::search::walk::{Walk, WalkOptions};

    fn ranked(twin: &TreeTwin, query: &str, limit: usize) -> (Vec<Passage>, RankingFacts) {
        let mut walk = Walk::start(twin, &at("."), WalkOptions::default()).unwrap();
        let options = PassageOptions { limit, context: 2 };
        let mut candidates = walk.by_ref().map(Candidate::from);
        rank(twin, &mut candidates, &Cell::default(), &Query::new(query).unwrap(), options, &Stop::default())
    }

    #[test]
    fn candidates_are_chosen_by_content_not_by_name() {
        let twin = TreeTwin::default();
        for n in 0..CORPUS_FILES_MAX * 2 {
            twin.put(&format!("a{n:04}.rs"), b"fn common() {}\n");
        }
        twin.put("zz/last.rs", b"fn common_needle() {}\n");
        twin.put("zz/none.rs", b"fn other() {}\n");
        let (passages, facts) = ranked(&twin, "common needle", 10);
        assert_eq!(passages[0].path.to_string(), "zz/last.rs");
        assert_eq!((facts.matching_files, facts.selected_files), (CORPUS_FILES_MAX * 2 + 1, CORPUS_FILES_MAX));
        assert!(facts.candidate_truncated);
        assert_eq!(passages.len(), 10);
        // Equal scores are ordered by path.
        assert!(passages[1..].is_sorted_by(|one, other| one.path < other.path));
    }

    #[test]
    fn limits_of_a_file_are_told() {
        let twin = TreeTwin::default();
        twin.put("big", &b"needle\n".repeat(80_000));
        twin.put("binary", b"needle\0");
        twin.refuse("closed");
        twin.link("link", "small");
        twin.put("small", &b"needle\n\n".repeat(200));
        let (passages, facts) = ranked(&twin, "needle", 10);
        assert_eq!((facts.oversized_files, facts.binary_files, facts.failed_reads, facts.links), (1, 1, 1, 1));
        // At most two passages of one file.
        assert_eq!(passages.len(), 2);
        assert!(passages.iter().all(|passage| passage.shown.len() <= WINDOW_LINES_MAX));
    }

    #[test]
    fn the_window_holds_the_densest_lines() {
        let mut weights = vec![0.0; 80];
        weights[10] = 1.0;
        weights[50] = 2.0;
        weights[53] = 2.0;
        assert_eq!(window(&weights, 2), (48, 56));
        assert_eq!(window(&weights, 8), (42, 62));
        assert_eq!(window(&[0.0, 0.0], 2), (0, 2));
        assert_eq!(window(&[1.0], 0), (0, 1));
        assert!(window(&[1.0; 80], 8).1 <= WINDOW_LINES_MAX);
    }
}
