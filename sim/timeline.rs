//! A run as a picture of its tree over virtual time: what each node did when, and what passed between them.
//!
//! A whole story is folded into rows, one a node in the order of the tree, with spans (the node, its body, the slot it
//! holds, what it waits for) and marks (cancels, faults, endings). Virtual time jumps, from microseconds to minutes, so
//! places are the order of moments with every jump shown as one step and its length; drawing is the business of
//! [`html`] and [`perfetto`].

pub mod html;
pub mod perfetto;

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node::NodeId;

use crate::checkers::Violation;
use crate::happening::{End, Happening, Kind, Stage};
use crate::message::Address;
use crate::narrative::Narrator;
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
    /// Which node.
    pub node: NodeId,
    /// What it stands for.
    pub kind: Kind,
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

/// What takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpanKind {
    /// The node lives.
    Life,
    /// Its body is under way.
    Body,
    /// It waits for a slot.
    Waiting,
    /// It holds a slot.
    Slot,
    /// Its tool is at work.
    Tool,
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

/// What happens at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MarkKind {
    /// A cancel is read.
    Cancel,
    /// A fault is made.
    Fault,
    /// An ending in order.
    Ended,
    /// An ending that is not: the body was abandoned or lost, or the actor died.
    Broken,
}

/// A message from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrow {
    /// At which step it arrives.
    pub step: usize,
    /// From which node.
    pub from: NodeId,
    /// To which.
    pub to: NodeId,
    /// What.
    pub words: &'static str,
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
                What::Note(_) => {}
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

    /// The row of each node.
    pub fn row_of(&self) -> BTreeMap<NodeId, usize> {
        self.rows.iter().enumerate().map(|(at, row)| (row.node, at)).collect()
    }
}

#[derive(Default)]
struct Drawing {
    timeline: Timeline,
    rows: BTreeMap<NodeId, Row>,
    children: BTreeMap<Option<NodeId>, Vec<NodeId>>,
    /// Spans that have begun.
    open: BTreeMap<(NodeId, SpanKind), usize>,
    /// Whose each question for a slot is.
    tickets: BTreeMap<u64, NodeId>,
}

impl Drawing {
    fn begins(&mut self, node: NodeId, what: SpanKind, step: usize) {
        self.open.entry((node, what)).or_insert(step);
    }

    fn ends(&mut self, node: NodeId, what: SpanKind, step: usize) {
        if let Some(from) = self.open.remove(&(node, what))
            && let Some(row) = self.rows.get_mut(&node)
        {
            row.spans.push(Span { what, from, to: step });
        }
    }

    fn mark(&mut self, node: NodeId, step: usize, what: MarkKind, words: impl Into<String>) {
        if let Some(row) = self.rows.get_mut(&node) {
            row.marks.push(Mark { step, what, words: words.into() });
        }
    }

    fn happens(&mut self, step: usize, happening: &Happening) {
        use Happening as H;
        match happening {
            H::Born { node, parent, kind, .. } => {
                let depth = parent.and_then(|parent| self.rows.get(&parent)).map_or(0, |row| row.depth + 1);
                let row = Row { node: *node, kind: *kind, depth, ending: None, spans: Vec::new(), marks: Vec::new() };
                self.rows.insert(*node, row);
                self.children.entry(*parent).or_default().push(*node);
                self.begins(*node, SpanKind::Life, step);
            }
            H::BodyAsked { node } => self.begins(*node, SpanKind::Body, step),
            H::BodyOver { node } => {
                self.ends(*node, SpanKind::Tool, step);
                self.ends(*node, SpanKind::Body, step);
            }
            H::ToolBegan { node } => self.begins(*node, SpanKind::Tool, step),
            H::SlotFor { ticket, node } => {
                self.tickets.insert(*ticket, *node);
                self.begins(*node, SpanKind::Waiting, step);
            }
            H::Passed { node, stage: Stage::Admission } => {
                self.ends(*node, SpanKind::Waiting, step);
                self.begins(*node, SpanKind::Slot, step);
            }
            H::SlotShed { ticket } | H::SlotGivenUp { ticket } => self.slot(*ticket, SpanKind::Waiting, step),
            H::SlotHome { ticket } => self.slot(*ticket, SpanKind::Slot, step),
            H::CancelRead { node } => self.mark(*node, step, MarkKind::Cancel, "reads that it is to end"),
            H::Fault { kind, node } => {
                let first = self.rows.keys().next().copied();
                if let Some(node) = node.or(first) {
                    self.mark(node, step, MarkKind::Fault, format!("fault: {}", kind.words()));
                }
            }
            H::Ended { node, body, unsettled } => self.node_ends(step, *node, *body, *unsettled),
            H::Died { node } => {
                self.mark(*node, step, MarkKind::Broken, "its actor dies without an ending");
                self.over(*node, step, "its actor died".to_owned());
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
        self.mark(node, step, what, format!("ends: {words}"));
        self.over(node, step, words);
    }

    fn over(&mut self, node: NodeId, step: usize, words: String) {
        self.ends(node, SpanKind::Life, step);
        if let Some(row) = self.rows.get_mut(&node) {
            row.ending = Some(words);
        }
    }

    fn arrives(&mut self, step: usize, from: Address, to: Address, words: &'static str) {
        if let (Some(from), Some(to)) = (from.node(), to.node())
            && from != to
        {
            self.timeline.arrows.push(Arrow { step, from, to, words });
        }
    }

    fn finish(mut self, last: usize) -> Timeline {
        for (node, what) in self.open.keys().copied().collect::<Vec<_>>() {
            self.ends(node, what, last);
        }
        // Depth first, without recursion: what is next last.
        let mut next: Vec<NodeId> = self.children.remove(&None).unwrap_or_default();
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
    use super::{SpanKind, Timeline};
    use crate::driver::tell;
    use crate::scenario::shipped;

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
