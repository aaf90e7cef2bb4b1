//! What bodies do: short scripts that stand for the work of sessions, runs, calls and commands.
//!
//! A script is drawn when its node is wanted, so that the shape of the tree is made of choices like everything else,
//! and shrinking makes trees smaller. Choice 0 is always the plainest script, and scripts get plainer with depth, so
//! a tree is never deeper than its workload says.

use std::time::Duration;

use toolwarden_actors::fan_out::FanOutPlan;
use toolwarden_actors::node::NodeKind;

use crate::seed::Choices;

/// Faults are made until this virtual moment, and none after it.
pub const FAULTS_UNTIL: Duration = Duration::from_secs(5);

/// At this virtual moment the host cancels whatever still lives; long after everything that a cancel may take.
pub const CLOSE_AT: Duration = Duration::from_secs(200);

/// The grace of the top node.
pub const TOP_GRACE: Duration = Duration::from_secs(2);

/// What a body does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Works, and can be interrupted.
    Work(Duration),
    /// Works without ever yielding for so long: neither a cancel nor an abort is seen meanwhile.
    Spin(Duration),
    /// Never yields again.
    SpinForEver,
    /// Waits for something that never comes.
    Hang,
    /// Panics.
    Panic,
    /// Limits its own node's life from now on.
    Limit(Duration),
    /// Opens its session's budget and waits until that is done.
    OpenAccount,
    /// Closes its session's budget.
    CloseAccount,
    /// Asks a person and waits for the answer; ends when it is no.
    Ask,
    /// Reserves calls in its session's budget, and uses so many of them; ends when it is refused.
    Reserve {
        /// Asked for.
        asked: u64,
        /// Used.
        used: u64,
    },
    /// Waits for a slot of the lane; ends when it is turned away.
    Slot,
    /// Gives slots and reservations back.
    GoHome,
    /// Spawns children.
    Spawn {
        /// As what.
        kind: NodeKind,
        /// How many.
        count: u32,
        /// Whether their endings are waited for; else nobody waits.
        waited: bool,
    },
    /// Waits for the endings of the children.
    AwaitChildren,
    /// Stops waiting for the children: that cancels them.
    DropWaiters,
    /// Runs so many members by a plan.
    FanOut {
        /// How many.
        members: usize,
        /// How.
        plan: FanOutPlan,
    },
    /// Writes its invocation's ending and waits until it is stored.
    WriteEnding,
}

/// What a body makes of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Stops at once, and no longer waits for its children.
    Prompt,
    /// Stops, but waits for its children first.
    Settling,
    /// Goes on as if nothing had been said.
    Deaf,
}

/// A body to be.
#[derive(Debug, Clone)]
pub struct Script {
    /// What its node stands for.
    pub kind: NodeKind,
    /// Its node's grace.
    pub grace: Duration,
    /// What it makes of a cancel.
    pub manner: Manner,
    /// What it does, in order.
    pub acts: Vec<Act>,
    /// How many levels of calls may still lie below it.
    pub depth: u32,
}

/// How large a simulated world is, and what is scarce in it.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name in reports.
    pub name: &'static str,
    /// Sessions.
    pub sessions: u32,
    /// Runs in a session.
    pub runs: u32,
    /// Calls that a run makes beside each other.
    pub calls: u32,
    /// Levels of calls within calls.
    pub depth: u32,
    /// Members of a fan-out.
    pub members: usize,
    /// Slots of the lane.
    pub permits: usize,
    /// Calls that may wait for a slot.
    pub queue_max: usize,
    /// Whether calls take a free slot in passing; else the lane is asked for each, as one with a breaker is.
    pub passing: bool,
    /// Calls that a session's budget allows.
    pub calls_max: u64,
}

/// One session, calls with fan-outs, a lane that is a little too narrow.
pub const WIDE: Workload = Workload {
    name: "wide",
    sessions: 1,
    runs: 2,
    calls: 8,
    depth: 1,
    members: 6,
    permits: 3,
    queue_max: 4,
    passing: false,
    calls_max: 40,
};

/// Calls within calls, few of them beside each other.
pub const DEEP: Workload = Workload {
    name: "deep",
    sessions: 1,
    runs: 2,
    calls: 4,
    depth: 6,
    members: 3,
    permits: 4,
    queue_max: 8,
    passing: false,
    calls_max: 30,
};

/// Several sessions that fight for one slot, with budgets that do not last.
pub const SCARCE: Workload = Workload {
    name: "scarce",
    sessions: 3,
    runs: 1,
    calls: 3,
    depth: 1,
    members: 3,
    permits: 1,
    queue_max: 3,
    passing: false,
    calls_max: 4,
};

/// All workloads.
pub const WORKLOADS: [Workload; 3] = [WIDE, DEEP, SCARCE];

const GRACES: [Duration; 6] = [
    Duration::from_secs(2),
    Duration::from_secs(2),
    Duration::from_millis(50),
    Duration::ZERO,
    Duration::from_secs(10),
    // Longer than a parent waits: its node is killed from above.
    Duration::from_secs(50),
];

impl Workload {
    /// The script of the top node.
    pub fn top(&self) -> Script {
        let acts = vec![spawn(NodeKind::Session, self.sessions), Act::AwaitChildren];
        Script { kind: NodeKind::Sessions, grace: TOP_GRACE, manner: Manner::Settling, acts, depth: self.depth }
    }

    /// Draws the script of a node of this kind, with so many levels left.
    pub fn script(&self, kind: NodeKind, depth: u32, choices: &mut Choices) -> Script {
        let manner = [Manner::Prompt, Manner::Prompt, Manner::Settling, Manner::Deaf][choices.below(4) as usize];
        let grace = GRACES[choices.below(6) as usize];
        let acts = match kind {
            NodeKind::Sessions | NodeKind::Session => self.session(choices),
            NodeKind::Run => self.run(choices),
            NodeKind::Invocation => self.invocation(depth, choices),
            NodeKind::FanOut => self.fan_out(choices),
            NodeKind::ProcessGroup => process(choices),
        };
        Script { kind, grace, manner, acts, depth }
    }

    fn session(&self, choices: &mut Choices) -> Vec<Act> {
        let mut acts = vec![Act::OpenAccount, spawn(NodeKind::Run, self.runs)];
        match choices.below(5) {
            // Most sessions live until they are closed.
            3 => acts.push(Act::Hang),
            4 => acts.extend([Act::Work(ms(3)), Act::DropWaiters, Act::Work(ms(2))]),
            _ => acts.push(Act::AwaitChildren),
        }
        acts.push(Act::CloseAccount);
        acts
    }

    fn run(&self, choices: &mut Choices) -> Vec<Act> {
        let calls = spawn(NodeKind::Invocation, 1 + choices.below(self.calls));
        match choices.below(6) {
            0 | 1 => vec![calls, Act::AwaitChildren],
            2 => vec![Act::Work(ms(2)), calls, Act::AwaitChildren, spawn(NodeKind::Invocation, 1), Act::AwaitChildren],
            3 => vec![calls, Act::Work(ms(4))],
            4 => vec![Act::Limit(ms(30)), calls, Act::AwaitChildren],
            _ => vec![spawn(NodeKind::FanOut, 1), calls, Act::AwaitChildren],
        }
    }

    fn invocation(&self, depth: u32, choices: &mut Choices) -> Vec<Act> {
        let mut acts = Vec::with_capacity(8);
        if choices.below(6) == 5 {
            acts.push(Act::Ask);
        }
        let asked = 1 + u64::from(choices.below(2));
        let used = [asked, 0, 2 * asked][choices.below(3) as usize];
        acts.extend([Act::Reserve { asked, used }, Act::Slot]);
        let below = if depth == 0 { NodeKind::ProcessGroup } else { NodeKind::Invocation };
        // With levels left, half of the calls have calls below them.
        let kinds = if depth == 0 { 13 } else { 26 };
        match choices.below(kinds) {
            0 | 1 => acts.push(Act::Work(ms(2))),
            2 => acts.push(Act::Panic),
            3 => acts.push(Act::Hang),
            4 => acts.extend([Act::Limit(ms(20)), Act::Hang]),
            5 => acts.push(match choices.below(5) {
                4 => Act::SpinForEver,
                times => Act::Spin(ms(u64::from(times) * 900)),
            }),
            6 => acts.push(spawn(NodeKind::ProcessGroup, 1)),
            7 => acts.extend([spawn(NodeKind::ProcessGroup, 1), Act::AwaitChildren]),
            // Waiting for children gives the slot back.
            8 => acts.extend([Act::GoHome, spawn(NodeKind::FanOut, 1), Act::AwaitChildren]),
            9 => acts.extend([Act::GoHome, spawn(below, 1 + choices.below(2)), Act::AwaitChildren]),
            10 => acts.extend([spawn(below, 1), Act::Work(ms(1)), Act::DropWaiters]),
            11 => acts.push(Act::Spawn { kind: NodeKind::ProcessGroup, count: 1, waited: false }),
            12 => acts.extend([spawn(NodeKind::ProcessGroup, 2), Act::AwaitChildren, Act::Work(ms(1))]),
            13..=18 => acts.extend([Act::GoHome, spawn(NodeKind::FanOut, 1), Act::AwaitChildren]),
            // Keeps its slot while it waits: what is below may find none.
            19 => acts.extend([spawn(below, 1), Act::AwaitChildren]),
            _ => acts.extend([Act::GoHome, spawn(below, 1), Act::AwaitChildren]),
        }
        acts
    }

    fn fan_out(&self, choices: &mut Choices) -> Vec<Act> {
        let members = 1 + choices.below(u32::try_from(self.members).unwrap_or(u32::MAX)) as usize;
        let plan = FanOutPlan {
            width: 1 + choices.below(3) as usize,
            enough_successes: [None, None, Some(1)][choices.below(3) as usize],
            fail_fast: choices.below(3) == 2,
            timeout: [None, None, Some(ms(15))][choices.below(3) as usize],
        };
        vec![Act::FanOut { members, plan }]
    }
}

/// What every body of an invocation does at its end, when it comes to that.
pub fn closing(kind: NodeKind) -> Vec<Act> {
    match kind {
        NodeKind::Invocation => vec![Act::GoHome, Act::WriteEnding],
        NodeKind::Session => vec![Act::CloseAccount],
        NodeKind::Sessions | NodeKind::Run | NodeKind::FanOut | NodeKind::ProcessGroup => vec![Act::Work(ms(1))],
    }
}

fn process(choices: &mut Choices) -> Vec<Act> {
    vec![match choices.below(8) {
        0..=2 => Act::Work(ms(3)),
        3 => Act::Work(Duration::from_secs(5)),
        4 => Act::Hang,
        5 => Act::Spin(ms(1200)),
        6 => Act::Panic,
        _ => Act::SpinForEver,
    }]
}

fn spawn(kind: NodeKind, count: u32) -> Act {
    Act::Spawn { kind, count, waited: true }
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}
