//! A child for tests that writes down when it comes and goes, and misbehaves on request.
//!
//! The record is one list for all children of a test, so that orders between them can be checked; tests wait for
//! lines in it instead of for time.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::watch;

use crate::child_spec::ChildSpec;
use crate::slot::Slot;
use crate::supervision_report::ReportSink;

/// Upper bound of any wait in a test, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// What happened so far, in order.
#[derive(Clone)]
pub(crate) struct Record {
    lines: Arc<watch::Sender<Vec<String>>>,
}

/// What a probe can be told.
pub(crate) enum Tell {
    /// Return an error.
    Fail,
    /// Panic.
    Panic,
    /// Stop without a reason.
    End,
    /// Never finish this message, so that no stop is read.
    Hang,
}

pub(crate) struct Probe {
    name: String,
    record: Record,
    stop_takes: Duration,
}

/// Named probes with their slots.
#[derive(Clone)]
pub(crate) struct Probes {
    pub(crate) record: Record,
    slots: BTreeMap<&'static str, Slot<Tell>>,
}

impl Record {
    pub(crate) fn new() -> Self {
        Self { lines: Arc::new(watch::Sender::new(Vec::new())) }
    }

    pub(crate) fn write(&self, line: impl Into<String>) {
        self.lines.send_modify(|lines| lines.push(line.into()));
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.borrow().clone()
    }

    /// The lines since the last call.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut taken = Vec::new();
        self.lines.send_modify(|lines| taken = std::mem::take(lines));
        taken
    }

    /// Waits until this line was written so many times.
    pub(crate) async fn until(&self, line: &str, times: usize) {
        let mut lines = self.lines.subscribe();
        let is_there = |lines: &Vec<String>| lines.iter().filter(|at| *at == line).count() >= times;
        let waited = tokio::time::timeout(PATIENCE, lines.wait_for(is_there)).await;
        assert!(waited.is_ok(), "{line:?} never came {times} times: {:?}", self.lines());
    }

    /// Writes reports here.
    pub(crate) fn sink(&self) -> ReportSink {
        let record = self.clone();
        Arc::new(move |report| record.write(report.to_string()))
    }
}

impl Probes {
    pub(crate) fn new(names: impl IntoIterator<Item = &'static str>) -> Self {
        Self { record: Record::new(), slots: names.into_iter().map(|name| (name, Slot::new())).collect() }
    }

    /// The child's specification: permanent, 5 s to stop.
    pub(crate) fn spec(&self, name: &'static str) -> ChildSpec {
        self.spec_stopping_in(name, Duration::ZERO)
    }

    /// As [`Self::spec`], with a `post_stop` that takes this long.
    pub(crate) fn spec_stopping_in(&self, name: &'static str, stop_takes: Duration) -> ChildSpec {
        let record = self.record.clone();
        ChildSpec::actor(name, &self.slots[name], move || {
            (Probe { name: name.to_owned(), record: record.clone(), stop_takes }, ())
        })
    }

    pub(crate) fn actor(&self, name: &str) -> ActorRef<Tell> {
        self.slots[name].get().unwrap()
    }

    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.slots[name].get().is_ok()
    }

    pub(crate) fn tell(&self, name: &str, tell: Tell) {
        self.actor(name).cast(tell).unwrap();
    }
}

impl Probe {
    pub(crate) fn new(name: &str, record: &Record) -> Self {
        Self { name: name.to_owned(), record: record.clone(), stop_takes: Duration::ZERO }
    }
}

impl Actor for Probe {
    type Msg = Tell;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _: ActorRef<Tell>, (): ()) -> Result<(), ActorProcessingErr> {
        self.record.write(format!("+{}", self.name));
        Ok(())
    }

    async fn handle(&self, myself: ActorRef<Tell>, tell: Tell, (): &mut ()) -> Result<(), ActorProcessingErr> {
        match tell {
            Tell::Fail => return Err(format!("{} was told to fail", self.name).into()),
            Tell::Panic => panic!("{} was told to panic", self.name),
            Tell::End => myself.stop(None),
            Tell::Hang => pending().await,
        }
        Ok(())
    }

    async fn post_stop(&self, _: ActorRef<Tell>, (): &mut ()) -> Result<(), ActorProcessingErr> {
        tokio::time::sleep(self.stop_takes).await;
        self.record.write(format!("-{}", self.name));
        Ok(())
    }
}
