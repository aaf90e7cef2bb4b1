//! An object that is read: one version of it, from the first byte to the last.
//!
//! Bytes come as a stream; a seek opens another one at the new place, asking for the same version. Whoever reads all of
//! it from the start leaves the version's digest behind, so that a change need not read it again.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use object_store::path::Path as Key;
use object_store::{Attributes, Error as StoreError, GetOptions, GetRange, GetResult, ObjectStore as _};

use super::{ObjectFiles, Version, stat_of_meta, strong};
use crate::digest::RunningDigest;
use crate::effects::files::{FileError, FileStat, OpenFile};
use crate::workspace_path::WorkspacePath;

/// Bytes read at a time to take a digest.
const BUFFER_BYTES: usize = 256 * 1024;

type Pieces = BoxStream<'static, Result<Bytes, StoreError>>;

/// An open object.
pub(super) struct OpenObject {
    files: ObjectFiles,
    path: WorkspacePath,
    key: Key,
    stat: FileStat,
    etag: Option<String>,
    attributes: Attributes,
    /// Where the next read begins.
    at: u64,
    /// What comes from `at` on; none when it must be asked for.
    pieces: Option<Pieces>,
    /// The rest of the last piece.
    piece: Bytes,
    /// The digest of everything before `at`, while nothing was left out.
    digest: Option<RunningDigest>,
}

impl OpenObject {
    pub(super) fn new(files: ObjectFiles, path: WorkspacePath, key: Key, found: GetResult) -> Self {
        Self {
            files,
            path,
            key,
            stat: stat_of_meta(&found.meta),
            etag: strong(found.meta.e_tag.clone()),
            attributes: found.attributes.clone(),
            at: 0,
            pieces: Some(found.into_stream()),
            piece: Bytes::new(),
            digest: Some(RunningDigest::default()),
        }
    }

    /// Reads what is left, and tells the version.
    pub(super) fn version(&mut self) -> Result<Version, FileError> {
        let shown = self.path.to_string();
        let failed = |source| FileError::Io { op: "read", path: shown.clone(), source };
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let Some(etag) = self.etag.clone() else {
            let reason = "the store gives no version of it, so a change by others would not be seen; it is not written";
            return Err(failed(io::Error::new(io::ErrorKind::Unsupported, reason)));
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut digest = RunningDigest::default();
        self.rewind().map_err(failed)?;
        loop {
            match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => digest.update(&buffer[..read]),
                Err(source) => return Err(failed(source)),
            }
        }
        Ok(Version { etag, digest: digest.finish(), attributes: self.attributes.clone() })
    }

    /// The version, when all of it was seen before.
    fn known(&self) -> Option<Version> {
        let etag = self.etag.as_ref()?;
        self.files.remembered(&self.path).filter(|version| version.etag == *etag)
    }

    /// The next piece; none at the end.
    fn next_piece(&mut self) -> io::Result<Option<Bytes>> {
        let asked = self.pieces.take();
        let (shared, key, etag, at) = (Arc::clone(&self.files.shared), self.key.clone(), self.etag.clone(), self.at);
        let next = async move {
            let mut pieces = match asked {
                Some(pieces) => pieces,
                None => {
                    let range = Some(GetRange::Offset(at));
                    let options = GetOptions { range, if_match: etag, ..GetOptions::default() };
                    shared.store.get_opts(&key, options).await?.into_stream()
                }
            };
            let piece = pieces.next().await.transpose()?;
            Ok((piece, pieces))
        };
        let (piece, pieces) = self.files.wait("read", &self.path, next).map_err(io::Error::other)?;
        self.pieces = Some(pieces);
        Ok(piece)
    }

    /// All of it was read: its digest is known.
    fn leave_digest(&mut self) {
        if let (Some(digest), Some(etag)) = (self.digest.take(), &self.etag) {
            let version = Version { etag: etag.clone(), digest: digest.finish(), attributes: self.attributes.clone() };
            self.files.remember(&self.path, version);
        }
    }
}

impl Read for OpenObject {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        while self.piece.is_empty() {
            if self.at >= self.stat.size_bytes {
                self.leave_digest();
                return Ok(0);
            }
            self.piece = self.next_piece()?.ok_or_else(|| {
                let reason = format!("it ended at {} of {} bytes", self.at, self.stat.size_bytes);
                io::Error::new(io::ErrorKind::UnexpectedEof, reason)
            })?;
        }
        let left = usize::try_from(self.stat.size_bytes.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let read = buffer.len().min(self.piece.len()).min(left);
        buffer[..read].copy_from_slice(&self.piece[..read]);
        self.piece.advance(read);
        self.at += read as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(&buffer[..read]);
        }
        if left == 0 {
            self.piece.clear();
        }
        Ok(read)
    }
}

impl Seek for OpenObject {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.stat.size_bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let at = at.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a place before the start"))?;
        if at != self.at {
            self.pieces = None;
            self.piece.clear();
            self.digest = (at == 0).then(RunningDigest::default);
            self.at = at;
        }
        Ok(at)
    }
}

impl OpenFile for OpenObject {
    fn stat(&self) -> &FileStat {
        &self.stat
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        Some(&self.path)
    }
}
