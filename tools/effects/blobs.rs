//! The blobs port: byte strings kept under their digests, written once, and either there as a whole or not at all.
//!
//! A blob is written beside the others, made durable, and only then gets its name; so whoever knows a name finds
//! all of the bytes, also after a crash. The port believes the names that it is told: who writes takes the digest.
//! Calls block; long ones belong on the blocking pool.

pub mod folder;
pub mod memory;

use std::fmt;
use std::io::{Read, Seek};

use thiserror::Error;

use crate::digest::{Digest, RunningDigest};

/// Keeps blobs.
pub trait Blobs: fmt::Debug + Send + Sync {
    /// Begins a new blob, which has no name yet. Dropped without one, it is gone.
    ///
    /// # Errors
    /// [`BlobError`].
    fn begin(&self) -> Result<Box<dyn NewBlob>, BlobError>;

    /// Opens a blob for reading. It can be read to its end even when it is removed meanwhile.
    ///
    /// # Errors
    /// [`BlobError::Missing`].
    fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError>;

    /// Removes a blob; one that is not there is removed already.
    ///
    /// # Errors
    /// [`BlobError::InUse`] when another process keeps blobs in the same place and may count on this one.
    fn remove(&self, name: &Digest) -> Result<(), BlobError>;

    /// All blobs, in the order of their names.
    ///
    /// # Errors
    /// [`BlobError`].
    fn list(&self) -> Result<Vec<BlobStat>, BlobError>;
}

/// A blob while it is written.
pub trait NewBlob: Send {
    /// Adds bytes.
    ///
    /// # Errors
    /// [`BlobError::Full`] when there is no room; the blob cannot be kept then.
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// [`BlobError`].
    fn sync(&mut self) -> Result<(), BlobError>;

    /// Gives it its name, durably. True when it is new; false when the same bytes were kept already.
    ///
    /// # Errors
    /// [`BlobError`]; it has no name then.
    fn publish(self: Box<Self>, name: &Digest) -> Result<bool, BlobError>;
}

/// A blob that is read.
pub trait OpenBlob: Read + Seek + Send {
    /// How many bytes it has.
    fn size_bytes(&self) -> u64;
}

/// What is known of a blob without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobStat {
    /// Its name.
    pub name: Digest,
    /// How many bytes it has.
    pub bytes: u64,
    /// When it was written, in milliseconds since 1970.
    pub stored_unix_ms: u64,
}

/// How much of a blob is hashed at a time, in bytes.
const CHECK_BUFFER_BYTES: usize = 256 * 1024;

/// Opens a blob, checks that its bytes are those of its name, and stands at its beginning. Reads it once, in
/// constant memory.
///
/// # Errors
/// [`BlobError::Damaged`] when they are not.
pub fn open_checked(blobs: &dyn Blobs, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError> {
    let failed = |source| BlobError::of_io("read", name.as_str(), source);
    let mut blob = blobs.open(name)?;
    let mut digest = RunningDigest::default();
    let mut buffer = vec![0; CHECK_BUFFER_BYTES];
    loop {
        match blob.read(&mut buffer).map_err(failed)? {
            0 => break,
            count => digest.update(&buffer[..count]),
        }
    }
    let found = digest.finish();
    if found != *name {
        return Err(BlobError::Damaged { name: name.to_string(), found: found.to_string() });
    }
    blob.rewind().map_err(failed)?;
    Ok(blob)
}

/// Why a blob cannot be kept or read.
#[derive(Debug, Error)]
pub enum BlobError {
    /// There is no room.
    #[error("no room is left to keep it ({reason}); free some space, or give another folder")]
    Full {
        /// What is full.
        reason: String,
    },
    /// There is no such blob.
    #[error("{name} is not kept here: it was never stored, or its time was up")]
    Missing {
        /// Its name.
        name: String,
    },
    /// Its bytes are others than those that were written.
    #[error("{name} is damaged: its bytes have the digest {found}; remove the file, for it is no use any more")]
    Damaged {
        /// Its name.
        name: String,
        /// The digest of what is there.
        found: String,
    },
    /// Another process may need it.
    #[error("another process keeps artifacts in the same folder, so nothing is removed from it now")]
    InUse,
    /// Nothing can be written here.
    #[error("this store was opened for reading alone")]
    ReadOnly,
    /// The operating system said no.
    #[error("{op} {place}: {source}")]
    Io {
        /// What was tried.
        op: &'static str,
        /// Where.
        place: String,
        /// The system's own words.
        source: std::io::Error,
    },
}

impl BlobError {
    /// What the system's words mean here.
    pub fn of_io(op: &'static str, place: &str, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full { reason: format!("{op} {place}: {source}") },
            _ => Self::Io { op, place: place.to_owned(), source },
        }
    }

    /// A word for the kind, for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Full { .. } => "full",
            Self::Missing { .. } => "missing",
            Self::Damaged { .. } => "damaged",
            Self::InUse => "in_use",
            Self::ReadOnly => "read_only",
            Self::Io { .. } => "io",
        }
    }
}
