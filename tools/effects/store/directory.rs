//! The store in a folder: each session a folder with its log, its snapshot and its lock.
//!
//! ```text
//! format                   which version this is
//! epoch                    how many processes have numbered events here
//! lock                     held while a session is made, or what a dead process left is put right
//! sessions/ID/facts.log    records, one a fact; without those of long ago that a snapshot holds
//! sessions/ID/snapshot     the last generation, replaced by renaming
//! sessions/ID/lock         held by the one writer, and says who that is
//! sessions/ID/damaged-N-M  what was put aside from byte N on, the M-th time
//! commit/PID-N.log         facts of several sessions, synced once for all of them
//! ```
//!
//! A batch with one session's facts is written to its log and synced. A batch of many sessions is written to one commit
//! log, which is synced: one wait for all of them; their own logs are written later, several facts at once. A log that
//! lacks what the commit log of a dead process holds is filled up from it. What must stay true: a commit log goes only
//! after every log that it covers was synced, and a log is read only when it is written. A log that has become long
//! loses its front, which a snapshot holds: the rest is written aside and renamed, with the last fact that the snapshot
//! holds, so that it says where it begins.

mod commit_log;
pub mod medium;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::effects::store::directory::commit_log::CommitLog;
use crate::effects::store::directory::medium::{Disk, Medium};
use crate::effects::store::record::{HEADER_BYTES, Recovered, Scan, encode, scan};
use crate::effects::store::{
    Append, FACT_BYTES_MAX, LOG_BYTES_MAX, OnDamage, SNAPSHOT_BYTES_MAX, Store, StoreError, check_name,
};
use crate::ids::SessionId;

/// Which version of the layout this is.
const FORMAT: u32 = 1;
/// What the format file begins with.
const FORMAT_WORDS: &str = "toolwarden store ";
/// Most bytes of a lock that are read.
const HOLDER_BYTES_MAX: u64 = 200;
/// Most copies of damage at one place that are kept beside each other.
const ASIDE_MAX: u32 = 100;
/// Bytes that logs may lack, all together, before an append writes them.
const BEHIND_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// A commit log that is longer, in bytes, is begun anew once all logs are synced.
const COMMIT_LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Keeps sessions in a folder.
pub struct DirectoryStore {
    root: PathBuf,
    medium: Arc<dyn Medium>,
    durability: Durability,
    held: Mutex<BTreeMap<SessionId, Arc<Mutex<Held>>>>,
    commit: Mutex<Option<CommitLog>>,
    behind: Mutex<Behind>,
    /// Held for the length of an append, and of whatever takes the locks below in another order.
    appending: Mutex<()>,
}

/// The sessions whose logs lack what the commit log holds, each once.
#[derive(Default)]
struct Behind {
    sessions: Vec<Arc<Mutex<Held>>>,
    /// How much they lack, in bytes; what was written for a look is still counted.
    bytes: u64,
}

/// What an acknowledged fact survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of the machine too.
    Synced,
    /// The end of the process, not that of the machine.
    Buffered,
}

/// A session that is held for writing.
struct Held {
    folder: PathBuf,
    log: File,
    /// Length of the log, in bytes, with what is still to be written to it.
    bytes: u64,
    /// The end of the log, which is in the commit log and not yet here.
    unwritten: Vec<u8>,
    /// Whether the store knows that it is behind.
    is_behind: bool,
    /// The sequence that the next fact has; none in an empty log.
    next: Option<u64>,
    /// Whether something in the log is durable in the commit log alone.
    dirty: bool,
    broken: Option<String>,
    _lock: Lock,
}

/// A lock on an open file. It is given back by name: a command that this process starts at the same moment has its
/// descriptors too, for as long as it has not become another program, and closing alone would leave it the lock.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // The lock goes with the last descriptor at the latest.
        let _ = self.0.unlock();
    }
}

impl DirectoryStore {
    /// Opens the store in this folder; the folder is made when it is not there.
    ///
    /// # Errors
    /// [`StoreError::Newer`] and whatever the system says.
    pub fn at(root: &Path, durability: Durability) -> Result<Self, StoreError> {
        Self::with_medium(root, durability, Arc::new(Disk))
    }

    /// As [`Self::at`] with another way to the disk.
    ///
    /// # Errors
    /// As [`Self::at`].
    pub fn with_medium(root: &Path, durability: Durability, medium: Arc<dyn Medium>) -> Result<Self, StoreError> {
        let store = Self {
            root: root.to_owned(),
            medium,
            durability,
            held: Mutex::default(),
            commit: Mutex::default(),
            behind: Mutex::default(),
            appending: Mutex::default(),
        };
        for folder in [root.to_owned(), store.sessions_folder(), store.commit_folder()] {
            store.medium.create_folder(&folder).map_err(|error| fail("make", &folder, &error))?;
        }
        let format = root.join("format");
        match read_bounded(&format, HOLDER_BYTES_MAX)? {
            None => store.replace(&format, format!("{FORMAT_WORDS}{FORMAT}\n").as_bytes())?,
            Some(text) => {
                let text = String::from_utf8_lossy(&text);
                let version = text.trim().strip_prefix(FORMAT_WORDS).and_then(|number| number.parse().ok());
                match version {
                    Some(FORMAT) => {}
                    Some(version) => {
                        let what = format!("the store {}", root.display());
                        return Err(StoreError::Newer { what, version, known: FORMAT });
                    }
                    None => {
                        let error = io::Error::new(io::ErrorKind::InvalidData, "it is not a store's");
                        return Err(fail("take", &format, &error));
                    }
                }
            }
        }
        Ok(store)
    }

    fn sessions_folder(&self) -> PathBuf {
        self.root.join("sessions")
    }

    fn commit_folder(&self) -> PathBuf {
        self.root.join("commit")
    }

    fn folder(&self, session: &SessionId) -> PathBuf {
        self.sessions_folder().join(session.as_str())
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Mutex<Held>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holding(&self, session: &SessionId) -> Result<Arc<Mutex<Held>>, StoreError> {
        let held = self.held().get(session).cloned();
        held.ok_or_else(|| StoreError::NotHeld { session: session.clone() })
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        match self.durability {
            Durability::Synced => self.medium.sync(file),
            Durability::Buffered => Ok(()),
        }
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        match self.durability {
            Durability::Synced => self.medium.sync_folder(folder),
            Durability::Buffered => Ok(()),
        }
    }

    /// A whole new content for a file: the old one or the new one, whatever happens.
    fn replace(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let temp = path.with_extension("new");
        let file = self.medium.create_file(&temp).map_err(|error| fail("make", &temp, &error))?;
        let written = self.medium.write(&file, 0, bytes).and_then(|()| self.sync(&file));
        written.map_err(|error| fail("write", &temp, &error))?;
        self.medium.rename(&temp, path).map_err(|error| fail("replace", path, &error))?;
        let folder = path.parent().unwrap_or(&self.root);
        self.sync_folder(folder).map_err(|error| fail("sync", folder, &error))
    }

    /// Keeps other processes from making sessions and from putting things right meanwhile.
    fn alone(&self) -> Result<Lock, StoreError> {
        let path = self.root.join("lock");
        let file = open_file(&path).map_err(|error| fail("open", &path, &error))?;
        file.lock().map_err(|error| fail("lock", &path, &error))?;
        Ok(Lock(file))
    }

    /// Takes the lock of a session's folder.
    fn lock(&self, session: &SessionId, folder: &Path) -> Result<Lock, StoreError> {
        let path = folder.join("lock");
        let mut file = open_file(&path).map_err(|error| fail("open", &path, &error))?;
        match file.try_lock() {
            Ok(()) => {
                let words = format!("process {}\n", std::process::id());
                let written = file.set_len(0).and_then(|()| file.write_all(words.as_bytes()));
                let lock = Lock(file);
                written.map_err(|error| fail("write", &path, &error))?;
                Ok(lock)
            }
            Err(TryLockError::WouldBlock) => {
                let words = read_bounded(&path, HOLDER_BYTES_MAX)?.unwrap_or_default();
                let words = String::from_utf8_lossy(&words).trim().to_owned();
                let holder = if words.is_empty() { "another process".to_owned() } else { words };
                Err(StoreError::Held { session: session.clone(), holder })
            }
            Err(TryLockError::Error(error)) => Err(fail("lock", &path, &error)),
        }
    }

    /// Puts the end of a log right, as far as that may be done, and gives its length.
    fn mend(
        &self,
        session: &SessionId,
        folder: &Path,
        file: &File,
        found: &mut Scan,
        on: OnDamage,
    ) -> Result<u64, StoreError> {
        let path = folder.join("facts.log");
        let whole = u64::try_from(found.whole_bytes).unwrap_or(u64::MAX);
        if let Some(damage) = &mut found.damage {
            if on == OnDamage::Refuse {
                return Err(StoreError::Damaged {
                    session: session.clone(),
                    whole: found.log.last_sequence().unwrap_or(0),
                    offset: damage.offset,
                    bytes: damage.bytes,
                    reason: damage.reason,
                });
            }
            damage.quarantined_at = Some(self.put_aside(folder, found.whole_bytes)?);
        }
        if found.damage.is_some() || found.torn_bytes > 0 {
            let cut = self.medium.truncate(file, whole).and_then(|()| self.sync(file));
            cut.map_err(|error| fail("cut", &path, &error))?;
        }
        Ok(whole)
    }

    /// Keeps a copy of a log from this byte on, in a file of its own.
    fn put_aside(&self, folder: &Path, from: usize) -> Result<String, StoreError> {
        let bytes = read_bounded(&folder.join("facts.log"), LOG_BYTES_MAX)?.unwrap_or_default();
        let names = (1..=ASIDE_MAX).map(|number| folder.join(format!("damaged-{from}-{number}")));
        let free = names.into_iter().find(|path| !path.exists());
        let aside = free.unwrap_or_else(|| folder.join(format!("damaged-{from}-last")));
        self.replace(&aside, bytes.get(from..).unwrap_or_default())?;
        Ok(aside.display().to_string())
    }

    /// Fills up logs from the commit logs that dead processes left; by one process at a time.
    fn recover(&self) -> Result<(), StoreError> {
        if commit_log::left_by_the_dead(&self.commit_folder())?.is_empty() {
            return Ok(());
        }
        for dead in commit_log::left_by_the_dead(&self.commit_folder())? {
            let mut is_done = true;
            for (session, records) in dead.records()? {
                is_done &= self.fill_up(&session, &records)?;
            }
            if is_done {
                dead.remove(&*self.medium)?;
            }
        }
        self.sync_folder(&self.commit_folder()).map_err(|error| fail("sync", &self.commit_folder(), &error))
    }

    /// As [`Self::recover`], for somebody who only looks, and may be allowed no more than that.
    fn recover_before_a_look(&self) {
        let folder = self.commit_folder();
        if commit_log::is_any(&folder)
            && let Err(error) = self.alone().and_then(|_alone| self.recover())
        {
            tracing::warn!(%error, "what a dead process left cannot be looked at");
        }
    }

    /// Appends what a log lacks; false when its commit log is still needed.
    fn fill_up(&self, session: &SessionId, records: &[(u64, Vec<u8>)]) -> Result<bool, StoreError> {
        let folder = self.folder(session);
        let path = folder.join("facts.log");
        let Some(bytes) = read_bounded(&path, LOG_BYTES_MAX)? else { return Ok(true) };
        let _lock = match self.lock(session, &folder) {
            Ok(lock) => lock,
            // Whoever holds it may not have synced what it found; the next one looks again.
            Err(StoreError::Held { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut found = scan(bytes);
        if found.damage.is_some() {
            return Ok(false);
        }
        let file = open_file(&path).map_err(|error| fail("open", &path, &error))?;
        let whole = self.mend(session, &folder, &file, &mut found, OnDamage::Refuse)?;
        let mut last = found.log.last_sequence();
        let mut frames = Vec::new();
        for (sequence, payload) in records {
            if last.is_some_and(|last| *sequence > last + 1) {
                return Ok(false);
            }
            if last.is_none_or(|last| *sequence == last + 1) {
                encode(*sequence, payload, &mut frames);
                last = Some(*sequence);
            }
        }
        let written = self.medium.write(&file, whole, &frames).and_then(|()| self.sync(&file));
        written.map_err(|error| fail("write", &path, &error))?;
        Ok(true)
    }

    /// Takes one session's facts of a batch to the end of its log, where they are still to be written.
    fn take(held: &mut Held, session: &SessionId, facts: &[&Append]) -> Result<(), StoreError> {
        let path = || held.folder.join("facts.log");
        if let Some(message) = &held.broken {
            return Err(StoreError::Broken { session: session.clone(), message: message.clone() });
        }
        let mut frames = Vec::with_capacity(facts.iter().map(|fact| fact.payload.len() + HEADER_BYTES).sum());
        let mut next = held.next;
        for fact in facts {
            if fact.payload.len() > FACT_BYTES_MAX {
                return Err(too_large("a fact", fact.payload.len(), FACT_BYTES_MAX as u64));
            }
            if next.is_some_and(|next| next != fact.sequence) {
                let error =
                    io::Error::new(io::ErrorKind::InvalidInput, format!("fact {} is out of order", fact.sequence));
                return Err(fail("append to", &path(), &error));
            }
            encode(fact.sequence, &fact.payload, &mut frames);
            next = Some(fact.sequence + 1);
        }
        let length = u64::try_from(frames.len()).unwrap_or(u64::MAX);
        if held.bytes.saturating_add(length) > LOG_BYTES_MAX {
            return Err(too_large(&format!("the log {}", path().display()), frames.len(), LOG_BYTES_MAX));
        }
        match held.unwritten.is_empty() {
            true => held.unwritten = frames,
            false => held.unwritten.extend_from_slice(&frames),
        }
        held.bytes += length;
        held.next = next;
        Ok(())
    }

    /// Writes what a log lacks, without syncing.
    fn write(&self, held: &mut Held) -> Result<(), StoreError> {
        if held.unwritten.is_empty() {
            return Ok(());
        }
        let path = || held.folder.join("facts.log");
        if let Some(message) = &held.broken {
            return Err(fail("write", &path(), &io::Error::other(message.clone())));
        }
        let begin = held.bytes.saturating_sub(u64::try_from(held.unwritten.len()).unwrap_or(u64::MAX));
        if let Err(error) = self.medium.write(&held.log, begin, &held.unwritten) {
            // A part of it may be there; where even that cannot be cut, the next open finds a torn end.
            let _ = self.medium.truncate(&held.log, begin);
            held.broken = Some(error.to_string());
            return Err(fail("write", &path(), &error));
        }
        held.unwritten = Vec::new();
        Ok(())
    }

    fn sync_log(&self, held: &mut Held) -> Result<(), StoreError> {
        self.write(held)?;
        match self.sync(&held.log) {
            Ok(()) => {
                held.dirty = false;
                Ok(())
            }
            Err(error) => {
                // What a failed sync has lost is unknown, so nothing is built on it.
                held.broken = Some(error.to_string());
                Err(fail("sync", &held.folder.join("facts.log"), &error))
            }
        }
    }

    /// Makes a batch durable: one session's in its log, that of several with one sync.
    fn commit(
        &self,
        facts: &[&Append],
        sessions: &mut [(&Append, MutexGuard<'_, Held>)],
    ) -> Vec<(SessionId, StoreError)> {
        let is_shared = self.durability == Durability::Synced && sessions.len() > 1;
        if is_shared && self.commit_together(facts).is_ok() {
            sessions.iter_mut().for_each(|(_, held)| held.dirty = true);
            return Vec::new();
        }
        // Without a commit log, each for itself.
        let each = sessions.iter_mut().map(|(fact, held)| {
            // What is refused is not to be written later.
            let synced = self.sync_log(held).inspect_err(|_| held.unwritten.clear());
            (fact.session.clone(), synced)
        });
        each.filter_map(|(session, synced)| Some((session, synced.err()?))).collect()
    }

    fn commit_together(&self, facts: &[&Append]) -> Result<(), StoreError> {
        let mut commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        if commit.is_none() {
            *commit = Some(CommitLog::make(&self.commit_folder(), &*self.medium)?);
        }
        match &mut *commit {
            Some(log) => log.append(facts, &*self.medium),
            None => Ok(()),
        }
    }

    /// Remembers whose logs are to be written after an append.
    fn note_behind(&self, appended: Vec<(Vec<&Append>, Arc<Mutex<Held>>)>) {
        let mut behind = self.behind();
        for (facts, held) in appended {
            let mut state = held.lock().unwrap_or_else(PoisonError::into_inner);
            if state.unwritten.is_empty() {
                continue;
            }
            let lengths = facts.iter().map(|fact| u64::try_from(fact.payload.len() + HEADER_BYTES).unwrap_or(u64::MAX));
            behind.bytes = behind.bytes.saturating_add(lengths.sum());
            if !state.is_behind {
                state.is_behind = true;
                drop(state);
                behind.sessions.push(held);
            }
        }
    }

    /// Begins the commit log anew once it is long and every log is synced.
    fn shorten_commit_log(&self) {
        let mut commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(log) = &mut *commit else { return };
        if log.bytes() <= COMMIT_LOG_BYTES_MAX {
            return;
        }
        // Nothing is appended meanwhile.
        let all: Vec<Arc<Mutex<Held>>> = self.held().values().cloned().collect();
        for held in all {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.broken.is_some() || (held.dirty && self.sync_log(&mut held).is_err()) {
                return;
            }
        }
        if let Err(error) = log.empty(&*self.medium) {
            tracing::warn!(%error, "a commit log goes on growing");
        }
    }

    /// Puts a log that holds only these bytes in the place of the one that there is.
    fn shorten(&self, held: &mut Held, rest: &[u8]) -> Result<(), StoreError> {
        let path = held.folder.join("facts.log");
        let replaced = self.replace(&path, rest);
        // Whichever of the two it is now, it is whole, and what comes next belongs behind its end.
        let reopened = open_file(&path).and_then(|file| file.metadata().map(|found| (file, found.len())));
        match reopened {
            Ok((log, bytes)) => (held.log, held.bytes) = (log, bytes),
            Err(error) => {
                held.broken = Some(error.to_string());
                return Err(fail("open", &path, &error));
            }
        }
        replaced?;
        held.dirty = false;
        Ok(())
    }

    fn hold(
        &self,
        session: &SessionId,
        folder: PathBuf,
        lock: Lock,
        bytes: u64,
        next: Option<u64>,
    ) -> Result<(), StoreError> {
        let path = folder.join("facts.log");
        let log = open_file(&path).map_err(|error| fail("open", &path, &error))?;
        let (unwritten, is_behind, dirty, broken) = (Vec::new(), false, false, None);
        let held = Held { folder, log, bytes, unwritten, is_behind, next, dirty, broken, _lock: lock };
        self.held().insert(session.clone(), Arc::new(Mutex::new(held)));
        Ok(())
    }
}

impl Store for DirectoryStore {
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError> {
        check_name(session)?;
        let _alone = self.alone()?;
        let (folder, parent) = (self.folder(session), self.sessions_folder());
        if folder.exists() {
            return Err(StoreError::Exists { session: session.clone() });
        }
        // Made aside and renamed: a session is there whole or not at all. What a dead process left is taken over.
        let made = parent.join(format!(".new-{session}"));
        self.medium.create_folder(&made).map_err(|error| fail("make", &made, &error))?;
        let lock = self.lock(session, &made)?;
        let log = made.join("facts.log");
        let file = self.medium.create_file(&log).map_err(|error| fail("make", &log, &error))?;
        let mut frames = Vec::new();
        if let Some(fact) = first {
            encode(fact.sequence, &fact.payload, &mut frames);
        }
        let written = self.medium.write(&file, 0, &frames).and_then(|()| self.sync(&file));
        written.map_err(|error| fail("write", &log, &error))?;
        let generation = made.join("snapshot");
        match snapshot {
            Some(bytes) => self.replace(&generation, bytes)?,
            None if generation.exists() => {
                self.medium.remove(&generation).map_err(|error| fail("remove", &generation, &error))?;
            }
            None => {}
        }
        self.sync_folder(&made).map_err(|error| fail("sync", &made, &error))?;
        self.medium.rename(&made, &folder).map_err(|error| fail("make", &folder, &error))?;
        self.sync_folder(&parent).map_err(|error| fail("sync", &parent, &error))?;
        let bytes = u64::try_from(frames.len()).unwrap_or(u64::MAX);
        self.hold(session, folder, lock, bytes, first.map(|fact| fact.sequence + 1))
    }

    fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError> {
        check_name(session)?;
        let folder = self.folder(session);
        let path = folder.join("facts.log");
        if !folder.is_dir() {
            return Err(StoreError::Unknown { session: session.clone() });
        }
        // Not beside others: whoever puts a log right holds its lock for a moment.
        let alone = self.alone()?;
        self.recover()?;
        let lock = self.lock(session, &folder)?;
        drop(alone);
        let bytes = read_bounded(&path, LOG_BYTES_MAX)?.unwrap_or_default();
        let mut found = scan(bytes);
        let file = open_file(&path).map_err(|error| fail("open", &path, &error))?;
        let whole = self.mend(session, &folder, &file, &mut found, damage)?;
        let snapshot = read_bounded(&folder.join("snapshot"), SNAPSHOT_BYTES_MAX)?;
        let next = found.log.last_sequence().map(|last| last + 1);
        self.hold(session, folder, lock, whole, next)?;
        Ok(Recovered { snapshot, log: found.log, torn_bytes: found.torn_bytes, damage: found.damage })
    }

    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>> {
        if self.behind().bytes > BEHIND_BYTES_MAX {
            self.catch_up();
        }
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut by_session: BTreeMap<&SessionId, Vec<&Append>> = BTreeMap::new();
        for fact in batch {
            by_session.entry(&fact.session).or_default().push(fact);
        }
        let mut failed: BTreeMap<SessionId, StoreError> = BTreeMap::new();
        let mut holding: Vec<(Vec<&Append>, Arc<Mutex<Held>>)> = Vec::with_capacity(by_session.len());
        let all_held = self.held();
        for (session, facts) in by_session {
            match all_held.get(session) {
                Some(held) => holding.push((facts, Arc::clone(held))),
                None => {
                    failed.insert(session.clone(), StoreError::NotHeld { session: session.clone() });
                }
            }
        }
        drop(all_held);
        let mut written: Vec<(&Append, MutexGuard<'_, Held>)> = Vec::new();
        let mut to_commit: Vec<&Append> = Vec::new();
        for (facts, held) in &holding {
            let mut guard = held.lock().unwrap_or_else(PoisonError::into_inner);
            match Self::take(&mut guard, &facts[0].session, facts) {
                Ok(()) => {
                    written.push((facts[0], guard));
                    to_commit.extend(facts);
                }
                Err(error) => {
                    failed.insert(facts[0].session.clone(), error);
                }
            }
        }
        if !written.is_empty() {
            failed.extend(self.commit(&to_commit, &mut written));
        }
        drop(written);
        self.note_behind(holding);
        self.shorten_commit_log();
        let answer = |fact: &Append| failed.get(&fact.session).map_or(Ok(()), |error| Err(error.clone()));
        batch.iter().map(answer).collect()
    }

    fn is_behind(&self) -> bool {
        !self.behind().sessions.is_empty()
    }

    fn catch_up(&self) {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = std::mem::take(&mut *self.behind());
        for held in behind.sessions {
            let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
            held.is_behind = false;
            if let Err(error) = self.write(&mut held) {
                // The session's next fact is refused; what was acknowledged is in the commit log, which stays.
                tracing::warn!(folder = %held.folder.display(), %error, "a log cannot be written");
            }
        }
    }

    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > SNAPSHOT_BYTES_MAX {
            return Err(too_large("the snapshot", bytes.len(), SNAPSHOT_BYTES_MAX));
        }
        let held = self.holding(session)?;
        let held = held.lock().unwrap_or_else(PoisonError::into_inner);
        // It may hold a fact that is not in the log: a session whose snapshot goes beyond its log is not opened again.
        if let Some(message) = &held.broken {
            return Err(StoreError::Broken { session: session.clone(), message: message.clone() });
        }
        self.replace(&held.folder.join("snapshot"), bytes)
    }

    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError> {
        let held = self.holding(session)?;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        self.write(&mut held)?;
        let aside = self.put_aside(&held.folder, 0)?;
        let emptied = self.medium.truncate(&held.log, 0).and_then(|()| self.sync(&held.log));
        emptied.map_err(|error| fail("empty", &held.folder.join("facts.log"), &error))?;
        (held.bytes, held.next) = (0, None);
        Ok(aside)
    }

    fn compact(&self, session: &SessionId, through: u64, kept_bytes: u64) -> Result<u64, StoreError> {
        let held = self.holding(session)?;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(message) = &held.broken {
            return Err(StoreError::Broken { session: session.clone(), message: message.clone() });
        }
        if held.bytes <= kept_bytes {
            return Ok(0);
        }
        self.write(&mut held)?;
        let bytes = read_bounded(&held.folder.join("facts.log"), LOG_BYTES_MAX)?.unwrap_or_default();
        let (before, found) = (held.bytes, scan(bytes));
        // What is not whole is left for the next open, which says so.
        let is_whole = u64::try_from(found.whole_bytes) == Ok(before) && found.damage.is_none();
        let Some(rest) = found.log.bytes_from(through).filter(|_| is_whole) else { return Ok(0) };
        if u64::try_from(rest.len()) == Ok(before) {
            return Ok(0);
        }
        self.shorten(&mut held, rest)?;
        Ok(before.saturating_sub(held.bytes))
    }

    fn release(&self, session: &SessionId) {
        let _appending = self.appending.lock().unwrap_or_else(PoisonError::into_inner);
        let held = self.held().remove(session);
        let mut commit = self.commit.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held {
            let mut held_here = held.lock().unwrap_or_else(PoisonError::into_inner);
            if held_here.is_behind {
                self.behind().sessions.retain(|behind| !Arc::ptr_eq(behind, &held));
            }
            if held_here.dirty
                && let Err(error) = self.sync_log(&mut held_here)
            {
                tracing::warn!(%session, %error, "the log is whole in the commit log alone");
                // Left to whoever opens a session next, as that of a dead process.
                drop(commit.take());
            }
        }
        // Every log that the commit log covers was held by this store, and was synced when it was released.
        if self.held().is_empty()
            && let Some(log) = commit.take()
            && let Err(error) = log.remove(&*self.medium)
        {
            tracing::warn!(%error, "a commit log is left over");
        }
    }

    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError> {
        check_name(session)?;
        let folder = self.folder(session);
        match self.holding(session) {
            Ok(held) => self.write(&mut held.lock().unwrap_or_else(PoisonError::into_inner))?,
            Err(_) => self.recover_before_a_look(),
        }
        let Some(bytes) = read_bounded(&folder.join("facts.log"), LOG_BYTES_MAX)? else {
            return Err(StoreError::Unknown { session: session.clone() });
        };
        let found = scan(bytes);
        let snapshot = read_bounded(&folder.join("snapshot"), SNAPSHOT_BYTES_MAX)?;
        Ok(Recovered { snapshot, log: found.log, torn_bytes: found.torn_bytes, damage: found.damage })
    }

    #[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
    fn sessions(&self) -> Result<Vec<SessionId>, StoreError> {
        let folder = self.sessions_folder();
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(|error| fail("list", &folder, &error))? {
            let entry = entry.map_err(|error| fail("list", &folder, &error))?;
            let session = entry.file_name().to_str().map(SessionId::from);
            names.extend(session.filter(|session| check_name(session).is_ok()));
        }
        names.sort();
        Ok(names)
    }

    fn next_epoch(&self) -> Result<u64, StoreError> {
        let _alone = self.alone()?;
        let path = self.root.join("epoch");
        let text = read_bounded(&path, HOLDER_BYTES_MAX)?.unwrap_or_else(|| b"0".to_vec());
        let last: Option<u64> = String::from_utf8_lossy(&text).trim().parse().ok();
        let Some(last) = last else {
            let error = io::Error::new(io::ErrorKind::InvalidData, "it holds no number");
            return Err(fail("take", &path, &error));
        };
        self.replace(&path, format!("{}\n", last + 1).as_bytes())?;
        Ok(last + 1)
    }

    fn blocks(&self) -> bool {
        self.durability == Durability::Synced
    }
}

fn too_large(what: &str, bytes: usize, bytes_max: u64) -> StoreError {
    StoreError::TooLarge { what: what.to_owned(), bytes: u64::try_from(bytes).unwrap_or(u64::MAX), bytes_max }
}

fn fail(op: &'static str, path: &Path, error: &io::Error) -> StoreError {
    StoreError::Io { op, path: path.display().to_string(), kind: error.kind(), message: error.to_string() }
}

/// A file for reading and writing; made when it is not there.
#[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
fn open_file(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// What a file holds; none when it is not there.
#[expect(clippy::disallowed_methods, reason = "the real side of the store port")]
fn read_bounded(path: &Path, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail("read", path, &error)),
    };
    let length = file.metadata().map_err(|error| fail("read", path, &error))?.len();
    if length > bytes_max {
        return Err(StoreError::TooLarge { what: path.display().to_string(), bytes: length, bytes_max });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0).saturating_add(1));
    file.take(bytes_max).read_to_end(&mut bytes).map_err(|error| fail("read", path, &error))?;
    Ok(Some(bytes))
}
