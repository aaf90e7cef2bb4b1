//! The simulated fact log: records wait for a slow medium in batches, and what is not synced is lost with its life.
//!
//! Kept as the shipped mount keeps it: one batch is under way at a time, an answer follows the sync, and whoever
//! waited when the log failed is told that the record failed, whether it was stored by then or not.

use std::sync::Arc;
use std::time::Duration;

use toolwarden_actors::fact_log::{Batch, FactLogMachine};
use toolwarden_actors::node_machine::NodeId;
use toolwarden_tools::effects::store::Append;
use toolwarden_tools::ids::SessionId;

use crate::happening::Happening;
use crate::message::{Address, BodyMessage, Message, StoreMessage};
use crate::tamper::Slip;

use super::World;

/// The fact log, in its present life.
#[derive(Debug)]
pub(super) struct FactStore {
    machine: FactLogMachine<NodeId>,
    batch: Option<Batch<NodeId>>,
    life: u64,
    session: SessionId,
    payload: Arc<[u8]>,
    sequence: u64,
}

impl Default for FactStore {
    fn default() -> Self {
        Self {
            machine: FactLogMachine::default(),
            batch: None,
            life: 0,
            session: "session".into(),
            payload: Arc::from([]),
            sequence: 0,
        }
    }
}

impl FactStore {
    pub(super) fn is_busy(&self) -> bool {
        self.batch.is_some()
    }

    fn append(&mut self) -> Append {
        self.sequence += 1;
        Append { session: self.session.clone(), sequence: self.sequence, payload: Arc::clone(&self.payload) }
    }
}

impl World<'_> {
    pub(super) fn store_hears(&mut self, message: StoreMessage) {
        match message {
            StoreMessage::Record(node) => {
                let fact = self.store.append();
                if self.store.machine.append(fact, node).is_err() {
                    self.tell_body(node, BodyMessage::Recorded(false));
                }
            }
            StoreMessage::Synced(life) if life == self.store.life => self.batch_is_durable(),
            // Of a life that is over.
            StoreMessage::Synced(_) => {}
        }
        self.begin_batch();
    }

    fn begin_batch(&mut self) {
        let Some(batch) = self.store.machine.begin() else { return };
        let bound = u32::try_from(self.workload.limits.sync_ms_max).unwrap_or(u32::MAX).saturating_add(1);
        let span = Duration::from_millis(u64::from(self.choices.below(bound)));
        let timer = self.timer();
        let life = self.store.life;
        self.schedule.wind(span, timer, Address::Store, Message::Store(StoreMessage::Synced(life)));
        if self.tamper.slips(Slip::AcknowledgesBeforeSync) {
            self.answer_records(&batch.waiters, true);
        }
        self.store.batch = Some(batch);
    }

    fn batch_is_durable(&mut self) {
        self.store.machine.end();
        let Some(batch) = self.store.batch.take() else { return };
        for node in &batch.waiters {
            self.happens(Happening::RecordDurable { node: *node });
        }
        if !self.tamper.slips(Slip::AcknowledgesBeforeSync) {
            self.answer_records(&batch.waiters, true);
        }
    }

    fn answer_records(&mut self, waiters: &[NodeId], durable: bool) {
        for node in waiters {
            self.tell_body(*node, BodyMessage::Recorded(durable));
        }
    }

    /// The log's actor fails and is started anew: what was under way may be stored, and nobody is told that it is.
    pub(super) fn store_fails(&mut self) {
        self.current = Address::Store;
        if let Some(batch) = self.store.batch.take() {
            if self.choices.below(2) == 1 {
                self.covers("a batch that was stored and not acknowledged");
                for node in &batch.waiters {
                    self.happens(Happening::RecordDurable { node: *node });
                }
            }
            self.answer_records(&batch.waiters, false);
        }
        self.store.machine.end();
        while let Some(batch) = self.store.machine.begin() {
            self.answer_records(&batch.waiters, false);
            self.store.machine.end();
        }
        for message in self.schedule.empty_mailbox(Address::Store) {
            if let Message::Store(StoreMessage::Record(node)) = message {
                self.tell_body(node, BodyMessage::Recorded(false));
            }
        }
        self.store.machine = FactLogMachine::default();
        self.store.life += 1;
    }
}
