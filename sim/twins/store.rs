//! The twin of the store: facts and snapshots in memory, with what goes wrong on disks.
//!
//! Faults: an append, a snapshot or an opening fails (no space left, an I/O error), after which the session takes no
//! more facts until it is opened again; the process crashes before an append, inside of it (a part of the batch is
//! stored, its last record torn) or behind it, before anybody is told. When the host says so, the snapshots are those of an
//! older version of this program.

mod aged;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use toolwarden_tools::effects::store::memory::MemoryStore;
use toolwarden_tools::effects::store::record::Recovered;
use toolwarden_tools::effects::store::{Append, OnDamage, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use crate::fate::Fate;
use crate::sight::Sight;

/// Keeps sessions.
pub struct PretendedStore {
    fate: Fate,
    disk: MemoryStore,
    /// Sessions whose writing failed, with how.
    broken: Mutex<BTreeMap<SessionId, String>>,
    /// Whether there are faults.
    faulty: bool,
    /// Whose last record the crash tore, and how many bytes of it are missing.
    torn: Mutex<Option<(SessionId, usize)>>,
}

impl PretendedStore {
    /// The store of this world; `faulty` ones fail and crash.
    pub fn new(fate: Fate, faulty: bool) -> Self {
        Self { fate, disk: MemoryStore::default(), broken: Mutex::default(), faulty, torn: Mutex::default() }
    }

    /// What the end of the process does to it.
    pub fn end_process(&self) {
        let torn = self.torn.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.disk.end_process(torn.as_ref().map(|(session, bytes)| (session, *bytes)));
        self.broken().clear();
    }

    /// What is on the disk of every session.
    pub fn kept(&self) -> Vec<(SessionId, Recovered)> {
        let sessions = self.disk.sessions().unwrap_or_default();
        sessions.into_iter().filter_map(|session| Some((session.clone(), self.disk.look(&session).ok()?))).collect()
    }

    /// Makes the snapshots that are kept those of an older version, as far as it could have held them.
    pub fn age_snapshots(&self) {
        for session in self.disk.sessions().unwrap_or_default() {
            let snapshot = self.disk.look(&session).ok().and_then(|found| found.snapshot);
            let version = 4 - self.fate.below(4);
            let Some(old) = snapshot.and_then(|bytes| aged::aged(&bytes, version)) else { continue };
            if self.disk.save_snapshot(&session, &old).is_ok() {
                self.fate.met("a snapshot of an older version");
            }
        }
    }

    fn broken(&self) -> MutexGuard<'_, BTreeMap<SessionId, String>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rare(&self, kinds: u32) -> Option<u32> {
        if self.faulty { self.fate.rare(kinds) } else { None }
    }

    /// A fault of the disk, now and then.
    fn fails(&self, op: &'static str) -> Option<StoreError> {
        let kind = match self.rare(2)? {
            0 => ErrorKind::StorageFull,
            _ => ErrorKind::Other,
        };
        self.fate.met("a store that fails");
        Some(StoreError::Io { op, path: "the pretended store".to_owned(), kind, message: kind.to_string() })
    }

    /// Appends one fact, as far as it comes.
    fn append_one(&self, fact: &Append) -> Result<(), StoreError> {
        if let Some(message) = self.broken().get(&fact.session).cloned() {
            return Err(StoreError::Broken { session: fact.session.clone(), message });
        }
        if let Some(error) = self.fails("append to") {
            self.broken().insert(fact.session.clone(), error.to_string());
            return Err(error);
        }
        let crashes = self.rare(3);
        if crashes == Some(0) {
            self.fate.met("a crash before a fact");
            return Err(self.gone(fact));
        }
        self.disk.append(std::slice::from_ref(fact)).pop().unwrap_or(Ok(()))?;
        match crashes {
            Some(1) => {
                self.fate.met("a torn fact");
                let length = u32::try_from(fact.payload.len()).unwrap_or(u32::MAX);
                let missing = 1 + self.fate.below(length) as usize;
                let mut torn = self.torn.lock().unwrap_or_else(PoisonError::into_inner);
                *torn = Some((fact.session.clone(), missing));
                drop(torn);
                Err(self.gone(fact))
            }
            Some(_) => {
                self.fate.met("a crash behind a fact");
                self.see(fact);
                Err(self.gone(fact))
            }
            None => {
                self.see(fact);
                Ok(())
            }
        }
    }

    fn see(&self, fact: &Append) {
        let Append { session, sequence, payload } = fact;
        self.fate.see(&Sight::Stored { session, sequence: *sequence, payload });
    }

    /// The process crashes; what is answered is heard by nobody.
    fn gone(&self, fact: &Append) -> StoreError {
        self.fate.crash();
        StoreError::Broken { session: fact.session.clone(), message: "the process ended".to_owned() }
    }
}

impl Store for PretendedStore {
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError> {
        if self.fate.is_dead() {
            return Err(StoreError::NotHeld { session: session.clone() });
        }
        if let Some(error) = self.fails("make a session in") {
            return Err(error);
        }
        self.disk.create(session, snapshot, first)?;
        if let Some(first) = first {
            self.see(first);
        }
        if let Some(bytes) = snapshot {
            self.fate.see(&Sight::Forked { to: session, bytes });
        }
        Ok(())
    }

    fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError> {
        if let Some(error) = self.fails("open") {
            return Err(error);
        }
        let recovered = self.disk.open(session, damage)?;
        self.broken().remove(session);
        Ok(recovered)
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::with_capacity(batch.len());
        for fact in batch {
            if self.fate.is_dead() {
                let message = "the process ended".to_owned();
                answers.push(Err(StoreError::Broken { session: fact.session.clone(), message }));
            } else {
                answers.push(self.append_one(fact));
            }
        }
        answers
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        if self.fate.is_dead() {
            return Err(StoreError::NotHeld { session: session.clone() });
        }
        if let Some(message) = self.broken().get(session).cloned() {
            return Err(StoreError::Broken { session: session.clone(), message });
        }
        if let Some(error) = self.fails("save a snapshot in") {
            return Err(error);
        }
        if self.rare(1).is_some() {
            self.fate.met("a crash before a snapshot");
            self.fate.crash();
            return Err(StoreError::NotHeld { session: session.clone() });
        }
        self.disk.save_snapshot(session, bytes)?;
        self.fate.see(&Sight::Saved { session, bytes });
        Ok(())
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        self.disk.begin_anew(session)
    }

    fn compact(&self, session: &SessionId, through: u64, kept_bytes: u64) -> Result<u64, StoreError> {
        match self.fate.is_dead() {
            true => Err(StoreError::NotHeld { session: session.clone() }),
            false => self.disk.compact(session, through, kept_bytes),
        }
    }

    fn release(&self, session: &SessionId) {
        if !self.fate.is_dead() {
            self.disk.release(session);
        }
    }

    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
        self.disk.look(session)
    }

    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        self.disk.sessions()
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        self.disk.next_epoch()
    }
}
