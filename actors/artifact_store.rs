//! The artifact store: whole outputs under their digests, for as long as somebody may ask for them.
//!
//! A reference is given out only when its bytes are durable. What a live session refers to is never removed; of the
//! rest the oldest goes when there are too many bytes, and all of it when it is too old. Bytes go to the blobs port
//! on the blocking pool, in constant memory; the actor decides and gives names.
//!
//! Holds: which blobs there are, who refers to them. Supervised by: the root, behind the journal. Restart:
//! permanent; the blobs are listed again, and the sessions, which come after it in the tree, begin anew with their
//! references. Mailbox bound: one message for each call that is being settled with a loss. Reports: nothing.

mod hashing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SpawnErr};
use thiserror::Error;
use tokio::sync::oneshot;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::blobs::{BlobError, BlobStat, Blobs, NewBlob, OpenBlob, open_checked};
use toolwarden_tools::effects::blocking::off_thread;
use toolwarden_tools::effects::clock::Clock;
use toolwarden_tools::ids::SessionId;

use self::hashing::{BESIDE_FROM_BYTES, Hashing};
use crate::millisecond::whole_ms;
use crate::slot::{NotRunning, Slot};

/// How much is kept, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactLimits {
    /// Most bytes of all artifacts together.
    pub bytes_max: u64,
    /// Most bytes of one.
    pub artifact_bytes_max: u64,
    /// How long one is kept that no live session refers to.
    pub age_max: Duration,
}

impl Default for ArtifactLimits {
    /// 4 GiB, 1 GiB and a week.
    fn default() -> Self {
        Self { bytes_max: 4 << 30, artifact_bytes_max: 1 << 30, age_max: Duration::from_secs(7 * 24 * 3600) }
    }
}

/// The decisions of the store, without I/O.
#[derive(Debug)]
pub struct ArtifactMachine {
    limits: ArtifactLimits,
    kept: BTreeMap<Digest, Kept>,
    by_age: BTreeSet<(u64, Digest)>,
    references: BTreeMap<SessionId, BTreeSet<Digest>>,
    bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    bytes: u64,
    stored_unix_ms: u64,
    /// How many sessions refer to it.
    sessions: usize,
}

/// How the store stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArtifactStatus {
    /// How many artifacts there are.
    pub artifacts: usize,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them a live session refers to.
    pub referenced: usize,
}

impl ArtifactMachine {
    /// A store with these blobs in it, to which nobody refers.
    pub fn new(limits: ArtifactLimits, blobs: Vec<BlobStat>) -> Self {
        let mut machine =
            Self { limits, kept: BTreeMap::new(), by_age: BTreeSet::new(), references: BTreeMap::new(), bytes: 0 };
        blobs.into_iter().for_each(|blob| machine.found(blob));
        machine
    }

    /// A blob is there that is not known.
    pub fn found(&mut self, blob: BlobStat) {
        let BlobStat { name, bytes, stored_unix_ms } = blob;
        if !self.kept.contains_key(&name) {
            self.bytes += bytes;
            self.by_age.insert((stored_unix_ms, name.clone()));
            self.kept.insert(name, Kept { bytes, stored_unix_ms, sessions: 0 });
        }
    }

    /// Whether an artifact counts as there.
    pub fn holds(&self, name: &Digest) -> bool {
        self.kept.contains_key(name)
    }

    /// A session refers to an artifact from now on; false when there is none.
    pub fn refer(&mut self, session: &SessionId, name: &Digest) -> bool {
        let Some(kept) = self.kept.get_mut(name) else { return false };
        if self.references.entry(session.clone()).or_default().insert(name.clone()) {
            kept.sessions += 1;
        }
        true
    }

    /// A session wants to store an artifact: what has to be removed before. It counts as there from now on.
    ///
    /// # Errors
    /// [`ArtifactError::TooLarge`] and [`ArtifactError::Full`]; nothing has changed then.
    pub fn admit(
        &mut self,
        now_unix_ms: u64,
        session: &SessionId,
        name: &Digest,
        bytes: u64,
    ) -> Result<Vec<BlobStat>, ArtifactError> {
        if bytes > self.limits.artifact_bytes_max {
            return Err(ArtifactError::TooLarge { bytes, bytes_max: self.limits.artifact_bytes_max });
        }
        // What is stored again is as new.
        let known = self.kept.get(name).map_or(0, |kept| kept.bytes);
        let needed = (self.bytes - known + bytes).saturating_sub(self.limits.bytes_max);
        let removed = self.oldest(needed, name)?;
        let removed: Vec<BlobStat> = removed.iter().filter_map(|name| self.forget(name)).collect();
        let sessions = self.forget_place(name);
        self.bytes += bytes;
        self.by_age.insert((now_unix_ms, name.clone()));
        self.kept.insert(name.clone(), Kept { bytes, stored_unix_ms: now_unix_ms, sessions });
        self.refer(session, name);
        Ok(removed)
    }

    /// The oldest to which nobody refers, with at least so many bytes together.
    fn oldest(&self, bytes: u64, but: &Digest) -> Result<Vec<Digest>, ArtifactError> {
        let (mut names, mut found) = (Vec::new(), 0);
        for (_, name) in &self.by_age {
            if found >= bytes {
                break;
            }
            if let Some(kept) = self.kept.get(name).filter(|kept| kept.sessions == 0 && name != but) {
                found += kept.bytes;
                names.push(name.clone());
            }
        }
        if found >= bytes { Ok(names) } else { Err(ArtifactError::Full { bytes_max: self.limits.bytes_max }) }
    }

    /// Takes one out; it is to be removed.
    fn forget(&mut self, name: &Digest) -> Option<BlobStat> {
        let kept = self.kept.remove(name)?;
        self.bytes -= kept.bytes;
        self.by_age.remove(&(kept.stored_unix_ms, name.clone()));
        Some(BlobStat { name: name.clone(), bytes: kept.bytes, stored_unix_ms: kept.stored_unix_ms })
    }

    /// Takes the place of one that is stored again; returns how many sessions refer to it.
    fn forget_place(&mut self, name: &Digest) -> usize {
        let sessions = self.kept.get(name).map_or(0, |kept| kept.sessions);
        self.forget(name);
        sessions
    }

    /// What was admitted is not there after all.
    pub fn withdraw(&mut self, name: &Digest) {
        self.forget(name);
        self.references.values_mut().for_each(|names| {
            names.remove(name);
        });
    }

    /// What is too old and not referred to; it is to be removed.
    pub fn expire(&mut self, now_unix_ms: u64) -> Vec<BlobStat> {
        let before = now_unix_ms.saturating_sub(whole_ms(self.limits.age_max));
        let old = self.by_age.iter().take_while(|(stored_unix_ms, _)| *stored_unix_ms < before);
        let is_free = |name: &Digest| self.kept.get(name).is_some_and(|kept| kept.sessions == 0);
        let old: Vec<Digest> = old.map(|(_, name)| name.clone()).filter(|name| is_free(name)).collect();
        old.iter().filter_map(|name| self.forget(name)).collect()
    }

    /// A session has ended and refers to nothing any more.
    pub fn release(&mut self, session: &SessionId) {
        for name in self.references.remove(session).unwrap_or_default() {
            if let Some(kept) = self.kept.get_mut(&name) {
                kept.sessions -= 1;
            }
        }
    }

    /// How things stand.
    pub fn status(&self) -> ArtifactStatus {
        let referenced = self.kept.values().filter(|kept| kept.sessions > 0).count();
        ArtifactStatus { artifacts: self.kept.len(), bytes: self.bytes, referenced }
    }

    /// Whether there is more than there may be: removing did not work.
    fn is_over(&self) -> bool {
        self.bytes > self.limits.bytes_max
    }
}

/// A way to store and read artifacts; follows a restarted store. Cheap to clone.
#[derive(Clone)]
pub struct ArtifactStore {
    slot: Slot<StoreMessage>,
    blobs: Arc<dyn Blobs>,
    limits: ArtifactLimits,
    /// Whether anything was ever stored: until then no session has anything to release.
    used: Arc<AtomicBool>,
}

impl ArtifactStore {
    /// A handle to a store that [`Self::start`] will put behind it.
    pub fn new(blobs: Arc<dyn Blobs>, limits: ArtifactLimits) -> Self {
        Self { slot: Slot::new(), blobs, limits, used: Arc::default() }
    }

    /// Starts the store under a supervisor.
    ///
    /// # Errors
    /// [`SpawnErr`] when the supervisor is stopping.
    pub async fn start(&self, supervisor: ActorCell, clock: Arc<dyn Clock>) -> Result<ActorCell, SpawnErr> {
        let start = (self.limits, Arc::clone(&self.blobs), clock);
        let (actor, _) = Actor::spawn_linked(None, StoreActor, start, supervisor).await?;
        let cell = actor.get_cell();
        self.slot.put(actor);
        Ok(cell)
    }

    /// Begins an artifact that is written piece by piece. Blocks for as long as the medium takes; what goes wrong
    /// is told when it is published.
    pub fn begin(&self) -> NewArtifact {
        let blob = self.blobs.begin().map_err(ArtifactError::from);
        NewArtifact { blob, hashing: Hashing::new(), bytes_max: self.limits.artifact_bytes_max }
    }

    /// Most bytes of one artifact.
    pub fn artifact_bytes_max(&self) -> u64 {
        self.limits.artifact_bytes_max
    }

    /// Stores bytes whose digest is known, unless they are there, and lets the session refer to them.
    ///
    /// # Errors
    /// [`ArtifactError`]; there is nothing to refer to then.
    pub async fn keep(&self, session: &SessionId, name: &Digest, bytes: String) -> Result<(), ArtifactError> {
        let (bytes_max, found) = (self.limits.artifact_bytes_max, bytes.len() as u64);
        if found > bytes_max {
            return Err(ArtifactError::TooLarge { bytes: found, bytes_max });
        }
        if self.find(session, name, Some(found)).await? {
            return Ok(());
        }
        let blobs = Arc::clone(&self.blobs);
        let written = blocking(move || {
            let mut blob = blobs.begin()?;
            blob.write(bytes.as_bytes())?;
            blob.sync()?;
            Ok(blob)
        });
        self.name(session, Written { name: name.clone(), bytes: found, blob: written.await? }).await
    }

    /// Gives an artifact its name and lets the session refer to it.
    ///
    /// # Errors
    /// [`ArtifactError`]; there is nothing to refer to then.
    pub async fn publish(&self, session: &SessionId, artifact: WrittenArtifact) -> Result<(), ArtifactError> {
        let WrittenArtifact { blob, name, bytes } = artifact;
        if matches!(blob, Whole::Failed(_)) || !self.find(session, &name, Some(bytes)).await? {
            let synced = off_thread(move || blob.synced()).await.map_err(|_lost| NotRunning)?;
            return self.name(session, Written { name, bytes, blob: synced? }).await;
        }
        // It is there already, and this copy goes.
        off_thread(move || drop(blob.synced())).await.map_err(|_lost| NotRunning.into())
    }

    async fn name(&self, session: &SessionId, written: Written) -> Result<(), ArtifactError> {
        self.used.store(true, Ordering::Relaxed);
        let session = session.clone();
        self.ask(|reply| StoreMessage::Publish { session, written, reply }).await?
    }

    /// Lets a session refer to an artifact that is there; false when there is none.
    ///
    /// # Errors
    /// [`ArtifactError::NotRunning`].
    pub async fn refer(&self, session: &SessionId, name: &Digest) -> Result<bool, ArtifactError> {
        self.find(session, name, None).await
    }

    async fn find(&self, session: &SessionId, name: &Digest, bytes: Option<u64>) -> Result<bool, ArtifactError> {
        self.used.store(true, Ordering::Relaxed);
        let (session, name) = (session.clone(), name.clone());
        self.ask(|reply| StoreMessage::Refer { session, name, bytes, reply }).await
    }

    /// A session has ended; what it alone referred to may go.
    pub fn release(&self, session: &SessionId) {
        if self.used.load(Ordering::Relaxed)
            && let Ok(actor) = self.slot.get()
        {
            // A store that is gone holds nothing for it.
            drop(actor.cast(StoreMessage::Release { session: session.clone() }));
        }
    }

    /// Opens an artifact, checked against its name, at its beginning.
    ///
    /// # Errors
    /// [`ArtifactError::Blob`] when it is missing or damaged.
    pub async fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, ArtifactError> {
        let (blobs, name) = (Arc::clone(&self.blobs), name.clone());
        blocking(move || open_checked(&*blobs, &name)).await
    }

    /// How the store stands.
    ///
    /// # Errors
    /// [`ArtifactError::NotRunning`].
    pub async fn status(&self) -> Result<ArtifactStatus, ArtifactError> {
        self.ask(|reply| StoreMessage::Status { reply }).await
    }

    async fn ask<T>(&self, message: impl FnOnce(oneshot::Sender<T>) -> StoreMessage) -> Result<T, ArtifactError> {
        let actor = self.slot.get()?;
        let (reply, answer) = oneshot::channel();
        actor.cast(message(reply)).map_err(|_| NotRunning)?;
        Ok(answer.await.map_err(|_| NotRunning)?)
    }
}

/// Does what takes its time where it holds nobody up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, ArtifactError> {
    match off_thread(work).await {
        Ok(done) => Ok(done?),
        Err(_lost) => Err(NotRunning.into()),
    }
}

/// An artifact on its way to the store; dropped, it is gone. Bytes are counted and hashed also when they cannot be
/// stored any more.
pub struct NewArtifact {
    blob: Result<Box<dyn NewBlob>, ArtifactError>,
    hashing: Hashing,
    bytes_max: u64,
}

impl NewArtifact {
    /// Adds bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.hashing.update(bytes);
        let Ok(blob) = &mut self.blob else { return };
        let all = self.hashing.bytes();
        let written = match all > self.bytes_max {
            true => Err(ArtifactError::TooLarge { bytes: all, bytes_max: self.bytes_max }),
            false => blob.write(bytes).map_err(ArtifactError::from),
        };
        if let Err(error) = written {
            // What was written by now goes.
            self.blob = Err(error);
        }
    }

    /// All of it is written.
    pub fn finish(self) -> WrittenArtifact {
        let bytes = self.hashing.bytes();
        let blob = match self.blob {
            Ok(blob) if bytes >= BESIDE_FROM_BYTES => Whole::syncing(blob),
            Ok(blob) => Whole::Written(blob),
            Err(error) => Whole::Failed(error),
        };
        match self.hashing.finish() {
            Some(name) => WrittenArtifact { blob, name, bytes },
            // Without a digest there is nothing to name it by.
            None => WrittenArtifact { blob: Whole::Failed(ArtifactError::NotRunning), name: Digest::of(b""), bytes },
        }
    }
}

/// All bytes of an artifact.
enum Whole {
    Written(Box<dyn NewBlob>),
    /// A long one is synced beside the end of its hash.
    Syncing(JoinHandle<Result<Box<dyn NewBlob>, BlobError>>),
    Failed(ArtifactError),
}

impl Whole {
    /// Goes on in a thread; or later, where the system gives none.
    fn syncing(blob: Box<dyn NewBlob>) -> Self {
        let shared = Arc::new(Mutex::new(Some(blob)));
        let its = Arc::clone(&shared);
        let take =
            |shared: &Mutex<Option<Box<dyn NewBlob>>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sync = move || match take(&its) {
            Some(mut blob) => blob.sync().map(|()| blob),
            None => Err(BlobError::InUse),
        };
        match Builder::new().name("artifact-sync".to_owned()).spawn(sync) {
            Ok(thread) => Self::Syncing(thread),
            Err(_) => take(&shared).map_or(Self::Failed(ArtifactError::NotRunning), Self::Written),
        }
    }

    /// The blob, durable. Blocks.
    fn synced(self) -> Result<Box<dyn NewBlob>, ArtifactError> {
        match self {
            Self::Written(mut blob) => Ok(blob.sync().map(|()| blob)?),
            Self::Syncing(thread) => Ok(thread.join().map_err(|_panic| ArtifactError::NotRunning)??),
            Self::Failed(error) => Err(error),
        }
    }
}

/// An artifact that is written and waits for its name; dropped, it is gone.
pub struct WrittenArtifact {
    blob: Whole,
    name: Digest,
    bytes: u64,
}

impl WrittenArtifact {
    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The digest of its bytes.
    pub fn digest(&self) -> &Digest {
        &self.name
    }
}

/// Bytes that are durable and have no name.
struct Written {
    name: Digest,
    bytes: u64,
    blob: Box<dyn NewBlob>,
}

/// Why there is no artifact.
#[derive(Debug, Error)]
pub enum ArtifactError {
    /// One is larger than any may be.
    #[error("it has more than {bytes_max} bytes ({bytes} by now); raise the limit of one artifact to keep it")]
    TooLarge {
        /// Its bytes.
        bytes: u64,
        /// The bound.
        bytes_max: u64,
    },
    /// Live sessions refer to all that could be removed.
    #[error("live sessions refer to all of the {bytes_max} bytes that may be kept; close some, or raise the limit")]
    Full {
        /// The bound.
        bytes_max: u64,
    },
    /// The medium.
    #[error(transparent)]
    Blob(#[from] BlobError),
    /// The store is not running.
    #[error("the artifact store is not running; the runtime is shutting down or restarting it")]
    NotRunning,
}

impl ArtifactError {
    /// A word for the kind, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::TooLarge { .. } => "too_large",
            Self::Full { .. } => "full",
            Self::Blob(error) => error.kind(),
            Self::NotRunning => "not_running",
        }
    }
}

impl From<NotRunning> for ArtifactError {
    fn from(_: NotRunning) -> Self {
        Self::NotRunning
    }
}

enum StoreMessage {
    Refer { session: SessionId, name: Digest, bytes: Option<u64>, reply: oneshot::Sender<bool> },
    Publish { session: SessionId, written: Written, reply: oneshot::Sender<Result<(), ArtifactError>> },
    Release { session: SessionId },
    Status { reply: oneshot::Sender<ArtifactStatus> },
}

struct StoreActor;

struct StoreState {
    machine: ArtifactMachine,
    blobs: Arc<dyn Blobs>,
    clock: Arc<dyn Clock>,
}

impl StoreState {
    async fn publish(&mut self, session: &SessionId, written: Written) -> Result<(), ArtifactError> {
        let now_unix_ms = self.clock.unix_ms();
        let expired = self.machine.expire(now_unix_ms);
        self.remove(expired).await;
        let Written { name, bytes, blob } = written;
        let was_held = self.machine.holds(&name);
        let removed = self.machine.admit(now_unix_ms, session, &name, bytes)?;
        self.remove(removed).await;
        // What was there before takes no room that it did not have, and others may refer to it.
        if self.machine.is_over() && !was_held {
            self.machine.withdraw(&name);
            return Err(BlobError::InUse.into());
        }
        let (own, blobs) = (name.clone(), Arc::clone(&self.blobs));
        let published = blocking(move || {
            // What was there before stays, whatever happened to this copy, unless it is known to have gone.
            let is_gone = |found: Result<_, BlobError>| match found {
                Ok(_) => false,
                Err(BlobError::Missing { .. }) => true,
                Err(_) => !was_held,
            };
            Ok(blob.publish(&own).map_err(|error| (error, is_gone(blobs.open(&own).map(drop)))))
        });
        match published.await? {
            Ok(_is_new) => Ok(()),
            Err((error, is_gone)) => {
                if is_gone {
                    self.machine.withdraw(&name);
                }
                Err(error.into())
            }
        }
    }

    /// Removes blobs; one that stays is counted again.
    async fn remove(&mut self, gone: Vec<BlobStat>) {
        for blob in gone {
            let (blobs, name) = (Arc::clone(&self.blobs), blob.name.clone());
            if let Err(error) = blocking(move || blobs.remove(&name)).await {
                tracing::debug!(%error, name = %blob.name, "an artifact stays longer than it has to");
                self.machine.found(blob);
            }
        }
    }

    /// A session may refer to what is really there, with as many bytes as it must have, where that is known.
    async fn refer(&mut self, session: &SessionId, name: &Digest, bytes: Option<u64>) -> bool {
        let (blobs, own) = (Arc::clone(&self.blobs), name.clone());
        match blocking(move || blobs.open(&own).map(|blob| blob.size_bytes())).await {
            Ok(found) if bytes.is_some_and(|bytes| bytes != found) => false,
            Ok(bytes) => {
                // Another process may have stored it.
                self.machine.found(BlobStat { name: name.clone(), bytes, stored_unix_ms: self.clock.unix_ms() });
                self.machine.refer(session, name)
            }
            Err(ArtifactError::Blob(BlobError::Missing { .. })) => {
                self.machine.withdraw(name);
                false
            }
            // It may well be there, and others refer to it.
            Err(_) => false,
        }
    }
}

impl Actor for StoreActor {
    type Msg = StoreMessage;
    type State = StoreState;
    type Arguments = (ArtifactLimits, Arc<dyn Blobs>, Arc<dyn Clock>);

    async fn pre_start(
        &self,
        _myself: ActorRef<StoreMessage>,
        (limits, blobs, clock): Self::Arguments,
    ) -> Result<StoreState, ActorProcessingErr> {
        let listed = {
            let blobs = Arc::clone(&blobs);
            blocking(move || blobs.list()).await
        };
        let listed = listed.unwrap_or_else(|error| {
            tracing::warn!(%error, "the artifacts that are there cannot be listed; they are not counted");
            Vec::new()
        });
        let mut state = StoreState { machine: ArtifactMachine::new(limits, listed), blobs, clock };
        let expired = state.machine.expire(state.clock.unix_ms());
        state.remove(expired).await;
        Ok(state)
    }

    async fn handle(
        &self,
        _myself: ActorRef<StoreMessage>,
        message: StoreMessage,
        state: &mut StoreState,
    ) -> Result<(), ActorProcessingErr> {
        // An asker that is gone has its session to release what was stored for it.
        match message {
            StoreMessage::Refer { session, name, bytes, reply } => {
                let _ = reply.send(state.refer(&session, &name, bytes).await);
            }
            StoreMessage::Publish { session, written, reply } => {
                let _ = reply.send(state.publish(&session, written).await);
            }
            StoreMessage::Release { session } => state.machine.release(&session),
            StoreMessage::Status { reply } => {
                let _ = reply.send(state.machine.status());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
