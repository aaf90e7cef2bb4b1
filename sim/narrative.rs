//! A story in plain words: a line for each moment, with its virtual time and the nodes by what they stand for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;

use crate::happening::{End, Happening, Kind, Stage};
use crate::message::Address;
use crate::story::{Moment, Story, What};

/// Tells moments one after the other; remembers what each node is.
#[derive(Debug, Default)]
pub struct Narrator {
    kinds: BTreeMap<NodeId, Kind>,
}

/// What a node stands for, in a word.
pub fn kind_words(kind: Kind) -> &'static str {
    match kind {
        Kind::Sessions => "top",
        Kind::Session => "session",
        Kind::Run => "run",
        Kind::Invocation => "call",
        Kind::FanOut => "fan-out",
        Kind::Process => "command",
    }
}

/// How a body ended, in words.
pub fn end_words(end: End) -> &'static str {
    match end {
        End::Returned => "it returned",
        End::Panicked => "it panicked",
        End::Aborted => "it was aborted",
        End::Abandoned => "it would not stop and was abandoned",
        End::NeverStarted => "it never began",
        End::Lost => "it was lost",
    }
}

/// A virtual moment, to the microsecond where that is needed.
pub fn moment_words(at: Duration) -> String {
    let ms = at.as_secs_f64() * 1_000.0;
    if at.subsec_nanos().is_multiple_of(1_000_000) { format!("{ms:.0} ms") } else { format!("{ms:.3} ms") }
}

impl Narrator {
    /// A line for a moment.
    pub fn line(&mut self, moment: &Moment) -> String {
        let text = match &moment.what {
            What::Happening(happening) => self.happening(happening),
            What::Delivery { from, to, words } => {
                format!("    {} -> {}: {words}", self.address(*from), self.address(*to))
            }
            What::Seen { words, .. } => words.clone(),
        };
        format!("{:>14}  {text}", moment_words(moment.at))
    }

    /// A node by its number and kind.
    pub fn node(&self, node: NodeId) -> String {
        match self.kinds.get(&node) {
            Some(kind) => format!("{} {}", kind_words(*kind), node.0),
            None => format!("node {}", node.0),
        }
    }

    fn address(&self, address: Address) -> String {
        match address {
            Address::Node(node) => self.node(node),
            Address::Body(node) => format!("the body of {}", self.node(node)),
            Address::Link(node) => format!("the link of {}", self.node(node)),
            other => other.words(),
        }
    }

    fn happening(&mut self, happening: &Happening) -> String {
        use Happening as H;
        match happening {
            H::Wanted { node, waited: true } => format!("node {} is wanted, and somebody waits for it", node.0),
            H::Wanted { node, .. } => format!("node {} is wanted", node.0),
            H::Born { node, parent, kind, grace } => {
                self.kinds.insert(*node, *kind);
                let above = parent.map(|parent| format!(" under {}", self.node(parent))).unwrap_or_default();
                format!("{} comes to life{above}, with a grace of {}", self.node(*node), moment_words(*grace))
            }
            H::CancelRead { node } => format!("{} reads that it is to end", self.node(*node)),
            H::BodyEndRead { node } => format!("{} reads that its body is over", self.node(*node)),
            H::BodyAsked { node } => format!("{} lets its body begin", self.node(*node)),
            H::BodyOver { node } => format!("the body of {} is over", self.node(*node)),
            H::Ended { node, body, unsettled } => {
                let mut text = format!("{} ends; of its body: {}", self.node(*node), end_words(*body));
                if *unsettled > 0 {
                    let _ = write!(text, "; it cannot vouch for {unsettled} children");
                }
                text
            }
            H::Died { node } => format!("the actor of {} dies without an ending", self.node(*node)),
            H::WaiterTold { node } => format!("whoever waits for {} is told", self.node(*node)),
            H::Proposed { node, asks: true } => format!("{} is proposed; a person must say yes", self.node(*node)),
            H::Proposed { node, .. } => format!("{} is proposed", self.node(*node)),
            H::Passed { node, stage } => format!("{} has {}", self.node(*node), stage_words(*stage)),
            H::RecordDurable { node } => format!("it is durable that the tool of {} starts", self.node(*node)),
            H::ToolBegan { node } => format!("the tool of {} starts", self.node(*node)),
            H::Fault { kind, node: Some(node) } => format!("FAULT: {} at {}", kind.words(), self.node(*node)),
            H::Fault { kind, node: None } => format!("FAULT: {}", kind.words()),
            H::TaskRegistered { task, .. } => format!("task {} is registered in the background", task.0),
            H::TurnStood { turn } => format!("the turn of run {} stands", turn.0),
            H::RunOver { turn } => format!("no turn of run {} stands from here on", turn.0),
            H::TaskBegan { task } => format!("task {} begins", task.0),
            H::TaskCancelled { task } => format!("task {} is told to end", task.0),
            H::TaskEnded { task, delivered: true } => {
                format!("the end of task {} is told, and its result delivered", task.0)
            }
            H::TaskEnded { task, .. } => format!("the end of task {} is told", task.0),
            H::TasksClosed { session } => format!("session {} starts no more tasks", session.0),
            H::FaultsStopped => "faults stop here: everything must come to rest".to_owned(),
            other => shared(other),
        }
    }
}

/// What happens to what all nodes share.
fn shared(happening: &Happening) -> String {
    use Happening as H;
    match happening {
        H::SlotAsked { ticket } => format!("slot question {ticket} is asked"),
        H::SlotFor { ticket, node } => format!("slot question {ticket} is for call {}", node.0),
        H::SlotLent { ticket } => format!("slot question {ticket} gets a slot"),
        H::SlotShed { ticket } => format!("slot question {ticket} is turned away"),
        H::SlotGivenUp { ticket } => format!("nobody waits for slot question {ticket} any more"),
        H::SlotHome { ticket } => format!("the slot of question {ticket} comes home"),
        H::AccountOpened { account, calls_max, .. } if *account == u64::MAX => {
            format!("the account above all is opened, for {calls_max} calls")
        }
        H::AccountOpened { account, calls_max, .. } => format!("account {account} is opened, for {calls_max} calls"),
        H::Reserved { reservation, account, calls } => {
            format!("reservation {reservation}: {calls} calls of account {account}")
        }
        H::Settled { reservation, calls } => format!("reservation {reservation} is settled, {calls} calls were used"),
        H::Asked { ask } => format!("question {ask} is asked"),
        H::Answered { ask, approved: true } => format!("question {ask} is answered: yes"),
        H::Answered { ask, .. } => format!("question {ask} is answered: no"),
        H::Withdrawn { ask } => format!("nobody waits for an answer to question {ask} any more"),
        H::Approved { ask } => format!("a person says yes to question {ask}"),
        H::Entry { sequence, invocation, ending: true, .. } => {
            format!("journal {sequence}: the ending of call {}", invocation.0)
        }
        H::Entry { sequence, invocation, .. } => format!("journal {sequence}: call {} opens", invocation.0),
        H::EntryRefused { invocation } => format!("the journal refuses an ending of call {}", invocation.0),
        H::FanBegan { node, members, width } => {
            format!("fan-out {} begins: {members} members, {width} at a time", node.0)
        }
        H::MemberBegan { node, member } => format!("fan-out {}: member {member} begins", node.0),
        H::FanEndsEarly { node } => format!("fan-out {} ends early, and tells a member so", node.0),
        H::MemberEnded { node, member } => format!("fan-out {}: member {member} has ended", node.0),
        H::FanDone { node, ends } => format!("fan-out {} is done, with {ends} ends", node.0),
        H::FanDropped { node } => format!("fan-out {} is dropped with its body", node.0),
        // Those that are about one node are told above.
        other => format!("{other:?}"),
    }
}

fn stage_words(stage: Stage) -> &'static str {
    match stage {
        Stage::Confirmation => "a person's yes",
        Stage::Budget => "a reservation",
        Stage::Admission => "a slot",
    }
}

/// How a run came out, in a few lines.
pub fn summary(story: &Story) -> String {
    let mut text = format!(
        "{} steps, {} nodes, {} of virtual time, {} choices, digest {:016x}",
        story.steps,
        story.nodes,
        moment_words(story.lasted),
        story.choices.len(),
        story.digest,
    );
    if !story.sometimes.is_empty() {
        text.push_str("\nfaults that met something:");
        for ((fault, state), times) in &story.sometimes {
            let _ = write!(text, "\n  {times:>4} x {fault} met {state}");
        }
    }
    match &story.violation {
        Some(violation) => {
            let _ = write!(text, "\nBROKEN ({}): {violation}", violation.checker);
        }
        None => {
            let _ = write!(text, "\nall {} promises kept: {}", story.checkers.len(), story.checkers.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Narrator, moment_words, summary};
    use crate::driver::tell;
    use crate::scenario::shipped;
    use crate::seed::Choices;
    use std::time::Duration;

    #[test]
    fn a_plain_run_is_told_from_birth_to_end_in_order_of_time() {
        let tiny = shipped::named("tiny").unwrap().unwrap();
        let story = tell(&tiny, Choices::from_list(Vec::new()));
        let mut narrator = Narrator::default();
        let lines: Vec<String> = story.moments.iter().map(|moment| narrator.line(moment)).collect();
        let place =
            |words: &str| lines.iter().position(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}"));
        assert!(place("top 0 comes to life") < place("session 1 comes to life under top 0"));
        assert!(place("the tool of call 3 starts") < place("call 3 ends; of its body: it returned"));
        assert!(place("call 3 ends") < place("top 0 ends"));
        assert!(story.moments.is_sorted_by_key(|moment| moment.at));
        // Each happening has words of its own.
        assert!(lines.iter().all(|line| !line.contains(" { ")), "{lines:#?}");
        assert!(summary(&story).contains("promises kept: cancelled, "));
    }

    #[test]
    fn moments_have_their_microseconds_only_where_there_are_some() {
        assert_eq!(moment_words(Duration::from_micros(1_500)), "1.500 ms");
        assert_eq!(moment_words(Duration::from_secs(200)), "200000 ms");
    }
}
