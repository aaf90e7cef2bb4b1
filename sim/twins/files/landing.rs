//! A pretended file that comes in pieces: it stands under a temporary name until it is put in its place.
//!
//! Faults: there is no room for it, a piece cannot be written or read back, it cannot be put in place, or the process
//! crashes at any of these; then its temporary stays behind, torn.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::effects::files::{Expected, FileError, FileStat, NewFile, Replacement};
use toolwarden_tools::workspace_path::WorkspacePath;

use super::PretendedFiles;

/// Most bytes of a file that comes in pieces.
const BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A file on its way.
pub(super) struct Landing {
    files: PretendedFiles,
    path: WorkspacePath,
    temporary: Vec<u8>,
    bytes: Mutex<Vec<u8>>,
}

impl Landing {
    /// Begins one; missing folders above it are made.
    pub(super) fn begin(files: &PretendedFiles, path: &WorkspacePath) -> Result<Self, FileError> {
        files.fails("begin", path)?;
        let wanted = Replacement { bytes: b"", expected: Expected::Any, create_folders: true };
        let mut disk = files.disk();
        disk.check(path, &wanted)?;
        let temporary = disk.begin_temporary(files.fate.now(), path, Arc::from(&b""[..]));
        drop(disk);
        Ok(Self { files: files.clone(), path: path.clone(), temporary, bytes: Mutex::default() })
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resize(&self, op: &'static str, to: u64) -> Result<usize, FileError> {
        match usize::try_from(to) {
            Ok(bytes) if to <= BYTES_MAX => Ok(bytes),
            _ => Err(PretendedFiles::io(op, &self.path, ErrorKind::StorageFull)),
        }
    }
}

impl NewFile for Landing {
    fn reserve(&self, bytes: u64) -> Result<(), FileError> {
        self.files.fails("make room for", &self.path)?;
        self.resize("make room for", bytes).map(drop)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), FileError> {
        self.files.fails("write", &self.path)?;
        let end = self.resize("write", at.saturating_add(bytes.len() as u64))?;
        let mut all = self.bytes();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[end - bytes.len()..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize, FileError> {
        self.files.reads("read back", &self.path)?;
        let all = self.bytes();
        let from = usize::try_from(at).map_or(all.len(), |at| at.min(all.len()));
        let count = buffer.len().min(all.len() - from);
        buffer[..count].copy_from_slice(&all[from..from + count]);
        Ok(count)
    }

    fn set_size(&self, bytes: u64) -> Result<(), FileError> {
        self.files.fails("set the size of", &self.path)?;
        let to = self.resize("set the size of", bytes)?;
        self.bytes().resize(to, 0);
        Ok(())
    }

    fn put(&self, expected: &Expected, goes_on: &dyn Fn() -> Result<(), CancelReason>) -> Result<FileStat, FileError> {
        let bytes: Arc<[u8]> = Arc::from(self.bytes().as_slice());
        let wanted = Replacement { bytes: b"", expected: expected.clone(), create_folders: false };
        let fault = self.files.put_fault(&self.path)?;
        let replaces = {
            let disk = self.files.disk();
            disk.check(&self.path, &wanted)?;
            disk.get(self.path.as_bytes()).is_some()
        };
        goes_on().map_err(|reason| FileError::Stopped { op: "write", path: self.path.to_string(), reason })?;
        self.files.rename(&self.temporary, &self.path, &bytes, fault, Some(replaces))
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        // What a crash left stays: nobody is there to take it away.
        if !self.files.fate.is_dead() {
            self.files.disk().remove(&self.temporary);
        }
    }
}
