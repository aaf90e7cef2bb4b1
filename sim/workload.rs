//! How large a simulated world is, what its bodies are like, and what goes wrong in it.
//!
//! Everything a scenario file may say about the machines stands here, with its limits. What must stay true: a value
//! that is left out means the whole variety that the simulation knows, a list with one thing in it takes no choice,
//! and every size is bounded, so that no file makes a run that never ends.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::seed::Choices;

/// Largest count that a file may give for one level of the tree.
pub const COUNT_MAX: u32 = 256;
/// Deepest calls within calls.
pub const DEPTH_MAX: u32 = 12;
/// Largest weight in a mix.
pub const WEIGHT_MAX: u32 = 1_000;
/// Most cancels at fixed moments.
pub const CANCELS_MAX: usize = 64;
/// Longest virtual span that a file may give, in milliseconds: a quarter of an hour.
pub const SPAN_MS_MAX: u64 = 900_000;

/// A simulated world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// The tree.
    pub tree: Shape,
    /// What is scarce.
    pub limits: Limits,
    /// How bodies take a cancel.
    pub bodies: Bodies,
    /// What calls do that may have calls below them.
    pub calls: Mix,
    /// What calls do that may not.
    pub leaves: Mix,
    /// What commands do.
    pub commands: Mix,
    /// What a person does who is asked.
    pub person: Person,
    /// What goes wrong.
    pub faults: Faults,
    /// Cancels at fixed moments.
    pub cancel: Vec<Cancel>,
    /// The machine that is broken on purpose, by its name.
    pub mutant: Option<String>,
}

/// The tree: how many of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shape {
    /// Sessions.
    pub sessions: u32,
    /// Runs in a session.
    pub runs: u32,
    /// Calls that a run makes beside each other, at most.
    pub calls: u32,
    /// Levels of calls within calls.
    pub depth: u32,
    /// Members of a fan-out, at most.
    pub members: u32,
    /// Members of a fan-out at a time, at most.
    pub width: u32,
    /// Counts are as given, and sessions and runs do nothing odd; else all of that is drawn.
    pub exact: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { sessions: 1, runs: 2, calls: 4, depth: 1, members: 3, width: 3, exact: false }
    }
}

/// What is scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Slots of the lane.
    pub permits: u32,
    /// Calls that may wait for a slot.
    pub queue_max: u32,
    /// Whether calls take a free slot in passing; else the lane is asked for each, as one with a breaker is.
    pub passing: bool,
    /// Calls that a session's budget allows.
    pub calls_max: u64,
    /// Failures in a row that open the lane's breaker; it has none when this is 0.
    pub breaker_failures: u32,
    /// Longest that the store takes to make a batch of facts durable, in milliseconds.
    pub sync_ms_max: u64,
    /// The moment at which the host closes whatever still lives, in milliseconds.
    pub close_at_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            permits: 3,
            queue_max: 4,
            passing: true,
            calls_max: 40,
            breaker_failures: 0,
            sync_ms_max: 3,
            close_at_ms: 200_000,
        }
    }
}

impl Limits {
    /// When the host closes.
    pub fn close_at(&self) -> Duration {
        Duration::from_millis(self.close_at_ms)
    }
}

/// How bodies take a cancel, and how long they are given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bodies {
    /// What bodies make of a cancel; the first is the plainest.
    pub manners: Vec<Manner>,
    /// Graces of nodes, in milliseconds; the first is the plainest.
    pub graces_ms: Vec<u64>,
    /// One call in so many asks a person first; none when 0.
    pub asks_one_in: u32,
}

impl Default for Bodies {
    fn default() -> Self {
        Self {
            manners: vec![Manner::Prompt, Manner::Prompt, Manner::Settling, Manner::Deaf],
            // The last is longer than a parent waits: its node is killed from above.
            graces_ms: vec![2_000, 2_000, 50, 0, 10_000, 50_000],
            asks_one_in: 6,
        }
    }
}

impl Bodies {
    /// Draws what a body makes of a cancel.
    pub fn manner(&self, choices: &mut Choices) -> Manner {
        pick(&self.manners, choices).unwrap_or(Manner::Prompt)
    }

    /// Draws a grace.
    pub fn grace(&self, choices: &mut Choices) -> Duration {
        Duration::from_millis(pick(&self.graces_ms, choices).unwrap_or(2_000))
    }
}

fn pick<T: Copy>(list: &[T], choices: &mut Choices) -> Option<T> {
    let at = choices.below(u32::try_from(list.len()).unwrap_or(u32::MAX));
    list.get(at as usize).copied()
}

/// What a body makes of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Manner {
    /// Stops at once, and no longer waits for its children.
    Prompt,
    /// Stops, but waits for its children first.
    Settling,
    /// Goes on as if nothing had been said.
    Deaf,
}

/// What a call or a command does once it may; the plainest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Works for two milliseconds.
    Work,
    /// Works for five seconds.
    Slow,
    /// Works, and finds that what it calls does not work: bad news for a breaker.
    Fail,
    /// Panics.
    Panic,
    /// Waits for something that never comes.
    Hang,
    /// Hangs under a limit of 20 ms.
    Overrun,
    /// Works without ever yielding, for up to 2.7 s or for ever.
    Spin,
    /// Never yields again.
    SpinForEver,
    /// Starts a command and does not wait for it.
    LeaveCommand,
    /// Starts a command and waits for it.
    Command,
    /// Starts two commands, waits, and works on.
    Commands,
    /// Runs a fan-out, its slot given back meanwhile.
    Batch,
    /// Makes one or two calls below it, its slot given back meanwhile.
    Calls,
    /// Makes a call below it and then no longer waits for it.
    Abandon,
    /// Starts a command that nobody waits for.
    Unwatched,
    /// Makes one call below it, its slot given back meanwhile.
    Nest,
    /// Makes a call below it and keeps its slot while it waits: what is below may find none.
    HoldSlot,
    /// Starts a task in the background of its session, and does not wait for it.
    Later,
}

impl Behaviour {
    /// Whether a command can do it: it starts nothing itself.
    pub fn fits_command(self) -> bool {
        matches!(self, Self::Work | Self::Slow | Self::Fail | Self::Panic | Self::Hang | Self::Spin | Self::SpinForEver)
    }
}

/// What is done how often.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mix {
    weights: Vec<(Behaviour, u32)>,
    sum: u32,
}

impl Mix {
    /// Out of weights; the plainest comes first whatever their order.
    pub fn new(weights: impl IntoIterator<Item = (Behaviour, u32)>) -> Self {
        let mut weights: Vec<(Behaviour, u32)> = weights.into_iter().filter(|(_, weight)| *weight > 0).collect();
        weights.sort_unstable();
        let sum = weights.iter().fold(0_u32, |sum, (_, weight)| sum.saturating_add(*weight));
        Self { weights, sum }
    }

    /// The weights, the plainest first.
    pub fn weights(&self) -> &[(Behaviour, u32)] {
        &self.weights
    }

    /// Draws one.
    pub fn draw(&self, choices: &mut Choices) -> Behaviour {
        let mut at = if self.weights.len() > 1 { choices.below(self.sum) } else { 0 };
        for (behaviour, weight) in &self.weights {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *behaviour,
            }
        }
        Behaviour::Work
    }

    /// The variety of calls that may have no calls below them.
    pub fn leaves() -> Self {
        use Behaviour as B;
        let once = [
            B::Panic,
            B::Hang,
            B::Overrun,
            B::Spin,
            B::LeaveCommand,
            B::Command,
            B::Batch,
            B::Calls,
            B::Abandon,
            B::Unwatched,
            B::Commands,
        ];
        Self::new(once.into_iter().map(|behaviour| (behaviour, 1)).chain([(B::Work, 2)]))
    }

    /// The variety of calls that may: half of them do.
    pub fn calls() -> Self {
        use Behaviour as B;
        let more = [(B::Batch, 7), (B::Nest, 6), (B::HoldSlot, 1)];
        let leaves = Self::leaves();
        Self::new(leaves.weights.iter().copied().filter(|(behaviour, _)| *behaviour != B::Batch).chain(more))
    }

    /// The variety of commands.
    pub fn commands() -> Self {
        use Behaviour as B;
        Self::new([(B::Work, 3), (B::Slow, 1), (B::Panic, 1), (B::Hang, 1), (B::Spin, 1), (B::SpinForEver, 1)])
    }
}

/// What a person does who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Person {
    /// Any of the others, drawn anew for each question.
    #[default]
    Any,
    /// Approves.
    Approves,
    /// Rejects.
    Rejects,
    /// Says yes, and no a moment later.
    Contradicts,
    /// Answers about something else.
    Mistakes,
    /// Approves for good.
    ApprovesAlways,
    /// Never answers.
    Absent,
}

/// What goes wrong, until when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// One step in so many is a fault; none when 0; each seed has its own rate when it is left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_in: Option<u32>,
    /// Faults are made until this virtual moment, in milliseconds, and none after it.
    pub until_ms: u64,
    /// Which kinds; all of them when the list is empty.
    pub kinds: Vec<FaultKind>,
    /// One effect in so many of a machine is followed by a fault that is made for it; none when 0.
    pub at_effects_one_in: u32,
}

impl Default for Faults {
    fn default() -> Self {
        Self { one_in: None, until_ms: 5_000, kinds: Vec::new(), at_effects_one_in: 0 }
    }
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// A node is cancelled.
    Cancel,
    /// A node is cancelled twice, with two reasons.
    CancelTwice,
    /// A node is killed.
    Kill,
    /// A node is cancelled through its parent.
    CancelFromAbove,
    /// A node's time is up in three milliseconds.
    Deadline,
    /// A node's actor fails.
    Crash,
    /// The lane's actor fails and is started anew.
    LaneFails,
    /// A session's account is closed while it is used.
    AccountCloses,
    /// Whoever keeps the open questions fails and is started anew.
    DeskFails,
    /// The fact log fails and is started anew; the batch under way is stored or not.
    StoreFails,
}

impl FaultKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Cancel,
        Self::CancelTwice,
        Self::Kill,
        Self::CancelFromAbove,
        Self::Deadline,
        Self::Crash,
        Self::LaneFails,
        Self::AccountCloses,
        Self::DeskFails,
        Self::StoreFails,
    ];

    /// In plain words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::CancelTwice => "cancel twice",
            Self::Kill => "kill",
            Self::CancelFromAbove => "cancel from above",
            Self::Deadline => "deadline",
            Self::Crash => "crash",
            Self::LaneFails => "lane fails",
            Self::AccountCloses => "account closes",
            Self::DeskFails => "desk fails",
            Self::StoreFails => "store fails",
        }
    }
}

/// A cancel at a fixed moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cancel {
    /// When, in milliseconds from the start.
    pub at_ms: u64,
    /// What.
    pub what: CancelTarget,
}

/// What a cancel at a fixed moment hits: all that live of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelTarget {
    /// The whole tree, from the top.
    Everything,
    /// Every session.
    Sessions,
    /// Every run.
    Runs,
    /// Every call.
    Calls,
    /// Every fan-out.
    Batches,
    /// Every command.
    Commands,
}

#[cfg(test)]
mod tests {
    use super::{Behaviour, Mix};
    use crate::seed::Choices;

    #[test]
    fn a_mix_gives_the_plainest_for_zero_and_everything_it_holds() {
        let mix = Mix::new([(Behaviour::Hang, 2), (Behaviour::Work, 1), (Behaviour::Batch, 0)]);
        let drawn = (0..3).map(|number| mix.draw(&mut Choices::from_list(vec![number])));
        assert_eq!(drawn.collect::<Vec<_>>(), [Behaviour::Work, Behaviour::Hang, Behaviour::Hang]);
    }

    #[test]
    fn a_mix_of_one_takes_no_choice() {
        let mut choices = Choices::from_seed(1);
        assert_eq!(Mix::new([(Behaviour::Hang, 7)]).draw(&mut choices), Behaviour::Hang);
        assert!(choices.into_taken().is_empty());
    }

    #[test]
    fn half_of_the_calls_with_levels_left_have_calls_below() {
        let weight = |mix: &Mix| mix.weights().iter().map(|(_, weight)| weight).sum::<u32>();
        assert_eq!((weight(&Mix::leaves()), weight(&Mix::calls()), weight(&Mix::commands())), (13, 26, 8));
    }
}
