//! The questions that wait for a person, and what becomes of each.
//!
//! What must stay true: every question ends with exactly one answer, or its asker withdrew it. Only a person's word
//! approves, or a rule that a person just made ([`OpenQuestions::resolve`]); no timer does. An answer belongs to one
//! call and to the digest of what was shown: with another digest it is no answer. Two live questions with one id
//! would let one answer approve the wrong call, so both are rejected. One question's end touches no other.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, SessionId, ToolName};

use crate::millisecond::whole_ms;

/// Questions that may be open at a time; one more is answered [`Answer::Unavailable`].
pub const OPEN_QUESTIONS_MAX: usize = 1024;

/// How long a question waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Rejected after this span.
    RejectAfter(Duration),
    /// Until it is answered, cancelled, or its session closes.
    Park,
}

/// May this call run?
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The call.
    pub id: InvocationId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: ToolName,
    /// The final arguments.
    pub arguments: Value,
    /// The digest of what is shown: the arguments, and the content they are to change.
    pub digest: Digest,
    /// Why a person is asked.
    pub reason: String,
    /// How long to wait.
    pub patience: Patience,
}

/// What a person says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// This once.
    Approve,
    /// This, and from now on what is like it.
    ApproveAlways,
    /// No, and maybe why.
    Reject(Option<String>),
}

/// How a question ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Run it.
    Approved,
    /// Run it, and from now on what is like it.
    ApprovedAlways,
    /// A person said no.
    Rejected {
        /// Their reason, when they gave one.
        reason: Option<String>,
    },
    /// Nobody answered in time: it must not run.
    TimedOut,
    /// The call was told to end while it waited.
    Cancelled(CancelReason),
    /// Another live question has the same id: neither may run.
    Ambiguous,
    /// Nobody can be asked: too many questions are open, or whoever keeps them is not running.
    Unavailable,
}

/// An open question, as hosts see it.
#[derive(Debug, Clone, PartialEq)]
pub struct PendingQuestion {
    /// The call.
    pub id: InvocationId,
    /// Its session.
    pub session: SessionId,
    /// The tool.
    pub tool: ToolName,
    /// The arguments.
    pub arguments: Value,
    /// What an answer has to name.
    pub digest: Digest,
    /// Why a person is asked.
    pub reason: String,
    /// Milliseconds until it is rejected; none for one that is parked.
    pub remaining_ms: Option<u64>,
}

/// The number of one attempt to ask, in order of asking; the handle gives each number once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskId(pub u64);

/// An answer to carry to its asker; `W` is the way back.
#[derive(Debug, PartialEq, Eq)]
pub struct Told<W> {
    /// Whom to tell.
    pub waiter: W,
    /// What.
    pub answer: Answer,
}

/// The open questions of all sessions.
#[derive(Debug)]
pub struct OpenQuestions<W> {
    open: BTreeMap<AskId, Open<W>>,
    by_call: BTreeMap<InvocationId, AskId>,
}

#[derive(Debug)]
struct Open<W> {
    question: Question,
    due: Option<Duration>,
    waiter: W,
}

impl<W> Default for OpenQuestions<W> {
    fn default() -> Self {
        Self { open: BTreeMap::new(), by_call: BTreeMap::new() }
    }
}

impl<W> OpenQuestions<W> {
    /// Opens a question.
    pub fn ask(&mut self, now: Duration, ask: AskId, question: Question, waiter: W, told: &mut Vec<Told<W>>) {
        let twin = self.by_call.get(&question.id).copied().or_else(|| self.open.contains_key(&ask).then_some(ask));
        if let Some(twin) = twin {
            self.end(twin, Answer::Ambiguous, told);
            told.push(Told { waiter, answer: Answer::Ambiguous });
            return;
        }
        if self.open.len() >= OPEN_QUESTIONS_MAX {
            told.push(Told { waiter, answer: Answer::Unavailable });
            return;
        }
        let due = match question.patience {
            Patience::RejectAfter(span) => Some(now.saturating_add(span)),
            Patience::Park => None,
        };
        self.by_call.insert(question.id.clone(), ask);
        self.open.insert(ask, Open { question, due, waiter });
    }

    /// Closes a question whose asker no longer waits.
    pub fn withdraw(&mut self, ask: AskId) {
        self.take(ask);
    }

    /// A person's word on a call. Returns whether it was taken: not when no such question is open, or when another
    /// digest is named than was shown.
    pub fn answer(
        &mut self,
        call: &InvocationId,
        digest: Option<&Digest>,
        reply: Reply,
        told: &mut Vec<Told<W>>,
    ) -> bool {
        let Some((&ask, open)) = self.by_call.get(call).and_then(|ask| Some((ask, self.open.get(ask)?))) else {
            return false;
        };
        if digest.is_some_and(|digest| *digest != open.question.digest) {
            return false;
        }
        let answer = match reply {
            Reply::Approve => Answer::Approved,
            Reply::ApproveAlways => Answer::ApprovedAlways,
            Reply::Reject(reason) => Answer::Rejected { reason },
        };
        self.end(ask, answer, told);
        true
    }

    /// Approves a call that a rule, made by a person meanwhile, now covers. Returns whether it was open with this
    /// digest.
    pub fn resolve(&mut self, call: &InvocationId, digest: &Digest, told: &mut Vec<Told<W>>) -> bool {
        self.answer(call, Some(digest), Reply::Approve, told)
    }

    /// Cancels all questions of a session.
    pub fn close_session(&mut self, session: &SessionId, told: &mut Vec<Told<W>>) {
        let asks = self.of(|open| open.question.session == *session);
        asks.into_iter().for_each(|ask| self.end(ask, Answer::Cancelled(CancelReason::SessionClosed), told));
    }

    /// Rejects what was not answered in time.
    pub fn expire(&mut self, now: Duration, told: &mut Vec<Told<W>>) {
        let asks = self.of(|open| open.due.is_some_and(|due| due <= now));
        asks.into_iter().for_each(|ask| self.end(ask, Answer::TimedOut, told));
    }

    /// Denies everything: whoever keeps the questions ends.
    pub fn close(&mut self, told: &mut Vec<Told<W>>) {
        self.of(|_| true).into_iter().for_each(|ask| self.end(ask, Answer::Unavailable, told));
    }

    /// When the next question runs out.
    pub fn next_due(&self) -> Option<Duration> {
        self.open.values().filter_map(|open| open.due).min()
    }

    /// The open questions of a session, in order of asking.
    pub fn pending(&self, session: &SessionId, now: Duration) -> Vec<PendingQuestion> {
        let of_session = self.open.values().filter(|open| open.question.session == *session);
        of_session
            .map(|open| {
                let Question { id, session, tool, arguments, digest, reason, .. } = open.question.clone();
                let remaining_ms = open.due.map(|due| whole_ms(due.saturating_sub(now)));
                PendingQuestion { id, session, tool, arguments, digest, reason, remaining_ms }
            })
            .collect()
    }

    fn of(&self, wanted: impl Fn(&Open<W>) -> bool) -> Vec<AskId> {
        self.open.iter().filter(|(_, open)| wanted(open)).map(|(ask, _)| *ask).collect()
    }

    fn end(&mut self, ask: AskId, answer: Answer, told: &mut Vec<Told<W>>) {
        told.extend(self.take(ask).map(|open| Told { waiter: open.waiter, answer }));
    }

    fn take(&mut self, ask: AskId) -> Option<Open<W>> {
        let open = self.open.remove(&ask)?;
        self.by_call.remove(&open.question.id);
        Some(open)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::json;
    use toolwarden_tools::cancellation::CancelReason;
    use toolwarden_tools::digest::Digest;

    use super::{Answer, AskId, OPEN_QUESTIONS_MAX, OpenQuestions, Patience, Question, Reply, Told};
    use crate::interleaving::{Dice, Interleaving};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn question(session: &str, call: u64, patience: Patience) -> Question {
        Question {
            id: format!("call-{call}").into(),
            session: session.into(),
            tool: "bash".into(),
            arguments: json!({"command": format!("echo {call}")}),
            digest: shown(call),
            reason: "asks by default".to_owned(),
            patience,
        }
    }

    fn shown(call: u64) -> Digest {
        Digest::of(&call.to_le_bytes())
    }

    #[derive(Default)]
    struct Bench {
        questions: OpenQuestions<u64>,
        now: Duration,
        told: Vec<Told<u64>>,
    }

    impl Bench {
        fn ask(&mut self, ask: u64, question: Question) {
            self.questions.ask(self.now, AskId(ask), question, ask, &mut self.told);
        }

        fn answer(&mut self, call: &str, digest: Option<&Digest>, reply: Reply) -> bool {
            self.questions.answer(&call.into(), digest, reply, &mut self.told)
        }

        fn told(&mut self) -> Vec<(u64, Answer)> {
            std::mem::take(&mut self.told).into_iter().map(|told| (told.waiter, told.answer)).collect()
        }
    }

    // Case C195: the approval binds what was shown.
    #[test]
    fn an_answer_for_another_digest_is_no_answer() {
        let mut bench = Bench::default();
        bench.ask(1, question("s", 1, Patience::Park));
        assert!(!bench.answer("call-1", Some(&shown(2)), Reply::Approve));
        assert!(!bench.answer("call-9", None, Reply::Approve));
        assert!(!bench.questions.resolve(&"call-1".into(), &shown(3), &mut bench.told));
        assert_eq!(bench.told(), []);
        assert!(bench.answer("call-1", Some(&shown(1)), Reply::Approve));
        assert_eq!(bench.told(), [(1, Answer::Approved)]);
        assert!(!bench.answer("call-1", Some(&shown(1)), Reply::Approve));
    }

    #[test]
    fn two_live_questions_with_one_id_are_both_rejected() {
        let mut bench = Bench::default();
        bench.ask(1, question("s", 1, Patience::Park));
        bench.ask(2, question("s", 2, Patience::Park));
        bench.ask(3, question("other", 1, Patience::Park));
        assert_eq!(bench.told(), [(1, Answer::Ambiguous), (3, Answer::Ambiguous)]);
        assert!(!bench.answer("call-1", None, Reply::Approve));
        assert!(bench.answer("call-2", None, Reply::Reject(Some("not today".to_owned()))));
        assert_eq!(bench.told(), [(2, Answer::Rejected { reason: Some("not today".to_owned()) })]);
    }

    #[test]
    fn time_rejects_and_never_approves_and_parked_ones_stay() {
        let mut bench = Bench::default();
        bench.ask(1, question("s", 1, Patience::RejectAfter(PATIENCE)));
        bench.ask(2, question("s", 2, Patience::Park));
        assert_eq!(bench.questions.next_due(), Some(PATIENCE));
        bench.questions.expire(PATIENCE - Duration::from_nanos(1), &mut bench.told);
        assert_eq!(bench.told(), []);
        bench.questions.expire(PATIENCE, &mut bench.told);
        assert_eq!(bench.told(), [(1, Answer::TimedOut)]);
        bench.questions.expire(Duration::MAX, &mut bench.told);
        assert_eq!((bench.told(), bench.questions.next_due()), (vec![], None));
    }

    #[test]
    fn a_session_sees_its_questions_in_order_and_closing_cancels_only_those() {
        let mut bench = Bench::default();
        for (ask, session) in [(1, "a"), (2, "b"), (3, "a"), (4, "a")] {
            bench.ask(ask, question(session, 10 - ask, Patience::RejectAfter(PATIENCE)));
        }
        bench.questions.withdraw(AskId(3));
        bench.now = Duration::from_millis(10);
        let pending = bench.questions.pending(&"a".into(), bench.now);
        let seen: Vec<_> = pending.iter().map(|open| (open.id.as_str(), open.remaining_ms)).collect();
        assert_eq!(seen, [("call-9", Some(29_990)), ("call-6", Some(29_990))]);
        bench.questions.close_session(&"a".into(), &mut bench.told);
        let closed = || Answer::Cancelled(CancelReason::SessionClosed);
        assert_eq!(bench.told(), [(1, closed()), (4, closed())]);
        assert_eq!(bench.questions.pending(&"b".into(), bench.now).len(), 1);
        bench.questions.close(&mut bench.told);
        assert_eq!(bench.told(), [(2, Answer::Unavailable)]);
    }

    #[test]
    fn there_is_a_most_of_open_questions() {
        let mut bench = Bench::default();
        let most = OPEN_QUESTIONS_MAX as u64;
        (0..=most).for_each(|ask| bench.ask(ask, question("s", ask, Patience::Park)));
        assert_eq!(bench.told(), [(most, Answer::Unavailable)]);
    }

    enum Under {
        Ask(u64, Question),
        Withdraw(u64),
        Answer { call: u64, digest: Digest, reply: Reply },
        CloseSession(&'static str),
    }

    /// Askers, persons with right and wrong digests, time and closing sessions, in any order.
    #[test]
    fn the_invariants_hold_in_any_order_of_deliveries() {
        let mut reached: BTreeMap<&str, u32> = BTreeMap::new();
        for seed in 0..300 {
            let mut dice = Dice::new(seed);
            let mut bench = Bench::default();
            let mut under_way = Interleaving::new();
            let (mut asked, mut withdrawn, mut answers) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
            for step in 0..250_u64 {
                let call = dice.roll(8) as u64;
                bench.now += Duration::from_millis(dice.roll(300) as u64);
                let mut approved_now = None;
                match dice.roll(10) {
                    0..=1 => {
                        let patience =
                            if dice.roll(2) == 0 { Patience::Park } else { Patience::RejectAfter(PATIENCE / 5) };
                        let session = ["a", "b"][dice.roll(2)];
                        asked.insert(step, call);
                        under_way.send(dice.roll(4), Under::Ask(step, question(session, call, patience)));
                    }
                    2..=3 => {
                        let digest = shown(call + dice.roll(2) as u64);
                        let reply = [Reply::Approve, Reply::ApproveAlways, Reply::Reject(None)][dice.roll(3)].clone();
                        under_way.send(10, Under::Answer { call, digest, reply });
                    }
                    4 => {
                        if let Some((&ask, _)) = asked.iter().nth(dice.roll(asked.len().max(1))) {
                            under_way.send(20, Under::Withdraw(ask));
                        }
                    }
                    5 => bench.questions.expire(bench.now, &mut bench.told),
                    _ => match under_way.deliver(&mut dice) {
                        Some(Under::Ask(ask, question)) => bench.ask(ask, question),
                        Some(Under::Withdraw(ask)) => {
                            bench.questions.withdraw(AskId(ask));
                            withdrawn.push(ask);
                        }
                        Some(Under::Answer { call, digest, reply }) => {
                            let yes = reply != Reply::Reject(None);
                            let taken = bench.answer(&format!("call-{call}"), Some(&digest), reply);
                            assert!(!taken || digest == shown(call), "seed {seed}: a wrong digest was taken");
                            assert_eq!(taken, !bench.told.is_empty(), "seed {seed}: taken is told");
                            approved_now = (taken && yes).then_some(call);
                        }
                        Some(Under::CloseSession(session)) => {
                            bench.questions.close_session(&session.into(), &mut bench.told);
                        }
                        None => {}
                    },
                }
                if dice.roll(60) == 0 {
                    under_way.send(30, Under::CloseSession(["a", "b"][dice.roll(2)]));
                }
                let ambiguous = bench.told.iter().filter(|told| told.answer == Answer::Ambiguous).count();
                assert!([0, 2].contains(&ambiguous), "seed {seed}: both twins are rejected");
                for (ask, answer) in bench.told() {
                    if matches!(answer, Answer::Approved | Answer::ApprovedAlways) {
                        assert_eq!(Some(asked[&ask]), approved_now, "seed {seed}: only a person approves");
                    }
                    *reached.entry(name(&answer)).or_default() += 1;
                    assert!(answers.insert(ask, answer).is_none(), "seed {seed}: two answers for one question");
                }
            }
            while let Some(message) = under_way.deliver(&mut dice) {
                if let Under::Ask(ask, question) = message {
                    bench.ask(ask, question);
                }
            }
            bench.questions.close(&mut bench.told);
            for (ask, answer) in bench.told() {
                assert!(answers.insert(ask, answer).is_none(), "seed {seed}: two answers for one question");
            }
            let forgotten = asked.keys().find(|ask| !answers.contains_key(ask) && !withdrawn.contains(ask));
            assert_eq!(forgotten, None, "seed {seed}: a question without an end");
            assert!(bench.questions.open.is_empty() && bench.questions.by_call.is_empty());
        }
        for name in ["approved", "rejected", "timed out", "cancelled", "ambiguous"] {
            assert!(reached.get(name).is_some_and(|count| *count > 50), "the runs reach {name}: {reached:?}");
        }
    }

    fn name(answer: &Answer) -> &'static str {
        match answer {
            Answer::Approved | Answer::ApprovedAlways => "approved",
            Answer::Rejected { .. } => "rejected",
            Answer::TimedOut => "timed out",
            Answer::Cancelled(_) => "cancelled",
            Answer::Ambiguous => "ambiguous",
            Answer::Unavailable => "unavailable",
        }
    }
}
