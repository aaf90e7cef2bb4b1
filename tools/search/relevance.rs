//! Asks the ranking about this crate's own sources, where the right file is known.
//!
//! Names may move with time, so most answers must be right, not all. This file is left out of the corpus, for it
//! holds the questions word by word.

use crate::search::bm25::Query;
use crate::search::passages::{PassageOptions, rank};
use crate::search::stop::Stop;
use crate::search::twin::at;
use crate::search::walk::{Walk, WalkOptions};
use crate::workspace::local::LocalFiles;

const QUESTIONS: [(&str, &str); 16] = [
    ("how does a tool see that it was cancelled", "cancellation.rs"),
    ("sha256 content digest", "digest.rs"),
    ("gitignore rules braces literal", "search/ignore_rules.rs"),
    ("compile json schema and explain validation errors", "schema.rs"),
    ("where are paths that climb above the root refused", "workspace_path.rs"),
    ("lane and capabilities of a tool", "tool.rs"),
    ("split identifiers into terms, stemming", "search/terms.rs"),
    ("monotonic clock port", "effects/clock.rs"),
    ("decode utf-16 byte order mark", "search/text.rs"),
    ("next cursor page limit", "pagination.rs"),
    ("register a builtin tool by name", "registry.rs"),
    ("walk folders in path order", "search/walk.rs"),
    ("start child runs delegate fan out policy", "context.rs"),
    ("remember what this session has read", "workspace/seen.rs"),
    ("spread files over threads in order", "search/scan.rs"),
    ("look-around and back-references unsupported", "search/grep.rs"),
];

#[test]
fn the_right_file_comes_first() {
    let (files, _) = LocalFiles::open(env!("CARGO_MANIFEST_DIR").as_ref()).unwrap();
    let (mut first, mut near) = (0, 0);
    let mut misses = Vec::new();
    for (question, answer) in QUESTIONS {
        let walk = Walk::start(&files, &at("."), WalkOptions::default()).unwrap();
        let mut walk = walk.filter(|entry| entry.path.name().is_none_or(|name| name != "relevance.rs"));
        let options = PassageOptions { start: at("."), include: None, limit: 10, context: 2 };
        let query = Query::new(question).unwrap();
        let (passages, _) = rank(&files, &mut walk, &query, &options, &Stop::default());
        let mut paths: Vec<String> = Vec::new();
        for passage in passages {
            let path = passage.path.to_string();
            if !paths.contains(&path) {
                paths.push(path);
            }
        }
        let place = paths.iter().position(|path| path == answer);
        first += usize::from(place == Some(0));
        near += usize::from(place.is_some_and(|place| place < 3));
        if place != Some(0) {
            misses.push((question, answer, paths));
        }
    }
    assert!(first * 10 >= QUESTIONS.len() * 8, "only {first} of {} first: {misses:#?}", QUESTIONS.len());
    assert!(near * 10 >= QUESTIONS.len() * 9, "only {near} of {} among three: {misses:#?}", QUESTIONS.len());
}
