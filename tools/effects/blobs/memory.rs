//! Blobs in memory: for a runtime that was given no folder, and for tests. Gone with the process.

use std::collections::BTreeMap;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BlobError, BlobStat, Blobs, NewBlob, OpenBlob};
use crate::digest::Digest;
use crate::effects::clock::Clock;

/// Keeps blobs in memory, up to a bound.
#[derive(Clone)]
pub struct MemoryBlobs {
    kept: Arc<Mutex<Kept>>,
    clock: Arc<dyn Clock>,
    bytes_max: usize,
}

#[derive(Default)]
struct Kept {
    blobs: BTreeMap<Digest, (Arc<[u8]>, u64)>,
    /// Bytes of all blobs and of those that are written now.
    bytes: usize,
}

impl MemoryBlobs {
    /// Keeps at most this many bytes, those that are being written included.
    pub fn new(clock: Arc<dyn Clock>, bytes_max: usize) -> Self {
        Self { kept: Arc::default(), clock, bytes_max }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for MemoryBlobs {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "MemoryBlobs({} of {} bytes)", self.kept().bytes, self.bytes_max)
    }
}

impl Blobs for MemoryBlobs {
    fn begin(&self) -> Result<Box<dyn NewBlob>, BlobError> {
        Ok(Box::new(NewMemoryBlob { blobs: self.clone(), bytes: Vec::new() }))
    }

    fn open(&self, name: &Digest) -> Result<Box<dyn OpenBlob>, BlobError> {
        let kept = self.kept();
        let (bytes, _) = kept.blobs.get(name).ok_or_else(|| BlobError::Missing { name: name.to_string() })?;
        Ok(Box::new(OpenMemoryBlob(Cursor::new(Arc::clone(bytes)))))
    }

    fn remove(&self, name: &Digest) -> Result<(), BlobError> {
        let mut kept = self.kept();
        if let Some((bytes, _)) = kept.blobs.remove(name) {
            kept.bytes -= bytes.len();
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<BlobStat>, BlobError> {
        let kept = self.kept();
        let stat = |(name, (bytes, stored_unix_ms)): (&Digest, &(Arc<[u8]>, u64))| BlobStat {
            name: name.clone(),
            bytes: bytes.len() as u64,
            stored_unix_ms: *stored_unix_ms,
        };
        Ok(kept.blobs.iter().map(stat).collect())
    }
}

struct NewMemoryBlob {
    blobs: MemoryBlobs,
    bytes: Vec<u8>,
}

impl NewBlob for NewMemoryBlob {
    fn write(&mut self, bytes: &[u8]) -> Result<(), BlobError> {
        let mut kept = self.blobs.kept();
        if kept.bytes.saturating_add(bytes.len()) > self.blobs.bytes_max {
            return Err(BlobError::Full { reason: format!("{} bytes are kept in memory", self.blobs.bytes_max) });
        }
        kept.bytes += bytes.len();
        drop(kept);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), BlobError> {
        Ok(())
    }

    fn publish(mut self: Box<Self>, name: &Digest) -> Result<bool, BlobError> {
        let stored_unix_ms = self.blobs.clock.unix_ms();
        let mut kept = self.blobs.kept();
        if kept.blobs.contains_key(name) {
            return Ok(false);
        }
        let bytes = std::mem::take(&mut self.bytes);
        kept.blobs.insert(name.clone(), (bytes.into(), stored_unix_ms));
        Ok(true)
    }
}

impl Drop for NewMemoryBlob {
    fn drop(&mut self) {
        // What got its name is not counted here any more.
        self.blobs.kept().bytes -= self.bytes.len();
    }
}

struct OpenMemoryBlob(Cursor<Arc<[u8]>>);

impl Read for OpenMemoryBlob {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Seek for OpenMemoryBlob {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.0.seek(to)
    }
}

impl OpenBlob for OpenMemoryBlob {
    fn size_bytes(&self) -> u64 {
        self.0.get_ref().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{BlobError, Blobs as _, open_checked};
    use super::MemoryBlobs;
    use crate::digest::Digest;
    use crate::effects::clock::SystemClock;

    #[test]
    fn bytes_are_counted_whichever_way_a_blob_ends() {
        let blobs = MemoryBlobs::new(Arc::new(SystemClock::new()), 10);
        let name = Digest::of(b"12345678");
        let mut first = blobs.begin().unwrap();
        first.write(b"12345678").unwrap();
        let mut second = blobs.begin().unwrap();
        assert!(matches!(second.write(b"123"), Err(BlobError::Full { .. })));
        second.write(b"12").unwrap();
        drop(second);
        assert!(first.publish(&name).unwrap());
        assert_eq!(open_checked(&blobs, &name).unwrap().size_bytes(), 8);
        blobs.remove(&name).unwrap();
        assert!(matches!(blobs.open(&name), Err(BlobError::Missing { .. })));
        let mut third = blobs.begin().unwrap();
        third.write(b"1234567890").unwrap();
    }
}
