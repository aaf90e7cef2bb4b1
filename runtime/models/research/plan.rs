//! The calls of a child run: what to search for, what to search for when that found nothing, and what to read.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::evidence::cut;
use super::focus::Focus;
use super::judge::{Hit, Judge};
use super::listing::Listing;
use super::question::Question;
use super::term::terms;

/// Most searches of one turn.
const SEARCHES_MAX: usize = 16;
/// Most terms of a ranked search; the tool takes at most 32, and may count pairs of characters otherwise.
const QUERY_TERMS_MAX: usize = 24;
/// Longest query of a ranked search, in bytes; the tool takes at most 2048.
const QUERY_BYTES_MAX: usize = 1000;
/// Results of a ranked search.
const RANKED_LIMIT: usize = 10;
/// Lines shown around a match.
const MATCH_CONTEXT: usize = 2;
/// Most files of one read.
const READ_FILES_MAX: usize = 8;
/// Most places looked at for each part when files are chosen.
const PLACES_MAX: usize = 6;
/// Lines read before and after the one that matters.
const READ_LINES: (usize, usize) = (12, 28);
/// Most lines read of one file.
const READ_LINES_MAX: usize = 120;
/// Most output of a read, in bytes.
const READ_BYTES_MAX: usize = 48 * 1024;

/// The first searches: ranked ones for the parts and for the whole question, exact ones for each part.
pub(super) fn first_searches(focuses: &[Focus], question: &Question) -> Vec<Value> {
    let texts = |focuses: &[Focus]| focuses.iter().map(|focus| focus.text.clone()).collect::<Vec<_>>();
    let mut searches = Vec::new();
    let own = query(&texts(focuses));
    searches.extend(own.as_deref().map(ranked));
    let mut all = texts(&question.focuses);
    all.extend(question.aspects.iter().cloned());
    searches.extend(query(&all).filter(|query| own.as_ref() != Some(query)).as_deref().map(ranked));
    searches.extend(focuses.iter().map(|focus| exact(&focus.pattern())));
    // Common words fill the output of an exact search before it comes to the definition.
    searches.extend(focuses.iter().filter_map(Focus::definition_pattern).map(|pattern| exact(&pattern)));
    searches.truncate(SEARCHES_MAX);
    searches
}

/// The second searches, for parts that were not found: single words, stems, pairs of characters.
pub(super) fn loose_searches(focuses: &[&Focus]) -> Vec<Value> {
    let mut searches = Vec::new();
    for focus in focuses {
        searches.extend(query(&[focus.loose_query()]).as_deref().map(ranked));
        searches.extend(focus.loose_pattern().as_deref().map(exact));
    }
    searches.truncate(SEARCHES_MAX);
    searches
}

/// The read of the best places, one window a file; none when nothing was found.
pub(super) fn read(listing: &Listing, judge: &Judge, parts: usize) -> Option<Value> {
    let hits: Vec<Vec<Hit>> = (0..parts).map(|part| judge.hits(listing, part, PLACES_MAX, &|_, _| 1)).collect();
    let mut windows: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    // In turns, so that every part gets its best place read.
    for place in 0..PLACES_MAX {
        for hit in hits.iter().filter_map(|hits| hits.get(place)) {
            let start = hit.line.saturating_sub(READ_LINES.0).max(1);
            let end = hit.line.saturating_add(READ_LINES.1);
            let order = windows.len();
            match windows.get_mut(hit.path.as_str()) {
                Some((_, held_start, held_end)) => {
                    let (wide_start, wide_end) = ((*held_start).min(start), (*held_end).max(end));
                    if wide_end - wide_start < READ_LINES_MAX {
                        (*held_start, *held_end) = (wide_start, wide_end);
                    }
                }
                None if order < READ_FILES_MAX => {
                    windows.insert(&hit.path, (order, start, end));
                }
                None => {}
            }
        }
    }
    // The tool stops at the first file that does not fit, so the best comes first.
    let mut ordered: Vec<_> = windows.into_iter().collect();
    ordered.sort_by_key(|(_, (order, _, _))| *order);
    let file = |(path, (_, start, end)): (&str, (usize, usize, usize))| json!({"path": path, "offset": start - 1, "limit": end - start + 1});
    let files: Vec<Value> = ordered.into_iter().map(file).collect();
    (!files.is_empty()).then(|| json!({"files": files, "max_output_bytes": READ_BYTES_MAX}))
}

/// A query within the tool's bounds; none without a term.
fn query(texts: &[String]) -> Option<String> {
    let mut kept = String::new();
    let mut room = QUERY_TERMS_MAX;
    for text in texts {
        let count = terms(text, QUERY_TERMS_MAX + 1).len();
        if count == 0 || count > room || kept.len() + text.len() >= QUERY_BYTES_MAX {
            continue;
        }
        room -= count;
        if !kept.is_empty() {
            kept.push(' ');
        }
        kept.push_str(text);
    }
    if kept.is_empty() {
        // One part with more terms than a query takes.
        let first = texts.iter().find(|text| !terms(text, 1).is_empty())?;
        kept = cut(first, QUERY_TERMS_MAX).trim_end_matches('…').to_owned();
    }
    Some(kept)
}

fn ranked(query: &str) -> Value {
    json!({"mode": "bm25", "query": query, "limit": RANKED_LIMIT})
}

fn exact(pattern: &str) -> Value {
    json!({
        "mode": "grep",
        "query": pattern,
        "case_sensitive": false,
        "output_mode": "content",
        "context": MATCH_CONTEXT,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Judge, Listing, QUERY_BYTES_MAX, READ_FILES_MAX, SEARCHES_MAX, first_searches, loose_searches, read};
    use crate::models::research::question::Question;

    #[test]
    fn parts_are_searched_by_rank_and_exactly() {
        let question = Question::split("where is the restart intensity decided in ChildSpec?");
        let searches = first_searches(&question.focuses[..1], &question);
        assert_eq!(searches[0], json!({"mode": "bm25", "query": "restart intensity", "limit": 10}));
        assert_eq!(searches[1]["query"], "restart intensity ChildSpec decid");
        assert_eq!((&searches[2]["mode"], &searches[2]["case_sensitive"]), (&json!("grep"), &json!(false)));
        assert_eq!(searches.len(), 4);
    }

    #[test]
    fn any_question_gives_searches_within_the_tool_s_bounds() {
        let long = "alpha beta gamma delta, ".repeat(50) + &"缓存服务读取配置".repeat(40) + " `a_b` \"x y z\"";
        let mut question = Question::split(&long);
        question.focuses.extend(Question::split(&"界隈".repeat(60)).focuses);
        let focuses: Vec<_> = question.focuses.iter().collect();
        for searches in [first_searches(&question.focuses, &question), loose_searches(&focuses)] {
            assert!(!searches.is_empty() && searches.len() <= SEARCHES_MAX);
            for search in searches {
                let query = search["query"].as_str().unwrap();
                assert!(!query.trim().is_empty() && query.len() <= QUERY_BYTES_MAX, "{query}");
            }
        }
    }

    #[test]
    fn each_file_is_read_once_and_the_best_first() {
        let question = Question::split("restart intensity");
        let judge = Judge::new(&question.focuses.clone(), question);
        let mut listing = Listing::default();
        assert_eq!(read(&listing, &judge, 1), None);
        for file in 0..20 {
            listing.put(&format!("f{file:02}.rs"), 40, "the restart intensity");
            listing.put(&format!("f{file:02}.rs"), 60, "the restart intensity again");
        }
        listing.put("z.rs", 3, "pub struct RestartIntensity {");
        let call = read(&listing, &judge, 1).unwrap();
        let files = call["files"].as_array().unwrap();
        assert!(files.len() <= READ_FILES_MAX);
        assert_eq!(files[0], json!({"path": "z.rs", "offset": 0, "limit": 31}));
        assert_eq!(files[1], json!({"path": "f00.rs", "offset": 27, "limit": 61}));
    }
}
