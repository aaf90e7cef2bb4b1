//! The simulated desk: the open questions, its clock, and a person who answers as people do.

use std::collections::BTreeSet;
use std::time::Duration;

use toolwarden_actors::node_machine::NodeId;
use toolwarden_actors::open_questions::{Answer, AskId, OpenQuestions, Patience, Question, Reply, Told};
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::InvocationId;

use crate::happening::Happening;
use crate::message::{Address, AskWaiter, BodyMessage, DeskMessage, Message};
use crate::tamper::Slip;
use crate::workload::Person;

use super::World;
use super::name;

/// How long a question waits for its answer in the simulation.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whoever keeps the questions.
#[derive(Debug, Default)]
pub(super) struct Desk {
    questions: OpenQuestions<AskWaiter>,
    next_ask: u64,
    sessions: BTreeSet<NodeId>,
    /// The moment for which the clock is wound.
    wound_for: Option<Duration>,
}

impl Desk {
    /// Questions that are open in the machine itself.
    pub(super) fn open(&self, now: Duration) -> usize {
        self.sessions.iter().map(|session| self.questions.pending(&name::session(*session), now).len()).sum()
    }
}

impl Desk {
    /// Whether the machine waits for a person.
    pub(super) fn questions_are_open(&self) -> bool {
        self.questions.next_due().is_some()
    }
}

impl World<'_> {
    pub(super) fn ask_person(&mut self, body: NodeId, session: NodeId) -> AskId {
        let ask = AskId(self.desk.next_ask);
        self.desk.next_ask += 1;
        self.desk.sessions.insert(session);
        self.happens(Happening::Asked { ask: ask.0 });
        let patience = if self.choices.below(4) == 3 { Patience::Park } else { Patience::RejectAfter(PATIENCE) };
        let question = Question {
            id: name::call(body),
            session: name::session(session),
            tool: "tool".into(),
            arguments: serde_json::Value::Null,
            digest: Digest::of(&ask.0.to_le_bytes()),
            reason: String::new(),
            patience,
        };
        let waiter = AskWaiter { body, ask };
        self.send(Address::Desk, Message::Desk(Box::new(DeskMessage::Ask(ask, question, waiter))));
        ask
    }

    pub(super) fn desk_hears(&mut self, message: DeskMessage) {
        let now = self.schedule.now();
        let mut told = Vec::new();
        match message {
            DeskMessage::Ask(ask, question, waiter) => {
                self.send(Address::Person, Message::Shown(question.id.clone(), question.digest.clone(), ask));
                self.desk.questions.ask(now, ask, question, waiter, &mut told);
            }
            DeskMessage::Withdraw(ask) => self.tamper.withdraw(&mut self.desk.questions, ask),
            DeskMessage::Answer(call, digest, reply) => {
                self.desk.questions.answer(&call, Some(&digest), reply, &mut told);
            }
            DeskMessage::Tick => {
                self.desk.wound_for = None;
                self.desk.questions.expire(now, &mut told);
            }
        }
        self.tell_answers(told);
    }

    /// Whoever keeps the questions fails and is started anew: all that are open are denied.
    pub(super) fn desk_fails(&mut self) {
        self.current = Address::Desk;
        let mut told = Vec::new();
        if !self.tamper.slips(Slip::ForgetsTheQuestions) {
            self.desk.questions.close(&mut told);
        }
        for message in self.schedule.empty_mailbox(Address::Desk) {
            if let Message::Desk(message) = message
                && let DeskMessage::Ask(_, _, waiter) = *message
            {
                told.push(Told { waiter, answer: Answer::Unavailable });
            }
        }
        if !told.is_empty() {
            self.covers("a desk that fails with questions open");
        }
        self.desk.questions = OpenQuestions::default();
        self.desk.wound_for = None;
        self.tell_answers(told);
    }

    fn tell_answers(&mut self, told: Vec<Told<AskWaiter>>) {
        for Told { waiter, answer } in told {
            if answer == Answer::TimedOut {
                self.covers("a question that nobody answered");
            }
            let approved = matches!(answer, Answer::Approved | Answer::ApprovedAlways);
            self.happens(Happening::Answered { ask: waiter.ask.0, approved });
            self.tell_body(waiter.body, BodyMessage::Answered(waiter.ask, answer));
        }
    }

    /// A person looks at a question: says yes or no, twice, about something else, or nothing at all.
    pub(super) fn person_sees(&mut self, call: InvocationId, digest: &Digest, ask: AskId) {
        let approve = Reply::Approve;
        let person = match self.workload.person {
            Person::Any => {
                use Person as P;
                let all = [P::Approves, P::Rejects, P::Contradicts, P::Mistakes, P::ApprovesAlways, P::Absent];
                all[self.choices.below(6) as usize]
            }
            one => one,
        };
        let (other, replies) = match person {
            Person::Approves | Person::Any => (false, vec![approve]),
            Person::Rejects => (false, vec![Reply::Reject(None)]),
            Person::Contradicts => (false, vec![approve, Reply::Reject(None)]),
            Person::Mistakes => (true, vec![approve]),
            Person::ApprovesAlways => (false, vec![Reply::ApproveAlways]),
            Person::Absent => (false, Vec::new()),
        };
        if !other && replies.iter().any(|reply| *reply != Reply::Reject(None)) {
            self.happens(Happening::Approved { ask: ask.0 });
        }
        let digest = if other { Digest::of(b"something else") } else { digest.clone() };
        for reply in replies {
            let answer = DeskMessage::Answer(call.clone(), digest.clone(), reply);
            self.send(Address::Desk, Message::Desk(Box::new(answer)));
        }
    }

    /// Winds the desk's clock for the next question that runs out.
    pub(super) fn desk_winds_its_clock(&mut self) {
        let due = self.desk.questions.next_due();
        if let Some(due) = due
            && self.desk.wound_for.is_none_or(|wound_for| due < wound_for)
        {
            self.desk.wound_for = Some(due);
            let timer = self.timer();
            let span = due.saturating_sub(self.schedule.now());
            self.schedule.wind(span, timer, Address::Desk, Message::Desk(Box::new(DeskMessage::Tick)));
        }
    }
}
