//! What a node decides: when its body starts, who is cancelled, which timer runs, and when the one ending comes.
//!
//! It holds the promises of [`crate::node`] and no I/O: events in, effects out. The mount carries the effects out, and
//! the simulation drives it alone.

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_tools::cancellation::CancelReason;

/// Most children that a node holds at a time; a further one is refused.
pub const CHILDREN_MAX: usize = 65_536;

/// How long a body has, once it was aborted, to reach an await point. A body that never does (it spins) is
/// reported as abandoned.
pub const ABORT_WAIT: Duration = Duration::from_millis(500);

/// How long a node that has done everything else waits for children that do not answer before it kills their
/// actors. Children keep their own time limits, so this only ends a wait that a bug would make endless.
pub const BACKSTOP: Duration = Duration::from_secs(30);

/// The number of a node, unique within its tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// How a body ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyEnd {
    /// It returned; its output is there.
    Returned,
    /// It panicked with these words.
    Panicked(String),
    /// It was cancelled, did not end within its grace, and was dropped.
    Aborted,
    /// It was aborted and did not stop; it may still run.
    Abandoned,
    /// It was cancelled before it began.
    NeverStarted,
    /// The node itself was killed with its parent, or its parent had ended.
    Lost,
}

/// The one ending of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// How its body ended.
    pub body: BodyEnd,
    /// Why it was cancelled, when it was.
    pub cancel: Option<CancelReason>,
    /// Children whose actor died without an ending of their own (it failed, or was killed because it did not
    /// answer): what was beneath them is being killed, and nobody waits for that. 0 but for a bug.
    pub unsettled_children: usize,
}

impl Ending {
    /// The ending of a node that never came to life.
    pub(crate) fn lost() -> Self {
        Self { body: BodyEnd::Lost, cancel: None, unsettled_children: 0 }
    }
}

/// What a node decides about; see [`NodeMachine::step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEvent {
    /// The node is linked to its parent and may begin.
    Start,
    /// Somebody wants a child.
    Spawn(NodeId),
    /// The child could not be started.
    SpawnFailed(NodeId),
    /// The child's supervision event arrived, and brought its ending.
    ChildEnded(NodeId),
    /// The child's supervision event arrived without an ending: its actor failed or was killed.
    ChildLost(NodeId),
    /// End in order. Legal at any time, also before `Start`.
    Cancel(CancelReason),
    /// One child is to end.
    CancelChild(NodeId, CancelReason),
    /// End now, without grace.
    Kill(CancelReason),
    /// The body's task is over.
    BodyEnded(BodyEnd),
    /// An armed timer ran out.
    Timer(NodeTimer),
}

/// The timers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeTimer {
    /// The span that the node was limited to, in milliseconds.
    Deadline {
        /// The span.
        timeout_ms: u64,
    },
    /// The span from cancel to abort.
    Grace,
    /// The span from abort to giving up on the body.
    AbortWait,
    /// The span from giving up on everything else to killing children.
    Backstop,
}

/// What a node wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeEffect {
    /// Start the body's task.
    StartBody,
    /// Give the body its cancel signal.
    SignalBody(CancelReason),
    /// Abort the body's task.
    AbortBody,
    /// Start this child.
    StartChild(NodeId),
    /// Tell whoever wanted this child that there will be none.
    RefuseChild(NodeId, CancelReason),
    /// Pass the cancel on.
    CancelChild(NodeId, CancelReason),
    /// Pass the kill on.
    KillChild(NodeId, CancelReason),
    /// Kill the child's actor: it does not answer.
    KillActor(NodeId),
    /// Run a timer.
    Arm(NodeTimer, Duration),
    /// Publish the ending and stop.
    End(Ending),
}

/// The decisions of a node, without I/O.
#[derive(Debug)]
pub struct NodeMachine {
    grace: Duration,
    body: BodyPhase,
    children: BTreeMap<NodeId, ChildPhase>,
    cancel: Option<CancelReason>,
    lost_children: usize,
    ended: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum BodyPhase {
    Waiting,
    Running,
    Aborting,
    Over(BodyEnd),
}

#[derive(Debug, PartialEq, Eq)]
enum ChildPhase {
    Running,
    Cancelled,
}

impl NodeMachine {
    /// A node whose body has `grace` from its cancel to its abort.
    pub fn new(grace: Duration) -> Self {
        let body = BodyPhase::Waiting;
        Self { grace, body, children: BTreeMap::new(), cancel: None, lost_children: 0, ended: false }
    }

    /// Takes one event and says what is to be done.
    pub fn step(&mut self, event: NodeEvent, effects: &mut Vec<NodeEffect>) {
        if self.ended {
            if let NodeEvent::Spawn(id) = event {
                effects.push(NodeEffect::RefuseChild(id, self.reason_for_children()));
            }
            return;
        }
        match event {
            NodeEvent::Start => self.start(effects),
            NodeEvent::Spawn(id) => self.spawn(id, effects),
            NodeEvent::SpawnFailed(id) | NodeEvent::ChildEnded(id) => {
                self.children.remove(&id);
            }
            NodeEvent::ChildLost(id) => {
                self.lost_children += usize::from(self.children.remove(&id).is_some());
            }
            NodeEvent::Cancel(reason) => self.cancel(reason, effects),
            NodeEvent::CancelChild(id, reason) => {
                if let Some(child @ ChildPhase::Running) = self.children.get_mut(&id) {
                    *child = ChildPhase::Cancelled;
                    effects.push(NodeEffect::CancelChild(id, reason));
                }
            }
            NodeEvent::Kill(reason) => self.kill(reason, effects),
            NodeEvent::BodyEnded(end) => self.body_ended(end, effects),
            NodeEvent::Timer(timer) => self.timer(timer, effects),
        }
        self.settle(effects);
    }

    /// Whether a child may still be started.
    pub fn is_open(&self) -> bool {
        self.cancel.is_none() && !self.ended && matches!(self.body, BodyPhase::Running)
    }

    /// How many children have not ended.
    pub fn child_count(&self) -> usize {
        self.children.len()
    }

    fn start(&mut self, effects: &mut Vec<NodeEffect>) {
        if self.body != BodyPhase::Waiting {
            return;
        }
        if self.cancel.is_some() {
            self.body = BodyPhase::Over(BodyEnd::NeverStarted);
        } else {
            self.body = BodyPhase::Running;
            effects.push(NodeEffect::StartBody);
        }
    }

    fn spawn(&mut self, id: NodeId, effects: &mut Vec<NodeEffect>) {
        if self.is_open() && self.children.len() < CHILDREN_MAX {
            self.children.insert(id, ChildPhase::Running);
            effects.push(NodeEffect::StartChild(id));
        } else {
            effects.push(NodeEffect::RefuseChild(id, self.reason_for_children()));
        }
    }

    fn cancel(&mut self, reason: CancelReason, effects: &mut Vec<NodeEffect>) {
        if self.cancel.is_some() {
            return;
        }
        self.cancel = Some(reason.clone());
        if self.body == BodyPhase::Running {
            effects.push(NodeEffect::SignalBody(reason.clone()));
        }
        self.cancel_children(&reason, effects);
        effects.push(NodeEffect::Arm(NodeTimer::Grace, self.grace));
    }

    fn kill(&mut self, reason: CancelReason, effects: &mut Vec<NodeEffect>) {
        let reason = self.cancel.get_or_insert(reason).clone();
        match self.body {
            BodyPhase::Waiting => self.body = BodyPhase::Over(BodyEnd::NeverStarted),
            BodyPhase::Running => {
                self.body = BodyPhase::Aborting;
                effects.push(NodeEffect::SignalBody(reason.clone()));
                effects.push(NodeEffect::AbortBody);
            }
            BodyPhase::Aborting | BodyPhase::Over(_) => {}
        }
        for (id, phase) in &mut self.children {
            *phase = ChildPhase::Cancelled;
            effects.push(NodeEffect::KillChild(*id, reason.clone()));
        }
        effects.push(NodeEffect::Arm(NodeTimer::AbortWait, ABORT_WAIT));
    }

    fn body_ended(&mut self, end: BodyEnd, effects: &mut Vec<NodeEffect>) {
        if !matches!(self.body, BodyPhase::Running | BodyPhase::Aborting) {
            return;
        }
        self.body = BodyPhase::Over(end);
        if !self.children.is_empty() {
            let reason = self.reason_for_children();
            self.cancel_children(&reason, effects);
            if self.cancel.is_none() {
                effects.push(NodeEffect::Arm(NodeTimer::Grace, self.grace));
            }
        }
    }

    fn timer(&mut self, timer: NodeTimer, effects: &mut Vec<NodeEffect>) {
        match timer {
            NodeTimer::Deadline { timeout_ms } => self.cancel(CancelReason::Deadline { timeout_ms }, effects),
            NodeTimer::Grace => {
                if self.body == BodyPhase::Running {
                    self.body = BodyPhase::Aborting;
                    effects.push(NodeEffect::AbortBody);
                }
                effects.push(NodeEffect::Arm(NodeTimer::AbortWait, ABORT_WAIT));
            }
            NodeTimer::AbortWait => {
                if self.body == BodyPhase::Aborting {
                    self.body = BodyPhase::Over(BodyEnd::Abandoned);
                }
                if !self.children.is_empty() {
                    effects.push(NodeEffect::Arm(NodeTimer::Backstop, BACKSTOP));
                }
            }
            NodeTimer::Backstop => {
                for id in self.children.keys() {
                    effects.push(NodeEffect::KillActor(*id));
                }
            }
        }
    }

    fn cancel_children(&mut self, reason: &CancelReason, effects: &mut Vec<NodeEffect>) {
        for (id, phase) in &mut self.children {
            if *phase == ChildPhase::Running {
                *phase = ChildPhase::Cancelled;
                effects.push(NodeEffect::CancelChild(*id, reason.clone()));
            }
        }
    }

    fn reason_for_children(&self) -> CancelReason {
        self.cancel.clone().unwrap_or(CancelReason::ParentEnded)
    }

    /// The ending comes when the body is over and no child is left, and only then.
    fn settle(&mut self, effects: &mut Vec<NodeEffect>) {
        if let BodyPhase::Over(body) = &self.body
            && self.children.is_empty()
        {
            self.ended = true;
            effects.push(NodeEffect::End(Ending {
                body: body.clone(),
                cancel: self.cancel.clone(),
                unsettled_children: self.lost_children,
            }));
        }
    }
}
