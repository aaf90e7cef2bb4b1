//! The nursery alone: its supervisor is the test, which sees each note and event and hands it in when it likes.

use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::mpsc;

use super::{Nursery, NurseryNote};
use crate::child::{ChildEvent, Exit, Incarnation, Order, StopStage};
use crate::child_spec::{ChildSpec, StartError};
use crate::probe::{Probe, Probes, Record, Tell};

const ONE: Incarnation = Incarnation(1);

/// Hands on what a supervisor would get.
struct Relay;

enum Heard {
    Note(NurseryNote),
    Event(SupervisionEvent),
}

impl Actor for Relay {
    type Msg = NurseryNote;
    type State = mpsc::Sender<Heard>;
    type Arguments = mpsc::Sender<Heard>;

    async fn pre_start(
        &self,
        _: ActorRef<NurseryNote>,
        heard: mpsc::Sender<Heard>,
    ) -> Result<mpsc::Sender<Heard>, ActorProcessingErr> {
        Ok(heard)
    }

    async fn handle(
        &self,
        _: ActorRef<NurseryNote>,
        note: NurseryNote,
        heard: &mut mpsc::Sender<Heard>,
    ) -> Result<(), ActorProcessingErr> {
        Ok(heard.send(Heard::Note(note)).await.map_err(|_| "the test is over")?)
    }

    async fn handle_supervisor_evt(
        &self,
        _: ActorRef<NurseryNote>,
        event: SupervisionEvent,
        heard: &mut mpsc::Sender<Heard>,
    ) -> Result<(), ActorProcessingErr> {
        if !matches!(event, SupervisionEvent::ActorStarted(_)) {
            heard.send(Heard::Event(event)).await.map_err(|_| "the test is over")?;
        }
        Ok(())
    }
}

struct Room {
    nursery: Nursery<NurseryNote>,
    heard: mpsc::Receiver<Heard>,
}

impl Room {
    async fn new() -> Self {
        let (sender, heard) = mpsc::channel(64);
        let (relay, _) = Actor::spawn(None, Relay, sender).await.unwrap();
        Self { nursery: Nursery::new(relay), heard }
    }

    fn start(&mut self, incarnation: Incarnation, spec: ChildSpec) {
        self.nursery.carry_out(Order::Start { incarnation, work: spec.work });
    }

    /// Hands the next thing in and returns what the machine would be told.
    async fn next(&mut self) -> Vec<ChildEvent> {
        match self.heard.recv().await.unwrap() {
            Heard::Note(note) => self.nursery.take_note(note),
            Heard::Event(event) => self.nursery.take_event(&event).into_iter().collect(),
        }
    }

    fn assert_empty(&mut self) {
        let nothing = NurseryNote::Gone { incarnation: Incarnation(u64::MAX) };
        assert!(self.nursery.take_note(nothing).is_empty());
        assert!(self.nursery.cots.is_empty() && self.nursery.incarnations.is_empty());
        assert!(self.nursery.early_exits.is_empty() && self.nursery.starting == 0);
    }
}

/// Spawns a probe, hands out its cell, and never returns.
fn endless(record: &Record) -> (ChildSpec, mpsc::Receiver<ActorCell>) {
    let (sender, cells) = mpsc::channel(1);
    let record = record.clone();
    let spec = ChildSpec::new("endless", move |supervisor: ActorCell| {
        let (probe, sender) = (Probe::new("endless", &record), sender.clone());
        async move {
            let (child, _) = supervisor.spawn_linked(None, probe, ()).await?;
            let _ = sender.send(child.get_cell()).await;
            std::future::pending().await
        }
    });
    (spec, cells)
}

#[tokio::test(start_paused = true)]
async fn a_life_leaves_nothing_behind() {
    let probes = Probes::new(["a"]);
    let mut room = Room::new().await;
    room.start(ONE, probes.spec("a"));
    assert!(room.nursery.cell(ONE).is_none());
    assert_eq!(room.next().await, [ChildEvent::Started { incarnation: ONE }]);
    assert_eq!(room.nursery.cell(ONE), Some(&probes.actor("a").get_cell()));
    let after = Duration::from_secs(1);
    room.nursery.carry_out(Order::Watch { incarnation: ONE, stage: StopStage::Asked, after });
    room.nursery.carry_out(Order::Ask { incarnation: ONE });
    assert_eq!(room.next().await, [ChildEvent::Exited { incarnation: ONE, exit: Exit::Normal }]);
    room.assert_empty();
    // Its timer is gone, too.
    tokio::time::advance(after * 2).await;
    tokio::task::yield_now().await;
    assert!(room.heard.try_recv().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_passes_is_reported() {
    let probes = Probes::new(["a"]);
    let mut room = Room::new().await;
    room.start(ONE, probes.spec("a"));
    room.next().await;
    probes.tell("a", Tell::Hang);
    tokio::task::yield_now().await;
    let stage = StopStage::Asked;
    room.nursery.carry_out(Order::Ask { incarnation: ONE });
    room.nursery.carry_out(Order::Watch { incarnation: ONE, stage, after: Duration::from_secs(1) });
    assert_eq!(room.next().await, [ChildEvent::Overdue { incarnation: ONE, stage }]);
    room.nursery.carry_out(Order::Kill { incarnation: ONE });
    assert_eq!(room.next().await, [ChildEvent::Exited { incarnation: ONE, exit: Exit::Killed }]);
    room.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn an_end_that_overtakes_its_start_is_told_after_it() {
    let probes = Probes::new(["a"]);
    let mut room = Room::new().await;
    room.start(ONE, probes.spec("a"));
    let Some(Heard::Note(start_ended)) = room.heard.recv().await else { panic!("the start comes first") };
    probes.actor("a").stop(None);
    assert!(room.next().await.is_empty(), "nothing is known of it yet");
    let exited = ChildEvent::Exited { incarnation: ONE, exit: Exit::Normal };
    assert_eq!(room.nursery.take_note(start_ended), [ChildEvent::Started { incarnation: ONE }, exited]);
    assert!(room.nursery.cell(ONE).is_some(), "the answer to its start can still name it");
    room.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn failed_and_mad_starts_are_told() {
    let mut room = Room::new().await;
    room.start(ONE, ChildSpec::new("a", |_| async { Err(StartError::failed("no")) }));
    let error = StartError::failed("no");
    assert_eq!(room.next().await, [ChildEvent::StartFailed { incarnation: ONE, error }]);
    let mad = |_| -> std::future::Ready<Result<ActorCell, StartError>> { panic!("before its first await") };
    room.start(ONE, ChildSpec::new("a", mad));
    let error = StartError::Panicked { message: "before its first await".into() };
    assert_eq!(room.next().await, [ChildEvent::StartFailed { incarnation: ONE, error }]);
    room.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn what_a_cancelled_or_dropped_start_has_spawned_is_killed_while_its_siblings_live() {
    for order in [Order::Ask { incarnation: ONE }, Order::Kill { incarnation: ONE }] {
        let probes = Probes::new(["sibling"]);
        let mut room = Room::new().await;
        room.start(Incarnation(0), probes.spec("sibling"));
        room.next().await;
        let (endless, mut cells) = endless(&probes.record);
        room.start(ONE, endless);
        let stray = cells.recv().await.unwrap();
        room.nursery.carry_out(order);
        let error = StartError::Cancelled;
        assert_eq!(room.next().await, [ChildEvent::StartFailed { incarnation: ONE, error }]);
        stray.wait(Some(Duration::from_secs(1))).await.unwrap();
        assert!(room.next().await.is_empty(), "its end is nobody's business");
        assert!(probes.is_running("sibling"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_that_comes_back_after_it_was_abandoned_is_killed() {
    let probes = Probes::new(["a"]);
    let mut room = Room::new().await;
    room.start(ONE, probes.spec("a"));
    let Some(Heard::Note(start_ended)) = room.heard.recv().await else { panic!("the start comes first") };
    room.nursery.carry_out(Order::Abandon { incarnation: ONE });
    let child = probes.actor("a");
    assert!(room.nursery.take_note(start_ended).is_empty());
    child.wait(Some(Duration::from_secs(1))).await.unwrap();
    room.assert_empty();
}

#[tokio::test(start_paused = true)]
async fn a_nursery_that_is_dropped_drops_its_starts_and_timers() {
    let record = Record::new();
    let mut room = Room::new().await;
    let (endless, mut cells) = endless(&record);
    room.start(ONE, endless);
    let after = Duration::from_secs(1);
    room.nursery.carry_out(Order::Watch { incarnation: ONE, stage: StopStage::Asked, after });
    cells.recv().await.unwrap();
    drop(room.nursery);
    let Some(Heard::Note(NurseryNote::StartEnded { result, .. })) = room.heard.recv().await else {
        panic!("the start is told to be over")
    };
    assert_eq!(result, Err(StartError::Cancelled));
    tokio::time::advance(after * 2).await;
    tokio::task::yield_now().await;
    assert!(room.heard.try_recv().is_err());
}
