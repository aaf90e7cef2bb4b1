//! A store that forgets with its process: for tests, and for sessions that are resumed within one process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::effects::store::record::{Recovered, encode, scan};
use crate::effects::store::{Append, OnDamage, Store, StoreError, check_name};
use crate::ids::SessionId;

/// Keeps sessions in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    sessions: Mutex<BTreeMap<SessionId, Kept>>,
    epoch: AtomicU64,
}

#[derive(Debug, Default)]
struct Kept {
    log: Vec<u8>,
    snapshot: Option<Vec<u8>>,
    held: bool,
}

impl MemoryStore {
    /// What the end of its process does to a store: every session is given free, and of the log of one whose last
    /// append was under way, that many bytes are missing at the end.
    pub fn end_process(&self, torn: Option<(&SessionId, usize)>) {
        let mut sessions = self.sessions();
        if let Some((session, bytes)) = torn
            && let Some(kept) = sessions.get_mut(session)
        {
            let length = kept.log.len().saturating_sub(bytes);
            kept.log.truncate(length);
        }
        sessions.values_mut().for_each(|kept| kept.held = false);
    }

    fn sessions(&self) -> MutexGuard<'_, BTreeMap<SessionId, Kept>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn recovered(&self) -> Recovered {
        let found = scan(self.log.clone());
        Recovered {
            snapshot: self.snapshot.clone(),
            log: found.log,
            torn_bytes: found.torn_bytes,
            damage: found.damage,
        }
    }
}

impl Store for MemoryStore {
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError> {
        check_name(session)?;
        let mut sessions = self.sessions();
        if sessions.contains_key(session) {
            return Err(StoreError::Exists { session: session.clone() });
        }
        let mut kept = Kept { snapshot: snapshot.map(<[u8]>::to_vec), held: true, ..Kept::default() };
        if let Some(fact) = first {
            encode(fact.sequence, &fact.payload, &mut kept.log);
        }
        sessions.insert(session.clone(), kept);
        Ok(())
    }

    fn open(&self, session: &SessionId, _damage: OnDamage) -> Result<Recovered, StoreError> {
        let mut sessions = self.sessions();
        let kept = sessions.get_mut(session).ok_or_else(|| StoreError::Unknown { session: session.clone() })?;
        if std::mem::replace(&mut kept.held, true) {
            return Err(StoreError::Held { session: session.clone(), holder: "this process".to_owned() });
        }
        let recovered = kept.recovered();
        // Nobody was told that a torn end is stored; what is appended next must not stand behind it.
        let torn = usize::try_from(recovered.torn_bytes).unwrap_or(usize::MAX);
        let length = kept.log.len().saturating_sub(torn);
        kept.log.truncate(length);
        Ok(recovered)
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        let mut sessions = self.sessions();
        let mut one = |append: &Append| match sessions.get_mut(&append.session) {
            Some(kept) if kept.held => {
                encode(append.sequence, &append.payload, &mut kept.log);
                Ok(())
            }
            _ => Err(StoreError::NotHeld { session: append.session.clone() }),
        };
        batch.iter().map(&mut one).collect()
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        match self.sessions().get_mut(session) {
            Some(kept) if kept.held => {
                kept.snapshot = Some(bytes.to_vec());
                Ok(())
            }
            _ => Err(StoreError::NotHeld { session: session.clone() }),
        }
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        match self.sessions().get_mut(session) {
            Some(kept) if kept.held => {
                kept.log.clear();
                Ok("nowhere: this store forgets".to_owned())
            }
            _ => Err(StoreError::NotHeld { session: session.clone() }),
        }
    }

    fn compact(&self, session: &SessionId, through: u64, kept_bytes: u64) -> Result<u64, StoreError> {
        let mut sessions = self.sessions();
        let kept = sessions.get_mut(session).filter(|kept| kept.held);
        let kept = kept.ok_or_else(|| StoreError::NotHeld { session: session.clone() })?;
        if kept.log.len() as u64 <= kept_bytes {
            return Ok(0);
        }
        let found = scan(kept.log.clone());
        let Some(rest) = found.log.bytes_from(through) else { return Ok(0) };
        let gone = kept.log.len() - rest.len();
        kept.log = rest.to_vec();
        Ok(gone as u64)
    }

    fn release(&self, session: &SessionId) {
        if let Some(kept) = self.sessions().get_mut(session) {
            kept.held = false;
        }
    }

    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
        let sessions = self.sessions();
        let kept = sessions.get(session).ok_or_else(|| StoreError::Unknown { session: session.clone() })?;
        Ok(kept.recovered())
    }

    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        Ok(MemoryStore::sessions(self).keys().cloned().collect())
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        Ok(self.epoch.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn blocks(&self) -> bool {
        false
    }
}
