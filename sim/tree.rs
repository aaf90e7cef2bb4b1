//! The simulated world: a tree of nodes, what their bodies work with, and a schedule that decides what comes next.
//!
//! The decisions are the real machines'; this is another mount of them, with our schedule in the place of mailboxes
//! and virtual time in the place of timers. It keeps to what the shipped mount does: a node ends with its state
//! carrying the ending, its supervision event overtakes messages, a killed actor takes its body and everything
//! beneath with it, and what lies in a dead mailbox is dropped with all that it carries.

mod body;
mod desk;
mod fault;
mod lane;
mod ledger;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use toolwarden_actors::node::{BodyEnd, NodeEvent, NodeId};
use toolwarden_tools::cancellation::CancelReason;

use crate::checkers::{Checker, Violation};
use crate::happening::{Happening, TraceDigest};
use crate::message::{Address, Homecoming, JournalMessage, LedgerMessage, Message, Returned, body_over};
use crate::remains::Remains;
use crate::schedule::{Delivery, Schedule};
use crate::script::{CLOSE_AT, FAULTS_UNTIL, Workload};
use crate::seed::{Choices, Pick};
use crate::tamper::Tamper;

use self::body::Body;
use self::desk::Desk;
use self::fault::FAULTS;
use self::lane::Lane;
use self::ledger::Ledger;
use self::node::Node;

/// Most deliveries of one run; one that needs more is reported as never ending.
pub const STEPS_MAX: usize = 50_000;

/// A world under way.
pub struct World<'a> {
    workload: Workload,
    choices: Choices,
    tamper: &'a mut dyn Tamper,
    checkers: Vec<Box<dyn Checker>>,
    violation: Option<Violation>,
    digest: TraceDigest,
    schedule: Schedule<Address, Message>,
    /// Who takes a step now; what is sent meanwhile is sent by it.
    current: Address,
    numbers: u64,
    next_node: u64,
    nodes: BTreeMap<NodeId, Node>,
    bodies: BTreeMap<NodeId, Body>,
    /// Invocations whose ending was said, by their body or by their epilogue.
    endings_said: BTreeSet<NodeId>,
    homecoming: Homecoming,
    lane: Lane,
    ledger: Ledger,
    desk: Desk,
    journal: toolwarden_actors::journal::JournalMachine,
    coverage: BTreeSet<&'static str>,
}

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Run {
    /// The digest of everything that happened.
    pub digest: u64,
    /// All choices: the replay.
    pub choices: Vec<u32>,
    /// Deliveries.
    pub steps: usize,
    /// Nodes that were wanted.
    pub nodes: u64,
    /// How long it took, in virtual time.
    pub lasted: Duration,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    /// Which of the unusual things happened.
    pub coverage: BTreeSet<&'static str>,
}

/// Runs a world until nothing is under way, under these checkers.
pub fn run(workload: Workload, choices: Choices, tamper: &mut dyn Tamper, checkers: Vec<Box<dyn Checker>>) -> Run {
    let mut world = World::new(workload, choices, tamper, checkers);
    let steps = world.go();
    let remains = world.remains();
    let now = world.schedule.now();
    if world.violation.is_none() {
        if steps >= STEPS_MAX {
            world.violation =
                Some(Violation { promise: "a run ends", at: now, text: format!("{steps} steps were not enough") });
        } else {
            let finds = world.checkers.iter_mut().find_map(|checker| {
                let text = checker.finish(&remains).err()?;
                Some(Violation { promise: checker.promise(), at: now, text })
            });
            world.violation = finds;
        }
    }
    Run {
        digest: std::hash::Hasher::finish(&world.digest),
        choices: world.choices.into_taken(),
        steps,
        nodes: world.next_node,
        lasted: now,
        violation: world.violation,
        coverage: world.coverage,
    }
}

impl<'a> World<'a> {
    fn new(workload: Workload, choices: Choices, tamper: &'a mut dyn Tamper, checkers: Vec<Box<dyn Checker>>) -> Self {
        let mut world = Self {
            workload,
            choices,
            tamper,
            checkers,
            violation: None,
            digest: TraceDigest::new(),
            schedule: Schedule::new(),
            current: Address::Client,
            numbers: 0,
            next_node: 0,
            nodes: BTreeMap::new(),
            bodies: BTreeMap::new(),
            endings_said: BTreeSet::new(),
            homecoming: Homecoming::default(),
            lane: Lane::new(&workload),
            ledger: Ledger::default(),
            desk: Desk::default(),
            journal: toolwarden_actors::journal::JournalMachine::default(),
            coverage: BTreeSet::new(),
        };
        let top = world.next_node();
        world.happens(Happening::Wanted { node: top, waited: false });
        world.give_life(top, workload.top(), top, None);
        let close = Message::Event(NodeEvent::Cancel(CancelReason::Shutdown));
        let timer = world.timer();
        world.schedule.send_after(CLOSE_AT, timer, Address::Node(top), close);
        world
    }

    /// Delivers one thing after the other; returns how many.
    fn go(&mut self) -> usize {
        let mut steps = 0;
        while steps < STEPS_MAX && self.violation.is_none() {
            let candidates = self.schedule.candidates();
            if candidates == 0 {
                break;
            }
            let faults = if self.schedule.now() < FAULTS_UNTIL { FAULTS } else { 0 };
            match self.choices.usual_or_rare(candidates, faults) {
                Pick::Usual(candidate) => {
                    let Some(delivery) = self.schedule.deliver(candidate) else { break };
                    self.take(delivery);
                }
                Pick::Rare(kind) => self.make_fault(kind),
            }
            steps += 1;
        }
        steps
    }

    fn take(&mut self, Delivery { from, to, message }: Delivery<Address, Message>) {
        self.digest.fold(self.schedule.now(), &(from, to));
        self.current = to;
        match (to, message) {
            (Address::Node(node), message) => self.node_hears(node, message),
            (Address::Body(node), Message::Body(message)) => self.body_hears(node, message),
            (Address::Lane, Message::Pool(message)) => self.lane_hears(message),
            (Address::Lane, Message::Recount) => self.lane_recounts(),
            (Address::Ledger, Message::Ledger(message)) => self.ledger_hears(message),
            (Address::Desk, Message::Desk(message)) => self.desk_hears(message),
            (Address::Person, Message::Shown(call, digest, ask)) => self.person_sees(call, &digest, ask),
            (Address::Journal, Message::Journal(message)) => self.journal_hears(&message),
            // Nobody is there: it is dropped, with what it carries.
            (_, message) => drop(message),
        }
        self.bring_home();
        self.desk_winds_its_clock();
    }

    /// Tells those who lent what came home meanwhile.
    fn bring_home(&mut self) {
        for returned in self.homecoming.take() {
            match returned {
                Returned::Slot(ticket, lent_by, health) => self.slot_comes_home(ticket, lent_by, health),
                Returned::Reservation(reservation, used) => {
                    self.send(Address::Ledger, Message::Ledger(LedgerMessage::Settle(reservation, used)));
                }
            }
        }
    }

    fn journal_hears(&mut self, message: &JournalMessage) {
        use toolwarden_actors::journal::Moment;
        let (node, ending, tells_node) = match message {
            JournalMessage::Opens(node) => (*node, false, false),
            JournalMessage::Ends(node, tells_node) => (*node, true, *tells_node),
        };
        let id = node::invocation_id(node);
        let moment = if ending { Moment::Ends(&id) } else { Moment::Opens(&id) };
        let unix_ms = u64::try_from(self.schedule.now().as_millis()).unwrap_or(u64::MAX);
        match self.tamper.admit(&mut self.journal, unix_ms, moment) {
            Ok((sequence, unix_ms)) => {
                self.happens(Happening::Entry { sequence, unix_ms, invocation: node, ending });
            }
            Err(_) => self.happens(Happening::EntryRefused { invocation: node }),
        }
        if tells_node {
            self.send(Address::Node(node), body_over(BodyEnd::Returned));
        }
    }

    /// Writes to the journal. Inside a process its mailbox takes messages in the order in which they were sent,
    /// whoever sent them, so what caused an entry stands before it.
    fn write(&mut self, message: JournalMessage) {
        let sender = if self.tamper.journal_keeps_causes() { Address::Journal } else { self.current };
        self.schedule.send(sender, Address::Journal, Message::Journal(message));
    }

    fn send(&mut self, to: Address, message: Message) {
        self.schedule.send(self.current, to, message);
    }

    fn tell_body(&mut self, node: NodeId, message: crate::message::BodyMessage) {
        self.send(Address::Body(node), Message::Body(message));
    }

    fn happens(&mut self, happening: Happening) {
        let now = self.schedule.now();
        self.digest.fold(now, &happening);
        if self.violation.is_some() {
            return;
        }
        for checker in &mut self.checkers {
            if let Err(text) = checker.see(now, &happening) {
                self.violation = Some(Violation { promise: checker.promise(), at: now, text });
                return;
            }
        }
    }

    fn covers(&mut self, what: &'static str) {
        self.coverage.insert(what);
    }

    /// A number that no other thing of this world has.
    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn timer(&mut self) -> Address {
        Address::Timer(self.number())
    }

    fn next_node(&mut self) -> NodeId {
        let node = NodeId(self.next_node);
        self.next_node += 1;
        node
    }

    fn remains(&self) -> Remains {
        let (spinning, others): (Vec<&Body>, Vec<&Body>) = self.bodies.values().partition(|body| body.spins_for_ever());
        let status = self.journal.status();
        Remains {
            nodes: self.nodes.len(),
            spinning: spinning.len(),
            bodies: others.len(),
            slots: self.lane.in_use(),
            slots_waiting: self.lane.waiting(self.schedule.now()),
            reservations: self.ledger.outstanding(),
            open_invocations: status.open_invocations,
            refused_endings: status.refused_endings,
            questions: self.desk.open(self.schedule.now()),
        }
    }
}
