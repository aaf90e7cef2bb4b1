//! A file that a call is about to change: found, guarded, compared with what the session saw, and put.
//!
//! Changes of one session to one path take turns. A file that is not what the session last saw is not changed, and
//! neither is one that changed between our look and the rename.

use std::fmt::Write as _;
use std::io::Read as _;
use std::sync::Arc;

use super::change::{PREVIEW_BYTES_MAX, middle_cut};
use super::reach::{self, Step, Stop, fault, wrong};
use crate::context::ToolContext;
use crate::digest::{Digest, RunningDigest};
use crate::effects::files::{Expected, FileError, FileStamp, Files, Links, Replacement};
use crate::outcome::{ToolErrorKind, ToolOutcome};
use crate::text::Encoding;
use crate::workspace::seen::{Seen, SeenFiles, Turn};
use crate::workspace_path::WorkspacePath;

/// Largest file that is changed or written, in bytes.
pub(crate) const CHANGED_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The most bytes that a byte-order mark has.
const MARK_BYTES_MAX: usize = 3;
/// Bytes hashed at a time.
const BUFFER_BYTES: usize = 256 * 1024;

/// The file of one call, and the turn to change it.
pub(crate) struct Target {
    op: &'static str,
    path: WorkspacePath,
    canonical: WorkspacePath,
    files: Arc<dyn Files>,
    seen: Arc<SeenFiles>,
    _turn: Arc<Turn>,
}

/// What the file holds now.
pub(crate) struct Content {
    /// Its bytes; none when there are more than [`CHANGED_BYTES_MAX`].
    pub(crate) bytes: Option<Vec<u8>>,
    /// Their digest.
    pub(crate) digest: Digest,
    /// Their number.
    pub(crate) size_bytes: u64,
    /// The stamp of the file when it was opened.
    pub(crate) stamp: FileStamp,
    /// The encoding that its byte-order mark says, when it begins with one.
    pub(crate) marked: Option<Encoding>,
}

impl Target {
    /// Finds the file and waits for the turn to change it.
    pub(crate) async fn take(ctx: &ToolContext, op: &'static str, text: &str) -> Step<Self> {
        let found = Self::find(ctx, text, ctx.workspace.allowance().git_folder)?;
        let turn = Self::turn(ctx, op, std::slice::from_ref(&found.1)).await?;
        Ok(Self::of(ctx, op, found, &turn))
    }

    /// Finds several files and waits for the turn to change all of them.
    pub(crate) async fn take_all(ctx: &ToolContext, op: &'static str, texts: &[String]) -> Step<Vec<Self>> {
        // What is put right after a crash never reaches into .git, so several files are not changed there together.
        let found: Vec<_> = texts.iter().map(|text| Self::find(ctx, text, false)).collect::<Step<_>>()?;
        let canonical: Vec<_> = found.iter().map(|(_, canonical)| canonical.clone()).collect();
        let turn = Self::turn(ctx, op, &canonical).await?;
        Ok(found.into_iter().map(|found| Self::of(ctx, op, found, &turn)).collect())
    }

    fn of(ctx: &ToolContext, op: &'static str, found: (WorkspacePath, WorkspacePath), turn: &Arc<Turn>) -> Self {
        let (path, canonical) = found;
        let files = Arc::clone(ctx.workspace.files());
        Self { op, path, canonical, files, seen: Arc::clone(&ctx.seen), _turn: Arc::clone(turn) }
    }

    /// The path that an argument names, and where it leads; refused where tools do not write.
    fn find(ctx: &ToolContext, text: &str, git_folder: bool) -> Step<(WorkspacePath, WorkspacePath)> {
        let path = reach::path(ctx, text)?;
        let files = ctx.workspace.files();
        let canonical = files.canonical(&path).map_err(|error| fault(&error))?;
        let in_git = || [&path, &canonical].iter().any(|path| path.names().any(|name| name == ".git"));
        if !git_folder && in_git() {
            let message = format!(
                "{path} lies in .git, which tools do not write unless the host allows it; use the git tool, or git in \
                 bash"
            );
            return Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)));
        }
        if canonical.is_root() {
            return Err(wrong(format!("{path} is the workspace itself; name a file in it")));
        }
        Ok((path, canonical))
    }

    async fn turn(ctx: &ToolContext, op: &'static str, canonical: &[WorkspacePath]) -> Step<Arc<Turn>> {
        tokio::select! {
            biased;
            reason = ctx.cancel.cancelled() => Err(reach::ended(op, &reason)),
            turn = ctx.seen.turn(canonical) => Ok(Arc::new(turn)),
        }
    }

    /// The path without links.
    pub(crate) fn canonical(&self) -> &WorkspacePath {
        &self.canonical
    }

    /// The files that it is one of.
    pub(crate) fn files(&self) -> &dyn Files {
        self.files.as_ref()
    }

    /// The path as it was asked for.
    pub(crate) fn path(&self) -> &WorkspacePath {
        &self.path
    }

    /// The size of the file now, in bytes; 0 when there is none. A hint where to do the work.
    pub(crate) fn size_hint_bytes(&self) -> u64 {
        self.files.stat(&self.canonical, Links::Follow).map_or(0, |stat| stat.size_bytes)
    }

    /// Refuses a file that is too large to be changed in part, before any of it is read.
    pub(crate) fn refuse_large(&self) -> Step<()> {
        let size_bytes = self.size_hint_bytes();
        if size_bytes <= CHANGED_BYTES_MAX {
            return Ok(());
        }
        let (op, path) = (self.op, &self.path);
        let message = format!("{path} has {size_bytes} bytes; {op} takes up to {CHANGED_BYTES_MAX}: use bash for it");
        Err(Box::new(ToolOutcome::error(ToolErrorKind::Unsupported { message: message.clone() }, message)))
    }

    /// What the file holds; none when there is no file.
    pub(crate) fn content(&self, stop: &Stop) -> Step<Option<Content>> {
        let mut file = match self.files.open(&self.canonical) {
            Ok(file) => file,
            Err(FileError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(fault(&error)),
        };
        let stamp = file.stat().stamp();
        let hint = usize::try_from(file.stat().size_bytes.min(CHANGED_BYTES_MAX)).unwrap_or(0);
        let mut kept = Some(Vec::with_capacity(hint));
        let mut buffer = vec![0; hint.clamp(4096, BUFFER_BYTES)];
        let mut digest = RunningDigest::default();
        let (mut size_bytes, mut start) = (0, Vec::with_capacity(MARK_BYTES_MAX));
        loop {
            self.check(stop)?;
            let read = match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => &buffer[..read],
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(fault(&FileError::Io { op: "read", path: self.path.to_string(), source }));
                }
            };
            digest.update(read);
            size_bytes += read.len() as u64;
            start.extend(read.iter().take(MARK_BYTES_MAX - start.len()));
            match &mut kept {
                Some(bytes) if size_bytes <= CHANGED_BYTES_MAX => bytes.extend_from_slice(read),
                _ => kept = None,
            }
        }
        let marked = Some(Encoding::detect(&start, false)).filter(|encoding| !encoding.mark().is_empty());
        Ok(Some(Content { bytes: kept, digest: digest.finish(), size_bytes, stamp, marked }))
    }

    /// Refuses when this session saw another content than the file has now, and shows the fresh one.
    pub(crate) fn check_seen(&self, now: &Content) -> Step<()> {
        let (expected, actual) = match self.seen.seen(&self.canonical) {
            Some(Seen::Digest(seen)) if seen != now.digest => (seen.to_string(), now.digest.to_string()),
            Some(Seen::Stamp(seen)) if seen != now.stamp => (shown(&seen), shown(&now.stamp)),
            _ => return Ok(()),
        };
        let path = self.path.to_string();
        let mut text = format!(
            "{path} changed since this session last read or wrote it (it was {expected}, it is {actual}); nothing \
             was written. Read it again, then decide.\n"
        );
        if let Some(fresh) = now.bytes.as_deref().and_then(|bytes| crate::text::DecodedText::from_bytes(bytes).ok()) {
            let _ = write!(text, "It holds now:\n{}\n", middle_cut(&fresh.text, PREVIEW_BYTES_MAX));
        }
        let kind = ToolErrorKind::VersionConflict { path, expected, actual: Some(actual) };
        Err(Box::new(ToolOutcome::error(kind, text)))
    }

    /// Replaces the file when it still is `now`, or makes it when there was none.
    pub(crate) fn put(&self, now: Option<&Content>, bytes: &[u8], stop: &Stop) -> Step<Digest> {
        self.check(stop)?;
        let expected = now.map_or(Expected::Absent, |now| Expected::Content(now.digest.clone()));
        let replacement = Replacement { bytes, expected, create_folders: true };
        self.files.replace(&self.canonical, &replacement).map_err(|error| fault(&error))?;
        let digest = Digest::of(bytes);
        self.record(digest.clone());
        Ok(digest)
    }

    /// Remembers that the session knows this content.
    pub(crate) fn record(&self, digest: Digest) {
        self.seen.record(self.canonical.clone(), digest);
    }

    fn check(&self, stop: &Stop) -> Step<()> {
        match stop.reason() {
            Some(reason) => Err(reach::ended(self.op, &reason)),
            None => Ok(()),
        }
    }
}

/// A stamp for a message.
fn shown(stamp: &FileStamp) -> String {
    let FileStamp { identity, size_bytes, modified_unix_ns } = stamp;
    format!("{size_bytes} bytes of inode {}, changed at {modified_unix_ns} ns", identity.1)
}
