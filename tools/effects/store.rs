//! The store port: keeps the facts and snapshots of sessions, for one writer a session.
//!
//! What [`Store::append`] has taken is there after a crash of the process, and of the machine as far as the store
//! promises it; what it had not taken is there whole or not at all. Damage is told and never mended in silence.
//! Calls block: an actor makes them on the blocking pool, and joins appends of many sessions into one batch.

pub mod directory;
pub mod memory;
pub mod record;

use std::io::ErrorKind;
use std::sync::Arc;

use thiserror::Error;

use crate::effects::store::record::Recovered;
use crate::ids::SessionId;

/// Longest fact, in bytes.
pub const FACT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest log of one session, in bytes.
pub const LOG_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Largest snapshot, in bytes.
pub const SNAPSHOT_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Longest name of a session that a store takes, in bytes.
pub const SESSION_NAME_BYTES_MAX: usize = 128;

/// Keeps sessions.
pub trait Store: Send + Sync {
    /// Makes a session and holds it for writing. The snapshot and the first fact that are given are there, durable,
    /// before the session can be seen; after a snapshot the log goes on with any sequence.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Name`] and whatever the medium says.
    fn create(&self, session: &SessionId, snapshot: Option<&[u8]>, first: Option<&Append>) -> Result<(), StoreError>;

    /// Holds a session for writing and gives what is there. A torn end is cut. A damaged log is refused, and left
    /// alone, unless `damage` says otherwise.
    ///
    /// # Errors
    /// [`StoreError::Held`], [`StoreError::Unknown`], [`StoreError::Damaged`] and whatever the medium says.
    fn open(&self, session: &SessionId, damage: OnDamage) -> Result<Recovered, StoreError>;

    /// Appends facts, each session's in order; all of them are durable when this returns. One answer a fact, and
    /// after a failure no more facts of its session are taken until it is opened again.
    fn append(&self, batch: &[Append]) -> Vec<Result<(), StoreError>>;

    /// Whether appends left something for after their answers; it is bounded, and nothing that was answered depends on it.
    /// Whatever stands before another store must pass this and [`Self::catch_up`] on.
    fn is_behind(&self) -> bool {
        false
    }

    /// Does what appends left; whoever appends calls it once a moment has passed.
    fn catch_up(&self) {}

    /// Replaces the session's snapshot as a whole; durable when this returns. Refused once a fact of the session could not
    /// be appended: nobody may know of that yet, and the snapshot may hold that fact.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`], [`StoreError::Broken`] and whatever the medium says; the old snapshot is then still there.
    fn save_snapshot(&self, session: &SessionId, bytes: &[u8]) -> Result<(), StoreError>;

    /// Puts the whole log aside and begins an empty one, which goes on with any sequence; gives where the old one is.
    /// For a log that ends before the session's snapshot does.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`] and whatever the medium says.
    fn begin_anew(&self, session: &SessionId) -> Result<String, StoreError>;

    /// Cuts the facts before `through` off the front of a log that is longer than `kept_bytes`, in one step: a reader
    /// finds the old log or the new one, also after a crash. What is cut must be in the session's snapshot. The fact
    /// `through` itself stays, so that the log still says where it stands. Gives how many bytes are gone; 0 where the
    /// log is short, holds no such fact, or is never cut. Whatever stands before another store must pass it on.
    ///
    /// # Errors
    /// [`StoreError::NotHeld`], [`StoreError::Broken`] and whatever the medium says; the log is whole then too.
    fn compact(&self, _session: &SessionId, _through: u64, _kept_bytes: u64) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Gives a session free for other writers.
    fn release(&self, session: &SessionId);

    /// What is there, without holding it: the log as far as it is whole.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] and whatever the medium says.
    fn look(&self, session: &SessionId) -> Result<Recovered, StoreError>;

    /// The sessions there are, sorted by name.
    ///
    /// # Errors
    /// Whatever the medium says.
    fn sessions(&self) -> Result<Vec<SessionId>, StoreError>;

    /// A number that this store never gave before, one more each time: what a process numbers begins with it, so that
    /// no number is given twice over all processes.
    ///
    /// # Errors
    /// Whatever the medium says.
    fn next_epoch(&self) -> Result<u64, StoreError>;

    /// Whether calls wait for a medium.
    fn blocks(&self) -> bool {
        true
    }
}

/// A fact to be appended.
#[derive(Debug, Clone)]
pub struct Append {
    /// Whose fact.
    pub session: SessionId,
    /// Its place in the session's log, counted from 1.
    pub sequence: u64,
    /// The fact; at most [`FACT_BYTES_MAX`].
    pub payload: Arc<[u8]>,
}

/// What to do about a damaged log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDamage {
    /// Leave it alone and refuse the session.
    Refuse,
    /// Put everything from the damage on aside, and go on with what stands before it.
    Quarantine,
}

/// Why a store did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Somebody else writes the session.
    #[error("session {session} is open in {holder}; close it there first")]
    Held {
        /// Which session.
        session: SessionId,
        /// Who, as it said itself.
        holder: String,
    },
    /// There is no such session.
    #[error("there is no session {session} in this store; `toolwarden sessions` lists what there is")]
    Unknown {
        /// Which session.
        session: SessionId,
    },
    /// There is one already.
    #[error("session {session} exists already; take another id")]
    Exists {
        /// Which session.
        session: SessionId,
    },
    /// The name cannot be kept.
    #[error(
        "a session named {session:?} cannot be kept: take letters, digits, '-', '_' and '.', at most \
         {SESSION_NAME_BYTES_MAX}, and no '.' in front"
    )]
    Name {
        /// The name.
        session: SessionId,
    },
    /// The log was changed or the medium lost a part of it.
    #[error(
        "the log of session {session} is damaged: {whole} facts are whole, and {bytes} bytes from byte {offset} on are \
         not ({reason}). Nothing was changed. Accept the damage to put those bytes aside and go on after fact {whole}"
    )]
    Damaged {
        /// Which session.
        session: SessionId,
        /// Whole facts before the damage.
        whole: u64,
        /// Where it begins.
        offset: u64,
        /// How much there is from there on.
        bytes: u64,
        /// What is wrong.
        reason: &'static str,
    },
    /// Something was written by a newer version.
    #[error("{what} has version {version}, and this program knows up to {known}; use a newer toolwarden")]
    Newer {
        /// What.
        what: String,
        /// Its version.
        version: u32,
        /// The newest that is known here.
        known: u32,
    },
    /// Something is larger than a store takes.
    #[error("{what} has {bytes} bytes; at most {bytes_max} are taken")]
    TooLarge {
        /// What.
        what: String,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        bytes_max: u64,
    },
    /// Writing failed before; what came after is not taken, so that the log has no gap.
    #[error("session {session} takes no more facts since writing failed ({message}); mend that and resume it")]
    Broken {
        /// Which session.
        session: SessionId,
        /// What failed then.
        message: String,
    },
    /// The session is not held by whoever writes it.
    #[error("session {session} is not open for writing here; open or resume it first")]
    NotHeld {
        /// Which session.
        session: SessionId,
    },
    /// The medium said no.
    #[error("cannot {op} {path}: {message}{}", advice(*.kind))]
    Io {
        /// What was tried.
        op: &'static str,
        /// Where.
        path: String,
        /// The system's own word for it.
        kind: ErrorKind,
        /// The system's own words.
        message: String,
    },
}

fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room and resume the session",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => "; name a store that can be written",
        _ => "",
    }
}

/// Whether a session of this name can be kept: it is the name of a folder as well.
pub(crate) fn check_name(session: &SessionId) -> Result<(), StoreError> {
    let name = session.as_str();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match !name.is_empty() && name.len() <= SESSION_NAME_BYTES_MAX && !name.starts_with('.') && name.bytes().all(fits) {
        true => Ok(()),
        false => Err(StoreError::Name { session: session.clone() }),
    }
}

#[cfg(test)]
mod tests;
