//! Mode bm25: the passages that say most about the words of a question.

use std::cell::Cell;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::entries::{Ground, walk_of};
use super::notes::Notes;
use super::{Anchors, Request, Step, wrong};
use crate::outcome::ToolOutcome;
use crate::search::bm25::{B, K1, PATH_WEIGHT, Query, SYMBOL_WEIGHT, TEST_FACTOR};
use crate::search::passages::{
    CORPUS_BYTES_MAX, CORPUS_FILES_MAX, Candidate, Known, Passage, PassageOptions, Passed, RankingFacts, rank,
};
use crate::search::ranked_text::is_oversized;
use crate::search::stop::Stop;
use crate::search::tree::{Content, Leaf, TreeWalk, entry_of};
use crate::search::trigram::{Candidates, View};
use crate::search::walk::{WalkCounts, WalkOptions};
use crate::workspace_path::WorkspacePath;

/// Passages given when no limit is asked for.
pub(super) const PASSAGES_DEFAULT: usize = 10;
/// Most passages given; a larger limit is lowered to it.
pub(super) const PASSAGES_MAX: usize = 25;
/// Lines around the telling ones when nothing is asked for.
pub(super) const CONTEXT_LINES_DEFAULT: usize = 2;
/// Most lines around them; a larger number is lowered to it.
pub(super) const CONTEXT_LINES_MAX: usize = 8;

/// Most files of one ranking whose words are asked to be kept.
const UNREAD_MAX: usize = 4096;

/// Takes the query apart.
pub(super) fn query(text: &str) -> Step<Query> {
    Query::new(text).map_err(|error| wrong(error.to_string()))
}

/// Searches and reports.
pub(super) fn search(request: &Request, query: &Query, limit: Option<u64>, stop: &Stop) -> Step<ToolOutcome> {
    let walk_options = WalkOptions { hidden: request.include_wants_hidden(), ..WalkOptions::default() };
    let mut ground = Ground::of(request, walk_options)?;
    let requested = limit.map_or(PASSAGES_DEFAULT, |limit| usize::try_from(limit).unwrap_or(PASSAGES_MAX));
    let options = PassageOptions {
        limit: requested.min(PASSAGES_MAX),
        context: request.context.unwrap_or(CONTEXT_LINES_DEFAULT).min(CONTEXT_LINES_MAX),
    };
    let (files, start) = (request.files.as_ref(), ground.start().clone());
    let (passages, facts, counts) = match &mut ground {
        Ground::Walk { walk, .. } => {
            let mut all =
                walk.by_ref().filter(|entry| request.wants(entry.path.as_bytes(), &start)).map(Candidate::from);
            let (passages, facts) = rank(files, &mut all, &Cell::default(), query, options, stop);
            if let Some(index) = &request.index {
                index.want_words(Vec::new());
            }
            (passages, facts, walk.counts())
        }
        Ground::View { view, start, below } => {
            let (view, start, passed) = (&*view, &*start, Cell::default());
            let mut all = Ranked {
                request,
                query,
                candidates: view.candidates(&query.requirement()),
                walk: walk_of(view.tree(), start, below.clone()),
                view,
                start,
                passed: &passed,
                unread: Vec::new(),
            };
            let (passages, facts) = rank(files, &mut all, &passed, query, options, stop);
            let (unread, counts) = (all.unread, all.walk.counts());
            if let Some(index) = request.index.as_ref().filter(|_| !unread.is_empty()) {
                index.want_words(unread);
            }
            (passages, facts, counts)
        }
    };
    let notes =
        Notes { files: facts.read_files, links: facts.links, oversized: facts.oversized_files, ..Notes::default() };
    let text = render(&passages, &facts, query, &notes, &counts);
    let mut anchors = Anchors::default();
    for passage in &passages {
        anchors.add(&passage.path);
    }
    let truncated = counts.truncated || facts.candidate_truncated || facts.cut_files > 0;
    Ok(ToolOutcome::success(text)
        .with("algorithm", "bm25")
        .with(
            "parameters",
            json!({
                "k1": K1, "b": B, "symbol_weight": SYMBOL_WEIGHT, "path_weight": PATH_WEIGHT,
                "test_factor": TEST_FACTOR, "requested_limit": requested, "applied_limit": options.limit,
                "context": options.context,
            }),
        )
        .with("query_terms", json!(query.terms()))
        .with(
            "candidate_search",
            json!({
                "matching_files": facts.matching_files,
                "selected_files": facts.selected_files,
                "backend_truncated": counts.truncated,
                "candidate_truncated": facts.candidate_truncated,
                "used_glob_fallback": false,
            }),
        )
        .with(
            "scan",
            json!({
                "read_files": facts.read_files,
                "failed_reads": facts.failed_reads,
                "oversized_files": facts.oversized_files,
                "binary_files": facts.binary_files,
                "scanned_bytes": facts.scanned_bytes,
                "scored_chunks": facts.scored_passages,
                "truncated": truncated,
            }),
        )
        .with("source_anchors", json!(anchors.0))
        .with("results", passages.iter().map(result_of).collect::<Value>())
        .with("returned_results", passages.len())
        .with("left_out", notes.facts(&counts)))
}

/// The files of a view, with what is known of them.
struct Ranked<'a> {
    request: &'a Request,
    query: &'a Query,
    view: &'a View,
    candidates: Candidates,
    walk: TreeWalk<'a>,
    start: &'a WorkspacePath,
    /// Files since the last one that was handed out.
    passed: &'a Cell<Passed>,
    /// Files that must be read because their words are not kept.
    unread: Vec<WorkspacePath>,
}

impl Iterator for Ranked<'_> {
    type Item = Candidate;

    fn next(&mut self) -> Option<Candidate> {
        loop {
            let leaf = self.walk.next_leaf()?;
            if self.request.include.is_some() && !self.request.wants(self.walk.path(), self.start) {
                continue;
            }
            let known = match leaf {
                Leaf::File(content) => self.known(leaf, content),
                Leaf::Link => Known::Nothing,
            };
            if let Known::Without(extent) = known
                && !self.query.may_be_in_path(self.walk.path())
            {
                let mut passed = self.passed.get();
                passed.add(extent);
                self.passed.set(passed);
                continue;
            }
            let entry = entry_of(self.walk.path(), leaf);
            return Some(Candidate { entry, known, passed: self.passed.take() });
        }
    }
}

impl Ranked<'_> {
    fn known(&mut self, leaf: Leaf, content: Content) -> Known {
        let Some(extent) = self.view.extent_of(content) else { return Known::Nothing };
        let files = &self.request.files;
        // What this session may not see is met as every session meets it.
        if files.is_guarded() && files.may_read(&entry_of(self.walk.path(), leaf).path).is_err() {
            return Known::Nothing;
        }
        if is_oversized(extent) {
            return Known::Oversized;
        }
        if matches!(content, Content::Indexed { binary: true, .. }) {
            return Known::Binary;
        }
        if !self.candidates.may_hold(content) {
            return Known::Without(extent);
        }
        match self.view.words_of(content) {
            Some(words) => Known::Words(words),
            None => {
                if self.unread.len() < UNREAD_MAX {
                    self.unread.push(entry_of(self.walk.path(), leaf).path);
                }
                Known::Nothing
            }
        }
    }
}

/// The passages, best first, a blank line between them; then what was left out.
fn render(passages: &[Passage], facts: &RankingFacts, query: &Query, notes: &Notes, counts: &WalkCounts) -> String {
    let mut text = String::new();
    for passage in passages {
        let end = passage.shown_from + passage.shown.len() - 1;
        let _ = writeln!(text, "{}:{}-{end} (score {:.3})", passage.path, passage.shown_from, passage.score);
        for (at, line) in passage.shown.iter().enumerate() {
            let _ = writeln!(text, "{:>6}\t{line}", passage.shown_from + at);
        }
        text.push('\n');
    }
    if passages.is_empty() {
        let _ = writeln!(text, "No passage holds any of the words {}", query.terms().join(", "));
    }
    if facts.candidate_truncated {
        let (scored, all) = (facts.selected_files, facts.matching_files);
        let _ = writeln!(
            text,
            "[{scored} of {all} files with these words were scored, the most promising ones (at most \
             {CORPUS_FILES_MAX} files and {} MiB); narrow with path, include or rarer words]",
            CORPUS_BYTES_MAX / (1024 * 1024)
        );
    }
    if facts.cut_files > 0 {
        let _ = writeln!(text, "[only the first part of {} long files was scored]", facts.cut_files);
    }
    if facts.binary_files + facts.failed_reads > 0 {
        let (binary, failed) = (facts.binary_files, facts.failed_reads);
        let _ = writeln!(text, "[not ranked: {binary} binary files, {failed} that could not be read]");
    }
    if query.terms_left_out > 0 {
        let _ = writeln!(text, "[{} words of the query were not used]", query.terms_left_out);
    }
    text.push_str(&notes.lines(counts));
    // Between the last passage and nothing no blank line is needed.
    text.truncate(text.trim_end_matches('\n').len());
    text.push('\n');
    text
}

fn result_of(passage: &Passage) -> Value {
    json!({
        "path": passage.path.to_string(),
        "start_line": passage.shown_from,
        "end_line": passage.shown_from + passage.shown.len() - 1,
        "chunk_start_line": passage.lines.0,
        "chunk_end_line": passage.lines.1,
        "score": passage.score,
    })
}
