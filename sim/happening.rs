//! What happens in a simulated run, as the checkers see it, and the digest of all of it.
//!
//! The world reports what it did, never what a machine says about itself, so that a machine that deceives itself is
//! still caught. The digest folds every happening with its moment: two runs are the same run when it is the same.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use toolwarden_actors::node::NodeKind;

use toolwarden_actors::node_machine::{BodyEnd, NodeId};

use crate::workload::FaultKind;

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Happening {
    /// Somebody wanted a node.
    Wanted {
        /// Which.
        node: NodeId,
        /// Whether somebody waits for its ending.
        waited: bool,
    },
    /// A node's actor came to life.
    Born {
        /// Which.
        node: NodeId,
        /// Under whom.
        parent: Option<NodeId>,
        /// As what.
        kind: Kind,
        /// With which grace.
        grace: Duration,
    },
    /// A live node read a cancel, a kill or the end of its time.
    CancelRead {
        /// Which.
        node: NodeId,
    },
    /// A live node read that its body is over.
    BodyEndRead {
        /// Which.
        node: NodeId,
    },
    /// A node asked for its body to begin.
    BodyAsked {
        /// Whose.
        node: NodeId,
    },
    /// A body is over: its task is gone.
    BodyOver {
        /// Whose.
        node: NodeId,
    },
    /// A node published its ending.
    Ended {
        /// Which.
        node: NodeId,
        /// How its body ended.
        body: End,
        /// Children that it could not vouch for.
        unsettled: usize,
    },
    /// A node's actor was killed or failed: it has no ending of its own.
    Died {
        /// Which.
        node: NodeId,
    },
    /// Whoever waits for a node was told its ending.
    WaiterTold {
        /// Of which.
        node: NodeId,
    },
    /// A call asked for a slot.
    SlotAsked {
        /// The number of the attempt.
        ticket: u64,
    },
    /// For which call a slot was asked.
    SlotFor {
        /// The number of the attempt.
        ticket: u64,
        /// The call.
        node: NodeId,
    },
    /// A call was given a slot.
    SlotLent {
        /// The number of the attempt.
        ticket: u64,
    },
    /// A call was turned away.
    SlotShed {
        /// The number of the attempt.
        ticket: u64,
    },
    /// A call no longer waits: it withdrew, or the question was lost with its lane.
    SlotGivenUp {
        /// The number of the attempt.
        ticket: u64,
    },
    /// A slot came home.
    SlotHome {
        /// The number it was lent under.
        ticket: u64,
    },
    /// An account was opened.
    AccountOpened {
        /// Which.
        account: u64,
        /// Under which.
        parent: Option<u64>,
        /// How many calls it allows.
        calls_max: u64,
    },
    /// A reservation was made.
    Reserved {
        /// Its number.
        reservation: u64,
        /// In which account.
        account: u64,
        /// Calls.
        calls: u64,
    },
    /// A reservation was settled.
    Settled {
        /// Its number.
        reservation: u64,
        /// Calls really used.
        calls: u64,
    },
    /// A question was asked.
    Asked {
        /// Its number.
        ask: u64,
    },
    /// A question was answered.
    Answered {
        /// Its number.
        ask: u64,
        /// Whether the call may run.
        approved: bool,
    },
    /// Nobody waits for the answer any more.
    Withdrawn {
        /// Its number.
        ask: u64,
    },
    /// A person approved a question that was shown to them.
    Approved {
        /// Its number.
        ask: u64,
    },
    /// The journal took an entry.
    Entry {
        /// Its number.
        sequence: u64,
        /// Its moment, in milliseconds.
        unix_ms: u64,
        /// The invocation.
        invocation: NodeId,
        /// Whether it is the ending.
        ending: bool,
    },
    /// The journal refused an ending.
    EntryRefused {
        /// The invocation.
        invocation: NodeId,
    },
    /// A fan-out began.
    FanBegan {
        /// Its node.
        node: NodeId,
        /// How many members.
        members: usize,
        /// How many at a time.
        width: usize,
    },
    /// A member of a fan-out was started.
    MemberBegan {
        /// The fan-out's node.
        node: NodeId,
        /// Which member.
        member: usize,
    },
    /// A fan-out tells a member to end: nobody starts any more.
    FanEndsEarly {
        /// The fan-out's node.
        node: NodeId,
    },
    /// A member of a fan-out has ended.
    MemberEnded {
        /// The fan-out's node.
        node: NodeId,
        /// Which member.
        member: usize,
    },
    /// A fan-out is done; so many of its members have an end.
    FanDone {
        /// Its node.
        node: NodeId,
        /// How many.
        ends: usize,
    },
    /// A fan-out's body is gone with what it kept.
    FanDropped {
        /// Its node.
        node: NodeId,
    },
    /// A call was proposed.
    Proposed {
        /// Which.
        node: NodeId,
        /// Whether a person must say yes.
        asks: bool,
    },
    /// What a stage gives has arrived at the call.
    Passed {
        /// Which call.
        node: NodeId,
        /// Which stage.
        stage: Stage,
    },
    /// The record that a call's tool starts is durable.
    RecordDurable {
        /// Which call.
        node: NodeId,
    },
    /// A call's tool starts: from here on there are effects.
    ToolBegan {
        /// Which call.
        node: NodeId,
    },
    /// A fault was made.
    Fault {
        /// Which kind.
        kind: FaultKind,
        /// At which node; at none when it hits what all share.
        node: Option<NodeId>,
    },
    /// A task in the background was registered.
    TaskRegistered {
        /// Its node.
        task: NodeId,
        /// The turn that it waits for, by its run.
        turn: NodeId,
        /// Its session.
        session: NodeId,
    },
    /// All calls of a turn have their results.
    TurnStood {
        /// Its run.
        turn: NodeId,
    },
    /// A run is over; a turn of it that did not stand never will.
    RunOver {
        /// Which.
        turn: NodeId,
    },
    /// A task in the background begins its work.
    TaskBegan {
        /// Which.
        task: NodeId,
    },
    /// A task in the background was told to end.
    TaskCancelled {
        /// Which.
        task: NodeId,
    },
    /// The ending of a task in the background was told.
    TaskEnded {
        /// Which.
        task: NodeId,
        /// Whether its session's conversation gets what it came to.
        delivered: bool,
    },
    /// A session starts no more tasks in the background.
    TasksClosed {
        /// Which.
        session: NodeId,
    },
    /// From here on no faults are made, and everything must come to rest.
    FaultsStopped,
}

/// What a happening is about: a checker hears of what it asks for and of nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// The life of nodes and of their bodies, and who is told of it.
    Life,
    /// The slots of the lane.
    Slot,
    /// Accounts and reservations.
    Budget,
    /// Questions to a person.
    Question,
    /// The journal.
    Journal,
    /// Fan-outs.
    FanOut,
    /// What a call is given before its tool starts.
    Route,
    /// Faults.
    Fault,
    /// Tasks in the background.
    Task,
}

impl Subject {
    /// How many there are.
    pub const COUNT: usize = Self::Task as usize + 1;
}

impl Happening {
    /// What it is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Wanted { .. }
            | Self::Born { .. }
            | Self::CancelRead { .. }
            | Self::BodyEndRead { .. }
            | Self::BodyAsked { .. }
            | Self::BodyOver { .. }
            | Self::Ended { .. }
            | Self::Died { .. }
            | Self::WaiterTold { .. } => Subject::Life,
            Self::SlotAsked { .. }
            | Self::SlotFor { .. }
            | Self::SlotLent { .. }
            | Self::SlotShed { .. }
            | Self::SlotGivenUp { .. }
            | Self::SlotHome { .. } => Subject::Slot,
            Self::AccountOpened { .. } | Self::Reserved { .. } | Self::Settled { .. } => Subject::Budget,
            Self::Asked { .. } | Self::Answered { .. } | Self::Withdrawn { .. } | Self::Approved { .. } => {
                Subject::Question
            }
            Self::Entry { .. } | Self::EntryRefused { .. } => Subject::Journal,
            Self::FanBegan { .. }
            | Self::MemberBegan { .. }
            | Self::FanEndsEarly { .. }
            | Self::MemberEnded { .. }
            | Self::FanDone { .. }
            | Self::FanDropped { .. } => Subject::FanOut,
            Self::Proposed { .. } | Self::Passed { .. } | Self::RecordDurable { .. } | Self::ToolBegan { .. } => {
                Subject::Route
            }
            Self::Fault { .. } | Self::FaultsStopped => Subject::Fault,
            Self::TaskRegistered { .. }
            | Self::TurnStood { .. }
            | Self::RunOver { .. }
            | Self::TaskBegan { .. }
            | Self::TaskCancelled { .. }
            | Self::TaskEnded { .. }
            | Self::TasksClosed { .. } => Subject::Task,
        }
    }
}

/// What a node stands for; as [`NodeKind`], and it can be hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The top.
    Sessions,
    /// A session.
    Session,
    /// A run.
    Run,
    /// A call.
    Invocation,
    /// The members of a fan-out.
    FanOut,
    /// A command.
    Process,
}

impl From<NodeKind> for Kind {
    fn from(kind: NodeKind) -> Self {
        match kind {
            NodeKind::Sessions => Self::Sessions,
            NodeKind::Session => Self::Session,
            NodeKind::Run => Self::Run,
            NodeKind::Invocation => Self::Invocation,
            NodeKind::FanOut => Self::FanOut,
            NodeKind::ProcessGroup => Self::Process,
        }
    }
}

/// A stage that gives something to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// A person's yes.
    Confirmation,
    /// A reservation.
    Budget,
    /// A slot.
    Admission,
}

/// How a body ended; as [`BodyEnd`], without its words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// It returned.
    Returned,
    /// It panicked.
    Panicked,
    /// It was aborted.
    Aborted,
    /// It would not stop.
    Abandoned,
    /// It never began.
    NeverStarted,
    /// It was lost with its node.
    Lost,
}

impl From<&BodyEnd> for End {
    fn from(end: &BodyEnd) -> Self {
        match end {
            BodyEnd::Returned => Self::Returned,
            BodyEnd::Panicked(_) => Self::Panicked,
            BodyEnd::Aborted => Self::Aborted,
            BodyEnd::Abandoned => Self::Abandoned,
            BodyEnd::NeverStarted => Self::NeverStarted,
            BodyEnd::Lost => Self::Lost,
        }
    }
}

/// The digest of a run so far (64-bit FNV-1a over everything that happened).
#[derive(Debug, Clone)]
pub struct TraceDigest(u64);

impl TraceDigest {
    /// Of nothing.
    pub fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    /// Folds one more thing in, with its moment.
    pub fn fold(&mut self, now: Duration, what: &impl Hash) {
        now.hash(self);
        what.hash(self);
    }
}

impl Default for TraceDigest {
    fn default() -> Self {
        Self::new()
    }
}

impl Hasher for TraceDigest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }

    // Whole words at once: eight times fewer rounds, and as good for telling runs apart.
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }
}
