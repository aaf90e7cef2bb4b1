//! Files without measure: ten million matches, and one line of a gigabyte. Time and memory stay within bounds, and what was
//! not looked at is said.
//!
//! The files are made up while they are read, so they cost no disk, and each story has a process of its own, whose largest
//! resident size is looked at when it ends.

use std::io::{self, Read, Seek, SeekFrom};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwarden::embedding::Runtime;
use toolwarden::session::Session;
use toolwarden_tools::effects::files::{
    FileError, FileKind, FileStat, Files, FolderEntry, Links, OpenFile, Replacement,
};
use toolwarden_tools::workspace::{Workspace, WorkspaceCapabilities};
use toolwarden_tools::workspace_path::WorkspacePath;

/// The variable that names the story to a process that is to live it.
const STORY: &str = "TOOLWARDEN_TEST_STORY";
/// What a process has before it has read anything, and a little: a runtime, a session, threads. A debug build.
const OWN_BYTES_MAX: u64 = 64 << 20;
/// The longest line that is searched, and once more while its buffer grows.
const LINE_BYTES_MAX: u64 = 3 * (64 << 20);
/// How long a story may take on a busy machine. In a debug build the searcher is compiled without optimisation, and takes
/// some seconds for ten million matches; so does reading a gigabyte.
const PATIENCE: Duration = Duration::from_secs(120);

/// Repeats these bytes up to this size, then ends with others.
#[derive(Clone, Copy)]
struct Shape {
    body: &'static [u8],
    body_bytes: u64,
    tail: &'static [u8],
}

const MATCHES: Shape = Shape { body: b"a\n", body_bytes: 20_000_000, tail: b"" };
const LINE: Shape = Shape { body: b"some words and more, ", body_bytes: 1 << 30, tail: b"\nlast\n" };

impl Shape {
    fn size_bytes(&self) -> u64 {
        self.body_bytes + self.tail.len() as u64
    }

    fn stat(&self) -> FileStat {
        FileStat {
            kind: FileKind::File,
            size_bytes: self.size_bytes(),
            mode: 0o644,
            link_count: 1,
            modified_unix_ns: 1,
            identity: (7, 7),
        }
    }
}

/// A folder with one such file, `f`.
struct MadeUp(Shape);

impl Files for MadeUp {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        Ok(path.clone())
    }

    fn stat(&self, path: &WorkspacePath, _links: Links) -> Result<FileStat, FileError> {
        match path.to_string().as_str() {
            "." => Ok(FileStat { kind: FileKind::Folder, ..self.0.stat() }),
            "f" => Ok(self.0.stat()),
            other => Err(FileError::NotFound { path: other.to_owned() }),
        }
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        let stat = self.stat(path, Links::Follow)?;
        let pattern: Vec<u8> = self.0.body.iter().copied().cycle().take(self.0.body.len() * 4096).collect();
        Ok(Box::new(Reading { shape: self.0, pattern, stat, at: 0 }))
    }

    fn list(&self, _path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        Ok(vec![FolderEntry { path: WorkspacePath::parse("f", "").unwrap(), kind: FileKind::File }])
    }

    fn replace(&self, path: &WorkspacePath, _replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        Err(FileError::Unsupported { op: "replace", path: path.to_string() })
    }
}

struct Reading {
    shape: Shape,
    pattern: Vec<u8>,
    stat: FileStat,
    at: u64,
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let body_left = self.shape.body_bytes.saturating_sub(self.at);
        let source = if body_left > 0 {
            let phase = usize::try_from(self.at % self.shape.body.len() as u64).unwrap();
            let piece = &self.pattern[phase..];
            &piece[..piece.len().min(usize::try_from(body_left).unwrap_or(usize::MAX))]
        } else {
            let behind = usize::try_from(self.at - self.shape.body_bytes).unwrap();
            self.shape.tail.get(behind..).unwrap_or_default()
        };
        let count = source.len().min(buffer.len());
        buffer[..count].copy_from_slice(&source[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Reading {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let size = self.shape.size_bytes();
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(step) => size.checked_add_signed(step),
            SeekFrom::Current(step) => self.at.checked_add_signed(step),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl OpenFile for Reading {
    fn stat(&self) -> &FileStat {
        &self.stat
    }
}

/// The largest size that this process had in memory, in bytes.
fn resident_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

async fn call(session: &Session, tool: &str, arguments: Value) -> Arc<toolwarden::call_result::CallResult> {
    session.tool(tool, arguments).await.unwrap()
}

async fn ten_million_matches(session: &Session) {
    let grep = |mode: &'static str| json!({"mode": "grep", "query": "a", "output_mode": mode});
    let content = call(session, "search", grep("content")).await;
    assert_eq!(content.metadata["search"]["truncated"], true);
    assert!(content.output.len() < 100 * 1024 && content.output.contains("[cut at 96 KiB"));
    assert_eq!(content.metadata["matches"].as_array().unwrap().len(), 200);
    let files = call(session, "search", grep("files_with_matches")).await;
    assert_eq!(files.metadata["search"]["matching_files"], 1);
    let counted = call(session, "search", grep("count")).await;
    assert_eq!(counted.metadata["search"]["matching_lines"], 10_000_000, "{}", counted.output);
    let ranked = call(session, "search", json!({"mode": "bm25", "query": "a"})).await;
    assert!(ranked.is_success() && ranked.metadata["scan"]["oversized_files"] == 1, "{}", ranked.output);
    let deep = call(session, "read", json!({"file_path": "f", "offset": 9_999_999})).await;
    assert!(deep.output.contains("10000000\ta"), "{}", deep.output);
}

async fn a_line_of_a_gigabyte(session: &Session) {
    let first = call(session, "read", json!({"file_path": "f", "limit": 1})).await;
    assert!(first.is_success() && first.output.len() < 4096, "{}", first.output.len());
    assert!(first.output.contains("some words and more"), "{}", first.output);
    let searched = call(session, "search", json!({"mode": "grep", "query": "last"})).await;
    assert!(searched.is_success() && searched.metadata["left_out"]["long_line_files"] == 1, "{}", searched.output);
    assert!(searched.output.len() < 4096, "{}", searched.output.len());
    for (tool, arguments) in [
        ("edit", json!({"file_path": "f", "old_string": "last", "new_string": "x"})),
        ("patch", json!({"file_path": "f", "diff": "@@ -2 +2 @@\n-last\n+x\n"})),
        ("write", json!({"file_path": "f", "content": "x", "mode": "append", "expected_offset": LINE.size_bytes()})),
    ] {
        let refused = call(session, tool, arguments).await;
        let kind = serde_json::to_value(&refused.error_kind).unwrap();
        assert_eq!(kind["type"], "unsupported", "{tool}: {}", refused.output);
    }
}

/// Lives one story when this process was started for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn story() {
    let Ok(story) = std::env::var(STORY) else { return };
    let runtime = Runtime::builder().build().await.unwrap();
    let (shape, more_bytes_max) = match story.as_str() {
        "matches" => (MATCHES, 0),
        _ => (LINE, LINE_BYTES_MAX),
    };
    let workspace = Workspace::new("/made-up", WorkspaceCapabilities::local_default(), Arc::new(MadeUp(shape)), None);
    let session = runtime.session_over(workspace).open().await.unwrap();
    match story.as_str() {
        "matches" => ten_million_matches(&session).await,
        _ => a_line_of_a_gigabyte(&session).await,
    }
    session.close().await;
    runtime.shut_down().await;
    let resident = resident_bytes_max();
    println!("{story}: at most {} MiB", resident >> 20);
    assert!(resident <= OWN_BYTES_MAX + more_bytes_max, "{story}: {} MiB", resident >> 20);
}

/// Runs a story in a process of its own.
async fn live(story: &'static str) {
    let _turn = crate::TURN.lock().await;
    let ran = tokio::task::spawn_blocking(move || {
        let own = std::env::current_exe().unwrap();
        Command::new(own).args(["--exact", "bound::story", "--nocapture"]).env(STORY, story).output().unwrap()
    });
    let ran = tokio::time::timeout(PATIENCE, ran).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}\n{}", String::from_utf8_lossy(&ran.stderr));
    let told = said.lines().find(|line| line.starts_with(story));
    println!("{}", told.unwrap_or_else(|| panic!("the story was not lived: {said}")));
}

// Bad input: ten million matches.
#[tokio::test]
async fn ten_million_matches_take_bounded_memory() {
    live("matches").await;
}

// Bad input: one line of a gigabyte.
#[tokio::test]
async fn a_line_of_a_gigabyte_takes_bounded_memory() {
    live("line").await;
}
