//! A timeline as one page that needs nothing else: no script, no font, no address.
//!
//! Each node is a row under its parent; a step to the right is the next moment, a jump of virtual time is a gap, and
//! the moments are written above. Every text that comes from a run is escaped. How it looks is measured in a browser,
//! in `tests/command_line/timeline.rs`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use crate::narrative::moment_words;
use crate::sign::{MarkKind, SpanKind};

use super::{Row, Timeline};

/// Height of a row, in pixels.
const ROW_PX: usize = 22;
/// Above the first row, in pixels.
const HEAD_PX: usize = 40;
/// Width of a step, in pixels.
const STEP_PX: f64 = 5.0;
/// Width of the names, in pixels.
const NAMES_PX: usize = 210;
/// Width of a letter of a name, in pixels.
const LETTER_PX: usize = 7;
/// Behind the last step, in pixels.
const MARGIN_PX: f64 = 40.0;
/// Labels of moments stand at least so far apart, in pixels.
const LABELS_PX: f64 = 64.0;

/// The page.
pub fn page(scenario: &str, what: &str, about: &str, timeline: &Timeline) -> String {
    let mut page = String::with_capacity(256 * 1024);
    let places = Places::new(&timeline.steps);
    let title = format!("{} \u{b7} {}", escaped(scenario), escaped(what));
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n<h1>{title}</h1>\n\
         <p>{}</p>\n",
        escaped(about)
    );
    verdict(&mut page, timeline);
    legend(&mut page, timeline);
    page.push_str("<div class=\"picture\"><div class=\"names\">");
    names(&mut page, timeline);
    page.push_str("</div><div class=\"chart\">");
    chart(&mut page, timeline, &places);
    page.push_str("</div></div>\n");
    story(&mut page, timeline);
    page.push_str("</html>\n");
    page
}

/// Where steps stand, and where labels of moments do.
struct Places {
    x: Vec<f64>,
    labels: Vec<(f64, String)>,
    width: f64,
}

impl Places {
    fn new(steps: &[Duration]) -> Self {
        let (mut x, mut labels, mut at) = (Vec::with_capacity(steps.len()), Vec::new(), 14.0);
        let mut last: Option<Duration> = None;
        let mut labelled_at = -LABELS_PX;
        for step in steps {
            let gap = last.map_or(Duration::ZERO, |last| step.saturating_sub(last));
            // A jump of a second is three times as wide as one of a millisecond.
            at += STEP_PX + if gap.is_zero() { 0.0 } else { 6.0 + 4.0 * (1.0 + gap.as_secs_f64() * 1_000.0).ln() };
            if last.is_none_or(|last| last != *step) && at - labelled_at >= LABELS_PX {
                labels.push((at, moment_words(*step)));
                labelled_at = at;
            }
            last = Some(*step);
            x.push(at);
        }
        // The last moment is written to the right of where it stands.
        #[expect(clippy::cast_precision_loss, reason = "labels are short")]
        let written = labels.last().map_or(at, |(x, label)| x + (label.chars().count() * LETTER_PX) as f64);
        Self { x, labels, width: (at + MARGIN_PX).max(written) }
    }

    fn of(&self, step: usize) -> f64 {
        self.x.get(step).copied().unwrap_or(self.width)
    }
}

fn verdict(page: &mut String, timeline: &Timeline) {
    match &timeline.violation {
        Some((violation, _)) => {
            let _ = writeln!(page, "<p class=\"broken\">{}</p>", escaped(&violation.to_string()));
        }
        None => page.push_str("<p class=\"kept\">All promises are kept.</p>\n"),
    }
    if timeline.left_out > 0 {
        let _ = writeln!(page, "<p>{} more moments are left out here.</p>", timeline.left_out);
    }
}

fn legend(page: &mut String, timeline: &Timeline) {
    page.push_str("<p class=\"legend\">");
    // What no row has needs no words.
    let drawn: BTreeSet<SpanKind> = timeline.rows.iter().flat_map(|row| &row.spans).map(|span| span.what).collect();
    for what in drawn {
        let _ = write!(page, "<span><i class=\"box {}\"></i>{}</span>", what.as_str(), what.words());
    }
    for (what, words) in [
        (MarkKind::Cancel, "is told to end"),
        (MarkKind::Fault, "a fault"),
        (MarkKind::Ended, "ends"),
        (MarkKind::Broken, "ends badly"),
    ] {
        let _ = write!(
            page,
            "<span><svg width=\"14\" height=\"14\">{}</svg>{words}</span>",
            mark_shape(what, 7.0, 7.0, words)
        );
    }
    page.push_str("</p>\n<label><input type=\"checkbox\" id=\"messages\" checked> messages between nodes</label>\n");
}

fn names(page: &mut String, timeline: &Timeline) {
    let height = HEAD_PX + timeline.rows.len() * ROW_PX + 10;
    let _ = write!(page, "<svg width=\"{NAMES_PX}\" height=\"{height}\" role=\"img\" aria-label=\"nodes\">");
    for (at, row) in timeline.rows.iter().enumerate() {
        let (x, y) = (6 + row.depth * 12, HEAD_PX + at * ROW_PX + 15);
        let ending = escaped(row.ending.as_deref().unwrap_or("lives"));
        let _ = write!(
            page,
            "<text x=\"{x}\" y=\"{y}\">{}<title>{} {ending}</title></text>",
            escaped(&short(&row.label, x)),
            escaped(&row.label),
        );
    }
    page.push_str("</svg>");
}

fn chart(page: &mut String, timeline: &Timeline, places: &Places) {
    let height = HEAD_PX + timeline.rows.len() * ROW_PX + 10;
    let _ =
        write!(page, "<svg width=\"{:.0}\" height=\"{height}\" role=\"img\" aria-label=\"timeline\">", places.width);
    for at in (0..timeline.rows.len()).step_by(2) {
        let y = HEAD_PX + at * ROW_PX;
        let _ = write!(page, "<rect class=\"band\" x=\"0\" y=\"{y}\" width=\"100%\" height=\"{ROW_PX}\"/>");
    }
    for (x, label) in &places.labels {
        let _ = write!(
            page,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"22\" x2=\"{x:.1}\" y2=\"{height}\"/><text class=\"time\" \
             x=\"{x:.1}\" y=\"16\">{label}</text>"
        );
    }
    for (at, row) in timeline.rows.iter().enumerate() {
        draw_row(page, row, HEAD_PX + at * ROW_PX, places);
    }
    arrows(page, timeline, places);
    if let Some((_, step)) = &timeline.violation {
        let x = places.of(*step);
        let _ = write!(page, "<line class=\"violation\" x1=\"{x:.1}\" y1=\"0\" x2=\"{x:.1}\" y2=\"{height}\"/>");
    }
    page.push_str("</svg>");
}

fn draw_row(page: &mut String, row: &Row, y: usize, places: &Places) {
    let mut spans = row.spans.clone();
    spans.sort_by_key(|span| span.what);
    for span in spans {
        let (from, to) = (places.of(span.from), places.of(span.to));
        let (top, height) = match span.what {
            SpanKind::Life => (9, 4),
            SpanKind::Body | SpanKind::Waiting | SpanKind::Question => (6, 10),
            SpanKind::Tool | SpanKind::Turn => (8, 6),
            SpanKind::Slot => (17, 3),
        };
        let _ = write!(
            page,
            "<rect class=\"{}\" x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"{height}\"><title>{}: {}</title></rect>",
            span.what.as_str(),
            y + top,
            (to - from).max(2.0),
            escaped(&row.label),
            span.what.words(),
        );
    }
    for mark in &row.marks {
        let words = format!("{} {}", row.label, mark.words);
        #[expect(clippy::cast_precision_loss, reason = "places on a page are small")]
        page.push_str(&mark_shape(mark.what, places.of(mark.step), y as f64 + 11.0, &words));
    }
}

fn arrows(page: &mut String, timeline: &Timeline, places: &Places) {
    page.push_str("<g class=\"messages\">");
    let rows = timeline.places();
    let middle = |row: &usize| HEAD_PX + row * ROW_PX + ROW_PX / 2;
    for arrow in &timeline.arrows {
        let (Some(from), Some(to)) = (rows.get(&arrow.from), rows.get(&arrow.to)) else { continue };
        let (x, from, to) = (places.of(arrow.step), middle(from), middle(to));
        let tip = if to > from { to - 4 } else { to + 4 };
        let _ = write!(
            page,
            "<path d=\"M{x:.1} {from}V{to}M{:.1} {tip}L{x:.1} {to}L{:.1} {tip}\"><title>{}</title></path>",
            x - 2.5,
            x + 2.5,
            escaped(&arrow.words)
        );
    }
    page.push_str("</g>");
}

fn story(page: &mut String, timeline: &Timeline) {
    page.push_str("<details><summary>The story, moment by moment</summary><pre>");
    for line in &timeline.lines {
        page.push_str(&escaped(line));
        page.push('\n');
    }
    page.push_str("</pre></details>\n");
}

fn mark_shape(what: MarkKind, x: f64, y: f64, words: &str) -> String {
    let (class, path) = match what {
        MarkKind::Cancel => ("cancel", format!("M{:.1} {:.1}h9l-4.5 8z", x - 4.5, y - 4.0)),
        MarkKind::Fault => (
            "fault",
            format!("M{:.1} {y:.1}L{x:.1} {:.1}L{:.1} {y:.1}L{x:.1} {:.1}z", x - 5.5, y - 5.5, x + 5.5, y + 5.5),
        ),
        MarkKind::Ended => ("ended", format!("M{:.1} {y:.1}a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", x - 3.5)),
        MarkKind::Broken => ("bad", format!("M{:.1} {:.1}h8v8h-8z", x - 4.0, y - 4.0)),
    };
    format!("<path class=\"{class}\" d=\"{path}\"><title>{}</title></path>", escaped(words))
}

/// A label as long as there is room for it behind its indent.
fn short(label: &str, x: usize) -> String {
    let room = NAMES_PX.saturating_sub(x) / LETTER_PX;
    match label.chars().count() > room {
        true => label.chars().take(room.saturating_sub(1)).chain(['\u{2026}']).collect(),
        false => label.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // Nothing that a terminal or a browser would take for a command.
            letter if letter.is_control() && letter != '\n' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#1c2430;--soft:#6b7686;--paper:#fff;--band:#f4f6f9;--grid:#d9dfe7;--life:#b9c3d0;
--body:#9cc2ef;--waiting:#f3c969;--slot:#2f9e62;--tool:#3a78c9;--cancel:#d9822b;--fault:#c2255c;--ended:#2f9e62;
--bad:#d6336c;--message:#8b95a5;--turn:#7c5cc4;--question:#e59ac0}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#98a4b5;--paper:#14181f;--band:#1a2029;--grid:#2b3442;
--life:#46536a;--body:#33598a;--waiting:#a8842b;--slot:#3fbf7a;--tool:#6aa5f0;--message:#6b7686;--turn:#a58ae0;--question:#a85f85}}
body{font:14px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:24px}
h1{font-size:20px;margin:0}p{margin:6px 0;max-width:100ch}
.broken{color:var(--bad);font-weight:600}.kept{color:var(--ended)}
.legend{display:flex;flex-wrap:wrap;align-items:center;gap:4px 18px;max-width:none}
.legend span{display:inline-flex;align-items:center;gap:6px}label{display:inline-flex;align-items:center;gap:4px}
.box{width:22px;height:10px;display:inline-block;border-radius:2px}
.box.life{background:var(--life);height:4px}.box.body{background:var(--body)}.box.waiting{background:var(--waiting)}
.box.slot{background:var(--slot);height:3px}.box.tool{background:var(--tool);height:6px}
.box.turn{background:var(--turn);height:6px}.box.question{background:var(--question)}
.picture{display:flex;border:1px solid var(--grid);border-radius:6px;margin:10px 0;overflow:hidden}
.names{flex:none;border-right:1px solid var(--grid)}.chart{overflow-x:auto}
svg{display:block}svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg text.time{fill:var(--soft);font-size:11px}
.band{fill:var(--band)}.grid{stroke:var(--grid)}.violation{stroke:var(--bad);stroke-width:2;stroke-dasharray:4 3}
rect.life{fill:var(--life)}rect.body{fill:var(--body)}rect.waiting{fill:var(--waiting)}rect.slot{fill:var(--slot)}
rect.tool{fill:var(--tool)}rect.turn{fill:var(--turn)}rect.question{fill:var(--question)}path.cancel{fill:var(--cancel)}path.fault{fill:var(--fault)}path.ended{fill:var(--ended)}
path.bad{fill:var(--bad)}.messages path{fill:none;stroke:var(--message);opacity:.7}
body:has(#messages:not(:checked)) .messages{display:none}
.legend svg{display:inline}pre{font-size:12px;line-height:1.4;overflow-x:auto}details{margin-top:12px}
";
