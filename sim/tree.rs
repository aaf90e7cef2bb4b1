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
mod name;
mod node;
mod store;
mod tasks;

use std::collections::BTreeMap;
use std::time::Duration;

use toolwarden_actors::node_machine::{BodyEnd, NodeEffect, NodeEvent, NodeId};
use toolwarden_tools::cancellation::CancelReason;

use crate::checkers::{Checker, Violation, Watch};
use crate::dense::Dense;
use crate::happening::{Happening, TraceDigest};
use crate::message::{Address, Homecoming, JournalMessage, LedgerMessage, Message, Returned, body_over};
use crate::remains::Remains;
use crate::schedule::{Delivery, Schedule};
use crate::seed::{Choices, Pick};
use crate::story::{MOMENTS_MAX, Meeting, Moment, Story, Telling, What};
use crate::tamper::{Slip, Tamper};
use crate::workload::Workload;

use self::body::Body;
use self::desk::Desk;
use self::lane::Lane;
use self::ledger::Ledger;
use self::node::Node;
use self::store::FactStore;
use self::tasks::Tasks;

/// Most deliveries of one run; one that needs more is reported as never ending.
pub const STEPS_MAX: usize = 50_000;

/// A world under way.
pub struct World<'a> {
    workload: &'a Workload,
    choices: Choices,
    tamper: &'a mut dyn Tamper,
    watch: Watch,
    violation: Option<Violation>,
    digest: TraceDigest,
    schedule: Schedule<Address, Message>,
    /// Who takes a step now; what is sent meanwhile is sent by it.
    current: Address,
    numbers: u64,
    next_node: u64,
    nodes: Dense<Box<Node>>,
    bodies: Dense<Box<Body>>,
    /// Invocations whose ending was said, by their body or by their epilogue.
    endings_said: Dense<()>,
    /// What the node that takes a step wants done.
    effects: Vec<NodeEffect>,
    homecoming: Homecoming,
    lane: Lane,
    ledger: Ledger,
    desk: Desk,
    journal: toolwarden_actors::journal::JournalMachine,
    store: FactStore,
    tasks: Tasks,
    faults_stopped: bool,
    /// Few, and mostly noted again: a short list is looked through faster than a set.
    coverage: Vec<&'static str>,
    sometimes: BTreeMap<Meeting, u64>,
    telling: Telling,
    moments: Vec<Moment>,
    moments_lost: u64,
}

/// Runs a world until nothing is under way, under these checkers.
pub fn run(
    workload: &Workload,
    mut choices: Choices,
    tamper: &mut dyn Tamper,
    checkers: Vec<Box<dyn Checker>>,
    telling: Telling,
) -> Story {
    if let Some(one_in) = workload.faults.one_in {
        choices.make_rare(one_in);
    }
    let mut world = World::new(workload, choices, tamper, checkers, telling);
    let steps = world.go();
    world.look_back(steps);
    world.into_story(steps)
}

impl<'a> World<'a> {
    fn new(
        workload: &'a Workload,
        choices: Choices,
        tamper: &'a mut dyn Tamper,
        checkers: Vec<Box<dyn Checker>>,
        telling: Telling,
    ) -> Self {
        let mut world = Self {
            workload,
            choices,
            tamper,
            watch: Watch::new(checkers),
            violation: None,
            digest: TraceDigest::new(),
            schedule: Schedule::new(),
            current: Address::Client,
            numbers: 0,
            next_node: 0,
            nodes: Dense::default(),
            bodies: Dense::default(),
            endings_said: Dense::default(),
            effects: Vec::new(),
            homecoming: Homecoming::default(),
            lane: Lane::new(workload),
            ledger: Ledger::default(),
            desk: Desk::default(),
            journal: toolwarden_actors::journal::JournalMachine::default(),
            store: FactStore::default(),
            tasks: Tasks::default(),
            faults_stopped: false,
            coverage: Vec::new(),
            sometimes: BTreeMap::new(),
            telling,
            moments: Vec::new(),
            moments_lost: 0,
        };
        let top = world.next_node();
        world.happens(Happening::Wanted { node: top, waited: false });
        world.give_life(top, workload.top(), top, None);
        let close = Message::Event(NodeEvent::Cancel(CancelReason::Shutdown));
        let timer = world.timer();
        world.schedule.wind(workload.limits.close_at(), timer, Address::Node(top), close);
        for cancel in &workload.cancel {
            let (timer, span) = (world.timer(), Duration::from_millis(cancel.at_ms));
            world.schedule.wind(span, timer, Address::Client, Message::Strike(cancel.what));
        }
        world
    }

    /// Delivers one thing after the other; returns how many.
    fn go(&mut self) -> usize {
        let mut steps = 0;
        let kinds = u32::try_from(self.fault_kinds().len()).unwrap_or(0);
        let faults_until = Duration::from_millis(self.workload.faults.until_ms);
        while steps < STEPS_MAX && self.violation.is_none() {
            let candidates = self.schedule.candidates();
            if candidates == 0 {
                break;
            }
            match self.choices.usual_or_rare(candidates, if self.faults_stopped { 0 } else { kinds }) {
                Pick::Usual(candidate) => {
                    let Some(delivery) = self.schedule.deliver(candidate) else { break };
                    self.take(delivery);
                }
                Pick::Rare(kind) => self.make_fault(kind),
            }
            steps += 1;
            if !self.faults_stopped && self.schedule.now() >= faults_until {
                self.faults_stopped = true;
                self.happens(Happening::FaultsStopped);
            }
        }
        steps
    }

    /// Lets the checkers look at what is left.
    fn look_back(&mut self, steps: usize) {
        if self.violation.is_some() {
            return;
        }
        let at = self.schedule.now();
        if steps >= STEPS_MAX {
            let text = format!("{steps} steps were not enough; {}", self.under_way());
            self.violation = Some(Violation { checker: "ends", promise: "a run ends", at, text });
            return;
        }
        let remains = self.remains();
        self.violation = self.watch.finish(at, &remains);
    }

    fn into_story(self, steps: usize) -> Story {
        let (choices, bounds) = self.choices.into_bounded();
        Story {
            digest: std::hash::Hasher::finish(&self.digest),
            choices,
            bounds,
            steps,
            nodes: self.next_node,
            lasted: self.schedule.now(),
            violation: self.violation,
            checkers: self.watch.names(),
            coverage: self.coverage.into_iter().collect(),
            sometimes: self.sometimes,
            moments: self.moments,
            moments_lost: self.moments_lost,
        }
    }

    /// What a run that does not end waits for, in plain words.
    fn under_way(&self) -> String {
        let mut waits: BTreeMap<&'static str, usize> = BTreeMap::new();
        for (node, _) in self.nodes.iter() {
            *waits.entry(self.condition(NodeId(node))).or_default() += 1;
        }
        let waits: Vec<String> = waits.into_iter().map(|(words, count)| format!("{count} x {words}")).collect();
        format!("under way: {} (make the tree smaller, or its calls shorter)", waits.join(", "))
    }

    fn take(&mut self, Delivery { from, to, message }: Delivery<Address, Message>) {
        self.digest.fold(self.schedule.now(), &(from, to));
        if self.telling == Telling::Whole {
            self.tell(What::Delivery { from, to, words: message.words() });
        }
        self.current = to;
        match (to, message) {
            (Address::Node(node), message) => self.node_hears(node, message),
            (Address::Body(node), Message::Body(message)) => self.body_hears(node, message),
            (Address::Lane, Message::Pool(message)) => self.lane_hears(message),
            (Address::Lane, Message::Recount) => self.lane_recounts(),
            (Address::Ledger, Message::Ledger(message)) => self.ledger_hears(message),
            (Address::Desk, Message::Desk(message)) => self.desk_hears(*message),
            (Address::Person, Message::Shown(call, digest, ask)) => self.person_sees(call, &digest, ask),
            (Address::Journal, Message::Journal(message)) => self.journal_hears(&message),
            (Address::Store, Message::Store(message)) => self.store_hears(message),
            (Address::Client, Message::Strike(what)) => self.strike_all(what),
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
        let id = name::call(node);
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
        let sender = if self.tamper.slips(Slip::ForgetsCauses) { self.current } else { Address::Journal };
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
        if self.violation.is_none() {
            self.violation = self.watch.see(now, &happening);
        }
        if self.telling == Telling::Whole {
            self.tell(What::Happening(happening));
        }
    }

    fn tell(&mut self, what: What) {
        if self.moments.len() < MOMENTS_MAX {
            self.moments.push(Moment { at: self.schedule.now(), what });
        } else {
            self.moments_lost += 1;
        }
    }

    fn covers(&mut self, what: &'static str) {
        if !self.coverage.contains(&what) {
            self.coverage.push(what);
        }
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
        let (spinning, others): (Vec<&Body>, Vec<&Body>) =
            self.bodies.values().map(|body| &**body).partition(|body| body.spins_for_ever());
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
