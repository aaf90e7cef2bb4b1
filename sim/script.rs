//! What bodies do: short scripts that stand for the work of sessions, runs, calls and commands.
//!
//! A script is drawn when its node is wanted, so that the shape of the tree is made of choices like everything else,
//! and shrinking makes trees smaller. Choice 0 is always the plainest script, and scripts get plainer with depth, so
//! a tree is never deeper than its workload says.

use std::time::Duration;

use toolwarden_actors::fan_out::FanOutPlan;
use toolwarden_actors::node::NodeKind;

use crate::seed::Choices;
use crate::workload::{Behaviour, Manner, Shape, Workload};

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
    /// Writes down that its tool starts, and waits until that is durable; ends when it cannot be.
    Record,
    /// Its tool starts: from here on there are effects.
    Begin,
    /// Gives slots and reservations back, and says that what was called does not work.
    Fail,
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
        /// How; apart, because few acts are fan-outs and all are as large as the largest.
        plan: Box<FanOutPlan>,
    },
    /// Registers a task in the background of its session.
    Later,
    /// Waits, as a task in the background, until its turn stands.
    AwaitTurn,
    /// As a run: the calls of its turn all have their results.
    TurnStands,
    /// As a session: no more tasks start, and those that run are told to end.
    CloseTasks,
    /// Writes its invocation's ending and waits until it is stored.
    WriteEnding,
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
    /// Whether a person must be asked first.
    pub asks: bool,
}

impl Workload {
    /// The script of the top node.
    pub fn top(&self) -> Script {
        let acts = vec![spawn(NodeKind::Session, self.tree.sessions), Act::AwaitChildren];
        let depth = self.tree.depth;
        Script { kind: NodeKind::Sessions, grace: TOP_GRACE, manner: Manner::Settling, acts, depth, asks: false }
    }

    /// Draws the script of a node of this kind, with so many levels left.
    pub fn script(&self, kind: NodeKind, depth: u32, choices: &mut Choices) -> Script {
        let manner = self.bodies.manner(choices);
        let grace = self.bodies.grace(choices);
        let mut asks = false;
        let acts = match kind {
            NodeKind::Sessions | NodeKind::Session => self.session(choices),
            NodeKind::Run => self.run(choices),
            NodeKind::Invocation => {
                asks = self.asks(choices);
                self.invocation(asks, depth, choices)
            }
            NodeKind::FanOut => self.fan_out(choices),
            NodeKind::ProcessGroup => process(self.commands.draw(choices), choices),
        };
        Script { kind, grace, manner, acts, depth, asks }
    }

    fn asks(&self, choices: &mut Choices) -> bool {
        let one_in = self.bodies.asks_one_in;
        one_in > 0 && choices.below(one_in) + 1 == one_in
    }

    fn session(&self, choices: &mut Choices) -> Vec<Act> {
        let mut acts = vec![Act::OpenAccount, spawn(NodeKind::Run, self.tree.runs)];
        match if self.tree.exact { 0 } else { choices.below(5) } {
            // Most sessions live until they are closed.
            3 => acts.push(Act::Hang),
            4 => acts.extend([Act::Work(ms(3)), Act::DropWaiters, Act::Work(ms(2))]),
            _ => acts.push(Act::AwaitChildren),
        }
        acts.extend([Act::CloseTasks, Act::CloseAccount]);
        acts
    }

    /// The script of a task in the background: it begins when its turn stands, and hears a cancel before that too.
    pub fn later(&self, choices: &mut Choices) -> Script {
        let manner = if choices.below(2) == 0 { Manner::Settling } else { Manner::Prompt };
        let acts = vec![Act::AwaitTurn, spawn(NodeKind::Invocation, 1 + choices.below(2)), Act::AwaitChildren];
        let grace = self.bodies.grace(choices);
        Script { kind: NodeKind::Run, grace, manner, acts, depth: 0, asks: false }
    }

    fn run(&self, choices: &mut Choices) -> Vec<Act> {
        if self.tree.exact {
            return vec![spawn(NodeKind::Invocation, self.tree.calls), Act::AwaitChildren, Act::TurnStands];
        }
        let calls = spawn(NodeKind::Invocation, 1 + choices.below(self.tree.calls));
        match choices.below(6) {
            0 | 1 => vec![calls, Act::AwaitChildren, Act::TurnStands],
            2 => {
                let first = [Act::Work(ms(2)), calls, Act::AwaitChildren, Act::TurnStands];
                let second = [spawn(NodeKind::Invocation, 1), Act::AwaitChildren, Act::TurnStands];
                first.into_iter().chain(second).collect()
            }
            3 => vec![calls, Act::Work(ms(4))],
            4 => vec![Act::Limit(ms(30)), calls, Act::AwaitChildren, Act::TurnStands],
            _ => vec![spawn(NodeKind::FanOut, 1), calls, Act::AwaitChildren],
        }
    }

    fn invocation(&self, asks: bool, depth: u32, choices: &mut Choices) -> Vec<Act> {
        use Behaviour as B;
        let mut acts = Vec::with_capacity(12);
        if asks {
            acts.push(Act::Ask);
        }
        let asked = 1 + u64::from(choices.below(2));
        let used = [asked, 0, 2 * asked][choices.below(3) as usize];
        acts.extend([Act::Reserve { asked, used }, Act::Slot, Act::Record, Act::Begin]);
        let below = if depth == 0 { NodeKind::ProcessGroup } else { NodeKind::Invocation };
        let mix = if depth == 0 { &self.leaves } else { &self.calls };
        match mix.draw(choices) {
            B::LeaveCommand => acts.push(spawn(NodeKind::ProcessGroup, 1)),
            B::Command => acts.extend([spawn(NodeKind::ProcessGroup, 1), Act::AwaitChildren]),
            B::Commands => {
                acts.extend([spawn(NodeKind::ProcessGroup, 2), Act::AwaitChildren, Act::Work(ms(1))]);
            }
            // Waiting for children gives the slot back.
            B::Batch => acts.extend([Act::GoHome, spawn(NodeKind::FanOut, 1), Act::AwaitChildren]),
            B::Calls => acts.extend([Act::GoHome, spawn(below, 1 + choices.below(2)), Act::AwaitChildren]),
            B::Nest => acts.extend([Act::GoHome, spawn(below, 1), Act::AwaitChildren]),
            B::HoldSlot => acts.extend([spawn(below, 1), Act::AwaitChildren]),
            B::Abandon => acts.extend([spawn(below, 1), Act::Work(ms(1)), Act::DropWaiters]),
            B::Unwatched => acts.push(Act::Spawn { kind: NodeKind::ProcessGroup, count: 1, waited: false }),
            B::Later => acts.extend([Act::Later, Act::Work(ms(1))]),
            alone => acts.extend(process(alone, choices)),
        }
        acts
    }

    fn fan_out(&self, choices: &mut Choices) -> Vec<Act> {
        let Shape { members, width, exact, .. } = self.tree;
        if exact {
            return vec![Act::FanOut { members: members as usize, plan: Box::new(FanOutPlan::all(width as usize)) }];
        }
        let members = 1 + choices.below(members) as usize;
        let plan = FanOutPlan {
            width: 1 + choices.below(width) as usize,
            enough_successes: [None, None, Some(1)][choices.below(3) as usize],
            fail_fast: choices.below(3) == 2,
            timeout: [None, None, Some(ms(15))][choices.below(3) as usize],
        };
        vec![Act::FanOut { members, plan: Box::new(plan) }]
    }
}

/// What every body of an invocation does at its end, when it comes to that.
pub fn closing(kind: NodeKind) -> &'static [Act] {
    const CALL: &[Act] = &[Act::GoHome, Act::WriteEnding];
    const SESSION: &[Act] = &[Act::CloseTasks, Act::CloseAccount];
    const OTHER: &[Act] = &[Act::Work(ms(1))];
    match kind {
        NodeKind::Invocation => CALL,
        NodeKind::Session => SESSION,
        NodeKind::Sessions | NodeKind::Run | NodeKind::FanOut | NodeKind::ProcessGroup => OTHER,
    }
}

/// What is done without any child.
fn process(behaviour: Behaviour, choices: &mut Choices) -> Vec<Act> {
    match behaviour {
        Behaviour::Slow => vec![Act::Work(Duration::from_secs(5))],
        Behaviour::Fail => vec![Act::Work(ms(1)), Act::Fail],
        Behaviour::Panic => vec![Act::Panic],
        Behaviour::Hang => vec![Act::Hang],
        Behaviour::Overrun => vec![Act::Limit(ms(20)), Act::Hang],
        Behaviour::Spin => vec![match choices.below(5) {
            4 => Act::SpinForEver,
            times => Act::Spin(ms(u64::from(times) * 900)),
        }],
        Behaviour::SpinForEver => vec![Act::SpinForEver],
        _ => vec![Act::Work(ms(2))],
    }
}

fn spawn(kind: NodeKind, count: u32) -> Act {
    Act::Spawn { kind, count, waited: true }
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}
