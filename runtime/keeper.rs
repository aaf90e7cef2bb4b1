//! A keeper keeps one session in its store: it holds the session's lock, saves its snapshots, and gives it free.
//!
//! What must stay true: a snapshot never knows of a fact that is not durable, a log is cut only up to what a durable
//! snapshot holds, and the lock goes with the keeper, however the session ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use toolwarden_actors::fact_log::{FactLog, FactLogError};
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::effects::store::{Append, OnDamage, Store, StoreError};
use toolwarden_tools::ids::SessionId;

use crate::fact_book::{FactBook, FactBookError, stored};
use crate::facts::state::State;
use crate::facts::{Fact, Settings};
use crate::resume::{Found, Recovery, ResumeError, fold};
use crate::snapshot::{encode, forked};

/// How many facts may follow a snapshot before the next one is saved between runs.
pub(crate) const FACTS_BETWEEN_SNAPSHOTS: u64 = 256;

/// Keeps one session.
pub(crate) struct Keeper {
    session: SessionId,
    log: FactLog,
    facts: Arc<FactBook>,
    log_from: u64,
    saved_at: AtomicU64,
}

/// A session's place in the store, from before it is known what is in it.
struct Hold {
    session: SessionId,
    store: Arc<dyn Store>,
    /// False once a keeper has taken over.
    is_ours: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_ours {
            self.store.release(&self.session);
        }
    }
}

/// A session that was opened again, before its settings are decided.
pub(crate) struct Reopened {
    hold: Hold,
    log: FactLog,
    found: Found,
}

impl Reopened {
    /// Holds a session and folds what is there.
    pub(crate) async fn open(log: &FactLog, session: &SessionId, damage: OnDamage) -> Result<Self, ResumeError> {
        let (log, session) = (log.clone(), session.clone());
        blocking(move || {
            let store = Arc::clone(log.store());
            let recovered = store.open(&session, damage)?;
            let hold = Hold { session: session.clone(), store, is_ours: true };
            let accepts = damage == OnDamage::Quarantine;
            let mut found = fold(&session, recovered, accepts)?;
            if found.log_is_short {
                let aside = hold.store.begin_anew(&session)?;
                tracing::warn!(%session, aside, "a log that ended before its snapshot was put aside");
            }
            settle(&mut found);
            Ok(Self { hold, log, found })
        })
        .await?
    }

    /// What the session was opened with.
    pub(crate) fn settings(&self) -> Result<&Settings, ResumeError> {
        let blank = || ResumeError::Blank { session: self.hold.session.clone() };
        self.found.state.settings.as_deref().ok_or_else(blank)
    }

    /// Goes on with these settings: what was interrupted is settled, as a fact.
    pub(crate) async fn go_on(
        mut self,
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<(Keeper, Recovery), ResumeError> {
        let Found { state, recovery, log_from, .. } = self.found;
        let changed = state.settings.as_deref() != Some(&settings);
        let interruption = state.interruption();
        let facts = FactBook::kept(self.hold.session.clone(), state, self.log.clone(), clock);
        self.hold.is_ours = false;
        let saved_at = AtomicU64::new(recovery.from_snapshot);
        let session = self.hold.session.clone();
        let keeper = Keeper { session, log: self.log, facts, log_from, saved_at };
        if let Some(fact) = interruption {
            keeper.facts.record(fact).await?;
        }
        if changed {
            keeper.facts.record(Fact::Opened(Box::new(settings))).await?;
        }
        Ok((keeper, recovery))
    }
}

/// Tells what was under way.
fn settle(found: &mut Found) {
    if let Some(Fact::Interruption { calls }) = found.state.interruption() {
        found.recovery.interrupted_calls = calls;
        found.recovery.interrupted_children = found.state.open_children();
    }
}

impl Keeper {
    /// Makes a session.
    pub(crate) async fn make(
        log: &FactLog,
        session: &SessionId,
        settings: Settings,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ResumeError> {
        let (store, name) = (Arc::clone(log.store()), session.clone());
        let opened = Fact::Opened(Box::new(settings));
        let payload = stored(&opened, &*clock)?;
        let mut state = State::default();
        state.apply(opened).map_err(FactBookError::from)?;
        // The settings are there as soon as the session is.
        let first = Append { session: session.clone(), sequence: 1, payload };
        blocking(move || store.create(&name, None, Some(&first))).await??;
        let facts = FactBook::kept(session.clone(), state, log.clone(), clock);
        Ok(Self { session: session.clone(), log: log.clone(), facts, log_from: 1, saved_at: AtomicU64::new(0) })
    }

    /// The session's facts.
    pub(crate) fn facts(&self) -> &Arc<FactBook> {
        &self.facts
    }

    /// Saves a snapshot of where the session stands.
    ///
    /// # Errors
    /// [`ResumeError`]; the last snapshot is still there.
    pub(crate) async fn save(&self) -> Result<(), ResumeError> {
        // What the state holds was appended before the mark.
        let state = self.facts.look(State::clone);
        self.log.mark().durable().await.map_err(FactBookError::from)?;
        // A fact that was refused meanwhile must not come back with a snapshot.
        self.facts.check()?;
        let (store, session, log_from, position) =
            (Arc::clone(self.log.store()), self.session.clone(), self.log_from, state.position);
        let kept_bytes = self.log.kept_bytes();
        blocking(move || {
            let bytes = encode(&session, &state, log_from);
            let bytes = bytes.map_err(|source| ResumeError::Snapshot { session: session.clone(), source })?;
            store.save_snapshot(&session, &bytes)?;
            // The snapshot is saved; a log that stays long is no reason to say that it is not.
            if let Err(error) = store.compact(&session, position, kept_bytes) {
                tracing::warn!(%session, %error, "a log was not shortened");
            }
            Ok::<(), ResumeError>(())
        })
        .await??;
        self.saved_at.fetch_max(position, Ordering::Relaxed);
        Ok(())
    }

    /// Whether so much has happened since the last snapshot that the next one is due.
    pub(crate) fn is_due(&self) -> bool {
        let position = self.facts.look(|state| state.position);
        position.saturating_sub(self.saved_at.load(Ordering::Relaxed)) >= FACTS_BETWEEN_SNAPSHOTS
    }

    /// Saves what is new and gives the session free; what cannot be saved is still in the log.
    pub(crate) async fn close(self) {
        let position = self.facts.look(|state| state.position);
        if position > self.saved_at.load(Ordering::Relaxed)
            && let Err(error) = self.save().await
        {
            tracing::warn!(session = %self.session, %error, "no snapshot was saved");
        }
        // Syncs a log that was left dirty, so not on this thread.
        drop(blocking(move || drop(self)).await);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.log.store().release(&self.session);
    }
}

/// Makes a new session out of one that is there, which may be open; gives where the new one stands.
pub(crate) async fn fork(log: &FactLog, from: &SessionId, to: &SessionId) -> Result<u64, ResumeError> {
    let (store, from, to) = (Arc::clone(log.store()), from.clone(), to.clone());
    blocking(move || {
        let found = store.look(&from)?;
        if let Some(damage) = &found.damage {
            return Err(ResumeError::Store(StoreError::Damaged {
                session: from.clone(),
                whole: found.log.last_sequence().unwrap_or(0),
                offset: damage.offset,
                bytes: damage.bytes,
                reason: damage.reason,
            }));
        }
        let state = fold(&from, found, false)?.state;
        if state.settings.is_none() {
            return Err(ResumeError::Blank { session: from.clone() });
        }
        let state = forked(state, &from).map_err(|source| ResumeError::Misplaced { session: from.clone(), source })?;
        let bytes = encode(&to, &state, state.position + 1);
        let bytes = bytes.map_err(|source| ResumeError::Snapshot { session: to.clone(), source })?;
        store.create(&to, Some(&bytes), None)?;
        store.release(&to);
        Ok(state.position)
    })
    .await?
}

/// Looks at a session without holding it.
pub(crate) async fn look(log: &FactLog, session: &SessionId) -> Result<Found, ResumeError> {
    let (store, session) = (Arc::clone(log.store()), session.clone());
    blocking(move || {
        let recovered = store.look(&session)?;
        let mut found = fold(&session, recovered, true)?;
        settle(&mut found);
        Ok(found)
    })
    .await?
}

/// The sessions of a store, sorted by name.
pub(crate) async fn list(log: &FactLog) -> Result<Vec<SessionId>, ResumeError> {
    let store = Arc::clone(log.store());
    Ok(blocking(move || store.sessions()).await??)
}

/// A number that no process before had from this store.
pub(crate) async fn epoch(log: &FactLog) -> Result<u64, ResumeError> {
    let store = Arc::clone(log.store());
    Ok(blocking(move || store.next_epoch()).await??)
}

/// Does what waits for a medium on the blocking pool.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, FactBookError> {
    off_thread(work).await.map_err(|_lost| FactBookError::Log(FactLogError::NotRunning))
}
