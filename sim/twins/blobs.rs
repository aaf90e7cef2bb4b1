//! The twin of the blobs: whole outputs in memory, with what goes wrong where they are kept.
//!
//! Faults: a blob cannot be begun, written (no space left), synced or named; a process that crashed names none.

use std::io;
use std::sync::Arc;

use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::blobs::memory::MemoryBlobs;
use toolwarden_tools::effects::blobs::{BlobError, BlobStat, Blobs, NewBlob, OpenBlob};
use toolwarden_tools::effects::clock::Clock;

use crate::fate::Fate;
use crate::sight::Sight;

/// Most bytes of all blobs of a world.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// Keeps blobs.
pub struct PretendedBlobs {
    fate: Fate,
    disk: MemoryBlobs,
    faulty: bool,
}

impl PretendedBlobs {
    /// The blobs of this world; `faulty` ones fail.
    pub fn new(fate: Fate, clock: Arc<dyn Clock>, faulty: bool) -> Self {
        Self { fate, disk: MemoryBlobs::new(clock, BYTES_MAX), faulty }
    }
}

impl std::fmt::Debug for PretendedBlobs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Pretended{:?}", self.disk)
    }
}

fn fails(fate: &Fate, faulty: bool, op: &'static str) -> Result<(), BlobError> {
    match if faulty { fate.rare(2) } else { None } {
        None => Ok(()),
        Some(0) => {
            fate.met("no space for a blob");
            Err(BlobError::Full { reason: "the pretended disk is full".to_owned() })
        }
        Some(_) => {
            fate.met("a blob that cannot be kept");
            Err(BlobError::of_io(op, "the pretended disk", io::ErrorKind::Other.into()))
        }
    }
}

impl Blobs for PretendedBlobs {
    fn begin(&self) -> Result<Box<dyn NewBlob>, BlobError> {
        fails(&self.fate, self.faulty, "begin")?;
        let blob = self.disk.begin()?;
        Ok(Box::new(NewPretendedBlob { fate: self.fate.clone(), faulty: self.faulty, blob, bytes: Vec::new() }))
    }

    fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError> {
        self.disk.open(name)
    }

    fn remove(&self, name: &Digest) -> Result<(), BlobError> {
        self.disk.remove(name)
    }

    fn list(&self) -> Result<Vec<BlobStat>, BlobError> {
        self.disk.list()
    }
}

struct NewPretendedBlob {
    fate: Fate,
    faulty: bool,
    blob: Box<dyn NewBlob>,
    bytes: Vec<u8>,
}

impl NewBlob for NewPretendedBlob {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        fails(&self.fate, self.faulty, "write")?;
        self.bytes.extend_from_slice(bytes);
        self.blob.write(bytes)
    }

    fn sync(&mut self) -> Result<(), BlobError> {
        fails(&self.fate, self.faulty, "sync")?;
        self.blob.sync()
    }

    fn publish(self: Box<Self>, name: &Digest) -> Result<bool, BlobError> {
        fails(&self.fate, self.faulty, "name")?;
        if self.fate.is_dead() {
            return Err(BlobError::ReadOnly);
        }
        self.fate.see(&Sight::Kept { bytes: &self.bytes });
        self.blob.publish(name)
    }
}
