//! The actor that keeps the questions waiting for a person, and its handle: [`Confirmations::request`] waits for
//! the answer, [`Confirmations::answer`] gives it.
//!
//! The decisions are [`OpenQuestions`]'. Waiting counts no tool time and holds no slot; an asker that goes away, by
//! cancel or by being dropped, takes exactly its own question along.
//!
//! - Holds: the open questions and the way back to each asker; one timer, for the next that runs out.
//! - Supervised by: the root. Restart: permanent.
//! - After a restart no question is open: their askers were told [`Answer::Unavailable`], which denies the call.
//! - Mailbox bound: an asker has at most one question and one withdrawal under way; hosts wait for each reply.
//! - Reports: nothing of its own; hosts look at [`Confirmations::pending`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use toolwarden_tools::cancellation::Cancellation;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::ids::{InvocationId, SessionId};

use crate::child_spec::ChildSpec;
use crate::open_questions::{Answer, AskId, OpenQuestions, PendingQuestion, Question, Reply, Told};
use crate::slot::{NotRunning, Slot};

/// The handle; clones share it, and it follows the actor through restarts.
#[derive(Debug, Clone, Default)]
pub struct Confirmations {
    slot: Slot<ConfirmationMessage>,
    asks: Arc<AtomicU64>,
}

impl Confirmations {
    /// The handle of an actor that is not started yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the actor under `supervisor`; the same call starts it anew after it ended.
    ///
    /// # Errors
    /// When the supervisor is shutting down.
    pub async fn start(&self, supervisor: ActorCell) -> Result<ActorCell, SpawnErr> {
        let (actor, _) = Actor::spawn_linked(None, ConfirmationActor, (), supervisor).await?;
        self.slot.put(actor.clone());
        Ok(actor.get_cell())
    }

    /// How a supervisor starts the actor, and starts it anew: a permanent worker.
    pub fn child_spec(&self) -> ChildSpec {
        let handle = self.clone();
        ChildSpec::new("confirmations", move |supervisor| {
            let handle = handle.clone();
            async move { Ok(handle.start(supervisor).await?) }
        })
    }

    /// Asks and waits for the answer. Dropping the future withdraws the question.
    pub async fn request(&self, question: Question, stop: &Cancellation) -> Answer {
        if let Some(reason) = stop.reason() {
            return Answer::Cancelled(reason.clone());
        }
        let Ok(keeper) = self.slot.get() else { return Answer::Unavailable };
        let ask = AskId(self.asks.fetch_add(1, Ordering::Relaxed));
        let (waiter, answer) = oneshot::channel();
        if keeper.cast(ConfirmationMessage::Ask { ask, question, waiter }).is_err() {
            return Answer::Unavailable;
        }
        let mut open = OpenAsk { keeper, ask, waiting: true };
        tokio::select! {
            biased;
            reason = stop.cancelled() => Answer::Cancelled(reason),
            answer = answer => {
                open.waiting = false;
                answer.unwrap_or(Answer::Unavailable)
            }
        }
    }

    /// A person's word on a call. Returns whether it was taken: not when no such question is open, or when `digest`
    /// names something else than was shown.
    pub async fn answer(&self, call: InvocationId, digest: Option<Digest>, reply: Reply) -> bool {
        let taken = self.ask(|taken| ConfirmationMessage::Answer { call, digest, reply, taken }).await;
        taken.unwrap_or(false)
    }

    /// Approves a call that a rule, made by a person meanwhile, now covers. Returns whether it was open with this
    /// digest.
    pub async fn resolve(&self, call: InvocationId, digest: Digest) -> bool {
        let taken = self.ask(|taken| ConfirmationMessage::Resolve { call, digest, taken }).await;
        taken.unwrap_or(false)
    }

    /// Cancels all questions of a session that closes.
    ///
    /// # Errors
    /// [`NotRunning`], and then no question is open either.
    pub async fn close_session(&self, session: SessionId) -> Result<(), NotRunning> {
        self.ask(|done| ConfirmationMessage::CloseSession { session, done }).await
    }

    /// The open questions of a session, in order of asking.
    ///
    /// # Errors
    /// [`NotRunning`], and then no question is open either.
    pub async fn pending(&self, session: SessionId) -> Result<Vec<PendingQuestion>, NotRunning> {
        self.ask(|reply| ConfirmationMessage::Pending { session, reply }).await
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> ConfirmationMessage) -> Result<T, NotRunning> {
        let keeper = self.slot.get()?;
        let (reply, answer) = oneshot::channel();
        keeper.cast(message(reply)).map_err(|_| NotRunning)?;
        answer.await.map_err(|_| NotRunning)
    }
}

/// A question under way; withdraws it when dropped before the answer.
struct OpenAsk {
    keeper: ActorRef<ConfirmationMessage>,
    ask: AskId,
    waiting: bool,
}

impl Drop for OpenAsk {
    fn drop(&mut self) {
        if self.waiting {
            // A keeper that is gone keeps no questions.
            let _ = self.keeper.cast(ConfirmationMessage::Withdraw { ask: self.ask });
        }
    }
}

type Waiter = oneshot::Sender<Answer>;

enum ConfirmationMessage {
    Ask { ask: AskId, question: Question, waiter: Waiter },
    Withdraw { ask: AskId },
    Answer { call: InvocationId, digest: Option<Digest>, reply: Reply, taken: oneshot::Sender<bool> },
    Resolve { call: InvocationId, digest: Digest, taken: oneshot::Sender<bool> },
    CloseSession { session: SessionId, done: oneshot::Sender<()> },
    Pending { session: SessionId, reply: oneshot::Sender<Vec<PendingQuestion>> },
    Due,
}

struct ConfirmationActor;

struct ConfirmationState {
    questions: OpenQuestions<Waiter>,
    told: Vec<Told<Waiter>>,
    started_at: Instant,
    alarm: Option<Alarm>,
}

/// The one timer; ends with its owner.
struct Alarm {
    due: Duration,
    task: AbortHandle,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ConfirmationState {
    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    fn step(&mut self, message: ConfirmationMessage) {
        let now = self.now();
        // Whoever waits for these replies may be gone by now.
        match message {
            ConfirmationMessage::Ask { ask, question, waiter } => {
                self.questions.ask(now, ask, question, waiter, &mut self.told);
            }
            ConfirmationMessage::Withdraw { ask } => self.questions.withdraw(ask),
            ConfirmationMessage::Answer { call, digest, reply, taken } => {
                let found = self.questions.answer(&call, digest.as_ref(), reply, &mut self.told);
                let _ = taken.send(self.carry_out() && found);
            }
            ConfirmationMessage::Resolve { call, digest, taken } => {
                let found = self.questions.resolve(&call, &digest, &mut self.told);
                let _ = taken.send(self.carry_out() && found);
            }
            ConfirmationMessage::CloseSession { session, done } => {
                self.questions.close_session(&session, &mut self.told);
                let _ = done.send(());
            }
            ConfirmationMessage::Pending { session, reply } => {
                let _ = reply.send(self.questions.pending(&session, now));
            }
            ConfirmationMessage::Due => {
                self.alarm = None;
                self.questions.expire(now, &mut self.told);
            }
        }
    }

    /// Tells the askers; returns whether all of them were still there.
    fn carry_out(&mut self) -> bool {
        let mut all_there = true;
        for Told { waiter, answer } in self.told.drain(..) {
            all_there &= waiter.send(answer).is_ok();
        }
        all_there
    }

    /// Keeps the timer on the question that runs out next.
    fn set_alarm(&mut self, myself: &ActorRef<ConfirmationMessage>) {
        let due = self.questions.next_due();
        if self.alarm.as_ref().map(|alarm| alarm.due) == due {
            return;
        }
        self.alarm = due.map(|due| {
            let task = myself.send_after(due.saturating_sub(self.now()), || ConfirmationMessage::Due);
            Alarm { due, task: task.abort_handle() }
        });
    }
}

impl Actor for ConfirmationActor {
    type Msg = ConfirmationMessage;
    type State = ConfirmationState;
    type Arguments = ();

    async fn pre_start(
        &self,
        _: ActorRef<ConfirmationMessage>,
        (): (),
    ) -> Result<ConfirmationState, ActorProcessingErr> {
        let (questions, told) = (OpenQuestions::default(), Vec::new());
        Ok(ConfirmationState { questions, told, started_at: Instant::now(), alarm: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<ConfirmationMessage>,
        message: ConfirmationMessage,
        state: &mut ConfirmationState,
    ) -> Result<(), ActorProcessingErr> {
        state.step(message);
        state.carry_out();
        state.set_alarm(&myself);
        Ok(())
    }

    async fn post_stop(
        &self,
        _: ActorRef<ConfirmationMessage>,
        state: &mut ConfirmationState,
    ) -> Result<(), ActorProcessingErr> {
        // The state outlives the actor until its supervisor looks at it, so those who wait are told here.
        state.questions.close(&mut state.told);
        state.carry_out();
        state.alarm = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ractor::ActorCell;
    use serde_json::json;
    use tokio::task::JoinHandle;
    use toolwarden_tools::cancellation::{CancelReason, Cancellation};
    use toolwarden_tools::digest::Digest;

    use super::Confirmations;
    use crate::onlooker::root;
    use crate::open_questions::{Answer, Patience, Question, Reply};
    use crate::slot::NotRunning;

    const PATIENCE: Patience = Patience::RejectAfter(Duration::from_secs(30));

    fn shown(call: &str) -> Digest {
        Digest::of(call.as_bytes())
    }

    async fn started() -> (Confirmations, ActorCell, ActorCell) {
        let (confirmations, root) = (Confirmations::new(), root().await);
        let actor = confirmations.start(root.clone()).await.unwrap();
        (confirmations, root, actor)
    }

    /// Asks in a task of its own and returns once the question is open.
    async fn ask(confirmations: &Confirmations, call: &str, patience: Patience) -> (JoinHandle<Answer>, Cancellation) {
        let question = Question {
            id: call.into(),
            session: "s".into(),
            tool: "bash".into(),
            arguments: json!({"command": call}),
            digest: shown(call),
            reason: "asks by default".to_owned(),
            patience,
        };
        let (asker, stop) = (confirmations.clone(), Cancellation::new());
        let signal = stop.clone();
        let asking = tokio::spawn(async move { asker.request(question, &signal).await });
        while !open(confirmations).await.contains(&call.to_owned()) {
            tokio::task::yield_now().await;
        }
        (asking, stop)
    }

    async fn open(confirmations: &Confirmations) -> Vec<String> {
        let pending = confirmations.pending("s".into()).await.unwrap();
        pending.into_iter().map(|question| question.id.to_string()).collect()
    }

    // Case C196: answers are tied to call ids; a new rule answers siblings; a deny or a cancel ends one alone.
    #[tokio::test]
    async fn parallel_questions_end_each_for_itself() {
        let (confirmations, _root, _actor) = started().await;
        let (always, _) = ask(&confirmations, "always", PATIENCE).await;
        let (denied, _) = ask(&confirmations, "denied", PATIENCE).await;
        let (cancelled, stop) = ask(&confirmations, "cancelled", PATIENCE).await;
        let (covered, _) = ask(&confirmations, "covered", PATIENCE).await;
        let (waits, _) = ask(&confirmations, "waits", Patience::Park).await;
        assert!(confirmations.answer("always".into(), Some(shown("always")), Reply::ApproveAlways).await);
        assert_eq!(always.await.unwrap(), Answer::ApprovedAlways);
        assert!(!confirmations.resolve("covered".into(), shown("changed meanwhile")).await);
        assert!(confirmations.resolve("covered".into(), shown("covered")).await);
        assert_eq!(covered.await.unwrap(), Answer::Approved);
        assert!(confirmations.answer("denied".into(), None, Reply::Reject(None)).await);
        assert_eq!(denied.await.unwrap(), Answer::Rejected { reason: None });
        stop.cancel(CancelReason::Requested);
        assert_eq!(cancelled.await.unwrap(), Answer::Cancelled(CancelReason::Requested));
        assert_eq!(open(&confirmations).await, ["waits"]);
        assert!(!confirmations.answer("cancelled".into(), None, Reply::Approve).await);
        confirmations.close_session("s".into()).await.unwrap();
        assert_eq!(waits.await.unwrap(), Answer::Cancelled(CancelReason::SessionClosed));
    }

    #[tokio::test(start_paused = true)]
    async fn time_rejects_in_turn_and_parked_questions_stay() {
        let (confirmations, _root, _actor) = started().await;
        let (parked, _) = ask(&confirmations, "parked", Patience::Park).await;
        let (late, _) = ask(&confirmations, "late", PATIENCE).await;
        let (early, _) = ask(&confirmations, "early", Patience::RejectAfter(Duration::from_secs(5))).await;
        let asked_at = tokio::time::Instant::now();
        let pending = confirmations.pending("s".into()).await.unwrap();
        let remaining: Vec<_> = pending.iter().map(|question| question.remaining_ms).collect();
        assert_eq!(remaining, [None, Some(30_000), Some(5_000)]);
        assert_eq!(early.await.unwrap(), Answer::TimedOut);
        assert_eq!(asked_at.elapsed().as_secs(), 5);
        assert_eq!(late.await.unwrap(), Answer::TimedOut);
        assert_eq!(asked_at.elapsed().as_secs(), 30);
        assert_eq!(open(&confirmations).await, ["parked"]);
        assert!(confirmations.answer("parked".into(), None, Reply::Approve).await);
        assert_eq!(parked.await.unwrap(), Answer::Approved);
    }

    #[tokio::test]
    async fn an_asker_that_is_dropped_takes_its_question_along() {
        let (confirmations, _root, _actor) = started().await;
        let (gone, _) = ask(&confirmations, "gone", Patience::Park).await;
        let (stays, _) = ask(&confirmations, "stays", Patience::Park).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(open(&confirmations).await, ["stays"]);
        stays.abort();
    }

    #[tokio::test]
    async fn the_end_of_the_actor_denies_what_is_open() {
        let (confirmations, root, actor) = started().await;
        let (open_one, _) = ask(&confirmations, "open", Patience::Park).await;
        actor.stop_and_wait(None, None).await.unwrap();
        assert_eq!(open_one.await.unwrap(), Answer::Unavailable);
        assert_eq!(confirmations.pending("s".into()).await, Err(NotRunning));
        assert!(!confirmations.answer("open".into(), None, Reply::Approve).await);
        let actor = confirmations.start(root).await.unwrap();
        assert!(open(&confirmations).await.is_empty());
        let (open_one, _) = ask(&confirmations, "again", Patience::Park).await;
        actor.kill_and_wait(None).await.unwrap();
        assert_eq!(open_one.await.unwrap(), Answer::Unavailable);
    }
}
