//! What the tests of the built-in tools share: a context over a folder, and checked calls; files whose reads and
//! writes a test looks at, disturbs and refuses.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::cancellation::Cancellation;
use crate::context::{NoProgress, NoSpool, ToolContext};
use crate::effects::clock::SystemClock;
use crate::effects::files::together::{FileChange, TogetherError};
use crate::effects::files::{Expected, FileError, FileStat, Files, FolderEntry, Links, OpenFile, Replacement};
use crate::ids::{InvocationId, SessionId};
use crate::outcome::ToolOutcome;
use crate::schema::Schema;
use crate::tool::Tool;
use crate::workspace::local::LocalFiles;
use crate::workspace::seen::SeenFiles;
use crate::workspace::{Workspace, WorkspaceCapabilities, local};
use crate::workspace_path::WorkspacePath;

/// A context over a real folder, without the ways up.
pub(crate) fn context(root: &Path) -> ToolContext {
    context_over(local::open(root, WorkspaceCapabilities::local_default(), None).unwrap())
}

/// A context over any workspace, without the ways up.
pub(crate) fn context_over(workspace: Workspace) -> ToolContext {
    ToolContext {
        invocation: InvocationId::new("invocation-1"),
        session: SessionId::new("session-1"),
        workspace,
        seen: Arc::new(SeenFiles::default()),
        cancel: Cancellation::new(),
        clock: Arc::new(SystemClock::new()),
        progress: Arc::new(NoProgress),
        spool: Arc::new(NoSpool),
        web: None,
        invoke: None,
        generate: None,
        delegate: None,
        background: None,
    }
}

/// Calls a tool the way the route does: the arguments must fit its schema first.
pub(crate) async fn call(tool: &dyn Tool, ctx: &ToolContext, arguments: Value) -> ToolOutcome {
    Schema::compile(&tool.spec().parameters).unwrap().check(&arguments).unwrap();
    tool.call(ctx, arguments).await
}

/// What the schema of a tool says against these arguments.
pub(crate) fn faults(tool: &dyn Tool, arguments: &Value) -> String {
    Schema::compile(&tool.spec().parameters).unwrap().check(arguments).unwrap_err()
}

/// Real files, watched: how many bytes are read, and what happens before each read; and a disk that refuses.
pub(crate) struct WatchedFiles {
    files: LocalFiles,
    /// Bytes read so far.
    pub(crate) read_bytes: Arc<AtomicU64>,
    /// Called before each read, with the number of reads of that file so far.
    pub(crate) before_read: Arc<dyn Fn(u64) + Send + Sync>,
    /// What every write ends with, where one does.
    pub(crate) refusal: Option<io::ErrorKind>,
}

impl WatchedFiles {
    /// Watches the files of a folder, and does nothing else.
    pub(crate) fn of(root: &Path) -> Self {
        let files = LocalFiles::open(root).unwrap().0;
        Self { files, read_bytes: Arc::default(), before_read: Arc::new(|_| {}), refusal: None }
    }

    /// A context over them.
    pub(crate) fn context(self) -> ToolContext {
        context_over(Workspace::new("/ws", WorkspaceCapabilities::local_default(), Arc::new(self), None))
    }

    fn refused(&self, path: &WorkspacePath) -> Result<(), FileError> {
        match self.refusal {
            Some(kind) => Err(FileError::Io { op: "write", path: path.to_string(), source: kind.into() }),
            None => Ok(()),
        }
    }
}

impl Files for WatchedFiles {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        let file = self.files.open(path)?;
        let (read_bytes, before_read) = (Arc::clone(&self.read_bytes), Arc::clone(&self.before_read));
        Ok(Box::new(WatchedFile { file, reads: 0, read_bytes, before_read }))
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        self.refused(path)?;
        self.files.replace(path, replacement)
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.refused(path)?;
        self.files.remove(path, expected)
    }

    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        match changes.first().map(|first| self.refused(first.path())) {
            Some(Err(error)) => Err(TogetherError::before_anything(0, error)),
            _ => self.files.change_together(changes, go_on),
        }
    }
}

struct WatchedFile {
    file: Box<dyn OpenFile>,
    reads: u64,
    read_bytes: Arc<AtomicU64>,
    before_read: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Read for WatchedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.before_read)(self.reads);
        self.reads += 1;
        let bytes = self.file.read(buffer)?;
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

impl Seek for WatchedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl OpenFile for WatchedFile {
    fn stat(&self) -> &FileStat {
        self.file.stat()
    }

    fn canonical(&self) -> Option<&WorkspacePath> {
        self.file.canonical()
    }

    fn stat_now(&self) -> io::Result<FileStat> {
        self.file.stat_now()
    }
}
