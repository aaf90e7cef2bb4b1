//! What simulated actors say to each other, and who they are.
//!
//! A lease inside a message goes home when the message is dropped, wherever that is: the leases are the real ones,
//! and only the way home is pretended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_actors::accounts::ReservationId;
use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::lease::{Afterwards, Home, Lease};
use toolwarden_actors::node_machine::{BodyEnd, Ending, NodeEvent, NodeId, NodeTimer};
use toolwarden_actors::open_questions::{Answer, AskId, Question, Reply};
use toolwarden_actors::permit_pool::{Message as PoolMessage, Shed};
use toolwarden_actors::waiting_line::Ticket;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::InvocationId;

use crate::script::Script;
use crate::workload::CancelTarget;

/// Who sends and who receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Address {
    /// The host.
    Client,
    /// A person who is asked.
    Person,
    /// A node's actor.
    Node(NodeId),
    /// A node's link: supervision events go up and kills go down through ports of their own, which no message waits
    /// for.
    Link(NodeId),
    /// A node's body: its task.
    Body(NodeId),
    /// The lane.
    Lane,
    /// The budget ledger.
    Ledger,
    /// Whoever keeps the open questions.
    Desk,
    /// The journal.
    Journal,
    /// The fact log.
    Store,
    /// Whoever holds the tasks in the background of a session: it says one thing after the other.
    Board(NodeId),
    /// A timer: a sender of its own.
    Timer(u64),
}

/// What is said.
#[derive(Debug)]
pub enum Message {
    /// To a node: its actor is linked.
    Start,
    /// To a node.
    Event(NodeEvent),
    /// To a node: somebody wants a child.
    Spawn(Box<Birth>),
    /// To a node: a child's supervision event, with the ending in its state when it had one.
    ChildOver(NodeId, Option<Ending>),
    /// To a node: its actor is killed.
    Die,
    /// To a body.
    Body(BodyMessage),
    /// To the lane.
    Pool(PoolMessage<SlotWaiter>),
    /// To the lane: count the permits that it did not lend itself.
    Recount,
    /// To the ledger.
    Ledger(LedgerMessage),
    /// To the desk.
    Desk(Box<DeskMessage>),
    /// To a person: a question is shown.
    Shown(InvocationId, Digest, AskId),
    /// To the journal.
    Journal(JournalMessage),
    /// To the fact log.
    Store(StoreMessage),
    /// To the host: cancel all of these.
    Strike(CancelTarget),
}

impl Message {
    /// In a word or two, for the story.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Event(event) => event_words(event),
            Self::Spawn(_) => "wants a child",
            Self::ChildOver(_, Some(_)) => "a child has ended",
            Self::ChildOver(_, None) => "a child has died",
            Self::Die => "die",
            Self::Body(message) => message.words(),
            Self::Pool(PoolMessage::Acquire { .. }) => "asks for a slot",
            Self::Pool(PoolMessage::Withdraw { .. }) => "no longer wants a slot",
            Self::Pool(PoolMessage::Return { .. }) => "a slot comes home",
            Self::Pool(PoolMessage::Elsewhere { .. }) | Self::Recount => "recount the slots",
            Self::Ledger(LedgerMessage::Open(_)) => "open an account",
            Self::Ledger(LedgerMessage::Close(_)) => "close an account",
            Self::Ledger(LedgerMessage::Reserve { .. }) => "asks for a reservation",
            Self::Ledger(LedgerMessage::Settle(..)) => "a reservation comes home",
            Self::Desk(message) => message.words(),
            Self::Shown(..) => "a question is shown",
            Self::Journal(JournalMessage::Opens(_)) => "a call opens",
            Self::Journal(JournalMessage::Ends(..)) => "a call ends",
            Self::Store(StoreMessage::Record(_)) => "record that a tool starts",
            Self::Store(StoreMessage::Synced(_)) => "a batch is synced",
            Self::Strike(_) => "time to cancel",
        }
    }
}

fn event_words(event: &NodeEvent) -> &'static str {
    match event {
        NodeEvent::Start => "start",
        NodeEvent::Spawn(_) => "wants a child",
        NodeEvent::SpawnFailed(_) => "a child could not start",
        NodeEvent::ChildEnded(_) => "a child has ended",
        NodeEvent::ChildLost(_) => "a child was lost",
        NodeEvent::Cancel(_) => "cancel",
        NodeEvent::CancelChild(..) => "cancel a child",
        NodeEvent::Kill(_) => "kill",
        NodeEvent::BodyEnded(_) => "the body is over",
        NodeEvent::Timer(NodeTimer::Deadline { .. }) => "the time is up",
        NodeEvent::Timer(NodeTimer::Backstop) => "the backstop runs out",
        NodeEvent::Timer(_) => "a timer runs out",
    }
}

/// What a body hears.
#[derive(Debug)]
pub enum BodyMessage {
    /// Its task may begin.
    Begin,
    /// Its cancel signal was given.
    Signal,
    /// Its task is aborted.
    Abort,
    /// A span is over.
    Elapsed(u64),
    /// A child has ended.
    ChildEnd(NodeId, Ending),
    /// The lane's answer.
    Slot(Ticket, Result<Lease<SlotHome>, Shed>),
    /// The ledger's answer to a wish to reserve; none when it was refused.
    Budget(Option<Lease<ReservationHome>>),
    /// The account is open, or will never be.
    AccountReady,
    /// The answer to a question.
    Answered(AskId, Answer),
    /// The fact log's answer: whether the record is durable.
    Recorded(bool),
    /// The turn that asked for it stands.
    TurnStands,
}

impl BodyMessage {
    fn words(&self) -> &'static str {
        match self {
            Self::TurnStands => "its turn stands",
            Self::Begin => "begin",
            Self::Signal => "the cancel signal",
            Self::Abort => "abort",
            Self::Elapsed(_) => "a span is over",
            Self::ChildEnd(..) => "the ending of a child",
            Self::Slot(_, Ok(_)) => "a slot",
            Self::Slot(_, Err(_)) => "no slot",
            Self::Budget(Some(_)) => "a reservation",
            Self::Budget(None) => "no reservation",
            Self::AccountReady => "the account is open",
            Self::Answered(_, Answer::Approved | Answer::ApprovedAlways) => "yes",
            Self::Answered(..) => "no",
            Self::Recorded(true) => "the record is durable",
            Self::Recorded(false) => "the record failed",
        }
    }
}

/// What the ledger hears.
#[derive(Debug)]
pub enum LedgerMessage {
    /// Open the account of this session.
    Open(NodeId),
    /// Close it.
    Close(NodeId),
    /// Reserve so many calls in an account, for a body.
    Reserve {
        /// Whose account.
        session: NodeId,
        /// How many calls.
        calls: u64,
        /// Who asks.
        body: NodeId,
    },
    /// A reservation comes home.
    Settle(ReservationId, Option<u64>),
}

/// What the desk hears.
#[derive(Debug)]
pub enum DeskMessage {
    /// Ask a person.
    Ask(AskId, Question, AskWaiter),
    /// Nobody waits any more.
    Withdraw(AskId),
    /// A person answers.
    Answer(InvocationId, Digest, Reply),
    /// Time has passed.
    Tick,
}

impl DeskMessage {
    fn words(&self) -> &'static str {
        match self {
            Self::Ask(..) => "asks a person",
            Self::Withdraw(_) => "no longer asks",
            Self::Answer(..) => "a person answers",
            Self::Tick => "time to look for questions that ran out",
        }
    }
}

/// What the fact log hears.
#[derive(Debug)]
pub enum StoreMessage {
    /// A call's tool is about to start; its body waits until that is durable.
    Record(NodeId),
    /// The batch of this life is durable.
    Synced(u64),
}

/// What the journal hears.
#[derive(Debug)]
pub enum JournalMessage {
    /// An invocation was proposed.
    Opens(NodeId),
    /// An invocation ends; whether its node is to hear of its body's end once that is stored.
    Ends(NodeId, bool),
}

/// The way back to a call that waits for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotWaiter {
    /// Whose body.
    pub body: NodeId,
    /// Its attempt.
    pub ticket: Ticket,
}

/// The way back to a call that waits for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AskWaiter {
    /// Whose body.
    pub body: NodeId,
    /// Its attempt.
    pub ask: AskId,
}

/// A node that is wanted.
#[derive(Debug)]
pub struct Birth {
    /// Its number.
    pub node: NodeId,
    /// What its body is to do.
    pub script: Script,
    /// The session it belongs to; a session's own number.
    pub session: NodeId,
    /// The body that waits for its ending.
    pub waiter: Option<NodeId>,
}

/// What has come home and is not yet told to where it came from.
#[derive(Debug, Clone, Default)]
pub struct Homecoming(Arc<Hall>);

#[derive(Debug, Default)]
struct Hall {
    /// Asked at every step, and nearly always no.
    is_anybody_there: AtomicBool,
    returned: Mutex<Vec<Returned>>,
}

/// Something that came home.
#[derive(Debug)]
pub enum Returned {
    /// A slot, and which life of the lane lent it.
    Slot(Ticket, Option<u64>, CallHealth),
    /// A reservation.
    Reservation(ReservationId, Option<u64>),
}

impl Homecoming {
    /// What came home since the last time, in order.
    pub fn take(&self) -> Vec<Returned> {
        if !self.0.is_anybody_there.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut returned = self.0.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.is_anybody_there.store(false, Ordering::Release);
        std::mem::take(&mut *returned)
    }

    fn push(&self, home: Returned) {
        let mut returned = self.0.returned.lock().unwrap_or_else(PoisonError::into_inner);
        returned.push(home);
        self.0.is_anybody_there.store(true, Ordering::Release);
    }
}

/// Where a slot goes home to.
#[derive(Debug)]
pub struct SlotHome {
    /// The way.
    pub homecoming: Homecoming,
    /// The number it was lent under.
    pub ticket: Ticket,
    /// By which life of the lane; none when it was taken in passing.
    pub lent_by: Option<u64>,
}

impl Home for SlotHome {
    type Word = CallHealth;

    fn take_back(self, word: Option<CallHealth>, _then: Afterwards) {
        self.homecoming.push(Returned::Slot(self.ticket, self.lent_by, word.unwrap_or_default()));
    }
}

/// Where a reservation goes home to.
#[derive(Debug)]
pub struct ReservationHome {
    /// The way.
    pub homecoming: Homecoming,
    /// Its number.
    pub reservation: ReservationId,
}

impl Home for ReservationHome {
    type Word = u64;

    fn take_back(self, word: Option<u64>, _then: Afterwards) {
        self.homecoming.push(Returned::Reservation(self.reservation, word));
    }
}

/// A body's end, as its node hears of it.
pub fn body_over(end: BodyEnd) -> Message {
    Message::Event(NodeEvent::BodyEnded(end))
}

impl Address {
    /// In plain words.
    pub fn words(self) -> String {
        match self {
            Self::Client => "the host".to_owned(),
            Self::Person => "the person".to_owned(),
            Self::Node(node) => format!("node {}", node.0),
            Self::Link(node) => format!("the link of node {}", node.0),
            Self::Body(node) => format!("the body of node {}", node.0),
            Self::Lane => "the lane".to_owned(),
            Self::Ledger => "the ledger".to_owned(),
            Self::Desk => "the desk".to_owned(),
            Self::Journal => "the journal".to_owned(),
            Self::Store => "the fact log".to_owned(),
            Self::Board(session) => format!("the task board of node {}", session.0),
            Self::Timer(_) => "a timer".to_owned(),
        }
    }

    /// The node that it belongs to.
    pub fn node(self) -> Option<NodeId> {
        match self {
            Self::Node(node) | Self::Link(node) | Self::Body(node) => Some(node),
            _ => None,
        }
    }
}
