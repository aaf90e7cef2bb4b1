//! Planted faults of changing files: conflicts that are not heard of, half changes, leftovers, wrong orders.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolwarden_tools::builtin::{batch, edit, write};
use toolwarden_tools::cancellation::CancelReason;
use toolwarden_tools::context::ToolContext;
use toolwarden_tools::digest::Digest;
use toolwarden_tools::effects::files::together::{FileChange, TogetherError};
use toolwarden_tools::effects::files::{
    Expected, FileError, FileStat, Files, FolderEntry, Links, LogFile, NewFile, OpenFile, Replacement,
};
use toolwarden_tools::outcome::ToolOutcome;
use toolwarden_tools::tool::{Tool, ToolFuture};
use toolwarden_tools::workspace_path::WorkspacePath;

use super::broken::{Fault, broken};
use super::{Planted, Wrap};
use crate::twins::files::PretendedFiles;

/// All of them.
pub(super) const DISK: [Planted; 11] = [
    files(
        "conflict-unheard",
        "a change ignores what must be there",
        Slip::IgnoresConflicts,
        "world-edits",
        "marks",
        60,
    ),
    files(
        "half-a-patch",
        "of several changes the first is made, and then none",
        Slip::StopsHalf,
        "world-patches",
        "marks",
        60,
    ),
    files(
        "not-taken-back",
        "what was changed stays when a later change fails",
        Slip::KeepsHalf,
        "world-patches",
        "marks",
        200,
    ),
    files(
        "failure-believed",
        "a change that failed is taken for one that did not happen",
        Slip::BelievesFailures,
        "world-plain-patches",
        "marks",
        200,
    ),
    files("not-synced", "a change is told before it is synced", Slip::Unsynced, "world-edits", "marks", 200),
    files(
        "temporary-left",
        "a temporary stays when a change fails",
        Slip::LeavesTemporary,
        "world-downloads",
        "files",
        60,
    ),
    files(
        "clobbered",
        "a new file takes the place of another one",
        Slip::Clobbers,
        "world-downloads",
        "downloads",
        200,
    ),
    files(
        "step-forgotten",
        "what a workflow has completed is not found again",
        Slip::ForgetsSteps,
        "world-workflow",
        "workflow",
        5,
    ),
    tool(
        "batch-in-reverse",
        "a batch begins with its last call",
        "batch",
        || broken(Arc::new(batch::BatchTool::new()), Bend::Reversed),
        "world-edits",
        20,
    ),
    tool(
        "done-twice",
        "an edit is done again after it was done",
        "edit",
        || broken(edit::tool(), Bend::Twice),
        "world-edits",
        20,
    ),
    tool(
        "failure-untold",
        "a write that failed says that it is done",
        "write",
        || broken(write::tool(), Bend::Boasts),
        "world-edits",
        60,
    ),
];

const fn files(
    name: &'static str,
    about: &'static str,
    slip: Slip,
    scenario: &'static str,
    watcher: &'static str,
    seeds_max: u64,
) -> Planted {
    let wrap: fn(PretendedFiles) -> Arc<dyn Files> = match slip {
        Slip::IgnoresConflicts => |files| Slipping::over(files, Slip::IgnoresConflicts),
        Slip::StopsHalf => |files| Slipping::over(files, Slip::StopsHalf),
        Slip::KeepsHalf => |files| Slipping::over(files, Slip::KeepsHalf),
        Slip::BelievesFailures => |files| Slipping::over(files, Slip::BelievesFailures),
        Slip::Unsynced => |files| Slipping::over(files, Slip::Unsynced),
        Slip::LeavesTemporary => |files| Slipping::over(files, Slip::LeavesTemporary),
        Slip::Clobbers => |files| Slipping::over(files, Slip::Clobbers),
        Slip::ForgetsSteps => |files| Slipping::over(files, Slip::ForgetsSteps),
    };
    Planted { name, about, scenario, watcher, seeds_max, wrap: Wrap::Files(wrap) }
}

const fn tool(
    name: &'static str,
    about: &'static str,
    of: &'static str,
    make: fn() -> Arc<dyn Tool>,
    scenario: &'static str,
    seeds_max: u64,
) -> Planted {
    Planted { name, about, scenario, watcher: "marks", seeds_max, wrap: Wrap::Tool { of, make } }
}

/// How files are broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slip {
    IgnoresConflicts,
    StopsHalf,
    KeepsHalf,
    BelievesFailures,
    Unsynced,
    LeavesTemporary,
    Clobbers,
    ForgetsSteps,
}

/// Files that are broken in one way.
struct Slipping {
    files: PretendedFiles,
    slip: Slip,
}

impl Slipping {
    fn over(files: PretendedFiles, slip: Slip) -> Arc<dyn Files> {
        Arc::new(Self { files, slip })
    }

    /// Makes the changes one by one, and leaves those that were made when one fails.
    fn some(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        for (index, change) in changes.iter().enumerate() {
            let fails = |error: TogetherError| TogetherError { index: Some(index), ..error };
            self.files.change_together(std::slice::from_ref(change), go_on).map_err(fails)?;
        }
        Ok(())
    }

    /// Makes new contents one by one, and takes back those before one that fails, whatever became of that one itself.
    fn believing(&self, changes: &[FileChange<'_>]) -> Result<(), TogetherError> {
        let mut made: Vec<(&WorkspacePath, Option<Vec<u8>>, Digest)> = Vec::new();
        let put = |path: &WorkspacePath, bytes: &[u8], expected: Expected| {
            self.files.replace(path, &Replacement { bytes, expected, create_folders: true }).map(|_| ())
        };
        for (index, change) in changes.iter().enumerate() {
            let FileChange::Put { path, bytes, expected, .. } = change else { continue };
            let mut before = Vec::new();
            let was_there = self.files.open(path).is_ok_and(|mut file| file.read_to_end(&mut before).is_ok());
            if let Err(error) = put(path, bytes, expected.clone()) {
                for (path, before, after) in made.into_iter().rev() {
                    let expected = Expected::Content(after);
                    let _ = match before {
                        Some(before) => put(path, &before, expected),
                        None => self.files.remove(path, &expected),
                    };
                }
                return Err(TogetherError::before_anything(index, error));
            }
            made.push((path, was_there.then_some(before), Digest::of(bytes)));
        }
        Ok(())
    }
}

impl Files for Slipping {
    fn canonical(&self, path: &WorkspacePath) -> Result<WorkspacePath, FileError> {
        self.files.canonical(path)
    }

    fn stat(&self, path: &WorkspacePath, links: Links) -> Result<FileStat, FileError> {
        self.files.stat(path, links)
    }

    fn open(&self, path: &WorkspacePath) -> Result<Box<dyn OpenFile>, FileError> {
        self.files.open(path)
    }

    fn folder_on_disk(&self) -> Option<&Path> {
        None
    }

    fn list(&self, path: &WorkspacePath) -> Result<Vec<FolderEntry>, FileError> {
        self.files.list(path)
    }

    fn open_log(&self, path: &WorkspacePath) -> Result<Box<dyn LogFile>, FileError> {
        let log = self.files.open_log(path)?;
        Ok(if self.slip == Slip::ForgetsSteps { Box::new(Forgetful { log }) } else { log })
    }

    fn takes_pieces(&self) -> bool {
        true
    }

    fn begin(&self, path: &WorkspacePath) -> Result<Box<dyn NewFile>, FileError> {
        let file = self.files.begin(path)?;
        Ok(match self.slip {
            Slip::LeavesTemporary | Slip::Clobbers => Box::new(SlippingFile { file: Some(file), slip: self.slip }),
            _ => file,
        })
    }

    fn replace(&self, path: &WorkspacePath, replacement: &Replacement<'_>) -> Result<FileStat, FileError> {
        match self.slip {
            Slip::IgnoresConflicts => {
                self.files.replace(path, &Replacement { expected: Expected::Any, ..replacement.clone() })
            }
            Slip::Unsynced => {
                self.files.scribble(&path.to_string(), replacement.bytes);
                self.files.stat(path, Links::Follow)
            }
            _ => self.files.replace(path, replacement),
        }
    }

    fn remove(&self, path: &WorkspacePath, expected: &Expected) -> Result<(), FileError> {
        self.files.remove(path, expected)
    }

    fn change_together(&self, changes: &[FileChange<'_>], go_on: &dyn Fn() -> bool) -> Result<(), TogetherError> {
        match self.slip {
            Slip::StopsHalf => self.some(&changes[..changes.len().div_ceil(2)], go_on),
            Slip::KeepsHalf => self.some(changes, go_on),
            Slip::BelievesFailures if changes.iter().all(|change| matches!(change, FileChange::Put { .. })) => {
                self.believing(changes)
            }
            _ => self.files.change_together(changes, go_on),
        }
    }
}

/// A log that is read up to the first step that was completed.
struct Forgetful {
    log: Box<dyn LogFile>,
}

impl LogFile for Forgetful {
    fn read(&mut self, bytes_max: u64) -> std::io::Result<Vec<u8>> {
        let whole = self.log.read(bytes_max)?;
        let lines = whole.split_inclusive(|byte| *byte == b'\n');
        let is_before = |line: &&[u8]| !String::from_utf8_lossy(line).contains("\"StepCompleted\"");
        Ok(lines.take_while(is_before).flatten().copied().collect())
    }

    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.log.append(bytes)
    }

    fn cut(&mut self, bytes: u64) -> std::io::Result<()> {
        self.log.cut(bytes)
    }
}

/// A file in pieces that is broken in one way.
struct SlippingFile {
    file: Option<Box<dyn NewFile>>,
    slip: Slip,
}

impl SlippingFile {
    fn file(&self) -> Result<&dyn NewFile, FileError> {
        self.file.as_deref().ok_or_else(|| FileError::NotFound { path: String::new() })
    }
}

impl NewFile for SlippingFile {
    fn reserve(&self, bytes: u64) -> Result<(), FileError> {
        self.file()?.reserve(bytes)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> Result<(), FileError> {
        self.file()?.write_at(bytes, at)
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> Result<usize, FileError> {
        self.file()?.read_at(buffer, at)
    }

    fn set_size(&self, bytes: u64) -> Result<(), FileError> {
        self.file()?.set_size(bytes)
    }

    fn put(&self, expected: &Expected, goes_on: &dyn Fn() -> Result<(), CancelReason>) -> Result<FileStat, FileError> {
        let any = Expected::Any;
        self.file()?.put(if self.slip == Slip::Clobbers { &any } else { expected }, goes_on)
    }
}

impl Drop for SlippingFile {
    fn drop(&mut self) {
        if self.slip == Slip::LeavesTemporary {
            // Never taken away: what a way out without its cleaning does.
            std::mem::forget(self.file.take());
        }
    }
}

/// How a tool is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bend {
    Reversed,
    Twice,
    Boasts,
}

impl Fault for Bend {
    fn call<'a>(&'a self, tool: &'a dyn Tool, ctx: &'a ToolContext, mut arguments: Value) -> ToolFuture<'a> {
        Box::pin(async move {
            match self {
                Bend::Reversed => {
                    if let Some(calls) = arguments.get_mut("invocations").and_then(Value::as_array_mut) {
                        calls.reverse();
                    }
                    tool.call(ctx, arguments).await
                }
                Bend::Twice => {
                    let once = tool.call(ctx, arguments.clone()).await;
                    if once.is_success() {
                        tool.call(ctx, arguments).await;
                    }
                    once
                }
                Bend::Boasts => match tool.call(ctx, arguments).await {
                    outcome if outcome.is_success() => outcome,
                    _ => ToolOutcome::success("written"),
                },
            }
        })
    }
}
