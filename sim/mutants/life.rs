//! Mutants of the tree: nodes that end too early, twice or never, and cancels that get lost.

use std::collections::BTreeSet;
use std::time::Duration;

use toolwarden_actors::fan_out::{Effect as FanEffect, Event as FanEvent, FanOut};
use toolwarden_actors::node_machine::{BodyEnd, Ending, NodeEffect, NodeEvent, NodeId, NodeMachine, NodeTimer};

use crate::tamper::{Slip, Tamper};

use super::{Mutant, machine, slip};

/// All of them.
pub(super) const LIVES: [Mutant; 18] = [
    machine("ending-before-children", "a node ends when its body does", || Box::new(EndsEarly), "wide", "settled", 20),
    machine("lost-child-forgotten", "a child that died is not counted", || Box::new(Forgets), "wide", "settled", 60),
    machine("ending-before-body", "an abort is taken for an end", || Box::new(AbortIsEnd), "wide", "settled", 20),
    machine("second-ending", "an ending is published twice", || Box::new(SecondEnding), "wide", "terminal", 5),
    machine(
        "cancel-lost-before-start",
        "a cancel is believed to need a body",
        || Box::<CancelLostBeforeStart>::default(),
        "deep",
        "cancelled",
        400,
    ),
    machine("spin-waited-for", "a spinning body is waited for", || Box::new(SpinWaitedFor), "scarce", "cancelled", 60),
    machine("child-not-told", "a cancel does not reach a child", || Box::new(ChildNotTold), "wide", "reached", 20),
    machine("kill-not-passed-on", "a kill stops where it hits", || Box::new(KillStops), "wide", "reached", 60),
    machine("body-not-aborted", "grace never ends", || Box::new(BodyNotAborted), "wide", "converged", 60),
    machine("deadline-ignored", "a node's time is never up", || Box::new(DeadlineIgnored), "wide", "cancelled", 200),
    machine("born-while-ending", "a node that ends takes children", || Box::new(BornLate), "wide", "reached", 400),
    machine("member-twice", "a fan-out starts a member twice", || Box::new(MemberTwice), "wide", "fan-out", 60),
    machine("width-ignored", "a fan-out starts all at once", || Box::new(WidthIgnored), "wide", "fan-out", 60),
    machine("member-forgotten", "a fan-out misses an end", || Box::<MemberForgotten>::default(), "wide", "fan-out", 60),
    machine(
        "early-end-not-waited",
        "a fan-out that ends early takes a cancel for an end",
        || Box::new(EarlyEndNotWaited),
        "fan-out-storm",
        "fan-out",
        60,
    ),
    machine(
        "start-after-early-end",
        "a fan-out that ends early starts one more",
        || Box::<StartAfterEarlyEnd>::default(),
        "fan-out-storm",
        "fan-out",
        60,
    ),
    slip("waiters-forgotten", "a dead node forgets who waits", Slip::ForgetsWaiters, "wide", "waiters", 60),
    slip("waiter-told-twice", "an ending is told twice", Slip::TellsWaitersTwice, "wide", "waiters", 5),
];

struct EndsEarly;

impl Tamper for EndsEarly {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        let returned = event == NodeEvent::BodyEnded(BodyEnd::Returned);
        machine.step(event, effects);
        if returned && machine.child_count() > 0 {
            effects.push(NodeEffect::End(Ending { body: BodyEnd::Returned, cancel: None, unsettled_children: 0 }));
        }
    }
}

struct Forgets;

impl Tamper for Forgets {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        let event = match event {
            NodeEvent::ChildLost(child) => NodeEvent::ChildEnded(child),
            other => other,
        };
        machine.step(event, effects);
    }
}

struct AbortIsEnd;

impl Tamper for AbortIsEnd {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        if effects.contains(&NodeEffect::AbortBody) {
            machine.step(NodeEvent::BodyEnded(BodyEnd::Aborted), effects);
        }
    }
}

struct SecondEnding;

impl Tamper for SecondEnding {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        if let Some(end @ NodeEffect::End(_)) = effects.last().cloned() {
            effects.push(end);
        }
    }
}

#[derive(Default)]
struct CancelLostBeforeStart {
    started: BTreeSet<NodeId>,
}

impl Tamper for CancelLostBeforeStart {
    fn node(&mut self, id: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        match event {
            NodeEvent::Start => {
                self.started.insert(id);
            }
            NodeEvent::Cancel(_) | NodeEvent::Kill(_) if !self.started.contains(&id) => return,
            _ => {}
        }
        machine.step(event, effects);
    }
}

struct SpinWaitedFor;

impl Tamper for SpinWaitedFor {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        if event != NodeEvent::Timer(NodeTimer::AbortWait) {
            machine.step(event, effects);
        }
    }
}

struct ChildNotTold;

impl Tamper for ChildNotTold {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| !matches!(effect, NodeEffect::CancelChild(child, _) if child.0 % 3 == 0));
    }
}

struct KillStops;

impl Tamper for KillStops {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| !matches!(effect, NodeEffect::KillChild(..)));
    }
}

struct BodyNotAborted;

impl Tamper for BodyNotAborted {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        effects.retain(|effect| *effect != NodeEffect::AbortBody);
    }
}

struct DeadlineIgnored;

impl Tamper for DeadlineIgnored {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        if !matches!(event, NodeEvent::Timer(NodeTimer::Deadline { .. })) {
            machine.step(event, effects);
        }
    }
}

struct BornLate;

impl Tamper for BornLate {
    fn node(&mut self, _: NodeId, machine: &mut NodeMachine, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        machine.step(event, effects);
        for effect in effects {
            if let NodeEffect::RefuseChild(child, _) = effect {
                *effect = NodeEffect::StartChild(*child);
            }
        }
    }
}

struct MemberTwice;

impl Tamper for MemberTwice {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        let mut effects = fan.step(now, event);
        if let Some(start @ FanEffect::Start { .. }) = effects.first().cloned() {
            effects.push(start);
        }
        effects
    }
}

struct WidthIgnored;

impl Tamper for WidthIgnored {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        let mut effects = fan.step(now, event);
        if let Some(FanEffect::Start { member }) = effects.first().cloned() {
            effects.push(FanEffect::Start { member: member + 1 });
            effects.push(FanEffect::Start { member: member + 2 });
        }
        effects
    }
}

/// Every second end of a member is not noticed.
#[derive(Default)]
struct MemberForgotten {
    ends: usize,
}

impl Tamper for MemberForgotten {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        if matches!(event, FanEvent::Finished { .. } | FanEvent::Crashed { .. }) {
            self.ends += 1;
            if self.ends.is_multiple_of(2) {
                return Vec::new();
            }
        }
        fan.step(now, event)
    }
}

struct EarlyEndNotWaited;

impl Tamper for EarlyEndNotWaited {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        let mut effects = fan.step(now, event);
        let told: Vec<usize> = effects
            .iter()
            .filter_map(|effect| match effect {
                FanEffect::Cancel { member, .. } => Some(*member),
                _ => None,
            })
            .collect();
        for member in told {
            effects.extend(fan.step(now, FanEvent::Crashed { member, message: String::new() }));
        }
        effects
    }
}

/// Holds a start back until others are told to end.
#[derive(Default)]
struct StartAfterEarlyEnd {
    held: Option<FanEffect>,
}

impl Tamper for StartAfterEarlyEnd {
    fn fan_out(&mut self, fan: &mut FanOut<()>, now: Duration, event: FanEvent<()>) -> Vec<FanEffect> {
        let mut effects = fan.step(now, event);
        if effects.iter().any(|effect| matches!(effect, FanEffect::Cancel { .. })) {
            effects.extend(self.held.take());
        } else if self.held.is_none()
            && let Some(at) = effects.iter().position(|effect| matches!(effect, FanEffect::Start { .. }))
        {
            self.held = Some(effects.remove(at));
        }
        effects
    }
}
