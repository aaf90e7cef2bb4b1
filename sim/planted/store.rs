//! Planted faults of the store: an older snapshot that is brought up to less than it was, a fork that lacks its last word.

use std::sync::Arc;

use toolwarden::facts::state::State;
use toolwarden::snapshot::{SNAPSHOT_VERSION, Snapshot, encode};
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, OnDamage, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use super::{Planted, Wrap};
use crate::twins::store::PretendedStore;

/// All of them.
pub(super) const STORE: [Planted; 2] = [
    Planted {
        name: "migration-forgets",
        about: "an older snapshot is brought up without its count of calls",
        scenario: "world-old-snapshots",
        watcher: "snapshot",
        seeds_max: 60,
        wrap: Wrap::Store(|store| Slipping::over(store, Slip::Migration)),
    },
    Planted {
        name: "fork-forgets",
        about: "a fork lacks the last message",
        scenario: "world-forks",
        watcher: "forks",
        seeds_max: 20,
        wrap: Wrap::Store(|store| Slipping::over(store, Slip::Fork)),
    },
];

/// How a store is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    Migration,
    Fork,
}

/// A store that is broken in one way.
struct Slipping {
    store: Arc<PretendedStore>,
    slip: Slip,
}

impl Slipping {
    fn over(store: Arc<PretendedStore>, slip: Slip) -> Arc<dyn Store> {
        Arc::new(Self { store, slip })
    }

    /// A snapshot of an older version as one of this version that lacks something; any other as it is.
    fn brought_up(&self, found: Recovered) -> Recovered {
        let is_older = |bytes: &Vec<u8>| bytes.get(8).is_some_and(|version| u32::from(*version) < SNAPSHOT_VERSION);
        match found.snapshot.as_ref().filter(|bytes| self.slip == Slip::Migration && is_older(bytes)) {
            Some(bytes) => {
                let snapshot = changed(bytes, |state| state.calls = 0).or(found.snapshot.clone());
                Recovered { snapshot, ..found }
            }
            None => found,
        }
    }
}

/// The snapshot with a change in its state.
fn changed(bytes: &[u8], change: fn(&mut State)) -> Option<Vec<u8>> {
    let snapshot = Snapshot::of_any_session(bytes.to_vec()).ok()?;
    let mut state = snapshot.state().ok()?;
    change(&mut state);
    encode(&snapshot.head.session, &state, snapshot.head.log_from).ok()
}

impl Store for Slipping {
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError> {
        let short = snapshot
            .filter(|_| self.slip == Slip::Fork)
            .and_then(|bytes| changed(bytes, |state| drop(state.messages.pop())));
        self.store.create(session, short.as_deref().or(snapshot), first)
    }

    fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError> {
        self.store.open(session, damage).map(|found| self.brought_up(found))
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        self.store.append(batch)
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        self.store.save_snapshot(session, bytes)
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        self.store.begin_anew(session)
    }

    fn compact(&self, session: &SessionId, through: u64, kept_bytes: u64) -> Result<u64, StoreError> {
        self.store.compact(session, through, kept_bytes)
    }

    fn release(&self, session: &SessionId) {
        self.store.release(session);
    }

    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
        self.store.look(session)
    }

    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        self.store.sessions()
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        self.store.next_epoch()
    }
}
