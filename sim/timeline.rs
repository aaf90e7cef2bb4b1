//! A run as a picture of its tree over virtual time: what each node did when, and what passed between them.
//!
//! A whole story is folded into rows, one a node in the order of the tree (and one for each party that a world talks to),
//! with spans (the node, its body, the slot it holds, what it waits for) and marks (cancels, faults, endings). Machines
//! tell happenings, worlds tell signs, and both are drawn alike. Virtual time jumps, from microseconds to minutes, so
//! places are the order of moments with every jump shown as one step and its length; drawing is the business of
//! [`html`] and [`perfetto`].

pub mod html;
pub mod perfetto;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use crate::checkers::Violation;
use crate::happening::{End, Happening, Stage};
use crate::message::Address;
use crate::narrative::{Narrator, kind_words};
use crate::sign::{MarkKind, Sign, SpanKind};
use crate::story::{Story, What};

/// Most moments of a page or a trace; the ones after that are left out, and that is said.
pub const MOMENTS_SHOWN_MAX: usize = 20_000;

/// A run, ready to be drawn.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The nodes, each behind its parent.
    pub rows: Vec<Row>,
    /// Messages from node to node.
    pub arrows: Vec<Arrow>,
    /// The virtual moment of each step.
    pub steps: Vec<Duration>,
    /// A line for each step.
    pub lines: Vec<String>,
    /// What broke, and at which step.
    pub violation: Option<(Violation, usize)>,
    /// Moments that were left out.
    pub left_out: u64,
}

/// A node's row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its number: of machines, the node's.
    pub number: u64,
    /// What it stands for, in a few words.
    pub label: String,
    /// How deep it lies.
    pub depth: usize,
    /// How it ended, in words; while it lives, none.
    pub ending: Option<String>,
    /// What took time.
    pub spans: Vec<Span>,
    /// What happened at once.
    pub marks: Vec<Mark>,
}

/// Something that took time, from step to step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub what: SpanKind,
    /// The first step.
    pub from: usize,
    /// The last step.
    pub to: usize,
}

/// Something that happened at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// At which step.
    pub step: usize,
    /// What.
    pub what: MarkKind,
    /// In words.
    pub words: String,
}

/// A message from one row to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrow {
    /// At which step it arrives.
    pub step: usize,
    /// From which row, by its number.
    pub from: u64,
    /// To which.
    pub to: u64,
    /// What.
    pub words: Cow<'static, str>,
}

impl Timeline {
    /// Out of a story that was told whole.
    pub fn new(story: &Story) -> Self {
        let mut drawing = Drawing::default();
        let mut narrator = Narrator::default();
        let mut broken_at = 0;
        for (step, moment) in story.moments.iter().take(MOMENTS_SHOWN_MAX).enumerate() {
            drawing.timeline.steps.push(moment.at);
            drawing.timeline.lines.push(narrator.line(moment));
            match &moment.what {
                What::Happening(happening) => drawing.happens(step, happening),
                What::Delivery { from, to, words } => drawing.arrives(step, *from, *to, words),
                What::Seen { signs, .. } => signs.iter().for_each(|sign| drawing.shows(step, sign)),
            }
            if story.violation.as_ref().is_some_and(|violation| moment.at <= violation.at) {
                broken_at = step;
            }
        }
        let shown = drawing.timeline.steps.len();
        drawing.timeline.left_out = story.moments_lost + (story.moments.len() - shown) as u64;
        drawing.timeline.violation = story.violation.clone().map(|violation| (violation, broken_at));
        drawing.finish(shown.saturating_sub(1))
    }

    /// The place of each row, by its number.
    pub fn places(&self) -> BTreeMap<u64, usize> {
        self.rows.iter().enumerate().map(|(at, row)| (row.number, at)).collect()
    }
}

#[derive(Default)]
struct Drawing {
    timeline: Timeline,
    rows: BTreeMap<u64, Row>,
    children: BTreeMap<Option<u64>, Vec<u64>>,
    /// Spans that have begun.
    open: BTreeMap<(u64, SpanKind), usize>,
    /// Whose each question for a slot is.
    tickets: BTreeMap<u64, u64>,
}

impl Drawing {
    fn row(&mut self, step: usize, number: u64, above: Option<u64>, label: String) {
        let depth = above.and_then(|above| self.rows.get(&above)).map_or(0, |row| row.depth + 1);
        let row = Row { number, label, depth, ending: None, spans: Vec::new(), marks: Vec::new() };
        self.rows.insert(number, row);
        self.children.entry(above).or_default().push(number);
        self.begins(number, SpanKind::Life, step);
    }

    fn begins(&mut self, number: u64, what: SpanKind, step: usize) {
        self.open.entry((number, what)).or_insert(step);
    }

    fn ends(&mut self, number: u64, what: SpanKind, step: usize) {
        if let Some(from) = self.open.remove(&(number, what))
            && let Some(row) = self.rows.get_mut(&number)
        {
            row.spans.push(Span { what, from, to: step });
        }
    }

    fn mark(&mut self, number: u64, step: usize, what: MarkKind, words: impl Into<String>) {
        if let Some(row) = self.rows.get_mut(&number) {
            row.marks.push(Mark { step, what, words: words.into() });
        }
    }

    /// What a world shows.
    fn shows(&mut self, step: usize, sign: &Sign) {
        match sign {
            Sign::Begins { row, above, label } => self.row(step, *row, *above, label.clone()),
            Sign::From { row, what } => self.begins(*row, *what, step),
            Sign::To { row, what } => self.ends(*row, *what, step),
            Sign::Mark { row, what, words } => {
                let first = self.rows.keys().next().copied();
                if let Some(row) = row.or(first) {
                    self.mark(row, step, *what, words.clone());
                }
            }
            Sign::Message { from, to, words } => {
                self.timeline.arrows.push(Arrow { step, from: *from, to: *to, words: words.clone().into() });
            }
            Sign::Ends { row, words, is_bad } => {
                let what = if *is_bad { MarkKind::Broken } else { MarkKind::Ended };
                self.mark(*row, step, what, format!("ends: {words}"));
                self.over(*row, step, words.clone());
            }
        }
    }

    fn happens(&mut self, step: usize, happening: &Happening) {
        use Happening as H;
        match happening {
            H::Born { node, parent, kind, .. } => {
                let label = format!("{} {}", kind_words(*kind), node.0);
                self.row(step, node.0, parent.map(|parent| parent.0), label);
            }
            H::BodyAsked { node } => self.begins(node.0, SpanKind::Body, step),
            H::BodyOver { node } => {
                self.ends(node.0, SpanKind::Tool, step);
                self.ends(node.0, SpanKind::Body, step);
            }
            H::ToolBegan { node } => self.begins(node.0, SpanKind::Tool, step),
            H::SlotFor { ticket, node } => {
                self.tickets.insert(*ticket, node.0);
                self.begins(node.0, SpanKind::Waiting, step);
            }
            H::Passed { node, stage: Stage::Admission } => {
                self.ends(node.0, SpanKind::Waiting, step);
                self.begins(node.0, SpanKind::Slot, step);
            }
            H::SlotShed { ticket } | H::SlotGivenUp { ticket } => self.slot(*ticket, SpanKind::Waiting, step),
            H::SlotHome { ticket } => self.slot(*ticket, SpanKind::Slot, step),
            H::CancelRead { node } => self.mark(node.0, step, MarkKind::Cancel, "reads that it is to end"),
            H::Fault { kind, node } => {
                let first = self.rows.keys().next().copied();
                if let Some(node) = node.map(|node| node.0).or(first) {
                    self.mark(node, step, MarkKind::Fault, format!("fault: {}", kind.words()));
                }
            }
            H::Ended { node, body, unsettled } => self.node_ends(step, *node, *body, *unsettled),
            H::Died { node } => {
                self.mark(node.0, step, MarkKind::Broken, "its actor dies without an ending");
                self.over(node.0, step, "its actor died".to_owned());
            }
            _ => {}
        }
    }

    fn slot(&mut self, ticket: u64, what: SpanKind, step: usize) {
        if let Some(node) = self.tickets.get(&ticket).copied() {
            self.ends(node, what, step);
        }
    }

    fn node_ends(&mut self, step: usize, node: NodeId, body: End, unsettled: usize) {
        let mut words = crate::narrative::end_words(body).to_owned();
        if unsettled > 0 {
            words = format!("{words}, {unsettled} children unsettled");
        }
        let is_broken = unsettled > 0 || matches!(body, End::Abandoned | End::Lost | End::Panicked);
        let what = if is_broken { MarkKind::Broken } else { MarkKind::Ended };
        self.mark(node.0, step, what, format!("ends: {words}"));
        self.over(node.0, step, words);
    }

    /// A row is over, with all in it that takes time.
    fn over(&mut self, number: u64, step: usize, words: String) {
        for what in SpanKind::ALL {
            self.ends(number, what, step);
        }
        if let Some(row) = self.rows.get_mut(&number) {
            row.ending = Some(words);
        }
    }

    fn arrives(&mut self, step: usize, from: Address, to: Address, words: &'static str) {
        if let (Some(from), Some(to)) = (from.node(), to.node())
            && from != to
        {
            self.timeline.arrows.push(Arrow { step, from: from.0, to: to.0, words: words.into() });
        }
    }

    fn finish(mut self, last: usize) -> Timeline {
        for (number, what) in self.open.keys().copied().collect::<Vec<_>>() {
            self.ends(number, what, last);
        }
        // Depth first, without recursion: what is next last.
        let mut next: Vec<u64> = self.children.remove(&None).unwrap_or_default();
        next.reverse();
        while let Some(node) = next.pop() {
            next.extend(self.children.remove(&Some(node)).unwrap_or_default().into_iter().rev());
            self.timeline.rows.extend(self.rows.remove(&node));
        }
        self.timeline
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Timeline;
    use crate::driver::tell;
    use crate::scenario::shipped;
    use crate::sign::{MarkKind, SpanKind};

    fn drawn(name: &str, seed: u64) -> Timeline {
        let scenario = shipped::named(name).unwrap().unwrap();
        Timeline::new(&tell(&scenario, scenario.choices(seed)))
    }

    #[test]
    fn every_node_has_a_row_behind_its_parent_and_a_life_with_an_end() {
        for seed in 0..20 {
            let timeline = drawn("wide", seed);
            for (at, row) in timeline.rows.iter().enumerate() {
                let lives = row.spans.iter().filter(|span| span.what == SpanKind::Life).count();
                assert!(lives == 1 && row.ending.is_some(), "{row:?}");
                assert!(row.depth <= timeline.rows[at.saturating_sub(1)].depth + 1);
                assert!(row.spans.iter().all(|span| span.from <= span.to && span.to < timeline.steps.len()));
            }
            assert_eq!(timeline.left_out, 0);
        }
    }

    #[test]
    fn a_call_that_works_has_waited_and_held_a_slot() {
        let timeline = drawn("tiny", 3);
        let spans = |what| timeline.rows.iter().flat_map(|row| &row.spans).filter(|span| span.what == what).count();
        assert!(spans(SpanKind::Waiting) > 0 && spans(SpanKind::Slot) > 0 && spans(SpanKind::Tool) > 0);
    }

    #[test]
    fn a_world_has_rows_for_its_sessions_runs_calls_and_parties() {
        let scenario = shipped::named("world-cancel-storm").unwrap().unwrap();
        let mut met = BTreeSet::new();
        for seed in 0..6 {
            let story = tell(&scenario, scenario.choices(seed));
            let timeline = Timeline::new(&story);
            assert!(timeline.rows.len() as u64 > story.nodes, "{} rows, {} nodes", timeline.rows.len(), story.nodes);
            for (at, row) in timeline.rows.iter().enumerate() {
                assert!(row.depth <= timeline.rows[at.saturating_sub(1)].depth + 1, "{row:?}");
                let is_node = row.depth > 0;
                assert!(!is_node || row.ending.is_some(), "{row:?} has no ending");
                met.extend(row.spans.iter().map(|span| span.what.as_str()));
                met.extend(row.marks.iter().map(|mark| match mark.what {
                    MarkKind::Cancel => "cancel",
                    MarkKind::Fault => "fault",
                    MarkKind::Ended => "ended",
                    MarkKind::Broken => "broken",
                }));
            }
            assert!(timeline.arrows.iter().any(|arrow| arrow.words == "is proposed"));
        }
        for wanted in ["life", "body", "turn", "waiting", "slot", "tool", "cancel", "fault", "ended", "broken"] {
            assert!(met.contains(wanted), "{wanted}: {met:?}");
        }
    }

    /// Every element that is opened is closed, in order: what a browser mends in silence is found here.
    fn is_well_formed(page: &str) -> Result<(), String> {
        let mut open = Vec::new();
        for piece in page.split('<').skip(1) {
            let (tag, _) = piece.split_once('>').ok_or(piece)?;
            let name = tag.split([' ', '/']).next().unwrap_or_default();
            match tag.strip_prefix('/') {
                Some(closed) if open.pop() != Some(closed) => return Err(format!("</{closed}> closes nothing")),
                Some(_) => {}
                None if tag.ends_with('/') || ["!doctype", "meta", "input"].contains(&name) => {}
                None => open.push(name),
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
    }

    #[test]
    fn a_page_is_well_formed_whatever_is_drawn() {
        for (name, seed) in [("wide", 7), ("world-everything", 3), ("world-crash-and-resume", 4), ("world-waiting", 2)]
        {
            let page = super::html::page(name, "a seed", "<about> & \"more\"", &drawn(name, seed));
            assert_eq!(is_well_formed(&page), Ok(()), "{name}");
            assert!(page.matches("<rect").count() > 10, "{name}");
        }
        assert!(is_well_formed("<p><b></p>").is_err() && is_well_formed("<p>").is_err());
    }

    #[test]
    fn both_files_are_whole() {
        let timeline = drawn("cancel-storm", 1);
        let page = super::html::page("cancel-storm", "seed 1", "it looks for <storms> & more", &timeline);
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert!(page.contains("&lt;storms&gt; &amp; more") && !page.contains("src=\"http"));
        let trace: serde_json::Value =
            serde_json::from_str(&super::perfetto::trace("cancel-storm", &timeline)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        assert!(events.iter().any(|event| event["ph"] == "X" && event["cat"] == "life"));
        assert!(
            events.iter().filter(|event| event["ph"] == "s").count()
                == events.iter().filter(|e| e["ph"] == "f").count()
        );
    }
}
