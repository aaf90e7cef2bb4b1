//! What ractor really does, as far as the actors here rely on it or must guard against it.
//!
//! Each test pins one fact, whether pleasant or not, so that an upgrade of ractor that changes it is noticed here
//! and not in a lost outcome or an orphan. None of them uses names or process groups, which are global.

use std::sync::Arc;
use std::time::Duration;

use ractor::rpc::CallResult;
use ractor::{
    Actor, ActorCell, ActorProcessingErr, ActorRef, ActorStatus, MessagingErr, RactorErr, RpcReplyPort, SpawnErr,
    SupervisionEvent,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::child::Exit;
use crate::probe::Record;

const LONG: Duration = Duration::from_secs(600);
const TENTH: Duration = Duration::from_millis(100);

/// Writes down what it hears of its children, and can be kept busy.
struct Parent(Record);

enum ToParent {
    Note(&'static str),
    Busy(Arc<Notify>),
}

impl Actor for Parent {
    type Msg = ToParent;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<ToParent>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(&self, _: ActorRef<ToParent>, message: ToParent, (): &mut ()) -> Result<(), ActorProcessingErr> {
        match message {
            ToParent::Note(line) => self.0.write(line),
            ToParent::Busy(until) => until.notified().await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<ToParent>,
        event: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorTerminated(_, state, reason) => {
                let state = if state.is_some() { "state" } else { "no state" };
                self.0.write(format!("terminated with {state}, reason {reason:?}"));
            }
            SupervisionEvent::ActorFailed(_, error) => self.0.write(format!("failed: {error}")),
            _ => {}
        }
        Ok(())
    }
}

/// Writes down its own end; its state writes when it is dropped.
struct Child {
    record: Record,
    stop_takes: Duration,
}

struct Trace(Record);

impl Drop for Trace {
    fn drop(&mut self) {
        self.0.write("state dropped");
    }
}

enum ToChild {
    Note(&'static str),
    /// Tell the parent, then stop.
    LastWord(ActorRef<ToParent>),
    Work(Duration),
    Fail,
    Panic,
    DropPort(RpcReplyPort<()>),
    Answer(Duration, RpcReplyPort<()>),
}

impl Actor for Child {
    type Msg = ToChild;
    type State = Trace;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<ToChild>, (): ()) -> Result<Trace, ActorProcessingErr> {
        Ok(Trace(self.record.clone()))
    }

    async fn handle(&self, me: ActorRef<ToChild>, message: ToChild, _: &mut Trace) -> Result<(), ActorProcessingErr> {
        match message {
            ToChild::Note(line) => self.record.write(line),
            ToChild::LastWord(parent) => {
                parent.cast(ToParent::Note("last word"))?;
                me.stop(None);
            }
            ToChild::Work(span) => {
                tokio::time::sleep(span).await;
                self.record.write("worked");
            }
            ToChild::Fail => return Err("told to fail".into()),
            ToChild::Panic => panic!("told to panic"),
            ToChild::DropPort(port) => drop(port),
            ToChild::Answer(after, port) => {
                tokio::time::sleep(after).await;
                self.record.write("answered");
                let _ = port.send(());
            }
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<ToChild>, _: &mut Trace) -> Result<(), ActorProcessingErr> {
        self.record.write("post_stop begins");
        tokio::time::sleep(self.stop_takes).await;
        self.record.write("post_stop ends");
        Ok(())
    }
}

async fn family(stop_takes: Duration) -> (Record, ActorRef<ToParent>, ActorRef<ToChild>) {
    let record = Record::new();
    let (parent, _) = Actor::spawn(None, Parent(record.clone()), ()).await.unwrap();
    let child = Child { record: record.clone(), stop_takes };
    let (child, _) = parent.spawn_linked(None, child, ()).await.unwrap();
    (record, parent, child)
}

/// Lets everything run that can run without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

const NORMAL: &str = "terminated with state, reason None";
const KILLED: &str = "terminated with state, reason Some(\"killed\")";
const KILLED_AT_THE_EDGE: &str = "terminated with no state, reason Some(\"killed\")";

#[tokio::test(start_paused = true)]
async fn the_end_of_a_child_overtakes_its_own_last_message() {
    let (record, parent, child) = family(Duration::ZERO).await;
    let free = Arc::new(Notify::new());
    parent.cast(ToParent::Busy(Arc::clone(&free))).unwrap();
    child.cast(ToChild::LastWord(parent.clone())).unwrap();
    child.wait(None).await.unwrap();
    free.notify_one();
    record.until("last word", 1).await;
    let heard: Vec<_> = record.lines().into_iter().filter(|line| line == NORMAL || line == "last word").collect();
    assert_eq!(heard, [NORMAL, "last word"]);
}

#[tokio::test(start_paused = true)]
async fn the_event_of_an_end_is_sent_before_the_actor_counts_as_stopped() {
    let (record, parent, child) = family(Duration::ZERO).await;
    let free = Arc::new(Notify::new());
    parent.cast(ToParent::Busy(Arc::clone(&free))).unwrap();
    settle().await;
    child.stop(None);
    child.wait(None).await.unwrap();
    // So a message that is sent after the wait is read after the event.
    parent.cast(ToParent::Note("it is gone")).unwrap();
    free.notify_one();
    record.until("it is gone", 1).await;
    let heard: Vec<_> = record.lines().into_iter().filter(|line| line == NORMAL || line == "it is gone").collect();
    assert_eq!(heard, [NORMAL, "it is gone"]);
}

#[tokio::test(start_paused = true)]
async fn stop_does_not_interrupt_a_handler_and_drops_queued_messages() {
    let (record, _parent, child) = family(Duration::ZERO).await;
    let asked_at = Instant::now();
    child.cast(ToChild::Work(TENTH)).unwrap();
    settle().await;
    child.cast(ToChild::Note("queued")).unwrap();
    child.stop_and_wait(None, None).await.unwrap();
    assert!(asked_at.elapsed() >= TENTH);
    assert_eq!(record.lines()[..3], ["worked", "post_stop begins", "post_stop ends"]);
    assert!(!record.lines().contains(&"queued".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn drain_works_off_the_queue_first_and_takes_nothing_more() {
    let (record, parent, child) = family(Duration::ZERO).await;
    child.cast(ToChild::Work(TENTH)).unwrap();
    child.cast(ToChild::Note("queued")).unwrap();
    child.drain().unwrap();
    assert_eq!(child.get_status(), ActorStatus::Draining);
    assert!(child.cast(ToChild::Note("late")).is_err());
    child.wait(None).await.unwrap();
    settle().await;
    let drained = "terminated with state, reason Some(\"Drained\")";
    assert_eq!(record.lines(), ["worked", "queued", "post_stop begins", "post_stop ends", drained, "state dropped"]);
    parent.stop(None);
}

#[tokio::test(start_paused = true)]
async fn kill_drops_the_running_handler_and_skips_post_stop() {
    let (record, _parent, child) = family(Duration::ZERO).await;
    child.cast(ToChild::Work(LONG)).unwrap();
    settle().await;
    let asked_at = Instant::now();
    child.kill();
    child.wait(None).await.unwrap();
    settle().await;
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    assert_eq!(record.lines(), [KILLED, "state dropped"], "the state is handed over even so");
}

#[tokio::test(start_paused = true)]
async fn the_exit_is_read_from_the_event_as_it_really_comes() {
    let seen = Record::new();
    let (parent, _) = Actor::spawn(None, Reader(seen.clone()), ()).await.unwrap();
    let spawn = || async {
        let child = Child { record: Record::new(), stop_takes: LONG };
        parent.spawn_linked(None, child, ()).await.unwrap().0
    };
    let failing = spawn().await;
    failing.cast(ToChild::Fail).unwrap();
    seen.until("failed (told to fail)", 1).await;
    spawn().await.stop(None);
    seen.until("normal", 1).await;
    spawn().await.stop(Some("enough".to_owned()));
    seen.until("shutdown (enough)", 1).await;
    let idle = spawn().await;
    settle().await;
    idle.kill();
    seen.until("killed", 1).await;
    let stopping = spawn().await;
    stopping.stop(None);
    settle().await;
    stopping.kill();
    seen.until("killed", 2).await;
}

/// Writes down how the supervisors here read the ends of children.
struct Reader(Record);

impl Actor for Reader {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<()>,
        event: SupervisionEvent,
        (): &mut (),
    ) -> Result<(), ActorProcessingErr> {
        if let Some((_, exit)) = Exit::of(&event) {
            self.0.write(exit.to_string());
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn kill_cuts_a_post_stop_short() {
    let (record, _parent, child) = family(LONG).await;
    child.stop(None);
    record.until("post_stop begins", 1).await;
    child.kill();
    child.wait(None).await.unwrap();
    settle().await;
    assert_eq!(record.lines(), ["post_stop begins", "state dropped", KILLED_AT_THE_EDGE]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_an_error_give_actor_failed_without_post_stop() {
    for (message, told) in [(ToChild::Panic, "failed: told to panic"), (ToChild::Fail, "failed: told to fail")] {
        let (record, _parent, child) = family(Duration::ZERO).await;
        child.cast(message).unwrap();
        child.wait(None).await.unwrap();
        settle().await;
        let mut lines = record.lines();
        lines.sort();
        assert_eq!(lines, [told, "state dropped"]);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_and_wait_returns_after_post_stop_and_its_reason_can_pass_for_a_kill() {
    let (record, _parent, child) = family(TENTH).await;
    let asked_at = Instant::now();
    child.stop_and_wait(Some("killed".to_owned()), None).await.unwrap();
    assert_eq!(asked_at.elapsed(), TENTH);
    settle().await;
    assert_eq!(record.lines(), ["post_stop begins", "post_stop ends", KILLED, "state dropped"]);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_parent_kills_its_children() {
    let (record, parent, child) = family(Duration::ZERO).await;
    parent.stop_and_wait(None, None).await.unwrap();
    child.wait(Some(LONG)).await.unwrap();
    settle().await;
    assert_eq!(record.lines(), ["state dropped"], "no post_stop");
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_stopping_outlives_its_parent_unsupervised() {
    let (record, parent, child) = family(TENTH).await;
    child.stop(None);
    record.until("post_stop begins", 1).await;
    parent.stop_and_wait(None, None).await.unwrap();
    assert_eq!(child.get_status(), ActorStatus::Stopping);
    assert!(child.try_get_supervisor().is_none());
    child.wait(None).await.unwrap();
    assert_eq!(record.lines()[..2], ["post_stop begins", "post_stop ends"]);
}

#[tokio::test(start_paused = true)]
async fn a_child_that_is_draining_outlives_its_parent_unsupervised() {
    let (record, parent, child) = family(Duration::ZERO).await;
    child.cast(ToChild::Work(TENTH)).unwrap();
    child.drain().unwrap();
    settle().await;
    parent.stop_and_wait(None, None).await.unwrap();
    assert_eq!(child.get_status(), ActorStatus::Draining);
    child.wait(None).await.unwrap();
    assert!(record.lines().contains(&"worked".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_and_wait_fails_at_once_and_a_second_kill_and_wait_waits() {
    let (_record, _parent, child) = family(TENTH).await;
    child.stop(None);
    settle().await;
    let asked_at = Instant::now();
    let second = child.stop_and_wait(None, None).await;
    assert!(matches!(second, Err(RactorErr::Messaging(MessagingErr::ChannelClosed))));
    assert_eq!(asked_at.elapsed(), Duration::ZERO);
    assert_eq!(child.get_status(), ActorStatus::Stopping);
    child.kill_and_wait(None).await.unwrap();
    child.kill_and_wait(None).await.unwrap();
    assert_eq!(child.get_status(), ActorStatus::Stopped);
}

#[tokio::test(start_paused = true)]
async fn stop_children_and_wait_does_not_wait_for_a_child_that_is_stopping() {
    let (_record, parent, child) = family(TENTH).await;
    child.stop(None);
    settle().await;
    parent.stop_children_and_wait(None, None).await;
    assert_eq!(child.get_status(), ActorStatus::Stopping);
    child.wait(None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_state_lives_until_the_supervisor_takes_note_of_the_end() {
    let (record, parent, child) = family(Duration::ZERO).await;
    let free = Arc::new(Notify::new());
    parent.cast(ToParent::Busy(Arc::clone(&free))).unwrap();
    settle().await;
    child.stop_and_wait(None, None).await.unwrap();
    settle().await;
    assert_eq!(record.lines(), ["post_stop begins", "post_stop ends"], "stopped, but its state is still held");
    free.notify_one();
    record.until("state dropped", 1).await;
}

/// Leaves the handling of supervision events to ractor.
struct Careless;

impl Actor for Careless {
    type Msg = ();
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

// Case C184: a child's normal end stops the supervisor.
#[tokio::test(start_paused = true)]
async fn a_supervisor_without_its_own_handler_stops_when_a_child_ends_normally() {
    let (parent, _) = Actor::spawn(None, Careless, ()).await.unwrap();
    let (child, _) = parent.spawn_linked(None, Careless, ()).await.unwrap();
    child.stop(None);
    parent.wait(Some(LONG)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_drains_or_ends_refuses_children() {
    let (record, parent, _child) = family(Duration::ZERO).await;
    parent.cast(ToParent::Busy(Arc::new(Notify::new()))).unwrap();
    parent.drain().unwrap();
    let spawn = || parent.spawn_linked(None, Child { record: record.clone(), stop_takes: Duration::ZERO }, ());
    assert!(matches!(spawn().await, Err(SpawnErr::StartupFailed(_))));
    parent.kill_and_wait(None).await.unwrap();
    assert!(matches!(spawn().await, Err(SpawnErr::StartupFailed(_))));
    // Linking an actor that runs is refused without a word.
    let (orphan, _) = Actor::spawn(None, Careless, ()).await.unwrap();
    orphan.link(parent.get_cell());
    assert!(orphan.try_get_supervisor().is_none());
    orphan.stop(None);
}

#[tokio::test(start_paused = true)]
async fn an_actor_that_was_spawned_alone_can_be_linked_later() {
    let (record, parent, _child) = family(Duration::ZERO).await;
    let loose = Child { record: record.clone(), stop_takes: Duration::ZERO };
    let (loose, _) = Actor::spawn(None, loose, ()).await.unwrap();
    loose.link(parent.get_cell());
    assert_eq!(loose.try_get_supervisor(), Some(parent.get_cell()));
    loose.cast(ToChild::Fail).unwrap();
    record.until("failed: told to fail", 1).await;
    // A dead one cannot, and sends no event.
    loose.wait(None).await.unwrap();
    loose.link(parent.get_cell());
    assert!(loose.try_get_supervisor().is_none());
}

/// Starts in this time, or fails to.
struct Slow(Result<Duration, &'static str>, Record);

impl Actor for Slow {
    type Msg = ();
    type State = Trace;
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<()>, (): ()) -> Result<Trace, ActorProcessingErr> {
        let trace = Trace(self.1.clone());
        self.1.write("pre_start begins");
        match self.0 {
            Ok(span) => tokio::time::sleep(span).await,
            Err(reason) => panic!("{reason}"),
        }
        self.1.write("pre_start ends");
        Ok(trace)
    }
}

#[tokio::test(start_paused = true)]
async fn pre_start_runs_in_the_callers_task_and_goes_with_it() {
    let (record, parent, _child) = family(Duration::ZERO).await;
    let spawn = parent.spawn_linked(None, Slow(Ok(LONG), record.clone()), ());
    assert!(tokio::time::timeout(TENTH, spawn).await.is_err());
    settle().await;
    assert_eq!(record.lines(), ["pre_start begins", "state dropped"]);
    assert_eq!(parent.get_children().len(), 1, "it is linked only after pre_start");
}

#[tokio::test(start_paused = true)]
async fn a_failed_pre_start_is_told_to_the_caller_alone() {
    let (record, parent, _child) = family(Duration::ZERO).await;
    let spawn = parent.spawn_linked(None, Slow(Err("no disk"), record.clone()), ()).await;
    assert!(matches!(spawn, Err(SpawnErr::StartupFailed(cause)) if cause.to_string() == "no disk"));
    settle().await;
    assert_eq!(record.lines(), ["pre_start begins", "state dropped"]);
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_goes_while_a_child_starts_gets_no_child() {
    let (record, parent, _child) = family(Duration::ZERO).await;
    let (spawner, slow) = (parent.clone(), Slow(Ok(TENTH), record.clone()));
    let spawn = tokio::spawn(async move { spawner.spawn_linked(None, slow, ()).await.map(drop) });
    record.until("pre_start begins", 1).await;
    parent.stop(None);
    assert!(matches!(spawn.await.unwrap(), Err(SpawnErr::StartupFailed(_))));
    assert!(record.lines().contains(&"pre_start ends".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn an_aborted_actor_task_ends_without_state_and_without_post_stop() {
    let record = Record::new();
    let (parent, _) = Actor::spawn(None, Parent(record.clone()), ()).await.unwrap();
    let child = Child { record: record.clone(), stop_takes: Duration::ZERO };
    let (_child, task) = parent.spawn_linked(None, child, ()).await.unwrap();
    task.abort();
    record.until("terminated with no state, reason Some(\"actor_task_cancelled\")", 1).await;
    assert!(!record.lines().contains(&"post_stop begins".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_call_is_unanswered_when_the_callee_drops_the_port_or_dies_and_fails_when_it_is_dead() {
    let (_record, _parent, child) = family(Duration::ZERO).await;
    let dropped = child.call(ToChild::DropPort, Some(LONG)).await;
    assert!(matches!(dropped, Ok(CallResult::SenderError)));
    let caller = {
        let child = child.clone();
        tokio::spawn(async move { child.call(|port| ToChild::Answer(LONG, port), None).await })
    };
    settle().await;
    child.kill();
    assert!(matches!(caller.await.unwrap(), Ok(CallResult::SenderError)));
    child.wait(None).await.unwrap();
    let dead = child.call(ToChild::DropPort, None).await;
    assert!(matches!(dead, Err(MessagingErr::SendErr(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_timed_out_is_carried_out_nevertheless() {
    let (record, _parent, child) = family(Duration::ZERO).await;
    let called = child.call(|port| ToChild::Answer(TENTH * 2, port), Some(TENTH)).await;
    assert!(matches!(called, Ok(CallResult::Timeout)));
    record.until("answered", 1).await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_one_sender_keep_their_order() {
    let (record, _parent, child) = family(Duration::ZERO).await;
    for line in ["one", "two", "three"] {
        child.cast(ToChild::Note(line)).unwrap();
    }
    record.until("three", 1).await;
    assert_eq!(record.lines(), ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_begun_after_the_end_returns() {
    let (_record, _parent, child) = family(Duration::ZERO).await;
    child.kill();
    child.wait(None).await.unwrap();
    let cell: ActorCell = child.get_cell();
    cell.wait(Some(TENTH)).await.unwrap();
    cell.wait(Some(TENTH)).await.unwrap();
}
