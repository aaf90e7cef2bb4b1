//! What simulated actors say to each other, and who they are.
//!
//! A lease inside a message goes home when the message is dropped, wherever that is: the leases are the real ones,
//! and only the way home is pretended.

use std::sync::{Arc, Mutex, PoisonError};

use toolwarden_actors::accounts::ReservationId;
use toolwarden_actors::circuit_breaker::CallHealth;
use toolwarden_actors::lease::{Afterwards, Home, Lease};
use toolwarden_actors::node::{BodyEnd, Ending, NodeEvent, NodeId};
use toolwarden_actors::open_questions::{Answer, AskId, Question, Reply};
use toolwarden_actors::permit_pool::{Message as PoolMessage, Shed};
use toolwarden_actors::waiting_line::Ticket;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::InvocationId;

use crate::script::Script;

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
    Desk(DeskMessage),
    /// To a person: a question is shown.
    Shown(InvocationId, Digest, AskId),
    /// To the journal.
    Journal(JournalMessage),
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
    Ask(AskId, Box<Question>, AskWaiter),
    /// Nobody waits any more.
    Withdraw(AskId),
    /// A person answers.
    Answer(InvocationId, Digest, Reply),
    /// Time has passed.
    Tick,
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
pub struct Homecoming(Arc<Mutex<Vec<Returned>>>);

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
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, home: Returned) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(home);
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
