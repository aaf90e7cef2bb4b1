//! A timeline as a trace that `ui.perfetto.dev` and `chrome://tracing` read: JSON in the trace event format.
//!
//! A node is a thread, virtual time is time. Perfetto draws what lasts no time as nothing, so every step is given a
//! microsecond of its own: moments within one virtual microsecond stand in their order beside each other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::sign::SpanKind;

use super::Timeline;

/// The trace as JSON.
pub fn trace(scenario: &str, timeline: &Timeline) -> String {
    let at = places(&timeline.steps);
    let place = |step: usize| at.get(step).copied().unwrap_or(0);
    let threads: BTreeMap<_, _> = timeline.places();
    let mut events: Vec<Value> =
        vec![json!({ "ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": { "name": scenario } })];
    for (thread, row) in timeline.rows.iter().enumerate() {
        let name = format!("{}{}", "\u{b7} ".repeat(row.depth), row.label);
        events.push(json!({ "ph": "M", "pid": 1, "tid": thread, "name": "thread_name", "args": { "name": name } }));
        let order = json!({ "ph": "M", "pid": 1, "tid": thread, "name": "thread_sort_index", "args": { "sort_index": thread } });
        events.push(order);
        let mut spans = row.spans.clone();
        spans.sort_by_key(|span| (span.from, span.what));
        for span in spans {
            let (from, to) = (place(span.from), place(span.to));
            let name = match span.what {
                SpanKind::Life => row.ending.as_deref().unwrap_or("lives"),
                other => other.words(),
            };
            events.push(json!({
                "ph": "X", "pid": 1, "tid": thread, "ts": from, "dur": to.saturating_sub(from).max(1),
                "name": name, "cat": span.what.as_str(),
            }));
        }
        for mark in &row.marks {
            events.push(json!({
                "ph": "i", "s": "t", "pid": 1, "tid": thread, "ts": place(mark.step), "name": mark.words,
            }));
        }
    }
    for (number, arrow) in timeline.arrows.iter().enumerate() {
        let (Some(from), Some(to)) = (threads.get(&arrow.from), threads.get(&arrow.to)) else { continue };
        let ts = place(arrow.step);
        let flow = |ph: &str, tid: &usize| {
            json!({
                "ph": ph, "bp": "e", "pid": 1, "tid": tid, "ts": ts, "id": number, "name": arrow.words,
                "cat": "message",
            })
        };
        events.extend([flow("s", from), flow("f", to)]);
    }
    json!({ "displayTimeUnit": "ms", "traceEvents": events }).to_string()
}

/// A microsecond for each step, never two the same.
fn places(steps: &[Duration]) -> Vec<u64> {
    let mut last = None;
    let place = steps.iter().map(|at| {
        let wanted = u64::try_from(at.as_micros()).unwrap_or(u64::MAX);
        let place = last.map_or(wanted, |last: u64| wanted.max(last + 1));
        last = Some(place);
        place
    });
    place.collect()
}
